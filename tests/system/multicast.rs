//! Multicast over a private link: IPv4 and IPv6, and members in several processes on one address.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Stdio};

use rdma_verbs::verbs::{
    self, AccessFlags, AddressVector, CompletionQueue, Gid, GlobalRouteHeader, MemoryRegion, Payload, ProtectionDomain,
    Qkey, Qpn, QueuePair, QueuePairOptions, QueuePairType, ReceiveRequest, SendRequest,
};
use support::PATIENCE;
use support::process::{ignored_test, in_namespace, ip, namespace_allows};

const QKEY: Qkey = Qkey(0x31);
const ADDRESS: &str = "RDMA_VERBS_MULTICAST_ADDRESS";
const GROUP: &str = "RDMA_VERBS_MULTICAST_GROUP";
const CASES: [(&str, &str); 2] = [("10.31.0.1", "239.31.0.1"), ("fd31::1", "ff15::31")];
const TEXT: &[u8] = b"to all members";

struct Member {
    qp: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
    pd: ProtectionDomain,
    own: Gid,
}

impl Member {
    fn new(address: &str, group: Gid) -> Self {
        let context = verbs::open(&format!("soft:{address}")).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
        let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(QKEY);
        let qp = pd.create_qp_with(&cq, &cq, &options).unwrap();
        qp.bring_up_ud().unwrap();
        let region = pd.alloc_mr(128, AccessFlags::LOCAL_WRITE).unwrap();
        qp.post_recv(&[ReceiveRequest::new(&region)]).unwrap();
        qp.attach_mcast(group).unwrap();
        Self { qp, cq, region, pd, own: context.query_gid(1, 0).unwrap().gid }
    }

    fn hears(&self, group: Gid) {
        let done = self.cq.wait(PATIENCE).unwrap().result().unwrap();
        assert_eq!(done.byte_len as usize, GlobalRouteHeader::BYTES + TEXT.len());
        let bytes = self.region.to_vec(..done.byte_len as usize).unwrap();
        let header = GlobalRouteHeader::from_bytes(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!((Gid::from(header.source), Gid::from(header.destination)), (self.own, group));
        assert_eq!(header.hop_limit, 64);
        assert_eq!(&bytes[GlobalRouteHeader::BYTES..], TEXT);
    }
}

/// A member in its own process.
#[test]
#[ignore = "started by the test of groups"]
fn member() {
    let (Ok(address), Ok(group)) = (std::env::var(ADDRESS), std::env::var(GROUP)) else { return };
    let group: std::net::IpAddr = group.parse().unwrap();
    let member = Member::new(&address, group.into());
    println!("\nready");
    member.hears(group.into());
    println!("\nheard");
}

fn await_line(output: &mut BufReader<ChildStdout>, wanted: &str) {
    let found = output.lines().any(|line| line.unwrap() == wanted);
    assert!(found, "the other process ended without saying \"{wanted}\"");
}

/// In its own network namespace, on a link other than the loopback.
#[test]
#[ignore = "started by the test of groups"]
fn inside() {
    if std::env::var(ADDRESS).is_err() {
        return;
    }
    ip("link set lo up");
    ip("link add link31 type veth peer name link32");
    ip("link set link32 up");
    ip("addr add 10.31.0.1/24 dev link31");
    ip("-6 addr add fd31::1/64 dev link31 nodad");
    ip("link set link31 up multicast on");
    for (address, text) in CASES {
        let group: Gid = text.parse::<std::net::IpAddr>().unwrap().into();
        let mut children = [0, 1].map(|_| {
            let mut member = ignored_test(concat!(module_path!(), "::member"));
            let mut child = member.env(ADDRESS, address).env(GROUP, text).stdout(Stdio::piped()).spawn().unwrap();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            await_line(&mut output, "ready");
            (child, output)
        });
        let own = Member::new(address, group);
        let members = own.pd.create_ah(&AddressVector::new(group, 0)).unwrap();
        let request = SendRequest::send_to(Payload::inline(TEXT), &members, Qpn::MULTICAST, QKEY);
        own.qp.post_send(&[request]).unwrap();
        own.hears(group);
        for (child, output) in &mut children {
            await_line(output, "heard");
            // Drains the rest of its output, so that it does not block on a full pipe.
            output.lines().for_each(drop);
            assert!(child.wait().unwrap().success());
        }
        println!("\n{text}: three members in three processes");
    }
}

#[test]
fn groups_of_both_kinds_reach_every_process() {
    if !namespace_allows("link add type veth") {
        println!("skipped: no network namespace, or no veth links");
        return;
    }
    let inside = ignored_test(concat!(module_path!(), "::inside"));
    let output = in_namespace(&inside).env(ADDRESS, "its own").stderr(Stdio::inherit()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let passed = text.lines().filter(|line| line.contains("three members in three processes")).count();
    assert_eq!(passed, CASES.len(), "{text}");
}
