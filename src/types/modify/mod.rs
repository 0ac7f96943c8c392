//! The rules for state changes of a queue pair (IBTA 11.2.5.2), which all devices share: the transitions, and the
//! ranges of the attributes.

mod state_machine;

use std::ops::RangeInclusive;

pub(crate) use state_machine::Mask;

use state_machine::TransitionError;

use super::{Mtu, QueuePairAttributes, QueuePairState, QueuePairType};

/// Limits of the device for a state change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModifyLimits {
    /// Maximum number of READs and atomics that a queue pair may have outstanding.
    pub max_rd_atomic: u8,
    /// Maximum number of READs and atomics that the peer may have outstanding at a queue pair.
    pub max_dest_rd_atomic: u8,
    /// Current maximum path MTU of the port.
    pub active_mtu: Mtu,
    /// Number of entries in the port's P_Key table.
    pub pkey_tbl_len: u16,
    /// Number of ports of the device.
    pub ports: u8,
}

/// Why a state change was refused; nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// There is no such queue pair.
    #[error("the queue pair does not exist any more")]
    UnknownQueuePair,
    /// The table has no such transition.
    #[error("there is no transition from {from} to {to}", from = from.name(), to = to.name())]
    NoTransition {
        /// Current state.
        from: QueuePairState,
        /// Requested state.
        to: QueuePairState,
    },
    /// Attributes that the transition needs are missing.
    #[error("{from} to {to} needs {names} as well", from = from.name(), to = to.name(), names = names.join(", "))]
    Missing {
        /// Current state.
        from: QueuePairState,
        /// Requested state.
        to: QueuePairState,
        /// Names of the attributes.
        names: Vec<&'static str>,
    },
    /// Attributes were given that the transition does not take.
    #[error("{from} to {to} does not take {names}", from = from.name(), to = to.name(), names = names.join(", "))]
    NotAllowed {
        /// Current state.
        from: QueuePairState,
        /// Requested state.
        to: QueuePairState,
        /// Names of the attributes.
        names: Vec<&'static str>,
    },
    /// Some attributes are missing, and others are not allowed.
    #[error(
        "{from} to {to} needs {missing} as well and does not take {extra}",
        from = from.name(), to = to.name(), missing = missing.join(", "), extra = extra.join(", ")
    )]
    MissingAndNotAllowed {
        /// Current state.
        from: QueuePairState,
        /// Requested state.
        to: QueuePairState,
        /// Names of the missing attributes.
        missing: Vec<&'static str>,
        /// Names of the attributes that are not allowed.
        extra: Vec<&'static str>,
    },
    /// In SQD, attributes may change only after the send queue has drained (IBTA 10.3.1).
    #[error(
        "the send queue is still draining; change {names} after SQ_DRAINED or when query_qp shows it drained",
        names = names.join(", ")
    )]
    StillDraining {
        /// The attributes given.
        names: Vec<&'static str>,
    },
    /// `cur_qp_state` is not the current state.
    #[error("cur_qp_state says {said}, but the queue pair is in {actual}", said = said.name(), actual = actual.name())]
    WrongCurrentState {
        /// The state that the caller gave.
        said: QueuePairState,
        /// The current state.
        actual: QueuePairState,
    },
    /// A value is outside its range.
    #[error("{name} is {given}; allowed are {allowed}")]
    OutOfRange {
        /// Name of the attribute.
        name: &'static str,
        /// The value given.
        given: u64,
        /// The values allowed, as text.
        allowed: String,
        /// The values allowed.
        range: RangeInclusive<u64>,
    },
}

/// Checks a change from this state against the standard's table (IBTA 11.2.5.2; `ib_modify_qp_is_ok`). Returns the new
/// state.
pub(crate) fn check_transition(
    from: QueuePairState,
    service: QueuePairType,
    given: &QueuePairAttributes,
) -> Result<QueuePairState, ModifyError> {
    if let Some(said) = given.cur_qp_state
        && said != from
    {
        return Err(ModifyError::WrongCurrentState { said, actual: from });
    }
    let to = given.qp_state.unwrap_or(from);
    state_machine::check(from, to, service, Mask::of(given)).map_err(|refused| match refused {
        TransitionError::NoTransition => ModifyError::NoTransition { from, to },
        TransitionError::Missing(mask) => ModifyError::Missing { from, to, names: mask.names() },
        TransitionError::NotAllowed(mask) => ModifyError::NotAllowed { from, to, names: mask.names() },
        TransitionError::MissingAndNotAllowed { missing, extra } => {
            ModifyError::MissingAndNotAllowed { from, to, missing: missing.names(), extra: extra.names() }
        }
    })?;
    Ok(to)
}

/// Checks that all values are in range.
pub(crate) fn check_ranges(given: &QueuePairAttributes, limits: &ModifyLimits) -> Result<(), ModifyError> {
    let at_most = |name, value: Option<u64>, limit: u64| match value {
        Some(value) if value > limit => {
            Err(ModifyError::OutOfRange { name, given: value, allowed: format!("0 to {limit}"), range: 0..=limit })
        }
        _ => Ok(()),
    };
    at_most("pkey_index", given.pkey_index.map(u64::from), u64::from(limits.pkey_tbl_len.saturating_sub(1)))?;
    at_most("min_rnr_timer", given.min_rnr_timer.map(u64::from), 31)?;
    at_most("timeout", given.timeout.map(u64::from), 31)?;
    at_most("retry_cnt", given.retry_cnt.map(u64::from), 7)?;
    at_most("rnr_retry", given.rnr_retry.map(u64::from), 7)?;
    at_most("max_rd_atomic", given.max_rd_atomic.map(u64::from), u64::from(limits.max_rd_atomic))?;
    at_most("max_dest_rd_atomic", given.max_dest_rd_atomic.map(u64::from), u64::from(limits.max_dest_rd_atomic))?;
    if let Some(port) = given.port_num.filter(|port| !(1..=limits.ports).contains(port)) {
        let allowed = if limits.ports == 1 { "1".into() } else { format!("1 to {}", limits.ports) };
        let range = 1..=limits.ports.into();
        return Err(ModifyError::OutOfRange { name: "port_num", given: port.into(), allowed, range });
    }
    if let Some(mtu) = given.path_mtu.filter(|mtu| *mtu > limits.active_mtu) {
        let allowed = format!("256 to {} (the link's active MTU)", limits.active_mtu);
        let range = Mtu::Mtu256.bytes().into()..=limits.active_mtu.bytes().into();
        return Err(ModifyError::OutOfRange { name: "path_mtu", given: mtu.bytes().into(), allowed, range });
    }
    Ok(())
}

/// Copies the given attributes; the states are no part of them.
pub(crate) fn merge(attributes: &mut QueuePairAttributes, given: &QueuePairAttributes) {
    macro_rules! take {
        ($($field:ident)*) => { $(if given.$field.is_some() { attributes.$field = given.$field; })* };
    }
    take!(pkey_index port_num qp_access_flags qkey ah_attr path_mtu dest_qp_num rq_psn sq_psn max_dest_rd_atomic
        max_rd_atomic min_rnr_timer timeout retry_cnt rnr_retry en_sqd_async_notify peer peer_key);
}
