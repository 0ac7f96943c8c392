//! Devices, their attributes and limits.

use std::net::UdpSocket;

use rdma_verbs::memory::Backing;
use rdma_verbs::provider::soft::SoftOptions;
use rdma_verbs::provider::{ErrorKind, QueuePairInit, providers};
use rdma_verbs::types::*;
use support::node::*;

#[test]
fn loopback_device_is_listed_and_opened() {
    let provider = providers().iter().find(|provider| provider.name() == "soft").unwrap();
    let names = provider.device_names().unwrap();
    assert!(names.iter().any(|name| name == "soft_lo"), "{names:?}");
    let context = provider.open("soft_lo").unwrap();
    assert_eq!(context.name(), "soft_lo");
    let gids = context.gid_table(1).unwrap();
    assert_eq!(gids[0].gid.to_ip().to_string(), "127.0.0.1");
    assert!(gids[0].ndev_ifindex > 0);
    assert_eq!(context.query_gid(1, 0).unwrap(), gids[0]);
    assert_eq!(context.query_gid(1, 200).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(context.query_port(2).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let port = context.query_port(1).unwrap();
    assert_eq!((port.state, port.active_mtu), (PortState::Active, Mtu::Mtu4096));
}

#[test]
fn unknown_devices_are_not_found() {
    let provider = providers()[0];
    assert_eq!(provider.open("soft_nonsense0").err().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(provider.open("soft:192.0.2.1").err().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(provider.open("soft:nonsense").err().unwrap().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn configuration_is_reported() {
    let vendor = VendorIdentity { vendor_id: 0x15b3, vendor_part_id: 4_123, hw_ver: 2 };
    let options = SoftOptions::new().vendor(vendor).max_mtu(Mtu::Mtu512).receive_buffer_bytes(64 << 10).shards(2);
    let context = options.open_address("127.78.2.1".parse().unwrap()).unwrap();
    let attributes = context.query_device();
    assert_eq!((attributes.vendor, attributes.max_qp), (vendor, 2 * 16_384));
    assert_eq!(context.query_port(1).unwrap().active_mtu, Mtu::Mtu512);
    let capabilities = context.advertised_capabilities();
    assert!(capabilities.is_native() && capabilities.segmentation_offload);
    // The kernel doubles the value.
    assert_eq!(capabilities.receive_buffer_bytes, 128 << 10);
    let other = SoftOptions::new().open("soft:127.78.2.2").unwrap().query_device();
    assert_ne!(attributes.node_guid, other.node_guid);
}

#[test]
fn sizes_beyond_the_limits_are_named() {
    let context = SoftOptions::new().open("soft:127.78.2.3").unwrap();
    let error = context.create_cq(0, 0, None).err().unwrap();
    assert_eq!(error.to_string(), "create_cq: cqe is 0; allowed are 1 to 1048576");
    let cq = context.create_cq(16, 0, None).unwrap();
    assert_eq!(cq.req_notify(false).unwrap_err().kind(), ErrorKind::InvalidState);
    let pd = context.alloc_pd().unwrap();
    let mut cap = QueuePairCapabilities { max_send_wr: 1 << 20, ..Default::default() };
    let qp_type = QueuePairType::ReliableConnection;
    let create = |cap, qp_type| {
        context.create_qp(&QueuePairInit {
            pd: &pd,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            xrc_domain: None,
            qp_type,
            cap,
            sq_sig_all: true,
        })
    };
    let error = create(cap, qp_type).err().unwrap();
    assert_eq!(error.to_string(), "create_qp: max_send_wr is 1048576; allowed are 0 to 32768");
    cap = QueuePairCapabilities::default();
    let error = create(cap, QueuePairType::XrcReceive).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "an XRC target needs a domain: {error}");
    let numbers = [create(cap, qp_type).unwrap().qpn(), create(cap, qp_type).unwrap().qpn()];
    assert_ne!(numbers[0], numbers[1]);
    assert!(cq.resize(8).is_ok() && cq.cqe() == 8);
    let access = AccessFlags::REMOTE_WRITE;
    let refused = pd.reg_mr(Backing::from_vec(vec![7; 8]), None, access).err().unwrap();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(refused.backing.into_vec().unwrap(), [7; 8], "the memory comes back");
}

#[test]
fn objects_of_other_devices_are_refused() {
    let (mine, other) = (Node::new("127.78.2.4", 64), Node::new("127.78.2.5", 64));
    let init = QueuePairInit {
        pd: &mine.pd,
        send_cq: &mine.cq,
        recv_cq: &other.cq,
        srq: None,
        xrc_domain: None,
        qp_type: QueuePairType::ReliableConnection,
        cap: QueuePairCapabilities::default(),
        sq_sig_all: false,
    };
    let error = mine.context.create_qp(&init).err().unwrap();
    assert_eq!(error.to_string(), "create_qp: recv_cq belongs to another device");
    assert!(mine.context.create_cq(8, 0, Some(&other.channel)).is_err());
}

#[test]
fn taken_port_is_explained_and_may_be_tried_again() {
    let (node, peer) = (Node::new("127.78.2.9", 64), Node::new("127.78.2.10", 64));
    let other = UdpSocket::bind(("127.78.2.9", ROCE_PORT)).unwrap();
    let error = node.try_connect(&peer, PeerKind::Native).unwrap_err();
    assert_eq!((error.verb(), error.kind()), ("modify_qp", ErrorKind::AddressInUse));
    let text = error.to_string();
    assert!(text.contains("UDP port 4791 of 127.78.2.9 is held by") && text.contains("soft:127.0.0.2"), "{text}");
    drop(other);
    node.qp.modify(&node.ready_to_receive(&peer, PeerKind::Native)).unwrap();
}

#[test]
fn several_shards_serve_one_address() {
    let open = |address: &str| SoftOptions::new().shards(3).open(&format!("soft:{address}")).unwrap();
    let (context, peer) = (open("127.78.2.11"), open("127.78.2.12"));
    let pairs: Vec<(Node, Node)> =
        (0..6).map(|_| (Node::on(context.clone(), 4_096), Node::on(peer.clone(), 4_096))).collect();
    for (a, b) in &pairs {
        connect(a, b, PeerKind::Native);
        b.post_recv(1, &[b.sge(0, 64)]).unwrap();
        a.post_send(2, Operation::Send, Data::Inline(&[b"shard"])).unwrap();
        b.success(1);
        a.success(2);
    }
}
