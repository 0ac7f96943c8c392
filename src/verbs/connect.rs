//! Connecting a queue pair to a peer whose [`ConnectionInfo`] is known.

use super::{
    AddressVector, ConnectionInfo, Error, ErrorKind, Mtu, PeerKey, QueuePair, QueuePairAttributes, QueuePairState,
    QueuePairType, Result,
};

/// Default limit of outstanding READs and atomics.
const DEFAULT_RD_ATOMIC: u8 = 16;

/// Attributes of a connection; [`QueuePair::connect`] uses the defaults.
///
/// Names and units are those of [`QueuePairAttributes`].
///
/// ```
/// # use rdma_verbs::verbs;
/// use rdma_verbs::verbs::{ConnectOptions, Mtu};
///
/// # let context = verbs::open("soft:127.0.1.86")?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// # let qp = pd.create_qp(&cq, &cq)?;
/// # let peer = qp.connection_info()?;
/// let options = ConnectOptions::default().path_mtu(Mtu::Mtu256).timeout(16).rnr_retry(3);
/// qp.connect_with(&peer, &options)?;
/// assert_eq!(qp.query()?.attributes.timeout, Some(16));
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct ConnectOptions {
    path_mtu: Option<Mtu>,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    min_rnr_timer: u8,
    max_rd_atomic: Option<u8>,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
    sl: u8,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            path_mtu: None,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: None,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            sl: 0,
        }
    }
}

impl ConnectOptions {
    /// Sets the path MTU, the payload of a full packet. Both ends must use the same value; by default, the smaller of
    /// the two ends' values.
    pub fn path_mtu(mut self, path_mtu: Mtu) -> Self {
        self.path_mtu = Some(path_mtu);
        self
    }

    /// Sets the code (0 to 31) of the time to wait for a response: 4.096 µs × 2^timeout; 0 waits forever. 14 (67 ms) by
    /// default.
    pub fn timeout(mut self, timeout: u8) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how many times a request is retried without a response, 0 to 7; 7 by default.
    pub fn retry_cnt(mut self, retry_cnt: u8) -> Self {
        self.retry_cnt = retry_cnt;
        self
    }

    /// Sets how many times a request is retried when the peer has no receive posted, 0 to 6; 7, the default, retries
    /// forever.
    pub fn rnr_retry(mut self, rnr_retry: u8) -> Self {
        self.rnr_retry = rnr_retry;
        self
    }

    /// Sets the code (0 to 31) of the time that the peer waits when no receive is posted here. 12 (0.64 ms) by default.
    pub fn min_rnr_timer(mut self, min_rnr_timer: u8) -> Self {
        self.min_rnr_timer = min_rnr_timer;
        self
    }

    /// Sets the number of READs and atomics that this end may have outstanding. By default, this is the peer's
    /// `max_dest_rd_atomic`, but no more than the device's `max_qp_init_rd_atom`.
    pub fn max_rd_atomic(mut self, max_rd_atomic: u8) -> Self {
        self.max_rd_atomic = Some(max_rd_atomic);
        self
    }

    /// Sets the type of service byte (DSCP and ECN) of the packets; 0 by default.
    pub fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }

    /// Sets the time to live of the packets; 64 by default.
    pub fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// Sets the IPv6 flow label (20 bits), which also provides the entropy of the UDP source port; with 0, the default,
    /// the device chooses.
    pub fn flow_label(mut self, flow_label: u32) -> Self {
        self.flow_label = flow_label;
        self
    }

    /// Sets the service level (0 to 15); 0 by default.
    pub fn sl(mut self, sl: u8) -> Self {
        self.sl = sl;
        self
    }
}

impl QueuePair {
    /// Returns the data that a peer needs to connect to this queue pair.
    ///
    /// The PSN and the key share in it are random and belong to this queue pair until [`QueuePair::reset`]. Send them
    /// only to the peer.
    ///
    /// # Errors
    /// The port or GID index of its options does not exist.
    ///
    /// ```
    /// use rdma_verbs::verbs;
    ///
    /// let context = verbs::open("soft:127.0.1.87")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let qp = pd.create_qp(&cq, &cq)?;
    /// let info = qp.connection_info()?;
    /// assert_eq!((info.qpn, info.gid.to_string()), (qp.qpn(), "::ffff:127.0.1.87".to_owned()));
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn connection_info(&self) -> Result<ConnectionInfo> {
        let (context, settings) = (self.context(), self.settings());
        let port = context.query_port(settings.port_num)?;
        Ok(ConnectionInfo {
            qp_type: settings.qp_type,
            qpn: self.qpn(),
            psn: self.first_psn(),
            gid: context.query_gid(settings.port_num, settings.gid_index)?.gid,
            lid: port.lid,
            path_mtu: port.active_mtu,
            max_dest_rd_atomic: self.max_dest_rd_atomic(),
            capabilities: context.advertised_capabilities(),
            key: self.key_share(),
        })
    }

    /// Returns the key of the connection to the queue pair that `remote` describes, for the
    /// [`QueuePairAttributes::peer_key`] of programs that perform the state transitions themselves;
    /// [`QueuePair::connect`] sets it. `None` if either end has no key share, as with adapters, datagrams and standard
    /// peers.
    ///
    /// Either both ends must use the key, or neither: an end that uses it drops packets without it.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, QueuePairAttributes};
    ///
    /// # let context = verbs::open("soft:127.0.1.85")?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let qp = pd.create_qp(&cq, &cq)?;
    /// # let remote = qp.connection_info()?;
    /// // ... and the attributes of the standard.
    /// let mut to_rtr = QueuePairAttributes::default().peer(remote.capabilities);
    /// to_rtr.peer_key = qp.peer_key(&remote);
    /// assert!(to_rtr.peer_key.is_some());
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn peer_key(&self, remote: &ConnectionInfo) -> Option<PeerKey> {
        let shares = self.key_share().zip(remote.key).filter(|_| remote.capabilities.is_native());
        shares.map(|(local, remote)| PeerKey { local, remote, is_agreed: true })
    }

    /// Connects to the queue pair that `remote` describes: moves to INIT (unless already there), RTR and RTS, with
    /// attributes that suit most programs. Both ends must connect, each with the other's current
    /// [`QueuePair::connection_info`]. A reliable connection retries what it sends before the other end is ready.
    ///
    /// Sends nothing, so success does not mean that the peer exists.
    ///
    /// # Errors
    /// The queue pair is in a state other than RESET and INIT; or `remote` cannot be reached from the local GID:
    /// different transport service, different IP version, or no address. A failure midway leaves the queue pair in INIT
    /// or RTR; [`QueuePair::reset`] starts over.
    ///
    /// See [`QueuePair`] for an example with two devices.
    pub fn connect(&self, remote: &ConnectionInfo) -> Result<()> {
        self.connect_with(remote, &ConnectOptions::default())
    }

    /// Connects like [`QueuePair::connect`], with the given attributes.
    ///
    /// # Errors
    /// As for [`QueuePair::connect`]; also if an attribute is out of range.
    pub fn connect_with(&self, remote: &ConnectionInfo, options: &ConnectOptions) -> Result<()> {
        let local = self.connection_info()?;
        check_reachable(&local, remote)?;
        match self.state()? {
            QueuePairState::Reset => self.init()?,
            QueuePairState::Init => {}
            state => {
                let message = format!("the queue pair is in {}; it must be in RESET or INIT", state.name());
                return Err(Error::new("connect", ErrorKind::InvalidState, message));
            }
        }
        self.modify(&self.ready_to_receive(&local, remote, options))?;
        self.modify(&self.ready_to_send(&local, remote, options))
    }

    fn ready_to_receive(
        &self,
        local: &ConnectionInfo,
        remote: &ConnectionInfo,
        options: &ConnectOptions,
    ) -> QueuePairAttributes {
        let answers = matches!(self.qp_type(), QueuePairType::ReliableConnection | QueuePairType::XrcReceive);
        let settings = self.settings();
        QueuePairAttributes {
            qp_state: Some(QueuePairState::ReadyToReceive),
            ah_attr: Some(AddressVector {
                dgid: remote.gid,
                sgid_index: settings.gid_index,
                flow_label: options.flow_label,
                hop_limit: options.hop_limit,
                traffic_class: options.traffic_class,
                sl: options.sl,
                dlid: remote.lid,
                port_num: settings.port_num,
            }),
            path_mtu: Some(options.path_mtu.unwrap_or(local.path_mtu.min(remote.path_mtu))),
            dest_qp_num: Some(remote.qpn),
            rq_psn: Some(remote.psn),
            max_dest_rd_atomic: answers.then_some(local.max_dest_rd_atomic),
            min_rnr_timer: answers.then_some(options.min_rnr_timer),
            peer: Some(remote.capabilities),
            peer_key: self.peer_key(remote),
            ..QueuePairAttributes::default()
        }
    }

    fn ready_to_send(
        &self,
        local: &ConnectionInfo,
        remote: &ConnectionInfo,
        options: &ConnectOptions,
    ) -> QueuePairAttributes {
        let asks = matches!(self.qp_type(), QueuePairType::ReliableConnection | QueuePairType::XrcSend);
        let possible = self.context().query_device().max_qp_init_rd_atom;
        let max_rd_atomic = options.max_rd_atomic.unwrap_or(remote.max_dest_rd_atomic.min(possible));
        QueuePairAttributes {
            qp_state: Some(QueuePairState::ReadyToSend),
            sq_psn: Some(local.psn),
            timeout: self.qp_type().is_reliable().then_some(options.timeout),
            retry_cnt: asks.then_some(options.retry_cnt),
            rnr_retry: asks.then_some(options.rnr_retry),
            max_rd_atomic: asks.then_some(max_rd_atomic),
            ..QueuePairAttributes::default()
        }
    }

    fn max_dest_rd_atomic(&self) -> u8 {
        let possible = self.context().query_device().max_qp_rd_atom;
        self.settings().max_dest_rd_atomic.unwrap_or(possible.min(DEFAULT_RD_ATOMIC))
    }
}

/// Refuses a peer that could never respond.
fn check_reachable(local: &ConnectionInfo, remote: &ConnectionInfo) -> Result<()> {
    let (own, other) = (local.gid.to_ip(), remote.gid.to_ip());
    let counterpart = match local.qp_type {
        QueuePairType::XrcSend => QueuePairType::XrcReceive,
        QueuePairType::XrcReceive => QueuePairType::XrcSend,
        same => same,
    };
    let (name, message) = if remote.qp_type != counterpart {
        ("qp_type", format!("the peer's qp_type is {:?}, the local one is {:?}", remote.qp_type, local.qp_type))
    } else if remote.gid.is_zero() {
        ("gid", "the peer's GID is not set; on its side, choose a gid_index".to_owned())
    } else if own.is_ipv4() != other.is_ipv4() {
        let message =
            format!("the local address {own} cannot reach {other}, another IP version; choose another gid_index");
        ("gid", message)
    } else {
        return Ok(());
    };
    Err(Error::unsuitable("connect", name, message))
}
