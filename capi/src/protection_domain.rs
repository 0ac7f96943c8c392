//! Protection domains.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_verbs::provider::{self, abi};

use crate::error::{INVALID, Result, number, pointer};
use crate::object::{Object, Zeroed, make, own, take};
use crate::shared::{Shared, shared_of};
use crate::usage::{Use, Users};
use crate::version::exported;

/// The state behind a protection domain.
pub(crate) struct ProtectionDomain {
    pub(crate) shared: Arc<Shared>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) users: Users,
    /// Whether it is a parent domain: the alias of another one.
    pub(crate) is_parent: bool,
    /// Whether this handle was imported: it may not deallocate the domain.
    is_imported: bool,
    _uses: Vec<Use>,
}

impl Object for abi::Pd {
    type Own = ProtectionDomain;
}

/// The state that an imported domain shares with the original.
pub(crate) struct Domain {
    pub(crate) inner: Arc<dyn provider::ProtectionDomain>,
}

/// Returns the state behind a domain that the program passes.
///
/// # Safety
/// `pd` is null or the program's.
pub(crate) unsafe fn domain_of<'a>(pd: *mut abi::Pd) -> Result<&'a ProtectionDomain> {
    if pd.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { own(pd) })
}

/// Creates the domain that the program sees.
fn visible(
    shared: &Arc<Shared>,
    context: *mut abi::Context,
    domain: Arc<Domain>,
    handle: u32,
    is_imported: bool,
) -> *mut abi::Pd {
    let mut visible = abi::Pd::zeroed();
    (visible.context, visible.handle) = (context, handle);
    let users = Users::default();
    make(
        visible,
        ProtectionDomain {
            shared: Arc::clone(shared),
            domain,
            users,
            is_parent: false,
            is_imported,
            _uses: Vec::new(),
        },
    )
}

/// Creates an alias of a domain. Objects created in the alias are created in the domain.
pub(crate) fn parent_of(pd: &ProtectionDomain, context: *mut abi::Context, mut uses: Vec<Use>) -> *mut abi::Pd {
    let mut visible = abi::Pd::zeroed();
    (visible.context, visible.handle) = (context, pd.shared.next_handle());
    uses.push(pd.users.begin());
    make(
        visible,
        ProtectionDomain {
            shared: Arc::clone(&pd.shared),
            domain: Arc::clone(&pd.domain),
            users: Users::default(),
            is_parent: true,
            is_imported: false,
            _uses: uses,
        },
    )
}

/// Allocates a domain.
pub(crate) fn alloc(shared: &Arc<Shared>, context: *mut abi::Context) -> Result<*mut abi::Pd> {
    let domain = Arc::new(Domain { inner: shared.device.alloc_pd()? });
    let handle = shared.next_handle();
    let offered: std::sync::Weak<Domain> = Arc::downgrade(&domain);
    shared.offer(handle, offered);
    Ok(visible(shared, context, domain, handle, false))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut abi::Context) -> *mut abi::Pd {
    // SAFETY: the program's context.
    pointer(alloc(unsafe { shared_of(context) }, context))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut abi::Pd) -> c_int {
    // SAFETY: the program's domain; only this library uses the field `handle`.
    let (domain, handle) = unsafe { (own(pd), (*pd).handle) };
    let end = || {
        domain.shared.check_process("dealloc_pd")?;
        domain.users.check_none()?;
        if !domain.is_imported {
            domain.shared.withdraw(handle);
        }
        // SAFETY: the program gives it up, and nothing uses it.
        drop(unsafe { take(pd) });
        Ok(())
    };
    number(end())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_pd(context: *mut abi::Context, handle: u32) -> *mut abi::Pd {
    // SAFETY: the program's context.
    let shared = unsafe { shared_of(context) };
    pointer(shared.import(handle).map(|domain| visible(shared, context, domain, handle, true)))
}

/// Releases an imported domain; the original stays.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_pd(pd: *mut abi::Pd) {
    // SAFETY: the program gives it up.
    drop(unsafe { take(pd) });
}

exported! {
    "IBVERBS_1.1": ibv_alloc_pd ibv_dealloc_pd;
    "IBVERBS_1.10": ibv_import_pd ibv_unimport_pd;
}
