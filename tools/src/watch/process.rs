//! A watched process: its last two snapshots, or why there are none.

use rdma_verbs::monitor::Snapshot;

use super::format;
use super::rates::Change;
use crate::common::printable;

#[derive(Clone, Debug, Default)]
pub(crate) struct Watched {
    pub(crate) process: u32,
    /// Its name, without characters that control terminals.
    pub(crate) name: String,
    /// The last snapshot, and the last one before that with other values.
    now: Option<Snapshot>,
    before: Option<Snapshot>,
    /// Why there are no newer values.
    pub(crate) problem: Option<String>,
}

impl Watched {
    pub(crate) fn new(process: u32, name: &str) -> Self {
        Self { process, name: printable(name), ..Self::default() }
    }

    /// Takes a newer snapshot. One with the same time has only aged, so the rates stay.
    pub(crate) fn update(&mut self, snapshot: Snapshot) {
        self.problem = None;
        match &mut self.now {
            Some(now) if now.taken_at == snapshot.taken_at => *now = snapshot,
            now => self.before = now.replace(snapshot),
        }
    }

    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.now.as_ref()
    }

    /// Returns what has changed, if there are values.
    pub(crate) fn change(&self) -> Option<(&Snapshot, Change<'_>)> {
        let now = self.now.as_ref()?;
        Some((now, Change::new(self.before.as_ref(), now)))
    }

    /// Returns whether its values are old.
    pub(crate) fn is_overdue(&self) -> bool {
        self.now.as_ref().is_some_and(Snapshot::is_overdue)
    }

    /// Returns what is wrong with the process or its values, or an empty text.
    pub(crate) fn status(&self) -> String {
        match (&self.problem, &self.now) {
            (Some(problem), _) => printable(problem),
            (None, None) => "waits for its first values".to_owned(),
            (None, Some(now)) if now.is_overdue() => {
                format!("stopped: values of {} ago", format::time(Some(now.age)))
            }
            (None, Some(_)) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::watch::tests::{queue_pair, snapshot};

    #[test]
    fn values_that_only_age_keep_their_rates() {
        let mut watched = Watched::new(7, "a\u{1b}b");
        assert_eq!((watched.name.as_str(), watched.status().as_str()), ("a\u{fffd}b", "waits for its first values"));
        let [first, second] =
            [(0, 10), (1_000_000_000, 30)].map(|(at, sends)| snapshot(at, vec![queue_pair(1, sends, 0)]));
        watched.update(first);
        watched.update(second.clone());
        let sends = |watched: &Watched| watched.change().and_then(|(_, change)| change.process().sends);
        assert_eq!((sends(&watched), watched.status().as_str()), (Some(20.0), ""));
        let mut old = second;
        old.age = Duration::from_secs(12);
        watched.update(old);
        assert_eq!(sends(&watched), Some(20.0));
        assert_eq!((watched.status().as_str(), watched.is_overdue()), ("stopped: values of 12 s ago", true));
    }
}
