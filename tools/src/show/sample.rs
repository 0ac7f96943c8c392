//! Captures for tests: a conversation with everything that may happen, in all formats of files.

use std::net::Ipv4Addr;

use rdma_verbs::types::{Psn, Qkey, Qpn, Rkey, SharedReceiveQueueNumber};
use rdma_verbs::wire::mad::{
    CommunicationId, ConnectReply, ConnectRequest, Message, ReadyToUse, Reject, RejectReason, RejectedMessage,
};
use rdma_verbs::wire::{Aeth, AtomicEth, Bth, Deth, FlushEth, Headers, NakCode, Opcode, Reth, Syndrome, packet_bytes};

use super::source::Direction;

pub(super) const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(super) const THERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// The queue pairs of both ends.
const QP_HERE: u32 = 0x11;
const QP_THERE: u32 = 0x12;
const START: u64 = 1_795_894_801_000_000_000;
pub(super) const MTU: u32 = 1_024;

/// A datagram of a conversation.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) time: u64,
    pub(super) source: Ipv4Addr,
    pub(super) destination: Ipv4Addr,
    pub(super) payload: Vec<u8>,
    pub(super) direction: Direction,
    pub(super) comment: Option<&'static str>,
}

/// Builds a conversation as the requester sees it.
#[derive(Default)]
pub(super) struct Conversation {
    pub(super) sent: Vec<Sent>,
    now: u64,
}

impl Conversation {
    /// Time passes, in microseconds.
    pub(super) fn wait(&mut self, microseconds: u64) -> &mut Self {
        self.now += microseconds * 1_000;
        self
    }

    fn add(&mut self, is_response: bool, headers: &Headers, bytes: u32, comment: Option<&'static str>) {
        let mut payload = vec![0; packet_bytes(headers.bth.opcode, bytes)];
        headers.emit(&mut payload);
        let (source, destination) = if is_response { (THERE, HERE) } else { (HERE, THERE) };
        let direction = if is_response { Direction::Inbound } else { Direction::Outbound };
        self.sent.push(Sent { time: START + self.now, source, destination, payload, direction, comment });
    }

    /// A packet of a request.
    pub(super) fn request(&mut self, opcode: Opcode, psn: u32, bytes: u32, headers: Headers) -> &mut Self {
        self.commented(opcode, psn, bytes, headers, None)
    }

    fn commented(
        &mut self,
        opcode: Opcode,
        psn: u32,
        bytes: u32,
        headers: Headers,
        comment: Option<&'static str>,
    ) -> &mut Self {
        let bth = Bth { destination: Qpn::new(QP_THERE), psn: Psn::new(psn), ..Bth::with_payload(opcode, bytes) };
        self.add(false, &Headers { bth, ..headers }, bytes, comment);
        self
    }

    pub(super) fn response(&mut self, opcode: Opcode, psn: u32, bytes: u32, syndrome: Syndrome) -> &mut Self {
        let bth = Bth { destination: Qpn::new(QP_HERE), psn: Psn::new(psn), ..Bth::with_payload(opcode, bytes) };
        let headers =
            Headers { bth, aeth: Some(Aeth { syndrome, msn: 0 }), atomic_ack: Some(41), ..Headers::default() };
        self.add(true, &headers, bytes, None);
        self
    }

    pub(super) fn ack(&mut self, psn: u32) -> &mut Self {
        self.response(Opcode::RC_ACKNOWLEDGE, psn, 0, Syndrome::Ack { credit: 31 })
    }

    fn nak(&mut self, psn: u32, code: NakCode) -> &mut Self {
        self.response(Opcode::RC_ACKNOWLEDGE, psn, 0, Syndrome::Nak(code))
    }

    fn message(&mut self, is_response: bool, message: impl Into<Message>) -> &mut Self {
        let mad = message.into().to_mad(7).write();
        let bth = Bth { destination: Qpn::new(1), ..Bth::with_payload(Opcode::UD_SEND_ONLY, mad.len() as u32) };
        let deth = Some(Deth { qkey: Qkey(0x8001_0000), source: Qpn::new(1) });
        self.add(is_response, &Headers { bth, deth, ..Headers::default() }, mad.len() as u32, None);
        let start = packet_bytes(Opcode::UD_SEND_ONLY, 0) - 4;
        if let Some(sent) = self.sent.last_mut() {
            sent.payload[start..start + mad.len()].copy_from_slice(&mad);
        }
        self
    }

    fn datagram(&mut self, psn: u32) -> &mut Self {
        let bth =
            Bth { destination: Qpn::new(0x20), psn: Psn::new(psn), ..Bth::with_payload(Opcode::UD_SEND_ONLY, 64) };
        let deth = Some(Deth { qkey: Qkey(0x1111_1111), source: Qpn::new(0x21) });
        self.add(false, &Headers { bth, deth, ..Headers::default() }, 64, None);
        self
    }
}

pub(super) fn memory(length: u32) -> Headers {
    Headers { reth: Some(Reth { va: 0x7f00_0000_1000, rkey: Rkey(0x0a0b_0c0d), length }), ..Headers::default() }
}

fn atomic(swap_or_add: u64, compare: u64) -> Headers {
    let atomic = AtomicEth { va: 0x7f00_0000_2000, rkey: Rkey(0x0a0b_0c0d), swap_or_add, compare };
    Headers { atomic: Some(atomic), ..Headers::default() }
}

fn immediate(value: u32) -> Headers {
    Headers { immediate: Some(value), ..Headers::default() }
}

/// Everything that may happen, once.
pub(super) fn everything() -> Vec<Sent> {
    let mut c = Conversation::default();
    connect(&mut c);
    plain_requests(&mut c);
    recoveries(&mut c);
    other_services(&mut c);
    // A refusal, and the request after it.
    c.request(Opcode::RC_WRITE_ONLY, 60, 64, memory(64)).request(Opcode::RC_SEND_ONLY, 61, 8, Headers::default());
    c.wait(30).nak(60, NakCode::RemoteAccess);
    c.wait(10).request(Opcode::RC_SEND_ONLY, 62, 8, Headers::default());
    c.sent
}

fn connect(c: &mut Conversation) {
    let (local_id, remote_id) = (CommunicationId(0xa1), CommunicationId(0xb2));
    let rejected = Reject {
        local_id: remote_id,
        remote_id: CommunicationId(0xa0),
        rejected: RejectedMessage::ConnectRequest,
        reason: RejectReason::INVALID_SERVICE_ID,
        ..Reject::default()
    };
    c.message(false, ConnectRequest { local_id: CommunicationId(0xa0), ..ConnectRequest::default() });
    c.wait(50).message(true, rejected);
    let request = ConnectRequest { local_id, local_qpn: Qpn::new(QP_HERE), ..ConnectRequest::default() };
    c.wait(50).message(false, request).wait(1_000).message(false, request);
    let (local_qpn, starting_psn) = (Qpn::new(QP_THERE), Psn::new(0xff_fffe));
    c.wait(90).message(
        true,
        ConnectReply { local_id: remote_id, remote_id: local_id, local_qpn, starting_psn, ..ConnectReply::default() },
    );
    c.wait(60).message(false, ReadyToUse { local_id, remote_id, ..ReadyToUse::default() }).wait(10);
}

fn plain_requests(c: &mut Conversation) {
    // The numbers wrap around within the first WRITE.
    c.request(Opcode::RC_WRITE_FIRST, 0xff_fffe, MTU, memory(3 * MTU));
    c.wait(2).request(Opcode::RC_WRITE_MIDDLE, 0xff_ffff, MTU, Headers::default());
    c.wait(2).request(Opcode::RC_WRITE_LAST, 0, MTU, Headers::default()).wait(12).ack(0);
    c.wait(100).request(Opcode::RC_SEND_ONLY_IMMEDIATE, 1, 5, immediate(0x2a)).wait(9).ack(1);
    c.wait(100).request(Opcode::RC_READ_REQUEST, 2, 0, memory(2 * MTU + 1)).wait(20);
    for (psn, opcode, bytes) in [
        (2, Opcode::RC_READ_RESPONSE_FIRST, MTU),
        (3, Opcode::RC_READ_RESPONSE_MIDDLE, MTU),
        (4, Opcode::RC_READ_RESPONSE_LAST, 1),
    ] {
        c.wait(1).response(opcode, psn, bytes, Syndrome::Ack { credit: 31 });
    }
    c.wait(100).request(Opcode::RC_FETCH_ADD, 5, 0, atomic(1, 0)).request(Opcode::RC_COMPARE_SWAP, 6, 0, atomic(3, 41));
    for psn in [5, 6] {
        c.wait(15).response(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, 0, Syndrome::Ack { credit: 31 });
    }
    let flush = Headers { flush: Some(FlushEth { selectivity: 0, placement: 2 }), ..memory(4_096) };
    c.wait(100).request(Opcode::RC_ATOMIC_WRITE, 7, 8, memory(8)).request(Opcode::RC_FLUSH, 8, 0, flush);
    for psn in [7, 8] {
        c.wait(15).response(Opcode::RC_READ_RESPONSE_ONLY, psn, 0, Syndrome::Ack { credit: 31 });
    }
}

fn recoveries(c: &mut Conversation) {
    // The second of three packets is lost.
    c.wait(100).request(Opcode::RC_SEND_FIRST, 20, MTU, Headers::default());
    c.request(Opcode::RC_SEND_MIDDLE, 21, MTU, Headers::default());
    c.request(Opcode::RC_SEND_LAST, 22, 7, Headers::default()).wait(40).nak(21, NakCode::SequenceError);
    c.wait(5).request(Opcode::RC_SEND_MIDDLE, 21, MTU, Headers::default());
    c.request(Opcode::RC_SEND_LAST, 22, 7, Headers::default()).wait(40).ack(22);
    // No receive is posted, twice.
    c.wait(100).request(Opcode::RC_SEND_ONLY, 23, 100, Headers::default());
    for _ in 0..2 {
        c.wait(10).response(Opcode::RC_ACKNOWLEDGE, 23, 0, Syndrome::ReceiverNotReady { timer: 12 });
        c.wait(700).request(Opcode::RC_SEND_ONLY, 23, 100, Headers::default());
    }
    c.wait(10).ack(23);
    // A timeout, a probe.
    c.wait(100).request(Opcode::RC_SEND_ONLY, 24, 100, Headers::default());
    c.wait(67_000).request(Opcode::RC_SEND_ONLY, 24, 100, Headers::default()).wait(10).ack(24);
    c.wait(100).request(Opcode::RC_SEND_ONLY, 25, 100, Headers::default());
    c.wait(900).commented(Opcode::RC_SEND_ONLY, 25, 100, Headers::default(), Some("probe")).wait(10).ack(25);
    // The system drops one, and a part of a response is lost.
    c.wait(100).commented(
        Opcode::RC_SEND_ONLY,
        26,
        9,
        Headers::default(),
        Some("refused by the system, did not leave"),
    );
    c.wait(900).request(Opcode::RC_SEND_ONLY, 26, 9, Headers::default()).wait(10).ack(26);
    c.wait(100).request(Opcode::RC_READ_REQUEST, 27, 0, memory(2 * MTU));
    c.wait(20).response(Opcode::RC_READ_RESPONSE_FIRST, 27, MTU, Syndrome::Ack { credit: 31 });
    let rest = Headers {
        reth: Some(Reth { va: 0x7f00_0000_1000 + u64::from(MTU), rkey: Rkey(0x0a0b_0c0d), length: MTU }),
        ..Headers::default()
    };
    c.wait(5_000).request(Opcode::RC_READ_REQUEST, 28, 0, rest);
    c.wait(20).response(Opcode::RC_READ_RESPONSE_ONLY, 28, MTU, Syndrome::Ack { credit: 31 });
}

fn other_services(c: &mut Conversation) {
    // One packet between the two messages is missing.
    c.wait(100).request(Opcode::UC_SEND_FIRST, 1, MTU, Headers::default());
    c.request(Opcode::UC_SEND_LAST, 2, 6, Headers::default());
    c.wait(5).request(Opcode::UC_WRITE_ONLY, 4, 6, memory(6));
    let xrc = Headers { xrc_srq: Some(SharedReceiveQueueNumber::new(0x77)), ..memory(9) };
    c.wait(5).request(Opcode::XRC_WRITE_ONLY_IMMEDIATE, 900, 9, Headers { immediate: Some(3), ..xrc });
    c.wait(11).response(Opcode::XRC_ACKNOWLEDGE, 900, 0, Syndrome::Ack { credit: 31 });
    c.wait(5).datagram(1).wait(5).datagram(2).wait(100);
}

/// A format of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Format {
    pub(super) link: u16,
    pub(super) is_big: bool,
    /// pcap, not pcapng.
    pub(super) is_legacy: bool,
    /// Bytes of each frame that are captured.
    pub(super) snap: usize,
}

impl Format {
    pub(super) const RAW: Self = Self { link: 101, is_big: false, is_legacy: false, snap: usize::MAX };

    fn u16(self, value: u16) -> [u8; 2] {
        if self.is_big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    fn u32(self, value: u32) -> [u8; 4] {
        if self.is_big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    fn words(self, values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|value| self.u32(*value)).collect()
    }

    fn block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        let length = self.u32(12 + body.len() as u32);
        [&self.u32(kind)[..], &length, body, &length].concat()
    }

    fn option(self, code: u16, value: &[u8]) -> Vec<u8> {
        let mut option = [&self.u16(code)[..], &self.u16(value.len() as u16), value].concat();
        option.resize(option.len().next_multiple_of(4), 0);
        option
    }

    /// Returns the file.
    pub(super) fn write(self, conversation: &[Sent]) -> Vec<u8> {
        let mut file = if self.is_legacy {
            // Nanoseconds, version 2.4, snap length, link type.
            [
                self.u32(0xa1b2_3c4d).to_vec(),
                self.u16(2).to_vec(),
                self.u16(4).to_vec(),
                self.words(&[0, 0, 65_535, self.link.into()]),
            ]
            .concat()
        } else {
            let section = [self.words(&[0x1a2b_3c4d]), self.u16(1).to_vec(), self.u16(0).to_vec(), vec![0xff; 8]];
            let interface = [self.u16(self.link).to_vec(), vec![0; 6], self.option(9, &[9]), self.words(&[0])];
            [self.block(0x0a0d_0d0a, &section.concat()), self.block(1, &interface.concat())].concat()
        };
        for sent in conversation {
            file.extend(self.packet(sent));
        }
        file
    }

    fn packet(self, sent: &Sent) -> Vec<u8> {
        let frame = self.frame(sent);
        let captured = &frame[..frame.len().min(self.snap)];
        let lengths = [captured.len() as u32, frame.len() as u32];
        if self.is_legacy {
            let time = [(sent.time / 1_000_000_000) as u32, (sent.time % 1_000_000_000) as u32];
            return [self.words(&time), self.words(&lengths), captured.to_vec()].concat();
        }
        let mut body = self.words(&[0, (sent.time >> 32) as u32, sent.time as u32]);
        body.extend(self.words(&lengths));
        body.extend(captured);
        body.resize(body.len().next_multiple_of(4), 0);
        if self.link == Self::RAW.link {
            body.extend(self.option(2, &self.u32(sent.direction as u32)));
            if let Some(comment) = sent.comment {
                body.extend(self.option(1, comment.as_bytes()));
            }
            body.extend(self.words(&[0]));
        }
        self.block(6, &body)
    }

    fn frame(self, sent: &Sent) -> Vec<u8> {
        let is_outgoing = sent.direction == Direction::Outbound;
        let link = match self.link {
            1 => [&[2; 12][..], &[8, 0]].concat(),
            113 => [&[0, if is_outgoing { 4 } else { 0 }][..], &[0; 12], &[8, 0]].concat(),
            276 => [&[8, 0, 0, 0, 0, 0, 0, 1, 0, 1, if is_outgoing { 4 } else { 0 }][..], &[0; 9]].concat(),
            _ => Vec::new(),
        };
        let udp = 8 + sent.payload.len() as u16;
        let mut ip = vec![0x45, 0];
        ip.extend((20 + udp).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        ip.extend(sent.source.octets());
        ip.extend(sent.destination.octets());
        ip.extend([0xd0, 0, 0x12, 0xb7]);
        ip.extend(udp.to_be_bytes());
        ip.extend([0, 0]);
        [link, ip, sent.payload.clone()].concat()
    }
}
