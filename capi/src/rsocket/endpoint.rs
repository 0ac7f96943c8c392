//! The verbs objects of a connected stream: queue pair, completion queue, and the registered memory.

use std::os::fd::{AsRawFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use rdma_verbs::provider::{self, Backing, CompletionChannel, CompletionQueue, MemoryRegion, QueuePair, abi};
use rdma_verbs::types::{
    AccessFlags, BatchEnd, CompletionStatus, Data, Lkey, Operation, RawCompletion, ReceiveRequest, Rkey, SendFlags,
    SendRequest, Sge,
};

use super::flow::{Change, Flow, Grant, Room, Sent, Sizes};
use super::identifier::Identifier;
use super::wire::{BUFFER_BYTES, BUFFERS, Buffer, ConnectionData, MAPPING_BYTES, Mapping, Message};
use crate::error::{Errno, Result};
use crate::object::{Zeroed, own};
use crate::protection_domain::domain_of;
use crate::queue_pair::queue_pair_of;
use crate::shared::shared_of;
use crate::{completion_channel, completion_queue};

/// The number of a receive; those of sends are smaller.
const RECEIVE: u64 = 1 << 63;
/// Number of completions taken at a time.
const BATCH: usize = 16;
/// `IBV_QPT_RC` and `IBV_QPT_UD`.
pub(super) const RELIABLE: u32 = 2;
pub(super) const DATAGRAM: u32 = 4;

/// A completion queue with its channel, as C objects, because queue pairs of identifiers are made of those.
pub(super) struct Completions {
    cq: *mut abi::CqEx,
    channel: *mut abi::CompChannel,
    queue: Arc<dyn CompletionQueue>,
    events: Arc<dyn CompletionChannel>,
    is_armed: bool,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Completions {}

impl Completions {
    /// Creates the queue for an identifier's device.
    pub(super) fn create(context: *mut abi::Context, entries: u32) -> Result<Self> {
        // SAFETY: the context of an identifier, which is never closed.
        let shared = unsafe { shared_of(context) };
        let channel = completion_channel::create(shared, context)?;
        let init = completion_queue::Init {
            cqe: entries,
            cq_context: null_mut(),
            channel,
            comp_vector: 0,
            timestamps: false,
            uses: Vec::new(),
        };
        // SAFETY: the context, and the channel that was just made.
        let made = unsafe { completion_queue::create(context, abi::CqEx::zeroed(), init) };
        let cq = made.inspect_err(|_| {
            // SAFETY: nothing uses the channel.
            let _ = unsafe { completion_channel::destroy(channel) };
        })?;
        // SAFETY: both were just made.
        let (queue, events) = unsafe { (Arc::clone(&own(cq).inner), Arc::clone(&own(channel).events.inner)) };
        Ok(Self { cq, channel, queue, events, is_armed: false })
    }

    /// Returns the queue in its C form.
    pub(super) fn cq(&self) -> *mut abi::Cq {
        self.cq.cast()
    }

    /// Calls a function with each completion. Their number is bounded, because no request is posted meanwhile.
    pub(super) fn poll(&self, mut each: impl FnMut(&RawCompletion)) -> Result<usize> {
        let (mut batch, mut all) = ([RawCompletion::default(); BATCH], 0);
        loop {
            let found = self.queue.poll(&mut batch)?;
            batch[..found].iter().for_each(&mut each);
            all += found;
            if found < BATCH {
                return Ok(all);
            }
        }
    }

    /// Prepares for a wait: returns whether the queue was armed, and must be polled once more.
    pub(super) fn arm(&mut self) -> Result<bool> {
        // One queue has one event at most.
        if self.events.wait_event(Some(Duration::ZERO)).is_ok() {
            self.is_armed = false;
        }
        if self.is_armed {
            return Ok(false);
        }
        self.queue.req_notify(false)?;
        self.is_armed = true;
        Ok(true)
    }

    /// Returns the descriptor that becomes readable when the armed queue has a completion, or maybe has one.
    pub(super) fn fd(&self) -> RawFd {
        self.events.waiting_fd().as_raw_fd()
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: the queue pair was destroyed before, and nothing else uses them.
        unsafe {
            let _ = completion_queue::destroy(self.cq.cast());
            let _ = completion_channel::destroy(self.channel);
        }
    }
}

/// Registers new memory, which is zero.
pub(super) fn allocate(pd: *mut abi::Pd, length: usize, access: AccessFlags) -> Result<Arc<dyn MemoryRegion>> {
    let backing = Backing::anonymous(length).map_err(|_| Errno(libc::ENOMEM))?;
    // SAFETY: the protection domain of an identifier, which is never freed.
    Ok(unsafe { domain_of(pd)? }.domain.inner.reg_mr(backing, None, access)?)
}

/// The sizes of an endpoint.
#[derive(Clone, Copy)]
pub(super) struct Init {
    pub(super) sizes: Sizes,
    pub(super) inline: u32,
    pub(super) mappings: u16,
}

/// The result of handling completions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Handled {
    /// Number of completions.
    pub(super) count: usize,
    pub(super) change: Change,
    /// The connection has failed.
    pub(super) failure: Option<Errno>,
}

/// The objects.
pub(super) struct Endpoint {
    queue_pair: Arc<dyn QueuePair>,
    pub(super) completions: Completions,
    sending: Arc<dyn MemoryRegion>,
    receiving: Arc<dyn MemoryRegion>,
    /// The table of buffers, and behind it that of mapped ranges. The peer writes both.
    table: Arc<dyn MemoryRegion>,
    pub(super) init: Init,
    /// The state of the connection, once the peer's data is known.
    pub(super) flow: Option<Flow>,
}

impl Endpoint {
    /// Creates the objects, and posts the receives.
    pub(super) fn create(identifier: &Identifier, mut init: Init) -> Result<Self> {
        let (context, pd) = identifier.device();
        if context.is_null() {
            return Err(Errno(libc::ENODEV));
        }
        // SAFETY: the context of an identifier, which is never closed.
        let limits = &unsafe { shared_of(context) }.attributes;
        let most = u16::try_from(limits.max_qp_wr).unwrap_or(u16::MAX);
        init.sizes.send_queue = init.sizes.send_queue.min(most);
        init.sizes.receive_queue = init.sizes.receive_queue.min(most);
        init.inline = init.inline.min(limits.max_inline_data);
        let Sizes { send_queue, receive_queue, send_buffer, receive_buffer } = init.sizes;
        let table_bytes = BUFFERS * BUFFER_BYTES + usize::from(init.mappings) * MAPPING_BYTES;
        let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let sending = allocate(pd, send_buffer as usize, AccessFlags::LOCAL_WRITE)?;
        let receiving = allocate(pd, receive_buffer as usize, writable)?;
        let table = allocate(pd, table_bytes, writable)?;
        let completions = Completions::create(context, u32::from(send_queue) + u32::from(receive_queue))?;
        let cap = abi::QpCap {
            max_send_wr: send_queue.into(),
            max_recv_wr: receive_queue.into(),
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: init.inline,
        };
        let (cq, none) = (completions.cq(), null_mut());
        let mut attributes = abi::QpInitAttr {
            qp_context: none,
            send_cq: cq,
            recv_cq: cq,
            srq: null_mut(),
            cap,
            qp_type: RELIABLE,
            sq_sig_all: 1,
        };
        let qp = identifier.create_queue_pair(&mut attributes)?;
        // SAFETY: the queue pair that was just made.
        let queue_pair = Arc::clone(&unsafe { queue_pair_of(qp) }.inner);
        let made = Self { queue_pair, completions, sending, receiving, table, init, flow: None };
        match made.post_receives(receive_queue.into()) {
            Ok(()) => Ok(made),
            Err(error) => {
                made.destroy(identifier);
                Err(error)
            }
        }
    }

    /// Destroys the objects.
    pub(super) fn destroy(self, identifier: &Identifier) {
        identifier.destroy_queue_pair();
        for region in [&self.sending, &self.receiving, &self.table] {
            let _ = region.dereg();
        }
    }

    /// Returns what the peer needs to know.
    pub(super) fn connection_data(&self) -> ConnectionData {
        let part = |region: &dyn MemoryRegion, length| Buffer {
            address: region.region().iova(),
            key: region.rkey().0,
            length,
        };
        ConnectionData {
            credits: self.init.sizes.receive_queue,
            mappings: Some(self.init.mappings),
            table: part(&*self.table, BUFFERS as u32),
            buffer: part(&*self.receiving, self.init.sizes.receive_buffer / 2),
            is_swapped: false,
        }
    }

    fn post_receives(&self, count: usize) -> Result<()> {
        self.queue_pair.recv_begin();
        let push =
            || (0..count).try_for_each(|_| self.queue_pair.recv_push(&ReceiveRequest { wr_id: RECEIVE, sges: &[] }));
        let pushed = push();
        let end = if pushed.is_ok() { BatchEnd::Publish } else { BatchEnd::Rollback };
        let ended = self.queue_pair.recv_end(end);
        Ok(pushed.and(ended)?)
    }

    fn post(&self, sent: Sent, operation: Operation, data: Data<'_>) -> Result<()> {
        let flags = SendFlags::empty();
        Ok(self.queue_pair.send_one(&SendRequest { wr_id: sent.to_id(), operation, flags, data })?)
    }

    /// Handles the completions that there are, and grants the peer what it may need.
    pub(super) fn process(&mut self) -> Handled {
        let mut handled = Handled { count: 0, change: Change::None, failure: None };
        let Some(flow) = &mut self.flow else { return handled };
        let (mut receives, table) = (0, &self.table);
        let polled = self.completions.poll(|completion| {
            if completion.wr_id != RECEIVE {
                let sent = Sent::from_id(completion.wr_id);
                flow.complete(sent);
                match completion.status {
                    CompletionStatus::Success if sent == Sent::Disconnect => handled.change = Change::Disconnected,
                    CompletionStatus::Success => {}
                    // Receives that have failed come before: they have the reason.
                    _ if handled.failure.is_some() => {}
                    status => {
                        tracing::info!(
                            target: "rdma_verbs::rsocket",
                            ?status, cause = ?completion.cause, "a message of a socket has failed"
                        );
                        handled.failure = Some(Errno(libc::EIO));
                    }
                }
            } else if handled.failure.is_some() {
                // Nothing after a failure counts.
            } else if completion.status == CompletionStatus::Success {
                receives += 1;
                let received =
                    flow.receive(completion.immediate_or_key, completion.byte_len, |index| entry(table, index));
                match received {
                    Ok(Change::None) => {}
                    Ok(Change::EndOfData) => flow.is_readable = false,
                    Ok(Change::Disconnected) => handled.change = Change::Disconnected,
                    Err(violation) => {
                        tracing::warn!(
                            target: "rdma_verbs::rsocket",
                            ?violation, "the peer of a socket violates the protocol; the connection ends"
                        );
                        handled.failure = Some(Errno(libc::EPROTO));
                    }
                }
            } else {
                handled.failure = Some(failed_receive(completion.status));
            }
        });
        match polled {
            Ok(count) => handled.count = count,
            Err(error) => handled.failure = Some(error),
        }
        if handled.failure.is_none() && handled.change == Change::None {
            let granted = match receives {
                0 => Ok(()),
                count => self.post_receives(count),
            };
            handled.failure = granted.and_then(|()| self.grant()).err();
        }
        handled
    }

    /// Grants the peer what it may need.
    pub(super) fn grant(&mut self) -> Result<()> {
        // Each turn takes one of a few slots.
        while let Some(Grant { message, lent }) = self.flow.as_mut().and_then(Flow::take_grant) {
            let immediate = message.to_immediate();
            let swapped = self.flow.as_ref().is_some_and(|flow| flow.peer().is_swapped);
            let rkey = self.flow.as_ref().map_or(0, |flow| flow.peer().table.key);
            match lent {
                None => self.post_message(Sent::Control, message)?,
                Some((remote_addr, offset, length)) => {
                    let address = self.receiving.region().iova() + u64::from(offset);
                    let bytes = Buffer { address, key: self.receiving.rkey().0, length }.to_bytes(swapped);
                    let operation = Operation::WriteWithImmediate { remote_addr, rkey: Rkey(rkey), immediate };
                    self.post(Sent::Control, operation, Data::Inline(&[&bytes]))?;
                }
            }
        }
        Ok(())
    }

    fn post_message(&self, sent: Sent, message: Message) -> Result<()> {
        let (remote_addr, rkey) = (0, Rkey(0));
        let operation = Operation::WriteWithImmediate { remote_addr, rkey, immediate: message.to_immediate() };
        self.post(sent, operation, Data::Sges(&[]))
    }

    /// Sends a message without data, if one can be sent now.
    pub(super) fn control(&mut self, message: Message) -> Result<bool> {
        if !self.flow.as_mut().is_some_and(Flow::take_control) {
            return Ok(false);
        }
        let sent = if message == Message::Disconnect { Sent::Disconnect } else { Sent::Control };
        self.post_message(sent, message)?;
        Ok(true)
    }

    /// Sends a message that only the transport acknowledges, if one can be sent now.
    pub(super) fn keep_alive(&mut self) -> Result<()> {
        if !self.flow.as_mut().is_some_and(Flow::take_control) {
            return Ok(());
        }
        let operation = Operation::Write { remote_addr: 0, rkey: Rkey(0) };
        self.post(Sent::Control, operation, Data::Sges(&[]))
    }

    /// Sends up to `length` bytes, which `copy` puts into the buffer, unless they are sent inline: `inline` returns the
    /// bytes if they lie at one place. Returns the number of bytes; 0 if nothing can be sent now.
    pub(super) fn send<'a>(
        &mut self,
        length: u32,
        inline: impl FnOnce(u32) -> Option<&'a [u8]>,
        copy: impl Fn(usize, u32, &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<u32> {
        let Some((target, room)) = self.flow.as_mut().and_then(|flow| flow.take_data(length)) else { return Ok(0) };
        let immediate = Message::Data(target.length).to_immediate();
        let operation =
            Operation::WriteWithImmediate { remote_addr: target.address, rkey: Rkey(target.key), immediate };
        self.send_by(operation, target.length, room, inline, copy)?;
        Ok(target.length)
    }

    fn send_by<'a>(
        &self,
        operation: Operation,
        length: u32,
        room: Room,
        inline: impl FnOnce(u32) -> Option<&'a [u8]>,
        copy: impl Fn(usize, u32, &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        if length <= self.init.inline
            && let Some(bytes) = inline(length)
        {
            return self.post(Sent::Data(length), operation, Data::Inline(&[bytes]));
        }
        let (region, mut done) = (self.sending.region(), 0);
        for (offset, part) in [room.first, room.second].into_iter().filter(|(_, part)| *part > 0) {
            let mut at = u64::from(offset);
            copy(done, part, &mut |bytes| {
                region.write_at(at, bytes).map_err(|_| Errno(libc::EFAULT))?;
                at += bytes.len() as u64;
                Ok(())
            })?;
            done += part as usize;
        }
        let sge = |(offset, length)| Sge {
            addr: region.iova() + u64::from(offset),
            length,
            lkey: Lkey(self.sending.lkey().0),
        };
        let sges = [sge(room.first), sge(room.second)];
        self.post(Sent::Data(length), operation, Data::Sges(&sges[..if room.second.1 > 0 { 2 } else { 1 }]))
    }

    /// Writes up to `length` bytes directly to a range that the peer has mapped. As [`Endpoint::send`].
    pub(super) fn write_mapped<'a>(
        &mut self,
        target: Buffer,
        length: u32,
        inline: impl FnOnce(u32) -> Option<&'a [u8]>,
        copy: impl Fn(usize, u32, &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<u32> {
        let length = length.min(target.length);
        let Some((length, room)) = self.flow.as_mut().and_then(|flow| flow.take_mapped(length)) else { return Ok(0) };
        let operation = Operation::Write { remote_addr: target.address, rkey: Rkey(target.key) };
        self.send_by(operation, length, room, inline, copy)?;
        Ok(length)
    }

    /// Announces a mapped range to the peer, if that can be sent now.
    pub(super) fn announce(&mut self, index: u16, mapping: Mapping) -> Result<bool> {
        let Some(flow) = &mut self.flow else { return Ok(false) };
        let (swapped, key) = (flow.peer().is_swapped, flow.peer().table.key);
        let Some((remote_addr, room)) = flow.take_mapping(index) else { return Ok(false) };
        let (bytes, immediate) = (mapping.to_bytes(swapped), Message::Mapping(index).to_immediate());
        let operation = Operation::WriteWithImmediate { remote_addr, rkey: Rkey(key), immediate };
        self.send_by(
            operation,
            MAPPING_BYTES as u32,
            room,
            |_| None,
            |done, part, put| put(&bytes[done..done + part as usize]),
        )?;
        Ok(true)
    }

    /// Returns the range that the peer has mapped at this offset.
    pub(super) fn mapped(&self, offset: u64) -> Option<Buffer> {
        (0..u64::from(self.init.mappings)).find_map(|index| {
            let mut bytes = [0; MAPPING_BYTES];
            let at = (BUFFERS * BUFFER_BYTES) as u64 + index * MAPPING_BYTES as u64;
            self.table.region().read_at(at, &mut bytes).ok()?;
            Mapping::from_bytes(&bytes).at_offset(offset)
        })
    }

    /// Copies received data that begins `skipped` bytes behind what was read. Returns the number of bytes.
    pub(super) fn copy_received(&self, skipped: u32, to: &mut [u8]) -> Result<u32> {
        let mut done = 0;
        // Two turns at most, because the buffer is a ring.
        while let Some((offset, length)) =
            self.flow.as_ref().and_then(|flow| flow.data(skipped + done, to.len() - done as usize))
        {
            let part = &mut to[done as usize..(done + length) as usize];
            self.receiving.region().read_at(offset.into(), part).map_err(|_| Errno(libc::EFAULT))?;
            done += length;
        }
        Ok(done)
    }

    /// Registers memory of the program for the peer's writes.
    ///
    /// # Safety
    /// The program allows the peer to write the memory until it is deregistered.
    pub(super) unsafe fn register(
        &self,
        pd: *mut abi::Pd,
        address: *mut u8,
        length: usize,
        access: AccessFlags,
    ) -> Result<Arc<dyn provider::MemoryRegion>> {
        // SAFETY: the caller's promise.
        let backing = unsafe { Backing::raw(address, length) };
        // SAFETY: the protection domain of an identifier, which is never freed.
        Ok(unsafe { domain_of(pd)? }.domain.inner.reg_mr(backing, None, access)?)
    }
}

/// Returns the error of a connection whose receive has failed. Receives are flushed when the queue pair has failed,
/// which the peer causes, for example, by a write to memory that was not lent to it. Receives have no memory: a SEND
/// with data fails them.
fn failed_receive(status: CompletionStatus) -> Errno {
    tracing::warn!(
        target: "rdma_verbs::rsocket", ?status, "the queue pair of a socket has failed; the connection ends"
    );
    match status {
        CompletionStatus::WorkRequestFlushedError => Errno(libc::EIO),
        _ => Errno(libc::EPROTO),
    }
}

/// Reads an entry of the table of buffers.
fn entry(table: &Arc<dyn MemoryRegion>, index: usize) -> Buffer {
    let mut bytes = [0; BUFFER_BYTES];
    let at = (index % BUFFERS * BUFFER_BYTES) as u64;
    // The range lies within the region, which exists.
    let _ = table.region().read_at(at, &mut bytes);
    Buffer::from_bytes(&bytes)
}
