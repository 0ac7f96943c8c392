//! Request packets that a native peer misses while READs are in progress.
//!
//! A READ takes as many numbers as it has response packets, and its request packet has the first of them. Of the peer's
//! report, therefore, only the numbers at which a request packet begins count. The packets listed here count as in
//! flight: a READ whose request is missing keeps its part of the window until its responses have arrived.

use super::missing::{Missing, MissingPackets, Range, Repetition};
use super::plan::SendReason;
use super::{Common, RequestPlan, Requester};
use crate::transport::congestion::CongestionKind;
use crate::types::{Counter, DropReason, Psn, Time};
use crate::wire::GapRuns;

/// Number of consecutive reports without news at which they stop being signs of life. A packet that is lost as often,
/// at 10 % loss once in 100,000,000 times, consumes retries; one that the path never carries must not keep the
/// connection alive forever.
const MOST_REPORTS_WITHOUT_NEWS: u32 = 8;

/// The missing request packets, and how the peer's reports progress.
#[derive(Default, Debug)]
pub(super) struct MissingRequests {
    missing: MissingPackets,
    /// The latest report with news: the first missing number, and how many packets the peer keeps behind it.
    first: Psn,
    kept: u32,
    /// Reports since the last one with news.
    reports: u32,
}

impl MissingRequests {
    pub(super) fn missing(&self) -> &MissingPackets {
        &self.missing
    }

    /// Notes a report. Returns whether it is a sign of life.
    fn note_report(&mut self, first: Psn, kept: u32) -> bool {
        let is_news = first != self.first || kept > self.kept;
        self.reports = if is_news { 0 } else { self.reports.saturating_add(1) };
        if is_news {
            (self.first, self.kept) = (first, kept);
        }
        self.reports < MOST_REPORTS_WITHOUT_NEWS
    }

    /// Forgets the missing packets, because all are retransmitted. A report that was news before is not news again.
    pub(super) fn forget(&mut self) {
        self.missing = MissingPackets::default();
    }

    /// Declares packets lost: those that may have been late, and those that were sent again and are overdue.
    pub(super) fn give_up(&mut self, is_overdue: impl Fn(Repetition) -> bool) {
        self.missing.judge(|range| range.missing.still(true, &is_overdue));
    }

    /// Removes everything before this number, which was executed. Returns whether the latest report is still relevant.
    fn remove_before(&mut self, psn: Psn) -> bool {
        self.missing.remove_before(psn);
        !self.first.is_before(psn) || self.missing.first().is_some()
    }
}

impl Requester {
    /// Takes a report: the peer has executed everything before `psn`, misses that packet, and names the later ones that
    /// it keeps.
    #[cold]
    pub(super) fn take_missing_requests(
        &mut self,
        common: &mut Common,
        now: Time,
        psn: Psn,
        runs: GapRuns<'_>,
    ) -> Result<(), DropReason> {
        if runs.packets() > self.limit.packets_since(psn) {
            return Err(DropReason::BadPsn);
        }
        common.count(Counter::ReceivedSequenceNak);
        if self.waits_for_receiver() {
            return Ok(());
        }
        // Responses to packets behind a missing one wait for it, and measure no round trip.
        self.round_trip.forget_sample();
        self.delays = None;
        let known = self.repair.get_or_insert_default().requests.take();
        let mut requests = known.unwrap_or_default();
        let lost_before = requests.missing.lost();
        requests.missing = self.missing_after(&requests.missing, now, psn, runs);
        let kept = runs.iter().map(|run| u32::from(run.kept)).sum();
        let is_sign_of_life = requests.note_report(psn, kept);
        let loses = requests.missing.lost() > lost_before;
        self.repair.get_or_insert_default().requests = Some(requests);
        if loses {
            common.log_retransmission(now, psn, "gaps", self.recovery.spent().0);
            self.report_congestion(common, now, CongestionKind::Loss);
        }
        if is_sign_of_life {
            self.note_sign_of_life(common, now);
        }
        self.arm_repair(now);
        Ok(())
    }

    /// Returns the request packets that a report names as missing, with their known states.
    fn missing_after(&self, known: &MissingPackets, now: Time, psn: Psn, runs: GapRuns<'_>) -> MissingPackets {
        let detection = self.loss_detection(now);
        let end = psn.plus(runs.packets());
        let is_lost_again = |repetition| detection.is_lost_again(repetition, end);
        let mut missing = MissingPackets::default();
        let mut known = known.iter().peekable();
        let mut kept_behind: u32 = runs.iter().map(|run| u32::from(run.kept)).sum();
        let mut begin = psn;
        let mut packets = self.request_packets_from(psn).peekable();
        for run in runs.iter() {
            let kept = begin.plus(u32::from(run.missing));
            while let Some((first, packets)) = packets.next_if(|(first, _)| first.is_before(kept)) {
                while known.next_if(|range| !first.is_before(range.end())).is_some() {}
                let before = known.peek().filter(|range| range.contains(first)).map(|range| range.missing);
                let is_lost = kept_behind >= detection.packet_threshold;
                let still = before.unwrap_or(Missing::Late).still(is_lost, is_lost_again);
                missing.push_apart(Range { first, packets, missing: still });
            }
            begin = kept.plus(u32::from(run.kept));
            kept_behind -= u32::from(run.kept);
            while packets.next_if(|(first, _)| first.is_before(begin)).is_some() {}
        }
        missing
    }

    /// Returns the first numbers of the request packets that were sent, from this one on, and how many numbers each
    /// takes.
    fn request_packets_from(&self, psn: Psn) -> impl Iterator<Item = (Psn, u32)> + '_ {
        let later = self.in_progress().skip_while(move |(_, request)| !psn.is_before(request.end()));
        let packets = later.flat_map(move |(_, request)| {
            let step = if request.is_read { request.chunk.max(1) } else { 1 };
            let from = psn.packets_since(request.first).div_ceil(step);
            (from..request.packets.div_ceil(step)).map(move |index| {
                let offset = index * step;
                (request.first.plus(offset), step.min(request.packets - offset))
            })
        });
        packets.take_while(|(first, _)| first.is_before(self.cursor))
    }

    /// Removes everything before this number, which was executed. A response of a READ shows that its whole request
    /// packet was executed.
    pub(super) fn trim_missing_requests(&mut self, psn: Psn) {
        if self.repair.as_ref().is_none_or(|repair| repair.requests.is_none()) {
            return;
        }
        let executed = self.end_of_request_packet(psn.minus(1)).unwrap_or(psn);
        if let Some(repair) = &mut self.repair {
            repair.requests.take_if(|requests| !requests.remove_before(executed));
        }
    }

    /// Returns the number after the last one of the request packet that this number belongs to.
    pub(super) fn end_of_request_packet(&self, psn: Psn) -> Option<Psn> {
        let request = self.request(self.request_with(psn)?);
        let offset = psn.packets_since(request.first);
        Some(if request.is_read { request.first.plus(request.end_of_chunk(offset)) } else { psn.plus(1) })
    }

    /// Plans the first request packet that the peer misses.
    #[cold]
    pub(super) fn plan_missing_request(&self, common: &Common) -> Option<RequestPlan> {
        let lost = self.repair.as_ref()?.requests.as_ref()?.missing.first_lost()?;
        let index = self.request_with(lost.first)?;
        self.plan_again(common, index, lost.first, SendReason::Request)
    }

    /// Notes that the packet of [`Requester::plan_missing_request`] has left.
    pub(super) fn note_request_sent_again(&mut self, plan: &RequestPlan, now: Time) {
        let repetition = self.repetition(now);
        self.reordering.confirm_event();
        if let Some(requests) = self.repair.as_mut().and_then(|repair| repair.requests.as_mut()) {
            requests.missing.note_sent_again(plan.covers, repetition);
        }
        self.arm_repair(now);
    }
}
