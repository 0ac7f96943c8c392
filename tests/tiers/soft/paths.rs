//! Path reports. Paths within this host have no congestion control; `src/transport/tests/path_report.rs` tests others.

use rdma_verbs::types::{Data, Operation, PathReport};
use support::node::*;

#[test]
fn paths_of_a_device_are_listed_while_queue_pairs_have_them() {
    let [one, other] = ["127.95.1.1", "127.95.1.2"].map(|address| Node::new(address, 4_096));
    assert_eq!(one.context.software().unwrap().path_reports(), []);
    connect(&one, &other, PeerKind::Native);
    let report = |node: &Node| -> PathReport {
        let mut reports = node.context.software().unwrap().path_reports();
        assert_eq!(reports.len(), 1, "{reports:?}");
        reports.remove(0)
    };
    let path = report(&one);
    assert_eq!([path.own, path.peer].map(|address| address.to_string()), ["127.95.1.1", "127.95.1.2"]);
    assert_eq!((path.queue_pairs, path.bytes_in_flight, path.control), (1, 0, None), "loopback is not controlled");
    assert!(path.window > 0, "it has what the peer's socket takes");
    assert_eq!(one.qp.software().unwrap().report().unwrap().path.as_ref(), Some(&path));
    let write = Operation::Write { remote_addr: BASE, rkey: other.mr.rkey() };
    one.post_send(1, write, Data::Sges(&[one.sge(0, 64)])).unwrap();
    one.success(1);
    assert_eq!(report(&one).total.sent, 0, "what is not controlled is not counted");
    one.qp.destroy().unwrap();
    assert_eq!(one.context.software().unwrap().path_reports(), []);
    assert_eq!(report(&other).peer, path.own, "the other end has still its own");
}
