//! Sends messages between two transports without a network, for `tests/instructions/run`, which counts the processor's
//! instructions with callgrind. The counts are the same in every run, independently of other load.
//!
//! `transport_instructions send|write BYTES COUNT [BATCH [CONTROLLER]]`: BATCH messages are posted before they leave,
//! one by default. CONTROLLER is `none`, as between processes of one host, which is the default, or `cubic`, as between
//! hosts.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rdma_verbs::memory::Backing;
use rdma_verbs::sim::{Connection, Host, Port};
use rdma_verbs::transport::{AckRelease, CongestionFactory, CubicFactory, Datagram, Medium};
use rdma_verbs::types::{
    AccessFlags, Data, DomainId, KeyShare, Mtu, Operation, PeerCapabilities, PeerKey, Psn, QueuePairCapabilities,
    ReceiveRequest, SendFlags, SendRequest, Sge, Time,
};

const BASE: u64 = 0x10_0000;
/// Time that packets take to the other end.
const ONE_WAY: Duration = Duration::from_micros(10);
/// Longest time until a batch has arrived: pacing holds packets back.
const PATIENCE: Duration = Duration::from_secs(1);
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
                medium: Medium::Network,
            };
            receiver.endpoint.handle_arrival(now, &view, &datagram);
        }
        receiver.endpoint.settle_arrivals(now);
    }
}

/// Carries packets both ways until there are `count` completions. Returns when the last one came.
fn finish(hosts: &mut [Host; 2], ports: &[Port; 2], mut now: Time, count: u64, buffer: &mut [u8]) -> Time {
    let (mut done, end) = (Vec::new(), now + PATIENCE);
    loop {
        let mut has_sent = false;
        for from in 0..2 {
            has_sent |= carry(hosts, from, now, buffer);
            now = now + ONE_WAY;
        }
        ports.iter().for_each(|port| port.poll(&mut done));
        if !has_sent && done.len() as u64 == count {
            assert!(done.iter().all(|completion| completion.status.is_success()), "a message fails before {now:?}");
            return now;
        }
        assert!(now < end, "{} of {count} completions came", done.len());
        if !has_sent {
            hosts.iter_mut().for_each(|host| host.endpoint.handle_timeout(now));
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [operation, bytes, count, rest @ ..] = &arguments[..] else {
        return Err("send|write BYTES COUNT [BATCH [CONTROLLER]]".into());
    };
    let batch: u64 = rest.first().map_or(Ok(1), |batch| batch.parse())?;
    let (bytes, count): (u32, u64) = (bytes.parse()?, count.parse()?);
    let congestion: Option<Arc<dyn CongestionFactory>> = match rest.get(1).map(String::as_str) {
        None | Some("none") => None,
        Some("cubic") => Some(Arc::new(CubicFactory)),
        Some(_) => return Err("the controller is none or cubic".into()),
    };
    let mut hosts =
        [1, 2].map(|number| Host::with_congestion([192, 0, 2, number].into(), number.into(), congestion.clone()));
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
    let (mut buffer, mut now) = (vec![0; 65_536], Time::from_nanos(1));
    let each = if operation == Operation::Send { 2 } else { 1 };
    for first in (0..count).step_by(batch as usize) {
        for wr_id in first..count.min(first + batch) {
            if operation == Operation::Send {
                assert!(hosts[1].post_receive(now, &ports[1], &ReceiveRequest { wr_id, sges: &sges[1] }));
            }
            let request = SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, data: Data::Sges(&sges[0]) };
            assert!(hosts[0].post_send(now, &ports[0], &request));
        }
        now = finish(&mut hosts, &ports, now, each * (count.min(first + batch) - first), &mut buffer);
    }
    Ok(())
}
