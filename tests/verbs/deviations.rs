//! Where a device is known to differ from the standard: the table `deviations.txt`, and what it means for a scenario.
//!
//! A row is about a scenario, which then fails with this text, or it is a fact, which the scenarios ask for where it
//! matters: they check that it is so, and everything around it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rdma_verbs::verbs;

const TABLE: &str = include_str!("deviations.txt");
const KERNEL: &str = "/proc/sys/kernel/osrelease";
/// Begins the last column where the scenario may pass, too.
const AT_TIMES: &str = "at times: ";

/// A way in which a device may differ, whatever the scenario.
pub(crate) struct Fact(pub(crate) &'static str);

macro_rules! facts {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal;)*) => {
        $($(#[doc = $doc])* pub(crate) const $name: Fact = Fact($text);)*

        /// The facts that scenarios ask for.
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
    /// QP_LAST_WQE_REACHED comes more than once.
    LAST_EVENT_AGAIN = "event of the last receive repeated";
    /// SQ_DRAINED comes whether it was asked for or not.
    DRAINED_UNASKED = "event of draining unasked";
    /// The send queue counts as drained while a request waits for a receive of the peer.
    WAITING_IS_DRAINED = "requests that wait for a receive do not drain";
    /// What was posted in SQD begins with the next post after RTS.
    RTS_BEGINS_NOTHING = "return from drained begins nothing";
    /// A refused WRITE with immediate data fails the receive with the refusal's status, not with a local access error.
    TAKEN_IS_REFUSED = "receives of refused WRITEs have the refusal's status";
    /// LOC_QP_OP_ERR where LOC_LEN_ERR is due, at the sender REM_OP_ERR where REM_INV_REQ_ERR is.
    LENGTH_STATUS = "status of receives that are too short";
    /// LOC_QP_OP_ERR where LOC_PROT_ERR is due, at receives.
    RECEIVE_STATUS = "status of receives without memory";
    /// LOC_QP_OP_ERR where LOC_PROT_ERR is due, at send requests.
    SEND_STATUS = "status of requests without memory";
    /// The request that fails at its own end is flushed as those behind it are, and as those before that are not
    /// acknowledged.
    FAILED_IS_FLUSHED = "failed requests are flushed";
    /// No SQE: a local error of UC and UD leads to ERR.
    NO_SEND_QUEUE_ERROR = "no send queue error state";
    /// The high bit of a request's Q_Key does not stand for the queue pair's own.
    QKEY_TAKEN_LITERALLY = "high bit of the Q_Key means nothing";
    /// Datagrams that do not fit end the queue pair, where they are to be dropped.
    SHORT_DATAGRAMS_FAIL = "datagrams that do not fit end the receiver";
    /// Datagrams that do not fit fail a receive of the shared queue, where they are to be dropped.
    SHORT_SHARED_FAILS = "datagrams that do not fit fail shared receives";
    /// Receives that are posted in ERR are flushed with the next state change only.
    LATE_FLUSH = "receives posted in error are not flushed";
    /// Flushed receives wake nobody who waits for solicited completions.
    FLUSH_UNSOLICITED = "flushed receives are not solicited";
    /// Queue pairs go on when their completion queue has overflowed.
    OVERFLOW_IGNORED = "overflow leaves queue pairs alone";
    /// max_rd_atomic and max_dest_rd_atomic become powers of two.
    RD_ATOMIC_ROUNDED = "numbers of READs rounded up";
    /// The receive of a SEND with invalidate does not say which key is dead.
    INVALIDATED_UNTOLD = "invalidated key not told";
    /// The bounds of windows do not count, those of their region do.
    WINDOW_BOUNDS = "bounds of windows unchecked";
    /// A receive of a shared queue that a message has begun to fill is lost with its queue pair's end.
    BEGUN_IS_LOST = "begun receives are not flushed";
    /// Receives of a shared queue are looked up in the queue pair's domain.
    SHARED_DOMAIN_IGNORED = "domain of shared receive queues ignored";
    /// Completions of queue pairs that are gone or were reset stay, if the receives were shared.
    NOTHING_PURGED = "shared receives are not purged";
    /// The header of looped datagrams has no checksum.
    HEADER_CHECKSUM = "header without checksum";
    /// The way's hop limit is the system's.
    HOP_LIMIT_OF_ROUTE = "hop limit of the route";
    /// Arming below the limit raises nothing before the next receive is taken.
    LIMIT_LATE = "limit is looked at by receives only";
}

impl Fact {
    /// Whether it is so on this device; the scenario then differs from the standard by it.
    pub(crate) fn holds(&self) -> bool {
        SCENARIO.with_borrow_mut(|scenario| {
            let known = scenario.facts.contains(self.0);
            if known {
                scenario.met.insert(self.0);
            }
            known
        })
    }

    /// What must come: what the standard says, or what comes instead.
    pub(crate) fn or<T>(&self, instead: T, standard: T) -> T {
        if self.holds() { instead } else { standard }
    }
}

/// What is known about the device, and which of it this thread's scenario has met.
#[derive(Default)]
struct OfScenario {
    facts: Arc<BTreeSet<&'static str>>,
    met: BTreeSet<&'static str>,
    is_deviating: bool,
}

thread_local! {
    static SCENARIO: RefCell<OfScenario> = RefCell::default();
}

/// The scenario of this thread begins; whether it is known to fail.
pub(crate) fn begin(facts: Arc<BTreeSet<&'static str>>, is_deviating: bool) {
    SCENARIO.set(OfScenario { facts, met: BTreeSet::new(), is_deviating });
}

/// The facts that the scenario of this thread has met.
pub(crate) fn met() -> BTreeSet<&'static str> {
    SCENARIO.with_borrow_mut(|scenario| std::mem::take(&mut scenario.met))
}

/// Whether the scenario of this thread is known to fail.
pub(crate) fn is_deviating() -> bool {
    SCENARIO.with_borrow(|scenario| scenario.is_deviating)
}

/// A row about a scenario.
pub(crate) struct Deviation {
    /// Part of what the scenario says when it fails.
    instead: &'static str,
}

impl Deviation {
    /// Whether the scenario failed as the row says.
    pub(crate) fn is_met(&self, said: &str) -> bool {
        said.contains(self.instead.strip_prefix(AT_TIMES).unwrap_or(self.instead))
    }

    /// Whether the scenario does not end.
    pub(crate) fn hangs(&self) -> bool {
        self.instead.starts_with("hangs")
    }

    /// Whether the scenario may pass.
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

/// Whether the table's `all`, `SERIES` or `SERIES before RELEASE` names this release: `6.12 before 6.12.117` names
/// 6.12.107+deb13-amd64.
fn names_release(kernel: &str, release: &str) -> bool {
    let numbers =
        |text: &str| -> Vec<u32> { text.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect() };
    let (series, end) = kernel.split_once(" before ").map_or((kernel, None), |(series, end)| (series, Some(end)));
    let release = numbers(release);
    kernel == "all" || release.starts_with(&numbers(series)) && end.is_none_or(|end| release < numbers(end))
}

/// The rows for this device: `provider | kernel | scenario or fact | clause | what comes instead, and why`.
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
