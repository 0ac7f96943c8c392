//! The contents of messages and buffers: a message names a buffer, and a buffer holds a text.

use rdma_verbs::verbs::{RemoteMemory, Rkey};

/// Length of all messages.
pub(super) const MESSAGE_BYTES: usize = 16;

/// Characters of the text, in turn.
const CHARACTERS: std::ops::RangeInclusive<u8> = b'A'..=b'z';

/// Returns the message that names a buffer: address, key and size, big-endian.
pub(super) fn encode(buffer: RemoteMemory) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[..8].copy_from_slice(&buffer.addr().to_be_bytes());
    message[8..12].copy_from_slice(&buffer.rkey().0.to_be_bytes());
    message[12..].copy_from_slice(&(buffer.len() as u32).to_be_bytes());
    message
}

/// Returns the buffer that a message names.
pub(super) fn decode(message: [u8; MESSAGE_BYTES]) -> RemoteMemory {
    let (addr, rest) = message.split_first_chunk().expect("16 bytes");
    let (rkey, rest) = rest.split_first_chunk().expect("8 bytes");
    let (size, _) = rest.split_first_chunk().expect("4 bytes");
    let (rkey, size) = (u32::from_be_bytes(*rkey), u32::from_be_bytes(*size));
    RemoteMemory::new(u64::from_be_bytes(*addr), Rkey(rkey), size.into())
}

/// Returns the bytes of a ping: its number, then characters that begin with another one each time, then a zero.
pub(super) fn ping_bytes(ping: u32, size: usize) -> Vec<u8> {
    let mut bytes = format!("rdma-ping-{ping}: ").into_bytes();
    let turn = CHARACTERS.cycle().skip(ping as usize % CHARACTERS.len());
    bytes.extend(turn.take(size.saturating_sub(1 + bytes.len())));
    bytes.push(0);
    bytes
}

/// Returns the bytes before the first zero, as text.
pub(super) fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}
