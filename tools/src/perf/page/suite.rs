//! The measurements of `perf report` without files: latency, bandwidth and message rate over UDP and through shared
//! memory, beside raw programs, repeated while there is time.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::verdict::MEMCPY;
use crate::common::to_json;
use crate::perf::arguments::{OWN_DEVICE, PARTNER_DEVICE};
use crate::perf::channel::check_interrupted;
use crate::perf::compare;
use crate::perf::end::Device;
use crate::perf::job::{Amount, Assignment, Job, Measure, Operation, Sharing, Waiting};
use crate::perf::machine::{self, Placement};
use crate::perf::outcome::{Failure, Outcome};
use crate::perf::partner::Partner;
use crate::perf::progress::Progress;
use crate::perf::reference::{DatagramLatency, MemoryCopy, Reference, TcpLatency, TcpRate, Wait};
use crate::perf::report::{DeviceLine, Report};
use crate::perf::task::Task;

const DEVICES: [&str; 2] = [OWN_DEVICE, PARTNER_DEVICE];
const MOST_ROUNDS: usize = 5;
/// Share of the whole time that one round takes, if nothing disturbs.
const ROUND_PARTS: f64 = 5.5;
/// Bounds of the time that one measurement of verbs takes.
const SHORTEST: f64 = 0.01;
const LONGEST: f64 = 0.1;
const WARM_UP: u64 = 100;
/// A raw program sends so many times as many messages as the verbs did within their time, because it may be faster.
const REFERENCE_FACTOR: u64 = 2;
const LEAST_MESSAGES: u64 = 16;
/// MTU and batch of the raw stream: those of the verbs.
const MTU: usize = 4096;

const LATENCY_SIZES: [usize; 6] = [8, 64, 512, 2048, 8192, 32_768];
const STREAM_SIZES: [usize; 6] = [1024, 4096, 16_384, 65_536, 262_144, 1 << 20];
const RATE_SIZES: [usize; 4] = [8, 64, 256, 1024];

/// One element of the set, with what it is compared with.
struct Element {
    job: Job,
    beside: &'static [Beside],
}

#[derive(Clone, Copy)]
enum Beside {
    DatagramLatency(Wait),
    TcpLatency,
    DatagramStream,
    TcpStream,
    MemoryCopy,
}

/// The document of the set.
#[derive(Serialize)]
struct Set<'a> {
    invocation: String,
    rounds: usize,
    runs: Vec<&'a Report<'a>>,
    not_measured: Vec<NotMeasured>,
}

#[derive(Serialize)]
struct NotMeasured {
    row: &'static str,
    why: String,
}

/// Measures the set for about this many seconds. Returns its document.
pub(super) fn measure(seconds: f64) -> Outcome<String> {
    let part = (seconds / ROUND_PARTS / f64::from(MEASUREMENTS)).clamp(SHORTEST, LONGEST);
    let mut not_measured = Vec::new();
    let mut elements = elements(part, Sharing::Off);
    match memory_is_shared() {
        Ok(()) => elements.extend(memory_elements(part)),
        Err(Failure::Interrupted) => return Err(Failure::Interrupted),
        Err(failure) => not_measured.push(NotMeasured { row: "shared memory", why: failure.to_string() }),
    }
    let mut reports = elements.iter().map(|element| Report::new(&element.job, true)).collect::<Outcome<Vec<_>>>()?;
    let steps: usize = elements.iter().map(Element::steps).sum();
    let progress = Progress::of_parts("perf report", (steps * MOST_ROUNDS) as u64);
    let (end, mut rounds, mut done) = (Instant::now() + Duration::from_secs_f64(seconds), 0, 0);
    while rounds < MOST_ROUNDS && (rounds == 0 || Instant::now() < end) {
        for (element, report) in elements.iter().zip(&mut reports) {
            // The first round measures everything, the others as much as there is time for.
            if rounds > 0 && Instant::now() >= end {
                break;
            }
            element.measure(report, || {
                done += 1;
                progress.note(done);
            })?;
        }
        rounds += 1;
    }
    drop(progress);
    let invocation = machine::invocation();
    let runs = reports.iter().collect();
    Ok(to_json("perf report", &Set { invocation, rounds, runs, not_measured })?)
}

/// Number of measurements of a round.
const MEASUREMENTS: u32 = 75;

/// Returns the measurements over UDP.
fn elements(part: f64, sharing: Sharing) -> Vec<Element> {
    use Beside::{DatagramLatency, DatagramStream, TcpLatency, TcpStream};
    let job = |operation, measure, sizes: &[usize]| job(part, operation, measure, sizes, sharing);
    let latency = |operation, sizes: &[usize]| job(operation, Measure::Latency, sizes);
    vec![
        Element { job: latency(Operation::Send, &LATENCY_SIZES), beside: &[DatagramLatency(Wait::Yield), TcpLatency] },
        Element {
            job: Job { waiting: Waiting::Events, ..latency(Operation::Send, &LATENCY_SIZES[..1]) },
            beside: &[DatagramLatency(Wait::Block)],
        },
        Element { job: latency(Operation::Read, &LATENCY_SIZES), beside: &[] },
        Element {
            job: Job { tx_depth: 64, ..job(Operation::Write, Measure::Bandwidth, &STREAM_SIZES) },
            beside: &[DatagramStream, TcpStream],
        },
        Element {
            job: Job { tx_depth: 512, rx_depth: 1024, ..job(Operation::Send, Measure::Rate, &RATE_SIZES) },
            beside: &[DatagramStream],
        },
    ]
}

/// Returns the measurements through shared memory.
fn memory_elements(part: f64) -> Vec<Element> {
    let job = |operation, measure, sizes: &[usize]| job(part, operation, measure, sizes, Sharing::Require);
    vec![
        Element { job: job(Operation::Send, Measure::Latency, &LATENCY_SIZES), beside: &[] },
        Element {
            job: Job { tx_depth: 64, ..job(Operation::Write, Measure::Bandwidth, &STREAM_SIZES) },
            beside: &[Beside::MemoryCopy],
        },
    ]
}

fn job(part: f64, operation: Operation, measure: Measure, sizes: &[usize], sharing: Sharing) -> Job {
    let amount = Amount::Seconds(part);
    Job { sizes: sizes.to_vec(), amount, warm_up: WARM_UP, sharing: Some(sharing), ..Job::new(operation, measure, 0) }
}

/// Checks that two processes of this user can share memory here.
fn memory_is_shared() -> Outcome {
    let amount = Amount::Iterations(1);
    let job = Job { amount, sharing: Some(Sharing::Require), ..Job::new(Operation::Send, Measure::Latency, 8) };
    let mut partner = Partner::start()?;
    Task::Verbs(Box::new(job)).perform(Placement::Apart, DEVICES, &mut partner)?;
    end(partner)
}

fn end(mut partner: Partner) -> Outcome {
    partner.channel.send(&Assignment::End)?;
    partner.end()
}

impl Element {
    /// Returns the number of measurements.
    fn steps(&self) -> usize {
        self.job.sizes.len() * (1 + self.beside.len())
    }

    /// Measures each size, followed by its references.
    fn measure(&self, report: &mut Report<'_>, mut done: impl FnMut()) -> Outcome {
        let mut partner = Partner::start()?;
        if report.device.is_none() {
            report.device = Some(DeviceLine::of(&Device::open(Some(OWN_DEVICE), 1, None, self.job.sharing)?)?);
        }
        for &size in &self.job.sizes {
            check_interrupted()?;
            let task = Task::Verbs(Box::new(Job { sizes: vec![size], ..self.job.clone() }));
            let own = task.perform(Placement::Apart, DEVICES, &mut partner)?;
            let messages = (own.iterations * REFERENCE_FACTOR).max(LEAST_MESSAGES);
            report.add(own)?;
            done();
            for beside in self.beside {
                check_interrupted()?;
                let (name, reference) = beside.reference(size, &self.job, messages);
                let line = Task::Reference(reference).perform(Placement::Apart, DEVICES, &mut partner)?;
                report.add_reference(name, line.of_size(size))?;
                done();
            }
        }
        end(partner)
    }
}

impl Beside {
    /// Returns the program, with this number of messages.
    fn reference(self, size: usize, job: &Job, messages: u64) -> (&'static str, Reference) {
        let (iterations, warm_up, bytes) = (messages, WARM_UP, messages * size as u64);
        match self {
            Self::DatagramLatency(wait) => {
                let test = DatagramLatency { size, wait, iterations, warm_up };
                (compare::RAW_UDP, Reference::DatagramLatency(test))
            }
            Self::TcpLatency => {
                let test = TcpLatency { size, wait: Wait::Spin, iterations, warm_up };
                (compare::TCP, Reference::TcpLatency(test))
            }
            Self::DatagramStream => {
                let test = compare::stream(size, MTU, job.post_list as usize, bytes);
                (compare::RAW_UDP, Reference::DatagramStream(test))
            }
            Self::TcpStream => {
                let test = TcpRate { size, call: size, wait: Wait::Spin, messages };
                (compare::TCP, Reference::TcpRate(test))
            }
            Self::MemoryCopy => (MEMCPY, Reference::MemoryCopy(MemoryCopy { size, by_kernel: false, bytes })),
        }
    }
}
