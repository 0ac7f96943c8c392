//! Options for creating a completion queue.

use super::CompletionChannel;
use crate::provider::CompletionQueueInit;

/// Options for creating a completion queue with [`Context::create_cq_with`](super::Context::create_cq_with).
///
/// They hold a handle of the channel, if one is set.
///
/// ```
/// use std::time::Duration;
/// use rdma_verbs::verbs::{self, CompletionQueueOptions, Payload, SendRequest};
///
/// let context = verbs::open("soft:127.0.1.111")?;
/// let cq = context.create_cq_with(16, &CompletionQueueOptions::default().comp_vector(0).timestamps())?;
/// # let pd = context.alloc_pd()?;
/// # let qp = pd.create_qp(&cq, &cq)?;
/// # qp.connect(&qp.connection_info()?)?; // to itself
/// # qp.post_recv(&[verbs::ReceiveRequest::new(verbs::RegionList::EMPTY)])?;
/// let before = context.query_clock()?;
/// qp.post_send(&[SendRequest::send(Payload::EMPTY)])?;
/// let completed = cq.wait(Duration::from_secs(10))?.timestamp().expect("requested");
/// assert!(before <= completed && completed <= context.query_clock()?);
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "ibv_cq_init_attr_ex")]
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing by themselves"]
pub struct CompletionQueueOptions {
    channel: Option<(CompletionChannel, u64)>,
    comp_vector: u32,
    timestamps: bool,
}

impl CompletionQueueOptions {
    /// Sets the channel that the queue notifies. `cq_context` is a caller-defined number that
    /// [`CompletionChannel::poll_event`] returns when the queue has a completion.
    pub fn channel(mut self, channel: &CompletionChannel, cq_context: u64) -> Self {
        self.channel = Some((channel.clone(), cq_context));
        self
    }

    /// Sets which of the device's `num_comp_vectors` completion vectors serves the queue, numbered from 0; 0 by
    /// default.
    pub fn comp_vector(mut self, comp_vector: u32) -> Self {
        self.comp_vector = comp_vector;
        self
    }

    /// Stamps completions with the time at which they are added:
    /// [`Completion::timestamp`](super::Completion::timestamp).
    pub fn timestamps(mut self) -> Self {
        self.timestamps = true;
        self
    }

    pub(super) fn wanted_channel(&self) -> Option<&(CompletionChannel, u64)> {
        self.channel.as_ref()
    }

    /// Returns the provider's form of these options for a queue of at least `cqe` completions.
    pub(super) fn lower(&self, cqe: u32) -> CompletionQueueInit<'_> {
        CompletionQueueInit {
            cqe,
            cq_context: self.channel.as_ref().map_or(0, |(_, cq_context)| *cq_context),
            channel: self.channel.as_ref().map(|(channel, _)| channel.inner()),
            comp_vector: self.comp_vector,
            timestamps: self.timestamps,
        }
    }
}
