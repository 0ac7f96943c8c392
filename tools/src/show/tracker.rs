//! From datagrams to requests: finds the flow of each packet, and the flow in the other direction, which carries its
//! responses.
//!
//! A packet names only the queue pair that it goes to. Which one it comes from is known from the messages of the
//! connection manager, from the discovery of native peers, or otherwise from the first response with a sequence number
//! that only one flow expects.

use std::collections::HashMap;
use std::net::IpAddr;

use rdma_verbs::types::{Psn, Qpn};
use rdma_verbs::wire::mad::{CommunicationId, Discovery, Mad, Message};
use rdma_verbs::wire::{BTH_BYTES, Headers, ICRC_BYTES, Opcode, Packet, Service, header_bytes};

use super::flow::{Arrival, Flow, FlowKey};
use super::frame::Datagram;
use super::request::Request;
use super::source::Direction;

/// Flows that are followed; the packets of further ones are counted.
pub(super) const MOST_FLOWS: usize = 16_384;
/// Requests of all flows that wait for a response.
const MOST_WAITING: usize = 32_768;
/// Announced pairs of queue pairs, and connection requests, that are remembered.
const MOST_ANNOUNCED: usize = 16_384;
/// Lines that are kept for a request if packets are shown.
const PACKET_LINES: usize = 32;
/// Failed attempts to find a partner, after which only one response in as many is tried.
const MOST_PAIRINGS: u32 = 64;
/// Comparisons of responses with flows that may be made in any capture, and for each of its packets: many queue pairs
/// between two hosts must not make the time grow with their square.
const FREE_COMPARISONS: u64 = 1 << 22;
const COMPARISONS_OF_PACKET: u64 = 64;
/// Management datagrams whose repetitions are recognized.
const MOST_RECENT: usize = 64;
/// Numbers that a packet may stand for: those of a READ's response.
const LARGEST_STEP: i32 = 1 << 16;
const MANAGEMENT_QPN: Qpn = Qpn::new(1);
/// The longest UDP payload.
const LONGEST_PAYLOAD: usize = 1 << 16;

/// Something to show.
pub(super) enum Item {
    /// A request has ended.
    Request(usize, Box<Request>),
    Management(Management),
}

/// A management datagram: a message of the connection manager, mostly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Management {
    pub(super) time: u64,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) text: String,
    /// The same message was seen before, in the same direction.
    pub(super) is_again: bool,
    /// It rejects or refuses something, or a comment says that it was dropped.
    pub(super) is_problem: bool,
}

/// Packets that are not part of a request that is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    pub(super) roce: u64,
    pub(super) malformed: u64,
    pub(super) cut: u64,
    /// Of flows beyond the bound.
    pub(super) unfollowed: u64,
    pub(super) unmatched_responses: u64,
}

#[derive(Default)]
pub(super) struct Tracker {
    flows: Vec<Flow>,
    index: HashMap<FlowKey, usize>,
    /// Flows without a partner, by their addresses and service.
    single: HashMap<(IpAddr, IpAddr, u8), Vec<usize>>,
    /// Partners that messages have announced.
    announced: HashMap<FlowKey, FlowKey>,
    /// Queue pairs of connection requests.
    requested: HashMap<(IpAddr, IpAddr, CommunicationId), Qpn>,
    recent: Vec<(u64, Direction)>,
    keeps_packets: bool,
    waiting: usize,
    connections: u32,
    /// Comparisons to find partners so far.
    compared: u64,
    pub(super) counts: Counts,
    scratch: Vec<u8>,
    ended: Vec<Request>,
    pub(super) items: Vec<Item>,
}

impl Tracker {
    pub(super) fn new(keeps_packets: bool) -> Self {
        Self { keeps_packets, ..Self::default() }
    }

    pub(super) fn flow(&self, index: usize) -> &Flow {
        &self.flows[index]
    }

    pub(super) fn flows(&self) -> impl Iterator<Item = (usize, &Flow)> {
        self.flows.iter().enumerate()
    }

    /// The number of the connection of a flow, whether the flow is its second direction, and whether it is new.
    pub(super) fn connection(&mut self, index: usize) -> (u32, bool, bool) {
        if let Some((number, is_back)) = self.flows[index].shown {
            return (number, is_back, false);
        }
        self.connections += 1;
        let number = self.connections;
        self.flows[index].shown = Some((number, false));
        if let Some(partner) = self.flows[index].partner.filter(|partner| *partner != index) {
            self.flows[partner].shown.get_or_insert((number, true));
        }
        (number, false, true)
    }

    /// Takes a datagram. Requests that end by it are added to [`Tracker::items`].
    pub(super) fn take(&mut self, time: u64, direction: Direction, datagram: &Datagram<'_>, comment: Option<&str>) {
        self.counts.roce += 1;
        let opcode = datagram.captured.first().copied().map_or(Opcode(0xff), Opcode);
        if datagram.captured.len() < datagram.length {
            // Parsing needs all bytes; only the headers are used.
            if !opcode.is_known() || datagram.captured.len() < header_bytes(opcode) {
                self.counts.cut += 1;
                return;
            }
            let mut whole = std::mem::take(&mut self.scratch);
            whole.clear();
            whole.extend_from_slice(datagram.captured);
            whole.resize(datagram.length.min(LONGEST_PAYLOAD), 0);
            self.packets(time, direction, datagram, &whole, comment);
            self.scratch = whole;
            return;
        }
        self.packets(time, direction, datagram, datagram.captured, comment);
    }

    /// Takes the packets of a datagram: one, or several if the system has not divided a send into its segments yet.
    fn packets(
        &mut self,
        time: u64,
        direction: Direction,
        datagram: &Datagram<'_>,
        payload: &[u8],
        comment: Option<&str>,
    ) {
        let size = if datagram.is_divided { payload.len().max(1) } else { segment_size(payload) };
        for segment in payload.chunks(size) {
            match Packet::parse(segment) {
                Ok(packet) => {
                    let arrival = Arrival {
                        time,
                        direction,
                        headers: &packet.headers,
                        bytes: packet.payload.len() as u32,
                        comment,
                        lines: if self.keeps_packets { PACKET_LINES } else { 0 },
                    };
                    let is_whole = datagram.captured.len() == datagram.length;
                    self.packet((datagram.source, datagram.destination), &arrival, is_whole.then_some(packet.payload));
                }
                Err(_) => self.counts.malformed += 1,
            }
        }
    }

    fn packet(&mut self, (source, destination): (IpAddr, IpAddr), arrival: &Arrival<'_>, payload: Option<&[u8]>) {
        let Headers { bth, deth, .. } = arrival.headers;
        let opcode = bth.opcode;
        let source_qpn = deth.map_or(Qpn::default(), |deth| deth.source);
        let mut key =
            FlowKey { source, destination, destination_qpn: bth.destination, source_qpn, service: opcode.0 & 0xe0 };
        if bth.destination == MANAGEMENT_QPN && deth.is_some() {
            self.management((source, destination), arrival, payload);
            return;
        }
        if opcode == Opcode::CNP {
            key.service = Service::ReliableConnection as u8;
            if let Some(index) = self.index.get(&key) {
                self.flows[*index].totals.congestion_notifications += 1;
            }
            return;
        }
        let Some(index) = self.flow_of(key) else {
            self.counts.unfollowed += 1;
            return;
        };
        if opcode.is_response() {
            self.response(index, arrival);
            return;
        }
        self.change(index, |flow, ended| flow.request(arrival, ended));
    }

    /// Changes a flow, and collects the requests that end by that.
    fn change(&mut self, index: usize, change: impl FnOnce(&mut Flow, &mut Vec<Request>)) {
        let flow = &mut self.flows[index];
        let before = flow.waiting.len();
        change(flow, &mut self.ended);
        if self.waiting + flow.waiting.len() > MOST_WAITING + before {
            flow.forget(&mut self.ended);
        }
        self.waiting = self.waiting + flow.waiting.len() - before;
        self.items.extend(self.ended.drain(..).map(|request| Item::Request(index, Box::new(request))));
    }

    fn flow_of(&mut self, key: FlowKey) -> Option<usize> {
        if let Some(index) = self.index.get(&key) {
            return Some(*index);
        }
        if self.flows.len() == MOST_FLOWS {
            return None;
        }
        let index = self.flows.len();
        self.flows.push(Flow::new(key));
        self.index.insert(key, index);
        let partner = self.announced.get(&key).and_then(|partner| self.index.get(partner)).copied();
        match partner.filter(|partner| self.flows[*partner].partner.is_none()) {
            Some(partner) => self.pair(index, partner),
            None => self.single.entry((key.source, key.destination, key.service)).or_default().push(index),
        }
        Some(index)
    }

    fn pair(&mut self, one: usize, other: usize) {
        for (index, partner) in [(one, other), (other, one)] {
            self.flows[index].partner = Some(partner);
            let key = self.flows[index].key;
            if let Some(single) = self.single.get_mut(&(key.source, key.destination, key.service)) {
                single.retain(|flow| *flow != index);
            }
        }
        let shown = [one, other].map(|index| self.flows[index].shown);
        match shown {
            [Some((number, is_back)), None] => self.flows[other].shown = Some((number, !is_back)),
            [None, Some((number, is_back))] => self.flows[one].shown = Some((number, !is_back)),
            _ => {}
        }
    }

    fn response(&mut self, index: usize, arrival: &Arrival<'_>) {
        let partner = self.flows[index].partner.or_else(|| self.find_partner(index, arrival));
        match partner {
            Some(partner) => self.change(partner, |flow, ended| flow.response(arrival, ended)),
            None => self.counts.unmatched_responses += 1,
        }
    }

    /// Finds the flow whose requests a response belongs to: the only one that expects its number, or the only one of
    /// them that has just sent it.
    fn find_partner(&mut self, index: usize, arrival: &Arrival<'_>) -> Option<usize> {
        let flow = &mut self.flows[index];
        if flow.failed_pairings >= MOST_PAIRINGS && !flow.failed_pairings.is_multiple_of(MOST_PAIRINGS) {
            flow.failed_pairings = flow.failed_pairings.wrapping_add(1).max(MOST_PAIRINGS);
            return None;
        }
        let (key, psn) = (flow.key, arrival.headers.bth.psn);
        let candidates = self.single.get(&(key.destination, key.source, key.service)).map_or(&[][..], Vec::as_slice);
        let compared = self.compared + candidates.len() as u64;
        if compared > FREE_COMPARISONS + COMPARISONS_OF_PACKET * self.counts.roce {
            return None;
        }
        self.compared = compared;
        let expecting: Vec<usize> =
            candidates.iter().copied().filter(|candidate| self.flows[*candidate].expects(psn)).collect();
        let found = only(&expecting, |_| true)
            .or_else(|| only(&expecting, |candidate| *candidate != index))
            .or_else(|| only(&expecting, |candidate| self.flows[*candidate].sent_last(psn)));
        match found {
            Some(partner) => self.pair(index, partner),
            None => self.flows[index].failed_pairings += 1,
        }
        found
    }

    /// Ends all requests.
    pub(super) fn finish(&mut self) {
        for index in 0..self.flows.len() {
            self.change(index, |flow, ended| flow.finish(ended));
        }
    }
}

/// The only one that fits.
fn only(indices: &[usize], fits: impl Fn(&usize) -> bool) -> Option<usize> {
    let mut fitting = indices.iter().filter(|index| fits(index));
    fitting.next().filter(|_| fitting.next().is_none()).copied()
}

/// Management datagrams.
impl Tracker {
    fn management(&mut self, addresses: (IpAddr, IpAddr), arrival: &Arrival<'_>, payload: Option<&[u8]>) {
        let (source, destination) = addresses;
        let mad = payload.map(Mad::read);
        if let Some(Ok(mad)) = &mad {
            self.learn(addresses, mad);
        }
        let comment = arrival.comment;
        let text = match mad {
            Some(Ok(mad)) => mad.to_string(),
            Some(Err(error)) => error.to_string(),
            None => comment.map_or("management datagram, not captured whole", |text| text).to_owned(),
        };
        let dropped = comment.filter(|comment| comment.contains("dropped: "));
        let text = dropped.map_or(text.clone(), |comment| {
            let reason = comment.split("; ").find(|part| part.starts_with("dropped: ")).unwrap_or(comment);
            format!("{text} ({reason})")
        });
        let (is_again, is_copy) = self.remember(addresses, &text, payload.unwrap_or_default(), arrival.direction);
        if is_copy {
            return;
        }
        let is_problem = dropped.is_some() || is_again || text.contains("rejected") || text.contains("refused");
        let item = Management { time: arrival.time, source, destination, text, is_again, is_problem };
        self.items.push(Item::Management(item));
    }

    /// Returns whether the datagram was seen before in this direction, and whether it was seen in another one.
    fn remember(
        &mut self,
        addresses: (IpAddr, IpAddr),
        text: &str,
        payload: &[u8],
        direction: Direction,
    ) -> (bool, bool) {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        (addresses, text, payload).hash(&mut hasher);
        let hash = hasher.finish();
        let is_again = self.recent.contains(&(hash, direction));
        let is_copy = direction == Direction::Inbound && self.recent.contains(&(hash, Direction::Outbound));
        if !is_again {
            if self.recent.len() == MOST_RECENT {
                self.recent.remove(0);
            }
            self.recent.push((hash, direction));
        }
        (is_again, is_copy)
    }

    /// Learns which queue pairs belong together.
    fn learn(&mut self, (source, destination): (IpAddr, IpAddr), mad: &Mad) {
        if let Some(discovery) = Discovery::read(mad) {
            self.announce((source, discovery.sender), (destination, discovery.receiver));
            return;
        }
        match Message::read(mad) {
            Ok(Message::ConnectRequest(request)) if self.requested.len() < MOST_ANNOUNCED => {
                self.requested.insert((source, destination, request.local_id), request.local_qpn);
            }
            Ok(Message::ConnectReply(reply)) => {
                if let Some(qpn) = self.requested.get(&(destination, source, reply.remote_id)) {
                    self.announce((destination, *qpn), (source, reply.local_qpn));
                }
            }
            Ok(Message::DisconnectReply(reply)) => {
                self.requested.remove(&(source, destination, reply.local_id));
                self.requested.remove(&(destination, source, reply.remote_id));
            }
            _ => {}
        }
    }

    /// Two queue pairs are connected: flows that exist are joined, others when they begin.
    fn announce(&mut self, one: (IpAddr, Qpn), other: (IpAddr, Qpn)) {
        for service in [Service::ReliableConnection, Service::ExtendedReliableConnection] {
            let key = |from: (IpAddr, Qpn), to: (IpAddr, Qpn)| FlowKey {
                source: from.0,
                destination: to.0,
                destination_qpn: to.1,
                source_qpn: Qpn::default(),
                service: service as u8,
            };
            let (there, back) = (key(one, other), key(other, one));
            if self.announced.len() < MOST_ANNOUNCED {
                self.announced.insert(there, back);
                self.announced.insert(back, there);
            }
            if let (Some(there), Some(back)) = (self.index.get(&there).copied(), self.index.get(&back).copied())
                && self.flows[there].partner.is_none()
                && self.flows[back].partner.is_none()
            {
                self.pair(there, back);
            }
        }
    }
}

/// Bytes of each packet in a payload, except for the last one. On a loopback or a virtual interface, captures contain
/// sends that the system has not divided into their packets.
fn segment_size(payload: &[u8]) -> usize {
    const SMALLEST_PACKET: usize = BTH_BYTES + ICRC_BYTES;
    const LARGEST_PACKET: usize = 4_096 + 64 + ICRC_BYTES;
    let whole = payload.len().max(1);
    let number = |packet: &[u8]| Psn::new(u32::from_be_bytes([0, packet[9], packet[10], packet[11]]));
    // The same queue pair, and a later number.
    let continues = |before: &[u8], packet: &[u8]| {
        packet.len() >= BTH_BYTES
            && packet[2..8] == before[2..8]
            && (1..=LARGEST_STEP).contains(&number(packet).distance_from(number(before)))
            && Opcode(packet[0]).is_known()
    };
    let is_divided = |size: &usize| {
        let second = payload.get(*size..).is_some_and(|rest| continues(payload, rest));
        let mut pairs = payload.chunks(*size).zip(payload.chunks(*size).skip(1));
        second && pairs.all(|(before, packet)| continues(before, packet))
    };
    let last = LARGEST_PACKET.min(payload.len().saturating_sub(SMALLEST_PACKET));
    (SMALLEST_PACKET..=last).step_by(4).find(is_divided).unwrap_or(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_that_are_not_divided_yet_are_divided() {
        let packet = |psn: u8| {
            let mut packet = vec![0x07, 0x40, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, psn];
            packet.resize(12 + 1_024 + 4, 0xaa);
            packet
        };
        let payload: Vec<u8> = (0..8).flat_map(packet).collect();
        assert_eq!(segment_size(&payload), 1_040);
        assert_eq!(segment_size(&payload[..1_040]), 1_040);
        assert_eq!(segment_size(&payload[..2_080]), 1_040);
        assert_eq!(segment_size(&[0; 9_000]), 9_000);
        assert_eq!(segment_size(&[]), 1);
    }

    /// Each response may belong to each of many requests: the comparisons grow with the packets, not with their square.
    #[test]
    fn time_has_a_bound() {
        const FLOWS: u32 = 4_000;
        let mut tracker = Tracker::new(false);
        let [here, there] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        for number in 0..4 * FLOWS {
            let is_request = number < FLOWS;
            let mut packet = vec![if is_request { 0x04 } else { 0x11 }, 0x40, 0xff, 0xff];
            packet.extend((number + 2).to_be_bytes());
            packet.extend([0x80, 0, 0, 5, 0x1f, 0, 0, 1, 0, 0, 0, 0]);
            let (source, destination) = if is_request { (here, there) } else { (there, here) };
            let (length, direction) = (packet.len(), Direction::Unknown);
            let datagram = Datagram { source, destination, captured: &packet, length, direction, is_divided: true };
            tracker.take(u64::from(number), direction, &datagram, None);
        }
        assert!(tracker.counts.unmatched_responses > 0 && tracker.compared > 0);
        assert!(tracker.compared <= FREE_COMPARISONS + COMPARISONS_OF_PACKET * tracker.counts.roce);
        // Without the bound, each of the responses is compared with all requests.
        assert!(tracker.compared < u64::from(FLOWS) * u64::from(3 * FLOWS) / 4);
    }
}
