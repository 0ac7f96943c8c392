//! A C program that posts requests that are refused, that fail, and that identify an object both by pointer and by key.

mod library;

const EINVAL: &str = "22";

/// Returns the program's output for this case. Each case has its own address, because a datagram may be lost while
/// other processes start or stop using the same address.
fn output_of(case: &str, address: &str) -> String {
    let mut program = library::program("posting");
    program.arg(case).env("RDMA_VERBS_ADDRESSES", address).env_remove("RDMA_VERBS_MTU");
    let output = program.output().expect("the program runs");
    assert!(output.status.success(), "{case}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim_end().replace('\n', "; ")
}

/// Many programs pass no pointer for the refused request.
#[test]
fn bad_wr_may_be_null() {
    assert_eq!(output_of("refused", "127.61.3.2"), [EINVAL; 7].join(" "));
}

/// As with adapters, the program selects the window, and the lower eight bits of its new key.
#[test]
fn bind_applies_to_the_named_window() {
    for case in ["window", "extended window"] {
        // The bind, and a WRITE through the selected window. Last a WRITE through the other window: the peer, which is
        // the queue pair itself, refuses it and moves both ends to the error state, so the WRITE is flushed.
        assert_eq!(output_of(case, "127.61.3.5"), "0 0; 0 0; 5", "{case}");
    }
    assert_eq!(output_of("no window", "127.61.3.5"), format!("{EINVAL} 1"));
}

#[test]
fn concurrent_binds_of_one_window_get_different_keys() {
    assert_eq!(output_of("two binds", "127.61.3.8"), "1");
}

/// The status is `IBV_WC_LOC_LEN_ERR`, as with adapters, and the queue pair is in SQE until it is modified to RTS.
#[test]
fn datagram_longer_than_the_path_mtu_fails_by_its_completion() {
    assert_eq!(output_of("datagram", "127.61.3.6"), "0 1 1 0 0");
}

#[test]
fn rate_limit_is_set_and_removed() {
    assert_eq!(output_of("rate limit", "127.61.3.7"), format!("1 0 {EINVAL} 0"));
}
