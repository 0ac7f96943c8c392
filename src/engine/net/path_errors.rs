//! Errors that the system and the network report for packets to each address: refused sends, and ICMP messages.
//!
//! They are kept for explanations only and do not affect the transport: an ICMP message can be forged, and the
//! transport retries until its own timers expire. A pending ICMP error makes the next send of its socket fail, whatever
//! the destination of that send, so the error is taken off the socket and the send is repeated.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tracing::field::display;

use crate::queue::{Journal, note_later};
use crate::sys::{Clock, QueuedError, receive_error};
use crate::types::{PathError, Time};

/// Most pairs of address and error that are kept.
const MOST_KNOWN: usize = 32;
/// Most entries taken off a socket at a time.
const MOST_TAKEN: usize = 64;

/// The errors of each address.
pub(super) struct PathErrors {
    known: Vec<Known>,
    clock: Clock,
    journal: Arc<Journal>,
}

struct Known {
    destination: IpAddr,
    at: Time,
    error: PathError,
}

impl PathErrors {
    pub(super) fn new(clock: Clock, journal: Arc<Journal>) -> Self {
        Self { known: Vec::new(), clock, journal }
    }

    /// Notes that the system refused to send a datagram of `bytes` bytes.
    pub(super) fn note_refused(&mut self, destination: IpAddr, error: &io::Error, bytes: usize) {
        let errno = error.raw_os_error().unwrap_or(libc::EADDRNOTAVAIL);
        self.note(destination, errno, None, None, Some(bytes));
    }

    /// Takes the queued errors off a sending socket. Returns whether any came from the network.
    pub(super) fn take(&mut self, socket: BorrowedFd<'_>) -> bool {
        let mut any = false;
        for _ in 0..MOST_TAKEN {
            let Ok(Some(QueuedError { destination, errno, reporter, is_remote, mtu })) = receive_error(socket) else {
                break;
            };
            any |= is_remote;
            self.note(destination, errno, reporter, mtu, None);
        }
        any
    }

    fn note(
        &mut self,
        destination: IpAddr,
        errno: i32,
        reporter: Option<IpAddr>,
        mtu: Option<u32>,
        bytes: Option<usize>,
    ) {
        let at = self.clock.now();
        let same = |known: &Known| known.destination == destination && known.error.errno == errno;
        if let Some(index) = self.known.iter().position(same) {
            let Known { at: last, error, .. } = &mut self.known[index];
            *last = at;
            error.reporter = reporter.or(error.reporter);
            error.mtu = mtu.or(error.mtu);
            error.bytes = bytes.into_iter().chain(error.bytes).min();
            error.count += 1;
            self.log(destination, &self.known[index].error);
            return;
        }
        let error = PathError { errno, reporter, mtu, bytes, count: 1, ago: Default::default() };
        self.log(destination, &error);
        let known = Known { destination, at, error };
        if self.known.len() < MOST_KNOWN {
            self.known.push(known);
        } else if let Some(oldest) = self.known.iter_mut().min_by_key(|known| known.at) {
            *oldest = known;
        }
    }

    /// Notes the occurrences 1, 2, 4, 8, ... of an error for subscribers of `tracing`.
    fn log(&self, peer: IpAddr, error: &PathError) {
        let PathError { reporter, mtu, bytes, count, errno, .. } = *error;
        if !count.is_power_of_two() {
            return;
        }
        let (error, reporter) = (io::Error::from_raw_os_error(errno), reporter.map(display));
        note_later!(
            self.journal, target: "rdma_verbs::path", DEBUG,
            %peer, %error, reporter, mtu, bytes, count, "send refused, or ICMP error"
        );
    }

    /// Returns the last error of an address, not earlier than `since`.
    pub(super) fn find(&self, now: Time, destination: IpAddr, since: Time) -> Option<PathError> {
        let fits = |known: &&Known| known.destination == destination && known.at >= since;
        let last = self.known.iter().filter(fits).max_by_key(|known| known.at)?;
        Some(PathError { ago: now.saturating_since(last.at), ..last.error })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn refusal(errno: i32) -> io::Error {
        io::Error::from_raw_os_error(errno)
    }

    #[test]
    fn last_error_of_an_address_is_found() {
        let mut errors = PathErrors::new(Clock::new(), Arc::default());
        let [one, other]: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        errors.note_refused(one, &refusal(libc::ENETUNREACH), 100);
        errors.note_refused(one, &refusal(libc::EMSGSIZE), 4_200);
        errors.note_refused(one, &refusal(libc::EMSGSIZE), 2_200);
        let found = errors.find(Time::NEVER, one, Time::ZERO).unwrap();
        assert_eq!((found.errno, found.bytes, found.count), (libc::EMSGSIZE, Some(2_200), 2));
        assert_eq!(errors.find(Time::NEVER, other, Time::ZERO), None);
        assert_eq!(errors.find(Time::NEVER, one, Time::NEVER), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut errors = PathErrors::new(Clock::new(), Arc::default());
        for host in 0..200 {
            errors.note_refused(IpAddr::from([10, 0, 0, host]), &refusal(libc::EPERM), 1);
        }
        assert_eq!(errors.known.len(), MOST_KNOWN);
        assert!(errors.find(Time::NEVER, IpAddr::from([10, 0, 0, 199]), Time::ZERO).is_some());
    }
}
