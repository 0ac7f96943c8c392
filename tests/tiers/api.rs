//! The verbs on the software transport, over loopback: every operation, every misuse, every order of dropping.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::{
    self, AccessFlags, AsyncEvent, AttributeFault, CompletionOpcode, CompletionQueueOptions, CompletionStatus,
    ConnectOptions, ErrorKind, MemoryRegion, Notify, Payload, QueuePair, QueuePairAttributes, QueuePairOptions,
    QueuePairState, ReceiveRequest, RegionList, RemoteMemory, Rkey, SendRequest,
};
use support::{ALL_ACCESS, End, PATIENCE};

/// Two connected ends on 127.0.2.`first` and the following address.
fn pair(first: u8) -> (End, End) {
    pair_with(first, &ConnectOptions::default())
}

fn pair_with(first: u8, options: &ConnectOptions) -> (End, End) {
    let [left, right] = [first, first + 1].map(|host| End::open(&format!("127.0.2.{host}")));
    left.connect(&right, options);
    (left, right)
}

#[track_caller]
fn refused(result: verbs::Result<()>, kind: ErrorKind, parts: &[&str]) {
    let error = result.expect_err("an error");
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "\"{part}\" is not in \"{error}\"");
    }
}

#[test]
fn messages_arrive_with_their_bytes_and_immediate_data() {
    let (left, right) = pair(1);
    let (source, inbox) = (left.region(4096), right.region(4096));
    source.write_at(0, b"gathered from two places").unwrap();
    let halves = [inbox.slice(0..5).unwrap(), inbox.slice(100..200).unwrap()];
    right.qp.post_recv(&[ReceiveRequest::new(&halves).wr_id(1)]).unwrap();
    right
        .qp
        .post_recv(&[ReceiveRequest::new(&inbox).wr_id(2), ReceiveRequest::new(RegionList::EMPTY).wr_id(3)])
        .unwrap();
    let sges = [source.slice(0..8).unwrap(), source.slice(8..24).unwrap()];
    left.qp.post_send(&[SendRequest::send(&sges).wr_id(11).signaled()]).unwrap();
    left.qp.post_send(&[SendRequest::send_with_immediate(Payload::inline(b"now"), 0xabcd_1234).wr_id(12)]).unwrap();
    left.qp.post_send(&[SendRequest::send(Payload::EMPTY).wr_id(13).signaled()]).unwrap();

    let first = right.succeeds(1);
    assert_eq!((first.opcode, first.byte_len, first.immediate), (CompletionOpcode::Receive, 24, None));
    assert_eq!(inbox.to_vec(100..119).unwrap(), b"red from two places");
    let second = right.succeeds(2);
    assert_eq!((second.byte_len, second.immediate), (3, Some(0xabcd_1234)));
    assert_eq!(inbox.to_vec(0..5).unwrap(), b"nowhe");
    assert_eq!(right.succeeds(3).byte_len, 0);
    left.succeeds(11);
    left.succeeds(13);
}

#[test]
fn one_sided_operations_work_on_the_peers_memory() {
    let (left, right) = pair(3);
    let (near, far) = (left.region(1 << 20), right.region(1 << 20));
    let pattern: Vec<u8> = (0..1 << 19).map(|index: u32| (index ^ (index >> 8)) as u8).collect();
    near.write_at(0, &pattern).unwrap();
    right.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY).wr_id(9)]).unwrap();
    let (half, remote) = (near.slice(..1 << 19).unwrap(), far.remote());
    left.qp
        .post_send(&[
            SendRequest::write(half, remote).wr_id(1),
            SendRequest::write_with_immediate(near.slice(..3).unwrap(), remote.slice(1 << 19..).unwrap(), 77),
            SendRequest::read(near.slice(1 << 19..).unwrap(), remote.slice(..1 << 19).unwrap()).wr_id(2).signaled(),
        ])
        .unwrap();
    let written = right.succeeds(9);
    assert_eq!((written.opcode, written.immediate), (CompletionOpcode::ReceiveWriteWithImmediate, Some(77)));
    assert_eq!(written.byte_len, 3);
    assert_eq!(left.succeeds(2).byte_len, 1 << 19);
    assert_eq!(far.to_vec(..1 << 19).unwrap(), pattern);
    assert_eq!(near.to_vec(1 << 19..).unwrap(), pattern);
}

#[test]
fn atomics_return_the_value_before() {
    let (left, right) = pair(5);
    let (result, word) = (left.region(64), right.region(64));
    word.store_release_u64(8, 40).unwrap();
    let (into, remote) = (result.slice(..8).unwrap(), word.remote().slice(8..).unwrap());
    let execute = |request: SendRequest<'_>| {
        left.qp.post_send(&[request.wr_id(4).signaled()]).unwrap();
        left.succeeds(4);
        (result.load_acquire_u64(0).unwrap(), word.load_acquire_u64(8).unwrap())
    };
    assert_eq!(execute(SendRequest::fetch_and_add(into, remote, 2)), (40, 42));
    assert_eq!(execute(SendRequest::compare_and_swap(into, remote, 41, 1)), (42, 42));
    assert_eq!(execute(SendRequest::compare_and_swap(into, remote, 42, u64::MAX)), (42, u64::MAX));
    assert_eq!(execute(SendRequest::fetch_and_add(into, remote, 1)), (u64::MAX, 0));
}

#[test]
fn wrong_states_are_refused() {
    let end = End::open("127.0.2.7");
    let region = end.region(64);
    let (send, receive) = (SendRequest::send(&region), ReceiveRequest::new(&region));
    refused(end.qp.post_recv(&[receive]), ErrorKind::InvalidState, &["post_recv", "RESET"]);
    refused(end.qp.post_send(&[send]), ErrorKind::InvalidState, &["post_send", "RESET"]);
    end.qp.init().unwrap();
    end.qp.post_recv(&[receive]).unwrap();
    refused(end.qp.post_send(&[send]), ErrorKind::InvalidState, &["post_send", "INIT"]);
    let straight = QueuePairAttributes::default().qp_state(QueuePairState::ReadyToSend);
    refused(end.qp.modify(&straight), ErrorKind::InvalidState, &["modify_qp", "INIT to RTS"]);
    assert_eq!(end.qp.state().unwrap(), QueuePairState::Init);
}

#[test]
fn limits_are_named() {
    let options =
        QueuePairOptions::default().max_send_wr(4).max_recv_wr(2).max_send_sge(2).max_recv_sge(1).max_inline_data(8);
    let end = End::with_options("127.0.2.8", &options);
    end.qp.connect(&end.qp.connection_info().unwrap()).unwrap();
    let region = end.region(64);
    let cap = end.qp.cap();
    let long = vec![0; cap.max_inline_data as usize + 1];
    let many = vec![region.slice(..1).unwrap(); cap.max_send_sge as usize + 1];
    let limit = cap.max_inline_data.to_string();
    let inline = SendRequest::send(Payload::inline(&long));
    refused(end.qp.post_send(&[inline]), ErrorKind::InvalidArgument, &["post_send", "inline", &limit]);
    let limit = cap.max_send_sge.to_string();
    refused(end.qp.post_send(&[SendRequest::send(&many[..])]), ErrorKind::InvalidArgument, &["post_send", &limit]);
    let many = vec![ReceiveRequest::new(RegionList::EMPTY); cap.max_recv_wr as usize + 1];
    refused(end.qp.post_recv(&many), ErrorKind::QueueFull, &["post_recv"]);

    // None of the refused requests was posted, and a full queue has free slots again after the poll.
    end.qp.post_recv(&many[1..]).unwrap();
    let write = SendRequest::write(region.slice(..8).unwrap(), region.remote().slice(8..).unwrap()).signaled();
    for _ in 0..3 {
        end.qp.post_send(&vec![write; cap.max_send_wr as usize]).unwrap();
        refused(end.qp.post_send(&[write]), ErrorKind::QueueFull, &["post_send"]);
        for _ in 0..cap.max_send_wr {
            assert_eq!(end.succeeds(0).opcode, CompletionOpcode::Write);
        }
    }
}

/// Checks that exactly these attributes are refused, and that the text names each.
#[track_caller]
fn refused_attributes<T: std::fmt::Debug>(result: verbs::Result<T>, expected: &[(&str, AttributeFault)]) {
    let error = result.unwrap_err();
    let found: Vec<_> = error.attributes().iter().map(|refused| (refused.name(), refused.fault().clone())).collect();
    assert_eq!(found, expected, "{error}");
    for (name, _) in expected {
        assert!(error.to_string().contains(name), "{name} is not in \"{error}\"");
    }
}

#[test]
fn refused_attributes_are_data() {
    use AttributeFault::{Missing, NotAllowed, OutOfRange, Unsuitable};

    let (left, _right) = pair(41);
    let (context, region) = (&left.context, left.region(64));
    let most = u64::from(context.query_device().max_cqe);
    let cqe = [("cqe", OutOfRange { given: 0, allowed: 1..=most })];
    refused_attributes(context.create_cq(0), &cqe);
    refused_attributes(left.cq.resize(0), &cqe);
    let period = OutOfRange { given: 1_000_000, allowed: 0..=65_535 };
    refused_attributes(left.cq.moderate(2, Duration::from_secs(1)), &[("cq_period", period)]);
    let without_write = left.pd.alloc_mr(64, AccessFlags::REMOTE_WRITE);
    refused_attributes(without_write, &[("access", Unsuitable)]);
    refused_attributes(region.slice(60..65), &[("range", Unsuitable)]);

    let send = |request| left.qp.post_send(&[request]);
    let limit = u64::from(left.qp.cap().max_inline_data);
    let long = vec![0; limit as usize + 1];
    let inline = OutOfRange { given: limit + 1, allowed: 0..=limit };
    let error = send(SendRequest::send(Payload::inline(&long))).unwrap_err();
    assert_eq!((error.attributes()[0].name(), error.attributes()[0].fault()), ("inline_data", &inline));
    let beyond = RemoteMemory::new(0x1000, Rkey(7), 63);
    let length = OutOfRange { given: 64, allowed: 0..=63 };
    refused_attributes(send(SendRequest::write(&region, beyond)), &[("length", length)]);

    let qp = left.pd.create_qp(&left.cq, &left.cq).unwrap();
    let init = QueuePairAttributes::default().qp_state(QueuePairState::Init);
    let needed = ["pkey_index", "port_num", "qp_access_flags"].map(|name| (name, Missing));
    refused_attributes(qp.modify(&init), &needed);
    let mixed = init.pkey_index(0).port_num(1).retry_cnt(3);
    refused_attributes(qp.modify(&mixed), &[("qp_access_flags", Missing), ("retry_cnt", NotAllowed)]);
    let port = init.pkey_index(0).port_num(9).qp_access_flags(AccessFlags::empty());
    refused_attributes(qp.modify(&port), &[("port_num", OutOfRange { given: 9, allowed: 1..=1 })]);
    refused_attributes(context.query_gid(1, u8::MAX).map(drop), &[("gid_index", gid_index(context))]);

    // Failures that are not about attributes name none.
    refused_attributes(left.cq.wait(Duration::ZERO), &[]);
}

fn gid_index(context: &verbs::Context) -> AttributeFault {
    let last = context.query_port(1).unwrap().gid_tbl_len - 1;
    AttributeFault::OutOfRange { given: u8::MAX.into(), allowed: 0..=last.into() }
}

#[test]
fn the_peer_refuses_ungranted_access() {
    type Grant = fn(&End) -> (MemoryRegion, RemoteMemory);
    let cases: [(u8, Grant); 3] = [
        (10, |right| {
            let region = right.pd.alloc_mr(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ).unwrap();
            let remote = region.remote();
            (region, remote)
        }),
        (12, |right| {
            let region = right.region(64);
            let remote = RemoteMemory::new(region.iova() + 32, region.rkey(), 64);
            (region, remote)
        }),
        (14, |right| {
            let region = right.region(64);
            let remote = RemoteMemory::new(region.iova(), Rkey(region.rkey().0 ^ 1), 64);
            (region, remote)
        }),
    ];
    for (address, grant) in cases {
        let (left, right) = pair(address);
        let (source, (target, remote)) = (left.region(64), grant(&right));
        target.write_at(0, &[5; 64]).unwrap();
        left.qp.post_send(&[SendRequest::write(&source, remote).wr_id(1)]).unwrap();
        left.qp.post_send(&[SendRequest::send(&source).wr_id(2)]).unwrap();
        left.fails(1, CompletionStatus::RemoteAccessError);
        left.fails(2, CompletionStatus::WorkRequestFlushedError);
        assert_eq!(right.event(), AsyncEvent::QueuePairAccessError(right.qp.qpn()));
        assert_eq!(left.qp.state().unwrap(), QueuePairState::Error);
        assert_eq!(target.to_vec(..).unwrap(), [5; 64]);
    }
}

#[test]
fn a_receive_that_is_too_small_fails_on_both_sides() {
    let (left, right) = pair(16);
    let inbox = right.region(8);
    right.qp.post_recv(&[ReceiveRequest::new(&inbox).wr_id(1), ReceiveRequest::new(&inbox).wr_id(2)]).unwrap();
    left.qp.post_send(&[SendRequest::send(Payload::inline(b"nine byte")).wr_id(3)]).unwrap();
    right.fails(1, CompletionStatus::LocalLengthError);
    right.fails(2, CompletionStatus::WorkRequestFlushedError);
    left.fails(3, CompletionStatus::RemoteInvalidRequestError);
}

#[test]
fn deregistered_memory_is_not_touched() {
    let (left, right) = pair(18);
    let inbox = right.pd.reg_mr(vec![1; 64], ALL_ACCESS).unwrap();
    right.qp.post_recv(&[ReceiveRequest::new(&inbox).wr_id(1)]).unwrap();
    let memory = inbox.dereg().unwrap();
    left.qp.post_send(&[SendRequest::send(Payload::inline(&[2; 64])).wr_id(2)]).unwrap();
    right.fails(1, CompletionStatus::LocalProtectionError);
    left.fails(2, CompletionStatus::RemoteOperationError);
    assert_eq!(memory.into_vec().unwrap(), [1; 64]);
}

#[test]
fn a_peer_without_receives_is_waited_for_or_given_up() {
    let (left, right) = pair_with(20, &ConnectOptions::default().rnr_retry(7).min_rnr_timer(1));
    let inbox = right.region(64);
    left.qp.post_send(&[SendRequest::send(Payload::inline(b"patient")).wr_id(1).signaled()]).unwrap();
    assert_eq!(left.cq.wait(Duration::from_millis(20)).unwrap_err().kind(), ErrorKind::TimedOut);
    right.qp.post_recv(&[ReceiveRequest::new(&inbox).wr_id(2)]).unwrap();
    assert_eq!(right.succeeds(2).byte_len, 7);
    left.succeeds(1);

    let (left, right) = pair_with(22, &ConnectOptions::default().rnr_retry(2).min_rnr_timer(1));
    left.qp.post_send(&[SendRequest::send(Payload::inline(b"impatient")).wr_id(1)]).unwrap();
    left.fails(1, CompletionStatus::ReceiverNotReadyRetryExceededError);
    assert_eq!(right.qp.state().unwrap(), QueuePairState::ReadyToSend);
}

#[test]
fn a_vanished_peer_ends_all_requests_within_the_bound() {
    let (left, right) = pair_with(24, &ConnectOptions::default().timeout(10).retry_cnt(3));
    drop(right);
    let start = Instant::now();
    for wr_id in 0..3 {
        left.qp.post_send(&[SendRequest::send(Payload::inline(b"?")).wr_id(wr_id)]).unwrap();
    }
    let (wr_id, result) = left.next();
    let failure = result.unwrap_err();
    assert_eq!((wr_id, failure.status), (0, CompletionStatus::RetryExceededError));
    // Four tries of 4.2 ms by the standard, each at most four times as long, and a busy machine.
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let text = left.qp.explain(&failure);
    assert!(text.contains("127.0.2.25") && text.contains("3 repetitions"), "{text}");
    left.fails(1, CompletionStatus::WorkRequestFlushedError);
    left.fails(2, CompletionStatus::WorkRequestFlushedError);
}

#[test]
fn the_error_state_flushes_in_order_and_reset_starts_over() {
    let end = End::connected_to_itself("127.0.2.26");
    let region = end.region(64);
    end.qp.post_recv(&[ReceiveRequest::new(&region).wr_id(1), ReceiveRequest::new(&region).wr_id(2)]).unwrap();
    let error = QueuePairAttributes::default().qp_state(QueuePairState::Error);
    end.qp.modify(&error).unwrap();
    end.qp.post_send(&[SendRequest::send(&region).wr_id(3)]).unwrap();
    for wr_id in 1..4 {
        end.fails(wr_id, CompletionStatus::WorkRequestFlushedError);
    }
    end.qp.post_send(&[SendRequest::send(&region).wr_id(4)]).unwrap();
    end.qp.reset().unwrap();
    assert_eq!(end.cq.wait(Duration::ZERO).unwrap_err().kind(), ErrorKind::TimedOut, "RESET removes completions");

    end.qp.connect(&end.qp.connection_info().unwrap()).unwrap();
    end.qp.post_recv(&[ReceiveRequest::new(&region).wr_id(5)]).unwrap();
    end.qp.post_send(&[SendRequest::send(Payload::inline(b"again"))]).unwrap();
    assert_eq!(end.succeeds(5).byte_len, 5);
}

#[test]
fn a_channel_armed_for_solicited_messages_ignores_others() {
    let end = End::open("127.0.2.27");
    let channel = end.context.create_comp_channel().unwrap();
    let cq = end.context.create_cq_with(16, &CompletionQueueOptions::default().channel(&channel, 7)).unwrap();
    let qp = end.pd.create_qp(&end.cq, &cq).unwrap();
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY); 3]).unwrap();

    cq.req_notify(Notify::SolicitedOnly).unwrap();
    qp.post_send(&[SendRequest::send(Payload::EMPTY)]).unwrap();
    cq.wait(PATIENCE).unwrap().result().unwrap();
    assert_eq!(channel.wait_event(Duration::from_millis(10)).unwrap_err().kind(), ErrorKind::TimedOut);
    qp.post_send(&[SendRequest::send(Payload::EMPTY).solicited()]).unwrap();
    assert_eq!(channel.wait_event(PATIENCE).unwrap(), 7);
    cq.wait(PATIENCE).unwrap().result().unwrap();

    // Arming once yields one event.
    qp.post_send(&[SendRequest::send(Payload::EMPTY).solicited()]).unwrap();
    cq.wait(PATIENCE).unwrap().result().unwrap();
    assert_eq!(channel.poll_event(), None);
}

#[test]
fn several_threads_post_and_poll() {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let end = End::connected_to_itself("127.0.2.28");
    let region = end.region(4096);
    let sum = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (end, region) = (&end, &region);
            scope.spawn(move || {
                let offset = thread as usize * 64;
                let (from, to) =
                    (region.slice(offset..offset + 8).unwrap(), region.remote().slice(2048 + offset..).unwrap());
                for number in 0..EACH {
                    let request = SendRequest::write(from, to).wr_id(thread * EACH + number).signaled();
                    while let Err(error) = end.qp.post_send(&[request]) {
                        assert_eq!(error.kind(), ErrorKind::QueueFull, "{error}");
                        std::thread::yield_now();
                    }
                }
            });
        }
        for _ in 0..2 {
            let (end, sum) = (&end, &sum);
            scope.spawn(move || {
                for _ in 0..THREADS * EACH / 2 {
                    let (wr_id, result) = end.next();
                    result.unwrap();
                    sum.fetch_add(wr_id, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    let all = THREADS * EACH;
    assert_eq!(sum.into_inner(), all * (all - 1) / 2, "each exactly once");
}

#[test]
fn everything_can_be_dropped_in_any_order() {
    let (left, right) = pair(30);
    let (near, far) = (left.region(1 << 20), right.region(1 << 20));
    let End { context, pd, cq, qp } = left;
    drop((context, pd));
    qp.post_send(&[SendRequest::write(&near, far.remote()).wr_id(1).signaled()]).unwrap();
    cq.wait(PATIENCE).unwrap().result().unwrap();
    // Drops the memory at both ends while requests are in progress. They may succeed or fail, but they complete.
    let read = SendRequest::read(&near, far.remote());
    qp.post_send(&[read, SendRequest::write(&near, far.remote()).signaled()]).unwrap();
    drop(near);
    drop(far);
    let _ = cq.wait(PATIENCE).unwrap().result();
    // A forgotten batch keeps the queue locked, but does not keep the queue pair alive.
    std::mem::forget(qp.recv_batch().unwrap());
    drop(qp);
    drop(right);
    assert_eq!(cq.poll(&mut [Default::default()]).unwrap(), 0, "completions go with their queue pair");
}

#[test]
fn connections_work_over_ipv6_and_between_many() {
    let hub = End::open("::1");
    assert_eq!(hub.qp.connection_info().unwrap().gid.to_ip(), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]));
    let region = hub.region(64);
    let pairs: Vec<(QueuePair, QueuePair)> = (0..20)
        .map(|_| {
            let [one, two] = [0; 2].map(|_| hub.pd.create_qp(&hub.cq, &hub.cq).unwrap());
            one.connect(&two.connection_info().unwrap()).unwrap();
            two.connect(&one.connection_info().unwrap()).unwrap();
            (one, two)
        })
        .collect();
    for (one, two) in &pairs {
        two.post_recv(&[ReceiveRequest::new(&region)]).unwrap();
        one.post_send(&[SendRequest::send(Payload::inline(b"to one of many"))]).unwrap();
        let completion = hub.cq.wait(PATIENCE).unwrap();
        assert_eq!((completion.qpn(), completion.result().unwrap().byte_len), (two.qpn(), 14));
    }
}

#[test]
fn an_unreachable_description_is_refused() {
    let end = End::open("127.0.2.33");
    let own = end.qp.connection_info().unwrap();
    let six: std::net::Ipv6Addr = "2001:db8::1".parse().unwrap();
    let remote = own.gid(six.into());
    refused(end.qp.connect(&remote), ErrorKind::InvalidArgument, &["connect", "2001:db8::1"]);
    let error = verbs::open("soft:192.0.2.77").err().or_else(|| {
        // The address is checked at the latest when it is used.
        let end = End::open("192.0.2.77");
        end.qp.connection_info().and_then(|own| end.qp.connect(&own)).err()
    });
    let error = error.expect("192.0.2.77 is not an address of this machine");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}
