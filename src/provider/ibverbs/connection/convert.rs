//! Conversion between the values of the provider tier and those of librdmacm.

use super::super::sys;
use crate::provider::{ConnectionEnd, ConnectionPath, Error, ErrorKind, Result};
use crate::types::{Gid, Mtu, Psn, Qpn};

/// `IBV_QPS_RTR` and `IBV_QPS_RTS`.
const READY_TO_RECEIVE: u32 = 2;
const READY_TO_SEND: u32 = 3;

/// The attributes that the kernel's connection manager determines for a queue pair.
pub(super) struct Attributes {
    ready_to_receive: sys::QpAttr,
    ready_to_send: sys::QpAttr,
}

impl Attributes {
    pub(super) fn of(verb: &'static str, id: &sys::cm::Id) -> Result<Self> {
        let query = |state| id.queue_pair_attributes(state).map_err(|error| super::from_state(verb, error));
        Ok(Self { ready_to_receive: query(READY_TO_RECEIVE)?, ready_to_send: query(READY_TO_SEND)? })
    }

    /// Returns the number of the first packet of the peer's that this end expects.
    pub(super) fn own_psn(&self) -> Psn {
        Psn::new(self.ready_to_receive.rq_psn)
    }

    /// Returns the number of the first packet that the peer expects.
    pub(super) fn peer_psn(&self) -> Psn {
        Psn::new(self.ready_to_send.sq_psn)
    }

    /// Sets the parts of a path that the kernel determines.
    pub(super) fn apply(&self, path: &mut ConnectionPath) -> Result<()> {
        let address = &self.ready_to_receive.ah_attr;
        path.remote_gid = Gid::from_bytes(address.dgid.0);
        (path.traffic_class, path.hop_limit) = (address.traffic_class, address.hop_limit);
        path.flow_label = address.flow_label;
        path.path_mtu = mtu(self.ready_to_receive.path_mtu)?;
        path.retry_count = self.ready_to_send.retry_cnt;
        Ok(())
    }

    /// Returns the code of the transport timeout.
    pub(super) fn ack_timeout(&self) -> u8 {
        self.ready_to_send.timeout
    }
}

fn mtu(code: u32) -> Result<Mtu> {
    u8::try_from(code).ok().and_then(Mtu::from_code).ok_or_else(|| {
        Error::new("init_qp_attr", ErrorKind::Protocol, format!("librdmacm states the unknown path MTU {code}"))
    })
}

/// Returns the parameters of a message of this end.
pub(super) fn parameters(end: &ConnectionEnd, retry_count: u8) -> sys::cm::Parameters {
    sys::cm::Parameters {
        responder_resources: end.responder_resources,
        initiator_depth: end.initiator_depth,
        flow_control: end.flow_control,
        retry_count,
        rnr_retry_count: end.rnr_retry_count,
        srq: end.has_srq,
        qp_num: end.qpn.value(),
    }
}

/// Returns the peer, as an event describes it. Its resources are swapped: an event tells what this end may have.
pub(super) fn peer(event: &sys::cm::Event, starting_psn: Psn, private_bytes: usize) -> ConnectionEnd {
    let sys::cm::Event { parameters, .. } = event;
    ConnectionEnd {
        qpn: Qpn::new(parameters.qp_num),
        starting_psn,
        responder_resources: parameters.initiator_depth,
        initiator_depth: parameters.responder_resources,
        flow_control: parameters.flow_control,
        rnr_retry_count: parameters.rnr_retry_count,
        has_srq: parameters.srq,
        private_data: padded(&event.private_data, private_bytes),
        ..ConnectionEnd::default()
    }
}

/// Returns private data of the length that the message has.
pub(super) fn padded(data: &[u8], bytes: usize) -> Vec<u8> {
    let mut data = data.to_vec();
    data.resize(bytes, 0);
    data
}
