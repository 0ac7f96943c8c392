//! Like the C API, the provider tier refuses to destroy objects in use, and leaves them unchanged. In the safe tier,
//! handles keep the objects that they need alive.

use rdma_verbs::memory::Backing;
use rdma_verbs::provider::{ErrorKind, QueuePairInit, SharedReceiveQueueInit};
use rdma_verbs::types::*;
use support::node::*;

#[test]
fn a_shared_receive_queue_in_use_is_not_destroyed() {
    let node = Node::new("127.45.2.1", 64);
    let sizes = SharedReceiveQueueInit { max_wr: 4, max_sge: 1, srq_limit: 0, xrc: None };
    let srq = node.pd.create_srq(&sizes).unwrap();
    let init = QueuePairInit {
        pd: &node.pd,
        send_cq: &node.cq,
        recv_cq: &node.cq,
        srq: Some(&srq),
        xrc_domain: None,
        qp_type: QueuePairType::ReliableConnection,
        cap: QueuePairCapabilities::default(),
        sq_sig_all: false,
    };
    let (first, second) = (node.context.create_qp(&init).unwrap(), node.context.create_qp(&init).unwrap());
    for (users, qp) in [(2, &first), (1, &second)] {
        let error = srq.destroy().unwrap_err();
        assert_eq!((error.verb(), error.kind()), ("destroy_srq", ErrorKind::Busy));
        assert!(error.to_string().contains(&format!("{users} queue pairs")), "{error}");
        assert!(srq.query().unwrap().max_wr >= 4, "it is intact");
        qp.destroy().unwrap();
    }
    srq.destroy().unwrap();
    assert_eq!(srq.query().unwrap_err().kind(), ErrorKind::InvalidState);
}

#[test]
fn a_region_with_bound_windows_is_not_deregistered() {
    let node = Node::new("127.45.2.2", 64);
    node.try_connect(&node, PeerKind::Native).unwrap();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND;
    let region = node.pd.reg_mr(Backing::from_vec(vec![0; 64]), None, access).unwrap();
    let window = node.pd.alloc_mw(MemoryWindowType::Type2).unwrap();
    let rkey = Rkey(window.rkey().0 ^ 1);
    let (lkey, addr) = (region.lkey(), region.region().iova());
    let bind = Operation::BindMemoryWindow { rkey, lkey, addr, length: 64, access: AccessFlags::REMOTE_READ };
    node.post_send(1, bind, Data::Sges(&[])).unwrap();
    node.success(1);
    let error = region.dereg().unwrap_err();
    assert_eq!((error.verb(), error.kind()), ("dereg_mr", ErrorKind::Busy), "{error}");
    node.post_send(2, Operation::LocalInvalidate(rkey), Data::Sges(&[])).unwrap();
    node.success(2);
    region.dereg().unwrap();
}
