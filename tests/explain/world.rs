//! Ends of connections, and the steps common to all injections.

use std::time::{Duration, Instant};

use rdma_verbs::verbs::{
    self, AccessFlags, AsyncEvent, CompletionError, CompletionQueue, ConnectOptions, ConnectionInfo, Context,
    MemoryRegion, Payload, ProtectionDomain, QueuePair, QueuePairBuilder, SendRequest,
};

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const ALL_RIGHTS: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::LOCAL_WRITE);

/// A device with a queue pair.
pub(crate) struct End {
    pub(crate) context: Context,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) qp: QueuePair,
}

impl End {
    /// Opens an end on 127.92.`case`.`host`.
    pub(crate) fn open(case: u8, host: u8) -> Self {
        Self::shaped(case, host, |builder| builder)
    }

    pub(crate) fn shaped(case: u8, host: u8, shape: impl FnOnce(QueuePairBuilder<'_>) -> QueuePairBuilder<'_>) -> Self {
        let context = verbs::open(&format!("soft:127.92.{case}.{host}")).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(256).unwrap();
        let qp = shape(pd.create_qp(&cq, &cq)).build().unwrap();
        Self { context, pd, cq, qp }
    }

    /// Creates another queue pair of the same device and queues.
    pub(crate) fn another(&self) -> QueuePair {
        self.pd.create_qp(&self.cq, &self.cq).build().unwrap()
    }

    pub(crate) fn info(&self) -> ConnectionInfo {
        self.qp.connection_info().unwrap()
    }

    pub(crate) fn region(&self, len: usize) -> MemoryRegion {
        self.pd.alloc_mr(len, ALL_RIGHTS).unwrap()
    }

    pub(crate) fn post(&self, request: SendRequest<'_>) {
        self.qp.post_send(&[request.signaled()]).unwrap();
    }

    pub(crate) fn send(&self) {
        self.post(SendRequest::send(Payload::inline(b"hi")));
    }

    #[track_caller]
    pub(crate) fn succeeds(&self) {
        let completion = self.cq.wait(PATIENCE).unwrap();
        if let Err(failure) = completion.result() {
            panic!("{}", self.qp.explain(&failure));
        }
    }

    #[track_caller]
    pub(crate) fn fails(&self) -> CompletionError {
        self.cq.wait(PATIENCE).unwrap().result().expect_err("a failure")
    }

    /// Returns the explanation of the next completion, which must be a failure.
    #[track_caller]
    pub(crate) fn why(&self) -> String {
        let failure = self.fails();
        self.qp.explain(&failure)
    }

    /// Returns the explanation of the next asynchronous event.
    #[track_caller]
    pub(crate) fn why_event(&self) -> String {
        let event = self.event();
        self.qp.explain_event(&event)
    }

    #[track_caller]
    pub(crate) fn event(&self) -> AsyncEvent {
        self.context.get_async_event(PATIENCE).expect("an event")
    }

    /// Drives the device until the condition holds.
    #[track_caller]
    pub(crate) fn until(&self, mut condition: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !condition(self) {
            assert!(Instant::now() < end, "it never came: {}", self.qp.explain_state());
            let mut none: [verbs::Completion; 0] = [];
            self.cq.poll(&mut none).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns options that give up after 50 ms of silence.
pub(crate) fn hasty() -> ConnectOptions {
    ConnectOptions::default().timeout(12).retry_cnt(2)
}

/// Creates two unconnected ends.
pub(crate) fn ends(case: u8) -> (End, End) {
    (End::open(case, 1), End::open(case, 2))
}

/// Creates two connected ends.
pub(crate) fn pair(case: u8) -> (End, End) {
    let (left, right) = ends(case);
    connect(&left, &right);
    (left, right)
}

pub(crate) fn connect(left: &End, right: &End) {
    left.qp.connect_with(&right.info(), &hasty()).unwrap();
    right.qp.connect_with(&left.info(), &hasty()).unwrap();
}
