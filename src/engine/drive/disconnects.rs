//! The end of a device: its last DREQs.

use std::os::fd::AsFd;
use std::time::Duration;

use super::shard::Shard;
use crate::sys::wait_readable;

/// How often the DREQs without a DREP are repeated at the end of a device.
const REPETITIONS: u32 = 3;
/// The wait for the DREP after each of them, and after the one before: 40 ms in all. In a network of one site a DREP
/// takes less, unless the peer's application is slow.
const INTERVAL: Duration = Duration::from_millis(10);
/// Another thread may receive the DREP: look again after this time.
const LOOK_EVERY: Duration = Duration::from_millis(1);

impl Shard {
    /// Repeats the DREQs whose DREP has not arrived, because nothing repeats them after the end of the device: a peer
    /// without traffic whose DREQ is lost keeps its connection. Sends the other messages of the connection manager,
    /// too. Requests that wait for a listener here are rejected. Returns as soon as all have left and all ends are
    /// confirmed, after 40 ms at the latest.
    pub(crate) fn finish_disconnects(&self) {
        self.command(|core, _| core.connections.refuse_held());
        for _ in 0..REPETITIONS {
            if self.are_disconnects_confirmed(INTERVAL) {
                return;
            }
            self.command(|core, _| core.connections.hasten_disconnects());
        }
        self.are_disconnects_confirmed(INTERVAL);
    }

    /// Waits until the ends of all connections are confirmed, and messages without a confirmation, such as REJs, have
    /// left. Returns false if that is not so within this time.
    fn are_disconnects_confirmed(&self, time: Duration) -> bool {
        let end = self.clock.now() + time;
        loop {
            let mut awaits = false;
            self.command(|core, _| {
                let connections = &core.connections;
                awaits = connections.awaits_disconnects() || connections.has_outputs() || core.has_unsent();
            });
            let left = end.saturating_since(self.clock.now());
            if !awaits || left.is_zero() {
                return !awaits;
            }
            // The device may have no thread, or this may be its thread.
            let _ = wait_readable([self.sockets.as_fd()], Some(left.min(LOOK_EVERY)));
            self.receive_once();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Instant;

    use super::super::tests::shard;
    use super::super::{end_thread, start_thread};
    use super::*;
    use crate::cm::tests::script::{connect_parameters, path_parameters};
    use crate::cm::{Arrival, ConnectParameters, ConnectionHandle, Manager, PathParameters};
    use crate::sys::LocalAddress;
    use crate::types::Time;
    use crate::wire::mad::{Attribute, CommunicationId, ConnectReply, FlowLabel, IpHeader, Mad, Message};

    fn address(text: &str) -> LocalAddress {
        LocalAddress { ip: text.parse().unwrap(), scope: 0 }
    }

    /// Sets up a connection to a peer of which only the communication id is known.
    fn connect(manager: &mut Manager, now: Time, ends: [LocalAddress; 2], peer: CommunicationId) -> ConnectionHandle {
        let [local, remote] = ends.map(|end| end.ip);
        let parameters = ConnectParameters {
            header: IpHeader::new(SocketAddr::new(local, 1), remote).unwrap(),
            path: PathParameters { local, remote, ..path_parameters() },
            ..connect_parameters()
        };
        let connection = manager.connect(now, &parameters).unwrap();
        let request = Mad::read(&manager.poll_output().unwrap().bytes).unwrap();
        let Ok(Message::ConnectRequest(sent)) = Message::read(&request) else { panic!("{request:?}") };
        let reply = ConnectReply { local_id: peer, remote_id: sent.local_id, ..ConnectReply::default() };
        let bytes = Message::from(reply).to_mad(request.transaction_id).write();
        let flow_label = FlowLabel::default();
        manager.handle_datagram(
            now,
            &Arrival { source: remote, destination: local, traffic_class: 0, flow_label, bytes: &bytes },
        );
        manager.ready(now, connection).unwrap();
        manager.poll_output().expect("the RTU");
        connection
    }

    /// Disconnects, and loses the DREQ.
    fn disconnect(shard: &Shard, ends: [LocalAddress; 2], peer: CommunicationId) {
        let lost = shard.manage(|connections, now| {
            let connection = connect(connections.manager(), now, ends, peer);
            connections.manager().destroy(now, connection).unwrap();
            Mad::read(&connections.manager().poll_output().unwrap().bytes).unwrap().attribute
        });
        assert_eq!(lost, Some(Attribute::DISCONNECT_REQUEST));
    }

    fn repeated(shard: &Shard) -> u64 {
        let count = |manager: &Manager| manager.counters().repeated.of(Attribute::DISCONNECT_REQUEST);
        shard.manage(|connections, _| count(connections.manager())).unwrap()
    }

    fn awaits(shard: &Shard) -> bool {
        shard.manage(|connections, _| connections.awaits_disconnects()).unwrap()
    }

    #[test]
    fn a_lost_disconnect_request_is_repeated_at_the_end_of_the_device() {
        let ends = [address("127.77.21.1"), address("127.77.21.2")];
        let [own, peer] = ends.map(|end| {
            let shard = Arc::new(shard());
            shard.open_management(end).unwrap();
            shard
        });
        // A peer without the connection confirms any DREQ.
        let thread = start_thread(Arc::clone(&peer), "confirming".to_owned()).unwrap();
        disconnect(&own, ends, CommunicationId(u32::from(peer.id_block()) << 20 | 5));
        assert!(awaits(&own));
        let start = Instant::now();
        own.finish_disconnects();
        let took = start.elapsed();
        assert!(took >= INTERVAL && repeated(&own) > 0, "{} in {took:?}", repeated(&own));
        // A busy machine may delay the peer's thread.
        while awaits(&own) && start.elapsed() < INTERVAL * 1_000 {
            own.finish_disconnects();
        }
        assert!(!awaits(&own));
        end_thread(&peer);
        thread.join().unwrap();
    }

    #[test]
    fn the_wait_for_a_silent_peer_is_bounded() {
        let ends = [address("127.77.21.3"), address("127.77.21.4")];
        let shard = Arc::new(shard());
        shard.open_management(ends[0]).unwrap();
        disconnect(&shard, ends, CommunicationId(5));
        let start = Instant::now();
        shard.finish_disconnects();
        let took = start.elapsed();
        assert!(awaits(&shard));
        assert!((3..10).contains(&repeated(&shard)), "{}", repeated(&shard));
        assert!(took >= INTERVAL * (REPETITIONS + 1) && took < INTERVAL * 500, "{took:?}");
    }

    #[test]
    fn a_device_without_unconfirmed_ends_does_not_wait() {
        let shard = Arc::new(shard());
        shard.open_management(address("127.77.21.5")).unwrap();
        let start = Instant::now();
        (0..100).for_each(|_| shard.finish_disconnects());
        assert!(start.elapsed() < INTERVAL * 100);
    }
}
