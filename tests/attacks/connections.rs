//! Attacks on the connection manager: packets to queue pair 1 of a process that listens, while its connections carry
//! data.

mod blind;
mod fields;
mod floods;
mod forger;
mod local;
pub(super) mod victim;

use super::Attack;
pub(super) use forger::{Forger, Observer};

pub(super) const FAMILIES: &[&[Attack]] = &[fields::ATTACKS, blind::ATTACKS, floods::ATTACKS, local::ATTACKS];
