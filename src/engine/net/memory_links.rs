//! The links of a shard that go through shared memory: datagrams to and from processes of this user on this host.
//!
//! A send becomes a record with the bytes of its datagrams, without check fields: memory damages nothing.
//! Datagrams that the peer has sent over sockets before its first record are received before that record.

use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use super::bell::Bell;
use super::inbound::{Deliver, Delivery};
use super::link_block::Block;
use super::link_log;
use super::link_tag::Tag;
use crate::engine::share::{AccessRequest, DeclinedLink, IncomingLink, LinkId, OutgoingLink, destination_block};
use crate::memory::record_ring::{Broken, MOST_RECORD_BYTES, Record};
use crate::memory::{GateWatch, PeerMemory};
use crate::queue::Journal;
use crate::sys::{Epoll, Interest, has_ended, ring};
use crate::transport::{Datagram, Medium, Transmit, WantedKey};
use crate::types::{NoSharedMemory, Time};
use crate::wire::BTH_BYTES;

/// Records taken from one link before the next has its turn.
const RECORDS_IN_TURN: usize = 8;
/// Links whose bells are silenced at a time. The others follow.
const BELLS: usize = 16;
/// Declined links whose causes are kept: the latest.
const MOST_DECLINED: usize = 64;

/// Longest time that queue pairs wait for room in a ring: more than the longest lease of a poller that watches its
/// memory, during which no thread of its process reads the ring, and than the usual wait for a processor. An unreliable
/// connection would lose the rest of a message that is larger than the ring.
const LONGEST_WAIT: Duration = Duration::from_millis(30);
/// Shortest time between two looks at a full ring, which a reader drains in less than 100 µs, and the part of the time
/// so far that later looks wait.
const SHORTEST_RETRY: Duration = Duration::from_micros(5);
const RETRY_PART: u32 = 8;

/// Least size of datagrams that are delivered one by one. Shorter ones are copied together.
const LEAST_IN_PLACE: usize = 1_024;

/// A link that this shard reads.
struct Reader {
    link: IncomingLink,
    bell: Bell,
    progress: Begin,
    /// The other end is closed: the link ends with its last record. The number of records that may still be in the
    /// ring: a process that keeps its mapping can go on writing forever.
    rest: Option<usize>,
    /// Its contents are impossible: it ends at once.
    is_broken: bool,
    journal: Arc<Journal>,
}

/// A link that this shard writes.
struct Writer {
    link: OutgoingLink,
    /// Since when the ring is full, until a part of it is free.
    full_since: Option<Time>,
}

/// Room for a send.
pub(super) enum Room<'a> {
    /// In this ring, for a record that was begun, with this number of bytes at most.
    Here(&'a mut OutgoingLink, usize),
    /// The ring is full. There will be room soon, or the send is lost.
    NotNow,
    /// There is no ring, or it has been full for so long that sends are lost.
    Elsewhere,
}

/// The result of a send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placed {
    Whole,
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
    journal: Arc<Journal>,
}

impl MemoryLinks {
    pub(super) fn new(journal: &Arc<Journal>) -> Self {
        Self { journal: Arc::clone(journal), ..Self::default() }
    }

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
        link_log::begins(&self.journal, &link);
        self.writers.push(Writer { link, full_since: None });
    }

    /// Notes that a requested link will not come.
    pub(crate) fn note_declined(&mut self, link: DeclinedLink) {
        link_log::declined(&self.journal, &link);
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
        let mut bell = Bell::default();
        bell.request(&link.ring, link.bell.as_fd());
        let journal = Arc::clone(&self.journal);
        self.readers.push(Reader { link, bell, progress: Begin::Waits, rest: None, is_broken: false, journal });
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
        let ended = self.writers.iter().filter(|writer| writer.link.id == id);
        ended.for_each(|writer| link_log::ends(&self.journal, &writer.link));
        self.writers.retain(|writer| writer.link.id != id);
        for reader in self.readers.iter_mut().filter(|reader| reader.link.id == id) {
            reader.rest = Some(reader.link.ring.most_records());
            reader.silence(self.bells.iter().chain([sockets]));
        }
    }

    /// Whether sends may leave through memory.
    #[inline]
    pub(super) fn has_writers(&self) -> bool {
        !self.writers.is_empty()
    }

    /// Begins a record with room for this many bytes, for packets from an address to another one and to a queue pair
    /// with a number of this block.
    #[inline]
    pub(super) fn begin(
        &mut self,
        now: Time,
        (own, peer, block): (IpAddr, IpAddr, u16),
        bytes: RangeInclusive<usize>,
    ) -> Room<'_> {
        let Some(index) = self.find_writer(own, peer, block) else { return Room::Elsewhere };
        match self.writers[index].begin(bytes) {
            Ok(Some(room)) => Room::Here(&mut self.writers[index].link, room),
            Ok(None) => self.writers[index].note_full(now),
            Err(error) => {
                self.give_up(index, error);
                Room::Elsewhere
            }
        }
    }

    /// Returns how long queue pairs wait before they look for room again.
    #[cold]
    pub(crate) fn until_retry(&self, now: Time) -> Duration {
        let full = self.writers.iter().filter_map(|writer| Some(now.saturating_since(writer.full_since?)));
        let waits = full.filter(|since| *since < LONGEST_WAIT).map(|since| since / RETRY_PART);
        waits.min().map_or(SHORTEST_RETRY, |wait| wait.max(SHORTEST_RETRY))
    }

    #[cold]
    fn give_up(&mut self, index: usize, error: Broken) {
        link_log::breaks(&self.journal, &self.writers.swap_remove(index).link, error);
    }

    /// Writes a send into the ring to its destination. Returns `None` if there is no such ring.
    #[inline]
    pub(super) fn send(&mut self, transmit: &Transmit, bytes: &[u8]) -> Option<Placed> {
        if self.writers.is_empty() {
            return None;
        }
        let index = self.find_writer(transmit.source, transmit.destination, destination_block(bytes)?)?;
        match self.writers[index].push(transmit, bytes) {
            Ok(placed) => Some(placed),
            Err(error) => {
                self.give_up(index, error);
                None
            }
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
    pub(crate) fn is_quiet(&self) -> bool {
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
        if self.readers.iter().any(Reader::is_over) {
            self.readers.retain(|reader| !reader.is_over());
        }
        taken
    }

    /// Has the writers ring for their next records, for threads that sleep on packets. Returns whether a record waits
    /// already.
    pub(crate) fn request_bells(&mut self) -> bool {
        self.readers
            .iter_mut()
            .fold(false, |waits, Reader { link, bell, .. }| bell.request(&link.ring, link.bell.as_fd()) | waits)
    }

    /// Withdraws the requests: a thread polls.
    #[inline]
    pub(crate) fn withdraw_bells(&mut self) {
        self.readers.iter_mut().for_each(|Reader { link, bell, .. }| bell.withdraw(&link.ring, link.bell.as_fd()));
    }

    /// Silences the bells that rang without a request, which ended a thread's sleep. The bell of a link whose other end
    /// is closed leaves `sockets`: it would wake threads that find no work.
    pub(crate) fn silence_bells(&mut self, sockets: &Epoll) {
        let Some(bells) = &self.bells else { return };
        for id in bells.ready::<BELLS>() {
            for reader in self.readers.iter_mut().filter(|reader| reader.link.id == id) {
                reader.bell.silence(&reader.link.ring, reader.link.bell.as_fd());
                if has_ended(reader.link.bell.as_fd()) {
                    reader.silence([bells, sockets]);
                }
            }
        }
    }
}

impl Writer {
    /// Begins a record with room for this many bytes. A ring that was full has no room until a part of it is free.
    #[inline]
    fn begin(&mut self, bytes: RangeInclusive<usize>) -> Result<Option<usize>, Broken> {
        let records = &mut self.link.ring;
        if self.full_since.is_some() && !records.has_drained()? {
            return Ok(None);
        }
        let room = records.begin(*bytes.start(), *bytes.end())?;
        if room.is_some() {
            self.full_since = None;
        }
        Ok(room)
    }

    /// Notes that there is no room. Others of the shard must not wait for a peer that is stopped.
    #[cold]
    fn note_full(&mut self, now: Time) -> Room<'static> {
        let since = *self.full_since.get_or_insert(now);
        if now.saturating_since(since) < LONGEST_WAIT { Room::NotNow } else { Room::Elsewhere }
    }

    #[inline]
    fn push(&mut self, transmit: &Transmit, bytes: &[u8]) -> Result<Placed, Broken> {
        let records = &mut self.link.ring;
        if self.full_since.is_some() || !records.push(Tag::of(transmit).pack(), bytes)? {
            return Ok(Placed::Lost);
        }
        if records.takes_bell() {
            ring(self.link.bell.as_fd());
        }
        Ok(Placed::Whole)
    }
}

impl Reader {
    /// Removes its bell from these sets, if they have it: it stays readable until it is closed.
    fn silence<'a>(&self, sets: impl IntoIterator<Item = &'a Epoll>) {
        for set in sets {
            let _ = set.remove(self.link.bell.as_fd());
        }
    }

    fn is_over(&self) -> bool {
        self.is_broken || self.rest.is_some_and(|rest| rest == 0 || self.link.ring.is_empty())
    }

    #[cold]
    fn give_up(&mut self, error: Broken) {
        link_log::incoming_breaks(&self.journal, &self.link, error);
        self.is_broken = true;
        // The writer does not know that its link ends.
        self.link.watch.take().into_iter().for_each(GateWatch::disown);
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
                self.give_up(error);
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
            _ if tag.is_block => match Block::read(&self.link.ring, &record, size) {
                Some(block) => block.deliver(&self.link.ring, &mut datagram, buffer, delivery),
                None => {
                    self.give_up(Broken);
                    return 0;
                }
            },
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
