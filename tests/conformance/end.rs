//! One end of a connection, and checks of its completions, events and states.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::deviations::{
    self, FAILED_IS_FLUSHED, LATE_FLUSH, LENGTH_STATUS, NO_ERROR_EVENTS, NO_ESTABLISHED_EVENT, RECEIVE_STATUS,
    RTS_BEGINS_NOTHING, SEND_STATUS,
};
use rdma_verbs::verbs::{
    AccessFlags, AddressVector, AsyncEvent, Cause, Completion, CompletionError, CompletionOpcode, CompletionQueue,
    CompletionStatus, Context, Error, ErrorKind, Gid, MemoryRegion, Payload, ProtectionDomain, Qpn, QueuePair,
    QueuePairAttributes, QueuePairCapabilities, QueuePairOptions, QueuePairState, QueuePairType, ReceiveRequest,
    RegionRange, RemoteMemory, Rkey, SendRequest, Success,
};

/// Longer than any expected event takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// The patience of a scenario that is known to fail.
const LITTLE_PATIENCE: Duration = Duration::from_secs(3);

/// Returns how long a scenario waits for an expected event.
pub(crate) fn patience() -> Duration {
    if deviations::is_deviating() { LITTLE_PATIENCE } else { PATIENCE }
}
/// How long a scenario waits to check that nothing happens.
pub(crate) const SILENCE: Duration = Duration::from_millis(20);
/// Every access flag that concerns a peer.
pub(crate) const ALL_ACCESS: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::LOCAL_WRITE);

/// The shape of an end: queue pair, completion queue and region.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) qp_type: QueuePairType,
    pub(crate) cap: QueuePairCapabilities,
    pub(crate) sq_sig_all: bool,
    /// Access that the queue pair grants its peer.
    pub(crate) access: AccessFlags,
    pub(crate) max_dest_rd_atomic: Option<u8>,
    /// Number of entries of the completion queue.
    pub(crate) cqe: u32,
    pub(crate) region_bytes: usize,
    /// Access flags of the region.
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
            region_access: ALL_ACCESS,
        }
    }
}

/// A queue pair with its own device context, domain, completion queue and region.
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

    /// Registers another region of this end.
    #[track_caller]
    pub(crate) fn region(&self, len: usize, access: AccessFlags) -> MemoryRegion {
        self.pd.alloc_mr(len, access).expect("alloc_mr")
    }

    /// Returns a range of the end's own region.
    #[track_caller]
    pub(crate) fn at(&self, range: Range<usize>) -> RegionRange<'_> {
        self.region.slice(range).expect("within the region")
    }

    /// Returns a range of the end's own region, as its peer addresses it.
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

    /// Takes the next completion, successful or not.
    #[track_caller]
    pub(crate) fn next(&self) -> Completion {
        next(&self.cq)
    }

    /// Takes the next completion, which must be the success of this request of this queue pair.
    #[track_caller]
    pub(crate) fn done(&self, wr_id: u64, opcode: CompletionOpcode) -> Success {
        let completion = self.next();
        assert_eq!((completion.wr_id(), completion.qpn()), (wr_id, self.qp.qpn()), "{completion:?}");
        let success = completion.result().unwrap_or_else(|error| panic!("{}", self.qp.explain(&error)));
        assert_eq!(success.opcode, opcode, "{completion:?}");
        let carried = (success.immediate, success.invalidated);
        let of_receive = matches!(opcode, CompletionOpcode::Receive | CompletionOpcode::ReceiveWriteWithImmediate);
        assert!(of_receive || carried == (None, None), "a send request carries nothing back: {completion:?}");
        success
    }

    /// Checks that a SEND has completed.
    #[track_caller]
    pub(crate) fn sent(&self, wr_id: u64) {
        self.done(wr_id, CompletionOpcode::Send);
    }

    /// Checks that a WRITE has completed.
    #[track_caller]
    pub(crate) fn written(&self, wr_id: u64) {
        self.done(wr_id, CompletionOpcode::Write);
    }

    /// Checks that a READ of `byte_len` bytes has completed.
    #[track_caller]
    pub(crate) fn read(&self, wr_id: u64, byte_len: u32) {
        assert_eq!(self.done(wr_id, CompletionOpcode::Read).byte_len, byte_len, "byte_len of the READ {wr_id}");
    }

    /// Checks that a plain SEND of `byte_len` bytes has arrived.
    #[track_caller]
    pub(crate) fn received(&self, wr_id: u64, byte_len: u32) {
        self.received_with(wr_id, byte_len, None);
    }

    /// Checks that a SEND of `byte_len` bytes with this immediate data has arrived.
    #[track_caller]
    pub(crate) fn received_with(&self, wr_id: u64, byte_len: u32, immediate: Option<u32>) {
        let success = self.done(wr_id, CompletionOpcode::Receive);
        assert_eq!((success.byte_len, success.immediate, success.invalidated), (byte_len, immediate, None));
    }

    /// Checks that a WRITE with immediate data has arrived.
    #[track_caller]
    pub(crate) fn notified(&self, wr_id: u64, byte_len: u32, immediate: u32) {
        let success = self.done(wr_id, CompletionOpcode::ReceiveWriteWithImmediate);
        let found = (success.byte_len, success.immediate, success.invalidated);
        assert_eq!(found, (byte_len, Some(immediate), None));
    }

    /// Takes the next completion, which must be the failure of this request, with this status.
    #[track_caller]
    pub(crate) fn fails(&self, wr_id: u64, status: CompletionStatus) -> CompletionError {
        self.fails_with(wr_id, &[status])
    }

    /// Like [`End::fails`], where the specification allows several statuses.
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

    /// Checks that the next completions are these requests, flushed, in this order.
    #[track_caller]
    pub(crate) fn flushed(&self, wr_ids: impl IntoIterator<Item = u64>) {
        for wr_id in wr_ids {
            self.fails(wr_id, CompletionStatus::WorkRequestFlushedError);
        }
    }

    /// Checks that the next completions are these requests, flushed, in any order: those of a send queue and those of a
    /// receive queue are independent.
    #[track_caller]
    pub(crate) fn flushed_in_any_order(&self, wr_ids: &[u64]) {
        let mut left = wr_ids.to_vec();
        while !left.is_empty() {
            let completion = self.next();
            let found = (completion.wr_id(), completion.status());
            let position = left.iter().position(|wr_id| found == (*wr_id, CompletionStatus::WorkRequestFlushedError));
            left.remove(position.unwrap_or_else(|| panic!("{completion:?} instead of {left:?}, flushed")));
        }
    }

    /// Checks that a receive posted in ERR is flushed.
    #[track_caller]
    pub(crate) fn flushed_receive(&self, wr_id: u64) {
        if !LATE_FLUSH.holds() {
            return self.flushed([wr_id]);
        }
        // If the state change is still in progress, it flushes the receive as well.
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

    /// Checks that no completion arrives within [`SILENCE`].
    #[track_caller]
    pub(crate) fn silent(&self) {
        silent(&self.cq);
    }

    /// Returns the next asynchronous event.
    #[track_caller]
    pub(crate) fn event(&self) -> AsyncEvent {
        let event = self.context.wait_async_event(patience());
        event.unwrap_or_else(|error| panic!("{error}: {}", self.qp.explain_state()))
    }

    /// Checks that the next asynchronous event is one of these failures of the queue pair.
    #[track_caller]
    pub(crate) fn failure_event(&self, allowed: &[fn(Qpn) -> AsyncEvent]) {
        if NO_ERROR_EVENTS.holds() {
            return self.no_event();
        }
        let (event, allowed) = (self.event(), allowed.iter().map(|of| of(self.qp.qpn())).collect::<Vec<_>>());
        assert!(allowed.contains(&event), "{event:?} instead of {allowed:?}");
    }

    /// Checks that the first message in RTR raises an event.
    #[track_caller]
    pub(crate) fn expect_established(&self) {
        match NO_ESTABLISHED_EVENT.holds() {
            true => self.no_event(),
            false => assert_eq!(self.event(), AsyncEvent::CommunicationEstablished(self.qp.qpn())),
        }
    }

    /// Checks that no asynchronous event arrives within [`SILENCE`].
    #[track_caller]
    pub(crate) fn no_event(&self) {
        let event = self.context.wait_async_event(SILENCE).map_err(|error| error.kind());
        assert_eq!(event, Err(ErrorKind::TimedOut), "unexpected event");
    }

    /// Checks that the queue pair is in this state now.
    #[track_caller]
    pub(crate) fn is_in(&self, state: QueuePairState) {
        assert_eq!(self.qp.state().expect("query_qp"), state, "{}", self.qp.explain_state());
    }

    /// Waits until the queue pair is in this state.
    #[track_caller]
    pub(crate) fn becomes(&self, state: QueuePairState) {
        let start = Instant::now();
        while self.qp.state().expect("query_qp") != state {
            assert!(start.elapsed() < patience(), "never in {}: {}", state.name(), self.qp.explain_state());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the send queue is no longer draining.
    #[track_caller]
    pub(crate) fn is_drained(&self) {
        let start = Instant::now();
        while self.qp.query().expect("query_qp").sq_draining {
            assert!(start.elapsed() < patience(), "never drained: {}", self.qp.explain_state());
        }
    }

    /// Resumes the send queue after SQD. `nudge` is a request without any visible effect.
    #[track_caller]
    pub(crate) fn resume(&self, nudge: SendRequest<'_>) {
        let ready = QueuePairAttributes::default().qp_state(QueuePairState::ReadyToSend);
        self.qp.modify(&ready).expect("SQD to RTS");
        if RTS_BEGINS_NOTHING.holds() {
            self.silent();
            self.post(&[nudge]);
        }
    }

    /// Moves the queue pair to the error state.
    #[track_caller]
    pub(crate) fn to_error(&self) {
        let error = QueuePairAttributes::default().qp_state(QueuePairState::Error);
        self.qp.modify(&error).expect("any state but RESET can go to ERR");
    }
}

/// Returns a request without any visible effect: without bytes, no key is checked.
pub(crate) fn nothing() -> SendRequest<'static> {
    SendRequest::write(Payload::EMPTY, RemoteMemory::new(0, Rkey(0), 0))
}

/// Returns the status of a receive that is too short for its message.
pub(crate) fn too_short() -> CompletionStatus {
    LENGTH_STATUS.or(CompletionStatus::LocalQueuePairOperationError, CompletionStatus::LocalLengthError)
}

/// Returns the status of a message that is too long for its receive.
pub(crate) fn too_long_for_peer() -> CompletionStatus {
    LENGTH_STATUS.or(CompletionStatus::RemoteOperationError, CompletionStatus::RemoteInvalidRequestError)
}

/// Returns the status of a receive whose memory is gone.
pub(crate) fn receive_without_memory() -> CompletionStatus {
    RECEIVE_STATUS.or(CompletionStatus::LocalQueuePairOperationError, CompletionStatus::LocalProtectionError)
}

/// Returns the status of a send request whose local memory is gone.
pub(crate) fn memory_gone() -> CompletionStatus {
    let known = SEND_STATUS.or(CompletionStatus::LocalQueuePairOperationError, CompletionStatus::LocalProtectionError);
    FAILED_IS_FLUSHED.or(CompletionStatus::WorkRequestFlushedError, known)
}

/// Returns the status of a request that fails locally: the standard's, or the device's known deviation.
pub(crate) fn failed_here(standard: CompletionStatus) -> CompletionStatus {
    FAILED_IS_FLUSHED.or(CompletionStatus::WorkRequestFlushedError, standard)
}

/// Checks the cause of a failure, where devices report causes.
#[track_caller]
pub(crate) fn caused_by(end: &End, error: &CompletionError, cause: Cause) {
    if end.context.query_device().failure_causes {
        assert_eq!(error.cause, cause, "{error}");
    }
}

/// Returns the address vector from a device's own address to this one.
#[track_caller]
pub(crate) fn address_vector(context: &Context, to: Gid) -> AddressVector {
    AddressVector::new(to, context.default_gid_index(1).expect("the port has a GID"))
}

/// Returns the address by which a device is reached.
#[track_caller]
pub(crate) fn own_gid(context: &Context) -> Gid {
    context.query_gid(1, context.default_gid_index(1).expect("the port has a GID")).expect("query_gid").gid
}

/// Creates another queue pair of this shape.
#[track_caller]
pub(crate) fn create_qp(
    pd: &ProtectionDomain,
    send_cq: &CompletionQueue,
    recv_cq: &CompletionQueue,
    shape: &Shape,
) -> QueuePair {
    let mut options = QueuePairOptions::default()
        .qp_type(shape.qp_type)
        .max_send_wr(shape.cap.max_send_wr)
        .max_recv_wr(shape.cap.max_recv_wr)
        .max_send_sge(shape.cap.max_send_sge)
        .max_recv_sge(shape.cap.max_recv_sge)
        .max_inline_data(shape.cap.max_inline_data)
        .access(shape.access);
    if shape.sq_sig_all {
        options = options.sq_sig_all();
    }
    if let Some(max_dest_rd_atomic) = shape.max_dest_rd_atomic {
        options = options.max_dest_rd_atomic(max_dest_rd_atomic);
    }
    if shape.qp_type == QueuePairType::XrcReceive {
        let domain = pd.context().open_xrcd().expect("open_xrcd");
        options = options.xrc_target(&domain);
    }
    pd.create_qp_with(send_cq, recv_cq, &options).expect("create_qp")
}

/// Takes the next completion of a queue, successful or not.
#[track_caller]
pub(crate) fn next(cq: &CompletionQueue) -> Completion {
    cq.wait(patience()).unwrap_or_else(|error| panic!("no completion: {error}"))
}

/// Checks that no completion arrives within [`SILENCE`].
#[track_caller]
pub(crate) fn silent(cq: &CompletionQueue) {
    match cq.wait(SILENCE) {
        Ok(completion) => panic!("unexpected completion: {completion:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"),
    }
}

/// Checks that a verb is refused with this kind of error, whose text contains each of these names.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, impl Into<Error>>, kind: ErrorKind, names: &[&str]) {
    let error: Error = result.map_err(Into::into).expect_err("the verb should be refused");
    assert_eq!(error.kind(), kind, "{error}");
    for name in names {
        assert!(error.to_string().contains(name), "\"{name}\" is not in \"{error}\"");
    }
}
