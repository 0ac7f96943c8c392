//! Connecting a queue pair to a peer whose [`ConnectionInfo`] is known.

use super::{
    AddressVector, ConnectionInfo, Error, ErrorKind, Mtu, PeerKey, QueuePair, QueuePairAttributes, QueuePairState,
    QueuePairType, Result,
};

/// Most READs and atomics outstanding at a time, unless something else is asked for.
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
/// # let qp = pd.create_qp(&cq, &cq).build()?;
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
    /// Payload of a full packet; both ends must use the same. By default the smaller of what the two ends told.
    pub fn path_mtu(mut self, path_mtu: Mtu) -> Self {
        self.path_mtu = Some(path_mtu);
        self
    }

    /// Code (0 to 31) of the wait for an answer: 4.096 µs × 2^timeout; 0: for ever. 14 (67 ms) by default.
    pub fn timeout(mut self, timeout: u8) -> Self {
        self.timeout = timeout;
        self
    }

    /// How often a request is repeated without an answer, 0 to 7. 7 by default.
    pub fn retry_cnt(mut self, retry_cnt: u8) -> Self {
        self.retry_cnt = retry_cnt;
        self
    }

    /// How often a request is repeated when the peer has no receive posted, 0 to 6; 7, the default: without end.
    pub fn rnr_retry(mut self, rnr_retry: u8) -> Self {
        self.rnr_retry = rnr_retry;
        self
    }

    /// Code (0 to 31) of the time that the peer waits when no receive is posted here. 12 (0.64 ms) by default.
    pub fn min_rnr_timer(mut self, min_rnr_timer: u8) -> Self {
        self.min_rnr_timer = min_rnr_timer;
        self
    }

    /// READs and atomics that this side may have outstanding. By default what the peer told that it takes.
    pub fn max_rd_atomic(mut self, max_rd_atomic: u8) -> Self {
        self.max_rd_atomic = Some(max_rd_atomic);
        self
    }

    /// Type of service byte (DSCP and ECN) of the packets; 0 by default.
    pub fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }

    /// Time to live of the packets; 64 by default.
    pub fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// IPv6 flow label (20 bits) and entropy for the UDP source port; 0, the default: chosen by the device.
    pub fn flow_label(mut self, flow_label: u32) -> Self {
        self.flow_label = flow_label;
        self
    }

    /// Service level (0 to 15); 0 by default.
    pub fn sl(mut self, sl: u8) -> Self {
        self.sl = sl;
        self
    }
}

impl QueuePair {
    /// What a peer must know to connect to this queue pair.
    ///
    /// The PSN and the key share in it are random and belong to this queue pair until [`QueuePair::reset`]. Send them
    /// to the peer alone.
    ///
    /// # Errors
    /// The builder's port or GID index does not exist.
    ///
    /// ```
    /// use rdma_verbs::verbs;
    ///
    /// let context = verbs::open("soft:127.0.1.87")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let qp = pd.create_qp(&cq, &cq).build()?;
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
            peer: context.peer_capabilities(),
            key: self.key_share(),
        })
    }

    /// The key of the connection to the queue pair that `remote` describes, for [`QueuePairAttributes::peer_key`] of a
    /// program that changes the states itself. [`QueuePair::connect`] uses it. `None` if one of the two ends has no
    /// share: adapters, datagrams, standard peers.
    ///
    /// Both ends must use the key, or neither: packets without it do not pass where it is used.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, QueuePairAttributes};
    ///
    /// # let context = verbs::open("soft:127.0.1.85")?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let qp = pd.create_qp(&cq, &cq).build()?;
    /// # let remote = qp.connection_info()?;
    /// let to_rtr = QueuePairAttributes {
    ///     peer: Some(remote.peer),
    ///     peer_key: qp.peer_key(&remote),
    ///     // ... and the attributes of the standard.
    ///     ..QueuePairAttributes::default()
    /// };
    /// assert!(to_rtr.peer_key.is_some());
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn peer_key(&self, remote: &ConnectionInfo) -> Option<PeerKey> {
        let shares = self.key_share().zip(remote.key).filter(|_| remote.peer.is_ours());
        shares.map(|(local, remote)| PeerKey { local, remote, is_agreed: true })
    }

    /// Connects to the queue pair that `remote` describes: INIT (unless it is there), RTR, RTS, with attributes that
    /// suit most programs. Both ends must do it, each with the other one's [`QueuePair::connection_info`] as it is now;
    /// what one end sends before the other is ready is repeated.
    ///
    /// Nothing is sent, so nothing tells whether the peer exists.
    ///
    /// # Errors
    /// The queue pair is in another state than RESET and INIT; or `remote` cannot be reached from the own GID: another
    /// transport service, another IP version, no address. A failure in the middle leaves it in INIT or RTR: `reset`
    /// starts over.
    ///
    /// [`QueuePair`] has an example with two devices.
    pub fn connect(&self, remote: &ConnectionInfo) -> Result<()> {
        self.connect_with(remote, &ConnectOptions::default())
    }

    /// As [`QueuePair::connect`], with other attributes.
    ///
    /// # Errors
    /// As [`QueuePair::connect`]; also if an attribute is out of range.
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
            peer: Some(remote.peer),
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

/// What would otherwise only show as silence later.
fn check_reachable(local: &ConnectionInfo, remote: &ConnectionInfo) -> Result<()> {
    let (own, other) = (local.gid.to_ip(), remote.gid.to_ip());
    let counterpart = match local.qp_type {
        QueuePairType::XrcSend => QueuePairType::XrcReceive,
        QueuePairType::XrcReceive => QueuePairType::XrcSend,
        same => same,
    };
    let message = if remote.qp_type != counterpart {
        format!("the peer's qp_type is {:?}, the own is {:?}", remote.qp_type, local.qp_type)
    } else if remote.gid.is_zero() {
        "the peer's GID is not set; on its side, choose a gid_index".to_owned()
    } else if own.is_ipv4() != other.is_ipv4() {
        format!("the own address {own} cannot reach {other}, another IP version; choose another gid_index")
    } else {
        return Ok(());
    };
    Err(Error::new("connect", ErrorKind::InvalidArgument, message))
}
