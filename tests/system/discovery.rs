//! Discovery of native peers: processes in two network namespaces, which no registry joins, exchange only queue pair
//! numbers and addresses, as C programs do.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rdma_verbs::types::{Counter, DropReason};
use rdma_verbs::verbs::{
    self, AddressVector, CompletionQueue, Context, Gid, MemoryRegion, Mtu, Psn, Qpn, QueuePair, QueuePairAttributes,
    QueuePairState, ReceiveRequest, SendRequest, SoftOptions,
};
use support::process::{ignored_test, in_namespace, ip, namespace_allows};
use support::{ALL_ACCESS, PATIENCE, complete_one, poll_one};

/// Set in the processes that are started for these tests, to what they do.
const ROLE: &str = "RDMA_VERBS_TEST_DISCOVERY";
/// Whether the other host's processes take part.
const OTHERS_DISCOVER: &str = "RDMA_VERBS_TEST_DISCOVERY_OTHERS";
/// Begins the lines of a process that its parent reads.
const REPLY: &str = "reply: ";
const HERE: &str = "10.83.1.1";
const THERE: &str = "10.83.1.2";
/// Processes of the other host, on one address.
const OTHERS: usize = 3;
const MESSAGE_BYTES: usize = 200_000;
const FIRST_PSN: Psn = Psn::new(0xff_ff00);

/// A queue pair of a device.
struct End {
    context: Context,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

impl End {
    fn on(context: &Context) -> Self {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
        let qp = pd.create_qp(&cq, &cq).unwrap();
        let memory = pd.alloc_mr(2 * MESSAGE_BYTES, ALL_ACCESS).unwrap();
        qp.init().unwrap();
        Self { context: context.clone(), cq, qp, memory }
    }

    /// Connects to a peer of which only queue pair and address are known.
    fn connect(&self, peer: Qpn, address: &str) {
        let gid = Gid::from(address.parse::<std::net::IpAddr>().unwrap());
        let to_rtr = QueuePairAttributes::default()
            .qp_state(QueuePairState::ReadyToReceive)
            .ah_attr(AddressVector::new(gid, 0))
            .path_mtu(Mtu::Mtu1024)
            .dest_qp_num(peer)
            .rq_psn(FIRST_PSN)
            .max_dest_rd_atomic(4)
            .min_rnr_timer(12);
        let to_rts = QueuePairAttributes::default()
            .qp_state(QueuePairState::ReadyToSend)
            // Outlasts a busy machine.
            .timeout(18)
            .retry_cnt(7)
            .rnr_retry(7)
            .sq_psn(FIRST_PSN)
            .max_rd_atomic(4);
        self.qp.modify(&to_rtr).unwrap();
        self.qp.modify(&to_rts).unwrap();
    }

    fn knows_peer(&self) -> bool {
        self.qp.counters().get(Counter::DiscoveredPeers) == 1
    }

    fn is_peer_native(&self) -> bool {
        self.qp.query().unwrap().attributes.peer.is_some_and(|peer| peer.is_native())
    }

    /// Waits until the peer is known to be native, or to be a standard peer.
    #[track_caller]
    fn wait_for_peer(&self, is_native: bool) {
        let end = Instant::now() + PATIENCE;
        while is_native && !self.knows_peer() {
            poll_one(&self.cq);
            assert!(Instant::now() < end, "{} {:?}", self.qp.explain_state(), self.qp.counters());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((self.knows_peer(), self.is_peer_native()), (is_native, is_native));
    }

    #[track_caller]
    fn complete(&self) {
        complete_one(&self.cq, &self.qp);
    }

    fn receive(&self) {
        self.qp.post_recv(&[ReceiveRequest::new(self.memory.slice(MESSAGE_BYTES..).unwrap())]).unwrap();
    }

    /// Sends a message and receives one. Returns the number of send calls of the device meanwhile.
    #[track_caller]
    fn exchange(&self, seed: u8) -> u64 {
        let calls = || self.context.counters().get(Counter::SendCalls);
        let before = calls();
        let sent: Vec<u8> = (0..MESSAGE_BYTES).map(|index| (index / 7) as u8 ^ seed).collect();
        self.memory.write_at(0, &sent).unwrap();
        self.qp.post_send(&[SendRequest::send(self.memory.slice(..MESSAGE_BYTES).unwrap()).signaled()]).unwrap();
        self.complete();
        self.complete();
        let mut received = vec![0; MESSAGE_BYTES];
        self.memory.read_at(MESSAGE_BYTES, &mut received).unwrap();
        assert!(received == sent, "the message of the peer differs");
        calls() - before
    }
}

/// A process of the other host.
struct Other {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(mut command: Command) -> Self {
        command.env(ROLE, "other").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    #[track_caller]
    fn reply(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the process has ended");
            if let Some(reply) = line.trim_end().strip_prefix(REPLY) {
                return reply.to_owned();
            }
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn reply(text: impl std::fmt::Display) {
    println!("\n{REPLY}{text}");
}

fn told() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// The work of a process of the other host: a queue pair with a peer in the first namespace.
fn be_other() {
    reply("ready");
    told();
    let discovers = std::env::var(OTHERS_DISCOVER).is_ok_and(|given| given == "on");
    let context = verbs::open_soft(&format!("soft:{THERE}"), &SoftOptions::new().discovery(discovers)).unwrap();
    let end = End::on(&context);
    end.receive();
    reply(end.qp.qpn().value());
    let peer = Qpn::new(told().parse().unwrap());
    end.connect(peer, HERE);
    reply("connected");
    let mut seed = told();
    while seed != "known" {
        end.exchange(seed.parse().unwrap());
        end.receive();
        reply("done");
        seed = told();
    }
    end.wait_for_peer(discovers);
    reply("known");
    let calls = end.exchange(told().parse().unwrap());
    reply(calls);
    told();
}

/// Starts the processes of the other host, in one network namespace, and joins it to this one.
fn other_host() -> Vec<Other> {
    let role = || ignored_test(concat!(module_path!(), "::process"));
    let mut first = Command::new("unshare");
    first.arg("--net").arg(role().get_program()).args(role().get_args());
    let mut others = vec![Other::start(first)];
    others[0].reply();
    let id = others[0].child.id();
    ip("link set lo up");
    ip(&format!("link add here type veth peer name there netns {id}"));
    ip(&format!("address add {HERE}/24 dev here"));
    ip("link set here up");
    let in_other = |program: &str| {
        let mut command = Command::new("nsenter");
        command.args(["--target", &id.to_string(), "--net", program]);
        command
    };
    for arguments in ["link set lo up", &format!("address add {THERE}/24 dev there"), "link set there up"] {
        assert!(in_other("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
    }
    for _ in 1..OTHERS {
        let mut command = in_other(role().get_program().to_str().unwrap());
        command.args(role().get_args());
        others.push(Other::start(command));
        others.last_mut().unwrap().reply();
    }
    others
}

/// The work of the process in the first namespace: a queue pair for each process of the other host.
fn be_first() {
    let others_discover = std::env::var(OTHERS_DISCOVER).is_ok_and(|given| given == "on");
    let mut others = other_host();
    let context = verbs::open_soft(&format!("soft:{HERE}"), &SoftOptions::new().shards(2)).unwrap();
    let ends: Vec<End> = others.iter().map(|_| End::on(&context)).collect();
    for (end, other) in ends.iter().zip(&mut others) {
        other.tell("go");
        let peer = Qpn::new(other.reply().parse().unwrap());
        end.receive();
        // This end is connected first, and asks before the other one can answer.
        end.connect(peer, THERE);
        std::thread::sleep(Duration::from_millis(5));
        other.tell(&end.qp.qpn().value().to_string());
        assert_eq!(other.reply(), "connected");
    }
    // Data flows while the ends find out about each other.
    for seed in 0..3_u8 {
        for (end, other) in ends.iter().zip(&mut others) {
            other.tell(&seed.to_string());
            end.exchange(seed);
            end.receive();
            assert_eq!(other.reply(), "done");
        }
    }
    for (end, other) in ends.iter().zip(&mut others) {
        end.wait_for_peer(others_discover);
        other.tell("known");
        assert_eq!(other.reply(), "known");
        other.tell("9");
        let calls = [end.exchange(9), other.reply().parse().unwrap()];
        let packets = (MESSAGE_BYTES / 1_024) as u64;
        // Without segmented sends, each packet is a call.
        let segments = context.advertised_capabilities().segmentation_offload && others_discover;
        let fits = |calls: u64| if segments { calls < packets } else { calls >= packets };
        assert!(calls.into_iter().all(fits), "{calls:?} calls for {packets} packets");
        let counters = end.qp.counters();
        // Neither the switch to the other socket nor that to the key costs a packet.
        let drops = [DropReason::BadIcrc, DropReason::Unkeyed, DropReason::WrongSourcePort];
        assert_eq!(drops.map(|reason| counters.get_drop(reason)), [0; 3]);
        other.tell("end");
    }
}

#[test]
#[ignore = "started by the other tests"]
fn process() {
    match std::env::var(ROLE).as_deref() {
        Ok("first") => be_first(),
        Ok("other") => be_other(),
        _ => {}
    }
}

/// Runs the test between two namespaces.
fn between_hosts(others_discover: &str) {
    if !namespace_allows("link add here type veth peer name there") {
        println!("skipped: this system gives no network of one's own (unshare -rn)");
        return;
    }
    let mut command = in_namespace(&ignored_test(concat!(module_path!(), "::process")));
    let output = command.env(ROLE, "first").env(OTHERS_DISCOVER, others_discover).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn processes_on_two_hosts_become_native_peers() {
    between_hosts("on");
}

#[test]
fn a_process_without_discovery_stays_a_standard_peer() {
    between_hosts("off");
}
