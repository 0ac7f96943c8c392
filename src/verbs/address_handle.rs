//! Address handles: paths to datagram receivers.

use std::fmt;
use std::sync::Arc;

use super::{AddressVector, Completion, Error, GlobalRouteHeader, ProtectionDomain, Result, Success};
use crate::provider;
use crate::types::{CompletionFlags, RawCompletion};

/// The path to a datagram receiver (`ibv_ah`), created by [`ProtectionDomain::create_ah`] or
/// [`ProtectionDomain::create_ah_from_completion`]. Clones refer to the same handle, which is destroyed when the last
/// one is dropped. Requests copy it, so it may be dropped as soon as they are posted.
///
/// ```
/// use std::time::Duration;
/// use rdma_verbs::verbs::{self, AccessFlags, Payload, Qkey, QueuePairOptions, QueuePairType};
/// use rdma_verbs::verbs::{ReceiveRequest, SendRequest};
///
/// let context = verbs::open("soft:127.0.1.221")?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// let qkey = Qkey(0x1111_1111);
/// let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(qkey);
/// let qp = pd.create_qp_with(&cq, &cq, &options)?;
/// qp.bring_up_ud()?;
///
/// // Every datagram arrives behind 40 bytes that name its sender.
/// let inbox = pd.alloc_mr(40 + 64, AccessFlags::LOCAL_WRITE)?;
/// qp.post_recv(&[ReceiveRequest::new(&inbox)])?;
/// let ah = pd.create_ah(&verbs::AddressVector::new(context.query_gid(1, 0)?.gid, 0))?; // to itself
/// qp.post_send(&[SendRequest::send_to(Payload::inline(b"hello"), &ah, qp.qpn(), qkey)])?;
/// drop(ah);
///
/// let received = cq.wait(Duration::from_secs(10))?;
/// let done = received.result()?;
/// assert_eq!((done.byte_len, done.source_qpn), (45, qp.qpn()));
/// assert_eq!(inbox.to_vec(40..45)?, b"hello");
///
/// // The path back.
/// let ah = pd.create_ah_from_completion(&received, &inbox.to_vec(..40)?, 1)?;
/// assert_eq!(ah.address_vector().dgid.to_string(), "::ffff:127.0.1.221");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("ibv_ah", "ibv_destroy_ah"))]
#[derive(Clone)]
pub struct AddressHandle {
    inner: Arc<dyn provider::AddressHandle>,
    domain: ProtectionDomain,
}

impl AddressHandle {
    /// Returns the address vector that the handle was created with.
    pub fn address_vector(&self) -> AddressVector {
        self.inner.address_vector()
    }

    /// Returns the protection domain that the handle belongs to; only queue pairs of the same domain may use it.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    pub(super) fn inner(&self) -> &dyn provider::AddressHandle {
        &*self.inner
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AddressHandle").field(&self.address_vector()).finish()
    }
}

impl ProtectionDomain {
    /// Creates an address handle (`ibv_create_ah`): the path to the GID of a receiver or a multicast group.
    ///
    /// # Errors
    /// `port_num` or `sgid_index` does not exist; `dgid` is unset, or its IP version differs from that of the local
    /// GID; `flow_label` or `sl` is out of range; [`ErrorKind::ResourceLimit`](super::ErrorKind::ResourceLimit) at the
    /// device's `max_ah`.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, AddressVector, Gid};
    ///
    /// let pd = verbs::open("soft:127.0.1.222")?.alloc_pd()?;
    /// let error = pd.create_ah(&AddressVector::new(Gid::ZERO, 0)).unwrap_err();
    /// assert!(error.to_string().contains("dgid"), "{error}");
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, vector: &AddressVector) -> Result<AddressHandle> {
        let inner = self.inner().create_ah(vector)?;
        Ok(AddressHandle { inner, domain: self.clone() })
    }

    /// Creates an address handle for replies to a received datagram (`ibv_create_ah_from_wc`) from its completion, the
    /// first 40 bytes of its message and the port that received it. Replies to a multicast message are sent from the
    /// device's first GID of the same IP version.
    ///
    /// # Errors
    /// The completion is not that of a received datagram; `grh` has fewer than 40 bytes, is not a global route header,
    /// or its destination is not this device.
    ///
    /// See [`AddressHandle`] for an example.
    ///
    /// [`ProtectionDomain::create_ah_from_success`] works without a completion.
    #[doc(alias("ibv_create_ah_from_wc", "ibv_init_ah_from_wc"))]
    pub fn create_ah_from_completion(
        &self,
        completion: &Completion,
        grh: &[u8],
        port_num: u8,
    ) -> Result<AddressHandle> {
        let Some(header) = grh.first_chunk::<{ GlobalRouteHeader::BYTES }>() else {
            let message = format!("grh has {} bytes; the first 40 of the received message are needed", grh.len());
            return Err(Error::unsuitable("create_ah", "grh", message));
        };
        self.create_reply_ah(completion.raw(), header, port_num)
    }

    /// Creates an address handle for replies to a received datagram from its result; otherwise like
    /// [`ProtectionDomain::create_ah_from_completion`].
    ///
    /// # Errors
    /// As for [`ProtectionDomain::create_ah_from_completion`].
    ///
    /// See [`owned::Request::send_to`](crate::owned::Request::send_to) for an example.
    pub fn create_ah_from_success(
        &self,
        success: &Success,
        grh: &[u8; GlobalRouteHeader::BYTES],
        port_num: u8,
    ) -> Result<AddressHandle> {
        let flags = match success.global_route_header {
            true => CompletionFlags::GLOBAL_ROUTE_HEADER,
            false => CompletionFlags::empty(),
        };
        let Success { source_qpn, source_lid, sl, .. } = *success;
        let completion = RawCompletion { source_qpn, source_lid, sl, flags, ..RawCompletion::default() };
        self.create_reply_ah(&completion, grh, port_num)
    }

    fn create_reply_ah(
        &self,
        completion: &RawCompletion,
        header: &[u8; GlobalRouteHeader::BYTES],
        port_num: u8,
    ) -> Result<AddressHandle> {
        let inner = self.inner().create_ah_from_completion(completion, header, port_num)?;
        Ok(AddressHandle { inner, domain: self.clone() })
    }
}
