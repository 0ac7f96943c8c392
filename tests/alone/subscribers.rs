//! The events for subscribers of `tracing`, with their fields, in real runs. Each test needs a process of its own,
//! because the subscriber is the process's.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdma_verbs::types::{Psn, Qpn, Rkey};
use rdma_verbs::verbs::cm::{ConnectError, ConnectionOptions, Listener, Route};
use rdma_verbs::verbs::{
    CompletionStatus, ConnectOptions, ConnectionInfo, Context, Mtu, Payload, QueuePairAttributes, QueuePairState,
    ReceiveRequest, RegionList, RemoteMemory, SendRequest,
};
use support::End;
use support::events::{Event, Events};
use support::process::alone;
use tracing::Level;

const CONNECTION: &str = "rdma_verbs::connection";
const QUEUE_PAIR: &str = "rdma_verbs::queue_pair";
const LOSS: &str = "rdma_verbs::loss";
const PATH: &str = "rdma_verbs::path";
const DEVICE: &str = "rdma_verbs::device";

/// Returns whether an event is about the queue pair.
fn is_about(qpn: Qpn) -> impl Fn(&Event) -> bool {
    move |event| event.field("qpn") == qpn.to_string()
}

fn is_of(device: &str) -> impl Fn(&Event) -> bool {
    move |event| event.field("device") == device
}

fn changes(events: &Events, qpn: Qpn) -> Vec<String> {
    let all = events.all();
    let changed = all.iter().filter(|event| event.text == "state changed" && is_about(qpn)(event));
    changed.map(|event| format!("{} {} {}", event.field("from"), event.field("to"), event.field("cause"))).collect()
}

/// Returns a queue pair for a connection by address.
fn queue_pair(context: &Context) -> End {
    End::on(context.clone(), &Default::default())
}

#[test]
fn connections() {
    alone(|| {
        let events = Events::collect();
        let listener = Listener::bind("127.121.1.1:7471").unwrap();
        let server = std::thread::spawn(move || {
            listener.accept().unwrap().reject(b"not now").unwrap();
            let request = listener.accept().unwrap();
            let end = queue_pair(request.context());
            end.qp.init().unwrap();
            let connection = request.accept(&end.qp, &ConnectionOptions::new()).unwrap();
            assert!(connection.wait_disconnected(support::PATIENCE).unwrap());
            connection.disconnect(&end.qp).unwrap();
            end.qp.qpn()
        });
        let route = Route::to("127.121.1.1:7471").unwrap().from("127.121.1.2").unwrap();
        let (first, second) = (queue_pair(route.context()), queue_pair(route.context()));
        [&first, &second].into_iter().for_each(|end| end.qp.init().unwrap());
        let rejected = route.connect(&first.qp, &ConnectionOptions::new());
        assert!(matches!(rejected, Err(ConnectError::Rejected(_))));
        let connection = route.connect(&second.qp, &ConnectionOptions::new()).unwrap();
        connection.disconnect(&second.qp).unwrap();
        let (own, peer) = (second.qp.qpn().to_string(), server.join().unwrap().to_string());

        let (active, passive) = (is_of("soft:127.121.1.2"), is_of("soft:127.121.1.1"));
        let sent = events.find(CONNECTION, "request sent", |event| active(event) && event.field("qpn") == own);
        assert_eq!((sent.level, sent.field("port")), (Level::DEBUG, "7471"));
        assert_eq!((sent.field("local"), sent.field("peer")), ("127.121.1.2", "127.121.1.1"));
        let number = sent.number("connection");
        let received = events.find(CONNECTION, "request received", |event| event.field("peer_qpn") == own);
        assert_eq!((received.field("local"), received.field("peer")), ("127.121.1.1", "127.121.1.2"));
        events.find(CONNECTION, "accepted", |event| passive(event) && event.field("qpn") == peer);
        events.find(CONNECTION, "reply received", |event| event.field("peer_qpn") == peer);
        for (is_end, role, qpn, peer_qpn) in
            [(&active as &dyn Fn(&Event) -> bool, "active", &own, &peer), (&passive, "passive", &peer, &own)]
        {
            let established = events.find(CONNECTION, "established", is_end);
            assert_eq!((established.level, established.field("role")), (Level::INFO, role));
            assert_eq!((established.field("qpn"), established.field("peer_qpn")), (&qpn[..], &peer_qpn[..]));
            assert!((1..20_000_000).contains(&established.number("took_us")), "{established:?}");
        }
        events.find(CONNECTION, "disconnect requested", |event| active(event) && event.number("connection") == number);
        let disconnected = events.find(CONNECTION, "disconnected", &active);
        assert_eq!((disconnected.level, disconnected.field("cause")), (Level::INFO, "local"));
        assert_eq!(events.find(CONNECTION, "disconnected", &passive).field("cause"), "peer");
        for (is_end, by) in [(&active as &dyn Fn(&Event) -> bool, "peer"), (&passive, "local")] {
            let rejected = events.find(CONNECTION, "rejected", is_end);
            assert_eq!((rejected.field("by"), rejected.field("reason")), (by, "consumer reject (28)"));
            assert_eq!(rejected.field("peer_qpn").is_empty(), by == "peer");
        }
        drop((connection, first, second, route));
        events.find(DEVICE, "closed", &active);
    });
}

#[test]
fn states_of_a_queue_pair_and_its_device() {
    alone(|| {
        let events = Events::collect();
        let end = End::connected_to_itself("127.121.2.1");
        let (qpn, device) = (end.qp.qpn(), end.context.name().to_owned());
        end.qp.modify(&QueuePairAttributes::default().qp_state(QueuePairState::Error)).unwrap();
        end.qp.reset().unwrap();
        drop(end);
        let opened = events.find(DEVICE, "opened", is_of(&device));
        assert_eq!((opened.level, opened.field("local"), opened.field("shards")), (Level::INFO, "127.121.2.1", "1"));
        assert_eq!(events.find(QUEUE_PAIR, "created", is_about(qpn)).field("service"), "RC");
        let path = events.find(PATH, "path set", is_about(qpn));
        assert_eq!(path.names(), ["device", "local", "mtu", "native", "peer", "peer_qpn", "qpn"]);
        assert_eq!((path.field("peer"), path.field("mtu"), path.field("native")), ("127.121.2.1", "4096", "true"));
        assert_eq!(events.find(QUEUE_PAIR, "destroyed", is_about(qpn)).field("state"), "RESET");
        assert_eq!(events.find(DEVICE, "closed", is_of(&device)).level, Level::INFO);
        let expected = ["RESET INIT", "INIT RTR", "RTR RTS", "RTS ERR", "ERR RESET"];
        assert_eq!(changes(&events, qpn), expected.map(|change| format!("{change} modify")));
        // The device's events come in order, and the last one is its end.
        let all = events.all();
        let own: Vec<&str> = all.iter().filter(|event| is_of(&device)(event)).map(|event| &event.text[..]).collect();
        assert_eq!((own.first(), own.last()), (Some(&"opened"), Some(&"closed")), "{own:?}");
    });
}

/// A peer that does not exist.
fn silent_peer() -> ConnectionInfo {
    ConnectionInfo::standard_peer(Qpn::new(0x77), Psn::new(5), Ipv4Addr::new(127, 121, 3, 9).into(), Mtu::Mtu1024)
}

#[test]
fn retransmissions_are_few_and_counted() {
    alone(|| {
        let events = Events::collect();
        let end = End::open("127.121.3.1");
        // 134 ms each.
        end.qp.connect_with(&silent_peer(), &ConnectOptions::default().timeout(15).retry_cnt(7)).unwrap();
        end.post(SendRequest::send(Payload::EMPTY).wr_id(7));
        end.fails(7, CompletionStatus::RetryExceededError);
        let failed = events.find(QUEUE_PAIR, "request failed", is_about(end.qp.qpn()));
        assert_eq!((failed.level, failed.field("from"), failed.field("to")), (Level::INFO, "RTS", "ERR"));
        assert_eq!((failed.field("status"), failed.field("cause")), ("RetryExceededError", "NoResponse"));
        assert_eq!((failed.number("wr_id"), failed.number("retries")), (7, 7));
        assert_eq!((failed.field("operation"), failed.field("peer_qpn")), ("SEND", "0x000077"));
        assert_eq!(failed.field("error"), "no response of the peer in time");
        let all = events.all();
        let losses: Vec<&Event> = all.iter().filter(|event| event.target == LOSS).collect();
        assert!((2..6).contains(&losses.len()), "{losses:#?}");
        assert!(losses.iter().all(|event| event.text == "retransmission" && event.level == Level::DEBUG));
        assert_eq!(losses[0].names(), ["cause", "device", "peer", "peer_qpn", "psn", "qpn", "retries", "suppressed"]);
        assert_eq!(losses[0].number("suppressed"), 0);
        assert!(losses[1].number("suppressed") >= 2, "{losses:#?}");
        assert!(losses.iter().all(|event| matches!(event.field("cause"), "timeout" | "probe")), "{losses:#?}");
        let refused = events.find(PATH, "send refused, or ICMP error", |event| event.field("peer") == "127.121.3.9");
        assert_eq!((refused.field("count"), refused.field("error").is_empty()), ("1", false));
    });
}

#[test]
fn a_receiver_that_is_not_ready_is_reported_once_a_second() {
    alone(|| {
        let events = Events::collect();
        let (one, other) = (End::open("127.121.4.1"), End::open("127.121.4.2"));
        // 0.96 ms each.
        one.connect(&other, &ConnectOptions::default().min_rnr_timer(13).rnr_retry(7));
        one.post(SendRequest::send(Payload::EMPTY).wr_id(1));
        let begin = Instant::now();
        std::thread::sleep(Duration::from_millis(1_300));
        other.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)]).unwrap();
        one.succeeds(1);
        let second = events.find(LOSS, "receiver not ready", |event| event.number("suppressed") > 0);
        assert!(second.number("suppressed") > 20 && second.number("wait_us") == 960, "{second:?}");
        let all = events.all();
        let count = all.iter().filter(|event| event.text == "receiver not ready").count();
        assert!(count as u64 <= 1 + begin.elapsed().as_secs(), "{count} in {:?}", begin.elapsed());
    });
}

#[test]
fn refused_requests() {
    alone(|| {
        let events = Events::collect();
        let (one, other) = (End::open("127.121.5.1"), End::open("127.121.5.2"));
        one.connect(&other, &ConnectOptions::default());
        let (source, target) = (one.region(8), other.region(8));
        let remote = target.remote();
        let wrong = RemoteMemory::new(remote.addr(), Rkey(remote.rkey().0 ^ 0xff), 8);
        one.post(SendRequest::write(&source, wrong).wr_id(3));
        one.fails(3, CompletionStatus::RemoteAccessError);
        let failed = events.find(QUEUE_PAIR, "request failed", is_about(one.qp.qpn()));
        assert_eq!((failed.field("cause"), failed.field("operation")), ("RefusedAccess", "WRITE"));
        let refused = events.find(QUEUE_PAIR, "request of the peer refused", is_about(other.qp.qpn()));
        assert_eq!((refused.field("cause"), refused.field("length")), ("UnknownKey", "8"));
        assert_eq!((refused.field("peer"), refused.field("to")), ("127.121.5.1", "ERR"));
        let nak = events.find(QUEUE_PAIR, "NAK sent", is_about(other.qp.qpn()));
        assert_eq!((nak.field("cause"), nak.field("psn").is_empty()), ("UnknownKey", false));
    });
}

#[test]
fn the_path_to_a_process_of_this_host_changes_to_memory() {
    alone(|| {
        let events = Events::collect();
        let (one, other) = (End::open("127.121.6.1"), End::open("127.121.6.2"));
        one.connect(&other, &ConnectOptions::default());
        let text = "packets to this peer go through shared memory";
        let link = events.find(PATH, text, |event| event.field("peer") == "127.121.6.2");
        assert_eq!(link.names(), ["device", "local", "medium", "peer"]);
        assert_eq!((link.field("local"), link.field("medium"), link.level), ("127.121.6.1", "memory", Level::DEBUG));
        drop(other);
        let text = "the peer's process has ended the link through memory";
        let end = events.find(PATH, text, |event| event.field("peer") == "127.121.6.2");
        assert_eq!((end.field("local"), end.field("medium")), ("127.121.6.1", "udp"));
    });
}

/// If it ran while the shard is held, its calls would never return.
#[test]
fn a_subscriber_may_use_the_device() {
    alone(|| {
        let device: Arc<Mutex<Option<Context>>> = Arc::default();
        let shared = Arc::clone(&device);
        let events = Events::collect_with(move |event| {
            let is_meant = event.text == "state changed" && event.field("to") == "RTS" && event.field("from") == "RTR";
            let taken = if is_meant { shared.lock().unwrap().take() } else { None };
            if let Some(context) = taken {
                let end = End::on(context, &Default::default());
                end.qp.connect(&end.info()).unwrap();
                end.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)]).unwrap();
                end.post(SendRequest::send(Payload::EMPTY).wr_id(9));
                end.succeeds(0);
                end.succeeds(9);
                assert_eq!(end.qp.state().unwrap(), QueuePairState::ReadyToSend);
                tracing::info!(target: "test", "done");
            }
        });
        let end = End::open("127.121.7.1");
        device.lock().unwrap().replace(end.context.clone());
        end.qp.connect(&end.info()).unwrap();
        events.find("test", "done", |_| true);
        end.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)]).unwrap();
        end.post(SendRequest::send(Payload::EMPTY).wr_id(1));
        end.succeeds(0);
        end.succeeds(1);
    });
}

/// A subscriber that blocks delays the events, but neither packets nor verbs of threads that drive the device.
#[test]
fn a_slow_subscriber_stops_no_verb() {
    alone(|| {
        let events = Events::collect_with(|event| {
            if event.text == "created" {
                std::thread::sleep(Duration::from_secs(2));
            }
        });
        let begin = Instant::now();
        let end = End::connected_to_itself("127.121.8.1");
        for wr_id in 0..100 {
            end.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY).wr_id(wr_id)]).unwrap();
            end.post(SendRequest::send(Payload::EMPTY).wr_id(wr_id));
            end.succeeds(wr_id);
            end.succeeds(wr_id);
        }
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
        events.find(QUEUE_PAIR, "state changed", is_about(end.qp.qpn()));
    });
}
