//! What the two processes agree to do.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::machine::Placement;
use super::reference::{Reference, Role};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Operation {
    Send,
    Write,
    Read,
    Atomic,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::Write => "WRITE",
            Self::Read => "READ",
            Self::Atomic => "ATOMIC",
        }
    }

    /// Whether the other program has nothing to do.
    pub(crate) fn is_answered_by_device(self) -> bool {
        matches!(self, Self::Read | Self::Atomic)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
pub(crate) enum Measure {
    /// Half a round trip; for READ and atomics a whole one.
    #[value(name = "lat")]
    #[serde(rename = "lat")]
    Latency,
    /// Bytes a second.
    #[value(name = "bw")]
    #[serde(rename = "bw")]
    Bandwidth,
    /// Small messages a second, posted in batches.
    #[value(name = "rate")]
    #[serde(rename = "rate")]
    Rate,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
pub(crate) enum Service {
    #[value(name = "RC")]
    #[serde(rename = "RC")]
    Reliable,
    #[value(name = "UC")]
    #[serde(rename = "UC")]
    Unreliable,
    #[value(name = "UD")]
    #[serde(rename = "UD")]
    Datagram,
}

impl Service {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reliable => "RC",
            Self::Unreliable => "UC",
            Self::Datagram => "UD",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
pub(crate) enum Atomic {
    #[value(name = "FETCH_AND_ADD")]
    FetchAndAdd,
    #[value(name = "CMP_AND_SWAP")]
    CompareAndSwap,
}

/// How an end learns that something has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Waiting {
    /// Polls the completion queue.
    Polling,
    /// Sleeps on a completion channel.
    Events,
    /// Looks at memory and calls no verb meanwhile.
    Memory,
    /// Awaits futures.
    Futures,
}

/// How much is to be done for each size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Amount {
    Iterations(u64),
    Seconds(f64),
}

/// A measurement of verbs, for both ends.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) operation: Operation,
    pub(crate) measure: Measure,
    pub(crate) service: Service,
    /// One after the other, over the same queue pairs.
    pub(crate) sizes: Vec<usize>,
    pub(crate) amount: Amount,
    /// Bytes that the iterations of a size may move.
    pub(crate) byte_limit: u64,
    /// Iterations that are not measured, before each size.
    pub(crate) warm_up: u64,
    pub(crate) queue_pairs: usize,
    pub(crate) tx_depth: u32,
    pub(crate) rx_depth: u32,
    /// Path MTU in bytes; nothing: the largest that both have.
    pub(crate) mtu: Option<u32>,
    /// Messages up to this size are posted inline.
    pub(crate) inline_size: u32,
    pub(crate) waiting: Waiting,
    pub(crate) bidirectional: bool,
    /// Every so many requests one is signaled.
    pub(crate) signal_every: u32,
    /// Requests posted at once.
    pub(crate) post_list: u32,
    /// READs and atomics outstanding at a time; 0: as many as the devices can.
    pub(crate) outstanding: u8,
    pub(crate) atomic: Atomic,
    pub(crate) service_level: u8,
    pub(crate) timeout: u8,
    pub(crate) check: bool,
    /// Regions registered beside the one that is used.
    pub(crate) idle_regions: u32,
    /// Each end takes the other one for a device of which it knows nothing.
    pub(crate) strangers: bool,
    /// For patterns.
    pub(crate) seed: u64,
}

impl Job {
    /// Most bytes of a message.
    pub(crate) fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Iterations for messages of this size; nothing if the clock decides.
    pub(crate) fn iterations(&self, size: usize) -> Option<u64> {
        match self.amount {
            Amount::Iterations(count) => Some(count.min(self.byte_limit / size.max(1) as u64).max(1)),
            Amount::Seconds(_) => None,
        }
    }

    /// Whether this end posts requests.
    pub(crate) fn asks(&self, role: Role) -> bool {
        role == Role::Client || self.bidirectional || self.is_ping_pong()
    }

    /// Whether this end posts receives.
    pub(crate) fn receives(&self, role: Role) -> bool {
        self.operation == Operation::Send && (role == Role::Server || self.bidirectional || self.is_ping_pong())
    }

    /// Whether the two programs answer each other.
    fn is_ping_pong(&self) -> bool {
        self.measure == Measure::Latency && !self.operation.is_answered_by_device()
    }

    /// Completions that may wait at an end at a time.
    pub(crate) fn completions(&self) -> u64 {
        let receives = if self.operation == Operation::Send { self.rx_depth } else { 0 };
        self.queue_pairs as u64 * (u64::from(self.tx_depth) + u64::from(receives))
    }

    /// A measurement with usual settings.
    pub(crate) fn new(operation: Operation, measure: Measure, size: usize) -> Self {
        let is_latency = measure == Measure::Latency;
        Self {
            operation,
            measure,
            service: Service::Reliable,
            sizes: vec![size],
            amount: Amount::Iterations(match measure {
                Measure::Latency => 1000,
                Measure::Bandwidth => 5000,
                Measure::Rate => 200_000,
            }),
            byte_limit: u64::MAX,
            warm_up: 100,
            queue_pairs: 1,
            tx_depth: 128,
            rx_depth: 512,
            mtu: None,
            inline_size: if operation.is_answered_by_device() { 0 } else { 64 },
            waiting: Waiting::Polling,
            bidirectional: false,
            signal_every: if is_latency { 32 } else { 16 },
            post_list: if measure == Measure::Rate { 16 } else { 1 },
            outstanding: 0,
            atomic: Atomic::FetchAndAdd,
            service_level: 0,
            // 1.07 s: who is kept from the processor that long on a busy machine is not gone.
            timeout: 18,
            check: false,
            idle_regions: 0,
            strangers: false,
            seed: 0,
        }
    }
}

/// What a process that was started by another one is told to do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Assignment {
    Verbs {
        job: Job,
        placement: Placement,
        device: String,
    },
    Reference {
        reference: Reference,
        placement: Placement,
    },
    /// Nothing more.
    End,
}
