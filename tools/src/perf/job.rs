//! The measurement that the two processes agree on.

use clap::ValueEnum;
use rdma_verbs::verbs::SharedMemory;
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

    /// Returns whether the device responds without the other program.
    pub(crate) fn has_device_response(self) -> bool {
        matches!(self, Self::Read | Self::Atomic)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
pub(crate) enum Measure {
    /// Half of the round trip; for READ and atomics the whole one.
    #[value(name = "lat")]
    #[serde(rename = "lat")]
    Latency,
    /// Bytes per second.
    #[value(name = "bw")]
    #[serde(rename = "bw")]
    Bandwidth,
    /// Small messages per second, posted in batches.
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

/// How an end waits for messages and completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Waiting {
    /// Polls the completion queue.
    Polling,
    /// Sleeps on a completion channel.
    Events,
    /// Polls memory and calls no verb meanwhile.
    Memory,
    /// Awaits futures.
    Futures,
}

/// Whether two ends on one host share memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sharing {
    Auto,
    Off,
    Require,
}

impl Sharing {
    pub(crate) fn setting(self) -> SharedMemory {
        match self {
            Self::Auto => SharedMemory::Auto,
            Self::Off => SharedMemory::Off,
            Self::Require => SharedMemory::Require,
        }
    }
}

/// The amount of work for each size.
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
    /// Sizes, measured one after the other over the same queue pairs.
    pub(crate) sizes: Vec<usize>,
    pub(crate) amount: Amount,
    /// Maximum number of bytes of the iterations of a size.
    pub(crate) byte_limit: u64,
    /// Number of iterations that are not measured, before each size.
    pub(crate) warm_up: u64,
    pub(crate) queue_pairs: usize,
    pub(crate) tx_depth: u32,
    pub(crate) rx_depth: u32,
    /// Path MTU in bytes; `None`: the largest that both support.
    pub(crate) mtu: Option<u32>,
    /// Length up to which messages are posted inline.
    pub(crate) inline_size: u32,
    pub(crate) waiting: Waiting,
    pub(crate) bidirectional: bool,
    /// Interval of signaled requests.
    pub(crate) signal_every: u32,
    /// Number of requests posted at once.
    pub(crate) post_list: u32,
    /// Number of READs and atomics outstanding at a time; 0: as many as the devices support.
    pub(crate) outstanding: u8,
    pub(crate) atomic: Atomic,
    pub(crate) service_level: u8,
    pub(crate) timeout: u8,
    pub(crate) check: bool,
    /// Number of regions registered in addition to the one in use.
    pub(crate) idle_regions: u32,
    /// The memory of the messages is the program's, not the library's.
    pub(crate) program_memory: bool,
    /// Each end treats the other one as a standard peer.
    pub(crate) standard_peers: bool,
    /// Whether the ends share memory, if this is not left to the devices.
    pub(crate) sharing: Option<Sharing>,
    /// The seed of data patterns.
    pub(crate) seed: u64,
}

impl Job {
    /// Returns the length of the largest message.
    pub(crate) fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Returns the number of iterations for messages of this size; `None` if the time is the limit.
    pub(crate) fn iterations(&self, size: usize) -> Option<u64> {
        match self.amount {
            Amount::Iterations(count) => Some(count.min(self.byte_limit / size.max(1) as u64).max(1)),
            Amount::Seconds(_) => None,
        }
    }

    /// Returns whether this end posts requests.
    pub(crate) fn posts_requests(&self, role: Role) -> bool {
        role == Role::Client || self.bidirectional || self.is_ping_pong()
    }

    /// Returns whether this end posts receives.
    pub(crate) fn receives(&self, role: Role) -> bool {
        self.operation == Operation::Send && (role == Role::Server || self.bidirectional || self.is_ping_pong())
    }

    /// Returns whether the two programs respond to each other.
    fn is_ping_pong(&self) -> bool {
        self.measure == Measure::Latency && !self.operation.has_device_response()
    }

    /// Returns the maximum number of completions queued at an end.
    pub(crate) fn completions(&self) -> u64 {
        let receives = if self.operation == Operation::Send { self.rx_depth } else { 0 };
        self.queue_pairs as u64 * (u64::from(self.tx_depth) + u64::from(receives))
    }

    /// Returns a measurement with the default settings.
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
            inline_size: if operation.has_device_response() { 0 } else { 64 },
            waiting: Waiting::Polling,
            bidirectional: false,
            signal_every: if is_latency { 32 } else { 16 },
            post_list: if measure == Measure::Rate { 16 } else { 1 },
            outstanding: 0,
            atomic: Atomic::FetchAndAdd,
            service_level: 0,
            // 1.07 s, because on a busy machine, a peer that does not run for almost that long is not gone.
            timeout: 18,
            check: false,
            idle_regions: 0,
            program_memory: false,
            standard_peers: false,
            sharing: None,
            seed: 0,
        }
    }
}

/// A task for a process that was started by another one.
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
    /// No more tasks.
    End,
}
