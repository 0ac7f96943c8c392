//! Victims: devices on loopback addresses of the test's own network namespace, their connections, and checks that these
//! still work.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rdma_verbs::types::{Psn, Qpn};
use rdma_verbs::verbs::{
    self, AccessFlags, Completion, CompletionQueue, ConnectOptions, ConnectionInfo, Context, Counters, MemoryRegion,
    Mtu, QueuePair, QueuePairOptions, ReceiveRequest, SendRequest, SharedMemory, SoftOptions,
};

use super::forge::Aim;

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const REGION_BYTES: usize = 1 << 20;
const DEPTH: u32 = 256;
const ALL: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::LOCAL_WRITE);

static NEXT: AtomicU16 = AtomicU16::new(1);

/// Returns an address that no other device of this program has.
pub(crate) fn new_address() -> Ipv4Addr {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Ipv4Addr::new(127, 9, (number >> 8) as u8, number as u8)
}

/// Options of a device whose packets come over the network, as those of attackers do, unless the environment says how
/// memory is shared.
pub(crate) fn device_options() -> SoftOptions {
    let is_chosen = std::env::var_os("RDMA_VERBS_SHARED_MEMORY").is_some();
    if is_chosen { SoftOptions::new() } else { SoftOptions::new().shared_memory(SharedMemory::Off) }
}

/// A device with a queue pair.
pub(crate) struct End {
    pub(crate) address: Ipv4Addr,
    pub(crate) context: Context,
    pub(crate) cq: CompletionQueue,
    pub(crate) qp: QueuePair,
    pub(crate) region: MemoryRegion,
}

impl End {
    pub(crate) fn open() -> Self {
        Self::on(new_address())
    }

    /// Opens an end on a device that may exist already.
    pub(crate) fn on(address: Ipv4Addr) -> Self {
        let context = verbs::open_soft(&format!("soft:{address}"), &device_options()).expect("a device");
        let pd = context.alloc_pd().expect("a protection domain");
        let cq = context.create_cq(4 * DEPTH).expect("a completion queue");
        let qp = pd
            .create_qp_with(&cq, &cq, &QueuePairOptions::default().max_send_wr(DEPTH).max_recv_wr(DEPTH))
            .expect("a queue pair");
        let region = pd.alloc_mr(REGION_BYTES, ALL).expect("a region");
        Self { address, context, cq, qp, region }
    }

    pub(crate) fn info(&self) -> ConnectionInfo {
        self.qp.connection_info().expect("connection_info")
    }

    /// Returns the aim of a forger that targets this end and claims this source.
    pub(crate) fn aim(&self, source: Ipv4Addr, source_port: u16) -> Aim {
        Aim { source, destination: self.address, source_port, qpn: self.qp.qpn() }
    }

    /// Returns the device's counters.
    pub(crate) fn counters(&self) -> Counters {
        self.context.counters()
    }

    /// Drives the device until it has handled all arrived packets; nothing may complete.
    pub(crate) fn drive(&self) {
        // A poll receives 16 datagrams or more, a forger sends fewer before each.
        for _ in 0..4 {
            let mut completions = [Completion::default(); 16];
            let count = self.cq.poll(&mut completions).expect("poll");
            assert_eq!(count, 0, "a forged packet completes {:?}", completions[0]);
        }
    }
}

/// The capabilities that the ends know of each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Both speak only the standard.
    Standard,
    /// Both know the other as native.
    Native,
}

impl Kind {
    pub(crate) const BOTH: [Kind; 2] = [Kind::Standard, Kind::Native];
}

/// Returns the connection info that an end gives its peer.
pub(crate) fn info_for_peer(kind: Kind, info: ConnectionInfo, mtu: Mtu) -> ConnectionInfo {
    match kind {
        Kind::Standard => ConnectionInfo::standard_peer(info.qpn, info.psn, info.gid, mtu),
        Kind::Native => info,
    }
}

/// Returns the info of a standard peer that exists only as raw packets.
pub(crate) fn silent_peer(address: Ipv4Addr, qpn: Qpn, psn: Psn, mtu: Mtu) -> ConnectionInfo {
    ConnectionInfo::standard_peer(qpn, psn, address.into(), mtu)
}

/// Returns options that give up after 8 × 67 ms of silence.
pub(crate) fn options(mtu: Mtu) -> ConnectOptions {
    ConnectOptions::default().path_mtu(mtu)
}

pub(crate) fn connect(kind: Kind, left: &End, right: &End, mtu: Mtu) {
    left.qp.connect_with(&info_for_peer(kind, right.info(), mtu), &options(mtu)).expect("connect");
    right.qp.connect_with(&info_for_peer(kind, left.info(), mtu), &options(mtu)).expect("connect");
}

pub(crate) fn pair(kind: Kind, mtu: Mtu) -> (End, End) {
    let (left, right) = (End::open(), End::open());
    connect(kind, &left, &right, mtu);
    (left, right)
}

/// Drives all ends until each has the expected number of completions.
#[track_caller]
pub(crate) fn complete<const COUNT: usize>(ends: [(&End, usize); COUNT]) -> [Vec<Completion>; COUNT] {
    let deadline = Instant::now() + PATIENCE;
    let mut found: [Vec<Completion>; COUNT] = std::array::from_fn(|_| Vec::new());
    while ends.iter().zip(&found).any(|((_, count), found)| found.len() < *count) {
        for ((end, _), found) in ends.iter().zip(&mut found) {
            let mut completions = [Completion::default(); 16];
            let count = end.cq.poll(&mut completions).expect("poll");
            found.extend_from_slice(&completions[..count]);
        }
        assert!(Instant::now() < deadline, "it hangs: {}", ends[0].0.qp.explain_state());
    }
    found
}

#[track_caller]
fn succeed(end: &End, completions: &[Completion]) {
    for completion in completions {
        if let Err(failure) = completion.result() {
            panic!("{}", end.qp.explain(&failure));
        }
    }
}

/// Sends a message of `length` bytes of a pattern, which must arrive unchanged; the receiver must have nothing posted.
#[track_caller]
pub(crate) fn send(from: &End, to: &End, length: usize, seed: u8) {
    let sent: Vec<u8> = (0..length).map(|index| (index as u8).wrapping_mul(31) ^ seed).collect();
    from.region.write_at(0, &sent).expect("in the region");
    to.region.write_at(0, &vec![!seed; length]).expect("in the region");
    to.qp.post_recv(&[ReceiveRequest::new(to.region.slice(..length).expect("in the region"))]).expect("post_recv");
    let data = from.region.slice(..length).expect("in the region");
    from.qp.post_send(&[SendRequest::send(data).signaled()]).expect("post_send");
    let [sends, receives] = complete([(from, 1), (to, 1)]);
    succeed(from, &sends);
    succeed(to, &receives);
    assert!(to.region.to_vec(..length).expect("in the region") == sent, "{length} bytes arrive changed");
}

/// Exchanges messages in both directions and a WRITE, of one packet and of several.
#[track_caller]
pub(crate) fn exchange(left: &End, right: &End) {
    for (length, seed) in [(64, 3), (9_000, 5), (0, 7), (4_097, 9)] {
        send(left, right, length, seed);
        send(right, left, length, seed ^ 0x55);
    }
    left.region.write_at(0, &[0x77; 8_192]).expect("in the region");
    let data = left.region.slice(..8_192).expect("in the region");
    left.qp.post_send(&[SendRequest::write(data, right.region.remote()).signaled()]).expect("post_send");
    let [done] = complete([(left, 1)]);
    succeed(left, &done);
    assert!(right.region.to_vec(..8_192).expect("in the region") == [0x77; 8_192]);
}

/// Checks that the existing connection goes on, and that new ones of the same devices work.
#[track_caller]
pub(crate) fn still_work(kind: Kind, left: &End, right: &End) {
    exchange(left, right);
    let (new_left, new_right) = (End::on(left.address), End::on(right.address));
    connect(kind, &new_left, &new_right, Mtu::Mtu1024);
    exchange(&new_left, &new_right);
}
