//! The send queue: requests on their way from posting threads to the queue pair's endpoint.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::QueueError;
use super::ring::{Layout, Ring, RingConsumer};
use crate::types::{
    BatchEnd, Data, Destination, MAX_MESSAGE_BYTES, Operation, SendFlags, SendRequest, Sge, SharedReceiveQueueNumber,
};

/// The fixed part of a send request in its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendHeader {
    /// The caller's own number.
    pub wr_id: u64,
    /// The operation.
    pub operation: Operation,
    /// Its flags.
    pub flags: SendFlags,
    /// Length of the whole message in bytes.
    pub length: u32,
    /// Scatter-gather entries; 0 if inline.
    pub sge_count: u8,
    /// Whether the message was copied while posting.
    pub inline: bool,
    /// The shared receive queue that the request is for; `NO_QUEUE` if it names none.
    srq: u32,
}

/// Stands for no shared receive queue.
const NO_QUEUE: u32 = u32::MAX;

impl SendHeader {
    /// The peer's shared receive queue, which an XRC initiator's requests name.
    #[inline]
    pub fn remote_srq(&self) -> Option<SharedReceiveQueueNumber> {
        (self.srq != NO_QUEUE).then(|| SharedReceiveQueueNumber::new(self.srq))
    }
}

impl Default for SendHeader {
    fn default() -> Self {
        Self {
            wr_id: 0,
            operation: Operation::Send,
            flags: SendFlags::empty(),
            length: 0,
            sge_count: 0,
            inline: false,
            srq: NO_QUEUE,
        }
    }
}

/// The send queue of a queue pair, as posting and polling threads see it.
///
/// Requests are posted in batches: [`begin`](Self::begin), any number of [`push`](Self::push), [`end`](Self::end), all
/// by one thread; other posting threads wait meanwhile. A failed push leaves the batch open and the requests before it
/// in place.
pub struct SendQueue {
    ring: Arc<Ring<SendHeader>>,
    /// Bytes in front of each slot's inline bytes: a datagram's destination, or nothing.
    prefix: usize,
}

impl SendQueue {
    /// Creates a queue for `max_wr` requests of up to `max_sge` entries or `max_inline` bytes inline.
    ///
    /// # Panics
    ///
    /// If `max_wr` exceeds [`MAX_DEPTH`](super::MAX_DEPTH) or `max_sge` exceeds [`MAX_SGES`](super::MAX_SGES).
    pub fn new(max_wr: u32, max_sge: u32, max_inline: u32) -> Arc<Self> {
        Self::starting_at(0, max_wr, max_sge, max_inline)
    }

    /// Creates a queue whose first request has the number `start`.
    pub(super) fn starting_at(start: u64, max_wr: u32, max_sge: u32, max_inline: u32) -> Arc<Self> {
        Arc::new(Self { ring: Ring::new(Layout { limit: max_wr, max_sge, max_inline, start }), prefix: 0 })
    }

    /// Creates a queue for datagrams, whose requests each carry a destination. Only such a queue has room for
    /// destinations.
    ///
    /// # Panics
    ///
    /// As [`SendQueue::new`].
    pub fn for_datagrams(max_wr: u32, max_sge: u32, max_inline: u32) -> Arc<Self> {
        let prefix = Destination::BYTES;
        let layout = Layout { limit: max_wr, max_sge, max_inline: max_inline + prefix as u32, start: 0 };
        Arc::new(Self { ring: Ring::new(layout), prefix })
    }

    /// Begins a batch. Waits while another thread has one open: spins briefly, then yields the processor.
    ///
    /// Beginning again continues the open batch of this thread; a single end ends it.
    pub fn begin(&self) {
        self.ring.begin();
    }

    /// Copies a request into the batch.
    ///
    /// # Errors
    ///
    /// [`QueueError::NotBegun`] first, then errors of the request itself, [`QueueError::Full`] last: a request that can
    /// never be posted is not reported as one to retry.
    #[inline]
    pub fn push(&self, request: &SendRequest<'_>) -> Result<(), QueueError> {
        self.push_with(request, NO_QUEUE)
    }

    /// As [`SendQueue::push`], for the peer's shared receive queue of this number.
    ///
    /// # Errors
    ///
    /// As [`SendQueue::push`].
    pub fn push_to_srq(&self, request: &SendRequest<'_>, srq: SharedReceiveQueueNumber) -> Result<(), QueueError> {
        self.push_with(request, srq.value())
    }

    #[inline]
    fn push_with(&self, request: &SendRequest<'_>, srq: u32) -> Result<(), QueueError> {
        self.ring.check_begun()?;
        if self.prefix != 0 {
            return Err(QueueError::NoDestination);
        }
        self.push_behind(None, request, srq)
    }

    /// Copies a datagram into the batch.
    ///
    /// # Errors
    ///
    /// As [`SendQueue::push`].
    pub fn push_to(&self, request: &SendRequest<'_>, destination: &Destination) -> Result<(), QueueError> {
        self.ring.check_begun()?;
        if self.prefix == 0 {
            return Err(QueueError::DestinationNotAllowed);
        }
        self.push_behind(Some(&destination.to_bytes()), request, NO_QUEUE)
    }

    #[inline]
    fn push_behind(&self, prefix: Option<&[u8]>, request: &SendRequest<'_>, srq: u32) -> Result<(), QueueError> {
        let header = SendHeader {
            wr_id: request.wr_id,
            operation: request.operation,
            flags: request.flags,
            length: 0,
            sge_count: 0,
            inline: false,
            srq,
        };
        match request.data {
            Data::Sges(sges) => {
                let length = self.check_sges(&request.operation, sges)?;
                let header = SendHeader { length, sge_count: sges.len() as u8, ..header };
                self.ring.push_segments(header, sges, prefix.into_iter())
            }
            Data::Inline(segments) => {
                let length = self.check_inline(&request.operation, segments)?;
                let header = SendHeader { length, inline: true, ..header };
                self.ring.push_segments(header, &[], prefix.into_iter().chain(segments.iter().copied()))
            }
        }
    }

    /// Ends the batch: hands it to the endpoint or discards it. Returns how many requests were handed over.
    ///
    /// # Errors
    ///
    /// [`QueueError::NotBegun`].
    #[inline]
    pub fn end(&self, end: BatchEnd) -> Result<u32, QueueError> {
        self.ring.end(end)
    }

    /// Frees the slots of requests before number `up_to` (wrapping). Slots that the endpoint has not retired stay
    /// taken, and slots already released stay free, regardless of the number.
    #[inline]
    pub fn release(&self, up_to: u32) {
        self.ring.release(up_to);
    }

    /// Frees the slots of all requests that the endpoint has retired.
    pub fn release_retired(&self) {
        self.ring.release_retired();
    }

    /// Returns the endpoint's end of the queue; `None` if it was already taken.
    pub fn consumer(self: &Arc<Self>) -> Option<SendConsumer> {
        self.ring.consumer().map(|ring| SendConsumer { ring, prefix: self.prefix })
    }

    /// Number of published requests whose slots are not free yet: their completions, or later ones, were not polled.
    pub fn pending(&self) -> u32 {
        self.ring.occupied()
    }

    /// Number of published requests that the endpoint has not retired.
    pub fn outstanding(&self) -> u32 {
        self.ring.outstanding()
    }

    /// Number of requests that fit.
    #[cfg(feature = "sim")]
    pub fn max_wr(&self) -> u32 {
        self.ring.layout().limit
    }

    /// Returns the length of the message that the entries describe.
    #[inline]
    fn check_sges(&self, operation: &Operation, sges: &[Sge]) -> Result<u32, QueueError> {
        check_sges(operation, sges, self.ring.layout().max_sge)
    }

    /// Returns the length of the message in the inline slices.
    #[inline]
    fn check_inline(&self, operation: &Operation, segments: &[&[u8]]) -> Result<u32, QueueError> {
        check_inline(operation, segments, self.ring.layout().max_inline - self.prefix as u32)
    }
}

/// Returns the length of the request's message, if it fits a queue with these limits. For queues that are not
/// [`SendQueue`]s.
#[cfg(feature = "ibverbs")]
pub(crate) fn check_request(request: &SendRequest<'_>, max_sge: u32, max_inline: u32) -> Result<u32, QueueError> {
    match request.data {
        Data::Sges(sges) => check_sges(&request.operation, sges, max_sge),
        Data::Inline(segments) => check_inline(&request.operation, segments, max_inline),
    }
}

#[inline]
fn check_sges(operation: &Operation, sges: &[Sge], limit: u32) -> Result<u32, QueueError> {
    if sges.len() > limit as usize {
        return Err(QueueError::TooManySges { given: sges.len(), limit });
    }
    let given = sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>();
    check_operation(operation, given)?;
    check_length(given)
}

#[inline]
fn check_inline(operation: &Operation, segments: &[&[u8]], limit: u32) -> Result<u32, QueueError> {
    if operation.is_read_or_atomic() {
        return Err(QueueError::InlineNotAllowed);
    }
    // Saturating: the slices may overlap, so the address space does not bound their sum.
    let given = segments.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.len() as u64));
    if given > u64::from(limit) {
        return Err(QueueError::InlineTooLong { given, limit });
    }
    check_operation(operation, given)?;
    check_length(given)
}

/// Whether the operation takes a message of this length.
#[inline]
fn check_operation(operation: &Operation, given: u64) -> Result<(), QueueError> {
    match operation {
        Operation::CompareAndSwap { .. } | Operation::FetchAndAdd { .. } | Operation::AtomicWrite { .. }
            if given != 8 =>
        {
            Err(QueueError::BadAtomicLength)
        }
        Operation::Flush { .. } | Operation::LocalInvalidate(_) | Operation::BindMemoryWindow { .. } if given != 0 => {
            Err(QueueError::DataNotAllowed { given })
        }
        _ => Ok(()),
    }
}

/// The length as a message length.
#[inline]
fn check_length(given: u64) -> Result<u32, QueueError> {
    if given > u64::from(MAX_MESSAGE_BYTES) {
        return Err(QueueError::MessageTooLong { given, limit: MAX_MESSAGE_BYTES });
    }
    Ok(given as u32)
}

/// The endpoint's end of a send queue.
///
/// Requests are read by their numbers, any number of times, until they are retired. Numbers count from the creation of
/// the queue and wrap; one outside `[retired, published)` is a bug of the endpoint itself and panics.
pub struct SendConsumer {
    ring: RingConsumer<SendHeader>,
    prefix: usize,
}

impl SendConsumer {
    /// Number after the last request published.
    #[inline]
    pub fn published(&self) -> u32 {
        self.ring.published()
    }

    /// The fixed part of a request.
    #[inline]
    pub fn header(&self, index: u32) -> &SendHeader {
        self.ring.header(index)
    }

    /// The scatter-gather entries of a request; none if it is inline.
    #[inline]
    pub fn sges(&self, index: u32) -> &[Sge] {
        self.ring.sges(index)
    }

    /// The bytes of an inline request; none if it is not.
    #[inline]
    pub fn inline_data(&self, index: u32) -> &[u8] {
        self.ring.inline_data(index).get(self.prefix..).unwrap_or_default()
    }

    /// The destination of a datagram; `None` in the queue of a connection.
    pub fn destination(&self, index: u32) -> Option<Destination> {
        if self.prefix == 0 {
            return None;
        }
        self.ring.inline_data(index).first_chunk().map(Destination::from_bytes)
    }

    /// Finishes the requests before number `up_to`. Their slots stay taken until they are released.
    #[inline]
    pub fn retire(&mut self, up_to: u32) {
        self.ring.retire(up_to);
    }

    /// Number of the first request that is not retired.
    #[inline]
    pub fn retired(&self) -> u32 {
        self.ring.retired()
    }

    /// Number of requests that are retired or discarded, since the queue was created.
    pub fn finished(&self) -> u64 {
        self.ring.retired_in_all()
    }

    /// Discards everything published and frees its slots; returns the number of the next request. An open batch is not
    /// touched.
    pub fn reset(&mut self) -> u32 {
        self.ring.reset()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;
    use crate::types::Rkey;

    fn sge(length: u32) -> Sge {
        Sge { addr: 0x1000, length, ..Sge::default() }
    }

    fn request(wr_id: u64, operation: Operation, data: Data<'_>) -> SendRequest<'_> {
        SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, data }
    }

    fn send(wr_id: u64, sges: &[Sge]) -> SendRequest<'_> {
        request(wr_id, Operation::Send, Data::Sges(sges))
    }

    const READ: Operation = Operation::Read { remote_addr: 8, rkey: Rkey(1) };
    const ADD: Operation = Operation::FetchAndAdd { remote_addr: 8, rkey: Rkey(1), add: 1 };
    const SWAP: Operation = Operation::CompareAndSwap { remote_addr: 8, rkey: Rkey(1), compare: 1, swap: 2 };

    #[test]
    fn only_datagrams_have_destinations() {
        let destination = Destination {
            source: [127, 0, 0, 1].into(),
            source_port: 50_000,
            address: [127, 0, 0, 2].into(),
            traffic_class: 0,
            hop_limit: 64,
            qpn: crate::types::Qpn::new(7),
            qkey: crate::types::Qkey(8),
            is_too_long: false,
        };
        let queue = SendQueue::for_datagrams(4, 2, 3);
        let consumer = queue.consumer().unwrap();
        queue.begin();
        queue.push_to(&send(1, &[sge(3)]), &destination).unwrap();
        queue.push_to(&request(2, Operation::Send, Data::Inline(&[b"ab", b"c"])), &destination).unwrap();
        let long = request(3, Operation::Send, Data::Inline(&[b"abcd"]));
        assert_eq!(queue.push_to(&long, &destination), Err(QueueError::InlineTooLong { given: 4, limit: 3 }));
        assert_eq!(queue.push(&send(4, &[])), Err(QueueError::NoDestination));
        queue.end(BatchEnd::Publish).unwrap();
        assert_eq!((consumer.destination(0), consumer.destination(1)), (Some(destination), Some(destination)));
        assert_eq!((consumer.sges(0), consumer.inline_data(0)), (&[sge(3)][..], &b""[..]));
        assert_eq!((consumer.sges(1), consumer.inline_data(1)), (&[][..], &b"abc"[..]));

        let connected = SendQueue::new(1, 1, 0);
        let consumer = connected.consumer().unwrap();
        connected.begin();
        assert_eq!(connected.push_to(&send(1, &[]), &destination), Err(QueueError::DestinationNotAllowed));
        connected.push(&send(1, &[])).unwrap();
        connected.end(BatchEnd::Publish).unwrap();
        assert_eq!(consumer.destination(0), None);
    }

    #[test]
    fn request_arrives_as_posted() {
        let queue = SendQueue::new(4, 2, 16);
        let consumer = queue.consumer().unwrap();
        assert!(queue.consumer().is_none());
        queue.begin();
        queue.push(&send(7, &[sge(3), sge(4)])).unwrap();
        queue.push(&request(8, Operation::SendWithImmediate(5), Data::Inline(&[b"ab", b"c"]))).unwrap();
        assert_eq!(consumer.published(), 0, "nothing is visible before the end");
        assert_eq!(queue.end(BatchEnd::Publish), Ok(2));
        assert_eq!(consumer.published(), 2);
        let flags = SendFlags::SIGNALED;
        let first = SendHeader { wr_id: 7, flags, length: 7, sge_count: 2, ..SendHeader::default() };
        assert_eq!(consumer.header(0), &first);
        assert_eq!(consumer.sges(0), [sge(3), sge(4)]);
        assert!(consumer.inline_data(0).is_empty());
        let operation = Operation::SendWithImmediate(5);
        assert_eq!(
            consumer.header(1),
            &SendHeader { wr_id: 8, operation, flags, length: 3, sge_count: 0, inline: true, srq: NO_QUEUE }
        );
        assert_eq!(consumer.inline_data(1), b"abc");
        assert!(consumer.sges(1).is_empty());
    }

    #[test]
    fn batch_belongs_to_the_thread_that_began_it() {
        let queue = SendQueue::new(4, 1, 0);
        assert_eq!(queue.push(&send(1, &[])), Err(QueueError::NotBegun));
        assert_eq!(queue.end(BatchEnd::Publish), Err(QueueError::NotBegun));
        queue.begin();
        let other = Arc::clone(&queue);
        thread::spawn(move || {
            assert_eq!(other.push(&send(1, &[sge(1), sge(1)])), Err(QueueError::NotBegun));
            assert_eq!(other.end(BatchEnd::Rollback), Err(QueueError::NotBegun));
        })
        .join()
        .unwrap();
        assert_eq!(queue.end(BatchEnd::Publish), Ok(0));
        assert_eq!(queue.end(BatchEnd::Publish), Err(QueueError::NotBegun));
    }

    #[test]
    fn second_begin_continues_the_batch() {
        let queue = SendQueue::new(4, 1, 0);
        queue.begin();
        queue.push(&send(1, &[])).unwrap();
        queue.begin();
        queue.push(&send(2, &[])).unwrap();
        assert_eq!(queue.end(BatchEnd::Publish), Ok(2));
        assert_eq!(queue.end(BatchEnd::Publish), Err(QueueError::NotBegun));
    }

    #[test]
    fn full_is_reported_at_max_wr() {
        let queue = SendQueue::new(3, 1, 0);
        let mut consumer = queue.consumer().unwrap();
        queue.begin();
        (0..3).for_each(|wr_id| queue.push(&send(wr_id, &[])).unwrap());
        assert_eq!(queue.push(&send(3, &[])), Err(QueueError::Full { limit: 3 }));
        assert_eq!(queue.end(BatchEnd::Publish), Ok(3), "the requests before the failed one are posted");
        assert_eq!((queue.pending(), queue.outstanding(), queue.max_wr()), (3, 3, 3));
        consumer.retire(2);
        assert_eq!((queue.pending(), queue.outstanding()), (3, 1));
        queue.begin();
        assert_eq!(queue.push(&send(3, &[])), Err(QueueError::Full { limit: 3 }), "retired but not released");
        queue.release(2);
        queue.push(&send(3, &[])).unwrap();
        queue.push(&send(4, &[])).unwrap();
        assert_eq!(queue.push(&send(5, &[])), Err(QueueError::Full { limit: 3 }));
        assert_eq!(queue.end(BatchEnd::Publish), Ok(2));
        let ids: Vec<_> = (2..5).map(|index| consumer.header(index).wr_id).collect();
        assert_eq!(ids, [2, 3, 4]);
    }

    #[test]
    fn queue_without_requests_is_always_full() {
        let queue = SendQueue::new(0, 0, 0);
        queue.begin();
        assert_eq!(queue.push(&send(0, &[])), Err(QueueError::Full { limit: 0 }));
        assert_eq!(queue.end(BatchEnd::Publish), Ok(0));
    }

    #[test]
    fn rollback_discards_the_batch() {
        let queue = SendQueue::new(2, 1, 0);
        let consumer = queue.consumer().unwrap();
        for wr_id in 0..9 {
            queue.begin();
            queue.push(&send(wr_id, &[])).unwrap();
            queue.push(&send(wr_id, &[])).unwrap();
            assert_eq!(queue.end(BatchEnd::Rollback), Ok(0));
            assert_eq!(queue.pending(), 0);
        }
        queue.begin();
        queue.push(&send(99, &[])).unwrap();
        assert_eq!(queue.end(BatchEnd::Publish), Ok(1));
        assert_eq!((consumer.published(), consumer.header(0).wr_id), (1, 99));
    }

    #[test]
    fn entries_and_lengths_are_checked() {
        let queue = SendQueue::new(1, 2, 4);
        queue.begin();
        let push = |operation, data| queue.push(&request(1, operation, data));
        let three = [sge(1); 3];
        let limit = MAX_MESSAGE_BYTES;
        assert_eq!(push(Operation::Send, Data::Sges(&three)), Err(QueueError::TooManySges { given: 3, limit: 2 }));
        let long = [sge(1 << 31), sge(1)];
        let given = (1 << 31) + 1;
        assert_eq!(push(Operation::Send, Data::Sges(&long)), Err(QueueError::MessageTooLong { given, limit }));
        let beyond = [sge(u32::MAX); 2];
        let given = 2 * u64::from(u32::MAX);
        assert_eq!(push(READ, Data::Sges(&beyond)), Err(QueueError::MessageTooLong { given, limit }));
        let inline = Data::Inline(&[b"abc", b"de"]);
        assert_eq!(push(Operation::Send, inline), Err(QueueError::InlineTooLong { given: 5, limit: 4 }));
        let longest = [sge(1 << 31)];
        assert_eq!(push(Operation::Send, Data::Sges(&longest)), Ok(()), "the longest message is allowed");
        assert_eq!(push(Operation::Send, Data::Sges(&[])), Err(QueueError::Full { limit: 1 }));
        assert_eq!(push(ADD, Data::Sges(&[])), Err(QueueError::BadAtomicLength), "before the queue being full");
    }

    #[test]
    fn responses_need_registered_memory() {
        let queue = SendQueue::new(8, 2, 16);
        queue.begin();
        for operation in [READ, ADD, SWAP] {
            let inline = request(1, operation, Data::Inline(&[b"12345678"]));
            assert_eq!(queue.push(&inline), Err(QueueError::InlineNotAllowed));
            assert_eq!(queue.push(&request(1, operation, Data::Inline(&[]))), Err(QueueError::InlineNotAllowed));
        }
        for operation in [ADD, SWAP] {
            for entries in [&[sge(4)][..], &[sge(9)], &[sge(8), sge(8)], &[]] {
                assert_eq!(queue.push(&request(1, operation, Data::Sges(entries))), Err(QueueError::BadAtomicLength));
            }
            queue.push(&request(1, operation, Data::Sges(&[sge(8)]))).unwrap();
            queue.push(&request(1, operation, Data::Sges(&[sge(4), sge(4)]))).unwrap();
        }
        queue.push(&request(1, READ, Data::Sges(&[]))).unwrap();
        assert_eq!(queue.end(BatchEnd::Publish), Ok(5));
    }

    #[test]
    fn numbers_wrap() {
        let queue = SendQueue::starting_at(u64::from(u32::MAX) - 2, 4, 1, 0);
        let mut consumer = queue.consumer().unwrap();
        let mut next = u32::MAX - 2;
        for wr_id in 0..9 {
            queue.begin();
            queue.push(&send(wr_id, &[sge(wr_id as u32)])).unwrap();
            assert_eq!(queue.end(BatchEnd::Publish), Ok(1));
            assert_eq!((consumer.retired(), consumer.published()), (next, next.wrapping_add(1)));
            assert_eq!(consumer.header(next).wr_id, wr_id);
            next = next.wrapping_add(1);
            consumer.retire(next);
            queue.release(next);
            assert_eq!(queue.pending(), 0);
        }
        assert_eq!(next, 6);
    }

    #[test]
    fn reset_drops_everything_published() {
        let queue = SendQueue::new(4, 1, 0);
        let mut consumer = queue.consumer().unwrap();
        queue.begin();
        (0..4).for_each(|wr_id| queue.push(&send(wr_id, &[])).unwrap());
        queue.end(BatchEnd::Publish).unwrap();
        consumer.retire(1);
        assert_eq!(consumer.reset(), 4);
        assert_eq!((queue.pending(), queue.outstanding(), consumer.retired()), (0, 0, 4));
        queue.begin();
        (4..8).for_each(|wr_id| queue.push(&send(wr_id, &[])).unwrap());
        queue.end(BatchEnd::Publish).unwrap();
        queue.release(1);
        assert_eq!(consumer.header(4).wr_id, 4);
        assert_eq!(queue.pending(), 4, "a completion from before the reset releases nothing");
    }
}
