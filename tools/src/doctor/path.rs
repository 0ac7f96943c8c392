//! Judges a path: the device on its source address, its MTU, and its losses.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use rdma_verbs::verbs::{self, Mtu};

use super::check::Finding;
use super::devices;
use super::peer::allow;
use super::probe::{self, Echo, Losses, Prober};
use super::system::sudo;
use super::traffic_class::{self, SENT};

/// Bytes of a packet beside IP and UDP headers and payload: BTH, RETH, immediate data and ICRC.
const ROCE_BYTES: usize = 12 + 16 + 4 + 4;
/// The largest share of lost packets that is no problem: it costs little (`docs/networks.md`).
const TOLERATED_LOSS: f64 = 0.005;

/// Returns the interface that has this address.
pub(super) fn interface_of(address: IpAddr) -> Option<String> {
    let found = getifaddrs().ok()?.find(|interface| {
        let Some(storage) = interface.address else { return false };
        let v4 = storage.as_sockaddr_in().map(|found| IpAddr::from(found.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|found| found.ip().into())) == Some(address)
    });
    // All addresses of 127.0.0.0/8 are those of the loopback interface.
    found.map(|interface| interface.interface_name).or_else(|| address.is_loopback().then(|| "lo".to_owned()))
}

/// Opens the device on the source address of the route.
pub(super) fn address(local: SocketAddr) -> Finding {
    let name = format!("soft:{}", local.ip());
    let gid = verbs::open(&name).and_then(|context| {
        let index = context.default_gid_index(1)?;
        Ok((context.query_gid(1, index)?.gid, context.query_port(1)?.active_mtu))
    });
    match gid {
        Ok((gid, mtu)) => {
            let device = interface_of(local.ip()).map_or_else(|| name.clone(), |found| format!("soft_{found}"));
            let bytes = mtu.bytes();
            Finding::ok(format!("{device} or {name}, GID {gid}, path MTU {bytes}"))
        }
        Err(error) => {
            let command = devices::command_for_opening(&error.to_string());
            let command = command.unwrap_or_else(|| "ip address show".to_owned());
            Finding::problem(format!("{name} cannot be opened: {error}"), command)
        }
    }
}

/// Finds out which packets arrive unfragmented.
pub(super) fn mtu(prober: &mut Prober, local: SocketAddr) -> Finding {
    let measured = prober.path_mtu().and_then(|mtu| {
        let sizes = sizes(mtu, probe::header_bytes(&local));
        let mut echoes = Vec::new();
        for size in sizes {
            let echo = prober.echo(size)?;
            echoes.push((size, echo));
            // Longer packets vanish, too.
            if echo != Echo::Returned {
                break;
            }
        }
        Ok((mtu, echoes, open(prober)?))
    });
    match measured {
        Ok((mtu, echoes, open)) => {
            let (headers, interface) = (probe::header_bytes(&local), interface_of(local.ip()));
            judge_mtu((mtu, &echoes), headers, interface, open)
        }
        Err(error) => {
            Finding::problem(format!("datagrams cannot be sent: {error}"), format!("{}nft list ruleset", sudo()))
        }
    }
}

/// Returns the command that opens the port of the server.
fn open(prober: &Prober) -> io::Result<String> {
    let server = prober.server()?;
    Ok(format!("{}   # on {}", allow("udp", server.port()), server.ip()))
}

/// Returns the sizes of packets that are tried: those with each RoCE MTU, and the largest that the interface sends.
fn sizes(mtu: usize, headers: usize) -> Vec<usize> {
    let of_roce = Mtu::ALL.iter().map(|mtu| mtu.bytes() as usize + headers + ROCE_BYTES);
    let largest = mtu.min(Mtu::Mtu4096.bytes() as usize + headers + ROCE_BYTES);
    let mut sizes: Vec<usize> = of_roce.filter(|size| *size < largest).chain([largest]).collect();
    sizes.dedup();
    sizes
}

/// Returns the largest RoCE MTU whose packets have at most this size.
fn roce_mtu(packet_bytes: usize, headers: usize) -> Option<u32> {
    let sizes = Mtu::ALL.iter().map(|mtu| mtu.bytes());
    sizes.filter(|mtu| *mtu as usize + headers + ROCE_BYTES <= packet_bytes).max()
}

fn judge_mtu(
    (mtu, echoes): (usize, &[(usize, Echo)]),
    headers: usize,
    interface: Option<String>,
    open: String,
) -> Finding {
    let returned = echoes.iter().filter(|(_, echo)| *echo == Echo::Returned).map(|(size, _)| *size).max();
    let vanished = echoes.iter().find(|(_, echo)| *echo == Echo::Silence).map(|(size, _)| *size);
    let device = interface.unwrap_or_else(|| "INTERFACE".to_owned());
    match (returned, vanished) {
        (None, _) => Finding::problem("no packet of any size returns over UDP, although TCP works", open)
            .detail("a firewall drops UDP, or the address is translated (NAT)"),
        (Some(returned), Some(vanished)) if vanished > returned => {
            let why = format!(
                "a black hole: packets of {returned} bytes return, those of {vanished} vanish, although the kernel \
                 believes that the path carries {mtu}"
            );
            let mut finding = Finding::problem(why, format!("{}ip link set dev {device} mtu {returned}", sudo()));
            if let Some(usable) = roce_mtu(returned, headers) {
                finding = finding
                    .command(format!("export RDMA_VERBS_MTU={usable}   # C programs"))
                    .detail(format!("Rust programs: ConnectOptions::path_mtu of {usable} bytes"));
            }
            finding
        }
        (Some(returned), _) => match roce_mtu(returned, headers) {
            Some(usable) => Finding::ok(format!("{mtu} bytes; RoCE packets carry up to {usable} bytes of payload")),
            None => Finding::problem(
                format!("{mtu} bytes: too few for the smallest RoCE packet"),
                format!("{}ip link set dev {device} mtu 1500", sudo()),
            ),
        },
    }
}

/// Sends small datagrams.
pub(super) fn loss(prober: &mut Prober) -> Finding {
    match prober.losses().and_then(|losses| Ok((losses, open(prober)?))) {
        Ok((losses, open)) => judge_loss(&losses, open),
        Err(error) => {
            Finding::problem(format!("datagrams cannot be sent: {error}"), format!("{}nft list ruleset", sudo()))
        }
    }
}

/// Sends datagrams with several traffic classes.
pub(super) fn traffic_class(prober: &mut Prober) -> Finding {
    let passages: io::Result<Vec<_>> =
        SENT.into_iter().map(|class| Ok((class, prober.traffic_class(class)?))).collect();
    match passages {
        Ok(passages) => traffic_class::judge(&passages),
        Err(error) => Finding::skipped(format!("datagrams cannot be sent: {error}")),
    }
}

fn judge_loss(losses: &Losses, open: String) -> Finding {
    let (sent, returned) = (losses.sent, losses.returned);
    let (Some(least), Some(most)) = (losses.round_trips.first(), losses.round_trips.last()) else {
        return Finding::problem(format!("none of {sent} small datagrams returned"), open);
    };
    let median = losses.round_trips[returned / 2];
    let times = [*least, median, *most].map(microseconds).join(", ");
    let text =
        format!("{returned} of {sent} small datagrams returned; shortest, median and longest round trip: {times}");
    let lost = (sent - returned) as f64 / sent as f64;
    if returned == sent {
        return Finding::ok(text);
    }
    let percent = format!("{:.1} % are lost", 100.0 * lost);
    if lost <= TOLERATED_LOSS {
        return Finding::note(format!("{text}; {percent}")).command("ip -s link");
    }
    Finding::problem(format!("{percent}: {text}"), "ip -s link   # dropped packets of each interface, here and there")
        .command("nstat -az UdpRcvbufErrors   # datagrams that found a full buffer")
        .detail("native peers retransmit exactly the lost packets; programs on adapters and rxe stall")
}

fn microseconds(time: Duration) -> String {
    let microseconds = time.as_secs_f64() * 1e6;
    if microseconds < 1000.0 { format!("{microseconds:.0} µs") } else { format!("{:.1} ms", microseconds / 1000.0) }
}

#[cfg(test)]
mod tests {
    use super::super::check::Outcome::{Note, Ok, Problem};
    use super::*;

    const HEADERS: usize = 28;

    fn judged(mtu: usize, limit: usize) -> Finding {
        let echo = |size| if size <= limit { Echo::Returned } else { Echo::Silence };
        let echoes: Vec<_> = sizes(mtu, HEADERS).into_iter().map(|size| (size, echo(size))).collect();
        judge_mtu((mtu, &echoes), HEADERS, Some("eth0".to_owned()), String::new())
    }

    #[test]
    fn sizes_are_those_of_roce_and_the_largest() {
        assert_eq!(sizes(1500, HEADERS), [320, 576, 1088, 1500]);
        assert_eq!(sizes(65_536, HEADERS), [320, 576, 1088, 2112, 4160]);
        assert_eq!(sizes(300, HEADERS), [300]);
    }

    #[test]
    fn black_holes_are_found() {
        assert_eq!(judged(1500, 9000).outcome, Ok);
        let hole = judged(1500, 1400);
        assert_eq!(hole.outcome, Problem);
        assert!(hole.commands[0].ends_with("ip link set dev eth0 mtu 1088"), "{hole:?}");
        assert!(hole.commands[1].starts_with("export RDMA_VERBS_MTU=1024"), "{hole:?}");
        assert_eq!(judged(300, 9000).outcome, Problem);
        assert!(judged(1500, 0).why.contains("no packet of any size"));
    }

    #[test]
    fn losses_are_judged() {
        let outcome = |returned: usize| {
            let round_trips = vec![Duration::from_micros(50); returned];
            judge_loss(&Losses { sent: 200, returned, round_trips }, String::new()).outcome
        };
        assert_eq!([200, 199, 190, 0].map(outcome), [Ok, Note, Problem, Problem]);
    }
}
