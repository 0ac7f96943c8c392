//! The conformance suite: requirements on every provider of verbs, scenario by scenario.
//!
//! `cargo test --test conformance` runs it on the software device, with `RDMA_VERBS_DEVICES=first,second` on the
//! devices of these names (two ports that reach each other, or twice the same). A part of a name selects scenarios:
//! `cargo test --test conformance -- rc/send`; `--list` prints all. With `RDMA_VERBS_FAULTS=signal` signal handlers
//! instead of the kernel's copies detect missing pages.
//!
//! The suite uses the public API only. A new family is a file with its `SCENARIOS`, its `mod` and its line in
//! [`FAMILIES`].

mod advise;
mod atomic_write;
mod attributes;
mod bytes;
mod channel;
mod connect;
mod cq;
mod deviations;
mod device;
mod dm;
mod dmabuf;
mod end;
mod events;
mod flush;
mod implicit;
mod invalidate;
mod memory;
mod mw;
mod pages;
mod post;
mod query;
mod rc_atomic;
mod rc_flush;
mod rc_one_sided;
mod rc_order;
mod rc_refusal;
mod rc_retry;
mod rc_send;
mod rc_sizes;
mod region;
mod rereg;
mod sharing;
mod srq;
mod srq_attributes;
mod srq_crowd;
mod srq_datagram;
mod srq_life;
mod srq_partial;
mod state_changes;
mod state_tables;
mod suite;
mod threads;
mod uc;
mod ud;
mod ud_address;
mod ud_errors;
mod ud_multicast;
mod ud_send;
mod world;
mod xrc;
mod xrc_ends;
mod xrc_life;
mod xrc_one_sided;

use std::time::Duration;

use suite::Scenario;

/// Every family of scenarios.
const FAMILIES: &[&[Scenario]] = &[
    atomic_write::SCENARIOS,
    flush::SCENARIOS,
    advise::SCENARIOS,
    dm::SCENARIOS,
    dmabuf::SCENARIOS,
    implicit::SCENARIOS,
    invalidate::SCENARIOS,
    memory::SCENARIOS,
    mw::SCENARIOS,
    rc_send::SCENARIOS,
    state_tables::SCENARIOS,
    state_tables::OF_XRC,
    rereg::SCENARIOS,
    state_changes::SCENARIOS,
    connect::SCENARIOS,
    device::SCENARIOS,
    post::SCENARIOS,
    query::SCENARIOS,
    rc_atomic::SCENARIOS,
    rc_flush::SCENARIOS,
    rc_one_sided::SCENARIOS,
    rc_order::SCENARIOS,
    rc_refusal::SCENARIOS,
    rc_retry::SCENARIOS,
    rc_sizes::SCENARIOS,
    region::SCENARIOS,
    threads::SCENARIOS,
    uc::SCENARIOS,
    ud_address::SCENARIOS,
    ud_errors::SCENARIOS,
    ud_multicast::SCENARIOS,
    ud_send::SCENARIOS,
    cq::SCENARIOS,
    channel::SCENARIOS,
    events::SCENARIOS,
    srq::SCENARIOS,
    srq_attributes::SCENARIOS,
    srq_life::SCENARIOS,
    srq_datagram::SCENARIOS,
    srq_partial::SCENARIOS,
    srq_crowd::SCENARIOS,
    xrc::SCENARIOS,
    xrc_one_sided::SCENARIOS,
    xrc_life::SCENARIOS,
];

pub(crate) fn main() -> ! {
    run(suite::TIME_LIMIT, |_| {})
}

/// Runs the suite with this limit for each scenario; `failed` is called at once with the message of each failure.
pub(crate) fn run(limit: Duration, failed: fn(&str)) -> ! {
    if std::env::var("RDMA_VERBS_FAULTS").is_ok_and(|mode| mode == "signal") {
        rdma_verbs::verbs::recover_from_faults().expect("handlers of faults");
    }
    suite::run(FAMILIES, limit, failed)
}
