//! The messages between `ping HOST` and `ping --serve`.
//!
//! The request for a connection, or for the datagram queue pair, carries a [`Hello`]; the reply carries a [`Welcome`].
//! An echo is a message with a header, which the server returns as it came. On a reliable connection the client may
//! also send a note: the data of its unreliable connection, to which the server returns its own, or a sign of life.

use std::time::Duration;

use rdma_verbs::verbs::{RemoteMemory, Rkey};
use serde::Serialize;

/// Port of the server, of connections and of datagram queue pairs.
pub(super) const DEFAULT_PORT: u16 = 18517;
/// Bytes before the data of an echo.
pub(super) const HEADER_BYTES: usize = 16;
/// Longest data of an echo: messages of 64 KiB.
pub(super) const MOST_DATA: usize = (64 << 10) - HEADER_BYTES;
/// Echoes that may be under way at a time, on each connection.
pub(super) const DEPTH: usize = 64;
/// Bytes of the longest note, behind its header.
pub(super) const NOTE_BYTES: usize = 512;
/// A client that sends nothing else sends a sign of life after this time.
pub(super) const LIFE_SIGN: Duration = Duration::from_secs(10);
const MAGIC: [u8; 4] = *b"RVPG";
const VERSION: u8 = 1;
/// Longest text of a refusal.
const MOST_TEXT: usize = 128;

/// The transport service of the echoes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Service {
    /// Reliable connection: lost packets are sent again.
    Rc,
    /// Unreliable connection: lost packets are lost echoes.
    Uc,
    /// Unreliable datagram: at most one packet for each echo.
    Ud,
}

impl Service {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }
}

/// The request of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub(super) service: Service,
    /// Whether the client reads the server's memory instead of sending.
    pub(super) is_one_sided: bool,
    /// Length of its echoes, with the header.
    pub(super) bytes: usize,
}

impl Hello {
    pub(super) fn encode(self) -> Vec<u8> {
        let service = match self.service {
            Service::Rc => 1,
            Service::Uc => 2,
            Service::Ud => 3,
        };
        let mut text = MAGIC.to_vec();
        text.extend([VERSION, service, u8::from(self.is_one_sided), 0]);
        text.extend((self.bytes as u32).to_be_bytes());
        text
    }

    /// Decodes what a client asks; the error is the text of the refusal.
    pub(super) fn decode(data: &[u8]) -> Result<Self, String> {
        let version = version_of(data).ok_or("this port belongs to rdma-verbs ping")?;
        if version != VERSION {
            return Err(format!("the client has version {version} of the protocol, this server has {VERSION}"));
        }
        let fields = data.get(5..12).ok_or("the request is too short")?;
        let service = match fields[0] {
            1 => Service::Rc,
            2 => Service::Uc,
            3 => Service::Ud,
            other => return Err(format!("service {other} is not known")),
        };
        let is_one_sided = fields[1] == 1;
        let bytes = u32::from_be_bytes([fields[3], fields[4], fields[5], fields[6]]) as usize;
        if is_one_sided && service != Service::Rc {
            return Err(format!("{} has no READ", service.name()));
        }
        if !(HEADER_BYTES..=HEADER_BYTES + MOST_DATA).contains(&bytes) {
            return Err(format!("{bytes} bytes: allowed are {HEADER_BYTES} to {}", HEADER_BYTES + MOST_DATA));
        }
        Ok(Self { service, is_one_sided, bytes })
    }
}

/// The server's limits, and the memory that it offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Welcome {
    /// Shortest time between two echoes.
    pub(super) interval: Duration,
    /// The memory that the client may read.
    pub(super) memory: Option<RemoteMemory>,
}

impl Welcome {
    const BYTES: usize = 12 + RemoteMemory::ENCODED_BYTES;

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut text = MAGIC.to_vec();
        text.extend([VERSION, 0, 0, 0]);
        let interval = u32::try_from(self.interval.as_micros()).unwrap_or(u32::MAX);
        text.extend(interval.to_be_bytes());
        text.extend(self.memory.unwrap_or(RemoteMemory::new(0, Rkey(0), 0)).to_bytes());
        text
    }

    pub(super) fn decode(data: &[u8]) -> Option<Self> {
        let fields = data.get(8..Self::BYTES).filter(|_| version_of(data) == Some(VERSION))?;
        let (interval, memory) = fields.split_at(4);
        let memory = RemoteMemory::from_bytes(memory.try_into().ok()?);
        Some(Self {
            interval: Duration::from_micros(u32::from_be_bytes(interval.try_into().ok()?).into()),
            memory: Some(memory).filter(|memory| !memory.is_empty()),
        })
    }
}

/// Returns the private data of a refusal.
pub(super) fn refusal(why: &str) -> Vec<u8> {
    let mut text = MAGIC.to_vec();
    text.extend(why.bytes().filter(|byte| (b' '..=b'~').contains(byte)).take(MOST_TEXT));
    text
}

/// Returns the text of a server's refusal; other programs' refusals have none.
pub(super) fn refusal_text(data: &[u8]) -> Option<String> {
    let text = data.strip_prefix(&MAGIC)?;
    let text: String = text.iter().filter(|byte| (b' '..=b'~').contains(byte)).map(|byte| char::from(*byte)).collect();
    Some(text).filter(|text| !text.is_empty())
}

fn version_of(data: &[u8]) -> Option<u8> {
    data.strip_prefix(&MAGIC)?.first().copied()
}

/// The kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Echo,
    /// The data of an unreliable connection, in each direction.
    Address,
    /// The client lives.
    Life,
}

/// The header of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) sequence: u32,
    /// A number of the client's run, so that it knows its own echoes.
    pub(super) run: u64,
}

impl Header {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let kind = match self.kind {
            Kind::Echo => 1,
            Kind::Address => 2,
            Kind::Life => 3,
        };
        bytes[..4].copy_from_slice(&[b'R', b'P', VERSION, kind]);
        bytes[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8..].copy_from_slice(&self.run.to_be_bytes());
        bytes
    }

    pub(super) fn decode(message: &[u8]) -> Option<Self> {
        let (header, _) = message.split_first_chunk::<HEADER_BYTES>()?;
        let fields = header.strip_prefix(&[b'R', b'P', VERSION])?;
        let kind = match fields[0] {
            1 => Kind::Echo,
            2 => Kind::Address,
            3 => Kind::Life,
            _ => return None,
        };
        let sequence = u32::from_be_bytes(fields[1..5].try_into().ok()?);
        Some(Self { kind, sequence, run: u64::from_be_bytes(fields[5..].try_into().ok()?) })
    }
}

/// Returns the data of echoes, behind the header: each byte differs from its neighbours.
pub(super) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 31 + index / 251) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_return_as_they_were() {
        for (service, is_one_sided) in [(Service::Rc, true), (Service::Uc, false), (Service::Ud, false)] {
            let hello = Hello { service, is_one_sided, bytes: 72 };
            let mut data = hello.encode();
            data.resize(56, 0);
            assert_eq!(Hello::decode(&data), Ok(hello));
        }
    }

    #[test]
    fn wrong_hellos_are_refused_in_words() {
        let right = Hello { service: Service::Rc, is_one_sided: false, bytes: 72 }.encode();
        let changed = |index: usize, value: u8| {
            let mut data = right.clone();
            data[index] = value;
            Hello::decode(&data).unwrap_err()
        };
        assert!(changed(0, b'x').contains("belongs to"));
        assert!(changed(4, 9).contains("version 9"));
        assert!(changed(5, 7).contains("service 7"));
        assert!(changed(8, 1).contains("allowed are 16 to 65536"));
        let uc = Hello { service: Service::Uc, is_one_sided: true, bytes: 72 }.encode();
        assert!(Hello::decode(&uc).unwrap_err().contains("UC has no READ"));
        for length in 0..right.len() {
            assert!(Hello::decode(&right[..length]).is_err());
        }
    }

    #[test]
    fn welcomes_return_as_they_were() {
        let memory = RemoteMemory::new(0x1000, Rkey(7), 72);
        for memory in [None, Some(memory)] {
            let welcome = Welcome { interval: Duration::from_micros(1500), memory };
            assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
        }
        assert_eq!(Welcome::decode(b"RVPG"), None);
        assert_eq!(Welcome::decode(&[0; 196]), None);
    }

    #[test]
    fn refusals_are_printable() {
        assert_eq!(refusal_text(&refusal("full:\n\x1b[2J16 clients")).as_deref(), Some("full:[2J16 clients"));
        assert_eq!(refusal_text(b"something else"), None);
        assert!(refusal(&"x".repeat(1000)).len() <= 136);
    }

    #[test]
    fn headers_return_as_they_were() {
        for kind in [Kind::Echo, Kind::Address, Kind::Life] {
            let header = Header { kind, sequence: 17, run: u64::MAX - 5 };
            let mut message = header.encode().to_vec();
            message.extend(pattern(4));
            assert_eq!(Header::decode(&message), Some(header));
        }
        assert_eq!(Header::decode(&[0; 64]), None);
        assert_eq!(Header::decode(b"RP"), None);
    }
}
