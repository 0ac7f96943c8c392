//! Blind senders: messages with some of the numbers of a connection, and wrong ones in place of the others. They end no
//! connection, whether it is set up or not, from whatever address they claim to come.

use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::Duration;

use rdma_verbs::types::{Psn, Qpn};
use rdma_verbs::verbs::cm::{ConnectionOptions, Route};
use rdma_verbs::wire::mad::{
    AdditionalInformation, AlternatePathResponse, CommunicationId, ConnectReply, ConnectRequest, DisconnectReply,
    DisconnectRequest, LoadAlternatePath, Message, MessageReceipt, ReadyToUse, ReceivedMessage, Reject, RejectReason,
    RejectedMessage, TimeoutCode,
};

use super::forger::{Forger, Observer, Seen};
use super::victim::{ACCEPT, CLOSED, Client, ECHO, Victim};
use crate::Attack;
use crate::world::{PATIENCE, new_address};

pub(super) const ATTACKS: &[Attack] = &[
    ("connections/blind_messages_to_a_connection", |_| to_a_connection()),
    ("connections/blind_messages_to_an_accepted_request", |_| to_an_accepted_request()),
    ("connections/blind_messages_to_a_requester", |_| to_a_requester()),
    ("connections/a_forged_request_of_a_connected_queue_pair", |_| of_a_connected_queue_pair()),
];

/// Wrong ids beside each right one.
const GUESSES: u32 = 60;
const TRANSACTION: u64 = 0x5ec2e7;

/// The numbers of a connection, from the side of the victim.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    /// The victim's id.
    own: CommunicationId,
    own_qpn: Qpn,
    /// The id of its peer.
    peer: CommunicationId,
    peer_guid: u64,
    peer_qpn: Qpn,
}

impl Numbers {
    fn of_passive_end(request: &ConnectRequest, reply: &ConnectReply) -> Self {
        Self {
            own: reply.local_id,
            own_qpn: reply.local_qpn,
            peer: request.local_id,
            peer_guid: request.local_guid,
            peer_qpn: request.local_qpn,
        }
    }

    fn of_active_end(request: &ConnectRequest, reply: &ConnectReply) -> Self {
        Self {
            own: request.local_id,
            own_qpn: request.local_qpn,
            peer: reply.local_id,
            peer_guid: reply.local_guid,
            peer_qpn: reply.local_qpn,
        }
    }

    /// Returns messages to the victim with these ids, of every kind and, where there are several, of every reason.
    fn messages(&self, local_id: CommunicationId, remote_id: CommunicationId) -> Vec<Message> {
        let receipt = |received| MessageReceipt {
            local_id,
            remote_id,
            received,
            service_timeout: TimeoutCode::MAX,
            ..Default::default()
        };
        let reply = ConnectReply {
            local_id,
            remote_id,
            local_guid: 7,
            local_qpn: Qpn::new(0x77),
            starting_psn: Psn::new(5),
            ..Default::default()
        };
        let mut messages = vec![
            DisconnectRequest { local_id, remote_id, remote_qpn: self.own_qpn, ..Default::default() }.into(),
            ReadyToUse { local_id, remote_id, ..Default::default() }.into(),
            DisconnectReply { local_id, remote_id, ..Default::default() }.into(),
            LoadAlternatePath { local_id, remote_id, ..Default::default() }.into(),
            AlternatePathResponse { local_id, remote_id, ..Default::default() }.into(),
            reply.into(),
        ];
        let received =
            [ReceivedMessage::ConnectRequest, ReceivedMessage::ConnectReply, ReceivedMessage::LoadAlternatePath];
        messages.extend(received.map(|received| Message::from(receipt(received))));
        let guid = AdditionalInformation::new(&self.peer_guid.to_be_bytes()).expect("8 bytes");
        for reason in [RejectReason::TIMEOUT, RejectReason::CONSUMER, RejectReason::STALE_CONNECTION] {
            for rejected in [RejectedMessage::ConnectRequest, RejectedMessage::ConnectReply, RejectedMessage::Other] {
                let information = if reason == RejectReason::TIMEOUT { guid } else { Default::default() };
                messages
                    .push(Reject { local_id, remote_id, rejected, reason, information, ..Default::default() }.into());
            }
        }
        messages
    }

    /// Returns messages that each have at most one of both ids right.
    fn blind(&self) -> Vec<Message> {
        let mut pairs = vec![(self.peer, CommunicationId::NONE), (self.own, self.peer)];
        for guess in 1..=GUESSES {
            let near = |id: CommunicationId| CommunicationId(id.0 ^ guess);
            let far = |id: CommunicationId| CommunicationId(id.0 ^ guess.rotate_right(12));
            pairs.extend([(self.peer, near(self.own)), (self.peer, far(self.own))]);
            pairs.extend([(near(self.peer), self.own), (far(self.peer), self.own)]);
        }
        pairs.into_iter().flat_map(|(local_id, remote_id)| self.messages(local_id, remote_id)).collect()
    }
}

/// Sends messages from the peer's address and from another one, and calls `look` in between.
fn send_all(forger: &Forger, peer: Ipv4Addr, messages: &[Message], mut look: impl FnMut()) {
    for (count, message) in messages.iter().enumerate() {
        for source in [peer, forger.source] {
            forger.send_message(source, *message, TRANSACTION);
        }
        if count % 32 == 0 {
            look();
            // The victim may have one processor with this program.
            thread::sleep(Duration::from_micros(200));
        }
    }
    look();
}

/// Connects a client, and returns its numbers.
fn connect_and_look(victim: Ipv4Addr) -> (Client, ConnectRequest, ConnectReply) {
    let observer = Observer::of_all();
    let client = Client::connect(victim);
    let (mut request, mut reply) = (None, None);
    while request.is_none() || reply.is_none() {
        match observer.next(PATIENCE).expect("the handshake").message() {
            Message::ConnectRequest(seen) => request = Some(seen),
            Message::ConnectReply(seen) => reply = Some(seen),
            _ => {}
        }
    }
    (client, request.expect("a REQ"), reply.expect("a REP"))
}

/// Connects to the victim. Returns the REQ, and each end with its peer and the numbers that a forger of the peer needs.
fn connect_ends(victim: Ipv4Addr) -> (Client, ConnectRequest, [(Ipv4Addr, Ipv4Addr, Numbers); 2]) {
    let (client, request, reply) = connect_and_look(victim);
    let ends = [
        (victim, client.address, Numbers::of_passive_end(&request, &reply)),
        (client.address, victim, Numbers::of_active_end(&request, &reply)),
    ];
    (client, request, ends)
}

fn to_a_connection() {
    let victim = Victim::start();
    let (client, request, ends) = connect_ends(victim.address);
    for (end, peer, numbers) in ends {
        let forger = Forger::new(end, new_address());
        let mut messages = numbers.blind();
        // Both ids and another queue pair; a REQ with only one of GUID and queue pair; a REJ that gives up the REQ.
        for bit in 0..24 {
            let remote_qpn = Qpn::new(numbers.own_qpn.value() ^ 1 << bit);
            let (local_id, remote_id) = (numbers.peer, numbers.own);
            messages.push(DisconnectRequest { local_id, remote_id, remote_qpn, ..Default::default() }.into());
            let forged = forger.request_from(peer, 5_000 + bit, CLOSED);
            let (local_guid, local_qpn) = (numbers.peer_guid, numbers.peer_qpn);
            let other_qpn = Qpn::new(local_qpn.value() ^ 1 << bit);
            messages.push(ConnectRequest { local_guid, local_qpn: other_qpn, ..forged }.into());
            messages.push(ConnectRequest { local_guid: local_guid ^ 1 << bit, local_qpn, ..forged }.into());
        }
        // The numbers of the REQ again, with another queue pair.
        messages.push(ConnectRequest { local_qpn: Qpn::new(0x77), ..request }.into());
        send_all(&forger, peer, &messages, || client.exchange());
        println!("{} messages to a connection: {end}", 2 * messages.len());
    }
    client.disconnect();
}

/// A peer without a queue pair, which the forger does not see.
fn to_an_accepted_request() {
    let victim = Victim::start();
    let client = Client::connect(victim.address);
    let peer = Forger::new(victim.address, new_address());
    let observer = Observer::of(victim.address);
    let to_peer = |seen: &Seen| seen.destination == peer.source;
    for port in [ACCEPT, ECHO] {
        let mut request = peer.request(port.into(), port);
        // The REP again every half second: a victim that believes in the connection does not repeat it.
        request.local_response_timeout = TimeoutCode::saturating(17);
        peer.send_message(peer.source, request, TRANSACTION);
        let Message::ConnectReply(reply) = observer.wait(PATIENCE, to_peer).message() else { panic!("no REP") };
        let numbers = Numbers::of_passive_end(&request, &reply);
        let forger = Forger::new(victim.address, new_address());
        let mut messages = numbers.blind();
        // They have the peer's GUID and id, and end a request that is not set up.
        messages.retain(|message| {
            !matches!(message, Message::Reject(reject) if reject.reason == RejectReason::TIMEOUT
                && reject.local_id == numbers.peer)
        });
        send_all(&forger, peer.source, &messages, || client.exchange());
        observer.all(Duration::from_millis(20));
        let repeated = observer.wait(PATIENCE, to_peer).message();
        assert!(matches!(repeated, Message::ConnectReply(_)), "{repeated:?}");
        let (local_id, remote_id) = (request.local_id, reply.local_id);
        peer.send_message(peer.source, ReadyToUse { local_id, remote_id, ..Default::default() }, TRANSACTION);
        let remote_qpn = reply.local_qpn;
        let disconnect = DisconnectRequest { local_id, remote_id, remote_qpn, ..Default::default() };
        peer.send_message(peer.source, disconnect, TRANSACTION + 1);
        // The application of a connection that is set up confirms it, and no message before it ended the request.
        let confirmed = observer.wait(PATIENCE, |seen| to_peer(seen) && seen.mad.transaction_id == TRANSACTION + 1);
        assert!(matches!(confirmed.message(), Message::DisconnectReply(_)), "{confirmed:?}");
        println!("{} messages to an accepted request", 2 * messages.len());
    }
    client.disconnect();
}

/// A victim that has sent a REQ; the forger does not see it, and the peer responds after the attack.
fn to_a_requester() {
    let (address, peer) = (new_address(), new_address());
    let route = Route::between(IpAddr::V4(address), (peer, 7)).expect("a route");
    let (pd, cq) = (route.context().alloc_pd().expect("a domain"), route.context().create_cq(4).expect("a queue"));
    let qp = pd.create_qp(&cq, &cq).expect("a queue pair");
    let observer = Observer::of(address);
    let options = ConnectionOptions::new().deadline(PATIENCE);
    let pending = route.start_connect(&qp, &options).expect("a REQ");
    let Message::ConnectRequest(request) = observer.wait(PATIENCE, |_| true).message() else { panic!("no REQ") };
    let reply = ConnectReply {
        local_id: CommunicationId(0x7000_0001),
        remote_id: request.local_id,
        local_guid: 9,
        local_qpn: Qpn::new(0x99),
        ..Default::default()
    };
    let numbers = Numbers::of_active_end(&request, &reply);
    let forger = Forger::new(address, new_address());
    let mut messages = numbers.blind();
    // Those with the victim's id respond to the REQ: the peer is not known yet.
    messages.retain(|message| remote_id(message) != Some(numbers.own));
    send_all(&forger, peer, &messages, || {});
    forger.send_message(peer, reply, TRANSACTION);
    let connection = pending.wait().unwrap_or_else(|error| panic!("{error}"));
    println!("{} messages to a requester", 2 * messages.len());
    drop(connection);
}

/// Returns the id of the receiver in a message of a connection.
fn remote_id(message: &Message) -> Option<CommunicationId> {
    Some(match message {
        Message::ConnectReply(found) => found.remote_id,
        Message::ReadyToUse(found) => found.remote_id,
        Message::MessageReceipt(found) => found.remote_id,
        Message::Reject(found) => found.remote_id,
        Message::DisconnectRequest(found) => found.remote_id,
        Message::DisconnectReply(found) => found.remote_id,
        Message::LoadAlternatePath(found) => found.remote_id,
        Message::AlternatePathResponse(found) => found.remote_id,
        _ => return None,
    })
}

/// REQs with the GUID and the queue pair of a connection's peer mean that the peer has lost its end. It has not, so the
/// connection stays, at either end; the peer gets few messages.
fn of_a_connected_queue_pair() {
    let victim = Victim::start();
    let (client, _, ends) = connect_ends(victim.address);
    for (end, peer, numbers) in ends {
        let forger = Forger::new(end, new_address());
        let observer = Observer::of(end);
        let count = 200;
        for number in 0..count {
            let forged = forger.request(number, CLOSED);
            let (local_guid, local_qpn) = (numbers.peer_guid, numbers.peer_qpn);
            forger.send_message(forger.source, ConnectRequest { local_guid, local_qpn, ..forged }, number.into());
            // The victim waits for a DREP with both ids.
            for (local_id, remote_id) in
                [(numbers.peer, CommunicationId(number)), (CommunicationId(number), numbers.own)]
            {
                let reply = DisconnectReply { local_id, remote_id, ..Default::default() };
                forger.send_message(peer, reply, TRANSACTION);
            }
            client.exchange();
        }
        let seen = observer.all(Duration::from_millis(500));
        let to = |address| seen.iter().filter(|seen| seen.destination == address).count();
        let stale = RejectReason::STALE_CONNECTION;
        let is_refused = |seen: &Seen| matches!(seen.message(), Message::Reject(reject) if reject.reason == stale);
        let refused = seen.iter().filter(|seen| is_refused(seen)).count();
        println!("{count} forged REQs: {refused} REJs, and {} messages to the peer", to(peer));
        assert_eq!((refused, to(forger.source)), (count as usize, count as usize));
        assert!((1..=4).contains(&to(peer)), "{} messages to the peer", to(peer));
        client.exchange();
    }
    client.disconnect();
}
