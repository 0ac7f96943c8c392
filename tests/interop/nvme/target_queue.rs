//! A target's queue: a connection with the kernel's host.

use std::ops::Range;
use std::time::Duration;

use rdma_verbs::verbs::cm::{Connection, ConnectionOptions, Request};
use rdma_verbs::verbs::{
    AccessFlags, CompletionQueue, ErrorKind, MemoryRegion, Payload, ProtectionDomain, QueuePair, QueuePairOptions,
    ReceiveRequest, SendRequest,
};

use super::capsule::{
    COMMAND_BYTES, CONNECT_DATA_BYTES, Command, ConnectData, ConnectRequest, Data, RESPONSE_BYTES, Response, USES_SGL,
    answer_data, connect, fabrics, opcode, u16_at, u32_at,
};
use super::{HOST_ID, HOST_NQN, Outcome, PATIENCE, ensure};

/// Commands of a queue, which is the size that the kernel's host gives its admin queue.
pub(crate) const QUEUE_SIZE: u16 = 32;

/// A connection, with memory for the data of commands.
pub(crate) struct TargetQueue {
    id: u16,
    qp: QueuePair,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    capsules: MemoryRegion,
    capsule_bytes: usize,
    data: MemoryRegion,
    connection: Connection,
    head: u16,
    _pd: ProtectionDomain,
}

/// A command, and the data in its capsule.
pub(crate) struct Received {
    pub(crate) command: Command,
    in_capsule: Vec<u8>,
}

impl TargetQueue {
    /// Accepts a request, with receives for capsules and memory for data of these sizes.
    pub(crate) fn accept(request: Request, capsule_bytes: usize, data_bytes: usize) -> Outcome<Self> {
        let id = ConnectRequest::from_bytes(request.private_data()).queue_id;
        let context = request.context();
        let (pd, size) = (context.alloc_pd()?, usize::from(QUEUE_SIZE));
        let (send_cq, recv_cq) = (context.create_cq(16)?, context.create_cq(u32::from(2 * QUEUE_SIZE))?);
        let options = QueuePairOptions::default().access(AccessFlags::empty()).max_inline_data(RESPONSE_BYTES as u32);
        let qp = pd.create_qp_with(&send_cq, &recv_cq, &options)?;
        let capsules = pd.alloc_mr(size * capsule_bytes, AccessFlags::LOCAL_WRITE)?;
        let data = pd.alloc_mr(data_bytes, AccessFlags::LOCAL_WRITE)?;
        qp.init()?;
        for slot in 0..size {
            post_receive(&qp, &capsules, capsule_bytes, slot)?;
        }
        let options = ConnectionOptions::new().private_data(&answer_data(QUEUE_SIZE)).deadline(PATIENCE);
        let connection = request.accept(&qp, &options)?;
        Ok(Self { id, qp, send_cq, recv_cq, capsules, capsule_bytes, data, connection, head: 0, _pd: pd })
    }

    /// Returns the memory for data.
    pub(crate) fn data(&self) -> &MemoryRegion {
        &self.data
    }

    /// Returns whether the host disconnects in this time.
    pub(crate) fn ends_within(&self, patience: Duration) -> Outcome<bool> {
        Ok(self.connection.wait_disconnected(patience)?)
    }

    /// Returns the next command, or `None` if there is none in this time.
    pub(crate) fn next_command(&mut self, patience: Duration) -> Outcome<Option<Received>> {
        let completion = match self.recv_cq.wait(patience) {
            Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(None),
            completion => completion?,
        };
        let (slot, length) = (completion.wr_id() as usize, completion.result()?.byte_len as usize);
        let start = slot * self.capsule_bytes;
        let capsule = self.capsules.to_vec(start..start + length)?;
        post_receive(&self.qp, &self.capsules, self.capsule_bytes, slot)?;
        self.head = (self.head + 1) % QUEUE_SIZE;
        let (command, data) =
            capsule.split_first_chunk::<COMMAND_BYTES>().ok_or_else(|| format!("a capsule of {length} bytes"))?;
        let command = Command(*command);
        ensure(command.flags() == USES_SGL, || format!("flags {:#x} of a command", command.flags()))?;
        Ok(Some(Received { command, in_capsule: data.to_vec() }))
    }

    fn complete(&self, request: SendRequest<'_>) -> Outcome {
        self.qp.post_send(&[request.signaled()])?;
        self.send_cq.wait(PATIENCE)?.result()?;
        Ok(())
    }

    /// Sends a response, which invalidates the command's key if the host wants it.
    pub(crate) fn respond(&self, command: &Command, status: u16, result: u64) -> Outcome {
        let (queue_head, queue_id, command_id) = (self.head, self.id, command.id());
        let response = Response { result, queue_head, queue_id, command_id, status }.to_bytes();
        let payload = Payload::inline(&response);
        self.complete(match command.invalidated_memory() {
            Some(memory) => SendRequest::send_with_invalidate(payload, memory.rkey()),
            None => SendRequest::send(payload),
        })
    }

    /// Copies a command's data from the host's memory, by READ, or from the capsule. Its length must be that of
    /// `place`.
    pub(crate) fn fetch(&self, received: &Received, place: Range<usize>) -> Outcome {
        match received.command.data() {
            Some(Data::Keyed { memory, .. }) if memory.len() == place.len() as u64 => {
                self.complete(SendRequest::read(self.data.slice(place)?, memory))
            }
            Some(Data::InCapsule { offset: 0, length })
                if length == place.len() && length == received.in_capsule.len() =>
            {
                Ok(self.data.write_at(place.start, &received.in_capsule)?)
            }
            data => Err(format!("{data:x?} for {} bytes", place.len()).into()),
        }
    }

    /// Copies data to the host's memory, by WRITE.
    pub(crate) fn place(&self, command: &Command, place: Range<usize>) -> Outcome {
        match command.data() {
            Some(Data::Keyed { memory, .. }) if memory.len() == place.len() as u64 => {
                self.complete(SendRequest::write(self.data.slice(place)?, memory))
            }
            data => Err(format!("{data:x?} for {} bytes", place.len()).into()),
        }
    }

    /// Receives a Connect command and its data, and checks both.
    pub(crate) fn receive_connect(&mut self, subsystem: &str, controller_id: u16) -> Outcome<Command> {
        let received = self.next_command(PATIENCE)?.ok_or("the kernel sends no command")?;
        let command = received.command;
        let kind = (command.opcode(), command.fabrics_type());
        ensure(kind == (opcode::FABRICS, Some(fabrics::CONNECT)), || format!("not a Connect: {kind:x?}"))?;
        let fields = [connect::RECORD_FORMAT, connect::QUEUE_ID, connect::QUEUE_SIZE];
        let fields = fields.map(|offset| u16_at(&command.0, offset));
        ensure(fields == [0, self.id, QUEUE_SIZE - 1], || format!("record format, queue, its size: {fields:?}"))?;
        self.fetch(&received, 0..CONNECT_DATA_BYTES)?;
        let mut bytes = [0; CONNECT_DATA_BYTES];
        self.data.read_at(0, &mut bytes)?;
        let found = ConnectData::from_bytes(&bytes);
        let (subsystem, host) = (subsystem.to_owned(), HOST_NQN.to_owned());
        let expected = ConnectData { host_id: HOST_ID, controller_id, subsystem, host };
        ensure(found == expected, || format!("{found:x?} instead of {expected:x?}"))?;
        let attributes = command.0[connect::ATTRIBUTES];
        let keep_alive = u32_at(&command.0, connect::KEEP_ALIVE);
        println!("ok: Connect: queue {}, size {}, attributes {attributes:#x}, {keep_alive} ms", self.id, fields[2]);
        println!("ok: data of Connect: {found:x?}, {:x?}", command.data());
        Ok(command)
    }
}

fn post_receive(qp: &QueuePair, capsules: &MemoryRegion, capsule_bytes: usize, slot: usize) -> Outcome {
    let place = capsules.slice(slot * capsule_bytes..(slot + 1) * capsule_bytes)?;
    qp.post_recv(&[ReceiveRequest::new(place).wr_id(slot as u64)])?;
    Ok(())
}
