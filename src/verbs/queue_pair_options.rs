//! Creation of queue pairs, and its options.

use super::queue_pair::{Settings, Sources};
use super::{
    AccessFlags, CompletionQueue, Error, ProtectionDomain, Qkey, QueuePair, QueuePairCapabilities, QueuePairType,
    Result, SharedReceiveQueue, XrcDomain,
};
use crate::provider;

/// Options for creating a queue pair, each with a default: a reliable connection, 128 requests in each queue, 4
/// scatter-gather entries per request, 64 bytes of inline data, the first port and its
/// [default GID](super::Context::default_gid_index), and [`AccessFlags::REMOTE`] for the peer (each region's own flags
/// still apply).
///
/// [`ProtectionDomain::create_qp_with`] takes them, and so do the queue pairs of the
/// [owned](crate::owned::QueuePair::with_options) tier and of `asynchronous`. `S` is the tier's shared receive queue:
/// a queue pair takes its receives only from a queue of its own tier.
///
/// Options hold handles of the objects that they refer to, which live at least as long.
///
/// ```
/// # use rdma_verbs::verbs;
/// # let context = verbs::open("soft:127.0.3.220")?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// use rdma_verbs::verbs::QueuePairOptions;
///
/// let small = QueuePairOptions::default().max_send_wr(8).max_recv_wr(8);
/// let first = pd.create_qp_with(&cq, &cq, &small)?;
/// let second = pd.create_qp_with(&cq, &cq, &small.max_send_wr(64))?;
/// assert!(first.cap().max_send_wr < second.cap().max_send_wr);
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias("ibv_qp_init_attr", "ibv_qp_init_attr_ex"))]
#[derive(Clone, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct QueuePairOptions<S = SharedReceiveQueue> {
    srq: Option<S>,
    xrc_domain: Option<XrcDomain>,
    cap: QueuePairCapabilities,
    sq_sig_all: bool,
    /// Index into the port's GID table; `None`: the device's default.
    gid_index: Option<u8>,
    settings: Settings,
}

impl<S> Default for QueuePairOptions<S> {
    fn default() -> Self {
        Self {
            srq: None,
            xrc_domain: None,
            cap: QueuePairCapabilities::default(),
            sq_sig_all: false,
            gid_index: None,
            settings: Settings::default(),
        }
    }
}

impl<S> QueuePairOptions<S> {
    /// Sets the transport service; a reliable connection by default.
    ///
    /// ```
    /// use std::time::Duration;
    /// use rdma_verbs::verbs::{
    ///     self, AccessFlags, Payload, QueuePairOptions, QueuePairType, ReceiveRequest, SendRequest,
    /// };
    ///
    /// let context = verbs::open("soft:127.0.1.231")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableConnection);
    /// let qp = pd.create_qp_with(&cq, &cq, &options)?;
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

    /// Makes the queue pair take receives from this shared queue instead of its own: `max_recv_wr` and `max_recv_sge`
    /// are ignored, and receives cannot be posted to the queue pair itself. The queue may belong to another protection
    /// domain of the same device. For reliable and unreliable connections, and for datagrams:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rdma_verbs::verbs::{self, AddressVector, Payload, Qkey, QueuePairOptions, QueuePairType};
    /// # use rdma_verbs::verbs::{ReceiveRequest, SendRequest};
    /// # let context = verbs::open("soft:127.0.1.240")?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let mr = pd.alloc_mr(256, verbs::AccessFlags::LOCAL_WRITE)?;
    /// let srq = pd.create_srq(8, 1)?;
    /// let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(Qkey(7));
    /// let datagrams = pd.create_qp_with(&cq, &cq, &options.srq(&srq))?;
    /// datagrams.bring_up_ud()?;
    /// srq.post_recv(&[ReceiveRequest::new(&mr).wr_id(1)])?;
    /// let here = pd.create_ah(&AddressVector::new(context.query_gid(1, 0)?.gid, 0))?;
    /// datagrams.post_send(&[SendRequest::send_to(Payload::inline(b"hello"), &here, datagrams.qpn(), Qkey(7))])?;
    /// let received = cq.wait(Duration::from_secs(10))?;
    /// assert_eq!((received.wr_id(), received.result()?.byte_len), (1, 40 + 5)); // the route header comes first
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// See [`SharedReceiveQueue`] for another example.
    pub fn srq(mut self, srq: &S) -> Self
    where
        S: Clone,
    {
        self.srq = Some(srq.clone());
        self
    }

    /// Makes every send request complete as if it were signaled.
    pub fn sq_sig_all(mut self) -> Self {
        self.sq_sig_all = true;
        self
    }

    /// Sets the port for [`QueuePair::init`], from 1; 1 by default.
    pub fn port_num(mut self, port_num: u8) -> Self {
        self.settings.port_num = port_num;
        self
    }

    /// Sets the local address for [`QueuePair::connection_info`] and [`QueuePair::connect`]: an index into the port's
    /// GID table. [`Context::find_gid`](super::Context::find_gid) looks it up; by default
    /// [`Context::default_gid_index`](super::Context::default_gid_index).
    pub fn gid_index(mut self, gid_index: u8) -> Self {
        self.gid_index = Some(gid_index);
        self
    }

    /// Sets the access flags for [`QueuePair::init`], which limit what the peer may do through this queue pair;
    /// [`AccessFlags::REMOTE`] by default.
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.settings.access = access;
        self
    }

    /// Sets the Q_Key of a datagram queue pair for [`QueuePair::init`], which senders must use; 0 by default.
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

    /// Returns the shared receive queue.
    pub(crate) fn wanted_srq(&self) -> Option<&S> {
        self.srq.as_ref()
    }

    /// Returns the same options with the shared receive queue of another tier, if any.
    pub(crate) fn lower<T>(&self, srq: Option<T>) -> QueuePairOptions<T> {
        let Self { srq: _, xrc_domain, cap, sq_sig_all, gid_index, settings } = self;
        let (xrc_domain, cap, sq_sig_all) = (xrc_domain.clone(), *cap, *sq_sig_all);
        QueuePairOptions { srq, xrc_domain, cap, sq_sig_all, gid_index: *gid_index, settings: *settings }
    }
}

impl QueuePairOptions {
    /// Makes the queue pair the target of an extended reliable connection: it has no queues, and its messages go to the
    /// shared receive queues of `domain`. The protection domain and the completion queues are unused.
    ///
    /// See [`XrcDomain`] for an example.
    pub fn xrc_target(mut self, domain: &XrcDomain) -> Self {
        self.settings.qp_type = QueuePairType::XrcReceive;
        self.xrc_domain = Some(domain.clone());
        self
    }
}

impl ProtectionDomain {
    /// Creates a queue pair (`ibv_create_qp`), in the RESET state: a reliable connection whose sends complete on
    /// `send_cq` and whose receives complete on `recv_cq`, which may be the same queue.
    ///
    /// # Errors
    /// A queue belongs to another device context; a default size is above the device's limit;
    /// [`ErrorKind::ResourceLimit`](super::ErrorKind::ResourceLimit) at the device's `max_qp`.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, QueuePairState};
    ///
    /// let context = verbs::open("soft:127.0.1.14")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
    /// let qp = pd.create_qp(&cq, &cq)?;
    /// assert_eq!(qp.state()?, QueuePairState::Reset);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias("ibv_create_qp", "rdma_create_qp"))]
    pub fn create_qp(&self, send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> Result<QueuePair> {
        self.create_qp_with(send_cq, recv_cq, &QueuePairOptions::default())
    }

    /// Creates a queue pair like [`ProtectionDomain::create_qp`], with options: the transport service, the sizes of its
    /// queues, a shared receive queue and more.
    ///
    /// # Errors
    /// As for [`ProtectionDomain::create_qp`]; also if a size is above the device's limit, an object in `options`
    /// belongs to another device context, or the device does not support the transport service.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, ErrorKind, QueuePairOptions};
    ///
    /// let context = verbs::open("soft:127.0.1.80")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let options = QueuePairOptions::default().max_send_wr(16).max_recv_wr(1);
    /// let qp = pd.create_qp_with(&cq, &cq, &options)?;
    /// assert!(qp.cap().max_send_wr >= 16);
    ///
    /// let too_much = context.query_device().max_qp_wr + 1;
    /// let error = pd.create_qp_with(&cq, &cq, &options.max_send_wr(too_much)).unwrap_err();
    /// assert_eq!((error.verb(), error.kind()), ("create_qp", ErrorKind::InvalidArgument));
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias("ibv_create_qp_ex", "rdma_create_qp_ex"))]
    pub fn create_qp_with(
        &self,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        options: &QueuePairOptions,
    ) -> Result<QueuePair> {
        let (context, srq, xrc_domain) = (self.context(), options.srq.as_ref(), options.xrc_domain.as_ref());
        let given = [
            ("send_cq", Some(send_cq.context())),
            ("recv_cq", Some(recv_cq.context())),
            ("srq", srq.map(SharedReceiveQueue::context)),
            ("xrc_domain", xrc_domain.map(XrcDomain::context)),
        ];
        for (name, other) in given {
            if let Some(other) = other.filter(|other| !other.is_same(context)) {
                let message = format!("{name} belongs to {other}, not to this opening of {context}");
                return Err(Error::unsuitable("create_qp", name, message));
            }
        }
        let settings = options.settings;
        let inner = context.inner().create_qp(&provider::QueuePairInit {
            pd: self.inner(),
            send_cq: send_cq.inner(),
            recv_cq: recv_cq.inner(),
            srq: srq.map(SharedReceiveQueue::inner),
            xrc_domain: xrc_domain.map(XrcDomain::inner),
            qp_type: settings.qp_type,
            cap: options.cap,
            sq_sig_all: options.sq_sig_all,
        })?;
        let gid_index = match options.gid_index {
            Some(index) => index,
            None => context.inner().default_gid_index(settings.port_num)?,
        };
        let sources = Sources { srq: srq.cloned(), xrc_domain: xrc_domain.cloned() };
        let queues = [send_cq.clone(), recv_cq.clone()];
        QueuePair::new(inner, self.clone(), queues, sources, Settings { gid_index, ..settings })
    }
}
