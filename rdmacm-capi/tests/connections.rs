//! A C program that connects to itself: its output for each of its cases.

mod library;

use std::process::Command;

/// Returns the program's output for this case. Each case has its own addresses.
fn output_of(case: &str, last: u8) -> String {
    output_with(case, last, |_, _| {})
}

/// As [`output_of`], with a change to the program's environment.
fn output_with(case: &str, last: u8, change: impl FnOnce(&mut Command, &[String; 2])) -> String {
    let addresses = [1, 2].map(|host| format!("127.63.{host}.{last}"));
    library::output_with("connections", case, &addresses, |program| change(program, &addresses))
}

/// The request tells the receiver what it may have: the peer's depth and resources, swapped. `timeout` is the option of
/// each end. Two ends each have an event of the end, and of the end of the time wait.
#[test]
fn connection_is_set_up_used_and_ended() {
    let output = output_of("connection", 1);
    let begin = "ADDR_RESOLVED 0; ROUTE_RESOLVED 0; request request 56 3 2 7 5; reply 2 2; timeouts 21 19; EISCONN \
                 DISCONNECTED 0; ";
    assert!(output.starts_with(begin), "{output}");
    let mut rest: Vec<&str> = output[begin.len()..].split("; ").collect();
    assert_eq!(rest.pop(), Some("0"), "a second disconnect does nothing: {output}");
    rest.sort_unstable();
    assert_eq!(rest, ["DISCONNECTED 0", "TIMEWAIT_EXIT 0", "TIMEWAIT_EXIT 0"], "{output}");
}

/// 8: no listener. 28: the program rejects it, destroys its identifier, or destroys the listener.
#[test]
fn rejected_requests_have_the_reason_and_the_data() {
    let routed = "ADDR_RESOLVED 0; ROUTE_RESOLVED 0; ";
    let expected =
        format!("{routed}REJECTED 8; EINVAL 0 {routed}28 \"\" 148; {routed}28 \"no\" 148; {routed}REJECTED 28;");
    assert_eq!(output_of("rejection", 2), expected);
}

/// The masks are those of Linux for INIT, RTR and RTS.
#[test]
fn program_moves_its_own_queue_pairs() {
    let expected = "ADDR_RESOLVED 0; ROUTE_RESOLVED 0; 0 0 15b3 7; 39 129181 12e01 CONNECT_RESPONSE 0; ESTABLISHED 0; \
                    DISCONNECTED 0;";
    assert_eq!(output_of("external", 3), expected);
}

/// Status 1: no listener; 2: the program rejects.
#[test]
fn datagram_queue_pairs_are_found_by_address() {
    let routed = "ADDR_RESOLVED 0; ROUTE_RESOLVED 0; ";
    let expected = format!("{routed}UNREACHABLE 1; {routed}UNREACHABLE 2; {routed}ESTABLISHED 0; datagram;");
    assert_eq!(output_of("datagrams", 4), expected);
}

#[test]
fn multicast_group_is_joined_used_and_left() {
    let expected = "EINVAL ADDR_RESOLVED 0; EINVAL ENOTSUP MULTICAST_JOIN 0 ffffff 1234567; to all; 0 EADDRNOTAVAIL";
    assert_eq!(output_of("multicast", 5), expected);
}

/// Destroying the identifier does not use the queue pair that the program has destroyed.
#[test]
fn queue_pair_may_be_destroyed_before_its_identifier() {
    assert_eq!(output_of("stale_queue_pair", 15), "MULTICAST_JOIN 0; 0 0");
}

/// It may arrive in any call of the library, which may hold locks that moving a queue pair needs.
#[test]
fn reply_moves_the_queue_pair_when_its_event_is_read() {
    let routed = "ADDR_RESOLVED 0; ROUTE_RESOLVED 0; ";
    assert_eq!(output_of("reply_waits", 16), format!("{routed}INIT ESTABLISHED 0; ESTABLISHED 0;"));
}

/// Its acceptance has no event that would acknowledge the one of the request.
#[test]
fn synchronous_acceptance_of_a_datagram_request_acknowledges_it() {
    let routed = "ADDR_RESOLVED 0; ROUTE_RESOLVED 0; ";
    assert_eq!(output_of("synchronous_datagrams", 18), format!("{routed}none; ESTABLISHED 0;"));
}

#[test]
fn synchronous_calls_wait_for_their_events() {
    let expected = "ECONNREFUSED 8; RDMA_CM_EVENT_ESTABLISHED reply; EINVAL 0 DISCONNECTED 0;";
    assert_eq!(output_of("synchronous", 6), expected);
}

/// 57 bytes of data do not fit into a request.
#[test]
fn endpoint_that_fails_leaves_nothing() {
    assert_eq!(output_of("failed_endpoint", 19), "EINVAL");
}

#[test]
fn identifiers_use_their_own_objects_and_those_of_the_program() {
    let routed = "ADDR_RESOLVED 0; ROUTE_RESOLVED 0; ";
    assert_eq!(output_of("objects", 20), format!("{routed}0 0 0 0 EINVAL 0"));
}

#[test]
fn domain_of_an_endpoint_is_that_of_its_children() {
    let child = "ADDR_RESOLVED 0; ROUTE_RESOLVED 0; its domain; REJECTED 28; ";
    assert_eq!(output_of("endpoint_domains", 21), format!("its domain; {child}{child}").trim_end());
}

/// TCP: parameters are required, and their resources are limited. The other spaces send the request: 8 and 1 are the
/// answers of an address without a listener.
#[test]
fn parameters_are_checked_in_the_space_of_tcp() {
    let routed = "ADDR_RESOLVED 0; ROUTE_RESOLVED 0; ";
    let expected = ["EINVAL", "EINVAL", "REJECTED 8", "REJECTED 8", "UNREACHABLE 1", "UNREACHABLE 1"];
    assert_eq!(output_of("other_spaces", 22), expected.map(|end| format!("{routed}{end};")).join(" "));
}

/// 197 bytes of data do not fit into a reply.
#[test]
fn queue_pair_of_a_reply_that_fails_is_in_the_error_state() {
    assert_eq!(output_of("refused_reply", 23), "ADDR_RESOLVED 0; ROUTE_RESOLVED 0; EINVAL 1 1; REJECTED 28;");
}

/// A synchronous call waits for an event only if there will be one.
#[test]
fn connection_may_be_ended_again() {
    assert_eq!(output_of("repeated_ends", 24), "0 0 0");
}

/// Each address has a device. Both requests to the first one arrive before those to the other one.
#[test]
fn devices_of_a_listener_take_turns() {
    let output = output_with("devices_in_turn", 25, |program, addresses| {
        program.env("RDMA_VERBS_ADDRESSES", addresses.join(","));
    });
    assert_eq!(output, "ADDR_RESOLVED 0; ROUTE_RESOLVED 0; ".repeat(4) + "first; second; first; second;");
}

/// The listener of IPv6 succeeds without an address of its version. With the option `RDMA_OPTION_ID_AFONLY`, requests
/// to IPv4 addresses are rejected without an event, as on Linux; without it, the program gets an event.
#[test]
fn listener_on_all_addresses_needs_none_of_its_version() {
    let output = output_with("wildcards", 99, |program, addresses| {
        program.env("RDMA_VERBS_ADDRESSES", addresses.join(","));
    });
    let routed = "ADDR_RESOLVED 0; ROUTE_RESOLVED 0; ";
    assert_eq!(output, format!("0 0 0 0 0 ; {routed}REJECTED 28; 0 0 {routed}REJECTED 28;"));
}

/// For `poll`, `select` and `epoll`; nonblocking, if the program sets it; and with each event an edge.
#[test]
fn descriptor_is_readable_exactly_while_events_wait() {
    assert_eq!(output_of("descriptors", 7), "EAGAIN EINVAL EINVAL ADDR_RESOLVED 0; ROUTE_RESOLVED 0;");
}

#[test]
fn destruction_waits_for_acknowledgements() {
    assert_eq!(output_of("destruction", 8), "waited");
}

/// Other threads, which take its requests, use it no longer.
#[test]
fn port_is_free_when_its_listener_is_destroyed() {
    assert_eq!(output_of("freed_port", 26), "freed");
}

#[test]
fn threads_share_a_channel() {
    assert_eq!(output_of("threads", 10), "100 ended");
}

#[test]
fn child_uses_the_library_and_not_what_it_inherits() {
    let expected = "EINVAL EINVAL EINVAL ADDR_RESOLVED 0; ROUTE_RESOLVED 0; ESTABLISHED 0; DISCONNECTED 0;";
    assert_eq!(output_of("forked", 11), expected);
}

#[test]
fn connection_outlasts_children_that_execute_clean_up_and_live_on() {
    let routed = "0 ADDR_RESOLVED 0; ROUTE_RESOLVED 0; ";
    assert_eq!(output_of("forks_in_use", 32), format!("{routed}ESTABLISHED 0; ESTABLISHED 0; 0 DISCONNECTED 0;"));
}

/// 5 requests, two each but for the process that is killed, and one of its successor.
#[test]
fn forked_processes_of_a_server_each_listen() {
    assert_eq!(output_of("forked_servers", 33), "ESTABLISHED 0; ".repeat(6).trim_end());
}

/// It is stopped for 1.5 s. 17: the timeout of 0.54 s that Linux' rdma_cm has.
#[test]
fn connection_outlasts_a_peer_that_does_not_run() {
    let routed = "ADDR_RESOLVED 0; ROUTE_RESOLVED 0; ";
    assert_eq!(output_of("stopped_peer", 29), format!("{routed}ESTABLISHED 0; 17 success"));
}

/// 0: every child could acknowledge the event.
#[test]
fn child_may_acknowledge_what_it_inherits() {
    assert_eq!(output_of("forked_acknowledgement", 28), "0");
}

#[test]
fn shared_receive_queues_belong_to_identifiers() {
    let expected = "ADDR_RESOLVED 0; ROUTE_RESOLVED 0; 0 EINVAL EINVAL 0 0 EINVAL ESTABLISHED 0; ESTABLISHED 0;";
    assert_eq!(output_of("shared_receives", 13), expected);
}

/// The masks are those of Linux for INIT, RTR and RTS: an initiator serves nothing, and a target requests nothing.
#[test]
fn initiator_sends_to_the_shared_receive_queue_of_a_target() {
    assert_eq!(output_of("extended", 30), "39 101181 12e01 39 129181 10201");
}

/// 28: the listener is for the other transport. The last errors are those of an initiator that listens, of a target
/// that connects, of a shared receive queue without a type, and of one with too many parts.
#[test]
fn transports_and_roles_are_checked() {
    let expected = "ECONNREFUSED 28; ECONNREFUSED 28; ECONNREFUSED EINVAL EINVAL EINVAL 0 EINVAL";
    assert_eq!(output_of("other_transports", 31), expected);
}

/// Family, type of the queue pair, port space, source and destination; or the error of `getaddrinfo`: -2 no such name,
/// -9 another family, -7 no such type of socket, -8 no such service. The device is one of the list, once.
#[test]
fn names_are_looked_up_and_devices_listed() {
    let expected = "0 2 2 106 0.0.0.0/16:7471 -/0:0; 0 2 2 106 127.0.0.1/16:7471 -/0:0; \
                    0 2 2 106 -/0:0 127.0.0.1/16:7471; 0 2 4 111 -/0:0 127.0.0.1/16:7471; \
                    0 2 2 13f -/0:0 127.0.0.1/16:7471; -2; -9; -7; -8; 0 0 0 106 -/0:0 -/0:0; EINVAL 1";
    assert_eq!(output_of("lookups", 14), expected);
}

/// Each wait ends for its own reason, and the channel still works.
#[test]
fn signals_and_cancellation_end_a_wait() {
    assert_eq!(output_of("interruption", 12), "EINTR; cancelled; 0");
}

/// The cancellation is pending before, and takes effect after the calls.
#[test]
fn calls_are_no_cancellation_points() {
    assert_eq!(output_of("cancelled_calls", 27), "called, cancelled");
}

#[test]
fn calls_out_of_order_have_the_error_numbers_of_linux() {
    let expected = "EINVAL EINVAL EINVAL EINVAL EINVAL EINVAL EINVAL EINVAL EINVAL ; EADDRNOTAVAIL EADDRNOTAVAIL \
                    EINVAL 0 EINVAL EADDRNOTAVAIL 0 EINVAL EINVAL EINVAL ; EINVAL 0 0 ENOSYS ENOSYS 0 ; UNKNOWN EVENT";
    assert_eq!(output_of("errors", 9), expected);
}

/// Runs the program with our librdmacm and this libibverbs, and returns its output and its error output.
fn with_libibverbs(name: &str, source: &str) -> (String, String) {
    let folder = library::own_folder(name);
    library::link(&library::folder().join("librdmacm.so.1"), &folder.join("librdmacm.so.1"));
    let (file, object) = (folder.join("libibverbs.c"), folder.join("libibverbs.so.1"));
    std::fs::write(&file, source).expect("a folder to write to");
    // The program's own symbols of libibverbs.
    let functions = "ack_cq_events alloc_pd create_ah create_cq create_qp dereg_mr destroy_ah get_cq_event modify_qp \
                     query_qp reg_mr reg_mr_iova2";
    let functions: String = functions.split_whitespace().map(|name| format!("void ibv_{name}(void) {{}}\n")).collect();
    std::fs::write(folder.join("functions.c"), functions).expect("a folder to write to");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "-o"]).arg(&object);
    compiler.arg(file).arg(folder.join("functions.c"));
    assert!(compiler.status().expect("a C compiler").success(), "{compiler:?} failed");
    let mut program = Command::new(library::program("connections"));
    let output = program.arg("foreign").env("LD_LIBRARY_PATH", folder).output().expect("the program runs");
    [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).into()
}

/// Otherwise two engines would work on the same devices, or none.
#[test]
fn another_libibverbs_is_refused_with_its_path() {
    let list = "void *ibv_get_device_list(int *count) { return 0; }\n";
    let foreign = list.to_owned();
    let older = format!("{list}void *rdma_verbs_connection_functions(unsigned long version) {{ return 0; }}\n");
    for (name, source, why) in
        [("foreign", foreign, "is another library"), ("older", older, "belongs to another build")]
    {
        let (output, errors) = with_libibverbs(name, &source);
        assert_eq!(output, "none ENOSYS", "{errors}");
        let lines: Vec<&str> = errors.lines().filter(|line| line.starts_with("librdmacm.so.1 of rdma-verbs")).collect();
        assert_eq!(lines.len(), 1, "{errors}");
        assert!(lines[0].contains(&format!("-{name}/libibverbs.so.1) {why}")), "{errors}");
    }
}
