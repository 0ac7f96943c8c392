//! Ping-pongs of a queue pair whose packets go through memory and of one whose packets go through UDP: each alone on
//! its shard, and beside the other one, which exchanges a message for each [`EXCHANGES`] of the first.

use std::time::Duration;

use rdma_verbs::verbs::{Counter, SharedMemory};

use super::end::{End, Other, open, read_line, warm_up};
use super::{Failure, Path, Wait, pin, time};

const ADDRESS: &str = "127.50.0.5";
/// Addresses of the other process: a device that shares memory, and one that does not.
const OTHERS: [(&str, SharedMemory); 2] = [("127.50.0.6", SharedMemory::Auto), ("127.50.0.7", SharedMemory::Off)];
const EXCHANGES: u32 = 8;
/// Line for the other process in place of the information of a queue pair that does not exist.
const NONE: &str = "-";

/// Measures half of a round trip in nanoseconds.
pub(super) fn measure(path: Path, is_alone: bool, length: Duration) -> Result<f64, Failure> {
    pin(Wait::Spin, false)?;
    let context = open(ADDRESS, SharedMemory::Auto)?;
    let mut other = Other::start(&["--mixed"])?;
    let mut ends = Vec::new();
    for to in [Path::Memory, Path::Udp] {
        let line = other.line()?;
        if is_alone && to != path {
            other.tell(NONE)?;
            continue;
        }
        let end = End::new(&context, Wait::Spin)?;
        end.connect(&line)?;
        other.tell(&end.info()?)?;
        ends.push((to, end));
    }
    other.line()?;
    for (to, end) in &mut ends {
        let mut exchange = || {
            end.send()?;
            end.receive()
        };
        match to {
            Path::Memory => warm_up(&context, Counter::SharedMemorySends, exchange)?,
            Path::Udp => exchange()?,
        }
    }
    let (mut first, mut second) = (None, None);
    for (to, end) in ends {
        if to == path { first = Some(end) } else { second = Some(end) }
    }
    let mut first = first.ok_or("no queue pair")?;
    let (mut number, mut is_under_way) = (0_u32, false);
    time(length, || {
        if let Some(second) = &mut second {
            if is_under_way {
                is_under_way = !second.try_receive()?;
            }
            if number.is_multiple_of(EXCHANGES) && !is_under_way {
                second.send()?;
                is_under_way = true;
            }
        }
        number = number.wrapping_add(1);
        first.send()?;
        first.receive()
    })
}

/// The other process. It polls both of its devices in any case.
pub(super) fn answer() -> Result<(), Failure> {
    pin(Wait::Spin, true)?;
    let mut ends = Vec::new();
    for (address, sharing) in OTHERS {
        let end = End::new(&open(address, sharing)?, Wait::Spin)?;
        println!("{}", end.info()?);
        let line = read_line()?;
        if line.trim() != NONE {
            end.connect(&line)?;
        }
        ends.push(end);
    }
    println!("ready");
    loop {
        for end in &mut ends {
            if end.try_receive()? {
                end.send()?;
            }
        }
    }
}
