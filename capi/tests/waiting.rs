//! Signals and cancellation, which end a verb's wait without an event.

mod library;

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use library::{End, PATIENCE, SIGNALED, Verbs, errno, open, verbs};
use rdma_verbs::provider::abi::AsyncEvent;

const ADDRESS: &str = "127.62.1.2";

fn library() -> &'static Verbs {
    verbs(ADDRESS)
}

// As in `libc`, which lacks some of them, except that they may unwind.
unsafe extern "C-unwind" {
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const c_void,
        start: unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void,
    ) -> c_int;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn pthread_testcancel();
}

/// A thread of the C library, which unlike Rust's may be cancelled.
struct Thread(libc::pthread_t);

impl Thread {
    /// # Safety
    /// The referent of `argument` outlives the thread.
    unsafe fn start<T>(start: unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void, argument: &T) -> Self {
        let mut thread = 0;
        // SAFETY: the caller's promise; the thread's number is written to a local variable.
        let started =
            unsafe { pthread_create(&raw mut thread, null(), start, std::ptr::from_ref(argument).cast_mut().cast()) };
        assert_eq!(started, 0);
        Self(thread)
    }

    fn cancel(&self) {
        // SAFETY: the thread is not joined yet.
        assert_eq!(unsafe { pthread_cancel(self.0) }, 0);
    }

    fn signal(&self, signal: c_int) {
        // SAFETY: the thread is not joined yet.
        assert_eq!(unsafe { libc::pthread_kill(self.0, signal) }, 0);
    }

    /// Waits for the thread and returns whether it was cancelled.
    fn join(self) -> bool {
        let mut result = null_mut();
        let mut end = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: local variables, and a thread that is joined only here.
        let joined = unsafe {
            libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut end);
            end.tv_sec += PATIENCE.as_secs() as libc::time_t;
            pthread_timedjoin_np(self.0, &raw mut result, &raw const end)
        };
        assert_eq!(joined, 0, "it does not end");
        result as isize == -1
    }
}

unsafe extern "C" {
    fn pthread_timedjoin_np(thread: libc::pthread_t, result: *mut *mut c_void, end: *const libc::timespec) -> c_int;
}

/// The threads' shared state; their frames own nothing.
struct Shared {
    end: End,
    verbs: &'static Verbs,
    /// Result and error number of a verb that has returned.
    result: AtomicI32,
    error: AtomicI32,
    begun: AtomicBool,
    exchanges: AtomicU64,
}

impl Shared {
    fn new() -> Box<Self> {
        let end = End::looped(library(), open(library()));
        let (result, error) = (AtomicI32::new(1), AtomicI32::new(0));
        Box::new(Self {
            end,
            verbs: library(),
            result,
            error,
            begun: AtomicBool::new(false),
            exchanges: AtomicU64::new(0),
        })
    }

    fn set_result(&self, result: c_int) {
        self.error.store(errno(), Ordering::Relaxed);
        self.result.store(result, Ordering::Release);
    }

    fn wait_for_begin(&self) {
        while !self.begun.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // The thread blocks soon afterwards; cancelling or interrupting it earlier would be valid as well.
        std::thread::sleep(Duration::from_millis(20));
    }

    /// Checks that the channel works as if no thread had ever waited there.
    fn check_channel(&self) {
        for number in 0..50 {
            self.end.arm();
            self.end.post_recv(number);
            self.end.post_send(number, 0);
            assert_eq!((self.end.get_event(), self.end.complete().wr_id), (0, number));
        }
    }
}

unsafe extern "C-unwind" fn wait_for_completion(shared: *mut c_void) -> *mut c_void {
    let (mut cq, mut context) = (null_mut(), null_mut());
    // SAFETY: as it was started; the channel is alive.
    let shared: &Shared = unsafe { &*shared.cast() };
    shared.begun.store(true, Ordering::Release);
    // SAFETY: pointers for both results.
    let result = unsafe { (shared.verbs.get_cq_event)(shared.end.channel, &raw mut cq, &raw mut context) };
    shared.set_result(result);
    null_mut()
}

unsafe extern "C-unwind" fn wait_for_async_event(shared: *mut c_void) -> *mut c_void {
    let mut event = MaybeUninit::<AsyncEvent>::uninit();
    // SAFETY: as it was started; the context is open.
    let shared: &Shared = unsafe { &*shared.cast() };
    shared.begun.store(true, Ordering::Release);
    // SAFETY: room for the event.
    let result = unsafe { (shared.verbs.get_async_event)(shared.end.context, event.as_mut_ptr()) };
    shared.set_result(result);
    null_mut()
}

/// Works until it is cancelled, wherever that happens.
unsafe extern "C-unwind" fn work(shared: *mut c_void) -> *mut c_void {
    // SAFETY: as it was started.
    let shared: &Shared = unsafe { &*shared.cast() };
    loop {
        let number = shared.exchanges.load(Ordering::Relaxed);
        shared.end.arm();
        shared.end.exchange(number);
        shared.exchanges.store(number + 1, Ordering::Release);
        shared.begun.store(true, Ordering::Release);
        // SAFETY: nothing here needs to be cleaned up.
        unsafe { pthread_testcancel() };
    }
}

type Start = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

#[test]
fn thread_that_waits_can_be_cancelled() {
    for start in [wait_for_completion as Start, wait_for_async_event] {
        let shared = Shared::new();
        for _ in 0..5 {
            shared.begun.store(false, Ordering::Release);
            shared.end.arm();
            // SAFETY: joined before the box is dropped.
            let thread = unsafe { Thread::start(start, &*shared) };
            shared.wait_for_begin();
            thread.cancel();
            assert!(thread.join(), "it returned: {:?}", (&shared.result, &shared.error));
            shared.check_channel();
        }
        shared.end.destroy();
    }
}

#[test]
fn thread_that_works_is_cancelled_between_verbs() {
    let shared = Shared::new();
    for round in 0..100 {
        shared.begun.store(false, Ordering::Release);
        // SAFETY: joined before the box is dropped.
        let thread = unsafe { Thread::start(work, &*shared) };
        while !shared.begun.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(37 * round));
        thread.cancel();
        assert!(thread.join());
    }
    // Events of the last round, which no thread took.
    while library::is_readable(shared.end.fd(), Duration::ZERO) {
        assert_eq!(shared.end.get_event(), 0);
    }
    shared.check_channel();
    shared.end.destroy();
}

extern "C" fn nothing(_: c_int) {}

fn handle(signal: c_int, flags: c_int) {
    // SAFETY: zero is valid for its numbers; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (nothing as *const () as usize, flags);
        assert_eq!(libc::sigaction(signal, &raw const action, null_mut()), 0);
    }
}

/// Serializes the tests that install handlers, which belong to the process.
static HANDLERS: Mutex<()> = Mutex::new(());

#[test]
fn only_handlers_without_sa_restart_end_a_wait() {
    let _handlers = HANDLERS.lock().unwrap_or_else(PoisonError::into_inner);
    handle(libc::SIGUSR1, libc::SA_RESTART);
    for start in [wait_for_completion as Start, wait_for_async_event] {
        let shared = Shared::new();
        shared.end.arm();
        // SAFETY: joined before the box is dropped.
        let thread = unsafe { Thread::start(start, &*shared) };
        shared.wait_for_begin();
        for _ in 0..3 {
            thread.signal(libc::SIGUSR1);
            std::thread::sleep(Duration::from_millis(10));
            assert_eq!(shared.result.load(Ordering::Acquire), 1, "it continues to wait");
        }
        handle(libc::SIGUSR2, 0);
        thread.signal(libc::SIGUSR2);
        assert!(!thread.join());
        let results = (shared.result.load(Ordering::Acquire), shared.error.load(Ordering::Relaxed));
        assert_eq!(results, (-1, libc::EINTR));
        shared.check_channel();
        handle(libc::SIGUSR2, libc::SA_RESTART);
        shared.end.destroy();
    }
}

/// A signal that arrives while an event is pending does not consume it.
#[test]
fn no_event_is_lost_to_a_signal() {
    let _handlers = HANDLERS.lock().unwrap_or_else(PoisonError::into_inner);
    handle(libc::SIGUSR1, libc::SA_RESTART);
    let shared = Shared::new();
    for number in 0..200 {
        shared.begun.store(false, Ordering::Release);
        shared.result.store(1, Ordering::Release);
        shared.end.arm();
        shared.end.post_recv(number);
        // SAFETY: joined before the box is dropped.
        let thread = unsafe { Thread::start(wait_for_completion, &*shared) };
        while !shared.begun.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        shared.end.post_send(number, SIGNALED);
        thread.signal(libc::SIGUSR1);
        assert!(!thread.join());
        assert_eq!(shared.result.load(Ordering::Acquire), 0, "{}", shared.error.load(Ordering::Relaxed));
        // SAFETY: an event of this queue was given.
        unsafe { (shared.verbs.ack_cq_events)(shared.end.cq, 1) };
        shared.end.complete();
        shared.end.complete();
    }
    shared.end.destroy();
}
