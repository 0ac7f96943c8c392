//! Explanations: failures are injected on loopback, and each text must name the true cause before any other.

mod fake_peer;
mod local;
mod namespace;
mod process;
mod refused;
mod shared;
mod silent;
mod unreliable;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use support::process::alone;

/// Causes, each with words that appear in no other explanation.
const CAUSES: &[(&str, &str)] = &[
    ("no listener", "nothing listens on UDP port 4791"),
    ("process ended", "process has ended"),
    ("process stopped", "although its port is open: its process is stopped"),
    ("wrong queue pair number", "the number is wrong"),
    ("wrong sequence number", "disagree about sequence numbers"),
    ("requests out of sequence", "none with the sequence number that is expected"),
    ("unreachable", "there is no route to"),
    ("broadcast address", "is a broadcast address"),
    ("wrong GID", "the peer's GID is wrong here"),
    ("path MTU too big for the link", "are too big for the path"),
    ("path MTU too big, in silence", "large packets seem to vanish"),
    ("one way only", "pass in one direction only"),
    ("no retries", "because retry_cnt is 0"),
    ("timeout too short", "answered too late"),
    ("wrong P_Key", "is in another partition"),
    ("no key", "without the key of the connection"),
    ("damaged packets", "their ICRC is wrong"),
    ("peer has the wrong number", "answers to the wrong queue pair"),
    ("other service", "of another transport service"),
    ("not RoCE", "something else than RoCEv2"),
    ("peer's queue pair gone", "the peer's queue pair is in error, reset or destroyed"),
    ("losses", "packets get lost on the way"),
    ("receiver never posts", "the peer posts no receives"),
    ("receiver never posts, for ever", "rnr_retry 7 means without end"),
    ("wrong key", "no region of the peer has key"),
    ("revoked key", "is not valid any more"),
    ("out of bounds", "lie outside the peer's region"),
    ("missing access flag", "for other accesses with this key worked"),
    ("access not granted", "the peer's queue pair does not grant"),
    ("receive too small", "does not fit the receive that the peer posted"),
    ("too many READs", "too many READs and atomics"),
    ("other path_mtu", "use different path_mtu: short WRITEs"),
    ("READ with other path_mtu", "does not have the form"),
    ("key not invalidated", "does not let key"),
    ("receive memory gone", "could not write the memory of its own receive"),
    ("here: wrong key", "no memory region has key"),
    ("here: other domain", "is of another protection domain"),
    ("here: out of bounds", "the range leaves the region"),
    ("here: missing access flag", "lacks the access flag"),
    ("here: receive too small", "it is longer than the receive posted for it"),
    ("here: access not granted", "qp_access_flags do not grant it"),
    ("here: other path_mtu", "do not have the length that path_mtu"),
    ("own memory deregistered", "deregistered while the request was outstanding"),
    ("file truncated", "its file was truncated"),
    ("earlier failure", "it was not at fault: an earlier request"),
    ("application", "the application moved the queue pair to ERR"),
    ("completion queue overflow", "its completion queue overflowed"),
    ("no timeout", "this end waits for ever: timeout is 0"),
    ("no READ credits", "can never leave: max_rd_atomic is 0"),
    ("wrong Q_Key", "their Q_Key is not that of this queue pair"),
    ("dropped without a receive", "no receive was posted for their message"),
    ("datagram too long", "they do not fit the receives posted"),
    ("group not attached", "it is attached to no multicast group"),
    ("dropped access", "key, bounds, access flags or length forbid them"),
    ("shared queue empty", "the shared receive queue of this queue pair is empty"),
    ("named queue empty", "the shared receive queue that it names is empty"),
    ("unknown queue named", "has no such shared receive queue"),
    ("window of another queue pair", "is a window that another queue pair bound"),
    ("window bound twice", "the memory window of type 2 is bound already"),
];

/// An injected failure: its true cause, and a function that provokes it and returns the explanation. The function's
/// argument selects its addresses, 127.92.number.x.
type Case = (&'static str, fn(u8) -> String);

const CASES: &[Case] = &[
    ("no listener", silent::no_listener),
    ("process ended", process::peer_is_killed),
    ("process ended", silent::peer_closes_its_device),
    ("process stopped", process::peer_is_stopped),
    ("wrong queue pair number", silent::wrong_queue_pair_number),
    ("wrong queue pair number", silent::wrong_number_on_a_responding_host),
    ("wrong sequence number", silent::sequence_number_ahead),
    ("wrong sequence number", silent::sequence_number_behind),
    ("requests out of sequence", silent::requests_out_of_sequence),
    ("unreachable", silent::unreachable_address),
    ("broadcast address", silent::broadcast_address),
    ("wrong GID", silent::another_hosts_gid),
    ("path MTU too big for the link", namespace::link_shrinks),
    ("path MTU too big, in silence", silent::large_packets_vanish),
    ("one way only", silent::responses_are_filtered),
    ("no retries", silent::one_loss_without_retries),
    ("timeout too short", silent::response_after_the_last_try),
    ("wrong P_Key", silent::wrong_partition),
    ("damaged packets", silent::damaged_packets),
    ("peer has the wrong number", silent::peer_responds_to_another_queue_pair),
    ("no key", silent::peer_lacks_the_key),
    ("other service", silent::unreliable_peer),
    ("not RoCE", silent::another_protocol),
    ("peer's queue pair gone", silent::peer_goes_to_error),
    ("losses", silent::losses),
    ("receiver never posts", refused::receiver_never_posts),
    ("receiver never posts, for ever", refused::receiver_never_posts_for_ever),
    ("wrong key", refused::wrong_key),
    ("revoked key", refused::revoked_key),
    ("out of bounds", refused::out_of_bounds),
    ("missing access flag", refused::missing_access_flag),
    ("access not granted", refused::access_not_granted),
    ("receive too small", refused::receive_too_small),
    ("too many READs", refused::too_many_reads),
    ("other path_mtu", refused::other_path_mtu),
    ("READ with other path_mtu", refused::read_with_other_path_mtu),
    ("key not invalidated", refused::key_not_invalidated),
    ("receive memory gone", refused::receive_memory_gone),
    ("here: wrong key", local::refuses_wrong_key),
    ("here: other domain", local::refuses_other_domain),
    ("here: out of bounds", local::refuses_out_of_bounds),
    ("here: missing access flag", local::refuses_missing_access_flag),
    ("here: receive too small", local::refuses_long_message),
    ("here: access not granted", local::refuses_ungranted_access),
    ("here: other path_mtu", local::refuses_other_path_mtu),
    ("own memory deregistered", local::own_memory_deregistered),
    ("file truncated", local::file_truncated),
    ("earlier failure", local::earlier_failure),
    ("application", local::application_ends_it),
    ("completion queue overflow", local::completion_queue_overflows),
    ("no timeout", local::no_timeout),
    ("no READ credits", local::no_read_credits),
    ("wrong Q_Key", unreliable::wrong_qkey),
    ("dropped without a receive", unreliable::datagram_without_receive),
    ("dropped without a receive", unreliable::message_without_receive),
    ("datagram too long", unreliable::datagram_too_long),
    ("group not attached", unreliable::group_not_attached),
    ("dropped access", unreliable::write_with_wrong_key),
    ("shared queue empty", shared::shared_queue_is_empty),
    ("named queue empty", shared::named_queue_is_empty),
    ("unknown queue named", shared::unknown_queue_named),
    ("window of another queue pair", shared::window_of_another_queue_pair),
    ("window bound twice", shared::window_bound_twice),
];

/// Returns the cause that the text names first.
fn named_first(text: &str) -> Option<&'static str> {
    let positions = CAUSES.iter().filter_map(|(cause, words)| text.find(words).map(|position| (position, *cause)));
    positions.min().map(|(_, cause)| cause)
}

#[test]
fn explanations_name_the_true_cause() {
    alone(|| {
        let only = std::env::var("EXPLAIN_ONLY").ok();
        let (mut right, mut run) = (0, 0);
        for (number, (cause, inject)) in CASES.iter().enumerate() {
            if only.as_ref().is_some_and(|only| !cause.contains(only.as_str())) {
                continue;
            }
            let text = catch_unwind(AssertUnwindSafe(|| inject(number as u8 + 1)));
            let text = text.unwrap_or_else(|_| "the injection failed".to_owned());
            if text == namespace::SKIPPED {
                println!("{cause}: skipped, this system gives no network of one's own (unshare -rn)");
                continue;
            }
            run += 1;
            let named = named_first(&text);
            right += usize::from(named == Some(cause));
            let mark = if named == Some(cause) { "right" } else { "WRONG" };
            println!("{mark}  {cause}\n       {text}");
        }
        println!("explanations: {right} right of {run}");
        assert!(run - right <= 2, "{right} right of {run}");
    });
}

#[test]
fn words_of_a_cause_are_unique() {
    for (position, (cause, words)) in CAUSES.iter().enumerate() {
        assert!(CASES.iter().any(|case| case.0 == *cause), "{cause} has no case");
        for (other, other_words) in &CAUSES[position + 1..] {
            assert!(!words.contains(other_words) && !other_words.contains(words), "{cause} and {other}");
        }
    }
}
