//! Safe programs that drop, forget, panic, clone and forge in random order over the owned tier, alongside verbs-tier
//! queue pairs of the same device that choose every number the owned tier might use.
//!
//! The invariants: a buffer comes back at most once, and while the application holds it, nothing else changes it.
//! `RDMA_VERBS_ATTACK_ROUNDS=2000 cargo test --release --test alone hold_owned` runs the long form, also under a
//! sanitizer; `RDMA_VERBS_ATTACK_SEED=7` replays one round.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rdma_verbs::owned::{
    Buffer, BufferPool, CompletionQueue, Finished, QueuePair, QueuePairOptions, Refused, Request, RequestBuffer,
    SharedReceiveQueue,
};
use rdma_verbs::verbs::{
    self, AccessFlags, Completion, ConnectOptions, Context, MemoryRegion, Payload, ProtectionDomain, ReceiveRequest,
    RegionList, RemoteMemory, SendRequest,
};
use support::process::alone;

const ROUNDS: u64 = 300;
const STEPS: usize = 150;
const QUEUE_PAIRS: usize = 6;
const HELD: usize = 24;
/// The byte of all messages and peers' writes; buffers that the application holds never contain it.
const FOREIGN: u8 = 0xee;
const BYTES: usize = 128;

/// A buffer that the application holds, and its fill byte.
struct Held {
    buffer: Buffer,
    fill: u8,
}

struct Program {
    random: SmallRng,
    pd: ProtectionDomain,
    pool: BufferPool,
    queues: Vec<CompletionQueue>,
    shared: Vec<SharedReceiveQueue>,
    owned: Vec<QueuePair>,
    /// The attacker's queue pairs, of the verbs tier, and their completion queue.
    forgers: Vec<verbs::QueuePair>,
    heard: verbs::CompletionQueue,
    target: MemoryRegion,
    held: Vec<Held>,
    /// Numbers of requests whose buffers have not come back.
    posted: HashSet<u64>,
    next: u64,
    tally: Tally,
    /// Forgotten queue pairs go on sending for ever and slow later rounds down.
    may_forget: bool,
}

/// Counts of the programs' actions, to verify that they acted.
#[derive(Default, Debug)]
struct Tally {
    returned: u64,
    messages: u64,
    failed: u64,
    forged: usize,
}

impl Program {
    fn new(context: &Context, seed: u64) -> Self {
        let pd = context.alloc_pd().unwrap();
        Self {
            random: SmallRng::seed_from_u64(seed),
            pool: BufferPool::new(&pd, 4 << 20).unwrap(),
            queues: (0..2).map(|_| CompletionQueue::new(context, 4096).unwrap()).collect(),
            shared: Vec::new(),
            owned: Vec::new(),
            forgers: Vec::new(),
            heard: context.create_cq(4096).unwrap(),
            target: pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE).unwrap(),
            held: Vec::new(),
            posted: HashSet::new(),
            next: 0,
            tally: Tally::default(),
            may_forget: seed.is_multiple_of(16),
            pd,
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    fn pick(&mut self, count: usize) -> Option<usize> {
        (count > 0).then(|| self.random.random_range(0..count))
    }

    /// Fills a buffer again and adds it to those that the application holds.
    fn hold(&mut self, mut buffer: Buffer) {
        let fill = self.random.random_range(0..FOREIGN);
        buffer.capacity_mut().fill(fill);
        buffer.set_len(buffer.capacity());
        self.held.push(Held { buffer, fill });
        if self.held.len() > HELD {
            let index = self.random.random_range(0..self.held.len());
            let held = self.held.swap_remove(index);
            held.check();
            if self.chance(3) {
                std::mem::forget(held);
            }
        }
    }

    fn buffer(&mut self) -> Option<Buffer> {
        let reused = self.pick(self.held.len()).filter(|_| self.chance(50));
        match reused {
            Some(index) => {
                let held = self.held.swap_remove(index);
                held.check();
                Some(held.buffer)
            }
            None if self.chance(80) => self.pool.take(BYTES).ok(),
            None => Buffer::from_vec(&self.pd, vec![1; BYTES]).ok(),
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.posted.insert(self.next);
        self.next
    }

    /// Handles a finished request, however it came back.
    fn returned(&mut self, finished: Finished) {
        assert!(self.posted.remove(&finished.wr_id()), "request {} came back twice", finished.wr_id());
        let received = match finished.result() {
            Ok(Some(success)) if finished.is_receive() => success.byte_len as usize,
            _ => 0,
        };
        self.tally.returned += 1;
        self.tally.messages += u64::from(received > 0);
        self.tally.failed += u64::from(finished.result().is_err());
        match self.random.random_range(0..20) {
            0 => std::mem::forget(finished),
            1 => drop(finished),
            _ => {
                let RequestBuffer::Buffer(buffer) = finished.into_request_buffer() else {
                    unreachable!("only buffers are posted")
                };
                // Only messages and peers' writes arrive.
                assert!(buffer[..received.min(buffer.len())].iter().all(|byte| *byte == FOREIGN), "{buffer:?}");
                self.hold(buffer);
            }
        }
    }

    fn refused(&mut self, number: u64, buffer: RequestBuffer) {
        assert!(self.posted.remove(&number));
        if let RequestBuffer::Buffer(buffer) = buffer {
            self.hold(buffer);
        }
    }

    fn poll(&mut self) {
        let Some(index) = self.pick(self.queues.len()) else { return };
        let queue = self.queues[index].clone();
        for _ in 0..self.random.random_range(1..24) {
            // An overflow ends the queue pairs, which return their buffers later.
            let Ok(Some(finished)) = queue.poll() else { break };
            self.returned(finished);
        }
    }

    /// Makes a queue pair of this tier, connected to itself or to a forger, so that both send to each other.
    fn make(&mut self) {
        if self.owned.len() == QUEUE_PAIRS {
            return;
        }
        let [send, receive] = [0; 2].map(|_| self.random.random_range(0..self.queues.len()));
        let (send, receive) = (self.queues[send].clone(), self.queues[receive].clone());
        let depth = self.random.random_range(1..24);
        let srq = self.pick(self.shared.len()).filter(|_| self.chance(40)).map(|index| self.shared[index].clone());
        let mut options = QueuePairOptions::default().max_send_wr(depth).max_recv_wr(depth);
        if let Some(srq) = &srq {
            options = options.srq(srq);
        }
        if self.chance(10) {
            let _ = QueuePair::with_options(&self.pd, &send, &receive, &options.clone().max_recv_wr(2));
        }
        let made = QueuePair::with_options(&self.pd, &send, &receive, &options);
        let Ok(qp) = made else { return };
        let options = ConnectOptions::default().rnr_retry(7);
        let peer = self.pick(self.forgers.len()).filter(|_| self.chance(50));
        match peer.map(|index| &self.forgers[index]) {
            Some(forger) if forger.reset().is_ok() => {
                let _ = forger.connect_with(&qp.connection_info().unwrap(), &options);
                let _ = qp.connect_with(&forger.connection_info().unwrap(), &options);
            }
            _ => qp.connect_with(&qp.connection_info().unwrap(), &options).unwrap(),
        }
        self.owned.push(qp);
    }

    fn make_forger(&mut self) {
        if self.forgers.len() < 2 {
            let qp = self.pd.create_qp(&self.heard, &self.heard).unwrap();
            qp.connect(&qp.connection_info().unwrap()).unwrap();
            self.forgers.push(qp);
        }
    }

    fn post_receive(&mut self) {
        let Some(buffer) = self.buffer() else { return };
        let number = self.number();
        let refused = match self.pick(self.shared.len()).filter(|_| self.chance(40)) {
            Some(index) => self.shared[index].post_recv(buffer, number).err(),
            None => match self.pick(self.owned.len()) {
                Some(index) => self.owned[index].post_recv(buffer, number).err(),
                None => return self.refused(number, buffer.into()),
            },
        };
        if let Some(Refused { given, .. }) = refused {
            self.refused(number, given);
        }
    }

    fn post_send(&mut self) {
        let (Some(index), Some(mut buffer)) = (self.pick(self.owned.len()), self.buffer()) else { return };
        let len = self.random.random_range(0..=buffer.capacity());
        buffer.capacity_mut().fill(FOREIGN);
        buffer.set_len(len);
        let number = self.number();
        let remote = self.target.remote();
        let mut request = match self.random.random_range(0..24) {
            0..4 => Request::write(buffer, remote),
            4..8 => Request::read(buffer, remote.slice(..8).unwrap()),
            8 => Request::write(buffer, self.guess()),
            _ => Request::send(buffer),
        };
        request = request.wr_id(number);
        if self.chance(60) {
            request = request.signaled();
        }
        if let Err(Refused { given, .. }) = self.owned[index].post_send(request) {
            self.refused(number, given.into_request_buffer());
        }
    }

    /// Guesses the memory of a buffer that the application holds, with a forged key: buffers grant no remote access.
    fn guess(&mut self) -> RemoteMemory {
        let address = match self.pick(self.held.len()) {
            Some(index) => self.held[index].buffer.as_ptr().addr() as u64,
            None => 0,
        };
        let mut bytes = self.target.remote().to_bytes();
        bytes[..8].copy_from_slice(&address.to_be_bytes());
        bytes[8] ^= self.random.random_range(0..2u8);
        RemoteMemory::from_bytes(bytes)
    }

    /// Forges completions with any number that a request of the owned tier might have, and messages and WRITEs to its
    /// queue pairs.
    fn forge(&mut self) {
        let Some(index) = self.pick(self.forgers.len()) else { return };
        for _ in 0..self.random.random_range(1..8) {
            let half = [0, 1, 2, 1 << 31][self.random.random_range(0..4)];
            let wr_id = half << 32 | self.random.random_range(0..8u64);
            let guess = self.guess();
            let (forger, bytes) = (&self.forgers[index], [FOREIGN; 16]);
            let _ = forger.post_recv(&[ReceiveRequest::new(RegionList::EMPTY).wr_id(wr_id)]);
            let _ = match self.random.random_range(0..20) {
                0 => forger.post_send(&[SendRequest::write(Payload::inline(&bytes), guess).wr_id(wr_id).signaled()]),
                _ => forger.post_send(&[SendRequest::send(Payload::inline(&bytes)).wr_id(wr_id).signaled()]),
            };
        }
        let mut completions = [Completion::default(); 16];
        self.tally.forged += self.heard.poll(&mut completions).unwrap_or(0);
    }

    /// Ends a queue pair in a random way.
    fn end(&mut self) {
        let Some(index) = self.pick(self.owned.len()) else { return };
        let action = self.random.random_range(0..12);
        if action < 4 {
            let returned = self.owned[index].reset().unwrap();
            returned.into_iter().for_each(|finished| self.returned(finished));
            let qp = &self.owned[index];
            qp.connect(&qp.connection_info().unwrap()).unwrap();
            return;
        }
        let qp = self.owned.swap_remove(index);
        match action {
            4..7 => qp.destroy().unwrap().into_iter().for_each(|finished| self.returned(finished)),
            7 if self.may_forget => std::mem::forget(qp),
            8 | 9 => {
                let ended = catch_unwind(AssertUnwindSafe(|| {
                    let _qp = qp;
                    resume_unwind(Box::new("while a queue pair is in hand"));
                }));
                assert!(ended.is_err());
            }
            _ => drop(qp),
        }
    }

    fn step(&mut self, context: &Context) {
        match self.random.random_range(0..100) {
            0..6 => self.make(),
            6..8 => self.make_forger(),
            8..10 if self.shared.len() < 2 => self.shared.push(SharedReceiveQueue::new(&self.pd, 8).unwrap()),
            10 => {
                // Either its queue pairs keep it alive, or it returns its receives.
                if let Some(index) = self.pick(self.shared.len()) {
                    let srq = self.shared.swap_remove(index);
                    let returned = srq.destroy().unwrap_or_default();
                    returned.into_iter().for_each(|finished| self.returned(finished));
                }
            }
            11 => {
                // Queue pairs keep their completion queue alive, even if the handle is dropped.
                let index = self.random.random_range(0..self.queues.len());
                self.queues[index] = CompletionQueue::new(context, 4096).unwrap();
            }
            12 => drop(self.pool.clone()),
            13 => self.forgers.clear(),
            14..17 => self.end(),
            17..45 => self.post_receive(),
            45..65 => self.post_send(),
            65..75 => self.forge(),
            _ => self.poll(),
        }
        if let Some(index) = self.pick(self.held.len()) {
            self.held[index].check();
        }
    }

    /// Drops everything in random order and checks the held buffers in between.
    fn finish(mut self) -> Tally {
        for _ in 0..8 {
            match self.random.random_range(0..4) {
                0 => self.owned.clear(),
                1 => self.queues.clear(),
                2 => self.shared.clear(),
                _ => self.forgers.clear(),
            }
            self.held.iter().for_each(Held::check);
        }
        drop((self.owned, self.queues, self.shared, self.forgers));
        self.held.iter().for_each(Held::check);
        self.tally
    }
}

impl Held {
    /// Checks that nothing else writes a buffer while the application holds it, because the compiler may rely on that.
    fn check(&self) {
        let filled = std::hint::black_box(&*self.buffer);
        assert!(filled.iter().all(|byte| *byte == self.fill), "bytes changed in the application's hand: {filled:?}");
    }
}

#[test]
fn safe_programs_cannot_access_memory_in_flight() {
    alone(|| {
        let setting = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
        let rounds = match setting("RDMA_VERBS_ATTACK_SEED") {
            Some(seed) => seed..seed + 1,
            None => 0..setting("RDMA_VERBS_ATTACK_ROUNDS").unwrap_or(ROUNDS),
        };
        let context = verbs::open("soft:127.90.10.1").unwrap();
        let mut all = Tally::default();
        for seed in rounds.clone() {
            let played = catch_unwind(AssertUnwindSafe(|| {
                let mut program = Program::new(&context, seed);
                (0..STEPS).for_each(|_| program.step(&context));
                program.finish()
            }));
            match played {
                Ok(Tally { returned, messages, failed, forged }) => {
                    all.returned += returned;
                    all.messages += messages;
                    all.failed += failed;
                    all.forged += forged;
                }
                Err(panic) => {
                    println!("replay with RDMA_VERBS_ATTACK_SEED={seed} cargo test --test alone hold_owned");
                    resume_unwind(panic);
                }
            }
        }
        println!("{} rounds: {all:?}", rounds.count());
        assert!(all.returned > 0 && all.messages > 0 && all.failed > 0 && all.forged > 0, "an idle attack: {all:?}");
    });
}
