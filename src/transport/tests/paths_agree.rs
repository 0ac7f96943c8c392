//! The fast path is an optimization of the general path: whatever arrives, both have the same result.

use proptest::prelude::*;

use super::*;
use crate::wire::{BTH_BYTES, Flow, icrc};

const MTU: u32 = 1024;

/// The next event on the wire.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The next packet arrives.
    Next,
    /// The next packet is lost.
    Lost,
    /// An earlier packet arrives again.
    Again(usize),
    /// A later packet arrives early.
    Early(usize),
    /// The next packet arrives with a broken bit.
    Broken(usize, u8),
    /// The next packet arrives with another bit in its base transport header, and an ICRC that fits.
    Forged(usize, u8),
    /// The group of packets that arrive together ends; responses leave, and time passes.
    Pause(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => Just(Step::Next),
        2 => Just(Step::Lost),
        2 => (1_usize..4).prop_map(Step::Again),
        2 => (1_usize..4).prop_map(Step::Early),
        1 => (any::<usize>(), 0_u8..8).prop_map(|(byte, bit)| Step::Broken(byte, bit)),
        1 => (0..BTH_BYTES, 0_u8..8).prop_map(|(byte, bit)| Step::Forged(byte, bit)),
        3 => (0_u64..300).prop_map(Step::Pause),
    ]
}

/// Creates a pair and the packets of several messages, which have not arrived yet.
fn start() -> (Pair, Vec<Vec<u8>>) {
    let mut pair = Pair::new(NATIVE);
    let [sender, receiver] = &mut pair.ends;
    sender.region.write_at(0, &pattern(64 << 10)).unwrap();
    for offset in 0..8 {
        // In two segments, so that a packet crosses from one to the other.
        let offset = 0x4_0000 + offset * 0x4000;
        let sges = [receiver.sge(offset, 1_500), receiver.sge(offset + 2_000, 12_000)];
        receiver.post_receive(&sges);
    }
    let (remote_addr, rkey) = (0x10_0000, receiver.region.rkey());
    for (operation, packets) in [
        (Operation::Write { remote_addr, rkey }, 7),
        (Operation::Send, 6),
        (Operation::WriteWithImmediate { remote_addr: remote_addr + 10_000, rkey, immediate: 9 }, 5),
        (Operation::Write { remote_addr: remote_addr + 30_000, rkey }, 1),
        (Operation::SendWithImmediate(3), 8),
        (Operation::Write { remote_addr: remote_addr + 20_000, rkey }, 6),
        // Too long for its receive.
        (Operation::Send, 15),
    ] {
        let sge = sender.sge(100, packets * MTU - 24);
        sender.post(pair.now, operation, &[sge]);
    }
    let mut packets = Vec::new();
    loop {
        let burst = sender.transmit(pair.now);
        if burst.is_empty() {
            break;
        }
        packets.extend(burst);
    }
    assert_eq!(packets.len(), 48);
    (pair, packets)
}

/// Returns the datagram that arrives in a step, if one does.
fn datagram(pair: &Pair, packets: &[Vec<u8>], next: &mut usize, step: Step) -> Option<Vec<u8>> {
    let index = match step {
        Step::Again(back) => next.checked_sub(back)?,
        Step::Early(ahead) => *next + ahead,
        Step::Pause(_) => return None,
        _ => {
            *next += 1;
            *next - 1
        }
    };
    let mut bytes = packets.get(index)?.clone();
    if let Step::Forged(byte, bit) = step {
        bytes[byte] ^= 1 << bit;
    }
    let [source, destination] = [0, 1].map(|at| pair.ends[at].address);
    icrc::append(&Flow { source, destination, source_port: 50_000 }, 0, &mut bytes);
    if let Step::Broken(byte, bit) = step {
        let byte = byte % bytes.len();
        bytes[byte] ^= 1 << bit;
    }
    (!matches!(step, Step::Lost)).then_some(bytes)
}

/// Returns everything observable at the receiving end after the steps, and its memory.
fn run(steps: &[Step], is_general: bool) -> (Vec<String>, Vec<u8>) {
    let (mut pair, packets) = start();
    let (mut next, mut seen) = (0, Vec::new());
    for step in steps.iter().chain(&[Step::Pause(0), Step::Pause(200), Step::Pause(1_000)]) {
        let bytes = datagram(&pair, &packets, &mut next, *step);
        let [sender, receiver] = &mut pair.ends;
        if let Some(payload) = &bytes {
            let (source, destination) = (sender.address, receiver.address);
            let (source_port, segment_index, hop_limit, traffic_class) = (50_000, 0, None, None);
            let datagram = Datagram {
                source,
                destination,
                source_port,
                segment_index,
                hop_limit,
                traffic_class,
                payload,
                medium: Medium::Network,
            };
            let outcome = receiver.endpoint.handle_arrival(pair.now, &receiver.table.read(), &datagram);
            seen.push(format!("{outcome:?}"));
            // After this, the next packet takes the general path.
            if is_general {
                receiver.endpoint.settle_arrivals(pair.now);
            }
        }
        if let Step::Pause(microseconds) = step {
            receiver.endpoint.settle_arrivals(pair.now);
            pair.now = pair.now + Duration::from_micros(*microseconds);
            receiver.endpoint.handle_timeout(pair.now);
            seen.push(format!("{:?}", receiver.transmit(pair.now)));
        }
    }
    let receiver = &pair.ends[1];
    let events: Vec<_> = std::iter::from_fn(|| receiver.events.poll()).collect();
    let report = receiver.endpoint.queue_pair_report(pair.now, receiver.qpn);
    let deadline = receiver.endpoint.next_timeout();
    let last = format!("{:?} {events:?} {report:?} {deadline:?}", receiver.poll());
    // Keys are random.
    seen.push(last.replace(&format!("{:?}", receiver.region.rkey()), "rkey"));
    (seen, contents(&receiver.region, 0, 0x6_0000))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_000) })]

    #[test]
    fn both_paths_treat_any_packets_alike(steps in proptest::collection::vec(step(), 1..70)) {
        let (general, fast) = (run(&steps, true), run(&steps, false));
        prop_assert_eq!(general.0, fast.0);
        prop_assert!(general.1 == fast.1, "the memory differs");
    }
}
