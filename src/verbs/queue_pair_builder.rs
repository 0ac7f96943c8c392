//! The builder of queue pairs.

use super::queue_pair::{Settings, Sources};
use super::{
    AccessFlags, CompletionQueue, Error, ProtectionDomain, Qkey, QueuePair, QueuePairOptions, QueuePairType, Result,
    SharedReceiveQueue, XrcDomain,
};
use crate::provider;

/// A builder for a queue pair, made by [`ProtectionDomain::create_qp`]. [`QueuePairBuilder::build`] creates the queue
/// pair.
///
/// Everything has a default: a reliable connection, 128 requests in each queue, 4 scatter-gather entries per request,
/// 64 bytes inline, the first port and its [default GID](super::Context::default_gid_index), and
/// [`AccessFlags::REMOTE`] for the peer (each region's own flags still apply).
#[derive(Clone, Debug)]
#[must_use = "build() creates the queue pair"]
pub struct QueuePairBuilder<'a> {
    domain: &'a ProtectionDomain,
    send_cq: &'a CompletionQueue,
    recv_cq: &'a CompletionQueue,
    srq: Option<&'a SharedReceiveQueue>,
    xrc_domain: Option<&'a XrcDomain>,
    options: QueuePairOptions,
}

impl<'a> QueuePairBuilder<'a> {
    pub(super) fn new(
        domain: &'a ProtectionDomain,
        send_cq: &'a CompletionQueue,
        recv_cq: &'a CompletionQueue,
    ) -> Self {
        Self { domain, send_cq, recv_cq, srq: None, xrc_domain: None, options: QueuePairOptions::default() }
    }

    /// Sets all attributes at once, replacing those set before.
    pub fn options(mut self, options: QueuePairOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the transport service; a reliable connection by default.
    ///
    /// ```
    /// use std::time::Duration;
    /// use rdma_verbs::verbs::{self, AccessFlags, Payload, QueuePairType, ReceiveRequest, SendRequest};
    ///
    /// let context = verbs::open("soft:127.0.1.231")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let qp = pd.create_qp(&cq, &cq).qp_type(QueuePairType::UnreliableConnection).build()?;
    /// qp.connect(&qp.connection_info()?)?; // to itself
    ///
    /// let inbox = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE)?;
    /// qp.post_recv(&[ReceiveRequest::new(&inbox)])?;
    /// qp.post_send(&[SendRequest::send(Payload::inline(b"perhaps"))])?;
    /// assert_eq!(cq.wait(Duration::from_secs(10))?.result()?.byte_len, 7);
    ///
    /// // There are no responses, so READs are impossible.
    /// let error = qp.post_send(&[SendRequest::read(&inbox, inbox.remote())]).unwrap_err();
    /// assert!(error.to_string().contains("opcode is RDMA READ"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn qp_type(mut self, qp_type: QueuePairType) -> Self {
        self.options = self.options.qp_type(qp_type);
        self
    }

    /// Sets the number of send requests that can be outstanding: posted, with neither their completion nor a later one
    /// polled; 128 by default.
    pub fn max_send_wr(mut self, max_send_wr: u32) -> Self {
        self.options = self.options.max_send_wr(max_send_wr);
        self
    }

    /// Sets the number of receives that can be posted at a time; 128 by default.
    pub fn max_recv_wr(mut self, max_recv_wr: u32) -> Self {
        self.options = self.options.max_recv_wr(max_recv_wr);
        self
    }

    /// Sets the maximum number of memory ranges of a send request; 4 by default.
    pub fn max_send_sge(mut self, max_send_sge: u32) -> Self {
        self.options = self.options.max_send_sge(max_send_sge);
        self
    }

    /// Sets the maximum number of memory ranges of a receive; 4 by default.
    pub fn max_recv_sge(mut self, max_recv_sge: u32) -> Self {
        self.options = self.options.max_recv_sge(max_recv_sge);
        self
    }

    /// Sets the maximum size in bytes of a [`Payload::inline`](super::Payload::inline); 64 by default.
    pub fn max_inline_data(mut self, max_inline_data: u32) -> Self {
        self.options = self.options.max_inline_data(max_inline_data);
        self
    }

    /// Takes receives from this shared queue instead of a queue of its own: `max_recv_wr` and `max_recv_sge` are
    /// ignored, and receives cannot be posted to the queue pair itself. The queue may belong to another protection
    /// domain of the same device. For reliable and unreliable connections, and for datagrams:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rdma_verbs::verbs::{self, AddressVector, Payload, Qkey, QueuePairType, ReceiveRequest, SendRequest};
    /// # let context = verbs::open("soft:127.0.1.240")?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let mr = pd.alloc_mr(256, verbs::AccessFlags::LOCAL_WRITE)?;
    /// let srq = pd.create_srq(8, 1).build()?;
    /// let builder = pd.create_qp(&cq, &cq).qp_type(QueuePairType::UnreliableDatagram).qkey(Qkey(7));
    /// let datagrams = builder.srq(&srq).build()?;
    /// datagrams.bring_up_ud()?;
    /// srq.post_recv(&[ReceiveRequest::new(&mr).wr_id(1)])?;
    /// let here = pd.create_ah(&AddressVector::new(context.query_gid(1, 0)?.gid, 0))?;
    /// datagrams.post_send(&[SendRequest::send_to(Payload::inline(b"hello"), &here, datagrams.qpn(), Qkey(7))])?;
    /// let received = cq.wait(Duration::from_secs(10))?;
    /// assert_eq!((received.wr_id(), received.result()?.byte_len), (1, 40 + 5)); // the route header comes first
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`SharedReceiveQueue`] has another example.
    pub fn srq(mut self, srq: &'a SharedReceiveQueue) -> Self {
        self.srq = Some(srq);
        self
    }

    /// Makes it the target of an extended reliable connection: it has no queues, and its messages go to the shared
    /// receive queues of `domain`. The protection domain and the completion queues are unused.
    ///
    /// [`XrcDomain`] has an example.
    pub fn xrc_target(mut self, domain: &'a XrcDomain) -> Self {
        self.options = self.options.qp_type(QueuePairType::XrcReceive);
        self.xrc_domain = Some(domain);
        self
    }

    /// Makes every send request complete as if it were signaled.
    pub fn sq_sig_all(mut self) -> Self {
        self.options = self.options.sq_sig_all();
        self
    }

    /// Sets the port for [`QueuePair::init`], from 1; 1 by default.
    pub fn port_num(mut self, port_num: u8) -> Self {
        self.options = self.options.port_num(port_num);
        self
    }

    /// Sets the local address for [`QueuePair::connection_info`] and [`QueuePair::connect`]: an index into the port's
    /// GID table. [`Context::find_gid`](super::Context::find_gid) looks it up; by default
    /// [`Context::default_gid_index`](super::Context::default_gid_index).
    pub fn gid_index(mut self, gid_index: u8) -> Self {
        self.options = self.options.gid_index(gid_index);
        self
    }

    /// Sets the access flags for [`QueuePair::init`], the most that the peer may do through this queue pair;
    /// [`AccessFlags::REMOTE`] by default.
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.options = self.options.access(access);
        self
    }

    /// Sets the Q_Key of a datagram queue pair for [`QueuePair::init`], which senders must name; 0 by default.
    pub fn qkey(mut self, qkey: Qkey) -> Self {
        self.options = self.options.qkey(qkey);
        self
    }

    /// Sets the number of READs and atomics that the peer may have outstanding here; by default the device's
    /// `max_qp_rd_atom`, at most 16.
    pub fn max_dest_rd_atomic(mut self, max_dest_rd_atomic: u8) -> Self {
        self.options = self.options.max_dest_rd_atomic(max_dest_rd_atomic);
        self
    }

    /// Creates the queue pair, in the RESET state.
    ///
    /// # Errors
    /// A size is above the device's limit; a queue or domain belongs to another opening of a device; the device does
    /// not support this transport service; [`ErrorKind::ResourceLimit`](super::ErrorKind::ResourceLimit) at
    /// the device's `max_qp`.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, ErrorKind};
    ///
    /// let context = verbs::open("soft:127.0.1.80")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let qp = pd.create_qp(&cq, &cq).max_send_wr(16).max_recv_wr(1).build()?;
    /// assert!(qp.cap().max_send_wr >= 16);
    ///
    /// let too_much = context.query_device().max_qp_wr + 1;
    /// let error = pd.create_qp(&cq, &cq).max_send_wr(too_much).build().unwrap_err();
    /// assert_eq!((error.verb(), error.kind()), ("create_qp", ErrorKind::InvalidArgument));
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn build(&self) -> Result<QueuePair> {
        let context = self.domain.context();
        let given = [
            ("send_cq", Some(self.send_cq.context())),
            ("recv_cq", Some(self.recv_cq.context())),
            ("srq", self.srq.map(SharedReceiveQueue::context)),
            ("xrc_domain", self.xrc_domain.map(XrcDomain::context)),
        ];
        for (name, other) in given {
            if let Some(other) = other.filter(|other| !other.is_same(context)) {
                let message = format!("{name} belongs to {other}, not to this opening of {context}");
                return Err(Error::unsuitable("create_qp", name, message));
            }
        }
        let inner = context.inner().create_qp(&provider::QueuePairInit {
            pd: self.domain.inner(),
            send_cq: self.send_cq.inner(),
            recv_cq: self.recv_cq.inner(),
            srq: self.srq.map(SharedReceiveQueue::inner),
            xrc_domain: self.xrc_domain.map(XrcDomain::inner),
            qp_type: self.options.settings.qp_type,
            cap: self.options.cap,
            sq_sig_all: self.options.sq_sig_all,
        })?;
        let settings = self.options.settings;
        let gid_index = match self.options.gid_index {
            Some(index) => index,
            None => context.inner().default_gid_index(settings.port_num)?,
        };
        let settings = Settings { gid_index, ..settings };
        let queues = [self.send_cq.clone(), self.recv_cq.clone()];
        let sources = Sources { srq: self.srq.cloned(), xrc_domain: self.xrc_domain.cloned() };
        QueuePair::new(inner, self.domain.clone(), queues, sources, settings)
    }
}
