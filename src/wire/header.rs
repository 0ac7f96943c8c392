//! Headers as values: the base transport header and the extended ones.

use crate::types::{Psn, Qkey, Qpn, Rkey};

use super::opcode::Opcode;

/// Bytes of the base transport header.
pub const BTH_BYTES: usize = 12;

/// Base transport header (IBTA 9.2; `rxe_bth`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// The operation code.
    pub opcode: Opcode,
    /// The receiver's completion counts as solicited.
    pub solicited: bool,
    /// Migration state "migrated", the usual one: adapters send it. rxe does not (`rxe_req.c`, `init_req_packet`).
    /// Ignored when received: there is no path migration.
    pub migrated: bool,
    /// Padding bytes after the payload, 0 to 3.
    pub pad_count: u8,
    /// Partition key (IBTA 10.9.1.2).
    pub pkey: u16,
    /// Forward congestion mark.
    pub fecn: bool,
    /// Backward congestion mark; set in congestion notifications (IBTA A17.9.3).
    pub becn: bool,
    /// Destination queue pair.
    pub destination: Qpn,
    /// The sender requests an acknowledgement.
    pub ack_request: bool,
    /// Sequence number.
    pub psn: Psn,
}

impl Default for Bth {
    fn default() -> Self {
        Self {
            opcode: Opcode::RC_ACKNOWLEDGE,
            solicited: false,
            migrated: true,
            pad_count: 0,
            pkey: crate::types::DEFAULT_PKEY,
            fecn: false,
            becn: false,
            destination: Qpn::default(),
            ack_request: false,
            psn: Psn::default(),
        }
    }
}

impl Bth {
    /// The header of a packet with a payload of this length, and the default in all other fields.
    #[inline]
    pub fn with_payload(opcode: Opcode, payload_bytes: u32) -> Self {
        let pad_count = (payload_bytes.next_multiple_of(4) - payload_bytes) as u8;
        Self { opcode, pad_count, ..Self::default() }
    }

    pub(super) fn parse(bytes: &[u8; BTH_BYTES]) -> Self {
        Self {
            opcode: Opcode(bytes[0]),
            solicited: bytes[1] & 0x80 != 0,
            migrated: bytes[1] & 0x40 != 0,
            pad_count: bytes[1] >> 4 & 3,
            pkey: u16::from_be_bytes([bytes[2], bytes[3]]),
            fecn: bytes[4] & 0x80 != 0,
            becn: bytes[4] & 0x40 != 0,
            destination: Qpn::new(u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]])),
            ack_request: bytes[8] & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, bytes[9], bytes[10], bytes[11]])),
        }
    }

    #[inline]
    pub(super) fn emit(&self) -> [u8; BTH_BYTES] {
        // Built from words: bytes that are stored one by one are slow to copy.
        let flags = u32::from(self.solicited) << 7 | u32::from(self.migrated) << 6 | u32::from(self.pad_count & 3) << 4;
        let first = u32::from(self.opcode.0) << 24 | flags << 16 | u32::from(self.pkey);
        let second = u32::from(self.fecn) << 31 | u32::from(self.becn) << 30 | self.destination.value();
        let third = u32::from(self.ack_request) << 31 | self.psn.value();
        let [first, second, third] = [first, second, third].map(|word| u128::from(word.to_be()));
        let bytes = (first | second << 32 | third << 64).to_le_bytes();
        *bytes.first_chunk().unwrap_or(&[0; BTH_BYTES])
    }
}

/// RDMA extended transport header (IBTA 9.3.3; `rxe_reth`): the target of a WRITE or READ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reth {
    /// First address.
    pub va: u64,
    /// Key.
    pub rkey: Rkey,
    /// Length of the whole access in bytes, also in the first of several packets (`rxe_req.c`, `init_req_packet`).
    pub length: u32,
}

impl Reth {
    pub(super) fn parse(bytes: &[u8; 16]) -> Self {
        let [va, rest] = [u64_at(bytes, 0), u64_at(bytes, 8)];
        Self { va, rkey: Rkey((rest >> 32) as u32), length: rest as u32 }
    }

    pub(super) fn emit(&self) -> [u8; 16] {
        let rest = u64::from(self.rkey.0) << 32 | u64::from(self.length);
        (u128::from(self.va) << 64 | u128::from(rest)).to_be_bytes()
    }
}

/// FLUSH extended transport header (IBTA A19.4.1; `FETH_SEL_MASK`, `FETH_PLT_MASK`): the range to flush, and the
/// placement to reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlushEth {
    /// 0: the range of the RETH; 1: the whole region; 2 and 3 are reserved (IBTA A19.4.1.2).
    pub selectivity: u8,
    /// Bit 0: to global visibility; bit 1: to persistence; bits 2 and 3 are reserved (IBTA A19.4.1.1).
    pub placement: u8,
}

impl FlushEth {
    pub(super) fn parse(bytes: &[u8; 4]) -> Self {
        Self { selectivity: bytes[3] >> 4 & 3, placement: bytes[3] & 0xf }
    }

    pub(super) fn emit(&self) -> [u8; 4] {
        [0, 0, 0, (self.selectivity & 3) << 4 | (self.placement & 0xf)]
    }
}

/// Extended transport header of atomics (`rxe_atmeth`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicEth {
    /// Address, a multiple of eight (IBTA 9.4.5).
    pub va: u64,
    /// Key.
    pub rkey: Rkey,
    /// New value of a compare-and-swap, summand of a fetch-and-add.
    pub swap_or_add: u64,
    /// Expected value of a compare-and-swap; unused otherwise.
    pub compare: u64,
}

impl AtomicEth {
    pub(super) fn parse(bytes: &[u8; 28]) -> Self {
        Self {
            va: u64_at(bytes, 0),
            rkey: Rkey(u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]])),
            swap_or_add: u64_at(bytes, 12),
            compare: u64_at(bytes, 20),
        }
    }

    pub(super) fn emit(&self) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes[0..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.compare.to_be_bytes());
        bytes
    }
}

/// The syndrome of an acknowledgement (`enum aeth_syndrome`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// Acknowledged, with a credit code for the posted receives (IBTA 9.7.7.2; 31, `AETH_ACK_UNLIMITED`: not reported).
    Ack {
        /// Credit code, 0 to 31.
        credit: u8,
    },
    /// No receive is posted; the requester retries after the time with this code (IBTA 9.7.5.2.8).
    ReceiverNotReady {
        /// Timer code, 0 to 31.
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
    /// A value that the standard reserves.
    Reserved(u8),
}

/// Why a request was refused (IBTA 9.7.5.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NakCode {
    /// A packet before this one is missing (`AETH_NAK_PSN_SEQ_ERROR`).
    SequenceError,
    /// The request is not valid (`AETH_NAK_INVALID_REQ`).
    InvalidRequest,
    /// Key, bounds or access flags do not allow it (IBTA 9.7.5.2.4; `AETH_NAK_REM_ACC_ERR`).
    RemoteAccess,
    /// It could not be executed (`AETH_NAK_REM_OP_ERR`).
    RemoteOperational,
    /// Not valid for a reliable datagram (`AETH_NAK_INV_RD_REQ`).
    InvalidRdRequest,
    /// A code that the standard reserves.
    Other(u8),
}

impl Syndrome {
    pub(super) fn parse(byte: u8) -> Self {
        let value = byte & 0x1f;
        match byte >> 5 {
            0 => Self::Ack { credit: value },
            1 => Self::ReceiverNotReady { timer: value },
            3 => Self::Nak(match value {
                0 => NakCode::SequenceError,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccess,
                3 => NakCode::RemoteOperational,
                4 => NakCode::InvalidRdRequest,
                other => NakCode::Other(other),
            }),
            _ => Self::Reserved(byte),
        }
    }

    pub(super) fn emit(self) -> u8 {
        match self {
            Self::Ack { credit } => credit & 0x1f,
            Self::ReceiverNotReady { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => {
                let value = match code {
                    NakCode::SequenceError => 0,
                    NakCode::InvalidRequest => 1,
                    NakCode::RemoteAccess => 2,
                    NakCode::RemoteOperational => 3,
                    NakCode::InvalidRdRequest => 4,
                    NakCode::Other(value) => value & 0x1f,
                };
                0x60 | value
            }
            Self::Reserved(byte) => byte,
        }
    }
}

/// Acknowledgement extended transport header (`rxe_aeth`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// The syndrome.
    pub syndrome: Syndrome,
    /// Messages that the responder completed, modulo 2^24.
    pub msn: u32,
}

impl Aeth {
    pub(super) fn parse(bytes: &[u8; 4]) -> Self {
        Self { syndrome: Syndrome::parse(bytes[0]), msn: u32::from_be_bytes([0, bytes[1], bytes[2], bytes[3]]) }
    }

    pub(super) fn emit(&self) -> [u8; 4] {
        let mut bytes = self.msn.to_be_bytes();
        bytes[0] = self.syndrome.emit();
        bytes
    }
}

/// Datagram extended transport header (`rxe_deth`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deth {
    /// Queue key of the receiving queue pair (IBTA 3.5.3).
    pub qkey: Qkey,
    /// Source queue pair.
    pub source: Qpn,
}

impl Deth {
    pub(super) fn parse(bytes: &[u8; 8]) -> Self {
        let whole = u64_at(bytes, 0);
        Self { qkey: Qkey((whole >> 32) as u32), source: Qpn::new(whole as u32) }
    }

    pub(super) fn emit(&self) -> [u8; 8] {
        (u64::from(self.qkey.0) << 32 | u64::from(self.source.value())).to_be_bytes()
    }
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_be_bytes(value)
}
