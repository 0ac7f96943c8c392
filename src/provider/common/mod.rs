//! Code that all providers share: checks and errors, so that their texts are the same everywhere, and the state that
//! posting threads check.
#![forbid(unsafe_code)]

mod posting_state;
pub(in crate::provider) mod refusal;

pub(in crate::provider) use posting_state::PostingState;
