//! Queue pairs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::open_batch::Poster;
use super::{
    AccessFlags, AsyncEvent, CompletionError, CompletionQueue, Context, Counters, Error, ErrorKind, KeyShare,
    ProtectionDomain, Psn, Qkey, Qpn, QueuePairAttributes, QueuePairCapabilities, QueuePairReport, QueuePairState,
    QueuePairStatus, QueuePairType, RateLimit, ReceiveBatch, ReceiveRequest, Result, SendBatch, SendRequest,
    SharedReceiveQueue, XrcDomain, explain,
};
use crate::provider;
use crate::types::CompletionSource;

/// The settings of [`QueuePair::init`], [`QueuePair::connection_info`] and [`QueuePair::connect`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) qp_type: QueuePairType,
    pub(super) port_num: u8,
    pub(super) gid_index: u8,
    pub(super) access: AccessFlags,
    pub(super) qkey: Qkey,
    pub(super) max_dest_rd_atomic: Option<u8>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            qp_type: QueuePairType::ReliableConnection,
            port_num: 1,
            gid_index: 0,
            access: AccessFlags::REMOTE,
            qkey: Qkey(0),
            max_dest_rd_atomic: None,
        }
    }
}

/// Sources of receives other than the queue pair's own queue.
#[derive(Default)]
pub(super) struct Sources {
    pub(super) srq: Option<SharedReceiveQueue>,
    pub(super) xrc_domain: Option<XrcDomain>,
}

/// A queue pair (`ibv_qp`): one end of a connection, with a send queue and a receive queue.
///
/// It is created in RESET; [`QueuePair::connect`] moves it through INIT and RTR to RTS, and [`QueuePair::modify`]
/// performs any single transition, with all attributes.
///
/// Dropping it destroys the queue pair: it no longer sends or receives, and its completions are removed from its
/// completion queues. To keep them, move to [`QueuePairState::Error`] first and poll until all requests are flushed.
///
/// ```
/// use std::time::Duration;
/// use rdma_verbs::verbs::{self, AccessFlags, Payload, ReceiveRequest, SendRequest};
///
/// // Two devices on two loopback addresses; they could be two machines.
/// let mut ends = Vec::new();
/// for name in ["soft:127.0.1.81", "soft:127.0.1.82"] {
///     let context = verbs::open(name)?;
///     let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
///     let qp = pd.create_qp(&cq, &cq)?;
///     ends.push((pd, cq, qp));
/// }
/// let [(_, left_cq, left), (right_pd, right_cq, right)] = &ends[..] else { unreachable!() };
///
/// let inbox = right_pd.alloc_mr(64, AccessFlags::LOCAL_WRITE)?;
/// right.init()?;
/// right.post_recv(&[ReceiveRequest::new(&inbox)])?;
/// left.connect(&right.connection_info()?)?;
/// right.connect(&left.connection_info()?)?;
///
/// left.post_send(&[SendRequest::send(Payload::inline(b"hello")).signaled()])?;
/// let received = right_cq.wait(Duration::from_secs(10))?.result()?;
/// assert_eq!(inbox.to_vec(..received.byte_len as usize)?, b"hello");
/// left_cq.wait(Duration::from_secs(10))?.result()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("ibv_qp", "ibv_destroy_qp"))]
pub struct QueuePair {
    inner: Arc<dyn provider::QueuePair>,
    domain: ProtectionDomain,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    sources: Sources,
    settings: Settings,
    cap: QueuePairCapabilities,
    identity: Mutex<Identity>,
    sends: Poster,
    receives: Poster,
}

impl QueuePair {
    pub(super) fn new(
        inner: Arc<dyn provider::QueuePair>,
        domain: ProtectionDomain,
        [send_cq, recv_cq]: [CompletionQueue; 2],
        sources: Sources,
        settings: Settings,
    ) -> Result<Self> {
        let cap = inner.query()?.cap;
        let identity = Mutex::new(Identity::random("create_qp")?);
        let (sends, receives) = (Poster::default(), Poster::default());
        Ok(Self { inner, domain, send_cq, recv_cq, sources, settings, cap, identity, sends, receives })
    }

    /// Returns the queue pair's number, by which peers address it.
    pub fn qpn(&self) -> Qpn {
        self.inner.qpn()
    }

    /// Returns the transport service.
    pub fn qp_type(&self) -> QueuePairType {
        self.settings.qp_type
    }

    /// Returns the actual sizes of its queues, at least those requested.
    pub fn cap(&self) -> QueuePairCapabilities {
        self.cap
    }

    /// Returns the protection domain that the queue pair belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Returns the device that the queue pair belongs to.
    pub fn context(&self) -> &Context {
        self.domain.context()
    }

    /// Returns the completion queue of its send requests.
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.send_cq
    }

    /// Returns the completion queue of its receives.
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.recv_cq
    }

    /// Returns the shared receive queue that it takes its receives from; `None` if it has a receive queue of its own,
    /// or is part of an extended reliable connection.
    ///
    /// ```
    /// # use rdma_verbs::verbs::{self, QueuePairOptions};
    /// let context = verbs::open("soft:127.45.1.1")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let srq = pd.create_srq(8, 1)?;
    /// let qp = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().srq(&srq))?;
    /// assert_eq!(qp.srq().map(|srq| srq.number()), Some(srq.number()));
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.sources.srq.as_ref()
    }

    /// Returns the domain whose shared receive queues its messages go to, if it is the target of an extended reliable
    /// connection.
    ///
    /// ```
    /// # use rdma_verbs::verbs::{self, QueuePairOptions};
    /// let context = verbs::open("soft:127.45.1.2")?;
    /// let (pd, cq, domain) = (context.alloc_pd()?, context.create_cq(16)?, context.open_xrcd()?);
    /// let target = QueuePairOptions::default().xrc_target(&domain);
    /// assert!(pd.create_qp_with(&cq, &cq, &target)?.xrc_domain().is_some());
    /// assert!(pd.create_qp(&cq, &cq)?.xrc_domain().is_none());
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn xrc_domain(&self) -> Option<&XrcDomain> {
        self.sources.xrc_domain.as_ref()
    }

    /// Changes state and attributes, all or nothing (`ibv_modify_qp`).
    ///
    /// The standard's table, as implemented in Linux, specifies which attributes a transition requires and allows. For
    /// a reliable connection:
    ///
    /// * RESET to INIT requires `pkey_index`, `port_num`, `qp_access_flags`; INIT to INIT allows them.
    /// * INIT to RTR requires `ah_attr`, `path_mtu`, `dest_qp_num`, `rq_psn`, `max_dest_rd_atomic`, `min_rnr_timer`,
    ///   and allows `pkey_index`, `qp_access_flags`.
    /// * RTR to RTS requires `timeout`, `retry_cnt`, `rnr_retry`, `sq_psn`, `max_rd_atomic`, and allows `cur_qp_state`,
    ///   `qp_access_flags`, `min_rnr_timer`; RTS to RTS and SQD to RTS allow the last three.
    /// * RTS to SQD allows `en_sqd_async_notify`. Once drained, SQD to SQD changes `ah_attr`, `timeout`, `retry_cnt`,
    ///   `rnr_retry`, `max_rd_atomic`, `max_dest_rd_atomic`, `min_rnr_timer`, `qp_access_flags`, `pkey_index`,
    ///   `port_num`.
    /// * Any state to RESET, and any but RESET to ERR, takes no other attributes.
    ///
    /// An unreliable connection has no `max_dest_rd_atomic`, `min_rnr_timer`, `timeout`, `retry_cnt`, `rnr_retry` and
    /// `max_rd_atomic`; datagrams have a `qkey` instead of access flags and a path. SQE to RTS exists only for these
    /// two services.
    ///
    /// `peer` gives the peer's capabilities beyond the standard, at INIT to RTR; without it, the peer is treated as a
    /// standard peer.
    ///
    /// # Errors
    /// The transition does not exist, or an attribute is missing, not allowed here or out of range; the message names
    /// it.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, AccessFlags, QueuePairAttributes, QueuePairState};
    ///
    /// let context = verbs::open("soft:127.0.1.83")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let qp = pd.create_qp(&cq, &cq)?;
    /// let init = QueuePairAttributes::default().qp_state(QueuePairState::Init).pkey_index(0).port_num(1);
    /// qp.modify(&init.qp_access_flags(AccessFlags::REMOTE_READ))?;
    /// assert_eq!(qp.state()?, QueuePairState::Init);
    ///
    /// let rts = QueuePairAttributes::default().qp_state(QueuePairState::ReadyToSend);
    /// assert!(qp.modify(&rts).is_err());
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attributes: &QueuePairAttributes) -> Result<()> {
        self.inner.modify(attributes)
    }

    /// Limits the queue pair's send rate, or removes the limit (`ibv_modify_qp_rate_limit`), in any state; RESET also
    /// removes it. The limit counts the packets of its requests, headers included, and the responses that its READs
    /// request. Responses to the peer are not limited. On a path to another host, the path's pacing applies as well.
    ///
    /// Packets within a burst are not spaced; the next burst waits until the limit covers the last. Waiting consumes no
    /// retries.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::provider::ErrorKind::Unsupported) if the device has no rate limits; otherwise,
    /// the device does not support this limit.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, RateLimit};
    ///
    /// let context = verbs::open("soft:127.0.1.95")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let qp = pd.create_qp(&cq, &cq)?;
    /// // 100 Mbit/s, 16 KiB at once.
    /// qp.limit_rate(&RateLimit::default().rate_limit(100_000).max_burst_sz(16_384))?;
    /// qp.limit_rate(&RateLimit::default())?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_modify_qp_rate_limit")]
    pub fn limit_rate(&self, limit: &RateLimit) -> Result<()> {
        self.inner.limit_rate(limit)
    }

    /// Returns the current state and attributes (`ibv_query_qp`), including changes caused by failures.
    ///
    /// # Errors
    /// Any provider error.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QueuePairStatus> {
        self.inner.query()
    }

    /// Returns the current state.
    ///
    /// # Errors
    /// Any provider error.
    pub fn state(&self) -> Result<QueuePairState> {
        Ok(self.query()?.qp_state)
    }

    /// Moves the queue pair from RESET to INIT, with the port and the access flags of its options (for datagrams: the
    /// Q_Key). Receives can be posted from then on.
    ///
    /// [`QueuePair::connect`] also does this; call it separately to post receives before the peer can send.
    ///
    /// # Errors
    /// The queue pair is not in RESET.
    pub fn init(&self) -> Result<()> {
        let is_datagram = self.qp_type() == QueuePairType::UnreliableDatagram;
        self.modify(&QueuePairAttributes {
            qp_state: Some(QueuePairState::Init),
            pkey_index: Some(0),
            port_num: Some(self.settings.port_num),
            qp_access_flags: (!is_datagram).then_some(self.settings.access),
            qkey: is_datagram.then_some(self.settings.qkey),
            ..QueuePairAttributes::default()
        })
    }

    /// Moves the queue pair back to RESET: discards all requests, their completions and the connection. The next
    /// connection starts from a new random sequence number and key share: send the peer the new
    /// [`QueuePair::connection_info`].
    ///
    /// # Errors
    /// Any provider error.
    pub fn reset(&self) -> Result<()> {
        let identity = Identity::random("modify_qp")?;
        let reset = QueuePairAttributes { qp_state: Some(QueuePairState::Reset), ..QueuePairAttributes::default() };
        self.modify(&reset)?;
        *self.lock_identity() = identity;
        Ok(())
    }

    /// Posts send requests, all or nothing (`ibv_post_send`). Allocates nothing; packets that the transport may send
    /// immediately are sent on the caller's thread.
    ///
    /// In the error state, requests are accepted and flushed: each completes with a flush error.
    ///
    /// # Errors
    /// On failure nothing is posted:
    /// * [`ErrorKind::QueueFull`]: poll completions first. A slot becomes free only when the completion of its request,
    ///   or of a later signaled one, is polled: a queue filled with unsignaled requests stays full until RESET;
    /// * [`ErrorKind::InvalidState`]: not in RTS (or a state beyond), a region was revoked, or this thread has an open
    ///   batch of this queue;
    /// * [`ErrorKind::InvalidArgument`]: too many ranges, too much inline data, too long a message, a region of another
    ///   protection domain or, for a READ or atomic, without [`AccessFlags::LOCAL_WRITE`], or remote memory that is too
    ///   small or misaligned.
    ///
    /// ```
    /// # use rdma_verbs::verbs::{self, AccessFlags};
    /// use rdma_verbs::verbs::{ErrorKind, SendRequest};
    ///
    /// # let context = verbs::open("soft:127.0.1.84")?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let qp = pd.create_qp(&cq, &cq)?;
    /// # qp.connect(&qp.connection_info()?)?; // to itself
    /// let other_pd = context.alloc_pd()?;
    /// let mr = other_pd.alloc_mr(64, AccessFlags::LOCAL_WRITE)?;
    /// let error = qp.post_send(&[SendRequest::send(&mr)]).unwrap_err();
    /// assert_eq!((error.verb(), error.kind()), ("post_send", ErrorKind::InvalidArgument));
    /// assert!(error.to_string().contains("protection domain"));
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<()> {
        if let [request] = requests
            && request.target.is_none()
            && request.remote_srq.is_none()
        {
            return super::batch::send_one(self, request);
        }
        let mut batch = self.send_batch()?;
        for request in requests {
            batch.push(request)?;
        }
        batch.post()
    }

    /// Posts receives, all or nothing (`ibv_post_recv`), in any state from INIT on. Allocates nothing.
    ///
    /// # Errors
    /// As for [`QueuePair::post_send`]; the regions need [`AccessFlags::LOCAL_WRITE`].
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, requests: &[ReceiveRequest<'_>]) -> Result<()> {
        let mut batch = self.recv_batch()?;
        for request in requests {
            batch.push(request)?;
        }
        batch.post()
    }

    /// Opens a batch of send requests, which are posted together. Until then, this thread holds the send queue; other
    /// threads that post to it wait.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] if this thread already has an open batch of this queue.
    ///
    /// See [`SendBatch`] for an example.
    #[doc(alias("ibv_wr_start", "ibv_qp_to_qp_ex"))]
    pub fn send_batch(&self) -> Result<SendBatch<'_>> {
        SendBatch::open(self)
    }

    /// Opens a batch of receives: the counterpart of [`QueuePair::send_batch`] for the receive queue.
    ///
    /// # Errors
    /// As for [`QueuePair::send_batch`].
    pub fn recv_batch(&self) -> Result<ReceiveBatch<'_>> {
        ReceiveBatch::open(self)
    }

    /// Returns the counters of this queue pair: packets, bytes, retries, and dropped packets by reason.
    pub fn counters(&self) -> Counters {
        self.inner.counters()
    }

    /// Returns what the queue pair has recorded about itself and its peer since it was connected, as plain data: the
    /// input of [`QueuePair::explain`].
    ///
    /// # Errors
    /// Any provider error.
    ///
    /// ```
    /// # use rdma_verbs::verbs;
    /// # let context = verbs::open("soft:127.0.1.201")?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let qp = pd.create_qp(&cq, &cq)?;
    /// qp.connect(&qp.connection_info()?)?; // to itself
    /// let report = qp.report()?;
    /// assert_eq!((report.last_packet(), report.error_origin), (None, None));
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn report(&self) -> Result<QueuePairReport> {
        match self.inner.software() {
            Some(software) => software.report(),
            None => Ok(QueuePairReport::new(self.inner.query()?, self.inner.counters())),
        }
    }

    /// Explains in two sentences why a request of this queue pair failed: what happened and most likely why; what was
    /// last heard from the peer and when, and what to try. If this end cannot distinguish two causes, the text names
    /// both, the likelier one first. If no response came, and packets may have been lost on a path to another host, a
    /// third sentence assesses the path. Call it before the queue pair is reset, which clears its records.
    ///
    /// ```
    /// use std::time::Duration;
    /// use rdma_verbs::verbs::{self, ConnectOptions, Payload, SendRequest};
    ///
    /// let context = verbs::open("soft:127.0.1.85")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let (qp, vanished) = (pd.create_qp(&cq, &cq)?, pd.create_qp(&cq, &cq)?);
    /// let peer = vanished.connection_info()?;
    /// drop(vanished);
    /// qp.connect_with(&peer, &ConnectOptions::default().timeout(8).retry_cnt(1))?;
    /// qp.post_send(&[SendRequest::send(Payload::EMPTY)])?;
    ///
    /// let failure = cq.wait(Duration::from_secs(10))?.result().unwrap_err();
    /// println!("{}", qp.explain(&failure));
    /// # assert!(qp.explain(&failure).contains("127.0.1.85"), "{}", qp.explain(&failure));
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn explain(&self, error: &CompletionError) -> String {
        explain::explain(error, self.report().ok().as_ref())
    }

    /// Explains an asynchronous event of this queue pair or of its completion queue, as [`QueuePair::explain`] does,
    /// for the end whose own requests did not fail.
    ///
    /// ```
    /// use std::time::Duration;
    /// use rdma_verbs::verbs::{self, Payload, RemoteMemory, Rkey, SendRequest};
    ///
    /// let context = verbs::open("soft:127.0.1.202")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let qp = pd.create_qp(&cq, &cq)?;
    /// qp.connect(&qp.connection_info()?)?; // to itself
    /// let nowhere = RemoteMemory::new(0x1000, Rkey(0x1234), 64);
    /// qp.post_send(&[SendRequest::write(Payload::inline(b"hello"), nowhere)])?;
    ///
    /// let event = context.wait_async_event(Duration::from_secs(10))?; // the request is refused
    /// let text = qp.explain_event(&event);
    /// assert!(text.contains("no memory region has key 0x00001234"), "{text}");
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn explain_event(&self, event: &AsyncEvent) -> String {
        explain::explain_event(event, self.report().ok().as_ref())
    }

    /// Explains the state of the connection in two sentences: why nothing completes, or that nothing is wrong. Useful
    /// for programs that wait, for example with a `timeout` of 0, which waits forever.
    ///
    /// ```
    /// # use rdma_verbs::verbs;
    /// # let context = verbs::open("soft:127.0.1.203")?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let qp = pd.create_qp(&cq, &cq)?;
    /// assert!(qp.explain_state().contains("not connected"));
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn explain_state(&self) -> String {
        explain::explain_state(self.qpn(), self.report().ok().as_ref())
    }

    /// Returns the sources that its completions carry: for sends and for receives.
    pub(crate) fn completion_sources(&self) -> [CompletionSource; 2] {
        self.inner.completion_sources()
    }

    /// Destroys it while it is still borrowed: later verbs on it fail, and its requests no longer complete.
    pub(crate) fn destroy(&self) -> Result<()> {
        self.inner.destroy()
    }

    /// Stops taking receives from a shared queue; see [`provider::SoftwareQueuePair::stop_receiving`].
    pub(crate) fn stop_receiving(&self) -> Result<Option<u64>> {
        self.inner.software().map_or(Ok(None), provider::SoftwareQueuePair::stop_receiving)
    }

    pub(super) fn inner(&self) -> &dyn provider::QueuePair {
        &*self.inner
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the sequence number of the first packet that this end sends.
    pub(super) fn first_psn(&self) -> Psn {
        self.lock_identity().psn
    }

    /// Returns this end's share of its next connection's key; `None` if packets have no key: on adapters, for
    /// datagrams.
    pub(super) fn key_share(&self) -> Option<KeyShare> {
        let is_native = self.context().advertised_capabilities().is_native();
        (is_native && self.qp_type().is_connected()).then(|| self.lock_identity().key_share)
    }

    fn lock_identity(&self) -> MutexGuard<'_, Identity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn sends(&self) -> &Poster {
        &self.sends
    }

    pub(super) fn receives(&self) -> &Poster {
        &self.receives
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Err(error) = self.inner.destroy() {
            tracing::warn!(
                target: "rdma_verbs::queue_pair",
                qpn = %self.qpn(), %error, "a dropped queue pair could not be destroyed"
            );
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state().map_or("unknown", QueuePairState::name);
        f.debug_struct("QueuePair").field("qpn", &self.qpn()).field("state", &state).finish_non_exhaustive()
    }
}

/// The secrets that a peer needs to send to this queue pair. It serves one connection.
struct Identity {
    psn: Psn,
    key_share: KeyShare,
}

impl Identity {
    fn random(verb: &'static str) -> Result<Self> {
        let mut bits = [0; 4 + KeyShare::BYTES];
        getrandom::fill(&mut bits).map_err(|error| {
            Error::new(verb, ErrorKind::System, format!("the system provides no random numbers: {error}"))
        })?;
        let [a, b, c, d, share @ ..] = bits;
        Ok(Self { psn: Psn::new(u32::from_be_bytes([a, b, c, d])), key_share: KeyShare::new(share) })
    }
}
