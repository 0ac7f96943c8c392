//! What a new completion queue shall be.

use super::CompletionChannel;
use crate::provider::CompletionQueueInit;

/// What a new completion queue shall be; for [`Context::create_cq_with`](super::Context::create_cq_with).
///
/// ```
/// use std::time::Duration;
/// use rdma_verbs::verbs::{self, CompletionQueueOptions, Payload, SendRequest};
///
/// let context = verbs::open("soft:127.0.1.111")?;
/// let cq = context.create_cq_with(&CompletionQueueOptions::new(16).comp_vector(0).timestamps())?;
/// # let pd = context.alloc_pd()?;
/// # let qp = pd.create_qp(&cq, &cq).build()?;
/// # qp.connect(&qp.connection_info()?)?; // to itself
/// # qp.post_recv(&[verbs::ReceiveRequest::new(verbs::RegionList::EMPTY)])?;
/// let before = context.query_clock()?;
/// qp.post_send(&[SendRequest::send(Payload::EMPTY)])?;
/// let completed = cq.wait(Duration::from_secs(10))?.timestamp().expect("asked for");
/// assert!(before <= completed && completed <= context.query_clock()?);
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct CompletionQueueOptions {
    cqe: u32,
    channel: Option<(CompletionChannel, u64)>,
    comp_vector: u32,
    timestamps: bool,
}

impl CompletionQueueOptions {
    /// Room for at least `cqe` completions, and nothing else.
    pub fn new(cqe: u32) -> Self {
        Self { cqe, channel: None, comp_vector: 0, timestamps: false }
    }

    /// Completions are announced on this channel. `cq_context` is any number of the caller's;
    /// [`CompletionChannel::poll_event`] hands it out when the queue has something.
    pub fn channel(mut self, channel: &CompletionChannel, cq_context: u64) -> Self {
        self.channel = Some((channel.clone(), cq_context));
        self
    }

    /// Which of the device's `num_comp_vectors` completion vectors serves the queue, from 0.
    pub fn comp_vector(mut self, comp_vector: u32) -> Self {
        self.comp_vector = comp_vector;
        self
    }

    /// Completions bear the time when they were added: [`Completion::timestamp`](super::Completion::timestamp).
    pub fn timestamps(mut self) -> Self {
        self.timestamps = true;
        self
    }

    pub(super) fn wanted_channel(&self) -> Option<&(CompletionChannel, u64)> {
        self.channel.as_ref()
    }

    /// The same for the provider.
    pub(super) fn lower(&self) -> CompletionQueueInit<'_> {
        CompletionQueueInit {
            cqe: self.cqe,
            cq_context: self.channel.as_ref().map_or(0, |(_, cq_context)| *cq_context),
            channel: self.channel.as_ref().map(|(channel, _)| channel.inner()),
            comp_vector: self.comp_vector,
            timestamps: self.timestamps,
        }
    }
}
