//! Connecting, step by step and with the helpers, the state that query reports afterwards, and explanations.

use std::os::unix::net::UnixStream;

use rdma_verbs::verbs::{
    AsyncEvent, CompletionStatus, ConnectOptions, ConnectionInfo, ErrorKind, Mtu, Payload, Psn, QueuePairAttributes,
    QueuePairState, SendRequest,
};

use super::deviations::{NO_ERROR_EVENTS, RD_ATOMIC_ROUNDED};
use super::end::{End, Shape, address_vector, refused};
use super::suite::{FAILURE_CAUSES, Scenario};
use super::world::{World, connect};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new(
        "connect/helper/options_arrive",
        "IBTA, queue pair verbs: query queue pair; ibv_query_qp(3)",
        options_arrive,
    ),
    Scenario::new("connect/helper/smaller_mtu_wins", "IBTA, packet validation: path MTU", smaller_mtu),
    Scenario::new("connect/helper/not_twice", "IBTA, queue pair states: from RESET or INIT", not_twice),
    Scenario::new("connect/helper/other_address_family", "IBTA, queue pair verbs: address vector", other_family),
    Scenario::new("connect/helper/peer_without_gid", "IBTA, queue pair verbs: address vector", without_gid),
    Scenario::new("connect/helper/path_mtu_beyond_the_link", "ibv_modify_qp(3) path_mtu", mtu_too_large),
    Scenario::new(
        "connect/helper/options_out_of_range",
        "ibv_modify_qp(3) timeout, retry_cnt, rnr_retry",
        out_of_range,
    ),
    Scenario::new("connect/info/bytes", "API: ConnectionInfo::to_bytes", info_bytes),
    Scenario::new("connect/info/exchange", "API: ConnectionInfo::exchange", info_exchange),
    Scenario::new("connect/info/nonsense", "API: ConnectionInfo::from_bytes", info_nonsense),
    Scenario::new("connect/steps/one_by_one", "IBTA, queue pair states: state diagram; ibv_modify_qp(3)", one_by_one),
    Scenario::new(
        "connect/steps/as_standard_peers",
        "IBTA, transport layer: nothing but the standard is known of the peer",
        as_standard_peers,
    ),
    Scenario::new("connect/steps/receives_in_rtr", "IBTA, queue pair states: RTR takes messages", receives_in_rtr),
    Scenario::new(
        "connect/steps/established_event",
        "IBTA, asynchronous events: communication established",
        established,
    ),
    Scenario::new("connect/loop/queue_pair_to_itself", "IBTA, packet validation: loopback", to_itself),
    Scenario::new("connect/loop/two_on_one_queue", "IBTA, queue pair verbs: queues may be shared", two_on_one_queue),
    Scenario::new("connect/loop/self_read_and_write", "IBTA, packet validation: loopback", self_one_sided),
    Scenario::new("explain/failure/names_peer_and_request", "API: QueuePair::explain", explains_failure),
    Scenario::new("explain/failure/flushed_names_the_first", "API: QueuePair::explain", explains_flush)
        .needs(&[FAILURE_CAUSES]),
    Scenario::new("explain/event/refused_request", "API: QueuePair::explain_event", explains_event),
    Scenario::new("explain/state/before_and_after", "API: QueuePair::explain_state", explains_state),
];

/// Returns the attributes that INIT to RTR requires.
pub(crate) fn ready_to_receive(own: &End, peer: &End) -> QueuePairAttributes {
    let info = peer.qp.connection_info().unwrap();
    let mtu = own.context.query_port(1).unwrap().active_mtu.min(info.path_mtu);
    QueuePairAttributes::default()
        .qp_state(QueuePairState::ReadyToReceive)
        .ah_attr(address_vector(&own.context, info.gid))
        .path_mtu(mtu)
        .dest_qp_num(info.qpn)
        .rq_psn(Psn::new(0xff_fff0))
        .max_dest_rd_atomic(4)
        .min_rnr_timer(12)
}

/// Returns the attributes that RTR to RTS requires.
pub(crate) fn ready_to_send() -> QueuePairAttributes {
    QueuePairAttributes::default()
        .qp_state(QueuePairState::ReadyToSend)
        .sq_psn(Psn::new(0xff_fff0))
        .timeout(14)
        .retry_cnt(6)
        .rnr_retry(5)
        .max_rd_atomic(4)
}

fn options_arrive(world: &World) {
    let options = ConnectOptions::default()
        .timeout(13)
        .retry_cnt(3)
        .rnr_retry(2)
        .min_rnr_timer(9)
        .max_rd_atomic(5)
        .path_mtu(Mtu::Mtu512)
        .hop_limit(33)
        .traffic_class(8)
        .sl(2);
    let shape = Shape { max_dest_rd_atomic: Some(6), ..Shape::default() };
    let (left, right) = world.pair_of(&shape, &options);
    let status = left.qp.query().unwrap();
    let info = right.qp.connection_info().unwrap();
    assert_eq!(status.qp_state, QueuePairState::ReadyToSend);
    let found = status.attributes;
    let timers = (found.timeout, found.retry_cnt, found.rnr_retry, found.min_rnr_timer);
    assert_eq!(timers, (Some(13), Some(3), Some(2), Some(9)));
    let numbers = RD_ATOMIC_ROUNDED.or((Some(8), Some(8)), (Some(5), Some(6)));
    assert_eq!((found.max_rd_atomic, found.max_dest_rd_atomic), numbers);
    assert_eq!((found.path_mtu, found.dest_qp_num), (Some(Mtu::Mtu512), Some(info.qpn)));
    assert_eq!((found.rq_psn, found.port_num, found.pkey_index), (Some(info.psn), Some(1), Some(0)));
    let vector = found.ah_attr.unwrap();
    assert_eq!((vector.dgid, vector.hop_limit, vector.traffic_class, vector.sl), (info.gid, 33, 8, 2));
}

fn smaller_mtu(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    let far = right.qp.connection_info().unwrap().path_mtu(Mtu::Mtu256);
    left.qp.connect(&far).unwrap();
    assert_eq!(left.qp.query().unwrap().attributes.path_mtu, Some(Mtu::Mtu256));
}

fn not_twice(world: &World) {
    let (left, right) = world.pair();
    let far = right.qp.connection_info().unwrap();
    refused(left.qp.connect(&far), ErrorKind::InvalidState, &["connect", "RTS"]);
    right.receive(1, 0..8);
    left.post(&[SendRequest::send(Payload::EMPTY)]);
    right.received(1, 0);
    left.to_error();
    refused(left.qp.connect(&far), ErrorKind::InvalidState, &["connect", "ERR"]);
}

fn other_family(world: &World) {
    let end = world.end(0, &Shape::default());
    let own = end.qp.connection_info().unwrap();
    let other = match own.gid.to_ip() {
        std::net::IpAddr::V4(_) => "2001:db8::1",
        std::net::IpAddr::V6(_) => "192.0.2.1",
    };
    let far = own.gid(other.parse::<std::net::IpAddr>().unwrap().into());
    refused(end.qp.connect(&far), ErrorKind::InvalidArgument, &["connect", other]);
    end.is_in(QueuePairState::Reset);
}

fn without_gid(world: &World) {
    let end = world.end(0, &Shape::default());
    let far = end.qp.connection_info().unwrap().gid(rdma_verbs::verbs::Gid::ZERO);
    refused(end.qp.connect(&far), ErrorKind::InvalidArgument, &["connect", "GID"]);
    end.is_in(QueuePairState::Reset);
}

fn mtu_too_large(world: &World) {
    let end = world.end(0, &Shape::default());
    let active = end.context.query_port(1).unwrap().active_mtu;
    let Some(larger) = Mtu::ALL.iter().copied().find(|mtu| *mtu > active) else {
        // No MTU exceeds the link's, so the largest one must be accepted.
        return end
            .qp
            .connect_with(&end.qp.connection_info().unwrap(), &ConnectOptions::default().path_mtu(active))
            .unwrap();
    };
    let result = end.qp.connect_with(&end.qp.connection_info().unwrap(), &ConnectOptions::default().path_mtu(larger));
    refused(result, ErrorKind::InvalidArgument, &["path_mtu", &larger.to_string()]);
}

fn out_of_range(world: &World) {
    let default = ConnectOptions::default();
    let wrong = [
        (default.timeout(32), "timeout"),
        (default.retry_cnt(8), "retry_cnt"),
        (default.rnr_retry(8), "rnr_retry"),
        (default.min_rnr_timer(32), "min_rnr_timer"),
        (default.max_rd_atomic(255), "max_rd_atomic"),
    ];
    for (options, attribute) in wrong {
        let end = world.end(0, &Shape::default());
        let result = end.qp.connect_with(&end.qp.connection_info().unwrap(), &options);
        refused(result, ErrorKind::InvalidArgument, &["modify_qp", attribute]);
    }
}

fn info_bytes(world: &World) {
    let end = world.end(0, &Shape::default());
    let info = end.qp.connection_info().unwrap();
    assert_eq!(ConnectionInfo::from_bytes(&info.to_bytes()).unwrap(), info);
    assert_eq!((info.qpn, info.qp_type), (end.qp.qpn(), end.qp.qp_type()));
}

fn info_exchange(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let own = right.qp.connection_info().unwrap();
    let received = std::thread::scope(|scope| {
        let other = scope.spawn(|| own.exchange(&mut far).unwrap());
        let heard = left.qp.connection_info().unwrap().exchange(&mut near).unwrap();
        assert_eq!(heard, own);
        left.qp.connect(&heard).unwrap();
        other.join().unwrap()
    });
    right.qp.connect(&received).unwrap();
    right.receive(1, 0..8);
    left.post(&[SendRequest::send(Payload::inline(b"met"))]);
    right.received(1, 3);
}

fn info_nonsense(world: &World) {
    let bytes = world.end(0, &Shape::default()).qp.connection_info().unwrap().to_bytes();
    for len in 0..bytes.len() {
        assert_eq!(ConnectionInfo::from_bytes(&bytes[..len]).unwrap_err().kind(), ErrorKind::Protocol, "{len} bytes");
    }
    let mut wrong = bytes;
    wrong[0] ^= 1;
    assert_eq!(ConnectionInfo::from_bytes(&wrong).unwrap_err().kind(), ErrorKind::Protocol);
}

/// Brings both ends to RTS step by step; each end has only the standard attributes of the other.
pub(crate) fn step_by_step(left: &End, right: &End) {
    for (own, peer) in [(left, right), (right, left)] {
        own.is_in(QueuePairState::Reset);
        own.qp.init().unwrap();
        own.is_in(QueuePairState::Init);
        own.qp.modify(&ready_to_receive(own, peer)).unwrap();
        own.is_in(QueuePairState::ReadyToReceive);
    }
    for end in [left, right] {
        end.qp.modify(&ready_to_send()).unwrap();
        end.is_in(QueuePairState::ReadyToSend);
    }
}

fn one_by_one(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    step_by_step(&left, &right);
    let found = left.qp.query().unwrap().attributes;
    let expected = ready_to_send();
    assert_eq!(
        (found.retry_cnt, found.rnr_retry, found.sq_psn),
        (expected.retry_cnt, expected.rnr_retry, expected.sq_psn)
    );
    right.receive(1, 0..8);
    left.post(&[SendRequest::send(Payload::inline(b"steps")).wr_id(2).signaled()]);
    right.received(1, 5);
    left.sent(2);
}

fn as_standard_peers(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    step_by_step(&left, &right);
    super::bytes::fill(&left.region, 0, 60_000, 1);
    // The sequence numbers wrap during this message.
    left.post(&[SendRequest::write(left.at(0..60_000), right.far(0..60_000)).wr_id(1).signaled()]);
    left.written(1);
    super::bytes::check(&right.region, 0, 60_000, 1);
    right.post(&[SendRequest::read(right.at(0..60_000), left.far(0..60_000)).wr_id(2).signaled()]);
    right.read(2, 60_000);
}

fn receives_in_rtr(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    left.qp.init().unwrap();
    right.qp.init().unwrap();
    left.qp.modify(&ready_to_receive(&left, &right)).unwrap();
    right.qp.modify(&ready_to_receive(&right, &left)).unwrap();
    left.qp.modify(&ready_to_send()).unwrap();
    right.receive(1, 0..8);
    left.post(&[SendRequest::send(Payload::inline(b"rtr")).wr_id(2).signaled()]);
    right.received(1, 3);
    left.sent(2);
    right.is_in(QueuePairState::ReadyToReceive);
}

fn established(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    left.qp.init().unwrap();
    right.qp.init().unwrap();
    left.qp.modify(&ready_to_receive(&left, &right)).unwrap();
    right.qp.modify(&ready_to_receive(&right, &left)).unwrap();
    left.qp.modify(&ready_to_send()).unwrap();
    left.post(&[SendRequest::write(Payload::inline(b"first"), right.far(0..5)).wr_id(2).signaled()]);
    left.written(2);
    right.expect_established();
    left.post(&[SendRequest::write(Payload::inline(b"again"), right.far(0..5)).wr_id(3).signaled()]);
    left.written(3);
    right.no_event();
}

fn to_itself(world: &World) {
    let end = world.loopback(&Shape::default());
    for round in 0..10 {
        end.receive(round, 0..64);
        end.post(&[SendRequest::send(Payload::inline(b"to myself")).wr_id(round + 100)]);
        end.received(round, 9);
    }
    end.silent();
}

fn two_on_one_queue(world: &World) {
    let first = world.end(0, &Shape::default());
    let second = super::end::create_qp(&first.pd, &first.cq, &first.cq, &Shape::default());
    first.qp.connect(&second.connection_info().unwrap()).unwrap();
    second.connect(&first.qp.connection_info().unwrap()).unwrap();
    for round in 0..10 {
        first.receive(round, 0..8);
        second.post_send(&[SendRequest::send(Payload::EMPTY).wr_id(round + 100).signaled()]).unwrap();
        let mut seen = [first.next(), first.next()].map(|completion| {
            assert!(completion.is_success(), "{completion:?}");
            (completion.wr_id(), completion.qpn())
        });
        seen.sort();
        assert_eq!(seen, [(round, first.qp.qpn()), (round + 100, second.qpn())]);
    }
}

fn self_one_sided(world: &World) {
    let end = world.loopback(&Shape::default());
    super::bytes::fill(&end.region, 0, 9000, 1);
    end.post(&[
        SendRequest::write(end.at(0..9000), end.far(10_000..19_000)).wr_id(1).signaled(),
        SendRequest::read(end.at(20_000..29_000), end.far(10_000..19_000)).wr_id(2).signaled(),
    ]);
    end.written(1);
    end.read(2, 9000);
    super::bytes::check(&end.region, 20_000, 9000, 1);
}

fn explains_failure(world: &World) {
    let (left, right) = world.pair_of(&Shape::default(), &ConnectOptions::default().timeout(8).retry_cnt(2));
    let peer = right.qp.connection_info().unwrap().gid.to_ip().to_string();
    drop(right);
    left.post(&[SendRequest::send(Payload::EMPTY).wr_id(4711)]);
    let error = left.fails(4711, CompletionStatus::RetryExceededError);
    let text = left.qp.explain(&error);
    assert!(text.contains("4711") && text.contains(&peer), "{text}");
    assert!(error.to_string().contains("4711"), "{error}");
}

fn explains_flush(world: &World) {
    let (left, right) = world.pair();
    let other = right.region(8, rdma_verbs::verbs::AccessFlags::REMOTE_READ);
    left.post(&[
        SendRequest::write(Payload::inline(b"no"), other.remote()).wr_id(31),
        SendRequest::send(Payload::EMPTY).wr_id(32),
    ]);
    left.fails(31, CompletionStatus::RemoteAccessError);
    let flushed = left.fails(32, CompletionStatus::WorkRequestFlushedError);
    let text = left.qp.explain(&flushed);
    assert!(text.contains("31"), "the first failure is named: {text}");
}

fn explains_event(world: &World) {
    let (left, right) = world.pair();
    let other = right.region(8, rdma_verbs::verbs::AccessFlags::REMOTE_READ);
    left.post(&[SendRequest::write(Payload::inline(b"no"), other.remote()).wr_id(1)]);
    left.fails(1, CompletionStatus::RemoteAccessError);
    let event = match NO_ERROR_EVENTS.holds() {
        true => AsyncEvent::QueuePairAccessError(right.qp.qpn()),
        false => right.event(),
    };
    let text = right.qp.explain_event(&event);
    assert!(text.contains(&format!("{event:?}")) && text.len() > 60, "{text}");
}

fn explains_state(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    let before = left.qp.explain_state();
    assert!(before.contains("RESET"), "{before}");
    connect(&left, &right, &ConnectOptions::default());
    let after = left.qp.explain_state();
    assert!(after.contains("RTS") && after != before, "{after}");
}
