//! The judgement of the ends of the connections.

use std::time::Duration;

use rdma_verbs::cm::{ConnectionHandle, ConnectionState, DisconnectCause};

use super::{Act, PROCESSES, World};

/// The interval in which a DREQ is repeated, and the delay of datagrams, with a margin.
const CONFIRMATION_TIME: Duration = Duration::from_secs(3);

impl World {
    /// The ends that were set up with a process that died know it, if its host has a registry.
    pub(super) fn judge_doomed(&mut self) {
        for (_, (process, generation, connection)) in std::mem::take(&mut self.doomed) {
            let slot = &self.processes[process];
            let is_known = slot.generation != generation || slot.ends.get(connection).is_none_or(|end| end.is_over);
            self.outcome.count("death of the peer learned", 1);
            assert!(is_known, "process {process} does not know that the peer of {connection:?} is dead");
        }
    }

    /// Queue pairs notice that their peers are gone: their applications disconnect.
    pub(super) fn notice_losses(&mut self) {
        for process in 0..PROCESSES {
            let handles: Vec<_> = self.processes[process].ends.handles().collect();
            for connection in handles {
                let Some(end) = self.processes[process].ends.get(connection) else { continue };
                let generation = self.processes[process].generation;
                if !end.is_over && self.judgement.has_lost_peer(end.attempt, (process, generation, connection)) {
                    self.outcome.count("death of the peer noticed", 1);
                    self.plan_act(process, connection, 0, Act::Disconnect);
                }
            }
        }
    }

    /// All is quiet: a connection is set up at both ends or at neither, and none is half-open.
    pub(super) fn judge_agreement(&mut self) {
        for process in 0..PROCESSES {
            let handles: Vec<_> = self.processes[process].ends.handles().collect();
            for connection in handles {
                let (slot, generation) = (&self.processes[process], self.processes[process].generation);
                let state = slot.manager.as_ref().and_then(|manager| manager.state(connection));
                let end = slot.ends.get(connection).expect("an end");
                if state == Some(ConnectionState::Idle) {
                    continue;
                }
                let what = format!("{connection:?} of process {process}, attempt {}", end.attempt);
                assert_eq!(state, Some(ConnectionState::Established), "{what} is half-open");
                let other = self.judgement.other(end.attempt, end.is_active);
                let (other_process, other_generation, other) = other.unwrap_or_else(|| panic!("{what} has no peer"));
                let peer = &self.processes[other_process];
                assert_eq!(
                    peer.generation, other_generation,
                    "the peer of {what} is dead; own generation {generation}"
                );
                let peer_state = peer.manager.as_ref().and_then(|manager| manager.state(other));
                assert_eq!(peer_state, Some(ConnectionState::Established), "the peer of {what} has another state");
                self.outcome.count("end set up at last", 1);
            }
        }
    }

    /// A DREQ has no DREP only if the peer's application has not ended its connection. A lost DREP is a reason as well.
    pub(super) fn judge_confirmation(&self, process: usize, connection: ConnectionHandle, cause: DisconnectCause) {
        let end = self.processes[process].ends.get(connection).filter(|_| cause == DisconnectCause::Timeout);
        if let Some(end) = end.filter(|_| self.is_calm && self.faults.loss == 0) {
            let closed = self.closed.get(&(end.attempt, !end.is_active));
            let is_late = closed.is_none_or(|closed| self.now.saturating_since(*closed) < CONFIRMATION_TIME);
            assert!(is_late, "no DREP for {connection:?} of process {process}");
        }
    }
}
