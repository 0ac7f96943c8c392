//! Traffic between two devices of this process, for tests that count its cost. One thread drives both ends, so no
//! thread waits for a processor, and the counts depend little on other load.

use std::cell::Cell;
use std::time::Instant;

use rdma_verbs::verbs::{
    self, AccessFlags, Completion, CompletionOpcode, CompletionQueue, Context, Counter, MemoryRegion, QueuePair,
    ReceiveRequest, SendRequest, SharedMemory, SoftOptions,
};
use support::PATIENCE;

/// Number of requests in a batch.
pub(crate) const BATCH: usize = 16;
/// Bytes of a small message.
pub(crate) const SMALL: usize = 8;
/// Bytes of the largest message.
const LARGEST: usize = 1 << 20;
/// Bytes of large messages in flight together, if a message is not longer. One call of one end takes as long as the
/// bytes in flight need, and an end that is not polled for 400 µs is served by its device's thread, too.
const IN_FLIGHT: usize = 512 << 10;

/// One end of the connection.
pub(crate) struct End {
    pub(crate) context: Context,
    qp: QueuePair,
    cq: CompletionQueue,
    /// The large messages come first, then the incoming small ones, then the outgoing ones.
    mr: MemoryRegion,
    /// Signaled sends whose completions have not been polled.
    sends: Cell<usize>,
}

/// Offset of the incoming small messages.
const ARRIVING: usize = LARGEST;
/// Offset of the outgoing small messages.
const LEAVING: usize = ARRIVING + BATCH * SMALL;
const REGION: usize = LEAVING + BATCH * SMALL;

impl End {
    fn open(address: &str, shared_memory: SharedMemory) -> Self {
        let options = SoftOptions::new().shared_memory(shared_memory);
        let context = verbs::open_soft(&format!("soft:{address}"), &options).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(256).unwrap());
        let qp = pd.create_qp(&cq, &cq).unwrap();
        let mr = pd.alloc_mr(REGION, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE).unwrap();
        Self { context, qp, cq, mr, sends: Cell::new(0) }
    }

    fn post_receive(&self, slot: usize) {
        let offset = ARRIVING + slot * SMALL;
        self.qp.post_recv(&[ReceiveRequest::new(self.mr.slice(offset..offset + SMALL).unwrap())]).unwrap();
    }

    fn small(&self, slot: usize, is_signaled: bool) -> SendRequest<'_> {
        let offset = LEAVING + slot * SMALL;
        let request = SendRequest::send(self.mr.slice(offset..offset + SMALL).unwrap());
        if is_signaled { self.signaled(request) } else { request }
    }

    fn signaled<'a>(&self, request: SendRequest<'a>) -> SendRequest<'a> {
        self.sends.set(self.sends.get() + 1);
        request.signaled()
    }

    /// Polls once; returns the number of receives among the completions.
    pub(crate) fn poll(&self) -> usize {
        let mut out = [Completion::default(); BATCH];
        let count = self.cq.poll(&mut out).unwrap();
        let is_receive = |done: &&Completion| done.result().unwrap().opcode == CompletionOpcode::Receive;
        let receives = out[..count].iter().filter(is_receive).count();
        self.sends.set(self.sends.get() - (count - receives));
        receives
    }

    fn wait_receives(&self, count: usize) {
        let (mut received, start) = (0, Instant::now());
        while received < count {
            received += self.poll();
            assert!(start.elapsed() < PATIENCE, "{received} of {count} came: {}", self.qp.explain_state());
        }
        assert_eq!(received, count);
    }

    fn word_at(&self, offset: usize) -> [u8; SMALL] {
        let mut word = [0; SMALL];
        self.mr.read_at(offset, &mut word).unwrap();
        word
    }

    fn arrived(&self) -> [u8; SMALL] {
        self.word_at(ARRIVING)
    }

    /// Copies the last incoming message to the outgoing ones.
    fn reply(&self) {
        self.mr.write_at(LEAVING, &self.arrived()).unwrap();
    }
}

/// Two ends that are connected to each other.
pub(crate) struct Ends(pub(crate) [End; 2]);

/// Returns how often a device has probed for a packet or repeated one.
pub(crate) fn repairs(context: &Context) -> u64 {
    let repairs = [Counter::TailProbe, Counter::LocalAckTimeout, Counter::RetransmittedPackets, Counter::ReadRepair];
    let counters = context.counters();
    repairs.map(|counter| counters.get(counter)).iter().sum()
}

impl Ends {
    /// Connects two ends on these addresses, whose devices share memory or not.
    pub(crate) fn connect(addresses: [&str; 2], shared_memory: SharedMemory) -> Self {
        let ends = addresses.map(|address| End::open(address, shared_memory));
        ends[0].qp.connect(&ends[1].qp.connection_info().unwrap()).unwrap();
        ends[1].qp.connect(&ends[0].qp.connection_info().unwrap()).unwrap();
        Self(ends)
    }

    /// Returns how often the two devices have probed for a packet or repeated one.
    pub(crate) fn repairs(&self) -> u64 {
        self.0.iter().map(|end| repairs(&end.context)).sum()
    }

    /// Sends a small message there and one back in each round. The sends of one round in `signal_every` are signaled.
    pub(crate) fn ping_pong(&self, rounds: usize, signal_every: usize) {
        let [near, far] = &self.0;
        for round in 0..rounds {
            let number = (round as u64).to_le_bytes();
            near.mr.write_at(LEAVING, &number).unwrap();
            near.post_receive(0);
            far.post_receive(0);
            let is_signaled = round % signal_every == 0;
            near.qp.post_send(&[near.small(0, is_signaled)]).unwrap();
            far.wait_receives(1);
            far.reply();
            far.qp.post_send(&[far.small(0, is_signaled)]).unwrap();
            near.wait_receives(1);
            assert_eq!(near.arrived(), number);
        }
        self.wait_sent(0);
    }

    /// Sends batches of small messages from the first end to the second.
    pub(crate) fn batches(&self, batches: usize) {
        let [near, far] = &self.0;
        for batch in 0..batches {
            let number = (batch as u64).to_le_bytes();
            near.mr.write_at(LEAVING, &number).unwrap();
            (0..BATCH).for_each(|slot| far.post_receive(slot));
            let mut requests = near.qp.send_batch().unwrap();
            for slot in 0..BATCH {
                requests.push(&near.small(slot, slot + 1 == BATCH)).unwrap();
            }
            requests.post().unwrap();
            far.wait_receives(BATCH);
            self.wait_sent(0);
            assert_eq!(far.arrived(), number);
        }
    }

    /// Writes `messages` messages of `bytes` bytes from the first end to the second.
    pub(crate) fn writes(&self, messages: usize, bytes: usize) {
        let [near, far] = &self.0;
        let number = (messages as u64).to_le_bytes();
        near.mr.write_at(bytes - SMALL, &number).unwrap();
        self.large(messages, bytes, SendRequest::write);
        assert_eq!(far.word_at(bytes - SMALL), number);
    }

    /// Reads `messages` messages of `bytes` bytes from the second end.
    pub(crate) fn reads(&self, messages: usize, bytes: usize) {
        let [near, far] = &self.0;
        let number = (!messages as u64).to_le_bytes();
        far.mr.write_at(bytes - SMALL, &number).unwrap();
        self.large(messages, bytes, SendRequest::read);
        assert_eq!(near.word_at(bytes - SMALL), number);
    }

    fn large<'a>(
        &'a self,
        messages: usize,
        bytes: usize,
        request: impl Fn(verbs::RegionRange<'a>, verbs::RemoteMemory) -> SendRequest<'a>,
    ) {
        let [near, far] = &self.0;
        let most = (IN_FLIGHT / bytes).max(1);
        for message in 0..messages {
            self.wait_sent(most - 1);
            let offset = message % most * bytes;
            let range = offset..offset + bytes;
            let remote = far.mr.remote().slice(range.clone()).unwrap();
            let request = near.signaled(request(near.mr.slice(range).unwrap(), remote));
            near.qp.post_send(&[request]).unwrap();
        }
        self.wait_sent(0);
    }

    /// Polls at both ends until each has at most `left` signaled sends outstanding.
    fn wait_sent(&self, left: usize) {
        let start = Instant::now();
        while self.0.iter().any(|end| end.sends.get() > left) {
            for end in &self.0 {
                assert_eq!(end.poll(), 0, "an unexpected receive");
                assert!(start.elapsed() < PATIENCE, "{} sends are left: {:?}", end.sends.get(), end.context.counters());
            }
        }
    }
}
