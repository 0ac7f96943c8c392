//! Round trips: the other program responds to SEND and WRITE, its device to READ and atomics.

use rdma_verbs::verbs::{Completion, CompletionOpcode, Payload, SendRequest};

use super::channel::{Channel, check_interrupted};
use super::end::{End, WaitGuard};
use super::job::{Operation, Waiting};
use super::outcome::Outcome;
use super::pattern;
use super::progress::Progress;
use super::reference::{Measured, Role, Span, Stopwatch};
use super::run::Phase;

/// Runs one end. The server of READs and atomics has nothing to do.
pub(crate) fn run(
    end: &End,
    role: Role,
    phase: Phase,
    channel: &mut Channel,
    progress: &Progress,
) -> Outcome<Measured> {
    let is_ping_pong = !end.job.operation.has_device_response();
    let mut player = Player::new(end, role, phase);
    player.fill()?;
    channel.synchronize()?;
    let span = Span::start()?;
    let mut stopwatch = Stopwatch::start(if is_ping_pong { 2 } else { 1 });
    let mut number = 0;
    while (role == Role::Client || is_ping_pong) && phase.goes_on(number, &stopwatch) {
        if !player.exchange(number, channel)? {
            break;
        }
        number += 1;
        check_interrupted()?;
        if role == Role::Client {
            stopwatch.mark();
            progress.note(number);
        }
    }
    let (seconds, cpu_seconds) = span.end()?;
    player.wait_for_sends(channel)?;
    let bytes = number * end.size as u64;
    Ok(Measured { times: Some(stopwatch.times()), messages: number, bytes, seconds, cpu_seconds })
}

struct Player<'a> {
    end: &'a End,
    role: Role,
    phase: Phase,
    sent: u64,
    /// Number of the last completed send.
    completed: u64,
    /// Number of messages that arrived, and of those that were waited for.
    arrived: u64,
    received: u64,
    /// Number of receives posted so far.
    receives: u64,
    /// The message to write inline.
    message: Vec<u8>,
}

impl<'a> Player<'a> {
    fn new(end: &'a End, role: Role, phase: Phase) -> Self {
        let message = vec![0; end.size];
        Self { end, role, phase, sent: 0, completed: 0, arrived: 0, received: 0, receives: 0, message }
    }

    /// Runs one round. Returns false if the other end has finished.
    #[inline]
    fn exchange(&mut self, number: u64, channel: &Channel) -> Outcome<bool> {
        match (self.end.job.operation, self.role) {
            (Operation::Send, Role::Client) => {
                self.send(number, channel)?;
                self.receive(number, channel)
            }
            (Operation::Send, Role::Server) => {
                Ok(self.receive(number, channel)? && self.send(number, channel).map(|()| true)?)
            }
            (Operation::Write, Role::Client) => {
                self.write(number, channel)?;
                self.see(number, channel)
            }
            (Operation::Write, Role::Server) => {
                Ok(self.see(number, channel)? && self.write(number, channel).map(|()| true)?)
            }
            (Operation::Read | Operation::Atomic, _) => self.fetch(number, channel),
        }
    }

    /// Posts a request. Some are signaled, which frees the slots of the requests before them.
    #[inline]
    fn post(&mut self, request: SendRequest<'_>) -> Outcome {
        self.sent += 1;
        let request = request.wr_id(self.sent);
        let is_signaled = self.sent.is_multiple_of(u64::from(self.end.job.signal_every));
        let request = if is_signaled { request.signaled() } else { request };
        Ok(self.end.queue_pairs[0].post_send(&[request])?)
    }

    #[inline]
    fn send(&mut self, number: u64, channel: &Channel) -> Outcome {
        self.make_room(channel)?;
        let end = self.end;
        if end.job.check {
            self.fill_outbox(number)?;
            return self.post(end.send_request(0, end.memory.slice(self.outbox())?.into()));
        }
        self.post(end.request(0, number)?)
    }

    /// Waits for a message. Returns false if the other end will send none.
    #[inline]
    fn receive(&mut self, number: u64, channel: &Channel) -> Outcome<bool> {
        let mut guard = WaitGuard::default();
        while self.arrived == self.received {
            if !self.poll_one()? && guard.note_empty_poll(self.end, channel)? && !self.poll_one()? {
                return Ok(false);
            }
        }
        self.received += 1;
        if self.end.job.check {
            self.check_inbox(number, self.end.size)?;
        }
        // Refills half of them at a time, as ibv_rc_pingpong does.
        if self.receives - self.received <= u64::from(self.end.job.rx_depth / 2) {
            self.fill()?;
        }
        Ok(true)
    }

    /// Polls one completion. Returns whether there was one.
    #[inline]
    fn poll_one(&mut self) -> Outcome<bool> {
        let mut completions = [Completion::default()];
        let [done] = self.end.poll(&mut completions)? else { return Ok(false) };
        if done.result().is_ok_and(|done| done.opcode == CompletionOpcode::Receive) {
            self.arrived += 1;
        } else {
            self.completed = done.wr_id();
        }
        Ok(true)
    }

    /// Waits until the send queue has room for another request. The last requests of an earlier phase, which were
    /// unsignaled, may still occupy slots.
    #[inline]
    fn make_room(&mut self, channel: &Channel) -> Outcome {
        let room = u64::from(self.end.job.tx_depth - (self.end.job.signal_every - 1));
        self.wait_for(|player| player.sent - player.completed < room, channel)
    }

    #[inline]
    fn wait_for(&mut self, is_done: impl Fn(&Self) -> bool, channel: &Channel) -> Outcome {
        let mut guard = WaitGuard::default();
        while !is_done(self) {
            if !self.poll_one()? {
                guard.note_empty_poll(self.end, channel)?;
            }
        }
        Ok(())
    }

    /// Posts receives until the queue is full, or as many as are still needed.
    fn fill(&mut self) -> Outcome {
        if self.end.job.operation != Operation::Send {
            return Ok(());
        }
        let wanted = self.phase.most().min(self.received + u64::from(self.end.job.rx_depth));
        let mut batch = self.end.queue_pairs[0].recv_batch()?;
        for number in self.receives..wanted {
            batch.push(&self.end.receive(0, number)?)?;
        }
        batch.post()?;
        self.receives = self.receives.max(wanted);
        Ok(())
    }

    /// Writes a message whose last byte differs from the previous message's.
    #[inline]
    fn write(&mut self, number: u64, channel: &Channel) -> Outcome {
        self.make_room(channel)?;
        let end = self.end;
        if end.is_inline() && !end.job.check {
            let mut message = std::mem::take(&mut self.message);
            message[end.size - 1] = mark(number);
            let posted = end.write_request(Payload::inline(&message)).and_then(|request| self.post(request));
            self.message = message;
            return posted;
        }
        if end.job.check {
            self.fill_outbox(number)?;
        }
        end.memory.store_release_u8(end.outbox() + end.size - 1, mark(number))?;
        self.post(end.write_request(end.memory.slice(self.outbox())?.into())?)
    }

    /// Waits until a message is in memory, by its last byte, which is placed last. Returns false if the other end will
    /// write none.
    #[inline]
    fn see(&mut self, number: u64, channel: &Channel) -> Outcome<bool> {
        let (memory, last) = (&self.end.memory, self.end.inbox() + self.end.size - 1);
        let mut guard = WaitGuard::default();
        while memory.load_acquire_u8(last)? != mark(number) {
            if self.end.job.waiting == Waiting::Memory {
                std::hint::spin_loop();
            } else if self.poll_one()? {
                continue;
            }
            if guard.note_empty_poll(self.end, channel)? && memory.load_acquire_u8(last)? != mark(number) {
                return Ok(false);
            }
        }
        if self.end.job.check {
            self.check_inbox(number, self.end.size - 1)?;
        }
        Ok(true)
    }

    /// Runs a READ or atomic: the whole round trip.
    #[inline]
    fn fetch(&mut self, number: u64, channel: &Channel) -> Outcome<bool> {
        self.sent += 1;
        let request = self.end.request(0, self.phase.first + number)?.wr_id(self.sent).signaled();
        self.end.queue_pairs[0].post_send(&[request])?;
        self.wait_for(|player| player.completed == player.sent, channel)?;
        Ok(true)
    }

    /// Waits for the signaled requests, so that none of this phase completes in the next one.
    fn wait_for_sends(&mut self, channel: &Channel) -> Outcome {
        let every = u64::from(self.end.job.signal_every);
        let last_signaled = self.sent / every * every;
        self.wait_for(|player| player.completed >= last_signaled, channel)
    }

    fn outbox(&self) -> std::ops::Range<usize> {
        self.end.outbox()..self.end.outbox() + self.end.size
    }

    fn fill_outbox(&self, number: u64) -> Outcome {
        let bytes = pattern::bytes(self.end.job.seed + number, self.end.size);
        Ok(self.end.memory.write_at(self.end.outbox(), &bytes)?)
    }

    fn check_inbox(&self, number: u64, size: usize) -> Outcome {
        let found = self.end.memory.to_vec(self.end.inbox()..self.end.inbox() + size)?;
        pattern::check(&format!("message {number}"), &found, self.end.job.seed + number)
    }
}

/// Returns the last byte of a message; never 0, the initial contents of memory.
fn mark(number: u64) -> u8 {
    (number % 251) as u8 + 1
}
