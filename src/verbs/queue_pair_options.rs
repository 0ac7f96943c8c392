//! Attributes of a new queue pair, apart from the objects it is made of.

use super::queue_pair::Settings;
use super::{AccessFlags, Qkey, QueuePairCapabilities, QueuePairType};

/// Attributes of a new queue pair, each with a default.
///
/// These are plain values: they name no object and create none. [`QueuePairBuilder::options`] takes them, and so do the
/// queue pairs of the [owned](crate::owned::QueuePair::with) tier and those of `asynchronous`.
///
/// ```
/// # use rdma_verbs::verbs;
/// # let context = verbs::open("soft:127.0.3.220")?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// use rdma_verbs::verbs::QueuePairOptions;
///
/// let small = QueuePairOptions::default().max_send_wr(8).max_recv_wr(8);
/// let first = pd.create_qp(&cq, &cq).options(small.clone()).build()?;
/// let second = pd.create_qp(&cq, &cq).options(small.max_send_wr(64)).build()?;
/// assert!(first.cap().max_send_wr < second.cap().max_send_wr);
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// [`QueuePairBuilder::options`]: super::QueuePairBuilder::options
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing by themselves"]
pub struct QueuePairOptions {
    pub(super) cap: QueuePairCapabilities,
    pub(super) sq_sig_all: bool,
    /// Of the own port's table; `None`: the one that the device would choose.
    pub(super) gid_index: Option<u8>,
    pub(super) settings: Settings,
}

impl QueuePairOptions {
    /// Transport service; a reliable connection by default.
    pub fn qp_type(mut self, qp_type: QueuePairType) -> Self {
        self.settings.qp_type = qp_type;
        self
    }

    /// Send requests that can be outstanding: posted, with neither their completion nor a later one polled.
    pub fn max_send_wr(mut self, max_send_wr: u32) -> Self {
        self.cap.max_send_wr = max_send_wr;
        self
    }

    /// Receives that can be posted at a time.
    pub fn max_recv_wr(mut self, max_recv_wr: u32) -> Self {
        self.cap.max_recv_wr = max_recv_wr;
        self
    }

    /// Memory ranges of a send request.
    pub fn max_send_sge(mut self, max_send_sge: u32) -> Self {
        self.cap.max_send_sge = max_send_sge;
        self
    }

    /// Memory ranges of a receive.
    pub fn max_recv_sge(mut self, max_recv_sge: u32) -> Self {
        self.cap.max_recv_sge = max_recv_sge;
        self
    }

    /// Bytes of a [`Payload::inline`](super::Payload::inline).
    pub fn max_inline_data(mut self, max_inline_data: u32) -> Self {
        self.cap.max_inline_data = max_inline_data;
        self
    }

    /// Every send request makes a completion, as if it were signaled.
    pub fn sq_sig_all(mut self) -> Self {
        self.sq_sig_all = true;
        self
    }

    /// The port of the queue pair, from 1.
    pub fn port_num(mut self, port_num: u8) -> Self {
        self.settings.port_num = port_num;
        self
    }

    /// The queue pair's own address: an index into the port's GID table.
    /// [`Context::find_gid`](super::Context::find_gid) finds it.
    pub fn gid_index(mut self, gid_index: u8) -> Self {
        self.gid_index = Some(gid_index);
        self
    }

    /// What the peer may do through this queue pair at most.
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.settings.access = access;
        self
    }

    /// The Q_Key of a datagram queue pair, which senders must name; 0 by default.
    pub fn qkey(mut self, qkey: Qkey) -> Self {
        self.settings.qkey = qkey;
        self
    }

    /// READs and atomics that the peer may have outstanding here; by default what the device can, at most 16.
    pub fn max_dest_rd_atomic(mut self, max_dest_rd_atomic: u8) -> Self {
        self.settings.max_dest_rd_atomic = Some(max_dest_rd_atomic);
        self
    }
}
