//! The fault handler: the accesses that it ends, the faults that it passes on, and when accesses do not rely on it.
//! Cases that change the whole process run in a child, which is this program with the name of the case.

use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libc::{c_int, c_void, siginfo_t};

use super::tests::{Pages, READ_WRITE, block_faults, page, pattern, temporary_file, with_and_without_handler};
use super::*;

/// Lengths around the thresholds between the copy methods.
const LENGTHS: [usize; 24] =
    [2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 100, 256, 512, 1024, 1279, 1280, 1281, 2048, 4000, 4096, 8000];
/// The exit code of a child whose case passed.
const SUCCESS: i32 = 42;
const CHILD: &str = "RDMA_VERBS_FAULT_CHILD";

#[test]
fn copies_end_at_a_missing_page() {
    with_and_without_handler(|| {
        // Present, missing, present.
        let pages = Pages::new(6, READ_WRITE);
        let memory = Memory::new(pages.backing());
        memory.write(0, &vec![0x11; pages.length]).unwrap();
        pages.make_inaccessible(2, 2);
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
fn copies_between_memory_have_the_same_bytes_and_end_at_a_missing_page() {
    with_and_without_handler(|| {
        let pages = Pages::new(6, READ_WRITE);
        let (guarded, own) = (Memory::new(pages.backing()), Memory::new(Backing::from_vec(pattern(3 * page(), 7))));
        for length in LENGTHS {
            for offset in 0..9 {
                let (mut first, mut second) = (vec![0; length + 2], vec![0; length]);
                guarded.write(100, &vec![0x11; length + offset + 2]).unwrap();
                own.copy_to(3, &guarded, 101 + offset, length).unwrap();
                guarded.read(100 + offset, &mut first).unwrap();
                assert_eq!(first[1..=length], pattern(3 * page(), 7)[3..3 + length], "{length} bytes at {offset}");
                assert_eq!((first[0], first[length + 1]), (0x11, 0x11));
                let target = Memory::new(Backing::from_vec(vec![0; length + offset]));
                for source in [&guarded, &own] {
                    let from = if std::ptr::eq(source, &own) { 3 } else { 101 + offset };
                    source.copy_to(from, &target, offset, length).unwrap();
                    target.read(offset, &mut second).unwrap();
                    assert_eq!(second, first[1..=length]);
                }
            }
        }
        assert_eq!(own.copy_to(0, &guarded, pages.length, 1), Err(AccessError::OutOfBounds));
        assert_eq!(own.copy_to(own.len() - 1, &guarded, 0, 2), Err(AccessError::OutOfBounds));
        pages.make_inaccessible(2, 2);
        for length in LENGTHS {
            assert_eq!(guarded.copy_to(2 * page() - 1, &own, 0, length), Err(AccessError::Fault));
            assert_eq!(own.copy_to(0, &guarded, 2 * page() - 1, length), Err(AccessError::Fault));
        }
    });
}

#[test]
fn copies_of_guarded_memory_are_summed() {
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
    with_and_without_handler(|| {
        let pages = Pages::new(3, READ_WRITE);
        let memory = Memory::new(pages.backing());
        pages.make_inaccessible(1, 1);
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

/// Half of the numbers are not canonical addresses, which the processor reports differently from a missing page.
#[test]
fn access_to_an_invalid_address_faults() {
    with_and_without_handler(|| {
        // SAFETY: only addresses that cannot be memory of a process are named.
        let memory = Memory::new(unsafe { Backing::address_space() });
        for address in [8, 1 << 63, 0xffff_8000_0000_0000, 1 << 48] {
            assert_eq!(memory.read(address, &mut [0; 100]), Err(AccessError::Fault), "{address:#x}");
            assert_eq!(memory.write(address, &[0; 100]), Err(AccessError::Fault), "{address:#x}");
            assert_eq!(memory.fetch_add_u64(address, 1), Err(AccessError::Fault), "{address:#x}");
        }
    });
}

/// Pages come and go while they are accessed: each access succeeds or fails, and both happen.
#[test]
fn accesses_race_with_changes_of_protection() {
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
        let (mut succeeded, mut failed) = ([0u32; 4], [0u32; 4]);
        let mut out = vec![0; 4096];
        while [succeeded, failed].iter().flatten().any(|count| *count < 10) && start.elapsed() < PATIENCE {
            let results = [
                memory.read(100, &mut out),
                memory.read_summed(100, &mut out, true).map(drop),
                memory.write(5, &out),
                memory.fetch_add_u64(64, 1).map(drop),
            ];
            for (index, result) in results.into_iter().enumerate() {
                match result {
                    Ok(()) => succeeded[index] += 1,
                    Err(error) => {
                        assert_eq!(error, AccessError::Fault);
                        failed[index] += 1;
                    }
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!([succeeded, failed].iter().flatten().all(|count| *count >= 10), "{succeeded:?} {failed:?}");
    });
}

#[test]
fn a_thread_that_blocks_the_signals_uses_the_kernel() {
    recover_from_faults().unwrap();
    let pages = Pages::new(1, READ_WRITE);
    let memory = Memory::new(pages.backing());
    pages.make_inaccessible(0, 1);
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(recovery::ready().is_some());
                block_faults(libc::SIG_BLOCK, &[signal]);
                // The earlier result holds for a while.
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
fn run_child(case: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "memory::raw::recovery_tests::child", "--include-ignored"]).env(CHILD, case);
    command.output().unwrap()
}

#[test]
fn other_faults_go_to_the_previous_handler() {
    for case in [
        "previous",
        "previous, one argument",
        "previous, once",
        "previous, of a file",
        "previous, unwinds",
        "sent to previous",
        "sent and ignored",
        "sent and ignored, twice",
    ] {
        assert_child_succeeds(case);
    }
}

fn assert_child_succeeds(case: &str) {
    let output = run_child(case);
    assert_eq!(output.status.code(), Some(SUCCESS), "{case}: {output:?}");
}

/// Rust's own handler reports the overflow. That works only because it runs on another stack, and so does the library's
/// handler, which is called before it.
#[test]
fn stack_overflow_is_still_reported() {
    let output = run_child("overflow");
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("has overflowed its stack"), "{said}");
}

#[test]
fn other_faults_end_a_process_without_a_handler() {
    for case in
        ["default", "default, own memory", "default, ignored", "sent by default", "previous, twice", "chained, default"]
    {
        assert_eq!(run_child(case).status.signal(), Some(libc::SIGSEGV), "{case}");
    }
}

#[test]
fn later_handler_ends_recovery() {
    for case in ["replaced", "replaced in part", "chained", "chained after a refusal"] {
        assert_child_succeeds(case);
    }
}

/// Runs a case in a process of its own.
#[test]
#[ignore = "run by the others"]
fn child() {
    let Ok(case) = std::env::var(CHILD) else { return };
    // SAFETY: only reads its argument, and prevents a core dump.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
    let expects_success = exits_with_success as *const () as usize;
    let (handler, flags, then): (usize, c_int, fn()) = match &*case {
        "previous" => (expects_success, libc::SA_SIGINFO, fault),
        "previous, one argument" => (exits_with_success_one_argument as *const () as usize, 0, fault),
        "previous, once" => (expects_success, libc::SA_SIGINFO | libc::SA_RESETHAND, fault),
        // The instruction faults again, when no handler is left.
        "previous, twice" => (returns as *const () as usize, libc::SA_RESETHAND, fault),
        "sent to previous" => (expects_success, libc::SA_SIGINFO, send),
        "previous, unwinds" => (unwinds as *const () as usize, 0, caught),
        "previous, of a file" => (expects_success, libc::SA_SIGINFO, fault_of_a_file),
        "sent and ignored" => (libc::SIG_IGN, 0, send_and_end),
        "sent and ignored, twice" => (libc::SIG_IGN, libc::SA_RESETHAND, || {
            send();
            send_and_end();
        }),
        "default" => (libc::SIG_DFL, 0, fault),
        "default, own memory" => (libc::SIG_DFL, 0, fault_in_own_memory),
        "default, ignored" => (libc::SIG_IGN, 0, fault),
        "sent by default" => (libc::SIG_DFL, 0, send),
        "replaced" => (libc::SIG_DFL, 0, || replaced(&[libc::SIGSEGV, libc::SIGBUS])),
        "replaced in part" => (libc::SIG_DFL, 0, || replaced(&[libc::SIGBUS])),
        "chained" => (expects_success, libc::SA_SIGINFO, chained),
        "chained, default" => (libc::SIG_DFL, 0, chained),
        "chained after a refusal" => (expects_success, libc::SA_SIGINFO, refused_and_chained),
        "overflow" => (0, 0, overflow),
        other => panic!("no case {other}"),
    };
    // Rust's own handler reports an overflow.
    if case != "overflow" {
        set_handler(if case == "previous, of a file" { libc::SIGBUS } else { libc::SIGSEGV }, handler, flags);
    }
    if case != "chained after a refusal" {
        recover();
    }
    then();
    panic!("went on after {case}");
}

/// Installs the handler, and shows that it works.
fn recover() {
    recover_from_faults().unwrap();
    recover_from_faults().unwrap();
    let pages = Pages::new(1, READ_WRITE);
    let memory = Memory::new(pages.backing());
    pages.make_inaccessible(0, 1);
    assert!(recovery::ready().is_some());
    assert_eq!(memory.read(0, &mut [0; 8]), Err(AccessError::Fault));
}

fn replaced(signals: &[c_int]) {
    let pages = Pages::new(1, READ_WRITE);
    let memory = Memory::new(pages.backing());
    pages.make_inaccessible(0, 1);
    for signal in signals {
        set_handler(*signal, aborts as *const () as usize, 0);
    }
    thread::sleep(Duration::from_millis(5));
    assert!(recovery::ready().is_none());
    assert_eq!(memory.read(0, &mut [0; 4096]), Err(AccessError::Fault));
    assert_eq!(memory.write(0, &[0; 4096]), Err(AccessError::Fault));
    assert_eq!(memory.fetch_add_u64(0, 1), Err(AccessError::Fault));
    assert_eq!(recover_from_faults(), Err(RecoverError::Replaced { signal: signals[0] }));
    std::process::exit(SUCCESS);
}

/// A later handler that calls the library's: the kernel makes the copies, and a fault outside the library is passed on
/// once.
fn chained() {
    let pages = Pages::new(1, READ_WRITE);
    let memory = Memory::new(pages.backing());
    pages.make_inaccessible(0, 1);
    CHAINED_TO.store(set_handler(libc::SIGSEGV, chains as *const () as usize, libc::SA_SIGINFO), Ordering::Relaxed);
    thread::sleep(Duration::from_millis(5));
    assert!(recovery::ready().is_none());
    assert_eq!(memory.read(0, &mut [0; 4096]), Err(AccessError::Fault));
    assert_eq!(memory.write(0, &[0; 4096]), Err(AccessError::Fault));
    assert!(recover_from_faults().is_err(), "put in a second time");
    assert_eq!(CHAINED.load(Ordering::Relaxed), 0, "called for an access of the library's");
    fault();
}

/// The second handler is refused, so the call is repeated; the first one is already installed, and stays as it is.
fn refused_and_chained() {
    refuse_handlers(libc::SIGBUS);
    let refused = Err(RecoverError::Refused { signal: libc::SIGBUS, errno: libc::EPERM });
    assert_eq!(recover_from_faults(), refused);
    assert_eq!(recover_from_faults(), refused);
    chained();
}

/// Makes the kernel refuse further handlers of this signal from this thread.
fn refuse_handlers(signal: c_int) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    // Continues if it is equal, and otherwise skips `jf` instructions.
    let equal = |k: u32, jf: u8| libc::sock_filter { jf, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k) };
    // The fields of `seccomp_data`: the number, then at 16 the arguments of 8 bytes each.
    let mut filter = [
        statement(load, 0),
        equal(libc::SYS_rt_sigaction as u32, 5),
        statement(load, 16),
        equal(signal as u32, 3),
        statement(load, 24),
        // A call without a new action only queries, and is allowed.
        libc::sock_filter { jt: 1, ..equal(0, 0) },
        statement(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel reads the program, and nothing else.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1u64, 0u64, 0u64, 0u64), 0);
        let mode = u64::from(libc::SECCOMP_MODE_FILTER);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

/// Returns the previous handler.
fn set_handler(signal: c_int, handler: usize, flags: c_int) -> usize {
    // SAFETY: the handlers are the functions below, which only end the process, return or call the previous one.
    unsafe {
        let (mut action, mut before): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
        (action.sa_sigaction, action.sa_flags) = (handler, flags);
        assert_eq!(libc::sigaction(signal, &action, &mut before), 0);
        before.sa_sigaction
    }
}

/// A fault that the previous handler turns into an exception, as runtimes do. `fault` has nothing to clean up, so
/// nothing is looked up at the instruction that faulted; and the compiler must not know that no call in it can unwind.
fn caught() {
    let fault: fn() = std::hint::black_box(fault);
    if std::panic::catch_unwind(fault).is_err() {
        std::process::exit(SUCCESS);
    }
}

/// An access outside this library. In assembly language, because Rust unwinds through its own functions only from their
/// calls, if they contain any: a check of the pointer would be one.
fn fault() {
    // SAFETY: the address is not mapped, which ends the process or calls its handler.
    unsafe { std::arch::asm!("mov {0}, [{0}]", inout(reg) 64u64 => _, options(nostack, readonly)) };
}

/// An access to a mapped page that its file no longer has.
fn fault_of_a_file() {
    let file = temporary_file(page());
    // SAFETY: a new mapping, which is accessed only here; its page is gone, which calls the handler.
    unsafe {
        let descriptor = file.as_raw_fd();
        let address = libc::mmap(ptr::null_mut(), page(), libc::PROT_READ, libc::MAP_SHARED, descriptor, 0);
        assert_ne!(address, libc::MAP_FAILED);
        file.set_len(0).unwrap();
        std::hint::black_box(address.cast::<u64>().read_volatile());
    }
}

fn overflow() {
    fn deeper(depth: u64) -> u64 {
        let room = std::hint::black_box([depth; 64]);
        if depth == 0 { 0 } else { deeper(depth + 1) + room[1] }
    }
    thread::Builder::new().stack_size(1 << 17).spawn(|| deeper(1)).unwrap().join().unwrap();
}

/// An access in the variant for the library's own memory, whose pages are always present.
fn fault_in_own_memory() {
    // SAFETY: the address is not mapped, which ends the process.
    unsafe { direct::copy_out(ptr::without_provenance(8), &mut [0; 100]) };
}

/// Raises the signal without a fault.
fn send() {
    // SAFETY: has no preconditions.
    unsafe { libc::raise(libc::SIGSEGV) };
}

fn send_and_end() {
    send();
    std::process::exit(SUCCESS);
}

/// The handler that [`chains`] calls; [`CHAINED`] counts the calls of `chains`.
static CHAINED_TO: AtomicUsize = AtomicUsize::new(0);
static CHAINED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn chains(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    if CHAINED.fetch_add(1, Ordering::Relaxed) > 0 {
        // SAFETY: as below.
        unsafe { libc::_exit(1) };
    }
    // SAFETY: the library's handler was installed before.
    unsafe {
        let next: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
            std::mem::transmute(CHAINED_TO.load(Ordering::Relaxed));
        next(signal, info, context);
    }
}

extern "C" fn exits_with_success(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the signal's information to a handler with three arguments.
    let is_as_expected = !context.is_null() && unsafe { (*info).si_signo } == signal;
    // SAFETY: ends the process at once, which is allowed everywhere.
    unsafe { libc::_exit(if is_as_expected { SUCCESS } else { 1 }) };
}

extern "C" fn exits_with_success_one_argument(signal: c_int) {
    // SAFETY: as above.
    unsafe { libc::_exit(if signal == libc::SIGSEGV { SUCCESS } else { 1 }) };
}

extern "C" fn aborts(_: c_int) {
    // SAFETY: as above.
    unsafe { libc::abort() };
}

extern "C-unwind" fn unwinds(_: c_int) {
    std::panic::resume_unwind(Box::new(()));
}

extern "C" fn returns(_: c_int) {}
