//! No usable response arrives.

use std::net::Ipv4Addr;
use std::time::Duration;

use rdma_verbs::types::{Psn, Qpn};
use rdma_verbs::verbs::{
    ConnectionInfo, Mtu, Payload, QueuePairAttributes, QueuePairState, ReceiveRequest, RegionList, SendRequest,
};
use rdma_verbs::wire::{NakCode, Opcode, Syndrome};

use super::fake_peer::{ACK, FIRST_PSN, FakePeer};
use super::world::{End, ends, hasty, pair};

fn standard_peer_at(address: [u8; 4]) -> ConnectionInfo {
    ConnectionInfo::standard_peer(Qpn::new(0x77), Psn::new(5), Ipv4Addr::from(address).into(), Mtu::Mtu1024)
}

/// Returns why a SEND to this address fails.
fn send_to(case: u8, address: [u8; 4]) -> String {
    let end = End::open(case, 1);
    end.qp.connect_with(&standard_peer_at(address), &hasty()).unwrap();
    end.send();
    end.why()
}

pub(crate) fn no_listener(case: u8) -> String {
    send_to(case, [127, 92, case, 9])
}

pub(crate) fn unreachable_address(case: u8) -> String {
    send_to(case, [192, 0, 2, 9])
}

pub(crate) fn broadcast_address(case: u8) -> String {
    send_to(case, [127, 255, 255, 255])
}

pub(crate) fn peer_closes_its_device(case: u8) -> String {
    let (left, right) = pair(case);
    works(&left, &right);
    drop(right);
    left.send();
    left.why()
}

/// Checks that a message passes.
fn works(left: &End, right: &End) {
    right.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)]).unwrap();
    left.post(SendRequest::send(Payload::EMPTY));
    left.succeeds();
    right.succeeds();
}

pub(crate) fn wrong_queue_pair_number(case: u8) -> String {
    let (left, right) = ends(case);
    let info = right.info();
    let wrong = info.qpn(Qpn::new(info.qpn.value() ^ 1));
    left.qp.connect_with(&wrong, &hasty()).unwrap();
    right.qp.connect_with(&left.info(), &hasty()).unwrap();
    left.send();
    left.why()
}

pub(crate) fn wrong_number_on_a_responding_host(case: u8) -> String {
    let (left, right) = pair(case);
    let lost = left.another();
    let info = right.info();
    let wrong = info.qpn(Qpn::new(info.qpn.value() ^ 1));
    lost.connect_with(&wrong, &hasty()).unwrap();
    works(&left, &right);
    lost.post_send(&[SendRequest::send(Payload::EMPTY)]).unwrap();
    let failure = left.fails();
    let text = lost.explain(&failure);
    assert!(text.contains("answers other queue pairs"), "{text}");
    text
}

/// Removes the key, as for programs that exchange only the standard's attributes: with a key, every mistake in them
/// would look like packets of another sender.
fn without_key(info: ConnectionInfo) -> ConnectionInfo {
    info.key(None)
}

pub(crate) fn peer_lacks_the_key(case: u8) -> String {
    let (left, right) = ends(case);
    left.qp.connect_with(&without_key(right.info()), &hasty()).unwrap();
    right.qp.connect_with(&left.info(), &hasty()).unwrap();
    left.send();
    left.fails();
    right.qp.explain_state()
}

/// Connects two ends; the right one expects other sequence numbers than the left one uses.
fn sequence_off_by(case: u8, distance: u32) -> (End, End) {
    let (left, right) = ends(case);
    let info = left.info();
    let wrong = without_key(info.psn(info.psn.plus(distance)));
    left.qp.connect_with(&without_key(right.info()), &hasty()).unwrap();
    right.qp.connect_with(&wrong, &hasty()).unwrap();
    left.send();
    (left, right)
}

pub(crate) fn sequence_number_behind(case: u8) -> String {
    sequence_off_by(case, 100).0.why()
}

pub(crate) fn sequence_number_ahead(case: u8) -> String {
    sequence_off_by(case, (1 << 24) - 100).0.why()
}

pub(crate) fn requests_out_of_sequence(case: u8) -> String {
    let (left, right) = sequence_off_by(case, (1 << 24) - 100);
    left.fails();
    right.qp.explain_state()
}

pub(crate) fn another_hosts_gid(case: u8) -> String {
    let (left, right) = ends(case);
    let bystander = End::open(case, 3);
    let wrong = right.info().gid(bystander.info().gid);
    left.qp.connect_with(&wrong, &hasty()).unwrap();
    right.qp.connect_with(&left.info(), &hasty()).unwrap();
    right.send();
    left.send();
    left.why()
}

pub(crate) fn large_packets_vanish(case: u8) -> String {
    let (end, peer) = FakePeer::with_end(case, &hasty());
    let region = end.region(16_384);
    end.send();
    peer.respond(peer.receive(), ACK);
    end.succeeds();
    end.post(SendRequest::send(&region));
    end.why()
}

pub(crate) fn responses_are_filtered(case: u8) -> String {
    let (end, peer) = FakePeer::with_end(case, &hasty());
    end.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)]).unwrap();
    end.send();
    peer.request(FIRST_PSN);
    end.succeeds();
    // The peer ignores the acknowledgement and sends the request again.
    let text = fails_while(&end, || peer.request(FIRST_PSN));
    assert!(text.contains("repeated requests"), "{text}");
    text
}

pub(crate) fn one_loss_without_retries(case: u8) -> String {
    let (end, peer) = FakePeer::with_end(case, &hasty().retry_cnt(0));
    end.send();
    peer.respond(peer.receive(), ACK);
    end.succeeds();
    end.send();
    end.why()
}

pub(crate) fn response_after_the_last_try(case: u8) -> String {
    let (end, peer) = FakePeer::with_end(case, &hasty());
    end.send();
    let failure = end.fails();
    peer.respond(peer.receive(), ACK);
    end.until(|end| end.qp.report().unwrap().late_responses > 0);
    end.qp.explain(&failure)
}

pub(crate) fn wrong_partition(case: u8) -> String {
    let (end, peer) = FakePeer::with_end(case, &hasty());
    end.send();
    let mut response = peer.response_packet(peer.receive(), ACK);
    response.bth.pkey = 0x8123;
    peer.send(response);
    let text = end.why();
    assert!(text.contains("0x8123"), "{text}");
    text
}

pub(crate) fn damaged_packets(case: u8) -> String {
    let (end, peer) = FakePeer::with_end(case, &hasty());
    end.send();
    let response = peer.response_packet(peer.receive(), ACK);
    let mut packet = peer.packet(&response);
    // The ICRC does not cover these changed bytes of the message count; the length is right.
    packet[13] ^= 0x55;
    packet[14] ^= 0x0f;
    peer.send_bytes(&packet);
    end.why()
}

pub(crate) fn peer_responds_to_another_queue_pair(case: u8) -> String {
    let (left, right) = ends(case);
    let info = left.info();
    let wrong = info.qpn(Qpn::new(info.qpn.value() ^ 1));
    left.qp.connect_with(&without_key(right.info()), &hasty()).unwrap();
    right.qp.connect_with(&without_key(wrong), &hasty()).unwrap();
    right.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)]).unwrap();
    left.post(SendRequest::send(Payload::EMPTY));
    left.why()
}

pub(crate) fn unreliable_peer(case: u8) -> String {
    let (end, peer) = FakePeer::with_end(case, &hasty());
    end.send();
    let mut response = peer.response_packet(peer.receive(), ACK);
    response.bth.opcode = Opcode::UC_SEND_ONLY;
    peer.send(response);
    end.why()
}

pub(crate) fn another_protocol(case: u8) -> String {
    let (end, peer) = FakePeer::with_end(case, &hasty());
    end.send();
    peer.receive();
    peer.send_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    end.why()
}

pub(crate) fn peer_goes_to_error(case: u8) -> String {
    let (left, right) = pair(case);
    let (near, far) = (left.another(), right.another());
    near.connect_with(&far.connection_info().unwrap(), &hasty()).unwrap();
    far.connect_with(&near.connection_info().unwrap(), &hasty()).unwrap();
    works(&left, &right);
    let error = QueuePairAttributes::default().qp_state(QueuePairState::Error);
    right.qp.modify(&error).unwrap();
    far.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)]).unwrap();
    near.post_send(&[SendRequest::send(Payload::EMPTY).signaled()]).unwrap();
    left.succeeds();
    left.send();
    left.why()
}

pub(crate) fn losses(case: u8) -> String {
    let (end, peer) = FakePeer::with_end(case, &hasty().retry_cnt(1));
    end.send();
    let first = peer.receive();
    fails_while(&end, || peer.respond(first, Syndrome::Nak(NakCode::SequenceError)))
}

/// Returns the explanation of the next failure, while the peer keeps sending.
fn fails_while(end: &End, says: impl Fn()) -> String {
    std::thread::scope(|scope| {
        let failure = scope.spawn(|| end.fails());
        while !failure.is_finished() {
            says();
            std::thread::sleep(Duration::from_millis(1));
        }
        end.qp.explain(&failure.join().unwrap())
    })
}
