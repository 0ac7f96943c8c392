//! Queue pairs that share a receive queue, and their peers.

use std::time::Instant;

use rdma_verbs::verbs::{
    AsyncEvent, CompletionOpcode, CompletionQueue, ConnectOptions, Context, ErrorKind, MemoryRegion, Payload,
    ProtectionDomain, Qpn, QueuePair, QueuePairOptions, QueuePairState, ReceiveRequest, SendRequest,
    SharedReceiveQueue, SharedReceiveQueueOptions, Success,
};

use super::deviations::{LAST_EVENT_AGAIN, NO_ERROR_EVENTS, NO_LAST_EVENT};
use super::end::{ALL_ACCESS, SILENCE, next, patience};
use super::suite::Capability;
use super::world::World;

/// Shared receive queues.
pub(crate) const MAX_SRQ: Capability = Capability { name: "max_srq", present: |device| device.max_srq > 0 };

/// Size of each receive's buffer in bytes, by default.
pub(crate) const ROOM: usize = 256;

/// The sharing end: device 0, a shared receive queue, and queue pairs that use it; each is connected to a queue pair of
/// device 1.
pub(crate) struct Sharing {
    pub(crate) receivers: Vec<QueuePair>,
    pub(crate) senders: Vec<QueuePair>,
    pub(crate) srq: SharedReceiveQueue,
    pub(crate) inbox: MemoryRegion,
    pub(crate) cq: CompletionQueue,
    pub(crate) sender_cq: CompletionQueue,
    pub(crate) pd: ProtectionDomain,
    pub(crate) sender_pd: ProtectionDomain,
    pub(crate) context: Context,
}

impl Sharing {
    /// Creates a queue of 16 receives shared by `count` queue pairs.
    #[track_caller]
    pub(crate) fn new(world: &World, count: usize) -> Self {
        Self::with(world, count, &ConnectOptions::default(), 16, &SharedReceiveQueueOptions::default())
    }

    #[track_caller]
    pub(crate) fn with(
        world: &World,
        count: usize,
        options: &ConnectOptions,
        max_wr: u32,
        srq_options: &SharedReceiveQueueOptions,
    ) -> Self {
        let (context, sender_context) = (world.device(0), world.device(1));
        let (pd, sender_pd) = (context.alloc_pd().unwrap(), sender_context.alloc_pd().unwrap());
        let (cq, sender_cq) = (context.create_cq(4096).unwrap(), sender_context.create_cq(4096).unwrap());
        let srq = pd.create_srq_with(max_wr, 4, srq_options).unwrap();
        let inbox = pd.alloc_mr(64 << 10, ALL_ACCESS).unwrap();
        let mut sharing =
            Self { receivers: Vec::new(), senders: Vec::new(), srq, inbox, cq, sender_cq, pd, sender_pd, context };
        for _ in 0..count {
            sharing.connect_one(options);
        }
        sharing
    }

    /// Adds a queue pair that uses the queue, and its peer.
    #[track_caller]
    pub(crate) fn connect_one(&mut self, options: &ConnectOptions) {
        let receiver = self.pd.create_qp_with(&self.cq, &self.cq, &QueuePairOptions::default().srq(&self.srq)).unwrap();
        let sender = self
            .sender_pd
            .create_qp_with(&self.sender_cq, &self.sender_cq, &QueuePairOptions::default().max_inline_data(256))
            .unwrap();
        connect(&receiver, &sender, options);
        self.receivers.push(receiver);
        self.senders.push(sender);
    }

    /// Posts receives with these numbers; the number selects each one's own buffer.
    #[track_caller]
    pub(crate) fn post(&self, wr_ids: impl IntoIterator<Item = u64>) {
        for wr_id in wr_ids {
            let start = wr_id as usize * ROOM;
            let room = self.inbox.slice(start..start + ROOM).unwrap();
            self.srq.post_recv(&[ReceiveRequest::new(room).wr_id(wr_id)]).unwrap();
        }
    }

    /// Sends bytes from a peer.
    #[track_caller]
    pub(crate) fn send(&self, peer: usize, text: &[u8]) {
        self.senders[peer].post_send(&[SendRequest::send(Payload::inline(text)).wr_id(100 + peer as u64)]).unwrap();
    }

    /// Takes the next completion, which must be this receive, filled by a message to this queue pair with these bytes.
    #[track_caller]
    pub(crate) fn received(&self, wr_id: u64, receiver: usize, text: &[u8]) {
        let success = self.completed(wr_id, receiver);
        assert_eq!(success.opcode, CompletionOpcode::Receive);
        assert_eq!(success.byte_len as usize, text.len());
        let start = wr_id as usize * ROOM;
        assert_eq!(self.inbox.to_vec(start..start + text.len()).unwrap(), text);
    }

    /// Takes the next completion, which must be the success of this receive, by this queue pair.
    #[track_caller]
    pub(crate) fn completed(&self, wr_id: u64, receiver: usize) -> Success {
        let completion = next(&self.cq);
        assert_eq!((completion.wr_id(), completion.qpn()), (wr_id, self.receivers[receiver].qpn()), "{completion:?}");
        completion.result().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Checks that a message arrives whole through this queue pair.
    #[track_caller]
    pub(crate) fn works(&self, receiver: usize, wr_id: u64) {
        self.post([wr_id]);
        self.send(receiver, b"it works");
        self.received(wr_id, receiver, b"it works");
    }

    /// Returns the next event of the sharing device.
    #[track_caller]
    pub(crate) fn event(&self) -> AsyncEvent {
        self.context.wait_async_event(patience()).expect("no event")
    }

    #[track_caller]
    pub(crate) fn no_event(&self) {
        assert_eq!(self.context.wait_async_event(SILENCE).unwrap_err().kind(), ErrorKind::TimedOut);
    }

    /// Checks that the event of the last receive comes.
    #[track_caller]
    pub(crate) fn last_event(&self, qpn: Qpn) {
        match NO_LAST_EVENT.holds() {
            true => self.no_event(),
            false => assert_eq!(self.event(), AsyncEvent::LastWorkQueueElementReached(qpn)),
        }
    }

    /// Checks that neither this event nor any other comes again.
    #[track_caller]
    pub(crate) fn no_event_after(&self, qpn: Qpn) {
        if LAST_EVENT_AGAIN.holds() {
            while let Ok(event) = self.context.wait_async_event(SILENCE) {
                assert_eq!(event, AsyncEvent::LastWorkQueueElementReached(qpn));
            }
        }
        self.no_event();
    }

    /// Checks that the event of a queue pair's failure comes.
    #[track_caller]
    pub(crate) fn failure_event(&self, event: AsyncEvent) {
        if !NO_ERROR_EVENTS.holds() {
            assert_eq!(self.event(), event);
        }
    }

    /// Checks that the limit event comes.
    #[track_caller]
    pub(crate) fn limit_reached(&self) {
        assert_eq!(self.event(), AsyncEvent::SharedReceiveQueueLimitReached(self.srq.number()));
    }
}

/// Waits until the queue pair is in the error state.
#[track_caller]
pub(crate) fn ends(qp: &QueuePair) {
    let start = Instant::now();
    while qp.state().unwrap() != QueuePairState::Error {
        assert!(start.elapsed() < patience(), "never in ERR: {}", qp.explain_state());
    }
}

/// Connects two queue pairs.
#[track_caller]
pub(crate) fn connect(one: &QueuePair, other: &QueuePair, options: &ConnectOptions) {
    let (near, far) = (one.connection_info().unwrap(), other.connection_info().unwrap());
    one.connect_with(&far, options).unwrap();
    other.connect_with(&near, options).unwrap();
}
