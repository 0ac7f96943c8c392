//! Codes with names: classes, methods and attributes of datagrams, and the reasons of refusals. A value that is not in
//! the standard's list keeps its number.

use std::fmt;

use super::field::{Bits, bits};

macro_rules! codes {
    ($($(#[$doc:meta])* $kind:ident: $width:literal of $int:ident {
        $($(#[$code_doc:meta])* $name:ident = $code:literal, $label:literal;)*
    })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(transparent)]
        pub struct $kind(pub $int);

        impl $kind {
            $($(#[$code_doc])* pub const $name: Self = Self($code);)*

            /// All codes with a name.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns its name, or "unknown".
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($code => $label,)*
                    _ => "unknown",
                }
            }
        }

        impl fmt::Debug for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($kind), "({:#x} {})"), self.0, self.name())
            }
        }

        /// Its name and its number.
        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} ({})", self.name(), self.0)
            }
        }

        bits! {
            $kind: $width, |bits| $kind(bits as $int), |code| code.0.into();
        }
    )* };
}

codes! {
    /// Management class: the protocol that a datagram belongs to.
    ManagementClass: 8 of u8 {
        /// Subnet management with destinations by LID. It belongs to queue pair 0.
        SUBNET_MANAGEMENT = 0x01, "subnet management";
        /// Subnet administration.
        SUBNET_ADMINISTRATION = 0x03, "subnet administration";
        /// Performance management: counters, which diagnostics query.
        PERFORMANCE_MANAGEMENT = 0x04, "performance management";
        /// Communication management.
        COMMUNICATION_MANAGEMENT = 0x07, "communication management";
        /// Discovery of native peers: one of the classes of vendors, which contain the vendor's OUI.
        DISCOVERY = 0x3f, "discovery of native peers";
        /// Subnet management with directed routes. It belongs to queue pair 0.
        DIRECTED_SUBNET_MANAGEMENT = 0x81, "directed subnet management";
    }
    /// Method: the action that a datagram requests.
    Method: 8 of u8 {
        /// A query for an attribute.
        GET = 0x01, "Get";
        /// A change of an attribute.
        SET = 0x02, "Set";
        /// A message: all messages of the connection manager.
        SEND = 0x03, "Send";
        /// Response to [`GET`](Self::GET) or [`SET`](Self::SET).
        GET_RESPONSE = 0x81, "GetResp";
    }
    /// Attribute: the contents of a datagram.
    Attribute: 16 of u16 {
        /// Properties of a class's implementation.
        CLASS_PORT_INFO = 0x01, "ClassPortInfo";
        /// Request of a connection.
        CONNECT_REQUEST = 0x10, "REQ";
        /// Receipt of a message.
        MESSAGE_RECEIPT = 0x11, "MRA";
        /// Rejection.
        REJECT = 0x12, "REJ";
        /// Reply to a request of a connection.
        CONNECT_REPLY = 0x13, "REP";
        /// Acceptance of the reply.
        READY_TO_USE = 0x14, "RTU";
        /// Request to end a connection.
        DISCONNECT_REQUEST = 0x15, "DREQ";
        /// Reply to a request to end a connection.
        DISCONNECT_REPLY = 0x16, "DREP";
        /// Request of a datagram queue pair.
        SERVICE_ID_REQUEST = 0x17, "SIDR_REQ";
        /// Reply with a datagram queue pair.
        SERVICE_ID_REPLY = 0x18, "SIDR_REP";
        /// Request to load an alternate path.
        LOAD_ALTERNATE_PATH = 0x19, "LAP";
        /// Response to a request to load an alternate path.
        ALTERNATE_PATH_RESPONSE = 0x1a, "APR";
        /// Question and answer of the [discovery](ManagementClass::DISCOVERY) of native peers.
        DISCOVERY = 0x5244, "DISCOVERY";
    }
    /// Why a message is rejected. A standard peer's application sees the number.
    RejectReason: 16 of u16 {
        /// No queue pair is available.
        NO_QUEUE_PAIR = 1, "no QP available";
        /// No end-to-end context is available.
        NO_END_TO_END_CONTEXT = 2, "no EEC available";
        /// No other resources are available.
        NO_RESOURCES = 3, "no resources available";
        /// The sender gives up waiting.
        TIMEOUT = 4, "timeout";
        /// The request is not supported.
        UNSUPPORTED = 5, "unsupported request";
        /// The message names a communication id that does not exist.
        INVALID_COMMUNICATION_ID = 6, "invalid communication ID";
        /// The two communication ids do not belong together.
        INVALID_COMMUNICATION_INSTANCE = 7, "invalid communication instance";
        /// No application listens for the service id.
        INVALID_SERVICE_ID = 8, "invalid service ID";
        /// The service has another transport.
        INVALID_TRANSPORT = 9, "invalid transport service type";
        /// The queue pair is in use by a connection that its owner has lost.
        STALE_CONNECTION = 10, "stale connection";
        /// The reliable datagram channel does not exist.
        RDC_DOES_NOT_EXIST = 11, "RDC does not exist";
        /// A GID of the primary path, which the additional information may correct.
        INVALID_GID = 12, "primary remote port GID rejected";
        /// A LID of the primary path, which the additional information may correct.
        INVALID_LID = 13, "primary remote port LID rejected";
        /// Service level of the primary path.
        INVALID_SERVICE_LEVEL = 14, "invalid primary SL";
        /// Traffic class of the primary path.
        INVALID_TRAFFIC_CLASS = 15, "invalid primary traffic class";
        /// Hop limit of the primary path.
        INVALID_HOP_LIMIT = 16, "invalid primary hop limit";
        /// Packet rate of the primary path.
        INVALID_PACKET_RATE = 17, "invalid primary packet rate";
        /// A GID of the alternate path. Linux sends it for every alternate path.
        INVALID_ALTERNATE_GID = 18, "alternate remote port GID rejected";
        /// A LID of the alternate path.
        INVALID_ALTERNATE_LID = 19, "alternate remote port LID rejected";
        /// Service level of the alternate path.
        INVALID_ALTERNATE_SERVICE_LEVEL = 20, "invalid alternate SL";
        /// Traffic class of the alternate path.
        INVALID_ALTERNATE_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
        /// Hop limit of the alternate path.
        INVALID_ALTERNATE_HOP_LIMIT = 22, "invalid alternate hop limit";
        /// Packet rate of the alternate path.
        INVALID_ALTERNATE_PACKET_RATE = 23, "invalid alternate packet rate";
        /// The service is at the port and the communication manager in the additional information.
        PORT_AND_CM_REDIRECTION = 24, "port and CM redirection";
        /// The service is at the port in the additional information.
        PORT_REDIRECTION = 25, "port redirection";
        /// The path MTU is too large, or its code is reserved.
        INVALID_MTU = 26, "invalid path MTU";
        /// The responder serves fewer READs and atomics at once than the requester needs.
        INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
        /// The application rejects the request. The private data may say why.
        CONSUMER = 28, "consumer reject";
        /// The number of retries for a receiver that is not ready.
        INVALID_RNR_RETRY_COUNT = 29, "RNR retry count reject";
        /// The communication id is in use.
        DUPLICATE_COMMUNICATION_ID = 30, "duplicate local communication ID";
        /// The class version is not supported.
        UNSUPPORTED_CLASS_VERSION = 31, "unsupported class version";
        /// Flow label of the primary path.
        INVALID_FLOW_LABEL = 32, "invalid primary flow label";
        /// Flow label of the alternate path.
        INVALID_ALTERNATE_FLOW_LABEL = 33, "invalid alternate flow label";
        /// The options of a vendor are not supported (ECE).
        VENDOR_OPTION_NOT_SUPPORTED = 35, "vendor option not supported";
    }
    /// Outcome of a request of a datagram queue pair. A standard peer's application sees the number.
    ServiceIdStatus: 8 of u8 {
        /// The reply has a queue pair.
        VALID = 0, "valid";
        /// No application listens for the service id.
        UNSUPPORTED = 1, "service ID not supported";
        /// The application rejects the request.
        REJECTED = 2, "rejected by the service";
        /// No queue pair is available.
        NO_QUEUE_PAIR = 3, "no QP available";
        /// The service is at the port in the additional information.
        REDIRECT = 4, "redirect";
        /// The class version is not supported.
        UNSUPPORTED_VERSION = 5, "unsupported version";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names_and_keep_unknown_numbers() {
        assert_eq!(RejectReason::INVALID_SERVICE_ID.to_string(), "invalid service ID (8)");
        assert_eq!(RejectReason(1000).to_string(), "unknown (1000)");
        assert_eq!(format!("{:?}", Attribute::CONNECT_REQUEST), "Attribute(0x10 REQ)");
        let reasons: Vec<u16> = RejectReason::ALL.iter().map(|reason| reason.0).collect();
        let expected: Vec<u16> = (1..=33).chain([35]).collect();
        assert_eq!(reasons, expected);
        assert!(RejectReason::ALL.iter().all(|reason| reason.name() != "unknown"));
        assert_eq!(RejectReason(34).name(), "unknown");
        assert_eq!(ServiceIdStatus::ALL.iter().map(|status| status.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }
}
