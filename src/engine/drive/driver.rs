//! The drivers of a shard, and what each may do.
//!
//! | driver | takes the lock | receives | sends | deadlines | acknowledgements |
//! |---|---|---|---|---|---|
//! | posting thread | if free, rings otherwise | no | a few | no | wait while a thread polls |
//! | polling thread | if free | yes | yes | yes | wait if it has something to respond to and comes back soon |
//! | event waiter | waits | yes | yes | yes | leave at once |
//! | control verb | waits | no | a few | no | wait while a thread polls |
//! | shard's thread | waits | yes | yes | yes | leave at once, unless a leased poller watches its memory |
//!
//! No step of a message's path wakes a thread while an application thread polls. A driver that leaves the shard with
//! work or a deadline that the shard's thread would miss wakes it, and only then.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::core::{Core, Progress};
use super::doorbell::Doorbell;
use super::held_acks;
use super::policy::Rest;
use super::shard::{Plan, Shard, Unfinished};
use super::shard_lock::{DriveOutcome, Pass};
use crate::cm::Orphan;
use crate::engine::net::leaves_host;
use crate::engine::share::{
    AccessRequest, DeclinedLink, IncomingLink, LinkId, OutgoingLink, Recipient, request_access,
};
use crate::memory::Offer;
use crate::queue::{note_later, thread_token};
use crate::transport::{Datagram, WantedKey};
use crate::types::{Qpn, SharedMemory, Time};

/// Longest time that the destruction of a queue pair waits for its final acknowledgement to leave.
const LONGEST_FINAL_ACK_FLUSH: Duration = Duration::from_millis(10);
/// Most further passes that a driver makes for threads that rang, before it hands over.
const MORE_PASSES: usize = 16;
/// A posting thread sends its requests and returns.
const POSTING: Plan = Plan {
    posted: None,
    receives: 0,
    send_calls: 16,
    deadlines: false,
    stops_for_completion: false,
    follows_sleep: false,
};
/// A datagram, or merged ones, are 64 KiB at most, so a batch is at most 2 MiB.
pub(super) const SERVING: Plan = Plan { receives: 32, send_calls: 32, deadlines: true, ..POSTING };
/// For a thread that a packet has woken.
const WOKEN: Plan = Plan { follows_sleep: true, ..SERVING };
/// For a thread that comes back soon: it gets the completion that it waits for without delay.
const POLLING: Plan = Plan { stops_for_completion: true, ..SERVING };

/// Result of a pass by the shard's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Served {
    /// Something arrived or was sent.
    pub(super) worked: bool,
    /// Latest time of its next pass; `None`: at once.
    pub(super) sleeps_until: Option<Time>,
}

impl Shard {
    /// Sends published requests on the caller's own stack, or leaves that to the current driver.
    pub(crate) fn post(&self, doorbell: &Arc<Doorbell>) {
        self.policy.note_post(thread_token());
        let outcome = self.lock.try_drive(MORE_PASSES, |core, pass| {
            let posted = (pass == Pass::First).then_some(doorbell.qpn());
            if posted.is_some_and(|posted| self.execute_posted(core, posted)) {
                return;
            }
            self.send_posted(core, Plan { posted, ..POSTING });
        });
        if outcome != DriveOutcome::Held {
            return self.finish(outcome);
        }
        self.ring_doorbell(doorbell);
        let outcome = self.lock.ring(MORE_PASSES, |core, _| self.send_posted(core, POSTING));
        self.finish(outcome);
    }

    /// Executes the posted requests if they access the peer's memory, and nothing else is due. This needs no pass,
    /// which would take longer, and no time. It is no visit of the shard either: nothing was received.
    #[inline]
    fn execute_posted(&self, core: &mut Core, qpn: Qpn) -> bool {
        if self.has_failed() || core.has_unsent() {
            return false;
        }
        let unfinished = Unfinished(self);
        let is_done = core.endpoint.execute_posted(|| self.clock.now(), &self.memory, qpn);
        std::mem::forget(unfinished);
        is_done
    }

    fn send_posted(&self, core: &mut Core, plan: Plan) {
        let now = self.clock.now();
        self.policy.note_driving_post(now);
        let progress = self.pass(core, plan, now, |now, _| self.policy.expects_poller(now));
        self.note_long(&progress);
        self.leave(&progress);
    }

    /// Notes that a thread took completions without driving.
    #[inline]
    pub(crate) fn note_taken(&self) {
        self.policy.note_taken();
    }

    /// Notes that a poll of this thread ends with completions. The thread may not come back for what arrives next.
    #[inline]
    pub(crate) fn note_poll_ends(&self) {
        if self.policy.note_poll_ends() {
            self.wake.call();
        }
    }

    /// Looks at the shard for a thread that found its completion queue empty, if a look is due. Returns whether it did.
    #[inline]
    pub(crate) fn poll(self: &Arc<Self>, has_completions: impl Fn() -> bool) -> bool {
        let is_due = self.policy.is_look_due();
        if is_due {
            self.look(has_completions);
        }
        is_due
    }

    fn look(self: &Arc<Self>, has_completions: impl Fn() -> bool) {
        if let Some(other) = held_acks::take_other(self) {
            other.release_acknowledgements();
        }
        let outcome = self.lock.try_drive(MORE_PASSES, |core, pass| {
            if pass == Pass::First && self.policy.takes_quick_poll() && core.is_quiet() {
                return;
            }
            let now = self.clock.now();
            let comes_back = self.policy.note_pass(now);
            let progress = self.pass(core, POLLING, now, |_, wrote| comes_back && (wrote || has_completions()));
            if core.endpoint.has_held_acknowledgements() {
                held_acks::note(self);
            }
            self.note_long(&progress);
            self.leave(&progress);
        });
        if outcome == DriveOutcome::Held {
            self.policy.note_pass(self.clock.now());
        }
        self.finish(outcome);
    }

    /// Sends the acknowledgements that wait for the application's response, because this thread, which left them, now
    /// polls another shard. If another thread drives this shard, that thread comes back or sends them.
    fn release_acknowledgements(&self) {
        let outcome = self.lock.try_drive(MORE_PASSES, |core, pass| {
            if pass == Pass::Again || core.endpoint.has_held_acknowledgements() {
                let progress = self.pass(core, POSTING, self.clock.now(), |_, _| false);
                self.leave(&progress);
            }
        });
        self.finish(outcome);
    }

    /// Asks the processes of peers for direct access by the keys that requests had.
    #[cold]
    pub(super) fn ask_for_keys(&self, core: &mut Core) {
        while let Some(key) = core.endpoint.poll_wanted_key() {
            core.link.memory_links().access_request(key).into_iter().for_each(request_access);
        }
    }

    /// Counts the time of a long pass as polling.
    fn note_long(&self, progress: &Progress) {
        if progress.was_long {
            self.policy.note_long_pass(self.clock.now());
        }
    }

    /// Drives the shard for a thread that a channel's descriptor woke, or that is about to sleep on it. It waits for
    /// the lock, because the thread will sleep on the packets that it leaves behind. Returns whether there is more to
    /// do.
    ///
    /// No acknowledgement waits for the application's response: a program with one channel for all queues takes events
    /// in their order, and expects, as from adapters, that its send completes before the peer's response to it arrives.
    pub(super) fn serve_channel(&self, was_woken: bool) -> bool {
        let plan = if was_woken { WOKEN } else { SERVING };
        self.policy.note_event_visit(self.clock.now());
        let mut has_more = false;
        let outcome = self.lock.drive(MORE_PASSES, |core, _| {
            let progress = self.pass(core, plan, self.clock.now(), |_, _| false);
            has_more = progress.has_more;
            self.leave(&progress);
        });
        self.finish(outcome);
        has_more
    }

    /// Changes the endpoint, and sends the resulting packets. Returns false if the shard has failed; then nothing was
    /// changed.
    pub(crate) fn command(&self, change: impl FnOnce(&mut Core, Time)) -> bool {
        let (mut change, mut done) = (Some(change), false);
        let outcome = self.lock.drive(MORE_PASSES, |core, pass| {
            if pass == Pass::First
                && let Some(change) = change.take()
            {
                done = self.change(core, change);
            }
            self.send_posted(core, POSTING);
        });
        self.finish(outcome);
        done
    }

    /// Flushes the acknowledgements of a queue pair that wait for the application's response, because none will follow.
    /// Called before the queue pair is destroyed, so that its peer does not retry requests that arrived long ago. Waits
    /// up to `LONGEST_FINAL_ACK_FLUSH` if sockets are full.
    pub(crate) fn send_acknowledgements(&self, qpn: Qpn) {
        let end = self.clock.now() + LONGEST_FINAL_ACK_FLUSH;
        loop {
            let mut owes = false;
            let outcome = self.lock.drive(MORE_PASSES, |core, _| {
                let progress = self.pass(core, POSTING, self.clock.now(), |_, _| false);
                owes = core.endpoint.owes_acknowledgement(qpn) || core.has_unsent();
                self.leave(&progress);
            });
            self.finish(outcome);
            if !owes || self.has_failed() || self.clock.now() >= end {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Makes a pass for a thread that waits for a datagram of the connection manager.
    pub(super) fn receive_once(&self) {
        let outcome = self.lock.drive(MORE_PASSES, |core, _| {
            let progress = self.pass(core, SERVING, self.clock.now(), |_, _| false);
            self.leave(&progress);
        });
        self.finish(outcome);
    }

    /// Makes a pass for the shard's thread, which a packet has woken or not. Afterwards `rest` gets the time and
    /// whether there was work, and chooses whether the thread sleeps. If it sleeps, this is published while the shard
    /// is held, so that no other thread relies on it being awake.
    pub(super) fn serve(&self, was_woken: bool, mut rest: impl FnMut(Time, bool) -> Rest) -> Served {
        let mut served = Served { worked: false, sleeps_until: None };
        let outcome = self.lock.drive(MORE_PASSES, |core, _| {
            let (now, plan) = (self.clock.now(), if was_woken { WOKEN } else { SERVING });
            let progress = self.pass(core, plan, now, |now, _| self.policy.expects_watcher(now));
            served.worked |= progress.worked;
            if progress.wrote {
                self.policy.note_write_by_thread();
            }
            let rest = if progress.has_more { Rest::Linger } else { rest(now, progress.worked) };
            let latest = match rest {
                Rest::Sleep(latest) => Some(latest),
                Rest::Linger => None,
            };
            let deadline =
                latest.map_or(Time::ZERO, |latest| progress.next_deadline.map_or(latest, |due| due.min(latest)));
            // Published before the moderations are checked. Drivers of other shards add moderations, too; a thread that
            // adds one afterwards wakes this one.
            self.wake.sleeps_until(deadline);
            let until = deadline.min(self.end_moderations(now).unwrap_or(Time::NEVER));
            self.wake.sleeps_until(until);
            // The last pass counts: a ring between two passes invalidates the result of the earlier one.
            served.sleeps_until = latest.map(|_| until);
        });
        self.finish(outcome);
        served
    }

    /// Wakes the shard's thread if it would be late for the remaining work; called before the lock is released. During
    /// a lease, the end of the lease is early enough, because the poller comes back before.
    pub(super) fn leave(&self, progress: &Progress) {
        let due = if progress.has_more { Some(Time::ZERO) } else { progress.next_deadline };
        if let Some(due) = due {
            self.wake.call_if_needed_by(self.policy.thread_is_due(due));
        }
    }

    pub(super) fn finish(&self, outcome: DriveOutcome) {
        self.event_queues.wake_tasks();
        if outcome == DriveOutcome::HandOver {
            self.wake.call();
        }
    }
}

impl Recipient for Shard {
    fn deliver(&self, datagram: &Datagram<'_>) {
        self.command(|core, now| {
            core.endpoint.handle_datagram(now, &self.memory.read(), datagram);
        });
    }

    fn sends_from(&self, address: IpAddr) -> bool {
        let mut sends = false;
        self.command(|core, _| sends = core.link.port_of(address).is_some());
        sends
    }

    fn end_orphan(&self, orphan: &Orphan) -> bool {
        let mut is_ended = false;
        self.command(|core, now| is_ended = core.connections.manager().end_orphan(now, orphan).is_ok());
        is_ended
    }

    fn shares_memory(&self) -> bool {
        self.shared_memory != SharedMemory::Off
    }

    fn note_declined(&self, link: DeclinedLink) {
        self.command(|core, _| core.link.memory_links().note_declined(link));
    }

    fn add_writer(&self, link: OutgoingLink) {
        self.command(|core, _| core.link.memory_links().add_writer(link));
    }

    fn add_reader(&self, mut link: IncomingLink) -> bool {
        // Packets of a ring have no check fields: none may claim to be those of another host.
        if leaves_host(link.destination, link.source) {
            return false;
        }
        link.watch = self.memory.exports().map(|exports| exports.watch(link.ring.gate()));
        let mut added = Ok(());
        let done = self.command(|core, _| added = core.link.memory_links().add_reader(link, &self.sockets));
        if let Err(error) = &added {
            let error = error.to_string();
            note_later!(
                self.journal, target: "rdma_verbs::path", DEBUG,
                error, "a link through memory cannot be watched"
            );
        }
        done && added.is_ok()
    }

    fn end_link(&self, id: LinkId) {
        self.command(|core, _| core.link.memory_links().end(id, &self.sockets));
        // Its last records are taken, if any are left.
        self.wake.call();
    }

    fn grant_table(&self) -> Option<OwnedFd> {
        self.memory.exports()?.table().ok()
    }

    fn offer_access(&self, key: &WantedKey) -> Option<Offer> {
        let exports = self.memory.exports()?;
        let mut offer = None;
        self.command(|core, _| {
            let asker = (key.own, key.queue_pair);
            if let Some((grant, accessor, access)) = core.endpoint.grant_access(key.destination, asker, exports) {
                offer = self.memory.offer(key.rkey, accessor, grant, access);
            }
        });
        offer
    }

    fn take_offer(&self, request: &AccessRequest, offer: &Offer) {
        let WantedKey { queue_pair, rkey, peer, .. } = request.key;
        self.command(|core, _| {
            let Some(memory) = core.link.memory_links().memory_of(request.link) else { return };
            match memory.accept(offer) {
                Ok(admission) => core.endpoint.admit(queue_pair, rkey, admission),
                Err(error) => note_later!(
                    self.journal, target: "rdma_verbs::path", DEBUG,
                    %peer, %error, "memory of the peer's process cannot be mapped"
                ),
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::super::tests::shard;
    use super::*;

    /// Otherwise it sleeps while all other threads assume that it is awake, and none wakes it.
    #[test]
    fn thread_that_was_rung_sleeps_by_its_last_pass() {
        let (shard, passes) = (shard(), Cell::new(0));
        let served = shard.serve(false, |_, _| {
            passes.set(passes.get() + 1);
            if passes.get() == 1 {
                assert_eq!(shard.lock.ring(MORE_PASSES, |_, _| unreachable!("it is held")), DriveOutcome::Held);
                return Rest::Sleep(Time::NEVER);
            }
            Rest::Linger
        });
        assert_eq!((passes.get(), served.sleeps_until), (2, None));
    }
}
