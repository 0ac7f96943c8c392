//! A host: an address, an endpoint, registered memory.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::Random;
use crate::memory::{Exports, RegionTable};
use crate::queue::{AsyncEventQueue, CompletionQueue, Notify, QueueError, ReceiveQueue, SendQueue, SharedReceiveQueue};
use crate::transport::{
    CongestionFactory, Endpoint, EndpointConfig, ModifyLimits, QueuePairInit, ReceiveSource, SourceAddress,
};
use crate::types::{
    AccessFlags, AddressVector, AsyncEvent, BatchEnd, Destination, DomainId, Mtu, PeerCapabilities, PeerKey, Psn, Qkey,
    Qpn, QueuePairAttributes, QueuePairCapabilities, QueuePairState, QueuePairType, RawCompletion, ReceiveRequest,
    SendRequest, SharedReceiveQueueNumber, Time,
};

/// A host of the simulated network.
pub struct Host {
    /// Its address.
    pub address: IpAddr,
    /// Its transport.
    pub endpoint: Endpoint,
    /// Its registered memory.
    pub memory: RegionTable,
    /// The memory that other hosts may access directly.
    pub(super) exports: Option<Arc<Exports>>,
}

/// A queue pair of a host, as an application holds it.
pub struct Port {
    /// Its queue pair number.
    pub qpn: Qpn,
    /// Its send queue.
    pub send: Arc<SendQueue>,
    /// Its own receive queue, unused if `PortInit::receives` is given.
    pub receive: Arc<ReceiveQueue>,
    /// The completion queue of both.
    pub completions: Arc<CompletionQueue>,
    /// Its asynchronous events.
    pub events: Arc<AsyncEventQueue>,
    /// Counts the notifications of `completions`.
    pub bell: Arc<Bell>,
}

/// Options for creating a queue pair.
pub struct PortInit {
    /// Transport service.
    pub service: QueuePairType,
    /// Protection domain.
    pub domain: DomainId,
    /// Sizes of its queues.
    pub cap: QueuePairCapabilities,
    /// Source of receives; `None`: the port's own queue.
    pub receives: Option<ReceiveSource>,
}

/// Counts the notifications of a completion queue.
#[derive(Default)]
pub struct Bell(AtomicU32);

impl Bell {
    /// Returns the notifications since the last call.
    pub fn rung(&self) -> u32 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl Notify for Bell {
    /// Notifies at once: the simulator's queues are not moderated.
    fn notify_within(&self, completion_queue: u32, _: Duration, _: u32) {
        self.notify(completion_queue);
    }

    fn notify(&self, _: u32) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Parameters of one end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The other end's address.
    pub peer_address: IpAddr,
    /// The other end's queue pair.
    pub peer_qpn: Qpn,
    /// The other end's capabilities.
    pub peer: PeerCapabilities,
    /// This end's key for the connection.
    pub key: Option<PeerKey>,
    /// Payload of a full packet.
    pub path_mtu: Mtu,
    /// First packet sequence number sent.
    pub sq_psn: Psn,
    /// First packet sequence number expected.
    pub rq_psn: Psn,
    /// The other end's access flags.
    pub access: AccessFlags,
    /// READs and atomics outstanding, in both directions.
    pub rd_atomic: u8,
    /// Code of the transport timeout.
    pub timeout: u8,
    /// Retries without a response.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK.
    pub rnr_retry: u8,
    /// Code of the wait requested in RNR NAKs.
    pub min_rnr_timer: u8,
}

const LIMITS: ModifyLimits =
    ModifyLimits { max_rd_atomic: 128, max_dest_rd_atomic: 128, active_mtu: Mtu::Mtu4096, pkey_tbl_len: 1, ports: 1 };
const SOURCE_PORT: u16 = 50_000;

impl Host {
    /// Creates a host without queue pairs.
    pub fn new(address: IpAddr, seed: u64) -> Self {
        Self::with_congestion(address, seed, None)
    }

    /// Creates a host with a congestion controller for its connections.
    pub fn with_congestion(address: IpAddr, seed: u64, congestion: Option<Arc<dyn CongestionFactory>>) -> Self {
        Self::with_config(address, seed, EndpointConfig { congestion, ..EndpointConfig::default() })
    }

    /// Creates a host that states these capabilities when it discovers peers.
    pub fn with_capabilities(address: IpAddr, seed: u64, capabilities: PeerCapabilities) -> Self {
        Self::with_config(address, seed, EndpointConfig { capabilities, ..EndpointConfig::default() })
    }

    /// Creates a host whose memory others may access directly, once they are linked
    /// ([`Network::share_memory`](super::Network::share_memory)).
    ///
    /// # Panics
    /// If the system has no memory or descriptor for the table of grants.
    pub fn sharing_memory(address: IpAddr, seed: u64) -> Self {
        // Never read: no access is in progress while another host acts.
        let exports = Exports::new(|| Time::ZERO).expect("memory for a table");
        let host = Self::new(address, seed);
        Self { memory: host.memory.exporting(Arc::clone(&exports)), exports: Some(exports), ..host }
    }

    fn with_config(address: IpAddr, seed: u64, config: EndpointConfig) -> Self {
        let mut random = Random::new(seed);
        let numbers = Box::new(move || random.number() as u32);
        let config = EndpointConfig { random: numbers, qpn_blocks: vec![0x123], ..config };
        Self { address, endpoint: Endpoint::new(config), memory: RegionTable::new(1_024), exports: None }
    }

    /// Creates a reliable connection's queue pair in protection domain 1.
    pub fn create_queue_pair(&mut self, cap: QueuePairCapabilities) -> Port {
        self.create_queue_pair_of(QueuePairType::ReliableConnection, cap)
    }

    /// Creates a queue pair in protection domain 1.
    pub fn create_queue_pair_of(&mut self, service: QueuePairType, cap: QueuePairCapabilities) -> Port {
        self.create_port(PortInit { service, domain: DomainId(1), cap, receives: None })
    }

    /// Creates a queue pair.
    pub fn create_port(&mut self, init: PortInit) -> Port {
        let PortInit { service, domain, cap, receives } = init;
        let create = match service {
            QueuePairType::UnreliableDatagram => SendQueue::for_datagrams,
            _ => SendQueue::new,
        };
        let send = create(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data);
        let receive = ReceiveQueue::new(cap.max_recv_wr, cap.max_recv_sge);
        let bell = Arc::new(Bell::default());
        let completions = CompletionQueue::new(1, cap.max_send_wr + cap.max_recv_wr, Some(bell.clone()));
        let events = AsyncEventQueue::new(64, None);
        let init = QueuePairInit {
            service,
            domain,
            send: send.consumer().expect("a new queue has its consumer"),
            receive: receives
                .unwrap_or_else(|| ReceiveSource::Own(receive.consumer().expect("a new queue has its consumer"))),
            send_completions: (completions.clone(), completions.attach(Some(send.clone()))),
            receive_completions: (completions.clone(), completions.attach(None)),
            signal_all: false,
            cap,
            events: events.clone(),
        };
        let qpn = self.endpoint.create_queue_pair(init).expect("room for a queue pair");
        Port { qpn, send, receive, completions, events, bell }
    }

    /// Modifies a queue pair.
    pub fn modify(&mut self, now: Time, qpn: Qpn, attributes: &QueuePairAttributes) {
        let source = SourceAddress { address: self.address, source_port: SOURCE_PORT };
        let modified = self.endpoint.modify_queue_pair(now, qpn, attributes, Some(source), &LIMITS);
        modified.expect("a transition that the standard has");
    }

    /// Changes only the state.
    pub fn go_to(&mut self, now: Time, qpn: Qpn, state: QueuePairState) {
        self.modify(now, qpn, &QueuePairAttributes { qp_state: Some(state), ..QueuePairAttributes::default() });
    }

    /// Moves a queue pair from RESET to RTS.
    pub fn connect(&mut self, now: Time, qpn: Qpn, terms: &Connection) {
        let service = self.endpoint.query_queue_pair(qpn).expect("a queue pair of this host").qp_type;
        let reliable = service.is_reliable();
        let (asks, answers) =
            (reliable && service != QueuePairType::XrcReceive, reliable && service != QueuePairType::XrcSend);
        self.modify(
            now,
            qpn,
            &QueuePairAttributes {
                qp_state: Some(QueuePairState::Init),
                pkey_index: Some(0),
                port_num: Some(1),
                qp_access_flags: Some(terms.access),
                ..QueuePairAttributes::default()
            },
        );
        self.modify(
            now,
            qpn,
            &QueuePairAttributes {
                qp_state: Some(QueuePairState::ReadyToReceive),
                ah_attr: Some(AddressVector::new(terms.peer_address.into(), 0)),
                path_mtu: Some(terms.path_mtu),
                dest_qp_num: Some(terms.peer_qpn),
                rq_psn: Some(terms.rq_psn),
                max_dest_rd_atomic: answers.then_some(terms.rd_atomic),
                min_rnr_timer: answers.then_some(terms.min_rnr_timer),
                peer: Some(terms.peer),
                peer_key: terms.key,
                ..QueuePairAttributes::default()
            },
        );
        self.modify(
            now,
            qpn,
            &QueuePairAttributes {
                qp_state: Some(QueuePairState::ReadyToSend),
                timeout: reliable.then_some(terms.timeout),
                retry_cnt: asks.then_some(terms.retry_cnt),
                rnr_retry: asks.then_some(terms.rnr_retry),
                sq_psn: Some(terms.sq_psn),
                max_rd_atomic: asks.then_some(terms.rd_atomic),
                ..QueuePairAttributes::default()
            },
        );
        if self.exports.is_some() {
            self.endpoint.access_directly(qpn);
        }
    }

    /// Moves a datagram queue pair from RESET to RTS.
    pub fn start_datagrams(&mut self, now: Time, qpn: Qpn, qkey: Qkey, sq_psn: Psn) {
        self.modify(
            now,
            qpn,
            &QueuePairAttributes {
                qp_state: Some(QueuePairState::Init),
                pkey_index: Some(0),
                port_num: Some(1),
                qkey: Some(qkey),
                ..QueuePairAttributes::default()
            },
        );
        self.go_to(now, qpn, QueuePairState::ReadyToReceive);
        let state = Some(QueuePairState::ReadyToSend);
        let attributes =
            QueuePairAttributes { qp_state: state, sq_psn: Some(sq_psn), ..QueuePairAttributes::default() };
        self.modify(now, qpn, &attributes);
    }

    /// Posts a send request. False if the queue is full.
    pub fn post_send(&mut self, now: Time, port: &Port, request: &SendRequest<'_>) -> bool {
        self.post_by(now, port, |queue| queue.push(request))
    }

    /// Posts a send request to the peer's shared receive queue `srq`. False if the queue is full.
    pub fn post_send_to_srq(
        &mut self,
        now: Time,
        port: &Port,
        request: &SendRequest<'_>,
        srq: SharedReceiveQueueNumber,
    ) -> bool {
        self.post_by(now, port, |queue| queue.push_to_srq(request, srq))
    }

    /// Posts a datagram. False if the queue is full.
    pub fn post_datagram(&mut self, now: Time, port: &Port, request: &SendRequest<'_>, to: &Destination) -> bool {
        self.post_by(now, port, |queue| queue.push_to(request, to))
    }

    fn post_by(&mut self, now: Time, port: &Port, push: impl FnOnce(&SendQueue) -> Result<(), QueueError>) -> bool {
        port.send.begin();
        let pushed = push(&port.send).is_ok();
        port.send.end(BatchEnd::Publish).expect("a batch was begun");
        self.endpoint.handle_doorbell(now, port.qpn);
        pushed
    }

    /// Returns the source port of sent packets.
    pub const fn source_port() -> u16 {
        SOURCE_PORT
    }

    /// Posts a receive to a shared receive queue. False if the queue is full.
    pub fn post_shared_receive(queue: &SharedReceiveQueue, request: &ReceiveRequest<'_>) -> bool {
        queue.begin();
        let pushed = queue.push(request).is_ok();
        queue.end(BatchEnd::Publish).expect("a batch was begun");
        pushed
    }

    /// Posts a receive. False if the queue is full.
    pub fn post_receive(&mut self, now: Time, port: &Port, request: &ReceiveRequest<'_>) -> bool {
        port.receive.begin();
        let pushed = port.receive.push(request).is_ok();
        port.receive.end(BatchEnd::Publish).expect("a batch was begun");
        self.endpoint.handle_doorbell(now, port.qpn);
        pushed
    }
}

impl Port {
    /// Polls all completions into `out`.
    pub fn poll(&self, out: &mut Vec<RawCompletion>) {
        let mut some = [RawCompletion::default(); 32];
        loop {
            let count = self.completions.poll(&mut some);
            out.extend_from_slice(&some[..count]);
            if count < some.len() {
                return;
            }
        }
    }

    /// Returns the next event.
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.events.poll()
    }
}
