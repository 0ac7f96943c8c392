//! Many handshakes between two connection managers on a link that loses 30 % of the datagrams each way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use rdma_verbs::cm::{
    AcceptParameters, Arrival, ConnectParameters, ConnectionHandle, ConnectionState, Event, Limits, ListenParameters,
    Manager, ManagerConfig, Outgoing, PathParameters,
};
use rdma_verbs::sim::Random;
use rdma_verbs::types::{Mtu, Psn, Qpn, Time};
use rdma_verbs::wire::mad::{FlowLabel, IpHeader, PortSpace, PrivateData, RetryCount, ServiceId, TimeoutCode};

const LOSS: u32 = 300;
const QUIET: Duration = Duration::from_secs(300);
const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 5_000);

/// A client and a server with many handshakes.
struct Application {
    managers: [Manager; 2],
    agenda: BTreeMap<(Time, u64), (usize, Outgoing)>,
    order: u64,
    random: Random,
    now: Time,
    count: u32,
    started: u32,
    /// The handshake of each connection of each end.
    numbers: [BTreeMap<ConnectionHandle, u32>; 2],
    /// Whether each end knows the failure of a handshake.
    failed: [BTreeSet<u32>; 2],
    /// Handshakes of which the server has had the request, and those that are set up.
    requested: BTreeSet<u32>,
    established: BTreeSet<u32>,
}

fn address(at: usize) -> IpAddr {
    [192, 0, 2, at as u8 + 1].into()
}

impl Application {
    fn new(count: u32, seed: u64) -> Self {
        let managers = [0, 1].map(|at: usize| {
            let mut random = Random::new(seed + at as u64);
            let limits = Limits { connections: 30_000, resting: 10_000, ..Limits::default() };
            Manager::new(ManagerConfig {
                guid: at as u64 + 1,
                id_block: at as u32 + 1,
                addresses: vec![address(at)],
                random: Box::new(move || (random.number() >> 32) as u32),
                limits,
            })
        });
        Self {
            managers,
            agenda: BTreeMap::new(),
            order: 0,
            random: Random::new(seed),
            now: Time::from_nanos(1),
            count,
            started: 0,
            numbers: Default::default(),
            failed: Default::default(),
            requested: BTreeSet::new(),
            established: BTreeSet::new(),
        }
    }

    /// Runs all handshakes. Returns how many ended set up at both ends, how many failed at both, and how many there
    /// were.
    fn run(mut self) -> (u32, u32, u32) {
        let listener = ListenParameters {
            service_id: SERVICE,
            address: None,
            is_datagram: false,
            transport: Default::default(),
            backlog: 1_024,
        };
        self.managers[1].listen(listener).expect("a listener");
        let mut end = Time::NEVER;
        loop {
            if self.started < self.count {
                self.connect();
                end = self.now + QUIET;
            }
            [0, 1].into_iter().for_each(|at| self.drain(at));
            let timers = self.managers.iter().filter_map(Manager::next_deadline);
            let next = timers.chain(self.agenda.keys().next().map(|key| key.0)).min();
            let start = (self.started < self.count).then(|| self.now + Duration::from_millis(1));
            let Some(next) = next.into_iter().chain(start).min().filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            while let Some(entry) = self.agenda.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let (at, outgoing) = entry.remove();
                self.arrive(at, &outgoing);
            }
            self.managers.iter_mut().for_each(|manager| manager.handle_timeout(self.now));
        }
        self.judge()
    }

    fn connect(&mut self) {
        self.started += 1;
        let [local, remote] = [0, 1].map(address);
        let path = PathParameters {
            local,
            remote,
            traffic_class: 0,
            flow_label: FlowLabel::default(),
            hop_limit: 64,
            ack_timeout: TimeoutCode::saturating(17),
        };
        let parameters = ConnectParameters {
            service_id: SERVICE,
            header: IpHeader::new((local, 1).into(), remote).expect("addresses of one version"),
            path,
            transport: Default::default(),
            local_qpn: Qpn::new(self.started + 16),
            starting_psn: Psn::new(self.started),
            responder_resources: 1,
            initiator_depth: 1,
            end_to_end_flow_control: false,
            retry_count: RetryCount::MAX,
            rnr_retry_count: RetryCount::MAX,
            path_mtu: Mtu::Mtu1024,
            has_srq: false,
            vendor_options: Default::default(),
            native: None,
            private_data: PrivateData::new(&self.started.to_be_bytes()).expect("four bytes"),
            deadline: None,
        };
        let connection = self.managers[0].connect(self.now, &parameters).expect("a connection");
        self.numbers[0].insert(connection, self.started);
    }

    fn arrive(&mut self, at: usize, outgoing: &Outgoing) {
        let arrival = Arrival {
            source: outgoing.source,
            destination: outgoing.destination,
            traffic_class: 0,
            flow_label: FlowLabel::default(),
            bytes: &outgoing.bytes,
        };
        self.managers[at].handle_datagram(self.now, &arrival);
        self.drain(at);
    }

    fn drain(&mut self, at: usize) {
        while let Some(event) = self.managers[at].poll_event() {
            self.handle_event(at, event);
        }
        while let Some(outgoing) = self.managers[at].poll_output() {
            if !self.random.chance(LOSS) {
                self.order += 1;
                let delay = Duration::from_micros(100 + self.random.below(1_000));
                self.agenda.insert((self.now + delay, self.order), (1 - at, outgoing));
            }
        }
    }

    fn handle_event(&mut self, at: usize, event: Event) {
        match event {
            Event::ConnectRequest { connection, private_data, .. } => {
                let number = private_data.as_bytes().first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
                assert!(self.requested.insert(number), "handshake {number} twice");
                self.numbers[1].insert(connection, number);
                let parameters = AcceptParameters { local_qpn: Qpn::new(number + 16), ..AcceptParameters::default() };
                self.managers[1].accept(self.now, connection, &parameters).expect("a request");
            }
            Event::Reply { connection, .. } => self.managers[0].ready(self.now, connection).expect("a reply"),
            Event::Established { connection } => {
                assert!(self.established.insert(self.numbers[1][&connection]), "set up twice");
            }
            Event::Rejected { connection, .. }
            | Event::Unreachable { connection, .. }
            | Event::Disconnected { connection, .. } => {
                assert!(self.failed[at].insert(self.numbers[at][&connection]), "ended twice");
            }
            _ => {}
        }
    }

    /// Judges each handshake: set up at both ends, or failed at both ends that know of it.
    fn judge(&self) -> (u32, u32, u32) {
        let is_set_up = |at: usize, connection: &ConnectionHandle| {
            self.managers[at].state(*connection) == Some(ConnectionState::Established)
        };
        let passive: BTreeMap<u32, bool> =
            self.numbers[1].iter().map(|(connection, number)| (*number, is_set_up(1, connection))).collect();
        let (mut whole, mut failed) = (0, 0);
        for (connection, number) in &self.numbers[0] {
            match (is_set_up(0, connection), passive.get(number)) {
                (true, Some(true)) => whole += 1,
                (false, None) => failed += u32::from(self.failed[0].contains(number)),
                (false, Some(false)) => {
                    failed += u32::from(self.failed.iter().all(|failed| failed.contains(number)));
                }
                _ => {}
            }
        }
        (whole, failed, self.numbers[0].len() as u32)
    }
}

/// Many handshakes at a loss of 30 % each way. Returns the number of those that both ends know as set up, that both
/// ends know as failed, and of all.
pub(crate) fn many_handshakes(count: u32, seed: u64) -> (u32, u32, u32) {
    Application::new(count, seed).run()
}
