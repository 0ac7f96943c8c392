//! Datagrams by which native peers find each other (`docs/wire.md`, "Discovery"): a question to queue pair 1 of the
//! peer of a connection, and its answer. They have a class of vendors (IBTA 16.5): receivers that do not know it refuse
//! the question or drop it.

use std::fmt;
use std::hash::Hasher;
use std::ops::Range;

use siphasher::sip::SipHasher24;

use crate::types::{KeyShare, PeerCapabilities, Qpn};

use super::field::at;
use super::{Attribute, BASE_VERSION, MAD_DATA_BYTES, MAD_HEADER_BYTES, Mad, ManagementClass, Method};

/// Version of the class, and of the messages that this crate reads and writes.
const VERSION: u8 = 1;
/// Identifies the vendor: locally administered, because bit 1 of the first byte is set.
const OUI: [u8; 3] = *b"RDM";

/// Positions in the data. The header of segmented datagrams (RMPP), which all these classes have, comes first; it is 0,
/// because the datagrams are not segmented.
const OUI_AT: usize = 13;
const RECEIVER_AT: usize = 17;
const SENDER_AT: usize = 21;
const VERSION_AT: usize = 24;
const CAPABILITIES_AT: usize = 25;
const FLAGS_AT: usize = 26;
const BUFFER_AT: usize = 28;
const EXTENSIONS_AT: usize = 32;
const SHARE_AT: usize = 36;
const PROOF_AT: usize = 52;

/// Bit of an answer: the sender's sockets accept segmented sends.
const SEGMENTATION: u8 = 1;

/// Prefix of the hashed message of a proof, so that no other use of a share yields the same value.
const PROOF_LABEL: [u8; 8] = *b"RDMVdsc1";

/// A datagram of the discovery, about one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Discovery {
    /// Random number of the end that asks, repeated in the answer.
    pub nonce: u64,
    /// The queue pair that the datagram is for.
    pub receiver: Qpn,
    /// The queue pair that it comes from: the peer of the receiver.
    pub sender: Qpn,
    /// Its content.
    pub content: DiscoveryContent,
}

/// The content of a datagram of the discovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiscoveryContent {
    /// Asks whether the receiver is native.
    Question,
    /// The sender is native.
    Answer(DiscoveryAnswer),
    /// The queue pair 1 of a standard peer refuses the question with this status. All else is as in the question.
    Refusal(u16),
}

/// The statements of a native end about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiscoveryAnswer {
    /// Its capabilities.
    pub capabilities: PeerCapabilities,
    /// Its share of the connection's key.
    pub share: KeyShare,
    /// [`proof`](DiscoveryAnswer::proof) that it knows the share of the end that asks; `None` if it does not.
    pub proof: Option<u64>,
}

impl DiscoveryAnswer {
    /// Computes the proof that the sender of an answer knows both shares: their SipHash-2-4, a keyed pseudorandom
    /// function, of the nonce and the queue pairs.
    ///
    /// Both ends compute the same one: `asks` and `answers` are the shares and queue pairs of the end that asks and of
    /// the end that answers. It reveals nothing about the shares.
    pub fn proof(nonce: u64, asks: (KeyShare, Qpn), answers: (KeyShare, Qpn)) -> u64 {
        let half = |share: KeyShare, role: u8| {
            let mut hasher = SipHasher24::new_with_key(&share.to_bytes());
            let mut message = [0; 25];
            message[..8].copy_from_slice(&PROOF_LABEL);
            message[8..16].copy_from_slice(&nonce.to_be_bytes());
            message[16..20].copy_from_slice(&asks.1.value().to_be_bytes());
            message[20..24].copy_from_slice(&answers.1.value().to_be_bytes());
            message[24] = role;
            hasher.write(&message);
            hasher.finish()
        };
        half(asks.0, 0) ^ half(answers.0, 0x80)
    }
}

impl Discovery {
    /// Position of the receiver's number in a datagram: a word whose upper byte is reserved. Packets are steered by it.
    pub const RECEIVER_OFFSET: usize = MAD_HEADER_BYTES + RECEIVER_AT - 1;
    /// Position of the sender's number in a datagram, likewise.
    pub const SENDER_OFFSET: usize = MAD_HEADER_BYTES + SENDER_AT - 1;
    /// Bytes of an answer that are a secret.
    const SHARE: Range<usize> = MAD_HEADER_BYTES + SHARE_AT..MAD_HEADER_BYTES + SHARE_AT + KeyShare::BYTES;

    /// Reads a datagram. Returns `None` if it does not belong to the discovery, or is of a later version that has
    /// another form.
    pub fn read(mad: &Mad) -> Option<Self> {
        if !mad.is_of_discovery() || at(VERSION_AT).get::<u8>(&mad.data) == 0 {
            return None;
        }
        let content = match (mad.method, mad.status) {
            (Method::GET, 0) => DiscoveryContent::Question,
            (Method::GET_RESPONSE, 0) => DiscoveryContent::Answer(DiscoveryAnswer::read(&mad.data)?),
            (Method::GET_RESPONSE, status) => DiscoveryContent::Refusal(status),
            _ => return None,
        };
        let [receiver, sender] = [RECEIVER_AT, SENDER_AT].map(|byte| at(byte).get(&mad.data));
        Some(Self { nonce: mad.transaction_id, receiver, sender, content })
    }

    /// Returns the datagram.
    pub fn to_mad(self) -> Mad {
        let (method, status) = match self.content {
            DiscoveryContent::Question => (Method::GET, 0),
            DiscoveryContent::Answer(_) => (Method::GET_RESPONSE, 0),
            DiscoveryContent::Refusal(status) => (Method::GET_RESPONSE, status),
        };
        let mut data = [0; MAD_DATA_BYTES];
        data[OUI_AT..OUI_AT + OUI.len()].copy_from_slice(&OUI);
        at(RECEIVER_AT).put(&mut data, self.receiver);
        at(SENDER_AT).put(&mut data, self.sender);
        at(VERSION_AT).put(&mut data, VERSION);
        if let DiscoveryContent::Answer(answer) = &self.content {
            answer.write(&mut data);
        }
        Mad {
            base_version: BASE_VERSION,
            class: ManagementClass::DISCOVERY,
            class_version: VERSION,
            method,
            status,
            transaction_id: self.nonce,
            attribute: Attribute::DISCOVERY,
            modifier: 0,
            data,
        }
    }
}

impl DiscoveryAnswer {
    /// Reads the answer in this data. Returns `None` if its sender is not native.
    fn read(data: &[u8; MAD_DATA_BYTES]) -> Option<Self> {
        let capabilities = PeerCapabilities {
            version: at(CAPABILITIES_AT).get(data),
            segmentation_offload: data[FLAGS_AT] & SEGMENTATION != 0,
            receive_buffer_bytes: at(BUFFER_AT).get(data),
            extensions: at(EXTENSIONS_AT).get(data),
        };
        let share = KeyShare::new(data[SHARE_AT..].first_chunk().copied()?);
        let proof = Some(at(PROOF_AT).get(data)).filter(|proof| *proof != 0);
        capabilities.is_native().then_some(Self { capabilities, share, proof })
    }

    fn write(&self, data: &mut [u8; MAD_DATA_BYTES]) {
        let Self { capabilities, share, proof } = self;
        at(CAPABILITIES_AT).put(data, capabilities.version);
        at(FLAGS_AT).put(data, if capabilities.segmentation_offload { SEGMENTATION } else { 0 });
        at(BUFFER_AT).put(data, capabilities.receive_buffer_bytes);
        at(EXTENSIONS_AT).put(data, capabilities.extensions);
        data[SHARE_AT..SHARE_AT + KeyShare::BYTES].copy_from_slice(&share.to_bytes());
        at(PROOF_AT).put(data, proof.unwrap_or(0));
    }
}

impl Mad {
    /// Returns whether the header and the vendor are those of the discovery.
    fn is_of_discovery(&self) -> bool {
        let is_of_class = self.base_version == BASE_VERSION && self.class == ManagementClass::DISCOVERY;
        is_of_class && self.attribute == Attribute::DISCOVERY && self.data[OUI_AT..].starts_with(&OUI)
    }

    /// Returns the bytes of the datagram that are a secret if it is an answer, of any version.
    pub(super) fn secret_of_discovery(&self) -> Option<Range<usize>> {
        let is_answer = self.is_of_discovery() && self.method == Method::GET_RESPONSE;
        is_answer.then_some(Discovery::SHARE)
    }
}

/// The queue pairs of both ends, and the content.
impl fmt::Display for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { receiver, sender, .. } = self;
        match &self.content {
            DiscoveryContent::Question => {
                write!(f, "DISCOVERY: queue pair {sender} asks {receiver} whether it is native")
            }
            DiscoveryContent::Answer(answer) => {
                write!(f, "DISCOVERY: queue pair {sender} answers {receiver}: native")?;
                if answer.capabilities.segmentation_offload {
                    f.write_str(", takes segmented sends")?;
                }
                write!(f, ", {} bytes of receive buffer", answer.capabilities.receive_buffer_bytes)?;
                if answer.proof.is_some() { f.write_str(", knows the key") } else { Ok(()) }
            }
            DiscoveryContent::Refusal(status) => {
                write!(
                    f,
                    "DISCOVERY: the question of queue pair {sender} to {receiver} is refused, status {status:#06x}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{LONGEST_SUMMARY, MAD_BYTES};
    use super::*;

    const NONCE: u64 = 0x0102_0304_0506_0708;
    const CAPABILITIES: PeerCapabilities = PeerCapabilities {
        version: 1,
        segmentation_offload: true,
        receive_buffer_bytes: 0x0634_0000,
        extensions: 0x0000_0003,
    };
    const SHARE: KeyShare = KeyShare::new(*b"sixteen secrets.");

    fn discovery(content: DiscoveryContent) -> Discovery {
        Discovery { nonce: NONCE, receiver: Qpn::new(0xab_cdef), sender: Qpn::new(0x12_3456), content }
    }

    fn answer(proof: Option<u64>) -> Discovery {
        discovery(DiscoveryContent::Answer(DiscoveryAnswer { capabilities: CAPABILITIES, share: SHARE, proof }))
    }

    /// Other versions rely on the format: these bytes must never change.
    #[test]
    fn bytes_of_version_1() {
        let question = discovery(DiscoveryContent::Question).to_mad().write();
        let mut expected = [0; MAD_BYTES];
        expected[..4].copy_from_slice(&[1, 0x3f, 1, 0x01]);
        expected[8..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        expected[16..18].copy_from_slice(&[0x52, 0x44]);
        expected[37..40].copy_from_slice(b"RDM");
        expected[40..49].copy_from_slice(&[0, 0xab, 0xcd, 0xef, 0, 0x12, 0x34, 0x56, 1]);
        assert_eq!(question, expected);
        expected[3] = 0x81;
        expected[49..60].copy_from_slice(&[1, 1, 0, 0x06, 0x34, 0, 0, 0, 0, 0, 3]);
        expected[60..76].copy_from_slice(b"sixteen secrets.");
        assert_eq!(answer(None).to_mad().write(), expected);
        expected[76..84].copy_from_slice(&[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!(answer(Some(0x1122_3344_5566_7788)).to_mad().write(), expected);
        assert_eq!((Discovery::RECEIVER_OFFSET, Discovery::SENDER_OFFSET, Discovery::SHARE), (40, 44, 60..76));
    }

    /// Linux refuses a question so (`mad.c`, `generate_unmatched_resp`), and so does an end with discovery off.
    #[test]
    fn a_refusal_is_the_question_with_a_status() {
        let question = discovery(DiscoveryContent::Question);
        let refusal = question.to_mad().unsupported_response().unwrap();
        assert_eq!(Discovery::read(&refusal), Some(discovery(DiscoveryContent::Refusal(0x000c))));
        assert_eq!(Discovery::read(&refusal).unwrap().to_mad(), refusal);
        assert_eq!(refusal.unsupported_response(), None);
    }

    #[test]
    fn the_proof_depends_on_everything() {
        let shares = [KeyShare::new([1; 16]), KeyShare::new([2; 16])];
        let qpns = [Qpn::new(0x11), Qpn::new(0x22)];
        let proof = DiscoveryAnswer::proof(NONCE, (shares[0], qpns[0]), (shares[1], qpns[1]));
        assert_eq!(proof, PROOF_OF_VERSION_1);
        let others = [
            DiscoveryAnswer::proof(NONCE + 1, (shares[0], qpns[0]), (shares[1], qpns[1])),
            DiscoveryAnswer::proof(NONCE, (shares[1], qpns[0]), (shares[1], qpns[1])),
            DiscoveryAnswer::proof(NONCE, (shares[0], qpns[0]), (shares[0], qpns[1])),
            DiscoveryAnswer::proof(NONCE, (shares[0], qpns[1]), (shares[1], qpns[1])),
            DiscoveryAnswer::proof(NONCE, (shares[0], qpns[0]), (shares[1], qpns[0])),
            DiscoveryAnswer::proof(NONCE, (shares[1], qpns[1]), (shares[0], qpns[0])),
            0,
        ];
        assert!(others.iter().all(|other| *other != proof));
    }

    /// Other versions rely on it: this value must never change.
    const PROOF_OF_VERSION_1: u64 = 0xb3e6_49c6_4f56_b464;

    #[test]
    fn other_datagrams_are_none() {
        let mad = answer(Some(5)).to_mad();
        let changed = |change: fn(&mut Mad)| {
            let mut other = mad;
            change(&mut other);
            Discovery::read(&other)
        };
        assert_eq!(changed(|mad| mad.base_version = 2), None);
        assert_eq!(changed(|mad| mad.class = ManagementClass(0x30)), None);
        assert_eq!(changed(|mad| mad.attribute = Attribute(0x10)), None);
        assert_eq!(changed(|mad| mad.method = Method::SET), None);
        assert_eq!(changed(|mad| mad.data[OUI_AT] = 0), None);
        assert_eq!(changed(|mad| mad.data[VERSION_AT] = 0), None);
        assert_eq!(changed(|mad| mad.data[CAPABILITIES_AT] = 0), None);
        // Later versions add to the reserved bits.
        let expected = Some(answer(Some(5)));
        assert_eq!(changed(|mad| mad.data[VERSION_AT] = 9), expected);
        assert_eq!(changed(|mad| mad.class_version = 2), expected);
        assert_eq!(changed(|mad| mad.modifier = 7), expected);
        assert_eq!(changed(|mad| mad.data[FLAGS_AT] = 0xff), expected);
        assert_eq!(changed(|mad| mad.data[RECEIVER_AT - 1] = 0xff), expected);
        assert_eq!(changed(|mad| mad.data[60..].fill(0xff)), expected);
    }

    #[test]
    fn only_answers_have_a_secret() {
        assert_eq!(answer(None).to_mad().secret(), Some(60..76));
        assert_eq!(discovery(DiscoveryContent::Question).to_mad().secret(), None);
        let text = format!("{:?} {}", answer(None), answer(None));
        assert!(!text.contains("115, 105") && !text.contains("sixteen"), "{text}");
    }

    #[test]
    fn datagrams_in_words() {
        let line = |discovery: Discovery| discovery.to_mad().to_string();
        assert_eq!(
            line(discovery(DiscoveryContent::Question)),
            "DISCOVERY: queue pair 0x123456 asks 0xabcdef whether it is native"
        );
        assert_eq!(
            line(answer(Some(1))),
            "DISCOVERY: queue pair 0x123456 answers 0xabcdef: native, takes segmented sends, 104071168 bytes of \
             receive buffer, knows the key"
        );
        assert_eq!(
            line(discovery(DiscoveryContent::Refusal(12))),
            "DISCOVERY: the question of queue pair 0x123456 to 0xabcdef is refused, status 0x000c"
        );
    }

    proptest! {
        #[test]
        fn datagrams_round_trip(
            numbers: (u64, u32, u32),
            share: [u8; 16],
            facts: (u8, bool, u32, u32),
            proof: Option<u64>,
            status: u16,
            kind in 0..3,
        ) {
            let (version, segmentation_offload, receive_buffer_bytes, extensions) = facts;
            let capabilities =
                PeerCapabilities { version: version.max(1), segmentation_offload, receive_buffer_bytes, extensions };
            let proof = proof.filter(|proof| *proof != 0);
            let content = match kind {
                0 => DiscoveryContent::Question,
                1 => DiscoveryContent::Refusal(status.max(1)),
                _ => DiscoveryContent::Answer(DiscoveryAnswer { capabilities, share: KeyShare::new(share), proof }),
            };
            let (receiver, sender) = (Qpn::new(numbers.1 & 0xff_ffff), Qpn::new(numbers.2 & 0xff_ffff));
            let written = Discovery { nonce: numbers.0, receiver, sender, content };
            let mad = Mad::read(&written.to_mad().write()).unwrap();
            prop_assert_eq!(Discovery::read(&mad), Some(written));
            prop_assert!(mad.to_string().len() <= LONGEST_SUMMARY);
        }

        #[test]
        fn what_was_read_is_written(mut bytes in proptest::collection::vec(any::<u8>(), MAD_BYTES), is_answer: bool) {
            bytes[..6].copy_from_slice(&[1, 0x3f, 1, if is_answer { 0x81 } else { 0x01 }, 0, 0]);
            bytes[16..18].copy_from_slice(&[0x52, 0x44]);
            bytes[37..40].copy_from_slice(b"RDM");
            if let Some(read) = Discovery::read(&Mad::read(&bytes).unwrap()) {
                let written = read.to_mad();
                prop_assert_eq!(Discovery::read(&written), Some(read));
                let written = written.write();
                // All but the version of the message, which is this crate's.
                let differing = (0..MAD_BYTES).filter(|index| written[*index] & !bytes[*index] != 0);
                prop_assert!(differing.into_iter().all(|index| index == 48));
            }
        }
    }
}
