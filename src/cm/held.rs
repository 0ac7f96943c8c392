//! Requests for ports without a listener. They wait for one for a short time.
//!
//! Programs agree on a port over another channel and request a connection before their peer listens: perftest with
//! `-R` binds its second port when its client already connects, and qperf with `-cm 1` sends its port before it
//! listens. On Linux the resolution of addresses and routes takes longer than that; here it takes no time. The
//! specification allows a late response: a REQ states how long its sender waits for one (IBTA 12.6.5, local CM response
//! timeout).
//!
//! A REQ that waits is not a connection: it has no communication id and no event. A listener takes it as if it arrived
//! when the listener begins. A listener of another process is the owner's business, which searches for it at each of
//! the times that [`Manager::next_deadline`] includes.

use std::net::IpAddr;
use std::time::Duration;

use super::manager::Manager;
use super::request_check::Refusal;
use super::route::Arrival;
use crate::types::Time;
use crate::wire::mad::{
    Attribute, CommunicationId, ConnectRequest, FlowLabel, MAD_BYTES, Mad, Message, Reject, RejectReason, ServiceId,
};

/// How long a REQ waits for a listener. The listeners of perftest begin up to 4.1 ms after the request; those of qperf
/// up to 132 ms, if the processors have eight times as much to do as they can. It is less than the time until this
/// crate's first repetition of a REQ, which is 300 ms.
const HOLD: Duration = Duration::from_millis(250);
/// The time to the first search for a listener of another process. Each further one comes after the time that the
/// request has waited so far, and this: a listener has the request after at most twice its own delay.
const FIRST_SEARCH: Duration = Duration::from_millis(1);

/// A REQ that waits for a listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldRequest {
    /// Address of the sender.
    pub source: IpAddr,
    /// The own address at which it arrived.
    pub destination: IpAddr,
    /// Traffic class or type of service.
    pub traffic_class: u8,
    flow_label: FlowLabel,
    /// The datagram.
    pub bytes: Box<[u8; MAD_BYTES]>,
    /// The GUID and the number that distinguish it from other requests.
    key: (u64, CommunicationId),
    service_id: ServiceId,
    since: Time,
    next_search: Time,
}

impl HeldRequest {
    /// Returns whether it has waited long enough.
    pub fn is_over(&self, now: Time) -> bool {
        now >= self.since + HOLD
    }

    fn arrival(&self) -> Arrival<'_> {
        Arrival {
            source: self.source,
            destination: self.destination,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            bytes: &self.bytes[..],
        }
    }

    /// Sets the time of the next search: the last one is at the end.
    fn plan_search(&mut self, now: Time) {
        let waited = now.saturating_since(self.since);
        self.next_search = (now + waited + FIRST_SEARCH).min(self.since + HOLD);
    }
}

/// All requests that wait for a listener: few, so that a search through all of them takes no time.
#[derive(Default)]
pub(super) struct HeldRequests(Vec<HeldRequest>);

impl HeldRequests {
    /// Returns the time of the earliest search.
    pub(super) fn next_search(&self) -> Option<Time> {
        self.0.iter().map(|held| held.next_search).min()
    }

    /// Makes the requests for a service due, because a listener begins.
    pub(super) fn hasten(&mut self, service_id: ServiceId) {
        let of_service = self.0.iter_mut().filter(|held| held.service_id == service_id);
        of_service.for_each(|held| held.next_search = Time::ZERO);
    }

    /// Forgets the request that its sender gives up. It has the sender's GUID and number (IBTA 12.6.7.2, "timeout").
    pub(super) fn forget(&mut self, reject: &Reject) {
        if reject.reason == RejectReason::TIMEOUT
            && let Some(guid) = reject.information.as_bytes().first_chunk()
        {
            let key = (u64::from_be_bytes(*guid), reject.local_id);
            self.0.retain(|held| held.key != key);
        }
    }
}

impl Manager {
    /// Keeps a REQ for a port without a listener. Returns false if the request is to be refused at once: its service
    /// has no port, or too many wait. A repetition of a request that waits changes nothing.
    pub(super) fn hold(&mut self, now: Time, arrival: &Arrival<'_>, request: &ConnectRequest) -> bool {
        let key = (request.local_guid, request.local_id);
        if self.held.0.iter().any(|held| held.key == key) {
            self.note_duplicate(Attribute::CONNECT_REQUEST);
            return true;
        }
        let Ok(bytes) = arrival.bytes.try_into() else { return false };
        if request.service_id.port().is_none() || self.held.0.len() >= self.limits.held {
            return false;
        }
        let Arrival { source, destination, traffic_class, flow_label, .. } = *arrival;
        let (bytes, service_id) = (Box::new(bytes), request.service_id);
        let mut held = HeldRequest {
            source,
            destination,
            traffic_class,
            flow_label,
            bytes,
            key,
            service_id,
            since: now,
            next_search: now,
        };
        held.plan_search(now);
        self.held.0.push(held);
        true
    }

    /// Takes a request that waits for a listener, and for which a search is due. The owner passes it to the process
    /// that listens, if there is one by now, else to [`Manager::return_held`].
    pub fn poll_held(&mut self, now: Time) -> Option<HeldRequest> {
        let due = self.held.0.iter().position(|held| held.next_search <= now)?;
        Some(self.held.0.swap_remove(due))
    }

    /// Takes back a request for which no other process listens. A listener of this manager gets it; without one, it
    /// waits until its time is over, and is then rejected.
    pub fn return_held(&mut self, now: Time, mut held: HeldRequest) {
        if !self.has_listener(held.service_id) && !held.is_over(now) {
            held.plan_search(now);
            return self.held.0.push(held);
        }
        self.end_hold(&held, |manager, transaction, request| match manager.has_listener(request.service_id) {
            true => manager.handle_request(now, &held.arrival(), transaction, request),
            false => manager.respond_no_listener(&held.arrival(), transaction, request),
        });
    }

    /// Rejects all requests that wait for a listener: this process takes none any more.
    pub fn refuse_held(&mut self) {
        for held in std::mem::take(&mut self.held.0) {
            self.end_hold(&held, |manager, transaction, request| {
                manager.respond_no_listener(&held.arrival(), transaction, request);
            });
        }
    }

    fn end_hold(&mut self, held: &HeldRequest, end: impl FnOnce(&mut Self, u64, &ConnectRequest)) {
        let Ok(mad) = Mad::read(&held.bytes[..]) else { return };
        if let Ok(Message::ConnectRequest(request)) = Message::read(&mad) {
            end(self, mad.transaction_id, &request);
        }
    }

    fn respond_no_listener(&mut self, arrival: &Arrival<'_>, transaction: u64, request: &ConnectRequest) {
        self.respond_refusal(arrival, transaction, request, Refusal::new(RejectReason::INVALID_SERVICE_ID));
    }
}
