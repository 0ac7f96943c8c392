//! Replays the fuzz targets with all inputs that once gave a fuzzer new coverage.
//!
//! Each target is a function from bytes; `fuzz/` runs it with a fuzzer, this test with `corpus/TARGET/*`. Inputs that
//! made a target fail belong there, too.

mod capture;
mod completion_ledger;
mod connection_info;
mod endpoint;
mod inbox;
mod link_offer;
mod mad;
mod packet;
mod registry;
mod responder;
mod shared_ring;
mod statistics;
mod verbs;

use std::path::Path;

use proptest::prelude::*;

fn replay(target: &str, run: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzzing/corpus").join(target);
    let mut inputs: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    assert!(inputs.len() >= 10, "only {} inputs in {}", inputs.len(), folder.display());
    for input in inputs {
        println!("{}", input.display());
        run(&std::fs::read(&input).unwrap());
    }
}

#[test]
fn captures() {
    replay("capture", capture::run);
}

#[test]
fn completion_ledgers() {
    replay("completion_ledger", completion_ledger::run);
}

#[test]
fn connection_infos() {
    replay("connection_info", connection_info::run);
}

#[test]
fn endpoints() {
    replay("endpoint", endpoint::run);
}

#[test]
fn inbox_messages() {
    replay("inbox", inbox::run);
}

#[test]
fn management_datagrams() {
    replay("mad", mad::run);
}

#[test]
fn offers_of_links() {
    replay("link_offer", link_offer::run);
}

#[test]
fn packets() {
    replay("packet", packet::run);
}

#[test]
fn registry_files() {
    replay("registry", registry::run);
}

#[test]
fn responders() {
    replay("responder", responder::run);
}

#[test]
fn shared_rings() {
    replay("shared_ring", shared_ring::run);
}

#[test]
fn statistics_pages() {
    replay("statistics", statistics::run);
}

#[test]
fn programs_of_verbs() {
    replay("verbs", verbs::run);
}

proptest! {
    /// Any data of any message of the connection manager, and other datagrams.
    #[test]
    fn any_management_datagram_is_read_or_refused(
        header in prop_oneof![Just([1, 7, 2, 3]), [0u8..3, 6u8..9, 1u8..4, 1u8..4]],
        attribute in 0x0fu8..0x1c,
        mut bytes in prop::collection::vec(any::<u8>(), 256),
    ) {
        bytes[..4].copy_from_slice(&header);
        bytes[16..18].copy_from_slice(&[0, attribute]);
        mad::run(&bytes);
    }

    /// Any message with an almost valid header.
    #[test]
    fn any_inbox_message_is_read_or_ignored(
        kind in 0u8..5, port in any::<[u8; 4]>(), reserved in 0u8..2, zeros in any::<bool>(),
        mut rest in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        if zeros {
            let sources = rest.len().min(16);
            rest[..sources].fill(0);
        }
        let port = if zeros { [0; 4] } else { port };
        inbox::run(&[&[1, kind][..], &port, &[reserved, 0], &rest].concat());
    }
}

proptest! {
    /// Any changes of a shared ring at any moment, also while one end uses it.
    #[test]
    fn any_changes_of_a_ring_are_safe(script in prop::collection::vec(any::<u8>(), 0..2_000)) {
        shared_ring::run(&script);
    }

    /// Any offer with an almost valid beginning.
    #[test]
    fn any_offer_is_read_or_refused(
        count in 0_u8..18, reserved in 0_u8..2, mut bytes in prop::collection::vec(any::<u8>(), 96),
    ) {
        (bytes[0], bytes[1]) = (1, count);
        bytes[4..8].fill(0);
        bytes[88..].fill(0);
        bytes[95] = reserved;
        link_offer::run(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Any program, also run by two threads, behaves like the model.
    #[test]
    fn any_program_of_verbs_matches_its_model(program in prop::collection::vec(any::<u8>(), 0..400)) {
        verbs::run(&program);
    }

    /// Any sequence of completions, forged and genuine, returns the same memory as the model.
    #[test]
    fn any_completions_return_the_buffers_of_the_model(program in prop::collection::vec(any::<u8>(), 0..600)) {
        completion_ledger::run(&program);
    }
}
