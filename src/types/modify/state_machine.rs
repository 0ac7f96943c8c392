//! The states of a queue pair: one table of transitions, each with its required and optional attributes.
//!
//! ```text
//!            +--------------------- any state ---------------------+
//!            v                                                     v
//!   RESET -> INIT -> RTR -> RTS <-> SQD                           ERR
//!            (again)        (again)  SQE -> RTS (unreliable services)
//! ```
//!
//! Source: the table of the InfiniBand specification (IBTA 11.2.5.2) as Linux implements it (`verbs.c`,
//! `ib_modify_qp_is_ok`; ibv_modify_qp(3) lists the required attributes), without alternate paths: there is no path
//! migration. RESET to ERR is no transition.

use crate::types::{QueuePairAttributes, QueuePairState, QueuePairType};

use QueuePairState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError};

bitflags::bitflags! {
    /// Which attributes of [`QueuePairAttributes`] are given.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct Mask: u32 {
        const CUR_QP_STATE = 1;
        const PKEY_INDEX = 1 << 1;
        const PORT_NUM = 1 << 2;
        const ACCESS_FLAGS = 1 << 3;
        const QKEY = 1 << 4;
        const AH_ATTR = 1 << 5;
        const PATH_MTU = 1 << 6;
        const DEST_QP_NUM = 1 << 7;
        const RQ_PSN = 1 << 8;
        const SQ_PSN = 1 << 9;
        const MAX_DEST_RD_ATOMIC = 1 << 10;
        const MAX_RD_ATOMIC = 1 << 11;
        const MIN_RNR_TIMER = 1 << 12;
        const TIMEOUT = 1 << 13;
        const RETRY_CNT = 1 << 14;
        const RNR_RETRY = 1 << 15;
        const SQD_NOTIFY = 1 << 16;
        const PEER = 1 << 17;
        const PEER_KEY = 1 << 18;
    }
}

impl Mask {
    /// Every attribute with its name, as in `ibv_qp_attr`.
    const NAMES: [(Self, &'static str); 19] = [
        (Self::CUR_QP_STATE, "cur_qp_state"),
        (Self::PKEY_INDEX, "pkey_index"),
        (Self::PORT_NUM, "port_num"),
        (Self::ACCESS_FLAGS, "qp_access_flags"),
        (Self::QKEY, "qkey"),
        (Self::AH_ATTR, "ah_attr"),
        (Self::PATH_MTU, "path_mtu"),
        (Self::DEST_QP_NUM, "dest_qp_num"),
        (Self::RQ_PSN, "rq_psn"),
        (Self::SQ_PSN, "sq_psn"),
        (Self::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic"),
        (Self::MAX_RD_ATOMIC, "max_rd_atomic"),
        (Self::MIN_RNR_TIMER, "min_rnr_timer"),
        (Self::TIMEOUT, "timeout"),
        (Self::RETRY_CNT, "retry_cnt"),
        (Self::RNR_RETRY, "rnr_retry"),
        (Self::SQD_NOTIFY, "en_sqd_async_notify"),
        (Self::PEER, "peer"),
        (Self::PEER_KEY, "peer_key"),
    ];

    /// Returns the mask of the given attributes.
    pub(crate) fn of(attributes: &QueuePairAttributes) -> Self {
        let given = [
            (Self::CUR_QP_STATE, attributes.cur_qp_state.is_some()),
            (Self::PKEY_INDEX, attributes.pkey_index.is_some()),
            (Self::PORT_NUM, attributes.port_num.is_some()),
            (Self::ACCESS_FLAGS, attributes.qp_access_flags.is_some()),
            (Self::QKEY, attributes.qkey.is_some()),
            (Self::AH_ATTR, attributes.ah_attr.is_some()),
            (Self::PATH_MTU, attributes.path_mtu.is_some()),
            (Self::DEST_QP_NUM, attributes.dest_qp_num.is_some()),
            (Self::RQ_PSN, attributes.rq_psn.is_some()),
            (Self::SQ_PSN, attributes.sq_psn.is_some()),
            (Self::MAX_DEST_RD_ATOMIC, attributes.max_dest_rd_atomic.is_some()),
            (Self::MAX_RD_ATOMIC, attributes.max_rd_atomic.is_some()),
            (Self::MIN_RNR_TIMER, attributes.min_rnr_timer.is_some()),
            (Self::TIMEOUT, attributes.timeout.is_some()),
            (Self::RETRY_CNT, attributes.retry_cnt.is_some()),
            (Self::RNR_RETRY, attributes.rnr_retry.is_some()),
            (Self::SQD_NOTIFY, attributes.en_sqd_async_notify.is_some()),
            (Self::PEER, attributes.peer.is_some()),
            (Self::PEER_KEY, attributes.peer_key.is_some()),
        ];
        given.into_iter().filter(|entry| entry.1).fold(Self::empty(), |mask, entry| mask | entry.0)
    }

    /// Returns the names of the attributes.
    pub(crate) fn names(self) -> Vec<&'static str> {
        Self::NAMES.iter().filter(|(attribute, _)| self.contains(*attribute)).map(|(_, name)| *name).collect()
    }
}

/// A row of the table.
struct Transition {
    from: QueuePairState,
    to: QueuePairState,
    service: QueuePairType,
    required: Mask,
    optional: Mask,
}

const RC: QueuePairType = QueuePairType::ReliableConnection;
const UC: QueuePairType = QueuePairType::UnreliableConnection;
const UD: QueuePairType = QueuePairType::UnreliableDatagram;
const XRC_SEND: QueuePairType = QueuePairType::XrcSend;
const XRC_RECEIVE: QueuePairType = QueuePairType::XrcReceive;

const fn row(
    from: QueuePairState,
    to: QueuePairState,
    service: QueuePairType,
    required: u32,
    optional: u32,
) -> Transition {
    Transition {
        from,
        to,
        service,
        required: Mask::from_bits_truncate(required),
        optional: Mask::from_bits_truncate(optional),
    }
}

const STATE: u32 = Mask::CUR_QP_STATE.bits();
const PKEY: u32 = Mask::PKEY_INDEX.bits();
const PORT: u32 = Mask::PORT_NUM.bits();
const ACCESS: u32 = Mask::ACCESS_FLAGS.bits();
const QKEY: u32 = Mask::QKEY.bits();
const PATH: u32 = Mask::AH_ATTR.bits();
const MTU: u32 = Mask::PATH_MTU.bits();
const DEST: u32 = Mask::DEST_QP_NUM.bits();
const RQ_PSN: u32 = Mask::RQ_PSN.bits();
const SQ_PSN: u32 = Mask::SQ_PSN.bits();
const DEST_RD: u32 = Mask::MAX_DEST_RD_ATOMIC.bits();
const RD: u32 = Mask::MAX_RD_ATOMIC.bits();
const RNR_TIMER: u32 = Mask::MIN_RNR_TIMER.bits();
const TIMEOUT: u32 = Mask::TIMEOUT.bits();
const RETRY: u32 = Mask::RETRY_CNT.bits();
const RNR_RETRY: u32 = Mask::RNR_RETRY.bits();
const NOTIFY: u32 = Mask::SQD_NOTIFY.bits();
/// Not in the standard: allowed with the path, and from RTR to RTS.
const PEER: u32 = Mask::PEER.bits();
/// Not in the standard: the peer's side of it is used from the first packet on.
const KEY: u32 = Mask::PEER_KEY.bits();

const CONNECTED_START: u32 = PKEY | PORT | ACCESS;
const DATAGRAM_START: u32 = PKEY | PORT | QKEY;
/// The attributes that name the peer of every connected service.
const CONNECTION: u32 = PATH | MTU | DEST | RQ_PSN;
/// Attributes of the responder and of the requester.
const RESPONDING: u32 = DEST_RD | RNR_TIMER;
const REQUESTING: u32 = TIMEOUT | RETRY | RNR_RETRY | RD;

/// All transitions except those to RESET and ERR, which every state has without attributes (except RESET to ERR).
const TRANSITIONS: &[Transition] = &[
    row(Reset, Init, RC, CONNECTED_START, 0),
    row(Reset, Init, UC, CONNECTED_START, 0),
    row(Reset, Init, UD, DATAGRAM_START, 0),
    row(Reset, Init, XRC_SEND, CONNECTED_START, 0),
    row(Reset, Init, XRC_RECEIVE, CONNECTED_START, 0),
    row(Init, Init, RC, 0, CONNECTED_START),
    row(Init, Init, UC, 0, CONNECTED_START),
    row(Init, Init, UD, 0, DATAGRAM_START),
    row(Init, Init, XRC_SEND, 0, CONNECTED_START),
    row(Init, Init, XRC_RECEIVE, 0, CONNECTED_START),
    row(Init, ReadyToReceive, RC, CONNECTION | RESPONDING, ACCESS | PKEY | PEER | KEY),
    row(Init, ReadyToReceive, UC, CONNECTION, ACCESS | PKEY | PEER | KEY),
    row(Init, ReadyToReceive, UD, 0, PKEY | QKEY),
    row(Init, ReadyToReceive, XRC_SEND, CONNECTION, ACCESS | PKEY | PEER | KEY),
    row(Init, ReadyToReceive, XRC_RECEIVE, CONNECTION | RESPONDING, ACCESS | PKEY | PEER | KEY),
    row(ReadyToReceive, ReadyToSend, RC, SQ_PSN | REQUESTING, STATE | ACCESS | RNR_TIMER | PEER),
    row(ReadyToReceive, ReadyToSend, UC, SQ_PSN, STATE | ACCESS | PEER),
    row(ReadyToReceive, ReadyToSend, UD, SQ_PSN, STATE | QKEY),
    row(ReadyToReceive, ReadyToSend, XRC_SEND, SQ_PSN | REQUESTING, STATE | ACCESS | PEER),
    row(ReadyToReceive, ReadyToSend, XRC_RECEIVE, SQ_PSN | TIMEOUT, STATE | ACCESS | RNR_TIMER | PEER),
    row(ReadyToSend, ReadyToSend, RC, 0, STATE | ACCESS | RNR_TIMER),
    row(ReadyToSend, ReadyToSend, UC, 0, STATE | ACCESS),
    row(ReadyToSend, ReadyToSend, UD, 0, STATE | QKEY),
    row(ReadyToSend, ReadyToSend, XRC_SEND, 0, STATE | ACCESS),
    row(ReadyToSend, ReadyToSend, XRC_RECEIVE, 0, STATE | ACCESS | RNR_TIMER),
    row(SendQueueError, ReadyToSend, UC, 0, STATE | ACCESS),
    row(SendQueueError, ReadyToSend, UD, 0, STATE | QKEY),
    row(ReadyToSend, SendQueueDrained, RC, 0, NOTIFY),
    row(ReadyToSend, SendQueueDrained, UC, 0, NOTIFY),
    row(ReadyToSend, SendQueueDrained, UD, 0, NOTIFY),
    row(ReadyToSend, SendQueueDrained, XRC_SEND, 0, NOTIFY),
    row(ReadyToSend, SendQueueDrained, XRC_RECEIVE, 0, NOTIFY),
    row(SendQueueDrained, ReadyToSend, RC, 0, STATE | ACCESS | RNR_TIMER),
    row(SendQueueDrained, ReadyToSend, UC, 0, STATE | ACCESS),
    row(SendQueueDrained, ReadyToSend, UD, 0, STATE | QKEY),
    row(SendQueueDrained, ReadyToSend, XRC_SEND, 0, STATE | ACCESS),
    row(SendQueueDrained, ReadyToSend, XRC_RECEIVE, 0, STATE | ACCESS | RNR_TIMER),
    row(SendQueueDrained, SendQueueDrained, RC, 0, PORT | PATH | REQUESTING | RESPONDING | ACCESS | PKEY | PEER),
    row(SendQueueDrained, SendQueueDrained, UC, 0, PATH | ACCESS | PKEY | PEER),
    row(SendQueueDrained, SendQueueDrained, UD, 0, PKEY | QKEY),
    row(SendQueueDrained, SendQueueDrained, XRC_SEND, 0, PORT | PATH | REQUESTING | ACCESS | PKEY | PEER),
    row(SendQueueDrained, SendQueueDrained, XRC_RECEIVE, 0, PORT | PATH | TIMEOUT | RESPONDING | ACCESS | PKEY | PEER),
];

/// Why a transition is refused, with the offending attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum TransitionError {
    NoTransition,
    Missing(Mask),
    NotAllowed(Mask),
    MissingAndNotAllowed { missing: Mask, extra: Mask },
}

/// Checks whether a queue pair of this service may go from one state to another with these attributes.
pub(super) fn check(
    from: QueuePairState,
    to: QueuePairState,
    service: QueuePairType,
    given: Mask,
) -> Result<(), TransitionError> {
    let (required, optional) = match to {
        Reset => (Mask::empty(), Mask::empty()),
        Error if from != Reset => (Mask::empty(), Mask::empty()),
        _ => {
            let found = TRANSITIONS.iter().find(|row| row.from == from && row.to == to && row.service == service);
            let row = found.ok_or(TransitionError::NoTransition)?;
            (row.required, row.optional)
        }
    };
    let (missing, extra) = (required - given, given - required - optional);
    match (missing.is_empty(), extra.is_empty()) {
        (true, true) => Ok(()),
        (false, true) => Err(TransitionError::Missing(missing)),
        (true, false) => Err(TransitionError::NotAllowed(extra)),
        (false, false) => Err(TransitionError::MissingAndNotAllowed { missing, extra }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the whole table as text; a changed transition shows as a changed line.
    fn picture() -> String {
        let mut text = String::new();
        for service in [RC, UC, UD, XRC_SEND, XRC_RECEIVE] {
            for &from in QueuePairState::ALL {
                for &to in QueuePairState::ALL {
                    let required = match check(from, to, service, Mask::empty()) {
                        Ok(()) => Mask::empty(),
                        Err(TransitionError::Missing(mask)) => mask,
                        Err(_) => continue,
                    };
                    let all = Mask::all();
                    let optional = match check(from, to, service, all) {
                        Err(TransitionError::NotAllowed(extra)) => all - extra - required,
                        _ => all - required,
                    };
                    let (from, to) = (from.name(), to.name());
                    let (required, optional) = (required.names().join(", "), optional.names().join(", "));
                    text.push_str(&format!("{service:?} {from} -> {to}: needs [{required}] takes [{optional}]\n"));
                }
            }
        }
        text
    }

    #[test]
    fn transitions_are_those_of_the_snapshot() {
        let snapshot = include_str!("state_machine.snapshot");
        let picture = picture();
        assert!(picture == snapshot, "the table changed; if that is meant, the new snapshot is:\n{picture}");
    }

    #[test]
    fn missing_and_extra_attributes_are_named() {
        let refused = check(Reset, Init, RC, Mask::PKEY_INDEX | Mask::PORT_NUM).unwrap_err();
        assert_eq!(refused, TransitionError::Missing(Mask::ACCESS_FLAGS));
        assert_eq!(Mask::ACCESS_FLAGS.names(), ["qp_access_flags"]);
        assert_eq!(Mask::all().names().len(), Mask::all().iter().count(), "each has a name");
        let given = Mask::PKEY_INDEX | Mask::PORT_NUM | Mask::ACCESS_FLAGS | Mask::SQ_PSN;
        assert_eq!(check(Reset, Init, RC, given).unwrap_err(), TransitionError::NotAllowed(Mask::SQ_PSN));
        assert_eq!(check(Reset, Error, RC, Mask::empty()), Err(TransitionError::NoTransition));
        let both = TransitionError::MissingAndNotAllowed { missing: Mask::ACCESS_FLAGS, extra: Mask::QKEY };
        assert_eq!(check(Reset, Init, RC, Mask::PKEY_INDEX | Mask::PORT_NUM | Mask::QKEY), Err(both));
        assert_eq!(check(Init, Reset, RC, Mask::CUR_QP_STATE), Err(TransitionError::NotAllowed(Mask::CUR_QP_STATE)));
    }
}
