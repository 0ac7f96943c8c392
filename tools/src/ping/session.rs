//! The client's end: a connection, or a datagram queue pair, on which echoes are sent.

use std::time::{Duration, Instant};

use rdma_verbs::types::{NoSharedMemory, PacketPath};
use rdma_verbs::verbs::cm::{Connection, ConnectionOptions, DatagramPeer, Route};
use rdma_verbs::verbs::{
    self, AccessFlags, AddressHandle, Completion, ConnectionInfo, Counter, MemoryRegion, Mtu, ProtectionDomain,
    QueuePairOptions, QueuePairType, SendRequest,
};

use super::connect::{self, Failure};
use super::echo::{PORT, ROUTE_HEADER_BYTES};
use super::protocol::{self, DEPTH, HEADER_BYTES, Header, Hello, Kind, LIFE_SIGN, NOTE_BYTES, Service, Welcome};
use super::queue::{Lane, Queue};
use crate::common::is_interrupted;

/// Kinds of requests, in their numbers above the place or the sequence number.
const RECEIVE: u64 = 0;
const SEND: u64 = 1 << 32;
const READ: u64 = 2 << 32;
const CONTROL_RECEIVE: u64 = 3 << 32;
const CONTROL_SEND: u64 = 4 << 32;
/// How long the path may take to settle on memory or sockets.
const SETTLING: Duration = Duration::from_secs(1);

/// A reply to an echo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reply {
    pub(super) sequence: u32,
    pub(super) at: Instant,
    /// Whether it has the bytes that were sent.
    pub(super) is_intact: bool,
}

/// A connection to the server.
pub(super) struct Session {
    // Queue pairs are dropped before what they use.
    connection: Option<Connection>,
    /// The queue pair of the echoes.
    lane: Lane,
    /// The reliable connection beside an unreliable one.
    control: Option<Lane>,
    way: Option<(AddressHandle, DatagramPeer)>,
    /// Messages that are sent, or read: [`DEPTH`] places, and one for notes.
    messages: MemoryRegion,
    queue: Queue,
    hello: Hello,
    run: u64,
    pub(super) welcome: Welcome,
    /// Sends that have not completed.
    unfinished: usize,
    last_sent: Instant,
}

impl Session {
    /// Connects to the server, before the deadline.
    pub(super) fn open(route: &Route, hello: Hello, run: u64, deadline: Instant) -> Result<Self, Failure> {
        let pd = route.context().alloc_pd()?;
        let queue = Queue::new(route.context(), 8 * DEPTH)?;
        let messages = pd.alloc_mr(DEPTH * hello.bytes + NOTE_BYTES, AccessFlags::LOCAL_WRITE)?;
        for place in 0..DEPTH {
            messages.write_at(place * hello.bytes + HEADER_BYTES, &protocol::pattern(hello.bytes - HEADER_BYTES))?;
        }
        let ends = match hello.service {
            Service::Ud => datagrams(route, &pd, &queue, hello, deadline)?,
            Service::Rc | Service::Uc => reliable(route, &pd, &queue, hello, deadline)?,
        };
        let Ends { connection, lane, control, way, welcome } = ends;
        let (unfinished, last_sent) = (0, Instant::now());
        let mut session =
            Self { connection, lane, control, way, messages, queue, hello, run, welcome, unfinished, last_sent };
        if hello.service == Service::Uc {
            session.connect_unreliable(route, &pd, deadline)?;
        }
        Ok(session)
    }

    /// Exchanges the addresses of the unreliable connection over the reliable one.
    fn connect_unreliable(&mut self, route: &Route, pd: &ProtectionDomain, deadline: Instant) -> Result<(), Failure> {
        let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableConnection);
        let gid_index = route.context().find_gid(PORT, route.local_addr().ip().into())?;
        let unreliable = Lane::new(pd, &self.queue, options.gid_index(gid_index), self.hello.bytes)?;
        let own = unreliable.qp.connection_info()?;
        unreliable.qp.init()?;
        (0..DEPTH).try_for_each(|place| unreliable.post_recv(place, RECEIVE + place as u64))?;
        self.control = Some(std::mem::replace(&mut self.lane, unreliable));
        self.send_note(Kind::Address, &own.to_bytes())?;
        while let Some(completion) = self.queue.next(deadline)? {
            if let Some(note) = self.note(&completion)? {
                let peer = ConnectionInfo::from_bytes(&note)?;
                if peer.gid.to_ip() != route.remote_addr().ip() {
                    return Err(Failure::Failed(format!("the server's queue pair is at {}", peer.gid.to_ip())));
                }
                return Ok(self.lane.qp.connect(&peer)?);
            }
            // Other messages of the server do not extend the time.
            if is_over(deadline) {
                break;
            }
        }
        match is_interrupted() {
            true => Err(Failure::Interrupted),
            false => Err(Failure::Failed("the server does not tell the address of its queue pair".to_owned())),
        }
    }

    /// Handles a completion of the reliable connection. Returns the data of an address.
    fn note(&mut self, completion: &Completion) -> Result<Option<Vec<u8>>, Failure> {
        let Some(control) = &self.control else { return Ok(None) };
        let success = completion.result().map_err(|error| Failure::Failed(control.qp.explain(&error)))?;
        if completion.wr_id() & !u64::from(u32::MAX) != CONTROL_RECEIVE {
            return Ok(None);
        }
        let message = control.read((completion.wr_id() - CONTROL_RECEIVE) as usize, 0, success.byte_len as usize)?;
        match Header::decode(&message) {
            Some(Header { kind: Kind::Address, .. }) => Ok(Some(message[HEADER_BYTES..].to_vec())),
            _ => Ok(None),
        }
    }

    /// Sends a note on the reliable connection, from the place behind those of the echoes.
    fn send_note(&mut self, kind: Kind, data: &[u8]) -> verbs::Result<()> {
        let mut message = Header { kind, sequence: 0, run: self.run }.encode().to_vec();
        message.extend(data);
        let start = DEPTH * self.hello.bytes;
        self.messages.write_at(start, &message)?;
        let range = self.messages.slice(start..start + message.len())?;
        let lane = self.control.as_ref().unwrap_or(&self.lane);
        lane.qp.post_send(&[SendRequest::send(range).wr_id(CONTROL_SEND).signaled()])?;
        self.last_sent = Instant::now();
        Ok(())
    }

    /// Returns whether another echo may be under way, beside those that wait for a reply.
    pub(super) fn has_place(&self, waiting: usize) -> bool {
        self.unfinished.max(waiting) < DEPTH
    }

    /// Sends an echo, or reads the server's memory. Returns when.
    pub(super) fn send(&mut self, sequence: u32) -> verbs::Result<Instant> {
        let bytes = self.hello.bytes;
        let start = sequence as usize % DEPTH * bytes;
        let range = self.messages.slice(start..start + bytes)?;
        let sent = Instant::now();
        if let Some(remote) = self.welcome.memory.filter(|_| self.hello.is_one_sided) {
            let request = SendRequest::read(range, remote.slice(..bytes)?);
            self.lane.qp.post_send(&[request.wr_id(READ | u64::from(sequence)).signaled()])?;
        } else {
            let header = Header { kind: Kind::Echo, sequence, run: self.run };
            self.messages.write_at(start, &header.encode())?;
            let request = match &self.way {
                Some((handle, peer)) => SendRequest::send_to(range, handle, peer.qpn, peer.qkey),
                None => SendRequest::send(range),
            };
            self.lane.qp.post_send(&[request.wr_id(SEND | u64::from(sequence)).signaled()])?;
        }
        self.unfinished += 1;
        let is_heard = !self.hello.is_one_sided && self.hello.service == Service::Rc;
        if is_heard {
            self.last_sent = sent;
        }
        Ok(sent)
    }

    /// Waits for a reply until this time. An error is the end of the session, explained.
    pub(super) fn next(&mut self, until: Instant) -> Result<Option<Reply>, String> {
        let text = |error: verbs::Error| error.to_string();
        if self.connection.is_some() && self.last_sent.elapsed() > LIFE_SIGN {
            self.send_note(Kind::Life, &[]).map_err(text)?;
        }
        let until = until.min(Instant::now() + LIFE_SIGN);
        while let Some(completion) = self.queue.next(until).map_err(text)? {
            let at = Instant::now();
            if let Some(reply) = self.reply(&completion, at)? {
                return Ok(Some(reply));
            }
            // A server that sends other messages again and again does not extend the time.
            if is_over(until) {
                return Ok(None);
            }
        }
        match &self.connection {
            Some(connection) if connection.wait_disconnected(Duration::ZERO).map_err(text)? => {
                Err("the server has ended it".to_owned())
            }
            _ => Ok(None),
        }
    }

    fn reply(&mut self, completion: &Completion, at: Instant) -> Result<Option<Reply>, String> {
        let text = |error: verbs::Error| error.to_string();
        let kind = completion.wr_id() & !u64::from(u32::MAX);
        let number = completion.wr_id() as u32;
        let lane = match &self.control {
            Some(control) if kind >= CONTROL_RECEIVE => control,
            _ => &self.lane,
        };
        let success = completion.result().map_err(|error| self.ended(&lane.qp.explain(&error)))?;
        match kind {
            SEND => self.unfinished -= 1,
            READ => {
                self.unfinished -= 1;
                let bytes = self.hello.bytes;
                let start = number as usize % DEPTH * bytes;
                let message = self.messages.to_vec(start + HEADER_BYTES..start + bytes).map_err(text)?;
                return Ok(Some(Reply { sequence: number, at, is_intact: message == self.pattern() }));
            }
            RECEIVE => {
                let (place, end) = (number as usize, success.byte_len as usize);
                let start = if success.global_route_header { ROUTE_HEADER_BYTES } else { 0 };
                let message = self.lane.read(place, start, end.max(start)).map_err(text)?;
                self.lane.post_recv(place, completion.wr_id()).map_err(text)?;
                let header = Header::decode(&message).filter(|header| header.run == self.run);
                let Some(Header { kind: Kind::Echo, sequence, .. }) = header else { return Ok(None) };
                return Ok(Some(Reply { sequence, at, is_intact: message[HEADER_BYTES..] == self.pattern() }));
            }
            _ => {}
        }
        Ok(None)
    }

    fn pattern(&self) -> Vec<u8> {
        protocol::pattern(self.hello.bytes - HEADER_BYTES)
    }

    /// Returns why the session has ended: a disconnection flushes receives, which explains nothing.
    fn ended(&self, explanation: &str) -> String {
        let ended = self.connection.as_ref().map(|connection| connection.wait_disconnected(Duration::ZERO));
        if matches!(ended, Some(Ok(true))) { "the server has ended it".to_owned() } else { explanation.to_owned() }
    }

    /// Returns how packets go to the server, once that is settled; `None` if the device does not say.
    pub(super) fn packet_path(&self) -> Option<PacketPath> {
        let until = Instant::now() + SETTLING;
        loop {
            let path = self.lane.qp.report().ok()?.packet_path;
            let is_settled = !matches!(path, Some(PacketPath::Sockets(NoSharedMemory::Pending)));
            if is_settled || Instant::now() > until {
                return path;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the path MTU in bytes.
    pub(super) fn mtu(&self) -> Option<u32> {
        let context = self.lane.qp.context();
        match self.hello.service {
            Service::Ud => context.query_port(PORT).ok().map(|port| port.active_mtu.bytes()),
            _ => self.lane.qp.query().ok()?.attributes.path_mtu.map(Mtu::bytes),
        }
    }

    /// Returns the number of packets that the transport has sent again.
    pub(super) fn packets_again(&self) -> u64 {
        self.lane.qp.counters().get(Counter::RetransmittedPackets)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            // The server notices the end from its silence otherwise.
            let _ = connection.disconnect(&*self.control.as_ref().unwrap_or(&self.lane).qp);
        }
    }
}

/// Returns whether it is this late, or the command is to end.
fn is_over(until: Instant) -> bool {
    Instant::now() >= until || is_interrupted()
}

/// The ends of a new session.
struct Ends {
    connection: Option<Connection>,
    lane: Lane,
    control: Option<Lane>,
    way: Option<(AddressHandle, DatagramPeer)>,
    welcome: Welcome,
}

const NOT_PING: &str = "the service on that port is not rdma-verbs ping";

/// Sets up a reliable connection.
fn reliable(
    route: &Route,
    pd: &ProtectionDomain,
    queue: &Queue,
    hello: Hello,
    deadline: Instant,
) -> Result<Ends, Failure> {
    let is_echoed = hello.service == Service::Rc && !hello.is_one_sided;
    let kind = if hello.service == Service::Uc { CONTROL_RECEIVE } else { RECEIVE };
    let bytes = if is_echoed { hello.bytes.max(NOTE_BYTES) } else { NOTE_BYTES };
    let lane = Lane::new(pd, queue, QueuePairOptions::default(), bytes)?;
    lane.qp.init()?;
    (0..DEPTH).try_for_each(|place| lane.post_recv(place, kind + place as u64))?;
    let options = ConnectionOptions::new().private_data(&hello.encode());
    let options = options.deadline(deadline.saturating_duration_since(Instant::now()));
    let pending = route.start_connect(&*lane.qp, &options).map_err(|error| Failure::connect(error, None))?;
    let connection = connect::settle(pending, route, deadline)?;
    let welcome = Welcome::decode(connection.private_data()).ok_or_else(|| Failure::Failed(NOT_PING.to_owned()))?;
    let is_readable = welcome.memory.is_some_and(|memory| memory.len() >= hello.bytes as u64);
    if hello.is_one_sided && !is_readable {
        return Err(Failure::Failed("the server tells no memory to read".to_owned()));
    }
    Ok(Ends { connection: Some(connection), lane, control: None, way: None, welcome })
}

/// Requests the server's datagram queue pair.
fn datagrams(
    route: &Route,
    pd: &ProtectionDomain,
    queue: &Queue,
    hello: Hello,
    deadline: Instant,
) -> Result<Ends, Failure> {
    let longest = route.context().query_port(PORT)?.active_mtu.bytes() as usize;
    if hello.bytes > longest {
        let most = longest.saturating_sub(HEADER_BYTES);
        return Err(Failure::Usage(format!("--size is too large for a datagram: allowed are up to {most} bytes here")));
    }
    let options = ConnectionOptions::new().private_data(&hello.encode());
    let options = options.deadline(deadline.saturating_duration_since(Instant::now()));
    let pending = route.start_resolve_datagram(&options).map_err(|error| Failure::connect(error, None))?;
    let peer = connect::settle(pending, route, deadline)?;
    let welcome = Welcome::decode(&peer.private_data).ok_or_else(|| Failure::Failed(NOT_PING.to_owned()))?;
    let qp_options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(peer.qkey);
    let qp_options = qp_options.gid_index(peer.address.sgid_index);
    let lane = Lane::new(pd, queue, qp_options, ROUTE_HEADER_BYTES + hello.bytes)?;
    lane.qp.bring_up_ud()?;
    (0..DEPTH).try_for_each(|place| lane.post_recv(place, RECEIVE + place as u64))?;
    let handle = pd.create_ah(&peer.address)?;
    Ok(Ends { connection: None, lane, control: None, way: Some((handle, peer)), welcome })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use rdma_verbs::verbs::Payload;
    use rdma_verbs::verbs::cm::{Listener, ListenerOptions};

    use super::*;

    const WAIT: Duration = Duration::from_secs(30);

    /// Sends as many messages as the client has receives, none of them an echo, and keeps the connection until the test
    /// has ended.
    fn babble(listener: &Listener, sent: &Sender<()>, ended: &Receiver<()>) {
        let request = listener.accept().unwrap();
        let (pd, cq) = (request.context().alloc_pd().unwrap(), request.context().create_cq(256).unwrap());
        let qp = pd.create_qp(&cq, &cq).unwrap();
        let welcome = Welcome { interval: Duration::ZERO, memory: None };
        let _connection = request.accept(&qp, &ConnectionOptions::new().private_data(&welcome.encode())).unwrap();
        for _ in 0..DEPTH {
            qp.post_send(&[SendRequest::send(Payload::inline(b"noise")).signaled()]).unwrap();
            cq.wait(WAIT).unwrap().result().unwrap();
        }
        sent.send(()).unwrap();
        let _ = ended.recv_timeout(WAIT);
    }

    /// A server that sends other messages again and again would otherwise hold the client up for ever.
    #[test]
    fn messages_that_are_no_echoes_do_not_extend_the_time() {
        let listener = ListenerOptions::new().bind("127.91.4.1:4711").unwrap();
        let ((sent, all_sent), (end, ended)) = (channel(), channel());
        let server = std::thread::spawn(move || babble(&listener, &sent, &ended));
        let route = Route::to("127.91.4.1:4711").unwrap().from("127.91.4.2").unwrap();
        let hello = Hello { service: Service::Rc, is_one_sided: false, bytes: 72 };
        let mut session = Session::open(&route, hello, 1, Instant::now() + WAIT).ok().expect("a connection");
        all_sent.recv_timeout(WAIT).unwrap();
        assert_eq!(session.next(Instant::now()), Ok(None));
        // Only the first one was taken.
        for number in 1..DEPTH {
            assert!(session.queue.next(Instant::now() + WAIT).unwrap().is_some(), "message {number} was taken, too");
        }
        end.send(()).unwrap();
        server.join().unwrap();
    }
}
