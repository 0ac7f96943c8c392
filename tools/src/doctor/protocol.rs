//! The messages between `doctor HOST` and `doctor --serve`.
//!
//! Over TCP, the client sends a frame and the server returns one. All frames have the same size, so the server never
//! returns more than it receives. Over UDP, the server returns each datagram that begins with the client's token, as it
//! came, to the address that the client connected from.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::{ConnectionInfo, RemoteMemory};

use crate::common::printable_bytes;

/// TCP and UDP port of the server.
pub(super) const DEFAULT_PORT: u16 = 18516;
/// Size of the token at the beginning of a datagram.
pub(super) const TOKEN_BYTES: usize = 8;
const FRAME_BYTES: usize = 1024;
/// Magic number, version, kind and length of the payload.
const HEADER_BYTES: usize = 8;
/// Bytes of the longest text: a frame without the header and a number.
const TEXT_BYTES: usize = FRAME_BYTES - HEADER_BYTES - 8;
const MAGIC: [u8; 4] = *b"RVDR";
const VERSION: u8 = 1;

/// Token of one client, which its datagrams begin with.
pub(super) type Token = [u8; TOKEN_BYTES];

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// Of the client: its UDP port and its token. The server returns it when it returns datagrams.
    Hello(u16, Token),
    /// The queue pair and the memory of the sender.
    Connect(Box<(ConnectionInfo, RemoteMemory)>),
    /// Of the client: its transfer has ended. The server returns it if its own succeeded.
    Finish,
    /// Of the server: the request fails, with the reason.
    Failed(String),
    /// How many packets for its queue pair have arrived, and how it explains its state. The client sends it empty, the
    /// server returns its own.
    State(u64, String),
}

impl Message {
    fn encode(&self) -> [u8; FRAME_BYTES] {
        let (kind, payload) = match self {
            Self::Hello(port, token) => (1, [&port.to_be_bytes()[..], token].concat()),
            Self::Connect(end) => (2, [&end.1.to_bytes()[..], &end.0.to_bytes()].concat()),
            Self::Finish => (3, Vec::new()),
            Self::Failed(reason) => (4, cut(reason).as_bytes().to_vec()),
            Self::State(packets, text) => (5, [&packets.to_be_bytes()[..], cut(text).as_bytes()].concat()),
        };
        let mut frame = [0; FRAME_BYTES];
        frame[..4].copy_from_slice(&MAGIC);
        (frame[4], frame[5]) = (VERSION, kind);
        frame[6..HEADER_BYTES].copy_from_slice(&(payload.len() as u16).to_be_bytes());
        frame[HEADER_BYTES..HEADER_BYTES + payload.len()].copy_from_slice(&payload);
        frame
    }

    fn decode(frame: &[u8; FRAME_BYTES]) -> Result<Self, String> {
        if frame[..4] != MAGIC {
            return Err("it does not speak the protocol of rdma-verbs doctor".to_owned());
        }
        if frame[4] != VERSION {
            return Err(format!("it speaks version {} of the protocol, this program {VERSION}", frame[4]));
        }
        let length = usize::from(u16::from_be_bytes([frame[6], frame[7]]));
        let damaged = || "its message is damaged".to_owned();
        let payload = frame.get(HEADER_BYTES..HEADER_BYTES + length).ok_or_else(damaged)?;
        match frame[5] {
            1 => {
                let (port, token) = payload.split_first_chunk().ok_or_else(damaged)?;
                Ok(Self::Hello(u16::from_be_bytes(*port), token.try_into().map_err(|_| damaged())?))
            }
            2 => {
                let (memory, info) = payload.split_first_chunk().ok_or_else(damaged)?;
                let info = ConnectionInfo::from_bytes(info).map_err(|error| error.to_string())?;
                Ok(Self::Connect(Box::new((info, RemoteMemory::from_bytes(*memory)))))
            }
            3 => Ok(Self::Finish),
            4 => Ok(Self::Failed(printable_bytes(payload, TEXT_BYTES))),
            5 => {
                let (packets, text) = payload.split_first_chunk().ok_or_else(damaged)?;
                Ok(Self::State(u64::from_be_bytes(*packets), printable_bytes(text, TEXT_BYTES)))
            }
            _ => Err(damaged()),
        }
    }
}

/// Returns as much of a text as a frame holds.
fn cut(text: &str) -> &str {
    let fits = |end: &usize| text.is_char_boundary(*end);
    &text[..(0..=text.len().min(TEXT_BYTES)).rev().find(fits).unwrap_or(0)]
}

/// A TCP connection whose operations all end by a deadline, so a peer that trickles bytes cannot extend it.
pub(super) struct Channel {
    stream: TcpStream,
    deadline: Instant,
}

impl Channel {
    pub(super) fn new(stream: TcpStream, time: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, deadline: Instant::now() + time })
    }

    pub(super) const fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }

    pub(super) fn send(&mut self, message: &Message) -> Result<(), String> {
        let sent = self.left().and_then(|left| self.stream.set_write_timeout(left));
        sent.and_then(|()| self.stream.write_all(&message.encode())).map_err(|error| format!("TCP: {error}"))
    }

    /// Returns the next message; `None` at the end of the connection.
    pub(super) fn receive(&mut self) -> Result<Option<Message>, String> {
        let mut frame = [0; FRAME_BYTES];
        let mut filled = 0;
        while filled < FRAME_BYTES {
            let read = self.left().and_then(|left| self.stream.set_read_timeout(left));
            match read.and_then(|()| self.stream.read(&mut frame[filled..])) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err("the connection ended inside a message".to_owned()),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Err("no answer in time".to_owned());
                }
                Err(error) => return Err(format!("TCP: {error}")),
            }
        }
        Message::decode(&frame).map(Some)
    }

    /// Sends a request and returns the response.
    pub(super) fn request(&mut self, message: &Message) -> Result<Message, String> {
        self.send(message)?;
        match self.receive()? {
            Some(Message::Failed(reason)) => Err(reason),
            Some(response) => Ok(response),
            None => Err("it closed the connection; it may have too many clients".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rdma_verbs::verbs::{Mtu, Psn, Qpn, Rkey};

    use super::*;

    #[test]
    fn messages_are_decoded() {
        let info = ConnectionInfo::standard_peer(Qpn::new(17), Psn::new(5), Ipv4Addr::LOCALHOST.into(), Mtu::Mtu1024);
        let memory = RemoteMemory::new(4096, Rkey(7), 64);
        for message in [
            Message::Hello(4711, [1, 2, 3, 4, 5, 6, 7, 8]),
            Message::Connect(Box::new((info, memory))),
            Message::Finish,
            Message::Failed("no device".to_owned()),
            Message::State(u64::MAX, "nothing is wrong".to_owned()),
        ] {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn long_reasons_are_cut_and_damaged_frames_refused() {
        let long = Message::Failed("ä".repeat(FRAME_BYTES));
        assert_eq!(Message::decode(&long.encode()), Ok(Message::Failed("ä".repeat(TEXT_BYTES / 2))));
        let mut frame = Message::Finish.encode();
        for (index, value) in [(0, 0), (4, 9), (5, 77), (6, 255)] {
            let before = std::mem::replace(&mut frame[index], value);
            assert!(Message::decode(&frame).is_err(), "byte {index}");
            frame[index] = before;
        }
        let bell = Message::decode(&Message::State(1, "\u{1b}[2J\u{7}text".to_owned()).encode());
        assert_eq!(bell, Ok(Message::State(1, "\u{fffd}[2J\u{fffd}text".to_owned())));
        frame[5] = 1;
        assert!(Message::decode(&frame).is_err());
        frame[5] = 2;
        assert!(Message::decode(&frame).is_err());
    }
}
