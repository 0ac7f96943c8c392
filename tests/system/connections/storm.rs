//! Processes that listen and connect at random on one address, while some of them are killed and stopped.
//!
//! `RDMA_VERBS_STORM_SECONDS=60 cargo test --release --test system connections:: -- --nocapture` runs it for a minute.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::process::Process;

const ADDRESS: &str = "127.46.4.21";
const MEMBERS: usize = 8;
const SECONDS: &str = "RDMA_VERBS_STORM_SECONDS";

struct Storm {
    members: Vec<Process>,
    random: StdRng,
    kills: u32,
    stops: u32,
    connected: u64,
    failed: u64,
}

fn server(index: usize) -> String {
    format!("{ADDRESS}:{}", 7001 + index)
}

fn name(index: usize) -> String {
    format!("server-{index}")
}

/// Starts a member with a server, that connects to those of all.
fn start(index: usize) -> Process {
    let mut member = Process::server(&server(index), &name(index));
    let servers: Vec<String> = (0..MEMBERS).map(|index| format!("{} {}", server(index), name(index))).collect();
    member.does(&format!("roam {}", servers.join(" ")), "roams");
    member
}

impl Storm {
    fn new(seed: u64) -> Self {
        let members = (0..MEMBERS).map(start).collect();
        Self { members, random: StdRng::seed_from_u64(seed), kills: 0, stops: 0, connected: 0, failed: 0 }
    }

    /// Kills a member and starts another one with the same port, or stops one for a while.
    fn strike(&mut self) {
        let victim = self.random.random_range(0..MEMBERS);
        if self.random.random_range(0..3) == 0 {
            self.members.remove(victim).kill();
            self.kills += 1;
            self.pause(0..200);
            self.members.insert(victim, start(victim));
        } else {
            self.members[victim].stop();
            self.stops += 1;
            self.pause(10..600);
            self.members[victim].resume();
        }
        self.pause(50..300);
    }

    fn pause(&mut self, millis: std::ops::Range<u64>) {
        std::thread::sleep(Duration::from_millis(self.random.random_range(millis)));
    }

    /// Ends the random connections. No end may have met another one than it wanted.
    fn calm(&mut self) {
        self.members.iter_mut().for_each(|member| member.order("rest"));
        for member in &mut self.members {
            let reply = member.reply();
            assert!(reply.ends_with(" wrong []"), "{reply}");
            let words: Vec<&str> = reply.split_whitespace().collect();
            self.connected += words[1].parse::<u64>().unwrap();
            self.failed += words[3].parse::<u64>().unwrap();
        }
    }

    /// Now that all processes live, each reaches each.
    fn check(&mut self) {
        for index in 0..MEMBERS {
            for client in &mut self.members {
                client.order(&format!("call {} {} 2", server(index), name(index)));
            }
            self.members.iter_mut().for_each(Process::has_called);
        }
        for member in &mut self.members {
            member.does("exchange", &format!("exchanged {}", 2 * MEMBERS));
            member.does("hang-up", &format!("hung up {}", 2 * MEMBERS));
        }
        for member in &mut self.members {
            let reply = member.ask("served");
            assert!(reply.ends_with(" wrong []"), "{reply}");
        }
    }
}

#[test]
fn no_end_meets_a_wrong_one_while_processes_are_killed_and_stopped() {
    let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut storm = Storm::new(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        storm.strike();
    }
    storm.calm();
    storm.check();
    let Storm { kills, stops, connected, failed, .. } = storm;
    println!("{seconds} s, {kills} killed, {stops} stopped: {connected} connected, {failed} attempts failed");
    assert!(connected > 0);
}
