//! Operation codes: one row per code, with the kind of packet and the headers that it carries (IBTA 9.2;
//! `rxe_opcode.c`).
//!
//! The codes of RC, UC and UD are those of `ib_pack.h`. Those of XRC are the codes of RC under another prefix, and its
//! requests have one header more (IBTA A14).

use std::fmt;

/// Operation code of a packet: three bits of transport service, five of operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Opcode(pub u8);

/// Transport service of an operation code.
///
/// The numbers are the upper three bits of the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    ReliableConnection = 0,
    /// Unreliable connection.
    UnreliableConnection = 0x20,
    /// Unreliable datagram.
    UnreliableDatagram = 0x60,
    /// Extended reliable connection.
    ExtendedReliableConnection = 0xa0,
    /// Congestion notification, which belongs to no service (IBTA A10.3.2).
    CongestionNotification = 0x80,
}

bitflags::bitflags! {
    /// The kind of packet of an operation code, and the headers that it carries.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct Traits: u32 {
        const FIRST = 1;
        const MIDDLE = 1 << 1;
        const LAST = 1 << 2;
        const ONLY = 1 << 3;
        const SEND = 1 << 4;
        const WRITE = 1 << 5;
        const RESPONSE = 1 << 6;
        const PAYLOAD = 1 << 7;
        const DETH = 1 << 8;
        const RETH = 1 << 9;
        const ATOMIC = 1 << 10;
        const AETH = 1 << 11;
        const ATOMIC_ACK = 1 << 12;
        const IMMEDIATE = 1 << 13;
        const INVALIDATE = 1 << 14;
        const XRC = 1 << 20;
        const FLUSH = 1 << 15;
    }
}

struct Row {
    opcode: Opcode,
    name: &'static str,
    traits: Traits,
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $label:literal, [$($flag:ident)|*];)*) => {
        impl Opcode {
            $($(#[$doc])* pub const $name: Opcode = Opcode($code);)*

            /// All known operation codes.
            #[cfg(feature = "sim")]
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];
        }

        const ROWS: &[Row] = &[$(
            Row { opcode: Opcode::$name, name: $label, traits: Traits::empty()$(.union(Traits::$flag))* },
        )*];
    };
}

opcodes! {
    /// First packet of a SEND.
    RC_SEND_FIRST = 0x00, "RC SEND_FIRST", [FIRST | SEND | PAYLOAD];
    /// Packet inside a SEND.
    RC_SEND_MIDDLE = 0x01, "RC SEND_MIDDLE", [MIDDLE | SEND | PAYLOAD];
    /// Last packet of a SEND.
    RC_SEND_LAST = 0x02, "RC SEND_LAST", [LAST | SEND | PAYLOAD];
    /// Last packet of a SEND with immediate data.
    RC_SEND_LAST_IMMEDIATE = 0x03, "RC SEND_LAST_IMM", [LAST | SEND | PAYLOAD | IMMEDIATE];
    /// A SEND of one packet.
    RC_SEND_ONLY = 0x04, "RC SEND_ONLY", [ONLY | SEND | PAYLOAD];
    /// A SEND of one packet with immediate data.
    RC_SEND_ONLY_IMMEDIATE = 0x05, "RC SEND_ONLY_IMM", [ONLY | SEND | PAYLOAD | IMMEDIATE];
    /// First packet of a WRITE.
    RC_WRITE_FIRST = 0x06, "RC WRITE_FIRST", [FIRST | WRITE | PAYLOAD | RETH];
    /// Packet inside a WRITE.
    RC_WRITE_MIDDLE = 0x07, "RC WRITE_MIDDLE", [MIDDLE | WRITE | PAYLOAD];
    /// Last packet of a WRITE.
    RC_WRITE_LAST = 0x08, "RC WRITE_LAST", [LAST | WRITE | PAYLOAD];
    /// Last packet of a WRITE with immediate data.
    RC_WRITE_LAST_IMMEDIATE = 0x09, "RC WRITE_LAST_IMM", [LAST | WRITE | PAYLOAD | IMMEDIATE];
    /// A WRITE of one packet.
    RC_WRITE_ONLY = 0x0a, "RC WRITE_ONLY", [ONLY | WRITE | PAYLOAD | RETH];
    /// A WRITE of one packet with immediate data.
    RC_WRITE_ONLY_IMMEDIATE = 0x0b, "RC WRITE_ONLY_IMM", [ONLY | WRITE | PAYLOAD | RETH | IMMEDIATE];
    /// Request to READ.
    RC_READ_REQUEST = 0x0c, "RC READ_REQUEST", [ONLY | RETH];
    /// First packet of a READ response.
    RC_READ_RESPONSE_FIRST = 0x0d, "RC READ_RESPONSE_FIRST", [FIRST | RESPONSE | PAYLOAD | AETH];
    /// Packet inside a READ response.
    RC_READ_RESPONSE_MIDDLE = 0x0e, "RC READ_RESPONSE_MIDDLE", [MIDDLE | RESPONSE | PAYLOAD];
    /// Last packet of a READ response.
    RC_READ_RESPONSE_LAST = 0x0f, "RC READ_RESPONSE_LAST", [LAST | RESPONSE | PAYLOAD | AETH];
    /// A READ response of one packet.
    RC_READ_RESPONSE_ONLY = 0x10, "RC READ_RESPONSE_ONLY", [ONLY | RESPONSE | PAYLOAD | AETH];
    /// Acknowledgement or NAK.
    RC_ACKNOWLEDGE = 0x11, "RC ACKNOWLEDGE", [ONLY | RESPONSE | AETH | PAYLOAD];
    /// Response to an atomic.
    RC_ATOMIC_ACKNOWLEDGE = 0x12, "RC ATOMIC_ACKNOWLEDGE", [ONLY | RESPONSE | AETH | ATOMIC_ACK];
    /// Compare-and-swap.
    RC_COMPARE_SWAP = 0x13, "RC COMPARE_SWAP", [ONLY | ATOMIC];
    /// Fetch-and-add.
    RC_FETCH_ADD = 0x14, "RC FETCH_ADD", [ONLY | ATOMIC];
    /// Last packet of a SEND that invalidates a key.
    RC_SEND_LAST_INVALIDATE = 0x16, "RC SEND_LAST_INV", [LAST | SEND | PAYLOAD | INVALIDATE];
    /// A SEND of one packet that invalidates a key.
    RC_SEND_ONLY_INVALIDATE = 0x17, "RC SEND_ONLY_INV", [ONLY | SEND | PAYLOAD | INVALIDATE];
    /// Flush of the peer's memory (IBTA A19.4.1; `IB_OPCODE_FLUSH`).
    RC_FLUSH = 0x1c, "RC FLUSH", [ONLY | FLUSH | RETH];
    /// Atomic write of eight bytes (IBTA A19.4.2; `IB_OPCODE_ATOMIC_WRITE`).
    RC_ATOMIC_WRITE = 0x1d, "RC ATOMIC_WRITE", [ONLY | RETH | PAYLOAD];
    /// First packet of an unreliable SEND.
    UC_SEND_FIRST = 0x20, "UC SEND_FIRST", [FIRST | SEND | PAYLOAD];
    /// Packet inside an unreliable SEND.
    UC_SEND_MIDDLE = 0x21, "UC SEND_MIDDLE", [MIDDLE | SEND | PAYLOAD];
    /// Last packet of an unreliable SEND.
    UC_SEND_LAST = 0x22, "UC SEND_LAST", [LAST | SEND | PAYLOAD];
    /// Last packet of an unreliable SEND with immediate data.
    UC_SEND_LAST_IMMEDIATE = 0x23, "UC SEND_LAST_IMM", [LAST | SEND | PAYLOAD | IMMEDIATE];
    /// An unreliable SEND of one packet.
    UC_SEND_ONLY = 0x24, "UC SEND_ONLY", [ONLY | SEND | PAYLOAD];
    /// An unreliable SEND of one packet with immediate data.
    UC_SEND_ONLY_IMMEDIATE = 0x25, "UC SEND_ONLY_IMM", [ONLY | SEND | PAYLOAD | IMMEDIATE];
    /// First packet of an unreliable WRITE.
    UC_WRITE_FIRST = 0x26, "UC WRITE_FIRST", [FIRST | WRITE | PAYLOAD | RETH];
    /// Packet inside an unreliable WRITE.
    UC_WRITE_MIDDLE = 0x27, "UC WRITE_MIDDLE", [MIDDLE | WRITE | PAYLOAD];
    /// Last packet of an unreliable WRITE.
    UC_WRITE_LAST = 0x28, "UC WRITE_LAST", [LAST | WRITE | PAYLOAD];
    /// Last packet of an unreliable WRITE with immediate data.
    UC_WRITE_LAST_IMMEDIATE = 0x29, "UC WRITE_LAST_IMM", [LAST | WRITE | PAYLOAD | IMMEDIATE];
    /// An unreliable WRITE of one packet.
    UC_WRITE_ONLY = 0x2a, "UC WRITE_ONLY", [ONLY | WRITE | PAYLOAD | RETH];
    /// An unreliable WRITE of one packet with immediate data.
    UC_WRITE_ONLY_IMMEDIATE = 0x2b, "UC WRITE_ONLY_IMM", [ONLY | WRITE | PAYLOAD | RETH | IMMEDIATE];
    /// A datagram.
    UD_SEND_ONLY = 0x64, "UD SEND_ONLY", [ONLY | SEND | PAYLOAD | DETH];
    /// A datagram with immediate data.
    UD_SEND_ONLY_IMMEDIATE = 0x65, "UD SEND_ONLY_IMM", [ONLY | SEND | PAYLOAD | DETH | IMMEDIATE];
    /// First packet of an extended SEND.
    XRC_SEND_FIRST = 0xa0, "XRC SEND_FIRST", [FIRST | SEND | PAYLOAD | XRC];
    /// Packet inside an extended SEND.
    XRC_SEND_MIDDLE = 0xa1, "XRC SEND_MIDDLE", [MIDDLE | SEND | PAYLOAD | XRC];
    /// Last packet of an extended SEND.
    XRC_SEND_LAST = 0xa2, "XRC SEND_LAST", [LAST | SEND | PAYLOAD | XRC];
    /// Last packet of an extended SEND with immediate data.
    XRC_SEND_LAST_IMMEDIATE = 0xa3, "XRC SEND_LAST_IMM", [LAST | SEND | PAYLOAD | IMMEDIATE | XRC];
    /// An extended SEND of one packet.
    XRC_SEND_ONLY = 0xa4, "XRC SEND_ONLY", [ONLY | SEND | PAYLOAD | XRC];
    /// An extended SEND of one packet with immediate data.
    XRC_SEND_ONLY_IMMEDIATE = 0xa5, "XRC SEND_ONLY_IMM", [ONLY | SEND | PAYLOAD | IMMEDIATE | XRC];
    /// First packet of an extended WRITE.
    XRC_WRITE_FIRST = 0xa6, "XRC WRITE_FIRST", [FIRST | WRITE | PAYLOAD | RETH | XRC];
    /// Packet inside an extended WRITE.
    XRC_WRITE_MIDDLE = 0xa7, "XRC WRITE_MIDDLE", [MIDDLE | WRITE | PAYLOAD | XRC];
    /// Last packet of an extended WRITE.
    XRC_WRITE_LAST = 0xa8, "XRC WRITE_LAST", [LAST | WRITE | PAYLOAD | XRC];
    /// Last packet of an extended WRITE with immediate data.
    XRC_WRITE_LAST_IMMEDIATE = 0xa9, "XRC WRITE_LAST_IMM", [LAST | WRITE | PAYLOAD | IMMEDIATE | XRC];
    /// An extended WRITE of one packet.
    XRC_WRITE_ONLY = 0xaa, "XRC WRITE_ONLY", [ONLY | WRITE | PAYLOAD | RETH | XRC];
    /// An extended WRITE of one packet with immediate data.
    XRC_WRITE_ONLY_IMMEDIATE = 0xab, "XRC WRITE_ONLY_IMM", [ONLY | WRITE | PAYLOAD | RETH | IMMEDIATE | XRC];
    /// Request to READ over an extended connection.
    XRC_READ_REQUEST = 0xac, "XRC READ_REQUEST", [ONLY | RETH | XRC];
    /// First packet of an extended READ response.
    XRC_READ_RESPONSE_FIRST = 0xad, "XRC READ_RESPONSE_FIRST", [FIRST | RESPONSE | PAYLOAD | AETH];
    /// Packet inside an extended READ response.
    XRC_READ_RESPONSE_MIDDLE = 0xae, "XRC READ_RESPONSE_MIDDLE", [MIDDLE | RESPONSE | PAYLOAD];
    /// Last packet of an extended READ response.
    XRC_READ_RESPONSE_LAST = 0xaf, "XRC READ_RESPONSE_LAST", [LAST | RESPONSE | PAYLOAD | AETH];
    /// An extended READ response of one packet.
    XRC_READ_RESPONSE_ONLY = 0xb0, "XRC READ_RESPONSE_ONLY", [ONLY | RESPONSE | PAYLOAD | AETH];
    /// Acknowledgement or NAK of an extended connection.
    XRC_ACKNOWLEDGE = 0xb1, "XRC ACKNOWLEDGE", [ONLY | RESPONSE | AETH | PAYLOAD];
    /// Response to an extended atomic.
    XRC_ATOMIC_ACKNOWLEDGE = 0xb2, "XRC ATOMIC_ACKNOWLEDGE", [ONLY | RESPONSE | AETH | ATOMIC_ACK];
    /// Compare-and-swap over an extended connection.
    XRC_COMPARE_SWAP = 0xb3, "XRC COMPARE_SWAP", [ONLY | ATOMIC | XRC];
    /// Fetch-and-add over an extended connection.
    XRC_FETCH_ADD = 0xb4, "XRC FETCH_ADD", [ONLY | ATOMIC | XRC];
    /// Last packet of an extended SEND that invalidates a key.
    XRC_SEND_LAST_INVALIDATE = 0xb6, "XRC SEND_LAST_INV", [LAST | SEND | PAYLOAD | INVALIDATE | XRC];
    /// An extended SEND of one packet that invalidates a key.
    XRC_SEND_ONLY_INVALIDATE = 0xb7, "XRC SEND_ONLY_INV", [ONLY | SEND | PAYLOAD | INVALIDATE | XRC];
    /// Flush of the peer's memory over an extended connection.
    XRC_FLUSH = 0xbc, "XRC FLUSH", [ONLY | FLUSH | RETH | XRC];
    /// Atomic write of eight bytes over an extended connection.
    XRC_ATOMIC_WRITE = 0xbd, "XRC ATOMIC_WRITE", [ONLY | RETH | PAYLOAD | XRC];
    /// Congestion notification (IBTA A17.9.3); its 16 reserved bytes count as payload.
    CNP = 0x81, "CNP", [ONLY | PAYLOAD];
}

/// By code: 1 + the index of its row; 0 if unknown.
const ROW_NUMBERS: [u8; 256] = {
    let mut numbers = [0; 256];
    let mut index = 0;
    while index < ROWS.len() {
        numbers[ROWS[index].opcode.0 as usize] = index as u8 + 1;
        index += 1;
    }
    numbers
};

/// By code: its traits, and the bytes of its extended headers. A table, because every packet needs them several times.
static BY_CODE: [(Traits, u8); 256] = {
    let mut table = [(Traits::empty(), 0); 256];
    let mut index = 0;
    while index < ROWS.len() {
        let Row { opcode, traits, .. } = &ROWS[index];
        table[opcode.0 as usize] = (*traits, extended_bytes(*traits));
        index += 1;
    }
    table
};

const fn extended_bytes(traits: Traits) -> u8 {
    const SIZES: [(Traits, u8); 9] = [
        (Traits::XRC, 4),
        (Traits::DETH, 8),
        (Traits::FLUSH, 4),
        (Traits::RETH, 16),
        (Traits::ATOMIC, 28),
        (Traits::AETH, 4),
        (Traits::ATOMIC_ACK, 8),
        (Traits::IMMEDIATE, 4),
        (Traits::INVALIDATE, 4),
    ];
    let (mut sum, mut index) = (0, 0);
    while index < SIZES.len() {
        if traits.contains(SIZES[index].0) {
            sum += SIZES[index].1;
        }
        index += 1;
    }
    sum
}

impl Opcode {
    fn row(self) -> Option<&'static Row> {
        match ROW_NUMBERS[usize::from(self.0)] {
            0 => None,
            number => Some(&ROWS[usize::from(number) - 1]),
        }
    }

    #[inline]
    pub(super) fn traits(self) -> Traits {
        BY_CODE[usize::from(self.0)].0
    }

    /// Whether the code is known.
    #[inline]
    pub fn is_known(self) -> bool {
        // Every known code has traits.
        !self.traits().is_empty()
    }

    /// Its name, service first.
    pub fn name(self) -> &'static str {
        self.row().map_or("unknown", |row| row.name)
    }

    /// The transport service that it belongs to.
    pub fn service(self) -> Option<Service> {
        match self.0 >> 5 {
            0 => Some(Service::ReliableConnection),
            1 => Some(Service::UnreliableConnection),
            3 => Some(Service::UnreliableDatagram),
            4 => Some(Service::CongestionNotification),
            5 => Some(Service::ExtendedReliableConnection),
            _ => None,
        }
    }

    /// The code of the same operation in another service.
    pub const fn of(self, service: Service) -> Self {
        Self(service as u8 | (self.0 & 0x1f))
    }

    /// Whether it goes from a requester to a responder.
    pub fn is_request(self) -> bool {
        self.is_known() && !self.is_response() && self != Self::CNP
    }

    /// Whether it goes from a responder to a requester.
    pub fn is_response(self) -> bool {
        self.traits().contains(Traits::RESPONSE)
    }

    /// Whether it carries data of a READ.
    pub fn is_read_response(self) -> bool {
        let reliable = self.of(Service::ReliableConnection);
        let is_data = (Self::RC_READ_RESPONSE_FIRST.0..=Self::RC_READ_RESPONSE_ONLY.0).contains(&reliable.0);
        is_data && self.is_response()
    }

    /// Whether it begins a message of several packets.
    pub fn is_first(self) -> bool {
        self.traits().contains(Traits::FIRST)
    }

    /// Whether it is neither the first nor the last packet of its message.
    pub fn is_middle(self) -> bool {
        self.traits().contains(Traits::MIDDLE)
    }

    /// Whether it ends a message of several packets.
    pub fn is_last(self) -> bool {
        self.traits().contains(Traits::LAST)
    }

    /// Whether it is the only packet of its message.
    pub fn is_only(self) -> bool {
        self.traits().contains(Traits::ONLY)
    }

    /// Whether it ends a WRITE without immediate data, of which the receiver's application is not notified.
    pub fn ends_silent_write(self) -> bool {
        let traits = self.traits();
        let ends = traits.intersects(Traits::LAST.union(Traits::ONLY));
        traits.contains(Traits::WRITE) && ends && !traits.contains(Traits::IMMEDIATE)
    }

    /// Whether it is part of a SEND of any kind.
    pub fn is_send(self) -> bool {
        self.traits().contains(Traits::SEND)
    }

    /// Whether it is part of a WRITE.
    pub fn is_write(self) -> bool {
        self.traits().contains(Traits::WRITE)
    }

    /// Whether it carries immediate data.
    pub fn has_immediate(self) -> bool {
        self.traits().contains(Traits::IMMEDIATE)
    }

    /// Bytes of the extended headers between base transport header and payload.
    #[inline]
    pub fn extended_bytes(self) -> usize {
        BY_CODE[usize::from(self.0)].1.into()
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({:#04x} {})", self.0, self.name())
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_lengths_are_those_of_the_standard() {
        let lengths = [
            (Opcode::RC_SEND_ONLY, 12),
            (Opcode::RC_SEND_ONLY_IMMEDIATE, 16),
            (Opcode::RC_SEND_ONLY_INVALIDATE, 16),
            (Opcode::RC_ACKNOWLEDGE, 16),
            (Opcode::RC_ATOMIC_ACKNOWLEDGE, 24),
            (Opcode::RC_WRITE_FIRST, 28),
            (Opcode::RC_READ_REQUEST, 28),
            (Opcode::RC_WRITE_ONLY_IMMEDIATE, 32),
            (Opcode::RC_COMPARE_SWAP, 40),
            (Opcode::XRC_SEND_ONLY, 16),
            (Opcode::XRC_WRITE_ONLY_IMMEDIATE, 36),
            (Opcode::XRC_FETCH_ADD, 44),
            (Opcode::XRC_ACKNOWLEDGE, 16),
            (Opcode::RC_FLUSH, 32),
            (Opcode::RC_ATOMIC_WRITE, 28),
            (Opcode::UD_SEND_ONLY, 20),
            (Opcode::UD_SEND_ONLY_IMMEDIATE, 24),
        ];
        for (opcode, length) in lengths {
            assert_eq!(12 + opcode.extended_bytes(), length, "{opcode}");
        }
    }

    #[test]
    fn each_code_is_first_middle_last_or_only() {
        for opcode in Opcode::ALL {
            let positions = [opcode.is_first(), opcode.is_middle(), opcode.is_last(), opcode.is_only()];
            assert_eq!(positions.into_iter().filter(|position| *position).count(), 1, "{opcode}");
        }
        assert!(!Opcode(0x15).is_known() && !Opcode(0xb5).is_known() && !Opcode(0x40).is_known());
    }
}
