//! The defaults of rsockets: those of rdma-core, unless files below `/etc/rdma/rsocket` have others.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use super::flow::{CONTROLS, Sizes};
use super::wire::{from_scale, to_scale};

const FOLDER: &str = "/etc/rdma/rsocket";

/// Least and largest number of entries of a queue.
pub(super) const QUEUE: (u32, u32) = (16, 0xfffe);
/// Least and largest number of bytes of a buffer. The largest is not allocated before it is used.
pub(super) const BUFFER: (u32, u32) = (4096, 1 << 30);
/// Longest time to poll before a wait, and between two looks at the sockets while waiting.
const MAX_POLLING: u64 = 1_000_000;
const MAX_WAKE_UP: u64 = 60_000;

const _: () = assert!(QUEUE.0 > CONTROLS as u32);

/// The defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Defaults {
    pub(super) sizes: Sizes,
    /// Longest data that is sent inline.
    pub(super) inline: u16,
    /// Number of entries of the table of mapped ranges.
    pub(super) mappings: u16,
    /// Time to poll before waiting.
    pub(super) polling: Duration,
    /// Longest wait of `rpoll` before it looks at its sockets again.
    pub(super) wake_up: Duration,
}

/// Returns the number in a file; `usual` if there is none.
fn number(folder: &Path, name: &str, usual: u64) -> u64 {
    let mut text = String::new();
    let read = File::open(folder.join(name)).and_then(|file| file.take(64).read_to_string(&mut text));
    let digits: String = text.trim_start().chars().take_while(char::is_ascii_digit).collect();
    read.ok().and_then(|_| digits.parse().ok()).unwrap_or(usual)
}

/// Returns the next even number of bytes that a buffer can have.
pub(super) fn buffer_size(bytes: u64) -> u32 {
    (bytes.clamp(BUFFER.0.into(), BUFFER.1.into()) as u32).next_multiple_of(2)
}

/// Returns the number of entries that a queue can have.
pub(super) fn queue_size(entries: u64) -> u16 {
    entries.clamp(QUEUE.0.into(), QUEUE.1.into()) as u16
}

/// Returns a number of mapped ranges that a peer can be told.
pub(super) fn mapping_count(count: u64) -> u16 {
    from_scale(to_scale(count.min(0x7fff) as u16))
}

impl Defaults {
    /// Reads the files.
    pub(super) fn read() -> Self {
        Self::from_folder(Path::new(FOLDER))
    }

    fn from_folder(folder: &Path) -> Self {
        let number = |name, usual| number(folder, name, usual);
        Self {
            sizes: Sizes {
                send_queue: queue_size(number("sqsize_default", 384)),
                receive_queue: queue_size(number("rqsize_default", 384)),
                send_buffer: buffer_size(number("wmem_default", 1 << 17)),
                receive_buffer: buffer_size(number("mem_default", 1 << 17)),
            },
            inline: number("inline_default", 64).min(u16::MAX.into()) as u16,
            mappings: mapping_count(number("iomap_size", 0)),
            polling: Duration::from_micros(number("polling_time", 10).min(MAX_POLLING)),
            wake_up: Duration::from_millis(number("wake_up_interval", 5000).clamp(1, MAX_WAKE_UP)),
        }
    }
}
