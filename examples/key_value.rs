//! A key-value store without a server program: the server provides memory, and clients read and write it with one-sided
//! requests. The server's program takes no part.
//!
//! A slot has a version, a key and a value. The version is odd while a client writes the slot: the client takes the
//! slot with a compare-and-swap, writes key and value, and then the next even version. A reader reads the version, then
//! key and value, then the version again. Requests of a queue pair are executed in order, so equal even versions prove
//! that the slot did not change in between. One READ of all would not: it may read its bytes in any order.
//!
//! `cargo run --example key_value`

use std::error::Error;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::cm::{Connection, ConnectionOptions, ListenerOptions, Route};
use rdma_verbs::verbs::{self, AccessFlags, MemoryRegion, QueuePair, RemoteMemory, SendRequest};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const SLOTS: usize = 1024;
/// Version, key, value: a word each.
const SLOT_BYTES: usize = 24;
const KEYS_OF_EACH: u64 = 100;
const COUNTER: u64 = 1_000_000;
const WAIT: Duration = Duration::from_secs(10);

/// A client's connection, and a buffer: a slot, the version that is read again, the result of an atomic.
struct Client {
    connection: Connection,
    qp: QueuePair,
    buffer: MemoryRegion,
    table: RemoteMemory,
}

impl Client {
    fn connect(server: &str) -> Outcome<Self> {
        let route = Route::to(server)?;
        let (pd, cq) = (route.context().alloc_pd()?, route.context().create_cq(16)?);
        let qp = pd.create_qp(&cq, &cq)?;
        let buffer = pd.alloc_mr(SLOT_BYTES + 16, AccessFlags::LOCAL_WRITE)?;
        let connection = route.connect(&qp, &ConnectionOptions::new())?;
        let table = connection.private_data().first_chunk().ok_or("the server names no table")?;
        Ok(Self { table: RemoteMemory::from_bytes(*table), connection, qp, buffer })
    }

    /// Executes requests in order, and waits for the last one.
    fn execute(&self, requests: &mut [SendRequest<'_>]) -> Outcome<()> {
        if let Some(last) = requests.last_mut() {
            *last = last.signaled();
        }
        self.qp.post_send(requests)?;
        self.qp.send_cq().wait(WAIT)?.result()?;
        Ok(())
    }

    fn word(&self, offset: usize) -> Outcome<u64> {
        let bytes = self.buffer.to_vec(offset..offset + 8)?;
        Ok(u64::from_ne_bytes(bytes.as_slice().try_into()?))
    }

    /// Reads a slot as it was at one moment. Returns its version and its key.
    fn read(&self, slot: RemoteMemory) -> Outcome<(u64, u64)> {
        let again = self.buffer.slice(SLOT_BYTES..SLOT_BYTES + 8)?;
        loop {
            let version = SendRequest::read(self.buffer.slice(..8)?, slot.slice(..8)?);
            let contents = SendRequest::read(self.buffer.slice(8..SLOT_BYTES)?, slot.slice(8..)?);
            self.execute(&mut [version, contents, SendRequest::read(again, slot.slice(..8)?)])?;
            let (version, key) = (self.word(0)?, self.word(8)?);
            if version.is_multiple_of(2) && version == self.word(SLOT_BYTES)? {
                return Ok((version, key));
            }
        }
    }

    /// Finds the slot of a key, or the free slot that it would have. A key of 0 is none.
    fn find(&self, key: u64) -> Outcome<(RemoteMemory, u64, bool)> {
        let first = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        for number in first..first + SLOTS {
            let start = number % SLOTS * SLOT_BYTES;
            let slot = self.table.slice(start..start + SLOT_BYTES)?;
            let (version, found) = self.read(slot)?;
            if found == key || found == 0 {
                return Ok((slot, version, found == key));
            }
        }
        Err("the table is full".into())
    }

    fn get(&self, key: u64) -> Outcome<Option<u64>> {
        let (_, _, exists) = self.find(key)?;
        Ok(if exists { Some(self.word(16)?) } else { None })
    }

    /// Replaces the value of a key, 0 at first, by what `change` makes of it; again if another client was faster.
    fn update(&self, key: u64, change: impl Fn(u64) -> u64) -> Outcome<()> {
        loop {
            let (slot, version, exists) = self.find(key)?;
            let old = if exists { self.word(16)? } else { 0 };
            let result = self.buffer.slice(SLOT_BYTES + 8..)?;
            self.execute(&mut [SendRequest::compare_and_swap(result, slot.slice(..8)?, version, version + 1)])?;
            if self.word(SLOT_BYTES + 8)? == version {
                for (offset, word) in [(0, version + 2), (8, key), (16, change(old))] {
                    self.buffer.write_at(offset, &word.to_ne_bytes())?;
                }
                let contents = SendRequest::write(self.buffer.slice(8..SLOT_BYTES)?, slot.slice(8..)?);
                let release = SendRequest::write(self.buffer.slice(..8)?, slot.slice(..8)?);
                return self.execute(&mut [contents, release]);
            }
        }
    }
}

/// Puts keys of its own, and counts in one that all clients share.
fn work(server: &str, client: u64) -> Outcome<()> {
    let store = Client::connect(server)?;
    for key in (1..=KEYS_OF_EACH).map(|number| client * KEYS_OF_EACH + number) {
        store.update(key, |_| key * key)?;
        store.update(COUNTER, |count| count + 1)?;
        assert_eq!(store.get(key)?, Some(key * key));
    }
    store.connection.disconnect(&store.qp)?;
    Ok(())
}

fn main() -> Outcome<()> {
    let (context, start) = (verbs::open("soft:127.0.0.1")?, Instant::now());
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(1)?);
    let table = pd.alloc_mr(SLOTS * SLOT_BYTES, AccessFlags::REMOTE | AccessFlags::LOCAL_WRITE)?;
    let listener = ListenerOptions::new().on(&context).bind("127.0.0.1:0")?;
    let server = listener.local_addr().to_string();
    let accept = || -> Outcome<_> {
        let request = listener.accept_within(WAIT)?.ok_or("a client does not connect")?;
        let qp = pd.create_qp(&cq, &cq)?;
        Ok((request.accept(&qp, &ConnectionOptions::new().private_data(&table.remote().to_bytes()))?, qp))
    };
    let _ends = std::thread::scope(|scope| {
        let server = &server;
        let clients = [0, 1, 2].map(|client| scope.spawn(move || work(server, client)));
        let ends: Outcome<Vec<_>> = clients.iter().map(|_| accept()).collect();
        // Why a client failed comes first: it may be why it does not connect.
        clients.into_iter().try_for_each(|client| client.join().expect("no client panics"))?;
        ends
    })?;
    let slots = table.to_vec(..)?;
    let slot = slots.chunks(SLOT_BYTES).find(|slot| slot[8..16] == COUNTER.to_ne_bytes()).ok_or("no counter")?;
    let counted = u64::from_ne_bytes(slot[16..].try_into()?);
    assert_eq!(counted, 3 * KEYS_OF_EACH);
    println!("3 clients have put {counted} keys, and counted to {counted}, in {:.0?}", start.elapsed());
    Ok(())
}
