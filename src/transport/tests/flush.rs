//! Linux's ICRC of FLUSH: which packets leave with it, and which are accepted.

use super::*;
use crate::wire::{Aeth, Bth, Flow, Headers, Opcode, Syndrome, icrc};

struct Wire {
    pair: Pair,
    flow: Flow,
}

impl Wire {
    fn new(capabilities: PeerCapabilities) -> Self {
        let pair = Pair::new(capabilities);
        let [source, destination] = [0, 1].map(|at| pair.ends[at].address);
        Self { pair, flow: Flow { source, destination, source_port: 50_000 } }
    }

    fn post(&mut self) {
        let rkey = self.pair.ends[1].region.rkey();
        let operation = Operation::Flush { remote_addr: 0x10_0000, rkey, length: 8, flags: FlushFlags::GLOBAL };
        self.pair.ends[0].post(self.pair.now, operation, &[]);
    }

    /// Returns the FLUSH that leaves now, and whether its ICRC is Linux's.
    fn sent(&mut self) -> (Vec<u8>, bool) {
        let packets = self.pair.ends[0].transmit(self.pair.now);
        self.check_flush(packets)
    }

    fn check_flush(&self, packets: Vec<Vec<u8>>) -> (Vec<u8>, bool) {
        assert_eq!(packets.len(), 1);
        assert_eq!(packets[0][0], Opcode::RC_FLUSH.0);
        let options = icrc::Verify { first_identification: 0, solve: false, expected_df: true };
        let exact = icrc::Match::Exact { identification: 0 };
        let as_linux = icrc::verify_as_linux(&self.flow, &options, &packets[0]) == exact;
        assert_ne!(icrc::verify(&self.flow, &options, &packets[0]) == exact, as_linux);
        (packets[0].clone(), as_linux)
    }

    /// Returns the FLUSH that leaves when no response has come for a while, and whether its ICRC is Linux's.
    fn sent_again(&mut self) -> (Vec<u8>, bool) {
        for _ in 0..10 {
            let end = &mut self.pair.ends[0];
            self.pair.now = end.endpoint.next_timeout().expect("something has no response");
            end.endpoint.handle_timeout(self.pair.now);
            let packets = end.transmit(self.pair.now);
            if !packets.is_empty() {
                return self.check_flush(packets);
            }
        }
        panic!("the FLUSH is not repeated");
    }

    fn respond(&mut self, flush: &[u8]) {
        let bth = Bth {
            opcode: Opcode::RC_READ_RESPONSE_ONLY,
            destination: self.pair.ends[0].qpn,
            psn: Psn::new(u32::from_be_bytes([0, flush[9], flush[10], flush[11]])),
            ..Bth::default()
        };
        let aeth = Some(Aeth { syndrome: Syndrome::Ack { credit: 31 }, msn: 1 });
        let mut packet = vec![0; 20];
        Headers { bth, aeth, ..Headers::default() }.emit(&mut packet);
        let back = Flow { source: self.flow.destination, destination: self.flow.source, ..self.flow };
        icrc::append(&back, 0, &mut packet);
        self.pair.ends[0].handle(self.pair.now, back.source, &[packet]);
        assert_eq!(self.pair.ends[0].poll()[0].opcode, CompletionOpcode::Flush);
    }
}

#[test]
fn a_standard_peer_that_responds_as_linux_gets_the_next_one_as_linux_at_once() {
    let mut wire = Wire::new(PeerCapabilities::STANDARD);
    wire.post();
    assert!(!wire.sent().1, "the standard's comes first");
    let (flush, as_linux) = wire.sent_again();
    assert!(as_linux);
    wire.respond(&flush);
    wire.post();
    let (flush, as_linux) = wire.sent();
    assert!(as_linux);
    assert!(!wire.sent_again().1, "and if that is lost, the standard's again");
    assert!(wire.sent_again().1);
    wire.respond(&flush);
}

#[test]
fn a_peer_that_responds_to_the_standard_gets_the_standard() {
    let mut wire = Wire::new(PeerCapabilities::STANDARD);
    for _ in 0..3 {
        wire.post();
        let (flush, as_linux) = wire.sent();
        assert!(!as_linux);
        wire.respond(&flush);
    }
    wire.post();
    assert!(!wire.sent().1);
    assert!(wire.sent_again().1);
    let (flush, as_linux) = wire.sent_again();
    assert!(!as_linux);
    wire.respond(&flush);
    wire.post();
    assert!(!wire.sent().1);
}

#[test]
fn a_native_peer_never_gets_the_icrc_of_linux() {
    let mut wire = Wire::new(NATIVE);
    wire.post();
    assert!(!wire.sent().1);
    for _ in 0..4 {
        assert!(!wire.sent_again().1);
    }
}

#[test]
fn the_icrc_of_linux_is_accepted_only_for_flush_of_standard_peers() {
    for (capabilities, opcode, dropped) in [
        (PeerCapabilities::STANDARD, Opcode::RC_FLUSH, 0),
        (NATIVE, Opcode::RC_FLUSH, 1),
        (PeerCapabilities::STANDARD, Opcode::RC_SEND_ONLY, 1),
    ] {
        let mut wire = Wire::new(capabilities);
        wire.post();
        let (mut flush, _) = wire.sent();
        flush[0] = opcode.0;
        icrc::append_as_linux(&wire.flow, 0, &mut flush);
        wire.pair.ends[1].handle(wire.pair.now, wire.flow.source, &[flush.clone()]);
        let drops = |wire: &Wire| wire.pair.ends[1].endpoint.counters().get_drop(DropReason::BadIcrc);
        assert_eq!(drops(&wire), dropped, "{capabilities:?} {opcode:?}");
        flush[20] ^= 4;
        wire.pair.ends[1].handle(wire.pair.now, wire.flow.source, &[flush]);
        assert_eq!(drops(&wire), dropped + 1, "a flipped bit, {capabilities:?} {opcode:?}");
    }
}
