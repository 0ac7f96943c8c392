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
            if let Err(error) = install_for(signal, &PREVIOUS[index]) {
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

fn install_for(signal: c_int, previous: &Previous) -> Result<(), RecoverError> {
    let failed = |errno| RecoverError::Refused { signal, errno };
    let before = exchange(signal, None).map_err(failed)?;
    if before.handler == address() {
        return Ok(());
    }
    // Known before the handler can be called.
    previous.remember(&before);
    let kept = before.flags & (libc::SA_NODEFER | libc::SA_RESTART) as u64;
    let action = Action {
        handler: address(),
        // On the stack for signals, where a thread has one: its own may be what is missing.
        flags: (libc::SA_SIGINFO | libc::SA_ONSTACK) as u64 | SA_RESTORER | kept,
        restorer: restore as *const () as usize,
        // What the handler before wants blocked while it runs.
        mask: before.mask,
    };
    let replaced = exchange(signal, Some(&action)).map_err(failed)?;
    if replaced.handler != before.handler {
        previous.remember(&replaced);
    }
    Ok(())
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

/// Where handlers return to: the system call that goes on with what was interrupted. Debuggers know it by its bytes.
#[unsafe(naked)]
unsafe extern "C" fn restore() {
    naked_asm!("mov rax, {number}", "syscall", number = const libc::SYS_rt_sigreturn)
}

unsafe extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes what was interrupted and why, which are this call's own.
    let (code, registers) = unsafe { ((*info).si_code, &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs) };
    let place = &mut registers[libc::REG_RIP as usize];
    if code > 0
        && let Some(end) = end_of_access(*place as usize)
    {
        *place = end as i64;
        registers[libc::REG_R11 as usize] = 1;
        return;
    }
    pass_on(signal, code, info, context);
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
fn pass_on(signal: c_int, code: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let previous = &PREVIOUS[usize::from(signal == SIGNALS[1])];
    let flags = previous.flags.load(Ordering::Relaxed) as c_int;
    let once = flags & libc::SA_RESETHAND != 0;
    let handler = if once {
        previous.handler.swap(libc::SIG_DFL, Ordering::AcqRel)
    } else {
        previous.handler.load(Ordering::Acquire)
    };
    // Of a fault the instruction cannot go on, so the kernel does not ignore it.
    let was_sent = code <= 0 || (signal == libc::SIGBUS && code == BUS_MCEERR_AO);
    match handler {
        libc::SIG_IGN if was_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => end_by_default(signal, was_sent),
        handler if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the address is that of a handler with three arguments, as the flag says, which are the kernel's.
            unsafe {
                let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
        handler => {
            // SAFETY: the address is that of a handler with one argument.
            unsafe {
                let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
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
