//! Shared receive queues of the owned tier over loopback: buffers come back from every queue pair, however it ends.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_verbs::owned::{
    BufferPool, CompletionQueue, Finished, QueuePair, QueuePairOptions, Request, SharedReceiveQueue,
    SharedReceiveQueueOptions,
};
use rdma_verbs::verbs::{
    self, AccessFlags, AsyncEvent, Cause, CompletionStatus, Context, Counter, ErrorKind, ProtectionDomain, Qpn,
    QueuePairAttributes, QueuePairState, QueuePairType, SendRequest, SharedReceiveQueueAttributes,
};
use support::PATIENCE;

/// A shared queue of 16 with its pool, and queue pairs that use it, each connected to a queue pair of another device.
struct Sharing {
    receivers: Vec<QueuePair>,
    senders: Vec<QueuePair>,
    cq: CompletionQueue,
    sender_cq: CompletionQueue,
    srq: SharedReceiveQueue,
    pool: BufferPool,
    sender_pool: BufferPool,
    pd: ProtectionDomain,
    sender_pd: ProtectionDomain,
    context: Context,
}

impl Sharing {
    fn new(first: u8, count: usize) -> Self {
        let open = |host| verbs::open(&format!("soft:127.43.1.{host}")).unwrap();
        let (context, sender) = (open(first), open(first + 1));
        let (pd, sender_pd) = (context.alloc_pd().unwrap(), sender.alloc_pd().unwrap());
        let mut sharing = Self {
            receivers: Vec::new(),
            senders: Vec::new(),
            cq: CompletionQueue::new(&context, 256).unwrap(),
            sender_cq: CompletionQueue::new(&sender, 256).unwrap(),
            srq: SharedReceiveQueue::new(&pd, 16).unwrap(),
            pool: BufferPool::new(&pd, 1 << 20).unwrap(),
            sender_pool: BufferPool::new(&sender_pd, 1 << 20).unwrap(),
            pd,
            sender_pd,
            context,
        };
        (0..count).for_each(|_| sharing.connect_one());
        sharing
    }

    fn receiver(&self) -> QueuePair {
        QueuePair::with_options(&self.pd, &self.cq, &self.cq, &QueuePairOptions::default().srq(&self.srq)).unwrap()
    }

    fn connect_one(&mut self) {
        let sender = QueuePair::new(&self.sender_pd, &self.sender_cq, &self.sender_cq).unwrap();
        let receiver = self.receiver();
        receiver.connect(&sender.connection_info().unwrap()).unwrap();
        sender.connect(&receiver.connection_info().unwrap()).unwrap();
        self.receivers.push(receiver);
        self.senders.push(sender);
    }

    fn post(&self, wr_ids: impl IntoIterator<Item = u64>) {
        wr_ids.into_iter().for_each(|wr_id| self.srq.post_recv(self.pool.take(64).unwrap(), wr_id).unwrap());
    }

    /// Sends a message and waits until it has arrived.
    #[track_caller]
    fn send(&self, peer: usize, bytes: &[u8]) {
        let buffer = self.sender_pool.copy_from(bytes).unwrap();
        self.senders[peer].post_send(Request::send(buffer).signaled()).unwrap();
        self.sender_cq.wait(PATIENCE).unwrap().into_buffer().unwrap();
    }

    #[track_caller]
    fn received(&self, wr_id: u64, qpn: Qpn, bytes: &[u8]) {
        let finished = self.cq.wait(PATIENCE).unwrap();
        assert_eq!((finished.wr_id(), finished.qpn(), finished.is_receive()), (wr_id, qpn, true), "{finished:?}");
        assert_eq!(*finished.into_buffer().unwrap(), *bytes);
    }

    fn outstanding(&self) -> usize {
        self.pool.stats().outstanding
    }
}

/// Returns the numbers of the receives that reset or destruction returned.
fn wr_ids(returned: &[Finished]) -> Vec<u64> {
    let mut wr_ids: Vec<u64> = returned.iter().map(Finished::wr_id).collect();
    for finished in returned {
        let failure = finished.result().unwrap_err();
        assert_eq!((failure.status, failure.cause), (CompletionStatus::WorkRequestFlushedError, Cause::Destroyed));
    }
    wr_ids.sort_unstable();
    wr_ids
}

#[test]
fn buffers_return_from_any_queue_pair() {
    let sharing = Sharing::new(1, 3);
    sharing.post(10..16);
    for (wr_id, peer) in [(10, 2), (11, 0), (12, 0), (13, 1), (14, 2)] {
        let text = format!("message {wr_id}");
        sharing.send(peer, text.as_bytes());
        sharing.received(wr_id, sharing.receivers[peer].qpn(), text.as_bytes());
    }
    assert_eq!((sharing.srq.buffers_in_flight(), sharing.outstanding()), (1, 1));
    assert_eq!(sharing.receivers[0].buffers_in_flight(), (0, 0));
    assert!(sharing.cq.poll().unwrap().is_none());
}

#[test]
fn a_receive_posted_to_the_queue_pair_is_refused_and_returned() {
    let sharing = Sharing::new(3, 1);
    let refused = sharing.receivers[0].post_recv(sharing.pool.copy_from(b"mine").unwrap(), 1).unwrap_err();
    assert_eq!((refused.error.verb(), refused.error.kind()), ("post_recv", ErrorKind::InvalidArgument));
    assert!(refused.error.to_string().contains(&sharing.srq.number().to_string()), "{}", refused.error);
    assert_eq!(*refused.given.into_buffer().unwrap(), *b"mine");
}

#[test]
fn a_full_queue_gives_the_buffer_back_until_one_is_polled() {
    let sharing = Sharing::new(5, 1);
    sharing.post(0..16);
    sharing.send(0, b"taken and not polled");
    let refused = sharing.srq.post_recv(sharing.pool.take(64).unwrap(), 16).unwrap_err();
    assert_eq!((refused.error.verb(), refused.error.kind()), ("post_srq_recv", ErrorKind::QueueFull));
    sharing.received(0, sharing.receivers[0].qpn(), b"taken and not polled");
    sharing.post([16]);
    let size = |max_wr| SharedReceiveQueueAttributes { max_wr: Some(max_wr), srq_limit: None };
    assert_eq!(sharing.srq.modify(&size(15)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    sharing.srq.modify(&size(20)).unwrap();
    sharing.post(17..21);
    assert_eq!(sharing.srq.buffers_in_flight(), 20);
    assert_eq!(
        sharing.srq.post_recv(sharing.pool.take(64).unwrap(), 21).unwrap_err().error.kind(),
        ErrorKind::QueueFull
    );
    for wr_id in 1..=20 {
        sharing.send(0, &[wr_id as u8]);
        sharing.received(wr_id, sharing.receivers[0].qpn(), &[wr_id as u8]);
    }
    sharing.srq.modify(&size(2)).unwrap();
    sharing.post([30, 31]);
    assert_eq!(
        sharing.srq.post_recv(sharing.pool.take(64).unwrap(), 32).unwrap_err().error.kind(),
        ErrorKind::QueueFull
    );
}

#[test]
fn unpolled_messages_outlive_the_queue_pair() {
    let mut sharing = Sharing::new(7, 2);
    sharing.post(0..6);
    let gone = sharing.receivers[0].qpn();
    (0..3u8).for_each(|number| sharing.send(0, &[number; 5]));
    sharing.send(1, b"of the other");
    // None of it is polled. The device drops the completions of a destroyed queue pair.
    drop(sharing.receivers.remove(0));
    (0..3u8).for_each(|number| sharing.received(u64::from(number), gone, &[number; 5]));
    sharing.received(3, sharing.receivers[0].qpn(), b"of the other");
    assert_eq!(sharing.srq.buffers_in_flight(), 2);
    sharing.send(1, b"goes on");
    sharing.received(4, sharing.receivers[0].qpn(), b"goes on");
}

#[test]
fn unpolled_messages_outlive_reset_and_sent_buffers_return_once() {
    let sharing = Sharing::new(9, 1);
    sharing.post(0..4);
    sharing.send(0, b"arrived");
    let qp = &sharing.receivers[0];
    for wr_id in 50..53 {
        let request = Request::send(sharing.pool.copy_from(b"answer").unwrap()).wr_id(wr_id);
        qp.post_send(if wr_id == 52 { request.signaled() } else { request }).unwrap();
    }
    let returned = qp.reset().unwrap();
    assert_eq!(wr_ids(&returned), [50, 51, 52]);
    sharing.received(0, qp.qpn(), b"arrived");
    assert!(sharing.cq.poll().unwrap().is_none());
    sharing.senders[0].reset().unwrap();
    qp.connect(&sharing.senders[0].connection_info().unwrap()).unwrap();
    sharing.senders[0].connect(&qp.connection_info().unwrap()).unwrap();
    sharing.send(0, b"again");
    sharing.received(1, qp.qpn(), b"again");
    qp.post_send(Request::send(sharing.pool.copy_from(b"x").unwrap()).wr_id(60)).unwrap();
    assert_eq!(qp.buffers_in_flight(), (1, 0));
}

/// Returns a queue pair of the shared queue that has received the first half of a message, whose sender's memory was
/// then deregistered.
fn half_filled(sharing: &Sharing, wr_id: u64) -> (QueuePair, verbs::QueuePair) {
    let receiver = sharing.receiver();
    let cq = sharing.sender_pd.context().create_cq(16).unwrap();
    let sender = sharing.sender_pd.create_qp(&cq, &cq).unwrap();
    receiver.connect(&sender.connection_info().unwrap()).unwrap();
    sender.connect(&receiver.connection_info().unwrap()).unwrap();
    let to = |state| QueuePairAttributes::default().qp_state(state);
    sender.modify(&to(QueuePairState::SendQueueDrained)).unwrap();
    let parts = [12 << 10, 4 << 10].map(|len| sharing.sender_pd.alloc_mr(len, AccessFlags::LOCAL_WRITE).unwrap());
    let ranges = parts.each_ref().map(|part| part.slice(..).unwrap());
    sender.post_send(&[SendRequest::send(&ranges)]).unwrap();
    let [_first, rest] = parts;
    rest.dereg().unwrap();
    sharing.srq.post_recv(sharing.pool.take(64 << 10).unwrap(), wr_id).unwrap();
    sender.modify(&to(QueuePairState::ReadyToSend)).unwrap();
    assert_eq!(cq.wait(PATIENCE).unwrap().status(), CompletionStatus::LocalProtectionError);
    let sent = sender.counters().get(Counter::SentPackets);
    while receiver.counters().get(Counter::ReceivedPackets) < sent {}
    (receiver, sender)
}

#[test]
fn a_half_filled_buffer_comes_back_from_reset_and_destruction() {
    let sharing = Sharing::new(11, 1);
    let (receiver, _sender) = half_filled(&sharing, 7);
    sharing.post([8]);
    let returned = receiver.reset().unwrap();
    assert_eq!(wr_ids(&returned), [7]);
    assert_eq!((returned[0].qpn(), returned[0].request_buffer().len()), (receiver.qpn(), 0));
    assert_eq!((sharing.srq.buffers_in_flight(), receiver.state().unwrap()), (1, QueuePairState::Reset));
    sharing.send(0, b"the one behind");
    sharing.received(8, sharing.receivers[0].qpn(), b"the one behind");

    let (receiver, _sender) = half_filled(&sharing, 9);
    assert_eq!(wr_ids(&receiver.destroy().unwrap()), [9]);
    let (receiver, _sender) = half_filled(&sharing, 10);
    drop(receiver);
    assert_eq!(sharing.srq.buffers_in_flight(), 0);
    drop(returned);
    assert_eq!(sharing.outstanding(), 0);
}

#[test]
fn a_half_filled_buffer_is_flushed_by_the_error_state_once() {
    let sharing = Sharing::new(13, 1);
    let (receiver, _sender) = half_filled(&sharing, 7);
    let error = QueuePairAttributes::default().qp_state(QueuePairState::Error);
    receiver.modify(&error).unwrap();
    let flushed = sharing.cq.wait(PATIENCE).unwrap();
    assert_eq!((flushed.wr_id(), flushed.qpn()), (7, receiver.qpn()));
    assert_eq!(flushed.result().unwrap_err().status, CompletionStatus::WorkRequestFlushedError);
    assert_eq!(
        sharing.context.wait_async_event(PATIENCE).unwrap(),
        AsyncEvent::LastWorkQueueElementReached(receiver.qpn())
    );
    assert!(receiver.destroy().unwrap().is_empty());
    assert!(sharing.cq.poll().unwrap().is_none());
}

#[test]
fn a_queue_in_use_is_busy_and_a_destroyed_one_returns_its_receives() {
    let mut sharing = Sharing::new(15, 2);
    sharing.post(0..5);
    sharing.send(0, b"polled");
    sharing.received(0, sharing.receivers[0].qpn(), b"polled");
    sharing.send(1, b"not polled");
    let error = sharing.srq.destroy().unwrap_err();
    assert_eq!((error.verb(), error.kind()), ("destroy_srq", ErrorKind::Busy));
    sharing.post([5]);
    sharing.receivers.clear();
    let returned = sharing.srq.destroy().unwrap();
    // The receive that has completed is returned with the others, because its completion was not polled before.
    assert_eq!(wr_ids(&returned), [1, 2, 3, 4, 5]);
    assert!(returned.iter().all(|finished| finished.qpn() == Qpn::default() && finished.is_receive()));
    assert!(sharing.cq.poll().unwrap().is_none(), "and not twice");
    assert!(sharing.srq.destroy().unwrap().is_empty());
    let refused = sharing.srq.post_recv(sharing.pool.copy_from(b"back").unwrap(), 6).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidState);
    assert_eq!(*refused.given.into_buffer().unwrap(), *b"back");
    assert_eq!(sharing.srq.query().unwrap_err().kind(), ErrorKind::InvalidState);
    drop(returned);
    assert_eq!((sharing.outstanding(), sharing.srq.buffers_in_flight()), (0, 0));
}

#[test]
fn dropped_in_any_order_the_buffers_return_to_their_pool() {
    for order in 0..3 {
        let Sharing { receivers, senders: _senders, cq, srq, pool, .. } = Sharing::new(17 + 2 * order, 2);
        (0..8).for_each(|wr_id| srq.post_recv(pool.take(64).unwrap(), wr_id).unwrap());
        match order {
            0 => drop((srq, receivers, cq)),
            1 => drop((cq, srq, receivers)),
            _ => drop((receivers, cq, srq)),
        }
        assert_eq!(pool.stats().outstanding, 0, "order {order}");
    }
}

#[test]
fn options_reach_the_device() {
    let sharing = Sharing::new(23, 0);
    let made =
        SharedReceiveQueue::with_options(&sharing.pd, 4, &SharedReceiveQueueOptions::default().srq_limit(2)).unwrap();
    assert_eq!(made.query().unwrap().srq_limit, 2);
    let (pd, cq, srq) = (&sharing.pd, &sharing.cq, &sharing.srq);
    let made = QueuePair::with_options(pd, cq, cq, &QueuePairOptions::default().srq(srq).max_send_wr(3)).unwrap();
    assert!((3..128).contains(&made.cap().max_send_wr), "{:?}", made.cap());
    // A target of extended connections needs a domain, which no option provides.
    let made = QueuePair::with_options(pd, cq, cq, &QueuePairOptions::default().qp_type(QueuePairType::XrcReceive));
    assert_eq!(made.unwrap_err().verb(), "create_qp");
}

/// Queue pairs are created and dropped during traffic, while two threads poll and post: every buffer comes back once,
/// from the completion queue, a queue pair or finally the queue.
#[test]
fn nothing_is_lost_or_returned_twice() {
    let sharing = Sharing::new(25, 4);
    let (returned, done) = (Mutex::new(HashSet::new()), AtomicBool::new(false));
    let note = |finished: &Finished| {
        assert!(returned.lock().unwrap().insert(finished.wr_id()), "receive {} came back twice", finished.wr_id());
    };
    let next = std::sync::atomic::AtomicU64::new(0);
    let refill = || match sharing.srq.post_recv(sharing.pool.take(64).unwrap(), next.load(Ordering::Relaxed)) {
        Ok(()) => next.fetch_add(1, Ordering::Relaxed) < u64::MAX,
        Err(refused) => {
            assert_eq!(refused.error.kind(), ErrorKind::QueueFull);
            false
        }
    };
    let posting = Mutex::new(());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if let Some(finished) = sharing.cq.poll().unwrap().filter(Finished::is_receive) {
                        note(&finished);
                    }
                    let _one_posts = posting.lock().unwrap();
                    while refill() {}
                }
            });
        }
        scope.spawn(|| {
            for round in 0..60 {
                let qp = sharing.receiver();
                qp.connect(&qp.connection_info().unwrap()).unwrap();
                for _ in 0..8 {
                    qp.post_send(Request::send(sharing.pool.copy_from(b"to itself").unwrap())).unwrap();
                }
                match round % 3 {
                    0 => drop(qp),
                    1 => qp.reset().unwrap().iter().filter(|finished| finished.is_receive()).for_each(note),
                    _ => qp.destroy().unwrap().iter().filter(|finished| finished.is_receive()).for_each(note),
                }
            }
        });
        for _ in 0..200 {
            (0..4).for_each(|peer| sharing.send(peer, b"steady"));
        }
        done.store(true, Ordering::Relaxed);
    });
    let Sharing { receivers, senders, cq, srq, pool, .. } = sharing;
    drop((receivers, senders));
    while let Some(finished) = cq.poll().unwrap() {
        assert!(returned.lock().unwrap().insert(finished.wr_id()));
    }
    let left = srq.destroy().unwrap();
    left.iter().for_each(|finished| assert!(returned.lock().unwrap().insert(finished.wr_id())));
    drop(left);
    // Messages of one packet are never partial, so dropped queue pairs have kept none.
    assert_eq!(returned.into_inner().unwrap().len() as u64, next.into_inner(), "what was posted comes back");
    assert_eq!(pool.stats().outstanding, 0);
}
