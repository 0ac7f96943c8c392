//! The links of a shard that go through shared memory: datagrams to and from processes of this user on this host.
//!
//! A send becomes a record with the bytes of its datagrams, without check fields: memory damages nothing.
//! Datagrams that the peer has sent over sockets before its first record are received before that record.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::inbound::{Deliver, Delivery};
use crate::engine::share::{AccessRequest, DeclinedLink, IncomingLink, LinkId, OutgoingLink, destination_block};
use crate::memory::record_ring::{Broken, MOST_RECORD_BYTES, Record};
use crate::memory::{GateWatch, PeerMemory};
use crate::sys::{DEFAULT_HOP_LIMIT, Epoll, Interest, discard_messages, ring};
use crate::transport::{Datagram, Medium, Transmit, WantedKey};
use crate::types::NoSharedMemory;
use crate::wire::BTH_BYTES;

/// Records taken from one link before the next has its turn.
const RECORDS_IN_TURN: usize = 8;
/// Links whose bells are silenced at a time, and messages that are taken of each. The others follow.
const BELLS: usize = 16;
/// Declined links whose causes are kept: the latest.
const MOST_DECLINED: usize = 64;

/// Least size of datagrams that are delivered one by one. Shorter ones are copied together.
const LEAST_IN_PLACE: usize = 1_024;

/// A link that this shard reads.
struct Reader {
    link: IncomingLink,
    progress: Begin,
    /// The other end is closed: the link ends with its last record. The number of records that may still be in the
    /// ring: a process that keeps its mapping can go on writing forever.
    rest: Option<usize>,
    /// Its contents are impossible: it ends at once.
    is_broken: bool,
}

/// A link that this shard writes.
struct Writer {
    link: OutgoingLink,
    /// The ring was full at the last send. The next one waits until a part of it is free.
    is_full: bool,
    /// It stayed full for so long that sends are lost until there is room.
    is_stuck: bool,
}

/// The result of a send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placed {
    Whole,
    /// There is no room yet.
    Full,
    /// There was no room for long.
    Lost,
}

/// Whether records are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Begin {
    /// No record was seen yet. Datagrams that wait at the sockets when the first one comes may be older.
    Waits,
    /// The first record waits, and older datagrams may.
    Due,
    /// Records are taken.
    Done,
}

/// The result of receiving from memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Taken {
    pub(super) records: usize,
    pub(super) datagrams: usize,
}

/// The links between this shard and another one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct LinkState {
    /// Packets to it go through memory.
    pub(crate) writes: bool,
    /// Its packets may come through memory.
    pub(crate) reads: bool,
    /// Why the last request for a link to it had no success.
    pub(crate) declined: Option<NoSharedMemory>,
}

/// The rings of a shard.
#[derive(Default)]
pub(crate) struct MemoryLinks {
    writers: Vec<Writer>,
    readers: Vec<Reader>,
    /// The last send waits for room.
    is_full: bool,
    /// Index of the writer that was used last.
    last_writer: usize,
    /// Index of the reader that has the first turn.
    next_reader: usize,
    /// Room for one record.
    buffer: Box<[u8]>,
    /// The links that rang, by their ids. The set is not in that of the sockets: the kernel limits the depth of sets,
    /// and the number of paths through them.
    bells: Option<Epoll>,
    declined: Vec<DeclinedLink>,
}

impl MemoryLinks {
    /// Whether there are links to read.
    #[inline]
    pub(crate) fn has_readers(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Sends through this link from now on. It replaces an earlier one to the same peer.
    pub(crate) fn add_writer(&mut self, link: OutgoingLink) {
        let is_same =
            |old: &OutgoingLink| (old.own, old.peer, &old.peer_blocks) == (link.own, link.peer, &link.peer_blocks);
        self.writers.retain(|old| !is_same(&old.link));
        self.writers.push(Writer { link, is_full: false, is_stuck: false });
    }

    /// Notes that a requested link will not come.
    pub(crate) fn note_declined(&mut self, link: DeclinedLink) {
        if self.declined.len() >= MOST_DECLINED {
            self.declined.remove(0);
        }
        self.declined.push(link);
    }

    /// Forgets that earlier requests for a link to the shard with this block had no success.
    pub(crate) fn forget_declined(&mut self, own: IpAddr, peer: IpAddr, block: u16) {
        self.declined.retain(|link| (link.own, link.peer) != (own, peer) || !link.blocks.contains(&block));
    }

    /// Returns the links to and from the shard with this block.
    pub(crate) fn state(&self, own: IpAddr, peer: IpAddr, block: u16) -> LinkState {
        let is_to = |link: &&OutgoingLink| (link.own, link.peer) == (own, peer) && link.peer_blocks.contains(&block);
        let is_about = |link: &&DeclinedLink| (link.own, link.peer) == (own, peer) && link.blocks.contains(&block);
        let writer = self.writers.iter().map(|writer| &writer.link).find(is_to);
        // The offer of a link names some of the blocks of its shard, of which the writer has all.
        let is_from = |link: &IncomingLink, blocks: &[u16]| {
            (link.destination, link.source) == (own, peer)
                && link.source_blocks.iter().any(|from| blocks.contains(from))
        };
        LinkState {
            writes: writer.is_some(),
            reads: writer
                .is_some_and(|writer| self.readers.iter().any(|reader| is_from(&reader.link, &writer.peer_blocks))),
            declined: self.declined.iter().rfind(is_about).map(|link| link.problem.clone()),
        }
    }

    /// Receives from this link, too. `sockets` becomes readable when its writer rings.
    ///
    /// # Errors
    /// If the system cannot watch the link; then it is not used.
    pub(crate) fn add_reader(&mut self, link: IncomingLink, sockets: &Epoll) -> io::Result<()> {
        if self.bells.is_none() {
            self.bells = Some(Epoll::new()?);
            self.buffer = vec![0; MOST_RECORD_BYTES].into();
        }
        sockets.add(link.bell.as_fd(), Interest::Readable)?;
        if let Some(bells) = &self.bells {
            bells.add_numbered(link.bell.as_fd(), link.id)?;
        }
        link.ring.request_bell();
        self.readers.push(Reader { link, progress: Begin::Waits, rest: None, is_broken: false });
        Ok(())
    }

    /// Returns the request to the process of the peer for direct access by a key, if that process exports memory.
    pub(crate) fn access_request(&self, key: WantedKey) -> Option<AccessRequest> {
        let block = key.destination.block() as u16;
        let fits = |link: &&OutgoingLink| {
            link.memory.is_some() && (link.own, link.peer) == (key.own, key.peer) && link.peer_blocks.contains(&block)
        };
        let link = self.writers.iter().map(|writer| &writer.link).find(fits)?;
        Some(AccessRequest { link: link.id, name: link.name, key })
    }

    /// Returns the memory of the process at the other end of a link that this shard writes.
    pub(crate) fn memory_of(&self, id: LinkId) -> Option<&Arc<PeerMemory>> {
        self.writers.iter().find(|writer| writer.link.id == id)?.link.memory.as_ref()
    }

    /// Ends a link whose other end is closed: a writer at once, a reader after its last record.
    pub(crate) fn end(&mut self, id: LinkId, sockets: &Epoll) {
        self.writers.retain(|writer| writer.link.id != id);
        for reader in self.readers.iter_mut().filter(|reader| reader.link.id == id) {
            reader.rest = Some(reader.link.ring.most_records());
            // It stays readable until it is closed.
            for set in self.bells.iter().chain([sockets]) {
                let _ = set.remove(reader.link.bell.as_fd());
            }
        }
    }

    /// Whether sends may leave through memory.
    #[inline]
    pub(super) fn has_writers(&self) -> bool {
        !self.writers.is_empty()
    }

    /// Begins a record of `least` to `most` bytes for packets to a queue pair with a number of this block. Returns the
    /// link and the room, or `None` if there is no link or no room.
    #[inline]
    pub(super) fn begin(
        &mut self,
        own: IpAddr,
        peer: IpAddr,
        block: u16,
        least: usize,
        most: usize,
    ) -> Option<(&mut OutgoingLink, usize)> {
        let index = self.find_writer(own, peer, block)?;
        match self.writers[index].link.ring.begin(least, most) {
            Ok(room) => Some((&mut self.writers[index].link, room?)),
            Err(error) => {
                self.give_up(index, error);
                None
            }
        }
    }

    #[cold]
    fn give_up(&mut self, index: usize, error: Broken) {
        let OutgoingLink { peer, .. } = self.writers.swap_remove(index).link;
        tracing::warn!(%peer, %error, "packets to this peer leave through sockets from now on");
    }

    /// Writes a send into the ring to its destination. Returns `None` if there is no such ring.
    #[inline]
    pub(super) fn send(&mut self, transmit: &Transmit, bytes: &[u8]) -> Option<Placed> {
        self.is_full = false;
        if self.writers.is_empty() {
            return None;
        }
        let index = self.find_writer(transmit.source, transmit.destination, destination_block(bytes)?)?;
        match self.writers[index].push(transmit, bytes) {
            Ok(placed) => {
                self.is_full = placed == Placed::Full;
                Some(placed)
            }
            Err(error) => {
                self.give_up(index, error);
                None
            }
        }
    }

    /// Whether the last send waits for room in its ring.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Stops waiting for room in the ring to the destination of a send, which is lost, like those that follow until
    /// there is room: others must not wait for a peer that is stopped.
    #[cold]
    pub(super) fn stop_waiting(&mut self, transmit: &Transmit, bytes: &[u8]) {
        if let Some(block) = destination_block(bytes)
            && let Some(index) = self.find_writer(transmit.source, transmit.destination, block)
        {
            self.writers[index].is_stuck = true;
        }
    }

    #[inline]
    fn find_writer(&mut self, own: IpAddr, peer: IpAddr, block: u16) -> Option<usize> {
        let fits =
            |Writer { link, .. }: &Writer| link.peer == peer && link.own == own && link.peer_blocks.contains(&block);
        if !self.writers.get(self.last_writer).is_some_and(fits) {
            self.last_writer = self.writers.iter().position(fits)?;
        }
        Some(self.last_writer)
    }

    /// Whether no record waits.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.readers.iter().all(|reader| reader.link.ring.is_empty())
    }

    /// Whether the first record of a link waits: datagrams that wait at the sockets may be older.
    #[inline]
    pub(super) fn begins(&mut self) -> bool {
        let mut begins = false;
        for reader in self.readers.iter_mut().filter(|reader| reader.progress != Begin::Done) {
            if !reader.link.ring.is_empty() {
                reader.progress = Begin::Due;
                begins = true;
            }
        }
        begins
    }

    /// Notes that the sockets were drained after [`MemoryLinks::begins`].
    pub(super) fn note_drained(&mut self) {
        let due = self.readers.iter_mut().filter(|reader| reader.progress == Begin::Due);
        due.for_each(|reader| reader.progress = Begin::Done);
    }

    /// Takes records until there are no more or there were `most`, and delivers their datagrams. After each record,
    /// `is_enough` decides whether to leave the rest to another batch.
    pub(super) fn receive(
        &mut self,
        most: usize,
        delivery: &mut Delivery<'_, impl Deliver>,
        is_enough: impl Fn() -> bool,
    ) -> Taken {
        let (mut taken, mut has_more, mut is_done) = (Taken::default(), true, false);
        // Each round but the last takes a record.
        while has_more && !is_done {
            has_more = false;
            for turn in 0..self.readers.len() {
                let index = self.next_reader.wrapping_add(turn) % self.readers.len();
                let reader = &mut self.readers[index];
                if reader.progress != Begin::Done {
                    continue;
                }
                for in_turn in 1..=RECORDS_IN_TURN {
                    let datagrams = reader.take_record(&mut self.buffer, delivery);
                    if datagrams == 0 {
                        break;
                    }
                    has_more |= in_turn == RECORDS_IN_TURN;
                    taken.records += 1;
                    taken.datagrams += datagrams;
                    is_done = taken.records >= most || is_enough();
                    if is_done {
                        break;
                    }
                }
                if is_done {
                    self.next_reader = index + 1;
                    break;
                }
            }
        }
        self.readers.retain(|reader| !reader.is_over());
        taken
    }

    /// Silences the bells that rang, and requests them for the next records, or not: a thread that polls needs none.
    /// Returns whether a record waits already.
    pub(crate) fn request_bells(&self, wanted: bool) -> bool {
        if !wanted {
            self.readers.iter().for_each(|reader| reader.link.ring.withdraw_bell());
            return false;
        }
        if let Some(bells) = &self.bells {
            for id in bells.ready::<BELLS>() {
                let rung = self.readers.iter().find(|reader| reader.link.id == id);
                rung.iter().for_each(|reader| discard_messages(reader.link.bell.as_fd(), BELLS));
            }
        }
        let mut waits = false;
        for reader in &self.readers {
            waits |= reader.link.ring.request_bell();
        }
        waits
    }
}

impl Writer {
    #[inline]
    fn push(&mut self, transmit: &Transmit, bytes: &[u8]) -> Result<Placed, Broken> {
        let records = &mut self.link.ring;
        let has_room = !self.is_full || records.has_drained()?;
        if has_room && records.push(Tag::of(transmit).pack(), bytes)? {
            (self.is_full, self.is_stuck) = (false, false);
            if records.takes_bell() {
                ring(self.link.bell.as_fd());
            }
            return Ok(Placed::Whole);
        }
        self.is_full = true;
        Ok(if self.is_stuck { Placed::Lost } else { Placed::Full })
    }
}

impl Reader {
    fn is_over(&self) -> bool {
        self.is_broken || self.rest.is_some_and(|rest| rest == 0 || self.link.ring.is_empty())
    }

    /// Takes the next record, and delivers its datagrams; returns their number, 0 if there is none.
    #[inline]
    fn take_record(&mut self, buffer: &mut [u8], delivery: &mut Delivery<'_, impl Deliver>) -> usize {
        match &mut self.rest {
            None => {}
            Some(0) => return 0,
            Some(rest) => *rest -= 1,
        }
        let record = match self.link.ring.next() {
            Ok(Some(record)) => record,
            Ok(None) => return 0,
            Err(error) => {
                let source = self.link.source;
                tracing::warn!(%source, %error, "packets of this peer are received through sockets only");
                self.is_broken = true;
                // The writer does not know that its link ends.
                self.link.watch.take().into_iter().for_each(GateWatch::disown);
                return 0;
            }
        };
        let tag = Tag::unpack(record.tag);
        let size = if tag.segment == 0 { record.length } else { usize::from(tag.segment) };
        let mut datagram = Datagram {
            source: self.link.source,
            destination: self.link.destination,
            source_port: tag.port,
            segment_index: 0,
            hop_limit: Some(tag.hop_limit),
            traffic_class: Some(tag.class),
            payload: &[],
            medium: Medium::SharedMemory { is_keyed: tag.is_keyed },
        };
        let count = match size < LEAST_IN_PLACE {
            true => {
                let bytes = &mut buffer[..record.length];
                self.link.ring.read(0, bytes);
                deliver_each(&mut datagram, bytes, size, delivery)
            }
            false => self.deliver_in_place(&mut datagram, &record, size, buffer, delivery),
        };
        self.link.ring.finish(&record);
        count
    }

    /// Delivers large datagrams: those that the fast path takes without a copy of the payload in between. Headers are
    /// copied before they are checked.
    fn deliver_in_place(
        &self,
        datagram: &mut Datagram<'_>,
        record: &Record,
        size: usize,
        buffer: &mut [u8],
        delivery: &mut Delivery<'_, impl Deliver>,
    ) -> usize {
        let ring = &self.link.ring;
        let mut count = 0;
        for start in (0..record.length).step_by(size) {
            let length = size.min(record.length - start);
            datagram.segment_index = count as u16;
            count += 1;
            if length > BTH_BYTES {
                // In parts that are not read across: that would wait for the stores of the payload before.
                let mut header = [0; BTH_BYTES];
                ring.read(start, &mut header[..8]);
                ring.read(start + 8, &mut header[8..]);
                let head = Datagram { payload: &header, ..*datagram };
                if delivery.take_in_place(&head, ring.part(start + BTH_BYTES, length - BTH_BYTES)) {
                    continue;
                }
            }
            let bytes = &mut buffer[..length];
            ring.read(start, bytes);
            delivery.take(&Datagram { payload: bytes, ..*datagram });
        }
        count
    }
}

/// Delivers the datagrams of this size, the last one shorter, and returns their number.
#[inline]
fn deliver_each(
    datagram: &mut Datagram<'_>,
    bytes: &[u8],
    size: usize,
    delivery: &mut Delivery<'_, impl Deliver>,
) -> usize {
    let mut count = 0;
    for payload in bytes.chunks(size) {
        delivery.take(&Datagram { payload, segment_index: count as u16, ..*datagram });
        count += 1;
    }
    count
}

/// The tag of a record: what the datagrams have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag {
    /// Bytes of each datagram but the last, at most 8,191; 0: there is one.
    pub(super) segment: u16,
    pub(super) port: u16,
    pub(super) class: u8,
    pub(super) hop_limit: u8,
    /// The sender uses the key of the connection, wherever packets have check fields.
    pub(super) is_keyed: bool,
}

impl Tag {
    fn of(transmit: &Transmit) -> Self {
        Self {
            segment: transmit.segment_size.map_or(0, |size| size as u16),
            port: transmit.source_port,
            class: transmit.traffic_class,
            hop_limit: if transmit.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { transmit.hop_limit },
            is_keyed: transmit.is_keyed,
        }
    }

    #[inline]
    pub(super) fn pack(self) -> u64 {
        let low = u64::from(self.port) | u64::from(self.class) << 16 | u64::from(self.hop_limit) << 24;
        low | u64::from(self.segment) << 32 | u64::from(self.is_keyed) << 45
    }

    #[inline]
    fn unpack(tag: u64) -> Self {
        Self {
            segment: (tag >> 32) as u16 & 0x1fff,
            port: tag as u16,
            class: (tag >> 16) as u8,
            hop_limit: (tag >> 24) as u8,
            is_keyed: tag >> 45 & 1 != 0,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::record_ring::TAG_BITS;

    #[test]
    fn tags_are_read_as_written() {
        for tag in [
            Tag { segment: 0, port: 0, class: 0, hop_limit: 1, is_keyed: true },
            Tag { segment: 4_112, port: 65_535, class: 0xb9, hop_limit: 255, is_keyed: false },
            Tag { segment: 8_191, port: 1, class: 255, hop_limit: 0, is_keyed: true },
        ] {
            assert_eq!(Tag::unpack(tag.pack()), tag);
            assert!(tag.pack() < 1 << TAG_BITS);
        }
    }
}
