//! The processes of the world of connections, the events that each end of a connection has had, and which ends belong
//! together.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use rdma_verbs::cm::{ConnectionHandle, DisconnectCause, Manager, ResolutionHandle};
use rdma_verbs::types::{PeerCapabilities, PeerKey, Qpn, Time};
use rdma_verbs::wire::mad::{Attribute, Mad};

use super::connections::Act;

pub(super) const PROCESSES: usize = 5;
pub(super) const HOSTS: usize = 3;
const FIRST_PORT: u16 = 5_000;
/// Bounds of the time wait.
const TIME_WAIT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));

/// A process of the simulation.
pub(super) struct Process {
    /// `None` while it is dead.
    pub(super) manager: Option<Manager>,
    pub(super) generation: u64,
    pub(super) block: u32,
    pub(super) ends: Ends,
    pub(super) next_qpn: u32,
    /// Ports whose listeners began after the first requests for them.
    pub(super) late_ports: BTreeSet<u16>,
    /// Requests for datagram queue pairs, each with the number in its private data.
    pub(super) resolutions: BTreeMap<ResolutionHandle, u64>,
    /// Requests for datagram queue pairs that the application has seen.
    pub(super) inquiries: BTreeSet<(IpAddr, u32)>,
}

pub(super) fn address(host: usize) -> IpAddr {
    [192, 0, 2, host as u8 + 1].into()
}

pub(super) fn guid(host: usize) -> u64 {
    0x5054_00ff_fe00_0000 + host as u64
}

pub(super) fn host_of(process: usize) -> usize {
    process % HOSTS
}

/// The capabilities of the active end of an attempt, if it is native.
pub(super) fn offered(attempt: u64) -> Option<PeerCapabilities> {
    (!attempt.is_multiple_of(4)).then_some(PeerCapabilities::STANDARD.version(1))
}

/// The capabilities of the passive end of an attempt, if it is native.
pub(super) fn confirmed(attempt: u64) -> Option<PeerCapabilities> {
    (!attempt.is_multiple_of(3)).then_some(PeerCapabilities::STANDARD.version(1))
}

pub(super) fn port_of(process: usize) -> u16 {
    FIRST_PORT + process as u16
}

impl Process {
    pub(super) fn dead() -> Self {
        Self {
            manager: None,
            generation: 0,
            block: 0,
            ends: Ends::default(),
            late_ports: BTreeSet::new(),
            next_qpn: 0,
            resolutions: BTreeMap::new(),
            inquiries: BTreeSet::new(),
        }
    }

    /// Returns whether a listener that began late takes a request.
    pub(super) fn listens(&self, request: &Mad) -> bool {
        let port = u16::from_be_bytes([request.data[14], request.data[15]]);
        request.attribute == Attribute::CONNECT_REQUEST && self.late_ports.contains(&port)
    }

    /// Draws a number that no process of this host has; other hosts have the same.
    pub(super) fn draw_qpn(&mut self, process: usize) -> Qpn {
        self.next_qpn += 1;
        Qpn::new(((process / HOSTS) as u32 + 1) << 16 | self.next_qpn)
    }
}

/// A process, its generation, and a connection of it.
pub(super) type Place = (usize, u64, ConnectionHandle);

/// One end of a connection, as its application knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) attempt: u64,
    pub(super) is_active: bool,
    /// It has had the event that ends it.
    pub(super) is_over: bool,
    has_reply: bool,
    is_accepted: bool,
    is_established: bool,
    has_exit: bool,
    /// When it had the event that ends it.
    over_at: Time,
    /// The peer has confirmed its DREQ, so that the time wait began with the event.
    is_confirmed: bool,
    /// The application has rejected it: no event follows.
    is_rejected: bool,
}

/// The ends of a process. Each event must be legal after the ones before it.
#[derive(Default)]
pub(super) struct Ends(BTreeMap<ConnectionHandle, End>);

impl Ends {
    pub(super) fn begin(&mut self, connection: ConnectionHandle, attempt: u64, is_active: bool) {
        let end = End {
            attempt,
            is_active,
            is_over: false,
            has_reply: false,
            is_accepted: false,
            is_established: false,
            has_exit: false,
            over_at: Time::ZERO,
            is_confirmed: false,
            is_rejected: false,
        };
        assert!(self.0.insert(connection, end).is_none(), "{connection:?} twice");
    }

    pub(super) fn get(&self, connection: ConnectionHandle) -> Option<End> {
        self.0.get(&connection).copied()
    }

    pub(super) fn handles(&self) -> impl Iterator<Item = ConnectionHandle> {
        self.0.keys().copied()
    }

    /// Notes an action of the application.
    pub(super) fn note_act(&mut self, now: Time, connection: ConnectionHandle, act: Act, is_ok: bool) {
        let end = self.0.get_mut(&connection).expect("an end");
        match act {
            Act::Destroy => {
                let is_resting = now.saturating_since(end.over_at) <= TIME_WAIT.1;
                assert!(!end.is_confirmed || end.has_exit || is_resting, "the time wait does not end: {end:?}");
                self.0.remove(&connection);
            }
            Act::Accept if is_ok => end.is_accepted = true,
            Act::Ready if is_ok => end.is_established = true,
            Act::Reject if is_ok => end.is_rejected = true,
            // An action fails only if the connection has ended, or an action of the same kind has preceded it.
            Act::Accept | Act::Ready | Act::Reject => assert!(end.is_over || end.is_rejected, "{act:?} of {end:?}"),
            Act::Disconnect => assert!(is_ok || !end.is_over, "{act:?} of {end:?}"),
            Act::Take | Act::Packet => {}
        }
    }

    /// Returns the end of an event, which must not have ended.
    fn of_event(&mut self, connection: ConnectionHandle) -> &mut End {
        let end =
            self.0.get_mut(&connection).unwrap_or_else(|| panic!("an event of {connection:?}, which is destroyed"));
        assert!(!end.is_over && !end.is_rejected && !end.has_exit, "an event after the end: {end:?}");
        end
    }

    pub(super) fn note_reply(&mut self, connection: ConnectionHandle) {
        let end = self.of_event(connection);
        assert!(end.is_active && !end.has_reply, "a reply: {end:?}");
        end.has_reply = true;
    }

    pub(super) fn note_established(&mut self, connection: ConnectionHandle) {
        let end = self.of_event(connection);
        assert!(end.is_accepted && !end.is_established, "established: {end:?}");
        end.is_established = true;
    }

    /// Notes the event that ends a connection. Returns the attempt.
    pub(super) fn note_end(&mut self, now: Time, connection: ConnectionHandle) -> u64 {
        let end = self.of_event(connection);
        end.is_over = true;
        end.over_at = now;
        end.attempt
    }

    pub(super) fn note_disconnected(&mut self, connection: ConnectionHandle, cause: DisconnectCause) {
        if let Some(end) = self.0.get_mut(&connection) {
            end.is_confirmed = cause == DisconnectCause::Confirmed;
        }
    }

    pub(super) fn note_exit(&mut self, now: Time, connection: ConnectionHandle) {
        let end = self.0.get_mut(&connection).expect("an end");
        assert!(end.is_over && !end.has_exit, "the time wait ends: {end:?}");
        assert!(now.saturating_since(end.over_at) >= TIME_WAIT.0, "the time wait ends at once: {end:?}");
        end.has_exit = true;
    }
}

/// The two ends of each attempt, by what only the simulation knows.
#[derive(Default)]
pub(super) struct Judgement {
    active: BTreeMap<u64, Place>,
    /// A passive process that dies may be followed by another one that gets the same request.
    passive: BTreeMap<u64, Vec<Place>>,
    requests: BTreeSet<(usize, u64, u64, u32)>,
    dead: BTreeSet<(usize, u64)>,
    /// The keys of the passive ends, by the shares of their REQs. A REQ that arrives at a dead process and at the one
    /// that takes its place has two.
    keys: BTreeMap<u64, Vec<PeerKey>>,
}

impl Judgement {
    /// All REQs of an attempt offer the same share, or none.
    pub(super) fn note_offer(&mut self, attempt: u64, key: Option<PeerKey>) {
        assert_eq!(key.is_some(), offered(attempt).is_some(), "attempt {attempt}");
        let keys = self.keys.entry(attempt).or_default();
        assert!(keys.iter().zip(key).all(|(one, other)| one.remote == other.remote), "attempt {attempt}");
        keys.extend(key);
    }

    /// The active end has the key of a passive one, if both are native.
    pub(super) fn judge_key(&self, attempt: u64, key: Option<PeerKey>) {
        let is_native = offered(attempt).is_some() && confirmed(attempt).is_some();
        assert_eq!(key.is_some(), is_native, "attempt {attempt}");
        let passive = self.keys.get(&attempt).into_iter().flatten();
        let is_shared =
            |key: PeerKey| passive.clone().any(|other| (other.local, other.remote) == (key.remote, key.local));
        assert!(key.is_none_or(is_shared), "attempt {attempt}");
    }

    pub(super) fn note_end(&mut self, attempt: u64, place: Place, is_active: bool) {
        match is_active {
            true => drop(self.active.insert(attempt, place)),
            false => self.passive.entry(attempt).or_default().push(place),
        }
    }

    /// An application gets the event of a request once.
    pub(super) fn note_request(&mut self, process: usize, generation: u64, guid: u64, id: u32) {
        assert!(self.requests.insert((process, generation, guid, id)), "the request {id:#x} of {guid:#x} twice");
    }

    pub(super) fn note_crash(&mut self, process: usize, generation: u64) {
        self.dead.insert((process, generation));
    }

    /// Returns the other end of an attempt, the latest if there were several.
    pub(super) fn other(&self, attempt: u64, is_active: bool) -> Option<Place> {
        match is_active {
            true => self.passive.get(&attempt)?.last().copied(),
            false => self.active.get(&attempt).copied(),
        }
    }

    /// Returns the other end of an attempt of which a process has one, if its process lives.
    pub(super) fn living_other(&self, attempt: u64, process: usize, generation: u64) -> Option<Place> {
        let active = self.active.get(&attempt).copied()?;
        let is_active = (active.0, active.1) == (process, generation);
        let passive = self.passive.get(&attempt).map_or(&[][..], Vec::as_slice);
        // A connection of a process with itself, or with several passive ends, is not judged.
        if passive.len() != 1 || passive[0].0 == active.0 {
            return None;
        }
        let other = if is_active { passive[0] } else { active };
        (!self.dead.contains(&(other.0, other.1))).then_some(other)
    }

    /// Returns whether the process of the other end of an attempt is dead.
    pub(super) fn has_lost_peer(&self, attempt: u64, place: Place) -> bool {
        let is_dead = |other: &Place| self.dead.contains(&(other.0, other.1));
        match self.active.get(&attempt) == Some(&place) {
            true => self.passive.get(&attempt).is_some_and(|places| places.iter().any(is_dead)),
            false => self.active.get(&attempt).is_some_and(is_dead),
        }
    }
}
