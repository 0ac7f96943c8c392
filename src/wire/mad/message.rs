//! A message of the connection manager, of any kind.

use super::field::{Field, WholeData};
use super::{
    AlternatePathResponse, Attribute, BASE_VERSION, CM_VERSION, ConnectReply, ConnectRequest, DisconnectReply,
    DisconnectRequest, LoadAlternatePath, MAD_DATA_BYTES, Mad, MadError, ManagementClass, MessageReceipt, Method,
    ReadyToUse, Reject, ServiceIdReply, ServiceIdRequest,
};

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident: $attribute:ident;)*) => {
        /// A message of the connection manager.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Message {
            $($(#[$doc])* $name($name),)*
        }

        impl Message {
            /// Attributes of all messages.
            pub const ATTRIBUTES: &[Attribute] = &[$(Attribute::$attribute,)*];

            /// Reads the message of a datagram. The status in its header is not checked, because messages have none.
            pub fn read(mad: &Mad) -> Result<Self, MadError> {
                mad.check_header()?;
                match mad.attribute {
                    $(Attribute::$attribute => Ok(Self::$name(Field::read(mad, WholeData))),)*
                    other => Err(MadError::Attribute(other)),
                }
            }

            /// Returns the attribute of messages of this kind; its name is that of the kind.
            pub const fn attribute(&self) -> Attribute {
                match self {
                    $(Self::$name(_) => Attribute::$attribute,)*
                }
            }

            /// Returns the datagram of the message. A response has the transaction id of its request.
            #[allow(clippy::wrong_self_convention, reason = "a message is large, although it is `Copy`")]
            pub fn to_mad(&self, transaction_id: u64) -> Mad {
                let mut mad = Mad {
                    base_version: BASE_VERSION,
                    class: ManagementClass::COMMUNICATION_MANAGEMENT,
                    class_version: CM_VERSION,
                    method: Method::SEND,
                    status: 0,
                    transaction_id,
                    attribute: self.attribute(),
                    modifier: 0,
                    data: [0; MAD_DATA_BYTES],
                };
                match self {
                    $(Self::$name(message) => message.write(&mut mad, WholeData),)*
                }
                mad
            }

            /// Returns whether a message has this attribute.
            pub(super) fn has_attribute(attribute: Attribute) -> bool {
                Self::ATTRIBUTES.contains(&attribute)
            }
        }

        $(impl From<$name> for Message {
            fn from(message: $name) -> Self {
                Self::$name(message)
            }
        })*
    };
}

messages! {
    /// REQ: requests a connection.
    ConnectRequest: CONNECT_REQUEST;
    /// MRA: confirms the receipt of a message whose response takes longer.
    MessageReceipt: MESSAGE_RECEIPT;
    /// REJ: rejects a REQ or REP, or gives up.
    Reject: REJECT;
    /// REP: accepts a REQ.
    ConnectReply: CONNECT_REPLY;
    /// RTU: accepts a REP.
    ReadyToUse: READY_TO_USE;
    /// DREQ: ends a connection.
    DisconnectRequest: DISCONNECT_REQUEST;
    /// DREP: confirms the end of a connection.
    DisconnectReply: DISCONNECT_REPLY;
    /// SIDR_REQ: requests a datagram queue pair.
    ServiceIdRequest: SERVICE_ID_REQUEST;
    /// SIDR_REP: returns a datagram queue pair, or refuses.
    ServiceIdReply: SERVICE_ID_REPLY;
    /// LAP: requests to load an alternate path.
    LoadAlternatePath: LOAD_ALTERNATE_PATH;
    /// APR: accepts or refuses a LAP.
    AlternatePathResponse: ALTERNATE_PATH_RESPONSE;
}
