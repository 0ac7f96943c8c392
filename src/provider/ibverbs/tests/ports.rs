//! Other kinds of ports and devices, and libraries of other versions.

use super::*;
use crate::provider::{CompletionQueueInit, DeviceMemoryInit};
use crate::types::{
    CompletionFlags, CompletionOpcode, LinkLayer, LinkSpeed, OnDemandOperations, OnDemandSupport, Transport,
};

fn infiniband(flags: u8) -> Machine {
    let mut machine = Machine::default();
    let port = &mut machine.port.base;
    (port.link_layer, port.lid, port.sm_lid, port.flags) = (1, 7, 1, flags);
    for entry in &mut machine.gids {
        entry.gid_type = 0;
        entry.gid.0[..2].copy_from_slice(&[0xfe, 0x80]);
    }
    machine
}

fn by_lid(dlid: u16) -> AddressVector {
    AddressVector { dlid, ..AddressVector::new(Gid::ZERO, 0) }
}

#[test]
fn infiniband_is_addressed_by_lid() {
    let world = World::new(infiniband(0));
    let port = world.context.query_port(1).unwrap();
    assert_eq!((port.link_layer, port.lid, port.grh_required), (LinkLayer::InfiniBand, 7, false));
    assert_eq!(world.context.default_gid_index(1).unwrap(), 0);
    let qp = world.queue_pair(QueuePairType::ReliableConnection).unwrap();
    refused(connect(&*qp, by_lid(0)), ErrorKind::InvalidArgument, &["ah_attr.dlid is 0", "LID"]);
    qp.modify(&to(QueuePairState::Reset)).unwrap();
    world.fake.log();
    connect(&*qp, by_lid(9)).unwrap();
    let log = world.fake.log();
    assert!(log.iter().any(|line| line.contains("state 2") && line.contains("dlid 9 global 0")), "{log:?}");
    // With a route header too, as between subnets.
    let handle = world.pd.create_ah(&AddressVector { dgid: PEER, sl: 3, ..by_lid(9) }).unwrap();
    let created = world.fake.log();
    assert!(created.contains(&"create_ah dlid 9 sl 3 global 1 sgid 0 port 1".to_owned()), "{created:?}");
    drop((handle, qp));
    world.end();
}

#[test]
fn replies_to_infiniband_datagrams_use_the_lid() {
    let world = World::new(infiniband(0));
    let completion = RawCompletion { source_lid: 12, sl: 2, opcode: CompletionOpcode::Receive, ..Default::default() };
    let handle = world.pd.create_ah_from_completion(&completion, &[0; 40], 1).unwrap();
    let vector = handle.address_vector();
    assert_eq!((vector.dlid, vector.sl, vector.dgid), (12, 2, Gid::ZERO));
    assert!(world.fake.log().contains(&"create_ah dlid 12 sl 2 global 0 sgid 0 port 1".to_owned()));
}

#[test]
fn ethernet_ignores_the_lid_of_a_completion() {
    let world = World::new(Machine::default());
    let mut header = [0u8; 40];
    header[20..32].copy_from_slice(&[0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    header[32..].copy_from_slice(&[192, 0, 2, 9, 192, 0, 2, 1]);
    let flags = CompletionFlags::GLOBAL_ROUTE_HEADER;
    let completion = RawCompletion { source_lid: 0xaaaa, sl: 9, flags, ..Default::default() };
    let vector = world.pd.create_ah_from_completion(&completion, &header, 1).unwrap().address_vector();
    assert_eq!((vector.dgid, vector.sgid_index, vector.dlid, vector.sl), (PEER, 1, 0, 0));
}

#[test]
fn ports_that_require_a_route_header_need_a_gid() {
    let world = World::new(infiniband(1));
    assert!(world.context.query_port(1).unwrap().grh_required);
    let qp = world.queue_pair(QueuePairType::ReliableConnection).unwrap();
    refused(connect(&*qp, by_lid(9)), ErrorKind::InvalidArgument, &["ah_attr.dgid", "global address"]);
    qp.modify(&to(QueuePairState::Reset)).unwrap();
    connect(&*qp, AddressVector { dgid: PEER, ..by_lid(9) }).unwrap();
}

#[test]
fn infiniband_multicast_requires_a_connection_manager() {
    let world = World::new(infiniband(0));
    let qp = world.datagrams();
    let group = Gid::from_bytes([0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    refused(qp.attach_mcast(group), ErrorKind::Unsupported, &["InfiniBand", "connection manager"]);
    assert!(!world.fake.log().iter().any(|line| line.starts_with("attach_mcast")));
}

#[test]
fn iwarp_is_refused_with_the_reason() {
    let world = World::new(Machine { transport_type: 1, node_type: 4, ..Machine::default() });
    assert_eq!(world.context.query_device().transport, Transport::Iwarp);
    let datagram = world.queue_pair(QueuePairType::UnreliableDatagram);
    refused(datagram, ErrorKind::Unsupported, &["iWARP", "UnreliableDatagram"]);
    let qp = world.queue_pair(QueuePairType::ReliableConnection).unwrap();
    let connected = connect(&*qp, AddressVector::new(PEER, 1));
    refused(connected, ErrorKind::Unsupported, &["iWARP", "connection manager"]);
}

#[test]
fn the_default_gid_is_of_roce_v2() {
    let world = World::new(Machine::default());
    assert_eq!(world.context.default_gid_index(1).unwrap(), 1);
    let table = world.context.gid_table(1).unwrap();
    assert_eq!(table.iter().map(|entry| entry.gid_index).collect::<Vec<_>>(), [0, 1]);
    refused(world.context.query_gid(1, 2), ErrorKind::NotFound, &["empty"]);
    refused(world.context.query_gid(1, 4), ErrorKind::InvalidArgument, &["0 to 3"]);
}

#[test]
fn capabilities_come_from_the_adapter() {
    let mut machine = Machine::default();
    machine.port.active_speed_ex = 256;
    machine.attributes.odp_general_caps = 3;
    machine.attributes.odp_transport_caps = [0x1f, 0x3, 0x1];
    machine.attributes.xrc_odp_caps = 0x2;
    machine.attributes.max_dm_size = 1 << 16;
    (machine.attributes.completion_timestamp_mask, machine.attributes.hca_core_clock) = (0xffff_ffff, 500_000);
    let world = World::new(machine);
    let device = world.context.query_device();
    assert_eq!(device.odp_caps.general, OnDemandSupport::all());
    assert_eq!((device.odp_caps.rc.bits(), device.odp_caps.uc.bits()), (0x1f, 0x3));
    assert_eq!((device.odp_caps.ud, device.odp_caps.xrc), (OnDemandOperations::SEND, OnDemandOperations::RECEIVE));
    assert!(device.supported_access.contains(AccessFlags::ON_DEMAND));
    assert_eq!(device.max_dm_size, 1 << 16);
    assert_eq!(world.context.query_port(1).unwrap().active_speed, LinkSpeed::Xdr);
    // 5,000 ticks of a clock of 500 MHz.
    assert_eq!(world.context.query_clock().unwrap(), 10_000);
}

#[test]
fn a_temporary_error_does_not_limit_inline_data() {
    for errno in [libc::ENOMEM, libc::EMFILE] {
        let world = World::new(Machine::default());
        world.fake.fail_once_after("create_qp", 1, errno);
        assert_eq!(world.context.query_device().max_inline_data, 0, "not known yet");
        assert_eq!(world.context.query_device().max_inline_data, 4096);
    }
}

#[test]
fn timestamps_are_nanoseconds() {
    let mut machine = Machine::default();
    (machine.attributes.completion_timestamp_mask, machine.attributes.hca_core_clock) = (0xffff_ffff, 500_000);
    let mut world = World::new(machine);
    let init = CompletionQueueInit { cqe: 16, timestamps: true, ..CompletionQueueInit::default() };
    world.cq = world.context.create_cq_with(&init).unwrap();
    assert!(world.fake.log().iter().any(|line| line.starts_with("create_cq_ex 16")));
    let qp = world.connected();
    post(&*qp, &[1, 2]).unwrap();
    for (index, wr_id) in world.fake.sent().into_iter().enumerate() {
        world.fake.complete_at(1, sys_wc(wr_id), 0x77_0000_0000 | (1_000 * (index as u64 + 1)));
    }
    let found = world.poll();
    assert_eq!(found.iter().map(|one| (one.wr_id, one.timestamp)).collect::<Vec<_>>(), [(1, 2_000), (2, 4_000)]);
}

fn sys_wc(wr_id: u64) -> crate::provider::ibverbs::sys::Wc {
    crate::provider::ibverbs::sys::Wc { wr_id, ..Default::default() }
}

/// As with a library whose table reaches to `create_qp_ex` only, or that has no table.
#[test]
fn slots_beyond_the_table_are_not_read() {
    // From `create_qp_ex` to the end.
    for sz in [None, Some(648 - 264)] {
        let mut machine = Machine { sz, send_ops: u64::MAX, ..Machine::default() };
        machine.attributes.max_dm_size = 4096;
        machine.port.active_speed_ex = 256;
        let world = World::new(machine);
        assert!(world.context.query_port(1).is_ok());
        let log = world.fake.log();
        assert_eq!(log, ["query_port 1 compat"]);
        let dm = world.context.alloc_dm(&DeviceMemoryInit { length: 64, log_align_req: 0 });
        refused(dm, ErrorKind::Unsupported, &[]);
        refused(world.context.query_clock(), ErrorKind::Unsupported, &[]);
        refused(world.cq.moderate(2, std::time::Duration::from_micros(5)), ErrorKind::Unsupported, &[]);
        let qp = world.connected();
        post(&*qp, &[5]).unwrap();
        let by = if sz.is_some() { "wr_start" } else { "post_send" };
        let log = world.fake.log();
        assert!(log.iter().any(|line| line == by), "{log:?}");
        if sz.is_none() {
            refused(world.context.open_xrcd(), ErrorKind::Unsupported, &[]);
        }
        drop(qp);
        world.end();
    }
}
