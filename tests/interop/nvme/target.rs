//! This end is the target of the kernel's host, `nvme-rdma`.

use std::net::SocketAddr;
use std::time::Duration;

use rdma_verbs::verbs::cm::{Connection, ConnectionOptions, Listener, Request};
use rdma_verbs::verbs::{
    AccessFlags, CompletionOpcode, CompletionQueue, ErrorKind, MemoryRegion, Payload, ProtectionDomain, QueuePair,
    QueuePairOptions, ReceiveRequest, SendRequest,
};

use super::capsule::{
    ANY_CONTROLLER, COMMAND_BYTES, CONNECT_DATA_BYTES, Command, ConnectData, ConnectRequest, RESPONSE_BYTES, Response,
    USES_SGL, answer_data, connect, fabrics, opcode, property, refusal, status, u16_at, u32_at, u64_at,
};
use super::{ADMIN_QUEUE_SIZE, HOST_ID, HOST_NQN, Outcome, PATIENCE, ensure};

/// The controller's id in the response to Connect, and in the data of Identify: the kernel compares them, and reports
/// both.
const CONTROLLER: u16 = 7;
const IDENTIFIED_CONTROLLER: u16 = 9;
/// Queues of 32 entries that must be contiguous, 7.5 s until it is ready, NVM commands.
const CAPABILITIES: u64 = 31 | 1 << 16 | 15 << 24 | 1 << 37;
const VERSION: u64 = 0x1_0300;
const IDENTIFY_BYTES: usize = 4096;

/// A connection with the kernel's host.
struct Controller {
    qp: QueuePair,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    commands: MemoryRegion,
    data: MemoryRegion,
    connection: Connection,
    queue_head: u16,
    _pd: ProtectionDomain,
}

pub(crate) fn run(address: SocketAddr, subsystem: &str) -> Outcome {
    let listener = Listener::bind(address)?;
    println!("listening on {}", listener.local_addr());
    let request = next_request(&listener)?;
    request.reject(&answer_data(refusal::INVALID_QUEUE_ID)[..4])?;
    println!("ok: rejected, NVMe status {}", refusal::INVALID_QUEUE_ID);
    let mut controller = Controller::accept(next_request(&listener)?)?;
    controller.refuse_connect(subsystem).map_err(|error| format!("the refused Connect: {error}"))?;
    let mut controller = Controller::accept(next_request(&listener)?)?;
    controller.serve(subsystem).map_err(|error| format!("the controller: {error}"))?;
    Ok(())
}

/// Returns the next request, whose private data must be that of the kernel's admin queue.
fn next_request(listener: &Listener) -> Outcome<Request> {
    let request = listener.accept_within(PATIENCE)?.ok_or("the kernel does not request a connection")?;
    let found = ConnectRequest::from_bytes(request.private_data());
    let expected = ConnectRequest {
        host_receive_queue_size: ADMIN_QUEUE_SIZE,
        host_send_queue_size: ADMIN_QUEUE_SIZE - 1,
        ..ConnectRequest::default()
    };
    ensure(found == expected, || format!("{found:?} instead of {expected:?}"))?;
    let (served, outstanding) = request.peer_resources();
    println!("ok: REQ: {found:?}; serves {served} READs, has {outstanding}, path MTU {}", request.path_mtu().bytes());
    Ok(request)
}

impl Controller {
    fn accept(request: Request) -> Outcome<Self> {
        let context = request.context();
        let (pd, size) = (context.alloc_pd()?, usize::from(ADMIN_QUEUE_SIZE));
        let (send_cq, recv_cq) = (context.create_cq(16)?, context.create_cq(64)?);
        let options = QueuePairOptions::default().access(AccessFlags::empty()).max_inline_data(RESPONSE_BYTES as u32);
        let qp = pd.create_qp_with(&send_cq, &recv_cq, &options)?;
        let commands = pd.alloc_mr(size * COMMAND_BYTES, AccessFlags::LOCAL_WRITE)?;
        let data = pd.alloc_mr(IDENTIFY_BYTES, AccessFlags::LOCAL_WRITE)?;
        qp.init()?;
        for slot in 0..size {
            post_receive(&qp, &commands, slot)?;
        }
        let options = ConnectionOptions::new().private_data(&answer_data(ADMIN_QUEUE_SIZE)).deadline(PATIENCE);
        let connection = request.accept(&qp, &options)?;
        Ok(Self { qp, send_cq, recv_cq, commands, data, connection, queue_head: 0, _pd: pd })
    }

    /// Returns the next command, or `None` if there is none in this time.
    fn next_command(&mut self, patience: Duration) -> Outcome<Option<Command>> {
        let completion = match self.recv_cq.wait(patience) {
            Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(None),
            completion => completion?,
        };
        let length = completion.result()?.byte_len as usize;
        ensure(length == COMMAND_BYTES, || format!("a command of {length} bytes"))?;
        let slot = completion.wr_id() as usize;
        let mut bytes = [0; COMMAND_BYTES];
        self.commands.read_at(slot * COMMAND_BYTES, &mut bytes)?;
        post_receive(&self.qp, &self.commands, slot)?;
        self.queue_head = (self.queue_head + 1) % ADMIN_QUEUE_SIZE;
        let command = Command(bytes);
        ensure(command.flags() == USES_SGL, || format!("flags {:#x} of a command", command.flags()))?;
        Ok(Some(command))
    }

    fn complete(&self, request: SendRequest<'_>) -> Outcome<CompletionOpcode> {
        self.qp.post_send(&[request.signaled()])?;
        Ok(self.send_cq.wait(PATIENCE)?.result()?.opcode)
    }

    /// Sends a response, which invalidates the command's key if that is allowed.
    fn respond(&self, command: &Command, status: u16, result: u64) -> Outcome {
        let (queue_head, command_id) = (self.queue_head, command.id());
        let response = Response { result, queue_head, queue_id: 0, command_id, status }.to_bytes();
        let payload = Payload::inline(&response);
        let request = match command.keyed_memory() {
            Some((memory, true)) => SendRequest::send_with_invalidate(payload, memory.rkey()),
            _ => SendRequest::send(payload),
        };
        self.complete(request)?;
        Ok(())
    }

    /// Receives a Connect command, READs its data, and checks both.
    fn connect(&mut self, subsystem: &str) -> Outcome<Command> {
        let command = self.next_command(PATIENCE)?.ok_or("the kernel sends no command")?;
        let kind = (command.opcode(), command.fabrics_type());
        ensure(kind == (opcode::FABRICS, Some(fabrics::CONNECT)), || format!("not a Connect: {kind:x?}"))?;
        let fields = [connect::RECORD_FORMAT, connect::QUEUE_ID, connect::QUEUE_SIZE];
        let fields = fields.map(|offset| u16_at(&command.0, offset));
        ensure(fields == [0, 0, ADMIN_QUEUE_SIZE - 1], || format!("record format, queue, its size: {fields:?}"))?;
        let attributes = command.0[connect::ATTRIBUTES];
        let keep_alive = u32_at(&command.0, connect::KEEP_ALIVE);
        let (memory, is_invalidatable) = command.keyed_memory().ok_or("no keyed descriptor")?;
        let described = (memory.len(), is_invalidatable);
        ensure(described == (CONNECT_DATA_BYTES as u64, true), || format!("length, invalidate: {described:?}"))?;
        self.complete(SendRequest::read(self.data.slice(..CONNECT_DATA_BYTES)?, memory))?;
        let mut bytes = [0; CONNECT_DATA_BYTES];
        self.data.read_at(0, &mut bytes)?;
        let found = ConnectData::from_bytes(&bytes);
        let expected = ConnectData {
            host_id: HOST_ID,
            controller_id: ANY_CONTROLLER,
            subsystem: subsystem.to_owned(),
            host: HOST_NQN.to_owned(),
        };
        ensure(found == expected, || format!("{found:x?} instead of {expected:x?}"))?;
        println!(
            "ok: Connect: size {}, attributes {attributes:#x}, keep-alive {keep_alive} ms, {memory:x?}",
            fields[2]
        );
        println!("ok: READ: {found:x?}");
        Ok(command)
    }

    /// Refuses a Connect command because of the subsystem's name in its data.
    fn refuse_connect(&mut self, subsystem: &str) -> Outcome {
        let command = self.connect(subsystem)?;
        let place = 1 << 16 | connect::DATA_SUBSYSTEM as u64;
        self.respond(&command, status::CONNECT_INVALID_PARAMETERS, place)?;
        ensure(self.connection.wait_disconnected(PATIENCE)?, || "the kernel does not disconnect".to_owned())?;
        println!("ok: the kernel disconnects after status {:#x}", status::CONNECT_INVALID_PARAMETERS);
        Ok(())
    }

    /// Is a controller until the kernel disconnects, which it does when it has compared the controller's ids.
    fn serve(&mut self, subsystem: &str) -> Outcome {
        let command = self.connect(subsystem)?;
        self.respond(&command, status::SUCCESS, CONTROLLER.into())?;
        let (mut configuration, mut is_identified) = (0, false);
        while !self.connection.wait_disconnected(Duration::ZERO)? {
            let Some(command) = self.next_command(Duration::from_millis(20))? else { continue };
            match (command.opcode(), command.fabrics_type()) {
                (_, Some(fabrics::PROPERTY_GET)) => self.get_property(&command, configuration)?,
                (_, Some(fabrics::PROPERTY_SET)) => {
                    let (offset, value) = (u32_at(&command.0, 44), u64_at(&command.0, 48));
                    ensure(offset == property::CONFIGURATION, || format!("Property Set {offset:#x} {value:#x}"))?;
                    println!("ok: Property Set CC {value:#x}");
                    configuration = value;
                    self.respond(&command, status::SUCCESS, 0)?;
                }
                (opcode::IDENTIFY, _) if command.0[40] == 1 => {
                    self.identify(&command, subsystem)?;
                    is_identified = true;
                }
                kind => {
                    println!("refused: {kind:x?}");
                    self.respond(&command, status::INVALID_OPCODE, 0)?;
                }
            }
        }
        ensure(configuration & 1 == 1 && is_identified, || "disconnected before Identify".to_owned())?;
        println!("ok: disconnected");
        Ok(())
    }

    fn get_property(&self, command: &Command, configuration: u64) -> Outcome {
        let offset = u32_at(&command.0, 44);
        let value = match offset {
            property::CAPABILITIES => CAPABILITIES,
            property::VERSION => VERSION,
            property::CONFIGURATION => configuration,
            // Ready at once.
            property::STATUS => configuration & 1,
            _ => return self.respond(command, status::INVALID_FIELD, 0),
        };
        println!("ok: Property Get {offset:#x}: {value:#x}");
        self.respond(command, status::SUCCESS, value)
    }

    /// WRITEs the data of Identify to the kernel's memory, with another controller id than that of Connect.
    fn identify(&self, command: &Command, subsystem: &str) -> Outcome {
        let (memory, _) = command.keyed_memory().ok_or("no keyed descriptor")?;
        ensure(memory.len() == IDENTIFY_BYTES as u64, || format!("Identify with {} bytes", memory.len()))?;
        let mut data = vec![0; IDENTIFY_BYTES];
        data[4..24].copy_from_slice(b"1                   ");
        data[24..64].copy_from_slice(b"rdma-verbs                              ");
        data[64..72].copy_from_slice(b"1       ");
        data[78..80].copy_from_slice(&IDENTIFIED_CONTROLLER.to_le_bytes());
        data[80..84].copy_from_slice(&(VERSION as u32).to_le_bytes());
        data[768..768 + subsystem.len()].copy_from_slice(subsystem.as_bytes());
        self.data.write_at(0, &data)?;
        let opcode = self.complete(SendRequest::write(&self.data, memory))?;
        ensure(opcode == CompletionOpcode::Write, || format!("{opcode:?}"))?;
        println!("ok: Identify: WRITE of {IDENTIFY_BYTES} bytes, {memory:x?}");
        self.respond(command, status::SUCCESS, 0)
    }
}

fn post_receive(qp: &QueuePair, commands: &MemoryRegion, slot: usize) -> Outcome {
    let place = commands.slice(slot * COMMAND_BYTES..(slot + 1) * COMMAND_BYTES)?;
    qp.post_recv(&[ReceiveRequest::new(place).wr_id(slot as u64)])?;
    Ok(())
}
