//! Ring all-reduce: each of four processes has a vector, and gets the sum of all four.
//!
//! The processes form a ring, and vectors have four parts. In three steps, each process sends a part to the next one,
//! which adds it to its own; then each has the sum of one part. In three more steps the sums travel around the ring.
//! The optimum is the time of these bytes alone, without additions and without waits between the steps.
//!
//! `cargo run --release --example all_reduce`

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdma_verbs::verbs::cm::{Connection, ConnectionOptions, ListenerOptions, Route};
use rdma_verbs::verbs::{self, AccessFlags, MemoryRegion, QueuePair, ReceiveRequest};
use rdma_verbs::verbs::{QueuePairOptions, RemoteMemory, SendRequest};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const RANKS: usize = 4;
const FLOATS: usize = 1 << 20;
const PART_BYTES: usize = FLOATS / RANKS * 4;
const STEPS: usize = 2 * (RANKS - 1);
const ROUNDS: usize = 9;
const WAIT: Duration = Duration::from_secs(30);

/// A process. Its memory is the vector, and a part for each step in which it adds.
struct Rank {
    number: usize,
    memory: MemoryRegion,
    next_memory: RemoteMemory,
    to_next: QueuePair,
    from_previous: QueuePair,
    _connections: [Connection; 2],
}

impl Rank {
    fn join(number: usize) -> Outcome<Self> {
        let context = verbs::open("soft:127.0.0.1")?;
        let (pd, sent, arrived) = (context.alloc_pd()?, context.create_cq(64)?, context.create_cq(64)?);
        let memory = pd.alloc_mr((2 * RANKS - 1) * PART_BYTES, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
        let options = QueuePairOptions::default().max_recv_wr(4 * STEPS as u32);
        let from_previous = pd.create_qp_with(&arrived, &arrived, &options)?;
        from_previous.init()?;
        (0..4 * STEPS).try_for_each(|_| from_previous.post_recv(&[ReceiveRequest::new(memory.slice(..0)?)]))?;
        let listener = ListenerOptions::new().on(&context).bind("127.0.0.1:0")?;
        println!("{}", listener.local_addr());
        let next = std::io::stdin().lines().next().ok_or("no address")??;
        let to_next = pd.create_qp(&sent, &sent)?;
        let own = ConnectionOptions::new().private_data(&memory.remote().to_bytes());
        let connections = std::thread::scope(|scope| {
            let previous = scope.spawn(|| Outcome::Ok(listener.accept()?.accept(&from_previous, &own)?));
            let next = Route::on(&context, &*next)?.connect(&to_next, &ConnectionOptions::new())?;
            Outcome::Ok([next, previous.join().expect("the listener does not panic")?])
        })?;
        let named = connections[0].private_data().first_chunk().ok_or("the next process names no memory")?;
        let next_memory = RemoteMemory::from_bytes(*named);
        Ok(Self { number, memory, next_memory, to_next, from_previous, _connections: connections })
    }

    /// Sends a part of this process's memory to a place in the next one's.
    fn send(&self, from: usize, to: usize) -> Outcome<()> {
        let (from, to) = (from * PART_BYTES, to * PART_BYTES);
        let (part, place) = (self.memory.slice(from..from + PART_BYTES)?, self.next_memory.slice(to..to + PART_BYTES)?);
        Ok(self.to_next.post_send(&[SendRequest::write_with_immediate(part, place, 0).signaled()])?)
    }

    /// Waits for a part of the previous process, and until one that was sent has arrived.
    fn wait(&self) -> Outcome<()> {
        self.from_previous.recv_cq().wait(WAIT)?.result()?;
        self.from_previous.post_recv(&[ReceiveRequest::new(self.memory.slice(..0)?)])?;
        Ok(self.to_next.send_cq().wait(WAIT)?.result().map(|_| ())?)
    }

    fn floats(&self, part: usize) -> Outcome<Vec<f32>> {
        let bytes = self.memory.to_vec(part * PART_BYTES..(part + 1) * PART_BYTES)?;
        Ok(bytes.as_chunks().0.iter().map(|float| f32::from_ne_bytes(*float)).collect())
    }

    fn set_floats(&self, part: usize, floats: impl Iterator<Item = f32>) -> Outcome<()> {
        let bytes: Vec<u8> = floats.flat_map(f32::to_ne_bytes).collect();
        Ok(self.memory.write_at(part * PART_BYTES, &bytes)?)
    }

    fn all_reduce(&self) -> Outcome<()> {
        for step in 0..RANKS - 1 {
            let part = (self.number + RANKS - step) % RANKS;
            self.send(part, RANKS + step)?;
            self.wait()?;
            let part = (part + RANKS - 1) % RANKS;
            let sums = self.floats(part)?.into_iter().zip(self.floats(RANKS + step)?).map(|(own, other)| own + other);
            self.set_floats(part, sums)?;
        }
        (0..RANKS - 1).map(|step| (self.number + 1 + RANKS - step) % RANKS).try_for_each(|part| {
            self.send(part, part)?;
            self.wait()
        })
    }

    /// Sends as many bytes, all at once.
    fn only_send(&self) -> Outcome<()> {
        (0..STEPS).try_for_each(|step| self.send(0, RANKS + step % (RANKS - 1)))?;
        (0..STEPS).try_for_each(|_| self.wait())
    }

    /// Reduces and sends in turns. Returns the median times of both.
    fn run(&self) -> Outcome<[Duration; 2]> {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for part in 0..RANKS {
                self.set_floats(part, (0..FLOATS / RANKS).map(|at| (at % 1_000 * (self.number + 1)) as f32))?;
            }
            let start = Instant::now();
            self.all_reduce()?;
            times[0].push(start.elapsed());
            let sums = (0..RANKS).map(|part| self.floats(part)).collect::<Outcome<Vec<_>>>()?;
            assert!(sums.iter().all(|part| part.iter().enumerate().all(|(at, sum)| *sum == (at % 1_000 * 10) as f32)));
            let start = Instant::now();
            self.only_send()?;
            times[1].push(start.elapsed());
        }
        times.iter_mut().for_each(|times| times.sort());
        Ok(times.map(|times| times[ROUNDS / 2]))
    }
}

fn main() -> Outcome<()> {
    if let Some(number) = std::env::args().nth(1) {
        let [reduced, sent] = Rank::join(number.parse()?)?.run()?;
        let ratio = reduced.div_duration_f64(sent);
        println!("{RANKS} vectors of {FLOATS} floats in {reduced:.1?}, {ratio:.1} times the optimum of {sent:.1?}");
        return Ok(());
    }
    let (mut ranks, mut outputs, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..RANKS {
        let mut command = Command::new(std::env::current_exe()?);
        let mut rank = command.arg(number.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(rank.stdout.take().ok_or("no output")?).lines();
        addresses.push(lines.next().ok_or("a process has failed")??);
        ranks.push(rank);
        outputs.push(lines);
    }
    for (number, rank) in ranks.iter().enumerate() {
        writeln!(rank.stdin.as_ref().ok_or("no input")?, "{}", addresses[(number + 1) % RANKS])?;
    }
    let results = outputs.iter_mut().map(|lines| Ok(lines.next().ok_or("a process has failed")??));
    println!("{}", results.collect::<Outcome<Vec<String>>>()?[0]);
    ranks.iter_mut().try_for_each(|rank| Ok(rank.wait().map(|_| ())?))
}
