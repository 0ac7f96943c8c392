//! The common part of both ends: a queue pair with its buffers, and its connection.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use rdma_verbs::verbs::cm::Connection;
use rdma_verbs::verbs::{
    AccessFlags, Completion, CompletionChannel, CompletionQueue, CompletionQueueOptions, Context, ErrorKind,
    MemoryRegion, Notify, ProtectionDomain, QueuePair, QueuePairOptions, ReceiveRequest, SendRequest,
};

use super::arguments::Arguments;
use super::buffer::MESSAGE_BYTES;
use super::program::{Outcome, interrupted};

/// Completions, by request; one of each kind is outstanding.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const TRANSFER: u64 = 4;

/// Interval of checks for Ctrl-C, in milliseconds.
pub(super) const INTERRUPT_CHECK: u16 = 100;
/// Longest time until the other end confirms a disconnect.
const DISCONNECT_TIME: Duration = Duration::from_secs(5);

/// A queue pair with its buffers. A receive is posted, because the other end may send as soon as it is connected.
pub(super) struct End {
    /// Dropped first, so that nothing arrives in buffers that are gone.
    pub(super) qp: QueuePair,
    pub(super) pd: ProtectionDomain,
    channel: CompletionChannel,
    cq: CompletionQueue,
    incoming: MemoryRegion,
    outgoing: MemoryRegion,
    /// Bytes of pings: the sink of a client, or what a server has read.
    pub(super) data: MemoryRegion,
}

impl End {
    pub(super) fn open(context: &Context, size: usize) -> Outcome<Self> {
        let (pd, channel) = (context.alloc_pd()?, context.create_comp_channel()?);
        let cq = context.create_cq_with(32, &CompletionQueueOptions::default().channel(&channel, 0))?;
        let options = QueuePairOptions::default().max_send_wr(16).max_recv_wr(2).max_send_sge(1).max_recv_sge(1);
        let qp = pd.create_qp_with(&cq, &cq, &options)?;
        qp.init()?;
        let end = Self {
            incoming: pd.alloc_mr(MESSAGE_BYTES, AccessFlags::LOCAL_WRITE)?,
            outgoing: pd.alloc_mr(MESSAGE_BYTES, AccessFlags::empty())?,
            data: ping_buffer(&pd, size)?,
            qp,
            pd,
            channel,
            cq,
        };
        end.post_receive()?;
        end.cq.req_notify(Notify::Any)?;
        Ok(end)
    }

    fn post_receive(&self) -> Outcome {
        Ok(self.qp.post_recv(&[ReceiveRequest::new(&self.incoming).wr_id(RECEIVE)])?)
    }
}

/// Allocates memory that the other end may access.
pub(super) fn ping_buffer(pd: &ProtectionDomain, size: usize) -> Outcome<MemoryRegion> {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    Ok(pd.alloc_mr(size, access)?)
}

/// An end that is connected.
pub(super) struct Connected<'a> {
    arguments: &'a Arguments,
    end: &'a End,
    connection: Connection,
    /// The requests that have completed and were not waited for.
    completed: Cell<u64>,
    /// The other end has disconnected.
    is_ended: Cell<bool>,
}

impl<'a> Connected<'a> {
    pub(super) fn new(arguments: &'a Arguments, end: &'a End, connection: Connection) -> Self {
        arguments.log(format_args!("connected to {}", connection.peer_addr()));
        Self { arguments, end, connection, completed: Cell::new(0), is_ended: Cell::new(false) }
    }

    /// Sends a message.
    pub(super) fn send(&self, message: [u8; MESSAGE_BYTES]) -> Outcome {
        self.end.outgoing.write_at(0, &message)?;
        self.end.qp.post_send(&[SendRequest::send(&self.end.outgoing).wr_id(SEND).signaled()])?;
        self.wait(SEND)
    }

    /// Waits for the next message, and posts the receive of the one after it.
    pub(super) fn receive(&self) -> Outcome<[u8; MESSAGE_BYTES]> {
        self.wait(RECEIVE)?;
        let mut message = [0; MESSAGE_BYTES];
        self.end.incoming.read_at(0, &mut message)?;
        self.end.post_receive()?;
        Ok(message)
    }

    /// Posts a READ or a WRITE, and waits for it.
    pub(super) fn transfer(&self, request: SendRequest<'_>) -> Outcome {
        self.end.qp.post_send(&[request.wr_id(TRANSFER).signaled()])?;
        self.wait(TRANSFER)
    }

    /// Waits for a request.
    fn wait(&self, request: u64) -> Outcome {
        while self.completed.get() & request == 0 {
            let completion = self.next()?;
            let success = completion.result().map_err(|failure| self.end.qp.explain(&failure))?;
            self.arguments.log(format_args!("{:?} completion", success.opcode));
            if completion.wr_id() == RECEIVE && success.byte_len as usize != MESSAGE_BYTES {
                let length = success.byte_len;
                return Err(format!("Received bogus data, size {length}: messages have {MESSAGE_BYTES} bytes").into());
            }
            self.completed.set(self.completed.get() | completion.wr_id());
        }
        self.completed.set(self.completed.get() & !request);
        Ok(())
    }

    /// Sleeps until a request completes, or the other end disconnects.
    fn next(&self) -> Outcome<Completion> {
        let End { cq, channel, .. } = self.end;
        let mut completion = [Completion::default()];
        loop {
            if cq.poll(&mut completion)? == 1 {
                return Ok(completion[0]);
            }
            if interrupted() {
                return Err("interrupted".into());
            }
            if self.connection.wait_disconnected(Duration::ZERO)? {
                self.is_ended.set(true);
                return Err("the other end has disconnected".into());
            }
            // Completions that were queued between the poll and arming raise no event, so poll again.
            match channel.wait_event(Duration::ZERO) {
                Ok(_) => cq.req_notify(Notify::Any)?,
                Err(error) if error.kind() == ErrorKind::TimedOut => self.sleep()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn sleep(&self) -> Outcome {
        let mut descriptors = [self.end.channel.as_fd(), self.connection.as_fd()?]
            .map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN));
        match poll(&mut descriptors, INTERRUPT_CHECK) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Disconnects. If the other end has done so, the outcome is a success, as with rdma-core's program: for a server
    /// it is the regular end.
    pub(super) fn close(self, name: &str, outcome: Outcome) -> Outcome {
        self.connection.disconnect(&self.end.qp)?;
        let is_ended = self.is_ended.get();
        if is_ended || self.connection.wait_disconnected(DISCONNECT_TIME)? {
            eprintln!("{name} DISCONNECT EVENT...");
        }
        if is_ended { Ok(()) } else { outcome }
    }
}
