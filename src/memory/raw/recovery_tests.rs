//! The handler of faults: what it ends, what it passes on, and when it is not relied on. What changes a whole process
//! runs in a child, which is this program with the name of what it shall do.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libc::{c_int, c_void, siginfo_t};

use super::tests::{Pages, READ_WRITE, block_faults, both_ways, page, pattern};
use super::*;

/// Around each way of copying.
const LENGTHS: [usize; 24] =
    [2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 100, 256, 512, 1024, 1279, 1280, 1281, 2048, 4000, 4096, 8000];
/// How a child says that it found what it should.
const WELL: i32 = 42;
const CHILD: &str = "RDMA_VERBS_FAULT_CHILD";

#[test]
fn copies_end_at_a_missing_page() {
    both_ways(|| {
        // Present, missing, present.
        let pages = Pages::new(6, READ_WRITE);
        let memory = Memory::new(pages.backing());
        memory.write(0, &vec![0x11; pages.length]).unwrap();
        pages.take_away(2, 2);
        let (hole, behind) = (2 * page(), 4 * page());
        for length in LENGTHS {
            for inside in [1, length / 2, length - 1] {
                let before = hole - (length - inside);
                let mut out = vec![0; length];
                assert_eq!(memory.read(before, &mut out), Err(AccessError::Fault), "{length} bytes at {before}");
                assert_eq!(memory.read(behind - inside, &mut out), Err(AccessError::Fault));
                assert_eq!(memory.read_summed(before, &mut out, true), Err(AccessError::Fault), "{length}");
                assert_eq!(memory.read_summed(behind - inside, &mut out, false), Err(AccessError::Fault));
                assert_eq!(memory.write(before, &out), Err(AccessError::Fault));
                let data = vec![0xee; length];
                assert_eq!(memory.write(behind - inside, &data), Err(AccessError::Fault), "{length}, {inside}");
                let last = memory.load_acquire_u8(behind + length - inside - 1);
                assert_eq!(last, Ok(0x11), "the last byte of {length} comes after all others");
            }
        }
    });
}

#[test]
fn copies_are_summed_as_memory_of_our_own_is() {
    recover_from_faults().unwrap();
    let pages = Pages::new(2, READ_WRITE);
    let (memory, own) = (Memory::new(pages.backing()), Memory::new(Backing::from_vec(pattern(pages.length, 5))));
    memory.write(0, &pattern(pages.length, 5)).unwrap();
    for length in [100, 256, 512, 1024, 2048, 4096] {
        let (mut out, mut expected) = (vec![0; length], vec![0; length]);
        let sum = memory.read_summed(33, &mut out, true);
        assert_eq!(sum, own.read_summed(33, &mut expected, true), "{length}");
        assert_eq!(out, expected);
    }
}

#[test]
fn words_and_atomics_end_at_a_missing_page() {
    both_ways(|| {
        let pages = Pages::new(3, READ_WRITE);
        let memory = Memory::new(pages.backing());
        pages.take_away(1, 1);
        let missing = page() + 8;
        assert_eq!(memory.load_acquire_u8(missing), Err(AccessError::Fault));
        assert_eq!(memory.load_acquire_u16(missing), Err(AccessError::Fault));
        assert_eq!(memory.load_acquire_u32(missing), Err(AccessError::Fault));
        assert_eq!(memory.load_acquire_u64(missing), Err(AccessError::Fault));
        assert_eq!(memory.store_release_u8(missing, 1), Err(AccessError::Fault));
        assert_eq!(memory.store_release_u16(missing, 1), Err(AccessError::Fault));
        assert_eq!(memory.store_release_u32(missing, 1), Err(AccessError::Fault));
        assert_eq!(memory.store_release_u64(missing, 1), Err(AccessError::Fault));
        assert_eq!(memory.compare_exchange_u64(missing, 0, 1), Err(AccessError::Fault));
        assert_eq!(memory.fetch_add_u64(missing, 1), Err(AccessError::Fault));
        assert_eq!(memory.store_in_place_u64(missing, 1), Err(AccessError::Fault));
        assert_eq!(memory.fetch_add_u64(2 * page(), 1), Ok(0));
        assert_eq!(memory.fetch_add_u64(2 * page(), 1), Ok(1));
    });
}

/// Half of the numbers are no address at all, which the processor reports in another way than a missing page.
#[test]
fn what_is_no_address_is_a_fault() {
    both_ways(|| {
        // SAFETY: nothing is named but what cannot be memory of a process.
        let memory = Memory::new(unsafe { Backing::address_space() });
        for place in [8, 1 << 63, 0xffff_8000_0000_0000, 1 << 48] {
            assert_eq!(memory.read(place, &mut [0; 100]), Err(AccessError::Fault), "{place:#x}");
            assert_eq!(memory.write(place, &[0; 100]), Err(AccessError::Fault), "{place:#x}");
            assert_eq!(memory.fetch_add_u64(place, 1), Err(AccessError::Fault), "{place:#x}");
        }
    });
}

/// Pages come and go while they are accessed: each access succeeds or fails, and both happen.
#[test]
fn pages_come_and_go_under_accesses() {
    const PATIENCE: Duration = Duration::from_secs(20);
    recover_from_faults().unwrap();
    let pages = Pages::new(4, READ_WRITE);
    let memory = Memory::new(pages.backing());
    let (address, length) = (pages.address.addr(), pages.length);
    let (stop, start) = (AtomicBool::new(false), Instant::now());
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for protection in [libc::PROT_NONE, READ_WRITE, libc::PROT_READ, READ_WRITE] {
                    // SAFETY: these pages are the test's, and no reference to them exists.
                    unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(address), length, protection) };
                }
            }
        });
        let (mut well, mut failed) = ([0u32; 4], [0u32; 4]);
        let mut out = vec![0; 4096];
        while [well, failed].iter().flatten().any(|count| *count < 10) && start.elapsed() < PATIENCE {
            let results = [
                memory.read(100, &mut out),
                memory.read_summed(100, &mut out, true).map(drop),
                memory.write(5, &out),
                memory.fetch_add_u64(64, 1).map(drop),
            ];
            for (index, result) in results.into_iter().enumerate() {
                match result {
                    Ok(()) => well[index] += 1,
                    Err(error) => {
                        assert_eq!(error, AccessError::Fault);
                        failed[index] += 1;
                    }
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!([well, failed].iter().flatten().all(|count| *count >= 10), "{well:?} {failed:?}");
    });
}

#[test]
fn a_thread_that_blocks_the_signals_uses_the_kernel() {
    recover_from_faults().unwrap();
    let pages = Pages::new(1, READ_WRITE);
    let memory = Memory::new(pages.backing());
    pages.take_away(0, 1);
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(recovery::ready().is_some());
                block_faults(libc::SIG_BLOCK, &[signal]);
                // What was found before holds for a while.
                thread::sleep(Duration::from_millis(5));
                assert!(recovery::ready().is_none());
                assert_eq!(memory.read(0, &mut [0; 8]), Err(AccessError::Fault));
                block_faults(libc::SIG_UNBLOCK, &[signal]);
                thread::sleep(Duration::from_millis(5));
                assert!(recovery::ready().is_some());
            });
        });
    }
}

/// Runs this program again, for one of the cases of [`child`].
fn run_child(case: &str) -> std::process::ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "memory::raw::recovery_tests::child", "--include-ignored"]).env(CHILD, case);
    command.output().unwrap().status
}

#[test]
fn other_faults_go_to_the_handler_that_was_there() {
    for case in ["previous", "previous, one argument", "previous, once", "sent to previous", "sent and ignored"] {
        assert_eq!(run_child(case).code(), Some(WELL), "{case}");
    }
}

#[test]
fn other_faults_end_a_process_without_a_handler() {
    for case in ["default", "default, memory of our own", "default, ignored", "sent by default", "previous, twice"] {
        assert_eq!(run_child(case).signal(), Some(libc::SIGSEGV), "{case}");
    }
}

#[test]
fn a_handler_that_comes_later_ends_recovery() {
    for case in ["replaced", "replaced in part"] {
        assert_eq!(run_child(case).code(), Some(WELL), "{case}");
    }
}

/// What the cases do in a process of their own.
#[test]
#[ignore = "run by the others"]
fn child() {
    let Ok(case) = std::env::var(CHILD) else { return };
    // SAFETY: no core is to be written.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
    let three = ends_well as *const () as usize;
    let (handler, flags, then): (usize, c_int, fn()) = match &*case {
        "previous" => (three, libc::SA_SIGINFO, fault),
        "previous, one argument" => (ends_well_of_one as *const () as usize, 0, fault),
        "previous, once" => (three, libc::SA_SIGINFO | libc::SA_RESETHAND, fault),
        // The instruction faults again, and then nobody is left.
        "previous, twice" => (returns as *const () as usize, libc::SA_RESETHAND, fault),
        "sent to previous" => (three, libc::SA_SIGINFO, send),
        "sent and ignored" => (libc::SIG_IGN, 0, send_and_end),
        "default" => (libc::SIG_DFL, 0, fault),
        "default, memory of our own" => (libc::SIG_DFL, 0, fault_of_our_own),
        "default, ignored" => (libc::SIG_IGN, 0, fault),
        "sent by default" => (libc::SIG_DFL, 0, send),
        "replaced" => (libc::SIG_DFL, 0, || replaced(&[libc::SIGSEGV, libc::SIGBUS])),
        "replaced in part" => (libc::SIG_DFL, 0, || replaced(&[libc::SIGBUS])),
        other => panic!("no case {other}"),
    };
    set_handler(libc::SIGSEGV, handler, flags);
    recover();
    then();
    panic!("went on after {case}");
}

/// Installs the handler, and shows that it works.
fn recover() {
    recover_from_faults().unwrap();
    recover_from_faults().unwrap();
    let pages = Pages::new(1, READ_WRITE);
    let memory = Memory::new(pages.backing());
    pages.take_away(0, 1);
    assert!(recovery::ready().is_some());
    assert_eq!(memory.read(0, &mut [0; 8]), Err(AccessError::Fault));
}

fn replaced(signals: &[c_int]) {
    let pages = Pages::new(1, READ_WRITE);
    let memory = Memory::new(pages.backing());
    pages.take_away(0, 1);
    for signal in signals {
        set_handler(*signal, aborts as *const () as usize, 0);
    }
    thread::sleep(Duration::from_millis(5));
    assert!(recovery::ready().is_none());
    assert_eq!(memory.read(0, &mut [0; 4096]), Err(AccessError::Fault));
    assert_eq!(memory.write(0, &[0; 4096]), Err(AccessError::Fault));
    assert_eq!(memory.fetch_add_u64(0, 1), Err(AccessError::Fault));
    assert_eq!(recover_from_faults(), Err(RecoverError::Replaced { signal: signals[0] }));
    std::process::exit(WELL);
}

fn set_handler(signal: c_int, handler: usize, flags: c_int) {
    // SAFETY: the handlers are the functions below, which only end the process or return.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (handler, flags);
        assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
    }
}

/// An access that is none of this library's.
fn fault() {
    let nothing: *const u64 = ptr::without_provenance(std::hint::black_box(64));
    // SAFETY: it is not there, which ends the process or calls its handler.
    std::hint::black_box(unsafe { nothing.read_volatile() });
}

/// An access to memory of our own, whose pages are always there.
fn fault_of_our_own() {
    // SAFETY: it is not there, which ends the process.
    unsafe { direct::copy_out(ptr::without_provenance(8), &mut [0; 100]) };
}

/// The signal without a fault.
fn send() {
    // SAFETY: has no preconditions.
    unsafe { libc::raise(libc::SIGSEGV) };
}

fn send_and_end() {
    send();
    std::process::exit(WELL);
}

extern "C" fn ends_well(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: what happened is passed to a handler with three arguments.
    let well = !context.is_null() && unsafe { (*info).si_signo } == signal;
    // SAFETY: ends the process at once, which is allowed everywhere.
    unsafe { libc::_exit(if well { WELL } else { 1 }) };
}

extern "C" fn ends_well_of_one(signal: c_int) {
    // SAFETY: as above.
    unsafe { libc::_exit(if signal == libc::SIGSEGV { WELL } else { 1 }) };
}

extern "C" fn aborts(_: c_int) {
    // SAFETY: as above.
    unsafe { libc::abort() };
}

extern "C" fn returns(_: c_int) {}
