//! Hosts that stand for processes of one machine: they access each other's memory directly, and their packets need no
//! check fields while a link carries them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use super::{Host, Network, Random};
use crate::memory::record_ring::{RingReader, RingWriter};
use crate::memory::{GateWatch, Offer, PeerMemory};
use crate::transport::{Medium, WantedKey};
use crate::types::Time;

/// Bytes of a ring. It has the gate; the simulated packets do not go through it.
const RING_BYTES: usize = 1 << 16;
/// Longest time until a host gets a key that it asked for.
const LONGEST_ANSWER: u64 = 2_000_000;

/// The links between hosts of one machine, and the keys on their way.
#[derive(Default)]
pub(super) struct SharedMemory {
    /// By the host that accesses the other one's memory, and that host.
    links: HashMap<(usize, usize), Link>,
    offers: VecDeque<Admitted>,
}

struct Link {
    memory: Arc<PeerMemory>,
    /// That of the memory's owner.
    _watch: GateWatch,
}

/// A key that a host admits.
struct Admitted {
    at: Time,
    asker: usize,
    owner: usize,
    key: WantedKey,
    offer: Offer,
}

impl Link {
    /// Lets processes with the memory of `owner` get grants from it.
    fn new(owner: &Host) -> io::Result<Option<Self>> {
        let Some(exports) = &owner.exports else { return Ok(None) };
        let (writer, file) = RingWriter::create(RING_BYTES)?;
        let reader = RingReader::open(file.as_fd(), RING_BYTES)?;
        let memory = PeerMemory::open(exports.table()?, writer.gate())?;
        Ok(Some(Self { memory, _watch: exports.watch(reader.gate()) }))
    }
}

impl Network {
    /// Links two hosts that were created with [`Host::sharing_memory`] as processes of one machine, unless they are.
    ///
    /// # Panics
    /// If the system has no memory or descriptors for it.
    pub fn share_memory(&mut self, one: usize, other: usize) {
        for (from, owner) in [(one, other), (other, one)] {
            if !self.shared.links.contains_key(&(from, owner)) {
                let link = Link::new(&self.hosts[owner]).expect("memory for a ring");
                link.into_iter().for_each(|link| drop(self.shared.links.insert((from, owner), link)));
            }
        }
    }

    /// Ends the links between two hosts: what they have to say each other goes over the network again.
    pub fn end_shared_memory(&mut self, one: usize, other: usize) {
        for ends in [(one, other), (other, one)] {
            self.shared.links.remove(&ends).iter().for_each(|link| link.memory.end());
        }
    }

    /// Returns the medium of a packet that leaves now.
    pub(super) fn medium(&self, from: usize, to: usize, is_keyed: bool) -> Medium {
        match self.shared.links.contains_key(&(from, to)) {
            true => Medium::SharedMemory { is_keyed },
            false => Medium::Network,
        }
    }

    /// Passes on the keys that hosts want from the ones that they share memory with, and hands out those that have
    /// arrived.
    pub(super) fn exchange_keys(&mut self) {
        for asker in 0..self.hosts.len() {
            while let Some(key) = self.hosts[asker].endpoint.poll_wanted_key() {
                let Some(owner) = self.hosts.iter().position(|host| host.address == key.peer) else { continue };
                if self.shared.links.contains_key(&(asker, owner))
                    && let Some(offer) = self.hosts[owner].offer_access(&key)
                {
                    let at = self.now + answer_time(&mut self.random);
                    self.shared.offers.push_back(Admitted { at, asker, owner, key, offer });
                }
            }
        }
        for _ in 0..self.shared.offers.len() {
            let Some(admitted) = self.shared.offers.pop_front() else { return };
            if admitted.at > self.now {
                self.shared.offers.push_back(admitted);
            } else if let Some(link) = self.shared.links.get(&(admitted.asker, admitted.owner)) {
                let admission = link.memory.accept(&admitted.offer).expect("a sealed file of the region's length");
                let WantedKey { queue_pair, rkey, .. } = admitted.key;
                self.hosts[admitted.asker].endpoint.admit(queue_pair, rkey, admission);
            }
        }
    }
}

fn answer_time(random: &mut Random) -> Duration {
    Duration::from_nanos(random.below(LONGEST_ANSWER))
}

impl Host {
    /// Grants what a peer asked for, if it is to have it.
    fn offer_access(&mut self, key: &WantedKey) -> Option<Offer> {
        let exports = self.exports.as_ref()?;
        let asker = (key.own, key.queue_pair);
        let (grant, accessor, access) = self.endpoint.grant_access(key.destination, asker, exports)?;
        self.memory.offer(key.rkey, accessor, grant, access)
    }

    /// Allows or forbids direct accesses, like a process that begins or ends to capture its packets.
    pub fn allow_direct_access(&mut self, is_allowed: bool) {
        self.endpoint.allow_direct_access(is_allowed);
    }
}
