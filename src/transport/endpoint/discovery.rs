//! Discovery of native peers: the path of its datagrams to the queue pairs.

use super::Endpoint;
use crate::transport::datagram::{Datagram, DatagramOutcome};
use crate::transport::discovery::{Discovery, Secrets};
use crate::types::{Counter, DropReason, Qpn, Time};
use crate::wire::mad::{self, DiscoveryContent, MAD_BYTES, Mad};

impl Endpoint {
    /// Asks the peer of a connected queue pair, about which nothing is known, whether it is native, and answers its
    /// questions. `segmenting_port` is the UDP port of the socket from which bursts to the peer leave once it is known
    /// to take them; `None` if this end sends no bursts.
    ///
    /// Does nothing without [`EndpointConfig::capabilities`](super::EndpointConfig::capabilities), or if the peer's
    /// capabilities are known.
    pub fn discover_peer(&mut self, now: Time, qpn: Qpn, segmenting_port: Option<u16>) {
        let capabilities = self.config.capabilities;
        let Some(slot) = self.slot_of(qpn).filter(|_| capabilities.is_native()) else { return };
        let secrets = Secrets::draw(&mut self.config.random);
        if let Some(queue_pair) = self.enter(slot)
            && queue_pair.discover(Discovery::new(now, secrets, capabilities, segmenting_port))
        {
            self.follow_up(now, slot);
        }
        self.running = None;
    }

    /// Returns the message of the discovery in a datagram to queue pair 1, if this endpoint takes part.
    pub(super) fn discovery_in(&self, bytes: &[u8; MAD_BYTES]) -> Option<mad::Discovery> {
        self.config.capabilities.is_native().then(|| mad::Discovery::read(&Mad::read(bytes).ok()?)).flatten()
    }

    /// Hands a message to the queue pair whose connection it is about. Other messages get no response.
    #[cold]
    pub(super) fn take_discovery(
        &mut self,
        now: Time,
        datagram: &Datagram<'_>,
        message: &mad::Discovery,
    ) -> DatagramOutcome {
        let own = if let DiscoveryContent::Refusal(_) = message.content { message.sender } else { message.receiver };
        let Some(slot) = self.slot_of(own) else { return self.drop_datagram(DropReason::UnknownQueuePair) };
        let Self { config, paths, answer_limit, queue_pairs, running, .. } = self;
        *running = Some(slot);
        let Some(queue_pair) = queue_pairs.get_mut(slot as usize).and_then(Option::as_deref_mut) else {
            return DatagramOutcome::default();
        };
        let addresses = (datagram.source, datagram.destination);
        let may_answer = || answer_limit.take(now);
        let taken = queue_pair.take_discovery(now, addresses, message, config.congestion.as_deref(), may_answer);
        let key = queue_pair.common.path_key();
        if taken == Ok(true) {
            queue_pair.common.path.iter().for_each(|path| paths.note_path(&path.window_share));
        }
        self.follow_up(now, slot);
        if taken == Ok(true) {
            key.iter().for_each(|key| self.grant(key));
        }
        if let Err(reason) = taken {
            return self.drop_datagram(reason);
        }
        self.counters.add(Counter::ReceivedPackets, 1);
        self.counters.add(Counter::ReceivedBytes, datagram.payload.len() as u64);
        DatagramOutcome::default()
    }
}
