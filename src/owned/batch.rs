//! Several requests with one doorbell.
#![forbid(unsafe_code)]

use super::queue_pair::QueuePair;
use super::request::Request;
use crate::verbs::{Error, Result};

/// The reason why [`QueuePair::post_send_all`] posted only some of its requests.
#[derive(Debug, thiserror::Error)]
#[error("{accepted} requests were posted, and then: {error}")]
#[non_exhaustive]
pub struct PartlyPosted {
    /// Number of requests that were posted.
    pub accepted: usize,
    /// Reason for the refusal of the next one.
    #[source]
    pub error: Error,
}

impl PartlyPosted {
    pub(super) fn new(accepted: usize, error: Error) -> Self {
        Self { accepted, error }
    }
}

impl From<PartlyPosted> for Error {
    fn from(partly: PartlyPosted) -> Self {
        partly.error
    }
}

impl QueuePair {
    /// Posts requests to the send queue in order and with one doorbell, so that equal small requests share system
    /// calls; see [`verbs::SendBatch`](crate::verbs::SendBatch). No other thread's requests are interleaved.
    ///
    /// The posted requests are removed from `requests`. Posting stops at the first request that is refused, for
    /// instance because the queue is full: that one and those after it stay in `requests`, with their buffers.
    ///
    /// # Errors
    /// As for [`QueuePair::post_send`], for the first refused request, with the number of those that were posted.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rdma_verbs::owned::{BufferPool, CompletionQueue, QueuePair, QueuePairOptions, Request};
    /// # use rdma_verbs::verbs::{self, AccessFlags, ErrorKind};
    /// # let context = verbs::open("soft:127.45.1.30")?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = CompletionQueue::new(&context, 64)?;
    /// # let qp = QueuePair::with_options(&pd, &cq, &cq, &QueuePairOptions::default().max_send_wr(4))?;
    /// # qp.connect(&qp.connection_info()?)?; // to itself
    /// # let region = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE)?;
    /// # let remote = region.remote();
    /// let pool = BufferPool::new(&pd, 1 << 20)?;
    /// let mut requests = Vec::new();
    /// for record in 0..10u8 {
    ///     let place = remote.slice(usize::from(record) * 8..)?;
    ///     requests.push(Request::write(pool.copy_from(&[record; 8])?, place).signaled());
    /// }
    /// // The queue is shorter: wait, poll all that is finished, then post the next ones together.
    /// while let Err(partly) = qp.post_send_all(&mut requests) {
    ///     assert_eq!(partly.error.kind(), ErrorKind::QueueFull);
    ///     cq.wait(Duration::from_secs(10))?;
    ///     while cq.poll()?.is_some() {}
    /// }
    /// assert!(requests.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn post_send_all(&self, requests: &mut Vec<Request>) -> Result<(), PartlyPosted> {
        self.posted().post_send_all(requests)
    }
}
