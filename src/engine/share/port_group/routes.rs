//! The process that a packet belongs to, if it arrived at another one.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::super::mailbox::{Postbox, destination_block, lock};
use super::super::management::{Addressee, RequestRoutes, addressee, is_for_all, request_key};
use super::super::registry::{Member, Name};
use super::{Membership, Route};
use crate::transport::Datagram;

/// A listener that is not known at an address is taken for one that has just begun, once in this time.
const JUST_BEGUN: Duration = Duration::from_secs(10);

/// Most listeners that are remembered as missed: other processes of this user can have any number.
const MOST_MISSED: usize = 256;

/// Most messages per second to all members of the group, one for each: any host can cause them.
const MOST_TO_ALL: usize = 4_096;

/// Destinations of packets for other processes on an address.
pub(super) struct Routes {
    pub(super) address: IpAddr,
    /// `None`: packets cannot be forwarded, so nothing is shared.
    pub(super) postbox: Option<Arc<Postbox>>,
    by_block: RwLock<HashMap<u16, Name>>,
    /// A block of each member, and its process.
    members: RwLock<Vec<(u16, Name)>>,
    /// The messages to all members in the present second, and its begin.
    to_all: Mutex<Option<(Instant, usize)>>,
    /// A packet for another process arrived here: the order of the group may be wrong.
    is_doubtful: AtomicBool,
    /// A packet has requested a check that has not started: further packets need not request one.
    is_check_requested: AtomicBool,
    /// When the last check ended.
    checked_at: Mutex<Option<Instant>>,
    /// When a request was first for a listener that is not known here, by the listener's block.
    missed_at: Mutex<BTreeMap<u16, Instant>>,
    requests: Mutex<RequestRoutes>,
}

impl Routes {
    pub(super) fn new(address: IpAddr, postbox: Option<Arc<Postbox>>) -> Self {
        Self {
            address,
            postbox,
            by_block: RwLock::default(),
            members: RwLock::default(),
            to_all: Mutex::default(),
            is_doubtful: AtomicBool::default(),
            is_check_requested: AtomicBool::default(),
            checked_at: Mutex::default(),
            missed_at: Mutex::default(),
            requests: Mutex::default(),
        }
    }

    /// Notes that a check begins: packets may request another one.
    pub(super) fn note_check(&self) {
        self.is_check_requested.store(false, Ordering::Relaxed);
    }

    /// Returns whether a packet arrived at the wrong socket since the last call.
    pub(super) fn take_doubt(&self) -> bool {
        self.is_doubtful.swap(false, Ordering::Relaxed)
    }

    /// Replaces the members of the group, at the end of a check.
    pub(super) fn replace(&self, members: &[(u8, Member)]) {
        let of = |(_, member): &(u8, Member)| (member.blocks.clone(), member.name);
        let blocks =
            members.iter().map(of).flat_map(|(blocks, name)| blocks.into_iter().map(move |block| (block, name)));
        *self.by_block.write().unwrap_or_else(PoisonError::into_inner) = blocks.collect();
        let first = |(_, member): &(u8, Member)| Some((*member.blocks.first()?, member.name));
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = members.iter().filter_map(first).collect();
        *lock(&self.checked_at) = Some(Instant::now());
    }

    /// Returns whether a listener that is not known here does not listen at this address: a check has ended since one
    /// was missed first, which finds those that have just begun.
    pub(super) fn is_known_elsewhere(&self, block: u16) -> bool {
        let now = Instant::now();
        let mut missed_at = lock(&self.missed_at);
        missed_at.retain(|_, first| now - *first < JUST_BEGUN);
        match missed_at.get(&block) {
            Some(first) => lock(&self.checked_at).is_some_and(|checked| checked > *first),
            None if missed_at.len() < MOST_MISSED => {
                missed_at.insert(block, now);
                false
            }
            None => true,
        }
    }

    /// Returns the members of the group if a message may be sent to all of them now.
    fn all(&self) -> Vec<(u16, Name)> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (now, mut to_all) = (Instant::now(), lock(&self.to_all));
        let (begin, before) = to_all
            .filter(|(begin, _)| now.saturating_duration_since(*begin) < Duration::from_secs(1))
            .unwrap_or((now, 0));
        let count = before + members.len();
        if count > MOST_TO_ALL {
            return Vec::new();
        }
        *to_all = Some((begin, count));
        members
    }

    /// Returns the process that packets for a block are forwarded to.
    fn name_of(&self, block: u16) -> Option<Name> {
        self.by_block.read().unwrap_or_else(PoisonError::into_inner).get(&block).copied()
    }
}

impl Membership {
    /// Routes a packet that arrived at this socket.
    #[inline]
    pub(crate) fn route(&self, datagram: &Datagram<'_>) -> Route {
        match destination_block(datagram.payload) {
            Some(block) if !self.blocks.contains(&block) => self.route_elsewhere(block, datagram),
            _ => Route::Here,
        }
    }

    #[cold]
    fn route_elsewhere(&self, block: u16, datagram: &Datagram<'_>) -> Route {
        if block == 0 {
            return match self.addressee(datagram) {
                Some(addressee) => self.route_management(addressee, datagram),
                None if self.answer_probe(datagram) => Route::Probe,
                None => Route::Here,
            };
        }
        self.route_to(block, datagram)
    }

    /// Returns the shard that a packet to queue pair 1 belongs to.
    fn addressee(&self, datagram: &Datagram<'_>) -> Option<Addressee> {
        let is_known = |block: u16| self.blocks.contains(&block) || self.routes.name_of(block).is_some();
        let found = addressee(datagram.payload, datagram.destination, is_known)?;
        let Some(key) = request_key(datagram.payload) else { return Some(found) };
        let mut requests = lock(&self.routes.requests);
        match requests.get(key).filter(|block| is_known(*block)) {
            Some(block) => Some(Addressee::Listener(block)),
            None => {
                if let Addressee::Listener(block) = found {
                    requests.note(key, block);
                }
                Some(found)
            }
        }
    }

    /// Routes a request that waits here for a listener. [`Route::Lost`] means that a process listens that is not known
    /// here yet.
    pub(crate) fn route_held(&self, datagram: &Datagram<'_>) -> Route {
        match self.addressee(datagram) {
            Some(Addressee::Listener(block)) if !self.blocks.contains(&block) => {
                self.route_management(Addressee::Listener(block), datagram)
            }
            Some(Addressee::Elsewhere(block)) if !self.routes.is_known_elsewhere(block) => {
                self.request_check();
                Route::Lost
            }
            _ => Route::Here,
        }
    }

    /// Routes a packet to queue pair 1. A message that cannot reach its process is dropped, because a response of
    /// another process would end the connection; its sender repeats it.
    fn route_management(&self, addressee: Addressee, datagram: &Datagram<'_>) -> Route {
        match addressee {
            Addressee::Any => Route::Here,
            Addressee::Block(block) | Addressee::Listener(block) | Addressee::Asker(block)
                if self.blocks.contains(&block) =>
            {
                Route::Here
            }
            Addressee::Block(block) => match self.note_misrouted(block) {
                Some(name) => self.forward_management(&name, block, datagram),
                None => self.send_to_all(datagram),
            },
            Addressee::Listener(block) => {
                let name = self.routes.name_of(block);
                name.map_or(Route::Forwarded, |name| self.forward_management(&name, block, datagram))
            }
            Addressee::Asker(block) => {
                let name = self.routes.name_of(block);
                name.map_or(Route::Here, |name| self.forward_management(&name, block, datagram))
            }
            Addressee::Elsewhere(block) if self.routes.is_known_elsewhere(block) => Route::Here,
            Addressee::Elsewhere(_) => {
                self.request_check();
                Route::Forwarded
            }
        }
    }

    /// Sends a message to queue pair 1 whose shard is not known to all others, if it may be for each of them.
    #[cold]
    fn send_to_all(&self, datagram: &Datagram<'_>) -> Route {
        if is_for_all(datagram.payload) {
            for (block, name) in self.routes.all() {
                if !self.blocks.contains(&block) {
                    self.forward_management(&name, block, datagram);
                }
            }
        }
        Route::Here
    }

    /// Requests a check of the group, unless one is requested already.
    fn request_check(&self) {
        let routes = &self.routes;
        if let Some(postbox) = &routes.postbox
            && !routes.is_check_requested.swap(true, Ordering::Relaxed)
        {
            postbox.request_check(routes.address, false);
        }
    }

    /// Notes that a packet arrived at the wrong socket; returns the process of the right one.
    fn note_misrouted(&self, block: u16) -> Option<Name> {
        let name = self.routes.name_of(block);
        if name.is_some() {
            self.routes.is_doubtful.store(true, Ordering::Relaxed);
        }
        self.request_check();
        name
    }

    fn forward_management(&self, name: &Name, block: u16, datagram: &Datagram<'_>) -> Route {
        if let Some(postbox) = &self.routes.postbox {
            postbox.forward_management(name, block, datagram);
        }
        Route::Forwarded
    }

    fn route_to(&self, block: u16, datagram: &Datagram<'_>) -> Route {
        match (&self.routes.postbox, self.note_misrouted(block)) {
            (Some(postbox), Some(name)) if postbox.forward(&name, datagram) => Route::Forwarded,
            (Some(_), Some(_)) => Route::Lost,
            _ => Route::Here,
        }
    }
}
