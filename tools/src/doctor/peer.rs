//! Checks of the path to another host, most of them against `doctor --serve` there.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use rdma_verbs::verbs::SharedMemory;

use super::check::{Finding, Report};
use super::devices;
use super::path;
use super::ports::ROCE_PORT;
use super::probe::Prober;
use super::protocol::{Channel, Message};
use super::system::{read, sudo};
use super::transfer::{self, End};
use crate::common::quoted;

const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// Time of all checks against the server.
const TIME: Duration = Duration::from_secs(60);

pub(super) const CHECKS: [(&str, &str); 7] = [
    ("route", "HOST: its name has an address, and this machine a route to it"),
    ("address", "HOST: a software device on the address that the route uses"),
    ("service", "HOST: rdma-verbs doctor --serve answers"),
    ("path-mtu", "HOST: packets of the path MTU arrive"),
    ("loss", "HOST: small packets arrive, and how soon they return"),
    ("traffic-class", "HOST: DSCP and ECN bits arrive as they were sent"),
    ("rdma", "HOST: a WRITE and a SEND in each direction, through UDP port 4791"),
];

/// Makes the checks; those that depend on a failed one are skipped.
pub(super) fn examine(report: &mut Report<'_>, host: &str, port: u16) -> io::Result<()> {
    let mut names = CHECKS.into_iter();
    let mut add = |report: &mut Report<'_>, finding: Finding| {
        names.next().map_or(Ok(()), |(name, title)| report.add(name, title, finding))
    };
    let skipped = |after: &str| Finding::skipped(format!("it needs \"{after}\""));
    let (remote, local) = match route(host, port) {
        Ok((remote, local, finding)) => {
            add(report, finding)?;
            (remote, local)
        }
        Err(finding) => {
            add(report, finding)?;
            return (1..CHECKS.len()).try_for_each(|_| add(report, skipped("route")));
        }
    };
    add(report, path::address(local))?;
    let (mut channel, mut prober) = match service(remote, local, host) {
        Ok((channel, prober, finding)) => {
            add(report, finding)?;
            (channel, prober)
        }
        Err(finding) => {
            add(report, finding)?;
            return (3..CHECKS.len()).try_for_each(|_| add(report, skipped("service")));
        }
    };
    add(report, path::mtu(&mut prober, local))?;
    add(report, path::loss(&mut prober))?;
    add(report, path::traffic_class(&mut prober))?;
    add(report, rdma(&mut channel, local, host))
}

/// Returns the first address of the host that this machine has a route to, and the source address of the route.
fn route(host: &str, port: u16) -> Result<(SocketAddr, SocketAddr, Finding), Finding> {
    let found = (host, port).to_socket_addrs().map_err(|error| {
        Finding::problem(format!("\"{host}\" has no address: {error}"), format!("getent ahosts {}", quoted(host)))
    })?;
    let mut refused = Vec::new();
    for remote in found {
        match source(remote) {
            Ok(local) => {
                let interface = path::interface_of(local.ip()).unwrap_or_else(|| "no interface".to_owned());
                let (to, from) = (remote.ip(), local.ip());
                return Ok((remote, local, Finding::ok(format!("to {to} from {from} through {interface}"))));
            }
            Err(error) => refused.push((remote.ip(), error)),
        }
    }
    let Some((address, _)) = refused.first() else {
        return Err(Finding::problem(format!("\"{host}\" has no address"), format!("getent ahosts {}", quoted(host))));
    };
    let finding = Finding::problem(format!("this machine has no route to {host}"), format!("ip route get {address}"));
    Err(refused.iter().fold(finding, |finding, (address, error)| finding.detail(format!("{address}: {error}"))))
}

/// Returns the address from which the kernel sends to another one.
fn source(remote: SocketAddr) -> io::Result<SocketAddr> {
    let any: SocketAddr = if remote.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(remote)?;
    let mut local = socket.local_addr()?;
    local.set_port(0);
    Ok(local)
}

/// Connects to the server, which then returns the datagrams of the prober.
fn service(remote: SocketAddr, local: SocketAddr, host: &str) -> Result<(Channel, Prober, Finding), Finding> {
    let port = remote.port();
    let start = format!("rdma-verbs doctor --serve --port {port}   # on {host}");
    let stream = TcpStream::connect_timeout(&remote, CONNECT_WAIT).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            let why = format!("no server on {remote}: MTU, losses, firewall and transfers are not checked");
            Finding::note(why).command(&start)
        }
        _ => Finding::problem(format!("TCP to {remote}: {error}: the host is down, or a firewall drops"), &start)
            .command(format!("{}   # on {host}", allow("tcp", port)))
            .command(format!("ping -c 3 {}", remote.ip())),
    })?;
    let failed = |error: String| Finding::problem(format!("{remote}: {error}"), &start);
    let io_failed = |error: io::Error| failed(error.to_string());
    let token = rand::random();
    let prober = Prober::new(local, token).map_err(io_failed)?;
    let mut channel = Channel::new(stream, TIME).map_err(io_failed)?;
    let hello = Message::Hello(prober.port().map_err(io_failed)?, token);
    match channel.request(&hello).map_err(failed)? {
        Message::Hello(..) => {}
        _ => return Err(failed("its response is out of order".to_owned())),
    }
    let peer = channel.stream().peer_addr().and_then(|peer| prober.connect(peer));
    peer.map_err(io_failed)?;
    Ok((channel, prober, Finding::ok(format!("{remote} answers"))))
}

/// Returns the command that opens a port, for the firewall that is installed here.
pub(super) fn allow(protocol: &str, port: u16) -> String {
    let is_installed = |program: &str| {
        ["/usr/sbin", "/sbin", "/usr/bin"].iter().any(|folder| std::path::Path::new(folder).join(program).exists())
    };
    let sudo = sudo();
    if is_installed("ufw") {
        format!("{sudo}ufw allow {port}/{protocol}")
    } else if is_installed("firewall-cmd") {
        format!("{sudo}firewall-cmd --add-port={port}/{protocol}")
    } else if is_installed("nft") && !is_iptables_legacy() {
        let rule = format!(r#"print "insert rule", t, c, "{protocol} dport {port} accept""#);
        format!("{sudo}nft list chains | awk '{INPUT_CHAINS} {{{rule}}}' | {sudo}nft -f -")
    } else {
        format!("{sudo}iptables -I INPUT -p {protocol} --dport {port} -j ACCEPT")
    }
}

/// A program of awk that finds the chains for IP packets that arrive: `t` is the family and the table, `c` the chain.
/// Their names are the administrator's, and a rule in one chain is no exception from those in another.
const INPUT_CHAINS: &str = r#"/^table/ {t=$2" "$3} /^\tchain/ {c=$2} t ~ /^i/ && /filter hook input/"#;

/// Returns whether iptables has tables that nft does not show. For users other than root, the kernel does not tell.
fn is_iptables_legacy() -> bool {
    let names = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"];
    names.into_iter().filter_map(read).any(|text| !text.trim().is_empty())
}

/// Makes a transfer in each direction, between queue pairs of software devices.
fn rdma(channel: &mut Channel, local: SocketAddr, host: &str) -> Finding {
    let done = try_rdma(channel, local);
    match done {
        Ok(()) => Finding::ok(format!("16 KiB written and sent in each direction, through UDP port {ROCE_PORT}")),
        Err(Failure::Device(error)) => {
            let command = devices::command_for(&error);
            Finding::problem("the device on the source address fails", command).detail(error)
        }
        Err(Failure::Server(error)) => {
            Finding::problem(format!("{host} cannot take part"), format!("rdma-verbs doctor   # on {host}"))
                .detail(error)
        }
        Err(Failure::Transfer(error)) => judge_silence(channel, host).detail(format!("here: {error}")),
        Err(Failure::Return(error)) => {
            let why = format!("requests from here succeed, those of {host} do not");
            Finding::problem(why, "rdma-verbs doctor --serve   # here")
                .command(format!("rdma-verbs doctor {}   # on {host}, against the one here", local.ip()))
                .detail(error)
        }
    }
}

/// Finds out in which direction packets vanish.
fn judge_silence(channel: &mut Channel, host: &str) -> Finding {
    let rules = format!("{}nft list ruleset   # shows the rules", sudo());
    let open = allow("udp", ROCE_PORT);
    match channel.request(&Message::State(0, String::new())) {
        Ok(Message::State(0, text)) => {
            let why = format!(
                "nothing from here arrives at UDP port {ROCE_PORT} of {host}: a firewall there, here or on the way \
                 drops it"
            );
            Finding::problem(why, format!("{open}   # on {host}")).command(rules).detail(format!("{host}: {text}"))
        }
        Ok(Message::State(_, text)) => {
            let why = format!(
                "packets arrive at {host}, but nothing from there arrives at UDP port {ROCE_PORT} here: a firewall \
                 drops it"
            );
            Finding::problem(why, format!("{open}   # here")).command(rules).detail(format!("{host}: {text}"))
        }
        _ => Finding::problem(
            format!("no transfer through UDP port {ROCE_PORT}: a firewall may drop its packets"),
            format!("{open}   # here and on {host}"),
        )
        .command(rules),
    }
}

enum Failure {
    /// Of this end, before any packet.
    Device(String),
    /// Of the other end, before any packet.
    Server(String),
    /// Of the requests from here.
    Transfer(String),
    /// Of the requests of the other end, after those from here.
    Return(String),
}

fn try_rdma(channel: &mut Channel, local: SocketAddr) -> Result<(), Failure> {
    let device = |error: rdma_verbs::verbs::Error| Failure::Device(error.to_string());
    let context = transfer::open(&format!("soft:{}", local.ip()), SharedMemory::Off).map_err(device)?;
    let end = End::new(&context).map_err(device)?;
    let own = end.address().map_err(device)?;
    let response = channel.request(&Message::Connect(Box::new(own))).map_err(Failure::Server)?;
    let Message::Connect(remote) = response else {
        return Err(Failure::Server("its response is out of order".to_owned()));
    };
    end.connect(&remote.0).map_err(device)?;
    end.send(remote.1).map_err(Failure::Transfer)?;
    // The server sends when it has received everything.
    let theirs = channel.request(&Message::Finish).map(drop);
    theirs.map_err(Failure::Return)?;
    end.receive().map_err(Failure::Return)
}
