//! Completion queues.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::channel::SoftChannel;
use super::device::Device;
use super::errors;
use super::limit::{Share, check_range};
use crate::engine::{Channel, CqNotifier, Shard};
use crate::provider::{CompletionQueue, CompletionQueueInit, Error, ErrorKind, Result};
use crate::queue::{self, Notify};
use crate::sys::timestamp;
use crate::types::{AsyncEvent, CompletionQueueNumber, RawCompletion};

/// Longest moderation period: the standard's field has 16 bits.
const LONGEST_PERIOD: Duration = Duration::from_micros(u16::MAX as u64);

/// A completion queue of a software device.
pub(super) struct SoftCompletionQueue {
    queue: Arc<queue::CompletionQueue>,
    /// Number of sources on each shard that complete here; polling drives those shards.
    sources: Vec<AtomicU32>,
    notifier: Option<Arc<ChannelNotifier>>,
    /// Whether the overflow was passed on to all shards.
    overflow_spread: AtomicBool,
    device: Arc<Device>,
    _share: Share,
}

/// Notifies the channel of one completion queue's events.
struct ChannelNotifier {
    channel: Arc<Channel>,
    cq: Arc<CqNotifier>,
    /// The device's shards.
    shards: Vec<Arc<Shard>>,
    /// Index of the shard that times the moderation periods.
    comp_vector: usize,
    queue: Weak<queue::CompletionQueue>,
}

impl Notify for ChannelNotifier {
    fn notify_within(&self, _: u32, period: Duration, gathering: u32) {
        if let Some(shard) = self.shards.get(self.comp_vector) {
            shard.notify_within(&self.queue, period, gathering);
        }
    }

    fn notify(&self, _: u32) {
        self.channel.notify(&self.cq);
    }
}

impl SoftCompletionQueue {
    pub(super) fn new(
        device: &Arc<Device>,
        init: &CompletionQueueInit<'_>,
        channel: Option<&SoftChannel>,
    ) -> Result<Self> {
        let vectors = device.attributes.num_comp_vectors;
        check_range("create_cq", "cqe", init.cqe, 1..=device.attributes.max_cqe)?;
        check_range("create_cq", "comp_vector", init.comp_vector, 0..=vectors.saturating_sub(1))?;
        let share = device.counts.completion_queues.take("create_cq")?;
        let shards = device.engine.shards();
        let mut notifier = None;
        let number = device.completion_queue_numbers.take();
        let queue = Arc::new_cyclic(|queue: &Weak<queue::CompletionQueue>| {
            notifier = channel.map(|channel| {
                Arc::new(ChannelNotifier {
                    channel: Arc::clone(channel.engine_side()),
                    cq: Arc::new(CqNotifier::new(init.cq_context)),
                    shards: shards.to_vec(),
                    comp_vector: init.comp_vector as usize,
                    queue: Weak::clone(queue),
                })
            });
            let notify = notifier.clone().map(|notifier| notifier as Arc<dyn Notify>);
            let queue = queue::CompletionQueue::unshared(number, init.cqe, notify);
            if init.timestamps { queue.stamped(timestamp) } else { queue }
        });
        Ok(Self {
            queue,
            sources: shards.iter().map(|_| AtomicU32::new(0)).collect(),
            notifier,
            overflow_spread: AtomicBool::new(false),
            device: Arc::clone(device),
            _share: share,
        })
    }

    pub(super) fn is_of(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    pub(super) fn is_inherited(&self) -> bool {
        self.device.is_inherited()
    }

    pub(super) fn engine_side(&self) -> &Arc<queue::CompletionQueue> {
        &self.queue
    }

    /// Records a source on this shard that completes here.
    pub(super) fn add_source(&self, shard: usize) {
        self.sources[shard].fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a source recorded by [`Self::add_source`].
    pub(super) fn remove_source(&self, shard: usize) {
        self.sources[shard].fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the shards with sources that complete here.
    fn source_shards(&self) -> impl Iterator<Item = &Arc<Shard>> {
        let shards = self.device.engine.shards().iter().zip(&self.sources);
        shards.filter(|(_, sources)| sources.load(Ordering::Relaxed) > 0).map(|(shard, _)| shard)
    }

    /// Fails the queue pairs on all shards with sources. The shard that lost the completion has already failed its own.
    fn spread_overflow(&self) {
        if !self.overflow_spread.swap(true, Ordering::AcqRel) {
            for shard in self.source_shards() {
                shard.command(|core, now| core.endpoint.fail_queue_pairs_of_overflowed(now));
            }
        }
    }

    /// Fails if the queue overflowed or a shard failed. Called when the queue is still empty after the shards were
    /// driven, to distinguish completions that have not arrived yet from those that never will.
    fn check_alive(&self) -> Result<()> {
        if self.queue.overflowed() {
            self.spread_overflow();
            let message = format!(
                "the queue of {} entries was full when a completion came: completions are lost, and its queue pairs \
                 are in error; create it larger, or poll more often",
                self.queue.capacity()
            );
            return Err(Error::new("poll_cq", ErrorKind::ResourceLimit, message));
        }
        if self.device.engine.shards().iter().any(|shard| shard.has_failed()) {
            return Err(errors::engine_failed("poll_cq"));
        }
        Ok(())
    }
}

impl CompletionQueue for SoftCompletionQueue {
    /// Returns queued completions without driving the shards, which are driven only when the queue is empty. An empty
    /// poll backs off, by default by yielding the processor: that costs next to nothing if no other thread is runnable,
    /// and lets a peer on the same core proceed.
    fn poll(&self, out: &mut [RawCompletion]) -> Result<usize> {
        self.device.check_process("poll_cq")?;
        if out.is_empty() {
            return Ok(0);
        }
        let count = self.queue.poll(out);
        if count > 0 {
            self.source_shards().for_each(|shard| {
                shard.note_taken();
                shard.note_poll_ends();
            });
            return Ok(count);
        }
        let (mut first, mut has_polled) = (None, false);
        for shard in self.source_shards() {
            has_polled |= shard.poll(|| !self.queue.is_empty());
            first.get_or_insert(shard);
        }
        if !has_polled && first.is_some() {
            return Ok(0);
        }
        let count = self.queue.poll(out);
        if count > 0 {
            self.source_shards().for_each(|shard| shard.note_poll_ends());
        } else {
            self.check_alive()?;
            // With several shards, only packets for the first one end a nap early.
            match first {
                Some(shard) => shard.idle(),
                None => std::thread::yield_now(),
            }
        }
        Ok(count)
    }

    fn polls_to_skip(&self) -> u32 {
        self.source_shards().next().map_or(0, |shard| shard.polls_to_skip())
    }

    fn is_known_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn req_notify(&self, solicited_only: bool) -> Result<()> {
        self.device.check_process("req_notify_cq")?;
        let Some(notifier) = &self.notifier else {
            let message = "the queue was created without a channel";
            return Err(Error::new("req_notify_cq", ErrorKind::InvalidState, message));
        };
        notifier.channel.arm(&notifier.cq);
        self.queue.req_notify(solicited_only);
        Ok(())
    }

    fn cqe(&self) -> u32 {
        if self.device.is_inherited() { 0 } else { self.queue.capacity() }
    }

    fn number(&self) -> CompletionQueueNumber {
        CompletionQueueNumber::new(self.queue.id())
    }

    fn comp_events_reported(&self) -> u32 {
        self.notifier.as_ref().map_or(0, |notifier| notifier.cq.taken())
    }

    fn moderate(&self, cq_count: u16, cq_period: Duration) -> Result<()> {
        self.device.check_process("modify_cq")?;
        let longest = u32::try_from(LONGEST_PERIOD.as_micros()).unwrap_or(u32::MAX);
        let period = u32::try_from(cq_period.as_micros()).unwrap_or(u32::MAX);
        errors::check_cq_period(period, longest)?;
        self.queue.moderate(cq_count.into(), cq_period);
        Ok(())
    }

    fn resize(&self, cqe: u32) -> Result<()> {
        self.device.check_process("resize_cq")?;
        check_range("resize_cq", "cqe", cqe, 1..=self.device.attributes.max_cqe)?;
        // The completions of requests that were posted while another thread drove count as well.
        for shard in self.source_shards() {
            shard.command(|_, _| {});
        }
        self.queue.resize(cqe).map_err(|error| Error::unsuitable("resize_cq", "cqe", error.to_string()))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A source of completions on any shard: a shared receive queue that completes here. Keeps the completion queue alive.
pub(super) struct CompletionFeed {
    queue: Arc<dyn CompletionQueue>,
    token: queue::SourceToken,
}

impl CompletionFeed {
    pub(super) fn from_all_shards(queue: &Arc<dyn CompletionQueue>) -> Self {
        let own = soft(queue);
        (0..own.sources.len()).for_each(|shard| own.add_source(shard));
        Self { token: own.queue.attach(None), queue: Arc::clone(queue) }
    }

    pub(super) fn for_endpoint(&self) -> (Arc<queue::CompletionQueue>, queue::SourceToken) {
        (Arc::clone(&soft(&self.queue).queue), self.token)
    }

    /// Stops completions from this source and removes those not yet polled. Detaching twice has no effect.
    pub(super) fn detach(&self) {
        soft(&self.queue).queue.detach(self.token);
    }
}

impl Drop for CompletionFeed {
    fn drop(&mut self) {
        let own = soft(&self.queue);
        if !own.is_inherited() {
            self.detach();
            (0..own.sources.len()).for_each(|shard| own.remove_source(shard));
        }
    }
}

/// Returns the queue behind the trait object. The caller has checked that it is a software device's.
pub(super) fn soft(queue: &Arc<dyn CompletionQueue>) -> &SoftCompletionQueue {
    queue.as_any().downcast_ref().expect("checked before it was used")
}

impl Drop for SoftCompletionQueue {
    fn drop(&mut self) {
        if self.device.is_inherited() {
            return;
        }
        if let Some(notifier) = &self.notifier {
            notifier.channel.remove(&notifier.cq);
        }
        let number = self.number();
        self.device.events.discard(|event| *event == AsyncEvent::CompletionQueueError(number));
        self.device.completion_queue_numbers.give_back(number.value());
    }
}
