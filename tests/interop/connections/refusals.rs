//! Connections that are not set up.

use std::time::{Duration, Instant};

use rdma_verbs::verbs::cm::{ConnectError, Connection, ConnectionOptions, Reason, RejectReason};
use rdma_verbs::verbs::{QueuePairAttributes, QueuePairState};

use crate::home::{CLOSED_PORT, Home, Outcome, PORT, Terms, ensure, expect, hex, padded};
use crate::wire::{REJ, REP, REQ};

const SOON: Duration = Duration::from_secs(2);

/// Checks that our end was rejected for this reason with this data.
pub(crate) fn expect_rejected(
    outcome: Result<Connection, ConnectError>,
    reason: RejectReason,
    private_data: &[u8],
) -> Outcome {
    match outcome {
        Err(ConnectError::Rejected(rejected)) => {
            expect("reason", rejected.reason(), Reason::Connection(reason))?;
            expect("data of the REJ", rejected.private_data(), &padded(private_data, 148)[..])
        }
        other => Err(format!("{other:?} instead of a rejection").into()),
    }
}

/// Nothing listens on the port: one REJ 8 for the REQ.
pub(crate) fn no_listener(home: &mut Home) -> Outcome {
    let start = Instant::now();
    let guest_is_client = home.guest_is_client();
    if guest_is_client {
        let slot = home.guests_client("", CLOSED_PORT)?;
        home.guests_queue_pair(slot)?;
        home.guest_does(&format!("connect {slot}"))?;
        let event = home.event(slot, "rejected", "8")?;
        event.expect(&[("length", "148"), ("data", &hex(&[0; 148]))])?;
    } else {
        let end = home.end()?;
        let outcome = home.route(CLOSED_PORT)?.connect(&end.qp, &ConnectionOptions::new());
        expect_rejected(outcome, RejectReason::INVALID_SERVICE_ID, &[])?;
        expect("state", end.qp.state()?, QueuePairState::Error)?;
    }
    ensure(start.elapsed() < SOON, "it takes too long")?;
    home.wire.expect_sequence(&[(REQ, !guest_is_client), (REJ, guest_is_client)])?;
    let (request, reject) = (home.wire.first(REQ, !guest_is_client)?, home.wire.first(REJ, guest_is_client)?);
    expect("reason and message", reject.rejection(), (8, 0))?;
    expect("transaction id", reject.transaction, request.transaction)?;
    // Linux sends bytes 4 to 7 of the REQ, which are 0, as its own id.
    expect("ids", (reject.u32_at(0), reject.u32_at(4)), (0, request.u32_at(0)))
}

/// A REJ of a REQ carries data of each length.
pub(crate) fn carries_private_data(home: &mut Home) -> Outcome {
    for length in [0, 1, 148] {
        let data = vec![0xc3; length];
        if home.guest_is_client() {
            let (request, slot) = home.guest_requests(&Terms::default())?;
            request.reject(&data)?;
            let event = home.event(slot, "rejected", "28")?;
            event.expect(&[("length", "148"), ("data", &hex(&padded(&data, 148)))])?;
        } else {
            let end = home.end()?;
            let pending = home.route(PORT)?.start_connect(&end.qp, &ConnectionOptions::new())?;
            let (slot, _) = home.guest_takes(&end.qp)?;
            home.guest_does(&format!("reject {slot} data={}", hex(&data)))?;
            expect_rejected(pending.wait(), RejectReason::CONSUMER, &data)?;
        }
    }
    if home.guest_is_client() {
        let (request, slot) = home.guest_requests(&Terms::default())?;
        ensure(request.reject(&[1; 149]).is_err(), "149 bytes are accepted")?;
        home.event(slot, "rejected", "28")?;
    }
    Ok(())
}

/// The application of the passive end drops the request without an answer: REJ 28 of the REQ.
pub(crate) fn passive_end_drops_the_request(home: &mut Home) -> Outcome {
    let guest_is_client = home.guest_is_client();
    if guest_is_client {
        let (request, slot) = home.guest_requests(&Terms::default())?;
        drop(request);
        home.event(slot, "rejected", "28")?;
    } else {
        let end = home.end()?;
        let pending = home.route(PORT)?.start_connect(&end.qp, &ConnectionOptions::new())?;
        let (slot, _) = home.guest_takes(&end.qp)?;
        home.guest.command(&format!("destroy {slot}"))?;
        expect_rejected(pending.wait(), RejectReason::CONSUMER, &[])?;
    }
    home.wire.expect_sequence(&[(REQ, !guest_is_client), (REJ, guest_is_client)])?;
    expect("reason and message", home.wire.first(REJ, guest_is_client)?.rejection(), (28, 0))
}

/// The active end gives up before the REP: REJ 4 with its GUID. The passive end cannot accept any more.
pub(crate) fn active_end_gives_up(home: &mut Home) -> Outcome {
    let guest_is_client = home.guest_is_client();
    let end = home.end()?;
    if guest_is_client {
        let (request, slot) = home.guest_requests(&Terms::default())?;
        home.guest.command(&format!("destroy {slot}"))?;
        home.wire.first(REJ, false)?;
        let accepted = request.accept(&end.qp, &ConnectionOptions::new());
        ensure(accepted.is_err(), "a request whose sender has given up is accepted")?;
    } else {
        let pending = home.route(PORT)?.start_connect(&end.qp, &ConnectionOptions::new())?;
        let (slot, _) = home.guest_takes(&end.qp)?;
        home.guests_queue_pair(slot)?;
        drop(pending);
        home.wire.first(REJ, true)?;
        std::thread::sleep(Duration::from_millis(200));
        let accepted = home.guest.command(&format!("accept {slot}"))?.number("result")?;
        ensure(accepted != 0, "the guest accepts a request whose sender has given up")?;
        home.no_event(slot)?;
        home.guest.command(&format!("destroy {slot}"))?;
    }
    ensure(home.wire.of(REP, guest_is_client)?.is_empty(), "a REP was sent")?;
    let (request, reject) = (home.wire.first(REQ, !guest_is_client)?, home.wire.first(REJ, !guest_is_client)?);
    expect("reason and message", reject.rejection(), (4, 2))?;
    expect("ids", (reject.u32_at(0), reject.u32_at(4)), (request.u32_at(0), 0))?;
    expect("length of the GUID", reject.body[9] >> 1, 8)?;
    expect("GUID", &reject.body[12..20], &request.body[16..24])?;
    home.guest_has_no_request()
}

/// The active end rejects the REP: REJ 28 of the REP.
pub(crate) fn active_end_rejects_the_reply(home: &mut Home) -> Outcome {
    let guest_is_client = home.guest_is_client();
    let end = home.end()?;
    if guest_is_client {
        // Without a queue pair of its own, its application is to confirm the REP.
        let slot = home.guests_client("", PORT)?;
        home.guest_does(&format!("connect {slot} qpn=77"))?;
        let pending = home.take()?.start_accept(&end.qp, &ConnectionOptions::new())?;
        home.event(slot, "connect_response", "0")?;
        home.guest_does(&format!("reject {slot} data={}", hex(b"no")))?;
        expect_rejected(pending.wait(), RejectReason::CONSUMER, b"no")?;
        expect("state", end.qp.state()?, QueuePairState::Error)?;
    } else {
        let pending = home.route(PORT)?.start_connect(&end.qp, &ConnectionOptions::new())?;
        let (slot, _) = home.guest_takes(&end.qp)?;
        // The REP cannot move a queue pair that is in the error state.
        let mut error = QueuePairAttributes::default();
        error.qp_state = Some(QueuePairState::Error);
        end.qp.modify(&error)?;
        home.guests_queue_pair(slot)?;
        home.guest_does(&format!("accept {slot}"))?;
        ensure(matches!(pending.wait(), Err(ConnectError::Verb(_))), "connected with a queue pair in the error state")?;
        home.event(slot, "rejected", "28")?;
        home.guest.command(&format!("destroy {slot}"))?;
    }
    home.wire.expect_sequence(&[(REQ, !guest_is_client), (REP, guest_is_client), (REJ, !guest_is_client)])?;
    expect("reason and message", home.wire.first(REJ, !guest_is_client)?.rejection(), (28, 1))
}
