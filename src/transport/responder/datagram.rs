//! Reception of unreliable datagrams: each fills a receive, after the 40 bytes of its network header (IBTA A17.4.5.2;
//! `rxe_resp.c`, `execute`).

use super::{Common, Pass, ReceiveError, Responder};
use crate::transport::datagram::{Datagram, LONGEST_DATAGRAM, Medium};
use crate::types::{CompletionFlags, Counter, DropReason, GlobalRouteHeader, PeerFault, RawCompletion};
use crate::wire::{Deth, Flow, Packet, icrc};

/// Hop limit in the network header if the socket does not report it.
const USUAL_HOP_LIMIT: u8 = 64;
/// The network header type in a completion (IBTA A17.4.5.1): bit 3 means that a UDP header follows.
const IPV4_HEADER: u8 = 0b1010;
const IPV6_HEADER: u8 = 0b1001;

/// The fields of the IPv4 header that the ICRC reveals.
#[derive(Clone, Copy)]
pub(in crate::transport) struct Identified {
    identification: u16,
    dont_fragment: bool,
}

/// Checks the ICRC of a datagram from a network. For standard peers it solves for the identification of each packet,
/// with either value of "don't fragment", because nothing is known about the sender.
pub(in crate::transport) fn identify(datagram: &Datagram<'_>) -> Result<Identified, DropReason> {
    if let Medium::SharedMemory { .. } = datagram.medium {
        return Ok(Identified { identification: datagram.segment_index, dont_fragment: true });
    }
    let flow = Flow { source: datagram.source, destination: datagram.destination, source_port: datagram.source_port };
    let first_identification = datagram.segment_index;
    let options = icrc::Verify { first_identification, solve: true, expected_df: true };
    match icrc::verify(&flow, &options, datagram.payload) {
        icrc::Match::Exact { identification } => Ok(Identified { identification, dont_fragment: true }),
        icrc::Match::Solved { identification, dont_fragment } => Ok(Identified { identification, dont_fragment }),
        icrc::Match::Wrong => Err(DropReason::BadIcrc),
    }
}

/// Performs the checks that need no ICRC: the partition key without its membership bit (IBTA 10.9.3), and the Q_Key
/// (`rxe_recv.c`, `check_keys`).
pub(in crate::transport) fn check_datagram(common: &Common, packet: &Packet<'_>) -> Result<Deth, DropReason> {
    let Some(deth) = packet.headers.deth else { return Err(DropReason::WrongService) };
    if !common.takes_requests() {
        return Err(DropReason::WrongState);
    }
    if packet.headers.bth.pkey & 0x7fff != 0x7fff {
        return Err(DropReason::BadPkey);
    }
    if common.attributes.qkey != Some(deth.qkey) {
        return Err(DropReason::BadQkey);
    }
    if packet.payload.len() > LONGEST_DATAGRAM as usize {
        return Err(DropReason::BadLength);
    }
    Ok(deth)
}

impl Responder {
    /// Receives a datagram with a valid ICRC, sent to this queue pair or to its group.
    pub(in crate::transport) fn receive_datagram(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
        identified: Identified,
    ) -> Result<(), ReceiveError> {
        let deth = check_datagram(common, packet)?;
        common.counters.add(Counter::ReceivedPackets, 1);
        common.counters.add(Counter::ReceivedBytes, datagram.payload.len() as u64);
        common.history.note_heard(pass.now, &packet.headers);
        let length = GlobalRouteHeader::BYTES + packet.payload.len();
        self.receives.begin_with_room(length as u64)?;
        let header = route_header(datagram, identified);
        self.receives
            .scatter(common, pass, 0, &header[..])
            .and_then(|()| self.receives.scatter(common, pass, header.len() as u64, packet.payload))
            .map_err(|error| ReceiveError::Failed(PeerFault::of_receive(error)))?;
        let mut completion = RawCompletion {
            byte_len: length as u32,
            source_qpn: deth.source,
            flags: CompletionFlags::GLOBAL_ROUTE_HEADER,
            sl: if datagram.destination.is_ipv4() { IPV4_HEADER } else { IPV6_HEADER },
            ..RawCompletion::default()
        };
        if let Some(immediate) = packet.headers.immediate {
            completion.flags |= CompletionFlags::WITH_IMMEDIATE;
            completion.immediate_or_key = immediate;
        }
        self.count_message();
        self.receives.finish(common, completion, packet.headers.bth.solicited);
        Ok(())
    }
}

/// Builds the 40 bytes before the message: an IPv6 header, or an IPv4 header in the last 20 (IBTA A17.4.5.2). Fields
/// that the socket does not report have the usual values. The IPv4 checksum is valid, because the kernel distinguishes
/// the two headers by it (`ib_get_rdma_header_version`).
fn route_header(datagram: &Datagram<'_>, identified: Identified) -> [u8; GlobalRouteHeader::BYTES] {
    GlobalRouteHeader {
        source: datagram.source,
        destination: datagram.destination,
        traffic_class: datagram.traffic_class.unwrap_or(0),
        flow_label: 0,
        hop_limit: datagram.hop_limit.unwrap_or(USUAL_HOP_LIMIT),
        identification: identified.identification,
        dont_fragment: identified.dont_fragment,
        udp_bytes: (8 + datagram.payload.len()) as u16,
    }
    .to_bytes()
}
