//! Multicast groups of identifiers for datagrams.

use std::ffi::{c_int, c_void};

use rdma_verbs::provider::abi::{self, cm};
use rdma_verbs::types::{Gid, Qpn};

use super::address::read;
use super::bring_up::QKEY;
use super::event::{Content, Queued, complete as complete_call, event_type, path_to};
use super::id::{DATAGRAM, Group, Id, id_of};
use super::pump::Section;
use crate::address_handle::address_attributes;
use crate::error::{Errno, INVALID, Result, zero_or_minus_one};
use crate::queue_pair::queue_pair_of;

/// Bits of `rdma_cm_join_mc_attr_mask`, and values of `rdma_cm_mc_join_flags`.
const ADDRESS: u32 = 1;
const JOIN_FLAGS: u32 = 1 << 1;
const FULL_MEMBER: u32 = 0;
const ONLY_SENDS: u32 = 1;
/// Maximum number of groups of an identifier.
const MAX_GROUPS: usize = 1024;

/// # Safety
/// All pointers are the program's.
unsafe fn join(
    visible: *mut cm::Id,
    address: *const libc::sockaddr,
    only_sends: bool,
    context: *mut c_void,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let (id, address) = unsafe { (id_of(visible)?, read(address)?) };
    let number = {
        let mut inner = id.inner();
        let Some(local) = inner.local.filter(|_| id.qp_type == DATAGRAM && inner.device.is_some()) else {
            return Err(INVALID);
        };
        if local.is_ipv4() != address.is_ipv4() {
            return Err(INVALID);
        }
        if inner.groups.len() >= MAX_GROUPS {
            return Err(Errno(libc::ENOMEM));
        }
        let number = inner.groups.iter().map(|group| group.number + 1).max().unwrap_or(0);
        let gid = Gid::from(address.ip());
        let context = context.expose_provenance();
        inner.groups.push(Group { gid, number, context, only_sends, is_attached: false });
        number
    };
    id.push(Queued::new(id, event_type::MULTICAST_JOIN, 0, Content::Group(number)));
    Ok(())
}

/// Completes the event of a group that the program reads: its queue pair receives from now on.
///
/// # Safety
/// The identifier is the program's.
pub(super) unsafe fn complete(id: &Id, number: u64, event: &mut cm::Event) {
    let (group, device, local) = {
        let inner = id.inner();
        let group = inner.groups.iter().copied().find(|group| group.number == number);
        (group, inner.device, inner.local)
    };
    let (Some(group), Some(device), Some(local)) = (group, device, local) else { return };
    // SAFETY: the caller's promise; its queue pair is the program's as well.
    let attached = unsafe {
        let qp = (*id.visible()).qp;
        match qp.is_null() || group.only_sends {
            true => Ok(false),
            false => queue_pair_of(qp).inner.attach_mcast(group.gid).map(|()| true),
        }
    };
    let attached = attached.map_err(Errno::from);
    if let Some(known) = id.inner().groups.iter_mut().find(|known| known.number == number) {
        known.is_attached = attached == Ok(true);
    }
    if attached.is_err() {
        (event.event, event.status) = (event_type::MULTICAST_ERROR, -1);
    }
    event.param.ud = cm::UdParam {
        private_data: std::ptr::with_exposed_provenance(group.context),
        private_data_len: 0,
        ah_attr: address_attributes(&path_to(group.gid, device.gid_index(local.ip().into()).unwrap_or(0))),
        qp_num: Qpn::MULTICAST.value(),
        qkey: QKEY.0,
    };
}

/// Detaches a queue pair from a group.
///
/// # Safety
/// The queue pair is null or the program's.
unsafe fn detach(qp: *mut abi::Qp, group: &Group) {
    if !qp.is_null() && group.is_attached {
        // SAFETY: the caller's promise. The program may have detached it itself.
        let _ = unsafe { queue_pair_of(qp) }.inner.detach_mcast(group.gid);
    }
}

/// # Safety
/// All pointers are the program's.
unsafe fn leave(visible: *mut cm::Id, address: *const libc::sockaddr) -> Result<()> {
    let _section = Section::begin();
    // SAFETY: the caller's promise.
    let (id, address) = unsafe { (id_of(visible)?, read(address)?) };
    let (group, others) = {
        let mut inner = id.inner();
        let gid = Gid::from(address.ip());
        let found = inner.groups.iter().position(|group| group.gid == gid).ok_or(Errno(libc::EADDRNOTAVAIL))?;
        let group = inner.groups.remove(found);
        (group, inner.groups.iter().any(|other| other.gid == gid && other.is_attached))
    };
    id.discard(|queued| matches!(queued.content, Content::Group(number) if number == group.number));
    // A group that was joined twice is left with the second call.
    if !others {
        // SAFETY: the caller's promise.
        unsafe { detach((*visible).qp, &group) };
    }
    Ok(())
}

/// Joins a group, and completes the call.
///
/// # Safety
/// All pointers are the program's.
unsafe fn join_and_complete(
    id: *mut cm::Id,
    address: *const libc::sockaddr,
    only_sends: bool,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    zero_or_minus_one(unsafe { join(id, address, only_sends, context).and_then(|()| complete_call(id)) })
}

pub(super) unsafe extern "C" fn rdma_join_multicast(
    id: *mut cm::Id,
    address: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program's identifier and address.
    unsafe { join_and_complete(id, address, false, context) }
}

pub(super) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut cm::Id,
    attributes: *mut cm::JoinMcAttrEx,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program's structure, or none.
    let Some(attributes) = (unsafe { attributes.as_ref() }) else { return zero_or_minus_one(Err(INVALID)) };
    let refused = match attributes {
        _ if attributes.comp_mask & !(ADDRESS | JOIN_FLAGS) != 0 => Some(Errno(libc::ENOTSUP)),
        _ if attributes.comp_mask != ADDRESS | JOIN_FLAGS => Some(INVALID),
        _ if !matches!(attributes.join_flags, FULL_MEMBER | ONLY_SENDS) => Some(INVALID),
        _ => None,
    };
    match refused {
        Some(error) => zero_or_minus_one(Err(error)),
        // SAFETY: the program's identifier and address.
        None => unsafe { join_and_complete(id, attributes.addr, attributes.join_flags == ONLY_SENDS, context) },
    }
}

pub(super) unsafe extern "C" fn rdma_leave_multicast(id: *mut cm::Id, address: *mut libc::sockaddr) -> c_int {
    // SAFETY: the program's identifier and address.
    zero_or_minus_one(unsafe { leave(id, address) })
}
