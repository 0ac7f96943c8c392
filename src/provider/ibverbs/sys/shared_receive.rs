//! Shared receive queues and XRC domains.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, PoisonError, RwLock};

use super::abi;
use super::completion::CompletionQueue;
use super::context::{Context, slot};
use super::memory::ProtectionDomain;
use super::{check, not_supported};

/// `ibv_xrcd`.
pub(in super::super) struct XrcDomain {
    raw: NonNull<abi::Xrcd>,
    context: Arc<Context>,
}

// SAFETY: see the module's documentation.
unsafe impl Send for XrcDomain {}
// SAFETY: as above.
unsafe impl Sync for XrcDomain {}

impl XrcDomain {
    /// Opens a domain of this process alone.
    pub(in super::super) fn open(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        let open = slot!(context, open_xrcd).ok_or_else(not_supported)?;
        let mut attributes = abi::XrcdInitAttr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
        // SAFETY: the context and the attributes live.
        let raw = unsafe { open(context.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    pub(super) fn raw(&self) -> *mut abi::Xrcd {
        self.raw.as_ptr()
    }
}

impl Drop for XrcDomain {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        // SAFETY: objects that were created in it hold it, so this is the last use.
        let closed = slot!(self.context, close_xrcd).map_or(0, |close| unsafe { close(self.raw()) });
        if closed != 0 {
            tracing::warn!(
                target: "rdma_verbs::queue_pair",
                device = self.context.info().name, "an XRC domain could not be closed"
            );
        }
    }
}

/// `ibv_srq`.
pub(in super::super) struct SharedReceiveQueue {
    /// Empty once it is destroyed.
    raw: RwLock<Option<NonNull<abi::Srq>>>,
    /// XRC domain and completion queue, for XRC queues.
    _xrc: Option<(Arc<XrcDomain>, Arc<CompletionQueue>)>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: see the module's documentation.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// Creates a queue; events return `number`. Returns the actual sizes too.
    pub(in super::super) fn create(
        domain: &Arc<ProtectionDomain>,
        number: u64,
        attributes: abi::SrqAttr,
        xrc: Option<(&Arc<XrcDomain>, &Arc<CompletionQueue>)>,
    ) -> io::Result<(Self, abi::SrqAttr)> {
        let context = domain.context();
        let srq_context = ptr::without_provenance_mut(number as usize);
        let (raw, actual) = match xrc {
            None => {
                let mut init = abi::SrqInitAttr { srq_context, attr: attributes };
                // SAFETY: the domain and the attributes live.
                (unsafe { (context.functions.create_srq)(domain.raw(), &raw mut init) }, init.attr)
            }
            Some((xrc_domain, cq)) => {
                let create = slot!(context, create_srq_ex).ok_or_else(not_supported)?;
                let mut init = abi::SrqInitAttrEx {
                    srq_context,
                    attr: attributes,
                    comp_mask: 0xf,
                    srq_type: 1,
                    pd: domain.raw(),
                    xrcd: xrc_domain.raw(),
                    cq: cq.raw(),
                    tm_cap: [0; 2],
                };
                // SAFETY: the context, the attributes and all that they name live.
                (unsafe { create(context.raw(), &raw mut init) }, init.attr)
            }
        };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let xrc = xrc.map(|(domain, cq)| (Arc::clone(domain), Arc::clone(cq)));
        Ok((Self { raw: RwLock::new(Some(raw)), _xrc: xrc, domain: Arc::clone(domain) }, actual))
    }

    /// Runs `use_it` with the pointer, unless the queue is destroyed.
    pub(super) fn with<R>(&self, use_it: impl FnOnce(*mut abi::Srq) -> R) -> Option<R> {
        let raw = self.raw.read().unwrap_or_else(PoisonError::into_inner);
        (*raw).map(|raw| use_it(raw.as_ptr()))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }

    /// Returns the number that peers name it by, if it has one.
    pub(in super::super) fn srq_num(&self) -> Option<u32> {
        let get = slot!(self.context(), get_srq_num)?;
        let mut number = 0;
        // SAFETY: the queue and the number live.
        let result = self.with(|raw| check(unsafe { get(raw, &raw mut number) }))?;
        result.ok().map(|()| number)
    }

    /// `None` once it is destroyed.
    pub(in super::super) fn modify(&self, attributes: &abi::SrqAttr, mask: i32) -> Option<io::Result<()>> {
        let mut attributes = *attributes;
        let modify = self.context().functions.modify_srq;
        // SAFETY: the queue and the attributes live.
        self.with(|raw| check(unsafe { modify(raw, &raw mut attributes, mask) }))
    }

    /// `None` once it is destroyed.
    pub(in super::super) fn query(&self) -> Option<io::Result<abi::SrqAttr>> {
        let mut attributes = abi::SrqAttr::default();
        let query = self.context().functions.query_srq;
        // SAFETY: the queue and the attributes live.
        self.with(|raw| check(unsafe { query(raw, &raw mut attributes) }).map(|()| attributes))
    }

    /// Destroys it; false if that was done already.
    pub(in super::super) fn destroy(&self) -> io::Result<bool> {
        let mut raw = self.raw.write().unwrap_or_else(PoisonError::into_inner);
        let Some(pointer) = *raw else { return Ok(false) };
        // SAFETY: nothing else uses the pointer while the lock is held for writing.
        check(unsafe { (self.context().functions.destroy_srq)(pointer.as_ptr()) })?;
        *raw = None;
        Ok(true)
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        if !self.context().is_inherited()
            && let Err(error) = self.destroy()
        {
            tracing::warn!(target: "rdma_verbs::queue_pair", %error, "a shared receive queue could not be destroyed");
        }
    }
}
