//! Data before the handshake ends.

use std::time::Duration;

use rdma_verbs::verbs::cm::ConnectionOptions;

use crate::home::{Home, LENGTH, Outcome, PORT, Pair, Terms};

/// The passive end sends as soon as it has accepted; the application of the active end is late. rxe drops the packets
/// until it reads the event.
pub(crate) fn arrives_early(home: &mut Home) -> Outcome {
    let (end, seed) = (home.end()?, home.seed());
    let pair = if home.guest_is_client() {
        let (request, slot) = home.guest_requests(&Terms::default())?;
        let pending = request.start_accept(&end.qp, &ConnectionOptions::new())?;
        end.send(seed)?;
        home.guest.command("sleep 1500")?;
        home.event(slot, "established", "0")?;
        let received = home.guest.command(&format!("received {slot} {LENGTH} {seed}"))?;
        received.expect(&[("status", "0"), ("check", "good")])?;
        let connection = pending.wait()?;
        end.await_sent()?;
        Pair { end, connection, slot }
    } else {
        let pending = home.route(PORT)?.start_connect(&end.qp, &ConnectionOptions::new())?;
        let (slot, _) = home.guest_takes(&end.qp)?;
        home.guests_queue_pair(slot)?;
        home.guest_does(&format!("accept {slot}"))?;
        home.guest.command(&format!("send {slot} {LENGTH} {seed}"))?;
        std::thread::sleep(Duration::from_millis(1_000));
        let connection = pending.wait()?;
        end.await_received(seed)?;
        home.event(slot, "established", "0")?;
        home.guest.command(&format!("sent {slot}"))?.expect(&[("status", "0")])?;
        Pair { end, connection, slot }
    };
    home.end_pair(&pair)
}
