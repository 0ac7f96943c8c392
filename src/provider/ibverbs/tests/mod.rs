//! The provider on adapters that are not available here, and on libraries that fail: see `sys::fake`.

mod bound_ports;
mod connections;
mod lifecycle;
mod listeners;
mod memory;
mod ports;
mod posting;

use std::sync::Arc;

use super::context::IbverbsContext;
use super::device::Device;
use super::sys::fake::{self, Fake, Machine};
use crate::memory::Backing;
use crate::provider::{
    CompletionQueue, Context, Error, ErrorKind, MemoryRegion, ProtectionDomain, QueuePair, QueuePairInit,
    SharedReceiveQueue, SharedReceiveQueueInit,
};
use crate::types::{
    AccessFlags, AddressVector, BatchEnd, Data, Gid, Mtu, Operation, Psn, Qkey, Qpn, QueuePairAttributes,
    QueuePairCapabilities, QueuePairState, QueuePairType, RawCompletion, ReceiveRequest, SendFlags, SendRequest, Sge,
};

const PEER: Gid = Gid::from_bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 9]);

/// A device, a domain and a completion queue.
struct World {
    context: Arc<dyn Context>,
    pd: Arc<dyn ProtectionDomain>,
    cq: Arc<dyn CompletionQueue>,
    fake: &'static Fake,
}

impl World {
    fn new(machine: Machine) -> Self {
        let (context, fake) = open(machine);
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64, 0, None).unwrap());
        fake.log();
        Self { context, pd, cq, fake }
    }

    fn queue_pair(&self, qp_type: QueuePairType) -> Result<Arc<dyn QueuePair>, Error> {
        self.context.create_qp(&QueuePairInit {
            pd: &self.pd,
            send_cq: &self.cq,
            recv_cq: &self.cq,
            srq: None,
            xrc_domain: None,
            qp_type,
            cap: CAP,
            sq_sig_all: false,
        })
    }

    /// A reliable connection that is ready to send.
    fn connected(&self) -> Arc<dyn QueuePair> {
        let qp = self.queue_pair(QueuePairType::ReliableConnection).unwrap();
        connect(&*qp, AddressVector::new(PEER, 1)).unwrap();
        self.fake.log();
        qp
    }

    /// A datagram queue pair that is ready to send.
    fn datagrams(&self) -> Arc<dyn QueuePair> {
        let qp = self.queue_pair(QueuePairType::UnreliableDatagram).unwrap();
        let first = QueuePairAttributes {
            qp_state: Some(QueuePairState::Init),
            pkey_index: Some(0),
            port_num: Some(1),
            qkey: Some(Qkey(0x11)),
            ..QueuePairAttributes::default()
        };
        qp.modify(&first).unwrap();
        qp.modify(&to(QueuePairState::ReadyToReceive)).unwrap();
        let last = QueuePairAttributes { sq_psn: Some(Psn::new(0)), ..to(QueuePairState::ReadyToSend) };
        qp.modify(&last).unwrap();
        self.fake.log();
        qp
    }

    fn shared_queue(&self) -> Result<Arc<dyn SharedReceiveQueue>, Error> {
        let init = SharedReceiveQueueInit { max_wr: 16, max_sge: 1, srq_limit: 0, xrc: None };
        self.pd.create_srq(&init)
    }

    fn region(&self, access: AccessFlags) -> Result<Arc<dyn MemoryRegion>, Error> {
        Ok(self.pd.reg_mr(Backing::anonymous(4096).unwrap(), None, access)?)
    }

    fn poll(&self) -> Vec<RawCompletion> {
        let mut found = [RawCompletion::default(); 32];
        let count = self.cq.poll(&mut found).unwrap();
        found[..count].to_vec()
    }

    /// Drops all objects, and checks that none is left in the library.
    fn end(self) {
        let fake = self.fake;
        drop((self.cq, self.pd, self.context));
        assert_eq!(fake.live(), []);
    }
}

const CAP: QueuePairCapabilities =
    QueuePairCapabilities { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 16 };

fn open(machine: Machine) -> (Arc<dyn Context>, &'static Fake) {
    let (sys, fake) = fake::open(machine);
    (Arc::new(IbverbsContext::new(Device::open(sys).unwrap())), fake)
}

fn to(state: QueuePairState) -> QueuePairAttributes {
    QueuePairAttributes { qp_state: Some(state), ..QueuePairAttributes::default() }
}

fn init(qp: &dyn QueuePair) -> Result<(), Error> {
    qp.modify(&QueuePairAttributes {
        pkey_index: Some(0),
        port_num: Some(1),
        qp_access_flags: Some(AccessFlags::REMOTE),
        ..to(QueuePairState::Init)
    })
}

fn connect(qp: &dyn QueuePair, vector: AddressVector) -> Result<(), Error> {
    init(qp)?;
    qp.modify(&QueuePairAttributes {
        ah_attr: Some(vector),
        path_mtu: Some(Mtu::Mtu1024),
        dest_qp_num: Some(Qpn::new(77)),
        rq_psn: Some(Psn::new(1)),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(12),
        ..to(QueuePairState::ReadyToReceive)
    })?;
    qp.modify(&QueuePairAttributes {
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        sq_psn: Some(Psn::new(2)),
        max_rd_atomic: Some(1),
        ..to(QueuePairState::ReadyToSend)
    })
}

fn request(wr_id: u64, operation: Operation, data: Data<'_>) -> SendRequest<'_> {
    SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, data }
}

/// Posts empty SENDs with these `wr_id`s as one batch.
fn post(qp: &dyn QueuePair, wr_ids: &[u64]) -> Result<(), Error> {
    qp.send_begin();
    let pushed = wr_ids.iter().try_for_each(|wr_id| qp.send_push(&request(*wr_id, Operation::Send, Data::Sges(&[]))));
    match pushed {
        Ok(()) => qp.send_end(BatchEnd::Publish),
        Err(error) => qp.send_end(BatchEnd::Rollback).and(Err(error)),
    }
}

fn post_recv(qp: &dyn QueuePair, wr_ids: &[u64]) -> Result<(), Error> {
    qp.recv_begin();
    for wr_id in wr_ids {
        qp.recv_push(&ReceiveRequest { wr_id: *wr_id, sges: &[] })?;
    }
    qp.recv_end(BatchEnd::Publish)
}

fn post_srq_recv(srq: &dyn SharedReceiveQueue, wr_ids: &[u64]) -> Result<(), Error> {
    srq.recv_begin();
    for wr_id in wr_ids {
        srq.recv_push(&ReceiveRequest { wr_id: *wr_id, sges: &[] })?;
    }
    srq.recv_end(BatchEnd::Publish)
}

/// Checks the kind of a refusal, and that its text contains all parts.
#[track_caller]
fn refused<T>(outcome: Result<T, Error>, kind: ErrorKind, parts: &[&str]) {
    let error = outcome.err().expect("a refusal");
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

fn entry(region: &dyn MemoryRegion, length: u32) -> Sge {
    Sge { addr: region.region().iova(), length, lkey: region.lkey() }
}
