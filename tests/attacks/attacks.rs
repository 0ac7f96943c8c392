//! Attacks that must fail: forged, mutated and stale packets, floods, ICMP errors and messages of other users,
//! through raw sockets in the program's own network namespace, and millions of blind packets into an endpoint.
//!
//! `cargo test --release -p rdma-verbs-tests --test attacks` runs the short form, with `RDMA_VERBS_ATTACK=long` the
//! long one. A part of a name selects attacks. The program needs root, for the namespace and the raw sockets, and fails
//! without it.

mod ahead;
mod bits;
mod blind;
mod connections;
mod discovery;
mod flood;
mod forge;
mod icmp;
mod inbox;
mod lab;
mod learned;
mod links;
mod memory;
mod responses;
mod stale;
mod world;

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};
use nix::sched::{CloneFlags, unshare};
use support::allocator::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of tries of an attack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Short,
    Long,
}

impl Form {
    fn from_environment() -> Self {
        match std::env::var("RDMA_VERBS_ATTACK").as_deref() {
            Ok("long") => Self::Long,
            Ok("short") | Err(_) => Self::Short,
            Ok(other) => panic!("RDMA_VERBS_ATTACK is {other}; it can be short or long"),
        }
    }

    fn tries(self, short: u64, long: u64) -> u64 {
        match self {
            Self::Short => short,
            Self::Long => long,
        }
    }
}

/// An attack: its name, and a function that carries it out and panics if it succeeds.
type Attack = (&'static str, fn(Form));

const FAMILIES: &[&[Attack]] = &[
    blind::ATTACKS,
    bits::ATTACKS,
    ahead::ATTACKS,
    memory::ATTACKS,
    learned::ATTACKS,
    responses::ATTACKS,
    flood::ATTACKS,
    stale::ATTACKS,
    icmp::ATTACKS,
    inbox::ATTACKS,
    discovery::ATTACKS,
    links::ATTACKS,
];

/// Enters a network namespace of this process. There is only one thread yet, so all threads will be in it.
fn leave_the_network() {
    let left = unshare(CloneFlags::CLONE_NEWNET);
    left.unwrap_or_else(|error| panic!("the attacks need root, for a network namespace of their own: {error}"));
    let status = Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("ip of iproute2");
    assert!(status.success(), "ip link set lo up");
}

fn main() -> ExitCode {
    if connections::victim::is_victim() || links::is_other_process() {
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    // Bytes in use and the sockets' buffers are counted for the whole process.
    arguments.test_threads = Some(1);
    let form = Form::from_environment();
    if !arguments.list {
        leave_the_network();
    }
    let attacks = FAMILIES.iter().chain(connections::FAMILIES).flat_map(|family| family.iter());
    let trials = attacks.map(|(name, attack)| {
        Trial::test(*name, move || {
            attack(form);
            Ok(())
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
