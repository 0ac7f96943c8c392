//! Numbers of messages: identifiers, and fields that are narrower than their type.

use std::fmt;
use std::time::Duration;

use crate::types::Mtu;

use super::field::{Bits, bits};

/// Number that one end of a connection gives to it. Each message has the sender's and the receiver's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct CommunicationId(pub u32);

impl CommunicationId {
    /// No number: a REJ has it if its sender has not given the connection a number, or does not know that of the peer.
    /// Linux accepts a REQ with this number.
    pub const NONE: Self = Self(0);
}

impl fmt::Display for CommunicationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

bits! {
    CommunicationId: 32, |bits| CommunicationId(bits as u32), |id| id.0.into();
}

/// Defines numbers with fewer bits than their type. No value of such a type exceeds its field.
macro_rules! narrow {
    ($($(#[$doc:meta])* $name:ident: $width:literal of $int:ident, $constructor:ident;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        #[repr(transparent)]
        pub struct $name($int);

        impl $name {
            /// The largest value.
            pub const MAX: Self = Self($int::MAX >> ($int::BITS - $width));

            narrow!(@$constructor $int $width);

            /// Returns the number.
            pub const fn value(self) -> $int {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        bits! {
            $name: $width, |bits| $name(bits as $int), |number| number.0.into();
        }
    )* };
    (@saturating $int:ident $width:literal) => {
        #[doc = concat!("Creates the number `value`, or the largest of ", $width, " bits if that is smaller.")]
        pub const fn saturating(value: $int) -> Self {
            if value > Self::MAX.0 { Self::MAX } else { Self(value) }
        }
    };
    (@checked $int:ident $width:literal) => {
        #[doc = concat!("Creates the number `value`, or returns `None` if it has more than ", $width, " bits.")]
        pub const fn new(value: $int) -> Option<Self> {
            if value > Self::MAX.0 { None } else { Some(Self(value)) }
        }
    };
    (@low_bits $int:ident $width:literal) => {
        #[doc = concat!("Creates the number with the low ", $width, " bits of `value`.")]
        pub const fn new(value: $int) -> Self {
            Self(value & Self::MAX.0)
        }
    };
}

narrow! {
    /// A time of 4.096 µs · 2^code, code 0 to 31: 20 is 4.3 s, 31 is 2.4 hours. Linux rounds it to 2^(code - 8) ms, at
    /// least 1 ms (`cm.c`, `cm_convert_to_ms`).
    TimeoutCode: 5 of u8, saturating;
    /// Number of times that a queue pair repeats a packet, 0 to 7. For a receiver that is not ready, 7 means without
    /// limit.
    RetryCount: 3 of u8, saturating;
    /// Number of times that the connection manager repeats a message, 0 to 15.
    MessageRetries: 4 of u8, saturating;
    /// Code of a path MTU, 0 to 15. 1 to 5 are in use.
    MtuCode: 4 of u8, checked;
    /// Code of the static rate of a path, 0 to 63. 0 on Ethernet.
    PacketRate: 6 of u8, checked;
    /// Service level, 0 to 15. 0 on Ethernet without priorities.
    ServiceLevel: 4 of u8, checked;
    /// Transport that [`TransportType::Extended`](super::TransportType::Extended) stands for, 0 to 7: 1 is XRC.
    ExtendedTransport: 3 of u8, checked;
    /// Whether the responder accepts the alternate path, 0 to 3: 0 if it does.
    FailoverStatus: 2 of u8, checked;
    /// Flow label, 20 bits: that of IPv6, and entropy for the UDP source port.
    FlowLabel: 20 of u32, low_bits;
    /// Number of an end-to-end context, 24 bits: of reliable datagrams. A REP has the number of an XRC target queue
    /// pair there.
    EndToEndContext: 24 of u32, low_bits;
    /// A vendor's IEEE identifier, 24 bits; 0: none.
    VendorId: 24 of u32, low_bits;
}

impl TimeoutCode {
    /// Returns the time as the standard has it, not rounded.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4_096 << self.0)
    }
}

impl MtuCode {
    /// Returns the path MTU, or `None` for the codes 0 and 6 to 15.
    pub fn mtu(self) -> Option<Mtu> {
        Mtu::from_code(self.0)
    }
}

impl From<Mtu> for MtuCode {
    fn from(mtu: Mtu) -> Self {
        Self(mtu as u8)
    }
}

impl ExtendedTransport {
    /// Extended reliable connection (IBTA A14).
    pub const XRC: Self = Self(1);
}

/// Defines codes of two bits, all of which have a meaning or a name.
macro_rules! two_bit_codes {
    ($($(#[$doc:meta])* $name:ident {
        $(#[$zero_doc:meta])* $zero:ident, $(#[$one_doc:meta])* $one:ident,
        $(#[$two_doc:meta])* $two:ident, $(#[$three_doc:meta])* $three:ident,
    })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        #[repr(u8)]
        pub enum $name {
            $(#[$zero_doc])*
            #[default]
            $zero = 0,
            $(#[$one_doc])*
            $one = 1,
            $(#[$two_doc])*
            $two = 2,
            $(#[$three_doc])*
            $three = 3,
        }

        bits! {
            $name: 2, |bits| match bits & 3 {
                0 => $name::$zero,
                1 => $name::$one,
                2 => $name::$two,
                _ => $name::$three,
            }, |code| (code as u8).into();
        }
    )* };
}

two_bit_codes! {
    /// Transport service of the queue pairs that are to be connected.
    TransportType {
        /// Reliable connection.
        ReliableConnection,
        /// Unreliable connection.
        UnreliableConnection,
        /// Reliable datagrams.
        ReliableDatagram,
        /// One of [`ExtendedTransport`].
        Extended,
    }
    /// The message that a REJ rejects.
    RejectedMessage {
        /// A REQ.
        ConnectRequest,
        /// A REP.
        ConnectReply,
        /// Another message, or none: the sender gives up.
        Other,
        /// A code that the standard reserves.
        Reserved,
    }
    /// The message whose receipt an MRA confirms.
    ReceivedMessage {
        /// A REQ.
        ConnectRequest,
        /// A REP.
        ConnectReply,
        /// A LAP.
        LoadAlternatePath,
        /// A code that the standard reserves.
        Reserved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_within_their_fields() {
        assert_eq!(TimeoutCode::saturating(255).value(), 31);
        assert_eq!(TimeoutCode::saturating(32), TimeoutCode::MAX);
        assert_eq!(TimeoutCode::saturating(20).value(), 20);
        assert_eq!(RetryCount::saturating(8).value(), 7);
        assert_eq!(MessageRetries::saturating(16).value(), 15);
        assert_eq!([MtuCode::new(15).map(MtuCode::value), MtuCode::new(16).map(MtuCode::value)], [Some(15), None]);
        assert_eq!([PacketRate::new(63).is_some(), PacketRate::new(64).is_some()], [true, false]);
        assert_eq!([ServiceLevel::new(15).is_some(), ServiceLevel::new(16).is_some()], [true, false]);
        assert_eq!([ExtendedTransport::new(7).is_some(), ExtendedTransport::new(8).is_some()], [true, false]);
        assert_eq!([FailoverStatus::new(3).is_some(), FailoverStatus::new(4).is_some()], [true, false]);
        assert_eq!(FlowLabel::new(0xabc1_2345).value(), 0x1_2345);
        assert_eq!(EndToEndContext::new(u32::MAX).value(), 0xff_ffff);
        assert_eq!(VendorId::new(0x0100_15b3).value(), 0x15b3);
    }

    #[test]
    fn mtu_codes_are_those_of_the_standard() {
        for code in 0..16 {
            let mtu = MtuCode::new(code).unwrap().mtu();
            assert_eq!(mtu.is_some(), (1..=5).contains(&code), "{code}");
            assert!(mtu.is_none_or(|mtu| MtuCode::from(mtu).value() == code && mtu.bytes() == 128 << code));
        }
    }
}
