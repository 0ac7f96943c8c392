//! The conformance suite: what any provider of verbs must do, scenario by scenario.
//!
//! `cargo test --test verbs` runs it on the software device, `RDMA_VERBS_DEVICES=first,second cargo test --test verbs`
//! on the devices of these names (two ports that reach each other, or twice the same). A part of a name chooses
//! scenarios: `cargo test --test verbs -- rc/send`; `--list` prints all.
//!
//! Written against the public API only. A new family is a file with its `SCENARIOS`, a `mod` and a line in
//! [`FAMILIES`].

mod attributes;
// Families come one after the other, and use more of these than there are yet.
#[allow(dead_code)]
mod bytes;
#[allow(dead_code)]
mod end;
mod rc_send;
mod sharing;
mod srq;
mod srq_attributes;
mod srq_life;
mod state_changes;
mod state_tables;
#[allow(dead_code)]
mod suite;
mod uc;
#[allow(dead_code)]
mod world;
mod xrc;

use suite::Scenario;

/// Every family of scenarios.
const FAMILIES: &[&[Scenario]] = &[
    rc_send::SCENARIOS,
    state_tables::SCENARIOS,
    state_changes::SCENARIOS,
    uc::SCENARIOS,
    srq::SCENARIOS,
    srq_attributes::SCENARIOS,
    srq_life::SCENARIOS,
    xrc::SCENARIOS,
];

fn main() {
    suite::main(FAMILIES)
}
