//! Domains of extended reliable connections.

use std::fmt;
use std::sync::Arc;

use super::{Context, Result};
use crate::provider;

/// A domain of extended reliable connections (`ibv_xrcd`).
///
/// With an extended reliable connection, one queue pair on each side serves many receivers of a process: each request
/// specifies the shared receive queue that it is for. The sending end, the *initiator*
/// ([`QueuePairType::XrcSend`](super::QueuePairType::XrcSend)), has no receive queue; the receiving end, the *target*
/// ([`QueuePairType::XrcReceive`](super::QueuePairType::XrcReceive)), has no queues and only passes messages on to the
/// shared receive queues of its domain. Those are created with
/// [`SharedReceiveQueueOptions::xrc`](super::SharedReceiveQueueOptions::xrc) and have their own completion queues. The
/// protection domain of the queue that a request specifies determines which memory it may access at the target.
///
/// This is a handle: clones refer to the same domain. It is closed when the last handle and everything created in it
/// are dropped. Processes cannot share a domain: its queue pairs and shared receive queues are in the process that
/// created them, and a message cannot notify another process.
///
/// ```
/// use std::time::Duration;
/// use rdma_verbs::verbs::{self, AccessFlags, Payload, QueuePairOptions, QueuePairType};
/// use rdma_verbs::verbs::{ReceiveRequest, SendRequest, SharedReceiveQueueOptions};
///
/// let context = verbs::open("soft:127.0.1.214")?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// let domain = context.open_xrcd()?;
/// let srq = pd.create_srq_with(8, 1, &SharedReceiveQueueOptions::default().xrc(&domain, &cq))?;
/// let target = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().xrc_target(&domain))?;
/// let initiator = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().qp_type(QueuePairType::XrcSend))?;
/// target.connect(&initiator.connection_info()?)?;
/// initiator.connect(&target.connection_info()?)?;
///
/// let inbox = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE)?;
/// srq.post_recv(&[ReceiveRequest::new(&inbox).wr_id(7)])?;
/// initiator.post_send(&[SendRequest::send(Payload::inline(b"hello")).remote_srq(srq.number())])?;
/// let received = cq.wait(Duration::from_secs(10))?;
/// assert_eq!((received.wr_id(), received.qpn()), (7, target.qpn()));
/// assert_eq!(inbox.to_vec(..received.result()?.byte_len as usize)?, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("ibv_xrcd", "ibv_close_xrcd"))]
#[derive(Clone)]
pub struct XrcDomain {
    context: Context,
    inner: Arc<dyn provider::XrcDomain>,
}

impl XrcDomain {
    /// Returns the device that the domain belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn inner(&self) -> &Arc<dyn provider::XrcDomain> {
        &self.inner
    }
}

impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcDomain").field("context", &self.context.name()).finish_non_exhaustive()
    }
}

impl Context {
    /// Opens a domain of extended reliable connections that no other process shares (`ibv_open_xrcd` without a
    /// descriptor).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](super::ErrorKind::Unsupported) if the device has no extended reliable connections.
    ///
    /// See [`XrcDomain`] for an example.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self) -> Result<XrcDomain> {
        Ok(XrcDomain { context: self.clone(), inner: self.inner().open_xrcd()? })
    }
}
