//! Requests for datagram queue pairs of peers: SIDR_REQ, and the SIDR_REP to it (IBTA 12.11).

use super::connection::Kept;
use super::error::CallError;
use super::event::Event;
use super::handle::{Owner, ResolutionHandle};
use super::manager::Manager;
use super::parameters::ResolveParameters;
use super::repetition::Repetition;
use super::route::Route;
use crate::types::{DEFAULT_PKEY, Time};
use crate::wire::mad::{Attribute, CommunicationId, Message, ServiceIdReply, ServiceIdRequest};

/// A request without a response.
pub(super) struct Resolution {
    request_id: CommunicationId,
    route: Route,
    kept: Kept,
    repetition: Repetition,
    deadline: Option<Time>,
}

impl Manager {
    /// Requests a datagram queue pair of a peer. The event is [`Event::Resolved`] or [`Event::Unresolved`].
    pub fn resolve(&mut self, now: Time, parameters: &ResolveParameters) -> Result<ResolutionHandle, CallError> {
        let limit = self.limits.resolutions;
        if self.resolutions.len() >= limit {
            return Err(CallError::TooMany { objects: "requests for datagram queue pairs", limit });
        }
        let private_data = parameters.path.private_data(&parameters.header, parameters.private_data.as_bytes())?;
        // Linux takes requests of two hosts with the same number for one, so the number is random.
        let request_id = self.draw_id()?;
        let service_id = parameters.service_id;
        let request = ServiceIdRequest { request_id, pkey: DEFAULT_PKEY, service_id, private_data };
        let mad = Message::from(request).to_mad(self.draw_transaction_id());
        let handle = self.draw_resolution_handle();
        let (route, kept) = (Route::along(&parameters.path.to_path()), Box::new(mad));
        let (repetition, deadline) = (Repetition::of_request(), parameters.deadline);
        self.resolutions.insert(handle, Resolution { request_id, route, kept, repetition, deadline });
        self.resolution_ids.insert(request_id, handle);
        self.send(route, &mad);
        self.schedule_resolution(now, handle);
        Ok(handle)
    }

    /// Counts a send of a request, and sets the deadline of the next one. Returns false if there is none.
    fn schedule_resolution(&mut self, now: Time, handle: ResolutionHandle) -> bool {
        let random = self.draw();
        let Some(resolution) = self.resolutions.get_mut(&handle) else { return false };
        if resolution.deadline.is_some_and(|deadline| deadline <= now) {
            return false;
        }
        let Some(wait) = resolution.repetition.send(random) else { return false };
        let at = (now + wait).min(resolution.deadline.unwrap_or(Time::NEVER));
        self.deadlines.set(Owner::Resolution(handle), Some(at));
        true
    }

    /// The deadline of a request has come.
    pub(super) fn expire_resolution(&mut self, now: Time, handle: ResolutionHandle) {
        if !self.schedule_resolution(now, handle) {
            if self.remove_resolution(handle) {
                self.events.push(Event::Unresolved { resolution: handle });
            }
            return;
        }
        if let Some((route, kept)) = self.resolutions.get(&handle).map(|found| (found.route, found.kept.clone())) {
            self.send_again(route, &kept);
        }
    }

    /// Ends a request without an event. Nothing is sent: the protocol has no message for it.
    pub fn destroy_resolution(&mut self, handle: ResolutionHandle) {
        self.remove_resolution(handle);
        self.events.cancel(Owner::Resolution(handle));
    }

    /// Removes a request. Returns false if it does not exist.
    fn remove_resolution(&mut self, handle: ResolutionHandle) -> bool {
        let Some(resolution) = self.resolutions.remove(&handle) else { return false };
        self.resolution_ids.remove(&resolution.request_id);
        self.ids.release(resolution.request_id);
        self.deadlines.set(Owner::Resolution(handle), None);
        true
    }

    /// Handles a SIDR_REP. Its service id is not compared (`cm.c`, `cm_sidr_rep_handler`).
    pub(super) fn handle_resolved(&mut self, reply: &ServiceIdReply) {
        let Some(handle) = self.resolution_ids.get(&reply.request_id).copied() else {
            return self.drop_unknown(Attribute::SERVICE_ID_REPLY);
        };
        self.remove_resolution(handle);
        self.events.push(Event::Resolved { resolution: handle, reply: Box::new(*reply) });
    }
}
