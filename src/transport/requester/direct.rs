//! Requests that are executed in the memory of the peer's process, without packets.
//!
//! Between two processes of one user, a WRITE, a READ or an atomic is a copy or an instruction if the peer has exported
//! the region. Such a request begins when all requests before it are complete, and is complete before the next one
//! begins, so that no request overtakes another one and no packet number is taken. Everything else goes to the peer in
//! packets, and so does a request whose region or queue pair has ended: the peer then refuses it.

use std::time::Duration;

use super::{Common, Pass, RequestFailure, Requester};
use crate::memory::{AccessError, Admission, DirectAccess, MemoryView, RegionTable};
use crate::transport::segments::{for_each_segment, scatter};
use crate::types::{AccessFlags, Cause, CompletionStatus, Counter, Operation, QueuePairState, Rkey, Time};

/// Bytes that are copied at a time. The owner of the memory waits for one such copy when it revokes a key.
const BYTES_AT_A_TIME: u32 = 256 << 10;
/// Most bytes that a queue pair copies before others have their turn.
const BYTES_IN_TURN: u32 = 1 << 20;
/// Most requests that a queue pair executes before others have their turn.
const REQUESTS_IN_TURN: usize = 16;
/// Most requests that a posting thread executes without a pass: a batch takes some microseconds.
const MOST_POSTED: usize = 64;
/// Most keys of a queue pair.
const MOST_KEYS: usize = 16;
/// A queue pair asks its peer again for a key that was not admitted: perhaps the link was not there yet. The wait
/// doubles from the first of these to the second.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The keys with which a queue pair accesses its peer's memory directly.
#[derive(Default)]
pub(super) struct DirectKeys {
    keys: Vec<(Rkey, Admitted)>,
    /// Index of the key that was used last.
    last: usize,
    /// A key to ask the peer for.
    wanted: Option<Rkey>,
    /// Index of the request of which a part was copied last, and the bytes of it that are copied. If direct accesses
    /// are forbidden before the rest is copied, the whole request goes to the peer in packets.
    copied: (u32, u32),
}

enum Admitted {
    Yes(Admission),
    /// Not yet: the time of the last question, and the wait for the next one.
    Asked(Time, Duration),
}

/// A request that can be executed now.
struct DirectRequest {
    index: u32,
    operation: Operation,
    /// Index of the key.
    key: usize,
    /// Offset in the region.
    offset: usize,
    length: u32,
    /// Its bytes are in the send queue.
    is_inline: bool,
}

/// How a part of a request ended.
enum Part {
    Done,
    /// The rest has to wait for the next turn.
    Partly,
    /// The peer has ended the region or the queue pair, or has given the access up.
    Ended,
}

impl DirectKeys {
    #[inline]
    fn find(&self, rkey: Rkey) -> Option<usize> {
        match self.keys.get(self.last) {
            Some((key, _)) if *key == rkey => Some(self.last),
            _ => self.keys.iter().position(|(key, _)| *key == rkey),
        }
    }

    /// Returns the number of bytes of a request that are copied.
    #[inline]
    fn copied_of(&self, index: u32) -> u32 {
        if self.copied.0 == index { self.copied.1 } else { 0 }
    }

    /// Notes that the peer is to be asked for a key, unless it was asked recently.
    #[cold]
    fn want(&mut self, now: Time, rkey: Rkey) {
        match self.find(rkey) {
            Some(known) => match &mut self.keys[known].1 {
                Admitted::Asked(at, wait) if now.saturating_since(*at) >= *wait => {
                    (*at, *wait) = (now, (*wait * 2).min(LONGEST_WAIT));
                }
                _ => return,
            },
            None => {
                if self.keys.len() == MOST_KEYS {
                    // The key used last stays.
                    let victim = (self.last + 1) % MOST_KEYS;
                    self.keys.swap_remove(victim);
                    self.last = 0;
                }
                self.keys.push((rkey, Admitted::Asked(now, FIRST_WAIT)));
            }
        }
        self.wanted = Some(rkey);
    }
}

impl Requester {
    /// Lets requests access the peer's memory directly, once it has admitted their keys.
    pub(in crate::transport) fn access_directly(&mut self) {
        self.accesses_directly = true;
    }

    #[inline]
    pub(in crate::transport) fn has_direct_access(&self) -> bool {
        self.accesses_directly
    }

    /// Ends all direct accesses.
    pub(in crate::transport) fn end_direct_access(&mut self) {
        (self.accesses_directly, self.direct) = (false, None);
    }

    /// Returns a key to ask the peer for.
    #[inline]
    pub(in crate::transport) fn take_wanted_key(&mut self) -> Option<Rkey> {
        self.direct.as_mut()?.wanted.take()
    }

    /// Notes that the peer admits direct accesses by a key.
    pub(in crate::transport) fn admit(&mut self, rkey: Rkey, admission: Admission) {
        let Some(direct) = &mut self.direct else { return };
        if let Some(known) = direct.find(rkey) {
            direct.keys[known].1 = Admitted::Yes(admission);
        }
    }

    /// Whether the next request can be executed without packets now.
    #[inline]
    pub(in crate::transport) fn direct_request_is_due(&self, common: &Common) -> bool {
        self.direct.is_some() && self.next_direct(common).is_some()
    }

    fn next_direct(&self, common: &Common) -> Option<DirectRequest> {
        let direct = self.direct.as_ref()?;
        let index = self.next;
        if !self.may_execute_directly(common, index) {
            return None;
        }
        let header = self.send.header(index);
        let (remote_addr, rkey, need) = target_of(&header.operation)?;
        let key = direct.find(rkey)?;
        let Admitted::Yes(admission) = &direct.keys[key].1 else { return None };
        let length = if header.operation.is_atomic() { 8 } else { header.length };
        let offset = admission.offset_of(remote_addr, u64::from(length), need)?;
        // The peer refuses a misaligned atomic.
        if header.operation.is_atomic() && !offset.is_multiple_of(8) {
            return None;
        }
        Some(DirectRequest { index, operation: header.operation, key, offset, length, is_inline: header.inline })
    }

    #[inline]
    fn may_execute_directly(&self, common: &Common, index: u32) -> bool {
        self.is_idle()
            && self.pace.is_free()
            && common.state == QueuePairState::ReadyToSend
            && index != self.send.published()
            && self.limiter.is_none()
    }

    /// Executes the next requests as far as they can be executed without packets.
    pub(in crate::transport) fn run_direct_requests(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
    ) -> Result<(), RequestFailure> {
        let mut bytes_left = BYTES_IN_TURN;
        for _ in 0..REQUESTS_IN_TURN {
            if bytes_left == 0 {
                return Ok(());
            }
            let Some(request) = self.next_direct(common) else {
                self.want_next_key(common, pass.now);
                return Ok(());
            };
            match self.execute(common, Some(pass.memory), &request, &mut bytes_left)? {
                Part::Partly => return Ok(()),
                Part::Done => self.finish_direct(common, &request),
                Part::Ended => {
                    if let Some(direct) = &mut self.direct {
                        direct.copied = (request.index, 0);
                        direct.keys[request.key].1 = Admitted::Asked(pass.now, FIRST_WAIT);
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Executes the WRITEs and READs that a thread has just posted, if nothing else is due. Returns whether none is
    /// left; otherwise the next ones, also those that fail, are executed or sent by a pass. Deadlines stay as they are.
    #[inline]
    pub(in crate::transport) fn execute_posted(&mut self, common: &mut Common, memory: &RegionTable) -> bool {
        if self.direct.is_none() || common.state != QueuePairState::ReadyToSend {
            return false;
        }
        let mut bytes_left = BYTES_IN_TURN;
        for _ in 0..MOST_POSTED {
            if self.next == self.send.published() {
                break;
            }
            // An atomic that fails after its execution must not be executed again.
            let next = self.next_direct(common).filter(|request| bytes_left > 0 && !request.operation.is_atomic());
            let Some(request) = next else { return false };
            // Before the gate is entered: a thread that changes the table may wait for gates.
            let view = (!request.is_inline).then(|| memory.read());
            match self.execute(common, view.as_ref(), &request, &mut bytes_left) {
                Ok(Part::Done) => self.finish_direct(common, &request),
                _ => return false,
            }
        }
        self.next == self.send.published() && !common.has_overflowed()
    }

    #[inline]
    fn finish_direct(&mut self, common: &mut Common, request: &DirectRequest) {
        self.direct.iter_mut().for_each(|direct| direct.copied = (request.index, 0));
        self.skip();
        common.count(Counter::DirectRequests);
        self.complete(common, request.index, CompletionStatus::Success, Cause::None);
    }

    /// Notes the key of the next request, if it is only the key that is missing.
    fn want_next_key(&mut self, common: &Common, now: Time) {
        let index = self.next;
        if !self.may_execute_directly(common, index) {
            return;
        }
        if let Some((_, rkey, _)) = target_of(&self.send.header(index).operation) {
            self.direct.get_or_insert_default().want(now, rkey);
        }
    }

    /// Executes a request, or a part of it. `memory` may be missing for inline requests.
    #[inline]
    fn execute(
        &mut self,
        common: &Common,
        memory: Option<&MemoryView<'_>>,
        request: &DirectRequest,
        bytes_left: &mut u32,
    ) -> Result<Part, RequestFailure> {
        let Some(direct) = &self.direct else { return Ok(Part::Ended) };
        let Admitted::Yes(admission) = &direct.keys[request.key].1 else { return Ok(Part::Ended) };
        if request.operation.is_atomic() {
            return self.execute_atomic(common, memory, request, admission);
        }
        let mut copied = direct.copied_of(request.index);
        loop {
            let Some(access) = admission.enter() else { return Ok(Part::Ended) };
            let part = (request.length - copied).min(BYTES_AT_A_TIME).min(*bytes_left);
            let result = self.copy(common, memory, request, &access, copied, part);
            if !access.leave() {
                return Ok(Part::Ended);
            }
            result?;
            copied += part;
            *bytes_left -= part;
            if copied == request.length || *bytes_left == 0 {
                break;
            }
        }
        let noted = (request.index, copied);
        self.direct.iter_mut().for_each(|direct| (direct.copied, direct.last) = (noted, request.key));
        Ok(if copied == request.length { Part::Done } else { Part::Partly })
    }

    /// Copies a part of a WRITE or READ.
    #[inline]
    fn copy(
        &self,
        common: &Common,
        memory: Option<&MemoryView<'_>>,
        request: &DirectRequest,
        access: &DirectAccess<'_>,
        from: u32,
        length: u32,
    ) -> Result<(), AccessError> {
        let (first, length) = (request.offset + from as usize, length as usize);
        if request.is_inline {
            let data = self.send.inline_data(request.index);
            return access.write(first, &data[from as usize..from as usize + length]);
        }
        let (view, domain) = (memory.ok_or(AccessError::NoPermission)?, common.domain);
        let is_read = matches!(request.operation, Operation::Read { .. });
        for_each_segment(self.send.sges(request.index), u64::from(from), length, |sge, addr, range| {
            let offset = first + range.start;
            match is_read {
                true => access.get(view, domain, (sge, addr), offset, range.len()),
                false => access.put(view, domain, (sge, addr), offset, range.len()),
            }
        })
    }

    fn execute_atomic(
        &self,
        common: &Common,
        memory: Option<&MemoryView<'_>>,
        request: &DirectRequest,
        admission: &Admission,
    ) -> Result<Part, RequestFailure> {
        let view = memory.ok_or(AccessError::NoPermission)?;
        let Some(access) = admission.enter() else { return Ok(Part::Ended) };
        let original = match request.operation {
            Operation::CompareAndSwap { compare, swap, .. } => {
                access.compare_exchange_u64(request.offset, compare, swap)
            }
            Operation::FetchAndAdd { add, .. } => access.fetch_add_u64(request.offset, add),
            _ => Err(AccessError::NoPermission),
        };
        if !access.leave() {
            // It may have been executed, and must not be executed again.
            return Err(RequestFailure::new(CompletionStatus::RemoteAccessError, Cause::RefusedAccess));
        }
        let original = original?;
        scatter(view, self.send.sges(request.index), common.domain, 0, &original.to_ne_bytes()[..])?;
        Ok(Part::Done)
    }
}

/// Returns address, key and necessary permission of a request that can be executed without the peer.
#[inline]
fn target_of(operation: &Operation) -> Option<(u64, Rkey, AccessFlags)> {
    match *operation {
        Operation::Write { remote_addr, rkey } => Some((remote_addr, rkey, AccessFlags::REMOTE_WRITE)),
        Operation::Read { remote_addr, rkey } => Some((remote_addr, rkey, AccessFlags::REMOTE_READ)),
        Operation::CompareAndSwap { remote_addr, rkey, .. } | Operation::FetchAndAdd { remote_addr, rkey, .. } => {
            Some((remote_addr, rkey, AccessFlags::REMOTE_ATOMIC))
        }
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn copied_bytes_count_for_their_request_only() {
        let direct = DirectKeys { copied: (7, BYTES_IN_TURN), ..DirectKeys::default() };
        assert_eq!([6, 7, 8].map(|index| direct.copied_of(index)), [0, BYTES_IN_TURN, 0]);
    }
}
