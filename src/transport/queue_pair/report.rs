//! A queue pair's report on itself and its peer, for explanations.

use super::QueuePair;
use crate::types::{QueuePairReport, Time};

impl QueuePair {
    pub(in crate::transport) fn report(&self, now: Time) -> QueuePairReport {
        let first = self.common.attributes.sq_psn.unwrap_or_default();
        let mut report = self.common.history.report(now, self.status(), &self.common.counters);
        report.was_acknowledged = self.requester.unacknowledged() != first;
        report.was_requested = self.responder.executed() > 0;
        report.last_try = self.requester.last_ack_request_at().map(|at| now.saturating_since(at));
        report.unfinished = self.requester.unfinished();
        report.oldest = self.requester.oldest_operation();
        report.packets_in_flight = self.requester.packets_in_flight();
        report.waits_for_receiver = self.requester.waits_for_receiver();
        report.path = self.common.path.as_ref().map(|path| path.report(now));
        report.receives = self.responder.available_receives();
        report
    }
}
