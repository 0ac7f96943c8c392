//! Datagrams that are lost or late.

use std::time::{Duration, Instant};

use rdma_verbs::verbs::cm::{ConnectError, ConnectionOptions};

use crate::filter::Filter;
use crate::home::{Home, LISTENER, Outcome, PATIENCE, PORT, Pair, Terms, ensure, expect};
use crate::wire::{DREP, DREQ, MRA, REP, REQ, RTU};

/// Each message is lost once, or more often; both ends repeat theirs, and see each event once.
pub(crate) fn loses(home: &mut Home) -> Outcome {
    if home.guest_is_client() { loses_of_guests_connections(home) } else { loses_of_our_connections(home) }
}

fn loses_of_our_connections(home: &mut Home) -> Outcome {
    let is_v4 = home.local.is_ipv4();
    let lose = |losses: &[_]| Filter::first(is_v4, losses);
    for (attribute, is_ours, count) in [(REQ, true, 3), (REP, false, 1), (RTU, true, 1)] {
        home.wire.forget()?;
        let filter = lose(&[(attribute, is_ours, count)])?;
        let pair = home.pair(&Terms::default()).map_err(|error| format!("{attribute:#x} is lost: {error}"))?;
        filter.expect_used(&[count])?;
        drop(filter);
        home.exchange(&pair)?;
        home.end_pair(&pair)?;
        home.guest.command(&format!("take {LISTENER} 1023 wait=0"))?.expect(&[("event", "none")])?;
    }
    let pair = home.pair(&Terms::default())?;
    let filter = lose(&[(DREQ, true, 1)])?;
    home.end_pair(&pair).map_err(|error| format!("the DREQ is lost: {error}"))?;
    filter.expect_used(&[1])?;
    drop(filter);
    the_confirmation_is_lost(home)?;
    the_guest_is_slow_or_vanishes(home)
}

/// The DREP is lost. An application that destroys its object makes the kernel respond to the next DREQ. (One that keeps
/// it does not: after the time wait, 64 ms here, the kernel knows the connection and ignores its DREQ.)
fn the_confirmation_is_lost(home: &mut Home) -> Outcome {
    let pair = home.pair(&Terms::default())?;
    let filter = Filter::first(home.local.is_ipv4(), &[(DREP, false, 1)])?;
    pair.connection.disconnect(&pair.end.qp)?;
    home.event(pair.slot, "disconnected", "0")?;
    home.guest_does(&format!("disconnect {}", pair.slot))?;
    home.guest.command(&format!("destroy {}", pair.slot))?;
    ensure(pair.connection.wait_disconnected(Duration::from_secs(4))?, "the repeated DREQ has no response")?;
    filter.expect_used(&[1])
}

/// No DREQ of one connection reaches the guest: our application learns the end after some seconds. Meanwhile, the
/// guest's application waits with a request, so that its kernel sends an MRA of a minute; then its REP is lost.
fn the_guest_is_slow_or_vanishes(home: &mut Home) -> Outcome {
    let (gone, end) = (home.pair(&Terms::default())?, home.end()?);
    home.wire.forget()?;
    let filter = Filter::first(home.local.is_ipv4(), &[(REP, false, 1), (DREQ, true, 100)])?;
    let start = Instant::now();
    gone.connection.disconnect(&gone.end.qp)?;

    let pending = home.route(PORT)?.start_connect(&end.qp, &ConnectionOptions::new())?;
    let (slot, _) = home.guest_takes(&end.qp)?;
    home.guests_queue_pair(slot)?;
    let receipt = home.wire.first(MRA, false)?;
    expect("message and service timeout of the MRA", (receipt.body[8] >> 6, receipt.body[9] >> 3), (0, 24))?;
    let accepted = Instant::now();
    home.guest_does(&format!("accept {slot}"))?;
    let connection = pending.wait()?;
    ensure(accepted.elapsed() < Duration::from_secs(10), "the lost REP costs too long")?;
    home.event(slot, "established", "0")?;

    ensure(gone.connection.wait_disconnected(PATIENCE)?, "the end is not reported")?;
    let seconds = start.elapsed().as_secs_f32();
    ensure((4.9..10.0).contains(&seconds), &format!("the end is reported after {seconds} s"))?;
    home.no_event(gone.slot)?;
    drop(filter);
    // The DREQ is repeated in the background.
    home.event(gone.slot, "disconnected", "0")?;
    home.guest_does(&format!("disconnect {}", gone.slot))?;
    let pair = Pair { end, connection, slot };
    home.exchange(&pair)?;
    home.end_pair(&pair)
}

/// The kernel repeats its messages after 4 s and more, so these wait at the same time.
fn loses_of_guests_connections(home: &mut Home) -> Outcome {
    // A short timeout makes the kernel's interval shorter: 4.2 s.
    let terms = Terms { create: "ack_timeout=14".into(), ..Terms::default() };
    let (first, second) = (home.pair(&terms)?, home.pair(&terms)?);
    home.wire.forget()?;
    let losses = [(REQ, false, 1), (RTU, false, 1), (DREQ, false, 1), (REP, true, 1), (DREP, true, 1)];
    let filter = Filter::first(home.local.is_ipv4(), &losses)?;

    // Of the first connection the DREQ is lost, of the second one the DREP.
    home.guest_does(&format!("disconnect {}", first.slot))?;
    home.guest_does(&format!("disconnect {}", second.slot))?;
    ensure(second.connection.wait_disconnected(PATIENCE)?, "no DREQ arrives")?;
    second.connection.disconnect(&second.end.qp)?;
    // Three requests: the REQ is lost, the REP, the RTU. A fourth one waits for our application.
    let lost = home.guests_client(&terms.create, PORT)?;
    home.guests_queue_pair(lost)?;
    home.guest_does(&format!("connect {lost}"))?;
    let (without_reply, without_ready) = (home.end()?, home.end()?);
    let (request, without_reply_slot) = home.guest_requests(&terms)?;
    let no_reply = request.start_accept(&without_reply.qp, &terms.ours)?;
    let (request, without_ready_slot) = home.guest_requests(&terms)?;
    let no_ready = request.start_accept(&without_ready.qp, &terms.ours)?;
    home.event(without_ready_slot, "established", "0")?;
    let (slow, slow_slot) = home.guest_requests(&terms)?;

    let connection = no_ready.wait().map_err(|error| format!("the RTU is lost: {error}"))?;
    let without_ready = Pair { end: without_ready, connection, slot: without_ready_slot };
    home.event(without_reply_slot, "established", "0")?;
    let connection = no_reply.wait().map_err(|error| format!("the REP is lost: {error}"))?;
    let without_reply = Pair { end: without_reply, connection, slot: without_reply_slot };
    ensure(first.connection.wait_disconnected(PATIENCE)?, "a lost DREQ is not repeated")?;
    first.connection.disconnect(&first.end.qp)?;
    for slot in [first.slot, second.slot] {
        home.event(slot, "disconnected", "0")?;
    }
    let (request, end) = (home.take()?, home.end()?);
    let pending = request.start_accept(&end.qp, &terms.ours)?;
    home.event(lost, "established", "0")?;
    let connection = pending.wait()?;
    let without_request = Pair { end, connection, slot: lost };
    let receipt = home.wire.first(MRA, true)?;
    expect("message of our MRA", receipt.body[8] >> 6, 0)?;
    let end = home.end()?;
    let pending = slow.start_accept(&end.qp, &terms.ours)?;
    home.event(slow_slot, "established", "0")?;
    let connection = pending.wait()?;
    let late = Pair { end, connection, slot: slow_slot };
    filter.expect_used(&[1; 5])?;
    drop(filter);
    for pair in [without_ready, without_reply, without_request, late] {
        home.exchange(&pair)?;
        home.end_pair(&pair)?;
    }
    ensure(home.listener.accept_within(Duration::ZERO)?.is_none(), "a request arrives twice")
}

/// Each end gives up in the end, after about a minute.
pub(crate) fn loses_for_long(home: &mut Home) -> Outcome {
    let (guest_is_client, is_v4) = (home.guest_is_client(), home.local.is_ipv4());
    let pair = home.pair(&Terms { create: "ack_timeout=14".into(), ..Terms::default() })?;
    let filter = Filter::first(is_v4, &[(DREQ, false, 1_000), (REQ, !guest_is_client, 1_000)])?;
    home.guest_does(&format!("disconnect {}", pair.slot))?;
    if guest_is_client {
        let slot = home.guests_client("ack_timeout=14", PORT)?;
        home.guests_queue_pair(slot)?;
        home.guest_does(&format!("connect {slot}"))?;
        home.guest.command("sleep 15000")?;
        for slot in [pair.slot, slot] {
            let name = if slot == pair.slot { "disconnected" } else { "unreachable" };
            let mut gives_up = false;
            for _ in 0..6 {
                // The program's replies come within its own patience.
                let event = home.guest.command(&format!("event {slot} wait=15000"))?;
                if event.expect(&[("event", "none")]).is_err() {
                    event.expect(&[("event", name), ("status", "-110")])?;
                    gives_up = true;
                    break;
                }
            }
            ensure(gives_up, &format!("the kernel does not give up: no event {name}"))?;
        }
    } else {
        let end = home.end()?;
        let outcome = home.route(PORT)?.connect(&end.qp, &ConnectionOptions::new());
        ensure(matches!(outcome, Err(ConnectError::Unreachable(_))), "an end without a response does not give up")?;
        home.event(pair.slot, "disconnected", "-110")?;
    }
    drop(filter);
    // The kernel knows the connection until the time wait ends, whose end is an event, too. It reports no second end.
    pair.connection.disconnect(&pair.end.qp)?;
    ensure(pair.connection.wait_disconnected(PATIENCE)?, "our end is not disconnected")?;
    let event = home.guest.command(&format!("event {} wait=0", pair.slot))?;
    event.expect(&[("event", "none")]).or_else(|_| event.expect(&[("event", "timewait_exit")]))
}
