//! Multicast groups by IP address.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::datagram::DEFAULT_QKEY;
use super::{LocalEnd, contexts};
use crate::types::{AddressVector, Gid, Qkey, Qpn};
use crate::verbs::{Context, Error, QueuePair, Result};

/// A multicast group at an IP address, and the device that leads to it (`rdma_join_multicast`).
///
/// The address is that of an IPv4 or IPv6 group; its GID is the address itself, mapped into IPv6 if it is IPv4.
/// Datagram queue pairs send to it without joining it, and receive from it once they have joined.
///
/// ```
/// use std::time::Duration;
/// use rdma_verbs::verbs::cm::MulticastGroup;
/// use rdma_verbs::verbs::{AccessFlags, Payload, QueuePairOptions, QueuePairType, ReceiveRequest, SendRequest};
///
/// let group = MulticastGroup::via("127.46.1.12", "239.46.1.12".parse()?)?;
/// let (pd, cq) = (group.context().alloc_pd()?, group.context().create_cq(16)?);
/// let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(group.qkey());
/// let qp = pd.create_qp_with(&cq, &cq, &options)?;
/// qp.bring_up_ud()?;
/// let inbox = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE)?;
/// qp.post_recv(&[ReceiveRequest::new(&inbox)])?;
///
/// let membership = group.join(&qp)?;
/// let members = pd.create_ah(&group.address())?;
/// qp.post_send(&[SendRequest::send_to(Payload::inline(b"hello"), &members, group.qpn(), group.qkey())])?;
/// // The first 40 bytes are the header of the datagram's route.
/// assert_eq!(cq.wait(Duration::from_secs(10))?.result()?.byte_len, 45);
/// membership.leave()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MulticastGroup {
    context: Context,
    local: IpAddr,
    gid_index: u8,
    group: IpAddr,
}

impl fmt::Debug for MulticastGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MulticastGroup").field("local", &self.local).field("group", &self.group).finish_non_exhaustive()
    }
}

impl MulticastGroup {
    /// Finds the device and the address from which the system routes packets to a group.
    ///
    /// # Errors
    /// The address is not that of a group, there is no route to it, or no device has the address that packets leave
    /// from. Many hosts have no route to groups but a default one: [`MulticastGroup::via`] needs none.
    pub fn at(group: IpAddr) -> Result<Self> {
        check_group(group)?;
        let local = contexts::source_of("join_multicast", SocketAddr::new(group, 1))?;
        Self::with(contexts::of_address("join_multicast", local)?, local, group)
    }

    /// Takes a local address, and the device that has it.
    ///
    /// # Errors
    /// The local address is not one of this machine, or of another IP version; or the other address is not that of a
    /// group.
    pub fn via(local: impl LocalEnd, group: IpAddr) -> Result<Self> {
        check_group(group)?;
        let local = local.to_local_end()?.ip();
        if local.is_ipv4() != group.is_ipv4() {
            let message = format!("{local} and {group} have different IP versions");
            return Err(Error::unsuitable("join_multicast", "local", message));
        }
        Self::with(contexts::of_address("join_multicast", local)?, local, group)
    }

    fn with(context: Context, local: IpAddr, group: IpAddr) -> Result<Self> {
        let gid_index = context.find_gid(contexts::PORT, local.into())?;
        Ok(Self { context, local, gid_index, group })
    }

    /// Returns the device: create the queue pair on it.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> IpAddr {
        self.local
    }

    /// Returns the address of the group.
    pub fn group_addr(&self) -> IpAddr {
        self.group
    }

    /// Returns the path to the members, for [`create_ah`](crate::verbs::ProtectionDomain::create_ah).
    pub fn address(&self) -> AddressVector {
        AddressVector { port_num: contexts::PORT, ..AddressVector::new(self.gid(), self.gid_index) }
    }

    /// Returns the queue pair number that messages to the group have.
    pub const fn qpn(&self) -> Qpn {
        Qpn::MULTICAST
    }

    /// Returns the Q_Key that programs which join by IP address use by default (`RDMA_UDP_QKEY`).
    pub const fn qkey(&self) -> Qkey {
        DEFAULT_QKEY
    }

    /// Lets a datagram queue pair receive the messages to the group. The system joins the group on the interface.
    ///
    /// # Errors
    /// As for [`QueuePair::attach_mcast`].
    #[doc(alias("rdma_join_multicast", "rdma_join_multicast_ex"))]
    pub fn join<'a>(&self, qp: &'a QueuePair) -> Result<MulticastMembership<'a>> {
        qp.attach_mcast(self.gid())?;
        Ok(MulticastMembership { qp: Some(qp), gid: self.gid() })
    }

    fn gid(&self) -> Gid {
        self.group.into()
    }
}

fn check_group(group: IpAddr) -> Result<()> {
    if group.is_multicast() {
        return Ok(());
    }
    let message = format!("{group} is no multicast group: those are 224.0.0.0/4 and ff00::/8");
    Err(Error::unsuitable("join_multicast", "group", message))
}

/// A queue pair's membership in a multicast group. Dropping it ends the membership (`rdma_leave_multicast`).
#[must_use = "dropping it leaves the group"]
pub struct MulticastMembership<'a> {
    /// Present until it is left.
    qp: Option<&'a QueuePair>,
    gid: Gid,
}

impl fmt::Debug for MulticastMembership<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MulticastMembership").field("gid", &self.gid).finish_non_exhaustive()
    }
}

impl MulticastMembership<'_> {
    /// Leaves the group.
    ///
    /// # Errors
    /// The queue pair has been detached from the group meanwhile.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave(mut self) -> Result<()> {
        self.qp.take().map_or(Ok(()), |qp| qp.detach_mcast(self.gid))
    }
}

impl Drop for MulticastMembership<'_> {
    fn drop(&mut self) {
        // Then the application has detached the queue pair itself.
        let _ = self.qp.take().map(|qp| qp.detach_mcast(self.gid));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::verbs::ErrorKind;

    #[test]
    fn only_groups_of_the_local_ip_version_are_taken() {
        let group = |text: &str| text.parse::<IpAddr>().unwrap();
        for refused in ["127.46.1.13", "10.0.0.1", "fd00::1"] {
            let error = MulticastGroup::at(group(refused)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(&format!("{refused} is no multicast group")), "{error}");
        }
        let error = MulticastGroup::via("127.46.1.13", group("ff0e::1")).unwrap_err();
        assert!(error.to_string().contains("different IP versions"), "{error}");
    }

    #[test]
    fn the_address_is_the_groups_own() {
        let found = MulticastGroup::via("127.46.1.13", "239.46.1.13".parse().unwrap()).unwrap();
        assert_eq!(found.context().name(), "soft:127.46.1.13");
        assert_eq!(found.address().dgid.to_string(), "::ffff:239.46.1.13");
        assert_eq!((found.qpn(), found.qkey()), (Qpn::MULTICAST, Qkey(0x0123_4567)));
    }
}
