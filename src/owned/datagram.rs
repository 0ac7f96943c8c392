//! Datagrams: queue pairs without a peer, multicast, and the parts of a received message.
#![forbid(unsafe_code)]

use super::finished::Finished;
use super::queue_pair::QueuePair;
use super::request::RequestBuffer;
use crate::verbs::{Gid, GlobalRouteHeader, Qpn, Result};

impl QueuePair {
    /// Moves a datagram queue pair to RTS; see [`verbs::QueuePair::bring_up_ud`](crate::verbs::QueuePair::bring_up_ud).
    ///
    /// # Errors
    /// As for [`verbs::QueuePair::bring_up_ud`](crate::verbs::QueuePair::bring_up_ud).
    ///
    /// See [`Request::send_to`](super::Request::send_to) for an example.
    pub fn bring_up_ud(&self) -> Result<()> {
        self.posted().qp().bring_up_ud()
    }

    /// Attaches this datagram queue pair to a multicast group, whose messages it then receives, each as a copy in one
    /// of its own buffers; see [`verbs::QueuePair::attach_mcast`](crate::verbs::QueuePair::attach_mcast).
    ///
    /// # Errors
    /// As for [`verbs::QueuePair::attach_mcast`](crate::verbs::QueuePair::attach_mcast).
    ///
    /// ```
    /// # use std::net::Ipv4Addr;
    /// # use std::time::Duration;
    /// # use rdma_verbs::owned::{BufferPool, CompletionQueue, QueuePair, QueuePairOptions, Request};
    /// # use rdma_verbs::verbs::{self, AddressVector, Qkey, Qpn, QueuePairType};
    /// # let context = verbs::open("soft:127.45.1.28")?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = CompletionQueue::new(&context, 16)?;
    /// # let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(Qkey(7));
    /// # let qp = QueuePair::with_options(&pd, &cq, &cq, &options)?;
    /// # qp.bring_up_ud()?;
    /// # let pool = BufferPool::new(&pd, 1 << 20)?;
    /// let group = Ipv4Addr::new(239, 1, 224, 28).into();
    /// qp.attach_mcast(group)?;
    /// qp.post_recv(pool.take(40 + 64)?, 1)?;
    /// let members = pd.create_ah(&AddressVector::new(group, 0))?;
    /// qp.post_send(Request::send_to(pool.copy_from(b"hello")?, &members, Qpn::MULTICAST, Qkey(7)))?;
    /// assert_eq!(cq.wait(Duration::from_secs(10))?.payload(), Some(&b"hello"[..]));
    /// qp.detach_mcast(group)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn attach_mcast(&self, gid: Gid) -> Result<()> {
        self.posted().qp().attach_mcast(gid)
    }

    /// Detaches this queue pair from a multicast group.
    ///
    /// # Errors
    /// The queue pair is not attached to the group.
    pub fn detach_mcast(&self, gid: Gid) -> Result<()> {
        self.posted().qp().detach_mcast(gid)
    }
}

impl Finished {
    /// Returns the queue pair that sent the message; `None` unless a message was received. Adapters report it only for
    /// datagrams.
    pub fn source_qpn(&self) -> Option<Qpn> {
        let success = self.result().ok()??;
        self.is_receive().then_some(success.source_qpn)
    }

    /// Returns the route header of a received datagram, the first 40 bytes of its buffer, for
    /// [`ProtectionDomain::create_ah_from_success`](crate::verbs::ProtectionDomain::create_ah_from_success).
    ///
    /// `None` if no datagram was received into a [`Buffer`](super::Buffer), or it came without a route header, as in an
    /// InfiniBand subnet; the 40 bytes are then unspecified.
    pub fn route_header(&self) -> Option<&[u8; GlobalRouteHeader::BYTES]> {
        let success = self.result().ok()??;
        let RequestBuffer::Buffer(buffer) = &self.buffer else { return None };
        route_header(buffer, self.is_datagram && success.global_route_header)
    }

    /// Returns the filled bytes of its [`Buffer`](super::Buffer), without the leading 40 bytes of a received datagram;
    /// `None` if its memory is not a buffer.
    pub fn payload(&self) -> Option<&[u8]> {
        match &self.buffer {
            RequestBuffer::Buffer(buffer) => Some(payload(buffer, self.is_datagram)),
            RequestBuffer::File(_) | RequestBuffer::None => None,
        }
    }

    /// Returns whether it is a receive of a datagram queue pair.
    #[cfg(all(feature = "tokio", not(loom)))]
    pub(crate) fn is_datagram(&self) -> bool {
        self.is_datagram
    }
}

/// Returns the payload of a message. A receive that failed has none.
pub(crate) fn payload(message: &[u8], is_datagram: bool) -> &[u8] {
    let header = if is_datagram { GlobalRouteHeader::BYTES } else { 0 };
    message.get(header..).unwrap_or_default()
}

/// Returns the route header in front of a message that has one.
pub(crate) fn route_header(message: &[u8], is_there: bool) -> Option<&[u8; GlobalRouteHeader::BYTES]> {
    message.first_chunk().filter(|_| is_there)
}
