//! Common parts of the datagram scenarios.

use rdma_verbs::verbs::{
    AddressHandle, Counter, DropReason, Gid, GlobalRouteHeader, Qkey, QueuePairAttributes, QueuePairState,
    QueuePairType, ReceiveRequest, SendRequest, Success,
};

use super::end::{End, Shape, address_vector, own_gid, patience};
use super::suite::Capability;
use super::world::World;

/// The default Q_Key.
pub(crate) const QKEY: Qkey = Qkey(0x1111_1111);
/// Bytes in front of each message.
pub(crate) const HEADER: usize = GlobalRouteHeader::BYTES;

/// Multicast.
pub(crate) const MAX_MCAST_GRP: Capability =
    Capability { name: "max_mcast_grp", present: |device| device.max_mcast_grp > 0 };

pub(crate) fn shape() -> Shape {
    Shape { qp_type: QueuePairType::UnreliableDatagram, ..Shape::default() }
}

/// Creates a datagram queue pair in INIT on a new context of a device.
#[track_caller]
pub(crate) fn idle(world: &World, index: usize, shape: &Shape) -> End {
    let end = world.end(index, shape);
    init(&end, QKEY);
    end
}

/// Creates a datagram queue pair in RTS on a new context of a device.
#[track_caller]
pub(crate) fn ready(world: &World, index: usize) -> End {
    let end = idle(world, index, &shape());
    end.qp.bring_up_ud().expect("INIT to RTS");
    end
}

#[track_caller]
pub(crate) fn init(end: &End, qkey: Qkey) {
    let init = to_state(INIT).pkey_index(0).port_num(1).qkey(qkey);
    end.qp.modify(&init).expect("RESET to INIT");
}

pub(crate) const INIT: QueuePairState = QueuePairState::Init;

pub(crate) fn to_state(state: QueuePairState) -> QueuePairAttributes {
    QueuePairAttributes::default().qp_state(state)
}

pub(crate) fn gid(end: &End) -> Gid {
    own_gid(&end.context)
}

/// Creates an address handle from one end to another.
#[track_caller]
pub(crate) fn address_handle(from: &End, to: &End) -> AddressHandle {
    from.pd.create_ah(&address_vector(&from.context, gid(to))).expect("create_ah")
}

/// Posts a receive with room for a message of `len` bytes, the header at `offset`.
#[track_caller]
pub(crate) fn receive(end: &End, wr_id: u64, offset: usize, len: usize) {
    let into = end.region.slice(offset..offset + HEADER + len).expect("slice");
    end.qp.post_recv(&[ReceiveRequest::new(into).wr_id(wr_id)]).expect("post_recv");
}

/// Posts one request.
#[track_caller]
pub(crate) fn post(end: &End, request: SendRequest<'_>) {
    end.qp.post_send(&[request]).expect("post_send");
}

/// Takes the next completion, which must be a datagram of `len` bytes from that queue pair.
#[track_caller]
pub(crate) fn arrived(end: &End, wr_id: u64, len: usize, from: &End) -> Success {
    let success = end.done(wr_id, rdma_verbs::verbs::CompletionOpcode::Receive);
    assert_eq!(success.byte_len as usize, HEADER + len, "byte_len counts the header");
    assert_eq!(success.source_qpn, from.qp.qpn(), "source_qpn");
    assert!(success.global_route_header, "GLOBAL_ROUTE_HEADER");
    success
}

/// Checks that the queue pair dropped exactly `count` packets for this reason; where devices do not count them, checks
/// that they have no effect.
#[track_caller]
pub(crate) fn dropped(end: &End, reason: DropReason, count: u64) {
    if !end.context.query_device().packet_counters {
        end.silent();
        return end.no_event();
    }
    let start = std::time::Instant::now();
    while end.qp.counters().get_drop(reason) < count {
        assert!(start.elapsed() < patience(), "{}: {}", reason.name(), end.qp.counters().get_drop(reason));
        end.silent();
    }
    assert_eq!(end.qp.counters().get_drop(reason), count, "{}", reason.name());
}

/// Checks how many packets were sent, where devices count them.
#[track_caller]
pub(crate) fn packets_sent(end: &End, count: u64) {
    if !end.context.query_device().packet_counters {
        return;
    }
    assert_eq!(end.qp.counters().get(Counter::SentPackets), count, "packets sent");
}

/// Returns a multicast group that nothing else uses: as unique as the device's own address, or, where scenarios share a
/// device, as the queue pair's number.
pub(crate) fn group(end: &End, number: u8) -> Gid {
    let mut bytes = gid(end).to_bytes();
    match gid(end).to_ip() {
        std::net::IpAddr::V4(own) => {
            let [_, second, third, fourth] = match own.is_loopback() {
                true => own.octets(),
                false => end.qp.qpn().value().to_be_bytes(),
            };
            // Groups of one address differ in the first two bytes: 239.192.0.0/14 is for organisations.
            let address = std::net::Ipv4Addr::new(224 + 1 + number % 14, second ^ (number / 14) << 4, third, fourth);
            address.into()
        }
        std::net::IpAddr::V6(_) => {
            bytes[..4].copy_from_slice(&[0xff, 0x15, 0, number]);
            Gid::from_bytes(bytes)
        }
    }
}
