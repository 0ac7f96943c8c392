//! Datagrams in words, for captures, errors and tools: a line for each.
//!
//! A line begins with the name of the message and its communication ids, first the sender's, so that one number finds
//! all messages of a connection. All parts have a fixed length and no text of a peer is shown, so a line has at most
//! [`LONGEST_SUMMARY`] bytes and no control characters, whatever the datagram contains.

use std::fmt;

use super::{
    AlternatePathResponse, BASE_VERSION, CM_VERSION, CommunicationId, ConnectReply, ConnectRequest, DisconnectReply,
    DisconnectRequest, Discovery, ExtendedTransport, IpHeader, LoadAlternatePath, Mad, ManagementClass, Message,
    MessageReceipt, Method, MtuCode, PortSpace, ReadyToUse, ReceivedMessage, Reject, RejectReason, RejectedMessage,
    ServiceId, ServiceIdReply, ServiceIdRequest, ServiceIdStatus, TimeoutCode, TransportType, UNSUPPORTED,
};
use crate::types::Gid;

/// Most bytes of a datagram's line.
pub const LONGEST_SUMMARY: usize = 320;

/// The message or the datagram of the discovery, or the header if it is neither.
impl fmt::Display for Mad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (Message::read(self), Discovery::read(self)) {
            (Ok(message), _) => message.fmt(f),
            (Err(_), Some(discovery)) => discovery.fmt(f),
            (Err(_), None) => self.fmt_header(f),
        }
    }
}

impl Mad {
    fn fmt_header(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_of_cm = self.class == ManagementClass::COMMUNICATION_MANAGEMENT;
        // Other classes have attributes of their own; only the lowest numbers are common.
        let attribute = if is_of_cm || self.attribute.0 < 0x10 { self.attribute.name() } else { UNKNOWN };
        write!(f, "MAD of class {:#04x}{}", self.class.0, Name(self.class.name()))?;
        write!(f, ", method {:#04x}{}", self.method.0, Name(self.method.name()))?;
        write!(f, ", attribute {:#06x}{}", self.attribute.0, Name(attribute))?;
        match self.status {
            0 => {}
            UNSUPPORTED => write!(f, ", status {UNSUPPORTED:#06x} (not supported)")?,
            status => write!(f, ", status {status:#06x}")?,
        }
        if self.base_version != BASE_VERSION {
            write!(f, ", base version {} ({BASE_VERSION} is allowed)", self.base_version)?;
        }
        if is_of_cm && self.method == Method::SEND && self.class_version != CM_VERSION {
            write!(f, ", class version {} ({CM_VERSION} is allowed)", self.class_version)?;
        }
        Ok(())
    }
}

/// The name of codes without one.
const UNKNOWN: &str = "unknown";

/// The name of a code in parentheses, if it has one.
struct Name(&'static str);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == UNKNOWN { Ok(()) } else { write!(f, " ({})", self.0) }
    }
}

/// Its name, the ids and the text of the message.
impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, remote, text): (_, _, &dyn fmt::Display) = match self {
            Self::ConnectRequest(message) => (message.local_id, CommunicationId::NONE, message),
            Self::MessageReceipt(message) => (message.local_id, message.remote_id, message),
            Self::Reject(message) => (message.local_id, message.remote_id, message),
            Self::ConnectReply(message) => (message.local_id, message.remote_id, message),
            Self::ReadyToUse(message) => (message.local_id, message.remote_id, message),
            Self::DisconnectRequest(message) => (message.local_id, message.remote_id, message),
            Self::DisconnectReply(message) => (message.local_id, message.remote_id, message),
            Self::ServiceIdRequest(message) => (message.request_id, CommunicationId::NONE, message),
            Self::ServiceIdReply(message) => (CommunicationId::NONE, message.request_id, message),
            Self::LoadAlternatePath(message) => (message.local_id, message.remote_id, message),
            Self::AlternatePathResponse(message) => (message.local_id, message.remote_id, message),
        };
        f.write_str(self.attribute().name())?;
        if local != CommunicationId::NONE {
            write!(f, " {local}")?;
        }
        if remote != CommunicationId::NONE {
            write!(f, " to {remote}")?;
        }
        write!(f, ": {text}")
    }
}

/// The service, the addresses of both ends, and the facts on which a connection most often fails.
impl fmt::Display for ConnectRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connect to ")?;
        let header = fmt_service(f, self.service_id, self.private_data.as_bytes())?;
        write!(f, ", queue pair {} expects PSN {}, {}", self.local_qpn, self.starting_psn, Words(self.path_mtu))?;
        match (self.transport, self.extended_transport) {
            (TransportType::ReliableConnection, _) => {}
            (TransportType::UnreliableConnection, _) => f.write_str(", unreliable connection")?,
            (TransportType::ReliableDatagram, _) => f.write_str(", reliable datagram")?,
            (TransportType::Extended, ExtendedTransport::XRC) => f.write_str(", XRC")?,
            (TransportType::Extended, other) => write!(f, ", extended transport {other}")?,
        }
        // The responses and all later packets go to the GID, whatever the header says.
        let end = self.primary_path.local_gid.to_ip();
        if header.is_some_and(|header| header.source().ip() != end) {
            write!(f, ", responses to {end}")?;
        }
        if self.alternate_path.path().is_some() {
            f.write_str(", with an alternate path")?;
        } else if self.alternate_path.offer().is_some() {
            f.write_str(", native")?;
        }
        Ok(())
    }
}

impl fmt::Display for MessageReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "works on {} for up to {}", Words(self.received), Words(self.service_timeout))
    }
}

/// The rejected message, the reason, and its usual cause.
impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, reason {}, {}", Words(self.rejected), self.reason.0, self.reason.name())?;
        if let Some(cause) = self.usual_cause() {
            write!(f, ": {cause}")?;
        }
        match self.information.as_bytes().first_chunk() {
            Some(gid) if self.reason == RejectReason::INVALID_GID => {
                write!(f, ", use {}", Gid::from_bytes(*gid).to_ip())
            }
            _ => Ok(()),
        }
    }
}

impl Reject {
    /// Returns why Linux and this crate send this reason, or `None` for a reason that neither sends.
    pub const fn usual_cause(&self) -> Option<&'static str> {
        let cause = match (self.reason, self.rejected) {
            (RejectReason::NO_RESOURCES, _) => "the listener has too many requests waiting",
            (RejectReason::TIMEOUT, _) => "no response came in time, or the application or its process has ended",
            (RejectReason::INVALID_SERVICE_ID, _) => "no listener for the service",
            (RejectReason::STALE_CONNECTION, _) => "an older connection of this queue pair is still open and ends now",
            (RejectReason::INVALID_GID, _) => "a GID or the P_Key in the REQ is not one of the listener's port",
            (RejectReason::INVALID_ALTERNATE_GID, _) => "alternate paths are not supported",
            (RejectReason::INVALID_MTU, _) => "the code of the path MTU is reserved",
            (RejectReason::CONSUMER, RejectedMessage::ConnectRequest) => {
                "the application rejects it or has ended, or transport or addresses do not fit the listener"
            }
            (RejectReason::CONSUMER, _) => "the application rejects it or has ended, or cannot use its queue pair",
            (RejectReason::VENDOR_OPTION_NOT_SUPPORTED, _) => "the application does not accept the vendor's options",
            _ => return None,
        };
        Some(cause)
    }
}

impl fmt::Display for ConnectReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "accepted, queue pair {} expects PSN {}", self.local_qpn, self.starting_psn)?;
        if self.confirmation().is_some() { f.write_str(", native") } else { Ok(()) }
    }
}

impl fmt::Display for ReadyToUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connected")
    }
}

impl fmt::Display for DisconnectRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "disconnect queue pair {}", self.remote_qpn)
    }
}

impl fmt::Display for DisconnectReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("disconnected")
    }
}

impl fmt::Display for ServiceIdRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("resolve ")?;
        fmt_service(f, self.service_id, self.private_data.as_bytes()).map(|_| ())
    }
}

/// The queue pair, or the status and its usual cause.
impl fmt::Display for ServiceIdReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let service = self.service_id.in_words();
        if self.status == ServiceIdStatus::VALID {
            return write!(f, "{service} has queue pair {}, Q_Key {}", self.qpn, self.qkey);
        }
        write!(f, "{service} refused, status {}, {}", self.status.0, self.status.name())?;
        match self.status {
            ServiceIdStatus::UNSUPPORTED => f.write_str(": no listener for the service"),
            ServiceIdStatus::REJECTED => {
                f.write_str(": the application rejects it or has ended, or addresses do not fit the listener")
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for LoadAlternatePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, remote) = (self.path.local_gid.to_ip(), self.path.remote_gid.to_ip());
        write!(f, "load an alternate path from {local} to {remote} into queue pair {}", self.remote_qpn)
    }
}

impl fmt::Display for AlternatePathResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            0 => f.write_str("alternate path loaded"),
            status => write!(f, "alternate path refused, status {status}"),
        }
    }
}

impl ServiceId {
    /// Returns its port and port space in words, or its number if it has none.
    pub fn in_words(self) -> impl fmt::Display {
        Words(self)
    }
}

impl fmt::Display for PortSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipoib => "IPoIB",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Ib => "IB",
        })
    }
}

/// A field in words, if `Display` shows its number.
struct Words<T>(T);

impl fmt::Display for Words<ServiceId> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.port() {
            Some((space, port)) => write!(f, "{space}-space port {port}"),
            None => write!(f, "service {}", self.0),
        }
    }
}

impl fmt::Display for Words<MtuCode> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.mtu() {
            Some(mtu) => write!(f, "path MTU {mtu}"),
            None => write!(f, "path MTU code {}", self.0),
        }
    }
}

impl fmt::Display for Words<ReceivedMessage> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            ReceivedMessage::ConnectRequest => "the REQ",
            ReceivedMessage::ConnectReply => "the REP",
            ReceivedMessage::LoadAlternatePath => "the LAP",
            ReceivedMessage::Reserved => "a message of reserved code 3",
        })
    }
}

impl fmt::Display for Words<RejectedMessage> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            RejectedMessage::ConnectRequest => "REQ rejected",
            RejectedMessage::ConnectReply => "REP rejected",
            RejectedMessage::Other => "connection given up",
            RejectedMessage::Reserved => "message of reserved code 3 rejected",
        })
    }
}

impl fmt::Display for Words<TimeoutCode> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let duration = self.0.duration();
        match duration.as_micros() {
            0..1_000 => write!(f, "{} µs", duration.as_micros()),
            1_000..1_000_000 => write!(f, "{:.1} ms", duration.as_secs_f64() * 1e3),
            _ => write!(f, "{:.1} s", duration.as_secs_f64()),
        }
    }
}

/// Writes the service of a request, and the addresses of both ends if its service has them. Returns the header with
/// the addresses.
fn fmt_service(f: &mut fmt::Formatter<'_>, id: ServiceId, private_data: &[u8]) -> Result<Option<IpHeader>, fmt::Error> {
    write!(f, "{}", id.in_words())?;
    if !id.port().is_some_and(|(space, _)| space != PortSpace::Ib) {
        return Ok(None);
    }
    match IpHeader::read(private_data) {
        Ok((header, _)) => {
            write!(f, " of {} from {}", header.destination(), header.source())?;
            Ok(Some(header))
        }
        Err(error) => {
            write!(f, " ({error})")?;
            Ok(None)
        }
    }
}
