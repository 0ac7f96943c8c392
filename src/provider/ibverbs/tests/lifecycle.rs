//! Events, and destruction of objects: nothing waits forever, is used after it is destroyed, or leaks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::provider::XrcReceives;
use crate::types::{AsyncEvent, EventObject, RateLimit};

#[test]
fn destroy_moves_the_queue_pair_to_error_first() {
    let world = World::new(Machine::default());
    let qp = world.connected();
    drop(qp);
    assert_eq!(world.fake.log(), ["modify_qp state 6 mask 0x1 dlid 0 global 0", "destroy_qp in state 6"]);
    let fresh = world.queue_pair(QueuePairType::ReliableConnection).unwrap();
    world.fake.log();
    fresh.destroy().unwrap();
    fresh.destroy().unwrap();
    assert_eq!(world.fake.log(), ["destroy_qp in state 0"]);
    drop(fresh);
    world.end();
}

#[test]
fn a_busy_queue_pair_can_be_destroyed_later() {
    let world = World::new(Machine::default());
    let qp = world.connected();
    world.fake.fail("destroy_qp", libc::EBUSY);
    refused(qp.destroy(), ErrorKind::Busy, &["queue pair"]);
    post(&*qp, &[4]).unwrap();
    world.fake.fail("destroy_qp", 0);
    qp.destroy().unwrap();
    refused(post(&*qp, &[5]), ErrorKind::InvalidState, &["destroyed"]);
    drop(qp);
    world.end();
}

#[test]
fn rate_limits_reach_the_adapter() {
    let world = World::new(Machine::default());
    let qp = world.connected();
    world.fake.log();
    let limit = RateLimit { rate_limit: 1_000, max_burst_sz: 4_096, typical_pkt_sz: 64 };
    qp.limit_rate(&limit).unwrap();
    assert_eq!(world.fake.log(), ["modify_qp_rate_limit 1000 kbit/s 4096 at once of 64 mask 0"]);
    world.fake.fail_once("modify_qp_rate_limit", libc::EOPNOTSUPP);
    refused(qp.limit_rate(&limit), ErrorKind::Unsupported, &["1000"]);
    qp.destroy().unwrap();
    refused(qp.limit_rate(&limit), ErrorKind::InvalidState, &["destroyed"]);
    drop(qp);
    world.end();
}

/// rxe refuses while it drains, and may have drained by the time it is queried.
#[test]
fn leaving_sqd_is_retried_after_draining() {
    let world = World::new(Machine::default());
    let qp = world.connected();
    for state in [QueuePairState::ReadyToSend, QueuePairState::Reset] {
        qp.modify(&to(QueuePairState::SendQueueDrained)).unwrap();
        world.fake.fail_once("modify_qp", libc::EINVAL);
        qp.modify(&to(state)).unwrap();
        assert_eq!(qp.query().unwrap().qp_state, state);
    }
    connect(&*qp, AddressVector::new(PEER, 1)).unwrap();
    qp.modify(&to(QueuePairState::SendQueueDrained)).unwrap();
    world.fake.fail("modify_qp", libc::EINVAL);
    refused(qp.modify(&to(QueuePairState::ReadyToSend)), ErrorKind::InvalidArgument, &["SQD to RTS"]);
}

#[test]
fn objects_keep_what_they_depend_on() {
    let world = World::new(Machine::default());
    let (qp, srq, mr) = (world.connected(), world.shared_queue().unwrap(), world.region(AccessFlags::empty()).unwrap());
    let window = world.pd.alloc_mw(crate::types::MemoryWindowType::Type1).unwrap();
    let handle = world.pd.create_ah(&AddressVector::new(PEER, 1)).unwrap();
    let fake = world.fake;
    // Everything that they depend on is dropped first.
    drop((world.cq, world.pd, world.context));
    assert!(fake.live().iter().any(|(kind, _)| *kind == "context"));
    drop((mr, window, handle, srq));
    drop(qp);
    assert_eq!(fake.live(), []);
}

#[test]
fn events_name_their_objects() {
    let world = World::new(Machine::default());
    let (qp, srq) = (world.connected(), world.shared_queue().unwrap());
    let first = world.context.poll_async_event();
    assert_eq!(first, None, "reading the descriptor does not wait");
    let expected = [
        (world.fake.queue_pair_event(1, 0), AsyncEvent::QueuePairFatal(qp.qpn())),
        (world.fake.queue_pair_event(2, 0), AsyncEvent::QueuePairRequestError(qp.qpn())),
        (world.fake.queue_pair_event(3, 0), AsyncEvent::QueuePairAccessError(qp.qpn())),
        (world.fake.queue_pair_event(4, 0), AsyncEvent::CommunicationEstablished(qp.qpn())),
        (world.fake.queue_pair_event(5, 0), AsyncEvent::SendQueueDrained(qp.qpn())),
        (world.fake.queue_pair_event(16, 0), AsyncEvent::LastWorkQueueElementReached(qp.qpn())),
        (world.fake.shared_event(15, 0), AsyncEvent::SharedReceiveQueueLimitReached(srq.number())),
        (world.fake.shared_event(14, 0), AsyncEvent::SharedReceiveQueueError(srq.number())),
        (world.fake.port_event(9, 1), AsyncEvent::PortActive(1)),
        (world.fake.port_event(10, 1), AsyncEvent::PortError(1)),
        (world.fake.port_event(18, 1), AsyncEvent::GidChange(1)),
        (world.fake.port_event(11, 1), AsyncEvent::LidChange(1)),
        (world.fake.port_event(12, 1), AsyncEvent::PkeyChange(1)),
        (world.fake.port_event(13, 1), AsyncEvent::SubnetManagerChange(1)),
        (world.fake.port_event(17, 1), AsyncEvent::ClientReregister(1)),
        (world.fake.port_event(8, 0), AsyncEvent::DeviceFatal),
    ];
    // Types that this crate does not have, and types that do not exist yet.
    world.fake.queue_pair_event(6, 0);
    for event_type in [20, 99] {
        world.fake.port_event(event_type, 1);
    }
    for ((), event) in expected {
        assert_eq!(world.context.poll_async_event(), Some(event));
    }
    assert_eq!(world.context.poll_async_event(), None);
    drop((qp, srq));
    world.end();
}

#[test]
fn an_overflow_is_reported_by_event_and_by_polling() {
    let world = World::new(Machine::default());
    world.fake.queue_event(0);
    assert_eq!(world.context.poll_async_event(), Some(AsyncEvent::CompletionQueueError(world.cq.number())));
    let polled = world.cq.poll(&mut [RawCompletion::default(); 4]);
    refused(polled, ErrorKind::ResourceLimit, &["overflowed", "64 entries"]);
    world.end();
}

#[test]
fn destroy_does_not_wait_for_unacknowledged_events() {
    let world = World::new(Machine::default());
    let qp = world.connected();
    world.fake.queue_pair_event(3, 0);
    let event = world.context.take_async_event().expect("an event");
    let object = EventObject::QueuePair(qp.qpn());
    // One more, which is never taken.
    world.fake.queue_pair_event(2, 0);
    qp.destroy().unwrap();
    assert_eq!(world.context.poll_async_event(), None, "events of a destroyed object are dropped");
    let now = Some(std::time::Duration::ZERO);
    assert_eq!(world.context.wait_events_acked(object, now).unwrap_err().kind(), ErrorKind::TimedOut);
    world.context.ack_async_event(&event);
    world.context.wait_events_acked(object, now).unwrap();
    drop(qp);
    world.end();
}

/// An event names its object by address, so destroying the object waits while the event is read.
#[test]
fn events_may_race_with_destruction() {
    let world = World::new(Machine::default());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = world.context.poll_async_event();
            }
        });
        for round in 0..500 {
            let qp = world.queue_pair(QueuePairType::ReliableConnection).unwrap();
            for event_type in 1..=5 {
                world.fake.queue_pair_event(event_type, round);
            }
            drop(qp);
        }
        done.store(true, Ordering::Relaxed);
    });
    world.end();
}

#[test]
fn a_channel_reports_events_and_does_not_delay_destruction() {
    let world = World::new(Machine::default());
    let channel = world.context.create_comp_channel().unwrap();
    let cq = world.context.create_cq(16, 0xabc, Some(&channel)).unwrap();
    assert_eq!(channel.poll_event(), None, "reading the descriptor does not wait");
    world.fake.channel_event(1);
    world.fake.channel_event(1);
    assert_eq!(channel.poll_event(), Some(0xabc));
    assert_eq!(cq.comp_events_reported(), 1);
    cq.req_notify(true).unwrap();
    assert!(world.fake.log().contains(&"req_notify_cq 1".to_owned()));
    // One event was taken, one was not.
    drop(cq);
    assert_eq!(channel.poll_event(), None);
    drop(channel);
    world.end();
}

#[test]
fn a_shared_queue_in_use_cannot_be_destroyed() {
    let world = World::new(Machine::default());
    let srq = world.shared_queue().unwrap();
    let init = QueuePairInit {
        pd: &world.pd,
        send_cq: &world.cq,
        recv_cq: &world.cq,
        srq: Some(&srq),
        xrc_domain: None,
        qp_type: QueuePairType::ReliableConnection,
        cap: CAP,
        sq_sig_all: false,
    };
    let qp = world.context.create_qp(&init).unwrap();
    refused(srq.destroy(), ErrorKind::Busy, &["1 queue pairs"]);
    qp.destroy().unwrap();
    world.fake.fail("destroy_srq", libc::EBUSY);
    refused(srq.destroy(), ErrorKind::Busy, &["shared receive queue"]);
    world.fake.fail("destroy_srq", 0);
    srq.destroy().unwrap();
    drop((qp, srq));
    world.end();
}

#[test]
fn xrc_objects_are_created_as_the_manual_says() {
    let world = World::new(Machine::default());
    let domain = world.context.open_xrcd().unwrap();
    let xrc = XrcReceives { domain: &domain, cq: &world.cq };
    let init = SharedReceiveQueueInit { max_wr: 16, max_sge: 1, srq_limit: 4, xrc: Some(xrc) };
    let srq = world.pd.create_srq(&init).unwrap();
    let target = QueuePairInit {
        pd: &world.pd,
        send_cq: &world.cq,
        recv_cq: &world.cq,
        srq: None,
        xrc_domain: Some(&domain),
        qp_type: QueuePairType::XrcReceive,
        cap: CAP,
        sq_sig_all: false,
    };
    let qp = world.context.create_qp(&target).unwrap();
    let log = world.fake.log();
    for line in [
        format!("open_xrcd mask 3 fd -1 flags {:#x}", libc::O_CREAT),
        "create_srq_ex mask 15 type 1".into(),
        "modify_srq mask 2 max_wr 0 limit 4".into(),
        "create_qp_ex type 10 mask 0x2 ops 0x0".into(),
    ] {
        assert!(log.contains(&line), "{line} is not in {log:?}");
    }
    drop((domain, srq, qp));
    world.end();
}

/// If the library refuses a verb that creates an object, the error names the verb and nothing is left behind.
#[test]
fn failed_creations_name_the_verb_and_leak_nothing() {
    type Make = fn(&World) -> Result<(), Error>;
    let cases: [(&str, &str, Make); 9] = [
        ("alloc_pd", "alloc_pd", |world| world.context.alloc_pd().map(drop)),
        ("create_comp_channel", "create_comp_channel", |world| world.context.create_comp_channel().map(drop)),
        ("create_cq", "create_cq", |world| world.context.create_cq(8, 0, None).map(drop)),
        ("create_qp", "create_qp", |world| world.queue_pair(QueuePairType::ReliableConnection).map(drop)),
        ("reg_mr", "reg_mr", |world| world.region(AccessFlags::LOCAL_WRITE).map(drop)),
        ("alloc_mw", "alloc_mw", |world| world.pd.alloc_mw(crate::types::MemoryWindowType::Type2).map(drop)),
        ("create_ah", "create_ah", |world| world.pd.create_ah(&AddressVector::new(PEER, 1)).map(drop)),
        ("open_xrcd", "open_xrcd", |world| world.context.open_xrcd().map(drop)),
        ("create_srq", "create_srq", |world| world.shared_queue().map(drop)),
    ];
    for (call, verb, make) in cases {
        let world = World::new(Machine::default());
        let before = world.fake.live();
        world.fake.fail(call, libc::ENFILE);
        let error = make(&world).expect_err(call);
        assert_eq!((error.verb(), error.kind()), (verb, ErrorKind::ResourceLimit), "{error}");
        assert_eq!(world.fake.live(), before, "{call}");
        world.fake.fail(call, 0);
        make(&world).unwrap();
        world.end();
    }
}

#[test]
fn resizing_and_moderation_reach_the_adapter() {
    let world = World::new(Machine::default());
    world.cq.resize(128).unwrap();
    world.cq.moderate(8, std::time::Duration::from_micros(50)).unwrap();
    assert_eq!(world.fake.log(), ["resize_cq 128", "modify_cq mask 1 count 8 period 50"]);
    assert_eq!(world.cq.cqe(), 128);
    world.fake.fail("resize_cq", libc::EINVAL);
    refused(world.cq.resize(2), ErrorKind::InvalidArgument, &["cqe is 2 after 128"]);
    refused(world.cq.resize(5000), ErrorKind::InvalidArgument, &["1 to 4096"]);
    world.end();
}
