//! One end of a measurement: its device, queue pairs and memory, and the exchange with the other end.

use std::time::{Duration, Instant};

use rdma_verbs::verbs::{
    self, AccessFlags, AddressHandle, AddressVector, Completion, CompletionChannel, CompletionQueue,
    CompletionQueueOptions, ConnectOptions, ConnectionInfo, Context, ErrorKind, MemoryRegion, Mtu, Notify, Payload,
    PeerCapabilities, ProtectionDomain, Qkey, Qpn, QueuePair, QueuePairOptions, QueuePairType, ReceiveRequest,
    RegionRange, RemoteMemory, SendRequest, SoftOptions,
};
use serde::{Deserialize, Serialize};

use super::channel::{Channel, check_interrupted};
use super::job::{Atomic, Job, Measure, Operation, Service, Sharing, Waiting};
use super::outcome::{Failure, Outcome};
use super::pattern;

/// Length of the route header in front of a datagram.
pub(crate) const ROUTE_HEADER_BYTES: usize = 40;
/// The Q_Key of rdma-core's programs.
const QKEY: Qkey = Qkey(0x1111_1111);
/// Length of the memory that small messages cycle through, as in perftest.
const SMALL_WALK_BYTES: usize = 4096;
/// Length of the memory that the large messages of all queue pairs cycle through, which exceeds the cache.
const WALK_BYTES: usize = 8 << 20;
const ALIGNMENT: usize = 8;
const EVENT_WITHIN: Duration = Duration::from_millis(100);
/// Number of empty polls between two checks for Ctrl-C and for the other process.
const POLLS_PER_CHECK: u32 = 1 << 14;
/// Minimum interval of checks for the other process.
const PEER_EVERY: Duration = Duration::from_millis(20);
/// Silence after which an unreliable service is presumed to have lost a message.
const LOST_AFTER: Duration = Duration::from_secs(5);

/// An open device, with the port and GID in use.
pub(crate) struct Device {
    pub(crate) context: Context,
    pub(crate) port_num: u8,
    pub(crate) gid_index: u8,
}

impl Device {
    /// Opens a device, a software device if `sharing` is given.
    pub(crate) fn open(
        name: Option<&str>,
        port_num: u8,
        gid_index: Option<u8>,
        sharing: Option<Sharing>,
    ) -> Outcome<Self> {
        let context = open_device(name, sharing)?;
        let gid_index = gid_index.map_or_else(|| first_gid(&context, port_num), Ok)?;
        Ok(Self { context, port_num, gid_index })
    }
}

/// The data that the ends exchange when they connect.
#[derive(Serialize, Deserialize)]
struct Introduction {
    queue_pairs: Vec<Vec<u8>>,
    memory: [u8; RemoteMemory::ENCODED_BYTES],
}

/// The layout of the memory: for each queue pair outgoing messages, then as many incoming ones.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Distance between two messages.
    stride: usize,
    slots: usize,
    /// Number of areas in each direction. Queue pairs whose areas together would exceed the cache share them, unless
    /// the data is checked, because measurements of many queue pairs do not measure memory.
    areas: usize,
    /// Length of the header in front of an incoming message.
    header: usize,
}

impl Layout {
    fn new(job: &Job, size: usize) -> Self {
        let header = if job.service == Service::Datagram { ROUTE_HEADER_BYTES } else { 0 };
        let stride = (size + header).next_multiple_of(ALIGNMENT);
        let walk = match size {
            // Messages that may be lost are identical, so that any of them can be checked; a ping-pong has only one.
            _ if job.service != Service::Reliable || job.measure == Measure::Latency => stride,
            0..SMALL_WALK_BYTES => SMALL_WALK_BYTES,
            _ => WALK_BYTES / job.queue_pairs,
        };
        let slots = (walk / stride).max(1);
        let is_shared = stride >= SMALL_WALK_BYTES && job.measure == Measure::Bandwidth && !job.check;
        let most = if is_shared { WALK_BYTES.div_ceil(slots * stride) } else { job.queue_pairs };
        Self { stride, slots, areas: job.queue_pairs.min(most), header }
    }

    /// Returns the length of a queue pair's memory in one direction.
    fn area(&self) -> usize {
        self.slots * self.stride
    }

    /// Returns the offset of a message within an area.
    fn offset_of(&self, number: u64) -> usize {
        (number % self.slots as u64) as usize * self.stride
    }

    /// Returns the offset of a queue pair's outgoing message.
    fn outgoing(&self, pair: usize, number: u64) -> usize {
        2 * (pair % self.areas) * self.area() + self.offset_of(number)
    }

    /// Returns the offset of a queue pair's incoming message, without its route header.
    fn incoming(&self, pair: usize, number: u64) -> usize {
        self.outgoing(pair, number) + self.area() + self.header
    }
}

/// The objects of one end. The queue pairs are dropped first, so that nothing arrives for memory that is already gone.
pub(crate) struct End {
    pub(crate) queue_pairs: Vec<QueuePair>,
    pub(crate) job: Job,
    pub(crate) size: usize,
    pub(crate) memory: MemoryRegion,
    layout: Layout,
    /// The contents of every queue pair's outgoing area; inline messages are taken from here.
    outgoing: Vec<u8>,
    remote: Option<RemoteMemory>,
    /// Destinations of datagrams.
    destinations: Vec<(AddressHandle, Qpn)>,
    channel: Option<CompletionChannel>,
    cq: CompletionQueue,
    /// Registered and never used.
    _idle_regions: Vec<MemoryRegion>,
}

impl End {
    /// Creates the objects for messages of one size, and connects to the other end.
    pub(crate) fn open(job: &Job, size: usize, device: &Device, channel: &mut Channel) -> Outcome<Self> {
        let context = &device.context;
        check_datagram_size(size, job, device)?;
        let pd = context.alloc_pd()?;
        let events = (job.waiting == Waiting::Events).then(|| context.create_comp_channel()).transpose()?;
        let cqe = job.completions() as u32;
        let cq = match &events {
            Some(events) => context.create_cq_with(cqe, &CompletionQueueOptions::default().channel(events, 0))?,
            None => context.create_cq(cqe)?,
        };
        let layout = Layout::new(job, size);
        let outgoing = pattern::bytes(job.seed, layout.area());
        let nothing_yet = vec![0; layout.area()];
        let contents = [outgoing.as_slice(), &nothing_yet].concat().repeat(layout.areas);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
        let memory = if job.program_memory {
            pd.reg_mr(contents, access).map_err(verbs::Error::from)?
        } else {
            // Memory of the library, which the other process can access directly if both share memory.
            let memory = pd.alloc_mr(contents.len(), access)?;
            memory.write_at(0, &contents)?;
            memory
        };
        let create = |_| create_queue_pair(job, &pd, &cq, device);
        let mut end = Self {
            queue_pairs: (0..job.queue_pairs).map(create).collect::<Outcome<_>>()?,
            job: job.clone(),
            size,
            memory,
            layout,
            outgoing,
            remote: None,
            destinations: Vec::new(),
            channel: events,
            cq,
            _idle_regions: idle_regions(job, &pd)?,
        };
        end.connect(device, channel)?;
        Ok(end)
    }

    /// Exchanges the addresses of queue pairs and memory; both ends are ready when it returns.
    fn connect(&mut self, device: &Device, channel: &mut Channel) -> Outcome {
        let infos: Vec<_> = self.queue_pairs.iter().map(QueuePair::connection_info).collect::<Result<_, _>>()?;
        let own = Introduction {
            queue_pairs: infos.iter().map(|info| info.to_bytes()).collect(),
            memory: self.memory.remote().to_bytes(),
        };
        let other = channel.exchange(&own)?;
        if other.queue_pairs.len() != self.queue_pairs.len() {
            return Err(format!("the other end has {} queue pairs", other.queue_pairs.len()).into());
        }
        self.remote = Some(RemoteMemory::from_bytes(other.memory));
        for (qp, bytes) in self.queue_pairs.iter().zip(&other.queue_pairs) {
            let mut info = ConnectionInfo::from_bytes(bytes)?;
            if self.job.standard_peers {
                info.capabilities = PeerCapabilities::STANDARD;
                info.key = None;
            }
            if self.job.service == Service::Datagram {
                qp.bring_up_ud()?;
                let mut vector = AddressVector::new(info.gid, device.gid_index);
                (vector.port_num, vector.sl) = (device.port_num, self.job.service_level);
                self.destinations.push((qp.protection_domain().create_ah(&vector)?, info.qpn));
            } else {
                qp.connect_with(&info, &self.connect_options())?;
            }
        }
        if self.channel.is_some() {
            self.cq.req_notify(Notify::Any)?;
        }
        channel.synchronize()
    }

    fn connect_options(&self) -> ConnectOptions {
        let mut options = ConnectOptions::default().timeout(self.job.timeout).sl(self.job.service_level);
        if let Some(mtu) = self.job.mtu.and_then(Mtu::from_size) {
            options = options.path_mtu(mtu);
        }
        if self.job.outstanding > 0 {
            options = options.max_rd_atomic(self.job.outstanding);
        }
        options
    }

    /// Returns memory of the other end, at the same offset as here.
    fn remote(&self, offset: usize) -> Outcome<RemoteMemory> {
        let remote = self.remote.ok_or("the ends are not connected")?;
        Ok(remote.slice(offset..offset + self.size)?)
    }

    fn range(&self, start: usize, size: usize) -> Outcome<RegionRange<'_>> {
        Ok(self.memory.slice(start..start + size)?)
    }

    /// Returns the request for a queue pair's message of this number.
    #[inline]
    pub(crate) fn request(&self, pair: usize, number: u64) -> Outcome<SendRequest<'_>> {
        let (outgoing, incoming) = (self.layout.outgoing(pair, number), self.layout.incoming(pair, number));
        Ok(match self.job.operation {
            Operation::Send => self.send_request(pair, self.payload(pair, number)?),
            Operation::Write => SendRequest::write(self.payload(pair, number)?, self.remote(incoming)?),
            Operation::Read => SendRequest::read(self.range(incoming, self.size)?, self.remote(outgoing)?),
            Operation::Atomic => {
                let (result, counter) = (self.range(outgoing, self.size)?, self.layout.incoming(pair, 0));
                match self.job.atomic {
                    Atomic::FetchAndAdd => SendRequest::fetch_and_add(result, self.remote(counter)?, 1),
                    Atomic::CompareAndSwap => {
                        SendRequest::compare_and_swap(result, self.remote(counter)?, number, number + 1)
                    }
                }
            }
        })
    }

    fn payload(&self, pair: usize, number: u64) -> Outcome<Payload<'_>> {
        if self.is_inline() {
            let start = self.layout.offset_of(number);
            return Ok(Payload::inline(&self.outgoing[start..start + self.size]));
        }
        Ok(self.range(self.layout.outgoing(pair, number), self.size)?.into())
    }

    /// Returns a SEND of a payload.
    pub(crate) fn send_request<'a>(&'a self, pair: usize, payload: Payload<'a>) -> SendRequest<'a> {
        match self.destinations.get(pair) {
            Some((handle, qpn)) => SendRequest::send_to(payload, handle, *qpn, QKEY),
            None => SendRequest::send(payload),
        }
    }

    /// Returns a WRITE of a payload to the first message's offset.
    pub(crate) fn write_request<'a>(&self, payload: Payload<'a>) -> Outcome<SendRequest<'a>> {
        Ok(SendRequest::write(payload, self.remote(self.layout.incoming(0, 0))?))
    }

    pub(crate) fn is_inline(&self) -> bool {
        self.size <= self.job.inline_size as usize
    }

    /// Returns the receive for a queue pair's message of this number.
    #[inline]
    pub(crate) fn receive(&self, pair: usize, number: u64) -> Outcome<ReceiveRequest<'_>> {
        let header = self.layout.header;
        let start = self.layout.incoming(pair, number) - header;
        Ok(ReceiveRequest::new(self.range(start, header + self.size)?))
    }

    /// Returns the offset of a ping-pong's incoming message.
    pub(crate) fn inbox(&self) -> usize {
        self.layout.incoming(0, 0)
    }

    /// Returns the offset of a ping-pong's outgoing message.
    pub(crate) fn outbox(&self) -> usize {
        self.layout.outgoing(0, 0)
    }

    /// Polls completions; in event mode it sleeps for a while if there are none. Returns an error if one of them
    /// failed.
    #[inline]
    pub(crate) fn poll<'c>(&self, completions: &'c mut [Completion]) -> Outcome<&'c [Completion]> {
        let mut count = self.cq.poll(completions)?;
        if count == 0
            && let Some(channel) = &self.channel
        {
            // Completions that were queued between the poll and arming raise no event, so poll again.
            match channel.wait_event(EVENT_WITHIN) {
                Ok(_) => self.cq.req_notify(Notify::Any)?,
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                Err(error) => return Err(error.into()),
            }
            count = self.cq.poll(completions)?;
        }
        let completions = &completions[..count];
        match completions.iter().find(|completion| !completion.is_success()) {
            None => Ok(completions),
            Some(failed) => Err(self.explain(failed)),
        }
    }

    #[cold]
    fn explain(&self, failed: &Completion) -> Failure {
        let Err(error) = failed.result() else { return "a request failed".into() };
        let owner = self.queue_pairs.iter().find(|qp| qp.qpn() == failed.qpn());
        owner.map_or_else(|| error.to_string(), |qp| qp.explain(&error)).into()
    }

    /// Compares the received data with the other end's, for this many messages on each queue pair.
    pub(crate) fn check_stream(&self, messages: u64) -> Outcome {
        for pair in 0..self.queue_pairs.len() {
            for number in 0..messages.min(self.layout.slots as u64) {
                let (start, offset) = (self.layout.incoming(pair, number), self.layout.offset_of(number));
                let found = self.memory.to_vec(start..start + self.size)?;
                if found != self.outgoing[offset..offset + self.size] {
                    let message = format!("queue pair {pair} received wrong bytes at {start}");
                    return Err(message.into());
                }
            }
        }
        Ok(())
    }

    /// Checks that each counter that the other end adds to, or swaps upwards, has this value.
    pub(crate) fn check_counters(&self, expected: u64) -> Outcome {
        for pair in 0..self.queue_pairs.len() {
            let found = self.memory.load_acquire_u64(self.layout.incoming(pair, 0))?;
            if found != expected {
                return Err(format!("the counter of queue pair {pair} is {found} instead of {expected}").into());
            }
        }
        Ok(())
    }
}

/// Checks now and then whether an end should continue to wait.
#[derive(Default)]
pub(crate) struct WaitGuard {
    polls: u32,
    since: Option<Instant>,
    peer_seen: Option<Instant>,
}

impl WaitGuard {
    /// Counts an empty poll. Returns whether the other process has sent a value meanwhile.
    #[inline]
    pub(crate) fn note_empty_poll(&mut self, end: &End, channel: &Channel) -> Outcome<bool> {
        self.polls += 1;
        if self.polls < POLLS_PER_CHECK && end.channel.is_none() { Ok(false) } else { self.check(end, channel) }
    }

    /// Returns the duration of the silence, since it was first checked.
    pub(crate) fn waited(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    #[cold]
    fn check(&mut self, end: &End, channel: &Channel) -> Outcome<bool> {
        self.polls = 0;
        check_interrupted()?;
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        if end.job.service != Service::Reliable && waited > LOST_AFTER {
            let message = format!("no message for {LOST_AFTER:?}: one was lost, and only RC retransmits");
            return Err(message.into());
        }
        if self.peer_seen.is_some_and(|seen| seen.elapsed() < PEER_EVERY) {
            return Ok(false);
        }
        self.peer_seen = Some(Instant::now());
        channel.has_message()
    }
}

fn create_queue_pair(job: &Job, pd: &ProtectionDomain, cq: &CompletionQueue, device: &Device) -> Outcome<QueuePair> {
    let qp_type = match job.service {
        Service::Reliable => QueuePairType::ReliableConnection,
        Service::Unreliable => QueuePairType::UnreliableConnection,
        Service::Datagram => QueuePairType::UnreliableDatagram,
    };
    let max_recv_wr = if job.operation == Operation::Send { job.rx_depth } else { 1 };
    let options =
        QueuePairOptions::default().qp_type(qp_type).qkey(QKEY).max_send_wr(job.tx_depth).max_recv_wr(max_recv_wr);
    let options = options.max_send_sge(1).max_recv_sge(1).max_inline_data(job.inline_size);
    let qp = pd.create_qp_with(cq, cq, &options.port_num(device.port_num).gid_index(device.gid_index))?;
    qp.init()?;
    Ok(qp)
}

fn check_datagram_size(size: usize, job: &Job, device: &Device) -> Outcome {
    let mtu = device.context.query_port(device.port_num)?.active_mtu;
    if job.service == Service::Datagram && size > mtu.bytes() as usize {
        return Err(Failure::Usage(format!("-s is {size}; a datagram has at most the port's MTU, {mtu}")));
    }
    Ok(())
}

/// Registers the regions that are never used.
fn idle_regions(job: &Job, pd: &ProtectionDomain) -> Outcome<Vec<MemoryRegion>> {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
    let register = |_| Ok(pd.reg_mr(vec![0; ALIGNMENT], access).map_err(verbs::Error::from)?);
    (0..job.idle_regions).map(register).collect()
}

fn open_device(name: Option<&str>, sharing: Option<Sharing>) -> Outcome<Context> {
    let devices = verbs::devices()?;
    let usual = devices.iter().find(|device| device.name() != "soft_lo").or(devices.first());
    match (name, sharing) {
        (Some(name), None) => Ok(verbs::open(name)?),
        (None, None) => Ok(usual.ok_or("there is no device")?.open()?),
        (name, Some(sharing)) => {
            let name = name.or(usual.map(verbs::Device::name)).ok_or("there is no device")?;
            Ok(verbs::open_soft(name, &SoftOptions::new().shared_memory(sharing.setting()))?)
        }
    }
}

fn first_gid(context: &Context, port_num: u8) -> Outcome<u8> {
    let table = context.gid_table(port_num)?;
    let entry = table.iter().find(|entry| entry.gid.to_ip().is_ipv4()).or(table.first());
    Ok(entry.ok_or("the device has no GID")?.gid_index)
}
