//! XRC domains: the handles that programs have.

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rdma_verbs::provider::abi;

use crate::error::{Errno, INVALID, Result, UNSUPPORTED, number, pointer};
use crate::object::{Object, make, own, take};
use crate::shared::{Shared, shared_of};
use crate::usage::Users;
use crate::xrc_domain::Domain;

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

fn open(shared: &Arc<Shared>, context: *mut abi::Context, init: &abi::XrcdInitAttr) -> Result<*mut abi::Xrcd> {
    if init.comp_mask & !KNOWN != 0 {
        return Err(UNSUPPORTED);
    }
    if init.comp_mask & KNOWN != KNOWN {
        return Err(INVALID);
    }
    let inner = if init.fd == -1 {
        Domain::open(&*shared.device, None)?
    } else if init.fd < 0 {
        return Err(Errno(libc::EBADF));
    } else {
        // SAFETY: the program's descriptor, borrowed for this call; if it is not open, the call fails.
        let copy = unsafe { BorrowedFd::borrow_raw(init.fd) }.try_clone_to_owned().map_err(|_| Errno(libc::EBADF))?;
        shared.xrc_domains.open(&*shared.device, File::from(copy), init.oflags)?
    };
    let visible = abi::Xrcd { context };
    Ok(make(visible, Xrcd { shared: Arc::clone(shared), inner, users: Users::default() }))
}

/// Opens a domain that no file identifies.
pub(crate) fn open_new(shared: &Arc<Shared>, context: *mut abi::Context) -> Result<*mut abi::Xrcd> {
    open(shared, context, &abi::XrcdInitAttr { comp_mask: KNOWN, fd: -1, oflags: libc::O_CREAT })
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
