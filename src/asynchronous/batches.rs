//! Completions of the verbs tier, a batch at a time.

use std::fmt;

use super::notifier::Notifier;
use crate::verbs::{Completion, CompletionQueue, CompletionQueueOptions, Context, Notify, Result};

/// Number of empty polls before [`CompletionBatches::next`] sleeps.
const POLLS: usize = 8;

/// A completion queue of the verbs tier whose completions can be awaited.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// use rdma_verbs::asynchronous::CompletionBatches;
/// use rdma_verbs::verbs::{self, Completion, Payload, ReceiveRequest, RegionList, SendRequest};
///
/// let context = verbs::open("soft:127.0.1.106")?;
/// let pd = context.alloc_pd()?;
/// let mut batches = CompletionBatches::new(&context, 64)?;
/// let qp = pd.create_qp(batches.cq(), batches.cq())?;
/// qp.connect(&qp.connection_info()?)?; // to itself
/// qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)])?;
/// qp.post_send(&[SendRequest::send(Payload::EMPTY).signaled()])?;
///
/// let mut completions = [Completion::default(); 16];
/// let mut seen = 0;
/// while seen < 2 {
///     seen += batches.next(&mut completions).await?;
/// }
/// # Ok::<(), verbs::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CompletionBatches {
    cq: CompletionQueue,
    notifier: Notifier,
}

impl CompletionBatches {
    /// Creates a queue for at least `cqe` completions, with its own channel. Must be called within a runtime.
    ///
    /// # Errors
    /// As for [`Context::create_comp_channel`] and [`Context::create_cq`].
    ///
    /// # Panics
    /// If called outside a tokio runtime, or in one without I/O.
    pub fn new(context: &Context, cqe: u32) -> Result<Self> {
        let notifier = Notifier::new(context)?;
        let options = CompletionQueueOptions::default().channel(notifier.channel(), 0);
        Ok(Self { cq: context.create_cq_with(cqe, &options)?, notifier })
    }

    /// Returns the queue, to create queue pairs with.
    pub fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// Waits for completions and takes as many as are available and fit into `out`. Returns their number, at least 1
    /// unless `out` is empty. Dropping the future consumes none.
    ///
    /// # Errors
    /// As for [`CompletionQueue::poll`].
    pub async fn next(&mut self, out: &mut [Completion]) -> Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            for _ in 0..POLLS {
                let count = self.cq.poll(out)?;
                if count > 0 {
                    return Ok(count);
                }
                tokio::task::yield_now().await;
            }
            self.cq.req_notify(Notify::Any)?;
            let count = self.cq.poll(out)?;
            if count > 0 {
                return Ok(count);
            }
            self.notifier.announced().await?;
        }
    }
}

impl fmt::Debug for CompletionBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionBatches").field("cq", &self.cq).finish_non_exhaustive()
    }
}
