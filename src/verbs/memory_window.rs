//! Memory windows.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{
    AccessFlags, Error, ErrorKind, MemoryWindowType, Payload, ProtectionDomain, QueuePair, RegionRange, RemoteMemory,
    Result, Rkey, SendRequest,
};
use crate::provider;
use crate::types::{Lkey, Operation, SendFlags};

/// A memory window (`ibv_mw`): a separate key that gives peers access to part of a region until it is invalidated.
///
/// A window of type 1 is bound by [`QueuePair::bind_mw`], which generates a new key each time. Peers can access it
/// through any queue pair of its protection domain.
///
/// A window of type 2 is bound by [`SendRequest::bind_mw`], under a key whose lower eight bits the program chooses.
/// Peers can access it only through the queue pair that bound it (the standard's type 2B). Before it can be bound
/// again, its key must be invalidated: by [`SendRequest::local_invalidate`], or by the peer's
/// [`SendRequest::send_with_invalidate`].
///
/// Both types are bound by the send queue, in order. A bind begins when all earlier requests of the queue pair are
/// complete, and later ones begin after it, so a message that sends the key to the peer may be posted immediately after
/// the bind. A bind that fails completes with [`CompletionStatus::MemoryWindowBindError`](super::CompletionStatus) and
/// moves the queue pair to the error state. The region needs [`AccessFlags::MEMORY_WINDOW_BIND`], and
/// [`AccessFlags::LOCAL_WRITE`] if peers may write; it needs no remote access flags.
///
/// Dropping a window invalidates its key; deregistering the region invalidates its windows.
///
/// ```
/// use std::time::Duration;
/// use rdma_verbs::verbs::{self, AccessFlags, MemoryWindowBind, MemoryWindowType, Payload, SendRequest};
///
/// # let context = verbs::open("soft:127.0.1.16")?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// # let qp = pd.create_qp_with(&cq, &cq, &verbs::QueuePairOptions::default().max_inline_data(8))?;
/// # qp.connect(&qp.connection_info()?)?; // to itself
/// let mr = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND)?;
/// let window = pd.alloc_mw(MemoryWindowType::Type2)?;
/// let bind = MemoryWindowBind::new(mr.slice(1024..2048)?, AccessFlags::REMOTE_WRITE);
/// let key = window.rkey_with(1);
/// // For the peer, which is this queue pair itself: `remote` gives access to that kilobyte and nothing else.
/// let remote = bind.remote(key);
/// qp.post_send(&[
///     SendRequest::bind_mw(&window, 1, &bind)?,
///     SendRequest::write(Payload::inline(b"hello"), remote),
///     SendRequest::local_invalidate(key).signaled(),
/// ])?;
/// cq.wait(Duration::from_secs(10))?.result()?;
/// assert_eq!(mr.to_vec(1024..1029)?, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_mw")]
pub struct MemoryWindow {
    inner: Arc<dyn provider::MemoryWindow>,
    domain: ProtectionDomain,
    /// The key of the last posted bind (type 1), or the key it was allocated with.
    key: AtomicU32,
}

impl MemoryWindow {
    pub(super) fn new(domain: ProtectionDomain, inner: Arc<dyn provider::MemoryWindow>) -> Self {
        let key = AtomicU32::new(inner.rkey().0);
        Self { inner, domain, key }
    }

    /// Returns the window's type.
    pub fn kind(&self) -> MemoryWindowType {
        self.inner.kind()
    }

    /// Returns the protection domain that the window belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Returns the key that peers use for the window: for type 1, that of the last posted bind; for type 2, that of the
    /// last executed bind.
    pub fn rkey(&self) -> Rkey {
        match self.kind() {
            MemoryWindowType::Type1 => Rkey(self.key.load(Ordering::Acquire)),
            MemoryWindowType::Type2 => self.inner.rkey(),
        }
    }

    /// Returns the key that a bind with `tag` gives the window: its upper 24 bits, with the tag as the lower eight.
    ///
    /// ```
    /// # use rdma_verbs::verbs::{self, MemoryWindowType};
    /// let window = verbs::open("soft:127.0.1.17")?.alloc_pd()?.alloc_mw(MemoryWindowType::Type2)?;
    /// assert_eq!(window.rkey_with(0x5a).0, window.rkey().0 & !0xff | 0x5a);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_inc_rkey")]
    pub fn rkey_with(&self, tag: u8) -> Rkey {
        Rkey(self.key.load(Ordering::Acquire) & !0xff | u32::from(tag))
    }

    /// Posts a bind that gives a window of type 1 this key. The caller has locked the send queue, and `post` unlocks it
    /// after the key is recorded, so that the next bind there chooses another key. If the bind is not posted, the
    /// window has its previous key again, unless another bind followed.
    pub(crate) fn post_bind_of_type1(&self, key: Rkey, post: impl FnOnce() -> Result<()>) -> Result<()> {
        let previous = self.key.swap(key.0, Ordering::AcqRel);
        post().inspect_err(|_| {
            let _ = self.key.compare_exchange(key.0, previous, Ordering::AcqRel, Ordering::Relaxed);
        })
    }

    /// Deallocates the window, bound or not (`ibv_dealloc_mw`): once it returns, no peer accesses memory through it.
    /// Dropping the window does the same.
    ///
    /// # Errors
    /// Any provider error; the software transport never fails.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc(self) -> Result<()> {
        self.inner.dealloc()
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        if let Err(error) = self.inner.dealloc() {
            tracing::warn!(target: "rdma_verbs::memory", %error, "a dropped memory window could not be deallocated");
        }
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow").field("kind", &self.kind()).field("rkey", &self.rkey()).finish_non_exhaustive()
    }
}

/// The range and access flags of a bind (`ibv_mw_bind_info`), and the options of its request.
#[doc(alias = "ibv_mw_bind")]
#[derive(Clone, Copy, Debug)]
pub struct MemoryWindowBind<'a> {
    range: Option<RegionRange<'a>>,
    access: AccessFlags,
    wr_id: u64,
    flags: SendFlags,
}

impl<'a> MemoryWindowBind<'a> {
    /// Creates a bind that gives peers access to `range` as `access` specifies: remote flags, and those flush flags
    /// that the region has. Peers address its bytes by the region's addresses or, with [`AccessFlags::ZERO_BASED`]
    /// (type 2 only), by offsets from 0.
    pub fn new(range: impl Into<RegionRange<'a>>, access: AccessFlags) -> Self {
        Self { range: Some(range.into()), access, wr_id: 0, flags: SendFlags::empty() }
    }

    /// Creates a bind that unbinds a type 1 window. A type 2 window is unbound by invalidating its key.
    pub fn unbind() -> Self {
        Self { range: None, access: AccessFlags::empty(), wr_id: 0, flags: SendFlags::empty() }
    }

    /// Sets a caller-defined number that the completion returns; 0 by default.
    pub fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    /// Requests a completion also on success. Failures always generate one.
    pub fn signaled(mut self) -> Self {
        self.flags |= SendFlags::SIGNALED;
        self
    }

    /// Returns what a peer needs to access the window bound under `rkey`: address, key and length.
    pub fn remote(&self, rkey: Rkey) -> RemoteMemory {
        let (addr, length) = self.range.map_or((0, 0), |range| range.extent());
        let base = if self.access.contains(AccessFlags::ZERO_BASED) { 0 } else { addr };
        RemoteMemory::new(base, rkey, length)
    }

    fn request<'w>(&self, window: &'w MemoryWindow, rkey: Rkey) -> SendRequest<'w>
    where
        'a: 'w,
    {
        let (addr, length) = self.range.map_or((0, 0), |range| range.extent());
        let lkey = self.range.map_or(Lkey(0), |range| range.region().lkey());
        let operation = Operation::BindMemoryWindow { rkey, lkey, addr, length, access: self.access };
        let mut request = SendRequest::new(operation, Payload::EMPTY, u64::MAX);
        (request.wr_id, request.flags) = (self.wr_id, self.flags);
        request.window = Some(window);
        request.bound_region = self.range.map(|range| range.region());
        request
    }

    /// Returns the request that binds a window of type 1, and the window's new key, for
    /// [`MemoryWindow::post_bind_of_type1`]. `instead` binds windows of type 2.
    pub(crate) fn request_of_type1<'w>(
        &self,
        window: &'w MemoryWindow,
        instead: &str,
    ) -> Result<(SendRequest<'w>, Rkey)>
    where
        'a: 'w,
    {
        check_kind("bind_mw", window, MemoryWindowType::Type1, instead)?;
        let old = window.key.load(Ordering::Acquire);
        let key = Rkey(old & !0xff | (old.wrapping_add(1) & 0xff));
        Ok((self.request(window, key), key))
    }

    /// Returns the number that [`MemoryWindowBind::wr_id`] set.
    pub(crate) fn number(&self) -> u64 {
        self.wr_id
    }
}

/// Refuses a window, or a region to bind it to, of a different device context than the queue pair's: there, its key may
/// belong to another object.
pub(super) fn check_device(queue_pair: &QueuePair, what: &str, domain: &ProtectionDomain) -> Result<()> {
    let own = queue_pair.protection_domain().context();
    if domain.context().is_same(own) {
        return Ok(());
    }
    let message = format!(
        "{what} belongs to {}; it must come from the same opened device as the queue pair: {own}",
        domain.context()
    );
    Err(Error::new("post_send", ErrorKind::InvalidArgument, message))
}

fn check_kind(verb: &'static str, window: &MemoryWindow, allowed: MemoryWindowType, instead: &str) -> Result<()> {
    if window.kind() == allowed {
        return Ok(());
    }
    let message = format!("mw is of {:?}; only {allowed:?} is bound this way, use {instead}", window.kind());
    Err(Error::unsuitable(verb, "mw", message))
}

impl<'a> SendRequest<'a> {
    /// Binds a window of type 2; its new key is [`MemoryWindow::rkey_with`] `tag`. The request takes its `wr_id` and
    /// flags from `bind`.
    ///
    /// # Errors
    /// The window is of type 1.
    ///
    /// See [`MemoryWindow`] for an example.
    #[doc(alias("IBV_WR_BIND_MW", "ibv_wr_bind_mw"))]
    pub fn bind_mw(window: &'a MemoryWindow, tag: u8, bind: &MemoryWindowBind<'a>) -> Result<Self> {
        check_kind("post_send", window, MemoryWindowType::Type2, "QueuePair::bind_mw")?;
        Ok(bind.request(window, window.rkey_with(tag)))
    }
}

impl QueuePair {
    /// Posts a bind of a window of type 1 (`ibv_bind_mw`) and returns its new key; the old key becomes invalid when the
    /// request is executed. The bind occupies a slot of the send queue and completes there as
    /// [`CompletionOpcode::BindMemoryWindow`](super::CompletionOpcode::BindMemoryWindow).
    ///
    /// # Errors
    /// The window is of type 2; otherwise, as for [`QueuePair::post_send`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rdma_verbs::verbs::{self, AccessFlags, MemoryWindowBind, MemoryWindowType, Payload, SendRequest};
    /// # let context = verbs::open("soft:127.0.1.18")?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let qp = pd.create_qp_with(&cq, &cq, &verbs::QueuePairOptions::default().max_inline_data(8))?;
    /// # qp.connect(&qp.connection_info()?)?; // to itself
    /// let mr = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND)?;
    /// let window = pd.alloc_mw(MemoryWindowType::Type1)?;
    /// let bind = MemoryWindowBind::new(mr.slice(8..16)?, AccessFlags::REMOTE_WRITE);
    /// let remote = bind.remote(qp.bind_mw(&window, &bind)?);
    /// qp.post_send(&[SendRequest::write(Payload::inline(b"hello"), remote).signaled()])?;
    /// cq.wait(Duration::from_secs(10))?.result()?;
    /// qp.bind_mw(&window, &MemoryWindowBind::unbind().signaled())?;
    /// cq.wait(Duration::from_secs(10))?.result()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_mw(&self, window: &MemoryWindow, bind: &MemoryWindowBind<'_>) -> Result<Rkey> {
        // While the batch is open, no other thread posts to this queue. Two queue pairs that bind one window
        // concurrently may choose the same key; the later bind wins, as it would with two keys.
        let mut batch = self.send_batch()?;
        let (request, key) = bind.request_of_type1(window, "SendRequest::bind_mw")?;
        batch.push(&request)?;
        window.post_bind_of_type1(key, || batch.post())?;
        Ok(key)
    }
}
