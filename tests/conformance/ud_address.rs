//! Address handles and the route header.

use rdma_verbs::verbs::{
    AddressHandle, AddressVector, ErrorKind, Gid, GlobalRouteHeader, Payload, Result, SendRequest,
};

use super::deviations::{HEADER_CHECKSUM, HOP_LIMIT_OF_ROUTE};
use super::end::{End, address_vector};
use super::suite::Scenario;
use super::ud::{HEADER, QKEY, address_handle, arrived, gid, post, ready, receive};
use super::world::World;

macro_rules! scenarios {
    ($($name:ident: $clause:literal;)*) => {
        pub(crate) const SCENARIOS: &[Scenario] = &[$(
            Scenario { name: concat!("ud/ah/", stringify!($name)), clause: $clause, needs: &[], run: $name },
        )*];
    };
}

scenarios! {
    query_returns_creation_attributes: "IBTA, address handle verbs: query address handle";
    unset_address_refused: "rdma-core: non-global AV on RoCE (pyverbs test_create_ah_roce)";
    port_refused: "rdma-core: port_num";
    gid_index_refused: "rdma-core: sgid_index must exist";
    flow_label_refused: "IBTA, network layer: a flow label has 20 bits";
    service_level_refused: "IBTA, link layer: a service level has 4 bits";
    destroyed_after_posting: "IBTA, address handle verbs: requests posted before keep what they need";
    outlives_queue_pairs: "IBTA, address handle verbs: belongs to the protection domain";
    many_of_them: "rdma-core: objects come and go";
    header_has_the_addresses: "Linux rxe: UD receive area";
    reply: "ibv_create_ah_from_wc(3)";
    reply_keeps_traffic_class: "ibv_init_ah_from_wc(3)";
    no_reply_to_a_send: "ibv_init_ah_from_wc(3): needs IBV_WC_GRH";
    no_reply_to_a_connection: "ibv_init_ah_from_wc(3): needs IBV_WC_GRH";
    no_reply_to_other_bytes: "Linux rxe: the header's checksum decides";
    no_reply_to_few_bytes: "Linux rxe: 40 bytes";
    no_reply_to_messages_of_others: "ibv_init_ah_from_wc(3): the receiver must be a GID here";
}

fn refused(result: Result<AddressHandle>, word: &str) {
    let error = result.expect_err("a refusal");
    assert_eq!((error.verb(), error.kind()), ("create_ah", ErrorKind::InvalidArgument), "{error}");
    assert!(error.to_string().contains(word), "\"{word}\" is not in \"{error}\"");
}

fn query_returns_creation_attributes(world: &World) {
    let end = ready(world, 0);
    let mut vector = address_vector(&end.context, gid(&end));
    (vector.traffic_class, vector.hop_limit, vector.flow_label, vector.sl) = (0x28, 9, 0xf_ffff, 15);
    let ah = end.pd.create_ah(&vector).unwrap();
    assert_eq!(ah.address_vector(), vector);
}

fn unset_address_refused(world: &World) {
    let end = world.end(0, &super::ud::shape());
    refused(end.pd.create_ah(&address_vector(&end.context, Gid::ZERO)), "dgid");
}

fn port_refused(world: &World) {
    let end = world.end(0, &super::ud::shape());
    for port_num in [0, 200] {
        refused(end.pd.create_ah(&address_vector(&end.context, gid(&end)).port_num(port_num)), "port_num");
    }
}

fn gid_index_refused(world: &World) {
    let end = world.end(0, &super::ud::shape());
    refused(end.pd.create_ah(&AddressVector::new(gid(&end), u8::MAX)), "sgid_index");
}

fn flow_label_refused(world: &World) {
    let end = world.end(0, &super::ud::shape());
    refused(end.pd.create_ah(&address_vector(&end.context, gid(&end)).flow_label(1 << 20)), "flow_label");
}

fn service_level_refused(world: &World) {
    let end = world.end(0, &super::ud::shape());
    refused(end.pd.create_ah(&address_vector(&end.context, gid(&end)).sl(16)), "sl");
}

fn destroyed_after_posting(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    for wr_id in 0..20 {
        receive(&right, wr_id, wr_id as usize * 64, 8);
        let ah = address_handle(&left, &right);
        let bytes = wr_id.to_ne_bytes();
        post(&left, SendRequest::send_to(Payload::inline(&bytes), &ah, right.qp.qpn(), QKEY));
        drop(ah);
    }
    for wr_id in 0..20 {
        arrived(&right, wr_id, 8, &left);
    }
}

fn outlives_queue_pairs(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    let End { qp, pd, cq, region, context } = left;
    drop(qp);
    let qp = super::end::create_qp(&pd, &cq, &cq, &super::ud::shape());
    let left = End { qp, pd, cq, region, context };
    super::ud::init(&left, QKEY);
    left.qp.bring_up_ud().unwrap();
    receive(&right, 1, 0, 64);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY));
    arrived(&right, 1, 0, &left);
}

fn many_of_them(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let vector = address_vector(&left.context, gid(&right));
    for _ in 0..10 {
        let handles: Vec<AddressHandle> = (0..100).map(|_| left.pd.create_ah(&vector).unwrap()).collect();
        assert!(handles.iter().all(|handle| handle.address_vector().dgid == vector.dgid));
    }
}

/// Sends one message with this address vector and returns the header in front of it.
fn header_of(left: &End, right: &End, vector: &AddressVector) -> GlobalRouteHeader {
    receive(right, 1, 0, 64);
    let ah = left.pd.create_ah(vector).unwrap();
    post(left, SendRequest::send_to(Payload::inline(b"abc"), &ah, right.qp.qpn(), QKEY));
    arrived(right, 1, 3, left);
    parsed(&right.region.to_vec(..HEADER).unwrap())
}

/// Parses the header of a received datagram.
#[track_caller]
fn parsed(bytes: &[u8]) -> GlobalRouteHeader {
    let mut bytes: [u8; HEADER] = bytes.try_into().unwrap();
    if HEADER_CHECKSUM.holds() {
        assert!(GlobalRouteHeader::from_bytes(&bytes).is_none(), "the checksum is right");
        let (head, sum) = bytes[20..].split_at_mut(10);
        sum[..2].fill(0);
        let words = head.chunks(2).chain(sum.chunks(2)).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let total: u32 = words.sum();
        let folded = (total & 0xffff) + (total >> 16);
        sum[..2].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    }
    GlobalRouteHeader::from_bytes(&bytes).expect("a header with a valid checksum")
}

fn header_has_the_addresses(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let mut vector = address_vector(&left.context, gid(&right));
    (vector.traffic_class, vector.hop_limit) = (0x20, 7);
    let header = header_of(&left, &right, &vector);
    assert_eq!((Gid::from(header.source), Gid::from(header.destination)), (gid(&left), gid(&right)));
    assert_eq!((header.traffic_class, header.hop_limit), (0x20, HOP_LIMIT_OF_ROUTE.or(64, 7)));
    // UDP header, base and datagram headers, three bytes and their padding, ICRC.
    assert_eq!(header.udp_bytes, 8 + 12 + 8 + 4 + 4);
    if header.source.is_ipv4() {
        assert_eq!(right.region.to_vec(..20).unwrap(), [0; 20]);
    }
}

fn reply(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    receive(&right, 1, 0, 64);
    receive(&left, 2, 0, 64);
    post(&left, SendRequest::send_to(Payload::inline(b"ping"), &ah, right.qp.qpn(), QKEY));
    let completion = right.next();
    let header = right.region.to_vec(..HEADER).unwrap();
    let back = right.pd.create_ah_from_completion(&completion, &header, 1).unwrap();
    assert_eq!(
        (back.address_vector().dgid, back.address_vector().sgid_index),
        (gid(&left), right.context.default_gid_index(1).unwrap())
    );
    let asker = completion.result().unwrap().source_qpn;
    post(&right, SendRequest::send_to(Payload::inline(b"pong"), &back, asker, QKEY));
    arrived(&left, 2, 4, &right);
    assert_eq!(left.region.to_vec(HEADER..HEADER + 4).unwrap(), b"pong");
}

fn reply_keeps_traffic_class(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    receive(&right, 1, 0, 64);
    let there = address_vector(&left.context, gid(&right)).traffic_class(0x48);
    let ah = left.pd.create_ah(&there).unwrap();
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY));
    let completion = right.next();
    let back = right.pd.create_ah_from_completion(&completion, &right.region.to_vec(..HEADER).unwrap(), 1).unwrap();
    assert_eq!(back.address_vector().traffic_class, 0x48);
}

fn no_reply_to_a_send(world: &World) {
    let left = ready(world, 0);
    let ah = address_handle(&left, &left);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, left.qp.qpn(), QKEY).signaled());
    refused(left.pd.create_ah_from_completion(&left.next(), &[0; HEADER], 1), "GLOBAL_ROUTE_HEADER");
}

fn no_reply_to_a_connection(world: &World) {
    let (left, right) = world.pair();
    right.qp.post_recv(&[rdma_verbs::verbs::ReceiveRequest::new(&right.region)]).unwrap();
    left.qp.post_send(&[SendRequest::send(Payload::inline(&[0x60; HEADER]))]).unwrap();
    let bytes = [0x60; HEADER];
    refused(right.pd.create_ah_from_completion(&right.next(), &bytes, 1), "GLOBAL_ROUTE_HEADER");
}

/// Returns the completion of a received datagram, with its header.
fn received(world: &World) -> (End, rdma_verbs::verbs::Completion, Vec<u8>) {
    let end = ready(world, 0);
    let ah = address_handle(&end, &end);
    receive(&end, 1, 0, 64);
    post(&end, SendRequest::send_to(Payload::EMPTY, &ah, end.qp.qpn(), QKEY));
    let completion = end.next();
    let header = end.region.to_vec(..HEADER).unwrap();
    (end, completion, header)
}

fn no_reply_to_other_bytes(world: &World) {
    let (end, completion, _) = received(world);
    refused(end.pd.create_ah_from_completion(&completion, &[0; HEADER], 1), "grh");
    refused(end.pd.create_ah_from_completion(&completion, &[0x45; HEADER], 1), "grh");
}

fn no_reply_to_few_bytes(world: &World) {
    let (end, completion, header) = received(world);
    refused(end.pd.create_ah_from_completion(&completion, &header[..HEADER - 1], 1), "39 bytes");
    refused(end.pd.create_ah_from_completion(&completion, &header, 2), "port_num");
    assert!(end.pd.create_ah_from_completion(&completion, &header, 1).is_ok());
}

fn no_reply_to_messages_of_others(world: &World) {
    let (end, completion, header) = received(world);
    let mut parsed = parsed(&header);
    parsed.destination = match parsed.destination.is_ipv4() {
        true => [192, 0, 2, 1].into(),
        false => "2001:db8::1".parse().unwrap(),
    };
    refused(end.pd.create_ah_from_completion(&completion, &parsed.to_bytes(), 1), "no GID here");
}
