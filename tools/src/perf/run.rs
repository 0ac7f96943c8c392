//! A measurement from start to end: connect to the other process, agree on the job, measure each size, print.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::arguments::Wanted;
use super::channel::{Channel, check_interrupted, listen};
use super::end::{Device, End};
use super::job::{Amount, Assignment, Job, Measure, Operation, Service, Waiting};
use super::outcome::{Failure, Outcome, printed};
use super::partner::Partner;
use super::progress::Progress;
use super::reference::{Measured, Reference, Role, Span, Stopwatch};
use super::report::{DeviceLine, Line, Report};
use super::{bandwidth, compare, file, latency, machine, plot};
use crate::common::{note, print};

/// The amount of a phase, and of those before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase {
    /// Number of messages of each queue pair before this phase.
    pub(crate) first: u64,
    /// Number of messages of each queue pair; `None` if the time is the limit.
    pub(crate) iterations: Option<u64>,
    time: Duration,
}

impl Phase {
    fn counted(first: u64, iterations: u64) -> Self {
        Self { first, iterations: Some(iterations), time: Duration::MAX }
    }

    fn of(job: &Job, size: usize, first: u64) -> Self {
        let time = match job.amount {
            Amount::Seconds(seconds) => Duration::from_secs_f64(seconds),
            Amount::Iterations(_) => Duration::MAX,
        };
        Self { first, iterations: job.iterations(size), time }
    }

    /// Returns the maximum number of messages of a queue pair.
    pub(crate) fn most(&self) -> u64 {
        self.iterations.unwrap_or(u64::MAX)
    }

    /// Returns whether to run another round. Only the client's stopwatch runs; the server continues until the client
    /// ends.
    pub(crate) fn goes_on(&self, number: u64, stopwatch: &Stopwatch) -> bool {
        self.iterations.map_or_else(|| stopwatch.elapsed() < self.time, |count| number < count)
    }

    pub(crate) fn is_over(&self, start: Instant) -> bool {
        start.elapsed() >= self.time
    }
}

/// The results of a phase that an end sends to the other one.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Numbers {
    pub(crate) messages: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
}

impl Numbers {
    fn of(measured: &Measured) -> Self {
        let Measured { messages, seconds, cpu_seconds, .. } = *measured;
        Self { messages, seconds, cpu_seconds }
    }
}

/// Runs a test.
pub(crate) fn run(wanted: &Wanted) -> Outcome {
    if let Some(file) = wanted.plot.as_ref().filter(|_| wanted.loopback || wanted.host.is_some()) {
        file::prepare(file)?;
    }
    match (&wanted.host, wanted.loopback) {
        (None, false) => serve(wanted),
        (Some(host), _) => {
            machine::pin(Role::Client, wanted.placement)?;
            let device = open(wanted)?;
            let mut channel = Channel::connect(host, wanted.port)?;
            agree_as_client(&wanted.job, &mut channel)?;
            run_client(wanted, &device, &mut channel)
        }
        (None, true) => {
            let mut partner = Partner::start()?;
            machine::pin(Role::Client, wanted.placement)?;
            let device = open(wanted)?;
            let assignment = Assignment::Verbs {
                job: wanted.job.clone(),
                placement: wanted.placement,
                device: wanted.partner_device.clone().unwrap_or_default(),
            };
            partner.channel.send(&assignment)?;
            run_client(wanted, &device, &mut partner.channel)?;
            partner.end()
        }
    }
}

fn open(wanted: &Wanted) -> Outcome<Device> {
    Device::open(wanted.device.as_deref(), wanted.ib_port, wanted.gid_index, wanted.job.sharing)
}

/// Runs the client: measures, and prints the results.
fn run_client(wanted: &Wanted, device: &Device, channel: &mut Channel) -> Outcome {
    let mut report = Report::new(&wanted.job, wanted.json)?;
    report.shows_paths = wanted.report;
    report.device = Some(DeviceLine::of(device)?);
    report.begin()?;
    let progress = Progress::start(&wanted.job);
    for size in &wanted.job.sizes {
        let line = perform(&wanted.job, *size, device, Role::Client, channel, &progress)?;
        progress.suspend(|| report.add(line))?;
    }
    if wanted.references {
        for (name, reference, size) in compare::references(&wanted.job) {
            let assignment = Assignment::Reference { reference, placement: wanted.placement };
            channel.send(&assignment)?;
            let line = refer(&reference, Some(size), Role::Client, channel)?;
            progress.suspend(|| report.add_reference(name, line))?;
        }
    }
    channel.send(&Assignment::End)?;
    drop(progress);
    report.counters = wanted.report.then(|| counted(device).collect());
    report.end()?;
    if let Some(file) = &wanted.plot {
        plot::draw(file, &report.picture())?;
    }
    Ok(())
}

/// Runs the server for one client.
fn serve(wanted: &Wanted) -> Outcome {
    machine::pin(Role::Server, wanted.placement)?;
    let device = open(wanted)?;
    let listener = listen(wanted.port)?;
    note!("perf: waiting for a client on port {}", wanted.port);
    let mut channel = Channel::accept(&listener, check_interrupted)?;
    let job = agree_as_server(&wanted.job, &mut channel)?;
    note!("perf: serving {}", channel.peer()?.ip());
    measure_all(&job, &device, &mut channel)?;
    loop {
        match channel.receive()? {
            Assignment::Reference { reference, .. } => {
                refer(&reference, None, Role::Server, &mut channel)?;
            }
            Assignment::Verbs { .. } => return Err("the client requests more than was agreed on".into()),
            Assignment::End => break,
        }
    }
    if wanted.report {
        printed(counted(&device).try_for_each(|(name, count)| print(format_args!("{name} {count}\n"))))?;
    }
    Ok(())
}

/// Returns the nonzero counters of the device.
fn counted(device: &Device) -> impl Iterator<Item = (&'static str, u64)> {
    let counts: Vec<_> = device.context.counters().iter().filter(|(_, count)| *count > 0).collect();
    counts.into_iter()
}

/// Runs the server's part of a whole job.
pub(crate) fn measure_all(job: &Job, device: &Device, channel: &mut Channel) -> Outcome {
    for size in &job.sizes {
        perform(job, *size, device, Role::Server, channel, &Progress::none())?;
    }
    Ok(())
}

/// Sends the client's job; the server returns the difference to its own, if any.
fn agree_as_client(job: &Job, channel: &mut Channel) -> Outcome {
    channel.send(job)?;
    match channel.receive::<Option<String>>()? {
        None => Ok(()),
        Some(difference) => Err(Failure::Usage(format!("the server was started with different options: {difference}"))),
    }
}

/// Agrees on a job: the client's seed of patterns is used; everything else must be the same.
fn agree_as_server(job: &Job, channel: &mut Channel) -> Outcome<Job> {
    let theirs: Job = channel.receive()?;
    let ours = Job { seed: theirs.seed, ..job.clone() };
    let difference = (ours != theirs).then(|| differences(&ours, &theirs));
    channel.send(&difference)?;
    match difference {
        None => Ok(ours),
        Some(difference) => Err(Failure::Usage(format!("the client was started with different options: {difference}"))),
    }
}

/// Describes the first attribute that differs, by its name in JSON.
fn differences(ours: &Job, theirs: &Job) -> String {
    let object = |job: &Job| serde_json::to_value(job).ok().and_then(|value| value.as_object().cloned());
    let (ours, theirs) = (object(ours).unwrap_or_default(), object(theirs).unwrap_or_default());
    let differing = ours.iter().find(|(name, value)| theirs.get(*name) != Some(value));
    differing.map_or_else(
        || "its flags differ".to_owned(),
        |(name, value)| {
            let other = theirs.get(name).map(ToString::to_string).unwrap_or_default();
            format!("{name} is {value} at the server and {other} at the client; give both the same flags")
        },
    )
}

/// Measures one size at this end. The server's result is not used.
pub(crate) fn perform(
    job: &Job,
    size: usize,
    device: &Device,
    role: Role,
    channel: &mut Channel,
    progress: &Progress,
) -> Outcome<Line> {
    if job.waiting == Waiting::Futures {
        let (own, other) = wait_for_futures(job, size, device, role, channel)?;
        return Ok(Line::new(job, size, own, other));
    }
    let end = End::open(job, size, device, channel)?;
    let mut first = 0;
    // If the warm-up of a stream loses messages, their receives remain posted afterwards.
    let warms_up = job.service == Service::Reliable || job.measure == Measure::Latency;
    if warms_up && job.warm_up > 0 {
        phase(&end, role, Phase::counted(0, job.warm_up), channel, &Progress::none())?;
        first = job.warm_up;
    }
    let wanted = Phase::of(job, size, first);
    progress.begin(size, &wanted);
    let (own, other) = phase(&end, role, wanted, channel, progress)?;
    let sent = match role {
        Role::Client => own.messages,
        Role::Server => other.messages,
    };
    // A ping-pong checks each message on arrival.
    if job.check && (job.measure != Measure::Latency || job.operation.has_device_response()) {
        let came = if job.operation == Operation::Send && role == Role::Server { own.messages } else { sent };
        check(&end, role, first + sent / job.queue_pairs as u64, came)?;
    }
    let paths = device.context.path_reports();
    // An end must not leave while the other one still polls.
    channel.synchronize()?;
    let mut line = Line::new(job, size, own, other);
    line.paths = paths;
    Ok(line)
}

fn wait_for_futures(
    job: &Job,
    size: usize,
    device: &Device,
    role: Role,
    channel: &mut Channel,
) -> Outcome<(Measured, Numbers)> {
    let own = super::futures::run(job, size, device, role, channel)?;
    let other = channel.exchange(&Numbers::of(&own))?;
    Ok((own, other))
}

/// Runs a phase and receives the other end's results.
fn phase(
    end: &End,
    role: Role,
    phase: Phase,
    channel: &mut Channel,
    progress: &Progress,
) -> Outcome<(Measured, Numbers)> {
    let job = &end.job;
    let own = if !job.posts_requests(role) && !job.receives(role) {
        stand_by(channel)?
    } else {
        let own = match job.measure {
            Measure::Latency => latency::run(end, role, phase, channel, progress)?,
            Measure::Bandwidth | Measure::Rate => bandwidth::run(end, role, phase, channel, progress)?,
        };
        match role {
            Role::Client => channel.send(&())?,
            Role::Server => channel.receive::<()>()?,
        }
        own
    };
    let other = channel.exchange(&Numbers::of(&own))?;
    Ok((own, other))
}

/// Waits at an end whose device does all the work.
fn stand_by(channel: &mut Channel) -> Outcome<Measured> {
    channel.synchronize()?;
    let span = Span::start()?;
    channel.receive::<()>()?;
    let (seconds, cpu_seconds) = span.end()?;
    Ok(Measured { seconds, cpu_seconds, ..Measured::default() })
}

/// Checks the data that arrived in this end's memory.
fn check(end: &End, role: Role, messages: u64, came: u64) -> Outcome {
    let job = &end.job;
    let is_target = role == Role::Server || job.bidirectional;
    match job.operation {
        Operation::Atomic if is_target => end.check_counters(messages),
        Operation::Read if role == Role::Client || job.bidirectional => end.check_stream(messages),
        // Unreliable messages may be lost, so only check if one has arrived.
        Operation::Send | Operation::Write if is_target && (job.service == Service::Reliable || came > 0) => {
            end.check_stream(messages)
        }
        _ => Ok(()),
    }
}

/// Runs one end of a program to compare with.
pub(crate) fn refer(reference: &Reference, size: Option<usize>, role: Role, channel: &mut Channel) -> Outcome<Line> {
    let run = |stream: &mut TcpStream| reference.run(role, stream);
    let own = channel.lend(run).map_err(|failure| failure.while_doing("raw sockets"))?;
    let other = channel.exchange(&Numbers::of(&own))?;
    Ok(Line::of_reference(size, own, other))
}
