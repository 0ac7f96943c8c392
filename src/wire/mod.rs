//! The wire format of RoCEv2: bytes to values and back, and the invariant CRC.
//!
//! Source: InfiniBand specification volume 1 (IBTA), chapter 9 and annex A17. All fields are in network order. The
//! comments on fields give their names in Linux: `ib_pack.h` has the operation codes, `rxe_hdr.h` (as in 6.12) the
//! headers.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod check_mask;
mod gap_runs;
mod header;
pub mod icrc;
#[cfg_attr(
    not(any(test, feature = "sim")),
    allow(dead_code, unused_imports, reason = "the messages are complete; the library needs some of their parts")
)]
pub mod mad;
mod opcode;
mod packet;

#[cfg(test)]
mod tests;

pub use check_mask::{CheckMasks, PsnSequence};
pub use gap_runs::{GapRun, GapRuns};
pub use header::{Aeth, AtomicEth, BTH_BYTES, Bth, Deth, FlushEth, NakCode, Reth, Syndrome};
pub use icrc::Flow;
pub use opcode::{Opcode, Service};
pub use packet::{Headers, ICRC_BYTES, Packet, header_bytes, packet_bytes};
