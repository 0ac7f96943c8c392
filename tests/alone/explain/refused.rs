//! The peer refuses, and this end explains the refusal from local information.

use rdma_verbs::verbs::{
    AccessFlags, ConnectOptions, Mtu, Payload, QueuePairOptions, ReceiveRequest, RegionList, RemoteMemory, Rkey,
    SendRequest,
};
use support::{ALL_ACCESS, PATIENCE};

use super::world::{End, connect, ends, hasty, pair};

pub(crate) fn receiver_never_posts(case: u8) -> String {
    let (left, right) = ends(case);
    left.qp.connect_with(&right.info(), &hasty().rnr_retry(3)).unwrap();
    right.qp.connect_with(&left.info(), &hasty().min_rnr_timer(5)).unwrap();
    left.send();
    left.why()
}

pub(crate) fn receiver_never_posts_for_ever(case: u8) -> String {
    let (left, _right) = pair(case);
    left.send();
    let mut text = String::new();
    // The requester is not always in the RNR wait that the peer requests, so the loop polls until it observes one.
    left.until(|left| {
        text = left.qp.explain_state();
        text.contains("without end")
    });
    text
}

pub(crate) fn wrong_key(case: u8) -> String {
    let (left, right) = pair(case);
    let region = right.region(64);
    let wrong = RemoteMemory::new(region.iova(), Rkey(region.rkey().0 ^ 0x100), 64);
    left.post(SendRequest::write(Payload::inline(b"hello"), wrong));
    left.why()
}

pub(crate) fn revoked_key(case: u8) -> String {
    let (left, right) = pair(case);
    let region = right.region(64);
    let remote = region.remote();
    left.post(SendRequest::write(Payload::inline(b"hello"), remote));
    left.succeeds();
    drop(region);
    left.post(SendRequest::write(Payload::inline(b"again"), remote));
    left.why()
}

pub(crate) fn out_of_bounds(case: u8) -> String {
    let (left, right) = pair(case);
    let region = right.region(4096);
    let too_long = RemoteMemory::new(region.iova(), region.rkey(), 1 << 20);
    left.post(SendRequest::write(Payload::inline(b"hello"), too_long));
    left.succeeds();
    left.post(SendRequest::write(Payload::inline(b"hello"), too_long.slice(4094..).unwrap()));
    left.why()
}

pub(crate) fn missing_access_flag(case: u8) -> String {
    let (left, right) = pair(case);
    let (near, far) = (left.region(64), right.pd.alloc_mr(64, AccessFlags::REMOTE_READ).unwrap());
    left.post(SendRequest::read(&near, far.remote()));
    left.succeeds();
    left.post(SendRequest::write(&near, far.remote()));
    left.why()
}

pub(crate) fn access_not_granted(case: u8) -> String {
    let (left, right) =
        (End::open(case, 1), End::with_options(case, 2, &QueuePairOptions::default().access(AccessFlags::REMOTE_READ)));
    connect(&left, &right);
    let region = right.region(64);
    left.post(SendRequest::write(Payload::inline(b"hello"), region.remote()));
    left.why()
}

pub(crate) fn receive_too_small(case: u8) -> String {
    let (left, right) = pair(case);
    let (message, inbox) = (left.region(100), right.region(10));
    right.qp.post_recv(&[ReceiveRequest::new(&inbox)]).unwrap();
    left.post(SendRequest::send(&message));
    left.why()
}

pub(crate) fn too_many_reads(case: u8) -> String {
    let (left, right) =
        (End::open(case, 1), End::with_options(case, 2, &QueuePairOptions::default().max_dest_rd_atomic(1)));
    left.qp.connect_with(&right.info(), &hasty().max_rd_atomic(8)).unwrap();
    right.qp.connect_with(&left.info(), &hasty()).unwrap();
    // So many that two requests arrive together, on any path.
    let (near, far) = (left.region(64), right.region(64));
    let reads: Vec<SendRequest<'_>> = (0..64).map(|_| SendRequest::read(&near, far.remote()).signaled()).collect();
    left.qp.post_send(&reads).unwrap();
    loop {
        if let Err(failure) = left.cq.wait(PATIENCE).unwrap().result() {
            return left.qp.explain(&failure);
        }
    }
}

/// Creates ends with different path MTUs.
fn different_path_mtu(case: u8, left_mtu: Mtu, right_mtu: Mtu) -> (End, End) {
    let (left, right) = ends(case);
    let options = |mtu| -> ConnectOptions { hasty().path_mtu(mtu) };
    left.qp.connect_with(&right.info(), &options(left_mtu)).unwrap();
    right.qp.connect_with(&left.info(), &options(right_mtu)).unwrap();
    (left, right)
}

pub(crate) fn other_path_mtu(case: u8) -> String {
    let (left, right) = different_path_mtu(case, Mtu::Mtu4096, Mtu::Mtu1024);
    let (near, far) = (left.region(16_384), right.region(16_384));
    left.post(SendRequest::write(Payload::inline(b"short"), far.remote()));
    left.succeeds();
    left.post(SendRequest::write(&near, far.remote()));
    left.why()
}

pub(crate) fn read_with_other_path_mtu(case: u8) -> String {
    let (left, right) = different_path_mtu(case, Mtu::Mtu1024, Mtu::Mtu4096);
    let (near, far) = (left.region(16_384), right.region(16_384));
    left.post(SendRequest::read(&near, far.remote()));
    left.why()
}

pub(crate) fn key_not_invalidated(case: u8) -> String {
    let (left, right) = pair(case);
    right.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)]).unwrap();
    left.post(SendRequest::send_with_invalidate(Payload::EMPTY, Rkey(0x1234_5678)));
    left.why()
}

pub(crate) fn receive_memory_gone(case: u8) -> String {
    let (left, right) = pair(case);
    let inbox = right.pd.alloc_mr(64, ALL_ACCESS).unwrap();
    right.qp.post_recv(&[ReceiveRequest::new(&inbox)]).unwrap();
    inbox.revoke().unwrap();
    left.send();
    left.why()
}
