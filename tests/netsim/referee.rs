//! The referee: watches the packets of one connection and holds both ends to the protocol, independently of what the
//! applications see.
//!
//! It tracks which PSNs were sent, which have arrived undamaged, and which were responded to. This determines the
//! allowed acknowledgements, how often a gap may be reported and how much may be in flight. It uses no information that
//! the hosts lack, so it reports no false violations.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use rdma_verbs::sim::Sighting;
use rdma_verbs::types::{Psn, Time};
use rdma_verbs::wire::{Aeth, GapRun, Headers, NakCode, Opcode, Syndrome};

use super::terms::Terms;
use super::world::Outcome;

const ARRIVED: u8 = 1;
const NEEDS_RESPONSE: u8 = 2;
const HAS_RESPONSE: u8 = 4;
const ENDS_MESSAGE: u8 = 8;
/// Marks the first PSN of a request packet that has an explicit response.
const EXPLICIT_RESPONSE: u8 = 16;

/// After three later packets a gap is reported at once; this allows for packets queued in front of the report.
const GAP_PATIENCE: Duration = Duration::from_millis(10);
const GAP_EVIDENCE: usize = 3;

/// The requests of one end and the responses of the other.
pub(crate) struct Flow {
    first: Psn,
    /// Marks of each PSN sent, counted from the first.
    marks: Vec<u8>,
    /// All PSNs before this one have arrived.
    arrived: usize,
    /// All READs and atomics before this one have their responses.
    responded: usize,
    /// Number of SENDs, WRITEs and atomics that end before `counted`.
    messages: u32,
    counted: usize,
    /// The peer has acknowledged the execution of everything before this one.
    acknowledged: usize,
    reported_gaps: HashSet<usize>,
    later: HashSet<usize>,
    gap_since: Option<Time>,
    /// Whether the responder has lacked a receive.
    pub(crate) has_lacked_receives: bool,
    rnr_naks_of: HashMap<usize, u32>,
    /// Number of sequence error NAKs that reached the requester.
    pub(crate) sequence_naks: u64,
    pub(crate) rnr_naks: u64,
    /// Number of ATOMIC WRITEs and FLUSHes that arrived more than once.
    bare_repeated: u64,
}

/// The referee of one connection.
pub(crate) struct Referee {
    hosts: [usize; 2],
    flows: [Flow; 2],
    is_over: bool,
}

impl Flow {
    fn new(first: Psn) -> Self {
        Self {
            first,
            marks: Vec::new(),
            arrived: 0,
            responded: 0,
            messages: 0,
            counted: 0,
            acknowledged: 0,
            reported_gaps: HashSet::new(),
            later: HashSet::new(),
            gap_since: None,
            has_lacked_receives: false,
            rnr_naks_of: HashMap::new(),
            sequence_naks: 0,
            rnr_naks: 0,
            bare_repeated: 0,
        }
    }

    /// Returns the index of a PSN that was sent; packets of earlier connections have none.
    fn index_of(&self, psn: Psn) -> Option<usize> {
        usize::try_from(psn.distance_from(self.first)).ok().filter(|index| *index < self.marks.len())
    }

    fn request_sent(&mut self, headers: &Headers, terms: &Terms) {
        let covers = covered(headers, terms);
        let index = headers.bth.psn.distance_from(self.first);
        let index = usize::try_from(index).expect("no number before the first");
        assert!(index <= self.marks.len(), "PSNs are skipped: {index} follows {}", self.marks.len());
        let end = index + covers;
        let is_new = self.marks.len() < end;
        if is_new {
            self.marks.resize(end, 0);
        }
        let opcode = headers.bth.opcode;
        if opcode != Opcode::RC_READ_REQUEST && !opcode.is_first() && !opcode.is_middle() {
            self.marks[index] |= ENDS_MESSAGE;
        }
        if is_new && has_explicit_response(opcode) {
            self.marks[index] |= EXPLICIT_RESPONSE;
            let outstanding = self.marks[self.acknowledged.min(index)..]
                .iter()
                .filter(|mark| **mark & EXPLICIT_RESPONSE != 0)
                .count();
            assert!(
                outstanding <= terms.rd_atomic.into(),
                "{outstanding} READs and atomics wait for their responses at {index}"
            );
        }
        let window = (65_536 / terms.mtu.bytes() as usize).clamp(16, 64);
        let is_alone = index <= self.acknowledged;
        let fits = is_alone || end - self.acknowledged <= window || terms.is_native();
        assert!(fits, "more in flight than a standard peer's window: {} to {end}", self.acknowledged);
    }

    fn request_arrived(&mut self, at: Time, headers: &Headers, terms: &Terms) {
        let Some(index) = self.index_of(headers.bth.psn) else { return };
        let opcode = headers.bth.opcode;
        let is_bare = matches!(opcode, Opcode::RC_ATOMIC_WRITE | Opcode::RC_FLUSH);
        self.bare_repeated += u64::from(is_bare && self.marks[index] & ARRIVED != 0);
        let needs = if has_explicit_response(opcode) { NEEDS_RESPONSE } else { 0 };
        let end = (index + covered(headers, terms)).min(self.marks.len());
        self.marks[index..end].iter_mut().for_each(|mark| *mark |= ARRIVED | needs);
        let before = self.arrived;
        while self.marks.get(self.arrived).is_some_and(|mark| mark & ARRIVED != 0) {
            self.arrived += 1;
        }
        if self.arrived != before {
            self.later.clear();
            self.gap_since = None;
        }
        if index > self.arrived {
            self.later.insert(index);
            if self.later.len() >= GAP_EVIDENCE {
                self.gap_since.get_or_insert(at);
            }
        }
    }

    /// Checks that the first gap that persists was reported. The responder may know less of later gaps than the
    /// referee: it keeps a limited number of packets.
    fn check_gap(&self, now: Time, terms: &Terms) {
        let Some(since) = self.gap_since else { return };
        let is_reported = !self.reported_gaps.is_empty();
        let is_judged = terms.is_native() && terms.is_timely() && !self.has_lacked_receives;
        let is_old = now.saturating_since(since) > GAP_PATIENCE;
        assert!(is_reported || !is_judged || !is_old, "the gap at {} was not reported", self.arrived);
    }

    fn response_sent(&mut self, headers: &Headers, gap_runs: &[GapRun], terms: &Terms) {
        let psn = headers.bth.psn;
        let index = self.index_of(psn);
        match (headers.bth.opcode, headers.aeth) {
            (Opcode::RC_ACKNOWLEDGE, Some(Aeth { syndrome: Syndrome::Ack { .. }, msn })) => {
                self.acknowledgement_sent(psn, index, msn);
            }
            (Opcode::RC_ACKNOWLEDGE, Some(Aeth { syndrome: Syndrome::Nak(NakCode::SequenceError), .. })) => {
                let Some(index) = index else { return };
                let is_new = self.reported_gaps.insert(index);
                assert!(is_new || terms.reports_all_gaps(), "the gap at {index} was reported twice");
                // A forged packet may be kept until its PSN is expected.
                if terms.faults.iter().all(|faults| faults.forgery == 0) {
                    self.check_gap_runs(index, gap_runs);
                }
            }
            (Opcode::RC_ACKNOWLEDGE, Some(Aeth { syndrome: Syndrome::ReceiverNotReady { .. }, .. })) => {
                self.has_lacked_receives = true;
            }
            (Opcode::RC_ACKNOWLEDGE, _) => {}
            _ => {
                let Some(index) = index else { return };
                assert!(self.marks[index] & NEEDS_RESPONSE != 0, "a response to {index}, which needs none");
                assert!(index < self.arrived, "{index} has a response, but {} has not arrived", self.arrived);
                self.marks[index] |= HAS_RESPONSE;
            }
        }
    }

    /// Checks that the packets reported as kept have arrived.
    fn check_gap_runs(&self, mut index: usize, gap_runs: &[GapRun]) {
        for run in gap_runs {
            index += usize::from(run.missing);
            let kept = index..index + usize::from(run.kept);
            index = kept.end;
            let has_arrived = |index| self.marks.get(index).is_some_and(|mark| mark & ARRIVED != 0);
            assert!(kept.clone().all(has_arrived), "{kept:?} are reported as kept, but have not arrived");
        }
    }

    fn acknowledgement_sent(&mut self, psn: Psn, index: Option<usize>, msn: u32) {
        let Some(index) = index else {
            assert!(psn.is_before(self.first), "{psn} was acknowledged, but never sent");
            return;
        };
        assert!(index < self.arrived, "{index} was acknowledged, but {} has not arrived", self.arrived);
        while self.responded <= index && self.marks[self.responded] & (NEEDS_RESPONSE | HAS_RESPONSE) != NEEDS_RESPONSE
        {
            self.responded += 1;
        }
        assert!(self.responded > index, "an acknowledgement of {index} passed the response to {}", self.responded);
        while self.counted <= index {
            self.messages += u32::from(self.marks[self.counted] & ENDS_MESSAGE != 0);
            self.counted += 1;
        }
        let is_counted = Psn::new(self.messages).distance_from(Psn::new(msn)) <= 0 || index + 1 < self.counted;
        assert!(is_counted, "the acknowledgement of {index} counts {msn} messages of {}", self.messages);
    }

    /// Counts the NAKs that the requester may give as the reason of its failure.
    fn count_naks(&mut self, headers: &Headers) {
        match headers.aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::ReceiverNotReady { .. }) => self.rnr_naks += 1,
            Some(Syndrome::Nak(NakCode::SequenceError)) => self.sequence_naks += 1,
            _ => {}
        }
    }

    fn response_arrived(&mut self, headers: &Headers, terms: &Terms) {
        let Some(index) = self.index_of(headers.bth.psn) else { return };
        let is_refusal = match headers.aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::ReceiverNotReady { .. }) => {
                let count = self.rnr_naks_of.entry(index).or_default();
                *count += 1;
                // Copies and out-of-order packets are not tries.
                let most = 4 * (u32::from(terms.rnr_retry) + 1) + 20;
                assert!(terms.rnr_retry == 7 || *count <= most, "{count} tries of {index} without a receive");
                true
            }
            Some(Syndrome::Nak(_)) => true,
            _ => false,
        };
        self.acknowledged = self.acknowledged.max(index + usize::from(!is_refusal));
    }
}

impl Referee {
    /// Makes the referee of a connection between two hosts that begin with these PSNs.
    pub(crate) fn new(hosts: [usize; 2], first: [Psn; 2]) -> Self {
        Self { hosts, flows: first.map(Flow::new), is_over: false }
    }

    /// Returns the first PSNs of both ends.
    pub(crate) fn first(&self) -> [Psn; 2] {
        self.flows.each_ref().map(|flow| flow.first)
    }

    /// Returns the client's host.
    pub(crate) fn client(&self) -> usize {
        self.hosts[1]
    }

    /// Returns the flow of the first or second host's requests.
    pub(crate) fn flow(&self, end: usize) -> &Flow {
        &self.flows[end]
    }

    /// Adds its counts to the outcome.
    pub(crate) fn collect(&self, outcome: &mut Outcome) {
        self.flows.iter().for_each(|flow| outcome.count("bare response repeated", flow.bare_repeated));
    }

    /// Stops judging: one end has left the connection.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
    }

    /// Judges a packet that was sent or has arrived.
    pub(crate) fn see(&mut self, sighting: &Sighting, terms: &Terms) {
        let Some(sender) = self.hosts.iter().position(|host| *host == sighting.from) else { return };
        if self.hosts[1 - sender] != sighting.to {
            return;
        }
        let headers = &sighting.headers;
        if sighting.arrived {
            self.flows[1 - sender].count_naks(headers);
        }
        if self.is_over {
            return;
        }
        let fatal = |code| !matches!(code, NakCode::SequenceError);
        if matches!(headers.aeth, Some(Aeth { syndrome: Syndrome::Nak(code), .. }) if fatal(code)) {
            return self.end();
        }
        match (headers.bth.opcode.is_request(), sighting.arrived) {
            (true, false) => self.flows[sender].request_sent(headers, terms),
            (true, true) => self.flows[sender].request_arrived(sighting.at, headers, terms),
            (false, false) => self.flows[1 - sender].response_sent(headers, &sighting.gap_runs, terms),
            (false, true) => self.flows[1 - sender].response_arrived(headers, terms),
        }
        self.flows.iter().for_each(|flow| flow.check_gap(sighting.at, terms));
    }
}

fn has_explicit_response(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::RC_READ_REQUEST
            | Opcode::RC_COMPARE_SWAP
            | Opcode::RC_FETCH_ADD
            | Opcode::RC_ATOMIC_WRITE
            | Opcode::RC_FLUSH
    )
}

/// Returns the number of PSNs that a request packet takes.
fn covered(headers: &Headers, terms: &Terms) -> usize {
    match headers.reth {
        Some(reth) if headers.bth.opcode == Opcode::RC_READ_REQUEST => {
            reth.length.div_ceil(terms.mtu.bytes()).max(1) as usize
        }
        _ => 1,
    }
}
