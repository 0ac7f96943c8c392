//! The rows: measurements, references and targets.

mod others;
mod same_host;
mod veth;

use super::figure::{Bound, Figure};
use crate::perf::compare;
use crate::perf::job::{Amount, Job, Measure, Operation, Sharing, Waiting};
use crate::perf::machine::Placement;
use crate::perf::reference::{DatagramLatency, DatagramStream, Offload, Reference, RuntimeLatency, TcpRate, Wait};
use crate::perf::task::Task;
use crate::perf::veth::Veth;

/// Number of rounds of a ping-pong whose ends poll, and whose ends sleep.
const ROUNDS: u64 = 20_000;
const SLEEPING_ROUNDS: u64 = 3_000;
const WARM_UP: u64 = 1_000;
/// Number of bytes of a stream: about a quarter of a second.
const STREAM_BYTES: u64 = 1 << 30;
const PLAIN_STREAM_BYTES: u64 = 256 << 20;
const SMALL_MESSAGES: u64 = 1_000_000;
const SMALL_BYTES: usize = 8;
const IDLE_REGIONS: u32 = 100_000;

/// The network between the two processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Network {
    Loopback,
    Veth(Veth),
}

pub(super) struct Row {
    pub(super) name: String,
    pub(super) network: Network,
    pub(super) placement: Placement,
    pub(super) ours: Task,
    /// The programs to compare with; the best counts.
    pub(super) others: Vec<(&'static str, Task)>,
    pub(super) figures: Vec<(Figure, Option<Bound>)>,
}

impl Row {
    /// Creates a row over the loopback, with a core for each process.
    fn new(name: &str, ours: Task) -> Self {
        let (network, placement) = (Network::Loopback, Placement::Apart);
        Self { name: name.to_owned(), network, placement, ours, others: Vec::new(), figures: Vec::new() }
    }

    /// Sets whether the ends of its measurements of verbs share memory.
    fn share(&mut self, sharing: Sharing) {
        for task in std::iter::once(&mut self.ours).chain(self.others.iter_mut().map(|(_, task)| task)) {
            if let Task::Verbs(job) = task {
                job.sharing = Some(sharing);
            }
        }
    }

    fn placed(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }

    fn over(self, veth: Veth) -> Self {
        Self { network: Network::Veth(veth), ..self }
    }

    fn beside(mut self, name: &'static str, other: Task) -> Self {
        self.others.push((name, other));
        self
    }

    fn shows(mut self, figure: Figure) -> Self {
        self.figures.push((figure, None));
        self
    }

    fn at_most(mut self, figure: Figure, limit: f64) -> Self {
        self.figures.push((figure, Some(Bound::AtMost(limit))));
        self
    }

    fn at_least(mut self, figure: Figure, limit: f64) -> Self {
        self.figures.push((figure, Some(Bound::AtLeast(limit))));
        self
    }
}

/// Returns all rows, with a fraction of the messages.
pub(super) fn all(divisor: u64) -> Vec<Row> {
    let scale = Scale { divisor };
    let mut rows = scale.polling();
    rows.extend(scale.sleeping());
    rows.extend(scale.writes());
    rows.extend(scale.streams());
    rows.extend(scale.rates());
    rows.extend(scale.crowds());
    rows.extend(scale.veth());
    rows.extend(scale.others());
    rows.iter_mut().for_each(|row| row.share(Sharing::Off));
    let mut same_host = scale.same_host();
    same_host.iter_mut().for_each(|row| row.share(Sharing::Require));
    rows.extend(same_host);
    rows
}

struct Scale {
    divisor: u64,
}

impl Scale {
    /// Returns a fraction of a number, at least 16.
    fn part(&self, whole: u64) -> u64 {
        (whole / self.divisor).max(16)
    }

    fn latency(&self, operation: Operation, size: usize, waiting: Waiting) -> Task {
        let rounds = if matches!(waiting, Waiting::Polling) { ROUNDS } else { SLEEPING_ROUNDS };
        Task::Verbs(Box::new(Job {
            amount: Amount::Iterations(self.part(rounds)),
            warm_up: self.part(WARM_UP),
            waiting,
            ..Job::new(operation, Measure::Latency, size)
        }))
    }

    fn datagrams(&self, size: usize, wait: Wait) -> Task {
        let polls = matches!(wait, Wait::Spin | Wait::Yield);
        let iterations = self.part(if polls { ROUNDS } else { SLEEPING_ROUNDS });
        let test = DatagramLatency { size, wait, iterations, warm_up: self.part(WARM_UP) };
        Task::Reference(Reference::DatagramLatency(test))
    }

    /// Returns the rows of ends that poll.
    fn polling(&self) -> Vec<Row> {
        let rows = [
            ("SEND 8 B", Operation::Send, 8, 1.2),
            ("WRITE 8 B", Operation::Write, 8, 1.2),
            ("SEND 4 KiB", Operation::Send, 4096, 1.25),
            ("WRITE 4 KiB", Operation::Write, 4096, 1.25),
        ];
        let apart = rows.map(|(name, operation, size, limit)| {
            Row::new(name, self.latency(operation, size, Waiting::Polling))
                .beside("raw UDP, spinning", self.datagrams(size, Wait::Spin))
                .beside("raw UDP, yielding", self.datagrams(size, Wait::Yield))
                .at_most(Figure::Median, limit)
                .shows(Figure::Tail)
        });
        let together = Row::new("SEND 8 B, both on one core", self.latency(Operation::Send, 8, Waiting::Polling))
            .placed(Placement::Together)
            .beside("raw UDP, yielding", self.datagrams(8, Wait::Yield))
            .at_most(Figure::Median, 1.3);
        let in_memory =
            Row::new("WRITE 8 B, no verb while waiting", self.latency(Operation::Write, 8, Waiting::Memory))
                .beside("raw UDP, a blocked thread beside a spinner", self.datagrams(8, Wait::HandOver))
                .at_most(Figure::Median, 1.2)
                .at_most(Figure::Tail, 1.2);
        apart.into_iter().chain([together, in_memory]).collect()
    }

    /// Returns the rows of ends that sleep.
    fn sleeping(&self) -> Vec<Row> {
        let events = |name, placement, limit| {
            Row::new(name, self.latency(Operation::Send, 8, Waiting::Events))
                .placed(placement)
                .beside("raw UDP, blocking", self.datagrams(8, Wait::Block))
                .at_most(Figure::Median, limit)
        };
        let mut rows = vec![
            events("SEND 8 B, events", Placement::Apart, 1.15),
            events("SEND 8 B, events, unpinned", Placement::Anywhere, 1.3),
        ];
        let (iterations, warm_up) = (self.part(SLEEPING_ROUNDS), self.part(WARM_UP));
        let runtime = RuntimeLatency { size: 8, iterations, warm_up };
        let row = Row::new("SEND 8 B, tokio", self.latency(Operation::Send, 8, Waiting::Futures));
        let row = row.beside("tokio UDP", Task::Reference(Reference::RuntimeLatency(runtime)));
        rows.push(row.at_most(Figure::Median, 1.15));
        rows
    }

    fn stream(&self, operation: Operation, size: usize, mtu: u32, bytes: u64) -> Job {
        Job {
            amount: Amount::Iterations((bytes / self.divisor / size as u64).max(16)),
            mtu: Some(mtu),
            tx_depth: 64,
            ..Job::new(operation, Measure::Bandwidth, size)
        }
    }

    fn raw_stream(&self, payload: u32, offload: Offload, bytes: u64) -> Task {
        let bytes = bytes / self.divisor;
        let test = DatagramStream { payload: payload as usize, segments: usize::MAX >> 1, offload, bytes };
        Task::Reference(Reference::DatagramStream(test))
    }

    fn writes(&self) -> Vec<Row> {
        let rows = [
            ("WRITE 64 KiB, MTU 4096", 64 << 10, 4096),
            ("WRITE 64 KiB, MTU 1024", 64 << 10, 1024),
            ("WRITE 1 MiB, MTU 4096", 1 << 20, 4096),
            ("WRITE 1 MiB, MTU 1024", 1 << 20, 1024),
        ];
        let row = |(name, size, mtu)| {
            Row::new(name, Task::Verbs(Box::new(self.stream(Operation::Write, size, mtu, STREAM_BYTES))))
                .beside("raw UDP GSO/GRO, copying", self.raw_stream(mtu, Offload::Segmentation, STREAM_BYTES))
                .beside("raw UDP GSO/GRO, gathering", self.raw_stream(mtu, Offload::Gather, STREAM_BYTES))
                .at_least(Figure::Bandwidth, 0.9)
                .at_most(Figure::Processor, 1.2)
        };
        rows.into_iter().map(row).collect()
    }

    fn streams(&self) -> Vec<Row> {
        let mebibyte = |operation| Task::Verbs(Box::new(self.stream(operation, 1 << 20, 4096, STREAM_BYTES)));
        let tcp = |wait, call| {
            let messages = (STREAM_BYTES / self.divisor / (1 << 20)).max(16);
            Task::Reference(Reference::TcpRate(TcpRate { size: 1 << 20, call, wait, messages }))
        };
        let standard = self.stream(Operation::Write, 64 << 10, 4096, PLAIN_STREAM_BYTES);
        let standard = Task::Verbs(Box::new(Job { standard_peers: true, ..standard }));
        let plain = self.raw_stream(4096, Offload::None, PLAIN_STREAM_BYTES);
        vec![
            Row::new("READ 1 MiB", mebibyte(Operation::Read))
                .beside("WRITE", mebibyte(Operation::Write))
                .at_least(Figure::Bandwidth, 0.9),
            Row::new("WRITE 1 MiB beside TCP", mebibyte(Operation::Write))
                .beside("TCP, spinning", tcp(Wait::Spin, 1 << 20))
                .beside("TCP, blocking", tcp(Wait::Block, 1 << 20))
                .beside("TCP, spinning, 256 KiB a call", tcp(Wait::Spin, 256 << 10))
                .beside("TCP, blocking, 256 KiB a call", tcp(Wait::Block, 256 << 10))
                .at_least(Figure::Bandwidth, 1.0),
            Row::new("WRITE 64 KiB to a standard peer", standard)
                .beside("raw sendto and recvfrom", plain)
                .at_least(Figure::Bandwidth, 0.9),
        ]
    }

    fn rate(&self, operation: Operation, batch: u32, queue_pairs: usize) -> Job {
        Job {
            amount: Amount::Iterations(self.part(SMALL_MESSAGES) / queue_pairs as u64 + 1),
            warm_up: (self.part(WARM_UP) / queue_pairs as u64).max(u64::from(batch)),
            tx_depth: if queue_pairs > 1 { 4 * batch } else { 512 },
            rx_depth: if queue_pairs > 1 { 4 * batch } else { 1024 },
            signal_every: batch,
            post_list: batch,
            queue_pairs,
            ..Job::new(operation, Measure::Rate, SMALL_BYTES)
        }
    }

    fn rates(&self) -> Vec<Row> {
        let rows = [
            ("SEND 8 B, batches of 16", Operation::Send, 16),
            ("SEND 8 B, batches of 64", Operation::Send, 64),
            ("WRITE 8 B, batches of 16", Operation::Write, 16),
            ("WRITE 8 B, batches of 64", Operation::Write, 64),
        ];
        let raw = |batch| {
            let bytes = self.part(SMALL_MESSAGES) * SMALL_BYTES as u64;
            Task::Reference(Reference::DatagramStream(compare::stream(SMALL_BYTES, 4096, batch, bytes)))
        };
        let row = |(name, operation, batch)| {
            Row::new(name, Task::Verbs(Box::new(self.rate(operation, batch, 1))))
                .beside("raw UDP GSO", raw(batch as usize))
                .at_least(Figure::Rate, 0.5)
        };
        rows.into_iter().map(row).collect()
    }

    /// Returns the rows with many queue pairs or many regions.
    fn crowds(&self) -> Vec<Row> {
        let streams = |queue_pairs: usize| {
            let one = self.stream(Operation::Write, 64 << 10, 4096, STREAM_BYTES);
            let Amount::Iterations(messages) = one.amount else { return one };
            let amount = Amount::Iterations(messages.div_ceil(queue_pairs as u64));
            // The warm-up touches each queue pair's memory.
            let warm_up = (100 / queue_pairs as u64).max(2);
            Job { queue_pairs, amount, warm_up, tx_depth: 16, signal_every: 4, ..one }
        };
        let rates = |queue_pairs| Job { tx_depth: 64, ..self.rate(Operation::Write, 16, queue_pairs) };
        let crowd = |name, job: &dyn Fn(usize) -> Job, count, figure, limit: Option<f64>| {
            let row = Row::new(name, Task::Verbs(Box::new(job(count))));
            let row = row.beside("one queue pair", Task::Verbs(Box::new(job(1))));
            match limit {
                Some(limit) => row.at_least(figure, limit),
                None => row.shows(figure),
            }
        };
        let regions = |idle_regions| Task::Verbs(Box::new(Job { idle_regions, ..self.rate(Operation::Write, 16, 1) }));
        let idle = if self.divisor > 1 { IDLE_REGIONS / 100 } else { IDLE_REGIONS };
        vec![
            crowd("WRITE 64 KiB, 10 queue pairs", &streams, 10, Figure::Bandwidth, None),
            crowd("WRITE 64 KiB, 100 queue pairs", &streams, 100, Figure::Bandwidth, None),
            crowd("WRITE 64 KiB, 1000 queue pairs", &streams, 1000, Figure::Bandwidth, Some(0.8)),
            crowd("WRITE 8 B, 10 queue pairs", &rates, 10, Figure::Rate, None),
            crowd("WRITE 8 B, 100 queue pairs", &rates, 100, Figure::Rate, None),
            crowd("WRITE 8 B, 1000 queue pairs", &rates, 1000, Figure::Rate, Some(0.8)),
            Row::new("WRITE 8 B among 100,000 regions", regions(idle))
                .beside("1 region", regions(0))
                .at_most(Figure::TimePerMessage, 1.1),
        ]
    }
}
