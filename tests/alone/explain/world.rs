//! Ends of connections, and the steps common to all injections.

use std::ops::Deref;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::{self, CompletionError, ConnectOptions, Payload, QueuePair, QueuePairOptions, SendRequest};
use support::{PATIENCE, open_without_shared_memory};

/// An end that explains its failures.
pub(crate) struct End(support::End);

impl Deref for End {
    type Target = support::End;

    fn deref(&self) -> &support::End {
        &self.0
    }
}

impl End {
    /// Opens an end on 127.92.`case`.`host`.
    pub(crate) fn open(case: u8, host: u8) -> Self {
        Self::with_options(case, host, &QueuePairOptions::default())
    }

    pub(crate) fn with_options(case: u8, host: u8, options: &QueuePairOptions) -> Self {
        Self(support::End::with_options(&format!("127.92.{case}.{host}"), options))
    }

    /// Opens an end whose packets go through sockets.
    pub(crate) fn without_shared_memory(case: u8, host: u8) -> Self {
        let context = open_without_shared_memory(&format!("soft:127.92.{case}.{host}")).unwrap();
        Self(support::End::on(context, &QueuePairOptions::default()))
    }

    /// Replaces the queue pair.
    pub(crate) fn with_qp(self, qp: QueuePair) -> Self {
        Self(support::End { qp, ..self.0 })
    }

    pub(crate) fn send(&self) {
        self.post(SendRequest::send(Payload::inline(b"hi")));
    }

    #[track_caller]
    pub(crate) fn succeeds(&self) {
        self.0.succeeds(0);
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
    left.0.connect(right, &hasty());
}
