//! The fault handler of the whole process: it ends an access that hit a missing page, and passes every other fault to
//! the previous handler.
//!
//! It is installed only on request ([`super::recover_from_faults`]), once, and never removed or reinstalled: a handler
//! that was installed after it may call it, and if it were then installed in front of that one again, the two would
//! call each other endlessly. So replacing it ends recovery, and accesses go through the kernel from then on.
//!
//! # Why the handler is sound
//!
//! It runs wherever the processor was interrupted, so it takes no lock, allocates nothing, uses no thread-local
//! variables, and calls nothing of libc but system calls, and those only when the process is about to end. The table of
//! accesses is part of the program's read-only data. It changes two registers of the interrupted block, which declares
//! both results (see `recoverable`): the instruction pointer, and register 11. It does so only for faults that the
//! processor raised at that instruction; a signal that a process sent is not mistaken for one.
//!
//! The calls are system calls, not libc's functions: libraries replace `sigaction` with one that keeps their fault
//! handler installed (UCX, Java's `libjsig`), and that handler is kept here as well.

use std::arch::{asm, naked_asm};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{c_int, c_void, siginfo_t, ucontext_t};

use crate::memory::RecoverError;

/// The signals of missing pages.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// The kernel's set of signals, in bytes.
const SET_BYTES: usize = 8;
/// Flag: the action has the address of the code that its handler returns to.
const SA_RESTORER: u64 = 0x0400_0000;
/// A memory error that no current access caused.
const BUS_MCEERR_AO: c_int = 5;

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// The previous action: the address of a handler, `SIG_DFL` or `SIG_IGN`, and its flags.
struct Previous {
    handler: AtomicUsize,
    flags: AtomicU64,
}

impl Previous {
    const fn none() -> Self {
        Self { handler: AtomicUsize::new(libc::SIG_DFL), flags: AtomicU64::new(0) }
    }

    fn remember(&self, action: &Action) {
        self.flags.store(action.flags, Ordering::Relaxed);
        self.handler.store(action.handler, Ordering::Release);
    }
}

static PREVIOUS: [Previous; SIGNALS.len()] = [Previous::none(), Previous::none()];
/// Whether the handler was installed for each signal, even if it was replaced since. Locked while it is installed; the
/// handler does not use it.
static INSTALLED_FOR: Mutex<[bool; SIGNALS.len()]> = Mutex::new([false; SIGNALS.len()]);
/// Whether it was installed for all signals.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Whether the handler was installed; it may have been replaced since.
#[inline]
pub(super) fn was_installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

/// Installs the handler, once.
pub(super) fn install() -> Result<(), RecoverError> {
    // Without the lock, which a forked child may have inherited locked.
    if !was_installed() {
        install_for_all()?;
    }
    match SIGNALS.into_iter().find(|signal| !is_in_place(*signal)) {
        Some(signal) => Err(RecoverError::Replaced { signal }),
        None => Ok(()),
    }
}

/// Installs it for all signals. Concurrent calls wait for each other, for some system calls at most.
fn install_for_all() -> Result<(), RecoverError> {
    let mut installed_for = INSTALLED_FOR.lock().unwrap_or_else(PoisonError::into_inner);
    for (index, signal) in SIGNALS.into_iter().enumerate() {
        // After a partial installation, a handler that has replaced this one since may call it, so it is not installed
        // again. After an error, a handler that is already installed stays, and passes everything on.
        if !installed_for[index] {
            install_for(signal, &PREVIOUS[index])?;
            installed_for[index] = true;
        }
    }
    INSTALLED.store(true, Ordering::Release);
    Ok(())
}

fn install_for(signal: c_int, previous: &Previous) -> Result<(), RecoverError> {
    let failed = |errno| RecoverError::Refused { signal, errno };
    let before = exchange(signal, None).map_err(failed)?;
    if before.handler == address() {
        return Ok(());
    }
    // Stored before the handler can be called.
    previous.remember(&before);
    let action = Action {
        handler: address(),
        flags: libc::SA_SIGINFO as u64 | SA_RESTORER | kept_flags(&before),
        // Past the first byte, for the reason given there.
        restorer: sigaction_restorer as *const () as usize + 1,
        // The signals that the previous handler wants blocked while it runs.
        mask: before.mask,
    };
    let replaced = exchange(signal, Some(&action)).map_err(failed)?;
    if (replaced.handler, replaced.flags) != (before.handler, before.flags) {
        previous.remember(&replaced);
    }
    Ok(())
}

/// Returns the flags with which the previous handler runs as before, including the stack that it requested. Without a
/// previous handler that is the alternate signal stack, if the thread has one: its own stack may be the missing memory.
fn kept_flags(before: &Action) -> u64 {
    let kept = libc::SA_NODEFER | libc::SA_RESTART | libc::SA_ONSTACK;
    let added = if matches!(before.handler, libc::SIG_DFL | libc::SIG_IGN) { libc::SA_ONSTACK } else { 0 };
    before.flags & kept as u64 | added as u64
}

/// Whether a fault would reach the handler now: it is in place, and the calling thread blocks neither signal.
pub(super) fn is_ready() -> bool {
    let mut blocked = 0u64;
    let (how, set) = (libc::SIG_BLOCK, ptr::null::<u64>());
    // SAFETY: with no set the call changes nothing; it writes the current one to `blocked`, which has the given size.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, &raw mut blocked, SET_BYTES) };
    result == 0 && SIGNALS.into_iter().all(|signal| blocked & (1 << (signal - 1)) == 0 && is_in_place(signal))
}

fn is_in_place(signal: c_int) -> bool {
    exchange(signal, None).is_ok_and(|action| action.handler == address())
}

fn address() -> usize {
    handle as *const () as usize
}

/// Returns the action of a signal, and replaces it if a new one is given; or returns the error number.
fn exchange(signal: c_int, new: Option<&Action>) -> Result<Action, i32> {
    let mut old = Action::default();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the kernel reads and writes structures of this form. The only handler set is `handle`, which may be
    // called at any instruction (see above); `end_by_default` sets the default action.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, &raw mut old, SET_BYTES) };
    if result == 0 { Ok(old) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)) }
}

/// The code that handlers return to, past its first byte: the system call that resumes the interrupted code.
///
/// Debuggers and unwinders recognize it by its bytes. gdb checks them if the function's name contains "sigaction";
/// unwinders do if the preceding byte, where they look for the handler's caller, belongs to no function with unwind
/// tables. So that byte belongs to this function, which has none.
#[unsafe(naked)]
unsafe extern "C" fn sigaction_restorer() {
    naked_asm!("nop", "mov rax, {number}", "syscall", number = const libc::SYS_rt_sigreturn)
}

/// Runtimes that throw an exception from their fault handlers unwind through this one.
unsafe extern "C-unwind" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the interrupted context and the cause, which belong to this call alone.
    let (code, registers) = unsafe { ((*info).si_code, &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs) };
    // The second case is about memory that the interrupted instruction did not access.
    let was_sent = code <= 0 || (signal == libc::SIGBUS && code == BUS_MCEERR_AO);
    let instruction = &mut registers[libc::REG_RIP as usize];
    if !was_sent && let Some(end) = end_of_access(*instruction as usize) {
        *instruction = end as i64;
        registers[libc::REG_R11 as usize] = 1;
        return;
    }
    pass_on(signal, was_sent, info, context);
}

/// Bounds of an access, each relative to its own address.
#[repr(C)]
struct Entry {
    begin: i32,
    end: i32,
}

impl Entry {
    fn bounds(&self) -> (usize, usize) {
        let address = |offset: &i32| ptr::from_ref(offset).addr().wrapping_add_signed(*offset as isize);
        (address(&self.begin), address(&self.end))
    }
}

/// Returns all accesses that can be recovered from. The linker defines the symbols of the section's bounds; they are
/// private to this program or library.
fn table() -> &'static [Entry] {
    let (first, end): (*const Entry, *const Entry);
    // SAFETY: takes two addresses. The empty entry makes the section exist in any case.
    unsafe {
        asm!(
            ".pushsection rdma_verbs_accesses, \"aR\", @progbits",
            ".balign 4",
            ".long 881f - .",
            ".long 881f - .",
            ".popsection",
            "881:",
            ".hidden __start_rdma_verbs_accesses",
            ".hidden __stop_rdma_verbs_accesses",
            "lea {first}, [rip + __start_rdma_verbs_accesses]",
            "lea {end}, [rip + __stop_rdma_verbs_accesses]",
            first = out(reg) first,
            end = out(reg) end,
            options(nomem, nostack, preserves_flags),
        );
    }
    let count = (end.addr() - first.addr()) / size_of::<Entry>();
    // SAFETY: the section holds entries and nothing else, and is never written.
    unsafe { std::slice::from_raw_parts(first, count) }
}

/// Returns the end of the access that contains the instruction at this address.
fn end_of_access(instruction: usize) -> Option<usize> {
    table().iter().map(Entry::bounds).find(|(begin, end)| (*begin..*end).contains(&instruction)).map(|(_, end)| end)
}

/// Does what would have happened without this handler.
fn pass_on(signal: c_int, was_sent: bool, info: *mut siginfo_t, context: *mut c_void) {
    let previous = &PREVIOUS[usize::from(signal == SIGNALS[1])];
    // Loaded first: its flags were stored before it.
    let mut handler = previous.handler.load(Ordering::Acquire);
    let once = previous.flags.load(Ordering::Relaxed) as c_int & libc::SA_RESETHAND != 0;
    // An ignored signal stays ignored.
    if once && handler != libc::SIG_IGN {
        handler = previous.handler.swap(libc::SIG_DFL, Ordering::AcqRel);
    }
    match handler {
        // After a fault the instruction cannot continue, so the kernel does not ignore it.
        libc::SIG_IGN if was_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => end_by_default(signal, was_sent),
        handler => {
            // SAFETY: the address is that of a handler, and the arguments are the kernel's. The kernel passes three to
            // every handler as well: one that takes only the first ignores the others.
            unsafe {
                let handler: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) = std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
    }
}

/// Ends the process as the kernel does without a handler: by the same instruction, which faults again, so that the core
/// dump shows it; or by the same signal, if it was sent.
fn end_by_default(signal: c_int, was_sent: bool) {
    let _ = exchange(signal, Some(&Action::default()));
    if was_sent {
        // SAFETY: plain system calls. The signal waits until the handler has returned.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
    }
}
