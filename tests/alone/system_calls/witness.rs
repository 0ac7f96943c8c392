//! A witness of system calls: a filter (seccomp) that lets sends and receives pass, and reports every other call of a
//! thread, and of the threads that it starts, to a thread that counts it and lets it continue. It needs no privileges.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// The calls of a message. A thread that polls without success may yield the processor.
const PASSED: [libc::c_long; 7] = [
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sched_yield,
];

/// The calls with which threads sleep on sockets and events, set timers, wake each other, and check whether others want
/// their core before they do. Events are read and written. If others do, polling threads sleep for a fixed time.
const WAITS: [libc::c_long; 7] = [
    libc::SYS_ppoll,
    libc::SYS_epoll_pwait,
    libc::SYS_timerfd_settime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getrusage,
    libc::SYS_read,
    libc::SYS_write,
];

/// The call with which threads wait for a lock, and wake the thread that waits for it.
const LOCK: libc::c_long = libc::SYS_futex;

/// `SECCOMP_IOCTL_NOTIF_RECV` and `SECCOMP_IOCTL_NOTIF_SEND`, which libc does not define.
const TAKE_REPORT: libc::c_ulong = 0xc050_2100;
const ANSWER_REPORT: libc::c_ulong = 0xc018_2101;
const _: () = assert!(size_of::<libc::seccomp_notif>() == 0x50 && size_of::<libc::seccomp_notif_resp>() == 0x18);

/// Calls with higher numbers count as the last one.
const NUMBERS: usize = 1_024;

/// The counts of system calls.
pub(crate) struct Witness {
    /// Counts by the number of the call. No lock and no allocation: when a watched thread releases either, it may have
    /// to wake the counting thread, by a call that this thread itself must let continue.
    calls: [AtomicU64; NUMBERS],
}

impl Witness {
    /// Watches the calling thread and all threads that it starts, for the rest of their lives.
    ///
    /// # Errors
    /// The kernel does not let the thread be watched.
    pub(crate) fn watch() -> io::Result<Arc<Self>> {
        let witness = Arc::new(Self { calls: [const { AtomicU64::new(0) }; NUMBERS] });
        // The counting thread must not be watched itself, so it starts first. It gets the descriptor without a system
        // call, which it would have to let continue.
        let outcome = Arc::new(OnceLock::new());
        let (attending, outcome_for_thread) = (Arc::clone(&witness), Arc::clone(&outcome));
        thread::spawn(move || attending.attend(&outcome_for_thread));
        let installed = install();
        let is_installed = installed.as_ref().map(drop).map_err(|error| io::Error::from(error.kind()));
        assert!(outcome.set(installed.ok()).is_ok(), "set once");
        is_installed.map(|()| witness)
    }

    /// Returns the calls so far, by their numbers.
    pub(crate) fn calls(&self) -> BTreeMap<i32, u64> {
        let counts = self.calls.iter().map(|count| count.load(Ordering::Relaxed));
        (0..).zip(counts).filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the calls so far: waits and wake-ups, those of locks, and all that are unexpected in the exchange of
    /// messages.
    pub(crate) fn by_purpose(&self) -> [u64; 3] {
        let mut counts = [0; 3];
        for (number, count) in self.calls() {
            let purpose = match libc::c_long::from(number) {
                LOCK => 1,
                number if WAITS.contains(&number) => 0,
                _ => 2,
            };
            counts[purpose] += count;
        }
        counts
    }

    /// Counts the reported calls, as long as any thread is watched.
    fn attend(&self, reports: &OnceLock<Option<OwnedFd>>) {
        let reports = loop {
            match reports.get() {
                Some(reports) => break reports,
                None => thread::sleep(Duration::from_millis(1)),
            }
        };
        let Some(reports) = reports else { return };
        while let Ok(report) = take(reports) {
            if let Some((id, number)) = report {
                let index = usize::try_from(number).unwrap_or(NUMBERS).min(NUMBERS - 1);
                self.calls[index].fetch_add(1, Ordering::Relaxed);
                let_go_on(reports, id);
            }
        }
    }
}

/// Filters the calls of this thread. Returns the descriptor of the reports.
fn install() -> io::Result<OwnedFd> {
    let mut program = program();
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: this call has no pointers. It allows an unprivileged thread to install a filter.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (operation, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    // SAFETY: the filter and its program live beyond the call, which copies them.
    let descriptor = unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const filter) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

/// Returns the filter: it lets the listed calls pass and reports all others.
fn program() -> Vec<libc::sock_filter> {
    let step = |code: u32, jt: usize, k: u32| libc::sock_filter { code: code as u16, jt: jt as u8, jf: 0, k };
    let count = PASSED.len();
    let mut steps = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    // Each comparison jumps over the remaining ones, and over the report.
    let jump = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    steps.extend(PASSED.iter().enumerate().map(|(index, number)| step(jump, count - index, *number as u32)));
    steps.push(step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_USER_NOTIF));
    steps.push(step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    steps
}

/// Waits for a report. Returns its identifier and the call's number; `None` if the calling thread has continued or
/// ended.
fn take(reports: &OwnedFd) -> io::Result<Option<(u64, i32)>> {
    // SAFETY: the structure has only integer fields, for which zero is valid; the kernel requires zeroed memory.
    let mut report: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one such structure, whose size is encoded in the request's number.
    if unsafe { libc::ioctl(reports.as_raw_fd(), TAKE_REPORT, &raw mut report) } == 0 {
        return Ok(Some((report.id, report.data.nr)));
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOENT)) => Ok(None),
        error => Err(error),
    }
}

/// Lets the call continue unchanged.
fn let_go_on(reports: &OwnedFd, id: u64) {
    let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let mut answer = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
    // SAFETY: the kernel reads one such structure. The call fails if the thread has ended; then no thread waits.
    unsafe { libc::ioctl(reports.as_raw_fd(), ANSWER_REPORT, &raw mut answer) };
}
