//! A log in the memory of one process, to which others append with one-sided requests.
//!
//! An appender takes the next entry with a fetch-and-add on the tail, writes its text, and then the entry's length,
//! which was 0. The owner of the log reads the entries in order, and stops at one that is not complete: the length is
//! placed after the text, because requests of a queue pair are executed in order.
//!
//! `cargo run --example remote_log`

use std::error::Error;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::cm::{ConnectionOptions, Listener, ListenerOptions, Route};
use rdma_verbs::verbs::{self, AccessFlags, MemoryRegion, RemoteMemory, SendRequest};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const APPENDERS: usize = 3;
const ENTRIES_OF_EACH: usize = 500;
/// The tail has a line of its own.
const HEADER_BYTES: usize = 64;
/// A word for the length, and the text.
const ENTRY_BYTES: usize = 64;
const TEXT_BYTES: usize = ENTRY_BYTES - 8;
const ENTRIES: usize = APPENDERS * ENTRIES_OF_EACH;
const WAIT: Duration = Duration::from_secs(10);

/// Appends entries over a connection of its own.
fn append_all(server: &str, name: usize) -> Outcome<()> {
    let route = Route::to(server)?;
    let (pd, cq) = (route.context().alloc_pd()?, route.context().create_cq(4)?);
    let qp = pd.create_qp(&cq, &cq)?;
    let buffer = pd.alloc_mr(8 + ENTRY_BYTES, AccessFlags::LOCAL_WRITE)?;
    let connection = route.connect(&qp, &ConnectionOptions::new())?;
    let log = RemoteMemory::from_bytes(*connection.private_data().first_chunk().ok_or("the server names no log")?);
    let index = buffer.slice(..8)?;
    for number in 0..ENTRIES_OF_EACH {
        qp.post_send(&[SendRequest::fetch_and_add(index, log.slice(..8)?, 1).signaled()])?;
        cq.wait(WAIT)?.result()?;
        let taken = u64::from_ne_bytes(buffer.to_vec(..8)?.as_slice().try_into()?) as usize;
        let start = HEADER_BYTES + taken * ENTRY_BYTES;
        let text = format!("entry {number} of appender {name}");
        buffer.write_at(8, &(text.len() as u64).to_ne_bytes())?;
        buffer.write_at(16, text.as_bytes())?;
        qp.post_send(&[
            SendRequest::write(buffer.slice(16..16 + text.len())?, log.slice(start + 8..start + ENTRY_BYTES)?),
            SendRequest::write(buffer.slice(8..16)?, log.slice(start..start + 8)?).signaled(),
        ])?;
        cq.wait(WAIT)?.result()?;
    }
    connection.disconnect(&qp)?;
    Ok(())
}

/// Accepts the appenders. The queue pairs only need to exist: no thread of this process handles a request.
fn accept_all(listener: &Listener, log: &MemoryRegion) -> Outcome<Vec<verbs::QueuePair>> {
    let pd = log.protection_domain();
    let cq = pd.context().create_cq(1)?;
    let mut queue_pairs = Vec::new();
    for _ in 0..APPENDERS {
        let request = listener.accept_within(WAIT)?.ok_or("an appender does not connect")?;
        let qp = pd.create_qp(&cq, &cq)?;
        let options = ConnectionOptions::new().private_data(&log.remote().to_bytes());
        request.accept(&qp, &options)?;
        queue_pairs.push(qp);
    }
    Ok(queue_pairs)
}

/// Reads an entry when it is complete.
fn read_entry(log: &MemoryRegion, index: usize) -> Outcome<String> {
    let start = HEADER_BYTES + index * ENTRY_BYTES;
    let end = Instant::now() + WAIT;
    loop {
        match log.load_acquire_u64(start)? as usize {
            0 if Instant::now() > end => return Err(format!("entry {index} is not written").into()),
            0 => std::thread::yield_now(),
            length => return Ok(String::from_utf8(log.to_vec(start + 8..start + 8 + length.min(TEXT_BYTES))?)?),
        }
    }
}

/// Reads all entries. Returns how many each appender has written.
fn read_all(log: &MemoryRegion) -> Outcome<[usize; APPENDERS]> {
    let mut counts = [0; APPENDERS];
    for index in 0..ENTRIES {
        let text = read_entry(log, index)?;
        let name: usize = text.rsplit(' ').next().ok_or("an empty entry")?.parse()?;
        // The entries of each appender are in its order.
        assert_eq!(text, format!("entry {} of appender {name}", counts[name]));
        counts[name] += 1;
    }
    Ok(counts)
}

fn main() -> Outcome<()> {
    let context = verbs::open("soft:127.0.0.1")?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let log = context.alloc_pd()?.alloc_mr(HEADER_BYTES + ENTRIES * ENTRY_BYTES, access)?;
    let listener = ListenerOptions::new().on(&context).bind("127.0.0.1:0")?;
    let server = listener.local_addr().to_string();
    let (counts, _queue_pairs) = std::thread::scope(|scope| {
        let server = &server;
        let appenders = [0, 1, 2].map(|name| scope.spawn(move || append_all(server, name)));
        let read = accept_all(&listener, &log).and_then(|queue_pairs| Ok((read_all(&log)?, queue_pairs)));
        // Why an appender failed comes first: it may be why it does not connect, or an entry is missing.
        appenders.into_iter().try_for_each(|appender| appender.join().expect("no appender panics"))?;
        read
    })?;
    println!("{ENTRIES} entries of {APPENDERS} appenders, {counts:?}; the last: {}", read_entry(&log, ENTRIES - 1)?);
    Ok(())
}
