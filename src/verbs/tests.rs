//! Tests of the verbs tier alone, on a device that only records its calls.

use std::sync::{Arc, Mutex};

use super::fake::{Fake, Log, QUEUE_LIMIT};
use super::*;
use crate::types::{Operation, RawCompletion};

struct Setting {
    context: Context,
    log: Arc<Mutex<Log>>,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
}

fn setting() -> Setting {
    let (context, log) = Fake::open(1);
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16).unwrap();
    let qp = pd.create_qp(&cq, &cq).unwrap();
    Setting { context, log, pd, cq, qp }
}

const ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE;

#[track_caller]
fn refused(result: Result<()>, kind: ErrorKind, part: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(part), "\"{part}\" is not in \"{error}\"");
}

#[test]
fn requests_carry_addresses_and_keys_of_their_ranges() {
    let Setting { log, pd, qp, .. } = setting();
    let mr = pd.reg_mr_with(vec![0; 100], ACCESS, &RegisterOptions::default().iova(0x5000)).unwrap();
    let remote = RemoteMemory::new(0x9000, Rkey(9), 64);
    let ranges = [mr.slice(0..4).unwrap(), mr.slice(10..=19).unwrap(), mr.slice(100..).unwrap()];
    let request = SendRequest::write(&ranges, remote.slice(8..).unwrap()).wr_id(5);
    assert_eq!(request.byte_len(), 14);
    qp.post_send(&[request, SendRequest::send(Payload::inline(b"abc")).wr_id(6)]).unwrap();
    qp.post_recv(&[ReceiveRequest::new(&mr).wr_id(7), ReceiveRequest::new(RegionList::EMPTY)]).unwrap();

    let posted = &log.lock().unwrap().posted;
    let places: Vec<_> = posted[0].sges.iter().map(|sge| (sge.addr, sge.length, sge.lkey)).collect();
    assert_eq!(places, [(0x5000, 4, mr.lkey()), (0x500a, 10, mr.lkey()), (0x5064, 0, mr.lkey())]);
    assert_eq!(posted[0].operation, Some(Operation::Write { remote_addr: 0x9008, rkey: Rkey(9) }));
    assert_eq!((posted[1].wr_id, &posted[1].inline[..]), (6, &b"abc"[..]));
    assert_eq!((posted[2].wr_id, posted[2].sges[0].length), (7, 100));
    assert!(posted[3].sges.is_empty());
}

#[test]
fn posting_is_all_or_nothing() {
    let Setting { log, pd, qp, .. } = setting();
    let mr = pd.alloc_mr(64, ACCESS).unwrap();
    let good = SendRequest::send(&mr);
    refused(qp.post_send(&[good; QUEUE_LIMIT + 1]), ErrorKind::QueueFull, "post_send");
    let bad = SendRequest::write(&mr, RemoteMemory::new(0, Rkey(1), 63));
    refused(qp.post_send(&[good, bad]), ErrorKind::InvalidArgument, "length is 64 bytes; the peer's memory has 63");
    assert!(log.lock().unwrap().posted.is_empty());
    qp.post_send(&[good; QUEUE_LIMIT]).unwrap();
    assert_eq!(log.lock().unwrap().posted.len(), QUEUE_LIMIT);
}

#[test]
fn a_batch_can_be_dropped_and_posted_without_what_failed() {
    let Setting { log, pd, qp, .. } = setting();
    let mr = pd.alloc_mr(64, ACCESS).unwrap();
    let mut batch = qp.send_batch().unwrap();
    batch.push(&SendRequest::send(&mr)).unwrap();
    drop(batch);
    assert!(log.lock().unwrap().posted.is_empty());

    let mut batch = qp.send_batch().unwrap();
    batch.push(&SendRequest::send(&mr).wr_id(1)).unwrap();
    batch.push(&SendRequest::fetch_and_add(mr.slice(..8).unwrap(), RemoteMemory::new(4, Rkey(1), 8), 1)).unwrap_err();
    batch.push(&SendRequest::send(&mr).wr_id(2)).unwrap();
    assert_eq!(batch.len(), 2);
    batch.post().unwrap();
    let numbers: Vec<_> = log.lock().unwrap().posted.iter().map(|posted| posted.wr_id).collect();
    assert_eq!(numbers, [1, 2]);
}

#[test]
fn a_thread_does_not_wait_for_its_own_batch() {
    let Setting { qp, .. } = setting();
    let batch = qp.send_batch().unwrap();
    refused(qp.post_send(&[]), ErrorKind::InvalidState, "open batch");
    refused(qp.send_batch().map(drop), ErrorKind::InvalidState, "open batch");
    let _receives = qp.recv_batch().unwrap();
    drop(batch);
    qp.post_send(&[]).unwrap();
}

#[test]
fn only_live_regions_of_the_own_domain_with_the_needed_access_flags_are_posted() {
    let Setting { context, log, pd, qp, .. } = setting();
    let other = context.alloc_pd().unwrap().alloc_mr(64, ACCESS).unwrap();
    let text = "belongs to protection domain 2 of fake, the queue pair to 1 of fake";
    refused(qp.post_send(&[SendRequest::send(&other)]), ErrorKind::InvalidArgument, text);
    refused(qp.post_recv(&[ReceiveRequest::new(&other)]), ErrorKind::InvalidArgument, text);

    // The same number, but another opening of the device.
    let elsewhere = Fake::open(1).0.alloc_pd().unwrap().alloc_mr(64, ACCESS).unwrap();
    refused(qp.post_send(&[SendRequest::send(&elsewhere)]), ErrorKind::InvalidArgument, "protection domain");

    let read_only = pd.alloc_mr(64, AccessFlags::REMOTE_READ).unwrap();
    let remote = RemoteMemory::new(0, Rkey(1), 64);
    qp.post_send(&[SendRequest::send(&read_only)]).unwrap();
    refused(qp.post_send(&[SendRequest::read(&read_only, remote)]), ErrorKind::InvalidArgument, "LOCAL_WRITE");
    refused(qp.post_recv(&[ReceiveRequest::new(&read_only)]), ErrorKind::InvalidArgument, "LOCAL_WRITE");

    let region = pd.alloc_mr(64, ACCESS).unwrap();
    region.revoke().unwrap();
    region.revoke().unwrap();
    refused(qp.post_send(&[SendRequest::send(&region)]), ErrorKind::InvalidState, "deregistered");
    assert_eq!(log.lock().unwrap().posted.len(), 1);
}

#[test]
fn too_many_ranges_and_misaligned_atomics_are_refused() {
    let Setting { pd, qp, .. } = setting();
    let mr = pd.alloc_mr(64, ACCESS).unwrap();
    let ranges = [mr.slice(0..1).unwrap(); 65];
    refused(qp.post_send(&[SendRequest::send(&ranges)]), ErrorKind::InvalidArgument, "65 ranges were given");
    let result = mr.slice(..8).unwrap();
    for (addr, len, part) in [(12, 8, "a multiple of 8"), (16, 7, "length is 8 bytes")] {
        let remote = RemoteMemory::new(addr, Rkey(1), len);
        let swap = SendRequest::compare_and_swap(result, remote, 0, 1);
        refused(qp.post_send(&[swap]), ErrorKind::InvalidArgument, part);
    }
}

#[test]
fn slices_stay_within_their_region() {
    use std::ops::Bound;

    let Setting { pd, .. } = setting();
    let mr = pd.alloc_mr(64, ACCESS).unwrap();
    for (range, part) in [
        ((Bound::Included(0), Bound::Included(64)), "0..65"),
        ((Bound::Included(65), Bound::Unbounded), "65..64"),
        ((Bound::Included(9), Bound::Excluded(8)), "9..8"),
        ((Bound::Excluded(usize::MAX), Bound::Unbounded), "2^64..64"),
        ((Bound::Unbounded, Bound::Included(usize::MAX)), "0..2^64"),
    ] {
        refused(mr.slice(range).map(drop), ErrorKind::InvalidArgument, part);
    }
    assert!(mr.slice(64..).unwrap().is_empty());
    refused(mr.read_at(60, &mut [0; 5]), ErrorKind::InvalidArgument, "5 bytes at offset 60");
    refused(mr.write_at(usize::MAX, &[0; 5]), ErrorKind::InvalidArgument, "the region has 64 bytes");
    refused(mr.load_acquire_u64(4).map(drop), ErrorKind::InvalidArgument, "not aligned");
    refused(RemoteMemory::new(u64::MAX, Rkey(0), 9).slice(5..).map(drop), ErrorKind::InvalidArgument, "2^64");
}

#[test]
fn memory_comes_back_from_a_region() {
    let Setting { pd, .. } = setting();
    let mr = pd.reg_mr(vec![1, 2, 3, 4], ACCESS).unwrap();
    mr.write_at(1, &[9]).unwrap();
    assert_eq!(mr.dereg().unwrap().into_vec().unwrap(), [1, 9, 3, 4]);
    let boxed: Box<[u8]> = Box::new([5, 6]);
    let mr = pd.reg_mr(boxed, ACCESS).unwrap();
    assert_eq!(*mr.dereg().unwrap().into_boxed_slice().unwrap(), [5, 6]);
    let anonymous = pd.alloc_mr(4096, ACCESS).unwrap().dereg().unwrap();
    let mr = pd.reg_mr(anonymous.into_vec().unwrap_err(), ACCESS).unwrap();
    assert_eq!(mr.len(), 4096);

    let access = AccessFlags::REMOTE_WRITE;
    refused(pd.alloc_mr(64, access).map(drop), ErrorKind::InvalidArgument, "need LOCAL_WRITE");
}

#[test]
fn connecting_sets_what_both_ends_can() {
    let Setting { log, qp, .. } = setting();
    let local = qp.connection_info().unwrap();
    assert_eq!((local.path_mtu, local.max_dest_rd_atomic, local.capabilities.version), (Mtu::Mtu2048, 16, 1));
    let gid = std::net::Ipv4Addr::new(10, 0, 0, 2).into();
    let remote = ConnectionInfo {
        max_dest_rd_atomic: 4,
        ..ConnectionInfo::standard_peer(Qpn::new(0x22), Psn::new(0x333), gid, Mtu::Mtu1024)
    };
    qp.connect(&remote).unwrap();
    let modified = log.lock().unwrap().modified.clone();
    let states: Vec<_> = modified.iter().map(|attributes| attributes.qp_state.unwrap().name()).collect();
    assert_eq!(states, ["INIT", "RTR", "RTS"]);
    let [_, rtr, rts] = modified[..] else { unreachable!() };
    assert_eq!((rtr.path_mtu, rtr.dest_qp_num), (Some(Mtu::Mtu1024), Some(Qpn::new(0x22))));
    assert_eq!((rtr.rq_psn, rts.sq_psn), (Some(Psn::new(0x333)), Some(local.psn)));
    assert_eq!((rtr.max_dest_rd_atomic, rts.max_rd_atomic), (Some(16), Some(4)));
    assert_eq!(rtr.peer, Some(PeerCapabilities::STANDARD));

    refused(qp.connect(&remote), ErrorKind::InvalidState, "is in RTS");
    qp.reset().unwrap();
    assert_ne!(qp.connection_info().unwrap().psn, local.psn, "one in 16 million");
    qp.connect_with(&remote, &ConnectOptions::default().path_mtu(Mtu::Mtu256)).unwrap();
}

#[test]
fn unreachable_peers_are_named() {
    let Setting { log, qp, .. } = setting();
    let local = qp.connection_info().unwrap();
    let six: std::net::Ipv6Addr = "2001:db8::1".parse().unwrap();
    for (remote, part) in [
        (ConnectionInfo { gid: Gid::ZERO, ..local }, "is not set"),
        (ConnectionInfo { gid: six.into(), ..local }, "another IP version"),
        (ConnectionInfo { qp_type: QueuePairType::UnreliableConnection, ..local }, "qp_type is UnreliableConnection"),
    ] {
        refused(qp.connect(&remote), ErrorKind::InvalidArgument, part);
    }
    assert!(log.lock().unwrap().modified.is_empty());
}

#[test]
fn unreliable_connections_get_no_reliable_attributes() {
    let Setting { log, pd, cq, .. } = setting();
    let qp =
        pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().qp_type(QueuePairType::UnreliableConnection)).unwrap();
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    let modified = log.lock().unwrap().modified.clone();
    assert_eq!((modified[1].min_rnr_timer, modified[1].max_dest_rd_atomic), (None, None));
    assert_eq!((modified[2].timeout, modified[2].retry_cnt, modified[2].max_rd_atomic), (None, None, None));
}

#[test]
fn completions_are_polled_in_order_whatever_the_array() {
    let Setting { log, cq, .. } = setting();
    let fill = |count| {
        let numbered = (0..count).map(|wr_id| RawCompletion { wr_id, ..RawCompletion::default() });
        log.lock().unwrap().completions.extend(numbered);
    };
    for (waiting, room) in [(0, 5), (1, 1), (3, 1), (8, 8), (20, 20), (20, 9), (7, 30)] {
        fill(waiting);
        let mut out = vec![Completion::default(); room];
        let count = cq.poll(&mut out).unwrap();
        assert_eq!(count, room.min(waiting as usize));
        assert!(out[..count].iter().enumerate().all(|(at, completion)| completion.wr_id() == at as u64));
        log.lock().unwrap().completions.clear();
    }
    fill(1);
    assert_eq!(cq.wait(std::time::Duration::ZERO).unwrap().wr_id(), 0);
    refused(cq.wait(std::time::Duration::ZERO).map(drop), ErrorKind::TimedOut, "nothing completed");
    assert_eq!(cq.poll(&mut []).unwrap(), 0);
    refused(cq.req_notify(Notify::Any), ErrorKind::InvalidState, "no channel");
}

#[test]
fn objects_of_another_opening_are_refused_and_drops_destroy() {
    let Setting { context, log, pd, qp, .. } = setting();
    let stranger = Fake::open(2).0;
    let cq = stranger.create_cq(1).unwrap();
    refused(pd.create_qp(&cq, &cq).map(drop), ErrorKind::InvalidArgument, "send_cq belongs to fake");
    let channel = stranger.create_comp_channel().unwrap();
    refused(
        context.create_cq_with(1, &CompletionQueueOptions::default().channel(&channel, 0)).map(drop),
        ErrorKind::InvalidArgument,
        "the channel belongs to",
    );
    drop((context, pd));
    drop(qp);
    assert_eq!(log.lock().unwrap().destroyed, 1);
}
