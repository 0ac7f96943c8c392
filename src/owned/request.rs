//! Requests that own their memory, and the memory that moves into them.

use super::buffer::{Buffer, FileBuffer};
use crate::verbs::{
    self, AddressHandle, Error, ErrorKind, FlushFlags, Qkey, Qpn, RegionList, RegionRange, RemoteMemory, Result, Rkey,
};

/// Memory that moves into a request and comes back with its completion.
#[derive(Debug)]
#[non_exhaustive]
pub enum RequestBuffer {
    /// Memory of this process.
    Buffer(Buffer),
    /// Part of a file.
    File(FileBuffer),
    /// No memory: for requests that move no bytes, such as a FLUSH, for messages without a payload, and for receives
    /// that take only those or a WRITE with immediate.
    None,
}

impl RequestBuffer {
    /// Returns the buffer, if the memory is one.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            RequestBuffer::Buffer(buffer) => Some(buffer),
            RequestBuffer::File(_) | RequestBuffer::None => None,
        }
    }

    /// Returns the part of a file, if the memory is one.
    pub fn into_file(self) -> Option<FileBuffer> {
        match self {
            RequestBuffer::File(file) => Some(file),
            RequestBuffer::Buffer(_) | RequestBuffer::None => None,
        }
    }

    /// Returns the number of filled bytes.
    pub fn len(&self) -> usize {
        match self {
            RequestBuffer::Buffer(buffer) => buffer.len(),
            RequestBuffer::File(file) => file.len(),
            RequestBuffer::None => 0,
        }
    }

    /// Returns whether no byte is filled.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> usize {
        match self {
            RequestBuffer::Buffer(buffer) => buffer.capacity(),
            RequestBuffer::File(file) => file.capacity(),
            RequestBuffer::None => 0,
        }
    }

    pub(super) fn set_len(&mut self, len: usize) {
        match self {
            RequestBuffer::Buffer(buffer) => buffer.set_len(len),
            RequestBuffer::File(file) => file.set_len(len),
            RequestBuffer::None => debug_assert_eq!(len, 0, "no memory has bytes"),
        }
    }

    /// Returns the first `len` bytes as a list of ranges; for [`super::in_flight`] alone.
    pub(super) fn ranges(&self, len: usize) -> Result<RegionList<'_>> {
        match self {
            RequestBuffer::None if len == 0 => Ok(RegionList::EMPTY),
            _ => Ok(self.range(len)?.into()),
        }
    }

    /// Returns the first `len` bytes as one range; for [`super::in_flight`] alone.
    fn range(&self, len: usize) -> Result<RegionRange<'_>> {
        match self {
            RequestBuffer::Buffer(buffer) => buffer.range(len),
            RequestBuffer::File(file) => file.range(len),
            RequestBuffer::None => {
                let message = format!("{len} bytes requested; the request has no memory");
                Err(Error::new("post", ErrorKind::InvalidArgument, message))
            }
        }
    }
}

impl From<Buffer> for RequestBuffer {
    fn from(buffer: Buffer) -> Self {
        RequestBuffer::Buffer(buffer)
    }
}

impl From<FileBuffer> for RequestBuffer {
    fn from(file: FileBuffer) -> Self {
        RequestBuffer::File(file)
    }
}

#[derive(Debug)]
enum Operation {
    Send,
    SendWithImmediate(u32),
    SendWithInvalidate(Rkey),
    SendTo(Destination, Option<u32>),
    Write(RemoteMemory),
    WriteWithImmediate(RemoteMemory, u32),
    Read(RemoteMemory),
    CompareAndSwap(RemoteMemory, u64, u64),
    FetchAndAdd(RemoteMemory, u64),
    AtomicWrite(RemoteMemory),
    Flush(RemoteMemory, FlushFlags),
    LocalInvalidate(Rkey),
}

/// The receiver of a datagram. It shares the address handle, so the application may drop its own before posting.
#[derive(Debug)]
struct Destination {
    handle: AddressHandle,
    qpn: Qpn,
    qkey: Qkey,
}

/// Length of a buffer when its request is finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CompletedLength {
    /// As before: the buffer was only read.
    Unchanged,
    /// This many bytes, if the request succeeded.
    Filled(usize),
    /// The length in the completion, if a message was received.
    Received,
}

/// A request for the send queue that owns its memory.
///
/// SEND and WRITE use the buffer's filled part. READ fills it with as many bytes as the peer's memory has, atomics with
/// the original eight-byte value; if either fails, the length is 0. A FLUSH and a local invalidate have no memory: they
/// come back with [`RequestBuffer::None`]. The peer executes the requests of one queue pair in the order in which they
/// were posted.
///
/// ```
/// # use std::time::Duration;
/// # use rdma_verbs::verbs::{self, AccessFlags};
/// use rdma_verbs::owned::{BufferPool, CompletionQueue, QueuePair, Request};
/// # let context = verbs::open("soft:127.0.1.100")?;
/// # let pd = context.alloc_pd()?;
/// # let cq = CompletionQueue::new(&context, 16)?;
/// # let qp = QueuePair::new(&pd, &cq, &cq)?;
/// # qp.connect(&qp.connection_info()?)?; // to itself
/// # let region = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE)?;
/// # let remote = region.remote();
/// let pool = BufferPool::new(&pd, 1 << 20)?;
///
/// // The buffer of the write comes back with the completion of the read that follows.
/// qp.post_send(Request::write(pool.copy_from(b"some bytes")?, remote).wr_id(1))?;
/// qp.post_send(Request::read(pool.take(10)?, remote.slice(..10)?).wr_id(2).signaled())?;
///
/// assert_eq!(cq.wait(Duration::from_secs(10))?.wr_id(), 1);
/// let finished = cq.wait(Duration::from_secs(10))?;
/// assert_eq!(*finished.into_buffer()?, *b"some bytes");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing before it is posted"]
pub struct Request {
    pub(super) buffer: RequestBuffer,
    pub(super) settings: Settings,
}

/// A request without its memory.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) wr_id: u64,
    operation: Operation,
    signaled: bool,
    fence: bool,
    solicited: bool,
}

impl Request {
    /// Creates a SEND, which fills the peer's next posted receive.
    pub fn send(buffer: impl Into<RequestBuffer>) -> Self {
        Self::new(Operation::Send, buffer)
    }

    /// Creates a SEND like [`Request::send`] that also delivers four bytes of immediate data with the peer's
    /// completion.
    pub fn send_with_immediate(buffer: impl Into<RequestBuffer>, immediate: u32) -> Self {
        Self::new(Operation::SendWithImmediate(immediate), buffer)
    }

    /// Creates a SEND like [`Request::send`] that also invalidates a key at the peer.
    pub fn send_with_invalidate(buffer: impl Into<RequestBuffer>, rkey: Rkey) -> Self {
        Self::new(Operation::SendWithInvalidate(rkey), buffer)
    }

    /// Creates a SEND of a datagram, at most the port's `active_mtu` long, to queue pair `remote_qpn` at the address of
    /// `handle`. It arrives preceded by a 40-byte global route header, or not at all. `remote_qkey` is the receiver's;
    /// see [`verbs::SendRequest::send_to`]. The request shares `handle`.
    ///
    /// A receive buffer for datagrams needs room for the route header; [`Finished::payload`](super::Finished::payload)
    /// and [`Finished::route_header`](super::Finished::route_header) return the two parts.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use rdma_verbs::owned::{BufferPool, CompletionQueue, QueuePair, QueuePairOptions, Request};
    /// use rdma_verbs::verbs::{self, AddressVector, Qkey, QueuePairType};
    ///
    /// let context = verbs::open("soft:127.45.1.27")?;
    /// let pd = context.alloc_pd()?;
    /// let cq = CompletionQueue::new(&context, 16)?;
    /// let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(Qkey(7));
    /// let qp = QueuePair::with_options(&pd, &cq, &cq, &options)?;
    /// qp.bring_up_ud()?;
    ///
    /// let pool = BufferPool::new(&pd, 1 << 20)?;
    /// qp.post_recv(pool.take(40 + 64)?, 1)?;
    /// let handle = pd.create_ah(&AddressVector::new(context.query_gid(1, 0)?.gid, 0))?; // to itself
    /// qp.post_send(Request::send_to(pool.copy_from(b"hello")?, &handle, qp.qpn(), Qkey(7)))?;
    ///
    /// let received = cq.wait(Duration::from_secs(10))?;
    /// assert_eq!(received.payload(), Some(&b"hello"[..]));
    /// assert_eq!(received.source_qpn(), Some(qp.qpn()));
    /// // The path back.
    /// let success = received.result()?.expect("a receive");
    /// let back = pd.create_ah_from_success(&success, received.route_header().expect("a datagram"), 1)?;
    /// assert_eq!(back.address_vector().dgid.to_string(), "::ffff:127.45.1.27");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn send_to(
        buffer: impl Into<RequestBuffer>,
        handle: &AddressHandle,
        remote_qpn: Qpn,
        remote_qkey: Qkey,
    ) -> Self {
        let destination = Destination { handle: handle.clone(), qpn: remote_qpn, qkey: remote_qkey };
        Self::new(Operation::SendTo(destination, None), buffer)
    }

    /// Creates a SEND like [`Request::send_to`] that also delivers four bytes of immediate data with the receiver's
    /// completion.
    pub fn send_to_with_immediate(
        buffer: impl Into<RequestBuffer>,
        handle: &AddressHandle,
        remote_qpn: Qpn,
        remote_qkey: Qkey,
        immediate: u32,
    ) -> Self {
        let destination = Destination { handle: handle.clone(), qpn: remote_qpn, qkey: remote_qkey };
        Self::new(Operation::SendTo(destination, Some(immediate)), buffer)
    }

    /// Creates a WRITE to the peer's memory.
    pub fn write(buffer: impl Into<RequestBuffer>, remote: RemoteMemory) -> Self {
        Self::new(Operation::Write(remote), buffer)
    }

    /// Creates a WRITE like [`Request::write`] that then completes the peer's next posted receive with four bytes of
    /// immediate data.
    pub fn write_with_immediate(buffer: impl Into<RequestBuffer>, remote: RemoteMemory, immediate: u32) -> Self {
        Self::new(Operation::WriteWithImmediate(remote, immediate), buffer)
    }

    /// Creates a READ of all of `remote` into the buffer, which must have room for it.
    pub fn read(buffer: impl Into<RequestBuffer>, remote: RemoteMemory) -> Self {
        Self::new(Operation::Read(remote), buffer)
    }

    /// Creates a compare-and-swap; see [`verbs::SendRequest::compare_and_swap`]. The original value is placed in the
    /// buffer; [`Buffer::to_u64`] reads it.
    pub fn compare_and_swap(buffer: impl Into<RequestBuffer>, remote: RemoteMemory, compare: u64, swap: u64) -> Self {
        Self::new(Operation::CompareAndSwap(remote, compare, swap), buffer)
    }

    /// Creates a fetch-and-add; see [`verbs::SendRequest::fetch_and_add`]. The original value is placed in the buffer.
    pub fn fetch_and_add(buffer: impl Into<RequestBuffer>, remote: RemoteMemory, add: u64) -> Self {
        Self::new(Operation::FetchAndAdd(remote, add), buffer)
    }

    /// Creates an ATOMIC WRITE of the buffer's filled part, 8 bytes, to the start of `remote`, which must be aligned to
    /// 8 bytes: one store. A reader that sees the new value also sees all earlier writes of this queue pair. See
    /// [`verbs::SendRequest::atomic_write`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rdma_verbs::owned::{BufferPool, CompletionQueue, QueuePair, Request};
    /// # use rdma_verbs::verbs::{self, AccessFlags};
    /// # let context = verbs::open("soft:127.45.1.21")?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = CompletionQueue::new(&context, 16)?;
    /// # let qp = QueuePair::new(&pd, &cq, &cq)?;
    /// # qp.connect(&qp.connection_info()?)?; // to itself
    /// # let pool = BufferPool::new(&pd, 1 << 20)?;
    /// let words = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
    /// let word = pool.copy_from(&7u64.to_ne_bytes())?;
    /// qp.post_send(Request::atomic_write(word, words.remote()).signaled())?;
    /// cq.wait(Duration::from_secs(10))?.into_buffer()?;
    /// assert_eq!(words.load_acquire_u64(0)?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn atomic_write(buffer: impl Into<RequestBuffer>, remote: RemoteMemory) -> Self {
        Self::new(Operation::AtomicWrite(remote), buffer)
    }

    /// Creates a FLUSH, which has no memory of its own. It completes when all earlier writes to `remote`, from any
    /// source, are globally visible at the peer or persistent, as `flags` specifies. See [`verbs::SendRequest::flush`]
    /// for the access flags that the peer needs.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rdma_verbs::owned::{BufferPool, CompletionQueue, QueuePair, QueuePairOptions, Request};
    /// # use rdma_verbs::verbs::{self, AccessFlags, FlushFlags};
    /// # let context = verbs::open("soft:127.45.1.22")?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = CompletionQueue::new(&context, 16)?;
    /// let access = AccessFlags::REMOTE | AccessFlags::FLUSH_GLOBAL;
    /// let qp = QueuePair::with_options(&pd, &cq, &cq, &QueuePairOptions::default().access(access))?;
    /// # qp.connect(&qp.connection_info()?)?; // to itself
    /// # let pool = BufferPool::new(&pd, 1 << 20)?;
    /// let log = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::FLUSH_GLOBAL)?;
    /// qp.post_send(Request::write(pool.copy_from(b"entry")?, log.remote()).wr_id(1))?;
    /// qp.post_send(Request::flush(log.remote(), FlushFlags::GLOBAL).wr_id(2).signaled())?;
    /// assert_eq!(*cq.wait(Duration::from_secs(10))?.into_buffer()?, *b"entry");
    /// let flushed = cq.wait(Duration::from_secs(10))?;
    /// flushed.result()?;
    /// assert_eq!((flushed.wr_id(), flushed.request_buffer().capacity()), (2, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush(remote: RemoteMemory, flags: FlushFlags) -> Self {
        Self::new(Operation::Flush(remote, flags), RequestBuffer::None)
    }

    /// Creates a local invalidate, which has no memory of its own: it invalidates a local key, for instance that of a
    /// bound window of type 2 before it is bound again. It begins when all earlier requests of this queue pair are
    /// complete; later ones begin after it. Buffers have no key that can be invalidated. See
    /// [`verbs::SendRequest::local_invalidate`].
    pub fn local_invalidate(rkey: Rkey) -> Self {
        Self::new(Operation::LocalInvalidate(rkey), RequestBuffer::None)
    }

    fn new(operation: Operation, buffer: impl Into<RequestBuffer>) -> Self {
        let settings = Settings { wr_id: 0, operation, signaled: false, fence: false, solicited: false };
        Self { buffer: buffer.into(), settings }
    }

    /// Sets a caller-defined number that is returned with the buffer.
    pub fn wr_id(mut self, wr_id: u64) -> Self {
        self.settings.wr_id = wr_id;
        self
    }

    /// Requests a completion also on success. The buffers of earlier requests come back with it. Without any signaled
    /// request, no buffer comes back before a failure, RESET or the destruction of the queue pair.
    pub fn signaled(mut self) -> Self {
        self.settings.signaled = true;
        self
    }

    /// Starts the request only when all earlier READs and atomics of this queue pair are complete.
    pub fn fence(mut self) -> Self {
        self.settings.fence = true;
        self
    }

    /// Marks the message as solicited: it notifies the peer even if its completion queue is armed for solicited events
    /// only.
    pub fn solicited(mut self) -> Self {
        self.settings.solicited = true;
        self
    }

    /// Returns the memory.
    pub fn into_request_buffer(self) -> RequestBuffer {
        self.buffer
    }
}

impl Settings {
    /// Converts to a request of the verbs tier, with the memory `buffer` and the number `wr_id`.
    pub(super) fn lower<'a>(&'a self, buffer: &'a RequestBuffer, wr_id: u64) -> Result<verbs::SendRequest<'a>> {
        use verbs::SendRequest;

        let bytes = self.bytes_of(buffer);
        let data = buffer.ranges(bytes)?;
        let mut request = match self.operation {
            Operation::Send => SendRequest::send(data),
            Operation::SendWithImmediate(immediate) => SendRequest::send_with_immediate(data, immediate),
            Operation::SendWithInvalidate(rkey) => SendRequest::send_with_invalidate(data, rkey),
            Operation::SendTo(Destination { ref handle, qpn, qkey }, immediate) => match immediate {
                Some(immediate) => SendRequest::send_to_with_immediate(data, handle, qpn, qkey, immediate),
                None => SendRequest::send_to(data, handle, qpn, qkey),
            },
            Operation::Write(remote) => SendRequest::write(data, remote),
            Operation::WriteWithImmediate(remote, immediate) => {
                SendRequest::write_with_immediate(data, remote, immediate)
            }
            Operation::Read(remote) => SendRequest::read(data, remote),
            Operation::CompareAndSwap(remote, compare, swap) => {
                SendRequest::compare_and_swap(buffer.range(bytes)?, remote, compare, swap)
            }
            Operation::FetchAndAdd(remote, add) => SendRequest::fetch_and_add(buffer.range(bytes)?, remote, add),
            Operation::AtomicWrite(remote) => SendRequest::atomic_write(data, remote),
            Operation::Flush(remote, flags) => SendRequest::flush(remote, flags),
            Operation::LocalInvalidate(rkey) => SendRequest::local_invalidate(rkey),
        };
        request = request.wr_id(wr_id);
        if self.signaled {
            request = request.signaled();
        }
        if self.fence {
            request = request.fence();
        }
        if self.solicited {
            request = request.solicited();
        }
        Ok(request)
    }

    /// Returns the number of bytes that the request refers to.
    fn bytes_of(&self, buffer: &RequestBuffer) -> usize {
        match self.operation {
            Operation::Read(remote) => usize::try_from(remote.len()).unwrap_or(usize::MAX),
            Operation::CompareAndSwap(..) | Operation::FetchAndAdd(..) => size_of::<u64>(),
            _ => buffer.len(),
        }
    }

    pub(super) fn outcome(&self, buffer: &RequestBuffer) -> CompletedLength {
        match self.operation {
            Operation::Read(_) | Operation::CompareAndSwap(..) | Operation::FetchAndAdd(..) => {
                CompletedLength::Filled(self.bytes_of(buffer))
            }
            _ => CompletedLength::Unchanged,
        }
    }
}
