//! The fault is local, or this end refuses the request.

use std::fs::File;

use rdma_verbs::verbs::{
    AccessFlags, Memory, Mtu, Payload, QueuePairAttributes, QueuePairOptions, QueuePairState, ReceiveRequest,
    RegionList, RemoteMemory, Rkey, SendRequest,
};
use support::ALL_ACCESS;

use super::fake_peer::FakePeer;
use super::world::{End, connect, ends, hasty, pair};

/// Returns the right end's explanation when the left one writes to this memory.
fn written_to(left: &End, right: &End, remote: RemoteMemory) -> String {
    left.post(SendRequest::write(Payload::inline(b"hello"), remote));
    left.fails();
    right.why_event()
}

pub(crate) fn refuses_wrong_key(case: u8) -> String {
    let (left, right) = pair(case);
    let region = right.region(64);
    written_to(&left, &right, RemoteMemory::new(region.iova(), Rkey(region.rkey().0 ^ 0x100), 64))
}

pub(crate) fn refuses_other_domain(case: u8) -> String {
    let (left, right) = pair(case);
    let region = right.context.alloc_pd().unwrap().alloc_mr(64, ALL_ACCESS).unwrap();
    written_to(&left, &right, region.remote())
}

pub(crate) fn refuses_out_of_bounds(case: u8) -> String {
    let (left, right) = pair(case);
    let region = right.region(64);
    written_to(&left, &right, RemoteMemory::new(region.iova() + 62, region.rkey(), 64))
}

/// The refusal flushes the posted receive, whose explanation gives the reason.
pub(crate) fn refuses_missing_access_flag(case: u8) -> String {
    let (left, right) = pair(case);
    let region = right.pd.alloc_mr(64, AccessFlags::REMOTE_READ).unwrap();
    right.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)]).unwrap();
    left.post(SendRequest::write(Payload::inline(b"hello"), region.remote()));
    left.fails();
    right.why()
}

pub(crate) fn refuses_long_message(case: u8) -> String {
    let (left, right) = pair(case);
    let inbox = right.region(2);
    right.qp.post_recv(&[ReceiveRequest::new(&inbox)]).unwrap();
    left.post(SendRequest::send(Payload::inline(b"hello")));
    right.why()
}

pub(crate) fn refuses_ungranted_access(case: u8) -> String {
    let (left, right) =
        (End::open(case, 1), End::with_options(case, 2, &QueuePairOptions::default().access(AccessFlags::REMOTE_READ)));
    connect(&left, &right);
    let region = right.region(64);
    written_to(&left, &right, region.remote())
}

pub(crate) fn refuses_other_path_mtu(case: u8) -> String {
    let (left, right) = ends(case);
    left.qp.connect_with(&right.info(), &hasty().path_mtu(Mtu::Mtu4096)).unwrap();
    right.qp.connect_with(&left.info(), &hasty().path_mtu(Mtu::Mtu1024)).unwrap();
    let (message, inbox) = (left.region(16_384), right.region(16_384));
    right.qp.post_recv(&[ReceiveRequest::new(&inbox)]).unwrap();
    left.post(SendRequest::send(&message));
    left.fails();
    right.why_event()
}

pub(crate) fn own_memory_deregistered(case: u8) -> String {
    let (end, peer) = FakePeer::with_end(case, &hasty().retry_cnt(7));
    let region = end.region(64);
    end.post(SendRequest::send(&region));
    peer.receive();
    // The peer is silent, so the request is sent again after its memory is gone.
    region.revoke().unwrap();
    end.why()
}

pub(crate) fn file_truncated(case: u8) -> String {
    let end = End::open(case, 1);
    end.qp.connect(&end.info()).unwrap();
    let path = std::env::temp_dir().join(format!("rdma-verbs-explain-{}", std::process::id()));
    let file = File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    file.set_len(8_192).unwrap();
    let memory = Memory::file(&file, 0, 8_192, true).unwrap();
    let region = end.pd.reg_mr(memory, AccessFlags::LOCAL_WRITE).unwrap();
    file.set_len(0).unwrap();
    std::fs::remove_file(&path).unwrap();
    end.post(SendRequest::send(&region));
    end.why()
}

pub(crate) fn earlier_failure(case: u8) -> String {
    let (left, right) = pair(case);
    let region = right.region(64);
    let wrong = RemoteMemory::new(region.iova(), Rkey(region.rkey().0 ^ 0x100), 64);
    left.post(SendRequest::write(Payload::inline(b"hello"), wrong).wr_id(7));
    left.post(SendRequest::send(Payload::EMPTY).wr_id(8));
    let first = left.fails();
    let second = left.fails();
    assert_eq!((first.wr_id, second.wr_id), (7, 8));
    let text = left.qp.explain(&second);
    assert!(text.contains("request 7") && text.contains("no region of the peer has key"), "{text}");
    text
}

pub(crate) fn application_ends_it(case: u8) -> String {
    let (left, right) = pair(case);
    right.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)]).unwrap();
    let error = QueuePairAttributes::default().qp_state(QueuePairState::Error);
    right.qp.modify(&error).unwrap();
    drop(left);
    right.why()
}

pub(crate) fn completion_queue_overflows(case: u8) -> String {
    let end = End::open(case, 1);
    let small = end.context.create_cq(1).unwrap();
    let qp = end.pd.create_qp(&small, &end.cq).unwrap();
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    let region = end.region(64);
    for _ in 0..=small.cqe() {
        qp.post_send(&[SendRequest::write(Payload::inline(b"x"), region.remote()).signaled()]).unwrap();
    }
    qp.explain_event(&end.event())
}

pub(crate) fn no_timeout(case: u8) -> String {
    let (end, peer) = FakePeer::with_end(case, &hasty().timeout(0));
    end.send();
    peer.receive();
    end.qp.explain_state()
}

pub(crate) fn no_read_credits(case: u8) -> String {
    let (left, right) = ends(case);
    left.qp.connect_with(&right.info(), &hasty().max_rd_atomic(0)).unwrap();
    right.qp.connect_with(&left.info(), &hasty()).unwrap();
    let (near, far) = (left.region(64), right.region(64));
    left.post(SendRequest::read(&near, far.remote()));
    left.until(|left| left.qp.report().unwrap().oldest.is_some());
    left.qp.explain_state()
}
