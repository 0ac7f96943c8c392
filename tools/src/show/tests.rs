//! The output for a conversation in which everything happens, in all formats of files, and for files that are damaged.

use std::io::Cursor;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use serde_json::Value;

use super::sample::{Conversation, Format, MTU, Sent, everything, memory};
use super::source::Source;
use super::*;

/// Shows files from memory. Returns the output, and the outcome.
fn shown(options: &Options, files: &[Vec<u8>]) -> (String, Outcome) {
    let inputs = files
        .iter()
        .filter_map(|file| Some(Input::new(Path::new("memory"), Source::new(Cursor::new(file.clone())).ok()?)));
    let mut out = Vec::new();
    let outcome = show_inputs(options, inputs.collect(), false, &mut out).unwrap();
    (String::from_utf8(out).unwrap(), outcome)
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn output_is_that_of_the_sample() {
    let file = Format::RAW.write(&everything());
    let cases: [(&str, Options, &str); 5] = [
        ("all", Options::default(), include_str!("samples/all.txt")),
        (
            "packets",
            Options { packets: true, problems: true, ..Options::default() },
            include_str!("samples/packets.txt"),
        ),
        ("summary", Options { summary: true, ..Options::default() }, include_str!("samples/summary.txt")),
        ("json", Options { json: true, ..Options::default() }, include_str!("samples/json.txt")),
        (
            "summary-json",
            Options { json: true, summary: true, ..Options::default() },
            include_str!("samples/summary-json.txt"),
        ),
    ];
    for (name, options, expected) in cases {
        let (text, _) = shown(&options, std::slice::from_ref(&file));
        if std::env::var_os("RDMA_VERBS_UPDATE_SAMPLES").is_some() {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/show/samples").join(format!("{name}.txt"));
            std::fs::write(path, &text).unwrap();
        } else {
            assert_eq!(text, expected, "{name}: set RDMA_VERBS_UPDATE_SAMPLES=1 to accept it");
        }
    }
}

/// The kinds, outcomes and latencies do not depend on the format of the file.
#[test]
fn all_formats_have_the_same_requests() {
    let options = Options { json: true, ..Options::default() };
    let summary = |format: Format| {
        let (text, outcome) = shown(&options, &[format.write(&everything())]);
        assert!(!outcome.is_damaged);
        let requests = objects(&text).into_iter().filter(|object| object["type"] == "request");
        let parts = ["connection", "request", "kind", "bytes", "outcome", "latency_ns", "packets", "retransmitted"];
        requests.map(|request| parts.map(|part| request[part].to_string()).join(" ")).collect::<Vec<_>>()
    };
    let expected = summary(Format::RAW);
    assert!(expected.len() == 21, "{expected:#?}");
    for link in [1, 113, 276, 101] {
        for (is_big, is_legacy) in [(false, false), (true, false), (false, true), (true, true)] {
            let format = Format { link, is_big, is_legacy, ..Format::RAW };
            assert_eq!(summary(format), expected, "{format:?}");
        }
    }
    // Of IP, UDP and InfiniBand's headers nothing is missing.
    assert_eq!(summary(Format { snap: 28 + 60, ..Format::RAW }), expected);
}

/// Both ends in two files: packets that left and did not arrive are known.
#[test]
fn two_ends_show_where_packets_are_lost() {
    use rdma_verbs::wire::{Headers, Opcode};
    let mut here = Conversation::default();
    here.request(Opcode::RC_SEND_ONLY, 6, 8, Headers::default()).wait(20).ack(6);
    here.request(Opcode::RC_SEND_ONLY, 7, 8, Headers::default()).wait(9_000);
    here.request(Opcode::RC_SEND_ONLY, 7, 8, Headers::default()).wait(20).ack(7);
    // The first one with this number is lost.
    let arrivals = here.sent.iter().enumerate().filter(|(index, _)| *index != 2);
    let there: Vec<Sent> = arrivals
        .map(|(_, sent)| match sent.direction {
            Direction::Outbound => Sent { time: sent.time + 5_000, direction: Direction::Inbound, ..sent.clone() },
            _ => Sent { time: sent.time - 5_000, direction: Direction::Outbound, ..sent.clone() },
        })
        .collect();
    let files = [here.sent, there].map(|sent| Format::RAW.write(&sent));
    let (text, _) = shown(&Options { json: true, ..Options::default() }, &files);
    let found = objects(&text);
    let numbers = |request: &Value| ["lost", "retransmitted", "latency_ns"].map(|name| request[name].as_u64());
    assert_eq!(numbers(&found[0]), [Some(0), Some(0), Some(20_000)], "{text}");
    assert_eq!(numbers(&found[1]), [Some(1), Some(1), Some(9_020_000)], "{text}");
}

/// The responder's end of three READs in a row, one of which arrives late: the path MTU is not known before the first
/// response.
#[test]
fn lost_reads_leave_those_around_them() {
    use rdma_verbs::wire::{Opcode, Syndrome};
    for arrivals in [&[10, 14, 12, 14][..], &[12, 14, 10, 12, 14], &[14, 10, 12, 14]] {
        let mut there = Conversation::default();
        for psn in arrivals {
            there.wait(5).request(Opcode::RC_READ_REQUEST, *psn, 0, memory(2 * MTU));
        }
        for psn in [10, 12, 14] {
            there.wait(5).response(Opcode::RC_READ_RESPONSE_FIRST, psn, MTU, Syndrome::Ack { credit: 31 });
            there.wait(5).response(Opcode::RC_READ_RESPONSE_LAST, psn + 1, MTU, Syndrome::Ack { credit: 31 });
        }
        let (text, _) = shown(&Options { json: true, ..Options::default() }, &[Format::RAW.write(&there.sent)]);
        let reads: Vec<_> = objects(&text).into_iter().filter(|object| object["type"] == "request").collect();
        let numbers = |read: &Value| ["first_psn", "last_psn", "bytes"].map(|name| read[name].as_u64().unwrap());
        let expected = [[10, 11, 2048], [12, 13, 2048], [14, 15, 2048]];
        assert_eq!(reads.iter().map(numbers).collect::<Vec<_>>(), expected, "{arrivals:?}");
        assert!(reads.iter().all(|read| read["outcome"] == "done"), "{text}");
    }
}

/// Options select connections, times and problems.
#[test]
fn options_select() {
    let file = [Format::RAW.write(&everything())];
    let lines = |options: Options| shown(&options, &file).0.lines().count();
    let all = lines(Options::default());
    assert_eq!(lines(Options { peer: "10.0.0.2".parse().ok(), ..Options::default() }), all);
    assert!(lines(Options { peer: "10.0.0.3".parse().ok(), ..Options::default() }) <= 4);
    assert_eq!(shown(&Options { qp: Some(0x12), ..Options::default() }, &file).0.matches(" UD, ").count(), 0);
    assert_eq!(shown(&Options { qp: Some(0x21), ..Options::default() }, &file).0.matches("connection ").count(), 1);
    let (early, late) =
        (Options { to: Some(0.01), ..Options::default() }, Options { from: Some(0.01), ..Options::default() });
    assert!(lines(early) < all && lines(late) < all);
    let (text, outcome) = shown(&Options { problems: true, ..Options::default() }, &file);
    assert!(outcome.problems >= 8 && !text.contains("WRITE 3 KiB"), "{text}");
}

/// A capture may begin and end anywhere: within messages, within blocks.
#[test]
fn captures_begin_and_end_anywhere() {
    let conversation = everything();
    for start in 0..conversation.len() {
        shown(&Options { packets: true, ..Options::default() }, &[Format::RAW.write(&conversation[start..])]);
    }
    let file = Format::RAW.write(&conversation);
    for end in (0..file.len()).step_by(61) {
        shown(&Options::default(), &[file[..end].to_vec()]);
    }
    let (text, outcome) = shown(&Options::default(), &[file[..file.len() - 5].to_vec()]);
    assert!(text.contains("ends within a block") && !outcome.is_damaged, "{text}");
}

/// Changed bytes, blocks and packets are no reason to panic, and no terminal control sequence comes out.
#[test]
fn changed_captures_do_no_harm() {
    let formats =
        [Format::RAW, Format { link: 1, is_big: true, ..Format::RAW }, Format { is_legacy: true, ..Format::RAW }];
    let all = [
        Options { packets: true, ..Options::default() },
        Options { json: true, packets: true, ..Options::default() },
        Options { summary: true, ..Options::default() },
    ];
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut conversation = everything();
        for _ in 0..random.random_range(0..20) {
            change_packet(&mut conversation, &mut random);
        }
        let mut file = formats[seed as usize % formats.len()].write(&conversation);
        for _ in 0..random.random_range(0..8) {
            let at = random.random_range(0..file.len());
            file[at] = random.random();
        }
        let (text, _) = shown(&all[seed as usize % all.len()], &[file]);
        assert!(!text.chars().any(|character| character.is_control() && character != '\n'), "seed {seed}");
    }
}

/// Changes the headers of one packet, its place, or its comment.
fn change_packet(conversation: &mut Vec<Sent>, random: &mut impl Rng) {
    let index = random.random_range(0..conversation.len());
    let other = random.random_range(0..conversation.len());
    match random.random_range(0..5) {
        0 => conversation.swap(index, other),
        1 => conversation.push(conversation[index].clone()),
        2 => conversation[index].comment = Some("dropped: \u{1b}[2J\u{7}\u{9b}\nbad"),
        3 => {
            let sent = &mut conversation[index];
            sent.payload.truncate(random.random_range(0..=sent.payload.len()));
        }
        _ => {
            let payload = &mut conversation[index].payload;
            let at = random.random_range(0..payload.len().clamp(1, 60));
            if let Some(byte) = payload.get_mut(at) {
                *byte = random.random();
            }
        }
    }
}

/// Each packet opens another connection, or another request that is never answered: all of that has a bound.
#[test]
fn memory_has_a_bound() {
    use rdma_verbs::types::{Psn, Qpn};
    use rdma_verbs::wire::{Bth, Headers, Opcode};
    let mut tracker = Tracker::new(true);
    let mut ended = 0;
    for number in 0..100_000_u32 {
        let is_flow = number.is_multiple_of(2);
        let destination = Qpn::new(if is_flow { number } else { 5 });
        let bth = Bth { destination, psn: Psn::new(number), ..Bth::with_payload(Opcode::RC_SEND_ONLY, 0) };
        let mut payload = vec![0; 16];
        Headers { bth, ..Headers::default() }.emit(&mut payload);
        let datagram = frame::Datagram {
            source: IpAddr::V4(sample::HERE),
            destination: IpAddr::V4(sample::THERE),
            captured: &payload,
            length: payload.len(),
            direction: Direction::Unknown,
            is_divided: true,
        };
        tracker.take(u64::from(number), Direction::Unknown, &datagram, None);
        ended += std::mem::take(&mut tracker.items).len();
    }
    assert_eq!(tracker.flows().count(), tracker::MOST_FLOWS);
    assert!(tracker.counts.unfollowed > 30_000);
    let waiting: usize = tracker.flows().map(|(_, flow)| flow.waiting.len()).sum();
    assert!(waiting <= 32_768 && ended > 30_000, "{waiting} wait, {ended} have ended");
}
