//! Shared receive queues with many queue pairs, many threads, and handles dropped meanwhile.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rdma_verbs::verbs::{
    AsyncEvent, CompletionOpcode, ConnectOptions, ErrorKind, Payload, QueuePairAttributes, QueuePairOptions,
    QueuePairState, ReceiveRequest, SendRequest, SharedReceiveQueueAttributes, SharedReceiveQueueOptions,
};

use super::end::{next, silent};
use super::sharing::{MAX_SRQ, ROOM, Sharing};
use super::suite::Scenario;
use super::world::World;

const fn scenario(name: &'static str, clause: &'static str, run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs: &[MAX_SRQ], run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("srq/crowd/64_queue_pairs", "ibv_create_srq(3); rdma-core: all verbs are thread-safe", many_queue_pairs),
    scenario("srq/crowd/64_share_few_receives", "ibv_modify_qp(3) rnr_retry 7: no message is lost", few_receives),
    scenario("srq/crowd/queue_pairs_come_and_go", "rdma-core: ibv_destroy_qp while in use", come_and_go),
    scenario("srq/crowd/limit_once_for_each_arming", "ibv_modify_srq(3) IBV_SRQ_LIMIT: one-shot", limit_each_arming),
    scenario("srq/destroy/handle_goes_in_the_middle", "rdma-core: object dependencies", handle_goes),
];

/// Every queue pair's peer sends `each` messages, from four threads; four others poll and post again. Each queue pair
/// must receive exactly its own peer's messages, each once.
#[track_caller]
fn exchange(sharing: &Sharing, each: u64) {
    let pairs = sharing.senders.len();
    let total = pairs * each as usize;
    let left = AtomicUsize::new(total);
    let found: Mutex<HashMap<usize, Vec<u64>>> = Mutex::default();
    let receivers: HashMap<_, _> = (0..).zip(&sharing.receivers).map(|(index, qp)| (qp.qpn(), index)).collect();
    thread::scope(|scope| {
        for quarter in 0..4 {
            scope.spawn(move || {
                for number in 0..each {
                    for peer in (quarter..pairs).step_by(4) {
                        let text = ((peer as u64) << 32 | number).to_be_bytes();
                        let request = SendRequest::send(Payload::inline(&text)).signaled();
                        sharing.senders[peer].post_send(&[request]).unwrap();
                    }
                }
            });
        }
        for _ in 0..4 {
            scope.spawn(|| {
                // A thread that claims a message waits for one completion, of any message.
                while left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok() {
                    let completion = next(&sharing.cq);
                    let success = completion.result().unwrap_or_else(|error| panic!("{error}"));
                    assert_eq!((success.opcode, success.byte_len), (CompletionOpcode::Receive, 8));
                    let start = completion.wr_id() as usize * ROOM;
                    let bytes = sharing.inbox.to_vec(start..start + 8).unwrap();
                    let text = u64::from_be_bytes(bytes.try_into().unwrap());
                    assert_eq!((text >> 32) as usize, receivers[&completion.qpn()], "a message of another peer");
                    found.lock().unwrap().entry((text >> 32) as usize).or_default().push(text & 0xffff_ffff);
                    sharing.post([completion.wr_id()]);
                }
            });
        }
    });
    for _ in 0..total {
        next(&sharing.sender_cq).result().unwrap();
    }
    silent(&sharing.cq);
    let found = found.into_inner().unwrap();
    assert_eq!(found.len(), pairs);
    for (peer, mut numbers) in found {
        // Pollers may record completions in a different order than they polled them.
        numbers.sort_unstable();
        assert_eq!(numbers, (0..each).collect::<Vec<_>>(), "messages of peer {peer}");
    }
}

fn many_queue_pairs(world: &World) {
    let sharing = Sharing::with(world, 64, &ConnectOptions::default(), 256, &SharedReceiveQueueOptions::default());
    sharing.post(0..256);
    exchange(&sharing, 20);
}

fn few_receives(world: &World) {
    let options = ConnectOptions::default().min_rnr_timer(1).rnr_retry(7);
    let sharing = Sharing::with(world, 64, &options, 16, &SharedReceiveQueueOptions::default());
    sharing.post(0..3);
    exchange(&sharing, 4);
}

/// Destroying queue pairs, or moving them to the error state, does not disturb other busy ones of the queue.
fn come_and_go(world: &World) {
    let sharing = Sharing::with(world, 4, &ConnectOptions::default(), 64, &SharedReceiveQueueOptions::default());
    sharing.post(0..64);
    thread::scope(|scope| {
        let churn = scope.spawn(|| {
            for round in 0..40 {
                let qp = sharing
                    .pd
                    .create_qp_with(&sharing.cq, &sharing.cq, &QueuePairOptions::default().srq(&sharing.srq))
                    .unwrap();
                qp.connect(&qp.connection_info().unwrap()).unwrap();
                if round % 2 == 0 {
                    let error = QueuePairAttributes::default().qp_state(QueuePairState::Error);
                    qp.modify(&error).unwrap();
                }
            }
        });
        exchange(&sharing, 100);
        churn.join().unwrap();
    });
    let left = sharing.context.wait_async_event(super::end::SILENCE).map_err(|error| error.kind());
    assert_eq!(left, Err(ErrorKind::TimedOut), "events go with their queue pairs");
    exchange(&sharing, 5);
}

/// The limit is armed again after each event, while several queue pairs consume receives: one event per arming.
fn limit_each_arming(world: &World) {
    let sharing = Sharing::new(world, 4);
    let armed = SharedReceiveQueueAttributes { srq_limit: Some(2), ..Default::default() };
    for _ in 0..20 {
        sharing.post(0..4);
        sharing.srq.modify(&armed).unwrap();
        thread::scope(|scope| {
            let sharing = &sharing;
            (0..4).for_each(|peer| drop(scope.spawn(move || sharing.send(peer, b"one of four"))));
        });
        for _ in 0..4 {
            next(&sharing.cq).result().unwrap();
        }
        assert_eq!(sharing.event(), AsyncEvent::SharedReceiveQueueLimitReached(sharing.srq.number()));
        assert_eq!(sharing.srq.query().unwrap().srq_limit, 0);
    }
    sharing.no_event();
}

/// The last handle is dropped while messages arrive: the queue and its receives live as long as its queue pairs.
fn handle_goes(world: &World) {
    let Sharing { receivers, senders, srq, inbox, cq, .. } = Sharing::new(world, 4);
    for wr_id in 0..16u64 {
        let start = wr_id as usize * ROOM;
        let room = inbox.slice(start..start + ROOM).unwrap();
        srq.post_recv(&[ReceiveRequest::new(room).wr_id(wr_id)]).unwrap();
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..4u8 {
                for sender in &senders {
                    sender.post_send(&[SendRequest::send(Payload::inline(&[number]))]).unwrap();
                }
            }
        });
        scope.spawn(move || drop(srq));
    });
    let mut wr_ids: Vec<u64> = (0..16)
        .map(|_| {
            let completion = next(&cq);
            assert!(receivers.iter().any(|qp| qp.qpn() == completion.qpn()));
            assert_eq!(completion.result().unwrap().byte_len, 1);
            completion.wr_id()
        })
        .collect();
    wr_ids.sort_unstable();
    assert_eq!(wr_ids, (0..16).collect::<Vec<_>>());
    silent(&cq);
}
