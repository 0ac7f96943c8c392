//! Verbs for datagram queue pairs only: the transitions to RTS without a peer, and multicast.

use super::{Error, ErrorKind, Gid, QueuePair, QueuePairAttributes, QueuePairState, QueuePairType, Result};

impl QueuePair {
    /// Moves a datagram queue pair to INIT (unless already there), RTR and RTS, with the port and the Q_Key of its
    /// options and a random sequence number. It has no peer to connect to: any sender that knows the Q_Key may send to
    /// it.
    ///
    /// # Errors
    /// The queue pair is not a datagram queue pair, or is in a state other than RESET and INIT.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, Qkey, QueuePairOptions, QueuePairState, QueuePairType};
    ///
    /// let context = verbs::open("soft:127.0.1.223")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(Qkey(7));
    /// let qp = pd.create_qp_with(&cq, &cq, &options)?;
    /// qp.bring_up_ud()?;
    /// assert_eq!(qp.state()?, QueuePairState::ReadyToSend);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn bring_up_ud(&self) -> Result<()> {
        if self.qp_type() != QueuePairType::UnreliableDatagram {
            let message = format!("qp_type is {:?}; connect() takes a connected queue pair to RTS", self.qp_type());
            return Err(Error::unsuitable("bring_up_ud", "qp_type", message));
        }
        match self.state()? {
            QueuePairState::Reset => self.init()?,
            QueuePairState::Init => {}
            state => {
                let message = format!("the queue pair is in {}; it must be in RESET or INIT", state.name());
                return Err(Error::new("bring_up_ud", ErrorKind::InvalidState, message));
            }
        }
        self.modify(&QueuePairAttributes {
            qp_state: Some(QueuePairState::ReadyToReceive),
            ..QueuePairAttributes::default()
        })?;
        self.modify(&QueuePairAttributes {
            qp_state: Some(QueuePairState::ReadyToSend),
            sq_psn: Some(self.first_psn()),
            ..QueuePairAttributes::default()
        })
    }

    /// Attaches this datagram queue pair to a multicast group (`ibv_attach_mcast`), whose messages it then receives: an
    /// IPv6 group, or an IPv4 group mapped into IPv6. The device joins the group on its interface with the first
    /// attachment, and leaves it when the last one ends. Attaching again does nothing.
    ///
    /// Every attached queue pair with a matching Q_Key receives a copy of a message, including those of the sender's
    /// own device. To send to a group, create an address handle with its GID and send to
    /// [`Qpn::MULTICAST`](super::Qpn::MULTICAST).
    ///
    /// # Errors
    /// The queue pair is not a datagram queue pair, or `gid` is not that of a multicast group;
    /// [`ErrorKind::ResourceLimit`] at the device's `max_mcast_grp` or `max_mcast_qp_attach`; the system refuses to
    /// join the group.
    ///
    /// ```
    /// use std::net::Ipv4Addr;
    /// use std::time::Duration;
    /// use rdma_verbs::verbs::{
    ///     self, AccessFlags, AddressVector, Payload, Qkey, Qpn, QueuePairOptions, QueuePairType, ReceiveRequest,
    ///     SendRequest,
    /// };
    ///
    /// let context = verbs::open("soft:127.0.1.224")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(Qkey(7));
    /// let qp = pd.create_qp_with(&cq, &cq, &options)?;
    /// qp.bring_up_ud()?;
    /// let group = Ipv4Addr::new(239, 1, 224, 1).into();
    /// qp.attach_mcast(group)?;
    ///
    /// let inbox = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE)?;
    /// qp.post_recv(&[ReceiveRequest::new(&inbox)])?;
    /// let members = pd.create_ah(&AddressVector::new(group, 0))?;
    /// qp.post_send(&[SendRequest::send_to(Payload::inline(b"hello"), &members, Qpn::MULTICAST, Qkey(7))])?;
    /// let done = cq.wait(Duration::from_secs(10))?.result()?;
    /// assert_eq!(done.byte_len, 45);
    /// qp.detach_mcast(group)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&self, gid: Gid) -> Result<()> {
        self.inner().attach_mcast(gid)
    }

    /// Detaches this queue pair from a multicast group (`ibv_detach_mcast`).
    ///
    /// # Errors
    /// The queue pair is not attached to the group.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&self, gid: Gid) -> Result<()> {
        self.inner().detach_mcast(gid)
    }
}
