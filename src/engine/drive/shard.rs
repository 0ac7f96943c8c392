//! A shard: one endpoint with its sockets, and the state that coordinates the threads that drive it.
//!
//! Each look at it is a *pass*: take the view of registered memory, handle the doorbells, receive a bounded batch,
//! handle deadlines, send a bounded batch. The drivers in [`super::driver`] differ in what their passes may do.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::connection_log::ConnectionLog;
use super::connections::Connections;
use super::core::{Core, Progress};
use super::doorbell::{Doorbell, DoorbellQueue};
use super::event_queue::EventQueues;
use super::policy::{ArmedFor, DrivingPolicy};
use super::shard_lock::ShardLock;
use super::wake::Wake;
use crate::engine::capture::Capture;
use crate::engine::net::{
    Checksums, Deliver, Link, MAX_SEND_BYTES, ReceiveSocket, SendSocket, SocketSizes, congestion_of, leaves_host,
};
use crate::engine::share::{JoinRequest, QpnBlocks, Recipient, search_orphans};
use crate::memory::{MemoryView, RegionTable, SharedPart};
use crate::queue::{AsyncEventQueue, CompletionQueue, Journal};
use crate::sys::{Clock, Epoll, Interest, LocalAddress, OpenError};
use crate::transport::{AckRelease, Datagram, DatagramOutcome, Endpoint, EndpointConfig, ReorderBudget, Similar};
use crate::types::{
    AsyncEvent, CongestionAlgorithm, Counters, PathReport, PeerCapabilities, Qpn, QueuePairReport, SharedMemory, Time,
    UnmatchedPackets,
};

/// Most sending sockets without checksums per address: the more, the better networks spread the flows.
const PLAIN_SENDERS: u32 = 4;
/// Most segmenting sockets per address: few, so that packets to one peer can leave together.
const SEGMENTING_SENDERS: u32 = 2;

/// A pass that receives or sends this much may last longer than a poller's usual pause.
const LONG_PASS_DATAGRAMS: usize = 64;
/// Most doorbells handled in one pass.
const MAX_DOORBELLS: usize = 256;
/// Most events for subscribers of `tracing` that wait to be emitted.
pub(super) const MOST_EVENTS: usize = 1_024;

/// Configuration of a shard.
pub(crate) struct ShardConfig<'a> {
    /// Name of the device.
    pub(crate) device: &'a str,
    /// GUID of the device.
    pub(crate) guid: u64,
    pub(crate) blocks: QpnBlocks,
    /// Capabilities advertised to peers on this machine.
    pub(crate) capabilities: PeerCapabilities,
    /// Whether queue pairs discover native peers on other hosts.
    pub(crate) discovers: bool,
    /// Whether packets to and from other processes of this user on this host go through shared memory.
    pub(crate) shared_memory: SharedMemory,
    pub(crate) sizes: SocketSizes,
    pub(crate) max_queue_pairs: u32,
    /// Most datagrams in one segmented send.
    pub(crate) max_segments: usize,
    /// Longest time that an acknowledgement may wait for the application's response.
    pub(crate) ack_hold: Duration,
    /// Congestion control on paths that leave this host.
    pub(crate) congestion: CongestionAlgorithm,
    /// Most bytes per second on each path to another host.
    pub(crate) max_bytes_per_second: Option<NonZeroU64>,
    /// Memory of the reorder buffers, shared by all shards of the device.
    pub(crate) reorder_budget: Arc<ReorderBudget>,
    /// Receives an event when the shard fails.
    pub(crate) events: Arc<AsyncEventQueue>,
}

/// Limits of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// A queue pair with new work that is handled without its doorbell.
    pub(super) posted: Option<Qpn>,
    /// Most datagrams to receive, merged ones counted once.
    pub(super) receives: usize,
    /// Most send calls.
    pub(super) send_calls: usize,
    /// Whether due deadlines are handled.
    pub(super) deadlines: bool,
    /// Stop receiving as soon as the application has something to respond to: a call that finds no more datagrams would
    /// only delay the response.
    pub(super) stops_for_completion: bool,
    /// The thread may have slept on packets until now: if none has arrived, a bell has rung without a request.
    pub(super) follows_sleep: bool,
}

/// A completion queue whose notification waits for more completions.
pub(super) struct Moderated {
    due: Time,
    gathering: u32,
    queue: Weak<CompletionQueue>,
}

/// One endpoint with its sockets, lock and poller lease.
pub(crate) struct Shard {
    pub(super) lock: ShardLock<Core>,
    pub(super) doorbells: DoorbellQueue,
    pub(super) policy: DrivingPolicy,
    pub(super) wake: Wake,
    pub(super) clock: Clock,
    /// Readable while a packet waits.
    pub(super) sockets: Epoll,
    /// Number of channels whose waiters the sockets wake.
    pub(super) direct_channels: AtomicU32,
    /// Completion queues whose notifications are moderated, and until when.
    pub(super) moderated: Mutex<Vec<Moderated>>,
    /// Set when the shard's thread must end.
    pub(super) stop: AtomicBool,
    /// A pass has panicked: the endpoint must not be used any more.
    failed: AtomicBool,
    events: Arc<AsyncEventQueue>,
    /// The queues of the connection manager's events.
    pub(super) event_queues: Arc<EventQueues>,
    /// Events for subscribers of `tracing`, until the shard's thread emits them.
    pub(super) journal: Arc<Journal>,
    pub(super) memory: Arc<RegionTable>,
    pub(super) blocks: QpnBlocks,
    capabilities: PeerCapabilities,
    pub(super) shared_memory: SharedMemory,
    pub(super) sizes: SocketSizes,
    opened: Mutex<Opened>,
}

/// The opened sockets, for threads that open more.
#[derive(Default)]
struct Opened {
    receivers: Vec<IpAddr>,
    /// Source ports by address, kind and index in the pool.
    senders: HashMap<(IpAddr, Checksums, u32), u16>,
}

impl Shard {
    pub(crate) fn new(config: ShardConfig<'_>, memory: Arc<RegionTable>) -> io::Result<Self> {
        let journal = Arc::new(Journal::new(config.device, MOST_EVENTS));
        let endpoint = Endpoint::new(EndpointConfig {
            qpn_blocks: config.blocks.blocks().to_vec(),
            random: Box::new(random),
            max_queue_pairs: config.max_queue_pairs,
            ack_hold: config.ack_hold,
            max_segments: config.max_segments,
            reorder_budget: config.reorder_budget,
            congestion: congestion_of(config.congestion, config.max_bytes_per_second),
            capabilities: if config.discovers { config.capabilities } else { PeerCapabilities::STANDARD },
            journal: Arc::clone(&journal),
        });
        let buffer = vec![0; MAX_SEND_BYTES].into();
        let clock = Clock::new();
        let event_queues = Arc::default();
        let log = ConnectionLog::new(&journal);
        let connections = Connections::new(config.guid, config.blocks.first(), random, &event_queues, log);
        let link = Link::new(clock, &journal);
        let core = Core { endpoint, connections, link, buffer, unsent: None, ring_retry: None, was_management: false };
        Ok(Self {
            lock: ShardLock::new(core),
            doorbells: DoorbellQueue::new(config.max_queue_pairs as usize),
            policy: DrivingPolicy::default(),
            wake: Wake::new()?,
            clock,
            sockets: Epoll::new()?,
            direct_channels: AtomicU32::new(0),
            moderated: Mutex::default(),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            events: config.events,
            event_queues,
            journal,
            memory,
            blocks: config.blocks,
            capabilities: config.capabilities,
            shared_memory: config.shared_memory,
            sizes: config.sizes,
            opened: Mutex::default(),
        })
    }

    /// Returns whether a pass has panicked. After that the shard does nothing.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Returns the counters of the endpoint and the link.
    pub(crate) fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        self.command(|core, _| {
            counters = core.endpoint.counters();
            counters.merge(core.link.counters());
        });
        counters
    }

    /// Returns the paths of its queue pairs.
    pub(crate) fn path_reports(&self) -> Vec<PathReport> {
        let mut reports = Vec::new();
        self.command(|core, now| reports = core.endpoint.path_reports(now));
        reports
    }

    /// Returns the number of queue pairs of this shard.
    pub(crate) fn queue_pairs(&self) -> usize {
        let mut count = 0;
        self.command(|core, _| count = core.endpoint.queue_pair_count());
        count
    }

    /// Returns the report of a queue pair on itself and its peer, with the errors that the sockets reported for its
    /// path; and the start of its connection, by this shard's clock.
    pub(crate) fn queue_pair_report(&self, qpn: Qpn) -> Option<(QueuePairReport, Time)> {
        let mut report = None;
        self.command(|core, now| report = core.queue_pair_report(now, qpn));
        report
    }

    /// Returns packets from an address since this time that match no queue pair.
    pub(crate) fn unmatched_packets(&self, source: IpAddr, since: Time) -> Vec<UnmatchedPackets> {
        let mut found = Vec::new();
        self.command(|core, now| found = core.endpoint.unmatched_packets(now, source, since));
        found
    }

    /// Opens the sockets for packets to and from `address`, and returns the source port for a queue pair's packets.
    /// Equal `entropy` gives equal ports. `segmenting`: the peer accepts segmented sends.
    pub(crate) fn open_path(
        self: &Arc<Self>,
        address: LocalAddress,
        segmenting: bool,
        entropy: u32,
    ) -> Result<u16, OpenError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        self.open_receiver(&mut opened, address)?;
        let (kind, pool) =
            if segmenting { (Checksums::On, SEGMENTING_SENDERS) } else { (Checksums::Off, PLAIN_SENDERS) };
        let key = (address.ip, kind, entropy % pool);
        if let Some(port) = opened.senders.get(&key) {
            // Errors reported so far belong to earlier connections.
            self.command(|core, _| core.link.take_errors());
            return Ok(*port);
        }
        let socket = SendSocket::open(address, kind, &self.sizes)?;
        let port = socket.port;
        self.command(|core, _| core.link.add_sender(socket));
        opened.senders.insert(key, port);
        search_orphans();
        Ok(port)
    }

    /// Opens the receive socket of `address`, unless it is open.
    fn open_receiver(self: &Arc<Self>, opened: &mut Opened, address: LocalAddress) -> Result<(), OpenError> {
        if opened.receivers.contains(&address.ip) {
            return Ok(());
        }
        let blocks = self.blocks.blocks();
        let recipient: Weak<dyn Recipient> = Arc::downgrade(self) as _;
        let request = JoinRequest { address, blocks, capabilities: self.capabilities, recipient: Some(&recipient) };
        let socket = ReceiveSocket::open(request, &self.sizes)?;
        let watched = self.sockets.add(socket.membership.descriptor(), Interest::Readable);
        watched.map_err(cannot_watch)?;
        self.command(|core, _| {
            core.link.add_receiver(socket);
            core.connections.add_address(address.ip);
        });
        opened.receivers.push(address.ip);
        Ok(())
    }

    /// Opens the sockets of an address for the datagrams of the connection manager.
    pub(crate) fn open_management(self: &Arc<Self>, address: LocalAddress) -> Result<(), OpenError> {
        self.open_path(address, false, 0).map(drop)
    }

    /// Returns the block of queue pair numbers that communication ids begin with.
    pub(crate) fn id_block(&self) -> u16 {
        self.blocks.first() as u16
    }

    /// Makes a call of the connection manager. Returns `None` if the shard has failed; then the call was not made.
    pub(crate) fn manage<R>(&self, call: impl FnOnce(&mut Connections, Time) -> R) -> Option<R> {
        let mut result = None;
        self.command(|core, now| result = Some(call(&mut core.connections, now)));
        result
    }

    /// Opens the receive sockets of these addresses, so that other processes find this one there. If this fails for an
    /// address, the queue pair that needs the address gets the error later.
    pub(crate) fn receive_connected(self: &Arc<Self>, addresses: &[LocalAddress]) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        for address in addresses {
            if let Err(error) = self.open_receiver(&mut opened, *address) {
                let OpenError { message, source } = error;
                let address = address.ip;
                tracing::debug!(
                    target: "rdma_verbs::device",
                    local = %address, reason = message, error = %source,
                    "other processes find this one from RTR on only"
                );
            }
        }
    }

    /// Opens the receive sockets of these addresses for datagrams, with their header fields reported.
    pub(crate) fn receive_datagrams(self: &Arc<Self>, addresses: &[LocalAddress]) -> Result<(), OpenError> {
        self.command(|core, _| core.link.report_headers());
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.iter().try_for_each(|address| self.open_receiver(&mut opened, *address))
    }

    /// Enables reports of congestion marks, which queues in the network may set, for a path between these addresses.
    pub(crate) fn receive_marks(&self, own: IpAddr, peer: IpAddr) {
        let mut reports = false;
        self.command(|core, _| reports = core.link.reports_marks());
        // `leaves_host` queries all addresses from the kernel: not while the shard is held.
        if !reports && leaves_host(own, peer) {
            self.command(|core, _| core.link.report_marks());
        }
    }

    /// Returns whether packets between these addresses leave this host. Queries all addresses from the kernel.
    pub(crate) fn leaves_host(own: IpAddr, peer: IpAddr) -> bool {
        leaves_host(own, peer)
    }

    /// Starts to record packets in a capture.
    pub(crate) fn add_capture(&self, capture: &Arc<Capture>) {
        self.command(|core, _| {
            core.link.add_capture(Arc::clone(capture));
            core.endpoint.allow_direct_access(!core.link.has_captures());
        });
    }

    /// Stops recording packets in a capture.
    pub(crate) fn remove_capture(&self, capture: &Arc<Capture>) {
        self.command(|core, _| {
            core.link.remove_capture(capture);
            core.endpoint.allow_direct_access(!core.link.has_captures());
        });
    }

    /// Leaves the groups of its addresses.
    pub(crate) fn close_receivers(&self) {
        let mut receivers = Vec::new();
        self.command(|core, _| receivers = core.link.take_receivers());
        // Without the shard: other processes are waited for, and the process's mailbox may end.
        drop(receivers);
    }

    /// Stops recording packets, and returns the captures. Dropping the last reference to one waits until its file is
    /// written.
    pub(crate) fn take_captures(&self) -> Vec<Arc<Capture>> {
        let mut captures = Vec::new();
        self.command(|core, _| {
            captures = core.link.take_captures();
            core.endpoint.allow_direct_access(true);
        });
        captures
    }

    /// Notes that completion queues of a channel were armed. Threads that sleep on packets get the next one first; for
    /// those that sleep on a descriptor, the shard's thread watches the sockets. [`Shard::end_silence`] must follow.
    pub(crate) fn channel_armed(&self, armed_for: ArmedFor, queues: u32) {
        if self.policy.note_armed(armed_for, queues) {
            self.wake.call();
        }
    }

    /// Notes that completion queues of a channel are no longer armed.
    pub(crate) fn channel_disarmed(&self, armed_for: ArmedFor, queues: u32) {
        self.policy.note_disarmed(armed_for, queues);
    }

    /// Makes the shard's thread end the moderation of a completion queue's notification after this time.
    pub(crate) fn notify_within(&self, queue: &Weak<CompletionQueue>, period: Duration, gathering: u32) {
        let due = self.clock.now() + period;
        let moderated = Moderated { due, gathering, queue: Weak::clone(queue) };
        self.moderated.lock().unwrap_or_else(PoisonError::into_inner).push(moderated);
        self.wake.call_if_needed_by(due);
    }

    /// Ends the moderations that are due; returns when the next one is.
    pub(super) fn end_moderations(&self, now: Time) -> Option<Time> {
        let mut moderated = self.moderated.lock().unwrap_or_else(PoisonError::into_inner);
        let due: Vec<Moderated> = moderated.extract_if(.., |entry| entry.due <= now).collect();
        let next = moderated.iter().map(|entry| entry.due).min();
        drop(moderated);
        // After the unlock: a notification takes the channel's lock, and so does a thread that adds to the list.
        for Moderated { queue, gathering, .. } in due {
            if let Some(queue) = queue.upgrade() {
                queue.end_moderation(gathering);
            }
        }
        next
    }

    /// Queues a doorbell; if there is no room, handles all queued ones and this one at once.
    pub(super) fn ring_doorbell(&self, doorbell: &Arc<Doorbell>) {
        if !self.doorbells.ring(doorbell) {
            self.command(|core, now| core.endpoint.handle_doorbell(now, doorbell.qpn()));
        }
    }

    /// Makes one pass over the shard, which the caller holds. After received packets were handled,
    /// `hold_acknowledgements` decides whether acknowledgements wait, because the application has something to respond
    /// to and will come back soon; its second argument is whether a WRITE without a completion ended. Otherwise
    /// acknowledgements leave, after everything else.
    pub(super) fn pass(
        &self,
        core: &mut Core,
        plan: Plan,
        now: Time,
        hold_acknowledgements: impl Fn(Time, bool) -> bool,
    ) -> Progress {
        if self.has_failed() {
            return Progress::default();
        }
        let unfinished = Unfinished(self);
        let memory = self.memory.read();
        let (mut progress, wrote) = (Progress::default(), Cell::new(false));
        if let Some(qpn) = plan.posted {
            core.endpoint.handle_doorbell(now, qpn);
        }
        progress.has_more |= self.drain_doorbells(core, now);
        if plan.receives > 0 {
            let Core { endpoint, link, .. } = core;
            let batch = link.receive(plan.receives, Arriving { endpoint, now, memory: &memory, wrote: &wrote }, || {
                plan.stops_for_completion && hold_acknowledgements(now, wrote.get())
            });
            endpoint.settle_arrivals(now);
            progress.wrote = wrote.get();
            if progress.wrote {
                self.policy.note_write();
            }
            progress.worked |= batch.datagrams > 0;
            progress.has_more |= batch.is_full;
            progress.was_long |= batch.datagrams >= LONG_PASS_DATAGRAMS;
        }
        if core.endpoint.management().has_arrivals() {
            core.take_management(now);
        }
        if plan.deadlines {
            core.connections.handle_timeout(now);
            core.search_held(now);
        }
        if plan.deadlines && core.endpoint.next_timeout().is_some_and(|deadline| deadline <= now) {
            core.endpoint.handle_timeout(now);
        }
        core.connections.deliver_events(now);
        core.transmit(now, &memory, plan.send_calls, AckRelease::Hold, &mut progress);
        if core.endpoint.has_held_acknowledgements() && !hold_acknowledgements(now, wrote.get()) {
            core.transmit(now, &memory, plan.send_calls, AckRelease::Now, &mut progress);
        }
        progress.next_deadline = core.next_deadline();
        if core.endpoint.wants_keys() {
            self.ask_for_keys(core);
        }
        if plan.receives > 0 {
            let has_readers = core.link.memory_links().has_readers();
            self.policy.note_looks_at_memory(has_readers);
            if has_readers {
                if plan.follows_sleep && !progress.worked {
                    core.link.memory_links().silence_bells(&self.sockets);
                }
                self.set_bells(core, now, &mut progress);
            }
        }
        std::mem::forget(unfinished);
        progress
    }

    /// Marks the shard as failed after a panic of a pass or a change. The caller holds the shard.
    #[cold]
    fn fail(&self) {
        if !self.has_failed() {
            // Before the thread can see the failure, and end.
            self.note_failure();
            self.failed.store(true, Ordering::Release);
            self.events.push(AsyncEvent::DeviceFatal);
            self.event_queues.close();
        }
    }

    /// Reports queue pairs with new work to the endpoint. Returns whether there may be more of them than one pass
    /// handles.
    #[inline]
    fn drain_doorbells(&self, core: &mut Core, now: Time) -> bool {
        for _ in 0..MAX_DOORBELLS {
            let Some(qpn) = self.doorbells.pop() else { return false };
            core.endpoint.handle_doorbell(now, qpn);
        }
        true
    }

    /// Changes the endpoint for a control verb: not a pass, but guarded against panics in the same way. Returns whether
    /// the change was made.
    pub(super) fn change(&self, core: &mut Core, change: impl FnOnce(&mut Core, Time)) -> bool {
        if self.has_failed() {
            return false;
        }
        let unfinished = Unfinished(self);
        change(core, self.clock.now());
        std::mem::forget(unfinished);
        true
    }
}

/// Hands the datagrams of a pass to the endpoint.
struct Arriving<'a> {
    endpoint: &'a mut Endpoint,
    now: Time,
    memory: &'a MemoryView<'a>,
    /// Set if a WRITE without a completion ended.
    wrote: &'a Cell<bool>,
}

impl Deliver for Arriving<'_> {
    #[inline]
    fn whole(&mut self, datagram: &Datagram<'_>) -> DatagramOutcome {
        let outcome = self.endpoint.handle_arrival(self.now, self.memory, datagram);
        self.wrote.set(self.wrote.get() | outcome.ends_write);
        outcome
    }

    #[inline]
    fn in_place(&mut self, datagram: &Datagram<'_>, rest: SharedPart<'_>) -> Option<DatagramOutcome> {
        self.endpoint.take_in_place(self.now, self.memory, datagram, rest)
    }

    #[inline]
    fn similar(&mut self, first: &Datagram<'_>, packets: Similar, payloads: SharedPart<'_>) -> bool {
        self.endpoint.take_similar(self.now, self.memory, first, packets, payloads)
    }
}

/// A pass or a change in progress. It is only dropped by a panic, which leaves state that must not be used: the shard
/// fails.
pub(super) struct Unfinished<'a>(pub(super) &'a Shard);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.fail();
    }
}

pub(super) fn cannot_watch(source: io::Error) -> OpenError {
    OpenError { message: "cannot watch the receive socket".to_owned(), source }
}

/// Returns a random number for queue pair numbers. If the system's random source fails, which practically never happens
/// once it has worked, the process's own hash keys replace it.
fn random() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    getrandom::u32().unwrap_or_else(|_| RandomState::new().hash_one(0) as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::shard;
    use super::*;

    #[test]
    fn panic_fails_the_device_and_is_reported_once() {
        let shard = Arc::new(shard());
        assert!(shard.command(|_, _| {}) && !shard.has_failed());
        let shared = Arc::clone(&shard);
        let panicked = std::thread::spawn(move || shared.command(|_, _| panic!("on purpose"))).join();
        assert!(panicked.is_err());
        // At once, not when another call detects it.
        assert!(shard.has_failed());
        assert_eq!(shard.events.poll(), Some(AsyncEvent::DeviceFatal));
        (0..3).for_each(|_| assert!(!shard.command(|_, _| unreachable!("the endpoint must not be used"))));
        assert_eq!(shard.events.poll(), None);
    }
}
