//! A datagram's destination is an address handle, and nothing that only resembles one.

use rdma_verbs::verbs::{AddressHandle, AddressVector, Gid, Payload, Qkey, Qpn, Rkey, SendRequest};

fn no_way(qpn: Qpn, qkey: Qkey) {
    let _ = SendRequest::send_to(Payload::EMPTY, qpn, qkey);
}

fn address_instead(way: &AddressVector, qpn: Qpn, qkey: Qkey) {
    let _ = SendRequest::send_to(Payload::EMPTY, way, qpn, qkey);
}

fn gid_instead(gid: &Gid, qpn: Qpn, qkey: Qkey) {
    let _ = SendRequest::send_to(Payload::EMPTY, gid, qpn, qkey);
}

fn remote_key_instead(way: &AddressHandle, qpn: Qpn, rkey: Rkey) {
    let _ = SendRequest::send_to(Payload::EMPTY, way, qpn, rkey);
}

fn main() {}
