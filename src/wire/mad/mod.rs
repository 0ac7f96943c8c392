//! Management datagrams (MADs), and the messages of the connection manager (CM), which are such datagrams to queue
//! pair 1.
//!
//! Source: IBTA volume 1, chapter 12 (communication management) and annex A11 (RDMA IP CM service). All fields are in
//! network order. `ib_mad.h` and `ibta_vol1_c12.h` of Linux have the same layouts.
//!
//! Bits that the standard reserves are written as 0 and ignored when read. Fields keep all their values, reserved ones
//! as well, because a message with a wrong value needs a response that names the reason.

mod alternate_path;
mod codes;
mod connect;
mod contents;
mod disconnect;
mod discovery;
mod field;
mod ip_header;
mod message;
mod native;
mod numbers;
mod service_id;
mod summary;

#[cfg(test)]
mod tests;

pub use alternate_path::{AlternatePathResponse, LoadAlternatePath, Path};
pub use codes::{Attribute, ManagementClass, Method, RejectReason, ServiceIdStatus};
pub use connect::{ConnectReply, ConnectRequest, ConnectionTransport, MessageReceipt, ReadyToUse, Reject};
pub use contents::{ADDITIONAL_INFORMATION_BYTES, AdditionalInformation, PrivateData, VendorOptions};
pub use disconnect::{DisconnectReply, DisconnectRequest};
pub use discovery::{Discovery, DiscoveryAnswer, DiscoveryContent};
pub use ip_header::{IpAddresses, IpHeader, IpHeaderError};
pub use message::Message;
pub use native::{AlternatePath, NativeOffer};
pub use numbers::{
    CommunicationId, EndToEndContext, ExtendedTransport, FailoverStatus, FlowLabel, MessageRetries, MtuCode,
    PacketRate, ReceivedMessage, RejectedMessage, RetryCount, ServiceLevel, TimeoutCode, TransportType, VendorId,
};
pub use service_id::{PortSpace, ServiceId, ServiceIdReply, ServiceIdRequest};
pub use summary::LONGEST_SUMMARY;

use std::fmt;

use field::at;

/// Bytes of a datagram. A longer one stops queue pair 1 of Linux 6.1 until its driver is loaded again.
pub const MAD_BYTES: usize = 256;
/// Bytes of a datagram's header.
pub const MAD_HEADER_BYTES: usize = 24;
/// Bytes of a datagram's data.
pub const MAD_DATA_BYTES: usize = MAD_BYTES - MAD_HEADER_BYTES;

/// The base version of all datagrams.
const BASE_VERSION: u8 = 1;
/// The class version of the connection manager's messages.
const CM_VERSION: u8 = 2;
/// Status of a response: the responder supports neither the method with the attribute nor the attribute itself.
const UNSUPPORTED: u16 = 0x000c;

/// A management datagram: the header as fields, the rest as bytes.
///
/// `Debug` does not show the data, which may contain secrets of applications.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Mad {
    /// Version of the header: 1.
    pub base_version: u8,
    /// The protocol.
    pub class: ManagementClass,
    /// Version of the protocol.
    pub class_version: u8,
    /// The action that it requests.
    pub method: Method,
    /// Outcome, in responses; otherwise 0.
    pub status: u16,
    /// Chosen by the sender of a request, repeated in the response. Linux does not compare it in messages of the
    /// connection manager.
    pub transaction_id: u64,
    /// The meaning of the data.
    pub attribute: Attribute,
    /// Parameter of the attribute.
    pub modifier: u32,
    /// The data.
    pub data: [u8; MAD_DATA_BYTES],
}

impl fmt::Debug for Mad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mad")
            .field("base_version", &self.base_version)
            .field("class", &self.class)
            .field("class_version", &self.class_version)
            .field("method", &self.method)
            .field("status", &self.status)
            .field("transaction_id", &self.transaction_id)
            .field("attribute", &self.attribute)
            .field("modifier", &self.modifier)
            .finish_non_exhaustive()
    }
}

/// Why bytes are not a message of the connection manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MadError {
    /// The number of bytes is not 256.
    #[error("MAD of {0} bytes ({bytes} are allowed)", bytes = MAD_BYTES)]
    Length(usize),
    /// The version of the header is not 1.
    #[error("MAD of base version {0} ({version} is allowed)", version = BASE_VERSION)]
    BaseVersion(u8),
    /// The datagram belongs to another class.
    #[error("the class is {0}, not communication management")]
    Class(ManagementClass),
    /// The version of the class is not 2.
    #[error("message of class version {0} ({version} is allowed)", version = CM_VERSION)]
    ClassVersion(u8),
    /// The method is not [`Method::SEND`].
    #[error("messages of the connection manager have the method Send, not {0}")]
    Method(Method),
    /// No message has this attribute.
    #[error("no message of the connection manager has the attribute {0}")]
    Attribute(Attribute),
}

impl Mad {
    /// Reads a datagram: the payload of a packet to queue pair 1. Checks only its length.
    pub fn read(bytes: &[u8]) -> Result<Self, MadError> {
        if bytes.len() != MAD_BYTES {
            return Err(MadError::Length(bytes.len()));
        }
        let (header, data) = bytes.split_at(MAD_HEADER_BYTES);
        let mut mad = Self {
            base_version: at(0).get(header),
            class: at(1).get(header),
            class_version: at(2).get(header),
            method: at(3).get(header),
            status: at(4).get(header),
            transaction_id: at(8).get(header),
            attribute: at(16).get(header),
            modifier: at(20).get(header),
            data: [0; MAD_DATA_BYTES],
        };
        mad.data.copy_from_slice(data);
        Ok(mad)
    }

    /// Returns the bytes of the datagram.
    pub fn write(&self) -> [u8; MAD_BYTES] {
        let mut bytes = [0; MAD_BYTES];
        let (header, data) = bytes.split_at_mut(MAD_HEADER_BYTES);
        at(0).put(header, self.base_version);
        at(1).put(header, self.class);
        at(2).put(header, self.class_version);
        at(3).put(header, self.method);
        at(4).put(header, self.status);
        at(8).put(header, self.transaction_id);
        at(16).put(header, self.attribute);
        at(20).put(header, self.modifier);
        data.copy_from_slice(&self.data);
        bytes
    }

    /// Returns the response to a query that is not supported: the same data, with the status "method or attribute not
    /// supported". Diagnostics find a live queue pair 1 by it, so it has the form that Linux sends (`mad.c`,
    /// `generate_unmatched_resp`).
    ///
    /// Returns `None` for datagrams to which Linux does not respond: all that are not queries, subnet management, and
    /// queries with the attribute of a message.
    pub fn unsupported_response(&self) -> Option<Self> {
        let is_query = matches!(self.method, Method::GET | Method::SET);
        let has_response = match self.class {
            ManagementClass::SUBNET_MANAGEMENT | ManagementClass::DIRECTED_SUBNET_MANAGEMENT => false,
            ManagementClass::COMMUNICATION_MANAGEMENT => !Message::has_attribute(self.attribute),
            _ => true,
        };
        let is_valid = self.base_version == BASE_VERSION;
        let response = Self { method: Method::GET_RESPONSE, status: UNSUPPORTED, ..*self };
        (is_valid && is_query && has_response).then_some(response)
    }

    /// Checks that the header is that of a message of the connection manager. The attribute is not checked.
    fn check_header(&self) -> Result<(), MadError> {
        if self.base_version != BASE_VERSION {
            return Err(MadError::BaseVersion(self.base_version));
        }
        if self.class != ManagementClass::COMMUNICATION_MANAGEMENT {
            return Err(MadError::Class(self.class));
        }
        if self.class_version != CM_VERSION {
            return Err(MadError::ClassVersion(self.class_version));
        }
        if self.method != Method::SEND {
            return Err(MadError::Method(self.method));
        }
        Ok(())
    }
}
