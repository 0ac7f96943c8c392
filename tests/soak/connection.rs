//! One reliable connection: a client that runs one operation after the other, and a server whose memory it accesses.
//! Both know every byte that must arrive.

use rdma_verbs::verbs::{
    self, CompletionOpcode, ConnectOptions, ConnectionInfo, MemoryRegion, Mtu, QueuePair, QueuePairState,
    ReceiveRequest, RegionRange, RemoteMemory, SendRequest, Success,
};

type Outcome<T = ()> = Result<T, String>;

const AREA: usize = 8_192;
const LONGEST: u64 = 6_000;
/// Length of a connection's part of the region.
pub(crate) const SLOT: usize = 6 * AREA + 64;
const RECEIVES: usize = 2;
const WRITTEN: usize = 2;
const WRITTEN_WITH_IMMEDIATE: usize = 3;
const SOURCE: usize = 4;
const FETCHED: usize = 5;
const COUNTER: usize = 6 * AREA;
const RESULT: usize = COUNTER + 8;
/// Number of kinds of a connection's work request identifiers: the receives, and the client's operation.
const KINDS: u64 = 4;
const OPERATION: u64 = 3;

/// The operations of a client, in this order, repeated forever.
const STEPS: [Step; 7] = [
    Step::Send,
    Step::SendWithImmediate,
    Step::WriteWithImmediate,
    Step::Write,
    Step::Read,
    Step::FetchAndAdd,
    Step::CompareAndSwap,
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Send,
    SendWithImmediate,
    WriteWithImmediate,
    Write,
    Read,
    FetchAndAdd,
    CompareAndSwap,
}

/// One end of the connection.
pub(crate) struct Connection {
    index: usize,
    pub(crate) peer: usize,
    /// Number of the connection between the two processes.
    salt: u64,
    pub(crate) is_client: bool,
    pub(crate) qp: QueuePair,
    remote: Option<RemoteMemory>,
    pub(crate) is_live: bool,
    is_waiting: bool,
    step: usize,
    round: u64,
    received: u64,
}

/// Returns the bytes of a message.
fn pattern(salt: u64, step: Step, round: u64) -> Vec<u8> {
    let seed = salt.wrapping_mul(131) ^ (step as u64).wrapping_mul(7_919) ^ round.wrapping_mul(0x9e37_79b9);
    let length = 8 + seed % LONGEST;
    let start = round.to_le_bytes().into_iter();
    start.chain((8..length).map(|index| (seed.rotate_left(index as u32 % 61) ^ index) as u8)).collect()
}

impl Connection {
    pub(crate) fn new(index: usize, peer: usize, number: usize, is_client: bool, qp: QueuePair) -> Self {
        Self {
            index,
            peer,
            salt: number as u64,
            is_client,
            qp,
            remote: None,
            is_live: false,
            is_waiting: false,
            step: 0,
            round: 0,
            received: 0,
        }
    }

    /// Returns its number among the connections between the two processes.
    pub(crate) fn number(&self) -> u64 {
        self.salt
    }

    /// Returns the index of a request's connection.
    pub(crate) fn index_of(wr_id: u64) -> usize {
        (wr_id / KINDS) as usize
    }

    /// Removes all state of an earlier connection.
    pub(crate) fn clear(&mut self, region: &MemoryRegion) -> verbs::Result<()> {
        if self.qp.state()? != QueuePairState::Reset {
            self.qp.reset()?;
        }
        region.write_at(self.index * SLOT + COUNTER, &[0; 16])?;
        (self.is_live, self.is_waiting, self.step, self.round, self.received) = (false, false, 0, 0, 0);
        Ok(())
    }

    /// Connects it. `remote` is the peer's whole region, `slot` this connection's slot in it.
    pub(crate) fn connect(
        &mut self,
        region: &MemoryRegion,
        info: &ConnectionInfo,
        remote: RemoteMemory,
        slot: usize,
        timeout: u8,
    ) -> verbs::Result<()> {
        self.qp.init()?;
        for buffer in 0..RECEIVES {
            self.receive(region, buffer)?;
        }
        self.remote = Some(remote.slice(slot * SLOT..(slot + 1) * SLOT)?);
        self.qp.connect_with(info, &ConnectOptions::default().path_mtu(Mtu::Mtu1024).timeout(timeout))?;
        self.is_live = true;
        Ok(())
    }

    fn area<'a>(&self, region: &'a MemoryRegion, area: usize, length: usize) -> verbs::Result<RegionRange<'a>> {
        let start = self.index * SLOT + area * AREA;
        region.slice(start..start + length)
    }

    fn receive(&self, region: &MemoryRegion, buffer: usize) -> verbs::Result<()> {
        let wr_id = self.index as u64 * KINDS + buffer as u64;
        self.qp.post_recv(&[ReceiveRequest::new(self.area(region, buffer, AREA)?).wr_id(wr_id)])
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.is_waiting || !self.is_live
    }

    /// Posts the client's next operation.
    pub(crate) fn begin(&mut self, region: &MemoryRegion) -> verbs::Result<()> {
        let step = STEPS[self.step];
        let Some(remote) = self.remote else { return Ok(()) };
        let bytes = pattern(self.salt, if step == Step::Read { Step::Write } else { step }, self.round);
        let base = self.index * SLOT;
        region.write_at(base + SOURCE * AREA, &bytes)?;
        let source = self.area(region, SOURCE, bytes.len())?;
        let of = |area: usize| remote.slice(area * AREA..area * AREA + bytes.len());
        let immediate = self.round as u32;
        let (counter, result) = (remote.slice(COUNTER..COUNTER + 8)?, region.slice(base + RESULT..base + RESULT + 8)?);
        let request = match step {
            Step::Send => SendRequest::send(source),
            Step::SendWithImmediate => SendRequest::send_with_immediate(source, immediate),
            Step::WriteWithImmediate => {
                SendRequest::write_with_immediate(source, of(WRITTEN_WITH_IMMEDIATE)?, immediate)
            }
            Step::Write => SendRequest::write(source, of(WRITTEN)?),
            Step::Read => {
                region.write_at(base + FETCHED * AREA, &vec![0xcc; bytes.len()])?;
                SendRequest::read(self.area(region, FETCHED, bytes.len())?, of(WRITTEN)?)
            }
            Step::FetchAndAdd => SendRequest::fetch_and_add(result, counter, 1),
            Step::CompareAndSwap => {
                SendRequest::compare_and_swap(result, counter, 2 * self.round + 1, 2 * self.round + 2)
            }
        };
        let wr_id = self.index as u64 * KINDS + OPERATION;
        self.qp.post_send(&[request.wr_id(wr_id).signaled()])?;
        self.is_waiting = true;
        Ok(())
    }

    /// Checks the data of a request that has succeeded. Returns whether the client's next operation may begin.
    pub(crate) fn take(&mut self, region: &MemoryRegion, wr_id: u64, done: &Success) -> Outcome<bool> {
        match wr_id % KINDS {
            OPERATION => self.take_operation(region).map(|()| true),
            buffer => self.take_message(region, buffer as usize, done).map(|()| false),
        }
    }

    fn take_operation(&mut self, region: &MemoryRegion) -> Outcome {
        let base = self.index * SLOT;
        match STEPS[self.step] {
            Step::Read => {
                self.compare(region, FETCHED, &pattern(self.salt, Step::Write, self.round))?;
            }
            step @ (Step::FetchAndAdd | Step::CompareAndSwap) => {
                let expected = 2 * self.round + u64::from(step == Step::CompareAndSwap);
                let mut found = [0; 8];
                region.read_at(base + RESULT, &mut found).map_err(|error| error.to_string())?;
                let found = u64::from_ne_bytes(found);
                if found != expected {
                    return Err(format!("{step:?} of round {} finds {found} instead of {expected}", self.round));
                }
            }
            _ => {}
        }
        self.is_waiting = false;
        self.step = (self.step + 1) % STEPS.len();
        self.round += u64::from(self.step == 0);
        Ok(())
    }

    fn take_message(&mut self, region: &MemoryRegion, buffer: usize, done: &Success) -> Outcome {
        let round = self.received / 3;
        let (step, opcode, area) = match self.received % 3 {
            0 => (Step::Send, CompletionOpcode::Receive, buffer),
            1 => (Step::SendWithImmediate, CompletionOpcode::Receive, buffer),
            _ => (Step::WriteWithImmediate, CompletionOpcode::ReceiveWriteWithImmediate, WRITTEN_WITH_IMMEDIATE),
        };
        let immediate = (step != Step::Send).then_some(round as u32);
        let bytes = pattern(self.salt, step, round);
        if (done.opcode, done.immediate, done.byte_len as usize) != (opcode, immediate, bytes.len()) {
            return Err(format!("{done:?} instead of {step:?} {} of {} bytes", round, bytes.len()));
        }
        self.compare(region, area, &bytes)?;
        self.received += 1;
        self.receive(region, buffer).map_err(|error| error.to_string())
    }

    fn compare(&self, region: &MemoryRegion, area: usize, expected: &[u8]) -> Outcome {
        let start = self.index * SLOT + area * AREA;
        let found = region.to_vec(start..start + expected.len()).map_err(|error| error.to_string())?;
        match found.iter().zip(expected).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(index) => Err(format!("byte {index} of {} is wrong, in round {}", expected.len(), self.round)),
        }
    }
}
