//! A program in C that posts requests that are refused, that fail, and that name one object twice.

mod library;

const EINVAL: &str = "22";

/// Returns the output of the program in this case, on an address of its own: a datagram may be lost while other
/// processes start to use its address or stop.
fn says(case: &str, address: &str) -> String {
    let mut program = library::program("posting");
    program.arg(case).env("RDMA_VERBS_ADDRESSES", address).env_remove("RDMA_VERBS_MTU");
    let output = program.output().expect("the program runs");
    assert!(output.status.success(), "{case}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim_end().replace('\n', "; ")
}

/// Many programs pass no pointer for the refused request.
#[test]
fn a_refused_request_needs_no_place_for_its_name() {
    assert_eq!(says("refused", "127.61.3.2"), [EINVAL; 7].join(" "));
}

/// As with adapters: the program names the window, and the lower eight bits of its new key.
#[test]
fn a_bind_is_for_the_window_that_it_names() {
    for case in ["window", "extended window"] {
        // The bind, and a WRITE through the window that was named. Last a WRITE through the other window: the peer,
        // which is the queue pair itself, refuses it and moves both ends to the error state, so it is flushed.
        assert_eq!(says(case, "127.61.3.5"), "0 0; 0 0; 5", "{case}");
    }
    assert_eq!(says("no window", "127.61.3.5"), format!("{EINVAL} 1"));
}

/// `IBV_WC_LOC_LEN_ERR`, as with adapters, and the send queue is in error until it is brought up again.
#[test]
fn a_datagram_longer_than_its_path_takes_fails_by_its_completion() {
    assert_eq!(says("datagram", "127.61.3.6"), "0 1 1 0 0");
}

#[test]
fn a_rate_limit_is_taken_and_ended() {
    assert_eq!(says("rate limit", "127.61.3.7"), format!("1 0 {EINVAL} 0"));
}
