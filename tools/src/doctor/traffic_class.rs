//! Whether the DSCP and the ECN bits of packets arrive as they were sent. The client sends datagrams with several of
//! them; the server notes in each what it has received, and returns it with the class that was wanted.

use std::io::{self, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};

use super::check::Finding;
use super::protocol::TOKEN_BYTES;

/// Begins the part of a datagram that is about its traffic class, behind token and number.
const MARK: [u8; 4] = *b"TCLS";
const AT: usize = TOKEN_BYTES + 4;
/// The mark, the wanted class, whether the server has noted one, and that one.
const BYTES: usize = MARK.len() + 3;

/// The bits of ECN: a queue may mark the packet, and has marked it.
const ECT0: u8 = 2;
const CE: u8 = 3;
const ECN: u8 = 3;
/// A DSCP that networks with RoCE adapters often use.
const DSCP: u8 = 26;

/// The classes that are sent.
pub(super) const SENT: [u8; 3] = [ECT0, CE, DSCP << 2 | ECT0];

/// The classes of one datagram, as received: by the server, if it notes them, and of its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Passage {
    pub(super) there: Option<u8>,
    pub(super) back: Option<u8>,
}

/// Makes the kernel report the class of received datagrams.
pub(super) fn observe(socket: &UdpSocket) -> io::Result<()> {
    match socket.local_addr()?.is_ipv4() {
        true => setsockopt(socket, sockopt::IpRecvTos, &true)?,
        false => setsockopt(socket, sockopt::Ipv6RecvTClass, &true)?,
    }
    Ok(())
}

/// Receives a datagram, and its class.
pub(super) fn receive(socket: &UdpSocket, datagram: &mut [u8]) -> io::Result<(usize, Option<u8>)> {
    let mut control = cmsg_space!(i32);
    let mut parts = [IoSliceMut::new(datagram)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty())?;
    let class = message.cmsgs()?.find_map(|found| match found {
        ControlMessageOwned::Ipv4Tos(class) => Some(class),
        ControlMessageOwned::Ipv6TClass(class) => u8::try_from(class).ok(),
        _ => None,
    });
    Ok((message.bytes, class))
}

/// Sends a datagram with this class.
pub(super) fn send(socket: &UdpSocket, datagram: &[u8], class: u8) -> io::Result<usize> {
    set(socket, class)?;
    let sent = socket.send(datagram);
    set(socket, 0)?;
    sent
}

fn set(socket: &UdpSocket, class: u8) -> io::Result<()> {
    match socket.local_addr()?.is_ipv4() {
        true => setsockopt(socket, sockopt::Ipv4Tos, &class.into())?,
        false => setsockopt(socket, sockopt::Ipv6TClass, &class.into())?,
    }
    Ok(())
}

/// Adds the request to note the class.
pub(super) fn request(datagram: &mut [u8], wanted: u8) {
    datagram[AT..][..MARK.len()].copy_from_slice(&MARK);
    datagram[AT + MARK.len()] = wanted;
}

/// Notes the class in a datagram with a request. Returns the class of the answer.
pub(super) fn note(datagram: &mut [u8], seen: Option<u8>) -> Option<u8> {
    let [wanted, is_noted, noted] = datagram.get_mut(AT..AT + BYTES)?.strip_prefix_of_mark()?;
    if let Some(seen) = seen {
        (*is_noted, *noted) = (1, seen);
    }
    Some(*wanted)
}

/// Returns the classes of a datagram that has come back.
pub(super) fn passage(datagram: &mut [u8], back: Option<u8>) -> Option<Passage> {
    let [_, is_noted, noted] = datagram.get_mut(AT..AT + BYTES)?.strip_prefix_of_mark()?;
    Some(Passage { there: (*is_noted == 1).then_some(*noted), back })
}

trait Marked {
    /// Returns the bytes behind the mark.
    fn strip_prefix_of_mark(&mut self) -> Option<&mut [u8; 3]>;
}

impl Marked for [u8] {
    fn strip_prefix_of_mark(&mut self) -> Option<&mut [u8; 3]> {
        let (mark, rest) = self.split_first_chunk_mut()?;
        if *mark == MARK { rest.first_chunk_mut() } else { None }
    }
}

/// Judges what became of the classes that were sent.
pub(super) fn judge(passages: &[(u8, Option<Passage>)]) -> Finding {
    let returned: Vec<(u8, Passage)> =
        passages.iter().filter_map(|(sent, passage)| Some((*sent, (*passage)?))).collect();
    if returned.is_empty() {
        return Finding::skipped("no datagram returned");
    }
    if returned.iter().any(|(_, passage)| passage.there.is_none() || passage.back.is_none()) {
        return Finding::skipped("the other end, or a kernel, does not tell the traffic class of what arrives");
    }
    let mut changes = Vec::new();
    for (sent, passage) in passages {
        let Some(Passage { there: Some(there), back: Some(back) }) = *passage else {
            changes.push(format!("datagrams with {} vanish", name(*sent)));
            continue;
        };
        let ways = [("on the way there", there), ("on the way back", back)];
        for (way, arrived) in ways.into_iter().filter(|(_, arrived)| arrived != sent) {
            changes.push(format!("{way}, {} becomes {}", name(*sent), name(arrived)));
        }
    }
    let Some(first) = changes.first() else {
        return Finding::ok(format!("DSCP {DSCP} and ECN arrive as they were sent, in both directions"));
    };
    let finding = Finding::note(format!("the path changes the traffic class: {first}"))
        .command("tcpdump -v -n udp port 4791   # tos of what arrives, there and here");
    let finding = changes[1..].iter().fold(finding, |finding, change| finding.detail(change));
    let is_marking_lost = |(sent, passage): &(u8, Passage)| {
        [passage.there, passage.back].into_iter().flatten().any(|arrived| arrived & ECN != sent & ECN)
    };
    if returned.iter().any(is_marking_lost) {
        return finding.detail("without ECN, queues drop packets instead of marking them; transfers work");
    }
    finding.detail("switches that select queues by DSCP take RDMA for other traffic; transfers work")
}

fn name(class: u8) -> String {
    let ecn = ["not ECT", "ECT(1)", "ECT(0)", "CE"][usize::from(class & ECN)];
    format!("DSCP {} with {ecn}", class >> 2)
}

#[cfg(test)]
mod tests {
    use super::super::check::Outcome::{Note, Ok, Skipped};
    use super::*;

    /// Judges a path that changes classes in these ways.
    fn judged(there: impl Fn(u8) -> Option<u8>, back: impl Fn(u8) -> Option<u8>) -> Finding {
        judge(&SENT.map(|sent| (sent, Some(Passage { there: there(sent), back: back(sent) }))))
    }

    #[test]
    fn changes_are_notes_and_name_the_direction() {
        assert_eq!(judged(Some, Some).outcome, Ok);
        let cleared = judged(|class| Some(class & ECN), Some);
        assert_eq!(cleared.outcome, Note);
        assert!(
            cleared.why.ends_with("on the way there, DSCP 26 with ECT(0) becomes DSCP 0 with ECT(0)"),
            "{cleared:?}"
        );
        let unmarked = judged(Some, |class| Some(class & !ECN));
        assert!(
            unmarked.why.ends_with("on the way back, DSCP 0 with ECT(0) becomes DSCP 0 with not ECT"),
            "{unmarked:?}"
        );
        assert!(unmarked.details.iter().any(|detail| detail.contains("drop packets")), "{unmarked:?}");
        assert_eq!(judged(|_| None, Some).outcome, Skipped);
        assert_eq!(judge(&SENT.map(|sent| (sent, None))).outcome, Skipped);
        let passage = |class| Some(Passage { there: Some(class), back: Some(class) });
        let dropped = judge(&SENT.map(|sent| (sent, if sent >> 2 == 0 { passage(sent) } else { None })));
        assert!(dropped.why.ends_with("datagrams with DSCP 26 with ECT(0) vanish"), "{dropped:?}");
    }

    #[test]
    fn only_requests_are_noted() {
        let mut datagram = [0; AT + BYTES];
        assert_eq!(note(&mut datagram, Some(7)), None);
        assert_eq!(datagram, [0; AT + BYTES]);
        request(&mut datagram, 106);
        assert_eq!(passage(&mut datagram, Some(2)), Some(Passage { there: None, back: Some(2) }));
        assert_eq!(note(&mut datagram, None), Some(106));
        assert_eq!(note(&mut datagram, Some(104)), Some(106));
        assert_eq!(passage(&mut datagram, Some(2)), Some(Passage { there: Some(104), back: Some(2) }));
        assert_eq!(note(&mut datagram[..AT + BYTES - 1], Some(1)), None);
        assert_eq!(note(&mut [], Some(1)), None);
    }

    #[test]
    fn sockets_send_and_receive_classes() {
        for address in ["127.91.0.5:0", "[::1]:0"] {
            let (a, b) = (UdpSocket::bind(address).unwrap(), UdpSocket::bind(address).unwrap());
            a.connect(b.local_addr().unwrap()).unwrap();
            observe(&b).unwrap();
            send(&a, b"marked", 106).unwrap();
            a.send(b"plain").unwrap();
            let mut datagram = [0; 64];
            assert_eq!(receive(&b, &mut datagram).unwrap(), (6, Some(106)), "{address}");
            assert_eq!(receive(&b, &mut datagram).unwrap(), (5, Some(0)), "{address}");
        }
    }
}
