//! Requests of peers for datagram queue pairs: SIDR_REQ, and the SIDR_REP to it (IBTA 12.11).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::connection::Kept;
use super::error::CallError;
use super::event::Event;
use super::handle::{InquiryHandle, ListenerHandle, Owner};
use super::listener::Room;
use super::manager::Manager;
use super::parameters::DatagramQueuePair;
use super::route::{Arrival, Route};
use crate::types::Time;
use crate::wire::mad::{
    Attribute, CommunicationId, Message, PrivateData, ServiceId, ServiceIdReply, ServiceIdRequest, ServiceIdStatus,
};

/// A request that its sender has not repeated for this long, and that the application has not answered, is dropped.
const UNANSWERED: Duration = Duration::from_secs(60);
/// How long a response is repeated in response to the repetition of its request. Linux keeps no response, so it asks
/// the application again.
const ANSWERED: Duration = Duration::from_secs(60);

/// A request of a peer.
pub(super) struct Inquiry {
    /// The address of the sender and its number of the request. Linux compares the number alone, so that requests of
    /// two hosts with one number collide.
    key: (IpAddr, CommunicationId),
    listener: ListenerHandle,
    service_id: ServiceId,
    route: Route,
    transaction_id: u64,
    /// The response and its time, once there is one.
    answer: Option<(Time, Kept)>,
}

/// All requests of peers.
#[derive(Default)]
pub(super) struct Inquiries {
    all: BTreeMap<InquiryHandle, Inquiry>,
    by_key: BTreeMap<(IpAddr, CommunicationId), InquiryHandle>,
    /// Requests with a response, in the order of the responses.
    answered: BTreeSet<(Time, InquiryHandle)>,
}

impl Inquiries {
    fn remove(&mut self, handle: InquiryHandle) -> Option<Inquiry> {
        let inquiry = self.all.remove(&handle)?;
        self.by_key.remove(&inquiry.key);
        if let Some((time, _)) = &inquiry.answer {
            self.answered.remove(&(*time, handle));
        }
        Some(inquiry)
    }
}

impl Manager {
    /// Handles a SIDR_REQ (`cm.c`, `cm_sidr_req_handler`).
    pub(super) fn handle_inquiry(
        &mut self,
        now: Time,
        arrival: &Arrival<'_>,
        transaction: u64,
        request: &ServiceIdRequest,
    ) {
        let key = (arrival.source, request.request_id);
        if let Some(handle) = self.inquiries.by_key.get(&key).copied() {
            return self.repeat_answer(now, handle);
        }
        let checked = match self.check_inquiry(arrival, request) {
            Ok(checked) => checked,
            Err(status) => {
                self.counters.refused += 1;
                let reply = refusal_of(request.request_id, request.service_id, status);
                return self.respond(Route::back(arrival), &Message::from(reply).to_mad(transaction));
            }
        };
        if !self.make_room_for_inquiry() {
            return self.counters.drops.connections_full += 1;
        }
        let Some(listener) = self.listeners.get_mut(checked.listener) else { return };
        if listener.room(now) != Room::Free {
            return self.counters.drops.backlog_full += 1;
        }
        let handle = self.draw_inquiry_handle();
        if let Some(listener) = self.listeners.get_mut(checked.listener) {
            listener.waiting_inquiries.insert(handle);
        }
        let (listener, service_id, route) = (checked.listener, request.service_id, Route::back(arrival));
        let inquiry = Inquiry { key, listener, service_id, route, transaction_id: transaction, answer: None };
        self.inquiries.all.insert(handle, inquiry);
        self.inquiries.by_key.insert(key, handle);
        self.deadlines.set(Owner::Inquiry(handle), Some(now + UNANSWERED));
        let (header, private_data, request) = (checked.header, checked.private_data, Box::new(*request));
        self.events.push(Event::Inquiry { inquiry: handle, listener, header, private_data, request });
    }

    /// Handles a repeated SIDR_REQ: the response goes out again, if there is one.
    fn repeat_answer(&mut self, now: Time, handle: InquiryHandle) {
        self.note_duplicate(Attribute::SERVICE_ID_REQUEST);
        let Some(inquiry) = self.inquiries.all.get(&handle) else { return };
        match inquiry.answer.clone() {
            Some((_, answer)) => {
                let route = inquiry.route;
                self.deadlines.set(Owner::Inquiry(handle), Some(now + ANSWERED));
                self.send_again(route, &answer);
            }
            None => self.deadlines.set(Owner::Inquiry(handle), Some(now + UNANSWERED)),
        }
    }

    /// Makes room for one more request, if need be by forgetting the oldest response. Returns false if there is none.
    fn make_room_for_inquiry(&mut self) -> bool {
        if self.inquiries.all.len() < self.limits.inquiries {
            return true;
        }
        let oldest = self.inquiries.answered.first().map(|(_, handle)| *handle);
        oldest.is_some_and(|handle| {
            self.expire_inquiry(handle);
            true
        })
    }

    /// Notes that the application has read the event [`Event::Inquiry`]: the request no longer counts for the
    /// listener's backlog.
    pub fn take_inquiry(&mut self, handle: InquiryHandle) -> Result<(), CallError> {
        let listener = self.asked("take_inquiry", handle)?.listener;
        self.forget_waiting_inquiry(listener, handle);
        Ok(())
    }

    /// Responds to a request with a datagram queue pair.
    pub fn answer(&mut self, now: Time, handle: InquiryHandle, answer: &DatagramQueuePair) -> Result<(), CallError> {
        let inquiry = self.asked("answer", handle)?;
        let reply = ServiceIdReply {
            request_id: inquiry.key.1,
            status: DatagramQueuePair::STATUS,
            vendor_options: answer.vendor_options,
            qpn: answer.qpn,
            service_id: inquiry.service_id,
            qkey: answer.qkey,
            private_data: answer.private_data,
            ..Default::default()
        };
        self.send_answer(now, handle, reply);
        Ok(())
    }

    /// Refuses a request.
    pub fn refuse_inquiry(
        &mut self,
        now: Time,
        handle: InquiryHandle,
        status: ServiceIdStatus,
        private_data: PrivateData<136>,
    ) -> Result<(), CallError> {
        let inquiry = self.asked("refuse_inquiry", handle)?;
        let reply = ServiceIdReply { private_data, ..refusal_of(inquiry.key.1, inquiry.service_id, status) };
        self.send_answer(now, handle, reply);
        Ok(())
    }

    /// Returns the request of a call, unless it has a response.
    fn asked(&self, call: &'static str, handle: InquiryHandle) -> Result<&Inquiry, CallError> {
        let found = self.inquiries.all.get(&handle).filter(|inquiry| inquiry.answer.is_none());
        found.ok_or(CallError::Answered { call })
    }

    fn forget_waiting_inquiry(&mut self, listener: ListenerHandle, handle: InquiryHandle) {
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.forget_inquiry(handle);
        }
    }

    /// Sends a response, and keeps it for repetitions of the request.
    fn send_answer(&mut self, now: Time, handle: InquiryHandle, reply: ServiceIdReply) {
        let Some(inquiry) = self.inquiries.all.get_mut(&handle) else { return };
        let mad = Message::from(reply).to_mad(inquiry.transaction_id);
        inquiry.answer = Some((now, Box::new(mad)));
        let (route, listener) = (inquiry.route, inquiry.listener);
        self.forget_waiting_inquiry(listener, handle);
        self.inquiries.answered.insert((now, handle));
        self.deadlines.set(Owner::Inquiry(handle), Some(now + ANSWERED));
        self.send(route, &mad);
    }

    /// The listener of a request is destroyed before the application has taken the request (`cm.c`, `cm_destroy_id`).
    pub(super) fn destroy_inquiry(&mut self, now: Time, handle: InquiryHandle) {
        self.events.cancel(Owner::Inquiry(handle));
        if let Ok(inquiry) = self.asked("destroy_listener", handle) {
            let reply = refusal_of(inquiry.key.1, inquiry.service_id, ServiceIdStatus::REJECTED);
            self.send_answer(now, handle, reply);
        }
    }

    /// Forgets a request. If it has no response, its sender has given up.
    pub(super) fn expire_inquiry(&mut self, handle: InquiryHandle) {
        self.deadlines.set(Owner::Inquiry(handle), None);
        if let Some(inquiry) = self.inquiries.remove(handle) {
            self.forget_waiting_inquiry(inquiry.listener, handle);
            if inquiry.answer.is_none() {
                self.events.cancel(Owner::Inquiry(handle));
            }
        }
    }
}

/// Returns a SIDR_REP without a queue pair.
fn refusal_of(request_id: CommunicationId, service_id: ServiceId, status: ServiceIdStatus) -> ServiceIdReply {
    ServiceIdReply { request_id, status, service_id, ..Default::default() }
}
