//! Endpoints: identifiers that are made in one step.

use std::ffi::c_int;
use std::ptr::null_mut;

use rdma_verbs::provider::PortSpace;
use rdma_verbs::provider::abi::{self, cm};

use super::address::read;
use super::bind::{bind, rdma_resolve_addr, rdma_resolve_route};
use super::event::{acknowledge, event_type, wait};
use super::id::{Endpoint, Id, destroy, id_of};
use super::pump::Section;
use super::queue_pair::{create_classic, rdma_destroy_qp, rdma_destroy_srq};
use crate::error::{Errno, INVALID, Result, last_errno, zero_or_minus_one};

/// `RAI_PASSIVE`.
pub(super) const PASSIVE: c_int = 1;
/// Time to resolve an address or a route, in milliseconds.
const RESOLVE: c_int = 2000;
/// Longest data in front of that of `rdma_connect`: that of a request.
const CONNECT_BYTES: usize = 56;

/// Returns the error of a call that has returned -1.
fn called(result: c_int) -> Result<()> {
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// # Safety
/// All pointers are the program's.
unsafe fn prepare(id: *mut cm::Id, info: &cm::AddrInfo, pd: *mut abi::Pd, init: *mut abi::QpInitAttr) -> Result<()> {
    // SAFETY: the caller's promise, for all of the function.
    unsafe {
        let qp_type = info.ai_qp_type as u32;
        if info.ai_flags & PASSIVE != 0 {
            let _section = Section::begin();
            bind(id, read(info.ai_src_addr)?)?;
            if !pd.is_null() {
                (*id).pd = pd;
            }
            let init = init.as_ref().map(|init| Endpoint(abi::QpInitAttr { qp_type, ..*init }));
            id_of(id)?.inner().endpoint = init;
            return Ok(());
        }
        called(rdma_resolve_addr(id, info.ai_src_addr, info.ai_dst_addr, RESOLVE))?;
        called(rdma_resolve_route(id, RESOLVE))?;
        if !init.is_null() {
            (*init).qp_type = qp_type;
            create_classic(id, pd, &mut *init)?;
        }
        if info.ai_connect_len > 0 && !info.ai_connect.is_null() {
            let data = std::slice::from_raw_parts(info.ai_connect.cast::<u8>(), info.ai_connect_len);
            id_of(id)?.inner().connect_data = data.to_vec();
        }
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut cm::Id,
    info: *mut cm::AddrInfo,
    pd: *mut abi::Pd,
    init: *mut abi::QpInitAttr,
) -> c_int {
    let create = || {
        // SAFETY: the program's structures and objects.
        unsafe {
            let info = &*info;
            let space = PortSpace::ALL.iter().copied().find(|known| *known as c_int == info.ai_port_space);
            let space = space.ok_or(INVALID)?;
            if info.ai_connect_len > CONNECT_BYTES {
                tracing::info!(
                    target: "rdma_verbs::c_library",
                    given = info.ai_connect_len, limit = CONNECT_BYTES, "ai_connect_len is too long"
                );
                return Err(INVALID);
            }
            let made = Id::create(null_mut(), null_mut(), space, info.ai_qp_type as u32)?;
            if let Err(error) = prepare(made, info, pd, init) {
                rdma_destroy_ep(made);
                return Err(error);
            }
            id.write(made);
        }
        Ok(())
    };
    zero_or_minus_one(create())
}

pub(super) unsafe extern "C" fn rdma_destroy_ep(id: *mut cm::Id) {
    // SAFETY: the program gives the identifier up, with its objects.
    unsafe {
        if !(*id).qp.is_null() {
            rdma_destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            rdma_destroy_srq(id);
        }
        let _ = destroy(id);
    }
}

/// Waits for a peer's request at a synchronous listener, and creates its queue pair.
///
/// # Safety
/// The listener is the program's.
unsafe fn request(listener: *mut cm::Id) -> Result<*mut cm::Id> {
    // SAFETY: the caller's promise, for all of the function; the event's objects are the program's from now on.
    unsafe {
        let state = id_of(listener)?;
        if !state.is_synchronous() {
            return Err(INVALID);
        }
        let before = std::mem::replace(&mut (*listener).event, null_mut());
        if !before.is_null() {
            acknowledge(before);
        }
        let event = wait((*listener).channel)?;
        if (*event).event != event_type::CONNECT_REQUEST || (*event).status != 0 {
            let status = (*event).status;
            (*listener).event = event;
            return Err(if status == 0 { INVALID } else { Errno(status.saturating_abs()) });
        }
        let id = (*event).id;
        let endpoint = state.inner().endpoint;
        if let Some(Endpoint(mut init)) = endpoint
            && let Err(error) = create_classic(id, (*listener).pd, &mut init)
        {
            (*listener).event = event;
            destroy(id)?;
            return Err(error);
        }
        (*id).event = event;
        Ok(id)
    }
}

pub(super) unsafe extern "C" fn rdma_get_request(listener: *mut cm::Id, id: *mut *mut cm::Id) -> c_int {
    // SAFETY: the program's listener, and its pointer for the result.
    zero_or_minus_one(unsafe { request(listener).map(|found| id.write(found)) })
}
