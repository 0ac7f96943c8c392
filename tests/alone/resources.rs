//! A process' threads, descriptors and idle work.

use std::time::{Duration, Instant};

use rdma_verbs::provider::soft::SoftOptions;
use rdma_verbs::types::*;
use support::entries;
use support::node::*;
use support::process::alone;

fn threads() -> usize {
    entries("/proc/self/task")
}

/// Waits until the process has this number of threads. The kernel lists a joined thread for a moment longer.
fn threads_become(expected: usize) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    while threads() != expected {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

fn descriptors() -> usize {
    entries("/proc/self/fd")
}

/// Returns the number of voluntary context switches of this process. Preemption does not count.
fn switches() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .map(|task| {
            let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
            let lines = status.lines().filter(|line| line.starts_with("voluntary_ctxt_switches"));
            lines.map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap()).sum::<u64>()
        })
        .sum()
}

fn exchange() {
    let (a, b) = pair("127.78.7.1", "127.78.7.2", 1 << 16, PeerKind::Native);
    b.post_recv(1, &[b.sge(0, 1 << 16)]).unwrap();
    a.post_send(2, Operation::Send, Data::Sges(&[a.sge(0, 1 << 16)])).unwrap();
    b.success(1);
    a.success(2);
}

#[test]
fn process_has_and_does_no_more_than_it_needs() {
    alone(|| {
        let before = (threads(), descriptors());
        let context = SoftOptions::new().open("soft:127.78.7.9").unwrap();
        assert_eq!(threads(), before.0, "opening a device starts nothing");
        drop(context);

        // The standard library and the runtime may keep a descriptor after their first use.
        exchange();
        // A check of the group may outlast the devices for a moment, and keeps the mailbox.
        assert!(threads_become(before.0), "{} threads after {}", threads(), before.0);
        let after_first = descriptors();
        for _ in 0..20 {
            exchange();
        }
        assert!(threads_become(before.0), "{} threads after {}", threads(), before.0);
        assert_eq!(descriptors(), after_first, "descriptors leak");
        assert!(after_first <= before.1 + 1, "{after_first} descriptors after {}", before.1);

        let (a, b) = pair("127.78.7.3", "127.78.7.4", 64, PeerKind::Native);
        // One per device, and one for all devices that share addresses with other processes.
        assert!(threads_become(before.0 + 3), "{} threads after {}", threads(), before.0);
        a.post_send(1, Operation::Write { remote_addr: BASE, rkey: b.mr.rkey() }, Data::Inline(&[b"x"])).unwrap();
        a.success(1);
        std::thread::sleep(Duration::from_millis(100));
        let idle = switches();
        std::thread::sleep(Duration::from_millis(500));
        let woken = switches() - idle;
        // One is this thread's own sleep.
        assert!(woken <= 3, "idle threads woke up {woken} times");
    });
}
