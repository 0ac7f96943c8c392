//! One end of a small transfer: a WRITE and a SEND of several packets in each direction, whose bytes are compared.

use std::time::Duration;

use rdma_verbs::verbs::{
    self, AccessFlags, CompletionQueue, ConnectOptions, ConnectionInfo, Context, Counter, MemoryRegion, QueuePair,
    ReceiveRequest, RemoteMemory, SendRequest, SharedMemory, SoftOptions,
};

use super::protocol::Message;

/// Bytes of each message: several packets with any path MTU.
const MESSAGE_BYTES: usize = 16 << 10;
/// The longest wait for one completion. A request without a response fails after some seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// A queue pair with memory for both directions.
pub(super) struct End {
    qp: QueuePair,
    /// The bytes that it sends.
    source: MemoryRegion,
    /// The message that it receives.
    received: MemoryRegion,
    /// The memory that the peer writes.
    target: MemoryRegion,
}

impl End {
    /// Creates an end on this device that expects a message.
    pub(super) fn new(context: &Context) -> verbs::Result<Self> {
        let pd = context.alloc_pd()?;
        let (send_cq, recv_cq) = (context.create_cq(16)?, context.create_cq(16)?);
        let qp = pd.create_qp(&send_cq, &recv_cq)?;
        let source = pd.alloc_mr(MESSAGE_BYTES, AccessFlags::empty())?;
        source.write_at(0, &pattern())?;
        let received = pd.alloc_mr(MESSAGE_BYTES, AccessFlags::LOCAL_WRITE)?;
        let target = pd.alloc_mr(MESSAGE_BYTES, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
        Ok(Self { qp, source, received, target })
    }

    /// Returns the data that the peer needs.
    pub(super) fn address(&self) -> verbs::Result<(ConnectionInfo, RemoteMemory)> {
        Ok((self.qp.connection_info()?, self.target.remote()))
    }

    /// Connects to the peer, and posts the receive for its message. Requests fail after about a second of silence.
    pub(super) fn connect(&self, peer: &ConnectionInfo) -> verbs::Result<()> {
        self.qp.connect_with(peer, &ConnectOptions::default().timeout(14).retry_cnt(6))?;
        self.qp.post_recv(&[ReceiveRequest::new(&self.received)])
    }

    /// Writes into the peer's memory, then sends it a message.
    pub(super) fn send(&self, remote: RemoteMemory) -> Result<(), String> {
        let text = |error: verbs::Error| error.to_string();
        let write = SendRequest::write(&self.source, remote.slice(..MESSAGE_BYTES).map_err(text)?).signaled();
        self.qp.post_send(&[write, SendRequest::send(&self.source).signaled()]).map_err(text)?;
        self.await_completion(self.qp.send_cq(), "the WRITE")?;
        self.await_completion(self.qp.send_cq(), "the SEND")
    }

    /// Waits for the peer's message, and compares it and what the peer wrote before.
    pub(super) fn receive(&self) -> Result<(), String> {
        self.await_completion(self.qp.recv_cq(), "the peer's message")?;
        for (region, what) in [(&self.received, "the received message"), (&self.target, "the written memory")] {
            if region.to_vec(..).map_err(|error| error.to_string())? != pattern() {
                return Err(format!("{what} differs from what was sent"));
            }
        }
        Ok(())
    }

    /// Returns how many packets have arrived for it, and what this end knows about the connection.
    pub(super) fn state(&self) -> Message {
        Message::State(self.qp.counters().get(Counter::ReceivedPackets), self.qp.explain_state())
    }

    fn await_completion(&self, queue: &CompletionQueue, what: &str) -> Result<(), String> {
        let waited = queue.wait(PATIENCE);
        let completion = waited.map_err(|error| format!("{what}: {error}. {}", self.qp.explain_state()))?;
        completion.result().map(drop).map_err(|error| format!("{what} failed. {}", self.qp.explain(&error)))
    }
}

/// The bytes of every message.
fn pattern() -> Vec<u8> {
    (0..MESSAGE_BYTES).map(|index| (index * 31 + index / 251) as u8).collect()
}

/// Opens a software device whose packets go through memory or sockets, as this setting says.
pub(super) fn open(name: &str, memory: SharedMemory) -> verbs::Result<Context> {
    verbs::open_soft(name, &SoftOptions::new().shared_memory(memory))
}

/// Makes a transfer between two queue pairs of this process on one device.
pub(super) fn between_two(name: &str, memory: SharedMemory) -> Result<(), String> {
    let text = |error: verbs::Error| error.to_string();
    let context = open(name, memory).map_err(text)?;
    let (near, far) = (End::new(&context).map_err(text)?, End::new(&context).map_err(text)?);
    let ((near_info, _), (far_info, far_memory)) = (near.address().map_err(text)?, far.address().map_err(text)?);
    near.connect(&far_info).and_then(|()| far.connect(&near_info)).map_err(text)?;
    near.send(far_memory)?;
    far.receive()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_queue_pairs_of_one_process() {
        between_two("soft:127.91.0.1", SharedMemory::Off).unwrap();
    }

    #[test]
    fn an_address_of_another_machine_is_refused() {
        let error = between_two("soft:192.0.2.77", SharedMemory::Off).unwrap_err();
        assert!(error.contains("192.0.2.77"), "{error}");
    }
}
