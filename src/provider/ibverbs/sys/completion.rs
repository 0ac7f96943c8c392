//! Completion queues and channels.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::abi;
use super::context::{Context, set_nonblocking, slot};
use super::{check, not_supported};

/// `ibv_comp_channel`.
pub(in super::super) struct Channel {
    raw: NonNull<abi::CompChannel>,
    context: Arc<Context>,
}

// SAFETY: see the module's documentation.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(in super::super) fn create(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.functions.create_comp_channel)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let channel = Self { raw, context: Arc::clone(context) };
        set_nonblocking(channel.number())?;
        Ok(Arc::new(channel))
    }

    fn number(&self) -> RawFd {
        // SAFETY: the channel lives; its descriptor does not change.
        unsafe { self.raw.as_ref().fd }
    }

    /// Returns a descriptor that is readable while an event is pending.
    pub(in super::super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel is.
        unsafe { BorrowedFd::borrow_raw(self.number()) }
    }

    /// Takes the next event, if there is one, and acknowledges it at once, so that destroying the queue does not wait.
    /// Returns the context number of the completion queue.
    pub(in super::super) fn next_event(&self) -> Option<u64> {
        let (mut queue, mut number) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel and the two variables live. The descriptor does not block.
        let result =
            unsafe { (self.context.functions.get_cq_event)(self.raw.as_ptr(), &raw mut queue, &raw mut number) };
        if result != 0 {
            return None;
        }
        // SAFETY: the event was just taken and is acknowledged once; destroying the queue waits until then.
        unsafe { (self.context.functions.ack_cq_events)(queue, 1) };
        Some(number.addr() as u64)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        // SAFETY: its queues hold it, so this is the last use.
        if unsafe { (self.context.functions.destroy_comp_channel)(self.raw.as_ptr()) } != 0 {
            tracing::warn!(
                target: "rdma_verbs::device",
                device = self.context.info().name, "a completion channel could not be destroyed"
            );
        }
    }
}

/// Options for creating a completion queue.
pub(in super::super) struct CompletionQueueInit<'a> {
    pub(in super::super) cqe: u32,
    /// Context number that the channel and events return.
    pub(in super::super) number: u64,
    pub(in super::super) channel: Option<&'a Arc<Channel>>,
    pub(in super::super) comp_vector: u32,
    pub(in super::super) timestamps: bool,
}

/// A completion as the device reports it.
#[derive(Clone, Copy, Default)]
struct Polled {
    wc: abi::Wc,
    timestamp: u64,
}

/// Maximum number of completions that are taken with one call.
const CHUNK: usize = 16;

const WITH_BYTE_LEN: u64 = 1;
const WITH_IMM: u64 = 1 << 1;
const WITH_QP_NUM: u64 = 1 << 2;
const WITH_SRC_QP: u64 = 1 << 3;
const WITH_SLID: u64 = 1 << 4;
const WITH_SL: u64 = 1 << 5;
const WITH_TIMESTAMP: u64 = 1 << 7;

/// Functions of extended polling; queues that were created for it have all of them.
#[derive(Clone, Copy)]
struct Extended {
    start: unsafe extern "C" fn(*mut abi::CqEx, *mut u32) -> c_int,
    next: unsafe extern "C" fn(*mut abi::CqEx) -> c_int,
    end: unsafe extern "C" fn(*mut abi::CqEx),
    opcode: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    vendor_err: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    byte_len: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    imm_data: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    qp_num: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    src_qp: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    wc_flags: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    slid: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    sl: unsafe extern "C" fn(*mut abi::CqEx) -> u8,
    timestamp: unsafe extern "C" fn(*mut abi::CqEx) -> u64,
}

impl Extended {
    fn of(queue: &abi::CqEx) -> Option<Self> {
        Some(Self {
            start: queue.start_poll?,
            next: queue.next_poll?,
            end: queue.end_poll?,
            opcode: queue.read_opcode?,
            vendor_err: queue.read_vendor_err?,
            byte_len: queue.read_byte_len?,
            imm_data: queue.read_imm_data?,
            qp_num: queue.read_qp_num?,
            src_qp: queue.read_src_qp?,
            wc_flags: queue.read_wc_flags?,
            slid: queue.read_slid?,
            sl: queue.read_sl?,
            timestamp: queue.read_completion_ts?,
        })
    }
}

/// `ibv_cq`.
pub(in super::super) struct CompletionQueue {
    raw: NonNull<abi::Cq>,
    extended: Option<Extended>,
    /// Held while the queue is resized, and while the extended functions move its one cursor.
    exclusive: Mutex<()>,
    poll_cq: unsafe extern "C" fn(*mut abi::Cq, c_int, *mut abi::Wc) -> c_int,
    _channel: Option<Arc<Channel>>,
    context: Arc<Context>,
}

// SAFETY: see the module's documentation.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue, with extended polling only for timestamps, which need it: if extended polling ends before the
    /// queue is empty, rxe returns completions twice (rdma-core up to 64 at least).
    pub(in super::super) fn create(context: &Arc<Context>, init: &CompletionQueueInit<'_>) -> io::Result<Arc<Self>> {
        let poll_cq = context.ops().poll_cq.ok_or_else(not_supported)?;
        let raw = match init.timestamps {
            true => create_extended(context, init)?.cast(),
            false => create_classic(context, init)?,
        };
        let mut queue = Self {
            raw,
            extended: None,
            exclusive: Mutex::default(),
            poll_cq,
            _channel: init.channel.cloned(),
            context: Arc::clone(context),
        };
        if init.timestamps {
            // SAFETY: created as an extended one just now.
            let extended = Extended::of(unsafe { raw.cast::<abi::CqEx>().as_ref() });
            queue.extended = Some(extended.ok_or_else(not_supported)?);
        }
        Ok(Arc::new(queue))
    }

    pub(super) fn raw(&self) -> *mut abi::Cq {
        self.raw.as_ptr()
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.exclusive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of entries that fit.
    pub(in super::super) fn cqe(&self) -> u32 {
        let _locked = self.lock();
        // SAFETY: the queue lives. `resize` changes the number with the queue locked, as it is read here.
        unsafe { (&raw const (*self.raw()).cqe).read() }.try_into().unwrap_or(0)
    }

    /// Takes up to `limit` completions, but no more than [`CHUNK`] at once, passes them to `visit` in order, and
    /// returns their number. After a failure only `wr_id`, `status` and `vendor_err` are valid. The second argument is
    /// in ticks of the device's clock, and 0 without timestamps.
    #[inline]
    pub(in super::super) fn poll(&self, limit: usize, visit: impl FnMut(&abi::Wc, u64)) -> io::Result<usize> {
        match (limit, &self.extended) {
            (0, _) => Ok(0),
            (_, None) => self.poll_classic(limit.min(CHUNK), visit),
            (_, Some(functions)) => self.poll_extended(functions, limit.min(CHUNK), visit),
        }
    }

    #[inline]
    fn poll_classic(&self, limit: usize, mut visit: impl FnMut(&abi::Wc, u64)) -> io::Result<usize> {
        // Only the requested entries are filled with zeros: most polls want one and find none.
        let mut room = [const { MaybeUninit::<abi::Wc>::uninit() }; CHUNK];
        let first = room.as_mut_ptr().cast::<abi::Wc>();
        room[..limit].iter_mut().for_each(|slot| _ = slot.write(abi::Wc::default()));
        // SAFETY: the queue lives, and `limit` entries are there. The library locks the queue.
        let count = unsafe { (self.poll_cq)(self.raw(), limit as c_int, first) };
        // Drivers return their own negative numbers, which are not error numbers.
        let count = usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(libc::EIO))?;
        for slot in &room[..count.min(limit)] {
            // SAFETY: all below `limit` were written before the call.
            visit(unsafe { slot.assume_init_ref() }, 0);
        }
        Ok(count.min(limit))
    }

    fn poll_extended(
        &self,
        functions: &Extended,
        limit: usize,
        mut visit: impl FnMut(&abi::Wc, u64),
    ) -> io::Result<usize> {
        let mut out = [Polled::default(); CHUNK];
        let taken = self.read_extended(functions, &mut out[..limit])?;
        out[..taken].iter().for_each(|polled| visit(&polled.wc, polled.timestamp));
        Ok(taken)
    }

    fn read_extended(&self, functions: &Extended, out: &mut [Polled]) -> io::Result<usize> {
        let _cursor = self.lock();
        let queue = self.raw().cast::<abi::CqEx>();
        let mut attributes = 0u32;
        // SAFETY: an extended queue whose cursor is locked, and a live `ibv_poll_cq_attr`, which is one number.
        match unsafe { (functions.start)(queue, &raw mut attributes) } {
            0 => {}
            libc::ENOENT => return Ok(0),
            error if error > 0 => return Err(io::Error::from_raw_os_error(error)),
            _ => return Err(io::Error::from_raw_os_error(libc::EIO)),
        }
        let mut taken = 0;
        for slot in &mut *out {
            // SAFETY: between a successful start (or next) and the end, as the functions demand. Next is called only if
            // a slot is left, since the completion that it moves to would be lost otherwise.
            unsafe {
                if taken > 0 && (functions.next)(queue) != 0 {
                    break;
                }
                *slot = read(functions, queue);
            }
            taken += 1;
        }
        // SAFETY: started above.
        unsafe { (functions.end)(queue) };
        Ok(taken)
    }

    /// Arms the queue.
    pub(in super::super) fn req_notify(&self, solicited_only: bool) -> io::Result<()> {
        let notify = self.context.ops().req_notify_cq.ok_or_else(not_supported)?;
        // SAFETY: the queue lives.
        check(unsafe { notify(self.raw(), solicited_only.into()) })
    }

    /// Changes the number of entries.
    pub(in super::super) fn resize(&self, cqe: u32) -> io::Result<()> {
        let cqe = c_int::try_from(cqe).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let _locked = self.lock();
        // SAFETY: the queue lives.
        check(unsafe { (self.context.functions.resize_cq)(self.raw(), cqe) })
    }

    /// Delays events for `cq_count` completions or `cq_period` microseconds.
    pub(in super::super) fn moderate(&self, cq_count: u16, cq_period: u16) -> io::Result<()> {
        let modify = slot!(self.context, modify_cq).ok_or_else(not_supported)?;
        let mut attributes = abi::ModifyCqAttr { attr_mask: 1, cq_count, cq_period };
        // SAFETY: the queue and the attributes live.
        check(unsafe { modify(self.raw(), &raw mut attributes) })
    }
}

/// Reads the completion at the cursor of an extended queue.
///
/// # Safety
///
/// The cursor is at a completion: `start` or `next` succeeded.
unsafe fn read(functions: &Extended, queue: *mut abi::CqEx) -> Polled {
    // SAFETY: as the caller promises; the queue was created with the flags for all of these.
    unsafe {
        let mut wc = abi::Wc { wr_id: (*queue).wr_id, status: (*queue).status, ..abi::Wc::default() };
        if wc.status != 0 {
            wc.vendor_err = (functions.vendor_err)(queue);
            return Polled { wc, timestamp: 0 };
        }
        wc.opcode = (functions.opcode)(queue);
        wc.byte_len = (functions.byte_len)(queue);
        wc.wc_flags = (functions.wc_flags)(queue);
        wc.imm_data = (functions.imm_data)(queue);
        wc.qp_num = (functions.qp_num)(queue);
        wc.src_qp = (functions.src_qp)(queue);
        wc.slid = (functions.slid)(queue) as u16;
        wc.sl = (functions.sl)(queue);
        Polled { wc, timestamp: (functions.timestamp)(queue) }
    }
}

fn create_extended(context: &Context, init: &CompletionQueueInit<'_>) -> io::Result<NonNull<abi::CqEx>> {
    let create = slot!(context, create_cq_ex).ok_or_else(not_supported)?;
    let standard = WITH_BYTE_LEN | WITH_IMM | WITH_QP_NUM | WITH_SRC_QP | WITH_SLID | WITH_SL;
    let mut attributes = abi::CqInitAttrEx {
        cqe: init.cqe,
        cq_context: ptr::without_provenance_mut(init.number as usize),
        channel: init.channel.map_or(ptr::null_mut(), |channel| channel.raw.as_ptr()),
        comp_vector: init.comp_vector,
        wc_flags: standard | WITH_TIMESTAMP,
        comp_mask: 0,
        flags: 0,
        parent_domain: ptr::null_mut(),
    };
    // SAFETY: the context, the attributes and the channel live.
    let raw = unsafe { create(context.raw(), &raw mut attributes) };
    NonNull::new(raw).ok_or_else(io::Error::last_os_error)
}

fn create_classic(context: &Context, init: &CompletionQueueInit<'_>) -> io::Result<NonNull<abi::Cq>> {
    let cqe = c_int::try_from(init.cqe).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let vector = c_int::try_from(init.comp_vector).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let channel = init.channel.map_or(ptr::null_mut(), |channel| channel.raw.as_ptr());
    let number = ptr::without_provenance_mut(init.number as usize);
    // SAFETY: the context and the channel live.
    let raw = unsafe { (context.functions.create_cq)(context.raw(), cqe, number, channel, vector) };
    NonNull::new(raw).ok_or_else(io::Error::last_os_error)
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: its queue pairs hold it, so this is the last use. All its events are acknowledged as they are taken,
        // so this waits only for a thread that is taking one right now.
        if !self.context.is_inherited() && unsafe { (self.context.functions.destroy_cq)(self.raw()) } != 0 {
            tracing::warn!(
                target: "rdma_verbs::device",
                device = self.context.info().name, "a completion queue could not be destroyed"
            );
        }
    }
}
