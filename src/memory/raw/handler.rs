//! The handler of faults, for the whole process: it ends an access that met a missing page, and gives every other fault
//! to the handler that was there before.
//!
//! It is asked for explicitly ([`super::recover_from_faults`]), installed once, and never taken out or put in again: a
//! handler that was installed after it may call it, and one that was put before that one again would be called by it
//! without end. So whoever replaces it ends recovery, and accesses go through the kernel from then on.
//!
//! # Why the handler may do what it does
//!
//! It is called where the processor was interrupted, so it takes no lock, allocates nothing, has no thread-local
//! variables, and calls nothing of libc but system calls, and those only when the process is about to end. The table of
//! accesses is part of the program's read-only data. What it changes are two registers of the interrupted block, which
//! declares both results (see `recoverable`): where it goes on, and register 11. It does so only for faults that the
//! processor raised just there; a signal that somebody sent is not taken for one.
//!
//! The calls are system calls, not libc's functions: libraries replace `sigaction` by one that keeps their handler of
//! faults in (UCX, Java's `libjsig`), and that handler is kept here as well.

use std::arch::{asm, naked_asm};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use libc::{c_int, c_void, siginfo_t, ucontext_t};

use crate::memory::RecoverError;

/// The signals of missing pages.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// The kernel's set of signals, in bytes.
const SET_BYTES: usize = 8;
/// The action names the code that ends its handler.
const SA_RESTORER: u64 = 0x0400_0000;
/// A fault of memory that nobody accesses just now.
const BUS_MCEERR_AO: c_int = 5;
/// How often a thread lets others run while one of them installs the handler.
const MAX_YIELDS: usize = 1_000;

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// What was there before: the address of a handler, `SIG_DFL` or `SIG_IGN`, and its flags.
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
/// For which signals the handler was put in, whatever became of it since.
static PUT_IN: [AtomicBool; SIGNALS.len()] = [AtomicBool::new(false), AtomicBool::new(false)];
static INSTALLING: AtomicBool = AtomicBool::new(false);
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Whether the handler was installed; it may have been replaced since.
#[inline]
pub(super) fn was_installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

/// Installs the handler, once.
pub(super) fn install() -> Result<(), RecoverError> {
    if INSTALLING.swap(true, Ordering::AcqRel) {
        for _ in 0..MAX_YIELDS {
            if INSTALLED.load(Ordering::Acquire) {
                break;
            }
            thread::yield_now();
        }
    } else {
        for (index, signal) in SIGNALS.into_iter().enumerate() {
            if let Err(error) = install_for(signal, &PREVIOUS[index], &PUT_IN[index]) {
                // A handler that is in already stays and passes everything on.
                INSTALLING.store(false, Ordering::Release);
                return Err(error);
            }
        }
        INSTALLED.store(true, Ordering::Release);
    }
    match SIGNALS.into_iter().find(|signal| !is_in_place(*signal)) {
        Some(signal) => Err(RecoverError::Replaced { signal }),
        None => Ok(()),
    }
}

fn install_for(signal: c_int, previous: &Previous, put_in: &AtomicBool) -> Result<(), RecoverError> {
    // After an installation that ended half-way: whoever replaced the handler since may call it.
    if put_in.load(Ordering::Relaxed) {
        return Ok(());
    }
    let failed = |errno| RecoverError::Refused { signal, errno };
    let before = exchange(signal, None).map_err(failed)?;
    if before.handler == address() {
        return Ok(());
    }
    // Known before the handler can be called.
    previous.remember(&before);
    let action = Action {
        handler: address(),
        flags: libc::SA_SIGINFO as u64 | SA_RESTORER | kept_flags(&before),
        // Behind the first byte: see there.
        restorer: sigaction_restorer as *const () as usize + 1,
        // What the handler before wants blocked while it runs.
        mask: before.mask,
    };
    put_in.store(true, Ordering::Relaxed);
    let replaced = exchange(signal, Some(&action)).map_err(|errno| {
        put_in.store(false, Ordering::Relaxed);
        failed(errno)
    })?;
    if (replaced.handler, replaced.flags) != (before.handler, before.flags) {
        previous.remember(&replaced);
    }
    Ok(())
}

/// The handler before runs as it did: also on the stack that it wants. Where there was none it is the one for signals,
/// if the thread has one: its own may be what is missing.
fn kept_flags(before: &Action) -> u64 {
    let kept = libc::SA_NODEFER | libc::SA_RESTART | libc::SA_ONSTACK;
    let added = if matches!(before.handler, libc::SIG_DFL | libc::SIG_IGN) { libc::SA_ONSTACK } else { 0 };
    before.flags & kept as u64 | added as u64
}

/// Whether a fault would end in the handler now: it is in place, and the calling thread blocks neither signal.
pub(super) fn is_ready() -> bool {
    let mut blocked = 0u64;
    let (how, set) = (libc::SIG_BLOCK, ptr::null::<u64>());
    // SAFETY: with no set the call changes nothing; it writes the current one to `blocked`, which is as long as it
    // says.
    let asked = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, &raw mut blocked, SET_BYTES) };
    asked == 0 && SIGNALS.into_iter().all(|signal| blocked & (1 << (signal - 1)) == 0 && is_in_place(signal))
}

fn is_in_place(signal: c_int) -> bool {
    exchange(signal, None).is_ok_and(|action| action.handler == address())
}

fn address() -> usize {
    handle as *const () as usize
}

/// The action of a signal, and a new one in its stead if it is given; or the error number.
fn exchange(signal: c_int, new: Option<&Action>) -> Result<Action, i32> {
    let mut old = Action::default();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the kernel reads and writes structures of this form. Handlers are `handle`, which may be called at any
    // instruction (see above), and in `end_by_default` none.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, &raw mut old, SET_BYTES) };
    if result == 0 { Ok(old) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)) }
}

/// Where handlers return to, behind its first byte: the system call that goes on with what was interrupted.
///
/// Debuggers and unwinders know it by its bytes. gdb looks at them if the function's name contains "sigaction";
/// unwinders do if the byte before, where they look for what called the handler, belongs to no function with unwind
/// tables. So that byte is this function's own, which has none.
#[unsafe(naked)]
unsafe extern "C" fn sigaction_restorer() {
    naked_asm!("nop", "mov rax, {number}", "syscall", number = const libc::SYS_rt_sigreturn)
}

/// Runtimes that throw an exception from their handlers of faults unwind through this one.
unsafe extern "C-unwind" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes what was interrupted and why, which are this call's own.
    let (code, registers) = unsafe { ((*info).si_code, &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs) };
    // The second is of memory that the interrupted instruction did not access.
    let was_sent = code <= 0 || (signal == libc::SIGBUS && code == BUS_MCEERR_AO);
    let place = &mut registers[libc::REG_RIP as usize];
    if !was_sent && let Some(end) = end_of_access(*place as usize) {
        *place = end as i64;
        registers[libc::REG_R11 as usize] = 1;
        return;
    }
    pass_on(signal, was_sent, info, context);
}

/// Bounds of an access, each relative to where it stands.
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

/// All accesses that can be recovered from. A linker makes the names of the section's bounds; they are this program's
/// or library's alone.
fn table() -> &'static [Entry] {
    let (first, end): (*const Entry, *const Entry);
    // SAFETY: takes two addresses. The empty entry is for the section to be there in any case.
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

/// Where the access ends that the instruction at this place belongs to.
fn end_of_access(place: usize) -> Option<usize> {
    table().iter().map(Entry::bounds).find(|(begin, end)| (*begin..*end).contains(&place)).map(|(_, end)| end)
}

/// Does what would have been done without this handler.
fn pass_on(signal: c_int, was_sent: bool, info: *mut siginfo_t, context: *mut c_void) {
    let previous = &PREVIOUS[usize::from(signal == SIGNALS[1])];
    // First: its flags were stored before it.
    let mut handler = previous.handler.load(Ordering::Acquire);
    let once = previous.flags.load(Ordering::Relaxed) as c_int & libc::SA_RESETHAND != 0;
    // What is ignored stays so.
    if once && handler != libc::SIG_IGN {
        handler = previous.handler.swap(libc::SIG_DFL, Ordering::AcqRel);
    }
    match handler {
        // Of a fault the instruction cannot go on, so the kernel does not ignore it.
        libc::SIG_IGN if was_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => end_by_default(signal, was_sent),
        handler => {
            // SAFETY: the address is that of a handler, and the arguments are the kernel's. The kernel passes three to
            // every handler as well: one that takes only the first does not look at the others.
            unsafe {
                let handler: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) = std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
    }
}

/// Ends the process as the kernel does where there is no handler: by the same instruction, which faults once more, so
/// that it is the one that the core dump shows; or by the same signal, if it was sent.
fn end_by_default(signal: c_int, was_sent: bool) {
    let _ = exchange(signal, Some(&Action::default()));
    if was_sent {
        // SAFETY: plain system calls. The signal waits until the handler has returned.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
    }
}
