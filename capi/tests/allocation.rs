//! Requests allocate nothing, neither in the verbs nor in the library's threads. This program replaces the process's
//! allocation functions with ones that count and forward, and so sees every allocation of the library.

mod library;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use library::{End, SIGNALED, Verbs, open, set_nonblocking, verbs};
use rdma_verbs::provider::abi::CqEx;

const REQUESTS: u64 = 20_000;
/// The shortest time after which a probe requests a late response.
const SHORTEST_WAIT: Duration = Duration::from_micros(500);

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn count() {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
}

/// The C library's functions, under names that a program cannot override.
mod system {
    use super::c_void;

    unsafe extern "C" {
        pub(super) fn __libc_malloc(size: usize) -> *mut c_void;
        pub(super) fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
        pub(super) fn __libc_realloc(memory: *mut c_void, size: usize) -> *mut c_void;
        pub(super) fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
    }
}

#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut c_void {
    count();
    // SAFETY: the C library's, with the same arguments.
    unsafe { system::__libc_malloc(size) }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(number: usize, size: usize) -> *mut c_void {
    count();
    // SAFETY: as above.
    unsafe { system::__libc_calloc(number, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
    count();
    // SAFETY: as above.
    unsafe { system::__libc_realloc(memory, size) }
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    count();
    // SAFETY: as above.
    unsafe { system::__libc_memalign(alignment, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    count();
    // SAFETY: as above; the pointer is the caller's.
    unsafe {
        let memory = system::__libc_memalign(alignment, size);
        to.write(memory);
        if memory.is_null() { libc::ENOMEM } else { 0 }
    }
}

/// Returns how often `work` allocates in `REQUESTS` rounds, after a warm-up in which all buffers reach their size.
///
/// On a busy machine a response may be so late that a probe requests it again, and recording the repair allocates. So a
/// round that takes longer than the shortest wait for a response, and the one after it, do not count. Most rounds must
/// count.
fn allocations(what: &str, mut work: impl FnMut(u64)) -> u64 {
    (0..REQUESTS / 10).for_each(&mut work);
    let (mut found, mut counted, mut was_quick) = (0, 0, true);
    for number in 0..REQUESTS {
        let (before, started) = (ALLOCATIONS.load(Ordering::Relaxed), Instant::now());
        work(number);
        let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
        let is_quick = started.elapsed() < SHORTEST_WAIT;
        if is_quick && was_quick {
            (found, counted) = (found + allocated, counted + 1);
        }
        was_quick = is_quick;
    }
    println!("{what}: {found} allocations in {counted} of {REQUESTS} rounds");
    assert!(counted > REQUESTS / 2, "{what}: only {counted} of {REQUESTS} rounds were quick");
    found
}

/// Sends a message to itself with `ibv_wr_*`, and takes both completions with `ibv_start_poll`.
fn exchange_extended(verbs: &Verbs, end: &End, number: u64) {
    end.post_recv(number);
    // SAFETY: live objects of the extended interface; the functions belong to them.
    unsafe {
        let qp = (verbs.qp_to_qp_ex)(end.qp);
        (*qp).wr_start.expect("extended")(qp);
        ((*qp).wr_id, (*qp).wr_flags) = (number, SIGNALED);
        (*qp).wr_send.expect("extended")(qp);
        if number.is_multiple_of(2) {
            (*qp).wr_set_inline_data.expect("extended")(qp, (&raw const number).cast(), 8);
        } else {
            (*qp).wr_set_sge.expect("extended")(qp, (*end.mr).lkey, (*end.mr).addr as u64, 8);
        }
        assert_eq!((*qp).wr_complete.expect("extended")(qp), 0);
        let cq: *mut CqEx = end.cq.cast();
        for _ in 0..2 {
            let mut attributes = 0u32;
            while (*cq).start_poll.expect("extended")(cq, &raw mut attributes) != 0 {}
            assert_eq!(((*cq).status, (*cq).wr_id), (0, number));
            (*cq).read_byte_len.expect("extended")(cq);
            (*cq).end_poll.expect("extended")(cq);
        }
    }
}

#[test]
fn requests_allocate_nothing() {
    let verbs = verbs("127.62.1.4");
    let context = open(verbs);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let end = End::looped(verbs, context);
    let made = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert!(made > 20, "the library's own allocations are counted: {made}");

    let (near, far) = (End::new(verbs, open(verbs)), End::new(verbs, open(verbs)));
    near.connect(&far);
    far.connect(&near);
    let (wide, mut found) = (End::extended(verbs, context), [0; 5]);
    wide.connect(&wide);

    found[0] = allocations("post_send, post_recv, poll_cq", |number| end.exchange(number));
    found[1] = allocations("two devices", |number| {
        far.post_recv(number);
        near.post_send(number, SIGNALED);
        assert_eq!((far.complete().wr_id, near.complete().wr_id), (number, number));
    });
    found[2] = allocations("ibv_wr_*, ibv_start_poll", |number| exchange_extended(verbs, &wide, number));
    found[3] = allocations("req_notify_cq, get_cq_event", |number| {
        far.arm();
        far.post_recv(number);
        near.post_send(number, SIGNALED);
        assert_eq!((far.get_event(), far.complete().wr_id), (0, number));
        near.complete();
    });
    set_nonblocking(far.fd());
    found[4] = allocations("get_cq_event without an event", |_| assert_eq!(far.get_event(), libc::EAGAIN));
    assert_eq!(found, [0; 5]);
    [end, near, far, wide].into_iter().for_each(End::destroy);
}
