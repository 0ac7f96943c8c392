//! Requests that the peer refuses: the requester's status, the responder's event, and unchanged memory.

use rdma_verbs::verbs::{
    AccessFlags, AsyncEvent, CompletionStatus, ConnectOptions, Payload, QueuePairState, ReceiveRequest, RemoteMemory,
    Rkey, SendRequest,
};

use super::bytes::check_all;
use super::deviations::TAKEN_IS_REFUSED;
use super::end::{ALL_ACCESS, End, Shape, receive_without_memory, too_long_for_peer, too_short};
use super::suite::{ATOMIC_CAP, Scenario};
use super::world::{World, connect};

const ACCESS: &str = "IBTA, error handling: NAK remote access error";
const ACCESS_FLAGS: &str = "IBTA, memory management: access rights of the region; ibv_reg_mr(3)";
const QP_ACCESS_FLAGS: &str = "IBTA, queue pair verbs: qp_access_flags";

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("rc/refuse/write_unknown_key", ACCESS, write_unknown_key),
    Scenario::new("rc/refuse/write_wrong_key_tag", ACCESS, write_wrong_tag),
    Scenario::new("rc/refuse/write_beyond_the_end", ACCESS, write_beyond),
    Scenario::new("rc/refuse/write_before_the_start", ACCESS, write_before),
    Scenario::new("rc/refuse/write_that_wraps", ACCESS, write_that_wraps),
    Scenario::new("rc/refuse/read_unknown_key", ACCESS, read_unknown_key),
    Scenario::new("rc/refuse/read_beyond_the_end", ACCESS, read_beyond),
    Scenario::new("rc/refuse/atomic_unknown_key", ACCESS, atomic_unknown_key).needs(&[ATOMIC_CAP]),
    Scenario::new("rc/refuse/write_to_a_region_without_access_flag", ACCESS_FLAGS, write_without_access_flag),
    Scenario::new("rc/refuse/read_of_a_region_without_access_flag", ACCESS_FLAGS, read_without_access_flag),
    Scenario::new("rc/refuse/atomic_on_a_region_without_access_flag", ACCESS_FLAGS, atomic_without_access_flag)
        .needs(&[ATOMIC_CAP]),
    Scenario::new("rc/refuse/write_that_the_queue_pair_forbids", QP_ACCESS_FLAGS, qp_forbids_write),
    Scenario::new("rc/refuse/read_that_the_queue_pair_forbids", QP_ACCESS_FLAGS, qp_forbids_read),
    Scenario::new("rc/refuse/atomic_that_the_queue_pair_forbids", QP_ACCESS_FLAGS, qp_forbids_atomic)
        .needs(&[ATOMIC_CAP]),
    Scenario::new("rc/refuse/region_of_another_domain", "IBTA, protection domains", other_domain),
    Scenario::new("rc/refuse/deregistered_region", "ibv_dereg_mr(3); IBTA, memory management", deregistered),
    Scenario::new(
        "rc/refuse/region_of_another_device",
        "IBTA, memory management: keys belong to one device",
        other_device,
    ),
    Scenario::new("rc/refuse/send_longer_than_the_receive", "IBTA, reliable service; ibv_poll_cq(3)", too_long),
    Scenario::new("rc/refuse/send_longer_than_no_receive_bytes", "IBTA, work requests", longer_than_nothing),
    Scenario::new("rc/refuse/receive_memory_gone", "IBTA, error handling: remote operational error", receive_gone),
    Scenario::new(
        "rc/refuse/later_requests_are_flushed",
        "IBTA, work request processing: flush after an error",
        later_are_flushed,
    ),
    Scenario::new(
        "rc/refuse/earlier_requests_are_done",
        "IBTA, work request processing: requests before complete",
        earlier_are_done,
    ),
    Scenario::new(
        "rc/refuse/responder_flushes_its_receives",
        "IBTA, error handling: class C: to the error state",
        responder,
    ),
    Scenario::new("rc/refuse/unsignaled_failure_is_reported", "ibv_poll_cq(3): errors complete always", unsignaled),
    Scenario::new("rc/refuse/immediate_with_wrong_key", ACCESS, immediate_wrong_key),
];

/// Checks that the request is refused for its key, bounds or access, and that the responder's region is unchanged.
#[track_caller]
fn refuses_access(left: &End, right: &End, request: SendRequest<'_>) {
    right.region.write_at(0, &[0x77; 4096]).unwrap();
    left.post(&[request.wr_id(1).signaled(), SendRequest::send(Payload::EMPTY).wr_id(2)]);
    left.fails(1, CompletionStatus::RemoteAccessError);
    left.flushed([2]);
    left.is_in(QueuePairState::Error);
    right.failure_event(&[AsyncEvent::QueuePairAccessError]);
    right.becomes(QueuePairState::Error);
    check_all(&right.region, 0, 4096, 0x77);
    left.silent();
    right.silent();
}

fn other_key(right: &End, flip: u32) -> RemoteMemory {
    RemoteMemory::new(right.region.iova(), Rkey(right.region.rkey().0 ^ flip), 4096)
}

/// Returns a range that begins `from` bytes from the region's first byte; negative means before it.
fn shifted(right: &End, from: i64, len: u64) -> RemoteMemory {
    RemoteMemory::new(right.region.iova().wrapping_add_signed(from), right.region.rkey(), len)
}

fn write_unknown_key(world: &World) {
    let (left, right) = world.pair();
    refuses_access(&left, &right, SendRequest::write(left.at(0..8), other_key(&right, 0x5a5a_5a00)));
}

fn write_wrong_tag(world: &World) {
    let (left, right) = world.pair();
    refuses_access(&left, &right, SendRequest::write(left.at(0..8), other_key(&right, 1)));
}

fn write_beyond(world: &World) {
    let (left, right) = world.pair();
    let end = right.region.len() as i64;
    refuses_access(&left, &right, SendRequest::write(left.at(0..9), shifted(&right, end - 8, 9)));
}

fn write_before(world: &World) {
    let (left, right) = world.pair();
    refuses_access(&left, &right, SendRequest::write(left.at(0..8), shifted(&right, -1, 8)));
}

fn write_that_wraps(world: &World) {
    let (left, right) = world.pair();
    let remote = RemoteMemory::new(u64::MAX - 3, right.region.rkey(), 8);
    refuses_access(&left, &right, SendRequest::write(left.at(0..8), remote));
}

fn read_unknown_key(world: &World) {
    let (left, right) = world.pair();
    left.region.write_at(0, &[0x11; 64]).unwrap();
    refuses_access(&left, &right, SendRequest::read(left.at(0..64), other_key(&right, 0x5a5a_5a00)));
    check_all(&left.region, 0, 64, 0x11);
}

fn read_beyond(world: &World) {
    let (left, right) = world.pair();
    let len = right.region.len();
    left.region.write_at(0, &[0x11; 64]).unwrap();
    refuses_access(&left, &right, SendRequest::read(left.at(0..2), shifted(&right, len as i64 - 1, 2)));
    check_all(&left.region, 0, 64, 0x11);
}

fn atomic_unknown_key(world: &World) {
    let (left, right) = world.pair();
    left.region.write_at(0, &[0x11; 64]).unwrap();
    refuses_access(&left, &right, SendRequest::fetch_and_add(left.at(0..8), other_key(&right, 0x5a5a_5a00), 1));
    check_all(&left.region, 0, 64, 0x11);
}

/// Connects ends whose responder's region has only these access flags.
fn pair_with_region(world: &World, region_access: AccessFlags) -> (End, End) {
    let left = world.end(0, &Shape::default());
    let right = world.end(1, &Shape { region_access, ..Shape::default() });
    connect(&left, &right, &ConnectOptions::default());
    (left, right)
}

fn write_without_access_flag(world: &World) {
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let (left, right) = pair_with_region(world, rights);
    refuses_access(&left, &right, SendRequest::write(left.at(0..8), right.far(0..8)));
}

fn read_without_access_flag(world: &World) {
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let (left, right) = pair_with_region(world, rights);
    refuses_access(&left, &right, SendRequest::read(left.at(0..8), right.far(0..8)));
    check_all(&left.region, 0, 8, 0);
}

fn atomic_without_access_flag(world: &World) {
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let (left, right) = pair_with_region(world, rights);
    refuses_access(&left, &right, SendRequest::fetch_and_add(left.at(0..8), right.far(0..8), 1));
}

/// The responder's queue pair grants all access but one flag; its region grants all.
#[track_caller]
fn qp_forbids(world: &World, forbidden: AccessFlags) {
    let left = world.end(0, &Shape::default());
    let right = world.end(1, &Shape { access: AccessFlags::REMOTE - forbidden, ..Shape::default() });
    connect(&left, &right, &ConnectOptions::default());
    let (near, far) = (left.at(0..8), right.far(0..8));
    let request = match forbidden {
        AccessFlags::REMOTE_WRITE => SendRequest::write(near, far),
        AccessFlags::REMOTE_READ => SendRequest::read(near, far),
        _ => SendRequest::fetch_and_add(near, far, 1),
    };
    right.region.write_at(0, &[0x77; 64]).unwrap();
    left.post(&[request.wr_id(1)]);
    // The specification leaves the choice of the NAK to the responder.
    left.fails_with(1, &[CompletionStatus::RemoteAccessError, CompletionStatus::RemoteInvalidRequestError]);
    right.failure_event(&[AsyncEvent::QueuePairAccessError, AsyncEvent::QueuePairRequestError]);
    right.becomes(QueuePairState::Error);
    check_all(&right.region, 0, 64, 0x77);
    check_all(&left.region, 0, 8, 0);
}

fn qp_forbids_write(world: &World) {
    qp_forbids(world, AccessFlags::REMOTE_WRITE);
}

fn qp_forbids_read(world: &World) {
    qp_forbids(world, AccessFlags::REMOTE_READ);
}

fn qp_forbids_atomic(world: &World) {
    qp_forbids(world, AccessFlags::REMOTE_ATOMIC);
}

fn other_domain(world: &World) {
    let (left, right) = world.pair();
    let other = right.context.alloc_pd().unwrap();
    let foreign = other.alloc_mr(4096, ALL_ACCESS).unwrap();
    refuses_access(&left, &right, SendRequest::write(Payload::inline(&[1; 8]), foreign.remote()));
    check_all(&foreign, 0, 4096, 0);
}

fn deregistered(world: &World) {
    let (left, right) = world.pair();
    let gone = right.region(4096, ALL_ACCESS);
    let remote = gone.remote();
    left.post(&[SendRequest::write(Payload::inline(&[1; 8]), remote).wr_id(1).signaled()]);
    left.written(1);
    let memory = gone.dereg().unwrap();
    refuses_access(&left, &right, SendRequest::write(Payload::inline(&[2; 8]), remote));
    let again = right.pd.reg_mr(memory, ALL_ACCESS).unwrap();
    check_all(&again, 0, 8, 1);
}

fn other_device(world: &World) {
    let (left, right) = world.pair();
    let third = world.end(2, &Shape::default());
    refuses_access(&left, &right, SendRequest::write(left.at(0..8), third.far(0..8)));
    check_all(&third.region, 0, 64, 0);
}

fn too_long(world: &World) {
    let (left, right) = world.pair();
    right.region.write_at(0, &[0x77; 64]).unwrap();
    right.receive(1, 0..16);
    right.receive(2, 0..64);
    left.post(&[SendRequest::send(left.at(0..17)).wr_id(3), SendRequest::send(Payload::EMPTY).wr_id(4)]);
    right.fails(1, too_short());
    right.flushed([2]);
    left.fails(3, too_long_for_peer());
    left.flushed([4]);
    check_all(&right.region, 16, 48, 0x77);
    right.becomes(QueuePairState::Error);
}

fn longer_than_nothing(world: &World) {
    let (left, right) = world.pair();
    right.receive(1, 8..8);
    left.post(&[SendRequest::send(Payload::inline(b"!")).wr_id(3)]);
    right.fails(1, too_short());
    left.fails(3, too_long_for_peer());
    check_all(&right.region, 0, 64, 0);
}

fn receive_gone(world: &World) {
    let (left, right) = world.pair();
    let inbox = right.pd.reg_mr(vec![0x33; 64], ALL_ACCESS).unwrap();
    right.qp.post_recv(&[ReceiveRequest::new(&inbox).wr_id(1)]).unwrap();
    right.receive(2, 0..64);
    let memory = inbox.dereg().unwrap();
    left.post(&[SendRequest::send(Payload::inline(&[2; 64])).wr_id(3)]);
    right.fails(1, receive_without_memory());
    right.flushed([2]);
    left.fails(3, CompletionStatus::RemoteOperationError);
    assert_eq!(memory.into_vec().unwrap(), [0x33; 64]);
}

fn later_are_flushed(world: &World) {
    let (left, right) = world.pair();
    left.receive(90, 0..8);
    left.receive(91, 0..8);
    let bad = SendRequest::write(left.at(0..8), other_key(&right, 0x5a5a_5a00)).wr_id(0);
    let good = SendRequest::write(left.at(0..8), right.far(0..8));
    left.post(&[
        bad,
        good.wr_id(1).signaled(),
        good.wr_id(2),
        SendRequest::read(left.at(0..8), right.far(0..8)).wr_id(3),
    ]);
    left.fails(0, CompletionStatus::RemoteAccessError);
    let flushed = (0..5).map(|_| {
        let completion = left.next();
        assert_eq!(completion.status(), CompletionStatus::WorkRequestFlushedError);
        completion.wr_id()
    });
    // Completions are ordered within each queue, but not between the two queues.
    let (sends, receives): (Vec<u64>, Vec<u64>) = flushed.partition(|wr_id| *wr_id < 90);
    assert_eq!((sends, receives), (vec![1, 2, 3], vec![90, 91]));
}

fn earlier_are_done(world: &World) {
    let (left, right) = world.pair();
    right.receive(9, 100..108);
    left.post(&[
        SendRequest::write(Payload::inline(&[1; 8]), right.far(0..8)).wr_id(1).signaled(),
        SendRequest::send(Payload::inline(&[2; 8])).wr_id(2).signaled(),
        SendRequest::read(left.at(0..8), right.far(0..8)).wr_id(3).signaled(),
        SendRequest::write(left.at(0..8), other_key(&right, 0x5a5a_5a00)).wr_id(4).signaled(),
    ]);
    left.written(1);
    left.sent(2);
    left.read(3, 8);
    left.fails(4, CompletionStatus::RemoteAccessError);
    right.received(9, 8);
    check_all(&right.region, 0, 8, 1);
    check_all(&right.region, 100, 8, 2);
    check_all(&left.region, 0, 8, 1);
}

fn responder(world: &World) {
    let (left, right) = world.pair();
    (1..4).for_each(|wr_id| right.receive(wr_id, 0..8));
    left.post(&[SendRequest::read(left.at(0..8), other_key(&right, 0x5a5a_5a00)).wr_id(0)]);
    left.fails(0, CompletionStatus::RemoteAccessError);
    right.flushed(1..4);
    right.receive(4, 0..8);
    right.flushed_receive(4);
    right.post(&[SendRequest::send(Payload::EMPTY).wr_id(5)]);
    right.flushed([5]);
}

fn unsignaled(world: &World) {
    let (left, right) = world.pair();
    left.post(&[SendRequest::write(left.at(0..8), other_key(&right, 0x5a5a_5a00)).wr_id(7)]);
    left.fails(7, CompletionStatus::RemoteAccessError);
    left.silent();
}

fn immediate_wrong_key(world: &World) {
    let (left, right) = world.pair();
    right.receive(5, 0..8);
    let write = SendRequest::write_with_immediate(left.at(0..8), other_key(&right, 0x5a5a_5a00), 1).wr_id(1);
    left.post(&[write]);
    left.fails(1, CompletionStatus::RemoteAccessError);
    right.fails(5, TAKEN_IS_REFUSED.or(CompletionStatus::RemoteAccessError, CompletionStatus::LocalAccessError));
    right.silent();
}
