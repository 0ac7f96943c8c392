//! The domains behind the program's handles of XRC domains. A file identifies a domain within one open device: the
//! handles opened with this file share the domain. Other processes have their own domains.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rdma_verbs::provider::{self, ProtectionDomain, XrcDomain};

use crate::error::{Errno, INVALID, Result};

/// State shared by the handles of one domain.
pub(crate) struct Domain {
    pub(crate) inner: Arc<dyn XrcDomain>,
    /// The protection domain of its latest shared receive queue: C programs create targets without one, and peers
    /// access this domain's memory through them.
    pub(crate) protection: Mutex<Option<Arc<dyn ProtectionDomain>>>,
    /// The file that identifies the domain, kept open while the domain lives, so that no other file gets its inode
    /// number.
    _file: Option<File>,
}

impl Domain {
    /// Opens a new domain, which a file may identify.
    pub(crate) fn open(device: &dyn provider::Context, file: Option<File>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { inner: device.open_xrcd()?, protection: Mutex::default(), _file: file }))
    }

    /// Returns the protection domain for a target that was created without one.
    pub(crate) fn protection(&self, device: &dyn provider::Context) -> Result<Arc<dyn ProtectionDomain>> {
        let known = self.protection.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.map_or_else(|| Ok(device.alloc_pd()?), Ok)
    }
}

/// Domains by the file that identifies them: device and inode number.
#[derive(Default)]
pub(crate) struct SharedDomains(Mutex<HashMap<(u64, u64), Weak<Domain>>>);

impl SharedDomains {
    /// Opens the domain that a file identifies, according to the flags of `open`.
    pub(crate) fn open(&self, device: &dyn provider::Context, file: File, flags: c_int) -> Result<Arc<Domain>> {
        let about = file.metadata().map_err(|_| Errno(libc::EBADF))?;
        let identity = (about.dev(), about.ino());
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, domain| domain.strong_count() > 0);
        match known.get(&identity).and_then(Weak::upgrade) {
            Some(_) if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 => Err(INVALID),
            Some(domain) => Ok(domain),
            None if flags & libc::O_CREAT == 0 => Err(Errno(libc::EAGAIN)),
            None => {
                let domain = Domain::open(device, Some(file))?;
                known.insert(identity, Arc::downgrade(&domain));
                Ok(domain)
            }
        }
    }
}
