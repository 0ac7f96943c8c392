//! XRC domains. A file names a domain within one open device: the handles opened with it share the domain. Other
//! processes have domains of their own.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rdma_verbs::provider::{ProtectionDomain, XrcDomain, abi};

use crate::context::{Shared, shared_of};
use crate::error::{Errno, INVALID, Result, UNSUPPORTED, number, pointer};
use crate::object::{Object, make, own, take};
use crate::usage::Users;

/// Bits of `ibv_xrcd_init_attr_mask`: both are required.
const KNOWN: u32 = 3;

/// The state behind a domain.
pub(crate) struct Xrcd {
    shared: Arc<Shared>,
    pub(crate) inner: Arc<Domain>,
    pub(crate) users: Users,
}

impl Object for abi::Xrcd {
    type Own = Xrcd;
}

/// State shared by the handles of one domain.
pub(crate) struct Domain {
    pub(crate) inner: Arc<dyn XrcDomain>,
    /// The protection domain of its latest shared receive queue: C programs create targets without one, and peers
    /// access this domain's memory through them.
    pub(crate) protection: Mutex<Option<Arc<dyn ProtectionDomain>>>,
    /// The file that names the domain, open while the domain lives, so that no other file gets the inode number.
    _file: Option<File>,
}

impl Domain {
    fn open(shared: &Shared, file: Option<File>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { inner: shared.device.open_xrcd()?, protection: Mutex::default(), _file: file }))
    }

    /// Returns the protection domain for a target that was created without one.
    pub(crate) fn protection(&self, shared: &Shared) -> Result<Arc<dyn ProtectionDomain>> {
        let known = self.protection.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.map_or_else(|| Ok(shared.device.alloc_pd()?), Ok)
    }
}

/// Domains by the file that names them: device and inode number.
#[derive(Default)]
pub(crate) struct SharedDomains(Mutex<HashMap<(u64, u64), Weak<Domain>>>);

impl SharedDomains {
    fn open(&self, shared: &Shared, file: File, flags: c_int) -> Result<Arc<Domain>> {
        let about = file.metadata().map_err(|_| Errno(libc::EBADF))?;
        let identity = (about.dev(), about.ino());
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, domain| domain.strong_count() > 0);
        match known.get(&identity).and_then(Weak::upgrade) {
            Some(_) if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 => Err(INVALID),
            Some(domain) => Ok(domain),
            None if flags & libc::O_CREAT == 0 => Err(Errno(libc::EAGAIN)),
            None => {
                let domain = Domain::open(shared, Some(file))?;
                known.insert(identity, Arc::downgrade(&domain));
                Ok(domain)
            }
        }
    }
}

fn open(shared: &Arc<Shared>, context: *mut abi::Context, init: &abi::XrcdInitAttr) -> Result<*mut abi::Xrcd> {
    if init.comp_mask & !KNOWN != 0 {
        return Err(UNSUPPORTED);
    }
    if init.comp_mask & KNOWN != KNOWN {
        return Err(INVALID);
    }
    let inner = if init.fd == -1 {
        Domain::open(shared, None)?
    } else if init.fd < 0 {
        return Err(Errno(libc::EBADF));
    } else {
        // SAFETY: the program's descriptor, borrowed for this call; if it is not open, the call fails.
        let copy = unsafe { BorrowedFd::borrow_raw(init.fd) }.try_clone_to_owned().map_err(|_| Errno(libc::EBADF))?;
        shared.xrc_domains.open(shared, File::from(copy), init.oflags)?
    };
    let visible = abi::Xrcd { context };
    Ok(make(visible, Xrcd { shared: Arc::clone(shared), inner, users: Users::default() }))
}

pub(crate) unsafe extern "C" fn open_xrcd(context: *mut abi::Context, init: *mut abi::XrcdInitAttr) -> *mut abi::Xrcd {
    // SAFETY: the program's context and structure.
    pointer(unsafe { open(shared_of(context), context, &*init) })
}

pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut abi::Xrcd) -> c_int {
    // SAFETY: the program's domain.
    let domain = unsafe { own(xrcd) };
    let free = domain.shared.check_process("close_xrcd").and_then(|()| domain.users.check_none());
    // SAFETY: the program gives it up, and nothing uses it.
    number(free.map(|()| drop(unsafe { take(xrcd) })))
}
