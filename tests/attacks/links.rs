//! Another process of the user owns one end of memory that it shares with a victim: it changes rings while they are in
//! use, and sends senseless offers. The victim's connection to an honest process goes on.

mod offer;
mod scene;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rdma_verbs::sim::Random;

use self::offer::{Listener, Offer, RING_BYTES, WHOLE_BYTES, connect, is_refused, ring, sealed};
pub(super) use self::scene::is_other_process;
use self::scene::{Other, Scene};
use super::world::new_address;
use super::{Attack, Form};

pub(super) const ATTACKS: &[Attack] = &[
    ("links/contents_that_change_during_traffic", contents),
    ("links/records_of_a_closed_link", closed),
    ("links/forged_records", forged),
    ("links/senseless_descriptors", descriptors),
    ("links/offers_for_the_packets_of_others", diverted),
    ("links/floods_of_connections", flood),
    ("links/no_descriptor_is_left", exhausted),
];

/// Connections of a flood.
const FLOOD: usize = 600;
/// Connections without an offer that a victim keeps.
const MOST_SILENT: usize = 64;
/// The number of descriptors of a victim, and the part of them that links of a direction may have.
const LIMIT: usize = 300;
const PART: usize = 4;
/// Processor time of the thread that accepts connections, in a second in which it cannot.
const MOST_ACCEPTOR_TIME: Duration = Duration::from_millis(100);
/// Bytes of the shortest record, with its header.
const SHORTEST: usize = 16;
/// Offset of the records in the shared memory.
const RECORDS: u64 = 4_096;

/// Headers, positions, bells, tags and bytes of all rings of a process change at random while it exchanges.
fn contents(form: Form) {
    let mut scene = Scene::new();
    let hostile = Other::start("hostile", scene.address());
    let end = Instant::now() + Duration::from_secs(form.tries(4, 120));
    while Instant::now() < end {
        scene.check();
    }
    drop(hostile);
    scene.await_links(scene.quiet);
    scene.check();
}

/// A ring is full of records, as if it had no end, and its writer closes the link. The victim reads it once.
fn closed(_: Form) {
    let mut scene = Scene::new();
    let offer = scene.offer();
    for _ in 0..8 {
        let (socket, memory) = (connect(scene.victim.id()), sealed(WHOLE_BYTES));
        let memory = File::from(memory);
        memory.write_all_at(&records(&[8; 8]).repeat(RING_BYTES / SHORTEST), RECORDS).expect("memory");
        assert!(!is_refused(&socket, &offer.bytes(), &[memory.as_raw_fd()]), "an offer that makes sense");
    }
    scene.await_links(scene.quiet);
    scene.check();
}

/// Returns a record of these bytes.
fn records(bytes: &[u8]) -> Vec<u8> {
    let mut record = (bytes.len() as u64).to_le_bytes().to_vec();
    record.extend_from_slice(bytes);
    record.resize(record.len().next_multiple_of(8), 0);
    record
}

/// Returns the length and the tag of a record that is a block, as a rule a possible one.
fn block(random: &mut Random) -> (usize, u64) {
    let payload = random.choose(&[1, 1_024, 4_096, 8_175]);
    let wrong = if random.below(50) == 0 { 1 } else { 0 };
    let length = (16 + payload * (1 + random.below(34))).min(65_536 - wrong) + wrong;
    let tag = random.number() & !(0x1fff << 49) | (payload + 16) << 49 | 1 << 63;
    (length as usize, tag)
}

/// Records with packets of any contents, sizes, segments and tags, from any source.
fn forged(form: Form) {
    let mut scene = Scene::new();
    let mut random = Random::new(0x11f0);
    for _ in 0..form.tries(40, 4_000) {
        let mut offer = scene.offer();
        if random.below(2) == 0 {
            // The honest process is said to send them.
            offer.source = scene.honest.address;
        }
        let (socket, memory) = (connect(scene.victim.id()), File::from(sealed(WHOLE_BYTES)));
        let mut written = Vec::new();
        let has_blocks = random.below(4) == 0;
        while written.len() < RING_BYTES / 2 {
            let most = random.choose(&[300, 300, 300, 65_536]);
            let (length, tag) = match has_blocks {
                true => block(&mut random),
                false => (1 + random.below(most) as usize, random.number() & (u64::MAX >> 1)),
            };
            let mut bytes: Vec<u8> = (0..length).map(|_| random.number() as u8).collect();
            if let Some(bth) = bytes.get_mut(..8) {
                // To the block of the victim's queue pairs.
                bth[5..7].copy_from_slice(&(offer.recipient << 4 | random.below(16) as u16).to_be_bytes());
            }
            written.extend_from_slice(&(length as u64 | tag & !0x1_ffff).to_le_bytes());
            written.extend_from_slice(&bytes);
            written.resize(written.len().next_multiple_of(8), 0);
        }
        memory.write_all_at(&written, RECORDS).expect("memory");
        assert!(!is_refused(&socket, &offer.bytes(), &[memory.as_raw_fd()]), "an offer that makes sense");
        ring(&socket);
        scene.check();
    }
    scene.await_links(scene.quiet);
}

/// Descriptors that are no memory, or memory that could vanish.
fn descriptors(_: Form) {
    let mut scene = Scene::new();
    let offer = scene.offer();
    let (pipe, other) = nix::unistd::pipe().expect("a pipe");
    let unsealed = offer::memory(WHOLE_BYTES);
    let shrinkable = offer::memory(WHOLE_BYTES);
    offer::seal(&shrinkable, libc::F_SEAL_GROW | libc::F_SEAL_SEAL);
    let changeable = offer::memory(WHOLE_BYTES);
    offer::seal(&changeable, libc::F_SEAL_GROW | libc::F_SEAL_SHRINK);
    let constant = offer::memory(WHOLE_BYTES);
    offer::seal(&constant, offer::SEALS | libc::F_SEAL_WRITE);
    let path = |name: &str| OwnedFd::from(File::open(name).expect("a file"));
    let by_name = {
        use std::os::unix::fs::OpenOptionsExt;
        let options = File::options().read(true).custom_flags(libc::O_PATH).open("/proc/self/exe");
        OwnedFd::from(options.expect("a file"))
    };
    let cases: Vec<(&str, OwnedFd)> = vec![
        ("a pipe", pipe),
        ("its other end", other),
        ("a folder", path("/proc/self")),
        ("/dev/zero", path("/dev/zero")),
        ("a file of the process file system", path("/proc/self/status")),
        ("a descriptor without access", by_name),
        ("memory without seals", unsealed),
        ("memory that can shrink", shrinkable),
        ("memory whose seals can change", changeable),
        ("memory that is sealed against writes", constant),
        ("shorter memory", sealed(WHOLE_BYTES - 4_096)),
        ("longer memory", sealed(WHOLE_BYTES + 4_096)),
        ("no memory", sealed(0)),
        ("a socket", connect(scene.victim.id())),
    ];
    let held = scene.descriptors();
    for (name, descriptor) in &cases {
        assert!(is_refused(&connect(scene.victim.id()), &offer.bytes(), &[descriptor.as_raw_fd()]), "{name}");
    }
    let whole = sealed(WHOLE_BYTES);
    for count in [0, 2, 3, 100, 253] {
        let many = vec![whole.as_raw_fd(); count];
        assert!(is_refused(&connect(scene.victim.id()), &offer.bytes(), &many), "{count} descriptors");
    }
    for length in [0, 1, 2, 95] {
        let part = &offer.bytes()[..length];
        assert!(is_refused(&connect(scene.victim.id()), part, &[whole.as_raw_fd()]), "{length} bytes");
    }
    // It is truncated after it was offered: the seals do not allow it.
    let socket = connect(scene.victim.id());
    assert!(!is_refused(&socket, &offer.bytes(), &[whole.as_raw_fd()]), "an offer that makes sense");
    assert!(File::from(whole).set_len(0).is_err(), "sealed memory is truncated");
    drop((socket, cases));
    scene.await_links(scene.quiet);
    scene.await_descriptors(held);
    scene.check();
}

/// An offer claims that the blocks of the honest process are those of the offering one. The victim must not send the
/// honest process's packets to it.
fn diverted(_: Form) {
    let mut scene = Scene::new();
    let folder = PathBuf::from(&offer::path(scene.victim.id())).parent().expect("a folder").to_owned();
    let listener = Listener::in_folder(&folder);
    let block = scene.honest.block();
    let offer = Offer { source: scene.honest.address, name: listener.name, blocks: vec![block], ..scene.offer() };
    let (socket, memory) = (connect(scene.victim.id()), sealed(WHOLE_BYTES));
    assert!(!is_refused(&socket, &offer.bytes(), &[memory.as_raw_fd()]), "an offer that makes sense");
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        scene.check();
        assert!(!listener.has_guest(), "the victim offers a ring for packets to another process");
    }
}

/// Many connections that say nothing, or a part of an offer, and many offers that make sense.
fn flood(_: Form) {
    let mut scene = Scene::with_limit(LIMIT);
    let held = scene.descriptors();
    let silent: Vec<OwnedFd> = (0..FLOOD).map(|_| connect(scene.victim.id())).collect();
    scene.check();
    let now = scene.descriptors();
    assert!(now <= held + MOST_SILENT + 2, "{now} descriptors instead of {held} while {FLOOD} connections are silent");
    let memory = sealed(WHOLE_BYTES);
    let offers: Vec<OwnedFd> = (0..FLOOD)
        .map(|_| {
            let (socket, mut offer) = (connect(scene.victim.id()), scene.offer());
            offer.source = new_address();
            is_refused(&socket, &offer.bytes(), &[memory.as_raw_fd()]);
            socket
        })
        .collect();
    scene.check();
    let now = scene.descriptors();
    assert!(now <= held + MOST_SILENT + LIMIT / PART + 2, "{now} descriptors instead of {held} after {FLOOD} offers");
    // An honest process still gets its link.
    drop((silent, offers));
    scene.await_links(scene.quiet);
    scene.await_descriptors(held);
    scene.check();
}

/// The victim has no descriptor left while others connect, and gets some later.
fn exhausted(_: Form) {
    let mut scene = Scene::new();
    let held = scene.descriptors();
    // Fewer than it has: not even one that becomes free can be used again.
    scene.limit_descriptors(held / 2);
    let memory = sealed(WHOLE_BYTES);
    let offer = scene.offer_at(0);
    let waiting: Vec<OwnedFd> = (0..FLOOD)
        .map(|_| {
            let socket = connect(scene.victim.id());
            offer::send(&socket, &offer.bytes(), &[memory.as_raw_fd()]);
            socket
        })
        .collect();
    let used = scene.acceptor_time();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        scene.check();
    }
    let used = scene.acceptor_time() - used;
    assert!(scene.descriptors() <= held + 1, "more descriptors than the limit allows");
    assert!(used < MOST_ACCEPTOR_TIME, "the victim's thread that cannot accept connections uses {used:?} in a second");
    scene.limit_descriptors(1_024);
    drop(waiting);
    scene.check();
    // A further process connects, and shares memory.
    let further = Other::start("honest", scene.address());
    further.await_link();
    drop(further);
    scene.await_links(scene.quiet);
}
