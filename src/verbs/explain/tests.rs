use std::collections::HashSet;

use super::*;
use crate::types::{
    AddressVector, ControlReport, Counters, DropReason, FailedPeerRequest, Gid, LastPeerPacket, PathError, PathReport,
    PeerFault, PeerPacketKind, Qpn, QueuePairAttributes, QueuePairCapabilities, QueuePairState, QueuePairStatus,
    QueuePairType, Rkey,
};

const NO_ANSWER: FailedRequest = FailedRequest {
    wr_id: 3,
    status: CompletionStatus::RetryExceededError,
    cause: Cause::NoResponse,
    operation: Operation::Send,
    length: 64,
    tries: 7,
    rnr_tries: 0,
};

fn error(status: CompletionStatus, cause: Cause) -> CompletionError {
    CompletionError { wr_id: 3, qpn: Qpn::new(0x11), status, cause }
}

fn report(peer: &str) -> QueuePairReport {
    let gid: Gid = peer.parse::<std::net::Ipv4Addr>().unwrap().into();
    let attributes = QueuePairAttributes {
        ah_attr: Some(AddressVector::new(gid, 0)),
        dest_qp_num: Some(Qpn::new(0x22)),
        path_mtu: Some(crate::types::Mtu::Mtu4096),
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(3),
        ..QueuePairAttributes::default()
    };
    let mut status = QueuePairStatus::new(QueuePairType::ReliableConnection, QueuePairCapabilities::default());
    (status.qp_state, status.attributes) = (QueuePairState::Error, attributes);
    QueuePairReport::new(status, Counters::default())
}

fn ago(milliseconds: u64, what: PeerPacketKind) -> Option<LastPeerPacket> {
    Some(LastPeerPacket { what, ago: Duration::from_millis(milliseconds) })
}

/// Returns the explanation of a failed request.
fn of(failed: FailedRequest, mut report: QueuePairReport) -> String {
    report.error_origin = Some(ErrorOrigin::Request(failed));
    explain(&error(failed.status, failed.cause), Some(&report))
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "\"{part}\" is not in \"{text}\"");
    }
}

#[test]
fn silence_names_peer_tries_and_drops() {
    let mut silent = report("10.0.0.2");
    silent.counters.add_drop(DropReason::OutOfOrder);
    let text = of(NO_ANSWER, silent);
    has(
        &text,
        &["request 3 on queue pair 0x000011", "10.0.0.2 never answered", "Nothing was ever heard from queue pair"],
    );
    has(&text, &["7 of 7 repetitions with timeout 14, 67.1 ms", "drop_out_of_order 1", "ping the host"]);
}

fn path_error(errno: i32) -> PathError {
    PathError { errno, reporter: None, mtu: None, bytes: None, count: 2, ago: Duration::from_millis(5) }
}

#[test]
fn what_the_network_said_comes_first() {
    let with = |error: PathError| {
        let tried = Some(Duration::from_millis(6));
        let report = QueuePairReport { path_error: Some(error), last_try: tried, ..report("10.0.0.2") };
        of(NO_ANSWER, report)
    };
    has(&with(path_error(libc::EHOSTUNREACH)), &["there is no route to 10.0.0.2", "No route to host"]);
    has(&with(path_error(libc::EPERM)), &["a local firewall rule"]);
    has(&with(path_error(libc::EIO)), &["could not be sent"]);
    let router = Some("10.0.0.254".parse().unwrap());
    let too_big = PathError { reporter: router, mtu: Some(1_500), ..path_error(libc::EMSGSIZE) };
    has(&with(too_big), &["path_mtu 4096 are too big", "1500 bytes", "a path_mtu of 1024"]);
    // Another queue pair's packets were refused: this one's are smaller.
    let longer = PathError { bytes: Some(9_000), ..path_error(libc::EMSGSIZE) };
    has(&with(longer), &["never answered"]);
}

#[test]
fn errors_that_are_over_are_not_blamed() {
    let refused = PathError { ago: Duration::from_secs(60), ..path_error(libc::ECONNREFUSED) };
    let mut late = report("10.0.0.2");
    late.path_error = Some(refused);
    late.last_try = Some(Duration::from_secs(1));
    has(&of(NO_ANSWER, late.clone()), &["never answered"]);
    late.last_try = Some(Duration::from_secs(60));
    has(&of(NO_ANSWER, late.clone()), &["nothing listens on UDP port 4791 of 10.0.0.2"]);
    late.last_response = ago(50_000, PeerPacketKind::Acknowledgement);
    has(&of(NO_ANSWER, late), &["10.0.0.2 went silent 50.0 s ago"]);
}

#[test]
fn a_peer_that_sent_and_answered_until_it_died_went_silent() {
    let mut dead = report("10.0.0.2");
    dead.was_acknowledged = true;
    dead.gave_up = Some(Duration::ZERO);
    dead.last_response = ago(600, PeerPacketKind::Acknowledgement);
    dead.last_request = ago(599, PeerPacketKind::Request);
    let text = of(NO_ANSWER, dead.clone());
    has(&text, &["went silent 599.0 ms ago", "Last heard from 10.0.0.2 599.0 ms ago: a request of its own"]);
    dead.last_request = ago(20, PeerPacketKind::Request);
    has(&of(NO_ANSWER, dead.clone()), &["one direction only", "something began to drop them"]);
    // Before this end sent it a request.
    dead.was_acknowledged = false;
    dead.last_response = None;
    dead.last_request = ago(60_000, PeerPacketKind::Request);
    has(&of(NO_ANSWER, dead), &["went silent 60.0 s ago"]);
}

#[test]
fn misaligned_atomics_are_seen_from_here() {
    let operation = Operation::FetchAndAdd { remote_addr: 0x1004, rkey: Rkey(9), add: 1 };
    let status = CompletionStatus::RemoteInvalidRequestError;
    let failed = FailedRequest { status, cause: Cause::RefusedInvalid, operation, length: 8, ..NO_ANSWER };
    has(&of(failed, report("10.0.0.2")), &["0x1004 is not aligned"]);
}

#[test]
fn local_causes_have_their_own_words() {
    for (cause, words) in [
        (Cause::LocalKeyUnknown, "was deregistered"),
        (Cause::LocalKeyWrongDomain, "another protection domain"),
        (Cause::LocalOutOfBounds, "reaches beyond its region"),
        (Cause::LocalNotWritable, "without LOCAL_WRITE"),
        (Cause::LocalMemoryFault, "is gone"),
    ] {
        let failed = FailedRequest { status: CompletionStatus::LocalProtectionError, cause, ..NO_ANSWER };
        has(&of(failed, report("10.0.0.2")), &[words, "a SEND of 64 bytes"]);
    }
}

#[test]
fn every_fault_of_the_peer_has_its_own_words() {
    use PeerFault::*;
    let faults = [
        OpcodeSequence,
        AccessNotGranted,
        TooManyReads,
        PacketLength,
        MessageLength,
        Misaligned,
        UnknownKey,
        WrongDomain,
        OutOfBounds,
        NoPermission,
        MemoryFault,
        ReceiveTooSmall,
        ReceiveMemory(Cause::LocalNotWritable),
        Invalidate,
    ];
    let explained = faults.map(|fault| {
        let refused = FailedPeerRequest { wr_id: Some(3), ..FailedPeerRequest::new(fault) };
        let report = QueuePairReport { error_origin: Some(ErrorOrigin::PeerRequest(refused)), ..report("10.0.0.2") };
        explain(&error(CompletionStatus::RemoteInvalidRequestError, Cause::PeerViolation), Some(&report))
    });
    assert!(explained.iter().all(|text| text.contains("was refused here")), "{explained:?}");
    assert_eq!(explained.iter().collect::<HashSet<_>>().len(), faults.len());
}

#[test]
fn flushed_requests_name_the_first_failure() {
    let mut flushed = report("10.0.0.2");
    flushed.error_origin = Some(ErrorOrigin::Request(FailedRequest { wr_id: 1, ..NO_ANSWER }));
    let text = explain(&error(CompletionStatus::WorkRequestFlushedError, Cause::EarlierFailure), Some(&flushed));
    has(&text, &["request 3", "an earlier request 1 (a SEND of 64 bytes)", "10.0.0.2 never answered"]);
    flushed.error_origin = Some(ErrorOrigin::CompletionQueueOverflow);
    let text = explain(&error(CompletionStatus::WorkRequestFlushedError, Cause::EarlierFailure), Some(&flushed));
    has(&text, &["its completion queue overflowed"]);
    flushed.error_origin = Some(ErrorOrigin::Panic);
    let text = explain(&error(CompletionStatus::WorkRequestFlushedError, Cause::Panic), Some(&flushed));
    has(&text, &["a panic in this library", "report it"]);
}

#[test]
fn what_is_forgotten_is_not_guessed() {
    let failure = error(CompletionStatus::RetryExceededError, Cause::NoResponse);
    has(&explain(&failure, None), &["request 3", "the queue pair is gone"]);
    has(&explain(&failure, Some(&report("10.0.0.2"))), &["reconnected since"]);
    let text = explain_event(&AsyncEvent::PortError(1), Some(&report("10.0.0.2")));
    has(&text, &["concerns the port"]);
}

#[test]
fn times_are_said_in_fitting_units() {
    let said = [1, 1_500, 2_100_000].map(|micros| time(Duration::from_micros(micros)));
    assert_eq!(said, ["1 µs", "1.5 ms", "2.1 s"]);
}

#[test]
fn the_path_is_judged_where_no_answer_came() {
    let [own, peer] = ["192.0.2.1", "10.0.0.2"].map(|address| address.parse().unwrap());
    let mut path = PathReport::new(own, peer);
    path.control = Some(ControlReport::new("cubic"));
    (path.recent.sent, path.recent.lost) = (1_000, 50);
    (path.recent.loss_events, path.recent.loss_events_with_queue) = (10, 10);
    let with_path = || QueuePairReport { path: Some(path.clone()), ..report("10.0.0.2") };
    let judgement = ". The path from 192.0.2.1 to 10.0.0.2 loses 5.0 % of the packets; its round trip is not known: a \
                     queue on the way is full";
    let text = of(NO_ANSWER, with_path());
    assert!(text.ends_with(judgement), "{text}");
    let refused =
        FailedRequest { status: CompletionStatus::RemoteAccessError, cause: Cause::RefusedAccess, ..NO_ANSWER };
    assert!(!of(refused, with_path()).contains("The path"), "a refusal has another reason");
    path.recent.sent = 60;
    assert!(!of(NO_ANSWER, QueuePairReport { path: Some(path), ..report("10.0.0.2") }).contains("The path"));
}
