//! Datagrams: queue pairs without a peer, multicast, and the parts of a received message.

use super::queue_pair::QueuePair;
use super::{IntoRequestBuffer, Message, RequestError};
use crate::owned::{self, Request};
use crate::verbs::{AddressHandle, Gid, GlobalRouteHeader, Qkey, Qpn, Result, Success};

impl QueuePair {
    /// Sends the buffer's filled part as a datagram to queue pair `remote_qpn` at the address of `handle`; see
    /// [`Request::send_to`]. Success means that the datagram was sent, not that it arrived.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// # runtime.block_on(async {
    /// use rdma_verbs::asynchronous::{CompletionQueue, QueuePair, QueuePairOptions};
    /// use rdma_verbs::owned::BufferPool;
    /// use rdma_verbs::verbs::{self, AddressVector, Qkey, QueuePairType};
    ///
    /// let context = verbs::open("soft:127.45.1.29")?;
    /// let pd = context.alloc_pd()?;
    /// let cq = CompletionQueue::new(&context, 64)?;
    /// let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(Qkey(7));
    /// let qp = QueuePair::with_options(&pd, &cq, &options)?;
    /// qp.bring_up_ud()?;
    /// let pool = BufferPool::new(&pd, 1 << 20)?;
    /// let mut messages = qp.messages(&pool, 40 + 64, 8)?;
    ///
    /// let handle = pd.create_ah(&AddressVector::new(context.query_gid(1, 0)?.gid, 0))?; // to itself
    /// qp.send_to(pool.copy_from(b"hello")?, &handle, qp.qpn(), Qkey(7)).await.0?;
    /// let message = messages.next().await.expect("the queue pair is well")?;
    /// assert_eq!((message.payload(), message.success.source_qpn), (&b"hello"[..], qp.qpn()));
    /// let header = message.route_header().expect("a datagram");
    /// let back = pd.create_ah_from_success(&message.success, header, 1)?;
    /// assert_eq!(back.address_vector().dgid.to_string(), "::ffff:127.45.1.29");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn send_to<B: IntoRequestBuffer>(
        &self,
        buffer: B,
        handle: &AddressHandle,
        remote_qpn: Qpn,
        remote_qkey: Qkey,
    ) -> (Result<Success, RequestError>, B) {
        self.typed(Request::send_to(buffer, handle, remote_qpn, remote_qkey)).await
    }

    /// Moves a datagram queue pair to RTS; see [`verbs::QueuePair::bring_up_ud`](crate::verbs::QueuePair::bring_up_ud).
    ///
    /// # Errors
    /// As for [`verbs::QueuePair::bring_up_ud`](crate::verbs::QueuePair::bring_up_ud).
    pub fn bring_up_ud(&self) -> Result<()> {
        self.owned().bring_up_ud()
    }

    /// Attaches this datagram queue pair to a multicast group, whose messages it then receives; see
    /// [`verbs::QueuePair::attach_mcast`](crate::verbs::QueuePair::attach_mcast).
    ///
    /// # Errors
    /// As for [`verbs::QueuePair::attach_mcast`](crate::verbs::QueuePair::attach_mcast).
    pub fn attach_mcast(&self, gid: Gid) -> Result<()> {
        self.owned().attach_mcast(gid)
    }

    /// Detaches this queue pair from a multicast group.
    ///
    /// # Errors
    /// The queue pair is not attached to the group.
    pub fn detach_mcast(&self, gid: Gid) -> Result<()> {
        self.owned().detach_mcast(gid)
    }
}

impl Message {
    /// Returns the bytes of the message, without the leading 40 bytes of a datagram.
    pub fn payload(&self) -> &[u8] {
        owned::payload(&self.buffer, self.is_datagram)
    }

    /// Returns the route header of a datagram; see
    /// [`owned::Finished::route_header`](crate::owned::Finished::route_header).
    pub fn route_header(&self) -> Option<&[u8; GlobalRouteHeader::BYTES]> {
        owned::route_header(&self.buffer, self.is_datagram && self.success.global_route_header)
    }
}
