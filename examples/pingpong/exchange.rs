//! The exchange of addresses between the two programs: rdma-core's text over TCP.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use rdma_verbs::verbs::{ConnectionInfo, Gid, Mtu, Psn, Qpn, QueuePairType};

use super::Outcome;

/// 52 bytes: LID, QPN and PSN in hexadecimal, the GID's bytes likewise, a zero.
const MESSAGE_BYTES: usize = 52;
pub(crate) const DONE: &[u8; 5] = b"done\0";
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn encode(info: &ConnectionInfo) -> String {
    let gid: String = info.gid.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0000:{:06x}:{:06x}:{gid}\0", info.qpn.value(), info.psn.value())
}

fn decode(message: &[u8; MESSAGE_BYTES], qp_type: QueuePairType, mtu: Mtu) -> Option<ConnectionInfo> {
    let text = std::str::from_utf8(message).ok()?.trim_end_matches('\0');
    let mut fields = text.split(':');
    let mut number = || u32::from_str_radix(fields.next()?, 16).ok();
    let (_lid, qpn, psn) = (number()?, number()?, number()?);
    let gid = u128::from_str_radix(fields.next()?, 16).ok()?;
    let gid = Gid::from_bytes(gid.to_be_bytes());
    let peer = ConnectionInfo::standard_peer(Qpn::new(qpn), Psn::new(psn), gid, mtu);
    Some(peer.qp_type(qp_type))
}

pub(crate) fn receive_address(stream: &mut TcpStream, qp_type: QueuePairType, mtu: Mtu) -> Outcome<ConnectionInfo> {
    let mut message = [0; MESSAGE_BYTES];
    stream.read_exact(&mut message).map_err(|error| format!("cannot read the remote address: {error}"))?;
    let decoded = decode(&message, qp_type, mtu);
    decoded.ok_or_else(|| format!("no remote address: \"{}\"", message.escape_ascii()).into())
}
