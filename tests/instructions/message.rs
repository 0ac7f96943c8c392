//! Sends messages between two transports without a network, for `tests/instructions/run`, which counts the processor's
//! instructions with callgrind. The counts are the same in every run, independently of other load.
//!
//! `transport_instructions send|write BYTES COUNT [BATCH]`: BATCH messages are posted before they leave, one by
//! default.

use std::error::Error;

use rdma_verbs::memory::Backing;
use rdma_verbs::sim::{Connection, Host, Port};
use rdma_verbs::transport::{AckRelease, Datagram};
use rdma_verbs::types::{
    AccessFlags, Data, DomainId, KeyShare, Mtu, Operation, PeerCapabilities, PeerKey, Psn, QueuePairCapabilities,
    ReceiveRequest, SendFlags, SendRequest, Sge, Time,
};

const BASE: u64 = 0x10_0000;
const NATIVE: PeerCapabilities =
    PeerCapabilities::STANDARD.version(1).segmentation_offload(true).receive_buffer_bytes(8 << 20);

fn connect(hosts: &mut [Host; 2], ports: &[Port; 2]) {
    for own in 0..2 {
        let share = |end: usize| KeyShare::new([end as u8; KeyShare::BYTES]);
        let connection = Connection {
            peer_address: hosts[1 - own].address,
            peer_qpn: ports[1 - own].qpn,
            peer: NATIVE,
            key: Some(PeerKey { local: share(own), remote: share(1 - own), is_agreed: true }),
            path_mtu: Mtu::Mtu4096,
            sq_psn: Psn::new(100),
            rq_psn: Psn::new(100),
            access: AccessFlags::REMOTE,
            rd_atomic: 4,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 2,
        };
        hosts[own].connect(Time::ZERO, ports[own].qpn, &connection);
    }
}

/// Carries all packets of one host to the other. Returns false if there were none.
fn carry(hosts: &mut [Host; 2], from: usize, now: Time, buffer: &mut [u8]) -> bool {
    let [first, second] = hosts;
    let (sender, receiver) = if from == 0 { (first, second) } else { (second, first) };
    let mut has_sent = false;
    loop {
        let view = sender.memory.read();
        let transmit = sender.endpoint.poll_transmit(now, &view, buffer, AckRelease::Now);
        drop(view);
        let Some(transmit) = transmit else { return has_sent };
        has_sent = true;
        let size = transmit.segment_size.unwrap_or(transmit.length);
        let view = receiver.memory.read();
        for (index, payload) in buffer[..transmit.length].chunks(size).enumerate() {
            let datagram = Datagram {
                source: transmit.source,
                destination: transmit.destination,
                source_port: transmit.source_port,
                segment_index: index as u16,
                hop_limit: None,
                traffic_class: None,
                payload,
            };
            receiver.endpoint.handle_arrival(now, &view, &datagram);
        }
        receiver.endpoint.settle_arrivals(now);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [operation, bytes, count, batch @ ..] = &arguments[..] else {
        return Err("send|write BYTES COUNT [BATCH]".into());
    };
    let batch: u64 = batch.first().map_or(Ok(1), |batch| batch.parse())?;
    let (bytes, count): (u32, u64) = (bytes.parse()?, count.parse()?);
    let mut hosts = [1, 2].map(|number| Host::new([192, 0, 2, number].into(), number.into()));
    let ports = hosts.each_mut().map(|host| host.create_queue_pair(QueuePairCapabilities::default()));
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
    let regions = hosts.each_ref().map(|host| {
        host.memory.register(DomainId(1), Backing::from_vec(vec![1; 1 << 20]), Some(BASE), access).expect("a region")
    });
    connect(&mut hosts, &ports);
    let sges = regions.each_ref().map(|region| [Sge { addr: BASE, length: bytes, lkey: region.lkey() }]);
    let operation = match operation.as_str() {
        "send" => Operation::Send,
        "write" => Operation::Write { remote_addr: BASE, rkey: regions[1].rkey() },
        _ => return Err("the operation is send or write".into()),
    };
    let (mut buffer, mut done, mut now) = (vec![0; 65_536], Vec::new(), Time::from_nanos(1));
    for first in (0..count).step_by(batch as usize) {
        now = now + std::time::Duration::from_micros(1);
        for wr_id in first..count.min(first + batch) {
            if operation == Operation::Send {
                assert!(hosts[1].post_receive(now, &ports[1], &ReceiveRequest { wr_id, sges: &sges[1] }));
            }
            let request = SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, data: Data::Sges(&sges[0]) };
            assert!(hosts[0].post_send(now, &ports[0], &request));
        }
        while carry(&mut hosts, 0, now, &mut buffer) | carry(&mut hosts, 1, now, &mut buffer) {}
        ports.iter().for_each(|port| port.poll(&mut done));
        assert!(done.drain(..).all(|completion| completion.status.is_success()), "a message from {first} on failed");
    }
    Ok(())
}
