//! UDP port 4791: the sockets that hold it, in this network namespace, and the processes that own them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::check::Finding;
use super::devices;
use super::system::{is_rxe_loaded, names_in, own_user, read, sudo};

pub(super) const ROCE_PORT: u16 = 4791;

/// A socket that holds the port.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Holder {
    address: IpAddr,
    user: u32,
    inode: u64,
}

/// A process that has such a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Owner {
    pid: u32,
    name: String,
    /// Whether it has files of the registry open, as programs of this library have.
    is_member: bool,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

/// Returns the command that shows the sockets of the port.
pub(super) fn show() -> String {
    format!("{}ss -ulpn 'sport = :{ROCE_PORT}'", sudo())
}

pub(super) fn port() -> Finding {
    let holders: Vec<(Holder, Option<Owner>)> =
        holders().into_iter().map(|holder| (holder.clone(), owner(holder.inode))).collect();
    judge(&holders, &devices::addresses(), is_rxe_loaded(), own_user())
}

fn holders() -> Vec<Holder> {
    let text = ["/proc/net/udp", "/proc/net/udp6"].map(|path| read(path).unwrap_or_default());
    text.iter().flat_map(|text| text.lines().skip(1)).filter_map(holder).collect()
}

/// Parses a line of `/proc/net/udp` or `/proc/net/udp6`; `None` for other ports.
fn holder(line: &str) -> Option<Holder> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (address, port) = fields.get(1)?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != ROCE_PORT {
        return None;
    }
    Some(Holder {
        address: address_of(address)?,
        user: fields.get(7)?.parse().ok()?,
        inode: fields.get(9)?.parse().ok()?,
    })
}

/// Parses an address: words of 32 bits in hexadecimal, each in the byte order of this machine.
fn address_of(text: &str) -> Option<IpAddr> {
    let word = |index: usize| {
        let digits = text.get(8 * index..8 * index + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for (index, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(index)?);
            }
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

/// Returns the process that has the socket, if this user may see it.
fn owner(inode: u64) -> Option<Owner> {
    let socket = format!("socket:[{inode}]");
    let pids = names_in("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let files = names_in(format!("/proc/{pid}/fd"));
        let targets: Vec<String> = files
            .iter()
            .filter_map(|file| std::fs::read_link(format!("/proc/{pid}/fd/{file}")).ok())
            .map(|target| target.to_string_lossy().into_owned())
            .collect();
        targets.contains(&socket).then(|| Owner {
            pid,
            name: read(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned(),
            is_member: targets.iter().any(|target| target.contains("/rdma-verbs")),
        })
    })
    .next()
}

/// Judges the sockets. Addresses are shared only among processes of this library that run as the same user.
fn judge(holders: &[(Holder, Option<Owner>)], addresses: &[IpAddr], is_rxe_loaded: bool, own_user: u32) -> Finding {
    let mut members = 0_usize;
    let mut lines = Vec::new();
    let mut commands = Vec::new();
    let mut affects_devices = false;
    for (holder, owner) in holders {
        let (address, user) = (holder.address, holder.user);
        let (line, command) = match owner {
            Some(owner) if owner.is_member && user == own_user => {
                members += 1;
                continue;
            }
            Some(owner) if user == own_user => {
                (format!("{address}: {owner}, which does not use this library"), format!("kill {}", owner.pid))
            }
            Some(owner) => (format!("{address}: {owner} of user {user}"), format!("{}kill {}", sudo(), owner.pid)),
            None if is_rxe_loaded && user == 0 => (
                format!("{address}: the kernel's soft transport (rdma_rxe)"),
                format!("{}modprobe -r rdma_rxe", sudo()),
            ),
            None if user == own_user => (format!("{address}: no visible process, maybe one in a container"), show()),
            None => (format!("{address}: a process of user {user}"), show()),
        };
        affects_devices |= address.is_unspecified() || addresses.contains(&address);
        lines.push(line);
        if !commands.contains(&command) {
            commands.push(command);
        }
    }
    let finding = match (lines.is_empty(), affects_devices) {
        (true, _) if members == 0 => Finding::ok(format!("no socket holds UDP port {ROCE_PORT}")),
        (true, _) => Finding::ok(format!("{members} sockets of processes of this user share UDP port {ROCE_PORT}")),
        (false, true) => {
            let mut finding = Finding::problem(format!("UDP port {ROCE_PORT} cannot be shared with its holder"), "");
            finding.commands.clear();
            finding
        }
        (false, false) => Finding::note(format!("UDP port {ROCE_PORT} of other addresses is held by others")),
    };
    let finding = lines.into_iter().fold(finding, Finding::detail);
    commands.into_iter().fold(finding, Finding::command)
}

#[cfg(test)]
mod tests {
    use super::super::check::Outcome;
    use super::*;

    const LINE: &str =
        "  123: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4711 2 0 0";

    fn held(address: [u8; 4], user: u32) -> Holder {
        Holder { address: IpAddr::from(address), user, inode: 4711 }
    }

    fn process(is_member: bool) -> Option<Owner> {
        Some(Owner { pid: 42, name: "thief".to_owned(), is_member })
    }

    fn judged(holder: Holder, owner: Option<Owner>, is_rxe_loaded: bool) -> Finding {
        judge(&[(holder, owner)], &[IpAddr::from([127, 0, 0, 1])], is_rxe_loaded, 1000)
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn sockets_are_parsed() {
        assert_eq!(holder(LINE), Some(held([127, 0, 0, 1], 1000)));
        assert_eq!(holder(&LINE.replace("12B7", "12B8")), None);
        assert_eq!(address_of("00000000000000000000000001000000"), Some(Ipv6Addr::LOCALHOST.into()));
        for wrong in ["", "0100007", "0100007G", "ÄÄÄÄ", "0000000000000000000000000100000Ä"] {
            assert_eq!(address_of(wrong), None);
        }
    }

    #[test]
    fn holders_are_named() {
        assert_eq!(judge(&[], &[], true, 1000).outcome, Outcome::Ok);
        assert_eq!(judged(held([127, 0, 0, 1], 1000), process(true), false).outcome, Outcome::Ok);
        let foreign = judged(held([0; 4], 1000), process(false), false);
        assert_eq!((foreign.outcome, foreign.commands), (Outcome::Problem, vec!["kill 42".to_owned()]));
        let other = judged(held([127, 0, 0, 1], 7), process(true), false);
        assert!(other.outcome == Outcome::Problem && other.details[0].contains("of user 7"), "{other:?}");
        let kernel = judged(held([0; 4], 0), None, true);
        assert!(kernel.commands[0].ends_with("modprobe -r rdma_rxe"), "{kernel:?}");
        assert_eq!(judged(held([127, 0, 0, 9], 7), None, false).outcome, Outcome::Note);
    }
}
