//! The bell of a ring, as its reader uses it: without a system call while nothing changes.
//!
//! The writer rings once for each request that it takes, soon afterwards. The reader sees in the shared memory that a
//! request was taken, and then owes the system the receipt of a message: until then the connection is readable, and
//! nothing that watches it sleeps.

use std::os::fd::BorrowedFd;

use crate::memory::record_ring::RingReader;
use crate::sys::discard_messages;

/// Most messages that are received at a time.
const MOST_MESSAGES: usize = 16;

/// The state of a bell.
#[derive(Default)]
pub(super) struct Bell {
    /// The writer had not taken the request when it was last looked at.
    is_requested: bool,
    /// Requests that the writer was seen to have taken, less the messages that were received. -1: a message was
    /// received whose request was not yet seen to be taken.
    owed: isize,
}

impl Bell {
    /// Has the writer ring for the next record. Returns whether a record waits already.
    #[inline]
    pub(super) fn request(&mut self, ring: &RingReader, connection: BorrowedFd<'_>) -> bool {
        self.look(ring);
        self.receive_owed(connection);
        if self.is_requested {
            return !ring.is_empty();
        }
        self.is_requested = true;
        ring.request_bell()
    }

    /// Withdraws the request.
    #[inline]
    pub(super) fn withdraw(&mut self, ring: &RingReader, connection: BorrowedFd<'_>) {
        if self.is_requested {
            match ring.withdraw_bell() {
                true => self.is_requested = false,
                false => self.note_taken(),
            }
        }
        self.receive_owed(connection);
    }

    /// Receives messages even if the writer took no request, as a broken or hostile one may do.
    #[cold]
    pub(super) fn silence(&mut self, ring: &RingReader, connection: BorrowedFd<'_>) {
        self.look(ring);
        let received = discard_messages(connection, MOST_MESSAGES) as isize;
        self.owed = self.owed.saturating_sub(received).max(-1);
    }

    #[inline]
    fn look(&mut self, ring: &RingReader) {
        if self.is_requested && !ring.is_bell_requested() {
            self.note_taken();
        }
    }

    fn note_taken(&mut self) {
        self.is_requested = false;
        self.owed = self.owed.saturating_add(1);
    }

    /// A message may come a moment after its request was taken. Then a later call receives it.
    #[inline]
    fn receive_owed(&mut self, connection: BorrowedFd<'_>) {
        if self.owed > 0 {
            let most = usize::try_from(self.owed).map_or(1, |owed| owed.min(MOST_MESSAGES));
            self.owed -= discard_messages(connection, most) as isize;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use socket2::{Domain, Socket, Type};

    use super::*;
    use crate::memory::record_ring::RingWriter;
    use crate::sys::{ring, wait_readable};

    struct Link {
        writer: RingWriter,
        reader: RingReader,
        ends: (Socket, Socket),
        bell: Bell,
    }

    impl Link {
        fn new() -> Self {
            let (writer, file) = RingWriter::create(1 << 12).unwrap();
            let reader = RingReader::open(file.as_fd(), 1 << 12).unwrap();
            let ends = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
            Self { writer, reader, ends, bell: Bell::default() }
        }

        fn request(&mut self) -> bool {
            self.bell.request(&self.reader, self.ends.1.as_fd())
        }

        fn withdraw(&mut self) {
            self.bell.withdraw(&self.reader, self.ends.1.as_fd());
        }

        /// Appends a record. Returns whether the reader must be woken.
        fn push(&mut self) -> bool {
            assert!(self.writer.push(0, b"record").unwrap());
            self.writer.takes_bell()
        }

        fn take(&mut self) {
            let record = self.reader.next().unwrap().unwrap();
            self.reader.finish(&record);
        }

        fn ring(&self) {
            ring(self.ends.0.as_fd());
        }

        fn is_readable(&self) -> bool {
            wait_readable([self.ends.1.as_fd()], Some(Duration::ZERO)).unwrap()[0]
        }
    }

    #[test]
    fn message_of_a_taken_request_is_received_with_the_next_request_or_withdrawal() {
        for next in [|link: &mut Link| assert!(!link.request()), Link::withdraw] {
            let mut link = Link::new();
            assert!(!link.request() && !link.request() && link.push());
            link.ring();
            link.take();
            assert!(link.is_readable());
            next(&mut link);
            assert!(!link.is_readable());
        }
    }

    #[test]
    fn message_that_comes_late_is_received_later() {
        for next in [|link: &mut Link| assert!(!link.request()), Link::withdraw] {
            let mut link = Link::new();
            assert!(!link.request() && link.push());
            link.take();
            // The writer was interrupted between the two.
            next(&mut link);
            link.ring();
            assert!(link.is_readable());
            next(&mut link);
            assert!(!link.is_readable());
        }
    }

    #[test]
    fn each_request_takes_one_message() {
        let mut link = Link::new();
        for _ in 0..3 {
            assert!(!link.request() && link.push());
            link.ring();
            assert!(!link.push(), "it was taken");
            (0..2).for_each(|_| link.take());
        }
        assert!(!link.request() && !link.is_readable());
        link.withdraw();
        assert!(!link.push(), "it was withdrawn");
        assert!(link.request(), "a record waits");
    }

    #[test]
    fn messages_without_a_request_are_received_when_they_end_a_sleep() {
        let mut link = Link::new();
        assert!(!link.request());
        (0..3).for_each(|_| link.ring());
        assert!(!link.request() && link.is_readable());
        link.bell.silence(&link.reader, link.ends.1.as_fd());
        assert!(!link.is_readable() && link.push());
        link.ring();
        link.take();
        // Of two messages too many, one could have been early.
        assert!(!link.request() && link.bell.owed == 0);
    }

    #[test]
    fn message_that_ends_a_sleep_is_not_owed_again() {
        let mut link = Link::new();
        for _ in 0..3 {
            assert!(!link.request() && link.push());
            link.ring();
            link.take();
            link.bell.silence(&link.reader, link.ends.1.as_fd());
            assert!(!link.request() && link.bell.owed == 0);
        }
    }
}
