//! A process forks while its engine is busy: the child's copies of objects return errors, the child may open the same
//! device again, and the parent is not disturbed.
//!
//! It needs a process of its own, because a fork copies the locks of all threads but not the threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdma_verbs::owned::{self, Buffer, BufferPool, PoolStats, Request};
use rdma_verbs::verbs::{
    self, AccessFlags, Completion, CompletionQueue, Context, Error, ErrorKind, Notify, Payload, QueuePair,
    QueuePairAttributes, QueuePairOptions, ReceiveRequest, SendRequest,
};
use support::PATIENCE;
use support::process::alone;

const DEVICE: &str = "soft:127.94.0.1";

struct End {
    cq: CompletionQueue,
    qp: QueuePair,
    inbox: verbs::MemoryRegion,
}

fn end(context: &Context) -> End {
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let qp = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().max_inline_data(8).sq_sig_all()).unwrap();
    qp.init().unwrap();
    let inbox = pd.alloc_mr(8, AccessFlags::LOCAL_WRITE).unwrap();
    End { cq, qp, inbox }
}

/// Sends a number to itself.
fn exchange(end: &End, number: u64) {
    end.qp.post_recv(&[ReceiveRequest::new(&end.inbox)]).unwrap();
    end.qp.post_send(&[SendRequest::send(Payload::inline(&number.to_le_bytes()))]).unwrap();
    for _ in 0..2 {
        end.cq.wait(PATIENCE).unwrap().result().unwrap();
    }
    assert_eq!(end.inbox.to_vec(..).unwrap(), number.to_le_bytes());
}

/// The owned tier's objects; another thread holds one of their locks nearly all the time.
#[derive(Clone)]
struct Owned {
    cq: owned::CompletionQueue,
    qp: Arc<owned::QueuePair>,
    pool: BufferPool,
}

impl Owned {
    fn new(context: &Context) -> Self {
        let (pd, cq) = (context.alloc_pd().unwrap(), owned::CompletionQueue::new(context, 64).unwrap());
        let qp = owned::QueuePair::new(&pd, &cq, &cq).unwrap();
        qp.connect(&qp.connection_info().unwrap()).unwrap();
        Self { pool: BufferPool::new(&pd, 1 << 20).unwrap(), qp: Arc::new(qp), cq }
    }

    /// Sends a message to itself.
    fn exchange(&self) {
        self.qp.post_recv(self.pool.take(64).unwrap(), 1).unwrap();
        self.qp.post_send(Request::send(self.pool.copy_from(b"message").unwrap()).signaled()).unwrap();
        for _ in 0..2 {
            assert_eq!(*self.cq.wait(PATIENCE).unwrap().into_buffer().unwrap(), *b"message");
        }
    }

    /// Checks the copies in a child, with a buffer that the parent held. A lock held during the fork would block the
    /// child forever.
    fn check_copies(self, buffer: Buffer) -> bool {
        let buffer = match self.qp.post_send(Request::send(buffer)) {
            Err(refused) if refused.error.to_string().contains("forked") => {
                refused.given.into_request_buffer().into_buffer()
            }
            _ => None,
        };
        let checks = [
            buffer.is_some_and(|buffer| *buffer == *b"in hand"),
            is_refused(self.pool.take(64)),
            is_refused(self.cq.poll()),
            is_refused(self.qp.reset()),
            is_refused(self.qp.query()),
            self.qp.buffers_in_flight() == (0, 0),
            self.pool.stats() == PoolStats::default(),
        ];
        checks == [true; 7]
    }
}

fn is_refused<T>(result: Result<T, Error>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::InvalidState && error.to_string().contains("forked"))
}

/// Checks the parent's objects in the child. The error is the number of the first failed check.
fn check_copies(context: Context, copy: End) -> Result<(), i32> {
    let End { cq, qp, inbox } = copy;
    let checks = [
        is_refused(context.alloc_pd()),
        is_refused(context.create_cq(1)),
        is_refused(context.create_comp_channel()),
        is_refused(context.query_port(1)),
        is_refused(cq.poll(&mut [Completion::default()])),
        is_refused(cq.resize(128)),
        cq.req_notify(Notify::Any).is_err(),
        is_refused(qp.post_send(&[SendRequest::send(Payload::inline(&[1]))])),
        is_refused(qp.post_recv(&[ReceiveRequest::new(&inbox)])),
        is_refused(qp.modify(&QueuePairAttributes::default())),
        is_refused(qp.query()),
        is_refused(qp.protection_domain().alloc_mr(1, AccessFlags::empty())),
        context.poll_async_event().is_none(),
    ];
    match checks.iter().position(|passed| !passed) {
        Some(index) => Err(10 + index as i32),
        // They are dropped here: this must neither block nor affect the parent.
        None => Ok(()),
    }
}

fn child(context: Context, copy: End, (owned, buffer): (Owned, Buffer)) -> i32 {
    if !owned.check_copies(buffer) {
        return 5;
    }
    if let Err(code) = check_copies(context, copy) {
        return code;
    }
    let Ok(context) = verbs::open(DEVICE) else { return 2 };
    let own = end(&context);
    let Ok(info) = own.qp.connection_info() else { return 3 };
    if own.qp.connect(&info).is_err() {
        return 4;
    }
    (0..50).for_each(|number| exchange(&own, number));
    0
}

#[test]
fn child_opens_devices_again_and_the_parent_continues() {
    alone(|| {
        let context = verbs::open(DEVICE).unwrap();
        let (busy, copy) = (end(&context), end(&context));
        busy.qp.connect(&busy.qp.connection_info().unwrap()).unwrap();
        copy.qp.connect(&copy.qp.connection_info().unwrap()).unwrap();
        let (stop, exchanges) = (AtomicBool::new(false), AtomicU64::new(0));
        let owned = Owned::new(&context);
        std::thread::scope(|scope| {
            let mut owned_copies = Some((owned.clone(), owned.pool.copy_from(b"in hand").unwrap()));
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    owned.exchange();
                }
            });
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    exchange(&busy, exchanges.fetch_add(1, Ordering::Relaxed));
                }
            });
            let mut copies = Some((context, copy));
            for round in 0..20 {
                std::thread::sleep(Duration::from_millis(3));
                // SAFETY: the child does not use state that other threads of the parent may hold: it calls this
                // library, which handles forks, and the C library's allocator, which is fork-safe. It ends without
                // unwinding.
                let process = unsafe { libc::fork() };
                assert!(process >= 0);
                if process == 0 {
                    let (context, copy) = copies.take().expect("taken in this child only");
                    let owned = owned_copies.take().expect("taken in this child only");
                    let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| child(context, copy, owned)));
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(code.unwrap_or(1)) };
                }
                assert_eq!(exit_code(process), Some(0), "in round {round}");
            }
            let before = exchanges.load(Ordering::Relaxed);
            let end = Instant::now() + PATIENCE;
            while exchanges.load(Ordering::Relaxed) < before + 100 {
                assert!(Instant::now() < end, "the parent's traffic has stopped");
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

/// Waits for a child; `None` if it did not end in time, or was killed by a signal.
fn exit_code(process: libc::pid_t) -> Option<i32> {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut status = 0;
        // SAFETY: the status is a live local variable.
        let ended = unsafe { libc::waitpid(process, &raw mut status, libc::WNOHANG) };
        if ended == process {
            return libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        }
        if Instant::now() >= end {
            // SAFETY: a process that this one started and has not waited for.
            unsafe { libc::kill(process, libc::SIGKILL) };
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
