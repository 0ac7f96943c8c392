//! Queue pairs and shared receive queues of identifiers.

use std::ffi::c_int;
use std::ptr::null_mut;

use rdma_verbs::provider::abi::{self, cm, create};

use super::bring_up;
use super::id::{DATAGRAM, Id, XRC_RECEIVE, XRC_SEND, id_of};
use super::pump::Section;
use crate::error::{INVALID, Result, zero_or_minus_one};
use crate::modify::store_state;
use crate::object::Zeroed;
use crate::queue_pair::queue_pair_of;
use crate::shared::shared_of;
use crate::shared_receive::init as srq;
use crate::{completion_channel, completion_queue, queue_pair, queue_pair_init, shared_receive};

/// Inline bytes that a queue pair of an identifier has at least. Soft-RoCE and adapters keep inline data in place of
/// the parts, which are as long, and programs such as `rdma_xclient` send inline without requesting it.
const LEAST_INLINE: u32 = 16;

/// The fields of an identifier for one of its completion queues.
#[derive(Clone, Copy)]
struct CqFields {
    cq: *mut *mut abi::Cq,
    channel: *mut *mut abi::CompChannel,
}

/// Returns the fields for the completion queues of sends and of receives.
///
/// # Safety
/// The identifier is the program's.
unsafe fn cq_fields(id: *mut cm::Id) -> [CqFields; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        [
            CqFields { cq: &raw mut (*id).send_cq, channel: &raw mut (*id).send_cq_channel },
            CqFields { cq: &raw mut (*id).recv_cq, channel: &raw mut (*id).recv_cq_channel },
        ]
    }
}

/// Creates a completion queue with a channel of its own. `rdma_get_send_comp` and its sibling rely on that, and on the
/// identifier as the queue's context.
///
/// # Safety
/// The identifier is the program's and has a device; the fields are the identifier's.
unsafe fn create_cq(id: *mut cm::Id, fields: CqFields, entries: u32) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let context = (*id).verbs;
        let channel = completion_channel::create(shared_of(context), context)?;
        fields.channel.write(channel);
        let init = completion_queue::Init {
            cqe: entries.max(1),
            cq_context: id.cast(),
            channel,
            comp_vector: 0,
            timestamps: false,
            uses: Vec::new(),
        };
        fields.cq.write(completion_queue::create(context, abi::CqEx::zeroed(), init)?.cast());
    }
    Ok(())
}

/// Destroys a completion queue of an identifier, with its channel.
///
/// # Safety
/// The fields are those of an identifier of the program, and nothing uses the queue.
unsafe fn destroy_cq(fields: CqFields) {
    // SAFETY: the caller's promise.
    unsafe {
        let (cq, channel) = (fields.cq.replace(null_mut()), fields.channel.replace(null_mut()));
        if !cq.is_null() {
            let _ = completion_queue::destroy(cq);
        }
        if !channel.is_null() {
            let _ = completion_channel::destroy(channel);
        }
    }
}

/// Destroys the completion queues of an identifier, also those that the program has set.
///
/// # Safety
/// The identifier is the program's, and nothing uses the queues.
unsafe fn destroy_cqs(id: *mut cm::Id) {
    // SAFETY: the caller's promise.
    unsafe {
        if (*id).send_cq == (*id).recv_cq {
            (*id).send_cq = null_mut();
        }
        if (*id).send_cq_channel == (*id).recv_cq_channel {
            (*id).send_cq_channel = null_mut();
        }
        cq_fields(id).into_iter().for_each(|fields| destroy_cq(fields));
    }
}

/// Sets the completion queues of a new queue pair: those of the program, or those of the identifier. Creates what both
/// lack. An XRC initiator has one for receives only if the program states a size, as in rdma-core; a target completes
/// nothing, and the queues of its identifier are those of its shared receive queue.
///
/// # Safety
/// All pointers are the program's, and the identifier has a device.
unsafe fn set_cqs(id: *mut cm::Id, init: &mut abi::QpInitAttrEx) -> Result<()> {
    let entries = [init.cap.max_send_wr, init.cap.max_recv_wr];
    // SAFETY: the caller's promise.
    unsafe {
        let fields = cq_fields(id);
        let differ = |fields: CqFields, given: *mut abi::Cq| {
            let own = fields.cq.read();
            !own.is_null() && !given.is_null() && own != given
        };
        if differ(fields[0], init.send_cq) || differ(fields[1], init.recv_cq) {
            return Err(INVALID);
        }
        if (*id).qp_type == XRC_RECEIVE {
            return Ok(());
        }
        let given = [&mut init.send_cq, &mut init.recv_cq];
        let is_initiator = (*id).qp_type == XRC_SEND;
        for ((given, fields), entries) in given.into_iter().zip(fields).zip(entries) {
            if given.is_null() && fields.cq.read().is_null() && (entries > 0 || !is_initiator) {
                create_cq(id, fields, entries)?;
            }
            if given.is_null() {
                *given = fields.cq.read();
            }
        }
    }
    Ok(())
}

/// Returns the XRC domain of an identifier's device.
fn xrc_domain_of(id: &Id) -> Result<*mut abi::Xrcd> {
    let device = id.inner().device;
    device.ok_or(INVALID)?.xrc_domain()
}

/// Creates the queue pair of an identifier.
///
/// # Safety
/// All pointers are the program's.
unsafe fn create_queue_pair(visible: *mut cm::Id, init: &mut abi::QpInitAttrEx) -> Result<()> {
    // SAFETY: the caller's promise, for all of the function.
    unsafe {
        let id = id_of(visible)?;
        if (*visible).verbs.is_null() || !(*visible).qp.is_null() {
            return Err(INVALID);
        }
        if init.comp_mask & create::PD == 0 || init.pd.is_null() {
            init.comp_mask |= create::PD;
            init.pd = (*visible).pd;
        }
        if init.pd.is_null() || (*init.pd).context != (*visible).verbs {
            return Err(INVALID);
        }
        if (*visible).qp_type == XRC_RECEIVE && (init.comp_mask & create::XRCD == 0 || init.xrcd.is_null()) {
            init.xrcd = xrc_domain_of(id)?;
            init.comp_mask |= create::XRCD;
        }
        set_cqs(visible, init)?;
        // An XRC target leads to all shared receive queues of its domain, and an initiator has none.
        if init.srq.is_null() && !matches!((*visible).qp_type, XRC_SEND | XRC_RECEIVE) {
            init.srq = (*visible).srq;
        }
        init.cap.max_inline_data = init.cap.max_inline_data.max(LEAST_INLINE);
        let qp = queue_pair_init::create_extended((*visible).verbs, init)?;
        let (device, ends) = {
            let inner = id.inner();
            (inner.device, inner.ends.clone())
        };
        let device = device.ok_or(INVALID);
        let is_datagram = init.qp_type == DATAGRAM;
        let moved = device
            .and_then(|device| bring_up::initialize(&*queue_pair_of(qp).inner, is_datagram, device, ends.as_ref()));
        match moved {
            Ok(state) => store_state(qp, state as u32),
            Err(error) => {
                let _ = queue_pair::destroy(qp);
                return Err(error);
            }
        }
        ((*visible).qp, (*visible).pd) = (qp, init.pd);
        Ok(())
    }
}

/// # Safety
/// All pointers are the program's.
pub(super) unsafe fn create(visible: *mut cm::Id, init: &mut abi::QpInitAttrEx) -> Result<()> {
    let _section = Section::begin();
    // SAFETY: the caller's promise. No queue pair uses the queues that are destroyed, because its creation has failed.
    unsafe {
        id_of(visible)?;
        let before = cq_fields(visible).map(|fields| (fields.cq.read(), fields.channel.read()));
        let created = create_queue_pair(visible, init);
        if created.is_err() {
            for (fields, (cq, channel)) in cq_fields(visible).into_iter().zip(before) {
                if cq.is_null() && channel.is_null() {
                    destroy_cq(fields);
                }
            }
        }
        created
    }
}

/// # Safety
/// All pointers are the program's.
pub(super) unsafe fn create_classic(id: *mut cm::Id, pd: *mut abi::Pd, init: &mut abi::QpInitAttr) -> Result<()> {
    let abi::QpInitAttr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all } = *init;
    let comp_mask = if pd.is_null() { 0 } else { create::PD };
    let mut extended = abi::QpInitAttrEx { comp_mask, pd, ..abi::QpInitAttrEx::zeroed() };
    (extended.qp_context, extended.send_cq, extended.recv_cq, extended.srq) = (qp_context, send_cq, recv_cq, srq);
    (extended.cap, extended.qp_type, extended.sq_sig_all) = (cap, qp_type, sq_sig_all);
    // SAFETY: the caller's promise.
    unsafe { self::create(id, &mut extended)? };
    (init.send_cq, init.recv_cq, init.srq, init.cap) = (extended.send_cq, extended.recv_cq, extended.srq, extended.cap);
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_create_qp(id: *mut cm::Id, pd: *mut abi::Pd, init: *mut abi::QpInitAttr) -> c_int {
    // SAFETY: the program's identifier, domain and structure.
    zero_or_minus_one(unsafe { create_classic(id, pd, &mut *init) })
}

pub(super) unsafe extern "C" fn rdma_create_qp_ex(id: *mut cm::Id, init: *mut abi::QpInitAttrEx) -> c_int {
    // SAFETY: the program's identifier and structure.
    zero_or_minus_one(unsafe { create(id, &mut *init) })
}

pub(super) unsafe extern "C" fn rdma_destroy_qp(id: *mut cm::Id) {
    // SAFETY: the program's identifier, which gives its queue pair up.
    unsafe {
        let qp = std::mem::replace(&mut (*id).qp, null_mut());
        if !qp.is_null() {
            let _ = queue_pair::destroy(qp);
        }
        // Those of an XRC target's identifier belong to its shared receive queue.
        if (*id).qp_type != XRC_RECEIVE || (*id).srq.is_null() {
            destroy_cqs(id);
        }
    }
}

/// Sets the XRC domain and the completion queue of a new shared receive queue that is one of an XRC domain: those of
/// the program, or those of the identifier. Returns whether this has created the completion queue.
///
/// # Safety
/// All pointers are the program's, and the identifier has a device.
unsafe fn set_xrc_parts(visible: *mut cm::Id, init: &mut abi::SrqInitAttrEx) -> Result<bool> {
    if init.srq_type != shared_receive::XRC {
        return Ok(false);
    }
    // SAFETY: the caller's promise.
    unsafe {
        if init.comp_mask & srq::XRCD == 0 || init.xrcd.is_null() {
            init.xrcd = xrc_domain_of(id_of(visible)?)?;
            init.comp_mask |= srq::XRCD;
        }
        if init.comp_mask & srq::CQ != 0 && !init.cq.is_null() {
            return Ok(false);
        }
        let [_, receives] = cq_fields(visible);
        let is_new = receives.cq.read().is_null();
        if is_new {
            create_cq(visible, receives, init.attr.max_wr).inspect_err(|_| destroy_cq(receives))?;
        }
        init.cq = receives.cq.read();
        init.comp_mask |= srq::CQ;
        Ok(is_new)
    }
}

/// # Safety
/// All pointers are the program's.
unsafe fn create_shared(id: *mut cm::Id, init: &mut abi::SrqInitAttrEx) -> Result<()> {
    // SAFETY: the caller's promise, for all of the function.
    unsafe {
        id_of(id)?;
        // As in rdma-core, the type must be stated.
        if (*id).verbs.is_null() || !(*id).srq.is_null() || init.comp_mask & srq::TYPE == 0 {
            return Err(INVALID);
        }
        if init.comp_mask & srq::PD == 0 || init.pd.is_null() {
            init.comp_mask |= srq::PD;
            init.pd = (*id).pd;
        }
        if init.pd.is_null() || (*init.pd).context != (*id).verbs {
            return Err(INVALID);
        }
        let has_new_cq = set_xrc_parts(id, init)?;
        (*id).srq = shared_receive::create_extended(init).inspect_err(|_| {
            if has_new_cq {
                destroy_cq(cq_fields(id)[1]);
            }
        })?;
        if (*id).pd.is_null() {
            (*id).pd = init.pd;
        }
        Ok(())
    }
}

pub(super) unsafe extern "C" fn rdma_create_srq_ex(id: *mut cm::Id, init: *mut abi::SrqInitAttrEx) -> c_int {
    // SAFETY: the program's identifier and structure.
    zero_or_minus_one(unsafe { create_shared(id, &mut *init) })
}

pub(super) unsafe extern "C" fn rdma_create_srq(
    id: *mut cm::Id,
    pd: *mut abi::Pd,
    init: *mut abi::SrqInitAttr,
) -> c_int {
    let create = || {
        // SAFETY: the program's identifier, domain and structure.
        unsafe {
            let comp_mask = srq::TYPE | if pd.is_null() { 0 } else { srq::PD };
            let mut extended = abi::SrqInitAttrEx { comp_mask, pd, ..abi::SrqInitAttrEx::zeroed() };
            extended.srq_type = match (*id).qp_type {
                XRC_RECEIVE => shared_receive::XRC,
                _ => shared_receive::BASIC,
            };
            (extended.srq_context, extended.attr) = ((*init).srq_context, (*init).attr);
            create_shared(id, &mut extended)?;
            (*init).attr = extended.attr;
        }
        Ok(())
    };
    zero_or_minus_one(create())
}

pub(super) unsafe extern "C" fn rdma_destroy_srq(id: *mut cm::Id) {
    // SAFETY: the program's identifier, which gives its queue up.
    unsafe {
        let srq = std::mem::replace(&mut (*id).srq, null_mut());
        if !srq.is_null() {
            let _ = shared_receive::destroy(srq);
        }
        if (*id).qp.is_null() || (*id).qp_type == XRC_RECEIVE {
            destroy_cqs(id);
        }
    }
}
