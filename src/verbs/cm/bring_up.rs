//! State changes of queue pairs that the connection manager requires.

use super::contexts::PORT;
use super::options::ConnectionOptions;
use crate::provider::{ConnectionEnd, ConnectionPath};
use crate::types::{AddressVector, QueuePairAttributes, QueuePairState};
use crate::verbs::{Error, ErrorKind, QueuePair, QueuePairType, Result};

/// One end of a connection whose other end is known.
pub(super) struct BringUp<'a> {
    pub(super) path: &'a ConnectionPath,
    pub(super) local: &'a ConnectionEnd,
    pub(super) remote: &'a ConnectionEnd,
    pub(super) options: &'a ConnectionOptions,
    /// Number of READs and atomics that the queue pair serves at once, and that it has outstanding.
    pub(super) atomics: (u8, u8),
    pub(super) timeout: u8,
}

impl BringUp<'_> {
    /// Moves the queue pair to RTR and RTS, with the attributes that Linux' connection manager sets (`cm.c`,
    /// `cm_init_qp_rtr_attr` and `cm_init_qp_rts_attr`), but for `min_rnr_timer`: Linux leaves it 0, which is 655 ms.
    pub(super) fn apply(&self, qp: &QueuePair) -> Result<()> {
        let Self { path, local, remote, options, atomics, timeout } = *self;
        // Both ends use the key, or neither: the peer of a native end has it only if this end is native as well.
        let peer_key = remote.key.filter(|_| local.capabilities.is_native());
        qp.modify(&QueuePairAttributes {
            qp_state: Some(QueuePairState::ReadyToReceive),
            ah_attr: Some(AddressVector {
                flow_label: path.flow_label,
                hop_limit: path.hop_limit,
                traffic_class: path.traffic_class,
                port_num: PORT,
                ..AddressVector::new(path.remote_gid, qp.context().find_gid(PORT, path.local_gid)?)
            }),
            path_mtu: Some(path.path_mtu),
            dest_qp_num: Some(remote.qpn),
            rq_psn: Some(local.starting_psn),
            max_dest_rd_atomic: Some(atomics.0),
            min_rnr_timer: Some(options.own_min_rnr_timer()),
            // Without a key the device looks for the peer among the processes of this host.
            peer: peer_key.map(|_| remote.capabilities),
            peer_key,
            ..QueuePairAttributes::default()
        })?;
        qp.modify(&QueuePairAttributes {
            qp_state: Some(QueuePairState::ReadyToSend),
            sq_psn: Some(remote.starting_psn),
            timeout: Some(timeout),
            retry_cnt: Some(path.retry_count),
            rnr_retry: Some(remote.rnr_retry_count),
            max_rd_atomic: Some(atomics.1),
            ..QueuePairAttributes::default()
        })
    }
}

/// Moves a queue pair that is to be connected to INIT, unless it is there.
pub(super) fn initialize(verb: &'static str, qp: &QueuePair) -> Result<()> {
    if qp.qp_type() != QueuePairType::ReliableConnection {
        let message = format!("qp_type is {:?}; only reliable connections are set up", qp.qp_type());
        return Err(Error::unsuitable(verb, "qp_type", message));
    }
    match qp.state()? {
        QueuePairState::Reset => qp.init(),
        QueuePairState::Init => Ok(()),
        state => {
            let message = format!("the queue pair is in {}; it must be in RESET or INIT", state.name());
            Err(Error::new(verb, ErrorKind::InvalidState, message))
        }
    }
}

/// Moves a queue pair to the error state: its requests complete with a flush error.
pub(super) fn fail(qp: &QueuePair) -> Result<()> {
    qp.modify(&QueuePairAttributes { qp_state: Some(QueuePairState::Error), ..QueuePairAttributes::default() })
}
