//! The library's effects on its process and on other processes: loading, forking, dying, and an unread error output.
//! Each scenario runs in its own process, which is this program again, with a role.

mod library;

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use library::{End, PATIENCE, SIGNALED, Verbs, load, open, table, verbs};
use rdma_verbs::provider::abi::{QpAttr, TdInitAttr, qp_attr};

const ADDRESS: &str = "127.62.1.3";
const ROLE: &str = "RDMA_VERBS_TEST_ROLE";
/// Whether the process closes its error output before or after it opens a device.
const CLOSES: &str = "RDMA_VERBS_TEST_CLOSES";

fn library() -> &'static Verbs {
    verbs(ADDRESS)
}

fn role(name: &str) -> Command {
    // The library is built here, not by each process.
    library::path();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["part", "--exact", "--ignored", "--nocapture", "--test-threads=1", "--quiet"]).env(ROLE, name);
    command
}

/// Waits for a process, and kills it if it does not end.
fn wait_for_end(mut process: Child) -> ExitStatus {
    let end = Instant::now() + 2 * PATIENCE;
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            process.kill().unwrap();
            process.wait().unwrap();
            panic!("the process does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn assert_succeeds(command: &mut Command) {
    let status = wait_for_end(command.spawn().unwrap());
    assert!(status.success(), "{command:?}: {status}");
}

/// Not a test: the work of the processes that the tests start.
#[test]
#[ignore = "a part of the other tests"]
fn part() {
    match std::env::var(ROLE).as_deref() {
        Ok("loads") => loads(),
        Ok("logs") => logs(),
        Ok("forks") => forks(),
        Ok("works") => works(),
        Ok("sleeps") => sleeps(),
        Ok(other) => panic!("unknown role {other}"),
        Err(_) => {}
    }
}

fn names(folder: &str) -> BTreeSet<String> {
    let links = fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let target = fs::read_link(entry.path()).map_or(String::new(), |target| target.display().to_string());
        format!("{} {target}", entry.file_name().display())
    });
    // The listing has a descriptor itself, which does not count.
    links.filter(|link| !link.contains("/proc/")).collect()
}

fn threads_and_descriptors() -> [BTreeSet<String>; 2] {
    ["/proc/self/task", "/proc/self/fd"].map(names)
}

/// Waits until the threads are as expected, because the kernel lists a joined thread for a moment longer.
fn wait_for_threads(expected: &BTreeSet<String>) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while names("/proc/self/task") != *expected {
        assert!(Instant::now() < deadline, "{:?} instead of {expected:?}", names("/proc/self/task"));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn loads() {
    let before = threads_and_descriptors();
    let handle = load(libc::RTLD_LAZY | libc::RTLD_LOCAL);
    assert_eq!(threads_and_descriptors(), before, "loading the library");
    let verbs = library();
    // SAFETY: the list lives until it is freed.
    unsafe {
        let list = (verbs.get_device_list)(std::ptr::null_mut());
        assert!(!list.is_null() && !(*list).is_null());
        (verbs.free_device_list)(list);
    }
    assert_eq!(threads_and_descriptors(), before, "listing devices");
    let context = open(verbs);
    assert_ne!(threads_and_descriptors(), before, "an open device has descriptors");
    let end = End::looped(verbs, context);
    (0..100).for_each(|number| end.exchange(number));
    // The library's threads may outlive `dlclose`, which must not unmap their code.
    for _ in 0..2 {
        // SAFETY: opened twice.
        assert_eq!(unsafe { libc::dlclose(handle) }, 0);
    }
    (0..100).for_each(|number| end.exchange(number));
    end.destroy();
    // SAFETY: all of its objects are destroyed.
    assert_eq!(unsafe { (verbs.close_device)(context) }, 0);
    wait_for_threads(&before[0]);
}

#[test]
fn only_open_devices_have_threads_and_descriptors() {
    assert_succeeds(&mut role("loads"));
}

/// Returns how often each of the library's threads blocked or was preempted.
fn switches() -> BTreeSet<String> {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    let status = threads.map(|thread| fs::read_to_string(thread.join("status")).unwrap());
    let is_relevant = |line: &&str| ["Name:", "Pid:", "ctxt_switches"].iter().any(|word| line.contains(word));
    let threads = status.map(|status| status.lines().filter(is_relevant).collect::<Vec<_>>().join(" "));
    threads.filter(|thread| thread.contains("rdma")).collect()
}

fn sleeps() {
    let context = open(library());
    let ends: Vec<End> = (0..8).map(|_| End::looped(library(), context)).collect();
    for end in &ends {
        end.arm();
        (0..100).for_each(|number| end.exchange(number));
        assert_eq!(end.get_event(), 0);
        end.arm();
    }
    let mut poll_fds: Vec<libc::pollfd> =
        ends.iter().map(|end| libc::pollfd { fd: end.fd(), events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the context is open.
    poll_fds.push(libc::pollfd { fd: unsafe { (*context).async_fd }, events: libc::POLLIN, revents: 0 });
    let mut sleep = |milliseconds| {
        let before = switches();
        // SAFETY: the pointer and the length are those of `poll_fds`.
        let ready = unsafe { libc::poll(poll_fds.as_mut_ptr(), poll_fds.len() as libc::nfds_t, milliseconds) };
        assert_eq!(ready, 0, "there is no event");
        before == switches()
    };
    let end = Instant::now() + PATIENCE;
    // Another process on the address that ends meanwhile wakes one of them, as it must.
    while !sleep(1_500) {
        assert!(Instant::now() < end, "its threads do not sleep: {:?}", switches());
    }
    assert!(switches().len() >= 2, "only {:?}", switches());
}

/// A program that blocks on descriptors leaves the sockets to the library's thread, which blocks there until a packet
/// arrives.
#[test]
fn library_threads_sleep_while_the_program_blocks_on_descriptors() {
    assert_succeeds(&mut role("sleeps"));
}

/// Exchanges messages and provokes refusals, all of which are logged.
fn logs() {
    // SAFETY: the signal gets the disposition that it has in programs not written in Rust.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let closes = std::env::var(CLOSES).unwrap_or_default();
    if closes == "before" {
        close_error_output();
    }
    let context = open(library());
    let other_file = (closes == "after").then(|| {
        close_error_output();
        fs::File::from(memfd())
    });
    let end = End::looped(library(), context);
    for number in 0..100 {
        end.exchange(number);
        let mut attributes = QpAttr { qp_state: 77, ..QpAttr::default() };
        // SAFETY: the queue pair and the structure are alive.
        let result = unsafe { (library().modify_qp)(end.qp, &raw mut attributes, qp_attr::STATE as c_int) };
        assert_eq!(result, libc::EINVAL);
        // SAFETY: a domain of this library; the memory is not mapped, which is the error to provoke.
        let region = unsafe { (library().reg_mr)(end.pd, std::ptr::without_provenance_mut(4096), 4096, 1) };
        assert!(region.is_null());
    }
    end.destroy();
    if let Some(file) = other_file {
        assert_eq!(file.as_raw_fd(), libc::STDERR_FILENO);
        assert_eq!(file.metadata().unwrap().len(), 0, "the other file was written to");
    }
}

fn close_error_output() {
    // SAFETY: nothing here writes there any more except failed assertions, which the exit status reports.
    assert_eq!(unsafe { libc::close(libc::STDERR_FILENO) }, 0);
}

/// Creates a file, whose descriptor gets the lowest free number.
fn memfd() -> OwnedFd {
    // SAFETY: a name that ends with a zero; the descriptor is new.
    unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"other".as_ptr(), libc::MFD_CLOEXEC)) }
}

#[test]
fn unread_log_output_does_not_block() {
    let pipe = || {
        let (read, write) = std::io::pipe().unwrap();
        (OwnedFd::from(read), write)
    };
    let (_unread, mut full) = pipe();
    // SAFETY: the call takes no pointers.
    unsafe { libc::fcntl(full.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    while full.write(&[b'x'; 512]).is_ok() {}
    // SAFETY: as above; the process shares the open file.
    unsafe { libc::fcntl(full.as_raw_fd(), libc::F_SETFL, 0) };
    let (unread, abandoned) = pipe();
    drop(unread);
    for output in [OwnedFd::from(full), OwnedFd::from(abandoned)] {
        for level in ["warn", "trace"] {
            let error_output = output.try_clone().unwrap();
            // This error is logged at either level.
            let mut process = role("logs");
            process.env("RDMA_VERBS_MTU", "none").env("RDMA_VERBS_LOG", level);
            assert_succeeds(process.stderr(error_output));
        }
    }
}

/// The number of a closed output is reused by the next descriptor, which may be one of the library's.
#[test]
fn log_is_not_written_to_other_files() {
    for level in ["warn", "trace"] {
        for when in ["before", "after"] {
            assert_succeeds(role("logs").env("RDMA_VERBS_LOG", level).env(CLOSES, when));
        }
    }
}

#[test]
fn log_output_is_readable_text() {
    let output = role("logs").env("RDMA_VERBS_LOG", "info").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && text.lines().filter(|line| line.contains("INFO")).count() >= 100, "{text}");
}

#[test]
fn log_has_the_levels_of_targets() {
    let output = role("logs").env("RDMA_VERBS_LOG", "off,rdma_verbs::queue_pair=debug").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let is_expected = |line: &str| line.trim_start().starts_with("DEBUG rdma_verbs::queue_pair: ");
    assert!(output.status.success() && text.lines().all(is_expected), "{text}");
    assert!(text.contains(r#"from="RTR" to="RTS" cause="modify""#), "{text}");
    let output = role("logs").env("RDMA_VERBS_LOG", "loud").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(r#"WARN rdma_verbs::settings: RDMA_VERBS_LOG is "loud", which is ignored"#), "{text}");
}

/// Runs `work` in a forked child and returns its status.
fn in_child(work: impl FnOnce()) -> c_int {
    // SAFETY: the child uses this library, which is under test, and the allocator, which supports forks.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(worked.is_err())) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, and a local variable.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

/// Checks that verbs on another process's objects fail.
fn check_inherited(end: &End) {
    let mut attributes = QpAttr::default();
    // SAFETY: the objects exist, if only as copies.
    let results = unsafe {
        [
            (library().modify_qp)(end.qp, &raw mut attributes, 0),
            (library().destroy_qp)(end.qp),
            (library().destroy_cq)(end.cq),
        ]
    };
    assert_eq!(results, [libc::EINVAL; 3]);
    assert_eq!(end.get_event(), libc::EINVAL, "it neither waits nor finds an event");
}

fn forks() {
    let context = open(library());
    let (end, busy) = (End::looped(library(), context), End::looped(library(), context));
    let mut init = TdInitAttr { comp_mask: 0 };
    // SAFETY: the context's own functions; a thread domain that nothing uses.
    let (td, dealloc_td) = unsafe {
        let table = &*table(context);
        let td = table.alloc_td.expect("always there")(context, &raw mut init);
        (td, table.dealloc_td.expect("always there"))
    };
    assert!(!td.is_null());
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| (0..20_000).for_each(|number| busy.exchange(number)));
        let mut rounds = 0u32;
        while !worker.is_finished() && rounds < 20 {
            let status = in_child(|| {
                // In every other round, the child creates objects on its own device before it forks.
                let own = rounds.is_multiple_of(2).then(|| End::looped(library(), context));
                let status = in_child(|| {
                    check_inherited(&end);
                    own.iter().for_each(check_inherited);
                    let new = End::looped(library(), context);
                    (0..100).for_each(|number| new.exchange(number));
                    new.destroy();
                });
                assert_eq!(status, 0, "the child's child");
                check_inherited(&end);
                // SAFETY: the thread domain exists, if only as a copy.
                assert_eq!(unsafe { dealloc_td(td) }, libc::EINVAL);
                let own = own.unwrap_or_else(|| End::looped(library(), context));
                (0..100).for_each(|number| own.exchange(number));
                own.destroy();
            });
            assert_eq!(status, 0, "the child in round {rounds}");
            (0..100).for_each(|number| end.exchange(number));
            rounds += 1;
        }
        assert!(rounds > 0);
        worker.join().unwrap();
    });
    // SAFETY: nothing uses it.
    assert_eq!(unsafe { dealloc_td(td) }, 0);
    end.destroy();
    busy.destroy();
}

#[test]
fn grandchild_can_create_its_own_objects() {
    assert_succeeds(&mut role("forks"));
}

/// Works on the shared address until it is killed.
fn works() {
    let end = End::looped(library(), open(library()));
    for number in 0.. {
        end.exchange(number);
        if number == 100 {
            println!("works");
        }
    }
}

#[test]
fn killed_process_does_not_disturb_others() {
    let end = End::looped(library(), open(library()));
    let slowest = (0..10).map(|round| {
        let mut workers: Vec<Child> = (0..2).map(|_| role("works").stdout(Stdio::piped()).spawn().unwrap()).collect();
        for worker in &mut workers {
            let mut lines = BufReader::new(worker.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().contains("works")), "it never began");
        }
        let start = Instant::now();
        for number in 0..500 {
            if number == 100 {
                workers[0].kill().unwrap();
            }
            if number == 200 + round {
                workers[1].kill().unwrap();
            }
            end.post_recv(number);
            end.post_send(number, SIGNALED);
            assert_eq!((end.complete().wr_id, end.complete().wr_id), (number, number));
        }
        assert!(workers.iter_mut().all(|worker| !worker.wait().unwrap().success()), "killed");
        start.elapsed()
    });
    println!("500 messages beside two processes that are killed took {:?} at most", slowest.max().unwrap());
    end.destroy();
}
