//! Known differences of devices from the standard: the table `deviations.txt`, and its meaning for scenarios.
//!
//! A row names either a scenario, which must then fail with the row's text, or a fact. Scenarios query facts where they
//! matter: they check that the device differs in this way, and check everything else as usual.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rdma_verbs::verbs;

const TABLE: &str = include_str!("deviations.txt");
const KERNEL: &str = "/proc/sys/kernel/osrelease";
/// Starts the last column of rows whose scenario may also pass.
const AT_TIMES: &str = "at times: ";

/// A known difference of a device, independent of the scenario.
pub(crate) struct Fact(pub(crate) &'static str);

macro_rules! facts {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal;)*) => {
        $($(#[doc = $doc])* pub(crate) const $name: Fact = Fact($text);)*

        /// The facts that scenarios query.
        const FACTS: &[&str] = &[$($text),*];
    };
}

facts! {
    /// No QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR.
    NO_ERROR_EVENTS = "no events of queue pair errors";
    /// No COMM_EST.
    NO_ESTABLISHED_EVENT = "no event of established communication";
    /// No QP_LAST_WQE_REACHED.
    NO_LAST_EVENT = "no event of the last receive";
    /// QP_LAST_WQE_REACHED is raised more than once.
    LAST_EVENT_AGAIN = "event of the last receive repeated";
    /// SQ_DRAINED is raised even if it was not requested.
    DRAINED_UNREQUESTED = "event of draining not requested";
    /// The send queue counts as drained while a request waits for a receive of the peer.
    WAITING_IS_DRAINED = "requests that wait for a receive do not drain";
    /// Requests posted in SQD start only with the next post after RTS.
    RTS_BEGINS_NOTHING = "return from drained begins nothing";
    /// A refused WRITE with immediate data fails the receive with the refusal's status, not with a local access error.
    TAKEN_IS_REFUSED = "receives of refused WRITEs have the refusal's status";
    /// LOC_QP_OP_ERR instead of LOC_LEN_ERR; at the sender, REM_OP_ERR instead of REM_INV_REQ_ERR.
    LENGTH_STATUS = "status of receives that are too short";
    /// LOC_QP_OP_ERR instead of LOC_PROT_ERR, at receives.
    RECEIVE_STATUS = "status of receives without memory";
    /// LOC_QP_OP_ERR instead of LOC_PROT_ERR, at send requests.
    SEND_STATUS = "status of requests without memory";
    /// A request that fails locally is flushed, like those behind it and the unacknowledged ones before it.
    FAILED_IS_FLUSHED = "failed requests are flushed";
    /// No SQE: a local error of UC and UD leads to ERR.
    NO_SEND_QUEUE_ERROR = "no send queue error state";
    /// The high bit of a request's Q_Key does not select the queue pair's own Q_Key.
    QKEY_TAKEN_LITERALLY = "high bit of the Q_Key means nothing";
    /// Datagrams that do not fit put the queue pair into ERR instead of being dropped.
    SHORT_DATAGRAMS_FAIL = "datagrams that do not fit end the receiver";
    /// Datagrams that do not fit fail a receive of the shared queue instead of being dropped.
    SHORT_SHARED_FAILS = "datagrams that do not fit fail shared receives";
    /// Receives posted in ERR are flushed only by the next state change.
    LATE_FLUSH = "receives posted in error are not flushed";
    /// Flushed receives do not trigger events of solicited completions.
    FLUSH_UNSOLICITED = "flushed receives are not solicited";
    /// Queue pairs keep working after their completion queue overflowed.
    OVERFLOW_IGNORED = "overflow leaves queue pairs alone";
    /// max_rd_atomic and max_dest_rd_atomic become powers of two.
    RD_ATOMIC_ROUNDED = "numbers of READs rounded up";
    /// The receive of a SEND with invalidate does not report the invalidated key.
    INVALIDATED_UNREPORTED = "invalidated key not reported";
    /// The bounds of windows are not checked, only those of their region.
    WINDOW_BOUNDS = "bounds of windows unchecked";
    /// A receive of a shared queue that a message has started to fill is lost when its queue pair ends.
    BEGUN_IS_LOST = "begun receives are not flushed";
    /// Receives of a shared queue are looked up in the queue pair's domain.
    SHARED_DOMAIN_IGNORED = "domain of shared receive queues ignored";
    /// Completions of destroyed or reset queue pairs stay if the receives were shared.
    NOTHING_PURGED = "shared receives are not purged";
    /// The IP header of looped-back datagrams has no checksum.
    HEADER_CHECKSUM = "header without checksum";
    /// The path's hop limit is the system's.
    HOP_LIMIT_OF_ROUTE = "hop limit of the route";
    /// Arming above the number of waiting receives raises no event before the next receive is taken.
    LIMIT_LATE = "limit is checked by receives only";
}

impl Fact {
    /// Returns whether the fact holds on this device; if so, the scenario counts as deviating because of it.
    pub(crate) fn holds(&self) -> bool {
        SCENARIO.with_borrow_mut(|scenario| {
            let known = scenario.facts.contains(self.0);
            if known {
                scenario.met.insert(self.0);
            }
            known
        })
    }

    /// Returns the expected result: `instead` where the fact holds, else `standard`.
    pub(crate) fn or<T>(&self, instead: T, standard: T) -> T {
        if self.holds() { instead } else { standard }
    }
}

/// The facts known about the device, and those that this thread's scenario has met.
#[derive(Default)]
struct OfScenario {
    facts: Arc<BTreeSet<&'static str>>,
    met: BTreeSet<&'static str>,
    is_deviating: bool,
}

thread_local! {
    static SCENARIO: RefCell<OfScenario> = RefCell::default();
}

/// Starts this thread's scenario; `is_deviating` says whether it is known to fail.
pub(crate) fn begin(facts: Arc<BTreeSet<&'static str>>, is_deviating: bool) {
    SCENARIO.set(OfScenario { facts, met: BTreeSet::new(), is_deviating });
}

/// Takes the facts that this thread's scenario has met.
pub(crate) fn met() -> BTreeSet<&'static str> {
    SCENARIO.with_borrow_mut(|scenario| std::mem::take(&mut scenario.met))
}

/// Returns whether this thread's scenario is known to fail.
pub(crate) fn is_deviating() -> bool {
    SCENARIO.with_borrow(|scenario| scenario.is_deviating)
}

/// A row about a scenario.
pub(crate) struct Deviation {
    /// Part of the scenario's failure message.
    instead: &'static str,
}

impl Deviation {
    /// Returns whether the scenario failed as the row says.
    pub(crate) fn is_met(&self, said: &str) -> bool {
        said.contains(self.instead.strip_prefix(AT_TIMES).unwrap_or(self.instead))
    }

    /// Returns whether the scenario is known to hang.
    pub(crate) fn hangs(&self) -> bool {
        self.instead.starts_with("hangs")
    }

    /// Returns whether the scenario may pass.
    pub(crate) fn is_occasional(&self) -> bool {
        self.instead.starts_with(AT_TIMES)
    }
}

/// The rows for a device on the running kernel.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) scenarios: BTreeMap<&'static str, Deviation>,
    pub(crate) facts: Arc<BTreeSet<&'static str>>,
}

/// Returns whether the table's `all`, `SERIES` or `SERIES before RELEASE` matches this release: `6.12 before 6.12.117`
/// matches 6.12.107+deb13-amd64.
fn names_release(kernel: &str, release: &str) -> bool {
    let numbers =
        |text: &str| -> Vec<u32> { text.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect() };
    let (series, end) = kernel.split_once(" before ").map_or((kernel, None), |(series, end)| (series, Some(end)));
    let release = numbers(release);
    kernel == "all" || release.starts_with(&numbers(series)) && end.is_none_or(|end| release < numbers(end))
}

/// Returns the rows for this device: `provider | kernel | scenario or fact | clause | what comes instead, and why`.
pub(crate) fn known(device: &str, scenarios: &[&str]) -> Known {
    let provider = verbs::devices().ok().and_then(|devices| devices.into_iter().find(|found| found.name() == device));
    let provider = provider.map_or("soft", |found| found.provider_name());
    let release = std::fs::read_to_string(KERNEL).unwrap_or_default();
    let (mut known, mut facts) = (Known::default(), BTreeSet::new());
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let columns: Vec<&str> = line.splitn(5, " | ").map(str::trim).collect();
        let [of, kernel, name, clause, instead] = columns[..] else {
            panic!("deviations.txt: five columns are needed: {line}");
        };
        assert!(of != "soft", "deviations.txt: the software device has none: {line}");
        assert!(!clause.is_empty() && !instead.is_empty(), "deviations.txt: an empty column: {line}");
        let is_fact = !name.contains('/');
        let exists = if is_fact { FACTS.contains(&name) } else { scenarios.contains(&name) };
        assert!(exists, "deviations.txt names {name}, which does not exist");
        if of != provider || !names_release(kernel, &release) {
            continue;
        }
        match is_fact {
            true => assert!(facts.insert(name), "deviations.txt: twice: {line}"),
            false => assert!(known.scenarios.insert(name, Deviation { instead }).is_none(), "deviations.txt: {line}"),
        }
    }
    known.facts = Arc::new(facts);
    known
}
