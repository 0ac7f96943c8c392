//! Forged acknowledgements and NAKs that sweep all PSNs, while a whole window is in flight.

use rdma_verbs::types::Psn;
use rdma_verbs::verbs::{Counter, Mtu, QueuePairState, SendRequest};
use rdma_verbs::wire::{NakCode, Syndrome};

use super::Attack;
use super::forge::RawSender;
use super::world::{End, Kind, PATIENCE, connect, info_for_peer, still_work};

pub(super) const ATTACKS: &[Attack] = &[
    ("responses/a_sweep_of_acknowledgements_completes_nothing", |_| sweep(Syndrome::Ack { credit: 31 })),
    ("responses/a_sweep_of_refusals_ends_nothing", |_| sweep(Syndrome::Nak(NakCode::RemoteAccess))),
    ("responses/a_sweep_of_rnr_naks_stops_nothing", |_| sweep(Syndrome::ReceiverNotReady { timer: 31 })),
];

const STRIDE: u32 = 3_000;

/// The victim's peer is native but silent, because it is not connected yet: the port is not known from traffic.
fn sweep(syndrome: Syndrome) {
    let raw = RawSender::open();
    let (victim, peer) = (End::open(), End::open());
    // The silent peer must not be given up meanwhile: that takes 8 times 2 s.
    let patient = super::world::options(Mtu::Mtu256).timeout(19);
    victim.qp.connect_with(&info_for_peer(Kind::Native, peer.info(), Mtu::Mtu256), &patient).expect("connect");
    let whole = victim.region.slice(..).expect("in the region");
    victim.qp.post_send(&[SendRequest::send(whole).signaled()]).expect("post_send");
    victim.drive();
    let aim = victim.aim(peer.address, 51_234);
    let mut tries = 0;
    for psn in (0..1 << 24).step_by(STRIDE as usize) {
        raw.send(&aim.response(Psn::new(psn), syndrome));
        tries += 1;
        if tries % 32 == 0 {
            victim.drive();
        }
    }
    victim.drive();
    let counters = victim.qp.counters();
    let passed = counters.get(Counter::ReceivedPackets);
    println!("{passed} of {tries} pass for the peer's");
    let effects = [Counter::ReceivedNak, Counter::ReceivedRnr, Counter::ReceivedSequenceNak].map(|at| counters.get(at));
    assert_eq!((passed, effects), (0, [0; 3]), "passed, refusals and RNR NAKs believed, of {tries}");
    assert_eq!(victim.qp.state().expect("a state"), QueuePairState::ReadyToSend);
    let (left, right) = (End::on(victim.address), End::on(peer.address));
    connect(Kind::Native, &left, &right, Mtu::Mtu1024);
    still_work(Kind::Native, &left, &right);
    assert!(PATIENCE.as_secs() > 16);
}
