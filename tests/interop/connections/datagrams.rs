//! Datagram queue pairs by address and port (SIDR).

use std::net::SocketAddr;

use rdma_verbs::verbs::cm::{
    ConnectError, ConnectionOptions, DEFAULT_QKEY, DatagramListener, ListenerOptions, Reason, ServiceIdStatus,
};
use rdma_verbs::verbs::{AccessFlags, CompletionQueue, MemoryRegion, QueuePair, QueuePairOptions, QueuePairType};
use rdma_verbs::verbs::{ReceiveRequest, SendRequest};

use crate::guest::pattern;
use crate::home::{CLOSED_PORT, Error, Home, Outcome, PATIENCE, PORT, ensure, expect, hex, padded};
use crate::wire::{SIDR_REP, SIDR_REQ};

/// Length of messages, and of the header before them.
const LENGTH: usize = 900;
const GRH: usize = 40;

/// Our datagram queue pair, with a receive posted.
struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    mr: MemoryRegion,
}

impl End {
    fn new(home: &Home) -> Result<Self, Error> {
        let cq = home.context.create_cq(16)?;
        let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(DEFAULT_QKEY);
        let qp = home.pd.create_qp_with(&cq, &cq, &options)?;
        qp.bring_up_ud()?;
        let mr = home.pd.alloc_mr(2 * LENGTH + GRH, AccessFlags::LOCAL_WRITE)?;
        qp.post_recv(&[ReceiveRequest::new(mr.slice(LENGTH..)?)])?;
        Ok(Self { qp, cq, mr })
    }
}

/// A request is accepted, with data of both applications, and messages arrive; one is rejected; one finds no listener.
pub(crate) fn resolves(home: &mut Home) -> Outcome {
    let guest_is_client = home.guest_is_client();
    if guest_is_client {
        guest_resolves(home)?
    } else {
        we_resolve(home)?
    }
    let replies = home.wire.of(SIDR_REP, guest_is_client)?;
    // A slow machine repeats a request, whose response is the same.
    let mut statuses: Vec<(u32, u8)> = Vec::new();
    for found in replies.iter().map(|mad| (mad.u32_at(0), mad.body[4])) {
        if !statuses.contains(&found) {
            statuses.push(found);
        }
    }
    expect("statuses", statuses.iter().map(|(_, status)| *status).collect(), vec![0, 2, 1])?;
    let (request, reply) = (home.wire.first(SIDR_REQ, !guest_is_client)?, home.wire.first(SIDR_REP, guest_is_client)?);
    expect("transaction id", reply.transaction, request.transaction)?;
    expect("request id", reply.u32_at(0), request.u32_at(0))
}

fn we_resolve(home: &mut Home) -> Outcome {
    let listener = home.slot();
    home.guest.command(&format!("create {listener} space=udp"))?;
    home.guest.command(&format!("listen {listener} {} {PORT}", home.remote))?;
    let (end, seed, slot) = (End::new(home)?, home.seed(), home.slot());
    let options = ConnectionOptions::new().private_data(&[0x11; 180]);

    let pending = home.route(PORT)?.start_resolve_datagram(&options)?;
    let request = home.guest.command(&format!("take {listener} {slot}"))?;
    request.expect(&[("event", "connect_request"), ("length", "180"), ("data", &hex(&[0x11; 180]))])?;
    let qpn = home.guest.command(&format!("qp {slot}"))?.number("qpn")?;
    home.guest.command(&format!("recv {slot} {LENGTH}"))?;
    home.guest_does(&format!("accept {slot} data={}", hex(&[0x22; 136])))?;
    let peer = pending.wait()?;
    expect("queue pair", (u64::from(peer.qpn.value()), peer.qkey), (qpn, DEFAULT_QKEY))?;
    expect("data of the response", &peer.private_data[..], &[0x22; 136][..])?;
    end.mr.write_at(0, &pattern(seed, LENGTH))?;
    let address = home.pd.create_ah(&peer.address)?;
    let message = SendRequest::send_to(end.mr.slice(..LENGTH)?, &address, peer.qpn, peer.qkey);
    end.qp.post_send(&[message.signaled()])?;
    end.cq.wait(PATIENCE)?.result()?;
    let received = home.guest.command(&format!("received {slot} {LENGTH} {seed}"))?;
    received.expect(&[("status", "0"), ("check", "good")])?;

    let (pending, slot) = (home.route(PORT)?.start_resolve_datagram(&ConnectionOptions::new())?, home.slot());
    home.guest.command(&format!("take {listener} {slot}"))?.expect(&[("data", &hex(&[0; 180]))])?;
    home.guest_does(&format!("reject {slot} data={}", hex(b"busy")))?;
    expect_refused(pending.wait(), ServiceIdStatus::REJECTED, b"busy")?;
    let outcome = home.route(CLOSED_PORT)?.resolve_datagram(&ConnectionOptions::new());
    expect_refused(outcome, ServiceIdStatus::UNSUPPORTED, &[])?;
    home.guest.command(&format!("destroy {listener}"))?;
    Ok(())
}

fn expect_refused<T: std::fmt::Debug>(
    outcome: Result<T, ConnectError>,
    status: ServiceIdStatus,
    data: &[u8],
) -> Outcome {
    match outcome {
        Err(ConnectError::Rejected(rejected)) => {
            expect("status", rejected.reason(), Reason::Datagram(status))?;
            expect("data of the refusal", rejected.private_data(), &padded(data, 136)[..])
        }
        other => Err(format!("{other:?} instead of a refusal").into()),
    }
}

fn guest_resolves(home: &mut Home) -> Outcome {
    let listener: DatagramListener =
        ListenerOptions::new().on(&home.context).bind_datagrams(SocketAddr::new(home.local, PORT))?;
    let (end, seed) = (End::new(home)?, home.seed());

    let slot = home.guests_client("space=udp", PORT)?;
    home.guest.command(&format!("qp {slot}"))?;
    home.guest_does(&format!("connect {slot} data={}", hex(&[0x11; 180])))?;
    let request = listener.accept_within(PATIENCE)?.ok_or("no request")?;
    expect("data of the request", request.private_data(), &[0x11; 180][..])?;
    request.accept(&end.qp, DEFAULT_QKEY, &[0x22; 136])?;
    let established = home.event(slot, "established", "0")?;
    let (qpn, qkey) = (end.qp.qpn().value().to_string(), DEFAULT_QKEY.0.to_string());
    established.expect(&[("qpn", &qpn), ("qkey", &qkey), ("length", "136"), ("data", &hex(&[0x22; 136]))])?;
    home.guest.command(&format!("send {slot} {LENGTH} {seed}"))?;
    let length = end.cq.wait(PATIENCE)?.result()?.byte_len as usize;
    expect("length of the message", length, GRH + LENGTH)?;
    ensure(end.mr.to_vec(LENGTH + GRH..2 * LENGTH + GRH)? == pattern(seed, LENGTH), "wrong bytes")?;

    for (port, status) in [(PORT, "2"), (CLOSED_PORT, "1")] {
        let slot = home.guests_client("space=udp", port)?;
        home.guest.command(&format!("qp {slot}"))?;
        home.guest_does(&format!("connect {slot}"))?;
        if port == PORT {
            listener.accept_within(PATIENCE)?.ok_or("no request")?.reject(b"busy")?;
        }
        let data: &[u8] = if port == PORT { b"busy" } else { &[] };
        let event = home.event(slot, "unreachable", status)?;
        event.expect(&[("length", "136"), ("data", &hex(&padded(data, 136)))])?;
    }
    Ok(())
}
