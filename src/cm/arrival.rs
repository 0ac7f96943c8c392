//! The path of an arrived datagram to its handler.

use super::manager::Manager;
use super::route::{Arrival, Route};
use crate::types::Time;
use crate::wire::mad::{Mad, Message};

impl Manager {
    /// Handles a datagram. A longer or shorter one than 256 bytes is dropped, as by Linux 6.12.
    pub fn handle_datagram(&mut self, now: Time, arrival: &Arrival<'_>) {
        let Ok(mad) = Mad::read(arrival.bytes) else {
            self.counters.drops.length += 1;
            return;
        };
        match Message::read(&mad) {
            Ok(message) => self.handle_message(now, arrival, &mad, &message),
            Err(_) => self.handle_other(arrival, &mad),
        }
    }

    /// Responds to a query that the connection manager does not support, as Linux (`mad.c`,
    /// `generate_unmatched_resp`): diagnostics find a live queue pair 1 by it. Drops all else.
    fn handle_other(&mut self, arrival: &Arrival<'_>, mad: &Mad) {
        match mad.unsupported_response() {
            Some(response) => {
                self.counters.unsupported += 1;
                self.respond(Route::back(arrival), &response);
            }
            None => self.counters.drops.header += 1,
        }
    }

    fn handle_message(&mut self, now: Time, arrival: &Arrival<'_>, mad: &Mad, message: &Message) {
        self.counters.received.note(mad.attribute);
        match message {
            Message::ConnectRequest(request) => self.handle_request(now, arrival, mad.transaction_id, request),
            Message::ConnectReply(reply) => self.handle_reply(now, arrival, mad.transaction_id, reply),
            Message::ReadyToUse(ready) => self.handle_ready(now, ready),
            Message::MessageReceipt(receipt) => self.handle_receipt(now, receipt),
            Message::Reject(reject) => self.handle_reject(now, reject),
            Message::DisconnectRequest(request) => {
                self.handle_disconnect_request(now, arrival, mad.transaction_id, request);
            }
            Message::DisconnectReply(reply) => self.handle_disconnect_reply(now, reply),
            Message::ServiceIdRequest(request) => self.handle_inquiry(now, arrival, mad.transaction_id, request),
            Message::ServiceIdReply(reply) => self.handle_resolved(reply),
            // Linux ignores both on Ethernet (`cm.c`, `cm_lap_handler`).
            Message::LoadAlternatePath(_) | Message::AlternatePathResponse(_) => {
                self.counters.drops.alternate_path += 1;
            }
        }
    }
}
