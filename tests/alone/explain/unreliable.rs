//! Without responses, only the end that dropped a message, or never saw it, knows of the loss.

use rdma_verbs::types::Counter;
use rdma_verbs::verbs::{
    AccessFlags, AddressVector, DropReason, Payload, Qkey, QueuePairOptions, QueuePairType, ReceiveRequest,
    RemoteMemory, Rkey, SendRequest,
};

use super::world::{End, connect};

const QKEY: Qkey = Qkey(0x1111_1111);

/// Creates two datagram queue pairs in RTS.
fn datagrams(case: u8) -> (End, End) {
    let open = |host| {
        End::with_options(
            case,
            host,
            &QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(QKEY),
        )
    };
    let ends = (open(1), open(2));
    for end in [&ends.0, &ends.1] {
        end.qp.init().unwrap();
        end.qp.bring_up_ud().unwrap();
    }
    ends
}

/// Sends a datagram with this Q_Key, and waits until the other end has counted a drop for this reason.
fn dropped(left: &End, right: &End, qkey: Qkey, reason: DropReason) -> String {
    let handle = left.pd.create_ah(&AddressVector::new(right.info().gid, 0)).unwrap();
    left.post(SendRequest::send_to(Payload::inline(b"hello"), &handle, right.qp.qpn(), qkey));
    left.succeeds();
    right.until(|right| right.qp.counters().get_drop(reason) > 0);
    right.qp.explain_state()
}

pub(crate) fn wrong_qkey(case: u8) -> String {
    let (left, right) = datagrams(case);
    let text = dropped(&left, &right, Qkey(0x2222), DropReason::BadQkey);
    assert!(text.contains("0x11111111") && !text.contains("not connected"), "{text}");
    text
}

pub(crate) fn datagram_without_receive(case: u8) -> String {
    let (left, right) = datagrams(case);
    dropped(&left, &right, QKEY, DropReason::NoReceive)
}

pub(crate) fn datagram_too_long(case: u8) -> String {
    let (left, right) = datagrams(case);
    let inbox = right.region(42);
    right.qp.post_recv(&[ReceiveRequest::new(&inbox)]).unwrap();
    dropped(&left, &right, QKEY, DropReason::ReceiveTooSmall)
}

/// A datagram to a group reaches only attached members; others see no trace of it.
pub(crate) fn group_not_attached(case: u8) -> String {
    let (left, right) = datagrams(case);
    let group = std::net::Ipv4Addr::new(239, 92, case, 1).into();
    let handle = left.pd.create_ah(&AddressVector::new(group, 0)).unwrap();
    left.post(SendRequest::send_to(Payload::EMPTY, &handle, rdma_verbs::verbs::Qpn::MULTICAST, QKEY));
    left.succeeds();
    right.until(|_| left.qp.counters().get(Counter::SentPackets) > 0);
    right.qp.explain_state()
}

/// Connects two unreliable ends.
fn unreliable(case: u8) -> (End, End) {
    let open =
        |host| End::with_options(case, host, &QueuePairOptions::default().qp_type(QueuePairType::UnreliableConnection));
    let (left, right) = (open(1), open(2));
    connect(&left, &right);
    (left, right)
}

pub(crate) fn message_without_receive(case: u8) -> String {
    let (left, right) = unreliable(case);
    left.send();
    left.succeeds();
    right.until(|right| right.qp.counters().get_drop(DropReason::NoReceive) > 0);
    right.qp.explain_state()
}

pub(crate) fn write_with_wrong_key(case: u8) -> String {
    let (left, right) = unreliable(case);
    let region = right.pd.alloc_mr(64, AccessFlags::REMOTE_READ).unwrap();
    let wrong = RemoteMemory::new(region.iova(), Rkey(region.rkey().0 ^ 0x100), 64);
    left.post(SendRequest::write(Payload::inline(b"hello"), wrong));
    left.succeeds();
    right.until(|right| right.qp.counters().get_drop(DropReason::Refused) > 0);
    right.qp.explain_state()
}
