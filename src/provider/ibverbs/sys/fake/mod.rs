//! A fake libibverbs for tests, which needs no hardware: it has InfiniBand ports, iWARP, extended posting and the
//! tables of old libraries, and fails any verb on demand. It logs its calls. It moves no data: the test decides which
//! requests complete. A fake librdmacm (`connections`) belongs to it.
//!
//! It is stricter than the real library: objects are freed when they are destroyed, and destroying waits for events
//! that were taken and not acknowledged.

mod connections;
mod objects;
mod posting;

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(in super::super) use connections::Raised;

use super::abi::{self, VerbsContext};
use super::context::Context;
use super::library::Library;
use crate::memory::Backing;

/// Properties of the fake machine.
pub(in super::super) struct Machine {
    pub(in super::super) transport_type: c_int,
    pub(in super::super) node_type: c_int,
    pub(in super::super) attributes: abi::DeviceAttrEx,
    pub(in super::super) port: abi::PortAttrWithSpeed,
    pub(in super::super) gids: Vec<abi::GidEntry>,
    /// Size of the table in front of the context; `None`: no table.
    pub(in super::super) sz: Option<usize>,
    /// Operations of extended posting that queue pairs may have.
    pub(in super::super) send_ops: u64,
    /// Whether it accepts the flags, although it has no extended interface.
    pub(in super::super) ignores_send_ops: bool,
    /// Sizes that it reports for queue pairs.
    pub(in super::super) cap: Option<abi::QpCap>,
}

/// rdma-core 64 has six slots in front of those known here.
const NEWER_SLOTS: usize = 6;
pub(in super::super) const WHOLE_TABLE: usize = size_of::<VerbsContext>() + NEWER_SLOTS * size_of::<usize>();

impl Default for Machine {
    /// Returns a RoCE adapter with one port and two GIDs.
    fn default() -> Self {
        // SAFETY: plain numbers, for which all zeros are valid.
        let mut attributes: abi::DeviceAttrEx = unsafe { MaybeUninit::zeroed().assume_init() };
        let basic = &mut attributes.orig_attr;
        (basic.max_mr_size, basic.page_size_cap) = (u64::MAX, 4096);
        (basic.max_qp, basic.max_qp_wr, basic.max_sge, basic.max_sge_rd) = (64, 1024, 8, 8);
        (basic.max_cq, basic.max_cqe, basic.max_mr, basic.max_pd, basic.max_mw) = (64, 4096, 64, 64, 64);
        (basic.max_qp_rd_atom, basic.max_qp_init_rd_atom, basic.atomic_cap) = (16, 16, 1);
        (basic.max_srq, basic.max_srq_wr, basic.max_srq_sge, basic.max_ah) = (64, 1024, 4, 64);
        (basic.max_mcast_grp, basic.max_pkeys, basic.phys_port_cnt) = (16, 1, 1);
        attributes.phys_port_cnt_ex = 1;
        let mut port = abi::PortAttrWithSpeed::default();
        let base = &mut port.base;
        (base.state, base.max_mtu, base.active_mtu) = (4, 5, 5);
        (base.gid_tbl_len, base.pkey_tbl_len, base.link_layer) = (4, 1, 2);
        (base.active_width, base.active_speed, base.max_msg_sz) = (2, 32, 1 << 31);
        let gid = |gid_index: u32, tail: [u8; 6], gid_type| {
            let mut gid = [0; 16];
            gid[10..].copy_from_slice(&tail);
            abi::GidEntry { gid: abi::Gid(gid), gid_index, port_num: 1, gid_type, ndev_ifindex: 3 }
        };
        let tail = [0xff, 0xff, 192, 0, 2, 1];
        Self {
            transport_type: 0,
            node_type: 1,
            attributes,
            port,
            gids: vec![gid(0, tail, 1), gid(1, tail, 2)],
            sz: Some(WHOLE_TABLE),
            send_ops: 0,
            ignores_send_ops: false,
            cap: None,
        }
    }
}

/// A pending event: its type, and its object by address, or its port.
#[derive(Clone, Copy)]
struct Pending {
    event_type: u32,
    element: usize,
}

/// The calls of a verb that fail: after so many successes, so many failures with this error number.
struct Failure {
    errno: c_int,
    successes: u32,
    failures: u32,
}

#[derive(Default)]
struct State {
    log: Vec<String>,
    failing: HashMap<&'static str, Failure>,
    /// Whether posting is slow.
    slow: bool,
    /// Index of the request that a failed list reports as the bad one; `None`: no request.
    bad: Option<usize>,
    live: HashMap<&'static str, i32>,
    next: u32,
    /// Completion queues in the order of their creation: address, and waiting completions with their time.
    queues: Vec<(usize, VecDeque<(abi::Wc, u64)>)>,
    /// Addresses of queue pairs, shared queues and channels in the order of their creation.
    queue_pairs: Vec<usize>,
    shared: Vec<usize>,
    /// Requests that were posted.
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Requests since extended posting was started.
    building: Option<Vec<u64>>,
    /// Completion at the cursor of extended polling.
    current: Option<(abi::Wc, u64)>,
    events: VecDeque<Pending>,
    channel_events: VecDeque<usize>,
    /// Events that were taken and not acknowledged, by object.
    taken: HashMap<usize, u32>,
    bytes: Vec<u8>,
    connections: connections::Connections,
}

impl State {
    fn failure(&mut self, verb: &'static str) -> c_int {
        match self.failing.get_mut(verb) {
            Some(Failure { successes: left @ 1.., .. }) => {
                *left -= 1;
                0
            }
            Some(Failure { failures: left @ 1.., errno, .. }) => {
                *left -= 1;
                *errno
            }
            _ => 0,
        }
    }
}

/// Returns a backing of all memory of this process. Nothing accesses it: there is no machine.
pub(in super::super) fn address_space() -> Backing {
    // SAFETY: it is registered with a machine that does not exist, and the tests do not touch its bytes.
    unsafe { Backing::address_space() }
}

/// The test's handle of the machine.
pub(in super::super) struct Fake {
    machine: Machine,
    state: Mutex<State>,
    acknowledged: Condvar,
    async_fd: c_int,
    channel_fd: c_int,
}

#[repr(C)]
struct FakeDevice {
    base: abi::Device,
    fake: &'static Fake,
}

#[repr(C)]
struct FakeContext {
    newer: [usize; NEWER_SLOTS],
    table: VerbsContext,
}

thread_local! {
    static LISTED: Cell<*mut FakeDevice> = const { Cell::new(ptr::null_mut()) };
}

/// Creates a machine and opens its device.
pub(in super::super) fn open(machine: Machine) -> (Arc<Context>, &'static Fake) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (async_fd, channel_fd) = (counting_descriptor(), counting_descriptor());
    let (state, acknowledged) = (Mutex::default(), Condvar::new());
    let (transport_type, node_type) = (machine.transport_type, machine.node_type);
    let fake: &'static Fake = Box::leak(Box::new(Fake { machine, state, acknowledged, async_fd, channel_fd }));
    let name = format!("fake{}", NEXT.fetch_add(1, Ordering::Relaxed));
    // SAFETY: numbers and slots, for which all zeros are valid.
    let mut base: abi::Device = unsafe { MaybeUninit::zeroed().assume_init() };
    for (to, from) in base.name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    (base.transport_type, base.node_type) = (transport_type, node_type);
    LISTED.set(Box::leak(Box::new(FakeDevice { base, fake })));
    static LIBRARY: Library = objects::LIBRARY;
    connections::use_machine(fake);
    let context = Context::open_by(&LIBRARY, connections::library, &name).expect("a device").expect("of this name");
    (context, fake)
}

/// Creates a descriptor where each write of 1 makes one read succeed. It blocks until it is made non-blocking.
fn counting_descriptor() -> c_int {
    // SAFETY: takes no pointers.
    let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
    assert!(descriptor >= 0, "eventfd");
    descriptor
}

fn signal(descriptor: c_int) {
    // SAFETY: the eight bytes live.
    let written = unsafe { libc::write(descriptor, (&raw const ONE).cast(), 8) };
    assert_eq!(written, 8, "eventfd");
}

static ONE: u64 = 1;

/// Takes a signal; false if there is none. Blocks if the descriptor does.
fn take_signal(descriptor: c_int) -> bool {
    let mut count = 0u64;
    // SAFETY: the eight bytes live.
    unsafe { libc::read(descriptor, (&raw mut count).cast(), 8) == 8 }
}

impl Fake {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the verb fail with this error number from now on; 0: no longer.
    pub(in super::super) fn fail(&self, verb: &'static str, errno: c_int) {
        self.state().failing.insert(verb, Failure { errno, successes: 0, failures: u32::MAX });
    }

    /// Makes the next call of the verb fail.
    pub(in super::super) fn fail_once(&self, verb: &'static str, errno: c_int) {
        self.fail_once_after(verb, 0, errno);
    }

    /// Makes one call of the verb fail, after this number of successes.
    pub(in super::super) fn fail_once_after(&self, verb: &'static str, successes: u32, errno: c_int) {
        self.state().failing.insert(verb, Failure { errno, successes, failures: 1 });
    }

    /// Makes lists fail at this request, after those before it were posted; with `None`, the failing request is not
    /// reported.
    pub(in super::super) fn fail_at(&self, bad: Option<usize>) {
        self.state().bad = bad;
    }

    /// Delays posting calls before they return.
    pub(in super::super) fn slow_down(&self) {
        self.state().slow = true;
    }

    /// Returns and clears the log of calls.
    pub(in super::super) fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }

    /// Returns the numbers of existing objects, by kind.
    pub(in super::super) fn live(&self) -> Vec<(&'static str, i32)> {
        let mut live: Vec<_> = self.state().live.iter().map(|(kind, count)| (*kind, *count)).collect();
        live.retain(|(_, count)| *count != 0);
        live.sort_unstable();
        live
    }

    /// Returns the `wr_id`s of all send requests that were posted.
    pub(in super::super) fn sent(&self) -> Vec<u64> {
        self.state().sent.clone()
    }

    /// Returns the `wr_id`s of all receives that were posted.
    pub(in super::super) fn received(&self) -> Vec<u64> {
        self.state().received.clone()
    }

    /// Adds a completion to the queue with this position in the order of creation.
    pub(in super::super) fn complete(&self, queue: usize, wc: abi::Wc) {
        self.complete_at(queue, wc, 0);
    }

    pub(in super::super) fn complete_at(&self, queue: usize, wc: abi::Wc, ticks: u64) {
        self.state().queues[queue].1.push_back((wc, ticks));
    }

    /// Raises an event of the queue on the channel.
    pub(in super::super) fn channel_event(&self, queue: usize) {
        let mut state = self.state();
        let address = state.queues[queue].0;
        state.channel_events.push_back(address);
        signal(self.channel_fd);
    }

    pub(in super::super) fn queue_event(&self, queue: usize) {
        let element = self.state().queues[queue].0;
        self.event(0, element);
    }

    /// Raises an event of the queue pair with this position in the order of creation, unless it is destroyed.
    pub(in super::super) fn queue_pair_event(&self, event_type: u32, queue_pair: usize) {
        let mut state = self.state();
        let element = state.queue_pairs[queue_pair];
        if element != 0 {
            state.events.push_back(Pending { event_type, element });
            signal(self.async_fd);
        }
    }

    pub(in super::super) fn shared_event(&self, event_type: u32, queue: usize) {
        let element = self.state().shared[queue];
        self.event(event_type, element);
    }

    pub(in super::super) fn port_event(&self, event_type: u32, port: usize) {
        self.event(event_type, port);
    }

    fn event(&self, event_type: u32, element: usize) {
        self.state().events.push_back(Pending { event_type, element });
        signal(self.async_fd);
    }

    /// Logs a call, and returns the error number if it is to fail, or 0.
    fn called(&self, verb: &'static str, detail: impl std::fmt::Display) -> c_int {
        let mut state = self.state();
        state.log.push(format!("{verb} {detail}").trim_end().to_owned());
        state.failure(verb)
    }

    fn count(&self, kind: &'static str, change: i32) {
        *self.state().live.entry(kind).or_default() += change;
    }

    fn next(&self) -> u32 {
        let mut state = self.state();
        state.next += 1;
        state.next
    }

    /// Drops the pending events of an object that is being destroyed, and waits until those that were taken are
    /// acknowledged.
    fn drain_events(&self, element: usize) {
        let mut state = self.state();
        state.events.retain(|event| event.element != element);
        state.channel_events.retain(|address| *address != element);
        while state.taken.get(&element).copied().unwrap_or(0) > 0 {
            let waited = self.acknowledged.wait_timeout(state, Duration::from_secs(20));
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            assert!(!timeout.timed_out(), "an event was taken and never acknowledged");
            state = again;
        }
        state.taken.remove(&element);
    }

    fn acknowledge(&self, element: usize, count: u32) {
        *self.state().taken.get_mut(&element).expect("an event that was taken") -= count;
        self.acknowledged.notify_all();
    }
}

/// Returns the machine of an object's context.
///
/// # Safety
/// The context is one of this library's, and open.
unsafe fn of(context: *mut abi::Context) -> &'static Fake {
    // SAFETY: as the caller promises; all devices of the library are such.
    unsafe { (*(*context).device.cast::<FakeDevice>()).fake }
}

/// Creates an object, zeroed except for what `fill` sets.
///
/// # Safety
/// All zeros are valid.
unsafe fn make<T>(fill: impl FnOnce(&mut T)) -> *mut T {
    // SAFETY: as the caller promises.
    let mut object = Box::new(unsafe { MaybeUninit::<T>::zeroed().assume_init() });
    fill(&mut object);
    Box::into_raw(object)
}

/// # Safety
/// Made by [`make`], and not used any more.
unsafe fn unmake<T>(object: *mut T) {
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(object) });
}

/// Fails like a function that returns a pointer: sets `errno` and returns null.
fn refuse<T>(errno: c_int) -> *mut T {
    // SAFETY: the thread's own error number.
    unsafe { *libc::__errno_location() = errno };
    ptr::null_mut()
}
