//! Queue pair 1: the management datagrams of all endpoints (IBTA 10.5.1.5, 13.5; `rxe_qp.c`, `rxe_qp_from_init`).
//!
//! It exists at every endpoint and is no queue pair of an application: datagrams that arrive at it wait to be polled,
//! and the ones that leave it are written at once. The connection manager handles them.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::datagram::{Datagram, Repeats, Transmit};
use super::responder::identify;
use crate::types::{DropReason, Psn, Qkey, Qpn};
use crate::wire::mad::MAD_BYTES;
use crate::wire::{Bth, Deth, Flow, Headers, ICRC_BYTES, Opcode, Packet, icrc};

/// Number of the queue pair of management datagrams.
pub const MANAGEMENT_QPN: Qpn = Qpn::new(1);
/// Least number of bytes of a buffer for the packet of a management datagram.
pub const MANAGEMENT_BUFFER_BYTES: usize = 284;
/// Q_Key of queue pair 1 (IBTA 10.2.4).
pub(super) const MANAGEMENT_QKEY: Qkey = Qkey(0x8001_0000);
/// Maximum number of datagrams that wait to be polled: as many as the receives of Linux' queue pair 1 (`mad.c`,
/// `mad_recvq_size`).
const MOST_WAITING: usize = 512;

/// A management datagram that arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManagementDatagram {
    /// The sender's address.
    pub source: IpAddr,
    /// The local address that it was sent to.
    pub destination: IpAddr,
    /// Traffic class or type of service; 0 if the socket does not report it.
    pub traffic_class: u8,
    /// The datagram.
    pub bytes: Box<[u8; MAD_BYTES]>,
}

/// The path of a management datagram that leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManagementPath {
    /// The local address.
    pub source: IpAddr,
    /// UDP port of the sending socket; the ICRC covers it.
    pub source_port: u16,
    /// The receiver's address.
    pub destination: IpAddr,
    /// Traffic class or type of service.
    pub traffic_class: u8,
}

/// Queue pair 1 of an endpoint.
#[derive(Default)]
pub struct ManagementQueuePair {
    arrived: VecDeque<ManagementDatagram>,
    /// It counts the datagrams to all peers, as Linux' does; no peer compares it.
    next_psn: Psn,
}

impl ManagementQueuePair {
    /// Checks a packet as `rxe_recv.c` does (`check_type_state`, `check_keys`), and returns its datagram. Linux 6.12
    /// drops a datagram that is longer than 256 bytes and fills up a shorter one; both are refused here.
    #[cold]
    pub(super) fn check<'a>(datagram: &Datagram<'_>, packet: &Packet<'a>) -> Result<&'a [u8; MAD_BYTES], DropReason> {
        let Headers { bth, deth: Some(deth), .. } = packet.headers else { return Err(DropReason::WrongService) };
        if bth.opcode != Opcode::UD_SEND_ONLY {
            return Err(DropReason::WrongService);
        }
        if bth.pkey & 0x7fff != 0x7fff {
            return Err(DropReason::BadPkey);
        }
        if deth.qkey != MANAGEMENT_QKEY {
            return Err(DropReason::BadQkey);
        }
        let Ok(bytes) = packet.payload.try_into() else { return Err(DropReason::BadLength) };
        identify(datagram)?;
        Ok(bytes)
    }

    /// Keeps a datagram that [`ManagementQueuePair::check`] returned.
    pub(super) fn take(&mut self, datagram: &Datagram<'_>, bytes: &[u8; MAD_BYTES]) -> Result<(), DropReason> {
        if self.arrived.len() >= MOST_WAITING {
            return Err(DropReason::NoReceive);
        }
        self.arrived.push_back(ManagementDatagram {
            source: datagram.source,
            destination: datagram.destination,
            traffic_class: datagram.traffic_class.unwrap_or(0),
            bytes: Box::new(*bytes),
        });
        Ok(())
    }

    /// Returns whether datagrams wait to be polled.
    #[inline]
    pub fn has_arrivals(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Takes the oldest datagram that arrived.
    pub fn poll_arrival(&mut self) -> Option<ManagementDatagram> {
        self.arrived.pop_front()
    }

    /// Writes the packet of a datagram to queue pair 1 of a peer into `buffer`, at least
    /// [`MANAGEMENT_BUFFER_BYTES`].
    ///
    /// # Panics
    /// If the buffer is shorter.
    pub fn write(&mut self, path: &ManagementPath, bytes: &[u8; MAD_BYTES], buffer: &mut [u8]) -> Transmit {
        let bth = Bth {
            destination: MANAGEMENT_QPN,
            psn: self.next_psn,
            ..Bth::with_payload(Opcode::UD_SEND_ONLY, MAD_BYTES as u32)
        };
        self.next_psn = self.next_psn.plus(1);
        let deth = Deth { qkey: MANAGEMENT_QKEY, source: MANAGEMENT_QPN };
        let headers = Headers { bth, deth: Some(deth), ..Headers::default() };
        let start = headers.emit(buffer);
        let length = start + MAD_BYTES + ICRC_BYTES;
        buffer[start..start + MAD_BYTES].copy_from_slice(bytes);
        let ManagementPath { source, source_port, destination, traffic_class } = *path;
        icrc::append(&Flow { source, destination, source_port }, 0, &mut buffer[..length]);
        Transmit {
            source,
            source_port,
            destination,
            length,
            segment_size: None,
            traffic_class,
            hop_limit: 0,
            qpn: MANAGEMENT_QPN,
            repeats: Repeats::default(),
            is_keyed: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Medium;

    const PATH: ManagementPath = ManagementPath {
        source: IpAddr::V4(std::net::Ipv4Addr::new(10, 99, 0, 3)),
        source_port: 55_410,
        destination: IpAddr::V4(std::net::Ipv4Addr::new(10, 99, 0, 2)),
        traffic_class: 0,
    };

    /// A datagram as it is written, with changes to the bytes before the ICRC.
    fn written(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut buffer = vec![0; MANAGEMENT_BUFFER_BYTES];
        let transmit = ManagementQueuePair::default().write(&PATH, &[0x5a; 256], &mut buffer);
        assert_eq!((transmit.length, transmit.qpn), (280, MANAGEMENT_QPN));
        buffer.truncate(transmit.length);
        change(&mut buffer);
        let ManagementPath { source, source_port, destination, .. } = PATH;
        icrc::append(&Flow { source, destination, source_port }, 0, &mut buffer);
        buffer
    }

    fn arrives(queue_pair: &mut ManagementQueuePair, payload: &[u8]) -> Option<DropReason> {
        let datagram = Datagram {
            source: PATH.source,
            destination: PATH.destination,
            source_port: PATH.source_port,
            segment_index: 0,
            hop_limit: None,
            traffic_class: Some(0x68),
            payload,
            medium: Medium::Network,
        };
        let packet = Packet::parse(payload).unwrap();
        ManagementQueuePair::check(&datagram, &packet).and_then(|bytes| queue_pair.take(&datagram, bytes)).err()
    }

    #[test]
    fn datagrams_arrive_as_written() {
        let mut queue_pair = ManagementQueuePair::default();
        assert_eq!(arrives(&mut queue_pair, &written(|_| {})), None);
        assert!(queue_pair.has_arrivals());
        let arrived = queue_pair.poll_arrival().unwrap();
        assert_eq!((arrived.source, arrived.destination), (PATH.source, PATH.destination));
        assert_eq!((arrived.traffic_class, *arrived.bytes), (0x68, [0x5a; 256]));
        assert_eq!(queue_pair.poll_arrival(), None);
    }

    /// Linux drops these silently (`rxe_recv.c`), and a datagram of another size.
    #[test]
    fn wrong_packets_are_dropped() {
        type Change = fn(&mut Vec<u8>);
        let cases: [(Change, Option<DropReason>); 7] = [
            (|bytes| bytes[12] = 0, Some(DropReason::BadQkey)),
            (|bytes| bytes[2] = 0x12, Some(DropReason::BadPkey)),
            (|bytes| bytes[2] = 0x7f, None),
            (|bytes| bytes.truncate(276), Some(DropReason::BadLength)),
            (|bytes| bytes.extend([0; 4]), Some(DropReason::BadLength)),
            (|bytes| bytes[0] = Opcode::RC_SEND_ONLY.0, Some(DropReason::WrongService)),
            (|bytes| bytes[19] = 0x55, None),
        ];
        for (change, expected) in cases {
            let mut queue_pair = ManagementQueuePair::default();
            assert_eq!(arrives(&mut queue_pair, &written(change)), expected);
            assert_eq!(queue_pair.has_arrivals(), expected.is_none());
        }
        let mut damaged = written(|_| {});
        damaged[100] ^= 1;
        assert_eq!(arrives(&mut ManagementQueuePair::default(), &damaged), Some(DropReason::BadIcrc));
    }

    #[test]
    fn waiting_datagrams_are_bounded() {
        let (mut queue_pair, payload) = (ManagementQueuePair::default(), written(|_| {}));
        for _ in 0..MOST_WAITING {
            assert_eq!(arrives(&mut queue_pair, &payload), None);
        }
        assert_eq!(arrives(&mut queue_pair, &payload), Some(DropReason::NoReceive));
    }
}
