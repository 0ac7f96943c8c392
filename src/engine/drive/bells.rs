//! Which threads look at the shared memory, where a packet calls none unless a bell was requested.
//!
//! A thread that polls sees the packet itself, and its bells are silent. All others sleep on packets: the shard's
//! thread when it has nothing to do, threads that wait for events, and pollers that nap. Each pass that receives sets
//! the bells for the threads of that moment. A thread that arms a completion queue ends the silence itself, because the
//! poller may make no further pass. At the end of the lease the shard's thread does so.

use super::core::{Core, Progress};
use super::driver::SERVING;
use super::shard::Shard;
use super::shard_lock::Pass;
use crate::types::Time;

/// Most further passes of a thread that looks at the shared memory in passing.
const MORE_PASSES: usize = 1;

impl Shard {
    /// Requests the bells of the shared memory, or withdraws the requests, while the shard is held.
    pub(super) fn set_bells(&self, core: &mut Core, now: Time, progress: &mut Progress) {
        if self.policy.silences_memory(now) {
            core.link.memory_links().withdraw_bells();
            let lease_end = self.policy.thread_is_due(now);
            progress.next_deadline = Some(progress.next_deadline.map_or(lease_end, |due| due.min(lease_end)));
        } else {
            progress.has_more |= core.link.memory_links().request_bells();
        }
    }

    /// Requests the bells if they are silent, for a thread that has armed a completion queue and may sleep now. Takes
    /// packets that wait already: they have no bell.
    pub(super) fn end_silence(&self) {
        if !self.policy.is_memory_silent() {
            return;
        }
        let outcome = self.lock.drive(MORE_PASSES, |core, pass| {
            let mut waits = Progress::default();
            if pass == Pass::First && !self.has_failed() {
                self.set_bells(core, self.clock.now(), &mut waits);
            }
            if pass == Pass::Again || waits.has_more {
                let progress = self.pass(core, SERVING, self.clock.now(), |_, _| false);
                self.leave(&progress);
            }
        });
        self.finish(outcome);
    }

    /// Whether a packet waits in the shared memory. If another thread drives, it takes the packet.
    pub(super) fn has_records(&self) -> bool {
        let mut has_records = false;
        let outcome = self.lock.try_drive(0, |core, _| has_records = !core.link.memory_links().is_quiet());
        self.finish(outcome);
        has_records
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::channel::{Channel, CqNotifier};
    use super::super::tests::shard;
    use super::*;
    use crate::engine::share::IncomingLink;
    use crate::memory::record_ring::RingWriter;
    use crate::sys::{ring, wait_readable};

    /// A shard that reads a ring, whose poller has a lease.
    fn polled() -> (Arc<Shard>, RingWriter, impl AsFd) {
        let shard = Arc::new(shard());
        let address = "127.0.0.1".parse().unwrap();
        let (link, writer, bell) = IncomingLink::with_writer(address, address);
        shard.command(|core, _| core.link.memory_links().add_reader(link, &shard.sockets).unwrap());
        while !shard.policy.is_memory_silent() {
            shard.poll(|| false);
        }
        (shard, writer, bell)
    }

    fn push(writer: &mut RingWriter) {
        assert!(writer.push(0, b"no packet").unwrap());
    }

    fn is_readable(shard: &Shard) -> bool {
        wait_readable([shard.sockets.as_fd()], Some(Duration::ZERO)).unwrap()[0]
    }

    #[test]
    fn record_wakes_a_thread_that_armed_a_queue_although_one_polls() {
        for create in [Channel::new, Channel::exact] {
            let (shard, mut writer, bell) = polled();
            push(&mut writer);
            assert!(!writer.takes_bell() && shard.has_records(), "the poller sees it");
            let channel = create(vec![Arc::clone(&shard)]).unwrap();
            channel.arm(&CqNotifier::new(1));
            assert!(!shard.has_records(), "it had no bell");
            push(&mut writer);
            assert!(writer.takes_bell());
            ring(bell.as_fd());
            assert!(is_readable(&shard));
            assert_eq!(channel.poll(), None);
            assert!(!is_readable(&shard), "the thread would not sleep");
            push(&mut writer);
            assert!(writer.takes_bell());
        }
    }

    #[test]
    fn bell_that_rings_without_a_request_ends_one_sleep() {
        let (shard, _writer, bell) = polled();
        let channel = Channel::new(vec![Arc::clone(&shard)]).unwrap();
        (0..5).for_each(|_| ring(bell.as_fd()));
        assert!(is_readable(&shard));
        assert_eq!(channel.poll(), None);
        assert!(!is_readable(&shard));
        ring(bell.as_fd());
        shard.serve(true, |_, _| super::super::policy::Rest::Linger);
        assert!(!is_readable(&shard));
    }
}
