//! Requests of processes for direct access to a region of another process: over a connection to its socket for links,
//! which ends with the answer.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::super::registry::Name;
use super::Postbox;
use super::links::{Connection, LinkId};
use super::message::{from_v6, to_v6};
use crate::memory::{Grant, Offer};
use crate::sys::{receive_with_descriptor, send_with_descriptor};
use crate::transport::WantedKey;
use crate::types::{AccessFlags, Qpn, Rkey};

const VERSION: u8 = 1;
/// Bytes of a request. No offer of a link has this length.
pub(super) const REQUEST_BYTES: usize = 56;
const OFFER_BYTES: usize = 56;

/// A request of a shard of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessRequest {
    /// The link to the shard of the peer.
    pub(crate) link: LinkId,
    /// Name of the peer's process.
    pub(crate) name: Name,
    pub(crate) key: WantedKey,
}

/// A request that the other process has not answered.
pub(super) struct Asked {
    pub(super) request: AccessRequest,
    pub(super) connection: Arc<Connection>,
}

impl Asked {
    /// Hands an offer to the shard that asked. Returns whether the answer is still to come.
    pub(super) fn waits(&self, postbox: &Postbox) -> bool {
        let mut bytes = [0; OFFER_BYTES + 1];
        let (length, file) = match receive_with_descriptor(self.connection.as_fd(), &mut bytes) {
            Ok(None) => return true,
            Ok(Some((length, Some(file)))) => (length, file),
            // Refused: the key is not admitted.
            Ok(Some((_, None))) | Err(_) => return false,
        };
        let WantedKey { own, queue_pair, .. } = self.request.key;
        if let Some(offer) = parse_offer(&bytes[..length], file)
            && let Some(recipient) = postbox.recipient(own, queue_pair.block() as u16)
        {
            recipient.take_offer(&self.request, &offer);
        }
        false
    }
}

/// Answers the request of another process. Without an answer, the end of the connection refuses it.
pub(super) fn answer(bytes: &[u8; REQUEST_BYTES], connection: &Connection, postbox: &Postbox) {
    let Some(key) = parse_request(bytes) else { return };
    let Some(recipient) = postbox.recipient(key.peer, key.destination.block() as u16) else { return };
    if let Some(offer) = recipient.offer_access(&key) {
        // There is room: it is the first message in this direction. A process that does not take it loses only that.
        let _ = send_with_descriptor(connection.as_fd(), &write_offer(&offer), offer.file.as_fd());
    }
}

pub(super) fn write_request(key: &WantedKey) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[0] = VERSION;
    bytes[8..24].copy_from_slice(&to_v6(key.own));
    bytes[24..40].copy_from_slice(&to_v6(key.peer));
    bytes[40..44].copy_from_slice(&key.queue_pair.value().to_le_bytes());
    bytes[44..48].copy_from_slice(&key.destination.value().to_le_bytes());
    bytes[48..52].copy_from_slice(&key.rkey.0.to_le_bytes());
    bytes
}

fn parse_request(bytes: &[u8; REQUEST_BYTES]) -> Option<WantedKey> {
    if bytes[0] != VERSION || bytes[1..8] != [0; 7] || bytes[52..] != [0; 4] {
        return None;
    }
    let address = |from: usize| -> Option<IpAddr> { bytes[from..from + 16].try_into().map(from_v6).ok() };
    let qpn = |from: usize| Some(number(bytes, from)).filter(|number| *number >> 24 == 0).map(Qpn::new);
    Some(WantedKey {
        own: address(8)?,
        peer: address(24)?,
        queue_pair: qpn(40)?,
        destination: qpn(44)?,
        rkey: Rkey(number(bytes, 48)),
    })
}

fn write_offer(offer: &Offer) -> [u8; OFFER_BYTES] {
    let mut bytes = [0; OFFER_BYTES];
    bytes[0] = VERSION;
    bytes[4..8].copy_from_slice(&offer.access.bits().to_le_bytes());
    bytes[8..12].copy_from_slice(&offer.queue_pair.place.to_le_bytes());
    bytes[12..16].copy_from_slice(&offer.region.place.to_le_bytes());
    let numbers = [offer.queue_pair.number, offer.region.number, offer.iova, offer.length];
    for (place, number) in bytes[16..48].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

fn parse_offer(bytes: &[u8], file: OwnedFd) -> Option<Offer> {
    let bytes: &[u8; OFFER_BYTES] = bytes.try_into().ok()?;
    if bytes[0] != VERSION || bytes[1..4] != [0; 3] || bytes[48..] != [0; 8] {
        return None;
    }
    let long = |from: usize| u64::from(number(bytes, from)) | u64::from(number(bytes, from + 4)) << 32;
    Some(Offer {
        access: AccessFlags::from_bits_retain(number(bytes, 4)) & AccessFlags::REMOTE,
        queue_pair: Grant { place: number(bytes, 8), number: long(16) },
        region: Grant { place: number(bytes, 12), number: long(24) },
        iova: long(32),
        length: long(40),
        file,
    })
}

fn number(bytes: &[u8], from: usize) -> u32 {
    bytes[from..from + 4].iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn requests_and_offers_are_read_as_written() {
        let key = WantedKey {
            own: "127.62.0.1".parse().unwrap(),
            peer: "fe80::1".parse().unwrap(),
            queue_pair: Qpn::new(0x00ab_cdef),
            destination: Qpn::new(7),
            rkey: Rkey(0xffee_ddcc),
        };
        let request = write_request(&key);
        assert_eq!(parse_request(&request), Some(key));
        for (place, value) in [(0, 2), (1, 1), (43, 1), (47, 1), (55, 1)] {
            let mut changed = request;
            changed[place] = value;
            assert_eq!(parse_request(&changed), None, "byte {place} is {value}");
        }

        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let offer = Offer {
            region: Grant { place: 3, number: 1 << 40 },
            queue_pair: Grant { place: 9, number: 5 },
            iova: u64::MAX - 4_096,
            length: 4_096,
            access: AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC,
            file: file(),
        };
        let bytes = write_offer(&offer);
        let read = parse_offer(&bytes, file()).unwrap();
        assert_eq!((read.region, read.queue_pair), (offer.region, offer.queue_pair));
        assert_eq!((read.iova, read.length, read.access), (offer.iova, offer.length, offer.access));
        for length in [0, OFFER_BYTES - 1] {
            assert!(parse_offer(&bytes[..length], file()).is_none());
        }
    }
}
