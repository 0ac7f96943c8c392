//! A C program that uses both ends of sockets over RDMA: its output for each of its cases.

mod library;

/// Returns the program's output for this case. Each case has its own address.
fn output_of(case: &str, last: u8) -> String {
    library::output_with("sockets", case, &[format!("127.63.3.{last}")], |_| {})
}

/// Writing after the end of the own direction, and behind the end of the peer, fails as in rdma-core.
#[test]
fn stream_has_data_and_two_ends() {
    let expected = "5 3 abc 5 abcde EAGAIN EISCONN 5 5 ; 0 ECONNRESET 0 4 0 4 0 0 0 EBADF";
    assert_eq!(output_of("stream", 1), expected);
}

#[test]
fn threads_send_and_receive_at_once() {
    assert_eq!(output_of("threads", 2), "both directions");
}

/// As much is received as was sent until the buffers were full. At the end: no listener.
#[test]
fn nonblocking_calls_do_not_wait() {
    let expected = "EAGAIN 0 EAGAIN EAGAIN 1 1 ECONNREFUSED ENOTCONN ECONNREFUSED";
    assert_eq!(output_of("nonblocking", 3), expected);
}

#[test]
fn sockets_and_descriptors_are_polled_together() {
    assert_eq!(output_of("polling", 4), "0 1 1 0 2 3 1101 EINVAL");
}

#[test]
fn signals_and_cancellation_end_a_wait() {
    assert_eq!(output_of("interruption", 5), "EINTR EINTR cancelled 1");
}

#[test]
fn end_of_the_peer_is_noticed() {
    assert_eq!(output_of("endings", 6), "1 ECONNRESET ECONNRESET 0");
}

#[test]
fn thousand_connections_leave_nothing() {
    assert_eq!(output_of("many", 7), "1000");
}

/// Two ranges fit into the peer's table. A write ends at the end of its range.
#[test]
fn mapped_ranges_are_written_by_the_peer() {
    assert_eq!(output_of("mapping", 8), "1000 5000 ENOMEM EINVAL 3 2 0 abc ab EINVAL 0 6000");
}

#[test]
fn datagrams_have_their_senders() {
    assert_eq!(output_of("datagrams", 9), "EDESTADDRREQ EMSGSIZE EAGAIN 3 6 0 0");
}

#[test]
fn errors_and_options_are_those_of_rdma_core() {
    let expected = "ENOTSUP ENOTSUP ENOTSUP EBADF EBADF ENOTCONN ENOTCONN EBADF EINVAL ENOTSUP ENOTSUP ENOTSUP EINVAL \
                    ; 200000 50 EINVAL 1 EADDRNOTAVAIL 0";
    assert_eq!(output_of("errors", 10), expected);
}

#[test]
fn connection_is_kept_alive_unnoticed() {
    assert_eq!(output_of("keepalive", 11), "1");
}

#[test]
fn child_has_its_own_sockets() {
    assert_eq!(output_of("forked", 12), "EBADF 1 1");
}

/// Two processes, of which each has an end of all of them: data, descriptors, and the registry's folder.
#[test]
fn thousand_sockets_are_open_at_once() {
    assert_eq!(output_of("thousand", 13), "1000");
}

/// The peer's private data is of no socket, or says nothing useful.
#[test]
fn useless_requests_and_replies_are_refused_or_harmless() {
    assert_eq!(output_of("hostile_requests", 14), "rejected or harmless");
    assert_eq!(output_of("hostile_replies", 15), "refused");
}

/// The peer violates the protocol on a connection that exists, in each way.
#[test]
fn violations_end_their_connection_only() {
    assert_eq!(output_of("hostile_messages", 16), "20 ended");
}

/// The peer sends what it may, without end.
#[test]
fn useless_messages_are_ignored() {
    assert_eq!(output_of("hostile_floods", 17), "harmless");
}
