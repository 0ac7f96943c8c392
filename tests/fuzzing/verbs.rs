//! Any program of verbs, on two connected queue pairs of the software device, by one thread or one for each end: the
//! errors, the completions, their order and their bytes must match a short model.
//!
//! The input is a list of rounds. In each round both ends run their steps, concurrently if the round says so; then the
//! connection is drained through the error state, reset, or made again with other queue pairs.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdma_verbs::verbs::{
    self, AccessFlags, Completion, CompletionOpcode, CompletionQueue, CompletionStatus, ConnectOptions, Context,
    ErrorKind, MemoryRegion, Payload, ProtectionDomain, QueuePair, QueuePairAttributes, QueuePairOptions,
    QueuePairState, ReceiveRequest, RemoteMemory, Rkey, SendRequest,
};

const LARGEST_INPUT: usize = 1024;
const MOST_STEPS: usize = 24;
const PATIENCE: Duration = Duration::from_secs(20);
/// Length of each queue, and the number and length of slots for its bytes, so that none is in use twice at a time.
const QUEUE_DEPTH: usize = 8;
const SLOTS: usize = 16;
const SLOT_BYTES: usize = 64;
/// Offsets of the results of own requests, of the word that the peer writes, and of the peer's counter.
const RESULTS: usize = SLOTS * SLOT_BYTES;
const WRITTEN: usize = 2 * RESULTS;
const COUNTED: usize = WRITTEN + 8;
const REGION_BYTES: usize = COUNTED + 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Receive,
    Send { len: u8, signaled: bool },
    Write { signaled: bool },
    Read { signaled: bool },
    Add { signaled: bool },
    WrongKey,
    TooLong,
    Error,
    Poll,
}

fn step(byte: u8) -> Step {
    let signaled = byte & 0x80 != 0;
    match byte & 0x1f {
        0..=5 => Step::Receive,
        6..=12 => Step::Send { len: 4 + (byte >> 5) * 8, signaled },
        13..=16 => Step::Write { signaled },
        17..=19 => Step::Read { signaled },
        20..=22 => Step::Add { signaled },
        23 => Step::WrongKey,
        24 => Step::TooLong,
        25 => Step::Error,
        _ => Step::Poll,
    }
}

/// A posted send request and its expected result.
#[derive(Clone, Copy, Debug)]
struct Posted {
    wr_id: u64,
    /// Offset of its result.
    offset: usize,
    step: Step,
    /// The expected value of a READ or an atomic.
    finds: u64,
}

/// One end and its model.
struct End {
    qp: Option<QueuePair>,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    region: MemoryRegion,
    sends: VecDeque<Posted>,
    /// Their identifiers, and the offsets of their messages.
    receives: VecDeque<(u64, usize)>,
    next_wr_id: u64,
    sends_posted: usize,
    receives_posted: usize,
    next_sent: u32,
    next_received: u32,
    written: u64,
    counted: u64,
    has_failed: bool,
}

impl End {
    fn new(context: &Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64).unwrap();
        let region = pd.alloc_mr(REGION_BYTES, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE).unwrap();
        let (sends, receives) = (VecDeque::new(), VecDeque::new());
        let mut end = Self {
            qp: None,
            cq,
            pd,
            region,
            sends,
            receives,
            next_wr_id: 0,
            sends_posted: 0,
            receives_posted: 0,
            next_sent: 0,
            next_received: 0,
            written: 0,
            counted: 0,
            has_failed: false,
        };
        end.create();
        end
    }

    fn create(&mut self) {
        let slots = QUEUE_DEPTH as u32;
        let options = QueuePairOptions::default().max_send_wr(slots).max_recv_wr(slots);
        self.qp = Some(self.pd.create_qp_with(&self.cq, &self.cq, &options.max_inline_data(64)).unwrap());
    }

    fn qp(&self) -> &QueuePair {
        self.qp.as_ref().expect("one is there between the rounds")
    }

    /// Resets the model: nothing is posted, and nothing must complete.
    fn forget(&mut self) {
        assert_eq!(self.cq.poll(&mut [Completion::default(); 4]).unwrap(), 0, "completions went with their queue pair");
        self.sends.clear();
        self.receives.clear();
        (self.next_sent, self.next_received, self.written, self.counted) = (0, 0, 0, 0);
        self.has_failed = false;
        self.region.write_at(0, &[0; REGION_BYTES]).unwrap();
    }

    fn take(&mut self, step: Step, peer: RemoteMemory, trouble: &AtomicBool) {
        match step {
            Step::Receive => self.post_receive(),
            Step::Poll => self.poll(trouble),
            Step::Error => {
                trouble.store(true, Ordering::Release);
                let error = QueuePairAttributes::default().qp_state(QueuePairState::Error);
                self.qp().modify(&error).unwrap();
            }
            Step::TooLong => {
                let long = SendRequest::send(Payload::inline(&[0; 65]));
                let refused = self.qp().post_send(&[long, long]).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
            }
            step => self.post_send(step, peer, trouble),
        }
    }

    fn post_receive(&mut self) {
        if self.receives.len() == SLOTS {
            return;
        }
        let wr_id = self.next_wr_id;
        let offset = self.receives_posted % SLOTS * SLOT_BYTES;
        let into = self.region.slice(offset..offset + SLOT_BYTES).unwrap();
        match self.qp().post_recv(&[ReceiveRequest::new(into).wr_id(wr_id)]) {
            Ok(()) => {
                self.receives.push_back((wr_id, offset));
                self.receives_posted += 1;
                self.next_wr_id += 1;
            }
            // A slot becomes free when its message arrives, even if its completion has not been polled.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::QueueFull, "{error}");
                assert!(self.receives.len() >= QUEUE_DEPTH, "{} receives fill the queue", self.receives.len());
            }
        }
    }

    fn post_send(&mut self, step: Step, peer: RemoteMemory, trouble: &AtomicBool) {
        // A queue full of requests that succeed without completions would stay full forever.
        let step = if self.sends.len() + 1 == QUEUE_DEPTH { signaled(step) } else { step };
        let wr_id = self.next_wr_id;
        let offset = RESULTS + self.sends_posted % SLOTS * SLOT_BYTES;
        let result = self.region.slice(offset..offset + 8).unwrap();
        let (word, count) = (peer.slice(WRITTEN..COUNTED).unwrap(), peer.slice(COUNTED..).unwrap());
        let value = (self.written + 1).to_ne_bytes();
        let mut message = [self.next_sent as u8; 64];
        message[..4].copy_from_slice(&self.next_sent.to_be_bytes());
        let (request, signaled, finds) = match step {
            Step::Send { len, signaled } => {
                (SendRequest::send(Payload::inline(&message[..usize::from(len)])), signaled, 0)
            }
            // Without a fence a WRITE may pass the READs before it.
            Step::Write { signaled } => (SendRequest::write(Payload::inline(&value), word).fence(), signaled, 0),
            Step::Read { signaled } => (SendRequest::read(result, word), signaled, self.written),
            Step::Add { signaled } => (SendRequest::fetch_and_add(result, count, 1), signaled, self.counted),
            _ => {
                trouble.store(true, Ordering::Release);
                let nowhere = RemoteMemory::new(peer.addr(), Rkey(peer.rkey().0 ^ 0x5a5a_5a00), 8);
                (SendRequest::write(Payload::inline(&value), nowhere), false, 0)
            }
        };
        let request = if signaled { request.signaled() } else { request };
        let posted = self.qp().post_send(&[request.wr_id(wr_id)]);
        let is_full = self.sends.len() == QUEUE_DEPTH;
        assert_eq!(posted.is_err(), is_full, "{} slots are in use: {posted:?}", self.sends.len());
        if let Err(error) = posted {
            return assert_eq!(error.kind(), ErrorKind::QueueFull, "{error}");
        }
        self.next_wr_id += 1;
        self.sends_posted += 1;
        self.sends.push_back(Posted { wr_id, offset, step, finds });
        match step {
            Step::Send { .. } => self.next_sent += 1,
            Step::Write { .. } => self.written += 1,
            Step::Add { .. } => self.counted += 1,
            _ => {}
        }
    }

    fn poll(&mut self, trouble: &AtomicBool) {
        let mut out = [Completion::default(); 4];
        let count = self.cq.poll(&mut out).unwrap();
        out[..count].iter().for_each(|completion| self.check(completion, trouble));
    }

    fn check(&mut self, completion: &Completion, trouble: &AtomicBool) {
        assert_eq!(completion.qpn(), self.qp().qpn());
        assert!(completion.is_success() || trouble.load(Ordering::Acquire), "{completion:?}");
        if let Some(&(wr_id, offset)) = self.receives.front()
            && wr_id == completion.wr_id()
        {
            self.receives.pop_front();
            return self.check_receive(completion, offset);
        }
        loop {
            let posted =
                self.sends.pop_front().unwrap_or_else(|| panic!("never posted, or done twice: {completion:?}"));
            if posted.wr_id == completion.wr_id() {
                return self.check_send(&posted, completion);
            }
            assert!(!is_signaled(posted.step) && !self.has_failed, "{posted:?} is left out before {completion:?}");
        }
    }

    fn check_receive(&mut self, completion: &Completion, offset: usize) {
        let Ok(success) = completion.result() else {
            return assert_eq!(completion.status(), CompletionStatus::WorkRequestFlushedError, "{completion:?}");
        };
        let bytes = self.region.to_vec(offset..offset + success.byte_len as usize).unwrap();
        let number = self.next_received;
        assert_eq!((success.opcode, success.immediate), (CompletionOpcode::Receive, None));
        assert_eq!(bytes[..4], number.to_be_bytes(), "messages come in order, each once");
        assert!(bytes[4..].iter().all(|byte| *byte == number as u8), "message {number}: {bytes:?}");
        self.next_received += 1;
    }

    fn check_send(&mut self, posted: &Posted, completion: &Completion) {
        let status = completion.status();
        if !completion.is_success() {
            let first = [CompletionStatus::RemoteAccessError, CompletionStatus::RetryExceededError];
            let is_first = !self.has_failed && first.contains(&status);
            assert!(status == CompletionStatus::WorkRequestFlushedError || is_first, "{completion:?}");
            assert!(status != CompletionStatus::RemoteAccessError || posted.step == Step::WrongKey, "{completion:?}");
            self.has_failed = true;
            return;
        }
        assert!(!self.has_failed && is_signaled(posted.step), "{completion:?} of {posted:?}");
        let found = self.region.load_acquire_u64(posted.offset).unwrap();
        let expected = match posted.step {
            Step::Send { .. } => CompletionOpcode::Send,
            Step::Write { .. } => CompletionOpcode::Write,
            Step::Read { .. } => CompletionOpcode::Read,
            _ => CompletionOpcode::FetchAndAdd,
        };
        assert_eq!(completion.result().unwrap().opcode, expected);
        if matches!(posted.step, Step::Read { .. } | Step::Add { .. }) {
            assert_eq!(found, posted.finds, "{posted:?}");
        }
    }

    /// Drains the queues through the error state: every posted request completes, each once.
    fn drain(&mut self, peer: RemoteMemory, trouble: &AtomicBool) {
        let start = Instant::now();
        self.take(Step::Error, peer, trouble);
        for marker in [Step::Receive, Step::Write { signaled: true }] {
            let posted = self.next_wr_id;
            while self.next_wr_id == posted {
                assert!(start.elapsed() < PATIENCE, "the queues stay full: {}", self.qp().explain_state());
                self.take(marker, peer, trouble);
                self.poll(trouble);
            }
        }
        while !(self.sends.is_empty() && self.receives.is_empty()) {
            assert!(start.elapsed() < PATIENCE, "{:?}, {:?} never complete", self.sends, self.receives);
            self.poll(trouble);
        }
        assert_eq!(self.cq.poll(&mut [Completion::default()]).unwrap(), 0, "all has completed");
    }
}

/// Returns the same step, with a completion on success.
fn signaled(step: Step) -> Step {
    match step {
        Step::Send { len, .. } => Step::Send { len, signaled: true },
        Step::Write { .. } => Step::Write { signaled: true },
        Step::Read { .. } => Step::Read { signaled: true },
        Step::Add { .. } => Step::Add { signaled: true },
        other => other,
    }
}

fn is_signaled(step: Step) -> bool {
    match step {
        Step::Send { signaled, .. } | Step::Write { signaled } | Step::Read { signaled } | Step::Add { signaled } => {
            signaled
        }
        _ => false,
    }
}

fn connect(ends: &[End; 2]) {
    let infos = [0, 1].map(|at| ends[at].qp().connection_info().unwrap());
    let options = ConnectOptions::default().timeout(13).rnr_retry(7).min_rnr_timer(1);
    (0..2).for_each(|at| ends[at].qp().connect_with(&infos[1 - at], &options).unwrap());
}

/// Runs the steps of both ends.
fn play(ends: &mut [End; 2], steps: [&[u8]; 2], at_once: bool, trouble: &AtomicBool) {
    let peers = [ends[1].region.remote(), ends[0].region.remote()];
    if at_once {
        std::thread::scope(|scope| {
            for ((end, steps), peer) in ends.iter_mut().zip(steps).zip(peers) {
                scope.spawn(move || steps.iter().for_each(|byte| end.take(step(*byte), peer, trouble)));
            }
        });
        return;
    }
    for at in 0..steps[0].len().max(steps[1].len()) {
        for (number, end) in ends.iter_mut().enumerate() {
            if let Some(byte) = steps[number].get(at) {
                end.take(step(*byte), peers[number], trouble);
            }
        }
    }
}

/// Runs the target.
pub(crate) fn run(bytes: &[u8]) {
    static DEVICES: OnceLock<[Context; 2]> = OnceLock::new();
    let names = ["soft:127.35.0.1", "soft:127.35.0.2"];
    let devices = DEVICES.get_or_init(|| names.map(|name| verbs::open(name).unwrap()));
    let mut ends = [0, 1].map(|at| End::new(&devices[at]));
    let mut rest = &bytes[..bytes.len().min(LARGEST_INPUT)];
    while let Some((&head, after)) = rest.split_first() {
        connect(&ends);
        let trouble = AtomicBool::new(false);
        let (left, after) = after.split_at(after.len().min(usize::from(head & 0x1f).min(MOST_STEPS)));
        let (right, after) = after.split_at(after.len().min(left.len()));
        rest = after;
        play(&mut ends, [left, right], head & 0x20 != 0, &trouble);
        match head >> 6 {
            0 | 1 => {
                let peers = [ends[1].region.remote(), ends[0].region.remote()];
                ends.iter_mut().zip(peers).for_each(|(end, peer)| end.drain(peer, &trouble));
                ends.iter_mut().for_each(|end| end.qp().reset().unwrap());
            }
            2 => ends.iter_mut().for_each(|end| end.qp().reset().unwrap()),
            _ => {
                ends.iter_mut().for_each(|end| end.qp = None);
                ends.iter_mut().for_each(End::create);
            }
        }
        ends.iter_mut().for_each(End::forget);
    }
}
