//! Scenarios: how they are described, selected, run and counted.

use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use rdma_verbs::verbs::{DeviceAttributes, DeviceCapabilities, OnDemandSupport};

use super::deviations::{self, Deviation, Known};
use super::world::{Devices, World};

/// A scenario that takes longer counts as hanging. The address sanitizer and emulated processors slow everything
/// down.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(if cfg!(rdma_verbs_sanitize) { 120 } else { 30 });
/// The limit for a scenario known to hang; rxe gives up waiting after 50 seconds.
const KNOWN_TO_HANG: Duration = Duration::from_secs(30);
/// Scenarios running at a time; they mostly wait.
const THREADS: usize = 4;

/// One behaviour that every provider must show.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    /// `family/verb/behaviour`, by which it is selected and reported.
    pub(crate) name: &'static str,
    /// The source of the requirement: a chapter of the InfiniBand specification (IBTA) by its title, a manual page,
    /// Linux' behaviour.
    pub(crate) clause: &'static str,
    /// Capabilities that a device may lack.
    pub(crate) needs: &'static [Capability],
    /// The check; panics on failure.
    pub(crate) run: fn(&World),
}

impl Scenario {
    /// A scenario that every device must pass.
    pub(crate) const fn new(name: &'static str, clause: &'static str, run: fn(&World)) -> Self {
        Self { name, clause, needs: &[], run }
    }

    /// Restricts the scenario to devices with these capabilities.
    pub(crate) const fn needs(self, needs: &'static [Capability]) -> Self {
        Self { needs, ..self }
    }
}

/// A capability that a device may lack, as its attributes then report.
#[derive(Clone, Copy)]
pub(crate) struct Capability {
    /// The attribute's name.
    pub(crate) name: &'static str,
    /// Whether a device with these attributes has it.
    pub(crate) present: fn(&DeviceAttributes) -> bool,
}

/// Remote atomics.
pub(crate) const ATOMIC_CAP: Capability =
    Capability { name: "atomic_cap", present: |device| device.atomic_cap != rdma_verbs::types::AtomicCapability::None };

/// Memory windows of type 1.
pub(crate) const MEM_WINDOW: Capability = Capability {
    name: "MEM_WINDOW",
    present: |device| device.device_cap_flags.contains(DeviceCapabilities::MEM_WINDOW),
};
/// Memory windows of type 2 that belong to a queue pair.
pub(crate) const MEM_WINDOW_TYPE_2B: Capability = Capability {
    name: "MEM_WINDOW_TYPE_2B",
    present: |device| device.device_cap_flags.contains(DeviceCapabilities::MEM_WINDOW_TYPE_2B),
};
/// Extended reliable connections.
pub(crate) const XRC: Capability =
    Capability { name: "XRC", present: |device| device.device_cap_flags.contains(DeviceCapabilities::XRC) };
/// Invalidation by work requests and by peers.
pub(crate) const MEM_MGT_EXTENSIONS: Capability = Capability {
    name: "MEM_MGT_EXTENSIONS",
    present: |device| device.device_cap_flags.contains(DeviceCapabilities::MEM_MGT_EXTENSIONS),
};
/// ATOMIC WRITE.
pub(crate) const ATOMIC_WRITE: Capability = Capability {
    name: "ATOMIC_WRITE",
    present: |device| device.device_cap_flags.contains(DeviceCapabilities::ATOMIC_WRITE),
};
/// FLUSH to global visibility.
pub(crate) const FLUSH_GLOBAL: Capability = Capability {
    name: "FLUSH_GLOBAL",
    present: |device| device.device_cap_flags.contains(DeviceCapabilities::FLUSH_GLOBAL),
};
/// FLUSH to persistence.
pub(crate) const FLUSH_PERSISTENT: Capability = Capability {
    name: "FLUSH_PERSISTENT",
    present: |device| device.device_cap_flags.contains(DeviceCapabilities::FLUSH_PERSISTENT),
};
/// Ranges of memory on demand.
pub(crate) const ODP_EXPLICIT: Capability = Capability {
    name: "odp_caps EXPLICIT",
    present: |device| device.odp_caps.general.contains(OnDemandSupport::EXPLICIT),
};
/// The whole address space on demand.
pub(crate) const ODP_IMPLICIT: Capability = Capability {
    name: "odp_caps IMPLICIT",
    present: |device| device.odp_caps.general.contains(OnDemandSupport::IMPLICIT),
};
/// Device memory.
pub(crate) const DEVICE_MEMORY: Capability =
    Capability { name: "max_dm_size", present: |device| device.max_dm_size > 0 };
/// Memory behind any descriptor that can be mapped.
pub(crate) const DESCRIPTORS: Capability =
    Capability { name: "maps_descriptors", present: |device| device.maps_descriptors };

/// Completion moderation: events that are raised only after several completions.
pub(crate) const MODERATION: Capability =
    Capability { name: "max_cq_count", present: |device| device.max_cq_count > 0 };

/// Regions whose keys may be invalidated.
pub(crate) const INVALIDATABLE_REGIONS: Capability =
    Capability { name: "invalidatable_regions", present: |device| device.invalidatable_regions };
/// Counters of queue pairs and of dropped packets.
pub(crate) const PACKET_COUNTERS: Capability =
    Capability { name: "packet_counters", present: |device| device.packet_counters };
/// Causes of failures.
pub(crate) const FAILURE_CAUSES: Capability =
    Capability { name: "failure_causes", present: |device| device.failure_causes };
/// Regions whose iova may have a different page offset than the memory.
pub(crate) const ANY_IOVA: Capability = Capability { name: "any_iova", present: |device| device.any_iova };

thread_local! {
    /// Message of this thread's scenario when it panicked.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Counts besides passes and failures.
#[derive(Default)]
struct Tally {
    /// Skipped scenarios by the capability that the device lacks.
    skipped: BTreeMap<&'static str, usize>,
    /// Scenarios that ended as the table of deviations says.
    deviating: usize,
    /// Scenarios by the fact of the table that they met; rows about a scenario count as [`OWN_ROW`].
    reasons: BTreeMap<&'static str, usize>,
}

/// State shared by all scenarios.
struct Suite {
    devices: Arc<Devices>,
    known: Known,
    tally: Mutex<Tally>,
    /// A scenario that takes longer counts as hanging.
    limit: Duration,
    /// Called with the message of each failure.
    failed: fn(&str),
}

/// Stands for scenarios that have a row of their own in the table of deviations.
const OWN_ROW: &str = "a row of its own";

/// Runs the scenarios selected on the command line, prints a summary, and ends the process.
pub(crate) fn run(families: &'static [&'static [Scenario]], limit: Duration, failed: fn(&str)) -> ! {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let devices = Arc::new(Devices::from_environment());
    check_names(families);
    // The suite may run on a machine that has only this program, not the repository.
    if std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        check_tables(families);
    }
    remember_panics();
    let names: Vec<&str> = families.iter().copied().flatten().map(|scenario| scenario.name).collect();
    let known = deviations::known(&devices.first(), &names);
    let suite = Arc::new(Suite { devices, known, tally: Mutex::default(), limit, failed });
    let trials = families.iter().copied().flatten().map(|scenario| trial(scenario, &suite)).collect();
    let start = Instant::now();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        let (passed, failed) = (conclusion.num_passed, conclusion.num_failed);
        let tally = suite.tally();
        let (skips, deviating) = (tally.skipped.values().sum::<usize>(), tally.deviating);
        println!(
            "verbs on {}: {} scenarios, {} passed, {failed} failed, {skips} skipped{}, {deviating} deviating{}, {:.1?}",
            suite.devices,
            passed + failed + skips as u64,
            passed - deviating as u64,
            list(&tally.skipped),
            list(&tally.reasons),
            start.elapsed(),
        );
    }
    conclusion.exit()
}

/// Formats counts by name.
fn list(counts: &BTreeMap<&'static str, usize>) -> String {
    let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{count} for {name}")).collect();
    if counts.is_empty() { String::new() } else { format!(" ({})", counts.join(", ")) }
}

fn trial(scenario: &'static Scenario, suite: &Arc<Suite>) -> Trial {
    let suite = Arc::clone(suite);
    Trial::ignorable_test(scenario.name, move || {
        let world = World::new(scenario, Arc::clone(&suite.devices));
        let lacked = scenario.needs.iter().find(|capability| !world.has(capability));
        if let Some(lacked) = lacked {
            *suite.tally().skipped.entry(lacked.name).or_default() += 1;
            return Ok(Completion::ignored_with(lacked.name));
        }
        let row = suite.known.scenarios.get(scenario.name);
        let limit = if row.is_some_and(Deviation::hangs) { KNOWN_TO_HANG } else { suite.limit };
        let (outcome, facts) = run_within(limit, scenario, world, &suite.known);
        let outcome = suite.judge(scenario, row, &facts, outcome);
        if let Err(failed) = &outcome {
            (suite.failed)(failed.message().unwrap_or_default());
        }
        outcome.map(|()| Completion::Completed)
    })
}

impl Suite {
    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().expect("no panic while it is held")
    }

    /// Returns the verdict on an outcome, given the scenario's row and the facts that it met.
    fn judge(
        &self,
        scenario: &Scenario,
        row: Option<&Deviation>,
        facts: &BTreeSet<&'static str>,
        outcome: Result<(), Failed>,
    ) -> Result<(), Failed> {
        let mut reasons: Vec<&'static str> = facts.iter().copied().collect();
        match (outcome, row) {
            (Ok(()), Some(row)) if !row.is_occasional() => {
                return Err(format!("{} passes: its row in deviations.txt is wrong", scenario.name).into());
            }
            (Ok(()), _) => {}
            (Err(failed), Some(row)) if row.is_met(failed.message().unwrap_or_default()) => reasons.push(OWN_ROW),
            (Err(failed), _) => return Err(failed),
        }
        let mut tally = self.tally();
        tally.deviating += usize::from(!reasons.is_empty());
        reasons.into_iter().for_each(|reason| *tally.reasons.entry(reason).or_default() += 1);
        Ok(())
    }
}

/// Runs the scenario on its own thread, which is abandoned if it hangs. Also returns the facts that it met.
fn run_within(
    limit: Duration,
    scenario: &'static Scenario,
    world: World,
    known: &Known,
) -> (Result<(), Failed>, BTreeSet<&'static str>) {
    let (report, outcome) = mpsc::channel();
    let (facts, is_deviating) = (Arc::clone(&known.facts), known.scenarios.contains_key(scenario.name));
    let thread = std::thread::Builder::new().name(scenario.name.into());
    let spawned = thread.spawn(move || {
        deviations::begin(facts, is_deviating);
        let result = catch_unwind(AssertUnwindSafe(|| (scenario.run)(&world)));
        let said = result.map_err(|panic| SAID.take().unwrap_or_else(|| text_of(&*panic)));
        // The receiver is gone if the limit has passed.
        let _ = report.send((said, deviations::met()));
    });
    let none = BTreeSet::new();
    if let Err(error) = spawned {
        return (Err(format!("no thread for {}: {error}", scenario.name).into()), none);
    }
    let at = format!("{} [{}]", scenario.name, scenario.clause);
    match outcome.recv_timeout(limit) {
        Ok((said, facts)) => (said.map_err(|said| format!("{at}: {said}").into()), facts),
        Err(_) => (Err(format!("{at}: hangs: not done after {limit:?}").into()), none),
    }
}

/// Keeps a scenario's panic message, to be printed in its turn. Panics of the scenario's own threads print at once.
fn remember_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let of_scenario = std::thread::current().name().is_some_and(|name| name.contains('/'));
        if !of_scenario {
            return default(info);
        }
        let location = info.location().map_or(String::new(), |at| format!("{}:{}: ", at.file(), at.line()));
        SAID.set(Some(format!("{location}{}", text_of(info.payload()))));
    }));
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without text").to_owned()
}

/// Names select scenarios, so each must be unique and of the form `family/verb/behaviour`.
fn check_names(families: &[&[Scenario]]) {
    let mut names = HashSet::new();
    for scenario in families.iter().copied().flatten() {
        assert!(names.insert(scenario.name), "two scenarios are called {}", scenario.name);
        assert!(scenario.name.split('/').count() >= 3, "{} is not family/verb/behaviour", scenario.name);
        assert!(!scenario.clause.is_empty(), "{} names no clause", scenario.name);
    }
}

/// Checks that the scenarios named in the documents exist.
fn check_tables(families: &[&[Scenario]]) {
    let names = || families.iter().copied().flatten().map(|scenario| scenario.name);
    for table in ["docs/verbs.md", "docs/conformance.md"] {
        let text = file(table);
        for named in text.split('`').filter(|text| text.contains('/') && !text.contains(['.', ' ', '\n'])) {
            let exists = match named.strip_suffix('*') {
                Some(start) => names().any(|name| name.starts_with(start)),
                None => names().any(|name| name == named),
            };
            assert!(exists, "{table} names the scenario {named}, which does not exist");
        }
        for named in text.split('`').filter(|text| text.contains(".rs::")) {
            let (path, function) = named.split_once("::").expect("a name with two parts");
            // A star stands for all tests of the file.
            let wanted = if function == "*" { "#[test]".to_owned() } else { format!("fn {function}(") };
            assert!(file(path).contains(&wanted), "{table} names the test {named}, which does not exist");
        }
    }
}

/// Reads a file of this repository.
fn file(path: &str) -> String {
    let whole = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&whole).unwrap_or_else(|error| panic!("{path}: {error}"))
}
