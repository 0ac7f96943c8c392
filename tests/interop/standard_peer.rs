//! The discovery of native peers toward the kernel: its queue pair 1 refuses our question, each time, so the peer stays
//! a standard one, and nothing else changes at either end.

use std::time::Duration;

use rdma_verbs::types::Counter;
use rdma_verbs::verbs::{AddressVector, QueuePair, QueuePairAttributes, QueuePairOptions, QueuePairState, SendRequest};

use super::{Connection, Home, Outcome, USUAL, ensure, pattern};

/// More than one, because a queue pair 1 that is harmed refuses nothing any more.
const CONNECTIONS: u32 = 20;
/// Most questions until the guest, whose processor may be emulated, has refused one: those of the first 127 ms.
const MOST_QUESTIONS: u64 = 8;
const BYTES: usize = 60_000;

/// Connects with the numbers of the peer alone, as C programs do.
fn connect(home: &mut Home) -> Result<Connection, Box<dyn std::error::Error>> {
    let remote = home.guest.command(&format!("reset access={}", USUAL.guest_access))?;
    let options = QueuePairOptions::default().access(USUAL.access);
    let qp = home.pd.create_qp_with(&home.cq, &home.cq, &options)?;
    let (path_mtu, own) = (remote.path_mtu()?, qp.connection_info()?);
    let peer = remote.connection_info(path_mtu)?;
    qp.init()?;
    let to_rtr = QueuePairAttributes::default()
        .qp_state(QueuePairState::ReadyToReceive)
        .ah_attr(AddressVector::new(peer.gid, 0))
        .path_mtu(path_mtu)
        .dest_qp_num(peer.qpn)
        .rq_psn(peer.psn)
        .max_dest_rd_atomic(16)
        .min_rnr_timer(12);
    let to_rts = QueuePairAttributes::default()
        .qp_state(QueuePairState::ReadyToSend)
        .timeout(14)
        .retry_cnt(7)
        .rnr_retry(6)
        .sq_psn(own.psn)
        .max_rd_atomic(1);
    qp.modify(&to_rtr)?;
    qp.modify(&to_rts)?;
    let gid: String = own.gid.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    home.guest.command(&format!("connect {} {} {gid}", own.qpn.value(), own.psn.value()))?;
    Ok(Connection { qp, remote })
}

fn questions(qp: &QueuePair) -> u64 {
    qp.counters().get(Counter::DiscoveryQuestions)
}

pub(super) fn stays_standard(home: &mut Home) -> Outcome {
    for _ in 0..CONNECTIONS {
        let connection = connect(home)?;
        let (qp, there) = (&connection.qp, connection.remote.memory("open")?.slice(..BYTES)?);
        home.fill(BYTES, 7)?;
        home.perform_well(qp, SendRequest::write(home.open.slice(..BYTES)?, there))?;
        home.open.write_at(0, &[0; BYTES])?;
        home.perform_well(qp, SendRequest::read(home.open.slice(..BYTES)?, there))?;
        home.own_bytes_are(0, &pattern(7, BYTES))?;
        // The refusal ends the questions. Without it the next one follows within 2 ms, 4 ms, 8 ms, …
        let mut asked = 0;
        while asked != questions(qp) {
            asked = questions(qp);
            ensure((1..=MOST_QUESTIONS).contains(&asked), &format!("{asked} questions, none of them refused"))?;
            std::thread::sleep(Duration::from_millis(2 << asked));
        }
        ensure(asked > 0, "no question")?;
        ensure(qp.query()?.attributes.peer.is_none(), "the kernel counts as native")?;
    }
    Ok(())
}
