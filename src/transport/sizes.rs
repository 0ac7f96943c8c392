//! Sizes of the structures that every packet touches. A structure that grows takes cache lines from everything else,
//! and many of them exist once for each queue pair: a thousand busy ones stay in the cache of a core. A change that
//! makes one larger says here why; a change that makes one smaller lowers its bound.

use super::path::Path;
use super::queue_pair::QueuePair;
use super::requester::{InProgress, RequestPlan, Requester};
use super::responder::{Responder, ResponsePlan, ResponseQueue};
use super::{Datagram, Transmit};
use crate::memory::Region;
use crate::queue::SendHeader;
use crate::types::{RawCompletion, Sge};
use crate::wire::icrc::Seed;
use crate::wire::{Bth, Headers, Packet};

/// Name, current bytes, maximum bytes.
type Bound = (&'static str, usize, usize);

/// Lists the name, the size and the bound of each type.
macro_rules! bounds {
    ($($type:ty: $most:expr,)*) => { [$((stringify!($type), size_of::<$type>(), $most),)*] };
}

#[test]
fn hot_structures_stay_small() {
    let bounds: Vec<Bound> = [
        // Created for each packet that is sent or received: larger ones are cleared and copied more slowly.
        &bounds! {
            Bth: 20,
            Headers: 152,
            Packet<'_>: 168,
            Datagram<'_>: 64,
            Transmit: 112,
            RequestPlan: 32,
            ResponsePlan: 32,
        }[..],
        // One for each slot of a queue. A completion, with its source, fills a cache line; a request's header shares
        // one with the counts of its entries and inline bytes.
        &bounds! {
            InProgress: 16,
            SendHeader: 56,
            Sge: 16,
            RawCompletion: 64,
        }[..],
        // One for each queue pair, all in one allocation of 28 cache lines; counters are a fifth of it, the masks of
        // its packets half a line. Idle connections cost memory too: 10,000 of them take 17 MB.
        &bounds! {
            Seed: 8,
            Path: 96,
            // With the consuming end of the send queue, its share of the window, and the pointers to a controller's
            // samples, to a rate limit, to a loss event and to the keys of direct accesses.
            Requester: 424,
            // With the pointer to the pace of READ responses on a path with a controller.
            ResponseQueue: 160,
            // With the receives and the scatter list of the one in progress, and the pointers to a repeated READ and to
            // the grant of direct accesses.
            Responder: 384,
            // With the arrived marks and three counters of them, six counters of losses and waits, and the pointer to
            // the discovery of its peer with two counters, and three counters of shared memory.
            QueuePair: 1_768,
        }[..],
        // One for each region, behind the table's pointer.
        &bounds! {
            Region: 72,
        }[..],
    ]
    .concat();
    let grown: Vec<&Bound> = bounds.iter().filter(|(_, size, most)| size > most).collect();
    assert!(grown.is_empty(), "larger than they were: {grown:?}");
}
