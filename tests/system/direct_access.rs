//! Requests that are executed in the memory of the peer's process: they complete while that process sleeps, and have no
//! effect after the region or the queue pair has ended.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rdma_verbs::provider::soft::SoftOptions;
use rdma_verbs::verbs::{
    self, AccessFlags, CompletionQueue, CompletionStatus, ConnectOptions, Context, Counter, MemoryRegion, Payload,
    ProtectionDomain, QueuePair, QueuePairAttributes, QueuePairOptions, QueuePairState, ReceiveRequest, RemoteMemory,
    SendRequest, SharedMemory,
};
use support::process::{ignored_test, signal};
use support::{PATIENCE, complete_one, poll_one};

use super::shared_memory::Other;

const DEVICE: &str = "RDMA_VERBS_TEST_DEVICE";
/// More than one turn of a queue pair, and not a multiple of pages or words.
const BYTES: usize = 1_300_003;
/// Timeout of 268 ms, so that a peer that is gone is found out soon.
const TIMEOUT: u8 = 16;
const REMOTE: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

struct End {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
}

impl End {
    fn new(context: &Context) -> Self {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
        let qp = Self::queue_pair(&pd, &cq);
        Self { pd, cq, qp }
    }

    fn queue_pair(pd: &ProtectionDomain, cq: &CompletionQueue) -> QueuePair {
        let qp = pd.create_qp_with(cq, cq, &QueuePairOptions::default().sq_sig_all()).unwrap();
        qp.init().unwrap();
        qp
    }
}

fn open(device: &str) -> Context {
    verbs::open_soft(device, &SoftOptions::new().shared_memory(SharedMemory::Auto)).unwrap()
}

/// Not a test: the other process. It connects a queue pair, tells its region, and waits for orders on the connection.
/// Between them it sleeps.
#[test]
#[ignore = "started by the other tests"]
fn process() {
    let Ok(device) = std::env::var(DEVICE) else { return };
    let context = open(&device);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("\nlistening {}", listener.local_addr().unwrap());
    loop {
        let end = End::new(&context);
        let (remote, mut stream) = end.qp.connection_info().unwrap().accept_tcp(&listener, PATIENCE).unwrap();
        stream.set_read_timeout(None).unwrap();
        end.qp.connect_with(&remote, &ConnectOptions::default().timeout(TIMEOUT)).unwrap();
        let mut region = end.pd.alloc_mr(BYTES, REMOTE).unwrap();
        loop {
            stream.write_all(&region.remote().to_bytes()).unwrap();
            let mut order = [0];
            if stream.read_exact(&mut order).is_err() {
                break;
            }
            match order[0] {
                b'c' => stream.write_all(&region.to_vec(..).unwrap()).unwrap(),
                b'd' => region = registered_again(&end.pd, region),
                b'p' => end.qp.post_recv(&[ReceiveRequest::new(region.slice(..).unwrap())]).unwrap(),
                b'r' => {
                    let read_only = QueuePairAttributes::default().qp_access_flags(AccessFlags::REMOTE_READ);
                    end.qp.modify(&read_only).unwrap();
                }
                b'e' => {
                    let error = QueuePairAttributes::default().qp_state(QueuePairState::Error);
                    end.qp.modify(&error).unwrap();
                }
                b'w' => {
                    let last = write_until_refused(&end, receive_target(&stream));
                    stream.write_all(&[last]).unwrap();
                }
                other => panic!("order {other}"),
            }
        }
    }
}

/// Fills a region of the other process with one value after another until it is refused. Returns the last value that
/// was written.
fn write_until_refused(end: &End, target: RemoteMemory) -> u8 {
    let memory = end.pd.alloc_mr(target.len() as usize, AccessFlags::LOCAL_WRITE).unwrap();
    for value in (0..=u8::MAX).cycle() {
        memory.write_at(0, &vec![value; target.len() as usize]).unwrap();
        end.qp.post_send(&[SendRequest::write(Payload::from(memory.slice(..).unwrap()), target)]).unwrap();
        let completion = loop {
            if let Some(completion) = poll_one(&end.cq) {
                break completion;
            }
        };
        if completion.result().is_err() {
            return value.wrapping_sub(1);
        }
    }
    unreachable!("the values are repeated");
}

/// Deregisters the region, checks that its bytes do not change any more, and registers them again.
fn registered_again(pd: &ProtectionDomain, region: MemoryRegion) -> MemoryRegion {
    let memory = region.dereg().unwrap();
    let local = pd.reg_mr(memory, AccessFlags::LOCAL_WRITE).unwrap();
    let bytes = local.to_vec(..).unwrap();
    std::thread::sleep(Duration::from_micros(200));
    assert!(local.to_vec(..).unwrap() == bytes, "the bytes of a deregistered region have changed");
    let fresh = pd.alloc_mr(BYTES, REMOTE).unwrap();
    fresh.write_at(0, &bytes).unwrap();
    fresh
}

/// Starts the other process.
fn start(device: &str) -> Other {
    let mut command = ignored_test(concat!(module_path!(), "::process"));
    command.env(DEVICE, device);
    Other::spawn(command)
}

fn connect(other: &Other, context: &Context) -> Connected {
    let end = End::new(context);
    let memory = end.pd.alloc_mr(BYTES, AccessFlags::LOCAL_WRITE).unwrap();
    let (remote, stream) = end.qp.connection_info().unwrap().connect_tcp(&other.address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    end.qp.connect_with(&remote, &ConnectOptions::default().timeout(TIMEOUT)).unwrap();
    let target = receive_target(&stream);
    Connected { end, memory, stream, target }
}

fn receive_target(mut stream: &TcpStream) -> RemoteMemory {
    let mut bytes = [0; RemoteMemory::ENCODED_BYTES];
    stream.read_exact(&mut bytes).unwrap();
    RemoteMemory::from_bytes(bytes)
}

struct Connected {
    end: End,
    memory: MemoryRegion,
    stream: TcpStream,
    target: RemoteMemory,
}

impl Connected {
    fn post(&self, request: SendRequest<'_>) {
        self.end.qp.post_send(&[request]).unwrap();
    }

    fn run(&self, request: SendRequest<'_>) {
        self.post(request);
        complete_one(&self.end.cq, &self.end.qp);
    }

    /// The status of a request, and whether it was executed directly.
    fn status(&self, request: SendRequest<'_>) -> CompletionStatus {
        self.post(request);
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(completion) = poll_one(&self.end.cq) {
                return completion.result().map_or_else(|error| error.status, |_| CompletionStatus::Success);
            }
            assert!(Instant::now() < end, "no completion");
        }
    }

    fn write(&self) -> SendRequest<'_> {
        SendRequest::write(Payload::from(self.memory.slice(..).unwrap()), self.target)
    }

    fn directly(&self) -> u64 {
        self.end.qp.counters().get(Counter::DirectRequests)
    }

    fn read(&self) -> SendRequest<'_> {
        SendRequest::read(self.memory.slice(..).unwrap(), self.target)
    }

    /// Writes until a request is executed directly.
    fn await_direct(&self) {
        self.repeat_until_direct(self.write());
    }

    fn repeat_until_direct(&self, request: SendRequest<'_>) {
        let (before, end) = (self.directly(), Instant::now() + PATIENCE);
        while self.directly() == before {
            assert!(Instant::now() < end, "nothing is executed directly");
            self.run(request);
        }
    }

    /// Gives an order, and takes what precedes the next region.
    fn order(&mut self, order: u8, bytes: usize) -> Vec<u8> {
        self.stream.write_all(&[order]).unwrap();
        let mut answer = vec![0; bytes];
        self.stream.read_exact(&mut answer).unwrap();
        self.target = receive_target(&self.stream);
        answer
    }

    fn fill(&self, seed: usize) -> Vec<u8> {
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at / 7 + at * seed) as u8).collect();
        self.memory.write_at(0, &bytes).unwrap();
        bytes
    }
}

#[test]
fn requests_complete_while_the_peer_sleeps() {
    let (context, other) = (open("soft:127.62.28.1"), start("soft:127.62.28.2"));
    let mut connected = connect(&other, &context);
    connected.await_direct();
    let before = connected.directly();
    let bytes = connected.fill(3);
    signal(other.child.id(), "-STOP");
    connected.run(connected.write());
    // Single bytes at the ends, and an empty WRITE.
    for (place, value) in [(0, 77), (BYTES - 1, 99)] {
        let target = connected.target.slice(place..=place).unwrap();
        connected.run(SendRequest::write(Payload::inline(&[value]), target));
    }
    let word = connected.target.slice(8..16).unwrap();
    let result = || connected.memory.slice(..8).unwrap();
    connected.run(SendRequest::fetch_and_add(result(), word, 5));
    let read = u64::from_ne_bytes(connected.memory.to_vec(..8).unwrap().try_into().unwrap());
    assert_eq!(read, u64::from_ne_bytes(bytes[8..16].try_into().unwrap()));
    connected.run(SendRequest::compare_and_swap(result(), word, read.wrapping_add(5), 1234));
    connected.run(SendRequest::compare_and_swap(result(), word, 0, 7));
    assert_eq!(connected.memory.load_acquire_u64(0).unwrap(), 1234);
    let mut expected = bytes;
    (expected[0], expected[BYTES - 1]) = (77, 99);
    expected[8..16].copy_from_slice(&1234u64.to_ne_bytes());
    connected.fill(9);
    connected.run(connected.read());
    assert!(connected.memory.to_vec(..).unwrap() == expected, "READ returned other bytes");
    assert_eq!(connected.directly() - before, 7);
    signal(other.child.id(), "-CONT");
    assert!(connected.order(b'c', BYTES) == expected, "the peer has other bytes");
}

#[test]
fn a_deregistered_region_is_out_of_reach() {
    let (context, other) = (open("soft:127.62.29.1"), start("soft:127.62.29.2"));
    for round in 1..4 {
        let mut connected = connect(&other, &context);
        connected.await_direct();
        let expected = connected.fill(round);
        connected.run(connected.write());
        let old = connected.target;
        connected.order(b'd', 0);
        connected.fill(round + 50);
        let write = SendRequest::write(Payload::from(connected.memory.slice(..).unwrap()), old);
        assert_eq!(connected.status(write), CompletionStatus::RemoteAccessError);
        assert!(connected.order(b'c', BYTES) == expected, "the bytes were lost");
    }
}

#[test]
fn a_queue_pair_in_error_is_out_of_reach() {
    let (context, other) = (open("soft:127.62.30.1"), start("soft:127.62.30.2"));
    let mut connected = connect(&other, &context);
    connected.await_direct();
    let expected = connected.fill(1);
    connected.run(connected.write());
    connected.order(b'e', 0);
    connected.fill(2);
    assert_ne!(connected.status(connected.write()), CompletionStatus::Success);
    assert!(connected.order(b'c', BYTES) == expected, "a queue pair in error has written");
}

/// Connects a queue pair of one device to one of another, or of the same.
fn connect_own(contexts: &[Context; 2]) -> [End; 2] {
    let ends = contexts.each_ref().map(End::new);
    let infos = ends.each_ref().map(|end| end.qp.connection_info().unwrap());
    ends[0].qp.connect(&infos[1]).unwrap();
    ends[1].qp.connect(&infos[0]).unwrap();
    ends
}

/// Writes these bytes, and checks that they are there. Returns whether the request was executed directly.
fn write_own(end: &End, memory: &MemoryRegion, target: &MemoryRegion, value: u8) -> bool {
    let (bytes, before) = (vec![value; memory.len()], end.qp.counters().get(Counter::DirectRequests));
    memory.write_at(0, &bytes).unwrap();
    let payload = Payload::from(memory.slice(..).unwrap());
    end.qp.post_send(&[SendRequest::write(payload, target.remote())]).unwrap();
    complete_one(&end.cq, &end.qp);
    assert!(target.to_vec(..).unwrap() == bytes, "a part of the memory is not {value}");
    end.qp.counters().get(Counter::DirectRequests) > before
}

/// Two devices of one process, and two queue pairs of one device.
#[test]
fn a_process_accesses_its_own_memory_directly() {
    for addresses in [[1, 2], [3, 3]] {
        let contexts = addresses.map(|number| open(&format!("soft:127.62.39.{number}")));
        let ends = connect_own(&contexts);
        let target = ends[1].pd.alloc_mr(BYTES, REMOTE).unwrap();
        let memory = ends[0].pd.alloc_mr(BYTES, AccessFlags::LOCAL_WRITE).unwrap();
        let (mut value, end) = (0u8, Instant::now() + PATIENCE);
        while !write_own(&ends[0], &memory, &target, value) {
            value = value.wrapping_add(1);
            assert!(Instant::now() < end, "{addresses:?}: nothing is executed directly");
        }
    }
}

/// The peer's queue pair permits less from now on.
#[test]
fn changed_access_flags_hold() {
    let (context, other) = (open("soft:127.62.36.1"), start("soft:127.62.36.2"));
    let mut connected = connect(&other, &context);
    connected.await_direct();
    let expected = connected.fill(1);
    connected.run(connected.write());
    connected.order(b'r', 0);
    connected.repeat_until_direct(connected.read());
    connected.fill(2);
    assert_eq!(connected.status(connected.write()), CompletionStatus::RemoteInvalidRequestError);
    assert!(connected.order(b'c', BYTES) == expected, "a queue pair that permits READs has been written through");
}

/// A SEND goes in packets. The WRITE behind it waits for it, although it could be executed at once.
#[test]
fn no_request_overtakes_another_one() {
    let (context, other) = (open("soft:127.62.37.1"), start("soft:127.62.37.2"));
    let mut connected = connect(&other, &context);
    let last = connected.end.pd.alloc_mr(BYTES, AccessFlags::LOCAL_WRITE).unwrap();
    for round in 0..5 {
        connected.await_direct();
        let expected = connected.fill(2 * round + 1);
        last.write_at(0, &expected).unwrap();
        connected.fill(2 * round + 2);
        // It arrives in the region that is written.
        connected.order(b'p', 0);
        let send = SendRequest::send(Payload::from(connected.memory.slice(..).unwrap()));
        let write = SendRequest::write(Payload::from(last.slice(..).unwrap()), connected.target);
        connected.end.qp.post_send(&[send, write]).unwrap();
        (0..2).for_each(|_| complete_one(&connected.end.cq, &connected.end.qp));
        assert!(connected.order(b'c', BYTES) == expected, "round {round}: the SEND came last");
    }
}

/// Its memory is still mapped, but its queue pair has ended.
#[test]
fn a_dead_process_is_out_of_reach() {
    let (context, other) = (open("soft:127.62.38.1"), start("soft:127.62.38.2"));
    let connected = connect(&other, &context);
    connected.await_direct();
    signal(other.child.id(), "-KILL");
    let end = Instant::now() + PATIENCE;
    let status = loop {
        match connected.status(connected.write()) {
            CompletionStatus::Success => assert!(Instant::now() < end, "the dead process is written to"),
            status => break status,
        }
    };
    assert_eq!(status, CompletionStatus::RetryExceededError);
}

/// A WRITE that takes the whole turn of its queue pair, and the atomic behind it. An atomic is first, so that all are
/// executed in one turn.
#[test]
fn an_atomic_after_a_long_write_is_executed_once() {
    const TURN: usize = 1 << 20;
    let (context, other) = (open("soft:127.62.34.1"), start("soft:127.62.34.2"));
    let mut connected = connect(&other, &context);
    connected.await_direct();
    connected.fill(1);
    connected.run(connected.write());
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes[TURN..TURN + 8].try_into().unwrap());
    let (before, direct) = (word(&connected.order(b'c', BYTES)), connected.directly());
    let long = connected.memory.slice(..TURN).unwrap();
    let write = SendRequest::write(Payload::from(long), connected.target.slice(..TURN).unwrap());
    let result = connected.memory.slice(TURN..TURN + 8).unwrap();
    let add = SendRequest::fetch_and_add(result, connected.target.slice(TURN..TURN + 8).unwrap(), 1);
    for _ in 0..10 {
        connected.end.qp.post_send(&[add, write, add]).unwrap();
        (0..3).for_each(|_| complete_one(&connected.end.cq, &connected.end.qp));
    }
    assert_eq!(connected.directly() - direct, 30);
    assert_eq!(word(&connected.order(b'c', BYTES)).wrapping_sub(before), 20);
}

/// Bounds are the peer's to refuse.
#[test]
fn forbidden_accesses_are_refused() {
    let (context, other) = (open("soft:127.62.31.1"), start("soft:127.62.31.2"));
    type Forbid = fn(RemoteMemory) -> RemoteMemory;
    let outside: [Forbid; 3] = [
        |target| RemoteMemory::new(target.addr() + 1, target.rkey(), target.len()),
        |target| RemoteMemory::new(target.addr() - 1, target.rkey(), target.len()),
        |target| RemoteMemory::new(u64::MAX - 3, target.rkey(), target.len()),
    ];
    for forbid in outside {
        let mut connected = connect(&other, &context);
        connected.await_direct();
        let bytes = connected.fill(1);
        connected.run(connected.write());
        connected.fill(2);
        let write = SendRequest::write(Payload::from(connected.memory.slice(..).unwrap()), forbid(connected.target));
        assert_eq!(connected.status(write), CompletionStatus::RemoteAccessError);
        assert!(connected.order(b'c', BYTES) == bytes);
    }
}

/// A process is stopped while it writes, in many rounds in the middle of a copy: of a part of a request, or of a whole
/// one. The owner of the memory does not wait for it, its bytes do not change any more when that process continues, and
/// no WRITE is reported as complete that is not.
#[test]
fn a_stopped_writer_delays_no_deregistration() {
    let (context, other) = (open("soft:127.62.33.1"), start("soft:127.62.33.2"));
    for round in 0..40 {
        let mut connected = connect(&other, &context);
        let length = if round % 2 == 0 { 4 << 20 } else { 256 << 10 };
        let region = connected.end.pd.alloc_mr(length, REMOTE).unwrap();
        connected.stream.write_all(b"w").unwrap();
        connected.stream.write_all(&region.remote().to_bytes()).unwrap();
        let (received, end) = (|| context.counters().get(Counter::SharedMemoryReceives), Instant::now() + PATIENCE);
        // Until its packets become direct accesses: nothing arrives, and the bytes change.
        let mut before = u64::MAX;
        while std::mem::replace(&mut before, received()) != before || region.load_acquire_u8(9).unwrap() == 0 {
            assert!(Instant::now() < end, "the other process writes packets only");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_micros(round * 53));
        signal(other.child.id(), "-STOP");
        let begun = Instant::now();
        let memory = region.dereg().unwrap();
        assert!(begun.elapsed() < PATIENCE / 2, "it took {:?}", begun.elapsed());
        let local = connected.end.pd.reg_mr(memory, AccessFlags::LOCAL_WRITE).unwrap();
        let bytes = local.to_vec(..).unwrap();
        signal(other.child.id(), "-CONT");
        let mut last = [0];
        connected.stream.read_exact(&mut last).unwrap();
        connected.target = receive_target(&connected.stream);
        assert!(local.to_vec(..).unwrap() == bytes, "a process writes after the end of the region");
        let is_lost = |byte: &&u8| ![last[0], last[0].wrapping_add(1)].contains(byte);
        let lost = bytes.iter().find(is_lost);
        assert_eq!(lost, None, "round {round}: {} was written, but not everywhere", last[0]);
    }
}

/// Regions end at random moments of a stream of WRITEs.
#[test]
fn revocations_during_accesses_leave_no_byte_behind() {
    let (context, other) = (open("soft:127.62.32.1"), start("soft:127.62.32.2"));
    let (mut directly, mut refused) = (0, 0);
    for round in 0..40 {
        let mut connected = connect(&other, &context);
        connected.await_direct();
        let mut orders = connected.stream.try_clone().unwrap();
        let owner = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(2_000 + round * 37));
            orders.write_all(b"d").unwrap();
        });
        let end = Instant::now() + PATIENCE;
        for turn in 0.. {
            connected.memory.store_release_u8(BYTES / 2, turn as u8).unwrap();
            let status = connected.status(connected.write());
            if status != CompletionStatus::Success {
                assert_eq!(status, CompletionStatus::RemoteAccessError);
                refused += 1;
                break;
            }
            assert!(Instant::now() < end, "the region is never revoked");
        }
        owner.join().unwrap();
        directly += connected.directly();
        connected.target = receive_target(&connected.stream);
    }
    assert_eq!(refused, 40);
    assert!(directly > 80, "{directly} requests were executed directly");
}
