//! Multicast.

use rdma_verbs::verbs::{DropReason, ErrorKind, Gid, GlobalRouteHeader, Payload, Qkey, Qpn, QueuePair, SendRequest};

use super::end::{End, address_vector, create_qp};
use super::suite::Scenario;
use super::ud::{HEADER, MAX_MCAST_GRP, QKEY, arrived, dropped, gid, group, idle, init, post, ready, receive, shape};
use super::world::World;

macro_rules! scenarios {
    ($($name:ident: $clause:literal;)*) => {
        pub(crate) const SCENARIOS: &[Scenario] = &[$(Scenario {
            name: concat!("ud/multicast/", stringify!($name)),
            clause: $clause,
            needs: &[MAX_MCAST_GRP],
            run: $name,
        },)*];
    };
}

scenarios! {
    member_receives: "IBTA, multicast; ibv_attach_mcast(3)";
    members_on_several_devices: "IBTA, multicast: every attached queue pair gets a copy";
    members_on_one_device: "IBTA, multicast: the adapter copies to its own queue pairs";
    members_of_several_openings: "API: multicast groups get their own receive sockets";
    others_receive_nothing: "IBTA, multicast: only attached queue pairs";
    groups_are_separate: "IBTA, multicast: by group";
    attached_sender_receives_its_own: "rdma-core: loopback of own multicast";
    detached_sender_receives_nothing: "rdma-core: loopback of own multicast to other members";
    attached_twice_is_one_copy: "Linux ib_uverbs_attach_mcast: a repetition does nothing";
    detached_receives_nothing: "ibv_detach_mcast(3)";
    detached_without_being_attached: "ibv_detach_mcast(3) EINVAL";
    connected_queue_pair_refused: "IBTA, queue pair verbs: unreliable datagram only";
    address_of_one_receiver_refused: "Linux ib_attach_mcast: multicast GIDs only";
    wrong_qkey_drops_that_copy: "Linux rxe: members whose Q_Key matches";
    full_member_harms_no_other: "IBTA, multicast: copies are independent";
    destroyed_member_harms_no_other: "IBTA, queue pair verbs: destroying detaches";
    reset_stays_attached: "IBTA, multicast: attachment is no attribute of the state";
    number_of_one_queue_pair_dropped: "IBTA, packet validation: multicast packets are for 0xffffff";
    immediate_and_header: "Linux rxe: the header names the group";
    reply_goes_to_the_sender: "ibv_create_ah_from_wc(3)";
    joining_again_after_leaving: "ibv_attach_mcast(3), ibv_detach_mcast(3)";
    most_members_of_a_group: "ibv_query_device(3) max_mcast_qp_attach";
    most_groups: "ibv_query_device(3) max_mcast_grp";
}

#[track_caller]
fn send(from: &End, to: Gid, bytes: &[u8]) {
    let ah = from.pd.create_ah(&address_vector(&from.context, to)).expect("create_ah");
    post(from, SendRequest::send_to(Payload::inline(bytes), &ah, Qpn::MULTICAST, QKEY));
}

/// Checks that the message arrived, once.
#[track_caller]
fn arrived_once(end: &End, wr_id: u64, bytes: &[u8], from: &End) {
    arrived(end, wr_id, bytes.len(), from);
    assert_eq!(end.region.to_vec(HEADER..HEADER + bytes.len()).unwrap(), bytes);
    end.silent();
}

/// Creates an end in RTS that is attached and has a receive posted.
#[track_caller]
fn member(world: &World, index: usize, to: Gid) -> End {
    let end = ready(world, index);
    end.qp.attach_mcast(to).expect("attach_mcast");
    receive(&end, 1, 0, 64);
    end
}

fn member_receives(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let member = member(world, 1, to);
    send(&sender, to, b"all");
    arrived_once(&member, 1, b"all", &sender);
}

fn members_on_several_devices(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let members = [1, 2, 3].map(|index| member(world, index, to));
    send(&sender, to, b"all of you");
    members.iter().for_each(|member| arrived_once(member, 1, b"all of you", &sender));
}

/// Creates another datagram queue pair of an end, in RTS, with the same queues.
fn another(end: &End) -> QueuePair {
    let qp = create_qp(&end.pd, &end.cq, &end.cq, &shape());
    let settings = end.qp.query().unwrap().attributes;
    let mut attributes = super::ud::to_state(super::ud::INIT);
    (attributes.pkey_index, attributes.port_num, attributes.qkey) = (Some(0), Some(1), settings.qkey);
    qp.modify(&attributes).unwrap();
    qp.bring_up_ud().unwrap();
    qp
}

fn members_on_one_device(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let first = member(world, 1, to);
    let second = another(&first);
    second.attach_mcast(to).unwrap();
    let into = first.region.slice(1000..1064).unwrap();
    second.post_recv(&[rdma_verbs::verbs::ReceiveRequest::new(into).wr_id(2)]).unwrap();
    send(&sender, to, b"two");
    let mut numbers = [first.next(), first.next()].map(|completion| {
        assert_eq!(completion.result().unwrap().byte_len as usize, HEADER + 3);
        (completion.wr_id(), completion.qpn())
    });
    numbers.sort_unstable();
    assert_eq!(numbers, [(1, first.qp.qpn()), (2, second.qpn())]);
    assert_eq!(first.region.to_vec(1000..1064).unwrap(), first.region.to_vec(..64).unwrap());
    first.silent();
}

fn members_of_several_openings(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let members = [1, 1, 0].map(|index| member(world, index, to));
    send(&sender, to, b"again");
    members.iter().for_each(|member| arrived_once(member, 1, b"again", &sender));
}

fn others_receive_nothing(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let (member, other) = (member(world, 1, to), ready(world, 1));
    receive(&other, 1, 0, 64);
    send(&sender, to, b"not you");
    arrived_once(&member, 1, b"not you", &sender);
    other.silent();
}

fn groups_are_separate(world: &World) {
    let sender = ready(world, 0);
    let (one, two) = (group(&sender, 0), group(&sender, 1));
    let members = [member(world, 1, one), member(world, 1, two)];
    send(&sender, two, b"second");
    arrived_once(&members[1], 1, b"second", &sender);
    send(&sender, one, b"first");
    arrived_once(&members[0], 1, b"first", &sender);
    members[1].silent();
}

fn attached_sender_receives_its_own(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    sender.qp.attach_mcast(to).unwrap();
    receive(&sender, 1, 0, 64);
    send(&sender, to, b"echo");
    arrived_once(&sender, 1, b"echo", &sender);
}

fn detached_sender_receives_nothing(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let member = member(world, 1, to);
    receive(&sender, 1, 0, 64);
    send(&sender, to, b"no echo");
    arrived_once(&member, 1, b"no echo", &sender);
    sender.silent();
}

fn attached_twice_is_one_copy(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let member = member(world, 1, to);
    member.qp.attach_mcast(to).unwrap();
    receive(&member, 2, 100, 64);
    send(&sender, to, b"once");
    arrived_once(&member, 1, b"once", &sender);
    member.qp.detach_mcast(to).unwrap();
    assert!(member.qp.detach_mcast(to).is_err(), "one detach ends both");
}

fn detached_receives_nothing(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let (gone, member) = (member(world, 1, to), member(world, 2, to));
    gone.qp.detach_mcast(to).unwrap();
    send(&sender, to, b"gone?");
    arrived_once(&member, 1, b"gone?", &sender);
    gone.silent();
}

fn refused(result: rdma_verbs::verbs::Result<()>, verb: &str, word: &str) {
    let error = result.expect_err("a refusal");
    assert_eq!((error.verb(), error.kind()), (verb, ErrorKind::InvalidArgument), "{error}");
    assert!(error.to_string().contains(word), "\"{word}\" is not in \"{error}\"");
}

fn detached_without_being_attached(world: &World) {
    let end = ready(world, 0);
    refused(end.qp.detach_mcast(group(&end, 0)), "detach_mcast", "not attached");
    end.qp.attach_mcast(group(&end, 0)).unwrap();
    refused(end.qp.detach_mcast(group(&end, 1)), "detach_mcast", "not attached");
}

fn connected_queue_pair_refused(world: &World) {
    let (left, _right) = world.pair();
    refused(left.qp.attach_mcast(group(&left, 0)), "attach_mcast", "qp_type");
    refused(left.qp.detach_mcast(group(&left, 0)), "detach_mcast", "qp_type");
}

fn address_of_one_receiver_refused(world: &World) {
    let end = ready(world, 0);
    for address in [gid(&end), Gid::ZERO] {
        refused(end.qp.attach_mcast(address), "attach_mcast", "gid");
    }
}

fn wrong_qkey_drops_that_copy(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let other = world.end(1, &shape());
    init(&other, Qkey(9));
    other.qp.bring_up_ud().unwrap();
    other.qp.attach_mcast(to).unwrap();
    receive(&other, 1, 0, 64);
    let member = member(world, 1, to);
    send(&sender, to, b"keyed");
    arrived_once(&member, 1, b"keyed", &sender);
    dropped(&other, DropReason::BadQkey, 1);
}

fn full_member_harms_no_other(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let full = ready(world, 1);
    full.qp.attach_mcast(to).unwrap();
    let member = member(world, 1, to);
    send(&sender, to, b"room");
    arrived_once(&member, 1, b"room", &sender);
    dropped(&full, DropReason::NoReceive, 1);
}

fn destroyed_member_harms_no_other(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let first = member(world, 1, to);
    let second = another(&first);
    second.attach_mcast(to).unwrap();
    drop(second);
    send(&sender, to, b"left");
    arrived_once(&first, 1, b"left", &sender);
}

fn reset_stays_attached(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let member = member(world, 1, to);
    member.qp.reset().unwrap();
    init(&member, QKEY);
    member.qp.bring_up_ud().unwrap();
    receive(&member, 2, 0, 64);
    send(&sender, to, b"back");
    arrived_once(&member, 2, b"back", &sender);
}

fn number_of_one_queue_pair_dropped(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let member = member(world, 1, to);
    let ah = sender.pd.create_ah(&address_vector(&sender.context, to)).unwrap();
    post(&sender, SendRequest::send_to(Payload::inline(b"one"), &ah, member.qp.qpn(), QKEY));
    dropped(&member, DropReason::WrongAddress, 1);
    send(&sender, to, b"all");
    arrived_once(&member, 1, b"all", &sender);
}

fn immediate_and_header(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let member = member(world, 1, to);
    let mut vector = address_vector(&sender.context, to);
    vector.hop_limit = 5;
    let ah = sender.pd.create_ah(&vector).unwrap();
    post(&sender, SendRequest::send_to_with_immediate(Payload::EMPTY, &ah, Qpn::MULTICAST, QKEY, 0xabc));
    assert_eq!(arrived(&member, 1, 0, &sender).immediate, Some(0xabc));
    let bytes = member.region.to_vec(..HEADER).unwrap();
    let header = GlobalRouteHeader::from_bytes(bytes.first_chunk().unwrap()).unwrap();
    assert_eq!((Gid::from(header.source), Gid::from(header.destination)), (gid(&sender), to));
    assert_eq!(header.hop_limit, 5);
}

fn reply_goes_to_the_sender(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let member = member(world, 1, to);
    receive(&sender, 2, 0, 64);
    send(&sender, to, b"who?");
    let completion = member.next();
    let header = member.region.to_vec(..HEADER).unwrap();
    let back = member.pd.create_ah_from_completion(&completion, &header, 1).unwrap();
    assert_eq!(back.address_vector().dgid, gid(&sender));
    post(&member, SendRequest::send_to(Payload::inline(b"me"), &back, completion.result().unwrap().source_qpn, QKEY));
    arrived(&sender, 2, 2, &member);
}

fn joining_again_after_leaving(world: &World) {
    let sender = ready(world, 0);
    let to = group(&sender, 0);
    let member = member(world, 1, to);
    for _ in 0..20 {
        member.qp.detach_mcast(to).unwrap();
        member.qp.attach_mcast(to).unwrap();
    }
    send(&sender, to, b"here");
    arrived_once(&member, 1, b"here", &sender);
}

fn most_members_of_a_group(world: &World) {
    let end = idle(world, 0, &shape());
    let most = end.context.query_device().max_mcast_qp_attach;
    let to = group(&end, 0);
    let members: Vec<QueuePair> = (0..most).map(|_| create_qp(&end.pd, &end.cq, &end.cq, &shape())).collect();
    members.iter().for_each(|member| member.attach_mcast(to).expect("up to max_mcast_qp_attach"));
    let error = end.qp.attach_mcast(to).unwrap_err();
    assert!(error.kind() == ErrorKind::ResourceLimit, "{error}");
    assert!(error.to_string().contains("max_mcast_qp_attach"), "{error}");
    drop(members);
    end.qp.attach_mcast(to).unwrap();
}

fn most_groups(world: &World) {
    let end = idle(world, 0, &shape());
    let most = end.context.query_device().max_mcast_grp.min(150) as u8;
    (0..most).for_each(|number| end.qp.attach_mcast(group(&end, number)).expect("up to max_mcast_grp"));
    if end.context.query_device().max_mcast_grp > u32::from(most) {
        return;
    }
    let error = end.qp.attach_mcast(group(&end, most)).unwrap_err();
    assert!(error.kind() == ErrorKind::ResourceLimit && error.to_string().contains("max_mcast_grp"), "{error}");
    end.qp.detach_mcast(group(&end, 0)).unwrap();
    end.qp.attach_mcast(group(&end, most)).unwrap();
}
