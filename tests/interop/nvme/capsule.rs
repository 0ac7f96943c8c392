//! The messages of NVMe over RDMA, little-endian: private data of the connection manager's messages (NVMe RDMA
//! Transport 1.0, formats of `RDMA_CM_REQUEST`, `_ACCEPT` and `_REJECT`), command and response capsules, data
//! descriptors, and the data of Connect (NVMe Base 2.0).

use rdma_verbs::verbs::{RemoteMemory, Rkey};

pub(crate) const COMMAND_BYTES: usize = 64;
pub(crate) const RESPONSE_BYTES: usize = 16;
pub(crate) const CONNECT_DATA_BYTES: usize = 1024;
/// The controller id by which a host requests any controller.
pub(crate) const ANY_CONTROLLER: u16 = 0xffff;

/// Opcodes of commands.
pub(crate) mod opcode {
    pub(crate) const FLUSH: u8 = 0x00;
    pub(crate) const WRITE: u8 = 0x01;
    pub(crate) const READ: u8 = 0x02;
    pub(crate) const IDENTIFY: u8 = 0x06;
    pub(crate) const SET_FEATURES: u8 = 0x09;
    pub(crate) const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    pub(crate) const KEEP_ALIVE: u8 = 0x18;
    pub(crate) const FABRICS: u8 = 0x7f;
}

/// Types of fabrics commands.
pub(crate) mod fabrics {
    pub(crate) const PROPERTY_SET: u8 = 0;
    pub(crate) const CONNECT: u8 = 1;
    pub(crate) const PROPERTY_GET: u8 = 4;
}

/// Offsets of a controller's properties.
pub(crate) mod property {
    pub(crate) const CAPABILITIES: u32 = 0;
    pub(crate) const VERSION: u32 = 8;
    pub(crate) const CONFIGURATION: u32 = 0x14;
    pub(crate) const STATUS: u32 = 0x1c;
}

/// Status of commands, as in a response without its phase bit: type and code, and whether a retry is useless.
pub(crate) mod status {
    /// The error log has more about it.
    pub(crate) const MORE: u16 = 0x2000;
    pub(crate) const SUCCESS: u16 = 0;
    pub(crate) const INVALID_OPCODE: u16 = 0x4001;
    pub(crate) const INVALID_FIELD: u16 = 0x4002;
    pub(crate) const CONNECT_INCOMPATIBLE_FORMAT: u16 = 0x4180;
    pub(crate) const CONNECT_INVALID_PARAMETERS: u16 = 0x4182;
}

/// Status of a refused connection.
pub(crate) mod refusal {
    pub(crate) const INVALID_RECORD_FORMAT: u16 = 2;
    pub(crate) const INVALID_QUEUE_ID: u16 = 3;
    pub(crate) const INVALID_HOST_SEND_QUEUE_SIZE: u16 = 4;
}

/// Offsets in a Connect command, and in its data.
pub(crate) mod connect {
    pub(crate) const RECORD_FORMAT: usize = 40;
    pub(crate) const QUEUE_ID: usize = 42;
    pub(crate) const QUEUE_SIZE: usize = 44;
    pub(crate) const ATTRIBUTES: usize = 46;
    pub(crate) const KEEP_ALIVE: usize = 48;
    pub(crate) const DATA_CONTROLLER_ID: usize = 16;
    pub(crate) const DATA_SUBSYSTEM: usize = 256;
    pub(crate) const DATA_HOST: usize = 512;
}

/// The `flags` of a command with a scatter-gather list, the only form that fabrics have.
pub(crate) const USES_SGL: u8 = 0x40;
/// Types of data descriptors.
const KEYED: u8 = 0x40;
const KEYED_INVALIDATE: u8 = 0x4f;
const IN_CAPSULE: u8 = 0x01;
const DESCRIPTOR: usize = 24;

/// The private data of a REQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ConnectRequest {
    pub(crate) record_format: u16,
    pub(crate) queue_id: u16,
    pub(crate) host_receive_queue_size: u16,
    pub(crate) host_send_queue_size: u16,
    pub(crate) controller_id: u16,
}

impl ConnectRequest {
    pub(crate) fn to_bytes(self) -> [u8; 32] {
        let fields = [
            self.record_format,
            self.queue_id,
            self.host_receive_queue_size,
            self.host_send_queue_size,
            self.controller_id,
        ];
        let mut bytes = [0; 32];
        for (word, field) in bytes.chunks_exact_mut(2).zip(fields) {
            word.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            record_format: u16_at(bytes, 0),
            queue_id: u16_at(bytes, 2),
            host_receive_queue_size: u16_at(bytes, 4),
            host_send_queue_size: u16_at(bytes, 6),
            controller_id: u16_at(bytes, 8),
        }
    }
}

/// Returns the private data of a REP, padded to its 32 bytes, or that of a REJ, its first four: the record format and
/// the size of the controller's receive queue, or a [`refusal`].
pub(crate) fn answer_data(number: u16) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[2..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A command, without data.
#[derive(Clone, Copy)]
pub(crate) struct Command(pub(crate) [u8; COMMAND_BYTES]);

impl Command {
    pub(crate) fn new(opcode: u8) -> Self {
        Self([0; COMMAND_BYTES]).with(0, &[opcode, USES_SGL]).with(DESCRIPTOR + 15, &[KEYED])
    }

    pub(crate) fn connect(queue_id: u16, queue_size: u16) -> Self {
        let command = Self::new(opcode::FABRICS).with(4, &[fabrics::CONNECT]);
        let command = command.with(connect::QUEUE_ID, &queue_id.to_le_bytes());
        command.with(connect::QUEUE_SIZE, &queue_size.to_le_bytes())
    }

    /// Returns a Property Get; CAP is the only property of eight bytes.
    pub(crate) fn property_get(property: u32) -> Self {
        let is_wide = u8::from(property == property::CAPABILITIES);
        let command = Self::new(opcode::FABRICS).with(4, &[fabrics::PROPERTY_GET]).with(40, &[is_wide]);
        command.with(44, &property.to_le_bytes())
    }

    pub(crate) fn property_set(property: u32, value: u32) -> Self {
        let command = Self::new(opcode::FABRICS).with(4, &[fabrics::PROPERTY_SET]);
        command.with(44, &property.to_le_bytes()).with(48, &u64::from(value).to_le_bytes())
    }

    /// Returns an Identify: of the controller, or of a namespace.
    pub(crate) fn identify(namespace: Option<u32>) -> Self {
        let selection = u8::from(namespace.is_none());
        Self::new(opcode::IDENTIFY).with(4, &namespace.unwrap_or(0).to_le_bytes()).with(40, &[selection])
    }

    /// Returns a Read or Write of these blocks.
    pub(crate) fn transfer(opcode: u8, namespace: u32, first: u64, blocks: u16) -> Self {
        let command = Self::new(opcode).with(4, &namespace.to_le_bytes()).with(40, &first.to_le_bytes());
        command.with(48, &(blocks - 1).to_le_bytes())
    }

    /// Names memory as the place of the data.
    pub(crate) fn keyed(self, memory: RemoteMemory) -> Self {
        let command = self.with(DESCRIPTOR, &memory.addr().to_le_bytes());
        let command = command.with(DESCRIPTOR + 8, &memory.len().to_le_bytes()[..3]);
        command.with(DESCRIPTOR + 11, &memory.rkey().0.to_le_bytes()).with(DESCRIPTOR + 15, &[KEYED])
    }

    /// The same, and lets the target's response invalidate the key.
    pub(crate) fn keyed_invalidate(self, memory: RemoteMemory) -> Self {
        self.keyed(memory).with(DESCRIPTOR + 15, &[KEYED_INVALIDATE])
    }

    /// States that the data follows the command in its capsule.
    pub(crate) fn in_capsule(self, length: usize) -> Self {
        let command = self.with(DESCRIPTOR, &[0; 16]);
        command.with(DESCRIPTOR + 8, &(length as u32).to_le_bytes()).with(DESCRIPTOR + 15, &[IN_CAPSULE])
    }

    /// Replaces bytes of the command.
    pub(crate) fn with(mut self, offset: usize, bytes: &[u8]) -> Self {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(crate) fn opcode(&self) -> u8 {
        self.0[0]
    }

    pub(crate) fn flags(&self) -> u8 {
        self.0[1]
    }

    pub(crate) fn id(&self) -> u16 {
        u16_at(&self.0, 2)
    }

    /// Returns the type of a fabrics command.
    pub(crate) fn fabrics_type(&self) -> Option<u8> {
        (self.opcode() == opcode::FABRICS).then_some(self.0[4])
    }

    /// Returns where the data is.
    pub(crate) fn data(&self) -> Option<Data> {
        let descriptor = &self.0[DESCRIPTOR..DESCRIPTOR + 16];
        let length = u32_at(descriptor, 8);
        let memory =
            RemoteMemory::new(u64_at(descriptor, 0), Rkey(u32_at(descriptor, 11)), u64::from(length & 0xff_ffff));
        match descriptor[15] {
            KEYED => Some(Data::Keyed { memory, is_invalidated: false }),
            KEYED_INVALIDATE => Some(Data::Keyed { memory, is_invalidated: true }),
            IN_CAPSULE => Some(Data::InCapsule { offset: u64_at(descriptor, 0), length: length as usize }),
            _ => None,
        }
    }

    /// Returns the memory of a keyed descriptor whose key the response invalidates.
    pub(crate) fn invalidated_memory(&self) -> Option<RemoteMemory> {
        match self.data()? {
            Data::Keyed { memory, is_invalidated: true } => Some(memory),
            _ => None,
        }
    }
}

/// The data of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data {
    /// In memory of the host. The response invalidates the key, if the descriptor says so.
    Keyed { memory: RemoteMemory, is_invalidated: bool },
    /// In the capsule, at this offset behind the command.
    InCapsule { offset: u64, length: usize },
}

/// A response capsule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Response {
    pub(crate) result: u64,
    pub(crate) queue_head: u16,
    pub(crate) queue_id: u16,
    pub(crate) command_id: u16,
    /// Without [`status::MORE`].
    pub(crate) status: u16,
}

impl Response {
    pub(crate) fn to_bytes(self) -> [u8; RESPONSE_BYTES] {
        let mut bytes = [0; RESPONSE_BYTES];
        bytes[..8].copy_from_slice(&self.result.to_le_bytes());
        let words = [self.queue_head, self.queue_id, self.command_id, self.status << 1];
        for (place, word) in bytes[8..].chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; RESPONSE_BYTES]) -> Self {
        Self {
            result: u64_at(bytes, 0),
            queue_head: u16_at(bytes, 8),
            queue_id: u16_at(bytes, 10),
            command_id: u16_at(bytes, 12),
            status: u16_at(bytes, 14) >> 1 & !status::MORE,
        }
    }
}

/// The data of a Connect command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ConnectData {
    pub(crate) host_id: [u8; 16],
    pub(crate) controller_id: u16,
    /// The names of subsystem and host (NQN).
    pub(crate) subsystem: String,
    pub(crate) host: String,
}

impl ConnectData {
    pub(crate) fn to_bytes(&self) -> [u8; CONNECT_DATA_BYTES] {
        let mut bytes = [0; CONNECT_DATA_BYTES];
        bytes[..16].copy_from_slice(&self.host_id);
        bytes[connect::DATA_CONTROLLER_ID..][..2].copy_from_slice(&self.controller_id.to_le_bytes());
        bytes[connect::DATA_SUBSYSTEM..][..self.subsystem.len()].copy_from_slice(self.subsystem.as_bytes());
        bytes[connect::DATA_HOST..][..self.host.len()].copy_from_slice(self.host.as_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; CONNECT_DATA_BYTES]) -> Self {
        let mut host_id = [0; 16];
        host_id.copy_from_slice(&bytes[..16]);
        Self {
            host_id,
            controller_id: u16_at(bytes, connect::DATA_CONTROLLER_ID),
            subsystem: text_at(bytes, connect::DATA_SUBSYSTEM, 256),
            host: text_at(bytes, connect::DATA_HOST, 256),
        }
    }
}

/// Returns a text that ends at the first zero, or at the end of its field.
pub(crate) fn text_at(bytes: &[u8], offset: usize, length: usize) -> String {
    let field = &bytes[offset..offset + length];
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(length);
    String::from_utf8_lossy(&field[..end]).trim_end().to_owned()
}

pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u64_of(&bytes[offset..offset + 2]) as u16
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u64_of(&bytes[offset..offset + 4]) as u32
}

pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64_of(&bytes[offset..offset + 8])
}

fn u64_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
