//! Queue pairs whose traffic is captured.

use std::ops::Deref;
use std::path::PathBuf;
use std::time::Instant;

use rdma_verbs::verbs::{
    Capture, CaptureOptions, CompletionStatus, ConnectOptions, ConnectionInfo, Counter, MemoryRegion, Mtu, Payload,
    QueuePair, QueuePairOptions, ReceiveRequest, SendRequest,
};
use support::{PATIENCE, open_without_shared_memory};

/// Names a folder in which the files are kept for other programs.
const KEEP: &str = "CAPTURE_TEST_FOLDER";

/// An end with memory.
pub(crate) struct End {
    end: support::End,
    pub(crate) region: MemoryRegion,
}

impl Deref for End {
    type Target = support::End;

    fn deref(&self) -> &support::End {
        &self.end
    }
}

impl End {
    pub(crate) fn open(address: &str) -> Self {
        // Sockets, whose merged and segmented packets captures show as on the wire.
        let context = open_without_shared_memory(&format!("soft:{address}")).unwrap();
        let end = support::End::on(context, &QueuePairOptions::default());
        let region = end.region(1 << 20);
        // Not zeros: readers of captures guess the protocol from the payload.
        region.write_at(0, &[b'z'; 1 << 20]).unwrap();
        Self { end, region }
    }

    pub(crate) fn capture(&self, name: &str) -> Capture {
        self.context.start_capture(&CaptureOptions::new(file(name))).unwrap()
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.context.counters().get(counter)
    }
}

/// Returns the path of the test's file.
pub(crate) fn file(name: &str) -> PathBuf {
    let folder = std::env::var_os(KEEP).map_or_else(std::env::temp_dir, PathBuf::from);
    folder.join(format!("rdma-verbs-capture-{name}-{}.pcapng", std::process::id()))
}

/// Removes a file, unless the files are to be kept.
pub(crate) fn remove(path: &std::path::Path) {
    if std::env::var_os(KEEP).is_none() {
        std::fs::remove_file(path).unwrap();
    }
}

/// Connection data that each end has about the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeerKind {
    Native,
    Standard,
}

pub(crate) fn options() -> ConnectOptions {
    ConnectOptions::default().path_mtu(Mtu::Mtu256).hop_limit(17).traffic_class(0x28).min_rnr_timer(1).max_rd_atomic(1)
}

pub(crate) fn connect(left: &QueuePair, right: &QueuePair, peer_kind: PeerKind) {
    let info_of = |qp: &QueuePair| {
        let info = qp.connection_info().unwrap();
        match peer_kind {
            PeerKind::Native => info,
            PeerKind::Standard => ConnectionInfo::standard_peer(info.qpn, info.psn, info.gid, info.path_mtu),
        }
    };
    let (left_info, right_info) = (info_of(left), info_of(right));
    left.connect_with(&right_info, &options()).unwrap();
    right.connect_with(&left_info, &options()).unwrap();
}

/// Performs each operation of the reliable service, in one packet and in several, with every kind of response.
pub(crate) fn every_operation(left: &End, right: &End) {
    let remote = right.region.remote();
    let (short, long) = (left.region.slice(0..100).unwrap(), left.region.slice(1_000..2_001).unwrap());
    let mut wr_id = 0;
    let mut posts = |request: SendRequest<'_>, needs_receive: bool| {
        wr_id += 1;
        if needs_receive {
            right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(wr_id)]).unwrap();
        }
        left.qp.post_send(&[request.wr_id(wr_id).signaled()]).unwrap();
        if needs_receive {
            right.succeeds(wr_id);
        }
        left.succeeds(wr_id);
    };
    for data in [short, long] {
        posts(SendRequest::send(data), true);
        posts(SendRequest::send_with_immediate(data, 0x1234_5678).solicited(), true);
        posts(SendRequest::write(data, remote), false);
        posts(SendRequest::write_with_immediate(data, remote, 7), true);
        posts(SendRequest::read(data, remote), false);
    }
    let word = left.region.slice(4_096..4_104).unwrap();
    posts(SendRequest::fetch_and_add(word, remote.slice(8..16).unwrap(), 5), false);
    posts(SendRequest::compare_and_swap(word, remote.slice(8..16).unwrap(), 5, 6), false);

    // Nothing is posted yet: the peer responds with an RNR NAK.
    left.qp.post_send(&[SendRequest::send(Payload::inline(&[b'e'; 40])).wr_id(100).signaled()]).unwrap();
    let end = Instant::now() + PATIENCE;
    while left.count(Counter::ReceivedRnr) == 0 {
        assert!(Instant::now() < end, "no RNR NAK");
    }
    right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(100)]).unwrap();
    right.succeeds(100);
    left.succeeds(100);

    // No region allows invalidation, so it is refused.
    refused_invalidation(left, right, &left.qp, &right.qp, 100);
}

/// Sends a SEND with invalidate, which the peer refuses; the connection ends.
pub(crate) fn refused_invalidation(left: &End, right: &End, from: &QueuePair, to: &QueuePair, length: usize) {
    to.post_recv(&[ReceiveRequest::new(&right.region).wr_id(200)]).unwrap();
    let data = left.region.slice(0..length).unwrap();
    let request = SendRequest::send_with_invalidate(data, right.region.rkey()).wr_id(200).signaled();
    from.post_send(&[request]).unwrap();
    left.fails(200, CompletionStatus::RemoteAccessError);
    right.fails(200, CompletionStatus::RemoteAccessError);
}

/// Waits until everything that one end sent has arrived at the other.
pub(crate) fn wait_arrived(left: &End, right: &End) {
    let arrived = |from: &End, to: &End| {
        let counters = to.context.counters();
        from.count(Counter::SentPackets) == counters.get(Counter::ReceivedPackets)
    };
    let end = Instant::now() + PATIENCE;
    while !(arrived(left, right) && arrived(right, left)) {
        assert!(Instant::now() < end, "{:?}, {:?}", left.context.counters(), right.context.counters());
        std::thread::yield_now();
    }
}
