//! Datagram queue pairs by address and port, at both ends.

use std::net::SocketAddr;
use std::sync::Arc;

use super::super::device::Device;
use super::super::errors;
use super::bound::requesting;
use super::{Seat, convert, local_address};
use crate::cm::{DatagramQueuePair, Event, InquiryHandle, ResolutionHandle, ResolveParameters};
use crate::engine::Port;
use crate::provider::{
    DatagramEnd, EventWait, Inquiry, Resolution, ResolutionEvent, ResolveInit, Result, ServiceIdStatus,
};
use crate::wire::mad::{PortSpace, ServiceId, ServiceIdReply};

/// A request for the datagram queue pair of a peer.
pub(super) struct SoftResolution {
    seat: Seat,
    handle: ResolutionHandle,
    _port: Arc<Port>,
}

impl SoftResolution {
    pub(super) fn new(device: &Arc<Device>, init: &ResolveInit<'_>) -> Result<Self> {
        let verb = "resolve";
        let path = init.path;
        super::check_versions(verb, path.local, path.remote)?;
        let (seat, _) = Seat::open(verb, device, &[local_address(verb, device, path.local.ip())?])?;
        let (port, _) = requesting(verb, init.port, PortSpace::Udp, path.local, seat.shard.id_block())?;
        let local = SocketAddr::new(path.local.ip(), port.number());
        let (header, private_data) =
            (convert::header(verb, local, path.remote)?, convert::private_data(verb, init.private_data)?);
        let handle = seat.call(verb, |connections, now| {
            let parameters = ResolveParameters {
                service_id: ServiceId::of_port(PortSpace::Udp, path.remote.port()),
                header,
                path: convert::path_parameters(path),
                private_data,
                deadline: init.timeout.map(|timeout| now + timeout),
            };
            connections.create(&seat.queue, |manager| manager.resolve(now, &parameters))
        })?;
        Ok(Self { seat, handle, _port: port })
    }
}

impl Resolution for SoftResolution {
    fn next_event(&self, wait: EventWait<'_>) -> Result<Option<ResolutionEvent>> {
        let Some(delivery) = self.seat.next("resolve", wait)? else { return Ok(None) };
        match delivery.event {
            Event::Resolved { reply, .. } => Ok(Some(of_reply(&reply))),
            Event::Unresolved { .. } => Ok(Some(ResolutionEvent::Unreachable)),
            _ => Err(errors::engine_failed("resolve")),
        }
    }
}

impl Drop for SoftResolution {
    fn drop(&mut self) {
        self.seat.leave(|connections, _| {
            connections.forget(self.handle);
            connections.manager().destroy_resolution(self.handle);
        });
    }
}

fn of_reply(reply: &ServiceIdReply) -> ResolutionEvent {
    let private_data = reply.private_data.as_bytes().to_vec();
    match reply.status {
        ServiceIdStatus::VALID => {
            ResolutionEvent::Resolved(DatagramEnd { qpn: reply.qpn, qkey: reply.qkey, private_data })
        }
        status => ResolutionEvent::Rejected { status, private_data },
    }
}

/// A peer's request for a datagram queue pair.
pub(super) struct SoftInquiry {
    seat: Seat,
    handle: InquiryHandle,
}

impl SoftInquiry {
    pub(super) fn new(seat: Seat, handle: InquiryHandle) -> Self {
        Self { seat, handle }
    }
}

impl Inquiry for SoftInquiry {
    fn accept(&self, end: &DatagramEnd) -> Result<()> {
        let private_data = convert::private_data("accept", &end.private_data)?;
        let answer = DatagramQueuePair { qpn: end.qpn, qkey: end.qkey, private_data, ..Default::default() };
        self.seat.call("accept", |connections, now| connections.manager().answer(now, self.handle, &answer))
    }

    fn reject(&self, private_data: &[u8]) -> Result<()> {
        let private_data = convert::private_data("reject", private_data)?;
        self.seat.call("reject", |connections, now| {
            connections.manager().refuse_inquiry(now, self.handle, ServiceIdStatus::REJECTED, private_data)
        })
    }
}

impl Drop for SoftInquiry {
    /// Rejects the request, unless it has a response.
    fn drop(&mut self) {
        self.seat.leave(|connections, now| {
            connections.forget(self.handle);
            let private_data = Default::default();
            let _ = connections.manager().refuse_inquiry(now, self.handle, ServiceIdStatus::REJECTED, private_data);
        });
    }
}
