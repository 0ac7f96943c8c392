//! The end of connections.

use std::time::{Duration, Instant};

use rdma_verbs::verbs::QueuePairState;
use rdma_verbs::verbs::cm::{ConnectionOptions, RejectReason};

use crate::filter::Filter;
use crate::handshake::READY_TO_SEND;
use crate::home::{Home, LISTENER, Outcome, PATIENCE, PORT, Pair, Terms, ensure, expect};
use crate::refusals::expect_rejected;
use crate::wire::{DREP, DREQ};

/// How long an application waits until it disconnects, too.
const DELAY: Duration = Duration::from_millis(1_200);
const SOON: Duration = Duration::from_secs(2);

/// Our end disconnects. Its wait ends when the guest's application disconnects, too.
pub(crate) fn we_disconnect(home: &mut Home) -> Outcome {
    let pair = home.pair(&Terms::default())?;
    pair.connection.disconnect(&pair.end.qp)?;
    home.event(pair.slot, "disconnected", "0")?;
    home.guest.command(&format!("query {}", pair.slot))?.expect(&[("state", READY_TO_SEND)])?;
    ensure(!pair.connection.wait_disconnected(DELAY)?, "the end is confirmed before the guest disconnects")?;
    ensure(home.wire.of(DREP, false)?.is_empty(), "a DREP before the guest disconnects")?;
    home.no_event(pair.slot)?;
    home.guest_does(&format!("disconnect {}", pair.slot))?;
    ensure(pair.connection.wait_disconnected(SOON)?, "the guest's DREP does not end the connection")?;
    home.event(pair.slot, "timewait_exit", "0")?;
    home.no_event(pair.slot)
}

/// The guest disconnects. Its event comes when our application disconnects, too.
pub(crate) fn guest_disconnects(home: &mut Home) -> Outcome {
    let pair = home.pair(&Terms::default())?;
    home.guest_does(&format!("disconnect {}", pair.slot))?;
    ensure(pair.connection.wait_disconnected(PATIENCE)?, "no DREQ arrives")?;
    expect("state", pair.end.qp.state()?, QueuePairState::ReadyToSend)?;
    std::thread::sleep(DELAY);
    ensure(home.wire.of(DREP, true)?.is_empty(), "a DREP before our application disconnects")?;
    home.no_event(pair.slot)?;
    pair.connection.disconnect(&pair.end.qp)?;
    expect("state", pair.end.qp.state()?, QueuePairState::Error)?;
    home.event(pair.slot, "disconnected", "0")?;
    home.event(pair.slot, "timewait_exit", "0")?;
    home.no_event(pair.slot)
}

/// Both ends have sent a DREQ when the other one arrives: no end waits for a DREP.
pub(crate) fn both_disconnect(home: &mut Home) -> Outcome {
    // The first ones of both ends are lost; our second one arrives.
    disconnect_both(home, &[(DREQ, false, 1), (DREQ, true, 1)])?;
    // None of ours arrives.
    disconnect_both(home, &[(DREQ, true, 100)])
}

fn disconnect_both(home: &mut Home, losses: &[(u16, bool, u32)]) -> Outcome {
    let pair = home.pair(&Terms::default())?;
    let filter = Filter::first(home.local.is_ipv4(), losses)?;
    pair.connection.disconnect(&pair.end.qp)?;
    home.guest_does(&format!("disconnect {}", pair.slot))?;
    let start = Instant::now();
    home.event(pair.slot, "disconnected", "0")?;
    home.guest_does(&format!("disconnect {}", pair.slot))?;
    ensure(pair.connection.wait_disconnected(PATIENCE)?, "our end is not disconnected")?;
    ensure(start.elapsed() < SOON, "an end has waited for its repetition")?;
    drop(filter);
    home.event(pair.slot, "timewait_exit", "0")?;
    home.no_event(pair.slot)
}

/// SIGKILL of the guest's process: its kernel ends its connections and requests.
pub(crate) fn guests_process_is_killed(home: &mut Home) -> Outcome {
    let (pid, other) = home.spawn()?;
    let first = std::mem::replace(&mut home.guest, other);
    // The first process's listener has the usual port.
    let port = PORT + 10;
    let (local, remote) = (home.local, home.remote);
    let killed = if home.guest_is_client() {
        let pair = home.pair(&Terms::default())?;
        let (request, _) = home.guest_requests(&Terms::default())?;
        home.guest = first;
        home.guest.command(&format!("kill {pid}"))?;
        let end = home.end()?;
        ensure(
            request.accept(&end.qp, &ConnectionOptions::new()).is_err(),
            "the request of a killed process is accepted",
        )?;
        pair
    } else {
        home.guest.command(&format!("create {LISTENER}"))?;
        home.guest.command(&format!("listen {LISTENER} {remote} {port}"))?;
        let end = home.end()?;
        let pending = home.route(port)?.start_connect(&end.qp, &ConnectionOptions::new())?;
        let (connection, slot) = home.guest_accepts(&end.qp, pending, &Terms::default())?;
        let waiting = home.end()?;
        let pending = home.route(port)?.start_connect(&waiting.qp, &ConnectionOptions::new())?;
        home.guest_takes(&waiting.qp)?;
        home.guest = first;
        home.guest.command(&format!("kill {pid}"))?;
        expect_rejected(pending.wait(), RejectReason::CONSUMER, &[])?;
        let next = home.end()?;
        let outcome = home.route(port)?.connect(&next.qp, &ConnectionOptions::new());
        expect_rejected(outcome, RejectReason::INVALID_SERVICE_ID, &[])?;
        Pair { end, connection, slot }
    };
    ensure(killed.connection.wait_disconnected(SOON)?, &format!("{local} does not learn that the process has ended"))?;
    killed.connection.disconnect(&killed.end.qp)?;
    Ok(())
}
