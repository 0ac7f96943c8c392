//! A queue pair on the tier `provider` with the objects that it needs, and the common steps of tests.

use std::sync::Arc;
use std::time::Instant;

use rdma_verbs::memory::{Backing, Region};
use rdma_verbs::provider::soft::SoftOptions;
use rdma_verbs::provider::{
    CompletionChannel, CompletionQueue, Context, MemoryRegion, ProtectionDomain, QueuePair, QueuePairInit, Result,
};
use rdma_verbs::types::*;

use crate::{ALL_ACCESS, PATIENCE};

/// First address of every node's region.
pub const BASE: u64 = 0x10_0000;

/// A device with one queue pair, one completion queue and one region.
pub struct Node {
    /// The queue pair.
    pub qp: Arc<dyn QueuePair>,
    /// The completion queue of both work queues, which is on the channel.
    pub cq: Arc<dyn CompletionQueue>,
    /// The region.
    pub mr: Arc<dyn MemoryRegion>,
    /// The protection domain of all objects.
    pub pd: Arc<dyn ProtectionDomain>,
    /// The channel.
    pub channel: Arc<dyn CompletionChannel>,
    /// The device.
    pub context: Arc<dyn Context>,
}

/// The kind of peer that each end is to the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerKind {
    /// Each is a native peer and knows the other's capabilities.
    Native,
    /// Standard peers: neither knows the other's capabilities.
    Standard,
}

impl Node {
    /// Opens a software device on an address.
    pub fn new(address: &str, region_bytes: usize) -> Self {
        Self::on(SoftOptions::new().open(&format!("soft:{address}")).unwrap(), region_bytes)
    }

    /// Creates a node on an open device.
    pub fn on(context: Arc<dyn Context>, region_bytes: usize) -> Self {
        let channel = context.create_comp_channel().unwrap();
        let cq = context.create_cq(256, 77, Some(&channel)).unwrap();
        let pd = context.alloc_pd().unwrap();
        let mr = pd.reg_mr(Backing::from_vec(vec![0; region_bytes]), Some(BASE), ALL_ACCESS).unwrap();
        let cap = QueuePairCapabilities { max_inline_data: 256, ..Default::default() };
        let qp_type = QueuePairType::ReliableConnection;
        let init = QueuePairInit {
            pd: &pd,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            xrc_domain: None,
            qp_type,
            cap,
            sq_sig_all: false,
        };
        let qp = context.create_qp(&init).unwrap();
        Self { qp, cq, mr, pd, channel, context }
    }

    /// Returns the region's memory.
    pub fn region(&self) -> &Arc<Region> {
        self.mr.region()
    }

    /// Brings the queue pair to RTS, connected to the one of `peer`.
    pub fn try_connect(&self, peer: &Node, peer_kind: PeerKind) -> Result<()> {
        self.qp.modify(&init_attributes())?;
        self.qp.modify(&self.ready_to_receive(peer, peer_kind))?;
        self.qp.modify(&ready_to_send())
    }

    /// Returns the attributes that bring the queue pair to RTR, connected to the one of `peer`.
    pub fn ready_to_receive(&self, peer: &Node, peer_kind: PeerKind) -> QueuePairAttributes {
        let (own_port, peer_port) = (self.context.query_port(1).unwrap(), peer.context.query_port(1).unwrap());
        let known = (peer_kind == PeerKind::Native).then(|| peer.context.advertised_capabilities());
        let mut attributes = QueuePairAttributes::default()
            .qp_state(QueuePairState::ReadyToReceive)
            .ah_attr(AddressVector::new(peer.context.query_gid(1, 0).unwrap().gid, 0))
            .path_mtu(own_port.active_mtu.min(peer_port.active_mtu))
            .dest_qp_num(peer.qp.qpn())
            .rq_psn(Psn::new(0xff_ff00))
            .max_dest_rd_atomic(16)
            .min_rnr_timer(12);
        attributes.peer = known;
        attributes
    }

    /// Posts one signaled request.
    pub fn post_send(&self, wr_id: u64, operation: Operation, data: Data<'_>) -> Result<()> {
        self.qp.send_begin();
        let flags = SendFlags::SIGNALED;
        let pushed = self.qp.send_push(&SendRequest { wr_id, operation, flags, data });
        self.qp.send_end(BatchEnd::Publish)?;
        pushed
    }

    /// Posts one receive.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        self.qp.recv_begin();
        let pushed = self.qp.recv_push(&ReceiveRequest { wr_id, sges });
        self.qp.recv_end(BatchEnd::Publish)?;
        pushed
    }

    /// Returns an SGE in the node's own region.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: BASE + offset, length, lkey: self.mr.lkey() }
    }

    /// Polls for one completion.
    #[track_caller]
    pub fn completion(&self) -> RawCompletion {
        self.counted_completion().0
    }

    /// Polls for one completion. Returns the number of polls, too.
    #[track_caller]
    pub fn counted_completion(&self) -> (RawCompletion, u32) {
        let (mut polls, end) = (1, Instant::now() + PATIENCE);
        let mut out = [RawCompletion::default()];
        while self.cq.poll(&mut out).unwrap() == 0 {
            assert!(Instant::now() < end, "no completion: {:?}, {:?}", self.qp.query(), self.counters());
            polls += 1;
        }
        (out[0], polls)
    }

    /// Polls for one completion, which must be a success.
    #[track_caller]
    pub fn success(&self, wr_id: u64) -> RawCompletion {
        let completion = self.completion();
        assert_eq!((completion.wr_id, completion.status), (wr_id, CompletionStatus::Success), "{completion:?}");
        completion
    }

    /// Waits on the channel for one completion.
    #[track_caller]
    pub fn completion_by_event(&self) -> RawCompletion {
        let mut out = [RawCompletion::default()];
        loop {
            self.cq.req_notify(false).unwrap();
            if self.cq.poll(&mut out).unwrap() > 0 {
                return out[0];
            }
            let event = self.channel.wait_event(Some(PATIENCE)).map_err(|error| error.kind());
            assert_eq!(event, Ok(77), "no event: {:?}, {:?}", self.qp.query(), self.counters());
        }
    }

    /// Returns the counters that are not zero.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.context.counters().iter().filter(|(_, count)| *count > 0).collect()
    }
}

/// Returns the attributes that bring a queue pair to INIT.
pub fn init_attributes() -> QueuePairAttributes {
    QueuePairAttributes::default().qp_state(QueuePairState::Init).pkey_index(0).port_num(1).qp_access_flags(ALL_ACCESS)
}

/// Returns the attributes that bring a queue pair to RTS.
pub fn ready_to_send() -> QueuePairAttributes {
    QueuePairAttributes::default()
        .qp_state(QueuePairState::ReadyToSend)
        .sq_psn(Psn::new(0xff_ff00))
        .timeout(14)
        .retry_cnt(7)
        .rnr_retry(7)
        .max_rd_atomic(16)
}

/// Connects two nodes.
pub fn connect(first: &Node, second: &Node, peer_kind: PeerKind) {
    first.try_connect(second, peer_kind).unwrap();
    second.try_connect(first, peer_kind).unwrap();
}

/// Creates two connected nodes on these addresses.
pub fn pair(first: &str, second: &str, region_bytes: usize, peer_kind: PeerKind) -> (Node, Node) {
    let nodes = (Node::new(first, region_bytes), Node::new(second, region_bytes));
    connect(&nodes.0, &nodes.1, peer_kind);
    nodes
}

/// Returns bytes that depend on the position and the seed.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(next).collect()
}

/// Returns bytes of a region's memory.
pub fn read(region: &Region, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    region.read_at(offset, &mut bytes).unwrap();
    bytes
}
