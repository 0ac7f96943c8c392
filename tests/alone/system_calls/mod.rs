//! System calls per message: the sends and receives of the devices, by their own counters, and the other calls of all
//! threads of the process, as reported by the kernel. The devices use sockets, and share no memory.
//!
//! Bounds hold for the calmest of many rounds: on a busy machine other programs sometimes interrupt a round, and then a
//! device's thread sends an acknowledgement that would otherwise have left with the next message. Empty receives are
//! counted, but have no bound: polling makes them.

#[cfg(target_arch = "x86_64")]
mod faults;
mod witness;

use std::fmt;

use rdma_verbs::types::{Counter, Counters, SharedMemory};
use support::process::alone;
use witness::Witness;

use super::traffic::{BATCH, Ends};

const ROUNDS: usize = 30;

/// Largest number of calls of locks, of the waits that a message may have. A thread waits for a lock if its holder has
/// lost the processor to another program; on a busy machine this happens in the calmest round, too, more often the more
/// packets a message has. A message that needs to wait takes two calls each time.
const LOCKS_OF_WAITS: f64 = 1.0 / 8.0;

/// A kind of traffic, and the largest cost of a message of it.
struct Kind {
    name: &'static str,
    messages: usize,
    /// Sends this many messages.
    traffic: fn(&Ends, usize),
    /// Largest numbers of sends of the near end and of the far one.
    sends: [f64; 2],
    /// Largest number of times that threads slept or woke each other. On a quiet machine only the devices' threads do,
    /// to check whether another thread still polls; on a busy one polling threads sleep, too.
    waits: f64,
}

/// Loopback has packets of 4 KiB; 15 fit into a send. The first packet of a WRITE is longer than the others, because it
/// contains the address, and so are the first and the last packet of a READ response. A longer packet can only begin a
/// send, and a shorter one ends it, so 64 KiB take two or three sends, and 256 KiB six or seven.
const KINDS: [Kind; 8] = [
    // Both ends send once a round, and the acknowledgement is piggybacked.
    Kind {
        name: "SEND 8 B, there and back",
        messages: 1_000,
        traffic: |ends, messages| ends.ping_pong(messages / 2, 1),
        sends: [0.53, 0.53],
        waits: 0.5,
    },
    Kind {
        name: "SEND 8 B, there and back, 1 of 16 signaled",
        messages: 1_000,
        traffic: |ends, messages| ends.ping_pong(messages / 2, 16),
        sends: [0.53, 0.53],
        waits: 0.5,
    },
    // The other end sends no messages, so it holds the acknowledgement for a short time, in which a thread sleeps.
    Kind {
        name: "SEND 8 B, in batches of 16",
        messages: 1_600,
        traffic: |ends, messages| ends.batches(messages / BATCH),
        sends: [1.05 / 16.0, 1.05 / 16.0],
        waits: 1.0,
    },
    Kind {
        name: "WRITE 64 KiB",
        messages: 200,
        traffic: |ends, messages| ends.writes(messages, 64 << 10),
        sends: [2.05, 0.5],
        waits: 4.0,
    },
    Kind {
        name: "WRITE 256 KiB",
        messages: 80,
        traffic: |ends, messages| ends.writes(messages, 256 << 10),
        sends: [6.05, 1.05],
        waits: 8.0,
    },
    Kind {
        name: "READ 64 KiB",
        messages: 200,
        traffic: |ends, messages| ends.reads(messages, 64 << 10),
        sends: [1.05, 3.05],
        waits: 4.0,
    },
    Kind {
        name: "READ 256 KiB",
        messages: 80,
        traffic: |ends, messages| ends.reads(messages, 256 << 10),
        sends: [1.05, 7.05],
        waits: 8.0,
    },
    // Requested in two halves, each with a longer first and last packet.
    Kind {
        name: "READ 1 MiB",
        messages: 40,
        traffic: |ends, messages| ends.reads(messages, 1 << 20),
        sends: [1.05, 21.05],
        waits: 32.0,
    },
];

/// The cost of a round of traffic.
#[derive(Clone)]
struct Cost {
    messages: f64,
    /// The changes of each end's counters.
    ends: [Counters; 2],
    /// Other calls of all threads: waits and wake-ups, those of locks, and unexpected calls. `None` if the kernel does
    /// not report them.
    others: Option<[u64; 3]>,
}

impl Cost {
    /// Returns a counter per message.
    fn of(&self, end: usize, counter: Counter) -> f64 {
        self.ends[end].get(counter) as f64 / self.messages
    }

    fn sends(&self) -> [f64; 2] {
        [0, 1].map(|end| self.of(end, Counter::SendCalls))
    }

    /// Returns the waits and wake-ups, and the calls of locks, per message.
    fn waits_and_locks(&self) -> Option<[f64; 2]> {
        self.others.map(|[waits, locks, _]| [waits, locks].map(|calls| calls as f64 / self.messages))
    }
}

/// Values per message, and the number of packets of a send.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (end, name) in ["near", "far"].into_iter().enumerate() {
            let [sends, receives, packets] =
                [Counter::SendCalls, Counter::ReceiveCalls, Counter::SentPackets].map(|counter| self.of(end, counter));
            write!(f, "{name} {sends:.3} sends of {:.1} packets, {receives:.3} receives; ", packets / sends)?;
        }
        match (self.waits_and_locks(), self.others) {
            (Some([waits, locks]), Some([.., strange])) => {
                write!(f, "{waits:.3} waits and wake-ups, {locks:.3} of locks, {strange} other calls in all")
            }
            _ => f.write_str("other calls unknown"),
        }
    }
}

/// Returns the fewest sends, and the fewest other calls of each purpose, of many rounds after a warm-up.
fn calmest(ends: &Ends, witness: Option<&Witness>, kind: &Kind) -> Cost {
    (kind.traffic)(ends, kind.messages);
    let counters = || [0, 1].map(|end: usize| ends.0[end].context.counters());
    let round = |_| {
        let (before, calls_before) = (counters(), witness.map(Witness::by_purpose));
        (kind.traffic)(ends, kind.messages);
        let others = witness.zip(calls_before).map(|(witness, before)| {
            let now = witness.by_purpose();
            [0, 1, 2].map(|purpose| now[purpose] - before[purpose])
        });
        let after = counters();
        let spent = [after[0].since(&before[0]), after[1].since(&before[1])];
        Cost { messages: kind.messages as f64, ends: spent, others }
    };
    let rounds: Vec<Cost> = (0..ROUNDS).map(round).collect();
    let both = |cost: &Cost| cost.sends().iter().sum::<f64>();
    let calmest = rounds.iter().min_by(|one, other| both(one).total_cmp(&both(other))).unwrap();
    let fewest = |purpose: usize| {
        let calls = rounds.iter().filter_map(|round| round.others).map(|others| others[purpose]);
        calls.min().expect("each round is watched")
    };
    let others = witness.map(|_| [0, 1, 2].map(fewest));
    Cost { others, ..calmest.clone() }
}

#[test]
fn a_message_takes_few_system_calls() {
    alone(|| {
        // Starts before the devices are opened, so that their threads are watched, too.
        let witness = Witness::watch();
        if let Err(error) = &witness {
            println!("other calls are not counted: the kernel does not let this thread be watched ({error})");
        }
        let (ends, witness) = (Ends::connect(["127.98.2.1", "127.98.2.2"], SharedMemory::Off), witness.ok());
        if let Some(witness) = &witness {
            let [.., strange] = witness.by_purpose();
            assert!(strange > 100, "sockets were opened and memory was mapped: {:?}", witness.calls());
        }
        for kind in &KINDS {
            let cost = calmest(&ends, witness.as_deref(), kind);
            println!("{}: {cost}", kind.name);
            for (sends, most) in cost.sends().into_iter().zip(kind.sends) {
                assert!(sends <= most, "{}: {sends} sends a message, expected at most {most}: {cost}", kind.name);
            }
            let by_number = witness.as_deref().map(Witness::calls);
            let most = [kind.waits, kind.waits * LOCKS_OF_WAITS];
            for (calls, most) in cost.waits_and_locks().unwrap_or_default().into_iter().zip(most) {
                assert!(
                    calls <= most,
                    "{}: {calls} a message, expected at most {most}: {cost}: {by_number:?}",
                    kind.name
                );
            }
            let strange = cost.others.map_or(0, |[.., strange]| strange);
            assert_eq!(strange, 0, "{}: calls that a message does not need: {by_number:?}", kind.name);
        }
    });
}

/// The first kinds of traffic, of short messages, between devices that share memory.
#[test]
fn a_message_through_memory_takes_no_send() {
    alone(|| {
        let ends = Ends::connect(["127.98.2.5", "127.98.2.6"], SharedMemory::Auto);
        for kind in &KINDS[..3] {
            let cost = calmest(&ends, None, kind);
            println!("{}: {cost}", kind.name);
            let through_memory = [0, 1].map(|end| cost.of(end, Counter::SharedMemorySends));
            assert_eq!(cost.sends(), [0.0; 2], "{}: {cost}", kind.name);
            assert!(through_memory.iter().all(|sends| *sends > 0.0), "{}: {through_memory:?}", kind.name);
        }
    });
}
