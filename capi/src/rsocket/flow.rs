//! The state of a connected stream, without input and output: which messages this end may send, what the peer's
//! messages mean, and where data lies in the buffers.
//!
//! Each end owns a ring for received data, which it lends to the peer in halves: a message of the peer with data writes
//! the next bytes of the half that it was given first, and states how many. When a half has been read, this end lends
//! it again, by writing an entry into the peer's table of buffers. The number of messages that a peer may send is
//! limited separately, by credits. Messages that grant something need neither; [`CONTROLS`] of them may be outstanding.
//!
//! A peer is not trusted: what it states is compared with what it was given.

use std::collections::VecDeque;

use super::wire::{BUFFER_BYTES, BUFFERS, Buffer, ConnectionData, MAPPING_BYTES, Message};

/// Number of messages without data that may be outstanding. The send queue has room for them beside the data.
pub(crate) const CONTROLS: u16 = 4;
/// Data is sent when at least so many bytes of the buffer for sending are free.
const LOW_WATER: u32 = 2048;

/// The sizes of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sizes {
    pub(crate) send_queue: u16,
    pub(crate) receive_queue: u16,
    pub(crate) send_buffer: u32,
    pub(crate) receive_buffer: u32,
}

/// The kind of a completed request of this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// A message with so many bytes of the buffer for sending.
    Data(u32),
    Control,
    Disconnect,
}

impl Sent {
    /// Encodes it in the number of a request.
    pub(crate) fn to_id(self) -> u64 {
        match self {
            Self::Data(length) => length.into(),
            Self::Control => 1 << 32,
            Self::Disconnect => 2 << 32,
        }
    }

    pub(crate) fn from_id(id: u64) -> Self {
        match id >> 32 {
            0 => Self::Data(id as u32),
            1 => Self::Control,
            _ => Self::Disconnect,
        }
    }
}

/// A range of the buffer for sending: one or two parts, because the buffer is a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    pub(crate) first: (u32, u32),
    pub(crate) second: (u32, u32),
}

/// A message that grants credits, and what it writes into the peer's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) message: Message,
    /// Address of the entry in the peer's table, and the offset and length of the part of the ring that it lends.
    pub(crate) lent: Option<(u64, u32, u32)>,
}

/// A violation of the protocol by the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Violation {
    /// Its immediate data is reserved.
    Message,
    /// It has written more data than it was allowed to, or another number of bytes than it states.
    Length,
    /// Its messages are more than it was allowed to send.
    Count,
    /// Its buffer lies at no place in memory.
    Buffer,
}

/// How a peer's message changes the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    None,
    /// The peer sends no more data.
    EndOfData,
    /// The connection is over.
    Disconnected,
}

/// The state.
pub(crate) struct Flow {
    sizes: Sizes,
    peer: ConnectionData,
    /// Number of data messages sent, and the first that the peer does not allow, both modulo 2^16.
    sent: u16,
    send_limit: u16,
    /// Free slots of the send queue for data, free bytes of the buffer for sending, and where the next ones lie.
    send_slots: u16,
    send_free: u32,
    send_at: u32,
    controls: u16,
    /// The buffers that the peer has given, which is used, and which it writes next.
    buffers: [Buffer; BUFFERS],
    current: usize,
    next_written: usize,
    /// Lengths of the data messages that have not been read, without what was read of the first.
    received: VecDeque<u32>,
    /// Number of data messages read, and the number at which the peer gets credits again, modulo 2^16.
    read: u16,
    credit_at: u16,
    read_at: u32,
    /// Bytes of the ring that are not lent and not filled, and where the next part to lend lies.
    receive_free: u32,
    lend_at: u32,
    /// Bytes that the peer was lent and has not filled.
    lent: u32,
    /// The entry of the peer's table that is written next.
    peer_entry: u32,
    pub(crate) is_writable: bool,
    pub(crate) is_readable: bool,
}

impl Flow {
    /// Begins a connection with this peer. The peer's request or reply has told it about the first half of the ring.
    pub(crate) fn new(sizes: Sizes, peer: ConnectionData) -> Self {
        let half = sizes.receive_buffer / 2;
        Self {
            sizes,
            peer,
            sent: 0,
            send_limit: peer.credits,
            send_slots: sizes.send_queue - CONTROLS,
            send_free: sizes.send_buffer,
            send_at: 0,
            controls: 0,
            buffers: [peer.buffer, Buffer::default()],
            current: 0,
            next_written: 1,
            received: VecDeque::new(),
            read: 0,
            credit_at: sizes.receive_queue / 2,
            read_at: 0,
            receive_free: half,
            lend_at: half,
            lent: half,
            // The first entry was in the message of the connection.
            peer_entry: 1 % peer.table.length,
            is_writable: true,
            is_readable: true,
        }
    }

    /// Returns the peer's data of the connection.
    pub(crate) fn peer(&self) -> &ConnectionData {
        &self.peer
    }

    fn has_room(&self) -> bool {
        self.send_slots > 0 && self.send_free >= LOW_WATER.min(self.sizes.send_buffer)
    }

    /// Returns whether data can be sent.
    pub(crate) fn can_send(&self) -> bool {
        self.has_room() && self.sent != self.send_limit && self.buffers[self.current].length > 0
    }

    /// Returns whether the program's data can be written directly to a range that the peer has mapped.
    pub(crate) fn can_write_mapped(&self) -> bool {
        self.has_room()
    }

    /// Takes what a message of up to `length` bytes needs: returns where in the peer's memory it goes, with the number
    /// of bytes, and where in the buffer for sending it can be put.
    pub(crate) fn take_data(&mut self, length: u32) -> Option<(Buffer, Room)> {
        if !self.can_send() || length == 0 {
            return None;
        }
        let buffer = &mut self.buffers[self.current];
        let length = length.min(self.send_free).min(buffer.length);
        let target = Buffer { length, ..*buffer };
        buffer.address += u64::from(length);
        buffer.length -= length;
        if buffer.length == 0 {
            self.current = (self.current + 1) % BUFFERS;
        }
        self.sent = self.sent.wrapping_add(1);
        Some((target, self.take_room(length)))
    }

    /// Takes what a direct write of up to `length` bytes needs: returns the number of bytes, and where they can be put.
    pub(crate) fn take_mapped(&mut self, length: u32) -> Option<(u32, Room)> {
        if !self.can_write_mapped() || length == 0 {
            return None;
        }
        let length = length.min(self.send_free);
        Some((length, self.take_room(length)))
    }

    /// Takes what the announcement of a mapped range needs: returns the address in the peer's table, and where the
    /// entry can be put. `None` if it cannot be sent now, or if the peer's table has no such entry.
    pub(crate) fn take_mapping(&mut self, index: u16) -> Option<(u64, Room)> {
        if !self.can_send() || index >= self.peer.mappings.unwrap_or(0) || (self.send_free as usize) < MAPPING_BYTES {
            return None;
        }
        self.sent = self.sent.wrapping_add(1);
        let table = self.peer.table.address + u64::from(self.peer.table.length) * BUFFER_BYTES as u64;
        Some((table + u64::from(index) * MAPPING_BYTES as u64, self.take_room(MAPPING_BYTES as u32)))
    }

    fn take_room(&mut self, length: u32) -> Room {
        self.send_slots -= 1;
        self.send_free -= length;
        let first = length.min(self.sizes.send_buffer - self.send_at);
        let room = Room { first: (self.send_at, first), second: (0, length - first) };
        self.send_at = (self.send_at + length) % self.sizes.send_buffer;
        room
    }

    /// Returns whether a message without data can be sent.
    pub(crate) fn can_control(&self) -> bool {
        self.controls < CONTROLS
    }

    /// Takes what a message without data needs.
    pub(crate) fn take_control(&mut self) -> bool {
        let can = self.can_control();
        self.controls += u16::from(can);
        can
    }

    /// Takes a message that grants what the peer may need, if there is enough to grant.
    pub(crate) fn take_grant(&mut self) -> Option<Grant> {
        let half = self.sizes.receive_buffer / 2;
        let lends = self.receive_free >= half;
        let credits = self.read.wrapping_sub(self.credit_at) as i16 >= 0;
        if !(lends || credits) || !self.take_control() {
            return None;
        }
        self.credit_at = self.read.wrapping_add(self.sizes.receive_queue / 2);
        let message = Message::Credit(self.read.wrapping_add(self.sizes.receive_queue));
        let lent = lends.then(|| {
            let entry = self.peer.table.address + u64::from(self.peer_entry) * BUFFER_BYTES as u64;
            let lent = (entry, self.lend_at, half);
            self.peer_entry = (self.peer_entry + 1) % self.peer.table.length;
            self.receive_free -= half;
            self.lent += half;
            self.lend_at = if self.lend_at == 0 { half } else { 0 };
            lent
        });
        Some(Grant { message, lent })
    }

    /// Handles the completion of a request of this end.
    pub(crate) fn complete(&mut self, sent: Sent) {
        match sent {
            Sent::Data(length) => {
                self.send_slots += 1;
                self.send_free += length;
            }
            Sent::Control | Sent::Disconnect => self.controls -= 1,
        }
    }

    /// Returns whether nothing that this end has sent is outstanding.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.controls == 0 && self.send_slots == self.sizes.send_queue - CONTROLS
    }

    /// Handles a message of the peer, which has written `length` bytes. `entry` reads an entry of this end's table.
    pub(crate) fn receive(
        &mut self,
        immediate: u32,
        length: u32,
        entry: impl FnOnce(usize) -> Buffer,
    ) -> Result<Change, Violation> {
        match Message::from_immediate(immediate).ok_or(Violation::Message)? {
            Message::Data(stated) => {
                if stated != length || length > self.lent {
                    return Err(Violation::Length);
                }
                if self.received.len() >= usize::from(self.sizes.receive_queue) {
                    return Err(Violation::Count);
                }
                self.lent -= length;
                match length {
                    // The number of messages counts, but a reader would take it for the end.
                    0 => self.read = self.read.wrapping_add(1),
                    _ => self.received.push_back(length),
                }
            }
            Message::Credit(limit) => {
                self.send_limit = limit;
                match length as usize {
                    0 => {}
                    BUFFER_BYTES => self.add_buffer(entry(self.next_written))?,
                    _ => return Err(Violation::Length),
                }
            }
            Message::Disconnect => return Ok(Change::Disconnected),
            Message::Shutdown => {
                return Ok(if self.is_writable { Change::EndOfData } else { Change::Disconnected });
            }
            Message::Mapping(_) | Message::Keepalive => {}
        }
        Ok(Change::None)
    }

    fn add_buffer(&mut self, buffer: Buffer) -> Result<(), Violation> {
        // A buffer that is in use is not replaced, because the peer counts on the order.
        if self.buffers[self.next_written].length > 0 || buffer.address.checked_add(u64::from(buffer.length)).is_none()
        {
            return Err(Violation::Buffer);
        }
        self.buffers[self.next_written] = buffer;
        self.next_written = (self.next_written + 1) % BUFFERS;
        Ok(())
    }

    /// Returns whether data has been received.
    pub(crate) fn has_data(&self) -> bool {
        !self.received.is_empty()
    }

    /// Returns where in the ring the data lies that begins `skipped` bytes behind what was read, up to `length` bytes.
    pub(crate) fn data(&self, skipped: u32, length: usize) -> Option<(u32, u32)> {
        let available: u64 = self.received.iter().map(|length| u64::from(*length)).sum();
        let left = available.checked_sub(u64::from(skipped)).filter(|left| *left > 0)?;
        let at = (u64::from(self.read_at) + u64::from(skipped)) % u64::from(self.ring());
        let until_end = u64::from(self.ring()) - at;
        let length = left.min(until_end).min(length as u64);
        (length > 0).then_some((at as u32, length as u32))
    }

    /// Returns the length of the ring: its halves.
    fn ring(&self) -> u32 {
        self.sizes.receive_buffer / 2 * 2
    }

    /// Removes data that was read.
    pub(crate) fn consume(&mut self, mut length: u32) {
        self.read_at = (self.read_at + length) % self.ring();
        self.receive_free += length;
        while let Some(first) = self.received.front_mut().filter(|_| length > 0) {
            let part = length.min(*first);
            *first -= part;
            length -= part;
            if *first == 0 {
                self.received.pop_front();
                self.read = self.read.wrapping_add(1);
            }
        }
    }
}
