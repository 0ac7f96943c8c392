//! This end is the host of the kernel's target, `nvmet-rdma`.

use std::net::SocketAddr;
use std::path::Path;

use rdma_verbs::verbs::cm::{ConnectError, Reason, RejectReason};
use rdma_verbs::verbs::{MemoryRegion, RemoteMemory, Rkey};

use super::capsule::{
    ANY_CONTROLLER, CONNECT_DATA_BYTES, Command, ConnectData, ConnectRequest, connect, opcode, property, refusal,
    status, text_at, u16_at, u32_at, u64_at,
};
use super::host_queue::{Answer, Home, Queue};
use super::{HOST_ID, HOST_NQN, Outcome, ensure};

const ADMIN_REQUEST: ConnectRequest = ConnectRequest {
    record_format: 0,
    queue_id: 0,
    host_receive_queue_size: ADMIN_QUEUE_SIZE,
    host_send_queue_size: ADMIN_QUEUE_SIZE - 1,
    controller_id: 0,
};
/// Number of commands of an admin queue: the target allows no more.
const ADMIN_QUEUE_SIZE: u16 = 32;
const IO_QUEUE_SIZE: u16 = 16;
/// Enabled, with entries of 16 and 64 bytes in the queues.
const ENABLED: u32 = 1 | 6 << 16 | 4 << 20;
const IDENTIFY_BYTES: usize = 4096;
/// Data of the Write whose data is in its capsule, and of the others: for 64 pages, the target has two READs
/// outstanding.
const IN_CAPSULE_BYTES: usize = 4096;
const KEYED_BYTES: usize = 262_144;
const NAMESPACE: u32 = 1;

/// The kernel's target, with the subsystem that it offers.
#[derive(Clone, Copy)]
struct Target<'a> {
    home: &'a Home,
    subsystem: &'a str,
}

pub(crate) fn run(device: &str, target: SocketAddr, subsystem: &str, data: &Path) -> Outcome {
    let data = std::fs::read(data)?;
    let target = Target { home: &Home::new(device, target)?, subsystem };
    let named = |name: &'static str| move |error| format!("{name}: {error}");
    target.refuses_connections().map_err(named("wrong private data"))?;
    target.refuses_commands().map_err(named("wrong commands"))?;
    target.cannot_read().map_err(named("a wrong key"))?;
    let (admin, controller) = target.connect_admin().map_err(named("the admin queue"))?;
    target.enable(&admin).map_err(named("the properties"))?;
    target.identify(&admin, controller).map_err(named("Identify"))?;
    let io = target.connect_io(controller).map_err(named("the I/O queue"))?;
    let block = target.block_bytes(&admin).map_err(named("the namespace"))?;
    target.write(&io, block, &data).map_err(named("Write"))?;
    target.read(&io, block, &data).map_err(named("Read"))?;
    io.disconnect().map_err(named("the end of the I/O queue"))?;
    admin.disconnect().map_err(named("the end of the admin queue"))?;
    println!("ok: disconnected");
    Ok(())
}

/// Returns the response of a command that must succeed.
fn succeed(queue: &Queue, command: Command, data: &[u8]) -> Outcome<Answer> {
    let answer = queue.execute(command, data)?;
    ensure(answer.response.status == status::SUCCESS, || format!("{answer:x?}"))?;
    Ok(answer)
}

impl Target<'_> {
    fn data(&self, controller_id: u16) -> [u8; CONNECT_DATA_BYTES] {
        let (subsystem, host) = (self.subsystem.to_owned(), HOST_NQN.to_owned());
        ConnectData { host_id: HOST_ID, controller_id, subsystem, host }.to_bytes()
    }

    /// The connection manager's REJ has the reason of the specification.
    fn refuses_connections(&self) -> Outcome {
        let wrong = [
            (ConnectRequest { record_format: 1, ..ADMIN_REQUEST }, refusal::INVALID_RECORD_FORMAT),
            (
                ConnectRequest { host_send_queue_size: ADMIN_QUEUE_SIZE, ..ADMIN_REQUEST },
                refusal::INVALID_HOST_SEND_QUEUE_SIZE,
            ),
        ];
        for (request, expected) in wrong {
            let rejected = match self.home.connect(request) {
                Err(ConnectError::Rejected(rejected)) => rejected,
                Err(error) => return Err(error.into()),
                Ok(_) => return Err(format!("{request:?} is accepted").into()),
            };
            let found = (rejected.reason(), u16_at(rejected.private_data(), 0), u16_at(rejected.private_data(), 2));
            let expected = (Reason::Connection(RejectReason::CONSUMER), 0, expected);
            ensure(found == expected, || format!("{found:?} instead of {expected:?}"))?;
            println!("ok: {request:?}: {rejected}, NVMe status {}", found.2);
        }
        Ok(())
    }

    /// Commands that are wrong have the status of the specification, and leave the queue unconnected.
    fn refuses_commands(&self) -> Outcome {
        let queue = self.home.connect(ADMIN_REQUEST)?;
        let right = self.home.region(&self.data(ANY_CONTROLLER))?;
        let other_subsystem = self.home.region(&Self { subsystem: "nqn.none", ..*self }.data(ANY_CONTROLLER))?;
        let other_controller = self.home.region(&self.data(1))?;
        let connect = |region: &MemoryRegion| Command::connect(0, ADMIN_QUEUE_SIZE - 1).keyed(region.remote());
        // The result locates a wrong parameter: its offset, and whether it is in the data.
        let place = |offset: usize| 1 << 16 | offset as u64;
        let wrong = [
            ("Identify", Command::identify(None).keyed(right.remote()), status::INVALID_OPCODE, 0),
            ("Connect, descriptor of type 0x41", connect(&right).with(39, &[0x41]), status::INVALID_FIELD, 0),
            (
                "Connect, record format 1",
                connect(&right).with(connect::RECORD_FORMAT, &[1]),
                status::CONNECT_INCOMPATIBLE_FORMAT,
                0,
            ),
            (
                "Connect, unknown subsystem",
                connect(&other_subsystem),
                status::CONNECT_INVALID_PARAMETERS,
                place(connect::DATA_SUBSYSTEM),
            ),
            (
                "Connect, controller 1",
                connect(&other_controller),
                status::CONNECT_INVALID_PARAMETERS,
                place(connect::DATA_CONTROLLER_ID),
            ),
        ];
        for (name, command, status, result) in wrong {
            let Answer { response, .. } = queue.execute(command, &[])?;
            let found = (response.status, response.result);
            ensure(found == (status, result), || format!("{name}: {response:x?}, expected {status:#x}, {result:#x}"))?;
            println!("ok: {name}: status {status:#x}, result {result:#x}");
        }
        queue.disconnect()
    }

    /// A Connect command with a wrong key: this end refuses the target's READ, and the target ends the connection.
    fn cannot_read(&self) -> Outcome {
        let queue = self.home.connect(ADMIN_REQUEST)?;
        let data = self.home.region(&self.data(ANY_CONTROLLER))?.remote();
        let wrong = RemoteMemory::new(data.addr(), Rkey(data.rkey().0 ^ 0x5500), data.len());
        queue.execute_fatal(Command::connect(0, ADMIN_QUEUE_SIZE - 1).keyed(wrong))?;
        println!("ok: Connect with a wrong key ends the connection");
        Ok(())
    }

    /// Connects the admin queue; the target READs the data of Connect. Returns the controller's id, too.
    fn connect_admin(&self) -> Outcome<(Queue, u16)> {
        let queue = self.home.connect(ADMIN_REQUEST)?;
        let found = (u16_at(queue.private_data(), 0), u16_at(queue.private_data(), 2));
        ensure(found == (0, ADMIN_QUEUE_SIZE), || format!("record format and receives of the REP: {found:?}"))?;
        let (served, outstanding) = queue.peer_resources();
        println!("ok: REP: record format 0, {} receives; serves {served} READs, has {outstanding}", found.1);
        let data = self.home.region(&self.data(ANY_CONTROLLER))?;
        let command = Command::connect(0, ADMIN_QUEUE_SIZE - 1).keyed_invalidate(data.remote());
        let answer = succeed(&queue, command, &[])?;
        ensure(answer.invalidated == Some(data.rkey()), || format!("not the key {:?}: {answer:?}", data.rkey()))?;
        let controller = answer.response.result as u16;
        ensure(![0, ANY_CONTROLLER].contains(&controller), || format!("controller {controller}"))?;
        println!("ok: Connect: controller {controller}; the response invalidates {:x?}", data.rkey());
        Ok((queue, controller))
    }

    fn enable(&self, queue: &Queue) -> Outcome {
        let get = |offset| -> Outcome<u64> {
            let answer = succeed(queue, Command::property_get(offset), &[])?;
            Ok(answer.response.result)
        };
        let (capabilities, version) = (get(property::CAPABILITIES)?, get(property::VERSION)?);
        let before = get(property::STATUS)?;
        ensure(before == 0, || format!("status {before:#x} before it is enabled"))?;
        succeed(queue, Command::property_set(property::CONFIGURATION, ENABLED), &[])?;
        let (configuration, after) = (get(property::CONFIGURATION)?, get(property::STATUS)?);
        ensure(configuration == u64::from(ENABLED), || format!("configuration {configuration:#x}"))?;
        ensure(after == 1, || format!("status {after:#x} after it is enabled"))?;
        let refused = queue.execute(Command::property_get(0x4000), &[])?.response.status;
        ensure(refused == status::INVALID_FIELD, || format!("status {refused:#x} of an unknown property"))?;
        println!("ok: CAP {capabilities:#x}, VS {version:#x}, CC {configuration:#x}, CSTS {before} to {after}");
        Ok(())
    }

    /// The target WRITEs 4096 bytes to our memory.
    fn identify(&self, queue: &Queue, controller: u16) -> Outcome {
        let region = self.home.region(&[0; IDENTIFY_BYTES])?;
        let answer = succeed(queue, Command::identify(None).keyed_invalidate(region.remote()), &[])?;
        ensure(answer.invalidated == Some(region.rkey()), || format!("not the key {:?}: {answer:?}", region.rkey()))?;
        let data = region.to_vec(..)?;
        let (id, name) = (u16_at(&data, 78), text_at(&data, 768, 256));
        ensure((id, &*name) == (controller, self.subsystem), || format!("controller {id} of {name}"))?;
        let (lists, capsule, offset) = (u32_at(&data, 536), 16 * u32_at(&data, 1792), u16_at(&data, 1800));
        // Keyed descriptors, and offsets for data in capsules.
        ensure(lists & (1 << 2 | 1 << 20) == 1 << 2 | 1 << 20, || format!("scatter-gather lists {lists:#x}"))?;
        ensure(capsule as usize >= 64 + IN_CAPSULE_BYTES && offset == 0, || format!("{capsule} bytes, at {offset}"))?;
        let model = text_at(&data, 24, 40);
        println!("ok: Identify: {model}, controller {id} of {name}, SGLS {lists:#x}, capsules of {capsule} bytes");
        Ok(())
    }

    /// Connects an I/O queue, with the data of Connect in its capsule.
    fn connect_io(&self, controller: u16) -> Outcome<Queue> {
        let request = ConnectRequest {
            queue_id: 1,
            host_receive_queue_size: IO_QUEUE_SIZE,
            host_send_queue_size: IO_QUEUE_SIZE - 1,
            controller_id: controller,
            ..ADMIN_REQUEST
        };
        let queue = self.home.connect(request)?;
        let command = Command::connect(1, IO_QUEUE_SIZE - 1).in_capsule(CONNECT_DATA_BYTES);
        let response = succeed(&queue, command, &self.data(controller))?.response;
        let found = (response.result as u16, response.queue_id);
        ensure(found == (controller, 1), || format!("controller and queue {found:?}"))?;
        println!("ok: Connect of queue 1 with its data in the capsule");
        Ok(queue)
    }

    /// Returns the size of the namespace's blocks.
    fn block_bytes(&self, queue: &Queue) -> Outcome<usize> {
        let region = self.home.region(&[0; IDENTIFY_BYTES])?;
        succeed(queue, Command::identify(Some(NAMESPACE)).keyed(region.remote()), &[])?;
        let data = region.to_vec(..)?;
        let (blocks, format) = (u64_at(&data, 0), usize::from(data[26] & 0xf));
        let block = 1_usize.checked_shl(data[128 + 4 * format + 2].into()).unwrap_or(0);
        ensure([512, 1024, 2048, 4096].contains(&block), || format!("blocks of {block} bytes"))?;
        println!("ok: namespace {NAMESPACE} of {blocks} blocks of {block} bytes");
        Ok(block)
    }

    /// Writes the data from the first block on: the target takes the first bytes from the capsule, and READs the rest.
    fn write(&self, queue: &Queue, block: usize, data: &[u8]) -> Outcome {
        let (first, rest) = data.split_at(IN_CAPSULE_BYTES);
        let command = Command::transfer(opcode::WRITE, NAMESPACE, 0, (IN_CAPSULE_BYTES / block) as u16);
        succeed(queue, command.in_capsule(IN_CAPSULE_BYTES), first)?;
        let mut start = IN_CAPSULE_BYTES;
        for chunk in rest.chunks(KEYED_BYTES) {
            let region = self.home.region(chunk)?;
            let blocks = (chunk.len() / block) as u16;
            let command = Command::transfer(opcode::WRITE, NAMESPACE, (start / block) as u64, blocks);
            succeed(queue, command.keyed_invalidate(region.remote()), &[])?;
            start += chunk.len();
        }
        println!("ok: Write of {start} bytes, the first {IN_CAPSULE_BYTES} in a capsule");
        Ok(())
    }

    /// Reads the data back: the target WRITEs it to our memory.
    fn read(&self, queue: &Queue, block: usize, data: &[u8]) -> Outcome {
        let mut start = 0;
        for chunk in data.chunks(KEYED_BYTES) {
            let region = self.home.region(&vec![0; chunk.len()])?;
            let blocks = (chunk.len() / block) as u16;
            let command = Command::transfer(opcode::READ, NAMESPACE, (start / block) as u64, blocks);
            succeed(queue, command.keyed_invalidate(region.remote()), &[])?;
            ensure(region.to_vec(..)? == chunk, || format!("wrong bytes from {start} on"))?;
            start += chunk.len();
        }
        println!("ok: Read of {start} bytes");
        Ok(())
    }
}
