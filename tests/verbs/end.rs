//! One end of a connection, and what is expected to happen at it.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::deviations::{
    self, FAILED_IS_FLUSHED, LATE_FLUSH, LENGTH_STATUS, NO_ERROR_EVENTS, NO_ESTABLISHED_EVENT, RECEIVE_STATUS,
    RTS_BEGINS_NOTHING, SEND_STATUS,
};
use rdma_verbs::verbs::{
    AccessFlags, AddressVector, AsyncEvent, Cause, Completion, CompletionError, CompletionOpcode, CompletionQueue,
    CompletionStatus, Context, Error, ErrorKind, Gid, MemoryRegion, Payload, ProtectionDomain, Qpn, QueuePair,
    QueuePairAttributes, QueuePairCapabilities, QueuePairState, QueuePairType, ReceiveRequest, RegionRange,
    RemoteMemory, Rkey, SendRequest, Success,
};

/// Longer than anything takes that happens at all.
const PATIENCE: Duration = Duration::from_secs(20);
/// Where something is known not to happen.
const LITTLE_PATIENCE: Duration = Duration::from_secs(3);

/// How long a scenario waits for what must happen.
pub(crate) fn patience() -> Duration {
    if deviations::is_deviating() { LITTLE_PATIENCE } else { PATIENCE }
}
/// How long nothing must happen where nothing may.
pub(crate) const SILENCE: Duration = Duration::from_millis(20);
/// Every right that a peer can have.
pub(crate) const ALL_RIGHTS: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::LOCAL_WRITE);

/// What an end shall be.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) qp_type: QueuePairType,
    pub(crate) cap: QueuePairCapabilities,
    pub(crate) sq_sig_all: bool,
    /// What the queue pair allows its peer.
    pub(crate) access: AccessFlags,
    pub(crate) max_dest_rd_atomic: Option<u8>,
    /// Entries of the completion queue.
    pub(crate) cqe: u32,
    pub(crate) region_bytes: usize,
    /// Rights of the region.
    pub(crate) region_access: AccessFlags,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            qp_type: QueuePairType::ReliableConnection,
            cap: QueuePairCapabilities { max_inline_data: 256, ..QueuePairCapabilities::default() },
            sq_sig_all: false,
            access: AccessFlags::REMOTE,
            max_dest_rd_atomic: None,
            cqe: 512,
            region_bytes: 64 << 10,
            region_access: ALL_RIGHTS,
        }
    }
}

/// A queue pair with a device, a domain, a completion queue and a region of its own.
pub(crate) struct End {
    pub(crate) qp: QueuePair,
    pub(crate) region: MemoryRegion,
    pub(crate) cq: CompletionQueue,
    pub(crate) pd: ProtectionDomain,
    pub(crate) context: Context,
}

impl End {
    #[track_caller]
    pub(crate) fn new(context: Context, shape: &Shape) -> Self {
        let pd = context.alloc_pd().expect("alloc_pd");
        let cq = context.create_cq(shape.cqe).expect("create_cq");
        let region = pd.alloc_mr(shape.region_bytes, shape.region_access).expect("alloc_mr");
        let qp = create_qp(&pd, &cq, &cq, shape);
        Self { qp, region, cq, pd, context }
    }

    /// Another region of this end.
    #[track_caller]
    pub(crate) fn region(&self, len: usize, access: AccessFlags) -> MemoryRegion {
        self.pd.alloc_mr(len, access).expect("alloc_mr")
    }

    /// A range of the end's own region.
    #[track_caller]
    pub(crate) fn at(&self, range: Range<usize>) -> RegionRange<'_> {
        self.region.slice(range).expect("within the region")
    }

    /// A range of the end's own region, as its peer names it.
    #[track_caller]
    pub(crate) fn far(&self, range: Range<usize>) -> RemoteMemory {
        self.region.remote().slice(range).expect("within the region")
    }

    /// Posts send requests.
    #[track_caller]
    pub(crate) fn post(&self, requests: &[SendRequest<'_>]) {
        self.qp.post_send(requests).expect("post_send");
    }

    /// Posts a receive into a range of the end's own region.
    #[track_caller]
    pub(crate) fn receive(&self, wr_id: u64, range: Range<usize>) {
        self.qp.post_recv(&[ReceiveRequest::new(self.at(range)).wr_id(wr_id)]).expect("post_recv");
    }

    /// The next completion, whatever it is.
    #[track_caller]
    pub(crate) fn next(&self) -> Completion {
        next(&self.cq)
    }

    /// The next completion must be the success of this request of this queue pair.
    #[track_caller]
    pub(crate) fn done(&self, wr_id: u64, opcode: CompletionOpcode) -> Success {
        let completion = self.next();
        assert_eq!((completion.wr_id(), completion.qpn()), (wr_id, self.qp.qpn()), "{completion:?}");
        let success = completion.result().unwrap_or_else(|error| panic!("{}", self.qp.explain(&error)));
        assert_eq!(success.opcode, opcode, "{completion:?}");
        let carried = (success.immediate, success.invalidated);
        let of_receive = matches!(opcode, CompletionOpcode::Receive | CompletionOpcode::ReceiveRdmaWithImmediate);
        assert!(of_receive || carried == (None, None), "a send request carries nothing back: {completion:?}");
        success
    }

    /// A SEND must be done.
    #[track_caller]
    pub(crate) fn sent(&self, wr_id: u64) {
        self.done(wr_id, CompletionOpcode::Send);
    }

    /// A WRITE must be done.
    #[track_caller]
    pub(crate) fn written(&self, wr_id: u64) {
        self.done(wr_id, CompletionOpcode::RdmaWrite);
    }

    /// A READ of so many bytes must be done.
    #[track_caller]
    pub(crate) fn read(&self, wr_id: u64, byte_len: u32) {
        assert_eq!(self.done(wr_id, CompletionOpcode::RdmaRead).byte_len, byte_len, "byte_len of the READ {wr_id}");
    }

    /// A message of a plain SEND must have come, of so many bytes.
    #[track_caller]
    pub(crate) fn received(&self, wr_id: u64, byte_len: u32) {
        self.received_with(wr_id, byte_len, None);
    }

    /// A message of a SEND must have come, of so many bytes and with this immediate data.
    #[track_caller]
    pub(crate) fn received_with(&self, wr_id: u64, byte_len: u32, immediate: Option<u32>) {
        let success = self.done(wr_id, CompletionOpcode::Receive);
        assert_eq!((success.byte_len, success.immediate, success.invalidated), (byte_len, immediate, None));
    }

    /// The notice of a WRITE with immediate data must have come.
    #[track_caller]
    pub(crate) fn notified(&self, wr_id: u64, byte_len: u32, immediate: u32) {
        let success = self.done(wr_id, CompletionOpcode::ReceiveRdmaWithImmediate);
        let found = (success.byte_len, success.immediate, success.invalidated);
        assert_eq!(found, (byte_len, Some(immediate), None));
    }

    /// The next completion must be the failure of this request, with this status.
    #[track_caller]
    pub(crate) fn fails(&self, wr_id: u64, status: CompletionStatus) -> CompletionError {
        self.fails_with(wr_id, &[status])
    }

    /// As [`End::fails`], where the specification allows several statuses.
    #[track_caller]
    pub(crate) fn fails_with(&self, wr_id: u64, statuses: &[CompletionStatus]) -> CompletionError {
        let completion = self.next();
        let Err(error) = completion.result() else {
            panic!("request {} succeeded instead of {statuses:?}: {completion:?}", completion.wr_id());
        };
        assert_eq!((error.wr_id, error.qpn), (wr_id, self.qp.qpn()), "{error}");
        let right = statuses.contains(&error.status);
        assert!(right, "{:?} instead of {statuses:?}: {}", error.status, self.qp.explain(&error));
        error
    }

    /// The next completions must be these requests, flushed, in this order.
    #[track_caller]
    pub(crate) fn flushed(&self, wr_ids: impl IntoIterator<Item = u64>) {
        for wr_id in wr_ids {
            self.fails(wr_id, CompletionStatus::WorkRequestFlushedError);
        }
    }

    /// A receive that was posted in ERR must be flushed.
    #[track_caller]
    pub(crate) fn flushed_receive(&self, wr_id: u64) {
        if !LATE_FLUSH.holds() {
            return self.flushed([wr_id]);
        }
        // The state change may not be over yet, and then it takes the receive along.
        match self.cq.wait(SILENCE) {
            Ok(early) => {
                assert_eq!((early.wr_id(), early.status()), (wr_id, CompletionStatus::WorkRequestFlushedError))
            }
            Err(_) => {
                self.to_error();
                self.flushed([wr_id]);
            }
        }
    }

    /// No completion may come for a while.
    #[track_caller]
    pub(crate) fn silent(&self) {
        silent(&self.cq);
    }

    /// The next asynchronous event.
    #[track_caller]
    pub(crate) fn event(&self) -> AsyncEvent {
        let event = self.context.get_async_event(patience());
        event.unwrap_or_else(|| panic!("no asynchronous event: {}", self.qp.explain_state()))
    }

    /// The next asynchronous event must be one of these, about a failure of the queue pair.
    #[track_caller]
    pub(crate) fn failure_event(&self, allowed: &[fn(Qpn) -> AsyncEvent]) {
        if NO_ERROR_EVENTS.holds() {
            return self.no_event();
        }
        let (event, allowed) = (self.event(), allowed.iter().map(|of| of(self.qp.qpn())).collect::<Vec<_>>());
        assert!(allowed.contains(&event), "{event:?} instead of {allowed:?}");
    }

    /// In RTR, the first message must be told as an event.
    #[track_caller]
    pub(crate) fn is_told_of_the_connection(&self) {
        match NO_ESTABLISHED_EVENT.holds() {
            true => self.no_event(),
            false => assert_eq!(self.event(), AsyncEvent::CommunicationEstablished(self.qp.qpn())),
        }
    }

    /// No asynchronous event may come for a while.
    #[track_caller]
    pub(crate) fn no_event(&self) {
        let event = self.context.get_async_event(SILENCE);
        assert_eq!(event, None, "an event that should not be there");
    }

    /// The queue pair must be in this state now.
    #[track_caller]
    pub(crate) fn is_in(&self, state: QueuePairState) {
        assert_eq!(self.qp.state().expect("query_qp"), state, "{}", self.qp.explain_state());
    }

    /// The queue pair must come into this state.
    #[track_caller]
    pub(crate) fn becomes(&self, state: QueuePairState) {
        let start = Instant::now();
        while self.qp.state().expect("query_qp") != state {
            assert!(start.elapsed() < patience(), "never in {}: {}", state.name(), self.qp.explain_state());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The send queue must come to have nothing under way, if it drains.
    #[track_caller]
    pub(crate) fn is_drained(&self) {
        let start = Instant::now();
        while self.qp.query().expect("query_qp").sq_draining {
            assert!(start.elapsed() < patience(), "never drained: {}", self.qp.explain_state());
        }
    }

    /// The send queue goes on after SQD. `nudge` is a request that nobody notices.
    #[track_caller]
    pub(crate) fn resume(&self, nudge: SendRequest<'_>) {
        let ready = QueuePairAttributes { qp_state: Some(QueuePairState::ReadyToSend), ..Default::default() };
        self.qp.modify(&ready).expect("SQD to RTS");
        if RTS_BEGINS_NOTHING.holds() {
            self.silent();
            self.post(&[nudge]);
        }
    }

    /// Brings the queue pair to the error state.
    #[track_caller]
    pub(crate) fn to_error(&self) {
        let error = QueuePairAttributes { qp_state: Some(QueuePairState::Error), ..Default::default() };
        self.qp.modify(&error).expect("any state but RESET has a way to ERR");
    }
}

/// A request of a connection that nobody notices: without bytes, no key is looked at.
pub(crate) fn nothing() -> SendRequest<'static> {
    SendRequest::write(Payload::EMPTY, RemoteMemory::new(0, Rkey(0), 0))
}

/// The status of a receive that is too short for its message.
pub(crate) fn too_short() -> CompletionStatus {
    LENGTH_STATUS.or(CompletionStatus::LocalQueuePairOperationError, CompletionStatus::LocalLengthError)
}

/// The status of a message that is too long for its receive.
pub(crate) fn too_long_for_peer() -> CompletionStatus {
    LENGTH_STATUS.or(CompletionStatus::RemoteOperationError, CompletionStatus::RemoteInvalidRequestError)
}

/// The status of a receive whose memory is gone.
pub(crate) fn receive_without_memory() -> CompletionStatus {
    RECEIVE_STATUS.or(CompletionStatus::LocalQueuePairOperationError, CompletionStatus::LocalProtectionError)
}

/// The status of a send request whose own memory is gone.
pub(crate) fn memory_gone() -> CompletionStatus {
    let known = SEND_STATUS.or(CompletionStatus::LocalQueuePairOperationError, CompletionStatus::LocalProtectionError);
    FAILED_IS_FLUSHED.or(CompletionStatus::WorkRequestFlushedError, known)
}

/// The status of a request that is carried out at its own end and fails: the standard's, or what comes instead.
pub(crate) fn failed_here(standard: CompletionStatus) -> CompletionStatus {
    FAILED_IS_FLUSHED.or(CompletionStatus::WorkRequestFlushedError, standard)
}

/// The cause of a failure must be this one, where devices tell causes.
#[track_caller]
pub(crate) fn caused_by(end: &End, error: &CompletionError, cause: Cause) {
    if end.context.query_device().failure_causes {
        assert_eq!(error.cause, cause, "{error}");
    }
}

/// The way from a device's own address to this one.
#[track_caller]
pub(crate) fn way_to(context: &Context, to: Gid) -> AddressVector {
    AddressVector::new(to, context.default_gid_index(1).expect("the port has a GID"))
}

/// The address by which a device is reached.
#[track_caller]
pub(crate) fn own_gid(context: &Context) -> Gid {
    context.query_gid(1, context.default_gid_index(1).expect("the port has a GID")).expect("query_gid").gid
}

/// Another queue pair of this shape.
#[track_caller]
pub(crate) fn create_qp(
    pd: &ProtectionDomain,
    send_cq: &CompletionQueue,
    recv_cq: &CompletionQueue,
    shape: &Shape,
) -> QueuePair {
    let mut builder = pd
        .create_qp(send_cq, recv_cq)
        .qp_type(shape.qp_type)
        .max_send_wr(shape.cap.max_send_wr)
        .max_recv_wr(shape.cap.max_recv_wr)
        .max_send_sge(shape.cap.max_send_sge)
        .max_recv_sge(shape.cap.max_recv_sge)
        .max_inline_data(shape.cap.max_inline_data)
        .access(shape.access);
    if shape.sq_sig_all {
        builder = builder.sq_sig_all();
    }
    if let Some(max_dest_rd_atomic) = shape.max_dest_rd_atomic {
        builder = builder.max_dest_rd_atomic(max_dest_rd_atomic);
    }
    if shape.qp_type == QueuePairType::XrcReceive {
        let domain = pd.context().open_xrcd().expect("open_xrcd");
        return builder.xrc_target(&domain).build().expect("create_qp");
    }
    builder.build().expect("create_qp")
}

/// The next completion of a queue, whatever it is.
#[track_caller]
pub(crate) fn next(cq: &CompletionQueue) -> Completion {
    cq.wait(patience()).unwrap_or_else(|error| panic!("no completion: {error}"))
}

/// No completion may come for a while.
#[track_caller]
pub(crate) fn silent(cq: &CompletionQueue) {
    match cq.wait(SILENCE) {
        Ok(completion) => panic!("a completion that should not be there: {completion:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"),
    }
}

/// A verb must be refused, for this kind of reason, and the text must name each of these.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, Error>, kind: ErrorKind, names: &[&str]) {
    let error = result.expect_err("the verb should be refused");
    assert_eq!(error.kind(), kind, "{error}");
    for name in names {
        assert!(error.to_string().contains(name), "\"{name}\" is not in \"{error}\"");
    }
}
