//! Both ends, and connections between them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rdma_verbs::verbs::cm::{
    Connection, ConnectionOptions, Listener, ListenerOptions, PendingConnection, Request, Route,
};
use rdma_verbs::verbs::{
    self, AccessFlags, CompletionQueue, Context, MemoryRegion, ProtectionDomain, QueuePair, QueuePairAttributes,
    ReceiveRequest, SendRequest,
};

use crate::guest::{Guest, Reply, pattern};
use crate::wire::{REQ, Wire};
use crate::{Arguments, Kernel, Role};

pub(crate) type Error = Box<dyn std::error::Error>;
pub(crate) type Outcome = Result<(), Error>;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Port of our listener and of the guest's, in either port space.
pub(crate) const PORT: u16 = 7471;
/// A port without a listener.
pub(crate) const CLOSED_PORT: u16 = 7472;
/// TCP ports of the guest's further processes are above this one.
const FIRST_PROCESS_PORT: u16 = 18_520;
/// Length of messages: more than one packet.
pub(crate) const LENGTH: usize = 3_000;
/// Slot of the guest's listener for connections.
pub(crate) const LISTENER: u32 = 0;

/// Both programs.
pub(crate) struct Home {
    pub(crate) role: Role,
    pub(crate) kernel: Kernel,
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) wire_mtu: u32,
    /// Whether the checks that take long are among those of this run.
    pub(crate) is_full: bool,
    pub(crate) context: Context,
    pub(crate) pd: ProtectionDomain,
    pub(crate) guest: Guest,
    /// Host part of the control connection's address.
    guest_host: String,
    pub(crate) wire: Wire,
    pub(crate) listener: Listener,
    next_slot: u32,
    next_seed: u32,
    next_process: u16,
}

/// Our queue pair, with a receive posted.
pub(crate) struct End {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) mr: MemoryRegion,
}

/// A connection that is set up at both ends.
pub(crate) struct Pair {
    pub(crate) end: End,
    pub(crate) connection: Connection,
    /// The guest's object.
    pub(crate) slot: u32,
}

/// Options of both ends.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    pub(crate) ours: ConnectionOptions,
    /// Options of the guest's `create`.
    pub(crate) create: String,
    /// Options of the guest's `connect` or `accept`.
    pub(crate) guests: String,
}

pub(crate) fn ensure(holds: bool, otherwise: &str) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise.to_owned().into()) }
}

pub(crate) fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?} instead of {expected:?}").into()) }
}

impl Home {
    pub(crate) fn new(arguments: &Arguments) -> Result<Self, Error> {
        let context = verbs::open(&format!("soft:{}", arguments.local))?;
        let pd = context.alloc_pd()?;
        let mut guest = Guest::connect(&arguments.peer, Duration::from_secs(200))?;
        let guest_host = arguments.peer.rsplit_once(':').ok_or("--peer needs a port")?.0.to_owned();
        guest.command(&format!("create {LISTENER}"))?;
        guest.command(&format!("listen {LISTENER} {} {PORT} backlog=1024", arguments.remote))?;
        let listener =
            ListenerOptions::new().on(&context).backlog(1024).bind(SocketAddr::new(arguments.local, PORT))?;
        Ok(Self {
            role: arguments.role,
            kernel: arguments.kernel,
            local: arguments.local,
            remote: arguments.remote,
            wire_mtu: arguments.wire_mtu,
            is_full: arguments.full,
            context,
            pd,
            guest,
            guest_host,
            wire: Wire::open(arguments.local, arguments.remote)?,
            listener,
            next_slot: LISTENER + 1,
            next_seed: 1,
            next_process: 0,
        })
    }

    /// Returns whether the guest is the active end.
    pub(crate) fn guest_is_client(&self) -> bool {
        self.role == Role::Client
    }

    /// Returns the path MTU that the wire carries.
    pub(crate) fn path_mtu(&self) -> u32 {
        if self.wire_mtu < 4_192 { 1_024 } else { 4_096 }
    }

    /// Returns a slot of the guest that is not in use.
    pub(crate) fn slot(&mut self) -> u32 {
        self.next_slot += 1;
        self.next_slot - 1
    }

    pub(crate) fn seed(&mut self) -> u32 {
        self.next_seed += 1;
        self.next_seed
    }

    /// Makes a queue pair of ours.
    pub(crate) fn end(&self) -> Result<End, Error> {
        let cq = self.context.create_cq(64)?;
        let qp = self.pd.create_qp(&cq, &cq)?;
        let mr = self.pd.alloc_mr(2 * LENGTH, AccessFlags::LOCAL_WRITE)?;
        qp.init()?;
        let end = End { qp, cq, mr };
        end.post_receive()?;
        Ok(end)
    }

    pub(crate) fn route(&self, port: u16) -> Result<Route, Error> {
        Ok(Route::on(&self.context, SocketAddr::new(self.remote, port))?.from(self.local)?)
    }

    /// Makes an object of the guest whose route to one of our ports is resolved.
    pub(crate) fn guests_client(&mut self, create: &str, port: u16) -> Result<u32, Error> {
        let slot = self.slot();
        self.guest.command(&format!("create {slot} {create}"))?;
        self.guest.command(&format!("resolve {slot} {} {port}", self.local))?;
        Ok(slot)
    }

    /// Makes the guest's queue pair of an object, with a receive posted.
    pub(crate) fn guests_queue_pair(&mut self, slot: u32) -> Result<u32, Error> {
        let qpn = self.guest.command(&format!("qp {slot}"))?.number("qpn")? as u32;
        self.guest.command(&format!("recv {slot} {LENGTH}"))?;
        Ok(qpn)
    }

    /// Waits for the request of our queue pair to the guest, which becomes a new object. Returns it with its event.
    ///
    /// The kernel takes a REQ that it has rejected for a new request if it was repeated meanwhile, so a slow machine
    /// has more requests than queue pairs: those of others are dropped.
    pub(crate) fn guest_takes(&mut self, qp: &QueuePair) -> Result<(u32, Reply), Error> {
        loop {
            let slot = self.slot();
            let request = self.guest.command(&format!("take {LISTENER} {slot}"))?;
            request.expect(&[("event", "connect_request"), ("status", "0")])?;
            if request.number("qpn")? == u64::from(qp.qpn().value()) {
                return Ok((slot, request));
            }
            self.guest.command(&format!("destroy {slot}"))?;
        }
    }

    /// Checks that no further request has arrived at the guest, unless a repetition may have become one.
    pub(crate) fn guest_has_no_request(&mut self) -> Outcome {
        if self.wire.of(REQ, true)?.len() > 1 {
            return Ok(());
        }
        self.guest.command(&format!("take {LISTENER} 1023 wait=0"))?.expect(&[("event", "none")])
    }

    /// Waits for a request to us.
    pub(crate) fn take(&self) -> Result<Request, Error> {
        self.listener.accept_within(PATIENCE)?.ok_or_else(|| "no request arrives".into())
    }

    /// Carries out a command with a `result`, which must be 0.
    pub(crate) fn guest_does(&mut self, command: &str) -> Outcome {
        self.guest.command(command)?.expect(&[("result", "0")])
    }

    /// Waits for an event of the guest's object.
    pub(crate) fn event(&mut self, slot: u32, name: &str, status: &str) -> Result<Reply, Error> {
        let event = self.guest.command(&format!("event {slot} wait=20000"))?;
        event.expect(&[("event", name)])?;
        event.expect(&[("status", status)])?;
        Ok(event)
    }

    /// Checks that an object of the guest has no event.
    pub(crate) fn no_event(&mut self, slot: u32) -> Outcome {
        self.guest.command(&format!("event {slot} wait=0"))?.expect(&[("event", "none")])
    }

    /// The guest connects to us: returns the request, and the guest's object.
    pub(crate) fn guest_requests(&mut self, terms: &Terms) -> Result<(Request, u32), Error> {
        let slot = self.guests_client(&terms.create, PORT)?;
        self.guests_queue_pair(slot)?;
        self.guest_does(&format!("connect {slot} {}", terms.guests))?;
        Ok((self.take()?, slot))
    }

    /// Sets up a connection in the role of this run.
    pub(crate) fn pair(&mut self, terms: &Terms) -> Result<Pair, Error> {
        let end = self.end()?;
        self.pair_with(end, terms)
    }

    /// The same, with a queue pair of ours that exists.
    pub(crate) fn pair_with(&mut self, end: End, terms: &Terms) -> Result<Pair, Error> {
        let (connection, slot) = if self.guest_is_client() {
            let (request, slot) = self.guest_requests(terms)?;
            let pending = request.start_accept(&end.qp, &terms.ours)?;
            self.event(slot, "established", "0")?;
            (pending.wait()?, slot)
        } else {
            let pending = self.route(PORT)?.start_connect(&end.qp, &terms.ours)?;
            self.guest_accepts(&end.qp, pending, terms)?
        };
        Ok(Pair { end, connection, slot })
    }

    /// The guest accepts our request.
    pub(crate) fn guest_accepts(
        &mut self,
        qp: &QueuePair,
        pending: PendingConnection<'_, QueuePair>,
        terms: &Terms,
    ) -> Result<(Connection, u32), Error> {
        let (slot, _) = self.guest_takes(qp)?;
        self.guests_queue_pair(slot)?;
        self.guest_does(&format!("accept {slot} {}", terms.guests))?;
        let connection = pending.wait()?;
        self.event(slot, "established", "0")?;
        Ok((connection, slot))
    }

    /// Sends a message each way, and checks the bytes.
    pub(crate) fn exchange(&mut self, pair: &Pair) -> Outcome {
        let (slot, seed) = (pair.slot, self.seed());
        pair.end.send(seed)?;
        let received = self.guest.command(&format!("received {slot} {LENGTH} {seed}"))?;
        received.expect(&[("status", "0"), ("check", "good")])?;
        pair.end.await_sent()?;
        let seed = self.seed();
        self.guest.command(&format!("send {slot} {LENGTH} {seed}"))?;
        pair.end.await_received(seed)?;
        self.guest.command(&format!("sent {slot}"))?.expect(&[("status", "0")])
    }

    /// Ends a connection from our end, and checks both ends.
    pub(crate) fn end_pair(&mut self, pair: &Pair) -> Outcome {
        pair.connection.disconnect(&pair.end.qp)?;
        self.event(pair.slot, "disconnected", "0")?;
        self.guest_does(&format!("disconnect {}", pair.slot))?;
        ensure(pair.connection.wait_disconnected(PATIENCE)?, "our end is not disconnected")?;
        self.guest.command(&format!("destroy {}", pair.slot))?;
        Ok(())
    }

    /// Starts another process of the guest; returns its id, and the exchange with it.
    pub(crate) fn spawn(&mut self) -> Result<(u64, Guest), Error> {
        self.next_process += 1;
        let port = FIRST_PROCESS_PORT + self.next_process;
        let pid = self.guest.command(&format!("spawn {port}"))?.number("pid")?;
        Ok((pid, Guest::connect(&format!("{}:{port}", self.guest_host), PATIENCE)?))
    }
}

impl End {
    /// Posts a receive into the second half of the memory.
    pub(crate) fn post_receive(&self) -> Outcome {
        Ok(self.qp.post_recv(&[ReceiveRequest::new(self.mr.slice(LENGTH..2 * LENGTH)?)])?)
    }

    pub(crate) fn send(&self, seed: u32) -> Outcome {
        self.mr.write_at(0, &pattern(seed, LENGTH))?;
        Ok(self.qp.post_send(&[SendRequest::send(self.mr.slice(..LENGTH)?).signaled()])?)
    }

    pub(crate) fn await_sent(&self) -> Outcome {
        self.cq.wait(PATIENCE)?.result()?;
        Ok(())
    }

    pub(crate) fn await_received(&self, seed: u32) -> Outcome {
        let length = self.cq.wait(PATIENCE)?.result()?.byte_len as usize;
        expect("length of the message", length, LENGTH)?;
        ensure(self.mr.to_vec(LENGTH..2 * LENGTH)? == pattern(seed, LENGTH), "wrong bytes")
    }

    pub(crate) fn attributes(&self) -> Result<QueuePairAttributes, Error> {
        Ok(self.qp.query()?.attributes)
    }
}

/// Returns data in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns data with zeros behind it.
pub(crate) fn padded(data: &[u8], length: usize) -> Vec<u8> {
    let mut padded = data.to_vec();
    padded.resize(length, 0);
    padded
}
