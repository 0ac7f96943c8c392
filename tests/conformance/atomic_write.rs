//! ATOMIC WRITE on reliable connections.

use rdma_verbs::verbs::{
    AccessFlags, AsyncEvent, CompletionOpcode, CompletionStatus, ConnectOptions, ErrorKind, Payload, QueuePairState,
    RegisterOptions, RemoteMemory, SendRequest,
};

use super::bytes::{check_all, fill};
use super::end::{End, Shape, refused};
use super::suite::{ANY_IOVA, ATOMIC_WRITE, Scenario};
use super::world::{World, connect};

const fn scenario(name: &'static str, clause: &'static str, run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs: &[ATOMIC_WRITE], run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("atomic_write/rc/eight_bytes", "IBTA, annex on memory placement; ibv_wr_atomic_write(3)", eight_bytes),
    scenario("atomic_write/rc/from_a_region", "ibv_wr_atomic_write(3)", from_a_region),
    scenario("atomic_write/rc/after_earlier_writes", "IBTA, annex on memory placement: ordering", after_earlier_writes),
    scenario("atomic_write/rc/never_torn", "IBTA, annex on memory placement: atomicity", never_torn),
    scenario(
        "atomic_write/rc/counts_against_max_rd_atomic",
        "IBTA, annex on memory placement: resources",
        counts_as_read,
    ),
    scenario("atomic_write/rc/other_lengths", "IBTA, annex on memory placement: 8 bytes", other_lengths),
    scenario("atomic_write/rc/misaligned", "IBTA, annex on memory placement: alignment", misaligned),
    scenario(
        "atomic_write/rc/misaligned_in_memory",
        "IBTA, annex on memory placement: alignment; iova",
        misaligned_in_memory,
    )
    .needs(&[ATOMIC_WRITE, ANY_IOVA]),
    scenario(
        "atomic_write/rc/region_without_access_flag",
        "IBTA, reliable service: R_Key check",
        region_without_access_flag,
    ),
    scenario(
        "atomic_write/rc/queue_pair_without_access_flag",
        "IBTA, queue pair verbs: access flags",
        queue_pair_without_access_flag,
    ),
    scenario("atomic_write/rc/beyond_the_region", "IBTA, reliable service: R_Key check", beyond_the_region),
];

fn word(value: u64) -> [u8; 8] {
    value.to_ne_bytes()
}

#[track_caller]
fn refused_by_peer(left: &End, right: &End, remote: RemoteMemory, status: CompletionStatus) {
    left.qp.post_send(&[SendRequest::atomic_write(Payload::inline(&word(1)), remote).wr_id(1)]).unwrap();
    left.fails(1, status);
    right.failure_event(&match status {
        CompletionStatus::RemoteAccessError => [AsyncEvent::QueuePairAccessError as fn(_) -> _],
        _ => [AsyncEvent::QueuePairRequestError],
    });
    right.becomes(QueuePairState::Error);
}

fn eight_bytes(world: &World) {
    let (left, right) = world.pair();
    let remote = right.region.remote().slice(64..).unwrap();
    let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
    left.qp.post_send(&[SendRequest::atomic_write(Payload::inline(&bytes), remote).wr_id(1).signaled()]).unwrap();
    left.done(1, CompletionOpcode::AtomicWrite);
    assert_eq!(right.region.to_vec(64..72).unwrap(), bytes, "the bytes' order is kept");
    check_all(&right.region, 0, 64, 0);
    check_all(&right.region, 72, 64, 0);
    left.silent();
    right.silent();
}

fn from_a_region(world: &World) {
    let (left, right) = world.pair();
    fill(&left.region, 0, 8, 3);
    let halves = [left.region.slice(4..8).unwrap(), left.region.slice(..4).unwrap()];
    let request = SendRequest::atomic_write(&halves, right.region.remote());
    left.qp.post_send(&[request.wr_id(1).signaled()]).unwrap();
    left.done(1, CompletionOpcode::AtomicWrite);
    let bytes = left.region.to_vec(..8).unwrap();
    assert_eq!(right.region.to_vec(..8).unwrap(), [&bytes[4..], &bytes[..4]].concat());
}

/// A reader that sees the word also sees all earlier writes.
fn after_earlier_writes(world: &World) {
    let (left, right) = world.pair();
    let remote = right.region.remote();
    for round in 1..=50u64 {
        fill(&left.region, 0, 30_000, round);
        left.qp
            .post_send(&[
                SendRequest::write(left.region.slice(..30_000).unwrap(), remote.slice(8..).unwrap()),
                SendRequest::atomic_write(Payload::inline(&word(round)), remote).wr_id(round).signaled(),
            ])
            .unwrap();
        while right.region.load_acquire_u64(0).unwrap() != round {
            std::thread::yield_now();
        }
        super::bytes::check(&right.region, 8, 30_000, round);
        left.done(round, CompletionOpcode::AtomicWrite);
    }
}

fn never_torn(world: &World) {
    let (left, right) = world.pair();
    let remote = right.region.remote();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut last = 0;
            while last != u64::from_ne_bytes([100; 8]) {
                last = right.region.load_acquire_u64(0).unwrap();
                let bytes = last.to_ne_bytes();
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn: {bytes:?}");
            }
        });
        for round in 1..=100u8 {
            let bytes = [round; 8];
            let request = SendRequest::atomic_write(Payload::inline(&bytes), remote);
            left.qp.post_send(&[request.wr_id(round.into()).signaled()]).unwrap();
            left.done(round.into(), CompletionOpcode::AtomicWrite);
        }
        reader.join().unwrap();
    });
}

/// More requests than may be outstanding: they wait, and none fails.
fn counts_as_read(world: &World) {
    let shape = Shape { max_dest_rd_atomic: Some(1), ..Shape::default() };
    let (left, right) = world.pair_of(&shape, &ConnectOptions::default());
    let words: Vec<[u8; 8]> = (0..40).map(word).collect();
    let remote = |index: usize| right.region.remote().slice(index * 8..).unwrap();
    let requests: Vec<_> = words
        .iter()
        .enumerate()
        .map(|(index, word)| {
            SendRequest::atomic_write(Payload::inline(word), remote(index)).wr_id(index as u64).signaled()
        })
        .collect();
    left.qp.post_send(&requests).unwrap();
    for (index, value) in (0..40u64).enumerate() {
        left.done(value, CompletionOpcode::AtomicWrite);
        assert_eq!(right.region.load_acquire_u64(index * 8).unwrap(), value);
    }
}

fn other_lengths(world: &World) {
    let (left, right) = world.pair();
    for length in [0, 1, 7, 9, 16] {
        let range = left.region.slice(..length).unwrap();
        let posted = left.qp.post_send(&[SendRequest::atomic_write(range, right.region.remote())]);
        refused(posted, ErrorKind::InvalidArgument, &["post_send", "8 bytes"]);
        let bytes = vec![0; length];
        let posted = left.qp.post_send(&[SendRequest::atomic_write(Payload::inline(&bytes), right.region.remote())]);
        refused(posted, ErrorKind::InvalidArgument, &["post_send", "8 bytes"]);
    }
    left.silent();
}

fn misaligned(world: &World) {
    let (left, right) = world.pair();
    for shift in 1..8 {
        let remote = right.region.remote().slice(shift..).unwrap();
        let posted = left.qp.post_send(&[SendRequest::atomic_write(Payload::inline(&word(1)), remote)]);
        refused(posted, ErrorKind::InvalidArgument, &["remote_addr", "multiple of 8"]);
    }
    check_all(&right.region, 0, 64, 0);
}

/// The address is a multiple of eight, but the byte behind it is not aligned.
fn misaligned_in_memory(world: &World) {
    let (left, right) = world.pair();
    let mut region = None;
    for iova in 0..8 {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let candidate =
            right.pd.reg_mr_with(vec![0; 64], access, &RegisterOptions::default().iova(0x1_0000 + iova)).unwrap();
        let first = (8 - iova as usize % 8) % 8;
        if candidate.load_acquire_u64(first).is_err() {
            region = Some((candidate, first));
            break;
        }
    }
    let (region, first) = region.expect("of eight addresses seven do not fit the memory");
    let remote = region.remote().slice(first..).unwrap();
    assert_eq!(remote.addr() % 8, 0);
    refused_by_peer(&left, &right, remote, CompletionStatus::RemoteInvalidRequestError);
    check_all(&region, 0, 64, 0);
}

fn region_without_access_flag(world: &World) {
    let (left, right) = world.pair();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let region = right.region(64, access);
    refused_by_peer(&left, &right, region.remote(), CompletionStatus::RemoteAccessError);
    check_all(&region, 0, 64, 0);
}

fn queue_pair_without_access_flag(world: &World) {
    let shape = Shape { access: AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC, ..Shape::default() };
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &shape));
    connect(&left, &right, &ConnectOptions::default());
    refused_by_peer(&left, &right, right.region.remote(), CompletionStatus::RemoteInvalidRequestError);
    check_all(&right.region, 0, 64, 0);
}

fn beyond_the_region(world: &World) {
    let (left, right) = world.pair();
    let region = right.region(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE);
    let end = RemoteMemory::new(region.iova() + 64, region.rkey(), 8);
    refused_by_peer(&left, &right, end, CompletionStatus::RemoteAccessError);
}
