//! Thread domains and parent domains. Neither has an effect here: posting takes one uncontended lock in any case, and
//! this library allocates the queues. A parent domain is therefore an alias of its domain. Its allocators, which a
//! library need not use, are not called.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_verbs::provider::abi;

use crate::error::{INVALID, Result, UNSUPPORTED, number, pointer};
use crate::object::{Object, make, own, take};
use crate::protection_domain::{domain_of, parent_of};
use crate::shared::{Shared, shared_of};
use crate::usage::Users;

/// Bits of `ibv_parent_domain_init_attr_mask`: allocators, and the program's context for them.
const KNOWN: u32 = 3;

/// The state behind a thread domain.
pub(crate) struct ThreadDomain {
    shared: Arc<Shared>,
    users: Users,
}

impl Object for abi::Td {
    type Own = ThreadDomain;
}

pub(crate) unsafe extern "C" fn alloc_td(context: *mut abi::Context, init: *mut abi::TdInitAttr) -> *mut abi::Td {
    // SAFETY: the program's structure and context.
    let (init, shared) = unsafe { (&*init, shared_of(context)) };
    if init.comp_mask != 0 {
        return pointer(Err(UNSUPPORTED));
    }
    let visible = abi::Td { context };
    make(visible, ThreadDomain { shared: Arc::clone(shared), users: Users::default() })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut abi::Td) -> c_int {
    // SAFETY: the program's thread domain.
    let ThreadDomain { shared, users } = unsafe { own(td) };
    let free = shared.check_process("dealloc_td").and_then(|()| users.check_none());
    // SAFETY: the program gives it up, and nothing uses it.
    number(free.map(|()| drop(unsafe { take(td) })))
}

/// Creates the alias.
///
/// # Safety
/// All pointers are the program's.
unsafe fn alloc(context: *mut abi::Context, init: &abi::ParentDomainInitAttr) -> Result<*mut abi::Pd> {
    if init.comp_mask & !KNOWN != 0 {
        return Err(UNSUPPORTED);
    }
    // SAFETY: the caller's promise.
    let domain = unsafe { domain_of(init.pd)? };
    if domain.is_parent {
        return Err(INVALID);
    }
    let mut uses = Vec::new();
    if !init.td.is_null() {
        // SAFETY: the caller's promise.
        uses.push(unsafe { own(init.td) }.users.begin());
    }
    Ok(parent_of(domain, context, uses))
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut abi::Context,
    init: *mut abi::ParentDomainInitAttr,
) -> *mut abi::Pd {
    // SAFETY: the program's structure and the objects that it refers to.
    pointer(unsafe { alloc(context, &*init) })
}
