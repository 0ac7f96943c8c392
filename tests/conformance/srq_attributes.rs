//! Shared receive queues: sizes, limits and their event.

use rdma_verbs::verbs::{
    ConnectOptions, ErrorKind, QueuePairOptions, ReceiveRequest, SharedReceiveQueue, SharedReceiveQueueAttributes,
    SharedReceiveQueueOptions, SharedReceiveQueueStatus,
};

use super::deviations::LIMIT_LATE;
use super::device::MODEST;
use super::end::refused;
use super::sharing::{MAX_SRQ, ROOM, Sharing};
use super::suite::Scenario;
use super::world::World;

const fn scenario(name: &'static str, clause: &'static str, run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs: &[MAX_SRQ], run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("srq/create/as_requested", "ibv_create_srq(3), ibv_query_srq(3): actual values", as_requested),
    scenario("srq/create/no_receives", "ibv_create_srq(3) max_wr", no_receives),
    scenario("srq/create/above_max_srq_wr", "ibv_query_device(3) max_srq_wr", above_max_srq_wr),
    scenario("srq/create/above_max_srq_sge", "ibv_query_device(3) max_srq_sge", above_max_srq_sge),
    scenario("srq/create/limit_above_size", "ibv_modify_srq(3) srq_limit", limit_above_size),
    scenario("srq/create/numbers_differ", "ibv_get_srq_num(3)", numbers_differ),
    scenario("srq/create/largest", "ibv_query_device(3): limits can be reached", largest),
    scenario("srq/create_qp/receive_sizes_ignored", "ibv_create_qp(3): max_recv_wr is ignored", sizes_ignored),
    scenario("srq/create_qp/of_another_device", "ibv_create_qp(3)", of_another_device),
    scenario("srq/modify/grow", "ibv_modify_srq(3) IBV_SRQ_MAX_WR", grow),
    scenario("srq/modify/shrink", "ibv_modify_srq(3) IBV_SRQ_MAX_WR", shrink),
    scenario("srq/modify/below_waiting", "rdma-core: resize or EINVAL", below_waiting),
    scenario("srq/modify/out_of_range", "ibv_modify_srq(3) IBV_SRQ_MAX_WR", out_of_range),
    scenario("srq/modify/all_or_nothing", "ibv_modify_srq(3)", all_or_nothing),
    scenario("srq/modify/nothing", "ibv_modify_srq(3)", nothing),
    scenario("srq/modify/in_open_batch", "rdma-verbs: a batch belongs to its thread", in_open_batch),
    scenario("srq/modify/below_armed_limit", "Linux rxe; ibv_modify_srq(3)", below_armed_limit),
    scenario("srq/limit/fires_once", "IBTA chapter Shared Receive Queue; rdma-core: one-shot", fires_once),
    scenario("srq/limit/armed_again", "ibv_modify_srq(3) IBV_SRQ_LIMIT", armed_again),
    scenario("srq/limit/not_at_the_limit", "IBTA chapter Shared Receive Queue: below, not at", not_at_the_limit),
    scenario("srq/limit/at_once_if_below", "IBTA chapter Shared Receive Queue: SRQ limit", at_once_if_below),
    scenario("srq/limit/disarmed", "ibv_modify_srq(3): 0 disarms", disarmed),
    scenario("srq/limit/from_creation", "IBTA chapter Shared Receive Queue", from_creation),
    scenario("srq/limit/above_size", "ibv_modify_srq(3)", arm_above_size),
    scenario("srq/limit/survives_resize", "ibv_modify_srq(3)", survives_resize),
];

const fn size(max_wr: u32) -> SharedReceiveQueueAttributes {
    SharedReceiveQueueAttributes { max_wr: Some(max_wr), srq_limit: None }
}

const fn limit(srq_limit: u32) -> SharedReceiveQueueAttributes {
    SharedReceiveQueueAttributes { max_wr: None, srq_limit: Some(srq_limit) }
}

/// Checks that the queue is as large as one created for `max_wr` receives, which may be larger than that.
#[track_caller]
fn assert_status(sharing: &Sharing, max_wr: u32, srq_limit: u32) {
    let created = sharing.pd.create_srq(max_wr, 4).unwrap().query().unwrap();
    assert!(created.max_wr >= max_wr && created.max_sge >= 4, "{created:?}");
    assert_eq!(sharing.srq.query().unwrap(), SharedReceiveQueueStatus { srq_limit, ..created });
}

/// Checks that, with `waiting` receives posted, the queue takes exactly the rest of its size. Returns that number.
#[track_caller]
fn fill_up(sharing: &Sharing, waiting: u32) -> u32 {
    let count = sharing.srq.query().unwrap().max_wr - waiting;
    let room = sharing.inbox.slice(..ROOM).unwrap();
    (0..count).for_each(|_| sharing.srq.post_recv(&[ReceiveRequest::new(room)]).unwrap());
    refused(sharing.srq.post_recv(&[ReceiveRequest::new(room)]), ErrorKind::QueueFull, &["full"]);
    count
}

fn as_requested(world: &World) {
    let pd = world.device(0).alloc_pd().unwrap();
    let status =
        pd.create_srq_with(100, 3, &SharedReceiveQueueOptions::default().srq_limit(7)).unwrap().query().unwrap();
    assert!(status.max_wr >= 100 && status.max_sge >= 3, "{status:?}");
    assert_eq!(status.srq_limit, 7);
}

fn no_receives(world: &World) {
    let pd = world.device(0).alloc_pd().unwrap();
    refused(pd.create_srq(0, 1), ErrorKind::InvalidArgument, &["create_srq", "max_wr", "0"]);
}

fn above_max_srq_wr(world: &World) {
    let context = world.device(0);
    let most = context.query_device().max_srq_wr;
    let built = context.alloc_pd().unwrap().create_srq(most + 1, 1);
    refused(built, ErrorKind::InvalidArgument, &["create_srq", "max_wr", &(most + 1).to_string(), &most.to_string()]);
}

fn above_max_srq_sge(world: &World) {
    let context = world.device(0);
    let most = context.query_device().max_srq_sge;
    let built = context.alloc_pd().unwrap().create_srq(1, most + 1);
    refused(built, ErrorKind::InvalidArgument, &["create_srq", "max_sge", &(most + 1).to_string(), &most.to_string()]);
}

fn limit_above_size(world: &World) {
    let pd = world.device(0).alloc_pd().unwrap();
    refused(
        pd.create_srq_with(8, 1, &SharedReceiveQueueOptions::default().srq_limit(9)),
        ErrorKind::InvalidArgument,
        &["srq_limit", "9", "8"],
    );
}

fn numbers_differ(world: &World) {
    let pd = world.device(0).alloc_pd().unwrap();
    let queues: Vec<_> = (0..50).map(|_| pd.create_srq(1, 1).unwrap()).collect();
    let mut numbers: Vec<_> = queues.iter().map(SharedReceiveQueue::number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 50);
}

fn largest(world: &World) {
    let context = world.device(0);
    let limits = context.query_device();
    let most = limits.max_srq_wr.min(MODEST);
    let srq = context.alloc_pd().unwrap().create_srq(most, limits.max_srq_sge).unwrap();
    let status = srq.query().unwrap();
    assert!(status.max_wr >= most && status.max_sge >= limits.max_srq_sge, "{status:?}");
}

fn sizes_ignored(world: &World) {
    let sharing = Sharing::new(world, 0);
    let too_many = sharing.context.query_device().max_qp_wr;
    let options = QueuePairOptions::default().max_recv_wr(too_many).srq(&sharing.srq);
    let cap = sharing.pd.create_qp_with(&sharing.cq, &sharing.cq, &options).unwrap().cap();
    assert_eq!((cap.max_recv_wr, cap.max_recv_sge), (0, 0));
}

fn of_another_device(world: &World) {
    let (one, other) = (world.device(0), world.device(1));
    let srq = other.alloc_pd().unwrap().create_srq(4, 1).unwrap();
    let (pd, cq) = (one.alloc_pd().unwrap(), one.create_cq(4).unwrap());
    refused(
        pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().srq(&srq)),
        ErrorKind::InvalidArgument,
        &["create_qp", "srq", other.name()],
    );
}

fn grow(world: &World) {
    let sharing = Sharing::with(world, 1, &ConnectOptions::default(), 2, &SharedReceiveQueueOptions::default());
    sharing.post([0, 1]);
    sharing.srq.modify(&size(5)).unwrap();
    assert_status(&sharing, 5, 0);
    sharing.post([2, 3, 4]);
    for wr_id in 0..5 {
        sharing.send(0, b"kept");
        sharing.received(wr_id, 0, b"kept");
    }
    fill_up(&sharing, 0);
}

fn shrink(world: &World) {
    let sharing = Sharing::new(world, 1);
    sharing.post(0..3);
    sharing.send(0, b"first");
    sharing.received(0, 0, b"first");
    sharing.srq.modify(&size(2)).unwrap();
    assert_status(&sharing, 2, 0);
    let others = fill_up(&sharing, 2);
    for wr_id in 1..3 {
        sharing.send(0, b"kept");
        sharing.received(wr_id, 0, b"kept");
    }
    fill_up(&sharing, others);
}

fn below_waiting(world: &World) {
    let sharing = Sharing::new(world, 1);
    sharing.post(0..5);
    refused(sharing.srq.modify(&size(2)), ErrorKind::InvalidArgument, &["modify_srq", "max_wr is 2"]);
    assert_status(&sharing, 16, 0);
    for wr_id in 0..5 {
        sharing.send(0, b"untouched");
        sharing.received(wr_id, 0, b"untouched");
    }
}

fn out_of_range(world: &World) {
    let sharing = Sharing::new(world, 0);
    let most = sharing.context.query_device().max_srq_wr;
    refused(sharing.srq.modify(&size(0)), ErrorKind::InvalidArgument, &["modify_srq", "max_wr", "0"]);
    let too_much = (most + 1).to_string();
    refused(sharing.srq.modify(&size(most + 1)), ErrorKind::InvalidArgument, &["modify_srq", "max_wr", &too_much]);
    assert_status(&sharing, 16, 0);
}

fn all_or_nothing(world: &World) {
    let sharing = Sharing::new(world, 0);
    let wrong_limit = SharedReceiveQueueAttributes { max_wr: Some(8), srq_limit: Some(9) };
    refused(sharing.srq.modify(&wrong_limit), ErrorKind::InvalidArgument, &["modify_srq", "srq_limit is 9", "8"]);
    assert_status(&sharing, 16, 0);
    sharing.post(0..5);
    let both = SharedReceiveQueueAttributes { max_wr: Some(8), srq_limit: Some(4) };
    sharing.srq.modify(&both).unwrap();
    assert_status(&sharing, 8, 4);
    let wrong_size = SharedReceiveQueueAttributes { max_wr: Some(2), srq_limit: Some(1) };
    refused(sharing.srq.modify(&wrong_size), ErrorKind::InvalidArgument, &["max_wr is 2"]);
    assert_status(&sharing, 8, 4);
    sharing.no_event();
}

fn nothing(world: &World) {
    let sharing =
        Sharing::with(world, 0, &ConnectOptions::default(), 4, &SharedReceiveQueueOptions::default().srq_limit(2));
    sharing.srq.modify(&SharedReceiveQueueAttributes::default()).unwrap();
    assert_status(&sharing, 4, 2);
    sharing.no_event();
}

fn in_open_batch(world: &World) {
    let sharing = Sharing::new(world, 1);
    let batch = sharing.srq.recv_batch().unwrap();
    refused(sharing.srq.modify(&size(8)), ErrorKind::InvalidState, &["modify_srq", "open batch"]);
    drop(batch);
    sharing.srq.modify(&size(8)).unwrap();
    sharing.works(0, 1);
}

fn below_armed_limit(world: &World) {
    let sharing = Sharing::new(world, 0);
    sharing.post(0..3);
    sharing.srq.modify(&limit(3)).unwrap();
    sharing.srq.modify(&size(3)).unwrap();
    assert_status(&sharing, 3, 3);
    sharing.srq.modify(&size(16)).unwrap();
    sharing.post(3..10);
    sharing.srq.modify(&limit(10)).unwrap();
    refused(sharing.srq.modify(&size(9)), ErrorKind::InvalidArgument, &["modify_srq"]);
    assert_status(&sharing, 16, 10);
    sharing.no_event();
}

fn fires_once(world: &World) {
    let sharing = Sharing::new(world, 2);
    sharing.post(0..4);
    sharing.srq.modify(&limit(3)).unwrap();
    sharing.no_event();
    for wr_id in 0..4 {
        sharing.send(wr_id as usize % 2, b"down");
        sharing.received(wr_id, wr_id as usize % 2, b"down");
    }
    sharing.limit_reached();
    assert_status(&sharing, 16, 0);
    sharing.no_event();
}

fn armed_again(world: &World) {
    let sharing = Sharing::new(world, 1);
    for _ in 0..3 {
        sharing.post([0, 1]);
        sharing.srq.modify(&limit(1)).unwrap();
        sharing.send(0, b"one");
        sharing.received(0, 0, b"one");
        assert_status(&sharing, 16, 1);
        sharing.send(0, b"two");
        sharing.received(1, 0, b"two");
        sharing.limit_reached();
    }
    sharing.no_event();
}

fn not_at_the_limit(world: &World) {
    let sharing = Sharing::new(world, 1);
    sharing.post(0..3);
    sharing.srq.modify(&limit(2)).unwrap();
    sharing.send(0, b"two are left");
    sharing.received(0, 0, b"two are left");
    sharing.no_event();
    sharing.send(0, b"one is left");
    sharing.received(1, 0, b"one is left");
    sharing.limit_reached();
}

fn at_once_if_below(world: &World) {
    let sharing = Sharing::new(world, 0);
    sharing.post([0]);
    sharing.srq.modify(&limit(2)).unwrap();
    if LIMIT_LATE.holds() {
        assert_status(&sharing, 16, 2);
        return sharing.no_event();
    }
    sharing.limit_reached();
    assert_status(&sharing, 16, 0);
    sharing.no_event();
}

fn disarmed(world: &World) {
    let sharing = Sharing::new(world, 1);
    sharing.post([0]);
    sharing.srq.modify(&limit(1)).unwrap();
    sharing.srq.modify(&limit(0)).unwrap();
    assert_status(&sharing, 16, 0);
    sharing.send(0, b"last");
    sharing.received(0, 0, b"last");
    sharing.no_event();
}

fn from_creation(world: &World) {
    let sharing =
        Sharing::with(world, 1, &ConnectOptions::default(), 4, &SharedReceiveQueueOptions::default().srq_limit(2));
    sharing.no_event();
    sharing.post([0, 1]);
    sharing.send(0, b"one is left");
    sharing.received(0, 0, b"one is left");
    sharing.limit_reached();
}

fn arm_above_size(world: &World) {
    let sharing = Sharing::new(world, 0);
    let most = sharing.srq.query().unwrap().max_wr;
    let names = ["modify_srq", &format!("srq_limit is {}", most + 1), &most.to_string()];
    refused(sharing.srq.modify(&limit(most + 1)), ErrorKind::InvalidArgument, &names);
    assert_status(&sharing, 16, 0);
    sharing.no_event();
}

fn survives_resize(world: &World) {
    let sharing = Sharing::new(world, 1);
    sharing.post([0, 1]);
    sharing.srq.modify(&limit(2)).unwrap();
    sharing.srq.modify(&size(32)).unwrap();
    assert_status(&sharing, 32, 2);
    sharing.send(0, b"below");
    sharing.received(0, 0, b"below");
    sharing.limit_reached();
}
