//! The contents of a page: a snapshot as bytes. Numbers are little-endian.
//!
//! A page may be of another process, so nothing in it is trusted: lengths and numbers are checked, texts are cleaned of
//! control characters, and nothing is allocated beyond what the bytes fill.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::MOST_NAME_BYTES;
use crate::types::{
    ConnectionState, ConnectionStatistics, Counter, Counters, DeviceStatistics, DropReason, ListenerStatistics,
    LiveObjects, PathKind, Qpn, QueuePairState, QueuePairStatistics, QueuePairSums, QueuePairType, SharedMemory,
    Snapshot,
};

/// Most devices in a page.
pub(super) const MOST_DEVICES: usize = 64;
/// Most addresses of a device in a page.
pub(super) const MOST_ADDRESSES: usize = 16;
/// Most bytes of the cause of an error.
const MOST_CAUSE_BYTES: usize = 160;

/// Place of the interval in a snapshot, behind the time.
const INTERVAL: std::ops::Range<usize> = 8..16;

/// Identifies the contents: their layout, and the names of all counters and of all values that are numbers in it, by
/// which a reader finds out that the process uses another version of the library.
pub(super) const FORMAT: u32 = {
    const LAYOUT: u8 = 1;
    let mut hash = fold(0x811c_9dc5, &[LAYOUT]);
    macro_rules! fold_names {
        ($($type:ident),*) => {$(
            let mut index = 0;
            while index < $type::ALL.len() {
                hash = fold(hash, $type::ALL[index].name().as_bytes());
                index += 1;
            }
        )*};
    }
    fold_names!(Counter, DropReason, QueuePairType, QueuePairState, ConnectionState, SharedMemory);
    hash
};

/// Continues an FNV-1a hash.
const fn fold(mut hash: u32, bytes: &[u8]) -> u32 {
    let mut index = 0;
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u32).wrapping_mul(0x0100_0193);
        index += 1;
    }
    hash
}

/// Appends values to bytes.
pub(super) struct Encoder<'a>(pub(super) &'a mut Vec<u8>);

impl Encoder<'_> {
    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    /// Appends a text of at most `most` bytes, less than 256; the rest of it is cut off.
    pub(super) fn text(&mut self, text: &str, most: usize) {
        let mut end = text.len().min(most);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.u8(end as u8);
        self.0.extend(&text.as_bytes()[..end]);
    }

    fn address(&mut self, address: Option<IpAddr>) {
        match address {
            None => self.u8(0),
            Some(IpAddr::V4(address)) => {
                self.u8(4);
                self.0.extend(address.octets());
            }
            Some(IpAddr::V6(address)) => {
                self.u8(6);
                self.0.extend(address.octets());
            }
        }
    }

    fn duration(&mut self, duration: Option<Duration>) {
        self.u64(duration.map_or(u64::MAX, nanos));
    }

    /// Appends the counts that are not 0: drops have the numbers behind those of the counters.
    fn counters(&mut self, counters: &Counters) {
        let counts = Counter::ALL.iter().map(|counter| counters.get(*counter));
        let drops = DropReason::ALL.iter().map(|reason| counters.get_drop(*reason));
        let used = || (0..).zip(counts.clone().chain(drops.clone())).filter(|(_, count)| *count != 0);
        self.u8(used().count() as u8);
        for (number, count) in used() {
            self.u8(number);
            self.u64(count);
        }
    }

    pub(super) fn snapshot(&mut self, snapshot: &Snapshot) {
        self.u64(snapshot.taken_at);
        self.u64(nanos(snapshot.every));
        self.u32(snapshot.omitted_devices);
        self.u8(snapshot.devices.len().min(MOST_DEVICES) as u8);
        snapshot.devices.iter().take(MOST_DEVICES).for_each(|device| self.device(device));
    }

    fn device(&mut self, device: &DeviceStatistics) {
        self.text(&device.name, MOST_NAME_BYTES);
        self.u64(device.id);
        self.u8(device.addresses.len().min(MOST_ADDRESSES) as u8);
        device.addresses.iter().take(MOST_ADDRESSES).for_each(|address| self.address(Some(*address)));
        self.u32(device.omitted_addresses);
        self.u8(SharedMemory::ALL.iter().position(|setting| *setting == device.shared_memory).unwrap_or(0) as u8);
        self.counters(&device.counters);
        objects(&device.objects).into_iter().for_each(|count| self.u32(count));
        self.u32(device.captures);
        device.states.iter().for_each(|count| self.u32(*count));
        self.u16(device.queue_pairs.len() as u16);
        device.queue_pairs.iter().for_each(|queue_pair| self.queue_pair(queue_pair));
        let QueuePairSums { queue_pairs, sends, receives, counters, .. } = &device.omitted_queue_pairs;
        self.u32(*queue_pairs);
        self.u64(*sends);
        self.u64(*receives);
        self.counters(counters);
        device.connections.states.iter().for_each(|count| self.u32(*count));
        counts(&device.connections).into_iter().for_each(|count| self.u64(count));
        self.u16(device.listeners.len() as u16);
        device.listeners.iter().for_each(|listener| self.listener(listener));
        self.u32(device.omitted_listeners);
    }

    fn queue_pair(&mut self, queue_pair: &QueuePairStatistics) {
        self.u32(queue_pair.qpn.value());
        self.u8(queue_pair.qp_type as u8);
        self.u8(queue_pair.state as u8);
        self.address(queue_pair.own_address);
        self.address(queue_pair.peer_address);
        self.u32(queue_pair.peer_qpn.map_or(u32::MAX, Qpn::value));
        self.u8(match queue_pair.path {
            None => 0,
            Some(PathKind::Sockets) => 1,
            Some(PathKind::SharedMemory) => 2,
        });
        self.u64(queue_pair.sends);
        self.u64(queue_pair.receives);
        self.counters(&queue_pair.counters);
        self.duration(queue_pair.round_trip);
        self.u64(queue_pair.window);
        self.u64(queue_pair.path_bytes_in_flight);
        self.u64(queue_pair.bytes_in_flight);
        self.u32(queue_pair.pending_sends);
        self.u32(queue_pair.pending_receives);
        self.text(queue_pair.error.as_deref().unwrap_or_default(), MOST_CAUSE_BYTES);
    }

    fn listener(&mut self, listener: &ListenerStatistics) {
        self.u64(listener.service_id);
        self.address(listener.address);
        self.u8(listener.qp_type as u8);
        self.u32(listener.backlog);
        self.u32(listener.waiting);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX - 1)
}

fn objects(objects: &LiveObjects) -> [u32; 8] {
    let LiveObjects {
        queue_pairs,
        completion_queues,
        shared_receive_queues,
        memory_regions,
        memory_windows,
        protection_domains,
        xrc_domains,
        address_handles,
    } = *objects;
    [
        queue_pairs,
        completion_queues,
        shared_receive_queues,
        memory_regions,
        memory_windows,
        protection_domains,
        xrc_domains,
        address_handles,
    ]
}

fn counts(connections: &ConnectionStatistics) -> [u64; 8] {
    let ConnectionStatistics { received, sent, repeated, duplicates, stale, refused, dropped, dropped_full, .. } =
        *connections;
    [received, sent, repeated, duplicates, stale, refused, dropped, dropped_full]
}

/// Replaces the interval in the bytes of a snapshot.
pub(super) fn set_interval(snapshot: &mut [u8], every: Duration) {
    snapshot[INTERVAL].copy_from_slice(&nanos(every).to_le_bytes());
}

/// Reads values from bytes; `None` at their end, or for a value that is not allowed.
pub(super) struct Decoder<'a>(pub(super) &'a [u8]);

impl<'a> Decoder<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a text. Control characters, which would reach a terminal, are replaced.
    pub(super) fn text(&mut self, most: usize) -> Option<String> {
        let length = usize::from(self.u8()?);
        let text = std::str::from_utf8(self.bytes(length)?).ok()?;
        let clean = |character: char| if character.is_control() { '?' } else { character };
        (length <= most).then(|| text.chars().map(clean).collect())
    }

    fn address(&mut self) -> Option<Option<IpAddr>> {
        Some(match self.u8()? {
            0 => None,
            4 => Some(Ipv4Addr::from(self.array::<4>()?).into()),
            6 => Some(Ipv6Addr::from(self.array::<16>()?).into()),
            _ => return None,
        })
    }

    fn duration(&mut self) -> Option<Option<Duration>> {
        let nanos = self.u64()?;
        Some((nanos != u64::MAX).then(|| Duration::from_nanos(nanos)))
    }

    fn counters(&mut self) -> Option<Counters> {
        let mut counters = Counters::default();
        for _ in 0..self.u8()? {
            let (number, count) = (usize::from(self.u8()?), self.u64()?);
            match Counter::ALL.get(number) {
                Some(counter) => counters.add(*counter, count),
                None => counters.add_drops(*DropReason::ALL.get(number - Counter::ALL.len())?, count),
            }
        }
        Some(counters)
    }

    fn u32s<const N: usize>(&mut self) -> Option<[u32; N]> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = self.u32()?;
        }
        Some(numbers)
    }

    /// Reads a list whose entries are at least a byte long.
    fn list<T>(&mut self, count: usize, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        (0..count).map(|_| read(self)).collect()
    }

    /// Reads a snapshot, which must fill the bytes.
    pub(super) fn snapshot(&mut self) -> Option<Snapshot> {
        let mut snapshot = Snapshot { taken_at: self.u64()?, ..Snapshot::default() };
        snapshot.every = Duration::from_nanos(self.u64()?);
        snapshot.omitted_devices = self.u32()?;
        let devices = usize::from(self.u8()?);
        snapshot.devices = self.list(devices, Self::device)?;
        (self.0.is_empty() && devices <= MOST_DEVICES).then_some(snapshot)
    }

    fn device(&mut self) -> Option<DeviceStatistics> {
        let mut device = DeviceStatistics::new(self.text(MOST_NAME_BYTES)?);
        device.id = self.u64()?;
        let addresses = Some(usize::from(self.u8()?)).filter(|count| *count <= MOST_ADDRESSES)?;
        device.addresses = self.list(addresses, Self::address)?.into_iter().flatten().collect();
        device.omitted_addresses = self.u32()?;
        device.shared_memory = *SharedMemory::ALL.get(usize::from(self.u8()?))?;
        device.counters = self.counters()?;
        device.objects = self.objects()?;
        device.captures = self.u32()?;
        device.states = self.u32s()?;
        let queue_pairs = usize::from(self.u16()?);
        device.queue_pairs = self.list(queue_pairs, Self::queue_pair)?;
        let sums = &mut device.omitted_queue_pairs;
        (sums.queue_pairs, sums.sends, sums.receives) = (self.u32()?, self.u64()?, self.u64()?);
        sums.counters = self.counters()?;
        device.connections = self.connections()?;
        let listeners = usize::from(self.u16()?);
        device.listeners = self.list(listeners, Self::listener)?;
        device.omitted_listeners = self.u32()?;
        Some(device)
    }

    fn objects(&mut self) -> Option<LiveObjects> {
        Some(LiveObjects {
            queue_pairs: self.u32()?,
            completion_queues: self.u32()?,
            shared_receive_queues: self.u32()?,
            memory_regions: self.u32()?,
            memory_windows: self.u32()?,
            protection_domains: self.u32()?,
            xrc_domains: self.u32()?,
            address_handles: self.u32()?,
        })
    }

    fn connections(&mut self) -> Option<ConnectionStatistics> {
        Some(ConnectionStatistics {
            states: self.u32s()?,
            received: self.u64()?,
            sent: self.u64()?,
            repeated: self.u64()?,
            duplicates: self.u64()?,
            stale: self.u64()?,
            refused: self.u64()?,
            dropped: self.u64()?,
            dropped_full: self.u64()?,
        })
    }

    fn queue_pair_type(&mut self) -> Option<QueuePairType> {
        let number = self.u8()?;
        QueuePairType::ALL.iter().copied().find(|known| *known as u32 == number.into())
    }

    fn queue_pair(&mut self) -> Option<QueuePairStatistics> {
        let qpn = Qpn::new(self.u32()?);
        let mut queue_pair = QueuePairStatistics::new(qpn, self.queue_pair_type()?);
        queue_pair.state = *QueuePairState::ALL.get(usize::from(self.u8()?))?;
        queue_pair.own_address = self.address()?;
        queue_pair.peer_address = self.address()?;
        queue_pair.peer_qpn = Some(self.u32()?).filter(|number| *number != u32::MAX).map(Qpn::new);
        queue_pair.path = match self.u8()? {
            0 => None,
            1 => Some(PathKind::Sockets),
            2 => Some(PathKind::SharedMemory),
            _ => return None,
        };
        queue_pair.sends = self.u64()?;
        queue_pair.receives = self.u64()?;
        queue_pair.counters = self.counters()?;
        queue_pair.round_trip = self.duration()?;
        queue_pair.window = self.u64()?;
        queue_pair.path_bytes_in_flight = self.u64()?;
        queue_pair.bytes_in_flight = self.u64()?;
        queue_pair.pending_sends = self.u32()?;
        queue_pair.pending_receives = self.u32()?;
        queue_pair.error = Some(self.text(MOST_CAUSE_BYTES)?).filter(|cause| !cause.is_empty());
        Some(queue_pair)
    }

    fn listener(&mut self) -> Option<ListenerStatistics> {
        let (service_id, address) = (self.u64()?, self.address()?);
        let mut listener = ListenerStatistics::new(service_id, self.queue_pair_type()?);
        listener.address = address;
        (listener.backlog, listener.waiting) = (self.u32()?, self.u32()?);
        Some(listener)
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests;
