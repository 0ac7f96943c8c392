//! Several requests with one doorbell in the owned tier: in order, up to the first that is refused.

use std::time::Instant;

use rdma_verbs::owned::{Finished, PartlyPosted, QueuePairOptions, Request};
use rdma_verbs::verbs::{AddressVector, Cause, Error, ErrorKind, MemoryRegion, Qkey, QueuePairType, RemoteMemory};
use support::{ALL_ACCESS, PATIENCE};

use super::owned::End;

/// An end on 127.90.8.`host` that is its own peer, and memory that it may write.
fn end(host: u8, options: &QueuePairOptions) -> (End, MemoryRegion) {
    let end = End::open(&format!("127.90.8.{host}"), options);
    end.qp.connect(&end.qp.connection_info().unwrap()).unwrap();
    let region = end.pd.alloc_mr(4096, ALL_ACCESS).unwrap();
    (end, region)
}

/// WRITEs of 8 bytes, each its number; the last one is signaled.
fn writes(end: &End, remote: RemoteMemory, wr_ids: std::ops::Range<u64>) -> Vec<Request> {
    let last = wr_ids.end - 1;
    let write = |wr_id: u64| {
        let buffer = end.pool.copy_from(&wr_id.to_ne_bytes()).unwrap();
        let request = Request::write(buffer, remote.slice(wr_id as usize * 8..).unwrap()).wr_id(wr_id);
        if wr_id == last { request.signaled() } else { request }
    };
    wr_ids.map(write).collect()
}

/// Returns the first number in each request's buffer.
fn contents(requests: Vec<Request>) -> Vec<u64> {
    let number = |request: Request| request.into_request_buffer().into_buffer().unwrap().to_u64().unwrap();
    requests.into_iter().map(number).collect()
}

#[test]
fn all_are_posted_in_order_and_come_back_in_order() {
    let (end, region) = end(1, &QueuePairOptions::default());
    end.qp.post_send_all(&mut Vec::new()).unwrap();
    for _ in 0..10 {
        let mut requests = writes(&end, region.remote(), 0..32);
        end.qp.post_send_all(&mut requests).unwrap();
        assert!(requests.is_empty());
        (0..32).for_each(|wr_id| assert_eq!(end.succeeds(wr_id).to_u64(), Some(wr_id)));
        assert_eq!((end.qp.buffers_in_flight(), end.outstanding()), ((0, 0), 0));
    }
    assert!((0..32).all(|wr_id| region.load_acquire_u64(wr_id as usize * 8).unwrap() == wr_id));
}

#[test]
fn a_full_queue_takes_as_many_as_fit() {
    let (end, region) = end(2, &QueuePairOptions::default().max_send_wr(8));
    let room = u64::from(end.qp.cap().max_send_wr);
    let requests = writes(&end, region.remote(), 0..2 * room + 3);
    let mut requests: Vec<Request> = requests.into_iter().map(Request::signaled).collect();
    let mut expected = 0..2 * room + 3;
    for left in [room + 3, 3] {
        let PartlyPosted { accepted, error, .. } = end.qp.post_send_all(&mut requests).unwrap_err();
        assert_eq!((accepted as u64, error.kind(), requests.len() as u64), (room, ErrorKind::QueueFull, left));
        let nothing = end.qp.post_send_all(&mut requests).unwrap_err();
        assert_eq!((nothing.accepted, requests.len() as u64), (0, left));
        expected.by_ref().take(room as usize).for_each(|wr_id| assert_eq!(end.succeeds(wr_id).to_u64(), Some(wr_id)));
    }
    end.qp.post_send_all(&mut requests).unwrap();
    expected.for_each(|wr_id| assert_eq!(end.succeeds(wr_id).to_u64(), Some(wr_id)));
    assert_eq!(end.outstanding(), 0);
}

#[test]
fn the_first_refused_request_and_those_behind_it_stay_with_their_buffers() {
    let (end, region) = end(3, &QueuePairOptions::default());
    for wrong in 0..4 {
        let mut requests = writes(&end, region.remote(), 0..4);
        let misaligned = region.remote().slice(4..).unwrap();
        let buffer = end.pool.copy_from(&100u64.to_ne_bytes()).unwrap();
        requests.insert(wrong, Request::atomic_write(buffer, misaligned).wr_id(100));
        let partly = end.qp.post_send_all(&mut requests).unwrap_err();
        assert_eq!((partly.accepted, partly.error.kind()), (wrong, ErrorKind::InvalidArgument), "{partly}");
        assert!(partly.to_string().contains("multiple of 8"), "{partly}");
        assert_eq!(end.qp.buffers_in_flight().0, wrong);
        let refused = requests.remove(0);
        assert_eq!(contents(vec![refused]), [100]);
        end.qp.post_send_all(&mut requests).unwrap();
        (0..4).for_each(|wr_id| assert_eq!(end.succeeds(wr_id).to_u64(), Some(wr_id)));
        assert_eq!(end.outstanding(), 0);
    }
}

#[test]
fn nothing_is_posted_in_a_wrong_state() {
    let (end, region) = end(4, &QueuePairOptions::default());
    end.qp.reset().unwrap();
    let mut requests = writes(&end, region.remote(), 0..4);
    let partly = end.qp.post_send_all(&mut requests).unwrap_err();
    assert_eq!((partly.accepted, partly.error.kind()), (0, ErrorKind::InvalidState));
    assert_eq!(Error::from(partly).verb(), "post_send");
    assert_eq!(contents(requests), [0, 1, 2, 3]);
    assert_eq!((end.qp.buffers_in_flight(), end.outstanding()), ((0, 0), 0));
    end.qp.connect(&end.qp.connection_info().unwrap()).unwrap();
    let mut requests = writes(&end, region.remote(), 0..4);
    end.qp.post_send_all(&mut requests).unwrap();
    (0..4).for_each(|wr_id| assert_eq!(end.succeeds(wr_id).to_u64(), Some(wr_id)));
}

#[test]
fn reset_returns_a_posted_batch() {
    let (end, region) = end(5, &QueuePairOptions::default());
    // A message without a receive waits, and the others behind it.
    end.post(end.send(50, b"waits"));
    let mut requests = writes(&end, region.remote(), 0..4);
    end.qp.post_send_all(&mut requests).unwrap();
    let returned = end.qp.reset().unwrap();
    assert_eq!(returned.iter().map(Finished::wr_id).collect::<Vec<_>>(), [50, 0, 1, 2, 3]);
    assert!(returned.iter().all(|finished| finished.result().unwrap_err().cause == Cause::Destroyed));
    drop(returned);
    assert_eq!(end.outstanding(), 0);
}

#[test]
fn datagrams_to_several_receivers_share_a_doorbell() {
    let datagrams =
        QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(Qkey(7)).max_send_wr(16);
    let [sender, first, second] = [6, 7, 8].map(|host| {
        let end = End::open(&format!("127.90.8.{host}"), &datagrams);
        end.qp.bring_up_ud().unwrap();
        end.receive(1, 40 + 64);
        end
    });
    let to = |end: &End| {
        let gid = end.context.query_gid(1, 0).unwrap().gid;
        let handle = sender.pd.create_ah(&AddressVector::new(gid, 0)).unwrap();
        Request::send_to(sender.pool.copy_from(b"hello").unwrap(), &handle, end.qp.qpn(), Qkey(7)).signaled()
    };
    sender.qp.post_send_all(&mut vec![to(&first), to(&second)]).unwrap();
    for end in [&first, &second] {
        assert_eq!(end.next().payload(), Some(&b"hello"[..]));
    }
    (0..2).for_each(|_| drop(sender.succeeds(0)));
    assert_eq!(sender.outstanding(), 1, "only its receive");
}

/// Threads post batches and single requests to one queue pair: no batch is torn, and every buffer comes back once.
#[test]
fn threads_share_a_queue_pair() {
    const BATCHES: u64 = 100;
    let (end, region) = end(9, &QueuePairOptions::default().max_send_wr(64));
    let remote = region.remote();
    let mut seen = Vec::new();
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let end = &end;
            scope.spawn(move || {
                for batch in 0..BATCHES {
                    let first = (thread * BATCHES + batch) * 4;
                    let write =
                        |wr_id| Request::write(end.pool.copy_from(b"bytes").unwrap(), remote).wr_id(wr_id).signaled();
                    let mut requests: Vec<Request> = (first..first + 4).map(write).collect();
                    let started = Instant::now();
                    while let Err(partly) = end.qp.post_send_all(&mut requests) {
                        assert_eq!(partly.error.kind(), ErrorKind::QueueFull, "{partly}");
                        assert!(started.elapsed() < PATIENCE, "nothing is polled");
                        std::thread::yield_now();
                    }
                }
            });
        }
        while (seen.len() as u64) < 3 * BATCHES * 4 {
            let finished = end.next();
            finished.result().unwrap();
            seen.push(finished.wr_id());
        }
    });
    for thread in 0..3u64 {
        let own = |wr_id: &&u64| **wr_id / 4 / BATCHES == thread;
        assert!(seen.iter().filter(own).is_sorted(), "thread {thread} is out of order");
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..3 * BATCHES * 4).collect::<Vec<_>>());
    assert_eq!((end.outstanding(), end.qp.buffers_in_flight()), (0, (0, 0)));
}
