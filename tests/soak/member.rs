//! A process: one end of many connections. It reads commands from its standard input and writes reports to its standard
//! output; the parent passes on the messages between two members.
//!
//! | command | action and report |
//! |---|---|
//! | `link PEER` | resets connections to it; reports `infos PEER REMOTE UD-INFO INFO…` |
//! | `go PEER REMOTE UD-INFO INFO…` | connects, and starts |
//! | `cut PEER` | the peer is gone: failures are expected |
//! | `explain PEER NUMBER` | reports `end …`: the state of this end of a connection whose other end failed |
//! | `holdings` | reports `holdings JSON` |
//! | `stop` | starts nothing more; reports `idle COUNTS` when all operations have ended |
//! | `end` | exits |

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use rdma_verbs::verbs::{
    self, AccessFlags, AddressHandle, AddressVector, Completion, CompletionChannel, CompletionQueue,
    CompletionQueueOptions, ConnectionInfo, Context, Counter, ErrorKind, MemoryRegion, Notify, Qkey, Qpn, QueuePair,
    QueuePairOptions, QueuePairType, ReceiveRequest, RemoteMemory, SendRequest,
};

use super::Arguments;
use super::connection::{Connection, SLOT};
use super::holdings::Holdings;

type Failure = Box<dyn std::error::Error>;

const ALL: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::LOCAL_WRITE);
const QKEY: Qkey = Qkey(0x1122);
/// First work request identifier of datagrams.
const DATAGRAM: u64 = 1 << 40;
const DATAGRAM_BYTES: usize = 256;
const ROUTE_HEADER_BYTES: usize = 40;
const DATAGRAM_RECEIVES: usize = 32;
const DATAGRAM_SLOT: usize = ROUTE_HEADER_BYTES + DATAGRAM_BYTES;
/// A failure is the peer's fault if the parent reports within this time that the peer was killed.
const EXCUSE: Duration = Duration::from_secs(10);
const BETWEEN_DATAGRAMS: Duration = Duration::from_millis(2);
const NAP: Duration = Duration::from_millis(5);
/// 0.5 s, for eight tries: longer than any process is stopped.
const TIMEOUT: u8 = 17;

/// The work done so far.
#[derive(Default)]
struct Counts {
    operations: u64,
    messages: u64,
    datagrams_sent: u64,
    datagrams: u64,
    errors: u64,
}

struct Member {
    own: usize,
    of_pair: usize,
    is_standard: bool,
    context: Context,
    channel: CompletionChannel,
    cq: CompletionQueue,
    region: MemoryRegion,
    connections: Vec<Connection>,
    datagrams: QueuePair,
    datagram_region: MemoryRegion,
    targets: BTreeMap<usize, (AddressHandle, Qpn)>,
    next_target: usize,
    is_sending: bool,
    last_datagram: Instant,
    suspects: Vec<(usize, Instant, String)>,
    counts: Counts,
    is_stopping: bool,
}

/// Runs the process until it gets the command to end, or its parent is gone.
pub(crate) fn run(arguments: &Arguments, own: usize) -> ExitCode {
    match Member::new(arguments, own).and_then(Member::serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error process {own}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn report(line: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>, Failure> {
    let digits = |at: usize| text.get(at..at + 2).ok_or("an odd number of digits");
    (0..text.len()).step_by(2).map(|at| Ok(u8::from_str_radix(digits(at)?, 16)?)).collect()
}

fn commands() -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

impl Member {
    fn new(arguments: &Arguments, own: usize) -> Result<Self, Failure> {
        let (members, of_pair) = (arguments.processes as usize, arguments.connections_of_pair());
        let count = (members - 1) * of_pair;
        let context = verbs::open(&format!("soft:{}", arguments.address_of(own as u32)))?;
        let channel = context.create_comp_channel()?;
        let pd = context.alloc_pd()?;
        let cq = context
            .create_cq_with((count * 8 + 256) as u32, &CompletionQueueOptions::default().channel(&channel, 0))?;
        let region = pd.alloc_mr(count * SLOT, ALL)?;
        let mut connections = Vec::new();
        for peer in (0..members).filter(|peer| *peer != own) {
            for number in 0..of_pair {
                let qp = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().max_send_wr(2).max_recv_wr(4))?;
                connections.push(Connection::new(connections.len(), peer, number, own < peer, qp));
            }
        }
        let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(QKEY);
        let datagrams = pd.create_qp_with(&cq, &cq, &options.max_recv_wr(DATAGRAM_RECEIVES as u32))?;
        let datagram_region = pd.alloc_mr((DATAGRAM_RECEIVES + 1) * DATAGRAM_SLOT, AccessFlags::LOCAL_WRITE)?;
        let member = Self {
            own,
            of_pair,
            is_standard: arguments.standard,
            context,
            channel,
            cq,
            region,
            connections,
            datagrams,
            datagram_region,
            targets: BTreeMap::new(),
            next_target: 0,
            is_sending: false,
            last_datagram: Instant::now(),
            suspects: Vec::new(),
            counts: Counts::default(),
            is_stopping: false,
        };
        member.datagrams.bring_up_ud()?;
        (0..DATAGRAM_RECEIVES).try_for_each(|slot| member.receive_datagram(slot))?;
        report("ready")?;
        Ok(member)
    }

    fn serve(mut self) -> Result<(), Failure> {
        let commands = commands();
        let mut completions = [Completion::default(); 64];
        loop {
            match commands.try_recv() {
                Ok(command) if command == "end" => return Ok(()),
                Ok(command) => self.obey(&command)?,
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {}
            }
            let mut count = self.cq.poll(&mut completions)?;
            if count == 0 {
                self.cq.req_notify(Notify::Any)?;
                count = self.cq.poll(&mut completions)?;
            }
            if count == 0 {
                match self.channel.wait_event(NAP) {
                    Err(error) if error.kind() != ErrorKind::TimedOut => return Err(error.into()),
                    _ => {}
                }
            }
            for completion in &completions[..count] {
                self.take(completion)?;
            }
            self.send_datagram()?;
            self.report_suspects()?;
            if self.is_stopping && self.connections.iter().all(Connection::is_idle) {
                self.is_stopping = false;
                self.report_counts()?;
            }
        }
    }

    fn obey(&mut self, command: &str) -> Result<(), Failure> {
        let mut words = command.split(' ');
        let verb = words.next().unwrap_or_default();
        let peer = words.next().and_then(|word| word.parse().ok()).unwrap_or(usize::MAX);
        match verb {
            "link" => self.link(peer),
            "go" => self.go(peer, &words.collect::<Vec<_>>()),
            "cut" => {
                self.clear(peer)?;
                Ok(())
            }
            "holdings" => {
                // Taken while operations are in flight, which hold nothing that is counted.
                let holdings = serde_json::to_string(&Holdings::now(&self.context))?;
                report(&format!("holdings {holdings}"))
            }
            "explain" => {
                let number = words.next().and_then(|word| word.parse().ok()).unwrap_or(u64::MAX);
                self.explain(peer, number)
            }
            "stop" => {
                self.is_stopping = true;
                Ok(())
            }
            other => Err(format!("unknown command {other}").into()),
        }
    }

    /// Reports the state of this end of a connection whose other end failed.
    fn explain(&self, peer: usize, number: u64) -> Result<(), Failure> {
        let is_named = |connection: &&Connection| connection.peer == peer && connection.number() == number;
        let Some(connection) = self.connections.iter().find(is_named) else { return Ok(()) };
        let forwarded = self.context.counters().get(Counter::ForwardedPackets);
        let state = connection.qp.explain_state();
        report(&format!("end process {}: {number} to process {peer}: {state}; {forwarded} packets passed on", self.own))
    }

    /// Removes all state of the connections to this peer.
    fn clear(&mut self, peer: usize) -> Result<(), Failure> {
        self.targets.remove(&peer);
        self.suspects.retain(|suspect| suspect.0 != peer);
        for connection in self.connections.iter_mut().filter(|connection| connection.peer == peer) {
            connection.clear(&self.region)?;
        }
        Ok(())
    }

    fn link(&mut self, peer: usize) -> Result<(), Failure> {
        self.clear(peer)?;
        let mut line = format!("infos {peer} {}", hex(&self.region.remote().to_bytes()));
        let ours = self.connections.iter().filter(|connection| connection.peer == peer);
        let reliable = ours.map(|connection| &connection.qp);
        for qp in std::iter::once(&self.datagrams).chain(reliable) {
            let mut info = Vec::new();
            qp.connection_info()?.write_to(&mut info)?;
            line.push(' ');
            line.push_str(&hex(&info));
        }
        report(&line)
    }

    fn go(&mut self, peer: usize, words: &[&str]) -> Result<(), Failure> {
        let [remote, datagrams, reliable @ ..] = words else { return Err("go: words are missing".into()) };
        let remote = RemoteMemory::from_bytes(unhex(remote)?.try_into().map_err(|_| "go: not 20 bytes")?);
        let datagrams = ConnectionInfo::from_bytes(&unhex(datagrams)?)?;
        let handle = self.datagrams.protection_domain().create_ah(&AddressVector::new(datagrams.gid, 0))?;
        self.targets.insert(peer, (handle, datagrams.qpn));
        // The position of this process among the peer's peers.
        let first = (if self.own < peer { self.own } else { self.own - 1 }) * self.of_pair;
        let ours = self.connections.iter_mut().filter(|connection| connection.peer == peer);
        for (number, (connection, info)) in ours.zip(reliable).enumerate() {
            let mut info = ConnectionInfo::from_bytes(&unhex(info)?)?;
            if self.is_standard {
                info = ConnectionInfo::standard_peer(info.qpn, info.psn, info.gid, info.path_mtu);
            }
            connection.connect(&self.region, &info, remote, first + number, TIMEOUT)?;
            if connection.is_client && !self.is_stopping {
                connection.begin(&self.region)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, completion: &Completion) -> Result<(), Failure> {
        if completion.wr_id() >= DATAGRAM {
            return self.take_datagram(completion);
        }
        let connection = &mut self.connections[Connection::index_of(completion.wr_id())];
        let success = match completion.result() {
            Ok(success) => success,
            Err(failure) => {
                if connection.is_live {
                    connection.is_live = false;
                    let why = connection.qp.explain(&failure);
                    report(&format!("failed {} {}", connection.peer, connection.number()))?;
                    self.suspects.push((connection.peer, Instant::now(), why));
                }
                return Ok(());
            }
        };
        match connection.take(&self.region, completion.wr_id(), &success) {
            Ok(true) => {
                self.counts.operations += 1;
                if !self.is_stopping {
                    connection.begin(&self.region)?;
                }
            }
            Ok(false) => self.counts.messages += 1,
            Err(what) => {
                let peer = connection.peer;
                self.error(&format!("data from process {peer}: {what}"))?;
            }
        }
        Ok(())
    }

    fn error(&mut self, what: &str) -> Result<(), Failure> {
        self.counts.errors += 1;
        report(&format!("error process {}: {what}", self.own))
    }

    /// Reports failed connections whose peer was not killed as errors.
    fn report_suspects(&mut self) -> Result<(), Failure> {
        let late: Vec<_> = self.suspects.extract_if(.., |suspect| suspect.1.elapsed() > EXCUSE).collect();
        late.into_iter().try_for_each(|(peer, _, why)| self.error(&format!("connection to process {peer}: {why}")))
    }

    fn receive_datagram(&self, slot: usize) -> Result<(), Failure> {
        let range = self.datagram_region.slice(slot * DATAGRAM_SLOT..(slot + 1) * DATAGRAM_SLOT)?;
        Ok(self.datagrams.post_recv(&[ReceiveRequest::new(range).wr_id(DATAGRAM + slot as u64)])?)
    }

    /// Sends to one peer after the other; losses are allowed.
    fn send_datagram(&mut self) -> Result<(), Failure> {
        let rested = self.last_datagram.elapsed() >= BETWEEN_DATAGRAMS;
        if !rested || self.is_sending || self.is_stopping || self.targets.is_empty() {
            return Ok(());
        }
        self.last_datagram = Instant::now();
        self.next_target += 1;
        let chosen = self.targets.values().nth(self.next_target % self.targets.len());
        let Some((handle, qpn)) = chosen else { return Ok(()) };
        let start = DATAGRAM_RECEIVES * DATAGRAM_SLOT;
        let bytes = [self.own as u8 ^ self.next_target as u8; DATAGRAM_BYTES];
        self.datagram_region.write_at(start, &bytes)?;
        let source = self.datagram_region.slice(start..start + DATAGRAM_BYTES)?;
        let request = SendRequest::send_to(source, handle, *qpn, QKEY).wr_id(DATAGRAM * 2).signaled();
        self.datagrams.post_send(&[request])?;
        (self.is_sending, self.counts.datagrams_sent) = (true, self.counts.datagrams_sent + 1);
        Ok(())
    }

    fn take_datagram(&mut self, completion: &Completion) -> Result<(), Failure> {
        let success = completion.result()?;
        if completion.wr_id() == DATAGRAM * 2 {
            self.is_sending = false;
            return Ok(());
        }
        let slot = (completion.wr_id() - DATAGRAM) as usize;
        let start = slot * DATAGRAM_SLOT + ROUTE_HEADER_BYTES;
        let bytes = self.datagram_region.to_vec(start..start + DATAGRAM_BYTES)?;
        if success.byte_len as usize != DATAGRAM_SLOT || bytes.iter().any(|byte| *byte != bytes[0]) {
            self.error(&format!("a datagram of {} bytes is wrong", success.byte_len))?;
        }
        self.counts.datagrams += 1;
        self.receive_datagram(slot)
    }

    fn report_counts(&self) -> Result<(), Failure> {
        let Counts { operations, messages, datagrams_sent, datagrams, errors } = self.counts;
        let excused = self.suspects.len();
        report(&format!("idle {operations} {messages} {datagrams_sent} {datagrams} {} {excused}", errors))
    }
}
