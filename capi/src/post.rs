//! Classic posting: lists of requests from C structures, without an allocation.

use std::ffi::c_int;

use rdma_verbs::provider::DatagramTarget;
use rdma_verbs::provider::abi::{self, wr};
use rdma_verbs::types::{
    BatchEnd, Data, Operation, Qkey, Qpn, QueuePairType, ReceiveRequest, Rkey, SendFlags, SendRequest, Sge,
    SharedReceiveQueueNumber,
};

use crate::error::{Errno, INVALID, Result, number};
use crate::memory_window::bind_operation_of_type_2;
use crate::object::own;
use crate::queue_pair::{QueuePair, queue_pair_of};
use crate::waiting::Uncancelled;

/// `IBV_SEND_INLINE`.
const INLINE: u32 = 1 << 3;
/// `IBV_SEND_IP_CSUM`: for raw packets.
const IP_CHECKSUM: u32 = 1 << 4;
/// Largest number of SGEs of a request, which is also the device's limit.
pub(crate) const MAX_SGE: usize = 32;

/// Returns the SGEs of a request.
///
/// # Safety
/// The list is the program's, with `count` entries.
#[inline]
pub(crate) unsafe fn entries<'a>(list: *const Sge, count: c_int) -> Result<&'a [Sge]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's promise.
        Ok(count) if !list.is_null() => Ok(unsafe { std::slice::from_raw_parts(list, count) }),
        _ => Err(INVALID),
    }
}

/// Returns the operation of a request.
///
/// # Safety
/// The request is the program's, and its opcode determines which fields are set.
#[inline]
unsafe fn operation(request: &abi::SendWr) -> Result<Operation> {
    // SAFETY: the caller's promise: the opcode determines which member the union holds. All of its bytes are set in any
    // case, because they are plain numbers in the program's memory.
    let (rdma, atomic) = unsafe { (request.wr.rdma, request.wr.atomic) };
    let (remote_addr, rkey) = (rdma.remote_addr, Rkey(rdma.rkey));
    let immediate = u32::from_be(request.imm_data);
    Ok(match request.opcode {
        wr::SEND => Operation::Send,
        wr::RDMA_WRITE => Operation::Write { remote_addr, rkey },
        wr::RDMA_READ => Operation::Read { remote_addr, rkey },
        wr::SEND_WITH_IMM => Operation::SendWithImmediate(immediate),
        wr::RDMA_WRITE_WITH_IMM => Operation::WriteWithImmediate { remote_addr, rkey, immediate },
        wr::SEND_WITH_INV => Operation::SendWithInvalidate(Rkey(request.imm_data)),
        wr::ATOMIC_CMP_AND_SWP => Operation::CompareAndSwap {
            remote_addr,
            rkey: Rkey(atomic.rkey),
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        wr::ATOMIC_FETCH_AND_ADD => {
            Operation::FetchAndAdd { remote_addr, rkey: Rkey(atomic.rkey), add: atomic.compare_add }
        }
        wr::ATOMIC_WRITE => Operation::AtomicWrite { remote_addr, rkey },
        wr::LOCAL_INV => Operation::LocalInvalidate(Rkey(request.imm_data)),
        wr::BIND_MW => {
            let bind = &request.bind_mw;
            // SAFETY: the caller's promise.
            unsafe { bind_operation_of_type_2(bind.mw, bind.rkey, &bind.bind_info)? }
        }
        _ => return Err(INVALID),
    })
}

/// Calls `post` with a request in this library's form.
///
/// # Safety
/// The request is the program's, with its lists and its inline bytes.
#[inline]
unsafe fn with_request(
    request: &abi::SendWr,
    post: impl FnOnce(&SendRequest<'_>) -> rdma_verbs::provider::Result<()>,
) -> Result<()> {
    if request.send_flags & IP_CHECKSUM != 0 {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    let (operation, sges) = unsafe { (operation(request)?, entries(request.sg_list, request.num_sge)?) };
    let flags = SendFlags::from_bits_truncate(request.send_flags);
    let mut segments: [&[u8]; MAX_SGE];
    let data = if request.send_flags & INLINE == 0 {
        Data::Sges(sges)
    } else {
        segments = [&[]; MAX_SGE];
        let segments = segments.get_mut(..sges.len()).ok_or(INVALID)?;
        for (segment, sge) in segments.iter_mut().zip(sges).filter(|(_, sge)| sge.length > 0) {
            // SAFETY: the program's bytes, which are copied before this function returns.
            *segment = unsafe { std::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) };
        }
        Data::Inline(segments)
    };
    Ok(post(&SendRequest { wr_id: request.wr_id, operation, flags, data })?)
}

/// Adds a request to the open batch.
///
/// # Safety
/// As [`with_request`].
unsafe fn push(queue_pair: &QueuePair, request: &abi::SendWr) -> Result<()> {
    let inner = &queue_pair.inner;
    match queue_pair.qp_type {
        QueuePairType::UnreliableDatagram => {
            // SAFETY: requests on UD queue pairs have these fields set.
            let ud = unsafe { request.wr.ud };
            if ud.ah.is_null() {
                return Err(INVALID);
            }
            // SAFETY: the program's address handle.
            let handle = unsafe { own(ud.ah) };
            let target = DatagramTarget {
                handle: handle.inner.as_ref(),
                remote_qpn: Qpn::new(ud.remote_qpn),
                remote_qkey: Qkey(ud.remote_qkey),
                long_fails_later: true,
            };
            // SAFETY: the caller's promise.
            unsafe { with_request(request, |lowered| inner.send_push_to(lowered, &target)) }
        }
        QueuePairType::XrcSend => {
            let queue = SharedReceiveQueueNumber::new(request.remote_srqn);
            // SAFETY: the caller's promise.
            unsafe { with_request(request, |lowered| inner.send_push_to_srq(lowered, queue)) }
        }
        // SAFETY: the caller's promise.
        _ => unsafe { with_request(request, |lowered| inner.send_push(lowered)) },
    }
}

/// Reports which request was refused. Programs that do not need that pass null.
///
/// # Safety
/// `bad_wr` is null or may be written.
#[inline]
unsafe fn set_bad_wr<T>(bad_wr: *mut *mut T, request: *mut T) {
    if !bad_wr.is_null() {
        // SAFETY: the caller's promise.
        unsafe { bad_wr.write(request) };
    }
}

/// Posts a list. If a request is refused, those before it are posted, and `refused` is set to it.
///
/// # Safety
/// The queue pair and the list are the program's.
unsafe fn post_sends(
    queue_pair: &QueuePair,
    mut request: *mut abi::SendWr,
    refused: *mut *mut abi::SendWr,
) -> Result<()> {
    let first = request;
    let mut outcome = Ok(());
    queue_pair.inner.send_begin();
    while !request.is_null() {
        // SAFETY: the caller's promise.
        outcome = unsafe { push(queue_pair, &*request) };
        if outcome.is_err() {
            break;
        }
        // SAFETY: as above.
        request = unsafe { (*request).next };
    }
    let ended = queue_pair.inner.send_end(BatchEnd::Publish);
    if let Err(error) = ended {
        // The state changed meanwhile: nothing was posted.
        (outcome, request) = (Err(outcome.err().unwrap_or_else(|| error.into())), first);
    }
    if outcome.is_err() {
        // SAFETY: the program's pointer for it, or null.
        unsafe { set_bad_wr(refused, request) };
    }
    outcome
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut abi::Qp,
    request: *mut abi::SendWr,
    refused: *mut *mut abi::SendWr,
) -> c_int {
    let _held = Uncancelled::begin();
    // SAFETY: the program's queue pair and list.
    unsafe {
        let queue_pair = queue_pair_of(qp);
        if request.is_null() || !(*request).next.is_null() || !queue_pair.is_plain() {
            return number(post_sends(queue_pair, request, refused));
        }
        let posted = with_request(&*request, |lowered| queue_pair.inner.send_one(lowered));
        if posted.is_err() {
            set_bad_wr(refused, request);
        }
        number(posted)
    }
}

/// A queue that receives are posted to.
pub(crate) trait Receives {
    fn begin(&self);
    fn push(&self, request: &ReceiveRequest<'_>) -> Result<()>;
    fn end(&self) -> Result<()>;
}

impl Receives for QueuePair {
    fn begin(&self) {
        self.inner.recv_begin();
    }

    fn push(&self, request: &ReceiveRequest<'_>) -> Result<()> {
        Ok(self.inner.recv_push(request)?)
    }

    fn end(&self) -> Result<()> {
        self.inner.recv_end(BatchEnd::Publish).map_err(Errno::from)
    }
}

/// As [`post_sends`], for receives.
///
/// # Safety
/// The list is the program's.
#[inline]
pub(crate) unsafe fn post_receives(
    queue: &impl Receives,
    mut request: *mut abi::RecvWr,
    refused: *mut *mut abi::RecvWr,
) -> c_int {
    let first = request;
    let mut outcome = Ok(());
    queue.begin();
    while !request.is_null() {
        // SAFETY: the caller's promise.
        let (wr_id, sges) = unsafe { ((*request).wr_id, entries((*request).sg_list, (*request).num_sge)) };
        outcome = sges.and_then(|sges| queue.push(&ReceiveRequest { wr_id, sges }));
        if outcome.is_err() {
            break;
        }
        // SAFETY: as above.
        request = unsafe { (*request).next };
    }
    if let Err(error) = queue.end() {
        (outcome, request) = (Err(outcome.err().unwrap_or(error)), first);
    }
    if outcome.is_err() {
        // SAFETY: the program's pointer for it, or null.
        unsafe { set_bad_wr(refused, request) };
    }
    number(outcome)
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut abi::Qp,
    request: *mut abi::RecvWr,
    refused: *mut *mut abi::RecvWr,
) -> c_int {
    let _held = Uncancelled::begin();
    // SAFETY: the program's queue pair and list.
    unsafe { post_receives(queue_pair_of(qp), request, refused) }
}
