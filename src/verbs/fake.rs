//! A device that only records its calls, to test the verbs tier alone.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::memory::{Backing, Region, RegionInit, RegionTable};
use crate::provider::{self, CompletionQueueInit, Error, ErrorKind, QueuePairInit, Result};
use crate::types::*;

/// Number of requests that fit a queue of a fake queue pair.
pub(super) const QUEUE_LIMIT: usize = 4;

/// A posted request, with copies of its SGEs and inline data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Posted {
    pub(super) wr_id: u64,
    pub(super) operation: Option<Operation>,
    pub(super) sges: Vec<Sge>,
    pub(super) inline: Vec<u8>,
}

/// The calls that the fake recorded, and the completions that it returns.
#[derive(Default)]
pub(super) struct Log {
    pub(super) posted: Vec<Posted>,
    pub(super) modified: Vec<QueuePairAttributes>,
    pub(super) destroyed: u32,
    pub(super) completions: VecDeque<RawCompletion>,
}

pub(super) struct Fake {
    pub(super) log: Arc<Mutex<Log>>,
    regions: Arc<RegionTable>,
    domains: Mutex<u32>,
    address: std::net::Ipv4Addr,
}

impl Fake {
    /// Opens a device at 10.0.0.`host`.
    pub(super) fn open(host: u8) -> (super::Context, Arc<Mutex<Log>>) {
        let log = Arc::default();
        let fake = Fake {
            log: Arc::clone(&log),
            regions: Arc::new(RegionTable::new(100)),
            domains: Mutex::new(0),
            address: std::net::Ipv4Addr::new(10, 0, 0, host),
        };
        let context: Arc<dyn provider::Context> = Arc::new(fake);
        (context.into(), log)
    }
}

impl provider::Context for Fake {
    fn name(&self) -> &str {
        "fake"
    }

    fn query_device(&self) -> DeviceAttributes {
        DeviceAttributes { max_qp_rd_atom: 32, max_qp_init_rd_atom: 8, ..DeviceAttributes::empty() }
    }

    fn query_port(&self, _port_num: u8) -> Result<PortAttributes> {
        Ok(PortAttributes {
            active_mtu: Mtu::Mtu2048,
            gid_tbl_len: 1,
            max_msg_sz: MAX_MESSAGE_BYTES,
            ..PortAttributes::ethernet(PortState::Active)
        })
    }

    fn query_gid(&self, _port_num: u8, gid_index: u8) -> Result<GidEntry> {
        Ok(GidEntry { ndev_ifindex: 1, ..GidEntry::new(self.address.into(), gid_index) })
    }

    fn query_pkey(&self, _port_num: u8, _pkey_index: u16) -> Result<u16> {
        Ok(DEFAULT_PKEY)
    }

    fn gid_table(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        Ok(vec![self.query_gid(port_num, 0)?])
    }

    fn advertised_capabilities(&self) -> PeerCapabilities {
        PeerCapabilities { version: 1, ..PeerCapabilities::STANDARD }
    }

    fn alloc_pd(&self) -> Result<Arc<dyn provider::ProtectionDomain>> {
        let mut domains = self.domains.lock().unwrap();
        *domains += 1;
        Ok(Arc::new(FakeDomain { id: DomainId(*domains), regions: Arc::clone(&self.regions) }))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn provider::CompletionChannel>> {
        Ok(Arc::new(FakeChannel))
    }

    fn create_cq_with(&self, init: &CompletionQueueInit<'_>) -> Result<Arc<dyn provider::CompletionQueue>> {
        Ok(Arc::new(FakeCompletionQueue { cqe: init.cqe, log: Arc::clone(&self.log) }))
    }

    fn create_qp(&self, init: &QueuePairInit<'_>) -> Result<Arc<dyn provider::QueuePair>> {
        let (sends, receives) = (Mutex::default(), Mutex::default());
        let (qp_type, sq_sig_all, log) = (init.qp_type, init.sq_sig_all, Arc::clone(&self.log));
        Ok(Arc::new(FakeQueuePair { qp_type, sq_sig_all, cap: init.cap, log, sends, receives }))
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        None
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        panic!("no test needs it")
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

struct FakeDomain {
    id: DomainId,
    regions: Arc<RegionTable>,
}

impl provider::ProtectionDomain for FakeDomain {
    fn id(&self) -> DomainId {
        self.id
    }

    fn reg_mr_with(
        &self,
        backing: Backing,
        options: &RegionInit,
    ) -> Result<Arc<dyn provider::MemoryRegion>, provider::RefusedBacking> {
        let region =
            self.regions.register_with(self.id, backing, options).map_err(|refused| provider::RefusedBacking {
                error: Error::new("reg_mr", ErrorKind::InvalidArgument, refused.error.to_string()),
                backing: refused.backing,
            })?;
        Ok(Arc::new(FakeRegion { region, regions: Arc::clone(&self.regions) }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct FakeRegion {
    region: Arc<Region>,
    regions: Arc<RegionTable>,
}

impl provider::MemoryRegion for FakeRegion {
    fn region(&self) -> &Arc<Region> {
        &self.region
    }

    fn lkey(&self) -> Lkey {
        self.region.lkey()
    }

    fn rkey(&self) -> Rkey {
        self.region.rkey()
    }

    fn dereg(&self) -> Result<()> {
        self.regions.deregister(&self.region);
        Ok(())
    }
}

struct FakeChannel;

impl provider::CompletionChannel for FakeChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        panic!("no test needs it")
    }

    fn poll_event(&self) -> Option<u64> {
        None
    }

    fn wait_event(&self, _timeout: Option<Duration>) -> Result<u64> {
        panic!("no test needs it")
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct FakeCompletionQueue {
    cqe: u32,
    log: Arc<Mutex<Log>>,
}

impl provider::CompletionQueue for FakeCompletionQueue {
    fn poll(&self, out: &mut [RawCompletion]) -> Result<usize> {
        let completions = &mut self.log.lock().unwrap().completions;
        let count = out.len().min(completions.len());
        for (slot, completion) in out.iter_mut().zip(completions.drain(..count)) {
            *slot = completion;
        }
        Ok(count)
    }

    fn req_notify(&self, _solicited_only: bool) -> Result<()> {
        Ok(())
    }

    fn number(&self) -> CompletionQueueNumber {
        CompletionQueueNumber::new(1)
    }

    fn cqe(&self) -> u32 {
        self.cqe
    }

    fn moderate(&self, _cq_count: u16, _cq_period: Duration) -> Result<()> {
        Ok(())
    }

    fn resize(&self, _cqe: u32) -> Result<()> {
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct FakeQueuePair {
    qp_type: QueuePairType,
    sq_sig_all: bool,
    cap: QueuePairCapabilities,
    log: Arc<Mutex<Log>>,
    sends: Mutex<Vec<Posted>>,
    receives: Mutex<Vec<Posted>>,
}

impl FakeQueuePair {
    fn push(queue: &Mutex<Vec<Posted>>, verb: &'static str, request: Posted) -> Result<()> {
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() == QUEUE_LIMIT {
            return Err(Error::new(verb, ErrorKind::QueueFull, "full"));
        }
        queue.push(request);
        Ok(())
    }

    fn end(&self, queue: &Mutex<Vec<Posted>>, end: BatchEnd) -> Result<()> {
        let batch = std::mem::take(&mut *queue.lock().unwrap_or_else(PoisonError::into_inner));
        if end == BatchEnd::Publish {
            self.log.lock().unwrap().posted.extend(batch);
        }
        Ok(())
    }
}

impl provider::QueuePair for FakeQueuePair {
    fn qpn(&self) -> Qpn {
        Qpn::new(0x77)
    }

    fn modify(&self, attributes: &QueuePairAttributes) -> Result<()> {
        self.log.lock().unwrap().modified.push(*attributes);
        Ok(())
    }

    fn query(&self) -> Result<QueuePairStatus> {
        let log = self.log.lock().unwrap();
        let qp_state = log.modified.last().and_then(|attributes| attributes.qp_state).unwrap_or_default();
        let attributes = log.modified.last().copied().unwrap_or_default();
        let Self { qp_type, sq_sig_all, cap, .. } = *self;
        Ok(QueuePairStatus { sq_sig_all, qp_state, attributes, ..QueuePairStatus::new(qp_type, cap) })
    }

    fn send_begin(&self) {}

    fn send_push(&self, request: &SendRequest<'_>) -> Result<()> {
        let (sges, inline) = match request.data {
            Data::Sges(sges) => (sges.to_vec(), Vec::new()),
            Data::Inline(parts) => (Vec::new(), parts.concat()),
        };
        let posted = Posted { wr_id: request.wr_id, operation: Some(request.operation), sges, inline };
        Self::push(&self.sends, "post_send", posted)
    }

    fn send_end(&self, end: BatchEnd) -> Result<()> {
        self.end(&self.sends, end)
    }

    fn recv_begin(&self) {}

    fn recv_push(&self, request: &ReceiveRequest<'_>) -> Result<()> {
        let sges = request.sges.to_vec();
        let posted = Posted { wr_id: request.wr_id, operation: None, sges, inline: Vec::new() };
        Self::push(&self.receives, "post_recv", posted)
    }

    fn recv_end(&self, end: BatchEnd) -> Result<()> {
        self.end(&self.receives, end)
    }

    fn destroy(&self) -> Result<()> {
        self.log.lock().unwrap().destroyed += 1;
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}
