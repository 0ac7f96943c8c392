//! Attributes of devices, ports and GID tables, and shapes of queue pairs that creation refuses.

use rdma_verbs::verbs::{
    self, ErrorKind, LinkLayer, LinkSpeed, LinkWidth, Mtu, PortState, QueuePairCapabilities, QueuePairOptions,
    QueuePairState, QueuePairType,
};

use super::end::{Shape, create_qp, refused};
use super::suite::{PACKET_COUNTERS, Scenario};
use super::world::World;

const QUERY_DEVICE: &str = "IBTA, device verbs: query HCA; ibv_query_device(3)";
const QUERY_PORT: &str = "IBTA, device verbs; ibv_query_port(3)";
const CREATE_QP: &str = "IBTA, queue pair verbs: create queue pair; ibv_create_qp(3)";

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("device/query/limits_are_there", QUERY_DEVICE, limits),
    Scenario::new("device/query/guids", QUERY_DEVICE, guids),
    Scenario::new("device/query/same_result_twice", QUERY_DEVICE, same_twice),
    Scenario::new("device/open/twice", "ibv_open_device(3)", opened_twice),
    Scenario::new("device/open/unknown_name", "ibv_open_device(3)", unknown_name),
    Scenario::new("device/list/names_can_be_opened", "ibv_get_device_list(3)", list),
    Scenario::new("device/port/active", QUERY_PORT, port),
    Scenario::new("device/port/other_numbers", QUERY_PORT, other_ports),
    Scenario::new("device/gid/first_is_usable", "ibv_query_gid_ex(3)", first_gid),
    Scenario::new("device/gid/table", "ibv_query_gid_table(3)", gid_table),
    Scenario::new("device/gid/beyond_the_table", "ibv_query_gid_ex(3) EINVAL", gid_beyond),
    Scenario::new("device/gid/empty_entry", "ibv_query_gid_ex(3) ENODATA", gid_empty),
    Scenario::new("device/port/width_and_speed", QUERY_PORT, width_and_speed),
    Scenario::new("device/pkey/table", "ibv_query_pkey(3)", pkey_table),
    Scenario::new("device/event/none_when_nothing_happens", "ibv_get_async_event(3)", no_event),
    Scenario::new("device/counters/count_packets", "API: Context::counters", counters).needs(&[PACKET_COUNTERS]),
    Scenario::new("qp/create/in_reset", CREATE_QP, in_reset),
    Scenario::new("qp/create/numbers_differ", CREATE_QP, numbers_differ),
    Scenario::new("qp/create/capabilities_at_least_as_requested", CREATE_QP, at_least),
    Scenario::new("qp/create/smallest", CREATE_QP, smallest),
    Scenario::new("qp/create/too_many_send_requests", CREATE_QP, too_many_sends),
    Scenario::new("qp/create/too_many_receives", CREATE_QP, too_many_receives),
    Scenario::new("qp/create/too_many_sges", CREATE_QP, too_many_sges),
    Scenario::new("qp/create/too_much_inline", "ibv_create_qp(3): refused, not clamped", too_much_inline),
    Scenario::new("qp/create/at_the_limits", CREATE_QP, at_the_limits),
    Scenario::new("qp/create/query_returns_capabilities", "ibv_query_qp(3) init_attr.cap", query_cap),
    Scenario::new("qp/create/accessors", CREATE_QP, accessors),
];

fn limits(world: &World) {
    let device = world.device(0).query_device();
    let counts = [device.max_qp, device.max_qp_wr, device.max_sge, device.max_sge_rd, device.max_cq, device.max_cqe];
    assert!(counts.iter().all(|count| *count > 0), "{device:?}");
    assert!(device.max_mr > 0 && device.max_pd > 0 && device.max_mr_size > 4096 && device.page_size_cap >= 4096);
    assert!(device.max_qp_rd_atom > 0 && device.max_qp_init_rd_atom > 0 && device.max_pkeys > 0);
    assert!(device.phys_port_cnt >= 1 && device.num_comp_vectors >= 1);
    assert!(device.supported_access.contains(super::end::ALL_ACCESS));
}

fn guids(world: &World) {
    let (one, other) = (world.device(0).query_device(), world.device(1).query_device());
    assert!(one.node_guid != 0 && one.sys_image_guid != 0 && one.vendor.vendor_id != 0);
    assert!(world.name(0) == world.name(1) || one.node_guid != other.node_guid, "two devices share a GUID");
}

fn same_twice(world: &World) {
    let context = world.device(0);
    assert_eq!(context.query_device(), context.query_device());
    assert_eq!(context.query_port(1).unwrap(), context.query_port(1).unwrap());
    assert_eq!(context.query_gid(1, 0).unwrap(), context.query_gid(1, 0).unwrap());
}

fn opened_twice(world: &World) {
    let (first, second) = (world.end(0, &Shape::default()), world.end(0, &Shape::default()));
    assert_eq!(first.context.name(), second.context.name());
    super::world::connect(&first, &second, &verbs::ConnectOptions::default());
    second.receive(1, 0..8);
    first.post(&[verbs::SendRequest::send(verbs::Payload::inline(b"hi")).wr_id(2).signaled()]);
    second.received(1, 2);
    first.sent(2);
    drop(first);
    second.is_in(QueuePairState::ReadyToSend);
}

fn unknown_name(_: &World) {
    for name in ["no_such_device_0", "", "soft:", "soft:nonsense"] {
        let error = verbs::open(name).expect_err("there is no such device");
        assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidArgument), "{name}: {error}");
    }
}

fn list(_: &World) {
    let devices = verbs::devices().unwrap();
    assert!(!devices.is_empty());
    for device in devices {
        let context = device.open().unwrap();
        assert_eq!(context.name(), device.name());
        assert!(!context.gid_table(1).unwrap().is_empty(), "{} has no GID", device.name());
    }
}

fn port(world: &World) {
    let port = world.device(0).query_port(1).unwrap();
    assert_eq!(port.state, PortState::Active);
    assert!(port.active_mtu <= port.max_mtu && Mtu::ALL.contains(&port.active_mtu));
    assert!(port.gid_tbl_len > 0 && port.pkey_tbl_len > 0 && port.max_msg_sz >= 1 << 20, "{port:?}");
}

/// Programs choose devices by the product of the two, and refuse unknown codes.
fn width_and_speed(world: &World) {
    let port = world.device(0).query_port(1).unwrap();
    let megabits = port.active_width.lanes() * port.active_speed.megabits();
    assert!((2_500..=2_400_000).contains(&megabits), "{port:?}");
    assert!(LinkWidth::ALL.contains(&port.active_width) && (port.active_width as u8).is_power_of_two());
    assert!(LinkSpeed::ALL.contains(&port.active_speed) && (port.active_speed as u16).is_power_of_two());
    // On Ethernet, peers are reached by GIDs only.
    assert!(port.link_layer == LinkLayer::InfiniBand || port.lid == 0, "{port:?}");
}

fn pkey_table(world: &World) {
    let context = world.device(0);
    let length = context.query_port(1).unwrap().pkey_tbl_len;
    assert_eq!(context.query_pkey(1, 0).unwrap(), 0xffff, "the default partition, full member");
    let names = ["query_pkey", "pkey_index", &length.to_string()];
    refused(context.query_pkey(1, length), ErrorKind::InvalidArgument, &names);
    refused(context.query_pkey(2, 0), ErrorKind::InvalidArgument, &["query_pkey", "port_num", "2"]);
    let most = context.query_device().max_pkeys;
    assert!(most >= length, "max_pkeys is {most}, the port has {length}");
}

fn other_ports(world: &World) {
    let context = world.device(0);
    let last = context.query_device().phys_port_cnt;
    for port_num in [0, last + 1, u8::MAX] {
        let names = ["port_num", &port_num.to_string()];
        refused(context.query_port(port_num), ErrorKind::InvalidArgument, &names);
        refused(context.query_gid(port_num, 0), ErrorKind::InvalidArgument, &names);
        refused(context.gid_table(port_num), ErrorKind::InvalidArgument, &names);
    }
}

fn first_gid(world: &World) {
    let context = world.device(0);
    let index = context.default_gid_index(1).unwrap();
    let entry = context.query_gid(1, index).unwrap();
    assert!(!entry.gid.is_zero() && entry.gid_index == index);
    assert_eq!(context.find_gid(1, entry.gid).unwrap(), index);
    let end = world.end(0, &Shape::default());
    assert_eq!(end.qp.connection_info().unwrap().gid, entry.gid);
}

fn gid_table(world: &World) {
    let context = world.device(0);
    let table = context.gid_table(1).unwrap();
    assert!(table.len() <= context.query_port(1).unwrap().gid_tbl_len as usize);
    for entry in &table {
        assert_eq!(context.query_gid(1, entry.gid_index).unwrap(), *entry);
    }
}

/// An empty entry below the table's length is distinguished from an index beyond it, and cannot be used.
fn gid_empty(world: &World) {
    let context = world.device(0);
    let (length, used) = (context.query_port(1).unwrap().gid_tbl_len, context.gid_table(1).unwrap());
    let is_empty = |index: &u8| used.iter().all(|entry| entry.gid_index != *index);
    let empty = (0..=u8::MAX).take(length as usize).find(is_empty).expect("an unused entry");
    let names = ["query_gid", "gid_index", &empty.to_string(), "empty"];
    refused(context.query_gid(1, empty), ErrorKind::NotFound, &names);
    let end = world.end(0, &Shape::default());
    let info = end.qp.connection_info().unwrap();
    let qp = end.pd.create_qp_with(&end.cq, &end.cq, &QueuePairOptions::default().gid_index(empty)).unwrap();
    let error = qp.connect(&info).expect_err("no packet can come from an empty entry");
    assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidArgument), "{error}");
}

fn gid_beyond(world: &World) {
    let context = world.device(0);
    let names = ["query_gid", "gid_index", "255"];
    let is_empty = context.query_port(1).unwrap().gid_tbl_len > u8::MAX.into();
    let kind = if is_empty { ErrorKind::NotFound } else { ErrorKind::InvalidArgument };
    refused(context.query_gid(1, u8::MAX), kind, &names);
    let strange = std::net::Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, 6);
    refused(context.find_gid(1, strange.into()), ErrorKind::NotFound, &["find_gid", "2001:db8"]);
}

fn no_event(world: &World) {
    let (left, right) = world.pair();
    right.receive(1, 0..8);
    left.post(&[verbs::SendRequest::send(verbs::Payload::EMPTY).signaled()]);
    left.sent(0);
    right.received(1, 0);
    left.no_event();
    right.no_event();
}

fn counters(world: &World) {
    use verbs::Counter::{ReceivedPackets, SentBytes, SentPackets};
    let (left, right) = world.pair();
    let (before, qp_before) = (left.context.counters(), left.qp.counters());
    left.post(&[verbs::SendRequest::write(left.at(0..10_000), right.far(0..10_000)).signaled()]);
    left.written(0);
    let (since, of_qp) = (left.context.counters().since(&before), left.qp.counters().since(&qp_before));
    assert!(since.get(SentPackets) >= 3 && since.get(SentBytes) >= 10_000, "{since:?}");
    assert!(of_qp.get(SentPackets) >= 3 && of_qp.get(ReceivedPackets) >= 1, "{of_qp:?}");
    assert!(right.qp.counters().get(ReceivedPackets) >= 3);
}

fn in_reset(world: &World) {
    let end = world.end(0, &Shape::default());
    end.is_in(QueuePairState::Reset);
    let status = end.qp.query().unwrap();
    assert!(!status.sq_draining);
    assert_eq!((status.attributes.dest_qp_num, status.attributes.path_mtu), (None, None));
}

fn numbers_differ(world: &World) {
    let end = world.end(0, &Shape::default());
    let others: Vec<_> = (0..50).map(|_| create_qp(&end.pd, &end.cq, &end.cq, &Shape::default())).collect();
    let mut numbers: Vec<_> = others.iter().map(|qp| qp.qpn()).chain([end.qp.qpn()]).collect();
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), 51);
    assert!(numbers.iter().all(|qpn| qpn.value() > 1 && qpn.value() < 0xff_ffff));
}

fn caps(change: impl Fn(&mut QueuePairCapabilities)) -> Shape {
    let mut cap = Shape::default().cap;
    change(&mut cap);
    Shape { cap, ..Shape::default() }
}

fn at_least(world: &World) {
    for requested in [1, 3, 7, 100] {
        let end = world.end(
            0,
            &caps(|cap| {
                cap.max_send_wr = requested;
                cap.max_recv_wr = requested * 2;
                cap.max_send_sge = 1 + requested % 5;
                cap.max_recv_sge = 1 + requested % 3;
                cap.max_inline_data = requested * 2;
            }),
        );
        let cap = end.qp.cap();
        assert!(
            cap.max_send_wr >= requested && cap.max_recv_wr >= requested * 2 && cap.max_inline_data >= requested * 2
        );
        assert!(cap.max_send_sge > requested % 5 && cap.max_recv_sge > requested % 3, "{cap:?}");
    }
}

fn smallest(world: &World) {
    let shape = Shape {
        cap: QueuePairCapabilities {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        ..Shape::default()
    };
    let (left, right) = world.pair_of(&shape, &verbs::ConnectOptions::default());
    for round in 0..5 {
        right.receive(round, 0..8);
        left.post(&[verbs::SendRequest::send(left.at(0..3)).wr_id(round).signaled()]);
        right.received(round, 3);
        left.sent(round);
    }
}

/// Checks that creating a queue pair of this shape is refused for the attribute.
#[track_caller]
fn refuses(world: &World, attribute: &str, limit: u32, change: impl Fn(&mut QueuePairCapabilities)) {
    let context = world.device(0);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let cap = caps(change).cap;
    let options = QueuePairOptions::default().max_send_wr(cap.max_send_wr).max_recv_wr(cap.max_recv_wr);
    let options = options.max_send_sge(cap.max_send_sge).max_recv_sge(cap.max_recv_sge);
    let result = pd.create_qp_with(&cq, &cq, &options.max_inline_data(cap.max_inline_data));
    refused(result, ErrorKind::InvalidArgument, &["create_qp", attribute, &limit.to_string()]);
}

fn too_many_sends(world: &World) {
    let limit = world.device(0).query_device().max_qp_wr;
    refuses(world, "max_send_wr", limit, |cap| cap.max_send_wr = limit + 1);
    refuses(world, "max_send_wr", limit, |cap| cap.max_send_wr = u32::MAX);
}

fn too_many_receives(world: &World) {
    let limit = world.device(0).query_device().max_qp_wr;
    refuses(world, "max_recv_wr", limit, |cap| cap.max_recv_wr = limit + 1);
}

fn too_many_sges(world: &World) {
    let limit = world.device(0).query_device().max_sge;
    refuses(world, "max_send_sge", limit, |cap| cap.max_send_sge = limit + 1);
    refuses(world, "max_recv_sge", limit, |cap| cap.max_recv_sge = limit + 1);
}

fn too_much_inline(world: &World) {
    let limit = world.device(0).query_device().max_inline_data;
    refuses(world, "max_inline_data", limit, |cap| cap.max_inline_data = limit + 1);
}

/// A number of requests for which every machine has enough memory.
pub(crate) const MODEST: u32 = 1 << 16;

fn at_the_limits(world: &World) {
    let device = world.device(0).query_device();
    let end = world.end(
        0,
        &caps(|cap| {
            cap.max_send_sge = device.max_sge;
            cap.max_recv_sge = device.max_sge;
            cap.max_inline_data = device.max_inline_data;
            cap.max_send_wr = 512;
        }),
    );
    let cap = end.qp.cap();
    assert!(cap.max_send_sge >= device.max_sge && cap.max_inline_data >= device.max_inline_data, "{cap:?}");
    // The limits are the device's; the machine may have less memory than they allow.
    let most = device.max_qp_wr.min(MODEST);
    let wide = end
        .pd
        .create_qp_with(&end.cq, &end.cq, &QueuePairOptions::default().max_send_wr(most).max_recv_wr(most))
        .unwrap();
    assert!(wide.cap().max_send_wr >= most && wide.cap().max_recv_wr >= most, "{:?}", wide.cap());
}

fn query_cap(world: &World) {
    let end = world.end(0, &caps(|cap| cap.max_send_wr = 33));
    assert_eq!(end.qp.query().unwrap().cap, end.qp.cap());
}

fn accessors(world: &World) {
    let end = world.end(0, &Shape::default());
    assert_eq!(end.qp.qp_type(), QueuePairType::ReliableConnection);
    assert_eq!(end.qp.context().name(), end.context.name());
    assert_eq!((end.qp.send_cq().cqe(), end.qp.recv_cq().cqe()), (end.cq.cqe(), end.cq.cqe()));
    assert_eq!(end.qp.protection_domain().context().name(), world.name(0));
}
