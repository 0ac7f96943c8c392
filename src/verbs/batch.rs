//! Posting: batches of requests, and their translation to the provider's.

use std::fmt;

use super::memory_window::check_device;
use super::open_batch::{BatchQueue, OpenBatch, Poster};
use super::request::{Bytes, Regions, Target};
use super::{
    AccessFlags, Error, ErrorKind, FlushFlags, MemoryRegion, ProtectionDomain, QueuePair, ReceiveRequest, RegionList,
    RegionRange, Result, SendRequest,
};
use crate::provider::DatagramTarget;
use crate::types::{self, BatchEnd, Data, Sge};

/// Maximum number of scatter-gather entries of a request, translated on the stack. No known device supports more.
const MAX_SGES: usize = 64;
/// Requests with at most this many entries use a smaller array.
const FEW_SGES: usize = 4;

/// Posts one request without a batch. It must not use an address handle or a remote shared receive queue.
pub(super) fn send_one(queue_pair: &QueuePair, request: &SendRequest<'_>) -> Result<()> {
    queue_pair.sends().check_free("post_send")?;
    lowered(queue_pair, request, |request| queue_pair.inner().send_one(request))
}

/// Checks a request and passes it to `push` in the provider's form.
fn lowered(
    queue_pair: &QueuePair,
    request: &SendRequest<'_>,
    push: impl FnOnce(&types::SendRequest<'_>) -> Result<()>,
) -> Result<()> {
    check_remote(request)?;
    if let Some(window) = request.window {
        check_device(queue_pair, "the window", window.protection_domain())?;
        let region = request.bound_region.map(MemoryRegion::protection_domain);
        region.map_or(Ok(()), |domain| check_device(queue_pair, "the region", domain))?;
    }
    let push = |data: Data<'_>| {
        let SendRequest { wr_id, operation, flags, .. } = *request;
        push(&types::SendRequest { wr_id, operation, flags, data })
    };
    match &request.data.0 {
        Bytes::Inline(bytes) => push(Data::Inline(&[bytes])),
        Bytes::Regions(list) => {
            let need = match request.operation.is_read_or_atomic() {
                true => AccessFlags::LOCAL_WRITE,
                false => AccessFlags::empty(),
            };
            let check = RangeCheck { verb: "post_send", domain: queue_pair.protection_domain(), need };
            check.with_sges(list, |sges| push(Data::Sges(sges)))
        }
    }
}

/// An open batch of send requests.
///
/// [`SendBatch::push`] adds requests, and [`SendBatch::post`] posts them together; equal small requests then share
/// system calls. Dropping a batch posts nothing. Requests are copied when they are pushed.
///
/// The thread that opened the batch holds the send queue, so the batch cannot be sent to another thread. A leaked batch
/// (`std::mem::forget`) holds the queue forever.
///
/// ```
/// # use std::time::Duration;
/// # use rdma_verbs::verbs::{self, AccessFlags, SendRequest};
/// # let context = verbs::open("soft:127.0.1.90")?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// # let qp = pd.create_qp(&cq, &cq)?;
/// # qp.connect(&qp.connection_info()?)?; // to itself
/// # let mr = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
/// # let remote = mr.remote();
/// let mut batch = qp.send_batch()?;
/// for record in 0..8 {
///     let from = record * 16;
///     batch.push(&SendRequest::write(mr.slice(from..from + 16)?, remote.slice(2048 + from..)?))?;
/// }
/// batch.push(&SendRequest::write(mr.slice(..8)?, remote.slice(4088..)?).wr_id(9).signaled())?;
/// batch.post()?;
///
/// let completion = cq.wait(Duration::from_secs(10))?;
/// assert_eq!(completion.wr_id(), 9);
/// completion.result()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("ibv_wr_start", "ibv_wr_abort"))]
#[must_use = "a batch that is dropped posts nothing"]
pub struct SendBatch<'a> {
    batch: OpenBatch<SendQueue<'a>>,
}

/// A queue pair as a queue that takes send requests.
struct SendQueue<'a>(&'a QueuePair);

impl BatchQueue for SendQueue<'_> {
    const VERB: &'static str = "post_send";

    fn poster(&self) -> &Poster {
        self.0.sends()
    }

    fn begin(&self) {
        self.0.inner().send_begin();
    }

    fn end(&self, end: BatchEnd) -> Result<()> {
        self.0.inner().send_end(end)
    }
}

impl<'a> SendBatch<'a> {
    pub(super) fn open(queue_pair: &'a QueuePair) -> Result<Self> {
        Ok(Self { batch: OpenBatch::open(SendQueue(queue_pair))? })
    }

    /// Adds a request.
    ///
    /// # Errors
    /// As for [`QueuePair::post_send`]. The batch stays open and may be posted without the request.
    pub fn push(&mut self, request: &SendRequest<'_>) -> Result<&mut Self> {
        let queue_pair = self.batch.queue.0;
        let inner = queue_pair.inner();
        lowered(queue_pair, request, |lowered| match (&request.target, request.remote_srq) {
            (None, None) => inner.send_push(lowered),
            (Some(target), _) => inner.send_push_to(lowered, &lower(target)),
            (None, Some(srq)) => inner.send_push_to_srq(lowered, srq),
        })?;
        self.batch.note_pushed();
        Ok(self)
    }

    /// Returns the number of requests in the batch.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Returns whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Posts all requests, in order.
    ///
    /// # Errors
    /// As for [`QueuePair::post_send`]; on failure nothing is posted.
    #[doc(alias = "ibv_wr_complete")]
    pub fn post(self) -> Result<()> {
        self.batch.post()
    }
}

impl fmt::Debug for SendBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBatch").field("qpn", &self.batch.queue.0.qpn()).field("len", &self.len()).finish()
    }
}

/// An open batch of receives: the counterpart of [`SendBatch`] for the receive queue.
///
/// ```
/// # use rdma_verbs::verbs::{self, AccessFlags, ReceiveRequest};
/// # let context = verbs::open("soft:127.0.1.91")?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// # let qp = pd.create_qp(&cq, &cq)?;
/// # qp.init()?;
/// # let mr = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE)?;
/// let mut batch = qp.recv_batch()?;
/// for slot in 0..16 {
///     batch.push(&ReceiveRequest::new(mr.slice(slot * 256..(slot + 1) * 256)?).wr_id(slot as u64))?;
/// }
/// batch.post()?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "ibv_recv_wr")]
#[must_use = "a batch that is dropped posts nothing"]
pub struct ReceiveBatch<'a> {
    batch: OpenBatch<ReceiveQueue<'a>>,
}

/// A queue pair as a queue that takes receives.
struct ReceiveQueue<'a>(&'a QueuePair);

impl BatchQueue for ReceiveQueue<'_> {
    const VERB: &'static str = "post_recv";

    fn poster(&self) -> &Poster {
        self.0.receives()
    }

    fn begin(&self) {
        self.0.inner().recv_begin();
    }

    fn end(&self, end: BatchEnd) -> Result<()> {
        self.0.inner().recv_end(end)
    }
}

impl<'a> ReceiveBatch<'a> {
    pub(super) fn open(queue_pair: &'a QueuePair) -> Result<Self> {
        Ok(Self { batch: OpenBatch::open(ReceiveQueue(queue_pair))? })
    }

    /// Adds a receive.
    ///
    /// # Errors
    /// As for [`QueuePair::post_recv`]. The batch stays open and may be posted without the receive.
    pub fn push(&mut self, request: &ReceiveRequest<'_>) -> Result<&mut Self> {
        let queue_pair = self.batch.queue.0;
        let domain = queue_pair.protection_domain();
        let check = RangeCheck { verb: "post_recv", domain, need: AccessFlags::LOCAL_WRITE };
        let wr_id = request.wr_id;
        check.with_sges(&request.data, |sges| queue_pair.inner().recv_push(&types::ReceiveRequest { wr_id, sges }))?;
        self.batch.note_pushed();
        Ok(self)
    }

    /// Returns the number of receives in the batch.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Returns whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Posts all receives, in order.
    ///
    /// # Errors
    /// As for [`QueuePair::post_recv`]; on failure nothing is posted.
    pub fn post(self) -> Result<()> {
        self.batch.post()
    }
}

impl fmt::Debug for ReceiveBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveBatch").field("qpn", &self.batch.queue.0.qpn()).field("len", &self.len()).finish()
    }
}

fn lower<'a>(target: &Target<'a>) -> DatagramTarget<'a> {
    let (remote_qpn, remote_qkey) = (target.qpn, target.qkey);
    DatagramTarget { handle: target.handle.inner(), remote_qpn, remote_qkey, long_fails_later: false }
}

/// Checks the length, alignment and flags of the request against what this end knows of the peer's memory.
fn check_remote(request: &SendRequest<'_>) -> Result<()> {
    let (len, room) = (request.data.byte_len(), request.room);
    if len > room {
        let message = format!("length is {len} bytes; the peer's memory has {room}");
        return Err(Error::out_of_range("post_send", "length", len, 0..=room, message));
    }
    match request.operation {
        types::Operation::CompareAndSwap { remote_addr, .. }
        | types::Operation::FetchAndAdd { remote_addr, .. }
        | types::Operation::AtomicWrite { remote_addr, .. }
            if remote_addr % 8 != 0 =>
        {
            let message = format!("remote_addr is {remote_addr:#x}; an atomic needs a multiple of 8");
            Err(Error::unsuitable("post_send", "remote_addr", message))
        }
        types::Operation::Flush { flags, length, .. } => check_flush(flags, length),
        _ => Ok(()),
    }
}

fn check_flush(flags: FlushFlags, length: u32) -> Result<()> {
    if !flags.intersects(FlushFlags::GLOBAL | FlushFlags::PERSISTENT) {
        let message = format!("flags are {flags:?}; a FLUSH needs GLOBAL or PERSISTENT");
        return Err(Error::unsuitable("post_send", "flags", message));
    }
    let limit = types::MAX_MESSAGE_BYTES;
    if length > limit && !flags.contains(FlushFlags::WHOLE_REGION) {
        let message = format!("length is {length} bytes or more; a FLUSH of a range has at most {limit}");
        return Err(Error::out_of_range("post_send", "length", length, 0..=limit.into(), message));
    }
    Ok(())
}

/// The requirements that every range of a request must meet.
pub(super) struct RangeCheck<'a> {
    pub(super) verb: &'static str,
    pub(super) domain: &'a ProtectionDomain,
    pub(super) need: AccessFlags,
}

impl RangeCheck<'_> {
    /// Checks the ranges and passes them to `push` as scatter-gather entries.
    pub(super) fn with_sges(&self, list: &RegionList<'_>, push: impl FnOnce(&[Sge]) -> Result<()>) -> Result<()> {
        match &list.0 {
            Regions::One(range) => push(&[self.entry(range)?]),
            Regions::Many(ranges) if ranges.len() <= FEW_SGES => self.with_array::<FEW_SGES>(ranges, push),
            Regions::Many(ranges) => self.with_array::<MAX_SGES>(ranges, push),
        }
    }

    fn with_array<const N: usize>(
        &self,
        ranges: &[RegionRange<'_>],
        push: impl FnOnce(&[Sge]) -> Result<()>,
    ) -> Result<()> {
        let mut sges = [Sge::default(); N];
        let Some(used) = sges.get_mut(..ranges.len()) else {
            let message = format!("{} ranges were given; at most {N} are possible", ranges.len());
            return Err(Error::out_of_range(self.verb, "num_sge", ranges.len() as u64, 0..=N as u64, message));
        };
        for (sge, range) in used.iter_mut().zip(ranges) {
            *sge = self.entry(range)?;
        }
        push(used)
    }

    /// Returns the range as a scatter-gather entry, if this queue may use it.
    #[inline]
    fn entry(&self, range: &RegionRange<'_>) -> Result<Sge> {
        let region = range.region();
        if !region.protection_domain().is_same(self.domain) {
            return Err(self.wrong_domain(range));
        }
        if !region.access().contains(self.need) {
            return Err(self.no_access(range));
        }
        if region.is_revoked() {
            return Err(self.revoked(range));
        }
        range.to_sge().ok_or_else(|| self.too_long(range))
    }

    #[cold]
    fn no_access(&self, range: &RegionRange<'_>) -> Error {
        let (lkey, access) = (range.region().lkey(), range.region().access());
        self.error(format!("the region {lkey} has access {access:?}; {:?} is needed", self.need))
    }

    #[cold]
    fn revoked(&self, range: &RegionRange<'_>) -> Error {
        let message = format!("the region {} was deregistered", range.region().lkey());
        Error::new(self.verb, ErrorKind::InvalidState, message)
    }

    #[cold]
    fn too_long(&self, range: &RegionRange<'_>) -> Error {
        let limit = types::MAX_MESSAGE_BYTES;
        let message = format!("length is {} bytes; a message has at most {limit}", range.len());
        Error::out_of_range(self.verb, "length", range.len() as u64, 0..=limit.into(), message)
    }

    #[cold]
    fn wrong_domain(&self, range: &RegionRange<'_>) -> Error {
        let theirs = range.region().protection_domain();
        let describe = |domain: &ProtectionDomain| format!("{} of {}", domain.id().0, domain.context());
        self.error(format!(
            "the region {} belongs to protection domain {}, the {} to {}",
            range.region().lkey(),
            describe(theirs),
            if self.verb == "post_srq_recv" { "shared receive queue" } else { "queue pair" },
            describe(self.domain),
        ))
    }

    #[cold]
    fn error(&self, message: String) -> Error {
        Error::new(self.verb, ErrorKind::InvalidArgument, message)
    }
}
