//! Attributes of a new queue pair, apart from the objects that it uses.

use super::queue_pair::Settings;
use super::{AccessFlags, Qkey, QueuePairCapabilities, QueuePairType};

/// Attributes of a new queue pair, each with a default.
///
/// These are plain values: they name no object and create none. [`QueuePairBuilder::options`] takes them, and so do the
/// queue pairs of the [owned](crate::owned::QueuePair::with) tier and of `asynchronous`.
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
    /// Index into the port's GID table; `None`: the device's default.
    pub(super) gid_index: Option<u8>,
    pub(super) settings: Settings,
}

impl QueuePairOptions {
    /// Sets the transport service; a reliable connection by default.
    pub fn qp_type(mut self, qp_type: QueuePairType) -> Self {
        self.settings.qp_type = qp_type;
        self
    }

    /// Sets the number of send requests that can be outstanding: posted, with neither their completion nor a later one
    /// polled; 128 by default.
    pub fn max_send_wr(mut self, max_send_wr: u32) -> Self {
        self.cap.max_send_wr = max_send_wr;
        self
    }

    /// Sets the number of receives that can be posted at a time; 128 by default.
    pub fn max_recv_wr(mut self, max_recv_wr: u32) -> Self {
        self.cap.max_recv_wr = max_recv_wr;
        self
    }

    /// Sets the maximum number of memory ranges of a send request; 4 by default.
    pub fn max_send_sge(mut self, max_send_sge: u32) -> Self {
        self.cap.max_send_sge = max_send_sge;
        self
    }

    /// Sets the maximum number of memory ranges of a receive; 4 by default.
    pub fn max_recv_sge(mut self, max_recv_sge: u32) -> Self {
        self.cap.max_recv_sge = max_recv_sge;
        self
    }

    /// Sets the maximum size in bytes of a [`Payload::inline`](super::Payload::inline); 64 by default.
    pub fn max_inline_data(mut self, max_inline_data: u32) -> Self {
        self.cap.max_inline_data = max_inline_data;
        self
    }

    /// Makes every send request complete as if it were signaled.
    pub fn sq_sig_all(mut self) -> Self {
        self.sq_sig_all = true;
        self
    }

    /// Sets the port of the queue pair, from 1; 1 by default.
    pub fn port_num(mut self, port_num: u8) -> Self {
        self.settings.port_num = port_num;
        self
    }

    /// Sets the local address: an index into the port's GID table. [`Context::find_gid`](super::Context::find_gid)
    /// looks it up; by default [`Context::default_gid_index`](super::Context::default_gid_index).
    pub fn gid_index(mut self, gid_index: u8) -> Self {
        self.gid_index = Some(gid_index);
        self
    }

    /// Sets the access flags: the most that the peer may do through this queue pair; [`AccessFlags::REMOTE`] by
    /// default.
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.settings.access = access;
        self
    }

    /// Sets the Q_Key of a datagram queue pair, which senders must name; 0 by default.
    pub fn qkey(mut self, qkey: Qkey) -> Self {
        self.settings.qkey = qkey;
        self
    }

    /// Sets the number of READs and atomics that the peer may have outstanding here; by default the device's
    /// `max_qp_rd_atom`, at most 16.
    pub fn max_dest_rd_atomic(mut self, max_dest_rd_atomic: u8) -> Self {
        self.settings.max_dest_rd_atomic = Some(max_dest_rd_atomic);
        self
    }
}
