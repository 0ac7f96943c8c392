//! Two managers, the messages between them, and hand-made messages to one of them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::super::{
    AcceptParameters, Arrival, ConnectParameters, ConnectionHandle, ConnectionState, Event, Limits, ListenParameters,
    ListenerHandle, Manager, ManagerConfig, Outgoing, PathParameters,
};
use crate::types::{Mtu, Psn, Qpn, Time};
use crate::wire::mad::{
    CommunicationId, ConnectReply, ConnectRequest, ConnectionTransport, FlowLabel, IpHeader, Mad, Message,
    MessageRetries, MtuCode, Path, PortSpace, PrivateData, RejectReason, RejectedMessage, RetryCount, ServiceId,
    TimeoutCode,
};

pub(super) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 99, 0, 3));
pub(super) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 99, 0, 2));
pub(super) const CLIENT_GUID: u64 = 0x5054_00ff_fe00_000b;
pub(super) const SERVER_GUID: u64 = 0x5054_00ff_fe00_000a;
pub(super) const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 5001);
pub(super) const DATAGRAM_SERVICE: ServiceId = ServiceId::of_port(PortSpace::Udp, 5005);
pub(super) const CLIENT_QPN: Qpn = Qpn::new(0x12);
pub(super) const SERVER_QPN: Qpn = Qpn::new(0x21);

/// A message with its transaction id and its destination.
pub(super) type Sent = (Message, u64, IpAddr);

/// A manager with a clock.
pub(super) struct End {
    pub(super) manager: Manager,
    pub(super) address: IpAddr,
    pub(super) now: Time,
    /// Datagrams that were sent while time passed.
    saved: Vec<Outgoing>,
}

impl End {
    pub(super) fn new(address: IpAddr, guid: u64) -> Self {
        Self::with_limits(address, guid, Limits::default())
    }

    pub(super) fn with_limits(address: IpAddr, guid: u64, limits: Limits) -> Self {
        let mut state = guid;
        // The low 12 bits spread repetitions: without them the tests' times are exact.
        let random = Box::new(move || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 32) as u32 & !0xfff
        });
        let config = ManagerConfig { guid, id_block: guid as u32 & 0xfff, addresses: vec![address], random, limits };
        Self { manager: Manager::new(config), address, now: Time::from_nanos(1_000_000_000), saved: Vec::new() }
    }

    pub(super) fn client() -> Self {
        Self::new(CLIENT, CLIENT_GUID)
    }

    /// A server that listens for connections and for datagram requests.
    pub(super) fn server() -> (Self, ListenerHandle) {
        let mut server = Self::new(SERVER, SERVER_GUID);
        let listener = server.listen(SERVICE, 8);
        (server, listener)
    }

    pub(super) fn listen(&mut self, service_id: ServiceId, backlog: usize) -> ListenerHandle {
        self.listen_for(service_id, ConnectionTransport::Reliable, backlog)
    }

    pub(super) fn listen_for(
        &mut self,
        service_id: ServiceId,
        transport: ConnectionTransport,
        backlog: usize,
    ) -> ListenerHandle {
        let is_datagram = service_id == DATAGRAM_SERVICE;
        let parameters = ListenParameters { service_id, address: None, is_datagram, transport, backlog };
        self.manager.listen(parameters).unwrap()
    }

    /// Returns all datagrams to send.
    pub(super) fn outputs(&mut self) -> Vec<Outgoing> {
        self.save_outputs();
        std::mem::take(&mut self.saved)
    }

    fn save_outputs(&mut self) {
        self.saved.extend(std::iter::from_fn(|| self.manager.poll_output()));
    }

    /// Returns all messages to send.
    pub(super) fn sent(&mut self) -> Vec<Sent> {
        let read = |outgoing: Outgoing| {
            let mad = Mad::read(&outgoing.bytes).unwrap();
            (Message::read(&mad).unwrap(), mad.transaction_id, outgoing.destination)
        };
        self.outputs().into_iter().map(read).collect()
    }

    /// Returns the only message to send.
    pub(super) fn sent_one(&mut self) -> Sent {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent[0]
    }

    pub(super) fn events(&mut self) -> Vec<Event> {
        assert!(self.manager.events.most_of_one() <= super::super::event::MOST_OF_ONE);
        std::iter::from_fn(|| self.manager.poll_event()).collect()
    }

    pub(super) fn event(&mut self) -> Event {
        let mut events = self.events();
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    pub(super) fn receive(&mut self, source: IpAddr, bytes: &[u8]) {
        let arrival =
            Arrival { source, destination: self.address, traffic_class: 0, flow_label: FlowLabel::default(), bytes };
        self.manager.handle_datagram(self.now, &arrival);
    }

    /// Receives a hand-made message from the other host.
    pub(super) fn take_message(&mut self, message: impl Into<Message>) {
        let source = if self.address == CLIENT { SERVER } else { CLIENT };
        self.receive(source, &message.into().to_mad(TRANSACTION).write());
    }

    /// Handles deadlines as a process that is alone: no other one has a listener.
    fn handle_timeout(&mut self) {
        self.manager.handle_timeout(self.now);
        while let Some(held) = self.manager.poll_held(self.now) {
            self.manager.return_held(self.now, held);
        }
    }

    /// Lets time pass, deadline by deadline.
    pub(super) fn wait(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(deadline) = self.manager.next_deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.handle_timeout();
            self.save_outputs();
        }
        self.now = end;
    }

    /// Lets time pass until messages are sent, and returns them with the time.
    pub(super) fn wait_for_message(&mut self) -> (Duration, Vec<Sent>) {
        let start = self.now;
        loop {
            let deadline = self.manager.next_deadline().expect("a deadline");
            self.now = self.now.max(deadline);
            self.handle_timeout();
            let sent = self.sent();
            if !sent.is_empty() {
                return (self.now - start, sent);
            }
        }
    }

    pub(super) fn connect(&mut self) -> ConnectionHandle {
        self.manager.connect(self.now, &connect_parameters()).unwrap()
    }

    pub(super) fn accept(&mut self, connection: ConnectionHandle) {
        let parameters = AcceptParameters { local_qpn: SERVER_QPN, ..AcceptParameters::default() };
        self.manager.accept(self.now, connection, &parameters).unwrap();
    }

    /// Takes the event of a request.
    pub(super) fn requested(&mut self) -> ConnectionHandle {
        match self.event() {
            Event::ConnectRequest { connection, .. } => connection,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn state(&self, connection: ConnectionHandle) -> Option<ConnectionState> {
        self.manager.state(connection)
    }
}

/// The transaction id of hand-made messages.
pub(super) const TRANSACTION: u64 = 0x0000_0002_6b6d_994c;

/// Delivers all messages between two ends until there are none.
pub(super) fn deliver(ends: [&mut End; 2]) {
    let [one, other] = ends;
    loop {
        let (from_one, from_other) = (one.outputs(), other.outputs());
        if from_one.is_empty() && from_other.is_empty() {
            return;
        }
        from_one.iter().for_each(|datagram| other.receive(one.address, &datagram.bytes));
        from_other.iter().for_each(|datagram| one.receive(other.address, &datagram.bytes));
    }
}

/// A connection between two ends, set up.
pub(super) fn connected() -> (End, ConnectionHandle, End, ConnectionHandle) {
    let (mut client, (mut server, _)) = (End::client(), End::server());
    let (active, passive) = connect_ends(&mut client, &mut server);
    (client, active, server, passive)
}

/// A client whose REQ has arrived at the application of a server.
pub(super) fn requested() -> (End, ConnectionHandle, End, ConnectionHandle) {
    let (mut client, (mut server, _)) = (End::client(), End::server());
    let active = client.connect();
    deliver([&mut client, &mut server]);
    let passive = server.requested();
    (client, active, server, passive)
}

/// A client whose REQ the server has accepted; its application has not polled the event of the REP.
pub(super) fn accepted() -> (End, ConnectionHandle, End, ConnectionHandle) {
    let (mut client, active, mut server, passive) = requested();
    server.accept(passive);
    deliver([&mut client, &mut server]);
    (client, active, server, passive)
}

/// Sets up a connection between two ends.
pub(super) fn connect_ends(client: &mut End, server: &mut End) -> (ConnectionHandle, ConnectionHandle) {
    let active = client.connect();
    deliver([client, server]);
    let passive = server.requested();
    server.accept(passive);
    deliver([client, server]);
    assert!(matches!(client.event(), Event::Reply { connection, .. } if connection == active));
    client.manager.ready(client.now, active).unwrap();
    deliver([client, server]);
    assert_eq!(server.event(), Event::Established { connection: passive });
    (active, passive)
}

pub(super) fn header() -> IpHeader {
    IpHeader::new(SocketAddr::new(CLIENT, 51044), SERVER).unwrap()
}

pub(crate) fn path_parameters() -> PathParameters {
    PathParameters {
        local: CLIENT,
        remote: SERVER,
        traffic_class: 0x68,
        flow_label: FlowLabel::new(0x8_38a5),
        hop_limit: 64,
        ack_timeout: TimeoutCode::saturating(17),
    }
}

pub(crate) fn connect_parameters() -> ConnectParameters {
    ConnectParameters {
        service_id: SERVICE,
        header: header(),
        path: path_parameters(),
        transport: ConnectionTransport::Reliable,
        local_qpn: CLIENT_QPN,
        starting_psn: Psn::new(0x77_388d),
        responder_resources: 5,
        initiator_depth: 6,
        end_to_end_flow_control: true,
        retry_count: RetryCount::saturating(7),
        rnr_retry_count: RetryCount::saturating(4),
        path_mtu: Mtu::Mtu1024,
        has_srq: false,
        vendor_options: Default::default(),
        native: None,
        private_data: PrivateData::new(b"hello-req").unwrap(),
        deadline: None,
    }
}

/// A hand-made REQ, as Linux sends it.
pub(super) fn request() -> ConnectRequest {
    ConnectRequest {
        local_id: CommunicationId(0x4c99_6d6b),
        service_id: SERVICE,
        local_guid: CLIENT_GUID,
        local_qpn: CLIENT_QPN,
        responder_resources: 5,
        initiator_depth: 6,
        remote_response_timeout: TimeoutCode::saturating(20),
        starting_psn: Psn::new(0x77_388d),
        local_response_timeout: TimeoutCode::saturating(20),
        retry_count: RetryCount::MAX,
        pkey: 0xffff,
        path_mtu: MtuCode::new(3).unwrap(),
        max_cm_retries: MessageRetries::MAX,
        primary_path: Path {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: CLIENT.into(),
            remote_gid: SERVER.into(),
            hop_limit: 64,
            local_ack_timeout: TimeoutCode::saturating(17),
            ..Path::default()
        },
        private_data: header().with_data(b"hello-req").unwrap(),
        ..ConnectRequest::default()
    }
}

/// The REP to a REQ, hand-made.
pub(super) fn reply_to(sent: Message) -> ConnectReply {
    let Message::ConnectRequest(request) = sent else { panic!("{sent:?}") };
    ConnectReply {
        local_id: CommunicationId(0x74e5_e344),
        remote_id: request.local_id,
        local_qpn: SERVER_QPN,
        starting_psn: Psn::new(0x7f_6f58),
        local_guid: SERVER_GUID,
        ..ConnectReply::default()
    }
}

/// The reason and the rejected message of a REJ.
pub(super) fn reason_of(message: Message) -> (RejectReason, RejectedMessage) {
    match message {
        Message::Reject(reject) => (reject.reason, reject.rejected),
        other => panic!("{other:?}"),
    }
}

pub(super) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
