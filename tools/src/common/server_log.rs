//! A server's lines about its clients, on the standard error. Requests can be forged, so a flood of them prints a
//! bounded number. A reader that stops reading does not stop the server: lines for which a pipe has no room are left
//! out.

use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::output::note;

/// Lines in each second.
const MOST_LINES: u32 = 20;
const SECOND: Duration = Duration::from_secs(1);

static LOG: Mutex<Log> = Mutex::new(Log { begin: None, printed: 0, left_out: 0 });

/// Prints a line of a command, unless it has printed too many within a second. Without a reader, the line is lost, and
/// clients are served all the same.
pub(crate) fn server_line(command: &str, text: fmt::Arguments<'_>) {
    // Locked until the line is written, so that no other thread takes the room for it.
    let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(left_out) = log.admit(Instant::now(), has_room()) else { return };
    if left_out > 0 {
        note!("{command}: {left_out} further lines left out");
    }
    note!("{command}: {text}");
}

/// Returns whether the standard error takes a line without waiting. A pipe then has room for 4,096 bytes (`PIPE_BUF`).
fn has_room() -> bool {
    let errors = io::stderr();
    let mut descriptors = [PollFd::new(errors.as_fd(), PollFlags::POLLOUT)];
    poll(&mut descriptors, PollTimeout::ZERO) != Ok(0)
}

struct Log {
    begin: Option<Instant>,
    /// Lines since then.
    printed: u32,
    /// Lines since the last one that was printed.
    left_out: u64,
}

impl Log {
    /// Returns how many lines were left out before this one; `None` if this one is left out, too.
    fn admit(&mut self, now: Instant, has_room: bool) -> Option<u64> {
        if self.begin.is_none_or(|begin| now.saturating_duration_since(begin) >= SECOND) {
            (self.begin, self.printed) = (Some(now), 0);
        }
        if self.printed == MOST_LINES || !has_room {
            self.left_out += 1;
            return None;
        }
        self.printed += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_prints_a_bounded_number_of_lines() {
        let (mut log, now) = (Log { begin: None, printed: 0, left_out: 0 }, Instant::now());
        let printed = (0..10_000).filter(|_| log.admit(now, true).is_some()).count();
        assert_eq!(printed, 20);
        assert_eq!(log.admit(now + SECOND, false), None);
        assert_eq!(log.admit(now + SECOND, true), Some(9_981));
        assert_eq!(log.admit(now + SECOND, true), Some(0));
    }
}
