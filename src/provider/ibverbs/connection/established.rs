//! A connection, at either end.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::super::device::Device;
use super::super::sys;
use super::convert::{self, Attributes, padded};
use super::{NO_EVENT, check_private_data, check_vendor_options, failed, from_call, from_state, next, watcher};
use crate::provider::{
    Connection, ConnectionEnd, ConnectionEvent, ConnectionPath, Error, ErrorKind, EventWait, RejectReason, Result,
};
use crate::types::Mtu;

/// Maximum length of the private data of a reply, and of a rejection.
const REPLY_BYTES: usize = 196;
const REJECT_BYTES: usize = 148;

/// How far a connection is.
pub(super) enum Phase {
    /// The peer's address or the route is being resolved.
    Resolving(Box<Wanted>),
    /// The request has left; the path MTU was proposed by this end.
    Requested(Mtu),
    /// The peer has requested it, and waits for this end's reply.
    Answering,
    /// The reply has left.
    Accepted,
    /// It is set up.
    SetUp,
    /// It has ended, or the attempt has.
    Ended,
}

/// The request of an active end, until the route is resolved.
pub(super) struct Wanted {
    pub(super) parameters: sys::cm::Parameters,
    pub(super) private_data: Vec<u8>,
    /// Time to resolve the route.
    pub(super) milliseconds: i32,
    pub(super) path_mtu: Mtu,
}

/// How far a connection is, and when the attempt to set it up is over.
struct Attempt {
    phase: Phase,
    deadline: Option<Instant>,
}

/// A connection.
pub(super) struct IbverbsConnection {
    id: sys::cm::Id,
    attempt: Mutex<Attempt>,
    local: SocketAddr,
    device: Arc<Device>,
}

impl IbverbsConnection {
    pub(super) fn new(device: &Arc<Device>, id: sys::cm::Id, phase: Phase, deadline: Option<Instant>) -> Self {
        let local = id.local_addr().unwrap_or_else(|| SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0));
        Self { id, attempt: Mutex::new(Attempt { phase, deadline }), local, device: Arc::clone(device) }
    }

    fn attempt(&self) -> MutexGuard<'_, Attempt> {
        self.attempt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event that waits, or the one that the time is over.
    fn take(&self) -> Result<Option<ConnectionEvent>> {
        let verb = "get_cm_event";
        let mut attempt = self.attempt();
        let Attempt { phase, deadline } = &mut *attempt;
        // Each turn takes an event, of which a connection has a handful.
        while let Some(event) = self.id.channel().next_event().map_err(|error| from_call(verb, NO_EVENT, error))? {
            if let Some(event) = self.handle(phase, &event)? {
                return Ok(Some(event));
            }
        }
        let waits = matches!(phase, Phase::Resolving(_) | Phase::Requested(_) | Phase::Accepted);
        if waits && deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            *phase = Phase::Ended;
            return Ok(Some(ConnectionEvent::Unreachable));
        }
        Ok(None)
    }

    /// Handles an event. Returns that for the application, if there is one.
    fn handle(&self, phase: &mut Phase, event: &sys::cm::Event) -> Result<Option<ConnectionEvent>> {
        use sys::cm::EventType;
        let is_timeout = event.status == -libc::ETIMEDOUT;
        let ended = match event.event {
            EventType::ADDR_RESOLVED => return self.resolve_route(phase).map(|()| None),
            EventType::ROUTE_RESOLVED => return self.request(phase).map(|()| None),
            EventType::CONNECT_RESPONSE => return self.replied(event).map(Some),
            EventType::ESTABLISHED => {
                *phase = Phase::SetUp;
                return Ok(Some(ConnectionEvent::Established));
            }
            // Linux from 6.0 on raises it when the address of the peer's interface changes.
            EventType::UNREACHABLE if matches!(phase, Phase::SetUp) => return Ok(None),
            EventType::UNREACHABLE => ConnectionEvent::Unreachable,
            EventType::ADDR_ERROR | EventType::ROUTE_ERROR if is_timeout => ConnectionEvent::Unreachable,
            EventType::ADDR_ERROR | EventType::ROUTE_ERROR | EventType::CONNECT_ERROR => {
                *phase = Phase::Ended;
                return Err(failed("connect", event));
            }
            EventType::REJECTED => ConnectionEvent::Rejected {
                reason: RejectReason(u16::try_from(event.status).unwrap_or(0)),
                private_data: padded(&event.private_data, REJECT_BYTES),
            },
            EventType::DISCONNECTED => ConnectionEvent::Disconnected { is_confirmed: event.status == 0 },
            EventType::DEVICE_REMOVAL => ConnectionEvent::Disconnected { is_confirmed: false },
            EventType::TIMEWAIT_EXIT => ConnectionEvent::TimeWaitExit,
            other => {
                tracing::debug!(
                    target: "rdma_verbs::connection", event = ?other, "an event of a connection is ignored"
                );
                return Ok(None);
            }
        };
        *phase = Phase::Ended;
        Ok(Some(ended))
    }

    fn resolve_route(&self, phase: &mut Phase) -> Result<()> {
        let Phase::Resolving(wanted) = phase else { return Ok(()) };
        let resolved = self.id.resolve_route(wanted.milliseconds);
        resolved.map_err(|error| self.fail(phase, "the route cannot be resolved", error))
    }

    fn request(&self, phase: &mut Phase) -> Result<()> {
        let Phase::Resolving(wanted) = phase else { return Ok(()) };
        let path_mtu = wanted.path_mtu;
        match self.id.connect(wanted.parameters, &wanted.private_data) {
            Ok(()) => {
                *phase = Phase::Requested(path_mtu);
                Ok(())
            }
            Err(error) => Err(self.fail(phase, "the connection cannot be requested", error)),
        }
    }

    fn fail(&self, phase: &mut Phase, message: &'static str, error: io::Error) -> Error {
        *phase = Phase::Ended;
        from_call("connect", format!("{message} ({})", self.device.name()), error)
    }

    fn replied(&self, event: &sys::cm::Event) -> Result<ConnectionEvent> {
        let attributes = Attributes::of("connect", &self.id)?;
        let mut peer = convert::peer(event, attributes.peer_psn(), REPLY_BYTES);
        // librdmacm does not tell the peer's delay; adapters of a network are alike.
        peer.ack_delay = self.device.limits().local_ca_ack_delay;
        Ok(ConnectionEvent::Replied(Box::new(peer)))
    }

    fn call(&self, verb: &'static str, call: impl FnOnce(&sys::cm::Id) -> io::Result<()>) -> Result<()> {
        self.device.check_process(verb)?;
        call(&self.id).map_err(|error| from_state(verb, error))
    }
}

impl Connection for IbverbsConnection {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn next_event(&self, wait: EventWait<'_>) -> Result<Option<ConnectionEvent>> {
        let deadline = self.attempt().deadline;
        next("get_cm_event", &self.device, self.id.channel(), deadline, wait, || self.take())
    }

    fn as_fd(&self) -> Result<BorrowedFd<'_>> {
        self.device.check_process("get_cm_event")?;
        Ok(self.id.channel().descriptor())
    }

    fn settle(&self, path: &mut ConnectionPath, end: &mut ConnectionEnd) -> Result<()> {
        self.device.check_process("init_qp_attr")?;
        let attributes = Attributes::of("init_qp_attr", &self.id)?;
        attributes.apply(path)?;
        end.starting_psn = attributes.own_psn();
        match self.attempt().phase {
            // Without the option the wanted one is that of the port, from which the kernel's may differ: it takes that
            // of the network interface.
            Phase::Requested(wanted)
                if wanted != path.path_mtu && wanted != self.device.port("query_port", 1)?.active_mtu =>
            {
                let message = format!(
                    "path_mtu is {} bytes; the kernel has chosen {} bytes, because librdmacm lets no \
                     program choose: leave the option out, or change the MTU of the network interface",
                    wanted.bytes(),
                    path.path_mtu.bytes()
                );
                Err(Error::unsuitable("connect", "path_mtu", message))
            }
            _ => Ok(()),
        }
    }

    fn accept(&self, end: &ConnectionEnd, timeout: Option<Duration>) -> Result<()> {
        check_private_data("accept", &end.private_data, REPLY_BYTES)?;
        check_vendor_options("accept", end)?;
        let parameters = convert::parameters(end, 0);
        // Held meanwhile: the next event is taken in the new phase.
        let mut attempt = self.attempt();
        self.call("accept", |id| id.accept(parameters, &end.private_data))?;
        if matches!(attempt.phase, Phase::Answering) {
            let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
            *attempt = Attempt { phase: Phase::Accepted, deadline };
        }
        Ok(())
    }

    fn ready(&self) -> Result<()> {
        self.call("connect", sys::cm::Id::establish)?;
        self.attempt().phase = Phase::SetUp;
        Ok(())
    }

    fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<()> {
        check_private_data("reject", private_data, REJECT_BYTES)?;
        if reason != RejectReason::CONSUMER {
            let message = format!("the reason is {reason}; librdmacm has only {}", RejectReason::CONSUMER);
            return Err(Error::new("reject", ErrorKind::Unsupported, message));
        }
        self.call("reject", |id| id.reject(private_data))
    }

    fn disconnect(&self) -> Result<()> {
        self.call("disconnect", sys::cm::Id::disconnect)
    }

    fn communication_established(&self) -> Result<()> {
        self.call("accept", sys::cm::Id::communication_established)
    }
}

impl Drop for IbverbsConnection {
    fn drop(&mut self) {
        if !self.device.is_inherited() {
            watcher::forget(self.id.channel());
        }
    }
}
