//! Listeners that begin after the first request for them has arrived, at whichever process of the host.

use std::time::Duration;

use rdma_verbs::cm::{Arrival, HeldRequest, ListenParameters};
use rdma_verbs::wire::mad::{FlowLabel, Mad, PortSpace, ServiceId};

use super::super::connection_ends::{PROCESSES, host_of, port_of};
use super::{Item, World};

/// A listener begins at most so many milliseconds after the first request for it leaves: a request waits longer.
const LATEST_LISTENER: u64 = 240;
/// The first port whose listener begins late; the number of the attempt follows.
const FIRST_LATE_PORT: u16 = 20_000;

/// Returns the parameters of a listener.
pub(super) fn parameters(space: PortSpace, port: u16) -> ListenParameters {
    ListenParameters {
        service_id: ServiceId::of_port(space, port),
        address: None,
        is_datagram: space == PortSpace::Udp,
        transport: Default::default(),
        backlog: 40,
    }
}

impl World {
    /// Returns the port of an attempt: that of a listener that is there, or of one that begins later.
    pub(super) fn requested_port(&mut self, to: usize) -> u16 {
        if !self.random.chance(300) {
            return port_of(to);
        }
        let port = FIRST_LATE_PORT + self.attempts as u16;
        let wait = Duration::from_millis(self.random.below(LATEST_LISTENER));
        self.plan(wait, Item::Listen { process: to, port });
        port
    }

    /// Searches for the listeners of all requests that are due.
    pub(super) fn search_all(&mut self, process: usize) {
        let now = self.now;
        while let Some(held) = self.processes[process].manager.as_mut().and_then(|manager| manager.poll_held(now)) {
            self.search(process, held);
        }
    }

    /// Gives a request that waits for a listener to the process of the host that listens, as the table of ports does.
    fn search(&mut self, process: usize, held: HeldRequest) {
        let mad = Mad::read(&held.bytes[..]).expect("a datagram");
        let is_other = |other: &usize| *other != process && host_of(*other) == host_of(process);
        let listener = (0..PROCESSES).filter(is_other).find(|other| self.processes[*other].listens(&mad));
        let other = listener.and_then(|other| self.processes[other].manager.as_mut());
        if let Some(manager) = other {
            self.outcome.count("waiting request passed on", 1);
            let HeldRequest { source, destination, traffic_class, bytes, .. } = &held;
            let (source, destination, traffic_class, bytes) = (*source, *destination, *traffic_class, &bytes[..]);
            let flow_label = FlowLabel::default();
            manager.handle_datagram(self.now, &Arrival { source, destination, traffic_class, flow_label, bytes });
        } else if let Some(manager) = &mut self.processes[process].manager {
            manager.return_held(self.now, held);
        }
    }

    /// A listener begins whose first request may have arrived already.
    pub(super) fn listen_late(&mut self, process: usize, port: u16) {
        let Some(manager) = &mut self.processes[process].manager else { return };
        manager.listen(parameters(PortSpace::Tcp, port)).expect("a listener");
        self.processes[process].late_ports.insert(port);
        self.outcome.count("listener began late", 1);
    }
}
