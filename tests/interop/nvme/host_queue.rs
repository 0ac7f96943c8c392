//! A host's queue: a queue pair that is connected to a target.

use std::cell::Cell;
use std::net::SocketAddr;

use rdma_verbs::verbs::cm::{ConnectError, Connection, ConnectionOptions, Route};
use rdma_verbs::verbs::{
    self, AccessFlags, CompletionQueue, CompletionStatus, Context, MemoryRegion, ProtectionDomain, QueuePair,
    QueuePairOptions, ReceiveRequest, RegisterOptions, Rkey, SendRequest,
};

use super::capsule::{COMMAND_BYTES, Command, ConnectRequest, RESPONSE_BYTES, Response};
use super::{Outcome, PATIENCE, ensure};

/// Posted receives, at least as many as there are commands at once: one.
const RECEIVES: usize = 4;
/// Most data that this host sends in a capsule.
const CAPSULE_DATA_BYTES: usize = 4096;

/// The host's device, and the target.
pub(crate) struct Home {
    context: Context,
    pd: ProtectionDomain,
    target: SocketAddr,
}

/// A queue that is connected by the connection manager. The target knows it as a queue after a Connect command.
pub(crate) struct Queue {
    qp: QueuePair,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    capsule: MemoryRegion,
    responses: MemoryRegion,
    connection: Connection,
    last_command: Cell<u16>,
}

/// A response, and the key that it invalidated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) response: Response,
    pub(crate) invalidated: Option<Rkey>,
}

impl Home {
    pub(crate) fn new(device: &str, target: SocketAddr) -> Outcome<Self> {
        let context = verbs::open(device)?;
        let pd = context.alloc_pd()?;
        Ok(Self { context, pd, target })
    }

    /// Registers memory for data. Its key may be invalidated.
    pub(crate) fn region(&self, bytes: &[u8]) -> Outcome<MemoryRegion> {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        let options = RegisterOptions::default().invalidatable();
        Ok(self.pd.reg_mr_with(bytes.to_vec(), access, &options)?)
    }

    /// Connects a queue pair with this private data.
    pub(crate) fn connect(&self, request: ConnectRequest) -> Result<Queue, ConnectError> {
        let (send_cq, recv_cq) = (self.context.create_cq(16)?, self.context.create_cq(16)?);
        let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        let qp = self.pd.create_qp_with(&send_cq, &recv_cq, &QueuePairOptions::default().access(access))?;
        let capsule = self.pd.alloc_mr(COMMAND_BYTES + CAPSULE_DATA_BYTES, AccessFlags::empty())?;
        let responses = self.pd.alloc_mr(RECEIVES * RESPONSE_BYTES, AccessFlags::LOCAL_WRITE)?;
        qp.init()?;
        for slot in 0..RECEIVES {
            post_receive(&qp, &responses, slot)?;
        }
        let options = ConnectionOptions::new().private_data(&request.to_bytes()).deadline(PATIENCE);
        let connection = Route::on(&self.context, self.target)?.connect(&qp, &options)?;
        Ok(Queue { qp, send_cq, recv_cq, capsule, responses, connection, last_command: Cell::new(0) })
    }
}

fn post_receive(qp: &QueuePair, responses: &MemoryRegion, slot: usize) -> verbs::Result<()> {
    let place = responses.slice(slot * RESPONSE_BYTES..(slot + 1) * RESPONSE_BYTES)?;
    qp.post_recv(&[ReceiveRequest::new(place).wr_id(slot as u64)])
}

impl Queue {
    /// Returns the private data of the target's REP.
    pub(crate) fn private_data(&self) -> &[u8] {
        self.connection.private_data()
    }

    /// Returns the READs that the target serves, and those that it has outstanding at once.
    pub(crate) fn peer_resources(&self) -> (u8, u8) {
        self.connection.peer_resources()
    }

    fn send(&self, command: Command, data: &[u8]) -> Outcome<u16> {
        let id = self.last_command.get().wrapping_add(1);
        self.last_command.set(id);
        self.capsule.write_at(0, &command.with(2, &id.to_le_bytes()).0)?;
        self.capsule.write_at(COMMAND_BYTES, data)?;
        let capsule = self.capsule.slice(..COMMAND_BYTES + data.len())?;
        self.qp.post_send(&[SendRequest::send(capsule).signaled()])?;
        self.send_cq.wait(PATIENCE)?.result()?;
        Ok(id)
    }

    /// Sends a command, with this data in its capsule, and waits for the response.
    pub(crate) fn execute(&self, command: Command, data: &[u8]) -> Outcome<Answer> {
        let id = self.send(command, data)?;
        let completion = self.recv_cq.wait(PATIENCE)?;
        let received = completion.result()?;
        ensure(received.byte_len as usize == RESPONSE_BYTES, || format!("a response of {} bytes", received.byte_len))?;
        let slot = completion.wr_id() as usize;
        let mut bytes = [0; RESPONSE_BYTES];
        self.responses.read_at(slot * RESPONSE_BYTES, &mut bytes)?;
        post_receive(&self.qp, &self.responses, slot)?;
        let response = Response::from_bytes(&bytes);
        ensure(response.command_id == id, || format!("a response to another command than {id}: {response:?}"))?;
        Ok(Answer { response, invalidated: received.invalidated })
    }

    /// Sends a command, and waits until the target ends the connection instead of responding.
    pub(crate) fn execute_fatal(&self, command: Command) -> Outcome {
        self.send(command, &[])?;
        let status = self.recv_cq.wait(PATIENCE)?.status();
        ensure(status == CompletionStatus::WorkRequestFlushedError, || format!("{status:?} instead of a flush error"))?;
        ensure(self.connection.wait_disconnected(PATIENCE)?, || "the target does not disconnect".to_owned())
    }

    pub(crate) fn disconnect(self) -> Outcome {
        self.connection.disconnect(&self.qp)?;
        ensure(self.connection.wait_disconnected(PATIENCE)?, || "the target does not confirm the end".to_owned())
    }
}
