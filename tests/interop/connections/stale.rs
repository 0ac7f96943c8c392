//! Queue pairs that are used again.

use std::time::Duration;

use rdma_verbs::verbs::cm::{Connection, ConnectionOptions};

use crate::filter::Filter;
use crate::home::{End, Error, Home, Outcome, PATIENCE, PORT, Terms, ensure, expect};
use crate::wire::{DREQ, REJ};

/// A queue pair number of the guest that its application claims, without a queue pair.
const CLAIMED_QPN: u32 = 0x12_3456;
/// Time in which our end sends the DREQs that ask whether the peer has a connection.
const PROBE_TIME: Duration = Duration::from_millis(2_500);
/// How often a client is killed, with the checks that take long and without them.
const RESTARTS: (u32, u32) = (50, 4);

/// The active end's queue pair connects again as soon as the DREP has ended its connection.
pub(crate) fn reuses_the_queue_pair(home: &mut Home) -> Outcome {
    if home.guest_is_client() {
        for _ in 0..3 {
            let (connection, end, slot) = claim(home)?;
            home.guest_does(&format!("disconnect {slot}"))?;
            ensure(connection.wait_disconnected(PATIENCE)?, "no DREQ arrives")?;
            connection.disconnect(&end.qp)?;
            home.event(slot, "disconnected", "0")?;
        }
    } else {
        let mut end = home.end()?;
        for _ in 0..3 {
            let pair = home.pair_with(end, &Terms::default())?;
            home.exchange(&pair)?;
            home.end_pair(&pair)?;
            end = again(pair.end)?;
        }
    }
    ensure(home.wire.of(REJ, true)?.is_empty() && home.wire.of(REJ, false)?.is_empty(), "a REJ was sent")
}

/// Returns the end with its queue pair in INIT, and a receive posted.
fn again(end: End) -> Result<End, Error> {
    end.qp.reset()?;
    end.qp.init()?;
    end.post_receive()?;
    Ok(end)
}

/// The guest connects with the claimed queue pair number.
fn claim(home: &mut Home) -> Result<(Connection, End, u32), Error> {
    let (slot, end) = (home.guests_client("", PORT)?, home.end()?);
    home.guest_does(&format!("connect {slot} qpn={CLAIMED_QPN}"))?;
    let pending = home.take()?.start_accept(&end.qp, &ConnectionOptions::new())?;
    let response = home.event(slot, "connect_response", "0")?;
    response.expect(&[("qpn", &end.qp.qpn().value().to_string())])?;
    home.guest_does(&format!("establish {slot}"))?;
    Ok((pending.wait()?, end, slot))
}

/// A queue pair of a live connection requests another one: REJ 10. The kernel ends the old connection. Our end asks the
/// peer, which still has it, so that it stays.
pub(crate) fn refuses_a_live_queue_pair(home: &mut Home) -> Outcome {
    if home.guest_is_client() {
        let (old, end, old_slot) = claim(home)?;
        let slot = home.guests_client("", PORT)?;
        home.guest_does(&format!("connect {slot} qpn={CLAIMED_QPN}"))?;
        home.event(slot, "rejected", "10")?;
        ensure(!old.wait_disconnected(PROBE_TIME)?, "a request has ended a connection that its peer has")?;
        expect("DREQs", home.wire.of(DREQ, true)?.len(), 4)?;
        home.guest_does(&format!("disconnect {old_slot}"))?;
        ensure(old.wait_disconnected(PATIENCE)?, "the old connection does not end")?;
        old.disconnect(&end.qp)?;
        home.event(old_slot, "disconnected", "0")?;
        let (connection, end, slot) = claim(home)?;
        connection.disconnect(&end.qp)?;
        home.event(slot, "disconnected", "0")?;
        home.guest_does(&format!("disconnect {slot}"))?;
        ensure(connection.wait_disconnected(PATIENCE)?, "the new connection does not end")?;
    } else {
        let pair = home.pair(&Terms::default())?;
        // The guest does not learn that we end the connection.
        let filter = Filter::first(home.local.is_ipv4(), &[(DREQ, true, 100)])?;
        pair.connection.disconnect(&pair.end.qp)?;
        let old_slot = pair.slot;
        drop(pair.connection);
        // Our end tries again by itself.
        let new = home.pair_with(again(pair.end)?, &Terms::default())?;
        home.event(old_slot, "disconnected", "0")?;
        home.exchange(&new)?;
        drop(filter);
        home.end_pair(&new)?;
    }
    let rejections: Vec<_> = home.wire.of(REJ, home.guest_is_client())?.iter().map(|mad| mad.rejection()).collect();
    expect("rejections", rejections, vec![(10, 0)])
}

/// A client of the guest is killed and started again, many times: its connections end, and none of its requests is
/// taken for one of an old connection.
pub(crate) fn guests_client_restarts(home: &mut Home) -> Outcome {
    for _ in 0..if home.is_full { RESTARTS.0 } else { RESTARTS.1 } {
        let (pid, other) = home.spawn()?;
        let first = std::mem::replace(&mut home.guest, other);
        let pair = home.pair(&Terms::default());
        home.guest = first;
        home.guest.command(&format!("kill {pid}"))?;
        let pair = pair?;
        ensure(pair.connection.wait_disconnected(Duration::from_secs(2))?, "no DREQ for a killed client")?;
        pair.connection.disconnect(&pair.end.qp)?;
    }
    ensure(home.wire.of(REJ, true)?.is_empty(), "a request of a client that has started again was rejected")
}
