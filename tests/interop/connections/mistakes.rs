//! Requests with one mistake each, to the kernel and to this crate's manager of connections: the response of both to
//! the same datagram. And the reasons of REJs that reach the kernel's application.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use rdma_verbs::cm::{Arrival, Event, Limits, ListenParameters, Manager, ManagerConfig};
use rdma_verbs::types::{Gid, Psn, Qkey, Qpn, Time};
use rdma_verbs::wire::mad::{
    AlternatePath, CommunicationId, ConnectRequest, FlowLabel, IpHeader, Mad, Message, MtuCode, Path, PortSpace,
    PrivateData, Reject, RejectReason, RejectedMessage, ServiceId, ServiceIdRequest, ServiceIdStatus, TimeoutCode,
    TransportType,
};

use support::requests::{connect_request, ip_header};

use crate::Kernel;
use crate::forger::Forger;
use crate::home::{CLOSED_PORT, Error, Home, LISTENER, Outcome, PORT, Terms, ensure, expect, hex, padded};
use crate::wire::{REJ, REQ, SIDR_REP};

/// First transaction id of these requests: that of the kernel's own has another upper half.
const FIRST_TRANSACTION: u64 = 0x0bad_0000_0000_0000;
const PATIENCE: Duration = Duration::from_secs(10);
/// A response that is not expected comes within this time, or is noticed at the end.
const QUIET: Duration = Duration::from_millis(300);

const REQUESTED: Response = Response::Event;
const CONSUMER: Response = Response::Reject(RejectReason::CONSUMER);
const INVALID_GID: Response = Response::Reject(RejectReason::INVALID_GID);
const INVALID_MTU: Response = Response::Reject(RejectReason::INVALID_MTU);
const REJECTED: Response = Response::Refuse(ServiceIdStatus::REJECTED);

/// The reaction of an end to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Response {
    Reject(RejectReason),
    Refuse(ServiceIdStatus),
    /// Its application gets the request.
    Event,
    Silence,
}

/// A request, and the reactions of both ends.
struct Mistake {
    name: &'static str,
    request: Message,
    kernel: Response,
    ours: Response,
}

/// All of them, and the ends that they are between.
struct List {
    mistakes: Vec<Mistake>,
    local: IpAddr,
    remote: IpAddr,
    kernel: Kernel,
}

impl List {
    fn of(home: &Home) -> Self {
        let mut list = Self { mistakes: Vec::new(), local: home.local, remote: home.remote, kernel: home.kernel };
        list.add_services();
        list.add_paths();
        list.add_headers();
        list.add_fields();
        list.add_inquiries();
        list
    }

    /// Adds a REQ that both ends respond to alike.
    fn add(&mut self, name: &'static str, both: Response, change: impl FnOnce(&mut ConnectRequest)) {
        self.add_with(name, both, both, change);
    }

    fn add_with(
        &mut self,
        name: &'static str,
        kernel: Response,
        ours: Response,
        change: impl FnOnce(&mut ConnectRequest),
    ) {
        let mut request = self.request();
        change(&mut request);
        self.mistakes.push(Mistake { name, request: request.into(), kernel, ours });
    }

    /// Adds a SIDR_REQ that both ends respond to alike.
    fn add_inquiry(&mut self, name: &'static str, both: Response, change: impl FnOnce(&mut ServiceIdRequest)) {
        let mut request = ServiceIdRequest {
            request_id: CommunicationId(self.number().wrapping_mul(0x9e37_79b1)),
            pkey: 0xffff,
            service_id: ServiceId::of_port(PortSpace::Udp, PORT),
            private_data: ip_header(self.local, self.remote).with_data(b"inquiry").expect("a short value"),
        };
        change(&mut request);
        self.mistakes.push(Mistake { name, request: request.into(), kernel: both, ours: both });
    }

    /// Returns the number of the next request, which all its identities depend on.
    fn number(&self) -> u32 {
        self.mistakes.len() as u32 + 1
    }

    /// Returns the next REQ, without a mistake, as Linux sends it.
    fn request(&self) -> ConnectRequest {
        let ends = [self.local, self.remote];
        ConnectRequest { starting_psn: Psn::new(7), ..connect_request(self.number(), PORT, ends, b"request") }
    }

    /// Returns that of the run's IP version.
    fn either(&self, v4: &str, v6: &str) -> IpAddr {
        if self.local.is_ipv4() { v4 } else { v6 }.parse().expect("an IP address")
    }

    /// Requests for services that nothing listens for, or something else.
    fn add_services(&mut self) {
        const NO_LISTENER: Response = Response::Reject(RejectReason::INVALID_SERVICE_ID);
        self.add("no mistake", REQUESTED, |_| {});
        self.add("port without a listener", NO_LISTENER, |request| {
            request.service_id = ServiceId::of_port(PortSpace::Tcp, CLOSED_PORT);
        });
        self.add("port of another space", NO_LISTENER, |request| {
            request.service_id = ServiceId::of_port(PortSpace::Ib, PORT);
        });
        self.add("service without a port", NO_LISTENER, |request| request.service_id = ServiceId(PORT.into()));
        self.add("service of datagrams", CONSUMER, |request| {
            request.service_id = ServiceId::of_port(PortSpace::Udp, PORT);
        });
    }

    fn add_paths(&mut self) {
        // Addresses of this end.
        let other_version = self.either("fd99::1", "10.99.0.1");
        let other_host = self.either("10.99.0.77", "fd99::77");
        // Linux 6.1 drops a request with a P_Key that its port does not have.
        let of_pkey = if self.kernel == Kernel::V6_1 { Response::Silence } else { INVALID_GID };
        self.add_with("unknown P_Key", of_pkey, INVALID_GID, |request| request.pkey = 0x1234);
        self.add_with("P_Key 0", of_pkey, INVALID_GID, |request| request.pkey = 0);
        self.add("P_Key of a limited member", REQUESTED, |request| request.pkey = 0x7fff);
        self.add("local GID 0", INVALID_GID, |request| request.primary_path.local_gid = Gid::ZERO);
        self.add("local GID of another IP version", INVALID_GID, |request| {
            request.primary_path.local_gid = other_version.into();
        });
        let of_other = if self.local.is_ipv4() { INVALID_GID } else { REQUESTED };
        self.add_with("remote GID of another host", of_other, INVALID_GID, |request| {
            request.primary_path.remote_gid = other_host.into();
        });
        self.add("alternate path", Response::Reject(RejectReason::INVALID_ALTERNATE_GID), |request| {
            let path = Path { local_lid: 1, ..request.primary_path };
            request.alternate_path = AlternatePath::new(path);
        });
        self.add("alternate path without a LID", REQUESTED, |request| {
            let path = Path { local_lid: 0, ..request.primary_path };
            request.alternate_path = AlternatePath::new(path);
        });
        self.add("unusual path", REQUESTED, |request| {
            let path = &mut request.primary_path;
            (path.local_lid, path.remote_lid, path.hop_limit, path.subnet_local) = (0, 7, 0, true);
            (path.traffic_class, path.flow_label) = (0x68, FlowLabel::new(7));
        });
        for code in [0, 31] {
            self.add("extreme timeout", REQUESTED, |request| {
                request.primary_path.local_ack_timeout = TimeoutCode::saturating(code);
            });
        }
    }

    /// The header of IP connections, in the private data.
    fn add_headers(&mut self) {
        self.add("version of the header", CONSUMER, |request| change_data(request, |bytes| bytes[0] = 1));
        self.add("IP version 5", CONSUMER, |request| change_data(request, |bytes| bytes[1] = 0x50));
        let other_version = if self.local.is_ipv4() { 0x60 } else { 0x40 };
        self.add("another IP version", CONSUMER, |request| change_data(request, |bytes| bytes[1] = other_version));
        self.add("no header", CONSUMER, |request| change_data(request, |bytes| bytes.fill(0)));
        self.add("port 0", REQUESTED, |request| change_data(request, |bytes| bytes[2..4].fill(0)));
        let (local, remote) = (self.local, self.remote);
        for destination in [("10.99.0.77", "fd99::77"), ("127.0.0.1", "::1"), ("0.0.0.0", "::")] {
            let header = ip_header(local, self.either(destination.0, destination.1));
            self.add("destination in the header", CONSUMER, |request| set_header(request, header));
        }
        for source in [("127.0.0.1", "::1"), ("0.0.0.0", "::")] {
            let header = ip_header(self.either(source.0, source.1), remote);
            self.add("source in the header", CONSUMER, |request| set_header(request, header));
        }
        // The kernel has a route to groups of IPv6, and does not look further.
        let of_group = if self.local.is_ipv4() { CONSUMER } else { REQUESTED };
        let header = ip_header(self.either("224.0.0.1", "ff02::1"), remote);
        self.add_with("group as the source", of_group, CONSUMER, |request| set_header(request, header));
        for source in [self.either("10.99.0.77", "fd99::77"), remote] {
            let header = ip_header(source, remote);
            self.add("source of another host", REQUESTED, |request| set_header(request, header));
        }
        // The kernel looks up its route to the source.
        let header = ip_header(self.either("192.168.77.7", "fd77::7"), remote);
        self.add_with("source without a route", CONSUMER, REQUESTED, |request| set_header(request, header));
    }

    fn add_fields(&mut self) {
        for transport in [TransportType::UnreliableConnection, TransportType::ReliableDatagram, TransportType::Extended]
        {
            self.add("another transport", CONSUMER, |request| request.transport = transport);
        }
        for code in 0..16 {
            // The kernel's application is not able to accept a code above 5.
            let ours = if (1..=5).contains(&code) { REQUESTED } else { INVALID_MTU };
            self.add_with("path MTU", REQUESTED, ours, |request| {
                request.path_mtu = MtuCode::new(code).expect("a short value");
            });
        }
        self.add("GUID 0", REQUESTED, |request| request.local_guid = 0);
        self.add("communication id 0", REQUESTED, |request| request.local_id = CommunicationId::NONE);
        for qpn in [Qpn::new(0), Qpn::new(1), Qpn::MULTICAST] {
            self.add("unusual queue pair", REQUESTED, |request| request.local_qpn = qpn);
        }
        for count in [0, 255] {
            self.add("extreme resources", REQUESTED, |request| {
                (request.responder_resources, request.initiator_depth) = (count, count);
            });
        }
        self.add("fields of other services", REQUESTED, |request| {
            (request.local_qkey, request.has_srq, request.end_to_end_flow_control) = (Qkey(1), true, true);
        });
    }

    fn add_inquiries(&mut self) {
        self.add_inquiry("inquiry", REQUESTED, |_| {});
        self.add_inquiry("inquiry with an unknown P_Key", REQUESTED, |request| request.pkey = 0x1234);
        self.add_inquiry("inquiry without a listener", Response::Refuse(ServiceIdStatus::UNSUPPORTED), |request| {
            request.service_id = ServiceId::of_port(PortSpace::Udp, CLOSED_PORT);
        });
        self.add_inquiry("inquiry for a service of connections", REJECTED, |request| {
            request.service_id = ServiceId::of_port(PortSpace::Tcp, PORT);
        });
        self.add_inquiry("inquiry without a header", REJECTED, |request| {
            request.private_data = PrivateData::default();
        });
        let header = ip_header(self.local, self.either("10.99.0.77", "fd99::77"));
        self.add_inquiry("inquiry for another host", REJECTED, |request| {
            request.private_data = header.with_data(&[]).expect("a short value");
        });
    }
}

fn change_data(request: &mut ConnectRequest, change: impl FnOnce(&mut [u8])) {
    let mut bytes = *request.private_data.as_bytes();
    change(&mut bytes);
    request.private_data = PrivateData::new(&bytes).expect("a short value");
}

fn set_header(request: &mut ConnectRequest, header: IpHeader) {
    request.private_data = header.with_data(b"request").expect("a short value");
}

/// Each request has the response that the list says: from the kernel, and from this crate's manager.
pub(crate) fn have_the_same_response(home: &mut Home) -> Outcome {
    let (list, forger, slot, inquiries) =
        (List::of(home), Forger::new(home.local, home.remote)?, home.slot(), home.slot());
    home.guest.command(&format!("create {inquiries} space=udp"))?;
    home.guest.command(&format!("listen {inquiries} {} {PORT}", home.remote))?;
    let mut failures = Vec::new();
    for (index, mistake) in list.mistakes.iter().enumerate() {
        let transaction = FIRST_TRANSACTION + index as u64;
        let ours = our_response(home, &mistake.request, transaction)?;
        if ours != mistake.ours {
            failures.push(format!("{index} {}: ours {ours:?} instead of {:?}", mistake.name, mistake.ours));
        }
        forger.send(mistake.request, transaction)?;
        if let Err(error) = await_kernels_response(home, mistake, transaction, (slot, inquiries)) {
            failures.push(format!("{index} {}: the kernel's is not {:?}: {error}", mistake.name, mistake.kernel));
        }
    }
    for (index, mistake) in list.mistakes.iter().enumerate() {
        let count = responses(home, FIRST_TRANSACTION + index as u64)?.len();
        if count != usize::from(mistake.kernel != Response::Silence) {
            failures.push(format!("{index} {}: {count} responses of the kernel", mistake.name));
        }
    }
    for listener in [LISTENER, inquiries] {
        home.guest.command(&format!("take {listener} {slot} wait=0"))?.expect(&[("event", "none")])?;
    }
    home.guest.command(&format!("destroy {inquiries}"))?;
    ensure(failures.is_empty(), &failures.join("\n"))
}

/// Waits for the kernel's response. Its application drops a request that it gets, which is a response, too.
fn await_kernels_response(
    home: &mut Home,
    mistake: &Mistake,
    transaction: u64,
    (slot, inquiries): (u32, u32),
) -> Outcome {
    let mut expected = mistake.kernel;
    if expected == Response::Silence {
        std::thread::sleep(QUIET);
        return Ok(());
    }
    if expected == Response::Event {
        expected = guest_drops(home, &mistake.request, slot, inquiries)?;
    }
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = responses(home, transaction)?.first() {
            return expect("response", *found, expected);
        }
        ensure(Instant::now() < end, "no response")?;
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The kernel's application gets the request, and drops it: returns the response to that. A request that has come after
/// its check failed is not this one.
fn guest_drops(home: &mut Home, request: &Message, slot: u32, inquiries: u32) -> Result<Response, Error> {
    let (listener, qpn, response) = match request {
        Message::ConnectRequest(request) => (LISTENER, request.local_qpn.value(), CONSUMER),
        _ => (inquiries, 0, REJECTED),
    };
    loop {
        let event = home.guest.command(&format!("take {listener} {slot}"))?;
        event.expect(&[("event", "connect_request"), ("status", "0")])?;
        let is_it = event.number("qpn")? == u64::from(qpn);
        home.guest.command(&format!("destroy {slot}"))?;
        if is_it {
            return Ok(response);
        }
    }
}

/// Returns the kernel's responses with this transaction id.
fn responses(home: &Home, transaction: u64) -> Result<Vec<Response>, Error> {
    let response = |mad: &crate::wire::Mad| match mad.attribute {
        REJ => Some(Response::Reject(RejectReason(mad.rejection().0))),
        SIDR_REP => Some(Response::Refuse(ServiceIdStatus(mad.body[4]))),
        _ => None,
    };
    let mads = home.wire.mads()?;
    let of_it = mads.iter().filter(|mad| !mad.is_ours && mad.transaction == transaction);
    Ok(of_it.filter_map(response).collect())
}

/// Returns the reaction of this crate's manager to a request, at the kernel's address.
fn our_response(home: &Home, request: &Message, transaction: u64) -> Result<Response, Error> {
    let mut manager = Manager::new(ManagerConfig {
        guid: 1,
        id_block: 0,
        addresses: vec![home.remote],
        random: Box::new(|| 0x5a5a_5a5a),
        limits: Limits::default(),
    });
    for (space, is_datagram) in [(PortSpace::Tcp, false), (PortSpace::Udp, true)] {
        let (service_id, address) = (ServiceId::of_port(space, PORT), Some(home.remote));
        let transport = Default::default();
        manager.listen(ListenParameters { service_id, address, is_datagram, transport, backlog: 4 })?;
    }
    let (bytes, flow_label) = (request.to_mad(transaction).write(), FlowLabel::default());
    let arrival = Arrival { source: home.local, destination: home.remote, traffic_class: 0, flow_label, bytes: &bytes };
    manager.handle_datagram(Time::from_nanos(1), &arrival);
    // A request for a port without a listener has waited for one long enough.
    let end = Time::from_nanos(1_000_000_000);
    while let Some(held) = manager.poll_held(end) {
        manager.return_held(end, held);
    }
    match manager.poll_event() {
        Some(Event::ConnectRequest { .. } | Event::Inquiry { .. }) => return Ok(Response::Event),
        Some(other) => return Err(format!("{other:?}").into()),
        None => {}
    }
    let Some(output) = manager.poll_output() else { return Ok(Response::Silence) };
    match Message::read(&Mad::read(&output.bytes)?)? {
        Message::Reject(reject) => Ok(Response::Reject(reject.reason)),
        Message::ServiceIdReply(reply) => Ok(Response::Refuse(reply.status)),
        other => Err(format!("{other:?}").into()),
    }
}

/// Reasons of REJs that Linux does not send, those with a meaning for the connection manager, and one without any.
const REASONS: [u16; 16] = [0, 1, 2, 3, 5, 6, 9, 10, 12, 24, 25, 26, 27, 31, 35, 1_000];

/// The reason and the data of a REJ reach the kernel's application as they are: it follows no redirection.
pub(crate) fn reasons_reach_the_guest(home: &mut Home) -> Outcome {
    let forger = Forger::new(home.local, home.remote)?;
    for reason in REASONS {
        home.wire.forget()?;
        let (request, slot) = home.guest_requests(&Terms::default())?;
        let sent = home.wire.first(REQ, false)?;
        let reject = Reject {
            remote_id: CommunicationId(sent.u32_at(0)),
            rejected: RejectedMessage::ConnectRequest,
            reason: RejectReason(reason),
            private_data: PrivateData::new(b"reason").expect("a short value"),
            ..Reject::default()
        };
        forger.send(reject.into(), sent.transaction)?;
        let event = home.event(slot, "rejected", &reason.to_string())?;
        event.expect(&[("length", "148"), ("data", &hex(&padded(b"reason", 148)))])?;
        // Our own REJ is the second one.
        drop(request);
        home.no_event(slot)?;
        home.guest.command(&format!("destroy {slot}"))?;
    }
    Ok(())
}
