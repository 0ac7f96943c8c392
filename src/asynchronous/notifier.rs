//! Waiting for the completion events of a completion queue.

use std::os::fd::{AsFd, OwnedFd};

use tokio::io::unix::AsyncFd;

use crate::verbs::{CompletionChannel, Context, Error, Result};

/// A completion channel with one completion queue, and its descriptor in the runtime.
pub(super) struct Notifier {
    channel: CompletionChannel,
    descriptor: AsyncFd<OwnedFd>,
}

impl Notifier {
    /// Creates a channel of its own.
    pub(super) fn new(context: &Context) -> Result<Self> {
        let channel = context.create_comp_channel()?;
        let descriptor = watch(channel.as_fd(), "create_comp_channel")?;
        Ok(Self { channel, descriptor })
    }

    pub(super) fn channel(&self) -> &CompletionChannel {
        &self.channel
    }

    /// Waits until the armed queue has a completion, driving the transport whenever packets arrive.
    pub(super) async fn announced(&self) -> Result<()> {
        while self.channel.poll_event().is_none() {
            let mut ready = self.descriptor.readable().await.map_err(|error| failed("get_cq_event", error))?;
            // The next `poll_event` sees the events before this; later ones mark the descriptor as ready again.
            ready.clear_ready();
        }
        Ok(())
    }
}

/// Registers a duplicate of the descriptor with the runtime.
///
/// Newer versions of the runtime deprecate this constructor, because a type may close its descriptor at any time; an
/// `OwnedFd` does not. Their replacement does not exist in the oldest version that this crate supports.
#[allow(deprecated)]
pub(super) fn watch(descriptor: std::os::fd::BorrowedFd<'_>, verb: &'static str) -> Result<AsyncFd<OwnedFd>> {
    let duplicate = descriptor.try_clone_to_owned().map_err(|error| failed(verb, error))?;
    AsyncFd::with_interest(duplicate, tokio::io::Interest::READABLE).map_err(|error| failed(verb, error))
}

pub(super) fn failed(verb: &'static str, error: std::io::Error) -> Error {
    Error::from_io(verb, "the runtime cannot watch the descriptor", error)
}
