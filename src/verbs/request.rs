//! Work requests.

use std::fmt;

use super::{
    AddressHandle, MemoryRegion, MemoryWindow, Qkey, Qpn, RegionRange, RemoteMemory, Rkey, SharedReceiveQueueNumber,
};
use crate::types::{FlushFlags, Operation, SendFlags};

/// Ranges of registered memory that a message is gathered from or scattered to, in order.
///
/// Created from a whole region, a [`RegionRange`], or a slice or array of ranges.
#[doc(alias = "ibv_wr_set_sge_list")]
#[derive(Clone, Copy, Debug)]
pub struct RegionList<'a>(pub(super) Regions<'a>);

#[derive(Clone, Copy, Debug)]
pub(super) enum Regions<'a> {
    One(RegionRange<'a>),
    Many(&'a [RegionRange<'a>]),
}

impl RegionList<'_> {
    /// The empty list, for messages without a payload.
    pub const EMPTY: RegionList<'static> = RegionList(Regions::Many(&[]));

    /// Returns the total size in bytes.
    pub fn byte_len(&self) -> u64 {
        match &self.0 {
            Regions::One(range) => range.len() as u64,
            Regions::Many(ranges) => ranges.iter().map(|range| range.len() as u64).sum(),
        }
    }

    /// Returns whether the total size is 0.
    pub fn is_empty(&self) -> bool {
        self.byte_len() == 0
    }
}

impl<'a> From<RegionRange<'a>> for RegionList<'a> {
    fn from(range: RegionRange<'a>) -> Self {
        Self(Regions::One(range))
    }
}

impl<'a> From<&'a MemoryRegion> for RegionList<'a> {
    fn from(region: &'a MemoryRegion) -> Self {
        Self(Regions::One(region.into()))
    }
}

impl<'a> From<&'a [RegionRange<'a>]> for RegionList<'a> {
    fn from(ranges: &'a [RegionRange<'a>]) -> Self {
        Self(Regions::Many(ranges))
    }
}

impl<'a, const N: usize> From<&'a [RegionRange<'a>; N]> for RegionList<'a> {
    fn from(ranges: &'a [RegionRange<'a>; N]) -> Self {
        Self(Regions::Many(ranges))
    }
}

/// The payload of a SEND or WRITE: registered memory, or inline bytes that are copied when posted.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a>(pub(super) Bytes<'a>);

#[derive(Clone, Copy)]
pub(super) enum Bytes<'a> {
    Regions(RegionList<'a>),
    Inline(&'a [u8]),
}

impl<'a> Payload<'a> {
    /// The empty payload.
    pub const EMPTY: Payload<'static> = Payload(Bytes::Regions(RegionList::EMPTY));

    /// Returns a payload of bytes that are copied into the send queue when posted, at most the queue pair's
    /// `max_inline_data`. They need not be registered and may be changed as soon as the post returns.
    #[doc(alias("ibv_wr_set_inline_data", "ibv_wr_set_inline_data_list"))]
    pub const fn inline(bytes: &'a [u8]) -> Self {
        Self(Bytes::Inline(bytes))
    }

    /// Returns the total size in bytes.
    pub fn byte_len(&self) -> u64 {
        match &self.0 {
            Bytes::Regions(list) => list.byte_len(),
            Bytes::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Returns whether the total size is 0.
    pub fn is_empty(&self) -> bool {
        self.byte_len() == 0
    }
}

impl<'a> From<RegionList<'a>> for Payload<'a> {
    fn from(list: RegionList<'a>) -> Self {
        Self(Bytes::Regions(list))
    }
}

impl<'a> From<RegionRange<'a>> for Payload<'a> {
    fn from(range: RegionRange<'a>) -> Self {
        Self(Bytes::Regions(range.into()))
    }
}

impl<'a> From<&'a MemoryRegion> for Payload<'a> {
    fn from(region: &'a MemoryRegion) -> Self {
        Self(Bytes::Regions(region.into()))
    }
}

impl<'a> From<&'a [RegionRange<'a>]> for Payload<'a> {
    fn from(ranges: &'a [RegionRange<'a>]) -> Self {
        Self(Bytes::Regions(ranges.into()))
    }
}

impl<'a, const N: usize> From<&'a [RegionRange<'a>; N]> for Payload<'a> {
    fn from(ranges: &'a [RegionRange<'a>; N]) -> Self {
        Self(Bytes::Regions(ranges.into()))
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bytes::Regions(list) => list.fmt(f),
            Bytes::Inline(bytes) => write!(f, "Inline({} bytes)", bytes.len()),
        }
    }
}

/// A request for the send queue (`ibv_send_wr`).
///
/// Each constructor takes everything that its operation needs. The options default to: `wr_id` 0, not signaled, no
/// fence, not solicited. The peer executes the requests of one queue pair in the order in which they were posted.
///
/// ```
/// # use rdma_verbs::verbs::{self, AccessFlags};
/// use rdma_verbs::verbs::{Payload, ReceiveRequest, SendRequest};
/// # let context = verbs::open("soft:127.0.1.50")?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// # let qp = pd.create_qp(&cq, &cq)?;
/// # qp.connect(&qp.connection_info()?)?; // to itself
/// # let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
/// # let mr = pd.alloc_mr(4096, access)?;
/// # let remote = mr.remote();
///
/// qp.post_recv(&[ReceiveRequest::new(mr.slice(0..64)?)])?;
/// qp.post_send(&[
///     SendRequest::write(mr.slice(64..128)?, remote.slice(1024..)?).wr_id(1),
///     SendRequest::read(mr.slice(128..192)?, remote.slice(1024..)?).wr_id(2).fence(),
///     SendRequest::send(Payload::inline(b"done")).wr_id(3).signaled(),
/// ])?;
/// # let timeout = std::time::Duration::from_secs(10);
/// # for _ in 0..2 { cq.wait(timeout)?.result()?; }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_send_wr")]
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing before it is posted"]
pub struct SendRequest<'a> {
    pub(super) wr_id: u64,
    pub(super) operation: Operation,
    pub(super) flags: SendFlags,
    pub(super) data: Payload<'a>,
    /// Size of the remote memory in bytes; `u64::MAX` if the operation is not bounded by it.
    pub(super) room: u64,
    /// The peer's shared receive queue that the request is for (XRC).
    pub(super) remote_srq: Option<SharedReceiveQueueNumber>,
    /// The destination of a datagram.
    pub(super) target: Option<Target<'a>>,
    /// The window that the request binds.
    pub(super) window: Option<&'a MemoryWindow>,
    /// The region that the window is bound to.
    pub(super) bound_region: Option<&'a MemoryRegion>,
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub(super) handle: &'a AddressHandle,
    pub(super) qpn: Qpn,
    pub(super) qkey: Qkey,
}

impl<'a> SendRequest<'a> {
    /// Returns a SEND: `data` goes to the peer's next posted receive.
    #[doc(alias("IBV_WR_SEND", "ibv_wr_send"))]
    pub fn send(data: impl Into<Payload<'a>>) -> Self {
        Self::new(Operation::Send, data.into(), u64::MAX)
    }

    /// Returns a SEND with immediate, which also delivers `immediate` in the receive's completion.
    #[doc(alias("IBV_WR_SEND_WITH_IMM", "ibv_wr_send_imm"))]
    pub fn send_with_immediate(data: impl Into<Payload<'a>>, immediate: u32) -> Self {
        Self::new(Operation::SendWithImmediate(immediate), data.into(), u64::MAX)
    }

    /// Returns a SEND with invalidate, which also invalidates the peer's key `rkey`, if the peer allows it.
    #[doc(alias("IBV_WR_SEND_WITH_INV", "ibv_wr_send_inv"))]
    pub fn send_with_invalidate(data: impl Into<Payload<'a>>, rkey: Rkey) -> Self {
        Self::new(Operation::SendWithInvalidate(rkey), data.into(), u64::MAX)
    }

    /// Returns a SEND of a datagram, at most the port's `active_mtu` long, to queue pair `remote_qpn` at the address of
    /// `handle`. It arrives preceded by a 40-byte global route header, or not at all.
    ///
    /// `remote_qkey` must be the receiver's; if its highest bit is set, the sending queue pair's own Q_Key is sent
    /// instead.
    ///
    /// See [`AddressHandle`] for an example.
    #[doc(alias = "ibv_wr_set_ud_addr")]
    pub fn send_to(
        data: impl Into<Payload<'a>>,
        handle: &'a AddressHandle,
        remote_qpn: Qpn,
        remote_qkey: Qkey,
    ) -> Self {
        let target = Some(Target { handle, qpn: remote_qpn, qkey: remote_qkey });
        Self { target, ..Self::send(data) }
    }

    /// Returns a request like [`SendRequest::send_to`] that also delivers `immediate` in the receive's completion.
    pub fn send_to_with_immediate(
        data: impl Into<Payload<'a>>,
        handle: &'a AddressHandle,
        remote_qpn: Qpn,
        remote_qkey: Qkey,
        immediate: u32,
    ) -> Self {
        let target = Some(Target { handle, qpn: remote_qpn, qkey: remote_qkey });
        Self { target, ..Self::send_with_immediate(data, immediate) }
    }

    /// Returns a WRITE: copies `data` to the start of the peer's memory `remote`. The peer's application is not
    /// notified.
    ///
    /// Bytes are placed in ascending address order, the last ones last. Once the completion is polled, the peer's
    /// memory holds them.
    #[doc(alias("IBV_WR_RDMA_WRITE", "ibv_wr_rdma_write"))]
    pub fn write(data: impl Into<Payload<'a>>, remote: RemoteMemory) -> Self {
        let operation = Operation::Write { remote_addr: remote.addr(), rkey: remote.rkey() };
        Self::new(operation, data.into(), remote.len())
    }

    /// Returns a WRITE with immediate: copies like [`SendRequest::write`], then completes the peer's next posted
    /// receive with `immediate`, without writing to that receive's memory.
    #[doc(alias("IBV_WR_RDMA_WRITE_WITH_IMM", "ibv_wr_rdma_write_imm"))]
    pub fn write_with_immediate(data: impl Into<Payload<'a>>, remote: RemoteMemory, immediate: u32) -> Self {
        let (remote_addr, rkey) = (remote.addr(), remote.rkey());
        let operation = Operation::WriteWithImmediate { remote_addr, rkey, immediate };
        Self::new(operation, data.into(), remote.len())
    }

    /// Returns a READ: copies from the start of the peer's memory `remote` until `into` is full. The bytes are valid
    /// once the completion is polled, not before.
    #[doc(alias("IBV_WR_RDMA_READ", "ibv_wr_rdma_read"))]
    pub fn read(into: impl Into<RegionList<'a>>, remote: RemoteMemory) -> Self {
        let operation = Operation::Read { remote_addr: remote.addr(), rkey: remote.rkey() };
        Self::new(operation, Payload(Bytes::Regions(into.into())), remote.len())
    }

    /// Returns a compare-and-swap: replaces the first eight bytes of `remote` with `swap` if they equal `compare`. The
    /// previous value goes to `result` (8 bytes), in host byte order; the word was replaced if that equals `compare`.
    /// `remote` must be aligned to 8 bytes. `compare` and `swap` are numbers: the peer applies its own byte order.
    #[doc(alias("IBV_WR_ATOMIC_CMP_AND_SWP", "ibv_wr_atomic_cmp_swp"))]
    pub fn compare_and_swap(result: impl Into<RegionRange<'a>>, remote: RemoteMemory, compare: u64, swap: u64) -> Self {
        let (remote_addr, rkey) = (remote.addr(), remote.rkey());
        let operation = Operation::CompareAndSwap { remote_addr, rkey, compare, swap };
        Self::new(operation, result.into().into(), remote.len())
    }

    /// Returns a fetch-and-add: adds `add` to the first eight bytes of `remote`, modulo 2^64. The previous value goes
    /// to `result`, and `remote` must be aligned, as for [`SendRequest::compare_and_swap`].
    #[doc(alias("IBV_WR_ATOMIC_FETCH_AND_ADD", "ibv_wr_atomic_fetch_add"))]
    pub fn fetch_and_add(result: impl Into<RegionRange<'a>>, remote: RemoteMemory, add: u64) -> Self {
        let operation = Operation::FetchAndAdd { remote_addr: remote.addr(), rkey: remote.rkey(), add };
        Self::new(operation, result.into().into(), remote.len())
    }

    /// Returns an ATOMIC WRITE: writes 8 bytes to the start of `remote`, which must be aligned to 8 bytes, in one
    /// store. A reader sees the old or the new value; seeing the new one implies that all earlier writes of this queue
    /// pair are visible. Not all devices support it:
    /// [`DeviceCapabilities::ATOMIC_WRITE`](super::DeviceCapabilities::ATOMIC_WRITE).
    ///
    /// ```
    /// # use rdma_verbs::verbs::{self, AccessFlags, Payload, SendRequest};
    /// # let context = verbs::open("soft:127.0.1.53")?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let qp = pd.create_qp_with(&cq, &cq, &verbs::QueuePairOptions::default().max_inline_data(8))?;
    /// # qp.connect(&qp.connection_info()?)?; // to itself
    /// let mr = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
    /// let word = 7u64.to_ne_bytes();
    /// qp.post_send(&[SendRequest::atomic_write(Payload::inline(&word), mr.remote()).signaled()])?;
    /// cq.wait(std::time::Duration::from_secs(10))?.result()?;
    /// assert_eq!(mr.load_acquire_u64(0)?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("IBV_WR_ATOMIC_WRITE", "ibv_wr_atomic_write"))]
    pub fn atomic_write(data: impl Into<Payload<'a>>, remote: RemoteMemory) -> Self {
        let operation = Operation::AtomicWrite { remote_addr: remote.addr(), rkey: remote.rkey() };
        Self::new(operation, data.into(), remote.len())
    }

    /// Returns a FLUSH: completes when all earlier writes to `remote`, from any source, are globally visible at the
    /// peer ([`FlushFlags::GLOBAL`]) or survive power loss ([`FlushFlags::PERSISTENT`]). With
    /// [`FlushFlags::WHOLE_REGION`], the region or window of `remote`'s key is flushed as a whole. The peer's region
    /// and queue pair must grant it: [`AccessFlags::FLUSH_GLOBAL`](super::AccessFlags::FLUSH_GLOBAL),
    /// [`AccessFlags::FLUSH_PERSISTENT`](super::AccessFlags::FLUSH_PERSISTENT).
    ///
    /// ```
    /// # use rdma_verbs::verbs::{self, AccessFlags, FlushFlags, Payload, QueuePairOptions, SendRequest};
    /// # let context = verbs::open("soft:127.0.1.54")?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let access = AccessFlags::REMOTE | AccessFlags::FLUSH_GLOBAL;
    /// let qp = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().access(access).max_inline_data(8))?;
    /// qp.connect(&qp.connection_info()?)?; // to itself
    /// let mr = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::FLUSH_GLOBAL)?;
    /// qp.post_send(&[
    ///     SendRequest::write(Payload::inline(b"log"), mr.remote()),
    ///     SendRequest::flush(mr.remote(), FlushFlags::GLOBAL).signaled(),
    /// ])?;
    /// cq.wait(std::time::Duration::from_secs(10))?.result()?;
    /// assert_eq!(mr.to_vec(..3)?, b"log");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("IBV_WR_FLUSH", "ibv_wr_flush"))]
    pub fn flush(remote: RemoteMemory, flags: FlushFlags) -> Self {
        let length = u32::try_from(remote.len()).unwrap_or(u32::MAX);
        let operation = Operation::Flush { remote_addr: remote.addr(), rkey: remote.rkey(), length, flags };
        Self::new(operation, Payload::EMPTY, u64::MAX)
    }

    /// Returns a local invalidate, which invalidates a local key: that of a region registered as invalidatable, or of a
    /// bound type 2 window. It begins when all earlier requests of this queue pair are complete; later ones begin after
    /// it.
    ///
    /// ```
    /// # use rdma_verbs::verbs::{self, AccessFlags, CompletionOpcode, RegisterOptions, SendRequest};
    /// # let context = verbs::open("soft:127.0.1.55")?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let qp = pd.create_qp(&cq, &cq)?;
    /// # qp.connect(&qp.connection_info()?)?; // to itself
    /// let options = RegisterOptions::default().invalidatable();
    /// let mr = pd.reg_mr_with(vec![0; 64], AccessFlags::REMOTE_READ, &options)?;
    /// qp.post_send(&[SendRequest::local_invalidate(mr.rkey()).signaled()])?;
    /// let done = cq.wait(std::time::Duration::from_secs(10))?.result()?;
    /// assert_eq!(done.opcode, CompletionOpcode::LocalInvalidate);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("IBV_WR_LOCAL_INV", "ibv_wr_local_inv"))]
    pub fn local_invalidate(rkey: Rkey) -> Self {
        Self::new(Operation::LocalInvalidate(rkey), Payload::EMPTY, u64::MAX)
    }

    pub(super) fn new(operation: Operation, data: Payload<'a>, room: u64) -> Self {
        let flags = SendFlags::empty();
        let (target, remote_srq, window, bound_region) = (None, None, None, None);
        Self { wr_id: 0, operation, flags, data, room, target, remote_srq, window, bound_region }
    }

    /// Sets a caller-defined number that the completion returns; 0 by default.
    pub fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    /// Requests a completion also on success. Failures always generate one.
    ///
    /// A slot of the send queue becomes free when the completion of its request, or of a later signaled one, is polled.
    /// A program that never signals eventually fills the queue.
    #[doc(alias = "IBV_SEND_SIGNALED")]
    pub fn signaled(mut self) -> Self {
        self.flags |= SendFlags::SIGNALED;
        self
    }

    /// Delays the request until all earlier READs and atomics of this queue pair are complete.
    #[doc(alias = "IBV_SEND_FENCE")]
    pub fn fence(mut self) -> Self {
        self.flags |= SendFlags::FENCE;
        self
    }

    /// Marks the message as solicited: it notifies the peer even if its completion queue is armed for solicited events
    /// only.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    pub fn solicited(mut self) -> Self {
        self.flags |= SendFlags::SOLICITED;
        self
    }

    /// Sets the peer's shared receive queue that the request is for, by its number. All requests of an XRC initiator
    /// must set it, including READ, WRITE and atomics; requests of other queue pairs must not.
    ///
    /// See [`XrcDomain`](super::XrcDomain) for an example.
    #[doc(alias = "ibv_wr_set_xrc_srqn")]
    pub fn remote_srq(mut self, number: SharedReceiveQueueNumber) -> Self {
        self.remote_srq = Some(number);
        self
    }

    /// Returns the payload size in bytes.
    pub fn byte_len(&self) -> u64 {
        self.data.byte_len()
    }
}

/// A request for the receive queue (`ibv_recv_wr`): memory for one arriving message.
///
/// Each SEND of the peer, with or without immediate, and each WRITE with immediate consumes the oldest posted receive.
/// A message longer than the memory fails on both sides.
///
/// ```
/// # use rdma_verbs::verbs::{self, AccessFlags};
/// use rdma_verbs::verbs::ReceiveRequest;
/// # let context = verbs::open("soft:127.0.1.51")?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// # let qp = pd.create_qp(&cq, &cq)?;
/// # qp.init()?;
/// # let mr = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE)?;
///
/// let (header, body) = (mr.slice(0..64)?, mr.slice(1024..2048)?);
/// qp.post_recv(&[ReceiveRequest::new(&[header, body]).wr_id(1)])?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "ibv_recv_wr")]
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing before it is posted"]
pub struct ReceiveRequest<'a> {
    pub(super) wr_id: u64,
    pub(super) data: RegionList<'a>,
}

impl<'a> ReceiveRequest<'a> {
    /// Returns a receive into `data`, which is filled in order.
    pub fn new(data: impl Into<RegionList<'a>>) -> Self {
        Self { wr_id: 0, data: data.into() }
    }

    /// Sets a caller-defined number that the completion returns; 0 by default.
    pub fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }
}
