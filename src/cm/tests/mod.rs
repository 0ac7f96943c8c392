//! Scripted messages for each rule. `script` has the two ends.

mod closing;
mod extended;
mod floods;
mod handshake;
mod held;
mod mistakes;
mod native;
mod rejections;
pub(crate) mod script;
mod services;
mod stale;
