//! Datagram queue pairs by address and port, at both ends.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::super::device::Device;
use super::super::sys;
use super::active::resolving;
use super::convert::padded;
use super::{
    NO_EVENT, check_no_port, check_private_data, failed, from_call, from_state, next, resolve_milliseconds, watcher,
};
use crate::provider::{
    DatagramEnd, Error, EventWait, Inquiry, PortSpace, Resolution, ResolutionEvent, ResolveInit, Result,
    ServiceIdStatus,
};
use crate::types::{Qkey, Qpn};

/// Maximum length of the private data of a request, and of a response.
const REQUEST_BYTES: usize = 180;
const RESPONSE_BYTES: usize = 136;
/// The Q_Key that librdmacm gives the peer for a queue pair of the program (`RDMA_UDP_QKEY`).
const QKEY: Qkey = Qkey(0x0123_4567);

/// A request for the datagram queue pair of a peer.
pub(super) struct IbverbsResolution {
    id: sys::cm::Id,
    is_over: Mutex<bool>,
    private_data: Vec<u8>,
    milliseconds: i32,
    deadline: Option<Instant>,
    device: Arc<Device>,
}

impl IbverbsResolution {
    pub(super) fn new(device: &Arc<Device>, init: &ResolveInit<'_>) -> Result<Self> {
        let verb = "resolve";
        check_private_data(verb, init.private_data, REQUEST_BYTES)?;
        check_no_port(verb, init.port)?;
        let milliseconds = resolve_milliseconds(init.timeout);
        Ok(Self {
            id: resolving(verb, device, PortSpace::Udp, init.path, milliseconds)?,
            is_over: Mutex::new(false),
            private_data: init.private_data.to_vec(),
            milliseconds,
            deadline: init.timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            device: Arc::clone(device),
        })
    }

    /// Takes the response, or the event that the time is over.
    fn take(&self) -> Result<Option<ResolutionEvent>> {
        let mut is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        // Each turn takes an event, of which there are three.
        while let Some(event) = self.id.channel().next_event().map_err(|error| from_call("resolve", NO_EVENT, error))? {
            if let Some(event) = self.handle(&event)? {
                *is_over = true;
                return Ok(Some(event));
            }
        }
        if !*is_over && self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            *is_over = true;
            return Ok(Some(ResolutionEvent::Unreachable));
        }
        Ok(None)
    }

    fn handle(&self, event: &sys::cm::Event) -> Result<Option<ResolutionEvent>> {
        use sys::cm::EventType;
        let fail = |message: &'static str| move |error| from_call("resolve", message, error);
        Ok(match event.event {
            EventType::ADDR_RESOLVED => {
                self.id.resolve_route(self.milliseconds).map_err(fail("the route cannot be resolved"))?;
                None
            }
            EventType::ROUTE_RESOLVED => {
                let parameters = sys::cm::Parameters::default();
                self.id.connect(parameters, &self.private_data).map_err(fail("the request cannot be sent"))?;
                None
            }
            EventType::ESTABLISHED => Some(ResolutionEvent::Resolved(DatagramEnd {
                qpn: Qpn::new(event.parameters.qp_num),
                qkey: Qkey(event.qkey),
                private_data: padded(&event.private_data, RESPONSE_BYTES),
            })),
            EventType::UNREACHABLE | EventType::REJECTED if event.status > 0 => Some(ResolutionEvent::Rejected {
                status: ServiceIdStatus(u8::try_from(event.status).unwrap_or(u8::MAX)),
                private_data: padded(&event.private_data, RESPONSE_BYTES),
            }),
            EventType::UNREACHABLE => Some(ResolutionEvent::Unreachable),
            EventType::ADDR_ERROR | EventType::ROUTE_ERROR if event.status == -libc::ETIMEDOUT => {
                Some(ResolutionEvent::Unreachable)
            }
            EventType::ADDR_ERROR | EventType::ROUTE_ERROR | EventType::CONNECT_ERROR | EventType::DEVICE_REMOVAL => {
                return Err(failed("resolve", event));
            }
            _ => None,
        })
    }
}

impl Resolution for IbverbsResolution {
    fn next_event(&self, wait: EventWait<'_>) -> Result<Option<ResolutionEvent>> {
        next("resolve", &self.device, self.id.channel(), self.deadline, wait, || self.take())
    }
}

impl Drop for IbverbsResolution {
    fn drop(&mut self) {
        if !self.device.is_inherited() {
            watcher::forget(self.id.channel());
        }
    }
}

/// A peer's request for a datagram queue pair. Dropping it rejects it.
pub(super) struct IbverbsInquiry {
    id: sys::cm::Id,
    device: Arc<Device>,
}

impl IbverbsInquiry {
    pub(super) fn new(device: &Arc<Device>, id: sys::cm::Id) -> Self {
        Self { id, device: Arc::clone(device) }
    }
}

impl Inquiry for IbverbsInquiry {
    fn accept(&self, end: &DatagramEnd) -> Result<()> {
        self.device.check_process("accept")?;
        check_private_data("accept", &end.private_data, RESPONSE_BYTES)?;
        if end.qkey != QKEY {
            let message = format!("qkey is {:#x}; librdmacm gives the peer only {:#x}", end.qkey.0, QKEY.0);
            return Err(Error::unsuitable("accept", "qkey", message));
        }
        let parameters = sys::cm::Parameters { qp_num: end.qpn.value(), ..sys::cm::Parameters::default() };
        self.id.accept(parameters, &end.private_data).map_err(|error| from_state("accept", error))
    }

    fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.device.check_process("reject")?;
        check_private_data("reject", private_data, RESPONSE_BYTES)?;
        self.id.reject(private_data).map_err(|error| from_state("reject", error))
    }
}
