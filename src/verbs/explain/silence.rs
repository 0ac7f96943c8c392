//! Diagnoses of missing responses.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::{Diagnosis, time};
use crate::types::{
    Counter, DropReason, FailedRequest, LastPeerPacket, Mtu, Operation, PathError, PeerPacketKind, QueuePairReport,
};

/// Size of a packet without its payload: IPv4, UDP and the longest transport headers with the ICRC.
const OVERHEAD_BYTES: u32 = 64;

/// Diagnoses a request that the peer never acknowledged.
pub(super) fn silence(failed: &FailedRequest, report: &QueuePairReport) -> Diagnosis {
    let Some(peer) = report.peer_address() else {
        return Diagnosis::new("the queue pair has no peer", "connect it first");
    };
    wrong_address(peer, report)
        .or_else(|| path_error(peer, report))
        .or_else(|| misdirected(peer, report))
        .or_else(|| wrong_sequence(report))
        .or_else(|| kept_missing(report))
        .or_else(|| too_late(report))
        .or_else(|| large_packets_vanish(failed, report))
        .or_else(|| one_way(peer, failed, report))
        .unwrap_or_else(|| match report.last_packet() {
            Some(heard) => went_silent(peer, failed, heard, report),
            None => never_heard(peer, report),
        })
}

/// Returns the wait between two tries.
fn wait(report: &QueuePairReport) -> Duration {
    let code = report.status.attributes.timeout.unwrap_or(0);
    if code == 0 { Duration::ZERO } else { Duration::from_nanos(4_096 << code.min(31)) }
}

/// Diagnoses a peer that kept reporting missing packets.
pub(super) fn losses(failed: &FailedRequest, report: &QueuePairReport) -> Diagnosis {
    if let Some(diagnosis) = wrong_sequence(report).or_else(|| large_packets_vanish(failed, report)) {
        return diagnosis;
    }
    lost(report)
}

/// Diagnoses losses up to the end, even if the last try ended by a timeout.
fn kept_missing(report: &QueuePairReport) -> Option<Diagnosis> {
    let said_so = report.last_response.is_some_and(|answer| answer.what == PeerPacketKind::SequenceNak);
    (said_so && report.counters.get(Counter::ReceivedSequenceNak) > 0).then(|| lost(report))
}

fn lost(report: &QueuePairReport) -> Diagnosis {
    let allowed = report.status.attributes.retry_cnt.unwrap_or(0);
    Diagnosis::new(
        format!(
            "packets get lost on the way: the peer kept reporting the same one as missing, {allowed} repetitions on"
        ),
        "look for drops on the way and in the peer's receive buffer (socket_overflow there), or raise retry_cnt",
    )
}

/// Diagnoses an error reported by the system or the network, unless the peer responded after it.
fn path_error(peer: IpAddr, report: &QueuePairReport) -> Option<Diagnosis> {
    let error = report.path_error.as_ref()?;
    // The last try would have caused it again.
    let is_over = report.last_try.is_some_and(|tried| error.ago > tried);
    if is_over || report.last_response.is_some_and(|answer| answer.ago < error.ago) {
        return None;
    }
    let reporter = match error.reporter {
        Some(reporter) if reporter != peer => format!(" ({reporter} reported it {} times)", error.count),
        _ => format!(" (reported {} times)", error.count),
    };
    Some(match error.errno {
        libc::EMSGSIZE if is_too_big(error, report) => too_big(peer, error, report),
        libc::EMSGSIZE => return None,
        libc::ECONNREFUSED if report.was_acknowledged => Diagnosis::new(
            format!(
                "the peer's process has ended or closed its device: UDP port 4791 of {peer} is closed now{reporter}, \
                 and it answered before"
            ),
            "restart the peer, and reconnect",
        ),
        libc::ECONNREFUSED => Diagnosis::new(
            format!("nothing listens on UDP port 4791 of {peer}: its system answered \"port unreachable\"{reporter}"),
            "start the peer and let it connect before this end sends, and check that its GID is right",
        ),
        libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EHOSTDOWN => Diagnosis::new(
            format!(
                "there is no route to {peer} ({}){reporter}: the GID is wrong, the host is off or in another network",
                words(error.errno)
            ),
            "check the peer's GID (dgid), the local GID index and the routes (ip route get)",
        ),
        libc::EINVAL => Diagnosis::new(
            format!(
                "there is no route to {peer} from the local address ({}){reporter}: one of the two GIDs is wrong, \
                 for example a loopback address",
                words(error.errno)
            ),
            "check the peer's GID (dgid) and the local GID index: 127.0.0.0/8 reaches only this host",
        ),
        libc::EACCES => Diagnosis::new(
            format!("{peer} is a broadcast address, or a route prohibits to send there ({})", words(error.errno)),
            "check that the peer's GID is that of a single host",
        ),
        libc::EPERM => Diagnosis::new(
            format!("this host refuses to send to {peer} ({}): a local firewall rule", words(error.errno)),
            "allow UDP port 4791 outwards (nft list ruleset)",
        ),
        errno => Diagnosis::new(
            format!("packets to {peer} could not be sent: {}{reporter}", words(errno)),
            "check the interface, its addresses and routes, and the peer's GID",
        ),
    })
}

fn words(errno: i32) -> String {
    io::Error::from_raw_os_error(errno).to_string()
}

/// Returns whether this queue pair sends packets of the refused size.
fn is_too_big(error: &PathError, report: &QueuePairReport) -> bool {
    let largest = report.status.attributes.path_mtu.unwrap_or_default().bytes() + OVERHEAD_BYTES;
    error.bytes.is_none_or(|bytes| bytes as u64 <= u64::from(largest))
}

fn too_big(peer: IpAddr, error: &PathError, report: &QueuePairReport) -> Diagnosis {
    let path_mtu = report.status.attributes.path_mtu.unwrap_or_default();
    let fits = error.mtu.map(|mtu| format!(", which takes IP packets of {mtu} bytes")).unwrap_or_default();
    let smaller = error.mtu.and_then(|mtu| {
        let all = [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512, Mtu::Mtu256];
        all.into_iter().find(|candidate| candidate.bytes() + OVERHEAD_BYTES <= mtu)
    });
    let advice = match smaller {
        Some(smaller) => format!("connect both ends with a path_mtu of {smaller}"),
        None => "connect both ends with a smaller path_mtu".to_owned(),
    };
    Diagnosis::new(format!("packets of path_mtu {path_mtu} are too big for the path to {peer}{fits}"), advice)
}

/// Diagnoses responses that came after the request had failed.
fn too_late(report: &QueuePairReport) -> Option<Diagnosis> {
    let late = report.late_responses;
    (late > 0).then(|| {
        Diagnosis::new(
            format!("the peer answered too late: {late} answers came after the request had been given up"),
            "raise timeout or retry_cnt; some peers hold acknowledgements back for a millisecond and more",
        )
    })
}

/// Diagnoses packets for this queue pair that come from another address.
fn wrong_address(peer: IpAddr, report: &QueuePairReport) -> Option<Diagnosis> {
    let source = report.wrong_source.filter(|_| report.last_packet().is_none())?;
    Some(Diagnosis::new(
        format!("the peer's GID is wrong here: packets for this queue pair come from {source}, not from {peer}"),
        format!("connect to the GID of {source} if that is the peer, or give the peer the right source GID index"),
    ))
}

/// Diagnoses packets of the peer that arrive but are dropped here.
pub(super) fn misdirected(peer: IpAddr, report: &QueuePairReport) -> Option<Diagnosis> {
    if report.last_packet().is_some() {
        return None;
    }
    if let Some(diagnosis) = wrong_address(peer, report) {
        return Some(diagnosis);
    }
    let dropped = |reason| report.counters.get_drop(reason);
    if dropped(DropReason::BadPkey) > 0 {
        let pkey = report.wrong_pkey.unwrap_or_default();
        return Some(Diagnosis::new(
            format!(
                "the peer is in another partition: its packets carry P_Key {pkey:#06x}, this device has only 0xffff"
            ),
            "give the peer's queue pair the pkey_index of the default partition",
        ));
    }
    if dropped(DropReason::Unkeyed) > 0 {
        return Some(Diagnosis::new(
            "the peer sends packets without the key of the connection: it was not given this end's connection_info",
            "connect both ends with the other one's current connection_info, or give peer_key to both from INIT to RTR",
        ));
    }
    if dropped(DropReason::BadIcrc) > 0 {
        return Some(Diagnosis::new(
            "the peer's packets arrive damaged: their ICRC is wrong",
            "look for address translation or a middlebox on the way, which changes what the ICRC covers; between \
             native peers also compare the connection_info that each end used with that of the other",
        ));
    }
    if dropped(DropReason::WrongService) > 0 {
        return Some(Diagnosis::new(
            "the peer's queue pair is of another transport service: its packets are not those of a reliable connection",
            "create both queue pairs with the same qp_type",
        ));
    }
    unmatched(peer, report)
}

fn unmatched(peer: IpAddr, report: &QueuePairReport) -> Option<Diagnosis> {
    let most = report.unmatched_packets.iter().max_by_key(|packets| packets.count)?;
    let (count, ago) = (most.count, time(most.ago));
    Some(match most.qpn {
        Some(qpn) => Diagnosis::new(
            format!(
                "the peer answers to the wrong queue pair: {count} packets from {peer} (the last {ago} ago) name \
                 {qpn}, which does not exist here (any more)"
            ),
            "give the peer this queue pair's number as its dest_qp_num",
        ),
        None => Diagnosis::new(
            format!(
                "{peer} sends something else than RoCEv2 to port 4791: {count} packets were dropped ({})",
                most.reason.name()
            ),
            "find out what program uses the port there",
        ),
    })
}

/// Diagnoses responses whose sequence numbers belong to no packet sent.
fn wrong_sequence(report: &QueuePairReport) -> Option<Diagnosis> {
    let misfits = report.counters.get_drop(DropReason::BadPsn);
    if report.was_acknowledged || report.last_response.is_none() || misfits == 0 {
        return None;
    }
    let psn = report.status.attributes.sq_psn.unwrap_or_default();
    Some(Diagnosis::new(
        format!(
            "the two ends disagree about sequence numbers: {misfits} answers came for packets that were never sent, so \
             sq_psn here ({psn}) is not rq_psn there, or the peer still has an earlier connection"
        ),
        "exchange new PSNs, and reset both queue pairs before they are connected again",
    ))
}

/// Diagnoses a path on which small messages arrived, but not the first one that fills whole packets.
fn large_packets_vanish(failed: &FailedRequest, report: &QueuePairReport) -> Option<Diagnosis> {
    let path_mtu = report.status.attributes.path_mtu.unwrap_or_default();
    let (mtu, longest) = (path_mtu.bytes(), report.last_successes.longest);
    let carries = !matches!(failed.operation, Operation::Read { .. }) && !failed.operation.is_atomic();
    let only_small_arrived = report.was_acknowledged && longest > 0 && longest < mtu.min(1_024);
    (carries && failed.length >= mtu && mtu > 1_024 && only_small_arrived).then(|| {
        Diagnosis::new(
            format!(
                "large packets seem to vanish on the way: messages of up to {longest} bytes arrived, the first with \
                 packets of path_mtu {path_mtu} did not, and no error was reported; or the peer went silent just then"
            ),
            "connect both ends with a path_mtu of 1024, or raise the MTU of every link between them",
        )
    })
}

/// Diagnoses a path on which the peer's requests arrive while no responses do.
fn one_way(peer: IpAddr, failed: &FailedRequest, report: &QueuePairReport) -> Option<Diagnosis> {
    let request = report.last_request?;
    // Timers run out late rather than early.
    let tried_for = wait(report) * (u32::from(failed.tries) + 2);
    let came_meanwhile = report.gave_up.is_none_or(|gave_up| request.ago <= gave_up + tried_for);
    // If requests and responses end together, the peer went silent.
    let outlived = report.last_response.is_none_or(|answer| request.ago + wait(report) < answer.ago);
    if !came_meanwhile || !outlived {
        return None;
    }
    let numbers = if report.was_acknowledged {
        "something began to drop them"
    } else {
        "a firewall drops them, or dest_qp_num here is not the peer's queue pair"
    };
    Some(Diagnosis::new(
        format!(
            "packets pass in one direction only: requests of the peer arrive (the last {} ago), but ours to {peer} are \
             not answered: {numbers}",
            time(request.ago)
        ),
        "allow UDP port 4791 inwards on the peer's host and outwards here, whatever the source port",
    ))
}

/// Diagnoses a peer that was heard before.
fn went_silent(peer: IpAddr, failed: &FailedRequest, heard: LastPeerPacket, report: &QueuePairReport) -> Diagnosis {
    if report.status.attributes.retry_cnt == Some(0) && failed.tries == 0 {
        return Diagnosis::new(
            "a single lost packet or response ended the connection, because retry_cnt is 0; or the peer went silent",
            "set retry_cnt to 7",
        );
    }
    let since = time(heard.ago);
    if let Some(other) = alive_elsewhere(report) {
        return Diagnosis::new(
            format!(
                "the peer's queue pair is in error, reset or destroyed: it was heard until {since} ago, while {peer} \
                 still answers other queue pairs (last {} ago)",
                time(other.ago)
            ),
            "look at the first failure and the asynchronous events of the peer, then reconnect",
        );
    }
    if peer.is_loopback() {
        return Diagnosis::new(
            format!(
                "the peer went silent {since} ago although its port is open: its process is stopped or hangs, or its \
                 queue pair is in error, reset or destroyed"
            ),
            "look at the peer's process and at its asynchronous events",
        );
    }
    Diagnosis::new(
        format!(
            "{peer} went silent {since} ago: its host or process has stopped, the network between is cut, or its queue \
             pair is in error or destroyed"
        ),
        "check that the host answers (ping) and the process runs, then look at the peer's asynchronous events",
    )
}

/// Returns when the same host was last heard on another queue pair, if that is after it was last heard on this one.
fn alive_elsewhere(report: &QueuePairReport) -> Option<LastPeerPacket> {
    let other = report.packets_elsewhere?;
    let later = report.last_packet().is_none_or(|here| other.ago < here.ago);
    later.then_some(other)
}

fn never_heard(peer: IpAddr, report: &QueuePairReport) -> Diagnosis {
    let qpn = report.status.attributes.dest_qp_num.unwrap_or_default();
    let no_queue_pair = format!(
        "no queue pair {qpn} of {peer} takes packets from here: the number is wrong, or the queue pair is not yet in \
         RTR, in error or destroyed, or connected to another queue pair"
    );
    let advice = "compare dest_qp_num with the peer's number and the peer's dgid with our GID, and let both ends \
                  connect before one sends";
    if let Some(other) = alive_elsewhere(report) {
        let heard = format!("; its host is up and answers other queue pairs (last {} ago)", time(other.ago));
        return Diagnosis::new(no_queue_pair + &heard, advice);
    }
    if peer.is_loopback() {
        let open = "; no packet was refused, so its UDP port 4791 is open, unless a firewall drops packets";
        return Diagnosis::new(no_queue_pair + open, advice);
    }
    Diagnosis::new(
        format!(
            "{peer} never answered and no error was reported: the host is off, its GID is wrong, a firewall drops UDP \
             port 4791, or its queue pair {qpn} does not exist, is not in RTR or expects another peer"
        ),
        "ping the host, check both ends' firewalls and routes, then compare GIDs and queue pair numbers of both ends",
    )
}
