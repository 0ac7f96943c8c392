//! Shared memory that is full, read-only, or already taken by another user.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use super::processes::{OTHER_USER, Victim, is_root, role, run_inside};

/// Fresh shared memory and temporary files that no other process uses.
const FRESH: &str = "mount -t tmpfs tmpfs /dev/shm\nmount -t tmpfs tmpfs /tmp\nmount -t tmpfs tmpfs /run\n\
                     chmod 1777 /dev/shm /tmp";

fn victim() -> Command {
    role(&std::env::current_exe().unwrap(), "processes::victim")
}

/// Checks that, where no file can be written, a single process works and reports the problem.
fn work_alone(device: &str, words: &[&str]) {
    let alone = Victim::start(victim(), device).unwrap_or_else(|said| panic!("a process alone is refused: {said}"));
    for word in words {
        assert!(alone.said.contains(word), "no \"{word}\" in: {}", alone.said);
    }
    alone.end();
}

#[test]
#[ignore = "started by the other tests"]
fn inside_full_memory() {
    // The second process of the user does not find the first one either.
    work_alone("soft:127.99.3.1", &["WARN", "/dev/shm/rdma-verbs-0"]);
    work_alone("soft:127.99.3.2", &["WARN", "/dev/shm/rdma-verbs-0"]);
}

#[test]
fn full_shared_memory_refuses_no_connection() {
    if is_root() {
        let script = "mount -t tmpfs -o size=16k tmpfs /dev/shm\nmount -t tmpfs -o size=16k tmpfs /tmp\n\
                      head -c 100000 /dev/zero > /dev/shm/filling || true\n\
                      head -c 100000 /dev/zero > /tmp/filling || true";
        run_inside(script, "registry::inside_full_memory");
    }
}

#[test]
fn shared_memory_without_room_for_names_refuses_no_connection() {
    if is_root() {
        let script = "mount -t tmpfs -o nr_inodes=2 tmpfs /dev/shm\nmount -t tmpfs -o nr_inodes=2 tmpfs /tmp\n\
                      mount -t tmpfs -o nr_inodes=2 tmpfs /run";
        run_inside(script, "registry::inside_full_memory");
    }
}

#[test]
fn read_only_shared_memory_refuses_no_connection() {
    if is_root() {
        let script =
            "mount -t tmpfs -o ro tmpfs /dev/shm\nmount -t tmpfs -o ro tmpfs /tmp\nmount -t tmpfs -o ro tmpfs /run";
        run_inside(script, "registry::inside_full_memory");
    }
}

/// Has another user create a folder first.
fn squat(path: &str) {
    std::fs::create_dir(path).unwrap();
    std::os::unix::fs::chown(path, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
}

/// Starts two processes of one user that share the address.
fn share(device: &str) -> (Victim, Victim) {
    let start = || Victim::start(victim(), device).unwrap_or_else(|said| panic!("the address is not shared: {said}"));
    (start(), start())
}

#[test]
#[ignore = "started by the other tests"]
fn inside_taken_folders() {
    squat("/dev/shm/rdma-verbs-0");
    squat("/tmp/rdma-verbs-0");
    let runtime = "/run/user/0";
    std::fs::create_dir_all(runtime).unwrap();
    std::fs::set_permissions(runtime, PermissionsExt::from_mode(0o700)).unwrap();
    let (one, other) = share("soft:127.99.3.3");
    for word in ["/dev/shm/rdma-verbs-0", &format!("user {OTHER_USER}"), "remove"] {
        assert!(one.said.contains(word), "no \"{word}\" in: {}", one.said);
    }
    one.end();
    other.end();
    // Without the last folder, each process is alone.
    std::fs::remove_dir_all(runtime).unwrap();
    work_alone("soft:127.99.3.4", &["/dev/shm/rdma-verbs-0", &format!("user {OTHER_USER}")]);
    for path in ["/dev/shm/rdma-verbs-0", "/tmp/rdma-verbs-0"] {
        assert_eq!(std::fs::read_dir(path).unwrap().count(), 0, "something of the victim lies in {path}");
    }
}

#[test]
fn folders_of_another_user_end_no_sharing() {
    if is_root() {
        run_inside(FRESH, "registry::inside_taken_folders");
    }
}

fn entries() -> Vec<PathBuf> {
    let folder = std::fs::read_dir("/dev/shm/rdma-verbs-0").unwrap();
    folder.map(|entry| entry.unwrap().path()).collect()
}

#[test]
#[ignore = "started by the other tests"]
fn inside_many_namespaces() {
    let exe = std::env::current_exe().unwrap();
    for round in 0..5 {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-ec", "ip link set lo up\nexec \"$0\" \"$@\""]).arg(&exe);
        command.args(victim().get_args());
        let device = format!("soft:127.99.3.{}", 10 + round);
        let killed = Victim::start(command, &device).unwrap_or_else(|said| panic!("{said}"));
        killed.kill();
    }
    // Two at once, to check that a file in use stays.
    let (one, other) = share("soft:127.99.3.20");
    let own = std::fs::metadata("/proc/self/ns/net").unwrap().ino().to_string();
    let is_foreign = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with(|first: char| first.is_ascii_digit()) && !name.starts_with(&own)
    };
    let foreign: Vec<PathBuf> = entries().into_iter().filter(is_foreign).collect();
    assert_eq!(foreign, Vec::<PathBuf>::new(), "of namespaces in which no process is");
    let sockets = entries().iter().filter(|path| is_socket(path)).count();
    // Four of each process.
    assert!(sockets <= 8, "{:?}", entries());
    one.end();
    other.kill();
    // The next process finds the files that the killed one left.
    let next = Victim::new("soft:127.99.3.21");
    let of_killed: Vec<PathBuf> =
        entries().into_iter().filter(|path| path.to_string_lossy().ends_with(".20")).collect();
    assert_eq!(of_killed, Vec::<PathBuf>::new());
    next.end();
    assert_eq!(entries().iter().filter(|path| is_socket(path)).count(), 0, "{:?}", entries());
}

fn is_socket(path: &std::path::Path) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&path.symlink_metadata().unwrap().file_type())
}

#[test]
fn unused_files_are_removed() {
    if is_root() {
        run_inside(FRESH, "registry::inside_many_namespaces");
    }
}
