//! Checks the command line and converts it to a measurement.

use std::path::PathBuf;

use super::{Test, TestFlags};
use crate::perf::job::{Amount, Job, Measure, Operation, Service, Waiting};
use crate::perf::machine::Placement;
use crate::perf::outcome::{Failure, Outcome};

/// The smallest and largest size of `-a`.
const SMALLEST: usize = 2;
const LARGEST: usize = 8 << 20;
/// Maximum number of bytes of one size, with `-a` and without `-n`.
const MOST_BYTES_A_SIZE: u64 = 1 << 30;
/// Number of entries of the software device's largest completion queue.
const MOST_COMPLETIONS: u64 = 1 << 20;
/// Default devices of `self`: this process's and the other one's.
pub(crate) const OWN_DEVICE: &str = "soft:127.0.0.41";
pub(crate) const PARTNER_DEVICE: &str = "soft:127.0.0.42";

/// A test, whose flags are consistent.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) job: Job,
    pub(crate) device: Option<String>,
    pub(crate) ib_port: u8,
    pub(crate) gid_index: Option<u8>,
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
    pub(crate) placement: Placement,
    pub(crate) partner_device: Option<String>,
    pub(crate) loopback: bool,
    pub(crate) json: bool,
    pub(crate) report: bool,
    pub(crate) plot: Option<PathBuf>,
    pub(crate) references: bool,
}

impl Test {
    /// Returns the test, if the flags are consistent; `both`: this process starts the other one.
    pub(crate) fn wanted(&self, both: bool) -> Outcome<Wanted> {
        let (operation, flags) = match self {
            Self::Send(flags) => (Operation::Send, flags),
            Self::Write(flags) => (Operation::Write, flags),
            Self::Read(flags) => (Operation::Read, flags),
            Self::Atomic(flags) => (Operation::Atomic, flags),
        };
        flags.wanted(operation, both || flags.loopback)
    }
}

impl TestFlags {
    fn wanted(&self, operation: Operation, both: bool) -> Outcome<Wanted> {
        self.check(operation, both)?;
        let job = self.job(operation);
        check_sizes(&job)?;
        let cores = (self.core, self.partner_core);
        let placement = match cores {
            (None, None) => Placement::Anywhere,
            // Each process has only its own core: the server does not have the client's, nor the client the server's.
            (own, None) if !both => Placement::On { client: own, server: own },
            (client, server) => Placement::On { client, server },
        };
        let device = |given: &Option<String>, default: &str| given.clone().or_else(|| both.then(|| default.to_owned()));
        Ok(Wanted {
            job,
            device: device(&self.ib_dev, OWN_DEVICE),
            partner_device: device(&self.partner_dev, PARTNER_DEVICE),
            ib_port: self.ib_port,
            gid_index: self.gid_index,
            host: self.host.clone(),
            port: self.port,
            placement,
            loopback: both,
            json: self.json,
            report: self.report,
            plot: self.plot.clone(),
            references: self.references,
        })
    }

    /// Checks for conflicts that do not depend on the sizes.
    fn check(&self, operation: Operation, both: bool) -> Outcome {
        let name = operation.name();
        let needs_reliable = operation.has_device_response();
        let (is_latency, is_datagram) = (self.measure == Measure::Latency, self.connection == Service::Datagram);
        if is_latency {
            self.check_latency(operation)?;
        }
        refuse(&[
            (both && self.host.is_some(), "perf self has both ends: it takes no host"),
            (
                needs_reliable && self.connection != Service::Reliable,
                &format!("-c: {name} needs a reliable connection (RC)"),
            ),
            (is_datagram && operation == Operation::Write, "-c: datagrams (UD) are sent, not written"),
            (self.memory_only && !(is_latency && operation == Operation::Write), "--memory-only: for write lat"),
            (
                self.futures && !(is_latency && operation == Operation::Send && self.connection == Service::Reliable),
                "--futures: for send lat on reliable connections",
            ),
            (
                !both && (self.partner_core.is_some() || self.partner_dev.is_some()),
                "--partner-core and --partner-dev: for perf self",
            ),
            (self.plot.is_some() && !self.all && !is_latency, "--plot: one size of a stream makes no curve; take -a"),
            (self.all && operation == Operation::Atomic, "-a: atomics have 8 bytes"),
        ])
    }

    fn check_latency(&self, operation: Operation) -> Outcome {
        let name = operation.name();
        refuse(&[
            (self.qp > 1, "-q: latency is measured on one queue pair"),
            (self.bidirectional, "-b: a ping-pong has one message in flight"),
            (self.post_list.is_some_and(|list| list > 1), "-l: for bw and rate"),
            (
                self.events && operation == Operation::Write,
                "-e: a WRITE makes no event at the receiver; write lat polls memory",
            ),
            (
                self.references && operation.has_device_response(),
                &format!("--references: raw sockets have nothing like the latency of {name}"),
            ),
        ])
    }

    /// Returns the sizes to measure.
    fn sizes(&self, operation: Operation) -> Vec<usize> {
        let default_size = match (operation, self.measure) {
            (Operation::Atomic, _) | (_, Measure::Rate) => 8,
            (_, Measure::Latency) => SMALLEST,
            (_, Measure::Bandwidth) => 65_536,
        };
        if !self.all {
            return vec![self.size.unwrap_or(default_size)];
        }
        let largest = if self.connection == Service::Datagram { self.mtu.unwrap_or(4096) as usize } else { LARGEST };
        std::iter::successors(Some(SMALLEST), |size| Some(size * 2)).take_while(|size| *size <= largest).collect()
    }

    fn job(&self, operation: Operation) -> Job {
        let usual = Job::new(operation, self.measure, 0);
        let tx_depth = self.tx_depth.unwrap_or(usual.tx_depth);
        let waiting = match (self.events, self.memory_only, self.futures) {
            (true, ..) => Waiting::Events,
            (_, true, _) => Waiting::Memory,
            (.., true) => Waiting::Futures,
            _ => Waiting::Polling,
        };
        Job {
            service: self.connection,
            sizes: self.sizes(operation),
            amount: match (self.duration, self.iters) {
                (Some(seconds), _) => Amount::Seconds(seconds),
                (None, Some(iterations)) => Amount::Iterations(iterations),
                (None, None) => usual.amount,
            },
            byte_limit: if self.all && self.iters.is_none() { MOST_BYTES_A_SIZE } else { u64::MAX },
            queue_pairs: self.qp as usize,
            tx_depth,
            rx_depth: self.rx_depth,
            mtu: self.mtu,
            inline_size: self.inline_size.unwrap_or(usual.inline_size),
            waiting,
            bidirectional: self.bidirectional,
            signal_every: self.cq_mod.unwrap_or(usual.signal_every).min((tx_depth / 2).max(1)),
            post_list: self.post_list.unwrap_or(usual.post_list).min(tx_depth),
            outstanding: self.outs,
            atomic: self.atomic_type,
            service_level: self.sl,
            timeout: self.qp_timeout,
            check: self.check,
            program_memory: self.program_memory,
            sharing: self.shared_memory,
            seed: rand::random::<u32>().into(),
            ..usual
        }
    }
}

/// Fails with the message of the first condition that holds.
fn refuse(conditions: &[(bool, &str)]) -> Outcome {
    match conditions.iter().find(|(is_wrong, _)| *is_wrong) {
        Some((_, message)) => Err(Failure::Usage((*message).to_owned())),
        None => Ok(()),
    }
}

fn check_sizes(job: &Job) -> Outcome {
    let largest = job.largest();
    let message = if job.operation == Operation::Atomic && largest != 8 {
        format!("-s is {largest}; atomics have 8 bytes")
    } else if job.service == Service::Datagram && largest > 4096 {
        format!("-s is {largest}; a datagram has at most 4096 bytes")
    } else if job.completions() > MOST_COMPLETIONS {
        let (pairs, tx_depth, rx_depth) = (job.queue_pairs, job.tx_depth, job.rx_depth);
        format!(
            "-q {pairs} with -t {tx_depth} and -r {rx_depth} needs a completion queue of {} entries, which is more \
            than {MOST_COMPLETIONS}: take smaller depths",
            job.completions()
        )
    } else {
        return Ok(());
    };
    Err(Failure::Usage(message))
}
