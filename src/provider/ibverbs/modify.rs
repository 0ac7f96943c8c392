//! State changes and queries of a queue pair.

use std::time::Duration;

use super::address_handle::check_vector;
use super::queue_pair::IbverbsQueuePair;
use super::{convert, errors, sys};
use crate::provider::abi::qp_attr as mask;
use crate::provider::{AttributeFault, Error, ErrorKind, Result};
use crate::types::modify::{ModifyLimits, check_ranges, check_transition, merge};
use crate::types::{
    AccessFlags, Mtu, Psn, Qkey, Qpn, QueuePairAttributes, QueuePairState, QueuePairStatus, QueuePairType,
};

/// Attributes that a query requests.
const EVERYTHING: u32 = 0x001f_ffff & !mask::ALT_PATH & !mask::CAP;

/// Number of attempts to modify a queue pair that is draining, and the pause between them.
const DRAIN_TRIES: u32 = 200;
const DRAIN_PAUSE: Duration = Duration::from_millis(1);

fn state(number: u32) -> QueuePairState {
    QueuePairState::ALL.get(number as usize).copied().unwrap_or(QueuePairState::Error)
}

/// Converts the given attributes to the library's, with their mask.
fn lower(given: &QueuePairAttributes) -> (sys::QpAttr, u32) {
    let (mut to, mut bits) = (sys::QpAttr::default(), 0);
    macro_rules! set {
        ($($field:ident $bit:ident $name:ident => $value:expr;)*) => {
            $(if let Some($name) = given.$field {
                to.$field = $value;
                bits |= mask::$bit;
            })*
        };
    }
    set! {
        qp_state STATE value => value as u32;
        cur_qp_state CUR_STATE value => value as u32;
        en_sqd_async_notify EN_SQD_ASYNC_NOTIFY value => value.into();
        qp_access_flags ACCESS_FLAGS value => value.bits();
        pkey_index PKEY_INDEX value => value;
        port_num PORT value => value;
        qkey QKEY value => value.0;
        ah_attr AV value => convert::address(&value);
        path_mtu PATH_MTU value => value as u32;
        timeout TIMEOUT value => value;
        retry_cnt RETRY_CNT value => value;
        rnr_retry RNR_RETRY value => value;
        rq_psn RQ_PSN value => value.value();
        max_rd_atomic MAX_QP_RD_ATOMIC value => value;
        min_rnr_timer MIN_RNR_TIMER value => value;
        sq_psn SQ_PSN value => value.value();
        max_dest_rd_atomic MAX_DEST_RD_ATOMIC value => value;
        dest_qp_num DEST_QPN value => value.value();
    }
    (to, bits)
}

/// Replaces the attributes that were set with the adapter's values.
fn refresh(known: &mut QueuePairAttributes, now: &sys::QpAttr) {
    macro_rules! refresh {
        ($($field:ident => $value:expr;)*) => { $(if known.$field.is_some() { known.$field = Some($value); })* };
    }
    refresh! {
        pkey_index => now.pkey_index;
        port_num => now.port_num;
        qp_access_flags => AccessFlags::from_bits_truncate(now.qp_access_flags);
        qkey => Qkey(now.qkey);
        dest_qp_num => Qpn::new(now.dest_qp_num);
        max_dest_rd_atomic => now.max_dest_rd_atomic;
        max_rd_atomic => now.max_rd_atomic;
        min_rnr_timer => now.min_rnr_timer;
        timeout => now.timeout;
        retry_cnt => now.retry_cnt;
        rnr_retry => now.rnr_retry;
    }
    if let (Some(mtu), true) = (u8::try_from(now.path_mtu).ok().and_then(Mtu::from_code), known.path_mtu.is_some()) {
        known.path_mtu = Some(mtu);
    }
    // The address vector stays as it was set: drivers lose parts of it. Drivers report the current PSNs, or those that
    // were set.
    known.rq_psn = known.rq_psn.map(|_| Psn::new(now.rq_psn));
    known.sq_psn = known.sq_psn.map(|_| Psn::new(now.sq_psn));
}

impl IbverbsQueuePair {
    fn read(&self, verb: &'static str) -> Result<sys::QpAttr> {
        let queried = self.sys.query(EVERYTHING).ok_or_else(|| self.destroyed(verb))?;
        queried.map_err(|error| errors::from_errno(verb, format!("queue pair {}", self.qpn), &error))
    }

    pub(super) fn status(&self) -> Result<QueuePairStatus> {
        let known = self.known();
        let now = self.read("query_qp")?;
        let mut attributes = *known;
        refresh(&mut attributes, &now);
        attributes.qp_state = Some(state(now.qp_state));
        Ok(QueuePairStatus {
            qp_type: self.qp_type,
            sq_sig_all: self.sq_sig_all,
            qp_state: state(now.qp_state),
            sq_draining: now.sq_draining != 0,
            attributes,
            cap: self.cap,
        })
    }

    pub(super) fn modify_state(&self, given: &QueuePairAttributes) -> Result<()> {
        let mut known = self.known();
        let from = state(self.read("modify_qp")?.qp_state);
        let to = check_transition(from, self.qp_type, given).map_err(|error| errors::from_modify(&error))?;
        self.check_values(&known, given)?;
        if to == QueuePairState::ReadyToReceive && from != to {
            self.device.check_connectable()?;
        }
        let (attributes, bits) = lower(given);
        // Posting threads check the state: nothing more is posted from here on. The pause waits for a batch that is
        // being posted, so that all its requests are forgotten.
        let _paused = (to == QueuePairState::Reset).then(|| {
            self.state.note(to);
            self.pause_posting()
        });
        let modified = self.change(from, &attributes, bits)?;
        modified.map_err(|error| {
            self.state.note(from);
            self.refused(from, to, given, &error)
        })?;
        self.state.note(to);
        match to {
            QueuePairState::Reset => {
                *known = QueuePairAttributes::default();
                self.forget_requests();
            }
            // Adapters do not use the key, and no query returns it.
            _ => merge(&mut known, &QueuePairAttributes { peer_key: None, ..*given }),
        }
        Ok(())
    }

    /// Modifies the queue pair, with retries while it drains: until it has drained, rxe refuses every change in SQD,
    /// and draining takes a moment even without outstanding requests.
    fn change(&self, from: QueuePairState, attributes: &sys::QpAttr, bits: u32) -> Result<std::io::Result<()>> {
        let mut tries = if from == QueuePairState::SendQueueDrained { DRAIN_TRIES } else { 1 };
        loop {
            tries -= 1;
            let modified = self.sys.modify(attributes, bits).ok_or_else(|| self.destroyed("modify_qp"))?;
            let refused = modified.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL));
            if !refused || tries == 0 {
                return Ok(modified);
            }
            match self.read("modify_qp")?.sq_draining {
                // It may have drained since the refusal: the result of the next attempt is final.
                0 => tries = 1,
                _ => std::thread::sleep(DRAIN_PAUSE),
            }
        }
    }

    /// Returns the error for a change that the adapter refused.
    fn refused(
        &self,
        from: QueuePairState,
        to: QueuePairState,
        given: &QueuePairAttributes,
        error: &std::io::Error,
    ) -> Error {
        let asked = format!("{} to {} with {given:?}", from.name(), to.name());
        let refusal = errors::from_errno("modify_qp", asked.as_str(), error);
        let is_draining = || self.read("modify_qp").is_ok_and(|now| now.sq_draining != 0);
        if refusal.kind() != ErrorKind::InvalidArgument || from != QueuePairState::SendQueueDrained || !is_draining() {
            return refusal;
        }
        let message = format!("{asked}: the send queue is still draining; wait until query_qp reports it drained");
        Error::new("modify_qp", ErrorKind::InvalidState, message)
    }

    fn check_values(&self, known: &QueuePairAttributes, given: &QueuePairAttributes) -> Result<()> {
        let limits = self.device.limits();
        let port_num = given.port_num.or(known.port_num).unwrap_or(1);
        let range = 1..=limits.phys_port_cnt;
        let port = if range.contains(&port_num) { port_num } else { 1 };
        let port = self.device.port("modify_qp", port)?;
        let limits = ModifyLimits {
            max_rd_atomic: limits.max_qp_init_rd_atom,
            max_dest_rd_atomic: limits.max_qp_rd_atom,
            active_mtu: port.active_mtu,
            pkey_tbl_len: port.pkey_tbl_len,
            ports: limits.phys_port_cnt,
        };
        check_ranges(given, &limits).map_err(|error| errors::from_modify(&error))?;
        let Some(vector) = &given.ah_attr else { return Ok(()) };
        if self.qp_type == QueuePairType::UnreliableDatagram {
            let message = "ah_attr is given; datagrams take their paths from address handles";
            return Err(Error::of_attribute("modify_qp", "ah_attr", AttributeFault::NotAllowed, message));
        }
        check_vector("modify_qp", "ah_attr.", &self.device, vector).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_lowering_and_refreshing() {
        let given = QueuePairAttributes {
            qp_state: Some(QueuePairState::ReadyToReceive),
            path_mtu: Some(Mtu::Mtu2048),
            dest_qp_num: Some(Qpn::new(0x1234)),
            rq_psn: Some(Psn::new(7)),
            max_dest_rd_atomic: Some(3),
            min_rnr_timer: Some(12),
            ..QueuePairAttributes::default()
        };
        let (lowered, bits) = lower(&given);
        let expected = mask::STATE
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER;
        assert_eq!(bits, expected);
        let mut known = QueuePairAttributes::default();
        merge(&mut known, &given);
        let merged = known;
        refresh(&mut known, &lowered);
        assert_eq!(known, merged);
        assert_eq!(known, QueuePairAttributes { qp_state: None, ..given });
    }
}
