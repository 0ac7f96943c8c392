//! A packet: all its headers as a value, and its payload.

use std::fmt;

use crate::types::{DropReason, Rkey, SharedReceiveQueueNumber};

use super::header::{Aeth, AtomicEth, BTH_BYTES, Bth, Deth, FlushEth, Reth};
use super::opcode::{Opcode, Traits};

/// Bytes of the invariant CRC at the end of a packet (IBTA 7.8.1).
pub const ICRC_BYTES: usize = 4;
/// Bytes of an acknowledgement's extended header.
const AETH_BYTES: usize = 4;

/// The headers of one packet. The opcode determines which ones it has; the others are ignored when it is emitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Headers {
    /// Base transport header.
    pub bth: Bth,
    /// The shared receive queue that an extended connection's request is for (IBTA A14).
    pub xrc_srq: Option<SharedReceiveQueueNumber>,
    /// Datagram header.
    pub deth: Option<Deth>,
    /// The parameters of a FLUSH.
    pub flush: Option<FlushEth>,
    /// The target of a WRITE or READ.
    pub reth: Option<Reth>,
    /// An atomic's operands.
    pub atomic: Option<AtomicEth>,
    /// Acknowledgement.
    pub aeth: Option<Aeth>,
    /// The value before an atomic.
    pub atomic_ack: Option<u64>,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Key to invalidate.
    pub invalidate: Option<Rkey>,
}

/// A parsed packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// Its headers.
    pub headers: Headers,
    /// Its payload, without padding.
    pub payload: &'a [u8],
}

/// Takes headers off the front of the packet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Returns the payload after `extended` bytes of extended headers, without padding.
    #[inline]
    fn payload(&self, extended: usize, bth: &Bth, traits: Traits) -> Result<&'a [u8], DropReason> {
        let rest = self.0.get(extended..).ok_or(DropReason::Truncated)?;
        let length = rest.len().checked_sub(usize::from(bth.pad_count)).ok_or(DropReason::BadLength)?;
        if !traits.contains(Traits::PAYLOAD) && !rest.is_empty() {
            return Err(DropReason::BadLength);
        }
        Ok(&rest[..length])
    }

    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], DropReason> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(DropReason::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn take_if<const N: usize, T>(
        &mut self,
        present: bool,
        parse: impl FnOnce(&[u8; N]) -> T,
    ) -> Result<Option<T>, DropReason> {
        if present { self.take().map(|bytes| Some(parse(bytes))) } else { Ok(None) }
    }
}

impl<'a> Packet<'a> {
    /// Parses a datagram's payload, from the base transport header to the ICRC. Checks lengths, version and opcode
    /// (IBTA 9.6; `rxe_recv.c`, `rxe_rcv` and `hdr_check`), not the ICRC; the error says why a packet must be dropped.
    pub fn parse(udp_payload: &'a [u8]) -> Result<Self, DropReason> {
        if udp_payload.len() < BTH_BYTES + ICRC_BYTES {
            return Err(DropReason::Truncated);
        }
        let mut reader = Reader(&udp_payload[..udp_payload.len() - ICRC_BYTES]);
        let base = reader.take()?;
        let bth = Bth::parse(base);
        if !bth.opcode.is_known() {
            return Err(DropReason::UnknownOpcode);
        }
        if base[1] & 0x0f != 0 {
            return Err(DropReason::BadVersion);
        }
        if !udp_payload.len().is_multiple_of(4) {
            return Err(DropReason::BadLength);
        }
        let traits = bth.opcode.traits();
        let extended = bth.opcode.extended_bytes();
        let payload = reader.payload(extended, &bth, traits)?;
        let aeth = match extended {
            0 => None,
            // Most packets with extended headers have only this one.
            AETH_BYTES if traits.contains(Traits::AETH) => Some(Aeth::parse(reader.take()?)),
            _ => return Self::parse_extended(bth, traits, reader, payload),
        };
        Ok(Self { headers: Headers { bth, aeth, ..Headers::default() }, payload })
    }

    fn parse_extended(bth: Bth, traits: Traits, mut reader: Reader<'a>, payload: &'a [u8]) -> Result<Self, DropReason> {
        let headers = Headers {
            bth,
            xrc_srq: reader.take_if(traits.contains(Traits::XRC), |bytes| {
                SharedReceiveQueueNumber::new(u32::from_be_bytes(*bytes))
            })?,
            deth: reader.take_if(traits.contains(Traits::DETH), Deth::parse)?,
            flush: reader.take_if(traits.contains(Traits::FLUSH), FlushEth::parse)?,
            reth: reader.take_if(traits.contains(Traits::RETH), Reth::parse)?,
            atomic: reader.take_if(traits.contains(Traits::ATOMIC), AtomicEth::parse)?,
            aeth: reader.take_if(traits.contains(Traits::AETH), Aeth::parse)?,
            atomic_ack: reader.take_if(traits.contains(Traits::ATOMIC_ACK), |bytes| u64::from_be_bytes(*bytes))?,
            immediate: reader.take_if(traits.contains(Traits::IMMEDIATE), |bytes| u32::from_be_bytes(*bytes))?,
            invalidate: reader
                .take_if(traits.contains(Traits::INVALIDATE), |bytes| Rkey(u32::from_be_bytes(*bytes)))?,
        };
        Ok(Self { headers, payload })
    }
}

/// Writes headers one after the other.
struct Writer<'a> {
    out: &'a mut [u8],
    length: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }
}

impl Headers {
    /// Bytes from the base transport header to the payload.
    #[cfg(feature = "sim")]
    pub fn length(&self) -> usize {
        header_bytes(self.bth.opcode)
    }

    /// Writes the headers that the opcode has; those missing are written as zeros. Returns their length.
    ///
    /// # Panics
    /// If `out` is shorter than [`Headers::length`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let mut writer = Writer { out, length: 0 };
        writer.put(&self.bth.emit());
        if self.bth.opcode.extended_bytes() > 0 {
            self.emit_extended(&mut writer);
        }
        writer.length
    }

    fn emit_extended(&self, writer: &mut Writer<'_>) {
        let traits = self.bth.opcode.traits();
        if traits.contains(Traits::XRC) {
            writer.put(&self.xrc_srq.unwrap_or_default().value().to_be_bytes());
        }
        if traits.contains(Traits::DETH) {
            writer.put(&self.deth.unwrap_or_default().emit());
        }
        if traits.contains(Traits::FLUSH) {
            writer.put(&self.flush.unwrap_or_default().emit());
        }
        if traits.contains(Traits::RETH) {
            writer.put(&self.reth.unwrap_or_default().emit());
        }
        if traits.contains(Traits::ATOMIC) {
            writer.put(&self.atomic.unwrap_or_default().emit());
        }
        if traits.contains(Traits::AETH) {
            writer.put(&self.aeth.map_or([0; 4], |aeth| aeth.emit()));
        }
        if traits.contains(Traits::ATOMIC_ACK) {
            writer.put(&self.atomic_ack.unwrap_or_default().to_be_bytes());
        }
        if traits.contains(Traits::IMMEDIATE) {
            writer.put(&self.immediate.unwrap_or_default().to_be_bytes());
        }
        if traits.contains(Traits::INVALIDATE) {
            writer.put(&self.invalidate.unwrap_or_default().0.to_be_bytes());
        }
    }
}

/// Bytes from the base transport header to the payload of packets with this opcode.
pub fn header_bytes(opcode: Opcode) -> usize {
    BTH_BYTES + opcode.extended_bytes()
}

/// Bytes from the base transport header to the ICRC of a packet with this opcode and payload, padding included.
pub fn packet_bytes(opcode: Opcode, payload: u32) -> usize {
    header_bytes(opcode) + payload.next_multiple_of(4) as usize + ICRC_BYTES
}

impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bth = &self.bth;
        write!(f, "{} qpn {} psn {}", bth.opcode, bth.destination, bth.psn)?;
        if let Some(srq) = self.xrc_srq {
            write!(f, " srq {srq}")?;
        }
        if let Some(deth) = self.deth {
            write!(f, " from qpn {} qkey {}", deth.source, deth.qkey)?;
        }
        if let Some(flush) = self.flush {
            write!(f, " selectivity {} placement {:#x}", flush.selectivity, flush.placement)?;
        }
        if let Some(reth) = self.reth {
            write!(f, " va {:#x} rkey {} length {}", reth.va, reth.rkey, reth.length)?;
        }
        if let Some(atomic) = self.atomic {
            write!(
                f,
                " va {:#x} rkey {} operand {:#x} compare {:#x}",
                atomic.va, atomic.rkey, atomic.swap_or_add, atomic.compare
            )?;
        }
        if let Some(aeth) = self.aeth {
            write!(f, " {:?} msn {}", aeth.syndrome, aeth.msn)?;
        }
        if let Some(original) = self.atomic_ack {
            write!(f, " original {original:#x}")?;
        }
        if let Some(immediate) = self.immediate {
            write!(f, " immediate {immediate:#x}")?;
        }
        if let Some(rkey) = self.invalidate {
            write!(f, " invalidates {rkey}")?;
        }
        let marks = [
            (bth.ack_request, " ack-request"),
            (bth.solicited, " solicited"),
            (bth.becn, " becn"),
            (bth.fecn, " fecn"),
        ];
        marks.into_iter().filter(|mark| mark.0).try_for_each(|mark| f.write_str(mark.1))
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} payload {}", self.headers, self.payload.len())
    }
}
