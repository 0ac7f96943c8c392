//! Parts of all providers: checks and errors with the same texts everywhere, and the state that posting threads check.
#![forbid(unsafe_code)]

mod posting_state;
pub(in crate::provider) mod refusal;

pub(in crate::provider) use posting_state::PostingState;
