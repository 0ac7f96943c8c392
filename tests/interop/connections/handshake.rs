//! REQ, REP and RTU, and the queue pairs that result.

use rdma_verbs::verbs::cm::ConnectionOptions;
use rdma_verbs::verbs::{Mtu, QueuePairAttributes, QueuePairState};

use crate::Kernel;
use crate::guest::Reply;
use crate::home::{Home, LENGTH, Outcome, PORT, Pair, Terms, ensure, expect, hex, padded};
use crate::wire::{DREP, DREQ, Mad, REP, REQ, RTU};

/// The guest's states of queue pairs, as numbers.
pub(crate) const READY_TO_SEND: &str = "3";
/// The time that our device states for its acknowledgements, and rxe for its own.
const OUR_ACK_DELAY: u8 = 8;
const GUESTS_ACK_DELAY: u8 = 15;
/// The type of service: neither of its two low bits, which are the network's.
const TYPE_OF_SERVICE: u8 = 0x68;

/// Both ends agree about every field, and both queue pairs work.
pub(crate) fn negotiates(home: &mut Home) -> Outcome {
    if home.guest_is_client() { guest_requests(home) } else { we_request(home) }
}

fn guest_requests(home: &mut Home) -> Outcome {
    let guests = format!("resources=4 depth=6 retry=5 rnr=4 data={}", hex(b"request"));
    let options = ConnectionOptions::new().private_data(b"reply").responder_resources(3).initiator_depth(5);
    let (request, slot) = home.guest_requests(&Terms { guests, ..Terms::default() })?;
    expect("resources of the request", request.peer_resources(), (4, 6))?;
    expect("private data of the request", request.private_data(), &padded(b"request", 56)[..])?;
    expect("path MTU of the request", request.path_mtu().bytes(), home.path_mtu())?;
    expect("address", request.peer_addr().ip(), home.remote)?;
    let end = home.end()?;
    let pending = request.start_accept(&end.qp, &options.rnr_retry_count(5))?;
    let established = home.event(slot, "established", "0")?;
    // The event has the peer's numbers: it names them from this end's point of view.
    let qpn = end.qp.qpn().value().to_string();
    established.expect(&[("resources", "4"), ("depth", "3"), ("rnr", "5"), ("flow", "1"), ("qpn", &qpn)])?;
    established.expect(&[("length", "196"), ("data", &hex(&padded(b"reply", 196)))])?;
    let pair = Pair { connection: pending.wait()?, end, slot };

    let (request, reply) = (home.wire.first(REQ, false)?, home.wire.first(REP, true)?);
    let timeout = if home.kernel == Kernel::V6_1 { 19 } else { 17 };
    check_request(home, &request, &[4, 6, 0xa1, 0xa5, 4, 64, timeout])?;
    check_reply(&pair, &reply, &[3, 4, OUR_ACK_DELAY << 3 | 1, 5 << 5])?;
    // rxe rounds the READs and atomics up to a power of two.
    check_guests_queue_pair(home, &pair, [4, 4, timeout, 5, 5], (&request, &reply))?;
    check_our_queue_pair(&pair, home.path_mtu(), [4, 3, timeout, 5, 4], (&reply, &request))?;
    finish(home, &pair)
}

fn we_request(home: &mut Home) -> Outcome {
    let end = home.end()?;
    let options = ConnectionOptions::new().private_data(b"request").responder_resources(3).initiator_depth(5);
    let pending = home.route(PORT)?.start_connect(&end.qp, &options.retry_count(6).rnr_retry_count(5))?;
    let (slot, event) = home.guest_takes(&end.qp)?;
    let qpn = end.qp.qpn().value().to_string();
    event.expect(&[("resources", "5"), ("depth", "3"), ("retry", "6"), ("rnr", "5"), ("flow", "1"), ("qpn", &qpn)])?;
    event.expect(&[("length", "56"), ("data", &hex(&padded(b"request", 56)))])?;
    home.guests_queue_pair(slot)?;
    home.guest_does(&format!("accept {slot} resources=2 depth=1 rnr=4 data={}", hex(b"reply")))?;
    let connection = pending.wait()?;
    expect("resources of the reply", connection.peer_resources(), (2, 1))?;
    expect("private data of the reply", connection.private_data(), &padded(b"reply", 196)[..])?;
    let established = home.event(slot, "established", "0")?;
    established.expect(&[("resources", "0"), ("depth", "0"), ("length", "0")])?;
    let pair = Pair { connection, end, slot };

    let (request, reply) = (home.wire.first(REQ, true)?, home.wire.first(REP, false)?);
    check_request(home, &request, &[3, 5, 0xa1, 18 << 3 | 6, 5, 64, 14])?;
    check_reply(&pair, &reply, &[2, 1, GUESTS_ACK_DELAY << 3 | 1, 4 << 5])?;
    check_guests_queue_pair(home, &pair, [1, 2, 14, 6, 5], (&reply, &request))?;
    check_our_queue_pair(&pair, home.path_mtu(), [2, 1, 16, 6, 4], (&request, &reply))?;
    finish(home, &pair)
}

/// Sends data, ends the connection, and checks the sequence of datagrams.
fn finish(home: &mut Home, pair: &Pair) -> Outcome {
    let guest_is_client = home.guest_is_client();
    home.exchange(pair)?;
    home.end_pair(pair)?;
    let (active, passive) = (!guest_is_client, guest_is_client);
    home.wire.expect_sequence(&[(REQ, active), (REP, passive), (RTU, active), (DREQ, true), (DREP, false)])?;
    let transactions = |attribute, is_ours| home.wire.first(attribute, is_ours).map(|mad| mad.transaction);
    let request = transactions(REQ, active)?;
    expect("transaction id of the REP", transactions(REP, passive)?, request)?;
    expect("transaction id of the RTU", transactions(RTU, active)?, request)?;
    expect("transaction id of the DREP", transactions(DREP, false)?, transactions(DREQ, true)?)
}

/// Checks the fields of a REQ. The last ones: responder resources, initiator depth, the bytes with the remote timeout
/// and the retries, RNR retries, hop limit, transport timeout.
fn check_request(home: &Home, request: &Mad, numbers: &[u8; 7]) -> Outcome {
    let [resources, depth, transport, retries, rnr, hop_limit, timeout] = *numbers;
    let (body, code) = (&request.body, if home.path_mtu() == 1_024 { 3 } else { 5 });
    let (local, remote) = if request.is_ours { (home.local, home.remote) } else { (home.remote, home.local) };
    expect("service ID", &body[8..16], &(0x0106_0000 + u64::from(PORT)).to_be_bytes()[..])?;
    expect("Q_Key", request.u32_at(28), 0)?;
    expect("resources and depth", (body[35], body[39]), (resources, depth))?;
    expect("transport and retries", (body[43], body[47]), (transport, retries))?;
    expect("P_Key", &body[48..50], &[0xff, 0xff][..])?;
    expect("path MTU, RNR retries, tries", (body[50], body[51]), (code << 4 | rnr, 0xf0))?;
    expect("LIDs", request.u32_at(52), u32::MAX)?;
    expect("local GID", &body[56..72], &gid(local)[..])?;
    expect("remote GID", &body[72..88], &gid(remote)[..])?;
    expect("traffic class and hop limit", (body[92], body[93]), (0, hop_limit))?;
    expect("transport timeout", body[95], timeout << 3)?;
    expect("LIDs of the alternate path", request.u32_at(96), 0)?;
    if request.is_ours {
        // The offer of a key, which the kernel takes for no alternate path.
        expect("offer", &body[116..120], &b"RDMV"[..])?;
    } else {
        expect("alternate path", &body[100..140], &[0; 40][..])?;
    }
    let (version, own, peer) =
        (if local.is_ipv4() { 0x40 } else { 0x60 }, padded_address(local), padded_address(remote));
    expect("header of the private data", (body[140], body[141]), (0, version))?;
    expect("addresses", (&body[144..160], &body[160..176]), (&own[..], &peer[..]))?;
    expect("private data", &body[176..232], &padded(b"request", 56)[..])
}

/// Checks the fields of a REP. The last ones: responder resources, initiator depth, the bytes with the delay and the
/// RNR retries.
fn check_reply(pair: &Pair, reply: &Mad, numbers: &[u8; 4]) -> Outcome {
    let (body, qpn) = (&reply.body, reply.u32_at(12) >> 8);
    expect("Q_Key", reply.u32_at(8), 0)?;
    if reply.is_ours {
        expect("queue pair", qpn, pair.end.qp.qpn().value())?;
    }
    expect("resources, depth, delay, RNR retries", &body[24..28], &numbers[..])?;
    expect("private data", &body[36..232], &padded(b"reply", 196)[..])
}

/// Returns the starting PSNs that the guest's and our messages state, from those messages.
fn starting_psn(mad: &Mad) -> u32 {
    mad.u32_at(if mad.attribute == REQ { 44 } else { 20 }) >> 8
}

/// Checks the guest's queue pair: outstanding and served READs, timeout, retries, RNR retries; the guest's message and
/// ours.
fn check_guests_queue_pair(home: &mut Home, pair: &Pair, numbers: [u8; 5], mads: (&Mad, &Mad)) -> Outcome {
    let found = home.guest.command(&format!("query {}", pair.slot))?;
    let names = ["rd_atomic", "dest_rd_atomic", "timeout", "retry", "rnr"];
    for (name, number) in names.iter().zip(numbers) {
        found.expect(&[(name, &number.to_string())])?;
    }
    let (qpn, path_mtu) = (pair.end.qp.qpn().value().to_string(), home.path_mtu().to_string());
    found.expect(&[("state", READY_TO_SEND), ("dest_qpn", &qpn), ("path_mtu", &path_mtu), ("hop_limit", "64")])?;
    let psns = (starting_psn(mads.0).to_string(), starting_psn(mads.1).to_string());
    found.expect(&[("rq_psn", &psns.0), ("sq_psn", &psns.1), ("min_rnr_timer", "0")])?;
    // READ, WRITE and atomics; since 6.10 FLUSH.
    found.expect(&[("access", if home.kernel == Kernel::V6_1 { "14" } else { "782" })])
}

/// Checks our queue pair, as [`check_guests_queue_pair`]; our message and the guest's.
fn check_our_queue_pair(pair: &Pair, path_mtu: u32, numbers: [u8; 5], mads: (&Mad, &Mad)) -> Outcome {
    let status = pair.end.qp.query()?;
    let QueuePairAttributes {
        path_mtu: mtu,
        max_rd_atomic,
        max_dest_rd_atomic,
        timeout,
        retry_cnt,
        rnr_retry,
        rq_psn,
        sq_psn,
        ..
    } = status.attributes;
    expect("state", status.qp_state, QueuePairState::ReadyToSend)?;
    expect("path MTU", mtu.map(Mtu::bytes), Some(path_mtu))?;
    let found = [max_rd_atomic, max_dest_rd_atomic, timeout, retry_cnt, rnr_retry].map(Option::unwrap_or_default);
    expect("outstanding and served READs, timeout, retries, RNR retries", found, numbers)?;
    let found = [rq_psn, sq_psn].map(|psn| psn.map(|psn| psn.value()));
    expect("PSNs", found, [Some(starting_psn(mads.0)), Some(starting_psn(mads.1))])
}

fn padded_address(address: std::net::IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match address {
        std::net::IpAddr::V4(address) => bytes[12..].copy_from_slice(&address.octets()),
        std::net::IpAddr::V6(address) => bytes = address.octets(),
    }
    bytes
}

fn gid(address: std::net::IpAddr) -> [u8; 16] {
    match address {
        std::net::IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(address) => address.octets(),
    }
}

/// Private data of each length arrives with zeros behind it; longer data is refused.
pub(crate) fn carries_private_data(home: &mut Home) -> Outcome {
    for (of_request, of_reply) in [(0, 0), (1, 1), (56, 196)] {
        let (request, reply) = (vec![0xa5; of_request], vec![0x5a; of_reply]);
        let (ours, guests) = if home.guest_is_client() { (&reply, &request) } else { (&request, &reply) };
        let terms = Terms {
            ours: ConnectionOptions::new().private_data(ours),
            guests: format!("data={}", hex(guests)),
            ..Terms::default()
        };
        let pair = if home.guest_is_client() {
            let (taken, slot) = home.guest_requests(&terms)?;
            expect("data of the REQ", taken.private_data(), &padded(&request, 56)[..])?;
            let end = home.end()?;
            let pending = taken.start_accept(&end.qp, &terms.ours)?;
            let established = home.event(slot, "established", "0")?;
            expect("data of the REP", established.word("data")?, &hex(&padded(&reply, 196)))?;
            Pair { connection: pending.wait()?, end, slot }
        } else {
            let end = home.end()?;
            let pending = home.route(PORT)?.start_connect(&end.qp, &terms.ours)?;
            let (slot, event) = home.guest_takes(&end.qp)?;
            expect("data of the REQ", event.word("data")?, &hex(&padded(&request, 56)))?;
            home.guests_queue_pair(slot)?;
            home.guest_does(&format!("accept {slot} {}", terms.guests))?;
            let connection = pending.wait()?;
            expect("data of the REP", connection.private_data(), &padded(&reply, 196)[..])?;
            home.event(slot, "established", "0")?;
            Pair { connection, end, slot }
        };
        home.end_pair(&pair)?;
    }
    refuses_longer_data(home)
}

/// 57 bytes with a REQ, 197 bytes with a REP.
fn refuses_longer_data(home: &mut Home) -> Outcome {
    const INVALID: &str = "22";
    let end = home.end()?;
    if home.guest_is_client() {
        let slot = home.guests_client("", PORT)?;
        home.guests_queue_pair(slot)?;
        home.guest.command(&format!("connect {slot} data={}", hex(&[1; 57])))?.expect(&[("result", INVALID)])?;
        let (request, slot) = home.guest_requests(&Terms::default())?;
        let refused = request.start_accept(&end.qp, &ConnectionOptions::new().private_data(&[1; 197]));
        ensure(refused.is_err(), "197 bytes are accepted")?;
        // The request was dropped with the error.
        home.event(slot, "rejected", "28")?;
    } else {
        let refused = home.route(PORT)?.start_connect(&end.qp, &ConnectionOptions::new().private_data(&[1; 57]));
        ensure(refused.is_err(), "57 bytes are accepted")?;
    }
    Ok(())
}

/// The type of service of the active end is that of all packets of both ends.
pub(crate) fn carries_type_of_service(home: &mut Home) -> Outcome {
    let guest_is_client = home.guest_is_client();
    let mut terms = Terms { create: format!("tos={TYPE_OF_SERVICE}"), ..Terms::default() };
    if !guest_is_client {
        terms.ours = ConnectionOptions::new().traffic_class(TYPE_OF_SERVICE);
    }
    let pair = home.pair(&terms)?;
    home.exchange(&pair)?;
    let found = home.guest.command(&format!("query {}", pair.slot))?;
    found.expect(&[("traffic_class", &TYPE_OF_SERVICE.to_string())])?;
    let class = pair.end.attributes()?.ah_attr.map(|address| address.traffic_class);
    expect("our traffic class", class, Some(TYPE_OF_SERVICE))?;
    home.end_pair(&pair)?;
    let mut packets = home.wire.packets()?;
    // A slow machine repeats the DREQ. The kernel makes a DREP for a connection that has ended from the datagram alone,
    // without the type of service over IPv4, and so its refusals of the discovery.
    let mut confirmations = 0;
    packets.retain(|packet| {
        confirmations += usize::from(packet.attribute() == Some(DREP));
        let is_of_discovery = packet.is_mad() && packet.attribute().is_none();
        !is_of_discovery && (packet.attribute() != Some(DREP) || confirmations == 1)
    });
    for (name, is_ours, is_mad, least) in [
        ("our MADs", true, true, 2),
        ("the guest's MADs", false, true, 2),
        ("our data", true, false, 1),
        ("the guest's data", false, false, 1),
    ] {
        let mut seen = packets.iter().filter(|packet| packet.is_ours == is_ours && packet.is_mad() == is_mad);
        ensure(seen.clone().count() >= least, &format!("too few packets: {name}"))?;
        // The two low bits belong to the network (ECN).
        let wrong = seen.find(|packet| packet.class & !3 != TYPE_OF_SERVICE).map(|packet| packet.class);
        expect(name, wrong, None)?;
    }
    Ok(())
}

/// Both queue pairs have the path MTU of the REQ, and no packet is larger.
pub(crate) fn chooses_path_mtu(home: &mut Home) -> Outcome {
    let sizes = [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096];
    let (largest, guest_is_client) = (home.path_mtu(), home.guest_is_client());
    // The guest takes the largest one.
    let is_chosen = |mtu: &Mtu| mtu.bytes() == largest || !guest_is_client && mtu.bytes() < largest;
    for mtu in sizes.into_iter().filter(is_chosen) {
        let ours = if guest_is_client { ConnectionOptions::new() } else { ConnectionOptions::new().path_mtu(mtu) };
        home.wire.forget()?;
        let pair = home.pair(&Terms { ours, ..Terms::default() })?;
        let found: Reply = home.guest.command(&format!("query {}", pair.slot))?;
        found.expect(&[("path_mtu", &mtu.bytes().to_string())])?;
        expect("our path MTU", pair.end.attributes()?.path_mtu, Some(mtu))?;
        home.exchange(&pair)?;
        home.end_pair(&pair)?;
        let packets = home.wire.packets()?;
        for is_ours in [true, false] {
            let sizes = packets.iter().filter(|packet| packet.is_ours == is_ours && !packet.is_mad());
            let largest = sizes.map(|packet| packet.payload.len()).max().unwrap_or_default();
            // BTH, payload, ICRC.
            expect("largest packet", largest, 12 + LENGTH.min(mtu.bytes() as usize) + 4)?;
        }
    }
    Ok(())
}

/// The transport timeout of the active end: of its own queue pair, and, with the acknowledgement delay, in the REQ and
/// of the passive end's queue pair, unless that one has its own.
pub(crate) fn chooses_timeouts(home: &mut Home) -> Outcome {
    for (timeout, of_guests_request, of_ours) in [(14, 16, 14), (21, 21, 21)] {
        home.wire.forget()?;
        let mut terms = Terms { create: format!("ack_timeout={timeout}"), ..Terms::default() };
        let mut own = of_guests_request;
        if !home.guest_is_client() {
            terms.ours = ConnectionOptions::new().timeout(timeout);
            own = timeout;
        } else if timeout == 21 {
            terms.ours = ConnectionOptions::new().timeout(18);
            own = 18;
        }
        let pair = home.pair(&terms)?;
        let field = if home.guest_is_client() { of_guests_request } else { of_ours };
        let request = home.wire.first(REQ, !home.guest_is_client())?;
        expect("timeout in the REQ", request.body[95], field << 3)?;
        expect("our timeout", pair.end.attributes()?.timeout, Some(own))?;
        let guests = if home.guest_is_client() { timeout } else { of_ours };
        let found = home.guest.command(&format!("query {}", pair.slot))?;
        found.expect(&[("timeout", &guests.to_string())])?;
        home.end_pair(&pair)?;
    }
    Ok(())
}
