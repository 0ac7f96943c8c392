//! Other processes of the user: garbage in the file of ports, and messages to the sockets through which processes
//! forward requests. Two processes listen at one address; a request goes to the one that has the listener.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use rdma_verbs::sim::Random;
use rdma_verbs::wire::mad::{DisconnectRequest, Message, PortSpace, RejectReason};

use super::forger::{Forger, Observer, Seen};
use super::victim::{ACCEPT, CLOSED, Client, ECHO, IDLE, REJECT, REJECTED, Victim};
use crate::forge::Forgery;
use crate::inbox::{forwarded, inboxes, random_message};
use crate::world::{PATIENCE, new_address};
use crate::{Attack, Form};

pub(super) const ATTACKS: &[Attack] = &[
    ("connections/garbage_in_the_file_of_ports", garbage),
    ("connections/forwarded_datagrams_of_a_process_of_the_user", forwarded_datagrams),
];

/// The difference between the ports of the two processes.
const OFFSET: u16 = 1_000;
/// The file's layout: entries of processes, then records of each port of each space.
const PROCESSES_BYTES: u64 = 1_024 * 16;
const RECORDS_BYTES: usize = 16 * 32;
const MANAGEMENT_PACKET: u8 = 8;
const TRANSACTION: u64 = 0x10ca1;
const OTHER_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 200, 0, 9);

/// Two processes at one address, with a connection each.
struct Pair {
    victims: [Victim; 2],
    clients: [Client; 2],
    forger: Forger,
    observer: Observer,
    next: u32,
}

impl Pair {
    fn new() -> Self {
        let address = new_address();
        let victims = [Victim::start_on(address, 0), Victim::start_on(address, OFFSET)];
        let clients = [0, OFFSET].map(|offset| Client::connect_to(new_address(), address, ECHO + offset));
        let (forger, observer) = (Forger::new(address, new_address()), Observer::of(address));
        Self { victims, clients, forger, observer, next: 1 }
    }

    fn address(&self) -> Ipv4Addr {
        self.victims[0].address
    }

    /// Sends a request, and returns the first response.
    fn ask(&mut self, port: u16, patience: Duration) -> Option<Message> {
        self.next += 1;
        let transaction = TRANSACTION + u64::from(self.next);
        let request = self.forger.request(self.next, port);
        self.forger.send_message(self.forger.source, request, transaction);
        let is_it = |seen: &Seen| seen.mad.transaction_id == transaction;
        std::iter::from_fn(|| self.observer.next(patience)).find(is_it).map(|seen| seen.message())
    }

    /// Checks that both processes have kept their connections, and take requests to their ports alone.
    fn check(&mut self) {
        for (client, offset) in self.clients.iter().zip([0, OFFSET]) {
            client.exchange();
            Client::connect_to(client.address, self.victims[0].address, ECHO + offset).disconnect();
        }
        for offset in [0, OFFSET] {
            let Some(Message::Reject(reject)) = self.ask(REJECT + offset, PATIENCE) else { panic!("no REJ") };
            assert!(reject.private_data.as_bytes().starts_with(REJECTED), "{reject:?}");
        }
        let Some(Message::Reject(reject)) = self.ask(CLOSED, PATIENCE) else { panic!("no REJ") };
        assert_eq!(reject.reason, RejectReason::INVALID_SERVICE_ID);
    }

    /// Returns the block of a process: the upper bits of its ids.
    fn block(&mut self, offset: u16) -> u16 {
        let Some(Message::ConnectReply(reply)) = self.ask(ACCEPT + offset, PATIENCE) else { panic!("no REP") };
        let (local_id, remote_id) = (self.forger.request(self.next, ACCEPT).local_id, reply.local_id);
        let disconnect = DisconnectRequest { local_id, remote_id, remote_qpn: reply.local_qpn, ..Default::default() };
        self.forger.send_message(self.forger.source, disconnect, TRANSACTION);
        (reply.local_id.0 >> 20) as u16
    }
}

/// Opens the file of ports of the namespace.
fn ports_file() -> File {
    let namespace = std::fs::metadata("/proc/self/ns/net").expect("a namespace").ino();
    let inboxes = inboxes();
    let folder = Path::new(inboxes.first().expect("an inbox")).parent().expect("a folder");
    let path = folder.join(format!("{namespace}-ports"));
    File::options().read(true).write(true).open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn offset_of(port: u16) -> u64 {
    let space = PortSpace::ALL.iter().position(|space| *space == PortSpace::Tcp).expect("a space") as u64;
    PROCESSES_BYTES + (space << 16 | u64::from(port)) * RECORDS_BYTES as u64
}

/// The file of ports, and what it had before the attack.
struct Spoiled {
    file: File,
    processes: Vec<u8>,
    records: Vec<(u64, Vec<u8>)>,
}

impl Spoiled {
    fn new(ports: &[u16]) -> Self {
        let file = ports_file();
        let read = |offset: u64, bytes: usize| {
            let mut content = vec![0; bytes];
            let _ = file.read_at(&mut content, offset);
            content
        };
        let processes = read(0, PROCESSES_BYTES as usize);
        let records: Vec<_> =
            ports.iter().map(|port| (offset_of(*port), read(offset_of(*port), RECORDS_BYTES))).collect();
        assert!(records[0].1.iter().any(|byte| *byte != 0), "the file has the record of {}", ports[0]);
        Self { file, processes, records }
    }

    fn write(&self, content: &[u8], offset: u64) {
        self.file.write_all_at(content, offset).expect("the user's file");
    }

    /// Writes random bytes, valid records of another port, or nothing into the records of a port; at times also into
    /// those of the processes, or changes the length of the file.
    fn spoil(&self, random: &mut Random) {
        let count = self.records.len() as u64;
        let (offset, _) = self.records[random.below(count) as usize];
        let content: Vec<u8> = match random.below(3) {
            0 => self.records[random.below(count) as usize].1.clone(),
            1 => (0..RECORDS_BYTES).map(|_| random.number() as u8).collect(),
            _ => vec![random.choose(&[0, 0xff]); RECORDS_BYTES],
        };
        self.write(&content, offset);
        match random.below(30) {
            0 => self.write(&content, random.below(PROCESSES_BYTES)),
            1 => self.file.set_len(random.below(offset_of(u16::MAX))).expect("the user's file"),
            2 => self.file.set_len(1 << 40).expect("the user's file"),
            _ => {}
        }
    }

    fn restore(self) {
        self.file.set_len(offset_of(u16::MAX)).expect("the user's file");
        self.write(&self.processes, 0);
        self.records.iter().for_each(|(offset, content)| self.write(content, *offset));
    }
}

/// Processes neither fail nor hang, keep their connections, and reject requests that reach the wrong one. Afterwards,
/// with the former records, all works.
fn garbage(form: Form) {
    let mut pair = Pair::new();
    pair.check();
    let ports = [ECHO + OFFSET, ECHO, REJECT, REJECT + OFFSET, IDLE, CLOSED, CLOSED + 1];
    let (spoiled, mut random) = (Spoiled::new(&ports), Random::new(0x6a4ba6e));
    let mut answers = [0; 3];
    for _ in 0..form.tries(300, 10_000) {
        spoiled.spoil(&mut random);
        let port = random.choose(&[CLOSED, CLOSED + 1, REJECT, REJECT + OFFSET]);
        // A request without a listener waits for one for 250 ms; only some of them are waited for.
        let patience = if [CLOSED, CLOSED + 1].contains(&port) && random.chance(100) { 500 } else { 20 };
        match pair.ask(port, Duration::from_millis(patience)) {
            Some(Message::Reject(reject)) if reject.private_data.as_bytes().starts_with(REJECTED) => answers[0] += 1,
            Some(Message::Reject(reject)) => {
                assert_eq!(reject.reason, RejectReason::INVALID_SERVICE_ID);
                answers[1] += 1;
            }
            Some(other) => panic!("{other:?}"),
            None => answers[2] += 1,
        }
        pair.clients.iter().for_each(Client::exchange);
    }
    println!(
        "rejected by an application {}, without a listener {}, no response {}",
        answers[0], answers[1], answers[2]
    );
    assert!(answers[0] > 0 && answers[1] > 0);
    spoiled.restore();
    pair.check();
}

/// Returns a message with a datagram that no process may take: of a block that none has, with a wrong ICRC, for another
/// address, cut short, or changed.
fn wrong_message(number: u32, mut packet: Forgery, blocks: [u16; 2], random: &mut Random) -> Vec<u8> {
    let block = random.choose(&blocks);
    match number % 5 {
        0 => forwarded(MANAGEMENT_PACKET, (0..4_096).find(|other| !blocks.contains(other)).expect("one"), &packet),
        1 => {
            packet.check_xor = 1 << random.below(32);
            forwarded(MANAGEMENT_PACKET, block, &packet)
        }
        2 => {
            packet.destination = OTHER_ADDRESS;
            forwarded(MANAGEMENT_PACKET, block, &packet)
        }
        3 => {
            let message = forwarded(MANAGEMENT_PACKET, block, &packet);
            message[..random.below(message.len() as u64) as usize].to_vec()
        }
        _ => random_message(random, &forwarded(MANAGEMENT_PACKET, block | 0x8000, &packet)),
    }
}

/// Requests for the wrong process, for blocks that no process has, with a wrong ICRC, and garbage. Only a request for
/// the right process with the right ICRC has a response.
fn forwarded_datagrams(form: Form) {
    let mut pair = Pair::new();
    let blocks = [pair.block(0), pair.block(OFFSET)];
    assert_ne!(blocks[0], blocks[1]);
    let (inboxes, socket) = (inboxes(), UnixDatagram::unbound().expect("a socket"));
    socket.set_nonblocking(true).expect("a flag");
    let send = |message: &[u8]| {
        // Those of processes that have ended, and full ones, refuse it.
        inboxes.iter().for_each(|path| drop(socket.send_to(message, path)));
    };
    let request = |pair: &Pair, number: u32, port: u16| {
        let message = Message::from(pair.forger.request(number, port));
        pair.forger.packet(pair.forger.source, &message.to_mad(u64::from(number)).write())
    };
    pair.observer.all(Duration::from_millis(100));
    // The right ones, to show that this way leads to the processes.
    for (number, block) in blocks.into_iter().enumerate() {
        let number = 0x8000 + number as u32;
        send(&forwarded(MANAGEMENT_PACKET, block, &request(&pair, number, CLOSED)));
        let seen = pair.observer.wait(PATIENCE, |seen| seen.mad.transaction_id == u64::from(number));
        assert!(matches!(seen.message(), Message::Reject(_)), "{seen:?}");
    }
    let mut random = Random::new(0x1b0c5);
    for number in 0..form.tries(2_000, 100_000) as u32 {
        let packet = request(&pair, 0x9000 + number, CLOSED);
        send(&wrong_message(number, packet, blocks, &mut random));
        if number % 16 == 0 {
            pair.clients.iter().for_each(Client::exchange);
        }
    }
    let seen = pair.observer.all(Duration::from_millis(200));
    let responses = seen.iter().filter(|seen| seen.destination == pair.forger.source).count();
    assert_eq!(responses, 0, "responses to datagrams that are not whole, or for another process");
    println!("to {} inboxes at {}", inboxes.len(), pair.address());
    pair.check();
}
