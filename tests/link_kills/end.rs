//! The connections of a process: it runs the client's end of half of the connections to each other process, and the
//! server's end of the others.

use std::ops::Range;
use std::time::Duration;

use rdma_verbs::provider::soft::SoftOptions;
use rdma_verbs::verbs::{
    self, AccessFlags, Completion, CompletionChannel, CompletionQueue, CompletionQueueOptions, CompletionStatus,
    ConnectionInfo, Context, ErrorKind, MemoryRegion, Notify, QueuePairOptions, RemoteMemory, SharedMemory,
};

use crate::connection::{Connection, SLOT};

pub(crate) type Failure = Box<dyn std::error::Error>;

/// Connections between two processes; the first half has its clients in the first process.
pub(crate) const OF_PAIR: usize = 4;
const ALL: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::LOCAL_WRITE);
const COMPLETIONS: usize = 64;

/// The outcome of a connection's request.
pub(crate) enum Event {
    /// An operation or a message was verified.
    Verified,
    /// The first failure of the connection with this index.
    Failed { index: usize, status: CompletionStatus, why: String },
    /// Bytes are wrong, or something else arrived than was sent.
    Wrong { index: usize, what: String },
}

/// The connections of a process.
pub(crate) struct End {
    pub(crate) context: Context,
    channel: CompletionChannel,
    cq: CompletionQueue,
    region: MemoryRegion,
    pub(crate) connections: Vec<Connection>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>, Failure> {
    let digits = |at: usize| text.get(at..at + 2).ok_or("an odd number of digits");
    (0..text.len()).step_by(2).map(|at| Ok(u8::from_str_radix(digits(at)?, 16)?)).collect()
}

impl End {
    /// Opens the device of an address, with queue pairs for connections to this many peers. `is_first` says whether
    /// it is the first process of each pair.
    pub(crate) fn new(address: &str, peers: usize, is_first: bool) -> Result<Self, Failure> {
        let context =
            verbs::open_soft(&format!("soft:{address}"), &SoftOptions::new().shared_memory(SharedMemory::Auto))?;
        let (channel, pd) = (context.create_comp_channel()?, context.alloc_pd()?);
        let count = peers * OF_PAIR;
        let options = CompletionQueueOptions::default().channel(&channel, 0);
        let cq = context.create_cq_with((count * 8) as u32, &options)?;
        let region = pd.alloc_mr(count * SLOT, ALL)?;
        let mut connections = Vec::with_capacity(count);
        for index in 0..count {
            let qp = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().max_send_wr(2).max_recv_wr(4))?;
            let number = index % OF_PAIR;
            let is_client = (number < OF_PAIR / 2) == is_first;
            connections.push(Connection::new(index, index / OF_PAIR, number, is_client, qp));
        }
        Ok(Self { context, channel, cq, region, connections })
    }

    /// Returns the indices of the connections to a peer.
    pub(crate) fn of_peer(peer: usize) -> Range<usize> {
        peer * OF_PAIR..(peer + 1) * OF_PAIR
    }

    /// Resets the connections to a peer. Returns what it needs to connect to them.
    pub(crate) fn introduce(&mut self, peer: usize) -> Result<String, Failure> {
        let range = Self::of_peer(peer);
        let mut line = format!("{} {}", hex(&self.region.remote().to_bytes()), range.start);
        for connection in &mut self.connections[range] {
            connection.clear(&self.region)?;
            let mut info = Vec::new();
            connection.qp.connection_info()?.write_to(&mut info)?;
            line.push(' ');
            line.push_str(&hex(&info));
        }
        Ok(line)
    }

    /// Connects to a peer, which has introduced itself with `line`.
    pub(crate) fn connect(&mut self, peer: usize, line: &str, timeout: u8) -> Result<(), Failure> {
        let words: Vec<&str> = line.split(' ').collect();
        let [remote, first, infos @ ..] = &words[..] else { return Err("words are missing".into()) };
        let remote = RemoteMemory::from_bytes(unhex(remote)?.try_into().map_err(|_| "not 20 bytes")?);
        let first: usize = first.parse()?;
        for ((number, connection), info) in self.connections[Self::of_peer(peer)].iter_mut().enumerate().zip(infos) {
            let info = ConnectionInfo::from_bytes(&unhex(info)?)?;
            connection.connect(&self.region, &info, remote, first + number, timeout)?;
        }
        Ok(())
    }

    /// Posts a request on each connection to a peer that waits for none: of clients only, or of servers, too, whose
    /// peer is gone.
    pub(crate) fn begin(&mut self, peer: usize, servers_too: bool) -> Result<(), Failure> {
        for connection in &mut self.connections[Self::of_peer(peer)] {
            if connection.is_live && connection.is_idle() && (connection.is_client || servers_too) {
                connection.begin(&self.region)?;
            }
        }
        Ok(())
    }

    /// Handles the completions that there are, or waits for some.
    pub(crate) fn turn(&mut self, patience: Duration, mut handle: impl FnMut(Event)) -> Result<(), Failure> {
        let mut completions = [Completion::default(); COMPLETIONS];
        let mut count = self.cq.poll(&mut completions)?;
        if count == 0 {
            self.cq.req_notify(Notify::Any)?;
            count = self.cq.poll(&mut completions)?;
        }
        if count == 0 {
            match self.channel.wait_event(patience) {
                Err(error) if error.kind() != ErrorKind::TimedOut => return Err(error.into()),
                _ => return Ok(()),
            }
        }
        for completion in &completions[..count] {
            if let Some(event) = self.take(completion)? {
                handle(event);
            }
        }
        Ok(())
    }

    fn take(&mut self, completion: &Completion) -> Result<Option<Event>, Failure> {
        let index = Connection::index_of(completion.wr_id());
        let connection = &mut self.connections[index];
        if !connection.is_live {
            return Ok(None);
        }
        let success = match completion.result() {
            Ok(success) => success,
            Err(failure) => {
                connection.is_live = false;
                let (peer, number) = (connection.peer, connection.number());
                let why = format!("{number} to process {peer}: {}", connection.qp.explain(&failure));
                return Ok(Some(Event::Failed { index, status: completion.status(), why }));
            }
        };
        match connection.take(&self.region, completion.wr_id(), &success) {
            Ok(is_next) => {
                if is_next && connection.is_client {
                    connection.begin(&self.region)?;
                }
                Ok(Some(Event::Verified))
            }
            Err(what) => {
                connection.is_live = false;
                Ok(Some(Event::Wrong { index, what }))
            }
        }
    }
}
