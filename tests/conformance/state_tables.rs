//! The table of transitions: required and allowed attributes, for queue pairs of all types that need nothing else.

use rdma_verbs::verbs::{ErrorKind, QueuePairAttributes, QueuePairState, QueuePairType};

use super::attributes::{everything, set, transition, walk};
use super::end::{End, Shape, refused};
use super::suite::{Scenario, XRC};
use super::world::World;

use QueuePairState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError};

const RC: QueuePairType = QueuePairType::ReliableConnection;
const UC: QueuePairType = QueuePairType::UnreliableConnection;
const UD: QueuePairType = QueuePairType::UnreliableDatagram;
const XRC_SEND: QueuePairType = QueuePairType::XrcSend;
const XRC_RECEIVE: QueuePairType = QueuePairType::XrcReceive;
const TABLE: &str = "IBTA, queue pair verbs: Modify Queue Pair, as ib_modify_qp_is_ok has it; ibv_modify_qp(3)";

/// A row of the table is a scenario.
macro_rules! rows {
    ($scenarios:ident of $needs:expr; $($name:literal $run:expr;)*) => {
        pub(crate) const $scenarios: &[Scenario] =
            &[$(Scenario { name: $name, clause: TABLE, needs: $needs, run: $run },)*];
    };
}

rows! {
    SCENARIOS of &[];
    "states/rc/reset_to_init" |world| reset_to_init(world, RC);
    "states/rc/init_to_init" |world| init_to_init(world, RC);
    "states/rc/init_to_rtr" |world| init_to_rtr(world, RC);
    "states/rc/rtr_to_rts" |world| rtr_to_rts(world, RC);
    "states/rc/rts_to_rts" |world| rts_to_rts(world, RC);
    "states/rc/rts_to_sqd" |world| rts_to_sqd(world, RC);
    "states/rc/sqd_to_rts" |world| sqd_to_rts(world, RC);
    "states/rc/sqd_to_sqd" |world| sqd_to_sqd(world, RC);
    "states/rc/to_reset_from_anywhere" |world| to_reset_from_anywhere(world, RC);
    "states/rc/to_error_from_anywhere_but_reset" |world| to_error_from_anywhere_but_reset(world, RC);
    "states/rc/no_other_transition" |world| no_other_transition(world, RC);
    "states/rc/wrong_current_state_is_refused" |world| wrong_current_state_is_refused(world, RC);
    "states/uc/reset_to_init" |world| reset_to_init(world, UC);
    "states/uc/init_to_init" |world| init_to_init(world, UC);
    "states/uc/init_to_rtr" |world| init_to_rtr(world, UC);
    "states/uc/rtr_to_rts" |world| rtr_to_rts(world, UC);
    "states/uc/rts_to_rts" |world| rts_to_rts(world, UC);
    "states/uc/rts_to_sqd" |world| rts_to_sqd(world, UC);
    "states/uc/sqd_to_rts" |world| sqd_to_rts(world, UC);
    "states/uc/sqd_to_sqd" |world| sqd_to_sqd(world, UC);
    "states/uc/to_reset_from_anywhere" |world| to_reset_from_anywhere(world, UC);
    "states/uc/to_error_from_anywhere_but_reset" |world| to_error_from_anywhere_but_reset(world, UC);
    "states/uc/no_other_transition" |world| no_other_transition(world, UC);
    "states/uc/wrong_current_state_is_refused" |world| wrong_current_state_is_refused(world, UC);
    "states/ud/reset_to_init" |world| reset_to_init(world, UD);
    "states/ud/init_to_init" |world| init_to_init(world, UD);
    "states/ud/init_to_rtr" |world| init_to_rtr(world, UD);
    "states/ud/rtr_to_rts" |world| rtr_to_rts(world, UD);
    "states/ud/rts_to_rts" |world| rts_to_rts(world, UD);
    "states/ud/rts_to_sqd" |world| rts_to_sqd(world, UD);
    "states/ud/sqd_to_rts" |world| sqd_to_rts(world, UD);
    "states/ud/sqd_to_sqd" |world| sqd_to_sqd(world, UD);
    "states/ud/to_reset_from_anywhere" |world| to_reset_from_anywhere(world, UD);
    "states/ud/to_error_from_anywhere_but_reset" |world| to_error_from_anywhere_but_reset(world, UD);
    "states/ud/no_other_transition" |world| no_other_transition(world, UD);
    "states/ud/wrong_current_state_is_refused" |world| wrong_current_state_is_refused(world, UD);
}

rows! {
    OF_XRC of &[XRC];
    "states/xrc_send/reset_to_init" |world| reset_to_init(world, XRC_SEND);
    "states/xrc_send/init_to_init" |world| init_to_init(world, XRC_SEND);
    "states/xrc_send/init_to_rtr" |world| init_to_rtr(world, XRC_SEND);
    "states/xrc_send/rtr_to_rts" |world| rtr_to_rts(world, XRC_SEND);
    "states/xrc_send/rts_to_rts" |world| rts_to_rts(world, XRC_SEND);
    "states/xrc_send/rts_to_sqd" |world| rts_to_sqd(world, XRC_SEND);
    "states/xrc_send/sqd_to_rts" |world| sqd_to_rts(world, XRC_SEND);
    "states/xrc_send/sqd_to_sqd" |world| sqd_to_sqd(world, XRC_SEND);
    "states/xrc_send/to_reset_from_anywhere" |world| to_reset_from_anywhere(world, XRC_SEND);
    "states/xrc_send/to_error_from_anywhere_but_reset" |world| to_error_from_anywhere_but_reset(world, XRC_SEND);
    "states/xrc_send/no_other_transition" |world| no_other_transition(world, XRC_SEND);
    "states/xrc_send/wrong_current_state_is_refused" |world| wrong_current_state_is_refused(world, XRC_SEND);
    "states/xrc_receive/reset_to_init" |world| reset_to_init(world, XRC_RECEIVE);
    "states/xrc_receive/init_to_init" |world| init_to_init(world, XRC_RECEIVE);
    "states/xrc_receive/init_to_rtr" |world| init_to_rtr(world, XRC_RECEIVE);
    "states/xrc_receive/rtr_to_rts" |world| rtr_to_rts(world, XRC_RECEIVE);
    "states/xrc_receive/rts_to_rts" |world| rts_to_rts(world, XRC_RECEIVE);
    "states/xrc_receive/rts_to_sqd" |world| rts_to_sqd(world, XRC_RECEIVE);
    "states/xrc_receive/sqd_to_rts" |world| sqd_to_rts(world, XRC_RECEIVE);
    "states/xrc_receive/sqd_to_sqd" |world| sqd_to_sqd(world, XRC_RECEIVE);
    "states/xrc_receive/to_reset_from_anywhere" |world| to_reset_from_anywhere(world, XRC_RECEIVE);
    "states/xrc_receive/to_error_from_anywhere_but_reset" |world| to_error_from_anywhere_but_reset(world, XRC_RECEIVE);
    "states/xrc_receive/no_other_transition" |world| no_other_transition(world, XRC_RECEIVE);
    "states/xrc_receive/wrong_current_state_is_refused" |world| wrong_current_state_is_refused(world, XRC_RECEIVE);
}

fn start(qp_type: QueuePairType) -> &'static [&'static str] {
    match qp_type {
        UD => &["pkey_index", "port_num", "qkey"],
        _ => &["pkey_index", "port_num", "qp_access_flags"],
    }
}

fn to_receive(qp_type: QueuePairType) -> &'static [&'static str] {
    match qp_type {
        RC | XRC_RECEIVE => &["ah_attr", "path_mtu", "dest_qp_num", "rq_psn", "max_dest_rd_atomic", "min_rnr_timer"],
        UD => &[],
        _ => &["ah_attr", "path_mtu", "dest_qp_num", "rq_psn"],
    }
}

fn to_send(qp_type: QueuePairType) -> &'static [&'static str] {
    match qp_type {
        RC | XRC_SEND => &["sq_psn", "max_rd_atomic", "timeout", "retry_cnt", "rnr_retry"],
        XRC_RECEIVE => &["sq_psn", "timeout"],
        _ => &["sq_psn"],
    }
}

/// Attributes that may change while a queue pair is in RTS.
fn rts_changeable(qp_type: QueuePairType) -> &'static [&'static str] {
    match qp_type {
        RC | XRC_RECEIVE => &["qp_access_flags", "min_rnr_timer"],
        UD => &["qkey"],
        _ => &["qp_access_flags"],
    }
}

/// Creates a queue pair in this state.
fn end_in(world: &World, qp_type: QueuePairType, state: QueuePairState) -> End {
    let end = world.end(0, &Shape { qp_type, ..Shape::default() });
    let (receive, send) = (to_receive(qp_type), to_send(qp_type));
    let path: [(QueuePairState, &[&str]); 4] =
        [(Init, start(qp_type)), (ReadyToReceive, receive), (ReadyToSend, send), (SendQueueDrained, &[])];
    let steps = match state {
        Reset => 0,
        Init => 1,
        ReadyToReceive => 2,
        ReadyToSend => 3,
        SendQueueDrained => 4,
        other => panic!("no path to {}", other.name()),
    };
    walk(&end, &path[..steps]);
    end.is_in(state);
    end.is_drained();
    end
}

fn reset_to_init(world: &World, qp_type: QueuePairType) {
    transition(&end_in(world, qp_type, Reset), Init, start(qp_type), &[]);
}

fn init_to_init(world: &World, qp_type: QueuePairType) {
    transition(&end_in(world, qp_type, Init), Init, &[], start(qp_type));
}

fn init_to_rtr(world: &World, qp_type: QueuePairType) {
    let optional: &[&str] = match qp_type {
        UD => &["pkey_index", "qkey"],
        _ => &["qp_access_flags", "pkey_index", "peer"],
    };
    transition(&end_in(world, qp_type, Init), ReadyToReceive, to_receive(qp_type), optional);
}

fn rtr_to_rts(world: &World, qp_type: QueuePairType) {
    let optional: Vec<&str> =
        rts_changeable(qp_type).iter().copied().chain(["peer"].into_iter().filter(|_| qp_type != UD)).collect();
    transition(&end_in(world, qp_type, ReadyToReceive), ReadyToSend, to_send(qp_type), &optional);
}

fn rts_to_rts(world: &World, qp_type: QueuePairType) {
    transition(&end_in(world, qp_type, ReadyToSend), ReadyToSend, &[], rts_changeable(qp_type));
}

fn rts_to_sqd(world: &World, qp_type: QueuePairType) {
    transition(&end_in(world, qp_type, ReadyToSend), SendQueueDrained, &[], &["en_sqd_async_notify"]);
}

fn sqd_to_rts(world: &World, qp_type: QueuePairType) {
    transition(&end_in(world, qp_type, SendQueueDrained), ReadyToSend, &[], rts_changeable(qp_type));
}

fn sqd_to_sqd(world: &World, qp_type: QueuePairType) {
    let optional: &[&str] = match qp_type {
        RC => &[
            "ah_attr",
            "qp_access_flags",
            "pkey_index",
            "peer",
            "port_num",
            "timeout",
            "retry_cnt",
            "rnr_retry",
            "max_rd_atomic",
            "max_dest_rd_atomic",
            "min_rnr_timer",
        ],
        XRC_SEND => &[
            "ah_attr",
            "qp_access_flags",
            "pkey_index",
            "peer",
            "port_num",
            "timeout",
            "retry_cnt",
            "rnr_retry",
            "max_rd_atomic",
        ],
        XRC_RECEIVE => &[
            "ah_attr",
            "qp_access_flags",
            "pkey_index",
            "peer",
            "port_num",
            "timeout",
            "max_dest_rd_atomic",
            "min_rnr_timer",
        ],
        UD => &["pkey_index", "qkey"],
        _ => &["ah_attr", "qp_access_flags", "pkey_index", "peer"],
    };
    transition(&end_in(world, qp_type, SendQueueDrained), SendQueueDrained, &[], optional);
}

const REACHABLE: [QueuePairState; 5] = [Reset, Init, ReadyToReceive, ReadyToSend, SendQueueDrained];

fn go(state: QueuePairState) -> QueuePairAttributes {
    QueuePairAttributes::default().qp_state(state)
}

fn to_reset_from_anywhere(world: &World, qp_type: QueuePairType) {
    for state in REACHABLE {
        let end = end_in(world, qp_type, state);
        let extra = set(Reset, &everything(&end), &["port_num"]);
        refused(end.qp.modify(&extra), ErrorKind::InvalidArgument, &["port_num", "RESET"]);
        end.is_in(state);
        end.qp.modify(&go(Reset)).unwrap();
        end.is_in(Reset);
        let forgotten = QueuePairAttributes::default().qp_state(Reset);
        assert_eq!(end.qp.query().unwrap().attributes, forgotten, "from {}", state.name());
    }
}

fn to_error_from_anywhere_but_reset(world: &World, qp_type: QueuePairType) {
    for state in &REACHABLE[1..] {
        let end = end_in(world, qp_type, *state);
        let extra = set(Error, &everything(&end), &["timeout"]);
        refused(end.qp.modify(&extra), ErrorKind::InvalidArgument, &["timeout", "ERR"]);
        end.is_in(*state);
        end.qp.modify(&go(Error)).unwrap();
        end.is_in(Error);
        end.qp.modify(&go(Error)).unwrap();
        end.qp.modify(&go(Reset)).unwrap();
        end.is_in(Reset);
    }
    let end = end_in(world, qp_type, Reset);
    refused(end.qp.modify(&go(Error)), ErrorKind::InvalidState, &["RESET", "ERR"]);
    end.is_in(Reset);
}

fn no_other_transition(world: &World, qp_type: QueuePairType) {
    let absent = [
        (Reset, &[ReadyToReceive, ReadyToSend, SendQueueDrained, SendQueueError][..]),
        (Init, &[ReadyToSend, SendQueueDrained, SendQueueError]),
        (ReadyToReceive, &[Init, ReadyToReceive, SendQueueDrained, SendQueueError]),
        (ReadyToSend, &[Init, ReadyToReceive, SendQueueError]),
        (SendQueueDrained, &[Init, ReadyToReceive, SendQueueError]),
    ];
    for (from, states) in absent {
        let end = end_in(world, qp_type, from);
        let all = everything(&end);
        for to in states {
            // All attributes that the regular path to the state requires, so that nothing else is wrong.
            let names = [start(qp_type), to_receive(qp_type), to_send(qp_type)].concat();
            refused(end.qp.modify(&set(*to, &all, &names)), ErrorKind::InvalidState, &[from.name(), to.name()]);
            end.is_in(from);
        }
    }
    let end = end_in(world, qp_type, ReadyToSend);
    end.to_error();
    for to in [Init, ReadyToReceive, ReadyToSend, SendQueueDrained, SendQueueError] {
        refused(end.qp.modify(&go(to)), ErrorKind::InvalidState, &["ERR", to.name()]);
        end.is_in(Error);
    }
}

fn wrong_current_state_is_refused(world: &World, qp_type: QueuePairType) {
    let end = end_in(world, qp_type, ReadyToReceive);
    let all = everything(&end);
    let wrong = set(ReadyToSend, &all, to_send(qp_type)).cur_qp_state(SendQueueDrained);
    refused(end.qp.modify(&wrong), ErrorKind::InvalidState, &["cur_qp_state", "SQD", "RTR"]);
    end.is_in(ReadyToReceive);
    let right = wrong.cur_qp_state(ReadyToReceive);
    end.qp.modify(&right).unwrap();
    for (to, from) in [(ReadyToSend, ReadyToSend), (SendQueueDrained, ReadyToSend), (ReadyToSend, SendQueueDrained)] {
        let said = go(to).cur_qp_state(from);
        match to {
            // The table does not list cur_qp_state for this transition.
            SendQueueDrained => {
                refused(end.qp.modify(&said), ErrorKind::InvalidArgument, &["cur_qp_state"]);
                end.qp.modify(&go(to)).unwrap();
            }
            _ => end.qp.modify(&said).unwrap(),
        }
        end.is_in(to);
    }
}
