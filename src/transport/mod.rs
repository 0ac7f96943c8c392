//! The RoCE transport without I/O: time and datagrams are arguments, output is polled.
#![forbid(unsafe_code)]

mod acceptance;
mod burst;
mod common;
mod datagram;
mod endpoint;
mod fair_queue;
mod fast_path;
mod flush;
mod history;
mod loop_bound;
mod modify;
mod multicast;
mod overflow;
mod packet_check;
mod path;
mod quarantine;
mod queue_pair;
mod receive_path;
mod requester;
mod responder;
mod segments;
mod state_machine;
mod timer;
mod transmit_path;
mod violation;
mod window_share;
mod xrc;

#[cfg(all(test, not(loom)))]
mod sizes;
#[cfg(all(test, not(loom)))]
mod tests;

pub use datagram::{
    AckRelease, CheckField, Datagram, ModifyLimits, Outcome, Repeats, Sending, SourceAddress, Transmit,
};
pub use endpoint::{CreateError, Endpoint, EndpointConfig};
pub use modify::ModifyError;
#[cfg(feature = "ibverbs")]
pub(crate) use modify::{check_ranges, check_transition};
pub use queue_pair::QueuePairInit;
pub use responder::{ReceiveSource, ReorderBudget};
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use timer::Deadlines;
