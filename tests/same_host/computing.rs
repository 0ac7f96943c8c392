//! WRITEs into a process that computes, and into one that polls: from the post to the completion.

use std::hint::black_box;
use std::time::Duration;

use rdma_verbs::verbs::{Completion, Counter, Payload, RemoteMemory, SendRequest, SharedMemory};

use super::end::{End, Other, from_hex, open, read_line, to_hex, warm_up};
use super::{Failure, Target, Wait, pin, time};

const ADDRESSES: [&str; 2] = ["127.50.0.3", "127.50.0.4"];

fn write(end: &End, remote: RemoteMemory) -> Result<(), Failure> {
    let length = remote.len() as usize;
    let request = SendRequest::write(Payload::from(end.memory.slice(..length)?), remote);
    end.qp.post_send(&[request.signaled()])?;
    let mut completions = [Completion::default(); 8];
    loop {
        let count = end.cq.poll(&mut completions)?;
        for completion in &completions[..count] {
            completion.result()?;
        }
        if count > 0 {
            return Ok(());
        }
    }
}

/// Measures the time of a WRITE in nanoseconds.
pub(super) fn measure(target: Target, length: Duration) -> Result<f64, Failure> {
    pin(Wait::Spin, false)?;
    let mut other = Other::start(&["--write", &format!("{target:?}").to_lowercase()])?;
    let end = End::new(&open(ADDRESSES[0], SharedMemory::Auto)?, Wait::Spin)?;
    end.connect(&other.line()?)?;
    let remote = RemoteMemory::from_bytes(from_hex(&other.line()?)?.try_into().map_err(|_| "no region")?).slice(..8)?;
    other.tell(&end.info()?)?;
    other.line()?;
    warm_up(&end.context, Counter::DirectRequests, || write(&end, remote))?;
    Ok(2.0 * time(length, || write(&end, remote))?)
}

/// The other process.
pub(super) fn answer(target: Target) -> Result<(), Failure> {
    pin(Wait::Spin, true)?;
    let end = End::new(&open(ADDRESSES[1], SharedMemory::Auto)?, Wait::Spin)?;
    println!("{}\n{}", end.info()?, to_hex(&end.memory.remote().to_bytes()));
    end.connect(&read_line()?)?;
    println!("ready");
    let (mut sum, mut completions) = (0_u64, [Completion::default(); 8]);
    loop {
        match target {
            Target::Computing => sum = black_box(sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1),
            Target::Polling => {
                end.cq.poll(&mut completions)?;
            }
        }
    }
}
