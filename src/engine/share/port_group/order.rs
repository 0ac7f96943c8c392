//! The order in which the kernel keeps a group's sockets: known from the changes, or determined with probes.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::super::registry::{AddressFile, Change, Header, Member, Nonce};
use super::super::steering::{probe_destination, probed_index};
use super::{Group, Membership};
use crate::sys::receive;
use crate::transport::{Datagram, Medium};

/// Time for members to answer a round of probes.
const ANSWER_TIME: Duration = Duration::from_millis(30);
/// Longest time for the answer of a new member's own socket.
const OWN_ANSWER_TIME: Duration = Duration::from_millis(5);
const ANSWER_PAUSE: Duration = Duration::from_micros(100);
/// Rounds before the order is guessed.
const ROUNDS: usize = 8;
/// Packets taken between two checks of the time.
const MOST_TAKEN: usize = 64;
pub(super) const PROBE_BYTES: usize = 40;
const PROBE_MAGIC: [u8; 8] = *b"RDMVPROB";

impl Group {
    /// Attaches the program for the group's present members, after determining their order unless it is known.
    pub(super) fn arrange(
        &self,
        file: &AddressFile,
        _change: &Change<'_>,
        members: &[(u8, Member)],
        joined: Option<&Membership>,
    ) {
        let mut header = file.header();
        let is_there = |slot: &u8| members.iter().any(|(present, _)| present == slot);
        // The previous member in the new one's slot was killed, and no process has noticed yet.
        let is_replaced = joined.is_some_and(|joined| header.order.contains(&joined.slot));
        let was_settled = header.is_settled && !is_replaced && header.order.iter().all(is_there);
        let is_doubtful = self.routes.take_doubt();
        let is_whole =
            |order: &[u8]| order.len() == members.len() && members.iter().all(|(slot, _)| order.contains(slot));
        let is_known = joined.is_none() && was_settled && !is_doubtful && is_whole(&header.order);
        if is_known && self.answers_fit(file, &header) {
            return self.steer(&header.order, members);
        }
        if let Some(joined) = joined.filter(|_| was_settled) {
            header.order.push(joined.slot);
            if is_whole(&header.order) && (members.len() == 1 || self.is_last(file, &mut header, members, joined)) {
                return self.publish(file, header, members);
            }
        }
        header.is_settled = false;
        if !is_whole(&header.order) {
            header.order = members.iter().map(|(slot, _)| *slot).collect();
        }
        header.order = self.probe_order(file, &mut header, members, joined);
        self.publish(file, header, members);
    }

    fn publish(&self, file: &AddressFile, mut header: Header, members: &[(u8, Member)]) {
        header.is_settled = true;
        self.steer(&header.order, members);
        if let Err(error) = file.write_header(&header) {
            tracing::warn!(
                target: "rdma_verbs::processes", local = %self.address.ip, %error, "the registry cannot be written"
            );
        }
    }

    /// Returns whether the local members' answers to the latest probes fit the order: a member that was stopped during
    /// the probes may have got a wrong index.
    fn answers_fit(&self, file: &AddressFile, header: &Header) -> bool {
        self.members.iter().all(|member| {
            let answered = file.answer(member.slot, &header.nonce);
            answered.is_none_or(|index| header.order.get(usize::from(index)) == Some(&member.slot))
        })
    }

    /// Returns whether the new member's socket is the last one, as it must be if the order was known.
    fn is_last(&self, file: &AddressFile, header: &mut Header, members: &[(u8, Member)], joined: &Membership) -> bool {
        let index = header.order.len() - 1;
        self.steer(&header.order, members);
        let Ok(prober) = self.begin_probing(file, header) else { return false };
        if self.probe(&prober, index as u16, &header.nonce).is_err() {
            return false;
        }
        let end = Instant::now() + OWN_ANSWER_TIME;
        while Instant::now() < end {
            self.take_probes(joined);
            if let Some(answered) = file.answer(joined.slot, &header.nonce) {
                return usize::from(answered) == index;
            }
            std::thread::sleep(ANSWER_PAUSE);
        }
        false
    }

    /// Determines the order. Members that do not answer are assumed to keep their order from the header.
    fn probe_order(
        &self,
        file: &AddressFile,
        header: &mut Header,
        members: &[(u8, Member)],
        joined: Option<&Membership>,
    ) -> Vec<u8> {
        let mut found: Vec<Option<u8>> = vec![None; members.len()];
        if members.len() > 1 {
            // Any order works: a probe goes to the socket whose index it carries.
            self.steer(&header.order, members);
            for _ in 0..ROUNDS {
                match self.probe_round(file, header, members, joined) {
                    Ok(answers) => {
                        found = answers;
                        break;
                    }
                    // A socket belongs to no live process: its process is about to close it.
                    Err(()) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        }
        fill_gaps(&found, &header.order)
    }

    /// Sends one probe to each index. Returns the members that answered, by index; an error if the answers contradict
    /// each other.
    fn probe_round(
        &self,
        file: &AddressFile,
        header: &mut Header,
        members: &[(u8, Member)],
        joined: Option<&Membership>,
    ) -> Result<Vec<Option<u8>>, ()> {
        let prober = self.begin_probing(file, header).map_err(drop)?;
        for index in 0..members.len() {
            self.probe(&prober, index as u16, &header.nonce).map_err(drop)?;
        }
        let end = Instant::now() + ANSWER_TIME;
        loop {
            joined.iter().for_each(|joined| self.take_probes(joined));
            let answers: Vec<(u8, Option<u16>)> =
                members.iter().map(|(slot, _)| (*slot, file.answer(*slot, &header.nonce))).collect();
            if answers.iter().all(|(_, answer)| answer.is_some()) || Instant::now() >= end {
                let mut order = vec![None; members.len()];
                for (slot, index) in answers.into_iter().filter_map(|(slot, index)| Some((slot, index?))) {
                    let found = order.get_mut(usize::from(index)).ok_or(())?;
                    if found.replace(slot).is_some() {
                        return Err(());
                    }
                }
                return Ok(order);
            }
            std::thread::sleep(ANSWER_PAUSE);
        }
    }

    /// Opens a socket to send probes from, and writes a new nonce for them to the file.
    fn begin_probing(&self, file: &AddressFile, header: &mut Header) -> io::Result<UdpSocket> {
        getrandom::fill(&mut header.nonce).map_err(io::Error::other)?;
        file.write_header(&Header { is_settled: false, ..header.clone() })?;
        UdpSocket::bind(self.address.socket_address(self.address.ip, 0))
    }

    fn probe(&self, prober: &UdpSocket, index: u16, nonce: &Nonce) -> io::Result<()> {
        prober.send_to(&probe_packet(index, nonce), self.receive_address()?).map(drop)
    }

    fn receive_address(&self) -> io::Result<SocketAddr> {
        let member = self.members.first().ok_or(io::ErrorKind::NotFound)?;
        member.socket.local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Receives for a socket that no shard has yet, and answers probes. Other packets that the kernel delivers to it
    /// are lost, except that those for other processes are forwarded if they fit the buffer.
    fn take_probes(&self, joined: &Membership) {
        let mut buffer = [0; 256];
        for _ in 0..MOST_TAKEN {
            let Ok(Some(received)) = receive(joined.descriptor(), &mut buffer) else { return };
            if received.truncated {
                continue;
            }
            let datagram = Datagram {
                source: received.source.ip(),
                destination: self.address.ip,
                source_port: received.source.port(),
                segment_index: 0,
                hop_limit: None,
                traffic_class: None,
                payload: &buffer[..received.length],
                medium: Medium::Network,
            };
            joined.route(&datagram);
        }
    }
}

/// Assigns the remaining indices to the members that did not answer, in their previous order.
pub(super) fn fill_gaps(found: &[Option<u8>], before: &[u8]) -> Vec<u8> {
    let mut silent = before.iter().copied().filter(|slot| !found.contains(&Some(*slot)));
    found.iter().filter_map(|slot| slot.or_else(|| silent.next())).collect()
}

fn probe_packet(index: u16, nonce: &Nonce) -> [u8; PROBE_BYTES] {
    let mut packet = [0; PROBE_BYTES];
    packet[4..8].copy_from_slice(&probe_destination(index).to_be_bytes());
    packet[12..20].copy_from_slice(&PROBE_MAGIC);
    packet[20..36].copy_from_slice(nonce);
    packet
}

/// Returns the index that a probe was steered to, and its nonce.
pub(super) fn parse_probe(packet: &[u8]) -> Option<(u16, Nonce)> {
    let packet: &[u8; PROBE_BYTES] = packet.try_into().ok()?;
    let index = probed_index(u32::from_be_bytes(packet[4..8].try_into().ok()?))?;
    let nonce = packet[20..36].try_into().ok()?;
    (packet[12..20] == PROBE_MAGIC).then_some((index, nonce))
}
