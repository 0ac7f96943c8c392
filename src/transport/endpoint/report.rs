//! Reports on queue pairs, paths and unmatched packets, for explanations.

use std::collections::HashMap;
use std::net::IpAddr;

use super::Endpoint;
use crate::types::{PathReport, Qpn, QueuePairReport, Time, UnmatchedPackets};

impl Endpoint {
    /// Returns a queue pair's report on itself and its peer, and when its connection began.
    pub fn queue_pair_report(&self, now: Time, qpn: Qpn) -> Option<(QueuePairReport, Time)> {
        let queue_pair = self.find(qpn)?;
        let mut report = queue_pair.report(now);
        report.device = self.counters();
        report.groups = self.groups_of(qpn);
        let since = queue_pair.common.history.connected_at();
        let peer = queue_pair.common.peer_address();
        let others = self.all().filter(|other| other.common.qpn != qpn && peer.is_some());
        let same_host = others.filter(|other| other.common.peer_address() == peer);
        report.packets_elsewhere = same_host
            .flat_map(|other| other.common.history.heard())
            .filter(|packet| packet.at >= since)
            .max_by_key(|packet| packet.at)
            .map(|packet| packet.report(now));
        Some((report, since))
    }

    /// Returns a report on each path in use, sorted by address.
    pub fn path_reports(&self, now: Time) -> Vec<PathReport> {
        let paths = self.all().filter_map(|queue_pair| queue_pair.common.path.as_ref());
        let by_key: HashMap<_, _> = paths.map(|path| (path.key(), path)).collect();
        let mut reports: Vec<PathReport> = by_key.into_values().map(|path| path.report(now)).collect();
        reports.sort_by_key(|report| (report.peer, report.own, report.dscp));
        reports
    }

    /// Returns the packets from `source` since `since` that belong to no queue pair.
    pub fn unmatched_packets(&self, now: Time, source: IpAddr, since: Time) -> Vec<UnmatchedPackets> {
        self.unmatched.report(now, source, since)
    }
}
