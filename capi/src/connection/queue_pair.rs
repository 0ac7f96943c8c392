//! Queue pairs and shared receive queues of identifiers.

use std::ffi::c_int;
use std::ptr::null_mut;

use rdma_verbs::provider::abi::{self, cm, create};

use super::bring_up;
use super::id::{DATAGRAM, id_of};
use super::pump::Section;
use crate::error::{INVALID, Result, zero_or_minus_one};
use crate::modify::store_state;
use crate::object::Zeroed;
use crate::queue_pair::queue_pair_of;
use crate::shared::shared_of;
use crate::{completion_channel, completion_queue, queue_pair, queue_pair_init, shared_receive};

/// Bits of `ibv_srq_init_attr_mask`.
const SRQ_PD: u32 = 1 << 1;

/// Creates a completion queue with a channel of its own. `rdma_get_send_comp` and its sibling rely on that, and on the
/// identifier as the queue's context.
///
/// # Safety
/// The identifier is the program's and has a device; so are both pointers.
unsafe fn create_cq(
    id: *mut cm::Id,
    entries: u32,
    channel: &mut *mut abi::CompChannel,
    cq: &mut *mut abi::Cq,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let context = (*id).verbs;
        *channel = completion_channel::create(shared_of(context), context)?;
        let init = completion_queue::Init {
            cqe: entries.max(1),
            cq_context: id.cast(),
            channel: *channel,
            comp_vector: 0,
            timestamps: false,
            uses: Vec::new(),
        };
        *cq = completion_queue::create(context, abi::CqEx::zeroed(), init)?.cast();
    }
    Ok(())
}

/// Destroys the completion queues that belong to an identifier.
///
/// # Safety
/// The identifier is the program's, and nothing uses the queues.
unsafe fn destroy_cqs(id: *mut cm::Id) {
    // SAFETY: the caller's promise; the objects were made by `create_cq`.
    unsafe {
        for (cq, channel) in [
            (&raw mut (*id).send_cq, &raw mut (*id).send_cq_channel),
            (&raw mut (*id).recv_cq, &raw mut (*id).recv_cq_channel),
        ] {
            let (cq, channel) = (cq.replace(null_mut()), channel.replace(null_mut()));
            if !cq.is_null() {
                let _ = completion_queue::destroy(cq);
            }
            if !channel.is_null() {
                let _ = completion_channel::destroy(channel);
            }
        }
    }
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
        if init.comp_mask & create::PD == 0 {
            init.comp_mask |= create::PD;
            init.pd = (*visible).pd;
        } else if init.pd.is_null() || (*init.pd).context != (*visible).verbs {
            return Err(INVALID);
        }
        if init.send_cq.is_null() {
            create_cq(visible, init.cap.max_send_wr, &mut (*visible).send_cq_channel, &mut (*visible).send_cq)?;
            init.send_cq = (*visible).send_cq;
        }
        if init.recv_cq.is_null() {
            create_cq(visible, init.cap.max_recv_wr, &mut (*visible).recv_cq_channel, &mut (*visible).recv_cq)?;
            init.recv_cq = (*visible).recv_cq;
        }
        if init.srq.is_null() {
            init.srq = (*visible).srq;
        }
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
    let created = {
        let _section = Section::begin();
        // SAFETY: the caller's promise.
        unsafe { create_queue_pair(visible, init) }
    };
    created.inspect_err(|_| {
        // SAFETY: the caller's promise; a queue pair that exists uses the queues, which are then not destroyed.
        unsafe {
            if id_of(visible).is_ok() && (*visible).qp.is_null() {
                destroy_cqs(visible);
            }
        }
    })
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
        destroy_cqs(id);
    }
}

/// # Safety
/// All pointers are the program's.
unsafe fn create_shared(id: *mut cm::Id, init: &mut abi::SrqInitAttrEx) -> Result<()> {
    // SAFETY: the caller's promise, for all of the function.
    unsafe {
        id_of(id)?;
        if (*id).verbs.is_null() || !(*id).srq.is_null() {
            return Err(INVALID);
        }
        if init.comp_mask & SRQ_PD == 0 {
            init.comp_mask |= SRQ_PD;
            init.pd = (*id).pd;
        } else if init.pd.is_null() || (*init.pd).context != (*id).verbs {
            return Err(INVALID);
        }
        let srq = shared_receive::create_extended(init)?;
        ((*id).srq, (*id).pd) = (srq, init.pd);
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
            let comp_mask = if pd.is_null() { 0 } else { SRQ_PD };
            let mut extended = abi::SrqInitAttrEx { comp_mask, pd, ..abi::SrqInitAttrEx::zeroed() };
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
    }
}
