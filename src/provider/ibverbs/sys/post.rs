//! Posting: requests are staged as plain data and posted together.
//!
//! Data that the device copies while posting (scatter-gather entries, inline bytes, the list itself) lives in the
//! stage; objects that it reads later are named by keys, or held by the tracker of the queue pair until the request is
//! finished.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use super::abi::{self, create, wr};
use super::memory::{AddressHandle, MemoryRegion, MemoryWindow};
use super::queue_pair::QueuePair;
use super::shared_receive::SharedReceiveQueue;
use super::{check, not_supported};
use crate::types::{Data, FlushFlags, MemoryWindowType, Operation, SendRequest, Sge};

const INLINE: u32 = 1 << 3;

/// A failure to post.
pub(in super::super) struct PostFailure {
    pub(in super::super) error: io::Error,
    /// Whether it is certain that nothing was posted.
    pub(in super::super) nothing_posted: bool,
}

impl PostFailure {
    fn nothing(error: io::Error) -> Self {
        Self { error, nothing_posted: true }
    }
}

/// Destination of a request.
#[derive(Clone)]
pub(in super::super) enum Target {
    Peer,
    Datagram { handle: Arc<AddressHandle>, qpn: u32, qkey: u32 },
    SharedReceiveQueue(u32),
}

/// The objects of a bind.
#[derive(Clone)]
pub(in super::super) struct Bind {
    pub(in super::super) window: Arc<MemoryWindow>,
    pub(in super::super) kind: MemoryWindowType,
    /// A region of the same protection domain, also for an unbind, because some devices read it even then.
    pub(in super::super) region: Arc<MemoryRegion>,
}

/// Skips empty entries, which stand for no data: some adapters take them for 2^31 bytes, or fail on them.
fn without_empty(sges: &[Sge]) -> impl Iterator<Item = Sge> {
    sges.iter().copied().filter(|sge| sge.length > 0)
}

/// The data of a request.
#[derive(Clone, Copy)]
enum Segments<'a> {
    Inline(&'a [u8]),
    Sges(&'a [Sge]),
}

struct Entry {
    wr_id: u64,
    operation: Operation,
    flags: u32,
    inline: bool,
    /// Offset and length in the bytes of the stage if inline, in its scatter-gather entries otherwise.
    first: usize,
    count: usize,
    target: Target,
    bind: Option<Bind>,
}

/// The functions that post an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PostMethod {
    Classic,
    Extended,
    /// `ibv_bind_mw`, which windows of type 1 need.
    BindWindow,
}

/// Pointers into a stage, valid while it posts; rebuilt each time.
struct Scratch<T>(Vec<T>);

impl<T> Default for Scratch<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

// SAFETY: the pointers are used only by the thread that makes them, during one call.
unsafe impl<T> Send for Scratch<T> {}

/// Send requests that are staged for posting.
#[derive(Default)]
pub(in super::super) struct SendStaging {
    entries: Vec<Entry>,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    list: Scratch<abi::SendWr>,
    inline_sges: Scratch<Sge>,
}

impl SendStaging {
    pub(in super::super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a request under another `wr_id`.
    pub(in super::super) fn push(&mut self, wr_id: u64, request: &SendRequest<'_>, target: Target, bind: Option<Bind>) {
        let (inline, first) = match request.data {
            Data::Inline(segments) => {
                let first = self.bytes.len();
                segments.iter().for_each(|segment| self.bytes.extend_from_slice(segment));
                (true, first)
            }
            Data::Sges(sges) => {
                let first = self.sges.len();
                self.sges.extend(without_empty(sges));
                (false, first)
            }
        };
        let count = if inline { self.bytes.len() } else { self.sges.len() } - first;
        let (operation, flags) = (request.operation, request.flags.bits());
        self.entries.push(Entry { wr_id, operation, flags, inline, first, count, target, bind });
    }

    pub(in super::super) fn clear(&mut self) {
        self.entries.clear();
        self.sges.clear();
        self.bytes.clear();
    }

    /// Posts all entries, in order. `None` if the queue pair is destroyed.
    pub(in super::super) fn post(&mut self, queue_pair: &QueuePair) -> Option<Result<(), PostFailure>> {
        queue_pair.with(|raw| {
            let mut done = 0;
            while done < self.entries.len() {
                let method = method_of(&self.entries[done], queue_pair.send_ops());
                let end = match method {
                    PostMethod::BindWindow => done + 1,
                    _ => {
                        let others = &self.entries[done..];
                        let same =
                            |entry: &&Entry| entry.bind.is_none() && method_of(entry, queue_pair.send_ops()) == method;
                        done + others.iter().take_while(same).count().max(1)
                    }
                };
                let posted = match method {
                    PostMethod::Classic => self.post_classic(queue_pair, raw, done..end),
                    PostMethod::Extended => self.post_extended(queue_pair, raw, done..end),
                    PostMethod::BindWindow => self.bind_window(queue_pair, raw, done),
                };
                posted.map_err(|failure| PostFailure {
                    nothing_posted: failure.nothing_posted && done == 0,
                    ..failure
                })?;
                done = end;
            }
            Ok(())
        })
    }

    fn post_classic(
        &mut self,
        queue_pair: &QueuePair,
        raw: *mut abi::Qp,
        range: std::ops::Range<usize>,
    ) -> Result<(), PostFailure> {
        let post = queue_pair.context().ops().post_send.ok_or_else(|| PostFailure::nothing(not_supported()))?;
        let bind = self.entries[range.start].bind.clone();
        let count = range.len();
        self.list.0.clear();
        self.inline_sges.0.clear();
        self.inline_sges.0.resize(count, Sge::default());
        for (index, entry) in self.entries[range].iter().enumerate() {
            let mut request = classic(entry);
            if entry.inline {
                let addr = self.bytes[entry.first..].as_ptr().addr() as u64;
                self.inline_sges.0[index] = Sge { addr, length: entry.count as u32, lkey: Default::default() };
                request.sg_list = self.inline_sges.0[index..].as_mut_ptr();
                request.num_sge = c_int::from(entry.count > 0);
            } else {
                request.sg_list = self.sges[entry.first..].as_mut_ptr();
                request.num_sge = entry.count as c_int;
            }
            self.list.0.push(request);
        }
        let first = self.list.0.as_mut_ptr();
        for index in 1..count {
            self.list.0[index - 1].next = first.wrapping_add(index);
        }
        let call = |first: *mut abi::SendWr| {
            let mut bad = ptr::null_mut();
            // SAFETY: the queue pair lives; so do the list, made just now, and all it points to. The library copies the
            // list and the inline bytes; it does not keep the pointers.
            let result = check(unsafe { post(raw, first, &raw mut bad) });
            result.map_err(|error| PostFailure { error, nothing_posted: bad == first })
        };
        let Some(bind) = bind else { return call(first) };
        // A bind is posted alone; its objects are locked while their pointers are used.
        self.with_bind_pointers(&bind, |stage, window, region| {
            let request = &mut stage.list.0[0];
            (request.bind_mw.mw, request.bind_mw.bind_info.mr) = (window, region);
            let rkey = request.bind_mw.rkey;
            call(request)?;
            // SAFETY: locked, so it lives. The next bind names the window by the key that this one gives it.
            unsafe { (*window).rkey = rkey };
            Ok(())
        })
    }

    /// Runs `post` with the objects of a bind locked.
    fn with_bind_pointers(
        &mut self,
        bind: &Bind,
        post: impl FnOnce(&mut Self, *mut abi::Mw, *mut abi::Mr) -> Result<(), PostFailure>,
    ) -> Result<(), PostFailure> {
        let gone = || PostFailure::nothing(io::Error::from_raw_os_error(libc::EINVAL));
        let posted = bind.window.with(|window| bind.region.with(|region| post(self, window, region)));
        posted.flatten().ok_or_else(gone)?
    }

    fn post_extended(
        &mut self,
        queue_pair: &QueuePair,
        raw: *mut abi::Qp,
        range: std::ops::Range<usize>,
    ) -> Result<(), PostFailure> {
        // SAFETY: the queue pair was created with extended posting, since it has operations for it.
        let extended = unsafe { (queue_pair.context().functions.qp_to_qp_ex)(raw) };
        if extended.is_null() {
            return Err(PostFailure::nothing(not_supported()));
        }
        if let Some(bind) = self.entries[range.start].bind.clone() {
            return self.with_bind_pointers(&bind, |stage, window, region| {
                let entries = stage.entries[range].iter().map(|entry| (entry, stage.segments(entry)));
                // SAFETY: as above; the window and the region are locked, so they live.
                unsafe { build_all(extended, entries, Some((window, region))) }
            });
        }
        let entries = self.entries[range].iter().map(|entry| (entry, self.segments(entry)));
        // SAFETY: as above.
        unsafe { build_all(extended, entries, None) }
    }

    /// Posts a request that needs no stage, under another `wr_id`; nothing is staged meanwhile, since the stage is
    /// borrowed. `None` if the queue pair is destroyed.
    pub(in super::super) fn post_unstaged(
        &mut self,
        wr_id: u64,
        unstaged: UnstagedRequest<'_>,
        queue_pair: &QueuePair,
    ) -> Option<Result<(), PostFailure>> {
        let UnstagedRequest { operation, flags, segments } = unstaged;
        let (inline, count) = match segments {
            Segments::Inline(bytes) => (true, bytes.len()),
            Segments::Sges(sges) => (false, sges.len()),
        };
        let entry = Entry { wr_id, operation, flags, inline, first: 0, count, target: Target::Peer, bind: None };
        queue_pair.with(|raw| {
            // SAFETY: the queue pair was created with extended posting, since it has operations for it.
            let extended = unsafe { (queue_pair.context().functions.qp_to_qp_ex)(raw) };
            if extended.is_null() {
                return Err(PostFailure::nothing(not_supported()));
            }
            // SAFETY: as above; this operation is among them.
            unsafe { build_all(extended, std::iter::once((&entry, segments)), None) }
        })
    }

    fn segments(&self, entry: &Entry) -> Segments<'_> {
        let range = entry.first..entry.first + entry.count;
        if entry.inline { Segments::Inline(&self.bytes[range]) } else { Segments::Sges(&self.sges[range]) }
    }

    fn bind_window(&mut self, queue_pair: &QueuePair, raw: *mut abi::Qp, index: usize) -> Result<(), PostFailure> {
        let unsupported = || PostFailure::nothing(not_supported());
        let bind_mw = queue_pair.context().ops().bind_mw.ok_or_else(unsupported)?;
        let entry = &self.entries[index];
        let (wr_id, send_flags, operation) = (entry.wr_id, entry.flags, entry.operation);
        let bind = entry.bind.clone().ok_or_else(unsupported)?;
        let Operation::BindMemoryWindow { addr, length, access, .. } = operation else { return Err(unsupported()) };
        self.with_bind_pointers(&bind, |_, window, mr| {
            let bind_info = abi::MwBindInfo { mr, addr, length, mw_access_flags: access.bits() };
            let mut arguments = abi::MwBind { wr_id, send_flags, bind_info };
            // SAFETY: the queue pair, the window, the region and the arguments live.
            check(unsafe { bind_mw(raw, window, &raw mut arguments) }).map_err(|error| {
                let nothing_posted = matches!(error.raw_os_error(), Some(libc::ENOMEM));
                PostFailure { error, nothing_posted }
            })
        })
    }
}

/// # Safety
///
/// The queue pair lives and was created with all operations of these entries; the objects of a bind live too. The queue
/// pair's only stage of sends is borrowed exclusively.
unsafe fn build_all<'a>(
    raw: *mut abi::QpEx,
    entries: impl Iterator<Item = (&'a Entry, Segments<'a>)>,
    bind: Option<(*mut abi::Mw, *mut abi::Mr)>,
) -> Result<(), PostFailure> {
    // SAFETY: as the caller promises. Start, complete and abort come in the required order, on one thread; no other
    // thread comes in between.
    unsafe {
        let functions = || Some(((*raw).wr_start?, (*raw).wr_complete?, (*raw).wr_abort?));
        let Some((start, complete, abort)) = functions() else {
            return Err(PostFailure::nothing(not_supported()));
        };
        start(raw);
        for (entry, segments) in entries {
            (*raw).wr_id = entry.wr_id;
            // rxe takes inline bytes only if this flag is set too; by the manual page it has no meaning here.
            (*raw).wr_flags = entry.flags | if entry.inline && entry.count > 0 { INLINE } else { 0 };
            if build(raw, entry, segments, bind).is_none() {
                abort(raw);
                return Err(PostFailure::nothing(not_supported()));
            }
        }
        check(complete(raw)).map_err(|error| {
            // By contract, nothing is posted if this fails, but rxe also fails if it could not notify the kernel of
            // posted requests.
            let nothing_posted = matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOSPC));
            PostFailure { error, nothing_posted }
        })
    }
}

/// Calls the builder and the setters for an entry; `None` if one is missing.
///
/// # Safety
///
/// As [`build_all`], between start and complete.
unsafe fn build(
    raw: *mut abi::QpEx,
    entry: &Entry,
    segments: Segments<'_>,
    bind: Option<(*mut abi::Mw, *mut abi::Mr)>,
) -> Option<()> {
    // SAFETY: as the caller promises. The data behind pointers lives and is copied by each call.
    unsafe {
        match entry.operation {
            Operation::Send => (*raw).wr_send?(raw),
            Operation::SendWithImmediate(immediate) => (*raw).wr_send_imm?(raw, immediate.to_be()),
            Operation::SendWithInvalidate(key) => (*raw).wr_send_inv?(raw, key.0),
            Operation::Write { remote_addr, rkey } => (*raw).wr_rdma_write?(raw, rkey.0, remote_addr),
            Operation::WriteWithImmediate { remote_addr, rkey, immediate } => {
                (*raw).wr_rdma_write_imm?(raw, rkey.0, remote_addr, immediate.to_be());
            }
            Operation::Read { remote_addr, rkey } => (*raw).wr_rdma_read?(raw, rkey.0, remote_addr),
            Operation::CompareAndSwap { remote_addr, rkey, compare, swap } => {
                (*raw).wr_atomic_cmp_swp?(raw, rkey.0, remote_addr, compare, swap);
            }
            Operation::FetchAndAdd { remote_addr, rkey, add } => {
                (*raw).wr_atomic_fetch_add?(raw, rkey.0, remote_addr, add);
            }
            Operation::AtomicWrite { remote_addr, rkey } => {
                let Segments::Inline(bytes @ [_, _, _, _, _, _, _, _]) = segments else { return None };
                (*raw).wr_atomic_write?(raw, rkey.0, remote_addr, bytes.as_ptr().cast());
                return Some(());
            }
            Operation::Flush { remote_addr, rkey, length, flags } => {
                let flush = (*raw.cast::<abi::QpExWithFlush>()).wr_flush?;
                let kind = flags.bits() & (FlushFlags::GLOBAL | FlushFlags::PERSISTENT).bits();
                let level = u8::from(flags.contains(FlushFlags::WHOLE_REGION));
                flush(raw, rkey.0, remote_addr, length as usize, kind, level);
                return Some(());
            }
            Operation::LocalInvalidate(key) => {
                (*raw).wr_local_inv?(raw, key.0);
                return Some(());
            }
            Operation::BindMemoryWindow { rkey, addr, length, access, .. } => {
                let (window, mr) = bind?;
                let info = abi::MwBindInfo { mr, addr, length, mw_access_flags: access.bits() };
                (*raw).wr_bind_mw?(raw, window, rkey.0, &raw const info);
                (*window).rkey = rkey.0;
                return Some(());
            }
        }
        match &entry.target {
            Target::Peer => {}
            Target::Datagram { handle, qpn, qkey } => (*raw).wr_set_ud_addr?(raw, handle.raw(), *qpn, *qkey),
            Target::SharedReceiveQueue(number) => (*raw).wr_set_xrc_srqn?(raw, *number),
        }
        match segments {
            Segments::Inline([]) | Segments::Sges([]) => (*raw).wr_set_sge_list?(raw, 0, ptr::dangling()),
            Segments::Inline(bytes) => (*raw).wr_set_inline_data?(raw, bytes.as_ptr().cast(), bytes.len()),
            Segments::Sges(sges) => (*raw).wr_set_sge_list?(raw, sges.len(), sges.as_ptr()),
        }
        Some(())
    }
}

/// A request to the peer that needs no stage: its data is one segment, and it names no other object.
pub(in super::super) struct UnstagedRequest<'a> {
    operation: Operation,
    flags: u32,
    segments: Segments<'a>,
}

impl<'a> UnstagedRequest<'a> {
    /// Returns `None` if the request needs a stage, or the queue pair has no extended posting for it.
    #[inline]
    pub(in super::super) fn of(queue_pair: &QueuePair, request: &SendRequest<'a>) -> Option<Self> {
        let SendRequest { operation, flags, data, .. } = *request;
        let names_nothing = matches!(
            operation,
            Operation::Send
                | Operation::SendWithImmediate(_)
                | Operation::Write { .. }
                | Operation::WriteWithImmediate { .. }
                | Operation::Read { .. }
        );
        if !names_nothing || queue_pair.send_ops() & needed(&operation) == 0 {
            return None;
        }
        let segments = match data {
            Data::Inline([segment]) => Segments::Inline(segment),
            Data::Sges(sges @ [sge]) if sge.length > 0 => Segments::Sges(sges),
            _ => return None,
        };
        Some(Self { operation, flags: flags.bits(), segments })
    }
}

/// Returns the operation of extended posting that a request needs.
fn needed(operation: &Operation) -> u64 {
    match operation {
        Operation::Send => create::WITH_SEND,
        Operation::SendWithImmediate(_) => create::WITH_SEND_WITH_IMM,
        Operation::SendWithInvalidate(_) => create::WITH_SEND_WITH_INV,
        Operation::Write { .. } => create::WITH_RDMA_WRITE,
        Operation::WriteWithImmediate { .. } => create::WITH_RDMA_WRITE_WITH_IMM,
        Operation::Read { .. } => create::WITH_RDMA_READ,
        Operation::CompareAndSwap { .. } => create::WITH_ATOMIC_CMP_AND_SWP,
        Operation::FetchAndAdd { .. } => create::WITH_ATOMIC_FETCH_AND_ADD,
        Operation::AtomicWrite { .. } => create::WITH_ATOMIC_WRITE,
        Operation::Flush { .. } => create::WITH_FLUSH,
        Operation::LocalInvalidate(_) => create::WITH_LOCAL_INV,
        Operation::BindMemoryWindow { .. } => create::WITH_BIND_MW,
    }
}

fn method_of(entry: &Entry, send_ops: u64) -> PostMethod {
    if entry.bind.as_ref().is_some_and(|bind| bind.kind == MemoryWindowType::Type1) {
        PostMethod::BindWindow
    } else if !entry.inline && entry.count > 1 {
        // rxe's extended posting counts the first entry of a list for all of them (rdma-core 44).
        PostMethod::Classic
    } else if send_ops & needed(&entry.operation) != 0 {
        PostMethod::Extended
    } else {
        PostMethod::Classic
    }
}

/// Converts an entry to the form that `ibv_post_send` takes, without its data.
fn classic(entry: &Entry) -> abi::SendWr {
    // SAFETY: numbers and pointers, for which all zeros are valid.
    let mut request: abi::SendWr = unsafe { MaybeUninit::zeroed().assume_init() };
    request.wr_id = entry.wr_id;
    request.send_flags = entry.flags | if entry.inline && entry.count > 0 { INLINE } else { 0 };
    let rdma = |remote_addr, rkey: crate::types::Rkey| abi::WrUnion { rdma: abi::RdmaWr { remote_addr, rkey: rkey.0 } };
    let atomic = |remote_addr, rkey: crate::types::Rkey, compare_add, swap| abi::WrUnion {
        atomic: abi::AtomicWr { remote_addr, compare_add, swap, rkey: rkey.0 },
    };
    match entry.operation {
        Operation::Send => request.opcode = wr::SEND,
        Operation::SendWithImmediate(immediate) => {
            (request.opcode, request.imm_data) = (wr::SEND_WITH_IMM, immediate.to_be());
        }
        Operation::SendWithInvalidate(key) => (request.opcode, request.imm_data) = (wr::SEND_WITH_INV, key.0),
        Operation::Write { remote_addr, rkey } => {
            (request.opcode, request.wr) = (wr::RDMA_WRITE, rdma(remote_addr, rkey));
        }
        Operation::WriteWithImmediate { remote_addr, rkey, immediate } => {
            (request.opcode, request.wr) = (wr::RDMA_WRITE_WITH_IMM, rdma(remote_addr, rkey));
            request.imm_data = immediate.to_be();
        }
        Operation::Read { remote_addr, rkey } => {
            (request.opcode, request.wr) = (wr::RDMA_READ, rdma(remote_addr, rkey));
        }
        Operation::CompareAndSwap { remote_addr, rkey, compare, swap } => {
            (request.opcode, request.wr) = (wr::ATOMIC_CMP_AND_SWP, atomic(remote_addr, rkey, compare, swap));
        }
        Operation::FetchAndAdd { remote_addr, rkey, add } => {
            (request.opcode, request.wr) = (wr::ATOMIC_FETCH_AND_ADD, atomic(remote_addr, rkey, add, 0));
        }
        Operation::AtomicWrite { remote_addr, rkey } => {
            (request.opcode, request.wr) = (wr::ATOMIC_WRITE, rdma(remote_addr, rkey));
        }
        // Refused earlier: classic posting has no FLUSH.
        Operation::Flush { remote_addr, rkey, .. } => {
            (request.opcode, request.wr) = (u32::MAX, rdma(remote_addr, rkey));
        }
        Operation::LocalInvalidate(key) => (request.opcode, request.imm_data) = (wr::LOCAL_INV, key.0),
        Operation::BindMemoryWindow { rkey, addr, length, access, .. } => {
            request.opcode = wr::BIND_MW;
            request.bind_mw.rkey = rkey.0;
            let mr = ptr::null_mut();
            request.bind_mw.bind_info = abi::MwBindInfo { mr, addr, length, mw_access_flags: access.bits() };
        }
    }
    match &entry.target {
        Target::Peer => {}
        Target::Datagram { handle, qpn, qkey } => {
            request.wr = abi::WrUnion { ud: abi::UdWr { ah: handle.raw(), remote_qpn: *qpn, remote_qkey: *qkey } };
        }
        Target::SharedReceiveQueue(number) => request.remote_srqn = *number,
    }
    request
}

/// Receives that are staged for posting.
#[derive(Default)]
pub(in super::super) struct ReceiveStaging {
    /// `wr_id`, and offset and length in the scatter-gather entries.
    entries: Vec<(u64, usize, usize)>,
    sges: Vec<Sge>,
    list: Scratch<abi::RecvWr>,
}

impl ReceiveStaging {
    pub(in super::super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the `wr_id`s, in order.
    pub(in super::super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().map(|entry| entry.0)
    }

    pub(in super::super) fn push(&mut self, wr_id: u64, sges: &[Sge]) {
        let first = self.sges.len();
        self.sges.extend(without_empty(sges));
        self.entries.push((wr_id, first, self.sges.len() - first));
    }

    pub(in super::super) fn clear(&mut self) {
        self.entries.clear();
        self.sges.clear();
    }

    fn link(&mut self) -> *mut abi::RecvWr {
        self.list.0.clear();
        for &(wr_id, first, count) in &self.entries {
            let sg_list = self.sges[first..].as_mut_ptr();
            self.list.0.push(abi::RecvWr { wr_id, next: ptr::null_mut(), sg_list, num_sge: count as c_int });
        }
        let first = self.list.0.as_mut_ptr();
        for index in 1..self.list.0.len() {
            self.list.0[index - 1].next = first.wrapping_add(index);
        }
        first
    }

    /// Posts all entries, in order. `None` if the queue pair is destroyed.
    pub(in super::super) fn post(&mut self, queue_pair: &QueuePair) -> Option<Result<(), PostFailure>> {
        let first = self.link();
        let Some(post) = queue_pair.context().ops().post_recv else {
            return Some(Err(PostFailure::nothing(not_supported())));
        };
        // SAFETY: the queue pair lives; so do the list, made just now, and what it points to, which the library copies.
        self.run(first, |bad| queue_pair.with(|raw| check(unsafe { post(raw, first, bad) })))
    }

    /// Posts all entries to a shared receive queue, in order. `None` if the queue is destroyed.
    pub(in super::super) fn post_shared(&mut self, queue: &SharedReceiveQueue) -> Option<Result<(), PostFailure>> {
        let first = self.link();
        let Some(post) = queue.context().ops().post_srq_recv else {
            return Some(Err(PostFailure::nothing(not_supported())));
        };
        // SAFETY: as above.
        self.run(first, |bad| queue.with(|raw| check(unsafe { post(raw, first, bad) })))
    }

    fn run(
        &self,
        first: *mut abi::RecvWr,
        post: impl FnOnce(*mut *mut abi::RecvWr) -> Option<io::Result<()>>,
    ) -> Option<Result<(), PostFailure>> {
        if self.entries.is_empty() {
            return Some(Ok(()));
        }
        let mut bad = ptr::null_mut();
        let result = post(&raw mut bad)?;
        Some(result.map_err(|error| PostFailure { error, nothing_posted: bad == first }))
    }
}
