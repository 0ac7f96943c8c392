//! A controller for the kernel's host: an admin queue, an I/O queue, and a namespace in memory.

use std::ops::Range;
use std::time::Duration;

use rdma_verbs::verbs::cm::Listener;

use super::capsule::{COMMAND_BYTES, Command, Data, fabrics, opcode, property, status, u16_at, u32_at, u64_at};
use super::target::next_request;
use super::target_queue::{QUEUE_SIZE, Received, TargetQueue};
use super::{Outcome, ensure};

/// The controller's id in the response to Connect.
pub(crate) const CONTROLLER: u16 = 7;
/// Queues of 32 entries that must be contiguous, 7.5 s until it is ready, NVM commands.
const CAPABILITIES: u64 = (QUEUE_SIZE as u64 - 1) | 1 << 16 | 15 << 24 | 1 << 37;
const VERSION: u32 = 0x1_0300;
/// Bits of CC and CSTS: enabled or ready; a shutdown is wanted, or complete.
const ENABLED: u64 = 1;
const SHUTDOWN: u64 = 0b11 << 14;
const SHUTDOWN_COMPLETE: u64 = 0b10 << 2;
pub(crate) const IDENTIFY_BYTES: usize = 4096;
const BLOCK_BYTES: usize = 4096;
const BLOCKS: usize = 256;
/// Most data in a capsule of the I/O queue, and in the memory of one command, as a power of two of pages.
const IN_CAPSULE_BYTES: usize = 4096;
const TRANSFER_PAGES: u8 = 5;

pub(crate) struct Controller<'a> {
    pub(crate) subsystem: &'a str,
    /// The controller's id in the data of Identify.
    pub(crate) identified: u16,
    pub(crate) admin: TargetQueue,
    /// Its memory for data is the namespace.
    io: Option<TargetQueue>,
    transferred: Transferred,
    configuration: u64,
}

/// Commands of the I/O queue.
#[derive(Clone, Copy, Debug, Default)]
struct Transferred {
    keyed_writes: usize,
    writes_in_capsules: usize,
    reads: usize,
}

impl<'a> Controller<'a> {
    pub(crate) fn new(admin: TargetQueue, subsystem: &'a str, identified: u16) -> Self {
        Self { subsystem, identified, admin, io: None, transferred: Transferred::default(), configuration: 0 }
    }

    /// Returns the namespace's bytes, if the host has connected an I/O queue. Then it must have used it in each way.
    pub(crate) fn namespace(&self) -> Outcome<Option<Vec<u8>>> {
        let Some(io) = &self.io else { return Ok(None) };
        let Transferred { keyed_writes, writes_in_capsules, reads } = self.transferred;
        println!("ok: Writes: {keyed_writes} by key, {writes_in_capsules} in capsules; Reads: {reads}");
        ensure([keyed_writes, writes_in_capsules, reads].iter().all(|count| *count > 0), || "not each way".to_owned())?;
        Ok(Some(io.data().to_vec(..)?))
    }

    /// Serves commands until the host disconnects the admin queue.
    pub(crate) fn serve(&mut self, listener: &Listener) -> Outcome {
        while !self.admin.ends_within(Duration::ZERO)? {
            if let Some(received) = self.admin.next_command(Duration::from_millis(1))? {
                self.execute_admin(&received.command)?;
            }
            let Some(io) = &mut self.io else {
                self.io = self.accept_io(listener)?;
                continue;
            };
            if let Some(received) = io.next_command(Duration::from_millis(1))? {
                execute_io(io, &received, &mut self.transferred)?;
            }
        }
        Ok(())
    }

    fn accept_io(&self, listener: &Listener) -> Outcome<Option<TargetQueue>> {
        let is_ready = self.configuration & ENABLED != 0;
        if !is_ready {
            return Ok(None);
        }
        let Some(request) = next_request(listener, Duration::from_millis(1), 1)? else { return Ok(None) };
        let mut io = TargetQueue::accept(request, COMMAND_BYTES + IN_CAPSULE_BYTES, BLOCKS * BLOCK_BYTES)?;
        let command = io.receive_connect(self.subsystem, CONTROLLER)?;
        // The data of Connect was there.
        io.data().write_at(0, &[0; BLOCK_BYTES])?;
        io.respond(&command, status::SUCCESS, CONTROLLER.into())?;
        Ok(Some(io))
    }

    fn execute_admin(&mut self, command: &Command) -> Outcome {
        match (command.opcode(), command.fabrics_type()) {
            (_, Some(fabrics::PROPERTY_GET)) => self.get_property(command),
            (_, Some(fabrics::PROPERTY_SET)) if u32_at(&command.0, 44) == property::CONFIGURATION => {
                self.configuration = u64_at(&command.0, 48);
                println!("ok: Property Set CC {:#x}", self.configuration);
                self.admin.respond(command, status::SUCCESS, 0)
            }
            (opcode::IDENTIFY, _) => self.identify(command),
            (opcode::SET_FEATURES, _) => {
                println!("ok: Set Features {:#x}: 0", command.0[40]);
                // The number of queues, counted from 0, is in the result: one.
                self.admin.respond(command, status::SUCCESS, 0)
            }
            (opcode::KEEP_ALIVE, _) => self.admin.respond(command, status::SUCCESS, 0),
            // Until there is an event: never.
            (opcode::ASYNC_EVENT_REQUEST, _) => Ok(()),
            kind => {
                println!("refused: {kind:x?}");
                self.admin.respond(command, status::INVALID_OPCODE, 0)
            }
        }
    }

    fn get_property(&self, command: &Command) -> Outcome {
        let offset = u32_at(&command.0, 44);
        let value = match offset {
            property::CAPABILITIES => CAPABILITIES,
            property::VERSION => VERSION.into(),
            property::CONFIGURATION => self.configuration,
            // Ready, and shut down, at once.
            property::STATUS if self.configuration & SHUTDOWN != 0 => SHUTDOWN_COMPLETE,
            property::STATUS => self.configuration & ENABLED,
            _ => return self.admin.respond(command, status::INVALID_FIELD, 0),
        };
        println!("ok: Property Get {offset:#x}: {value:#x}");
        self.admin.respond(command, status::SUCCESS, value)
    }

    fn identify(&self, command: &Command) -> Outcome {
        let (selection, namespace) = (command.0[40], u32_at(&command.0, 4));
        let mut data = vec![0; IDENTIFY_BYTES];
        match selection {
            0 => describe_namespace(&mut data),
            1 => self.describe_controller(&mut data),
            // The namespaces behind this one.
            2 => data[0] = u8::from(namespace == 0),
            // Descriptors of a namespace: none.
            3 => {}
            _ => {
                println!("refused: Identify {selection:#x}");
                return self.admin.respond(command, status::INVALID_FIELD, 0);
            }
        }
        self.admin.data().write_at(0, &data)?;
        self.admin.place(command, 0..IDENTIFY_BYTES)?;
        println!("ok: Identify {selection}: WRITE, {:x?}", command.data());
        self.admin.respond(command, status::SUCCESS, 0)
    }

    fn describe_controller(&self, data: &mut [u8]) {
        let mut put = |offset: usize, bytes: &[u8]| data[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(4, b"1                   ");
        put(24, b"rdma-verbs                              ");
        put(64, b"1       ");
        put(77, &[TRANSFER_PAGES]);
        put(78, &self.identified.to_le_bytes());
        put(80, &VERSION.to_le_bytes());
        // An I/O controller, which is kept alive in units of 100 ms.
        put(111, &[1]);
        put(320, &1_u16.to_le_bytes());
        // Sizes of the queues' entries, number of commands, one namespace.
        put(512, &[0x66, 0x44]);
        put(514, &QUEUE_SIZE.to_le_bytes());
        put(516, &1_u32.to_le_bytes());
        // Scatter-gather lists: keyed, and offsets for data in capsules.
        put(536, &(1_u32 | 1 << 2 | 1 << 20).to_le_bytes());
        put(768, self.subsystem.as_bytes());
        // Sizes of capsules, in units of 16 bytes, and one descriptor for each command.
        put(1792, &((COMMAND_BYTES + IN_CAPSULE_BYTES) as u32 / 16).to_le_bytes());
        put(1796, &1_u32.to_le_bytes());
        put(1803, &[1]);
    }
}

fn describe_namespace(data: &mut [u8]) {
    for field in [0, 8, 16] {
        data[field..field + 8].copy_from_slice(&(BLOCKS as u64).to_le_bytes());
    }
    data[130] = BLOCK_BYTES.trailing_zeros() as u8;
}

fn execute_io(queue: &TargetQueue, received: &Received, transferred: &mut Transferred) -> Outcome {
    let command = &received.command;
    let status = match command.opcode() {
        opcode::FLUSH => status::SUCCESS,
        opcode::WRITE => {
            queue.fetch(received, blocks_of(command)?)?;
            match command.data() {
                Some(Data::InCapsule { .. }) => transferred.writes_in_capsules += 1,
                _ => transferred.keyed_writes += 1,
            }
            status::SUCCESS
        }
        opcode::READ => {
            queue.place(command, blocks_of(command)?)?;
            transferred.reads += 1;
            status::SUCCESS
        }
        _ => status::INVALID_OPCODE,
    };
    queue.respond(command, status, 0)
}

/// Returns the place of a command's blocks in the namespace.
fn blocks_of(command: &Command) -> Outcome<Range<usize>> {
    let (first, count) = (u64_at(&command.0, 40) as usize, usize::from(u16_at(&command.0, 48)) + 1);
    let is_within = first < BLOCKS && count <= BLOCKS - first;
    ensure(is_within, || format!("{count} blocks from {first} on"))?;
    Ok(first * BLOCK_BYTES..(first + count) * BLOCK_BYTES)
}
