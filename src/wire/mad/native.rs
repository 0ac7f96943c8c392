//! The facts that native peers exchange in fields that the standard's receivers ignore (`docs/wire.md`, "Keys of
//! connections by address and port"): in a REQ an offer in the place of the alternate path, in a REP its confirmation
//! in the fields of reliable datagrams.

use std::fmt;
use std::hash::Hasher;
use std::ops::Range;

use siphasher::sip::SipHasher24;

use crate::types::{Gid, KeyShare, PeerCapabilities, PeerKey, Qkey};

use super::alternate_path::{InConnectRequest, Path};
use super::field::Field;
use super::{Attribute, CommunicationId, ConnectReply, EndToEndContext, MAD_HEADER_BYTES, Mad};

/// Position of the alternate path in the data of a REQ.
pub(super) const ALTERNATE_PATH: InConnectRequest = InConnectRequest(96);
/// The bytes of an offer's share in a datagram: the alternate path's local GID.
const SHARE: Range<usize> = MAD_HEADER_BYTES + 100..MAD_HEADER_BYTES + 100 + KeyShare::BYTES;

/// First bytes of an offer's facts.
const OFFER_MAGIC: [u8; 4] = *b"RDMV";
/// Version of the offers that this crate reads and writes.
const OFFER_VERSION: u8 = 1;
/// Bit of an offer: the sender's sockets accept segmented sends.
const OFFER_SEGMENTATION: u8 = 1;

/// Prefix of the hashed message of a passive end's share, so that no other use of the share yields the same value.
const PASSIVE_LABEL: [u8; 8] = *b"RDMVcmk1";

/// First bytes of a confirmation's Q_Key.
const CONFIRMATION_MAGIC: [u8; 3] = *b"RDM";
/// Largest version of the capabilities in a confirmation.
const CONFIRMATION_MOST_VERSION: u8 = 15;
/// Bit of a confirmation, below the version.
const CONFIRMATION_SEGMENTATION: u8 = 1 << 3;
/// Unit of the receive buffer in a confirmation.
const CONFIRMATION_BUFFER_UNIT: u32 = 4_096;

/// Bytes 8 to 10 of a GID of an OPA port. Linux takes an alternate path with such a local GID for a present one even if
/// its LID is 0 (`ib_addr.h`, `ib_is_opa_gid`; `cm.c`, `cm_req_has_alt_path`).
const OPA_OUI: [u8; 3] = [0x00, 0x06, 0x6a];

/// The offer of a REQ: its sender is native, and proposes a key for the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NativeOffer {
    share: KeyShare,
    capabilities: PeerCapabilities,
}

impl NativeOffer {
    /// Creates an offer of an end with these capabilities. The bits must come from a cryptographic random number
    /// generator, and be new for each connection.
    ///
    /// One value in 2^24 is changed, because Linux would take it for the address of an alternate path.
    pub const fn new(mut bits: [u8; KeyShare::BYTES], capabilities: PeerCapabilities) -> Self {
        if bits[8] == OPA_OUI[0] && bits[9] == OPA_OUI[1] && bits[10] == OPA_OUI[2] {
            bits[8] = !bits[8];
        }
        Self { share: KeyShare::new(bits), capabilities }
    }

    /// Returns the capabilities of the end that offers.
    pub const fn capabilities(&self) -> PeerCapabilities {
        self.capabilities
    }

    /// Returns the key of the active end, which has received a REP with this communication id of its sender.
    pub fn active_key(&self, passive_id: CommunicationId) -> PeerKey {
        PeerKey { local: self.share, remote: self.passive_share(passive_id), is_agreed: true }
    }

    /// Returns the key of the passive end, whose communication id this is.
    pub fn passive_key(&self, passive_id: CommunicationId) -> PeerKey {
        PeerKey { local: self.passive_share(passive_id), remote: self.share, is_agreed: true }
    }

    /// Derives the share of the passive end, for which a REP has no room: SipHash-2-4, a keyed pseudorandom function.
    /// Its communication id has 20 random bits, which a host that sees the REQ and not its REP does not know.
    fn passive_share(&self, passive_id: CommunicationId) -> KeyShare {
        let mut share = [0; KeyShare::BYTES];
        for (half, bytes) in (0_u8..).zip(share.as_chunks_mut::<8>().0) {
            let mut hasher = SipHasher24::new_with_key(&self.share.to_bytes());
            hasher.write(&PASSIVE_LABEL);
            hasher.write(&passive_id.0.to_be_bytes());
            hasher.write(&[half]);
            *bytes = hasher.finish().to_be_bytes();
        }
        KeyShare::new(share)
    }
}

/// The alternate path of a REQ, or an offer in its place.
///
/// `Debug` does not show an offer, which contains a secret.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct AlternatePath(Path);

impl AlternatePath {
    /// Creates an alternate path. There is none if its local LID is 0.
    pub const fn new(path: Path) -> Self {
        Self(path)
    }

    /// Creates an offer in the place of an alternate path. Its LIDs are 0, so that a standard receiver takes it for
    /// none.
    pub fn of_offer(offer: &NativeOffer) -> Self {
        let NativeOffer { share, capabilities } = offer;
        let mut facts = [0; 16];
        facts[..4].copy_from_slice(&OFFER_MAGIC);
        facts[4] = OFFER_VERSION;
        facts[5] = capabilities.version;
        facts[6] = if capabilities.segmentation_offload { OFFER_SEGMENTATION } else { 0 };
        facts[8..12].copy_from_slice(&capabilities.receive_buffer_bytes.to_be_bytes());
        facts[12..].copy_from_slice(&capabilities.extensions.to_be_bytes());
        let local_gid = Gid::from_bytes(share.to_bytes());
        Self(Path { local_gid, remote_gid: Gid::from_bytes(facts), ..Path::default() })
    }

    /// Returns the alternate path, if there is one.
    pub const fn path(&self) -> Option<&Path> {
        if self.0.local_lid == 0 { None } else { Some(&self.0) }
    }

    /// Returns the offer, if there is one of a version that this crate knows.
    pub fn offer(&self) -> Option<NativeOffer> {
        let facts = self.0.remote_gid.to_bytes();
        let [magic @ .., version, capabilities_version, flags, _, b0, b1, b2, b3, e0, e1, e2, e3] = facts;
        let capabilities = PeerCapabilities {
            version: capabilities_version,
            segmentation_offload: flags & OFFER_SEGMENTATION != 0,
            receive_buffer_bytes: u32::from_be_bytes([b0, b1, b2, b3]),
            extensions: u32::from_be_bytes([e0, e1, e2, e3]),
        };
        let is_known = magic == OFFER_MAGIC && version == OFFER_VERSION && capabilities.is_native();
        let share = KeyShare::new(self.0.local_gid.to_bytes());
        (self.path().is_none() && is_known).then_some(NativeOffer { share, capabilities })
    }

    /// Returns the path as it is in the datagram.
    #[cfg(test)]
    pub(super) const fn raw(&self) -> &Path {
        &self.0
    }

    /// Returns whether there is an offer of any version.
    fn has_share(&self) -> bool {
        self.path().is_none() && self.0.remote_gid.to_bytes().starts_with(&OFFER_MAGIC)
    }
}

impl fmt::Debug for AlternatePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.path(), self.offer()) {
            (Some(path), _) => path.fmt(f),
            (None, Some(offer)) => offer.fmt(f),
            (None, None) => f.write_str("None"),
        }
    }
}

impl Field<InConnectRequest> for AlternatePath {
    fn read(mad: &Mad, position: InConnectRequest) -> Self {
        Self(Field::read(mad, position))
    }

    fn write(&self, mad: &mut Mad, position: InConnectRequest) {
        self.0.write(mad, position);
    }
}

impl ConnectReply {
    /// Returns this reply with the confirmation of the request's offer, by an end with these capabilities.
    ///
    /// Only a request with an offer may have one: other senders do not expect numbers in these fields.
    #[must_use]
    pub fn confirming(self, capabilities: &PeerCapabilities) -> Self {
        let [m0, m1, m2] = CONFIRMATION_MAGIC;
        let version = capabilities.version.min(CONFIRMATION_MOST_VERSION);
        let segmentation = if capabilities.segmentation_offload { CONFIRMATION_SEGMENTATION } else { 0 };
        let units = (capabilities.receive_buffer_bytes / CONFIRMATION_BUFFER_UNIT).min(u16::MAX.into());
        Self {
            local_qkey: Qkey(u32::from_be_bytes([m0, m1, m2, version << 4 | segmentation])),
            local_eecn: EndToEndContext::new(units << 8 | capabilities.extensions & 0xff),
            ..self
        }
    }

    /// Returns the capabilities of its sender, if it confirms the request's offer.
    pub fn confirmation(&self) -> Option<PeerCapabilities> {
        let [magic @ .., flags] = self.local_qkey.0.to_be_bytes();
        let context = self.local_eecn.value();
        let capabilities = PeerCapabilities {
            version: flags >> 4,
            segmentation_offload: flags & CONFIRMATION_SEGMENTATION != 0,
            receive_buffer_bytes: (context >> 8) * CONFIRMATION_BUFFER_UNIT,
            extensions: context & 0xff,
        };
        (magic == CONFIRMATION_MAGIC && capabilities.is_native()).then_some(capabilities)
    }
}

impl Mad {
    /// Returns the bytes of the datagram that are a secret of native peers, which captures withhold: the share in an
    /// offer or in an answer of the discovery, of any version.
    pub fn secret(&self) -> Option<Range<usize>> {
        let is_request = self.attribute == Attribute::CONNECT_REQUEST && self.check_header().is_ok();
        let alternate_path: AlternatePath = Field::read(self, ALTERNATE_PATH);
        let offered = (is_request && alternate_path.has_share()).then_some(SHARE);
        offered.or_else(|| self.secret_of_discovery())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{ConnectRequest, MAD_BYTES, Message};
    use super::*;

    const CAPABILITIES: PeerCapabilities = PeerCapabilities {
        version: 1,
        segmentation_offload: true,
        receive_buffer_bytes: 0x0634_0000,
        extensions: 0x0000_0003,
    };
    const BITS: [u8; KeyShare::BYTES] = *b"sixteen secrets.";
    const PASSIVE_ID: CommunicationId = CommunicationId(0xabc1_2345);

    fn request(alternate_path: AlternatePath) -> ConnectRequest {
        ConnectRequest { alternate_path, ..ConnectRequest::default() }
    }

    fn read(bytes: &[u8]) -> Message {
        Message::read(&Mad::read(bytes).unwrap()).unwrap()
    }

    /// Other versions rely on these bytes: they must never change.
    #[test]
    fn an_offer_and_its_confirmation_have_their_bytes() {
        let offer = NativeOffer::new(BITS, CAPABILITIES);
        let written = Message::from(request(AlternatePath::of_offer(&offer))).to_mad(0).write();
        let mut expected = [0; 44];
        expected[4..20].copy_from_slice(&BITS);
        expected[20..36].copy_from_slice(b"RDMV\x01\x01\x01\x00\x06\x34\x00\x00\x00\x00\x00\x03");
        assert_eq!(written[24 + 96..24 + 140], expected);
        assert_eq!(Mad::read(&written).unwrap().secret(), Some(124..140));
        assert_eq!(written[124..140], BITS);
        let Message::ConnectRequest(found) = read(&written) else { panic!() };
        assert_eq!(found.alternate_path.offer(), Some(offer));
        let key = offer.active_key(PASSIVE_ID);
        assert_eq!(key.local.to_bytes(), BITS);
        assert_eq!(key.remote.to_bytes(), 0x8a8a_d55b_5e13_680f_32bc_1d4c_55ad_6e2a_u128.to_be_bytes());

        let reply = ConnectReply::default().confirming(&CAPABILITIES);
        let written = Message::from(reply).to_mad(0).write();
        assert_eq!(written[24 + 8..24 + 12], *b"RDM\x18");
        assert_eq!(written[24 + 16..24 + 19], [0x63, 0x40, 0x03]);
        let Message::ConnectReply(found) = read(&written) else { panic!() };
        assert_eq!(found.confirmation(), Some(CAPABILITIES));
        assert_eq!(
            ConnectReply { local_qkey: Qkey(0), local_eecn: EndToEndContext::default(), ..found },
            Default::default()
        );
    }

    #[test]
    fn the_ends_have_one_key_which_depends_on_all_of_share_and_id() {
        let offer = NativeOffer::new(BITS, CAPABILITIES);
        let [active, passive] = [offer.active_key(PASSIVE_ID), offer.passive_key(PASSIVE_ID)];
        assert_eq!((active.local, active.remote), (passive.remote, passive.local));
        assert!(active.is_agreed && passive.is_agreed);
        let mut halves = Vec::new();
        let mut add = |bits: [u8; 16], id: u32| {
            let share = NativeOffer::new(bits, CAPABILITIES).passive_key(CommunicationId(id)).local.to_bytes();
            halves.extend(share.as_chunks::<8>().0.iter().copied());
        };
        for bit in 0..128 {
            add((u128::from_be_bytes(BITS) ^ 1 << bit).to_be_bytes(), PASSIVE_ID.0);
        }
        (0..32).for_each(|bit| add(BITS, PASSIVE_ID.0 ^ 1 << bit));
        add(BITS, PASSIVE_ID.0);
        let count = halves.len();
        halves.sort_unstable();
        halves.dedup();
        assert_eq!(halves.len(), count);
    }

    #[test]
    fn no_share_is_taken_for_an_address_by_linux() {
        let mut bits = BITS;
        bits[8..11].copy_from_slice(&OPA_OUI);
        let changed = NativeOffer::new(bits, CAPABILITIES).share.to_bytes();
        assert_eq!(changed[8..11], [0xff, 0x06, 0x6a]);
        assert_eq!((&changed[..8], &changed[9..]), (&bits[..8], &bits[9..]));
        for at in 8..11 {
            let mut other = bits;
            other[at] ^= 1;
            assert_eq!(NativeOffer::new(other, CAPABILITIES).share.to_bytes(), other);
        }
    }

    #[test]
    fn other_alternate_paths_are_no_offer() {
        let offered = AlternatePath::of_offer(&NativeOffer::new(BITS, CAPABILITIES));
        assert!(offered.offer().is_some() && offered.has_share());
        assert_eq!(AlternatePath::default().offer(), None);
        // A path that is present, whatever its addresses are.
        let present = AlternatePath::new(Path { local_lid: 1, ..offered.0 });
        assert_eq!((present.offer(), present.has_share()), (None, false));
        let with = |index: usize, value: u8| {
            let mut facts = offered.0.remote_gid.to_bytes();
            facts[index] = value;
            AlternatePath(Path { remote_gid: Gid::from_bytes(facts), ..offered.0 })
        };
        // The magic, the version, the version of the capabilities.
        assert_eq!(with(3, b'X').offer(), None);
        for version in [0, 2, 255] {
            assert_eq!(with(4, version).offer(), None);
            assert!(with(4, version).has_share());
        }
        assert_eq!(with(5, 0).offer(), None);
        // Bits without a meaning.
        assert_eq!(with(6, 0xff).offer(), offered.offer());
        assert_eq!(with(7, 0xff).offer(), offered.offer());
    }

    #[test]
    fn other_replies_confirm_nothing() {
        assert_eq!(ConnectReply::default().confirmation(), None);
        let confirming = ConnectReply::default().confirming(&CAPABILITIES);
        for bit in 8..32 {
            let local_qkey = Qkey(confirming.local_qkey.0 ^ 1 << bit);
            assert_eq!(ConnectReply { local_qkey, ..confirming }.confirmation(), None);
        }
        assert_eq!(ConnectReply::default().confirming(&PeerCapabilities::STANDARD).confirmation(), None);
    }

    #[test]
    fn a_confirmation_bounds_its_numbers() {
        let large = PeerCapabilities {
            version: 200,
            segmentation_offload: false,
            receive_buffer_bytes: 0x1000_0000,
            extensions: u32::MAX,
        };
        let found = ConnectReply::default().confirming(&large).confirmation().unwrap();
        let expected = PeerCapabilities { version: 15, receive_buffer_bytes: 0x0fff_f000, extensions: 0xff, ..large };
        assert_eq!(found, expected);
    }

    #[test]
    fn debug_shows_no_share() {
        for version in [1, 9] {
            let mut alternate_path = AlternatePath::of_offer(&NativeOffer::new([0xa5; 16], CAPABILITIES));
            let mut facts = alternate_path.0.remote_gid.to_bytes();
            facts[4] = version;
            alternate_path.0.remote_gid = Gid::from_bytes(facts);
            let text = format!("{:?} {:#?}", request(alternate_path), Message::from(request(alternate_path)));
            assert!(!text.contains("a5") && !text.contains("165"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn offers_round_trip(bits: [u8; 16], version in 1_u8.., segmentation: bool, buffer: u32, extensions: u32) {
            let capabilities = PeerCapabilities {
                version,
                segmentation_offload: segmentation,
                receive_buffer_bytes: buffer,
                extensions,
            };
            let offer = NativeOffer::new(bits, capabilities);
            let written = Message::from(request(AlternatePath::of_offer(&offer))).to_mad(7).write();
            let Message::ConnectRequest(found) = read(&written) else { panic!() };
            prop_assert_eq!(found.alternate_path.offer(), Some(offer));
            prop_assert_eq!(found.alternate_path.path(), None);
            // Nothing but the two addresses differs from a REQ without an offer.
            let plain = Message::from(request(AlternatePath::default())).to_mad(7).write();
            prop_assert_eq!(&written[..124], &plain[..124]);
            prop_assert_eq!(&written[156..], &plain[156..MAD_BYTES]);
        }
    }
}
