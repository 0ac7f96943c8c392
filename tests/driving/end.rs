//! One end of a connection, and the exchanges that it makes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::{
    self, AccessFlags, Completion, CompletionChannel, CompletionQueue, CompletionQueueOptions, ConnectionInfo, Context,
    MemoryRegion, Notify, Payload, QueuePair, QueuePairOptions, ReceiveRequest, RemoteMemory, SendRequest,
};

use super::Outcome;

const RECEIVES: usize = 32;
/// Identifiers of receives and of the other requests.
const RECEIVE: u64 = 0;
const REQUEST: u64 = 1;
/// Looks at the memory between two checks whether to stop.
const LOOKS: u32 = 1_024;
/// Writes between which [`End::post_and_compute`] takes no completion.
const POSTS: u64 = 32;
const WORD: usize = 8;

pub(super) struct End {
    _context: Context,
    channel: CompletionChannel,
    pub(super) cq: CompletionQueue,
    pub(super) qp: QueuePair,
    pub(super) region: MemoryRegion,
}

impl End {
    pub(super) fn open(address: &str) -> Outcome<Self> {
        let context = verbs::open(address)?;
        let (pd, channel) = (context.alloc_pd()?, context.create_comp_channel()?);
        let cq = context.create_cq_with(512, &CompletionQueueOptions::default().channel(&channel, 0))?;
        let qp = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().max_inline_data(WORD as u32))?;
        let region = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE)?;
        Ok(Self { _context: context, channel, cq, qp, region })
    }

    pub(super) fn connect(&self, peer: &ConnectionInfo) -> Outcome {
        self.qp.connect(peer)?;
        (0..RECEIVES).try_for_each(|_| self.receive())
    }

    fn receive(&self) -> Outcome {
        Ok(self.qp.post_recv(&[ReceiveRequest::new(&self.region).wr_id(RECEIVE)])?)
    }

    fn send(&self) -> Outcome {
        Ok(self.qp.post_send(&[SendRequest::send(Payload::inline(&[7; WORD])).signaled().wr_id(REQUEST)])?)
    }

    /// Writes a word to the memory of the other end.
    pub(super) fn write(&self, word: u64, remote: RemoteMemory) -> Outcome {
        let bytes = word.to_le_bytes();
        let request = SendRequest::write(Payload::inline(&bytes), remote.slice(..WORD)?);
        Ok(self.qp.post_send(&[request.signaled().wr_id(REQUEST)])?)
    }

    /// Takes the completions that wait. Returns whether messages were among them; their receives are posted again.
    fn take(&self) -> Outcome<bool> {
        let mut completions = [Completion::default(); 16];
        let count = self.cq.poll(&mut completions)?;
        let received = completions[..count].iter().filter(|completion| completion.wr_id() == RECEIVE).count();
        (0..received).try_for_each(|_| self.receive())?;
        Ok(received > 0)
    }

    fn poll_message(&self, stop: &AtomicBool) -> Outcome {
        while !self.take()? && !stop.load(Ordering::Relaxed) {}
        Ok(())
    }

    fn sleep_for_message(&self, stop: &AtomicBool) -> Outcome {
        loop {
            self.cq.req_notify(Notify::Any)?;
            if self.take()? || stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            // A late end of the wait is another reason to look.
            let _ = self.channel.wait_event(Duration::from_millis(100));
        }
    }

    /// Spins until the other end has written this word, without a verb.
    fn wait_for_word(&self, word: u64, stop: &AtomicBool) -> Outcome {
        let mut bytes = [0; WORD];
        for look in 1_u32.. {
            self.region.read_at(0, &mut bytes)?;
            let is_checked = look.is_multiple_of(LOOKS);
            if u64::from_le_bytes(bytes) >= word || is_checked && stop.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(())
    }

    fn complete(&self) -> Outcome {
        let mut completion = [Completion::default()];
        while self.cq.poll(&mut completion)? == 0 {}
        completion[0].result()?;
        Ok(())
    }

    pub(super) fn ask(&self, _: RemoteMemory, _: u64, stop: &AtomicBool) -> Outcome {
        self.send()?;
        self.poll_message(stop)
    }

    pub(super) fn answer(&self, _: RemoteMemory, _: u64, stop: &AtomicBool) -> Outcome {
        self.poll_message(stop)?;
        self.send()
    }

    pub(super) fn ask_for_event(&self, _: RemoteMemory, _: u64, stop: &AtomicBool) -> Outcome {
        self.send()?;
        self.sleep_for_message(stop)
    }

    pub(super) fn answer_event(&self, _: RemoteMemory, _: u64, stop: &AtomicBool) -> Outcome {
        self.sleep_for_message(stop)?;
        self.send()
    }

    /// Takes completions only once per exchange, as a program that watches its memory.
    pub(super) fn ask_memory(&self, remote: RemoteMemory, number: u64, stop: &AtomicBool) -> Outcome {
        self.write(number, remote)?;
        self.wait_for_word(number, stop)?;
        self.take().map(drop)
    }

    pub(super) fn answer_memory(&self, remote: RemoteMemory, number: u64, stop: &AtomicBool) -> Outcome {
        self.wait_for_word(number, stop)?;
        self.write(number, remote)?;
        self.take().map(drop)
    }

    pub(super) fn write_and_sleep(&self, remote: RemoteMemory, number: u64, _: &AtomicBool) -> Outcome {
        self.write(number, remote)?;
        self.complete()?;
        thread::sleep(Duration::from_micros(300));
        Ok(())
    }

    pub(super) fn post_and_compute(&self, remote: RemoteMemory, number: u64, _: &AtomicBool) -> Outcome {
        self.write(number, remote)?;
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(20) {}
        if number.is_multiple_of(POSTS) {
            (0..POSTS).try_for_each(|_| self.complete())?;
        }
        Ok(())
    }

    pub(super) fn read_once(&self, remote: RemoteMemory, _: u64, _: &AtomicBool) -> Outcome {
        self.qp.post_send(&[SendRequest::read(&self.region, remote).signaled().wr_id(REQUEST)])?;
        self.complete()
    }
}
