//! Captures on loopback: the files contain exactly the packets on the wire.
//!
//! With `CAPTURE_TEST_FOLDER=/folder` the files are kept there; `tests/system/capture/tshark` lets tshark read them.

mod ends;
mod file;

use std::collections::HashSet;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdma_verbs::provider::soft::SoftOptions;
use rdma_verbs::types::ROCE_PORT;
use rdma_verbs::verbs::{
    self, CaptureOptions, CompletionStatus, ConnectOptions, ConnectionInfo, Context, Counter, DropReason, ErrorKind,
    Mtu, Payload, Psn, Qpn, ReceiveRequest, SendRequest,
};
use rdma_verbs::wire::{Flow, ICRC_BYTES, NakCode, Opcode, Syndrome, icrc};
use support::PATIENCE;
use support::process::ignored_test;

use self::ends::{End, PeerKind, connect, every_operation, file, refused_invalidation, remove, wait_arrived};
use self::file::{CaptureFile, Captured};

/// All operation codes of the reliable service.
const OPCODES: [Opcode; 23] = [
    Opcode::RC_SEND_FIRST,
    Opcode::RC_SEND_MIDDLE,
    Opcode::RC_SEND_LAST,
    Opcode::RC_SEND_LAST_IMMEDIATE,
    Opcode::RC_SEND_ONLY,
    Opcode::RC_SEND_ONLY_IMMEDIATE,
    Opcode::RC_WRITE_FIRST,
    Opcode::RC_WRITE_MIDDLE,
    Opcode::RC_WRITE_LAST,
    Opcode::RC_WRITE_LAST_IMMEDIATE,
    Opcode::RC_WRITE_ONLY,
    Opcode::RC_WRITE_ONLY_IMMEDIATE,
    Opcode::RC_READ_REQUEST,
    Opcode::RC_READ_RESPONSE_FIRST,
    Opcode::RC_READ_RESPONSE_MIDDLE,
    Opcode::RC_READ_RESPONSE_LAST,
    Opcode::RC_READ_RESPONSE_ONLY,
    Opcode::RC_ACKNOWLEDGE,
    Opcode::RC_ATOMIC_ACKNOWLEDGE,
    Opcode::RC_COMPARE_SWAP,
    Opcode::RC_FETCH_ADD,
    Opcode::RC_SEND_LAST_INVALIDATE,
    Opcode::RC_SEND_ONLY_INVALIDATE,
];

/// Runs the traffic of all operations, captured at both ends.
fn capture_all(name: &str, left: &str, right: &str, peer_kind: PeerKind) {
    let begun = now();
    let (left, right) = (End::open(left), End::open(right));
    let other = [&left, &right].map(|end| end.pd.create_qp(&end.cq, &end.cq).unwrap());
    // One capture starts before its sockets are opened, one after.
    let left_capture = left.capture(&format!("{name}-left"));
    connect(&left.qp, &right.qp, peer_kind);
    connect(&other[0], &other[1], peer_kind);
    let right_capture = right.capture(&format!("{name}-right"));
    every_operation(&left, &right);
    refused_invalidation(&left, &right, &other[0], &other[1], 1_000);
    wait_arrived(&left, &right);

    let paths = [left_capture.path().to_owned(), right_capture.path().to_owned()];
    let summaries = [left_capture.stop().unwrap(), right_capture.stop().unwrap()];
    let files = paths.each_ref().map(|path| CaptureFile::read(path));
    for ((end, file), summary) in [&left, &right].into_iter().zip(&files).zip(summaries) {
        assert_eq!((file.device.as_str(), file.lost), (end.context.name(), 0));
        assert_eq!((summary.packets, summary.lost), (file.packets.len() as u64, 0));
        check_packets(file, begun, peer_kind);
        let counts = (file.outbound().count() as u64, file.inbound().count() as u64);
        assert_eq!(counts, (end.count(Counter::SentPackets), end.count(Counter::ReceivedPackets)));
        let requests = file.outbound().filter(|packet| packet.opcode().is_request());
        let repeats = requests.filter(|packet| !packet.comment.is_empty()).count() as u64;
        assert_eq!(repeats, end.count(Counter::RetransmittedPackets));
        let drops = file.inbound().filter(|packet| !packet.comment.is_empty()).count() as u64;
        assert_eq!(drops, end.context.counters().total_drops());
    }
    let too_early = files[0].outbound().filter(|packet| !packet.comment.is_empty());
    assert!(too_early.map(Captured::opcode).any(|opcode| opcode == Opcode::RC_SEND_ONLY));
    let opcodes: HashSet<Opcode> = files[0].packets.iter().map(Captured::opcode).collect();
    let missing: Vec<&Opcode> = OPCODES.iter().filter(|opcode| !opcodes.contains(opcode)).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    let answers = files[0].inbound().filter_map(|packet| packet.packet().headers.aeth).map(|aeth| aeth.syndrome);
    let answers: Vec<Syndrome> = answers.collect();
    assert!(answers.iter().any(|answer| matches!(answer, Syndrome::ReceiverNotReady { .. })), "{answers:?}");
    assert!(answers.contains(&Syndrome::Nak(NakCode::RemoteAccess)), "{answers:?}");
    // Each end received exactly the other's packets, with every byte of the rebuilt headers.
    for (from, to) in [(&files[0], &files[1]), (&files[1], &files[0])] {
        let (sent, received): (Vec<_>, Vec<_>) = (from.outbound().collect(), to.inbound().collect());
        assert_eq!(sent.len(), received.len());
        for (sent, received) in sent.into_iter().zip(received) {
            assert_eq!(sent.shown_as(received), received.bytes, "{sent:?}, {received:?}");
        }
    }
    let runs = files[0].outbound().filter(|packet| packet.fragmentation().0 > 0).count();
    assert_eq!(runs > 0, peer_kind == PeerKind::Native && left.context.name().contains('.'), "{runs}");
    paths.iter().for_each(|path| remove(path));
}

fn check_packets(file: &CaptureFile, begun: u64, peer_kind: PeerKind) {
    let ended = now();
    for packet in &file.packets {
        assert!(packet.has_sound_headers(), "{packet:?}");
        assert!(if packet.is_withheld() { packet.bytes.ends_with(&[0; ICRC_BYTES]) } else { packet.icrc_fits() });
        assert_eq!((packet.hop_limit(), packet.traffic_class()), (17, 0x28), "{packet:?}");
        assert_eq!(packet.has_udp_checksum(), peer_kind == PeerKind::Native, "{packet:?}");
        assert!((begun..=ended).contains(&packet.time), "{packet:?}");
        // On a busy machine responses may be late, probes request them, and one of two responses is dropped. A queue
        // pair in the error state drops it before it verifies the check field.
        let is_expected = match packet.comment.as_str() {
            "" => true,
            "retransmission" | "probe" => packet.is_outbound,
            "dropped: bad PSN" | "dropped: wrong state" => !packet.is_outbound,
            "dropped: wrong state; check field withheld" => !packet.is_outbound && peer_kind == PeerKind::Native,
            _ => false,
        };
        assert!(is_expected, "{packet:?}");
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

#[test]
fn every_operation_between_native_peers() {
    capture_all("ours", "127.91.1.1", "127.91.1.2", PeerKind::Native);
}

#[test]
fn every_operation_between_standard_peers() {
    capture_all("standard", "127.91.1.3", "127.91.1.4", PeerKind::Standard);
}

#[test]
fn every_operation_over_ipv6() {
    // Some machines have no IPv6.
    if UdpSocket::bind("[::1]:0").is_err() {
        return eprintln!("skipped: there is no ::1");
    }
    capture_all("ipv6-ours", "::1", "::1", PeerKind::Native);
    capture_all("ipv6-standard", "::1", "::1", PeerKind::Standard);
}

#[test]
fn repetitions_are_marked() {
    let left = End::open("127.91.2.1");
    let capture = left.capture("repetitions");
    // No peer exists there.
    let gid = "127.91.2.2".parse::<IpAddr>().unwrap().into();
    let absent = ConnectionInfo::standard_peer(Qpn::new(0x77), Psn::new(5), gid, Mtu::Mtu1024);
    let options = ConnectOptions::default().timeout(12).retry_cnt(3);
    left.qp.connect_with(&absent, &options).unwrap();
    left.qp.post_send(&[SendRequest::send(Payload::inline(&[b'?'; 40])).wr_id(1).signaled()]).unwrap();
    left.fails(1, CompletionStatus::RetryExceededError);

    let path = capture.path().to_owned();
    capture.stop().unwrap();
    let file = CaptureFile::read(&path);
    let said = |comment: &str| file.packets.iter().filter(|packet| packet.comment == comment).count() as u64;
    let (first, again, probes) = (said(""), said("retransmission"), said("probe"));
    assert_eq!((first, again + probes), (1, left.count(Counter::RetransmittedPackets)));
    assert!(again >= 3 && probes >= 1, "{again} retransmissions, {probes} probes");
    assert!(file.packets[0].comment.is_empty() && file.packets.iter().all(Captured::icrc_fits));
    remove(&path);
}

#[test]
fn dropped_packets_have_their_reason() {
    let end = End::open("127.91.2.3");
    end.qp.connect(&end.qp.connection_info().unwrap()).unwrap();
    let capture = end.context.start_capture(&CaptureOptions::new(file("drops"))).unwrap();
    let sender = UdpSocket::bind("127.91.2.4:0").unwrap();
    let flow = Flow {
        source: sender.local_addr().unwrap().ip(),
        destination: "127.91.2.3".parse().unwrap(),
        source_port: sender.local_addr().unwrap().port(),
    };
    // An acknowledgement for a queue pair; its ICRC covers an identification that no socket reports.
    let acknowledgement = |qpn: Qpn| {
        let mut packet = [0; 20];
        packet[0] = 0x11;
        packet[2..4].copy_from_slice(&[0xff, 0xff]);
        packet[4..8].copy_from_slice(&qpn.value().to_be_bytes());
        let value = icrc::compute(&flow, 0xbeef, true, &packet[..16]);
        packet[16..].copy_from_slice(&value.to_le_bytes());
        packet
    };
    let unknown = Qpn::new(end.qp.qpn().value() ^ 1);
    let send = |bytes: &[u8]| sender.send_to(bytes, (flow.destination, ROCE_PORT)).unwrap();
    send(b"short");
    send(&acknowledgement(unknown));
    send(&acknowledgement(end.qp.qpn()));
    let patience = Instant::now() + PATIENCE;
    while end.context.counters().total_drops() < 3 {
        assert!(Instant::now() < patience, "{:?}", end.context.counters());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(end.context.counters().get_drop(DropReason::WrongAddress), 1);

    let path = capture.path().to_owned();
    capture.stop().unwrap();
    let found = CaptureFile::read(&path);
    let comments: Vec<&str> = found.inbound().map(|packet| packet.comment.as_str()).collect();
    assert_eq!(
        comments,
        ["dropped: truncated", "dropped: unknown QPN", "dropped: wrong address; check field withheld"]
    );
    assert_eq!(found.packets[0].payload(), b"short");
    assert_eq!(found.packets[1].fragmentation(), (0xbeef, true));
    assert!(found.packets[1].icrc_fits());
    // On a connection with a key, only a packet that passed verification is shown with its ICRC.
    assert!(found.packets[2].payload().ends_with(&[0; 4]));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn one_queue_pair_of_several_is_captured() {
    let (left, right) = (End::open("127.91.2.5"), End::open("127.91.2.6"));
    let other = [&left, &right].map(|end| end.pd.create_qp(&end.cq, &end.cq).unwrap());
    connect(&left.qp, &right.qp, PeerKind::Native);
    connect(&other[0], &other[1], PeerKind::Native);
    let wanted = CaptureOptions::new(file("filter")).queue_pair(other[0].qpn());
    let capture = left.context.start_capture(&wanted).unwrap();
    let data = left.region.slice(0..3_000).unwrap();
    for (from, to) in [(&left.qp, &right.qp), (&other[0], &other[1])] {
        to.post_recv(&[ReceiveRequest::new(&right.region).wr_id(1)]).unwrap();
        from.post_send(&[SendRequest::send(data).wr_id(1).signaled()]).unwrap();
        right.succeeds(1);
        left.succeeds(1);
    }
    wait_arrived(&left, &right);
    let path = capture.path().to_owned();
    capture.stop().unwrap();
    let found = CaptureFile::read(&path);
    let to = |packet: &Captured| packet.packet().headers.bth.destination;
    assert!(found.outbound().all(|packet| to(packet) == other[1].qpn()));
    assert!(found.inbound().all(|packet| to(packet) == other[0].qpn()));
    let counters = other[0].counters();
    let counts = (found.outbound().count() as u64, found.inbound().count() as u64);
    assert_eq!(counts, (counters.get(Counter::SentPackets), counters.get(Counter::ReceivedPackets)));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn bound_ends_the_capture_and_not_the_traffic() {
    let end = End::open("127.91.2.7");
    end.qp.connect(&end.qp.connection_info().unwrap()).unwrap();
    let wanted = CaptureOptions::new(file("bound")).max_bytes(50_000);
    let capture = end.context.start_capture(&wanted).unwrap();
    let (from, to) = (end.region.slice(0..100_000).unwrap(), end.region.remote().slice(500_000..600_000).unwrap());
    for wr_id in 0..5 {
        end.qp.post_send(&[SendRequest::write(from, to).wr_id(wr_id).signaled()]).unwrap();
        end.succeeds(wr_id);
    }
    let path = capture.path().to_owned();
    let summary = capture.stop().unwrap();
    assert!(summary.reached_max_bytes && summary.packets > 3 && summary.lost == 0, "{summary:?}");
    let length = path.metadata().unwrap().len();
    assert!(length == summary.bytes && length <= 50_000, "{length}, {summary:?}");
    let found = CaptureFile::read(&path);
    assert_eq!(found.packets.len() as u64, summary.packets);
    assert!(found.last_words.contains("its bound of 50000 bytes"), "{}", found.last_words);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn captures_are_limited_and_independent() {
    let end = End::open("127.91.2.8");
    end.qp.connect(&end.qp.connection_info().unwrap()).unwrap();
    let mut captures: Vec<_> = (0..16).map(|_| end.capture("many")).collect();
    let error = end.context.start_capture(&CaptureOptions::new(file("many"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceLimit, "{error}");
    let last = captures.pop().unwrap();
    let write = || {
        let data = end.region.slice(0..10).unwrap();
        end.qp.post_send(&[SendRequest::write(data, end.region.remote()).wr_id(1).signaled()]).unwrap();
        end.succeeds(1);
        wait_arrived(&end, &end);
    };
    let passed = || end.count(Counter::SentPackets) + end.count(Counter::ReceivedPackets);
    write();
    let last_path = last.path().to_owned();
    assert_eq!(last.stop().unwrap().packets, passed());
    write();
    let all = passed();
    let paths: HashSet<_> = captures.iter().map(|capture| capture.path().to_owned()).collect();
    assert_eq!((paths.len(), paths.contains(&last_path)), (15, false), "each has a file of its own");
    let counts: Vec<u64> = captures.into_iter().map(|capture| capture.stop().unwrap().packets).collect();
    assert_eq!(counts, [all; 15]);
    paths.iter().chain([&last_path]).for_each(|path| std::fs::remove_file(path).unwrap());
}

#[test]
fn capture_of_a_configuration_lasts_as_long_as_the_device() {
    let path = file("configured");
    let context: Context =
        SoftOptions::new().capture(CaptureOptions::new(&path)).open("soft:127.91.2.9").unwrap().into();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let region = pd.alloc_mr(64, verbs::AccessFlags::REMOTE | verbs::AccessFlags::LOCAL_WRITE).unwrap();
    let qp = pd.create_qp(&cq, &cq).unwrap();
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    let data = region.slice(0..8).unwrap();
    qp.post_send(&[SendRequest::write(data, region.remote().slice(8..16).unwrap()).signaled()]).unwrap();
    assert!(cq.wait(PATIENCE).unwrap().result().is_ok());
    let sent = context.counters().get(Counter::SentPackets);
    drop((qp, region, cq, pd, context));
    let found = CaptureFile::read(&path);
    assert_eq!((found.outbound().count() as u64, found.last_words.as_str()), (sent, "ended by the program"));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn wrong_paths_are_explained() {
    let context = verbs::open("soft:127.91.2.10").unwrap();
    let refused = |path: &str| context.start_capture(&CaptureOptions::new(path)).unwrap_err();
    let missing = refused("/no/such/folder/file.pcapng");
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    assert!(missing.to_string().contains("name a file, or a folder that exists"), "{missing}");
    let unknown = refused("/tmp/%x.pcapng");
    assert_eq!(unknown.kind(), ErrorKind::InvalidArgument, "{unknown}");
    assert!(unknown.to_string().contains("%d for the device"), "{unknown}");
    assert!(refused("/dev/null").to_string().contains("not a regular file"));
    let small = context.start_capture(&CaptureOptions::new("/tmp/x.pcapng").max_bytes(1)).unwrap_err();
    assert!(small.to_string().contains("allowed are 8192 and more"), "{small}");
}

/// The child process of the next test: prints the error, or captures a little.
#[test]
#[ignore = "needs its environment"]
fn child_with_an_environment() {
    let _unused = match verbs::open("soft:127.91.2.11") {
        Ok(context) => context,
        Err(error) => return println!("refused: {error}"),
    };
    let end = End::open("127.91.2.11");
    end.qp.connect(&end.qp.connection_info().unwrap()).unwrap();
    let data = end.region.slice(0..10).unwrap();
    end.qp.post_send(&[SendRequest::write(data, end.region.remote()).wr_id(1).signaled()]).unwrap();
    end.succeeds(1);
}

#[test]
fn environment_switches_captures_on() {
    let folder = std::env::temp_dir().join(format!("rdma-verbs-capture-environment-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let run = |path: &str, bytes: &str| {
        let mut command = ignored_test(concat!(module_path!(), "::child_with_an_environment"));
        command.env("RDMA_VERBS_CAPTURE", path).env("RDMA_VERBS_CAPTURE_BYTES", bytes);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    run(folder.to_str().unwrap(), "");
    let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let names: Vec<_> = files.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert!(names.iter().all(|name| name.starts_with("rdma-verbs-soft-127.91.2.11-")), "{names:?}");
    let mut counts: Vec<usize> = files.iter().map(|path| CaptureFile::read(path).packets.len()).collect();
    counts.sort_unstable();
    // Request and response, out and in, in the file of one context; nothing in the other's.
    assert!(counts.len() == 2 && counts[0] == 0 && counts[1] >= 4, "{counts:?}");

    let refusal = run("/no/such/folder/file", "");
    assert!(refusal.contains("requested by the environment variable RDMA_VERBS_CAPTURE"), "{refusal}");
    let refusal = run(folder.to_str().unwrap(), "few");
    assert!(refusal.contains("RDMA_VERBS_CAPTURE_BYTES is \"few\""), "{refusal}");
    std::fs::remove_dir_all(folder).unwrap();
}
