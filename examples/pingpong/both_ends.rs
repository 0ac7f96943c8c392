//! Both ends, each on its own thread and device.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rdma_verbs::verbs::{
    self, AccessFlags, Completion, CompletionOpcode, CompletionQueue, Counter, MemoryRegion, ProtectionDomain,
    QueuePair, QueuePairOptions, QueuePairType, ReceiveRequest, SendRequest,
};

use crate::pingpong::{Outcome, interrupted};

const DEVICES: [&str; 2] = ["soft:127.0.0.1", "soft:127.0.0.2"];
/// Message sizes and the number of rounds of each.
const LATENCY: [(usize, u32); 3] = [(8, 20_000), (4096, 10_000), (65_536, 2_000)];
const LARGEST: usize = 65_536;
const TRANSFER_BYTES: usize = 64 << 20;
const TRANSFER_MESSAGE_BYTES: usize = 1 << 20;
const TRANSFERS: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs both ends of a connection of this type, and prints their devices.
pub(crate) fn run(qp_type: QueuePairType) -> Outcome {
    let [left, right] = DEVICES;
    let name = qp_type.name();
    println!("Both ends of a connection ({name}) in this program: {left} and {right}\n");
    let (client, server) = (End::open(left, qp_type)?, End::open(right, qp_type)?);
    client.qp.connect(&server.qp.connection_info()?)?;
    server.qp.connect(&client.qp.connection_info()?)?;

    println!("Latency: SEND, polling, half of a round trip in µs");
    println!("{:>12} {:>10} {:>9} {:>9} {:>9}", "bytes", "messages", "p50", "p99", "max");
    for (size, count) in LATENCY {
        let histogram = ping_pong(&client, &server, size, count)?;
        let half = |nanoseconds: u64| nanoseconds as f64 / 2000.0;
        let [p50, p99] = [0.5, 0.99].map(|quantile| half(histogram.value_at_quantile(quantile)));
        println!("{size:>12} {count:>10} {p50:>9.2} {p99:>9.2} {:>9.2}", half(histogram.max()));
    }

    let mut checked: u64 = LATENCY.iter().map(|(size, count)| *size as u64 * u64::from(*count) * 2).sum();
    if qp_type.is_reliable() {
        println!("\nBandwidth: messages of {} KiB", TRANSFER_MESSAGE_BYTES >> 10);
        transfer(&client, &server)?;
        checked += TRANSFER_BYTES as u64 * TRANSFERS * 2;
    }
    let counted = |counter| client.qp.counters().get(counter) + server.qp.counters().get(counter);
    println!("\nAll {checked} bytes are right. {} packets were retransmitted.", counted(Counter::RetransmittedPackets));
    Ok(())
}

/// An end with two buffers to receive into and one to send from.
struct End {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    inbox: MemoryRegion,
    outbox: MemoryRegion,
}

impl End {
    fn open(device: &str, qp_type: QueuePairType) -> Outcome<Self> {
        let context = verbs::open(device)?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(256)?);
        let qp = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().qp_type(qp_type))?;
        let inbox = pd.alloc_mr(2 * LARGEST, AccessFlags::LOCAL_WRITE)?;
        let outbox = pd.alloc_mr(LARGEST, AccessFlags::LOCAL_WRITE)?;
        Ok(Self { pd, cq, qp, inbox, outbox })
    }

    /// Posts the receive for message `number`, which alternates between the two halves of the inbox.
    fn post_receive(&self, number: u32, size: usize) -> Outcome {
        let start = slot(number);
        Ok(self.qp.post_recv(&[ReceiveRequest::new(self.inbox.slice(start..start + size)?)])?)
    }

    /// Polls until a message has arrived, and ignores completions of sends.
    fn receive(&self) -> Outcome<usize> {
        let mut completion = [Completion::default()];
        let mut empty_polls = 0u32;
        let mut since = None;
        loop {
            if self.cq.poll(&mut completion)? == 0 {
                empty_polls += 1;
                if empty_polls.is_multiple_of(1 << 16) {
                    let since = *since.get_or_insert_with(Instant::now);
                    if interrupted() || since.elapsed() > PATIENCE {
                        return Err("no message arrived".into());
                    }
                }
                continue;
            }
            let done = completion[0].result().map_err(|failure| self.qp.explain(&failure))?;
            if done.opcode == CompletionOpcode::Receive {
                return Ok(done.byte_len as usize);
            }
        }
    }
}

fn slot(number: u32) -> usize {
    (number as usize % 2) * LARGEST
}

/// Runs a ping-pong: the client measures; the server sends back each message from its receive buffer, and then checks
/// it.
fn ping_pong(client: &End, server: &End, size: usize, count: u32) -> Outcome<Histogram<u64>> {
    for number in 0..2 {
        server.post_receive(number, size)?;
        client.post_receive(number, size)?;
    }
    std::thread::scope(|scope| {
        let server = scope.spawn(move || serve(server, size, count));
        let histogram = play(client, size, count);
        server.join().map_err(|_| "the server's thread panicked")??;
        histogram
    })
}

fn play(end: &End, size: usize, count: u32) -> Outcome<Histogram<u64>> {
    let mut histogram = Histogram::new(3)?;
    let mut bytes = vec![0; size];
    for number in 0..count {
        fill(&mut bytes, number.into());
        end.outbox.write_at(0, &bytes)?;
        let start = Instant::now();
        post(end, SendRequest::send(end.outbox.slice(..size)?), number)?;
        let received = end.receive()?;
        histogram.record(start.elapsed().as_nanos() as u64)?;
        end.inbox.read_at(slot(number), &mut bytes)?;
        check(&bytes, size, received, number.into())?;
        if number + 2 < count {
            end.post_receive(number, size)?;
        }
    }
    Ok(histogram)
}

fn serve(end: &End, size: usize, count: u32) -> Outcome {
    let mut bytes = vec![0; size];
    for number in 0..count {
        let received = end.receive()?;
        let start = slot(number);
        post(end, SendRequest::send(end.inbox.slice(start..start + size)?), number)?;
        end.inbox.read_at(start, &mut bytes)?;
        check(&bytes, size, received, number.into())?;
        // This may be later than the client's next message: the client sends it as soon as the response arrives, but to
        // the other half.
        if number + 2 < count {
            end.post_receive(number, size)?;
        }
    }
    Ok(())
}

/// Posts a send. Every 16th is signaled, which frees the slots of those before it.
fn post(end: &End, request: SendRequest<'_>, number: u32) -> Outcome {
    let request = if number % 16 == 15 { request.signaled() } else { request };
    Ok(end.qp.post_send(&[request])?)
}

/// Runs WRITEs and READs of a large region, in messages, several at a time.
fn transfer(client: &End, server: &End) -> Outcome {
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let near = client.pd.alloc_mr(TRANSFER_BYTES, AccessFlags::LOCAL_WRITE)?;
    let far = server.pd.alloc_mr(TRANSFER_BYTES, rights)?;
    let mut bytes = vec![0; TRANSFER_BYTES];
    for (name, is_write) in [("WRITE", true), ("READ", false)] {
        let mut seconds = 0.0;
        for round in 0..TRANSFERS {
            let seed = round + if is_write { 1 << 32 } else { 1 << 33 };
            let (from, to) = if is_write { (&near, &far) } else { (&far, &near) };
            fill(&mut bytes, seed);
            from.write_at(0, &bytes)?;
            seconds += move_all(client, &near, &far, is_write)?;
            to.read_at(0, &mut bytes)?;
            check(&bytes, TRANSFER_BYTES, TRANSFER_BYTES, seed)?;
        }
        let rate = (TRANSFER_BYTES as u64 * TRANSFERS) as f64 / seconds;
        println!("{name:>12} {:>9.2} GB/s {:>9.2} Gbit/s", rate / 1e9, rate * 8.0 / 1e9);
    }
    Ok(())
}

fn move_all(client: &End, near: &MemoryRegion, far: &MemoryRegion, is_write: bool) -> Outcome<f64> {
    const AT_A_TIME: usize = 8;
    const COUNT: usize = TRANSFER_BYTES / TRANSFER_MESSAGE_BYTES;
    let remote = far.remote();
    let (mut posted, mut done) = (0, 0);
    let start = Instant::now();
    while done < COUNT {
        while posted < COUNT && posted - done < AT_A_TIME {
            let range = posted * TRANSFER_MESSAGE_BYTES..(posted + 1) * TRANSFER_MESSAGE_BYTES;
            let (here, there) = (near.slice(range.clone())?, remote.slice(range)?);
            let request = match is_write {
                true => SendRequest::write(here, there),
                false => SendRequest::read(here, there),
            };
            client.qp.post_send(&[request.signaled()])?;
            posted += 1;
        }
        let completion = client.cq.wait(PATIENCE)?;
        let success = completion.result().map_err(|failure| client.qp.explain(&failure))?;
        // A late completion of the ping-pong's sends may be first.
        done += usize::from(success.opcode != CompletionOpcode::Send);
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Fills a buffer with bytes that differ from message to message and from offset to offset.
fn fill(bytes: &mut [u8], seed: u64) {
    for (index, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(seed, index as u64).to_le_bytes()[..chunk.len()]);
    }
}

fn check(bytes: &[u8], size: usize, received: usize, seed: u64) -> Outcome {
    if received != size {
        return Err(format!("message {seed}: received {received} bytes instead of {size}").into());
    }
    for (index, chunk) in bytes.chunks(8).enumerate() {
        if chunk != &word(seed, index as u64).to_le_bytes()[..chunk.len()] {
            return Err(format!("message {seed}: the bytes from {} on are wrong", index * 8).into());
        }
    }
    Ok(())
}

fn word(seed: u64, index: u64) -> u64 {
    let mixed = (seed.rotate_left(32) ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}
