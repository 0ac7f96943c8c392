//! An end of a connection on the tier `verbs`.

use std::time::Instant;

use rdma_verbs::verbs::{
    self, AsyncEvent, Completion, CompletionError, CompletionQueue, CompletionStatus, ConnectOptions, ConnectionInfo,
    Context, MemoryRegion, ProtectionDomain, QueuePair, QueuePairOptions, SendRequest, SharedMemory, SoftOptions,
    Success,
};

use crate::{ALL_ACCESS, PATIENCE};

/// Opens a software device whose packets go through sockets only.
pub fn open_without_shared_memory(device: &str) -> verbs::Result<Context> {
    verbs::open_soft(device, &SoftOptions::new().shared_memory(SharedMemory::Off))
}

/// Polls once, which drives the device. Returns the completion, if there is one.
pub fn poll_one(cq: &CompletionQueue) -> Option<Completion> {
    let mut completions = [Completion::default(); 1];
    (cq.poll(&mut completions).unwrap() == 1).then(|| completions[0])
}

/// Polls until a request of the queue pair has completed, and asserts that it has succeeded.
#[track_caller]
pub fn complete_one(cq: &CompletionQueue, qp: &QueuePair) {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(completion) = poll_one(cq) {
            return completion.result().map(drop).unwrap();
        }
        assert!(Instant::now() < end, "{}", qp.explain_state());
    }
}

/// A software device with a queue pair and its completion queue.
pub struct End {
    /// The device.
    pub context: Context,
    /// The protection domain of the queue pair and of all regions.
    pub pd: ProtectionDomain,
    /// The completion queue of both work queues.
    pub cq: CompletionQueue,
    /// The queue pair.
    pub qp: QueuePair,
}

impl End {
    /// Opens an end on an address.
    pub fn open(address: &str) -> Self {
        Self::with_options(address, &QueuePairOptions::default())
    }

    /// Opens an end whose queue pair is created with these options.
    pub fn with_options(address: &str, options: &QueuePairOptions) -> Self {
        Self::on(verbs::open(&format!("soft:{address}")).unwrap(), options)
    }

    /// Creates an end on an open device.
    pub fn on(context: Context, options: &QueuePairOptions) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(256).unwrap();
        let qp = pd.create_qp_with(&cq, &cq, options).unwrap();
        Self { context, pd, cq, qp }
    }

    /// Opens an end whose queue pair is its own peer.
    pub fn connected_to_itself(address: &str) -> Self {
        let end = Self::open(address);
        end.qp.connect(&end.info()).unwrap();
        end
    }

    /// Connects the queue pairs of both ends.
    pub fn connect(&self, peer: &Self, options: &ConnectOptions) {
        let (own_info, peer_info) = (self.info(), peer.info());
        self.qp.connect_with(&peer_info, options).unwrap();
        peer.qp.connect_with(&own_info, options).unwrap();
    }

    /// Creates another queue pair with the same domain and completion queue.
    pub fn another(&self) -> QueuePair {
        self.pd.create_qp(&self.cq, &self.cq).unwrap()
    }

    /// Returns the data with which a peer connects.
    pub fn info(&self) -> ConnectionInfo {
        self.qp.connection_info().unwrap()
    }

    /// Allocates a region with all access flags.
    pub fn region(&self, len: usize) -> MemoryRegion {
        self.pd.alloc_mr(len, ALL_ACCESS).unwrap()
    }

    /// Posts a request, signaled.
    #[track_caller]
    pub fn post(&self, request: SendRequest<'_>) {
        self.qp.post_send(&[request.signaled()]).unwrap();
    }

    /// Returns the number and the result of the next completion.
    #[track_caller]
    pub fn next(&self) -> (u64, Result<Success, CompletionError>) {
        let completion = self.cq.wait(PATIENCE).unwrap();
        (completion.wr_id(), completion.result())
    }

    /// Asserts that the next completion is this success.
    #[track_caller]
    pub fn succeeds(&self, wr_id: u64) -> Success {
        let (completed, result) = self.next();
        let success = result.unwrap_or_else(|failure| panic!("{completed}: {}", self.qp.explain(&failure)));
        assert_eq!(completed, wr_id, "{success:?}");
        success
    }

    /// Asserts that the next completion is this failure.
    #[track_caller]
    pub fn fails(&self, wr_id: u64, status: CompletionStatus) {
        let (completed, result) = self.next();
        let failure = result.expect_err("a failure");
        assert_eq!((completed, failure.status), (wr_id, status), "{}", self.qp.explain(&failure));
    }

    /// Returns the next asynchronous event.
    #[track_caller]
    pub fn event(&self) -> AsyncEvent {
        self.context.wait_async_event(PATIENCE).expect("an event")
    }
}
