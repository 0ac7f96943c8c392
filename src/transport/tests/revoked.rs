//! Keys that are invalidated: by a request without packets, and while packets that name them are on the wire.

use super::*;
use crate::memory::RegionInit;
use crate::wire::{Flow, icrc};

/// Registers a region of the second end whose key may be invalidated.
fn revocable(end: &End) -> Arc<Region> {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
    let options = RegionInit { access, iova: Some(0x20_0000), invalidatable: true };
    end.table.register_with(DomainId(1), Backing::from_vec(vec![7; 4_096]), &options).unwrap()
}

#[test]
fn a_local_request_behind_an_acknowledgement_is_executed() {
    let mut pair = Pair::new(NATIVE);
    let (now, source) = (pair.now, pair.ends[0].address);
    let (message, room) = (pair.ends[0].sge(0, 8), pair.ends[1].sge(0, 8));
    pair.ends[1].post_receive(&[room]);
    pair.ends[0].post(now, Operation::Send, &[message]);
    let sent = pair.ends[0].transmit(now);
    pair.ends[1].handle(now, source, &sent);
    let key = revocable(&pair.ends[1]).rkey();
    pair.ends[1].post(now, Operation::LocalInvalidate(key), &[]);
    // The acknowledgement leaves first. No later event would trigger the request.
    assert!(pair.carry(1));
    let done: Vec<_> = pair.ends[1].poll().iter().map(|completion| (completion.opcode, completion.status)).collect();
    let success = CompletionStatus::Success;
    assert_eq!(done, [(CompletionOpcode::Receive, success), (CompletionOpcode::LocalInvalidate, success)]);
}

#[test]
fn a_late_repetition_of_a_read_does_not_end_the_connection() {
    for capabilities in [NATIVE, PeerCapabilities::STANDARD] {
        let mut pair = Pair::new(capabilities);
        let (now, addresses) = (pair.now, [0, 1].map(|at| pair.ends[at].address));
        let region = revocable(&pair.ends[1]);
        let back = pair.ends[0].sge(0, 4_096);
        let read = Operation::Read { remote_addr: 0x20_0000, rkey: region.rkey() };
        pair.ends[0].post(now, read, &[back]);
        let request = pair.ends[0].transmit(now);
        pair.ends[1].handle(now, addresses[0], &request);
        assert!(pair.carry(1));
        assert_eq!(pair.ends[0].poll()[0].status, CompletionStatus::Success);
        // The peer is done with the key, and it is invalidated. A copy of the request arrives late.
        assert!(pair.ends[1].table.deregister(&region));
        pair.ends[1].handle(now, addresses[0], &request);
        pair.drive(Duration::ZERO);
        let (message, room) = (pair.ends[0].sge(0, 8), pair.ends[1].sge(0, 8));
        pair.ends[1].post_receive(&[room]);
        pair.ends[0].post(now, Operation::Send, &[message]);
        pair.drive(Duration::from_millis(1));
        for end in &pair.ends {
            assert_eq!(end.endpoint.queue_pair_state(end.qpn), Some(QueuePairState::ReadyToSend));
            assert_eq!(end.poll()[0].status, CompletionStatus::Success);
        }
    }
}

/// A requester that still waits for the response gets the refusal.
#[test]
fn a_read_whose_response_was_lost_is_refused_when_its_key_is_gone() {
    (0..=3).for_each(refuse_lost_response);
}

/// Invalidates the key after this many bursts of the response, which are all lost.
fn refuse_lost_response(runs: u32) {
    let mut pair = Pair::new(NATIVE);
    let (now, source) = (pair.now, pair.ends[0].address);
    let region = revocable(&pair.ends[1]);
    let back = pair.ends[0].sge(0, 4_096);
    pair.ends[0].post(now, Operation::Read { remote_addr: 0x20_0000, rkey: region.rkey() }, &[back]);
    let request = pair.ends[0].transmit(now);
    pair.ends[1].handle(now, source, &request);
    for _ in 0..runs {
        assert!(!pair.ends[1].transmit(now).is_empty());
    }
    assert!(pair.ends[1].table.deregister(&region));
    pair.drive(Duration::from_secs(1));
    assert_eq!(pair.ends[0].poll()[0].status, CompletionStatus::RemoteAccessError, "{runs}");
}

/// In the error state, a peer may repeat what was refused, from a different packet each time.
#[test]
fn refusals_are_not_queued_without_bound() {
    let mut pair = Pair::new(NATIVE);
    let (now, addresses) = (pair.now, [0, 1].map(|at| pair.ends[at].address));
    let back = pair.ends[0].sge(0, 4_096);
    pair.ends[0].post(now, Operation::Read { remote_addr: 0x20_0000, rkey: Rkey(0xdead) }, &[back]);
    let request = pair.ends[0].transmit(now);
    pair.ends[1].handle(now, addresses[0], &request);
    let first = u32::from_be_bytes([0, request[0][9], request[0][10], request[0][11]]);
    for round in 0..4_000 {
        let mut forged = request[0].clone();
        let (from, length) = (Psn::new(first).minus(1 + round % 2).value(), 16_384_u32);
        forged[9..12].copy_from_slice(&from.to_be_bytes()[1..]);
        forged[24..28].copy_from_slice(&length.to_be_bytes());
        icrc::append(&Flow { source: addresses[0], destination: addresses[1], source_port: 50_000 }, 0, &mut forged);
        pair.ends[1].handle(now, addresses[0], &[forged]);
    }
    let responses: usize = std::iter::from_fn(|| Some(pair.ends[1].transmit(now).len()).filter(|sent| *sent > 0)).sum();
    assert!((2..=400).contains(&responses), "{responses} responses wait");
}
