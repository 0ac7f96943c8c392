//! Ends of an extended reliable connection.

use rdma_verbs::verbs::{
    CompletionOpcode, CompletionQueue, CompletionStatus, ConnectOptions, Context, MemoryRegion, Payload,
    ProtectionDomain, QueuePair, QueuePairOptions, QueuePairState, QueuePairType, ReceiveRequest, SendRequest,
    SharedReceiveQueue, SharedReceiveQueueNumber, SharedReceiveQueueOptions, Success, XrcDomain,
};

use super::end::{ALL_ACCESS, next, silent};
use super::sharing::connect;
use super::world::World;

/// A domain with two queues on device 0, and a connection to it from device 1.
pub(crate) struct Extended {
    pub(crate) target: QueuePair,
    pub(crate) initiator: QueuePair,
    pub(crate) queues: [SharedReceiveQueue; 2],
    pub(crate) cqs: [CompletionQueue; 2],
    pub(crate) inbox: MemoryRegion,
    pub(crate) outbox: MemoryRegion,
    pub(crate) sender_cq: CompletionQueue,
    pub(crate) pd: ProtectionDomain,
    pub(crate) sender_pd: ProtectionDomain,
    pub(crate) domain: XrcDomain,
    pub(crate) context: Context,
}

pub(crate) const ROOM: usize = 256;

impl Extended {
    #[track_caller]
    pub(crate) fn new(world: &World) -> Self {
        Self::with(world, &ConnectOptions::default())
    }

    #[track_caller]
    pub(crate) fn with(world: &World, options: &ConnectOptions) -> Self {
        let (context, sender) = (world.device(0), world.device(1));
        let (pd, sender_pd) = (context.alloc_pd().unwrap(), sender.alloc_pd().unwrap());
        let cqs = [64, 64].map(|cqe| context.create_cq(cqe).unwrap());
        let sender_cq = sender.create_cq(64).unwrap();
        let domain = context.open_xrcd().unwrap();
        let queues = [0, 1].map(|which: usize| {
            pd.create_srq_with(16, 2, &SharedReceiveQueueOptions::default().xrc(&domain, &cqs[which])).unwrap()
        });
        let (inbox, outbox) =
            (pd.alloc_mr(64 << 10, ALL_ACCESS).unwrap(), sender_pd.alloc_mr(64 << 10, ALL_ACCESS).unwrap());
        let target = pd.create_qp_with(&cqs[0], &cqs[0], &QueuePairOptions::default().xrc_target(&domain)).unwrap();
        let sending = QueuePairOptions::default().qp_type(QueuePairType::XrcSend).max_inline_data(256);
        let initiator = sender_pd.create_qp_with(&sender_cq, &sender_cq, &sending).unwrap();
        connect(&target, &initiator, options);
        Self { target, initiator, queues, cqs, inbox, outbox, sender_cq, pd, sender_pd, domain, context }
    }

    /// Creates another target of the domain.
    #[track_caller]
    pub(crate) fn another_target(&self) -> QueuePair {
        let options = QueuePairOptions::default().xrc_target(&self.domain);
        self.pd.create_qp_with(&self.cqs[0], &self.cqs[0], &options).unwrap()
    }

    /// Creates another connection to the domain, whose initiator completes on `sender_cq`.
    #[track_caller]
    pub(crate) fn another_connection(&self, sender_cq: &CompletionQueue) -> (QueuePair, QueuePair) {
        let target = self.another_target();
        let options = QueuePairOptions::default().qp_type(QueuePairType::XrcSend);
        let initiator = self.sender_pd.create_qp_with(sender_cq, sender_cq, &options).unwrap();
        connect(&target, &initiator, &ConnectOptions::default());
        (target, initiator)
    }

    #[track_caller]
    pub(crate) fn post(&self, queue: usize, wr_id: u64) {
        let start = wr_id as usize * ROOM;
        let room = self.inbox.slice(start..start + ROOM).unwrap();
        self.queues[queue].post_recv(&[ReceiveRequest::new(room).wr_id(wr_id)]).unwrap();
    }

    #[track_caller]
    pub(crate) fn send(&self, queue: usize, text: &[u8]) {
        self.request(SendRequest::send(Payload::inline(text)), self.queues[queue].number());
    }

    #[track_caller]
    pub(crate) fn request(&self, request: SendRequest<'_>, queue: SharedReceiveQueueNumber) {
        self.initiator.post_send(&[request.wr_id(100).signaled().remote_srq(queue)]).unwrap();
    }

    /// Checks that the request completes at the initiator.
    #[track_caller]
    pub(crate) fn sent(&self, opcode: CompletionOpcode) -> Success {
        let completion = next(&self.sender_cq);
        assert_eq!((completion.wr_id(), completion.qpn()), (100, self.initiator.qpn()));
        let success = completion.result().unwrap_or_else(|error| panic!("{}", self.initiator.explain(&error)));
        assert_eq!(success.opcode, opcode);
        success
    }

    /// Checks that the request fails at the initiator.
    #[track_caller]
    pub(crate) fn fails(&self, status: CompletionStatus) {
        let error = next(&self.sender_cq).result().unwrap_err();
        assert_eq!((error.wr_id, error.status), (100, status), "{}", self.initiator.explain(&error));
        assert_eq!(self.initiator.state().unwrap(), QueuePairState::Error);
    }

    /// Takes the next completion of this queue, which must be a receive of the target.
    #[track_caller]
    pub(crate) fn completed(&self, queue: usize, wr_id: u64) -> Success {
        let completion = next(&self.cqs[queue]);
        assert_eq!((completion.wr_id(), completion.qpn()), (wr_id, self.target.qpn()), "{completion:?}");
        completion.result().unwrap_or_else(|error| panic!("{error}"))
    }

    #[track_caller]
    pub(crate) fn received(&self, queue: usize, wr_id: u64, text: &[u8]) {
        let success = self.completed(queue, wr_id);
        assert_eq!((success.opcode, success.byte_len as usize), (CompletionOpcode::Receive, text.len()));
        let start = wr_id as usize * ROOM;
        assert_eq!(self.inbox.to_vec(start..start + text.len()).unwrap(), text);
    }

    #[track_caller]
    pub(crate) fn silent(&self) {
        self.cqs.iter().for_each(silent);
    }
}
