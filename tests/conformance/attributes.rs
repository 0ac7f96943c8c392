//! All attributes of a state change by name, and checks of transitions.

use rdma_verbs::types::Qkey;
use rdma_verbs::verbs::{
    AccessFlags, ErrorKind, Mtu, PeerCapabilities, Psn, QueuePair, QueuePairAttributes, QueuePairState,
};

use super::end::{End, address_vector, refused};

/// An attribute: its name, how to compare it between two sets, how to copy it from one set to another.
pub(crate) struct Attribute {
    pub(crate) name: &'static str,
    alike: fn(&QueuePairAttributes, &QueuePairAttributes) -> bool,
    copy: fn(&QueuePairAttributes, &mut QueuePairAttributes),
}

macro_rules! attributes {
    ($($field:ident)*) => {
        /// All attributes except the states.
        pub(crate) const ATTRIBUTES: &[Attribute] = &[$(Attribute {
            name: stringify!($field),
            alike: |one, other| one.$field == other.$field,
            copy: |from, to| to.$field = from.$field,
        },)*];
    };
}

attributes!(pkey_index port_num qp_access_flags qkey ah_attr path_mtu dest_qp_num rq_psn sq_psn max_dest_rd_atomic
    max_rd_atomic min_rnr_timer timeout retry_cnt rnr_retry en_sqd_async_notify peer);

/// Returns a set of all attributes except the states, with values that the device accepts. The peer is the queue pair
/// itself.
pub(crate) fn everything(end: &End) -> QueuePairAttributes {
    let own = end.qp.connection_info().expect("connection_info");
    QueuePairAttributes::default()
        .pkey_index(0)
        .port_num(1)
        .qp_access_flags(AccessFlags::REMOTE_WRITE)
        .qkey(Qkey(0x1234))
        .ah_attr(address_vector(&end.context, own.gid))
        .path_mtu(Mtu::Mtu512)
        .dest_qp_num(own.qpn)
        .rq_psn(Psn::new(0x111))
        .sq_psn(Psn::new(0x222))
        .max_dest_rd_atomic(1)
        .max_rd_atomic(1)
        .min_rnr_timer(3)
        .timeout(10)
        .retry_cnt(2)
        .rnr_retry(4)
        .en_sqd_async_notify(true)
        .peer(PeerCapabilities::STANDARD)
}

/// Returns the state to go to, with the named attributes of `from`.
pub(crate) fn set(to: QueuePairState, from: &QueuePairAttributes, names: &[&str]) -> QueuePairAttributes {
    let mut set = QueuePairAttributes::default().qp_state(to);
    for attribute in ATTRIBUTES.iter().filter(|attribute| names.contains(&attribute.name)) {
        (attribute.copy)(from, &mut set);
    }
    set
}

/// Checks that the queue pair's named attributes equal those of `expected`.
#[track_caller]
pub(crate) fn assert_reported(qp: &QueuePair, expected: &QueuePairAttributes, names: &[&str]) {
    let found = qp.query().expect("query_qp").attributes;
    for attribute in ATTRIBUTES.iter().filter(|attribute| names.contains(&attribute.name)) {
        assert!((attribute.alike)(&found, expected), "{}: {found:?} instead of {expected:?}", attribute.name);
    }
}

/// Checks a row of the standard's table, starting in the queue pair's current state: each missing and each extra
/// attribute is refused by name, all extra ones together by all their names, with nothing changed; then the required
/// and optional ones together are accepted and reported by query_qp.
#[track_caller]
pub(crate) fn transition(end: &End, to: QueuePairState, required: &[&str], optional: &[&str]) {
    // Draining may finish at any moment.
    let status = || {
        let mut status = end.qp.query().expect("query_qp");
        status.sq_draining = false;
        status
    };
    let (all, before) = (everything(end), status());
    let refuse = |set: &QueuePairAttributes, names: &[&str]| {
        refused(end.qp.modify(set), ErrorKind::InvalidArgument, names);
        assert_eq!(status(), before, "a refused change changed something");
    };
    for missing in required {
        let rest: Vec<&str> = required.iter().copied().filter(|name| name != missing).collect();
        refuse(&set(to, &all, &rest), &[missing, to.name()]);
    }
    if !required.is_empty() {
        refuse(&set(to, &all, &[]), required);
    }
    let may = |name: &&str| required.contains(name) || optional.contains(name);
    let extra: Vec<&str> = ATTRIBUTES.iter().map(|attribute| attribute.name).filter(|name| !may(name)).collect();
    for name in &extra {
        let with: Vec<&str> = required.iter().chain([name]).copied().collect();
        refuse(&set(to, &all, &with), &[name, to.name()]);
    }
    let everything: Vec<&str> = ATTRIBUTES.iter().map(|attribute| attribute.name).collect();
    refuse(&set(to, &all, &everything), &extra);
    let whole: Vec<&str> = required.iter().chain(optional).copied().collect();
    end.qp.modify(&set(to, &all, &whole)).expect("all that the table has");
    end.is_in(to);
    assert_reported(&end.qp, &all, &whole);
}

/// Brings a fresh queue pair to a state with the required attributes only.
#[track_caller]
pub(crate) fn walk(end: &End, path: &[(QueuePairState, &[&str])]) {
    let all = everything(end);
    for (to, required) in path {
        end.qp.modify(&set(*to, &all, required)).unwrap_or_else(|error| panic!("to {}: {error}", to.name()));
    }
}
