//! `driving_settings SETTING SECONDS`: the duration of an exchange in a setting that constants of the driving policy
//! are for.
//!
//! Prints the median, the mean and the 99th percentile in microseconds, and the processor time of the process for an
//! exchange. Both ends are in this process, each with its threads on one core. `driving/run` compares builds.

mod end;
mod lock;

use std::error::Error;
use std::hint::spin_loop;
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use rdma_verbs::verbs::{ConnectionInfo, RemoteMemory};

use end::End;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const NEAR: &str = "soft:127.0.0.31";
const FAR: &str = "soft:127.0.0.32";
/// Part of the time at the beginning that is not measured.
const WARM_UP: u32 = 5;

/// An exchange of one end, the number of which is counted from 1. Returns early if it must stop.
type Exchange = fn(&End, RemoteMemory, u64, &AtomicBool) -> Outcome;

/// A way to use the verbs, and the cores of both ends.
struct Setting {
    name: &'static str,
    cores: [usize; 2],
    /// Cores on which another thread computes.
    busy: &'static [usize],
    request: Exchange,
    /// The far end sleeps if it has nothing to do.
    respond: Option<Exchange>,
}

impl Setting {
    const fn new(name: &'static str, request: Exchange, respond: Option<Exchange>) -> Self {
        Self { name, cores: [0, 1], busy: &[], request, respond }
    }
}

/// The settings with two ends that exchange messages; `locked` is another program.
const SETTINGS: [Setting; 10] = [
    Setting::new("polling", End::ask, Some(End::answer)),
    Setting { cores: [0, 0], ..Setting::new("one_core", End::ask, Some(End::answer)) },
    Setting { busy: &[0, 1], ..Setting::new("computing", End::ask, Some(End::answer)) },
    Setting::new("events", End::ask_for_event, Some(End::answer_event)),
    Setting::new("mixed", End::ask, Some(End::answer_event)),
    Setting::new("memory", End::ask_memory, Some(End::answer_memory)),
    Setting::new("paced", End::write_and_sleep, None),
    Setting::new("posting", End::post_and_compute, None),
    Setting::new("read", End::read_once, None),
    Setting { busy: &[1], ..Setting::new("busy_target", End::read_once, None) },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seconds = arguments.get(1).and_then(|text| text.parse().ok()).filter(|seconds| (0.1..=60.0).contains(seconds));
    let (2, Some(seconds)) = (arguments.len(), seconds) else { return wrong_usage() };
    let length = Duration::from_secs_f64(seconds);
    let outcome = match SETTINGS.iter().find(|setting| setting.name == arguments[0]) {
        Some(setting) => setting.run(length),
        None if arguments[0] == lock::NAME => lock::run(length),
        None => return wrong_usage(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("driving_settings: {error}");
            ExitCode::FAILURE
        }
    }
}

fn wrong_usage() -> ExitCode {
    let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).chain([lock::NAME]).collect();
    eprintln!("usage: driving_settings SETTING SECONDS\nsettings: {}\nseconds: 0.1 to 60", names.join(" "));
    ExitCode::from(2)
}

/// The data with which an end connects to the other one.
type Contact = (ConnectionInfo, RemoteMemory);

impl Setting {
    fn run(&self, length: Duration) -> Outcome {
        let (stop, barrier) = (AtomicBool::new(false), Barrier::new(2));
        let ((to_far, from_near), (to_near, from_far)) = (mpsc::channel(), mpsc::channel());
        thread::scope(|scope| {
            let (stop, barrier) = (&stop, &barrier);
            self.busy.iter().for_each(|core| drop(scope.spawn(|| compute(*core, stop))));
            let far = scope.spawn(move || self.run_far(to_near, from_near, stop, barrier));
            let near = scope.spawn(move || {
                let outcome = self.run_near(to_far, from_far, length, stop, barrier);
                stop.store(true, Ordering::Relaxed);
                outcome
            });
            let near = near.join().map_err(|_| "the near end panicked")?;
            far.join().map_err(|_| "the far end panicked")??;
            near
        })
    }

    fn open(address: &str, core: usize, to: Sender<Contact>, from: Receiver<Contact>) -> Outcome<(End, RemoteMemory)> {
        pin(core)?;
        let end = End::open(address)?;
        to.send((end.qp.connection_info()?, end.region.remote()))?;
        let (info, remote) = from.recv()?;
        end.connect(&info)?;
        Ok((end, remote))
    }

    fn run_far(&self, to: Sender<Contact>, from: Receiver<Contact>, stop: &AtomicBool, barrier: &Barrier) -> Outcome {
        let opened = Self::open(FAR, self.cores[1], to, from);
        barrier.wait();
        let (end, remote) = opened?;
        for number in 1.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            match self.respond {
                Some(respond) => respond(&end, remote, number, stop)?,
                None => thread::sleep(Duration::from_millis(20)),
            }
        }
        Ok(())
    }

    fn run_near(
        &self,
        to: Sender<Contact>,
        from: Receiver<Contact>,
        length: Duration,
        stop: &AtomicBool,
        barrier: &Barrier,
    ) -> Outcome {
        let opened = Self::open(NEAR, self.cores[0], to, from);
        barrier.wait();
        let (end, remote) = opened?;
        let (mut samples, mut number) = (Samples::new(), 0);
        let start = Instant::now();
        while start.elapsed() < length {
            number += 1;
            let before = Instant::now();
            (self.request)(&end, remote, number, stop)?;
            samples.add(before.elapsed());
            if start.elapsed() < length / WARM_UP {
                samples = Samples::new();
            }
        }
        samples.print();
        Ok(())
    }
}

/// Durations of exchanges, and the processor time of the process since their beginning.
struct Samples {
    durations: Vec<Duration>,
    processor_time: Duration,
}

impl Samples {
    fn new() -> Self {
        Self { durations: Vec::new(), processor_time: processor_time() }
    }

    fn add(&mut self, duration: Duration) {
        self.durations.push(duration);
    }

    fn print(mut self) {
        let count = self.durations.len().max(1) as f64;
        let processor = (processor_time() - self.processor_time).as_secs_f64();
        let mean = self.durations.iter().sum::<Duration>().as_secs_f64() / count;
        self.durations.sort_unstable();
        let at = |part: f64| self.durations.get((count * part) as usize).map_or(0.0, Duration::as_secs_f64);
        let [median, late] = [0.5, 0.99].map(at);
        println!("{:.3} {:.3} {:.3} {:.3}", median * 1e6, mean * 1e6, late * 1e6, processor * 1e6 / count);
    }
}

fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Into::into)
}

fn pin(core: usize) -> Outcome {
    let mut set = CpuSet::new();
    set.set(core)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// Computes on a core until it must stop.
fn compute(core: usize, stop: &AtomicBool) {
    if let Err(error) = pin(core) {
        eprintln!("driving_settings: no thread computes on core {core}: {error}");
    }
    while !stop.load(Ordering::Relaxed) {
        spin_loop();
    }
}
