//! A completion queue whose owner sleeps, and a queue pair with places for messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::{
    self, AccessFlags, Completion, CompletionChannel, CompletionQueue, CompletionQueueOptions, Context, ErrorKind,
    MemoryRegion, Notify, ProtectionDomain, QueuePair, QueuePairOptions, ReceiveRequest, RegionRange,
};

use super::protocol::DEPTH;
use crate::common::is_interrupted;

/// How often a sleeper looks whether it is to end.
const TICK: Duration = Duration::from_millis(50);

/// A completion queue with a channel to sleep on.
pub(super) struct Queue {
    cq: CompletionQueue,
    channel: CompletionChannel,
}

impl Queue {
    pub(super) fn new(context: &Context, cqe: usize) -> verbs::Result<Self> {
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq_with(cqe as u32, &CompletionQueueOptions::default().channel(&channel, 0))?;
        Ok(Self { cq, channel })
    }

    pub(super) fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    pub(super) fn poll(&self) -> verbs::Result<Option<Completion>> {
        let mut completion = [Completion::default()];
        Ok((self.cq.poll(&mut completion)? == 1).then_some(completion[0]))
    }

    /// Waits for a completion, until this time or an interruption.
    pub(super) fn next(&self, until: Instant) -> verbs::Result<Option<Completion>> {
        loop {
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            // A completion before the queue was armed raises no event.
            self.cq.req_notify(Notify::Any)?;
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || is_interrupted() {
                return Ok(None);
            }
            match self.channel.wait_event(left.min(TICK)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// A queue pair, and memory with [`DEPTH`] places for messages. Places of datagrams have the route header before them.
pub(super) struct Lane {
    pub(super) qp: Arc<QueuePair>,
    places: MemoryRegion,
    place_bytes: usize,
}

impl Lane {
    /// Creates it with a queue pair in RESET. `bytes` is the length of the longest message, with a route header.
    pub(super) fn new(
        pd: &ProtectionDomain,
        queue: &Queue,
        options: QueuePairOptions,
        bytes: usize,
    ) -> verbs::Result<Self> {
        let depth = 2 * DEPTH as u32;
        let qp = pd.create_qp_with(queue.cq(), queue.cq(), &options.max_send_wr(depth).max_recv_wr(depth))?;
        let qp = Arc::new(qp);
        Ok(Self { qp, places: pd.alloc_mr(DEPTH * bytes, AccessFlags::LOCAL_WRITE)?, place_bytes: bytes })
    }

    /// Returns the first bytes of a place, from `start`.
    pub(super) fn place(&self, place: usize, start: usize, end: usize) -> verbs::Result<RegionRange<'_>> {
        let first = place * self.place_bytes;
        self.places.slice(first + start..first + end.min(self.place_bytes))
    }

    pub(super) fn read(&self, place: usize, start: usize, end: usize) -> verbs::Result<Vec<u8>> {
        let first = place * self.place_bytes;
        self.places.to_vec(first + start..first + end.min(self.place_bytes))
    }

    /// Posts the receive of a place.
    pub(super) fn post_recv(&self, place: usize, wr_id: u64) -> verbs::Result<()> {
        let range = self.place(place, 0, self.place_bytes)?;
        self.qp.post_recv(&[ReceiveRequest::new(range).wr_id(wr_id)])
    }
}
