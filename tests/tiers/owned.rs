//! The owned tier over loopback: buffers move into requests and come back in every case.

use std::time::Duration;

use rdma_verbs::owned::{
    Buffer, BufferPool, CompletionQueue, FileBuffer, Finished, QueuePair, QueuePairOptions, Request, RequestBuffer,
};
use rdma_verbs::verbs::{
    self, Cause, CompletionError, CompletionOpcode, CompletionQueueOptions, CompletionStatus, ConnectOptions, Context,
    ErrorKind, MemoryRegion, Notify, ProtectionDomain, QueuePairAttributes, QueuePairState, RemoteMemory, Rkey,
};
use support::{ALL_ACCESS, PATIENCE};

pub(super) struct End {
    pub(super) context: Context,
    pub(super) pd: ProtectionDomain,
    pub(super) cq: CompletionQueue,
    pub(super) pool: BufferPool,
    pub(super) qp: QueuePair,
}

impl End {
    pub(super) fn open(address: &str, options: &QueuePairOptions) -> End {
        let context = verbs::open(&format!("soft:{address}")).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = CompletionQueue::new(&context, 256).unwrap();
        let pool = BufferPool::new(&pd, 16 << 20).unwrap();
        let qp = QueuePair::with_options(&pd, &cq, &cq, options).unwrap();
        End { context, pd, cq, pool, qp }
    }

    pub(super) fn send(&self, wr_id: u64, bytes: &[u8]) -> Request {
        Request::send(self.pool.copy_from(bytes).unwrap()).wr_id(wr_id)
    }

    pub(super) fn post(&self, request: Request) {
        self.qp.post_send(request).unwrap();
    }

    pub(super) fn receive(&self, wr_id: u64, len: usize) {
        self.qp.post_recv(self.pool.take(len).unwrap(), wr_id).unwrap();
    }

    #[track_caller]
    pub(super) fn next(&self) -> Finished {
        self.cq.wait(PATIENCE).unwrap()
    }

    #[track_caller]
    pub(super) fn succeeds(&self, wr_id: u64) -> Buffer {
        let finished = self.next();
        assert_eq!(finished.wr_id(), wr_id, "{finished:?}");
        finished.into_buffer().unwrap()
    }

    #[track_caller]
    pub(super) fn fails(&self, wr_id: u64, status: CompletionStatus) -> RequestBuffer {
        let finished = self.next();
        let failure = finished.result().expect_err("a failure");
        assert_eq!((finished.wr_id(), failure.status), (wr_id, status), "{}", self.qp.explain(&failure));
        assert_eq!((failure.wr_id, failure.qpn), (wr_id, self.qp.qpn()));
        finished.into_request_buffer()
    }

    fn region(&self, len: usize) -> (MemoryRegion, RemoteMemory) {
        let region = self.pd.alloc_mr(len, ALL_ACCESS).unwrap();
        let remote = region.remote();
        (region, remote)
    }

    pub(super) fn outstanding(&self) -> usize {
        self.pool.stats().outstanding
    }
}

/// Two connected ends on 127.90.1.`first` and the following address.
fn pair(first: u8) -> (End, End) {
    pair_with(first, &ConnectOptions::default(), &QueuePairOptions::default())
}

fn pair_with(first: u8, connect: &ConnectOptions, options: &QueuePairOptions) -> (End, End) {
    let [left, right] = [first, first + 1].map(|host| End::open(&format!("127.90.1.{host}"), options));
    let (left_info, right_info) = (left.qp.connection_info().unwrap(), right.qp.connection_info().unwrap());
    left.qp.connect_with(&right_info, connect).unwrap();
    right.qp.connect_with(&left_info, connect).unwrap();
    (left, right)
}

#[test]
fn every_operation_moves_its_buffer_and_gives_it_back() {
    let (a, b) = pair(1);
    let (region, remote) = b.region(4096);
    for id in 0..4 {
        b.receive(id, 100);
    }
    a.post(a.send(1, b"plain").signaled());
    let with = Request::send_with_immediate(a.pool.copy_from(b"carries").unwrap(), 77).wr_id(2).signaled().solicited();
    a.post(with);
    let victim = b.pd.alloc_mr(64, ALL_ACCESS).unwrap();
    a.post(Request::write_with_immediate(a.pool.copy_from(b"written").unwrap(), remote, 78).wr_id(3).signaled());
    for (id, text) in [(1, &b"plain"[..]), (2, b"carries"), (3, b"written")] {
        assert_eq!(*a.succeeds(id), *text, "the sender's bytes are as they were");
    }
    assert_eq!(*b.succeeds(0), *b"plain");
    let carried = b.next();
    assert_eq!(carried.result().unwrap().unwrap().immediate, Some(77));
    assert_eq!(*carried.into_buffer().unwrap(), *b"carries");
    let written = b.next();
    assert!(written.is_receive());
    assert_eq!(written.result().unwrap().unwrap().opcode, CompletionOpcode::ReceiveWriteWithImmediate);
    assert!(written.into_buffer().unwrap().is_empty(), "the bytes went elsewhere");
    assert_eq!(region.to_vec(..7).unwrap(), b"written");
    drop(victim);

    region.store_release_u64(64, 40).unwrap();
    let word = remote.slice(64..72).unwrap();
    a.post(Request::read(a.pool.take(7).unwrap(), remote.slice(..7).unwrap()).wr_id(4).signaled());
    a.post(Request::fetch_and_add(a.pool.take(8).unwrap(), word, 2).wr_id(5).fence().signaled());
    a.post(Request::compare_and_swap(a.pool.take(8).unwrap(), word, 42, 50).wr_id(6).signaled());
    assert_eq!(*a.succeeds(4), *b"written");
    assert_eq!(a.succeeds(5).to_u64(), Some(40));
    assert_eq!(a.succeeds(6).to_u64(), Some(42));
    assert_eq!(region.load_acquire_u64(64).unwrap(), 50);
    a.post(Request::write(a.pool.copy_from(&[9; 3000]).unwrap(), remote).wr_id(7).signaled());
    assert_eq!(*a.succeeds(7), [9; 3000]);
    assert_eq!(region.to_vec(..3000).unwrap(), [9; 3000]);
    assert_eq!((a.outstanding(), b.outstanding()), (0, 1));
}

#[test]
fn moved_in_memory_comes_back_with_its_content() {
    let (a, b) = pair(3);
    let vector = Vec::from_iter(0..200u8);
    let address = vector.as_ptr();
    a.post(Request::send(Buffer::from_vec(&a.pd, vector).unwrap()).signaled());
    b.qp.post_recv(Buffer::from_boxed_slice(&b.pd, vec![0; 300].into()).unwrap(), 1).unwrap();
    let returned = a.succeeds(0).into_vec().unwrap();
    assert_eq!((returned.as_ptr(), returned.len()), (address, 200));
    assert_eq!(b.succeeds(1).into_vec().unwrap(), Vec::from_iter(0..200u8));
    assert_eq!(a.pool.copy_from(b"copied").unwrap().into_vec().unwrap(), b"copied");
    assert_eq!(a.outstanding(), 0);

    let refused = Buffer::from_vec(&a.pd, Vec::with_capacity(10)).unwrap_err();
    assert_eq!((refused.error.kind(), refused.given.capacity()), (ErrorKind::InvalidArgument, 10));
}

#[test]
fn files_are_sent_and_received_into() {
    let (a, b) = pair(5);
    let path = std::env::temp_dir().join(format!("rdma-verbs-owned-{}", std::process::id()));
    let file = std::fs::File::create_new(&path).unwrap();
    file.set_len(64).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    b.qp.post_recv(FileBuffer::map(&b.pd, &file, 0, 64, true).unwrap(), 1).unwrap();
    a.post(a.send(2, b"into the file").signaled());
    a.succeeds(2);
    let received = b.next().into_request_buffer().into_file().unwrap();
    assert_eq!((received.len(), received.capacity()), (13, 64));
    drop(received);
    assert!(std::fs::read(&path).unwrap().starts_with(b"into the file\0"));

    a.receive(3, 64);
    let mut source = FileBuffer::map(&b.pd, &file, 5, 8, false).unwrap();
    assert!(source.write_at(0, b"x").is_err(), "it is mapped to read only");
    source.set_len(3);
    b.post(Request::send(source).wr_id(4).signaled());
    assert_eq!(*a.succeeds(3), *b"the");
    let finished = b.next();
    assert!(finished.request_buffer().capacity() == 8 && !finished.is_receive());
    assert!(finished.into_buffer().is_err(), "a file has no slices");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn one_signaled_completion_brings_back_all_before_it() {
    let (a, b) = pair(7);
    let (_region, remote) = b.region(4096);
    for round in 0..20 {
        for id in 0..10u8 {
            let write = Request::write(a.pool.copy_from(&[id; 16]).unwrap(), remote).wr_id(id.into());
            a.post(if id == 9 { write.signaled() } else { write });
        }
        assert_eq!(a.outstanding(), 10, "round {round}");
        for id in 0..10u8 {
            let finished = a.next();
            assert_eq!((finished.wr_id(), finished.completion().is_some()), (id.into(), id == 9));
            assert_eq!(*finished.into_buffer().unwrap(), [id; 16]);
        }
        assert_eq!((a.outstanding(), a.qp.buffers_in_flight()), (0, (0, 0)));
    }
    assert!(a.cq.poll().unwrap().is_none());
}

#[test]
fn unsignaled_reads_are_filled_when_they_come_back() {
    let (a, b) = pair(9);
    let (region, remote) = b.region(64);
    region.write_at(0, b"remote bytes").unwrap();
    a.post(Request::read(a.pool.take(64).unwrap(), remote.slice(..12).unwrap()).wr_id(1));
    a.post(Request::write(a.pool.copy_from(b"x").unwrap(), remote).fence().signaled().wr_id(2));
    assert_eq!(*a.succeeds(1), *b"remote bytes");
    a.succeeds(2);
}

#[test]
fn errors_and_flushes_return_buffers_in_order() {
    let (a, b) = pair(11);
    let (_region, remote) = b.region(64);
    let nothing = RemoteMemory::new(remote.addr(), Rkey(remote.rkey().0 ^ 1), 64);
    for id in 10..13 {
        a.receive(id, 64);
    }
    a.post(Request::write(a.pool.copy_from(b"good").unwrap(), remote).wr_id(1));
    a.post(Request::write(a.pool.copy_from(b"bad").unwrap(), nothing).wr_id(2));
    let _ = a.qp.post_send(Request::read(a.pool.take(8).unwrap(), remote.slice(..8).unwrap()).wr_id(3));
    let _ = a.qp.post_send(a.send(4, b"behind"));
    assert_eq!(*a.succeeds(1), *b"good", "it was done before the failure");
    let buffer = a.fails(2, CompletionStatus::RemoteAccessError);
    assert_eq!(*buffer.into_buffer().unwrap(), *b"bad");
    // Each queue in its order. A request that is posted after the failure is flushed later than the receives before it.
    let mut flushed: Vec<_> = (0..5).map(|_| a.next()).collect();
    flushed.sort_by_key(|finished| finished.wr_id() >= 10);
    let is_flush = |failure: CompletionError| failure.status == CompletionStatus::WorkRequestFlushedError;
    assert!(flushed.iter().all(|finished| finished.result().is_err_and(is_flush)), "{flushed:?}");
    let lengths = flushed.into_iter().map(|finished| (finished.wr_id(), finished.into_request_buffer().len()));
    // Nothing was read, nothing arrived.
    assert_eq!(lengths.collect::<Vec<_>>(), [(3, 0), (4, 6), (10, 0), (11, 0), (12, 0)]);
    assert_eq!(a.qp.state().unwrap(), QueuePairState::Error);
    a.receive(14, 64);
    a.fails(14, CompletionStatus::WorkRequestFlushedError);
    assert_eq!((a.outstanding(), a.qp.buffers_in_flight()), (0, (0, 0)));
}

#[test]
fn a_receive_that_is_too_small_comes_back_empty() {
    let (a, b) = pair(13);
    b.receive(1, 64);
    a.post(a.send(2, &[1; 65]));
    assert!(b.fails(1, CompletionStatus::LocalLengthError).is_empty());
    a.fails(2, CompletionStatus::RemoteInvalidRequestError);
}

#[test]
fn refused_requests_return_their_buffers_at_once() {
    let (a, b) = pair_with(15, &ConnectOptions::default(), &QueuePairOptions::default().max_send_wr(4).max_recv_wr(2));
    let (_region, remote) = b.region(16);
    let too_long = a.qp.post_send(Request::write(a.pool.copy_from(&[1; 17]).unwrap(), remote)).unwrap_err();
    assert_eq!(too_long.error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(too_long.given.into_request_buffer().len(), 17);
    let no_room =
        a.qp.post_send(Request::read(a.pool.take(1).unwrap(), RemoteMemory::new(0, Rkey(1), 65))).unwrap_err();
    assert_eq!(no_room.error.kind(), ErrorKind::InvalidArgument, "{no_room}");
    let other = a.context.alloc_pd().unwrap();
    let foreign = Buffer::from_vec(&other, vec![1]).unwrap();
    let refused = a.qp.post_send(Request::send(foreign)).unwrap_err();
    assert!(refused.to_string().contains("protection domain"), "{refused}");

    (0..2).for_each(|id| a.receive(id, 8));
    let full = a.qp.post_recv(a.pool.take(8).unwrap(), 3).unwrap_err();
    assert_eq!(full.error.kind(), ErrorKind::QueueFull);
    for id in 0..4 {
        a.post(Request::write(a.pool.copy_from(b"w").unwrap(), remote).wr_id(id));
    }
    let full = a.qp.post_send(Request::write(a.pool.copy_from(b"w").unwrap(), remote)).unwrap_err();
    assert_eq!((full.error.kind(), full.error.verb()), (ErrorKind::QueueFull, "post_send"));
    drop((full, too_long.error));
    let reset = QueuePairAttributes::default().qp_state(QueuePairState::Reset);
    assert!(a.qp.modify(&reset).unwrap_err().to_string().contains("reset()"));
    assert_eq!(a.qp.buffers_in_flight(), (4, 2));
}

#[test]
fn reset_returns_held_buffers_and_the_queue_pair_works_again() {
    let (a, b) = pair(17);
    let (region, remote) = b.region(64);
    for round in 0..5u64 {
        // Some are complete but not polled, some unsignaled, some waiting.
        for id in 0..6 {
            let write = Request::write(a.pool.copy_from(&round.to_ne_bytes()).unwrap(), remote).wr_id(id);
            a.post(if id % 2 == 1 { write.signaled() } else { write });
            a.receive(10 + id, 64);
        }
        if round % 2 == 1 {
            assert_eq!(a.next().wr_id(), 0);
        }
        let first = round % 2;
        let returned = a.qp.reset().unwrap();
        let expected: Vec<u64> = (first..6).chain(10..16).collect();
        assert_eq!(returned.iter().map(Finished::wr_id).collect::<Vec<_>>(), expected);
        assert!(returned.iter().all(|finished| finished.result().unwrap_err().cause == Cause::Destroyed));
        assert!(returned[0].request_buffer().len() == 8 && returned.last().unwrap().request_buffer().is_empty());
        drop(returned);
        assert!(a.cq.poll().unwrap().is_none(), "nothing comes twice");
        assert_eq!((a.outstanding(), a.qp.buffers_in_flight()), (0, (0, 0)));

        b.qp.reset().unwrap();
        let (a_info, b_info) = (a.qp.connection_info().unwrap(), b.qp.connection_info().unwrap());
        a.qp.connect(&b_info).unwrap();
        b.qp.connect(&a_info).unwrap();
        a.post(Request::write(a.pool.copy_from(&[round as u8; 8]).unwrap(), remote).wr_id(99).signaled());
        a.succeeds(99);
        assert_eq!(region.to_vec(..8).unwrap(), [round as u8; 8]);
    }
}

#[test]
fn destroying_and_dropping_return_held_buffers() {
    for step in 0..6 {
        let (a, b) = pair(19);
        let End { cq, pool, qp, pd, .. } = a;
        let (_region, remote) = b.region(1 << 20);
        for id in 0..8 {
            let mut buffer = pool.take(1 << 20).unwrap();
            buffer.set_len(1 << 20);
            qp.post_send(Request::write(buffer, remote).wr_id(id)).unwrap();
            qp.post_recv(pool.take(64).unwrap(), id).unwrap();
        }
        let moved = Buffer::from_vec(&pd, vec![5; 100]).unwrap();
        qp.post_send(Request::write(moved, remote).wr_id(8)).unwrap();
        match step % 3 {
            0 => assert_eq!(qp.destroy().unwrap().len(), 17),
            1 => drop(qp),
            // The buffers come back in every order of dropping.
            _ => {
                drop((cq.clone(), pd));
                drop(qp);
            }
        }
        assert_eq!(pool.stats().outstanding, 0);
        assert!(cq.poll().unwrap().is_none());
    }
}

#[test]
fn a_forgotten_queue_pair_leaks_and_frees_nothing() {
    let (a, b) = pair(21);
    let (_region, remote) = b.region(64);
    a.receive(1, 64);
    a.post(Request::write(a.pool.copy_from(b"w").unwrap(), remote).wr_id(2).signaled());
    a.succeeds(2);
    std::mem::forget(a.qp);
    assert_eq!(a.pool.stats().outstanding, 1);
    // The peer may still send into it.
    b.post(b.send(3, b"hello").signaled());
    b.succeeds(3);
    assert_eq!(*a.cq.wait(PATIENCE).unwrap().into_buffer().unwrap(), *b"hello");
}

#[test]
fn a_panic_between_post_and_completion_loses_nothing() {
    let (a, b) = pair(23);
    let (_region, remote) = b.region(64);
    let panicked = std::thread::scope(|scope| {
        let work = || {
            a.receive(1, 64);
            a.post(Request::write(a.pool.copy_from(b"w").unwrap(), remote).wr_id(2).signaled());
            std::panic::resume_unwind(Box::new("in the middle"));
        };
        scope.spawn(work).join()
    });
    assert!(panicked.is_err());
    a.succeeds(2);
    b.post(b.send(3, b"later").signaled());
    assert_eq!(*a.succeeds(1), *b"later");
    assert_eq!(a.outstanding(), 0);
}

#[test]
fn a_pool_stays_within_its_bound_and_reuses_idle_buffers() {
    let pd = verbs::open("soft:127.90.1.25").unwrap().alloc_pd().unwrap();
    let pool = BufferPool::new(&pd, 256 << 10).unwrap();
    let small: Vec<Buffer> = (0..1024).map(|_| pool.take(64).unwrap()).collect();
    assert_eq!((pool.stats().registered_bytes, pool.stats().outstanding), (64 << 10, 1024));
    let large: Vec<Buffer> = (0..3).map(|_| pool.take(60_000).unwrap()).collect();
    let error = pool.take(65).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceLimit);
    assert!(error.to_string().contains("262144 are registered"), "{error}");
    drop(large);
    let medium: Vec<Buffer> = (0..48).map(|_| pool.take(4000).unwrap()).collect();
    assert_eq!(pool.take(4000).unwrap_err().kind(), ErrorKind::ResourceLimit);
    drop(small);
    let last = pool.take(4096).unwrap();
    let stats = pool.stats();
    assert!(stats.registered_bytes <= 256 << 10, "{stats:?}");
    assert_eq!((stats.outstanding, stats.taken - stats.returned), (49, 49));
    // Buffers are disjoint, and each keeps its bytes.
    let mut medium = medium;
    medium.iter_mut().enumerate().for_each(|(index, buffer)| buffer.extend_from_slice(&[index as u8; 4000]));
    assert!(medium.iter().enumerate().all(|(index, buffer)| **buffer == [index as u8; 4000]));
    drop(pool);
    drop((medium, last));
    let pool = BufferPool::new(&pd, 0).unwrap();
    assert_eq!(pool.take(0).unwrap_err().kind(), ErrorKind::ResourceLimit);
    assert_eq!(pool.take((1 << 31) + 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn threads_share_a_pool_a_queue_pair_and_a_completion_queue() {
    let (a, b) = pair_with(27, &ConnectOptions::default(), &QueuePairOptions::default().max_send_wr(32));
    let (_region, remote) = b.region(64);
    const EACH: u64 = 400;
    let done = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for id in 0..EACH {
                    let mut request = Request::write(a.pool.copy_from(b"bytes").unwrap(), remote).wr_id(id).signaled();
                    while let Err(refused) = a.qp.post_send(request) {
                        assert_eq!(refused.error.kind(), ErrorKind::QueueFull, "{refused}");
                        request = refused.given;
                        std::thread::yield_now();
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while done.load(std::sync::atomic::Ordering::Relaxed) < 3 * EACH {
                    if let Some(finished) = a.cq.poll().unwrap() {
                        assert_eq!(*finished.into_buffer().unwrap(), *b"bytes");
                        done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(a.outstanding(), 0);
}

/// Stops the other threads, even if this one panics.
struct Stops<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn resets_and_posts_of_several_threads_lose_no_buffer() {
    let (a, b) = pair(29);
    let (_region, remote) = b.region(64);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = a.qp.post_send(Request::write(a.pool.copy_from(b"bytes").unwrap(), remote).signaled());
                    let _ = a.qp.post_recv(a.pool.take(8).unwrap(), 1);
                    let _ = a.cq.poll().unwrap();
                }
            });
        }
        let _stops = Stops(&stop);
        for _ in 0..30 {
            a.qp.reset().unwrap();
            b.qp.reset().unwrap();
            let (a_info, b_info) = (a.qp.connection_info().unwrap(), b.qp.connection_info().unwrap());
            a.qp.connect(&b_info).unwrap();
            b.qp.connect(&a_info).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    a.qp.reset().unwrap();
    while a.cq.poll().unwrap().is_some() {}
    assert_eq!((a.outstanding(), a.qp.buffers_in_flight()), (0, (0, 0)));
}

#[test]
fn peers_cannot_reach_buffers() {
    let (a, b) = pair(31);
    let buffer = Buffer::from_vec(&b.pd, vec![1; 64]).unwrap();
    let address = buffer.as_ptr().addr() as u64;
    // Even a peer that knew the address would have to guess the key; and no key of a buffer grants any access.
    for key in [0, 1, 0x100, u32::MAX] {
        let _ = a.qp.post_send(
            Request::write(a.pool.copy_from(b"overwritten").unwrap(), RemoteMemory::new(address, Rkey(key), 64))
                .signaled(),
        );
        let finished = a.next();
        assert!(finished.result().is_err());
    }
    assert_eq!(*buffer, [1; 64]);
}

#[test]
fn a_channel_reports_completions() {
    let (context, pd) = {
        let context = verbs::open("soft:127.90.1.33").unwrap();
        let pd = context.alloc_pd().unwrap();
        (context, pd)
    };
    let channel = context.create_comp_channel().unwrap();
    let cq =
        CompletionQueue::with_options(&context, 16, &CompletionQueueOptions::default().channel(&channel, 5)).unwrap();
    let qp = QueuePair::new(&pd, &cq, &cq).unwrap();
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    let pool = BufferPool::new(&pd, 1 << 20).unwrap();
    cq.req_notify(Notify::Any).unwrap();
    assert!(cq.poll().unwrap().is_none());
    qp.post_recv(pool.take(8).unwrap(), 1).unwrap();
    qp.post_send(Request::send(pool.copy_from(b"x").unwrap())).unwrap();
    assert_eq!(channel.wait_event(PATIENCE).unwrap(), 5);
    assert_eq!(cq.wait(PATIENCE).unwrap().wr_id(), 1);
}

#[test]
fn devices_of_unknown_providers_get_no_buffers() {
    // A device opened at the provider tier may be of any implementation, so its claims about memory are not trusted.
    let soft = rdma_verbs::provider::providers()[0].open("soft:127.90.1.34").unwrap();
    let context = Context::from(soft);
    let pd = context.alloc_pd().unwrap();
    assert_eq!(BufferPool::new(&pd, 1 << 20).unwrap_err().kind(), ErrorKind::Unsupported);
    let refused = Buffer::from_vec(&pd, vec![1, 2]).unwrap_err();
    assert_eq!((refused.error.kind(), refused.given), (ErrorKind::Unsupported, vec![1, 2]));
    let cq = CompletionQueue::new(&context, 16).unwrap();
    assert_eq!(QueuePair::new(&pd, &cq, &cq).unwrap_err().kind(), ErrorKind::Unsupported);
}
