//! Repair of what native peers miss: each packet that is lost is sent again once, and nothing else is.

use super::recovery::{MTU, Sent, keyed};
use super::*;

/// Native peers, of which the first knows that the other has the key: it has read the number 0.
fn acquainted() -> Pair {
    let mut pair = keyed();
    pair.begin_read(8);
    pair.run(Duration::from_millis(1), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success]);
    pair
}

impl Pair {
    fn begin_atomic(&mut self) {
        let (now, local, rkey) = (self.now, self.ends[0].sge(0, 8), self.ends[1].region.rkey());
        self.ends[0].post(now, Operation::FetchAndAdd { remote_addr: 0x10_0000, rkey, add: 1 }, &[local]);
    }

    /// All that an end sends now, of which the packets at these places are lost.
    fn carry_without(&mut self, from: usize, lost: &[i32]) {
        let sent = self.catch(from);
        sent.iter().filter(|sent| !lost.contains(&sent.place())).for_each(|sent| self.deliver(sent));
    }
}

/// The places of the requests among what was sent.
fn requested(sent: &[Sent]) -> Vec<i32> {
    sent.iter().filter(|sent| sent.from == 0).map(Sent::place).collect()
}

#[test]
fn responses_of_atomics_behind_a_read_that_misses_some_are_kept() {
    let mut pair = acquainted();
    pair.begin_read(10 * MTU);
    (0..3).for_each(|_| pair.begin_atomic());
    pair.carry_without(0, &[]);
    pair.carry_without(1, &[3]);
    let sent = pair.run(Duration::from_millis(1), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 4]);
    assert_eq!(requested(&sent), [3]);
}

/// The acknowledgement stands in the queue before the READ's response, and reaches up to the READ.
#[test]
fn a_read_behind_kept_packets_holds_their_acknowledgement_not_up() {
    let mut pair = acquainted();
    pair.begin_write(1);
    let (now, local, rkey) = (pair.now, pair.ends[0].sge(0, 8), pair.ends[1].region.rkey());
    for _ in 0..4 {
        let write = Operation::Write { remote_addr: 0x10_0000, rkey };
        pair.ends[0].post_flagged(now, write, &[local], SendFlags::empty());
    }
    pair.carry_without(0, &[1]);
    pair.carry_without(1, &[]);
    let again = pair.catch(0);
    assert_eq!(requested(&again), [1]);
    pair.begin_read(8);
    pair.carry_without(0, &[]);
    pair.deliver(&again[0]);
    for response in pair.catch(1) {
        pair.deliver(&response);
        assert_eq!(requested(&pair.catch(0)), []);
    }
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 2]);
}
