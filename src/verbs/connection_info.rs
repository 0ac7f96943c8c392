//! The data that two ends exchange before they connect, and its encoding (`docs/wire.md`).

use std::io::{self, Read, Write};

use super::{Error, ErrorKind, Gid, KeyShare, Mtu, PeerCapabilities, Psn, Qpn, QueuePairType, Result};
use crate::types::setters::setters;

const MAGIC: [u8; 4] = *b"RDMV";
const VERSION: u8 = 2;
/// Size of the header: magic number, version, a reserved byte, length of the body.
const HEADER_BYTES: usize = 8;
/// Size of the fields of version 1, which begin the body in every version.
const BODY_BYTES: usize = 40;
/// Size of a record's type and length.
const RECORD_HEADER_BYTES: usize = 4;
/// Record type of padding, whose value is ignored.
const RECORD_PADDING: u16 = 0;
const RECORD_KEY_SHARE: u16 = 1;
/// First mandatory record type: a reader rejects a message with an unknown record of this type or above, and skips
/// other unknown records.
const FIRST_MANDATORY_RECORD: u16 = 0x8000;
/// Longest body accepted from later versions.
const MAX_BODY_BYTES: usize = 1024;
/// Bit in the flags byte: the peer's sockets send and receive segmented datagrams (GSO, GRO).
const FLAG_SEGMENTATION: u8 = 1;

/// The data that a peer needs to connect to a queue pair, exchanged over any stream. Setters are named after the
/// fields.
///
/// Disclose it only to the two ends: `psn` and `key` protect the connection against packets forged by hosts that cannot
/// see its traffic. It describes no memory: to grant access, send a [`RemoteMemory`](super::RemoteMemory) separately.
///
/// # Encoding
///
/// 68 bytes, numbers in network byte order:
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | `RDMV` |
/// | 4 | 1 | version, 2 |
/// | 5 | 1 | reserved: 0, ignored |
/// | 6 | 2 | length of the rest, 60 |
/// | 8 | 4 | `qpn` |
/// | 12 | 4 | `psn` |
/// | 16 | 16 | `gid` |
/// | 32 | 1 | `path_mtu`, the standard's code 1 to 5 |
/// | 33 | 1 | `max_dest_rd_atomic` |
/// | 34 | 1 | `qp_type`: 2 RC, 3 UC, 4 UD, 9 XRC initiator, 10 XRC target |
/// | 35 | 1 | `capabilities.version` |
/// | 36 | 1 | `capabilities`: bit 0 segmentation offload; others 0, ignored |
/// | 37 | 1 | reserved: 0, ignored |
/// | 38 | 2 | `lid`; 0 on Ethernet |
/// | 40 | 4 | `capabilities.receive_buffer_bytes` |
/// | 44 | 4 | `capabilities.extensions` |
/// | 48 | 2 | type of the first record: 1, a key share; 0, padding, if there is none |
/// | 50 | 2 | length of the record's value, 16 |
/// | 52 | 16 | `key`, or zeros |
///
/// Version 1 ends after 48 bytes. Later versions may add records and raise the version. A reader skips records whose
/// type it does not know, and rejects the message if the type is 0x8000 or above.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// Transport service.
    pub qp_type: QueuePairType,
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Sequence number of the first packet that it sends.
    pub psn: Psn,
    /// GID of its port.
    pub gid: Gid,
    /// Largest path MTU that it accepts.
    pub path_mtu: Mtu,
    /// LID of its port in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Maximum number of READs and atomics that the other end may have outstanding at this queue pair.
    pub max_dest_rd_atomic: u8,
    /// Capabilities of its device beyond the standard.
    pub capabilities: PeerCapabilities,
    /// Its share of the connection's key, which authenticates the packets between native peers. Either both ends pass
    /// the other's share to [`QueuePair::connect`](super::QueuePair::connect), or neither does. `None`: no key.
    pub key: Option<KeyShare>,
}

impl ConnectionInfo {
    /// Size of this version's message.
    const ENCODED_BYTES: usize = HEADER_BYTES + BODY_BYTES + RECORD_HEADER_BYTES + KeyShare::BYTES;

    /// Describes a peer learned about out of band that speaks only standard RoCEv2: a reliable connection with one
    /// outstanding READ or atomic.
    ///
    /// ```
    /// use std::net::Ipv4Addr;
    /// use rdma_verbs::verbs::{ConnectionInfo, Mtu, Psn, Qpn};
    ///
    /// let gid = Ipv4Addr::new(192, 0, 2, 7).into();
    /// let adapter = ConnectionInfo::standard_peer(Qpn::new(0x11), Psn::new(0x123456), gid, Mtu::Mtu1024);
    /// assert!(!adapter.capabilities.is_native());
    /// ```
    pub const fn standard_peer(qpn: Qpn, psn: Psn, gid: Gid, path_mtu: Mtu) -> Self {
        let qp_type = QueuePairType::ReliableConnection;
        let capabilities = PeerCapabilities::STANDARD;
        Self { qp_type, qpn, psn, gid, path_mtu, lid: 0, max_dest_rd_atomic: 1, capabilities, key: None }
    }

    setters! {
        qp_type: QueuePairType,
        qpn: Qpn,
        psn: Psn,
        gid: Gid,
        path_mtu: Mtu,
        lid: u16,
        max_dest_rd_atomic: u8,
        capabilities: PeerCapabilities,
        key: Option<KeyShare>,
    }

    /// Encodes the data for the other end. Later versions may return more bytes.
    ///
    /// ```
    /// # use std::net::Ipv4Addr;
    /// use rdma_verbs::verbs::{ConnectionInfo, Mtu, Psn, Qpn};
    ///
    /// # let gid = Ipv4Addr::new(192, 0, 2, 7).into();
    /// let info = ConnectionInfo::standard_peer(Qpn::new(0x11), Psn::new(0x123456), gid, Mtu::Mtu1024);
    /// assert_eq!(ConnectionInfo::from_bytes(&info.to_bytes())?, info);
    /// # Ok::<(), rdma_verbs::verbs::Error>(())
    /// ```
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; Self::ENCODED_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[6..8].copy_from_slice(&((Self::ENCODED_BYTES - HEADER_BYTES) as u16).to_be_bytes());
        bytes[8..12].copy_from_slice(&self.qpn.value().to_be_bytes());
        bytes[12..16].copy_from_slice(&self.psn.value().to_be_bytes());
        bytes[16..32].copy_from_slice(&self.gid.to_bytes());
        bytes[32] = self.path_mtu as u8;
        bytes[33] = self.max_dest_rd_atomic;
        bytes[34] = self.qp_type as u8;
        bytes[35] = self.capabilities.version;
        bytes[36] = if self.capabilities.segmentation_offload { FLAG_SEGMENTATION } else { 0 };
        bytes[38..40].copy_from_slice(&self.lid.to_be_bytes());
        bytes[40..44].copy_from_slice(&self.capabilities.receive_buffer_bytes.to_be_bytes());
        bytes[44..48].copy_from_slice(&self.capabilities.extensions.to_be_bytes());
        let (kind, share) = match self.key {
            Some(share) => (RECORD_KEY_SHARE, share.to_bytes()),
            None => (RECORD_PADDING, [0; KeyShare::BYTES]),
        };
        bytes[48..50].copy_from_slice(&kind.to_be_bytes());
        bytes[50..52].copy_from_slice(&(KeyShare::BYTES as u16).to_be_bytes());
        bytes[52..].copy_from_slice(&share);
        bytes
    }

    /// Decodes the bytes that [`ConnectionInfo::to_bytes`] of any version wrote.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] if `bytes` is not exactly one such message, or has an invalid value, which the error
    /// names.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(protocol(format!("the message has {} bytes; a header has {HEADER_BYTES}", bytes.len())));
        };
        let length = body_length(header)?;
        if rest.len() != length {
            return Err(protocol(format!("{} bytes follow the header, which says {length}", rest.len())));
        }
        match rest.split_first_chunk::<BODY_BYTES>() {
            Some((body, records)) => parse_records(parse_body(body)?, records),
            None => Err(protocol(format!("length is {length}; it must be at least {BODY_BYTES}"))),
        }
    }

    /// Exchanges connection data with the other end over any connected stream. Both ends call it. Each writes exactly
    /// one message, then reads one, so the stream remains usable afterwards.
    ///
    /// Set timeouts on the stream unless the other end is trusted to respond.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] if the other end sent anything else or closed the stream; [`ErrorKind::TimedOut`] if the
    /// stream's timeout passed; otherwise the stream's error.
    ///
    /// ```
    /// # use std::net::Ipv4Addr;
    /// use std::os::unix::net::UnixStream;
    /// use rdma_verbs::verbs::{ConnectionInfo, Mtu, Psn, Qpn};
    ///
    /// # let gid = Ipv4Addr::new(192, 0, 2, 7).into();
    /// # let info = |qpn| ConnectionInfo::standard_peer(Qpn::new(qpn), Psn::new(5), gid, Mtu::Mtu1024);
    /// let (left_info, right_info) = (info(0x11), info(0x22));
    /// let (mut left, mut right) = UnixStream::pair()?;
    /// let other = std::thread::spawn(move || right_info.exchange(&mut right));
    /// assert_eq!(left_info.exchange(&mut left)?, right_info);
    /// assert_eq!(other.join().unwrap()?, left_info);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exchange<S: Read + Write>(&self, stream: &mut S) -> Result<Self> {
        self.write_to(stream)?;
        Self::read_from(stream)
    }

    /// Writes one message.
    ///
    /// # Errors
    /// As for [`ConnectionInfo::exchange`].
    pub fn write_to<S: Write>(&self, stream: &mut S) -> Result<()> {
        let written = stream.write_all(&self.to_bytes()).and_then(|()| stream.flush());
        written.map_err(|error| stream_error("cannot send the connection data", error))
    }

    /// Reads exactly one message.
    ///
    /// # Errors
    /// As for [`ConnectionInfo::exchange`].
    pub fn read_from<S: Read>(stream: &mut S) -> Result<Self> {
        let mut message = [0; HEADER_BYTES + MAX_BODY_BYTES];
        let (header, rest) = message.split_at_mut(HEADER_BYTES);
        read_exactly(stream, header)?;
        let length = body_length(header.first_chunk().expect("a header was read"))?;
        read_exactly(stream, &mut rest[..length])?;
        Self::from_bytes(&message[..HEADER_BYTES + length])
    }
}

/// Checks the header and returns the length of the body, at most [`MAX_BODY_BYTES`].
fn body_length(header: &[u8; HEADER_BYTES]) -> Result<usize> {
    let [magic @ .., version, _reserved, high, low] = header;
    if magic != &MAGIC {
        let text = magic.escape_ascii();
        return Err(protocol(format!("it begins with \"{text}\" instead of \"RDMV\": not this exchange")));
    }
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    match (*version, length) {
        (0, _) => Err(protocol("version is 0; versions count from 1".into())),
        (1, BODY_BYTES) => Ok(length),
        (1, _) => Err(protocol(format!("length is {length}; version 1 has {BODY_BYTES}"))),
        (_, BODY_BYTES..=MAX_BODY_BYTES) => Ok(length),
        (later, _) => {
            let message =
                format!("length is {length} in version {later}; {BODY_BYTES} to {MAX_BODY_BYTES} are possible");
            Err(protocol(message))
        }
    }
}

/// Decodes the fields of version 1.
fn parse_body(body: &[u8; BODY_BYTES]) -> Result<ConnectionInfo> {
    let number = |from: usize| u32::from_be_bytes(std::array::from_fn(|index| body[from + index]));
    let number_24_bits = |name: &str, from| match number(from) {
        value @ 0..=0x00ff_ffff => Ok(value),
        value => Err(protocol(format!("{name} is {value:#x}; it has 24 bits"))),
    };
    let qpn = number_24_bits("qpn", 0)?;
    let psn = number_24_bits("psn", 4)?;
    let path_mtu = Mtu::from_code(body[24])
        .ok_or_else(|| protocol(format!("path_mtu is {}; the codes are 1 (256) to 5 (4096)", body[24])))?;
    Ok(ConnectionInfo {
        qp_type: parse_type(body[26])?,
        qpn: Qpn::new(qpn),
        psn: Psn::new(psn),
        gid: Gid::from_bytes(std::array::from_fn(|index| body[8 + index])),
        path_mtu,
        lid: u16::from_be_bytes([body[30], body[31]]),
        max_dest_rd_atomic: body[25],
        capabilities: PeerCapabilities {
            version: body[27],
            segmentation_offload: body[28] & FLAG_SEGMENTATION != 0,
            receive_buffer_bytes: number(32),
            extensions: number(36),
        },
        key: None,
    })
}

/// Adds the contents of the records to the fields.
fn parse_records(mut info: ConnectionInfo, mut records: &[u8]) -> Result<ConnectionInfo> {
    while !records.is_empty() {
        let Some(([kind @ .., _, _], rest)) = records.split_first_chunk::<RECORD_HEADER_BYTES>() else {
            return Err(protocol(format!("{} bytes at the end are no record", records.len())));
        };
        let kind = u16::from_be_bytes(*kind);
        let length = usize::from(u16::from_be_bytes([records[2], records[3]]));
        let Some((value, rest)) = rest.split_at_checked(length) else {
            return Err(protocol(format!("record {kind:#x} has length {length}; {} bytes are left", rest.len())));
        };
        match (kind, value.try_into()) {
            (RECORD_KEY_SHARE, _) if info.key.is_some() => {
                return Err(protocol("it holds two key shares; one is allowed".into()));
            }
            (RECORD_KEY_SHARE, Ok(share)) => info.key = Some(KeyShare::new(share)),
            (RECORD_KEY_SHARE, Err(_)) => {
                return Err(protocol(format!("the key share has length {length}; it has {}", KeyShare::BYTES)));
            }
            (FIRST_MANDATORY_RECORD.., _) => {
                return Err(protocol(format!(
                    "record {kind:#x} must be understood, and this version does not know it"
                )));
            }
            // Padding, and records of later versions.
            _ => {}
        }
        records = rest;
    }
    Ok(info)
}

fn parse_type(code: u8) -> Result<QueuePairType> {
    QueuePairType::ALL
        .iter()
        .copied()
        .find(|known| *known as u32 == u32::from(code))
        .ok_or_else(|| protocol(format!("qp_type is {code}; 2 (RC), 3 (UC), 4 (UD), 9 and 10 (XRC) exist")))
}

fn read_exactly<S: Read>(stream: &mut S, buffer: &mut [u8]) -> Result<()> {
    stream.read_exact(buffer).map_err(|error| stream_error("cannot receive the peer's connection data", error))
}

pub(super) fn stream_error(what: &'static str, error: io::Error) -> Error {
    match error.kind() {
        // The error of a socket with a timeout on Linux.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            Error::new("exchange", ErrorKind::TimedOut, format!("{what}: the stream's timeout passed"))
        }
        io::ErrorKind::UnexpectedEof => protocol(format!("{what}: the peer closed the stream")),
        _ => Error::from_io("exchange", what, error),
    }
}

fn protocol(message: String) -> Error {
    Error::new("exchange", ErrorKind::Protocol, message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_info() -> impl Strategy<Value = ConnectionInfo> {
        let identity = (any::<u32>(), any::<u32>(), any::<[u8; 16]>());
        let limits = (
            prop::sample::select(QueuePairType::ALL.to_vec()),
            prop::sample::select(Mtu::ALL.to_vec()),
            any::<u8>(),
            any::<u16>(),
        );
        let peer = (any::<u8>(), any::<bool>(), any::<u32>(), any::<u32>(), any::<Option<[u8; 16]>>());
        (identity, limits, peer).prop_map(|((qpn, psn, gid), (qp_type, path_mtu, max_dest_rd_atomic, lid), peer)| {
            let (version, segmentation_offload, receive_buffer_bytes, extensions, key) = peer;
            ConnectionInfo {
                qp_type,
                qpn: Qpn::new(qpn),
                psn: Psn::new(psn),
                gid: Gid::from_bytes(gid),
                path_mtu,
                lid,
                max_dest_rd_atomic,
                capabilities: PeerCapabilities { version, segmentation_offload, receive_buffer_bytes, extensions },
                key: key.map(KeyShare::new),
            }
        })
    }

    fn example() -> ConnectionInfo {
        let gid = std::net::Ipv4Addr::new(10, 0, 0, 1).into();
        let capabilities = PeerCapabilities {
            version: 1,
            segmentation_offload: true,
            receive_buffer_bytes: 0x0003_4000,
            extensions: 0x8000_0001,
        };
        let standard = ConnectionInfo::standard_peer(Qpn::new(0x01_0203), Psn::new(0xfe_dcba), gid, Mtu::Mtu4096);
        let key = Some(KeyShare::new(*b"sixteen bytes of"));
        ConnectionInfo { capabilities, max_dest_rd_atomic: 16, lid: 0x1234, key, ..standard }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(info in any_info()) {
            let bytes = info.to_bytes();
            prop_assert_eq!(ConnectionInfo::from_bytes(&bytes).unwrap(), info);
            prop_assert_eq!(ConnectionInfo::read_from(&mut &bytes[..]).unwrap(), info);
        }

        #[test]
        fn garbage_is_an_error_and_what_is_accepted_says_the_same_again(
            mut bytes in prop::collection::vec(any::<u8>(), 0..100),
            with_header in any::<bool>(),
        ) {
            if with_header && bytes.len() >= HEADER_BYTES {
                bytes[..HEADER_BYTES].copy_from_slice(&example().to_bytes()[..HEADER_BYTES]);
            }
            match ConnectionInfo::from_bytes(&bytes) {
                Ok(info) => prop_assert_eq!(ConnectionInfo::from_bytes(&info.to_bytes()).unwrap(), info),
                Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Protocol),
            }
        }

        #[test]
        fn truncation_is_an_error(info in any_info(), length in 0..ConnectionInfo::ENCODED_BYTES) {
            let bytes = &info.to_bytes()[..length];
            prop_assert_eq!(ConnectionInfo::from_bytes(bytes).unwrap_err().kind(), ErrorKind::Protocol);
            prop_assert_eq!(ConnectionInfo::read_from(&mut &bytes[..]).unwrap_err().kind(), ErrorKind::Protocol);
        }
    }

    fn bytes_of(hexadecimal: &str) -> Vec<u8> {
        let digits: String = hexadecimal.split_whitespace().collect();
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    }

    const FIELDS: &str = "00010203 00fedcba 00000000000000000000ffff0a000001 05 10 02 01 01 00 1234 00034000 80000001";

    /// The encoding is a contract with other versions: these bytes never change.
    #[test]
    fn form_of_version_1() {
        let bytes = bytes_of(&format!("52444d56 01 00 0028 {FIELDS}"));
        assert_eq!(ConnectionInfo::from_bytes(&bytes).unwrap(), ConnectionInfo { key: None, ..example() });
    }

    #[test]
    fn form_of_version_2() {
        let record = "0001 0010 7369787465656e206279746573206f66";
        assert_eq!(example().to_bytes(), bytes_of(&format!("52444d56 02 00 003c {FIELDS} {record}")));
        let padding = format!("0000 0010 {}", "00".repeat(16));
        let keyless = ConnectionInfo { key: None, ..example() };
        assert_eq!(keyless.to_bytes(), bytes_of(&format!("52444d56 02 00 003c {FIELDS} {padding}")));
    }

    fn with_records(records: &str) -> Result<ConnectionInfo> {
        let records = bytes_of(records);
        let length = BODY_BYTES + records.len();
        let header = bytes_of(&format!("52444d56 03 00 {length:04x} {FIELDS}"));
        ConnectionInfo::from_bytes(&[header, records].concat())
    }

    #[test]
    fn unknown_records_are_skipped_unless_they_are_mandatory() {
        let share = "0001 0010 7369787465656e206279746573206f66";
        assert_eq!(with_records(&format!("7fff 0003 aabbcc {share} 0002 0000")).unwrap(), example());
        for (records, part) in [
            ("8000 0000", "record 0x8000 must be understood"),
            (&format!("{share} {share}"), "two key shares"),
            ("0001 0004 aabbccdd", "the key share has length 4; it has 16"),
            ("0002 0005 aabbccdd", "record 0x2 has length 5; 4 bytes are left"),
            ("0002 00", "3 bytes at the end are no record"),
        ] {
            let error = with_records(records).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn debug_hides_the_key() {
        let text = format!("{:?}", example());
        assert!(text.contains("KeyShare(hidden)") && !text.contains("115, 105"), "{text}");
    }

    #[test]
    fn later_versions_are_read_as_far_as_known() {
        let mut later = example().to_bytes();
        later[4] = 9;
        later[5] = 0xff; // reserved
        later[6..8].copy_from_slice(&70u16.to_be_bytes());
        later.extend([0x0e, 0xee, 0, 6, 1, 2, 3, 4, 5, 6]);
        later.extend(b"next message");
        let mut stream = &later[..];
        assert_eq!(ConnectionInfo::read_from(&mut stream).unwrap(), example());
        assert_eq!(stream, b"next message");
    }

    #[test]
    fn every_wrong_value_is_named() {
        let bytes = example().to_bytes();
        for (offset, value, part) in [
            (0, b'X', "begins with \"XDMV\""),
            (4, 0, "version is 0"),
            (7, 39, "length is 39 in version 2"),
            (8, 1, "qpn is 0x1010203"),
            (12, 1, "psn is 0x1fedcba"),
            (32, 0, "path_mtu is 0"),
            (32, 6, "path_mtu is 6"),
            (34, 8, "qp_type is 8"),
        ] {
            let mut wrong = bytes.clone();
            wrong[offset] = value;
            let error = ConnectionInfo::from_bytes(&wrong).unwrap_err().to_string();
            assert!(error.starts_with("exchange: ") && error.contains(part), "{error}");
        }
        let mut huge = bytes;
        huge[4] = 3;
        huge[6..8].copy_from_slice(&u16::MAX.to_be_bytes());
        let error = ConnectionInfo::read_from(&mut &huge[..]).unwrap_err();
        assert!(error.to_string().contains("length is 65535 in version 3"), "{error}");
    }
}
