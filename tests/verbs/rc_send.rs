//! SEND on reliable connections.

use rdma_verbs::verbs::{Payload, ReceiveRequest, RegionList, SendRequest};

use super::bytes::{check, check_all, fill};
use super::suite::Scenario;
use super::world::World;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "rc/send/bytes_and_length",
        clause: "IBTA 9.7.5.1 SEND; ibv_poll_cq(3) byte_len",
        needs: &[],
        run: bytes_and_length,
    },
    Scenario { name: "rc/send/zero_bytes", clause: "IBTA 9.7.4.1.6 zero-length messages", needs: &[], run: zero_bytes },
    Scenario {
        name: "rc/send/immediate_as_given",
        clause: "IBTA 9.4.1 immediate data; ibv_poll_cq(3) imm_data",
        needs: &[],
        run: immediate_as_given,
    },
];

fn bytes_and_length(world: &World) {
    let (left, right) = world.pair();
    fill(&left.region, 0, 1000, 1);
    right.qp.post_recv(&[ReceiveRequest::new(right.region.slice(64..2048).unwrap()).wr_id(2)]).unwrap();
    left.qp.post_send(&[SendRequest::send(left.region.slice(..1000).unwrap()).wr_id(1).signaled()]).unwrap();
    right.received(2, 1000);
    left.sent(1);
    check_all(&right.region, 0, 64, 0);
    check(&right.region, 64, 1000, 1);
    check_all(&right.region, 1064, 1024, 0);
    left.silent();
    right.silent();
}

fn zero_bytes(world: &World) {
    let (left, right) = world.pair();
    let into = right.region.slice(..8).unwrap();
    right.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY).wr_id(1), ReceiveRequest::new(into).wr_id(2)]).unwrap();
    left.qp.post_send(&[SendRequest::send(Payload::EMPTY).wr_id(3).signaled()]).unwrap();
    left.qp.post_send(&[SendRequest::send(left.region.slice(8..8).unwrap()).wr_id(4).signaled()]).unwrap();
    right.received(1, 0);
    right.received(2, 0);
    left.sent(3);
    left.sent(4);
    check_all(&right.region, 0, 64, 0);
}

fn immediate_as_given(world: &World) {
    let (left, right) = world.pair();
    let words = [0, 1, 0x0102_0304, u32::MAX];
    for (wr_id, word) in (0u64..).zip(words) {
        right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(wr_id)]).unwrap();
        left.qp.post_send(&[SendRequest::send_with_immediate(Payload::inline(b"word"), word)]).unwrap();
        right.received_with(wr_id, 4, Some(word));
    }
    left.silent();
}
