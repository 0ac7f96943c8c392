//! Streams: as many messages in flight as the send queues hold, over all queue pairs.

use std::time::{Duration, Instant};

use rdma_verbs::verbs::{Completion, CompletionOpcode};

use super::channel::{Channel, check_interrupted};
use super::end::{End, WaitGuard};
use super::outcome::Outcome;
use super::progress::Progress;
use super::reference::{Measured, Role, Span};
use super::run::Phase;

/// Maximum number of completions polled at a time.
const POLLED: usize = 16;
/// Duration of silence after which the other end is presumed to have stopped sending.
const SILENCE: Duration = Duration::from_millis(50);
/// Number of low bits of a `wr_id` that number the request; the bits above are its queue pair.
const NUMBER_BITS: u32 = 40;

/// Runs one end. An end that neither sends nor receives has nothing to do.
pub(crate) fn run(
    end: &End,
    role: Role,
    phase: Phase,
    channel: &mut Channel,
    progress: &Progress,
) -> Outcome<Measured> {
    let mut flow = Flow::new(end, role, phase);
    flow.post_receives()?;
    channel.synchronize()?;
    let span = Span::start()?;
    flow.play(channel, progress)?;
    let (seconds, cpu_seconds) = span.end()?;
    let sends = end.job.posts_requests(role);
    let messages = if sends { flow.completed() } else { flow.received() };
    // At an end that only receives, the time begins with the first message.
    let seconds = if sends { seconds } else { flow.receiving_seconds() };
    Ok(Measured { times: None, messages, bytes: messages * end.size as u64, seconds, cpu_seconds })
}

/// Counts of a queue pair's messages.
#[derive(Clone, Copy, Default)]
struct Lane {
    posted: u64,
    completed: u64,
    receives_posted: u64,
    received: u64,
}

struct Flow<'a> {
    end: &'a End,
    phase: Phase,
    lanes: Vec<Lane>,
    sends: bool,
    receives: bool,
    /// Number of messages of each queue pair; with a time limit, known when the time is over.
    goal: Option<u64>,
    /// Number of lanes whose sends have not all completed, and whose messages have not all arrived.
    sending: usize,
    receiving: usize,
    first_came: Option<Instant>,
    last_came: Option<Instant>,
}

impl<'a> Flow<'a> {
    fn new(end: &'a End, role: Role, phase: Phase) -> Self {
        let count = end.queue_pairs.len();
        let (sends, receives) = (end.job.posts_requests(role), end.job.receives(role));
        Self {
            end,
            phase,
            lanes: vec![Lane::default(); count],
            sends,
            receives,
            goal: phase.iterations,
            sending: if sends { count } else { 0 },
            receiving: if receives { count } else { 0 },
            first_came: None,
            last_came: None,
        }
    }

    fn play(&mut self, channel: &Channel, progress: &Progress) -> Outcome {
        let start = Instant::now();
        if self.sends {
            (0..self.lanes.len()).try_for_each(|pair| self.fill(pair))?;
        }
        let mut guard = WaitGuard::default();
        let mut completions = [Completion::default(); POLLED];
        while self.sending > 0 || self.receiving > 0 {
            let polled = self.end.poll(&mut completions)?;
            if polled.is_empty() {
                let has_message = guard.note_empty_poll(self.end, channel)?;
                // With a time limit, nothing marks the other end's last message.
                let is_silent = self.sends && self.phase.iterations.is_none() && guard.waited() > SILENCE;
                if self.sending == 0 && (has_message || is_silent) && !self.is_more_there()? {
                    break;
                }
                continue;
            }
            guard = WaitGuard::default();
            for completion in polled {
                self.take(completion)?;
            }
            check_interrupted()?;
            if !self.sends {
                self.note_time();
            }
            if self.goal.is_none() && self.phase.is_over(start) {
                self.stop()?;
            }
            progress.note(self.lanes[0].completed.max(self.lanes[0].received));
        }
        Ok(())
    }

    /// Polls after the other end has reported that it sent everything, or was silent. Returns whether there were more
    /// completions.
    fn is_more_there(&mut self) -> Outcome<bool> {
        let mut completions = [Completion::default(); POLLED];
        let polled = self.end.poll(&mut completions)?;
        for completion in polled {
            self.take(completion)?;
        }
        Ok(!polled.is_empty())
    }

    fn take(&mut self, completion: &Completion) -> Outcome {
        let number = completion.wr_id() & ((1 << NUMBER_BITS) - 1);
        let pair = (completion.wr_id() >> NUMBER_BITS) as usize;
        if completion.result().is_ok_and(|done| done.opcode == CompletionOpcode::Receive) {
            return self.take_received(pair);
        }
        self.lanes[pair].completed = number;
        if self.goal == Some(number) {
            self.sending -= 1;
            return Ok(());
        }
        self.fill(pair)
    }

    fn take_received(&mut self, pair: usize) -> Outcome {
        let lane = &mut self.lanes[pair];
        lane.received += 1;
        let (received, posted) = (lane.received, lane.receives_posted);
        if self.phase.iterations == Some(received) {
            self.receiving -= 1;
        } else if posted - received <= u64::from(self.end.job.rx_depth / 2) {
            self.fill_receives(pair)?;
        }
        Ok(())
    }

    #[inline]
    fn note_time(&mut self) {
        let now = Instant::now();
        self.first_came.get_or_insert(now);
        self.last_came = Some(now);
    }

    /// Posts batches as long as a whole one fits into the send queue.
    fn fill(&mut self, pair: usize) -> Outcome {
        let job = &self.end.job;
        let (list, depth, every) = (u64::from(job.post_list), u64::from(job.tx_depth), u64::from(job.signal_every));
        loop {
            let lane = self.lanes[pair];
            let left = self.goal.map_or(u64::MAX, |goal| goal - lane.posted);
            let count = list.min(left);
            if count == 0 || lane.posted - lane.completed + count > depth {
                return Ok(());
            }
            let after = lane.posted + count;
            // Without a completion of this batch, the next one would never fit.
            let is_last_that_fits = after - lane.completed + list > depth;
            let mut batch = self.end.queue_pairs[pair].send_batch()?;
            for number in lane.posted + 1..=after {
                let is_signaled =
                    number.is_multiple_of(every) || self.goal == Some(number) || number == after && is_last_that_fits;
                let request = self.end.request(pair, self.phase.first + number - 1)?;
                let request = request.wr_id((pair as u64) << NUMBER_BITS | number);
                batch.push(&if is_signaled { request.signaled() } else { request })?;
            }
            batch.post()?;
            self.lanes[pair].posted = after;
        }
    }

    /// Ends the sending when the time is over: every queue pair sends up to the same last message, whose completion is
    /// the last.
    fn stop(&mut self) -> Outcome {
        // The lanes differ in length; each is extended to one message more than the longest.
        let longest = self.lanes.iter().map(|lane| lane.posted).max().unwrap_or(0);
        self.goal = Some(longest + 1);
        (0..self.lanes.len()).try_for_each(|pair| self.fill(pair))
    }

    fn post_receives(&mut self) -> Outcome {
        if self.receives { (0..self.lanes.len()).try_for_each(|pair| self.fill_receives(pair)) } else { Ok(()) }
    }

    /// Posts receives until the queue is full, or as many as are still needed.
    fn fill_receives(&mut self, pair: usize) -> Outcome {
        let lane = &mut self.lanes[pair];
        let wanted = self.phase.most().min(lane.received + u64::from(self.end.job.rx_depth));
        let mut batch = self.end.queue_pairs[pair].recv_batch()?;
        for number in lane.receives_posted..wanted {
            let receive = self.end.receive(pair, self.phase.first + number)?;
            batch.push(&receive.wr_id((pair as u64) << NUMBER_BITS))?;
        }
        batch.post()?;
        lane.receives_posted = lane.receives_posted.max(wanted);
        Ok(())
    }

    fn completed(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.completed).sum()
    }

    fn received(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.received).sum()
    }

    /// Returns the time from the first to the last received message.
    fn receiving_seconds(&self) -> f64 {
        match (self.first_came, self.last_came) {
            (Some(first), Some(last)) => (last - first).as_secs_f64(),
            _ => 0.0,
        }
    }
}
