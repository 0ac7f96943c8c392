//! Memory windows: keys of their own to parts of regions, given and taken without the table's lock.
//!
//! A window has an index in the table, like a region. What it is bound to changes within the engine's passes, which
//! read the table: so it stands behind a lock of the window's own, for moments only. A binding names its region by key
//! and serial number and does not hold it. When the region goes, the window leads nowhere.

use std::fmt;
use std::sync::PoisonError;

use crate::types::{AccessFlags, Accessor, DomainId, Lkey, MemoryWindowType, Qpn, Rkey};

use super::key::index_of;
use super::region::{Region, offset_within};
use super::sync::Mutex;
use super::table::MemoryView;
use super::{AccessError, BindError};

/// Rights that only peers use; an access that needs one of them came with a remote key.
const PEERS: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::FLUSH);

/// A memory window, bound or not.
pub struct Window {
    kind: MemoryWindowType,
    domain: DomainId,
    state: Mutex<State>,
}

struct State {
    key: u32,
    binding: Option<Binding>,
}

/// What a window leads to.
#[derive(Clone, Copy)]
struct Binding {
    region: u32,
    serial: u64,
    /// First address, as the region knows it.
    addr: u64,
    /// First address, as peers know it.
    base: u64,
    length: u64,
    access: AccessFlags,
    /// Who may use it; `None`: every queue pair of the domain.
    queue_pair: Option<Qpn>,
}

/// What a window shall be bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowBind {
    /// The window's new key: its index, with a new tag.
    pub rkey: Rkey,
    /// The region.
    pub lkey: Lkey,
    /// First address, as the region knows it.
    pub addr: u64,
    /// Bytes; 0 unbinds a type 1 window.
    pub length: u64,
    /// What peers may do.
    pub access: AccessFlags,
}

impl Window {
    pub(super) fn new(domain: DomainId, kind: MemoryWindowType, key: u32) -> Self {
        Self { kind, domain, state: Mutex::new(State { key, binding: None }) }
    }

    /// Its kind.
    pub fn kind(&self) -> MemoryWindowType {
        self.kind
    }

    /// Its key: that of the last binding, or the one that it was allocated with.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.with(|state| state.key))
    }

    fn with<R>(&self, run: impl FnOnce(&mut State) -> R) -> R {
        run(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn binding_of(&self, key: u32) -> Option<Binding> {
        self.with(|state| if state.key == key { state.binding } else { None })
    }

    /// Takes the binding away for good. The region hears of it in [`Unbound::settle`].
    pub(super) fn unbind(&self) -> Unbound {
        Unbound(self.with(|state| state.binding.take()))
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, bound) = self.with(|state| (state.key, state.binding.is_some()));
        f.debug_struct("Window").field("kind", &self.kind).field("key", &Rkey(key)).field("bound", &bound).finish()
    }
}

/// A binding that ended.
#[must_use = "the region counts its windows"]
pub(super) struct Unbound(Option<Binding>);

impl Unbound {
    /// Key of the region that it led to.
    pub(super) fn region_key(&self) -> Option<u32> {
        self.0.map(|binding| binding.region)
    }

    /// Tells the region with that key, if it is still the same.
    pub(super) fn settle(self, region: Option<&Region>) {
        if let (Some(binding), Some(region)) = (self.0, region)
            && region.serial() == binding.serial
        {
            region.note_unbound();
        }
    }
}

impl MemoryView<'_> {
    /// Where an access through a window's key leads.
    #[cold]
    pub(super) fn resolve_window(
        &self,
        key: u32,
        accessor: Accessor,
        addr: u64,
        length: u64,
        need: AccessFlags,
    ) -> Result<(&Region, usize), AccessError> {
        // Scatter-gather entries cannot name windows.
        let window = self.window(key).filter(|_| need.intersects(PEERS)).ok_or(AccessError::UnknownKey)?;
        let binding = window.binding_of(key).ok_or(AccessError::UnknownKey)?;
        if window.domain != accessor.domain {
            return Err(AccessError::WrongDomain);
        }
        if binding.queue_pair.is_some_and(|queue_pair| queue_pair != accessor.queue_pair) {
            return Err(AccessError::WrongQueuePair);
        }
        if !binding.access.contains(need & PEERS) {
            return Err(AccessError::NoPermission);
        }
        let region = self.region_of(&binding).ok_or(AccessError::UnknownKey)?;
        let offset = offset_within(binding.base, binding.length, addr, length).ok_or(AccessError::OutOfBounds)?;
        // Binding found the whole window in the region, so this sum does not overflow.
        let offset = region.offset_of(binding.addr + offset as u64, length)?;
        Ok((region, offset))
    }

    /// The bytes that a key gives access to, as the region's or window's addresses name them.
    pub(super) fn extent(&self, key: u32) -> Option<(u64, u64)> {
        if let Some(region) = self.find(key) {
            return Some((region.iova(), region.len()));
        }
        let binding = self.window(key)?.binding_of(key)?;
        Some((binding.base, binding.length))
    }

    fn region_of(&self, binding: &Binding) -> Option<&Region> {
        self.find(binding.region).map(|region| &**region).filter(|region| region.serial() == binding.serial)
    }

    /// Binds a window for a queue pair: from now on its new key leads to the range, and its old one nowhere. The
    /// region's key must exist as long as the window shall lead anywhere.
    ///
    /// # Errors
    /// [`BindError`]; the window is as it was.
    pub fn bind_window(&self, accessor: impl Into<Accessor>, bind: &WindowBind) -> Result<(), BindError> {
        let accessor = accessor.into();
        let window = self.window(bind.rkey.0).filter(|window| window.domain == accessor.domain);
        let window = window.ok_or(BindError::UnknownWindow)?;
        let new = self.plan_binding(window, accessor, bind)?;
        let old = window.with(|state| {
            // A window whose region is gone counts as free.
            let is_bound = state.binding.is_some_and(|binding| self.region_of(&binding).is_some());
            if window.kind == MemoryWindowType::Type2 && is_bound {
                return Err(BindError::AlreadyBound);
            }
            state.key = bind.rkey.0;
            Ok(Unbound(std::mem::replace(&mut state.binding, new)))
        });
        match old {
            Ok(old) => self.settle(old),
            Err(error) => {
                self.settle(Unbound(new));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Checks the new binding, and counts it at its region. `None` unbinds.
    fn plan_binding(
        &self,
        window: &Window,
        accessor: Accessor,
        bind: &WindowBind,
    ) -> Result<Option<Binding>, BindError> {
        let is_type_2 = window.kind == MemoryWindowType::Type2;
        let based = if is_type_2 { AccessFlags::ZERO_BASED } else { AccessFlags::empty() };
        if !(PEERS | based).contains(bind.access) || (is_type_2 && bind.length == 0) {
            return Err(BindError::Arguments);
        }
        if bind.length == 0 {
            return Ok(None);
        }
        let region = self.find(bind.lkey.0).ok_or(BindError::Region(AccessError::UnknownKey))?;
        if region.domain() != accessor.domain {
            return Err(BindError::Region(AccessError::WrongDomain));
        }
        region.offset_of(bind.addr, bind.length).map_err(BindError::Region)?;
        if !region.access().contains(needed_of_region(bind.access)) {
            return Err(BindError::NotBindable);
        }
        // Counted first: an invalidation of the region either sees the window or is seen here.
        region.note_bound();
        let binding = Binding {
            region: region.key(),
            serial: region.serial(),
            addr: bind.addr,
            base: if bind.access.contains(AccessFlags::ZERO_BASED) { 0 } else { bind.addr },
            length: bind.length,
            access: bind.access,
            queue_pair: is_type_2.then_some(accessor.queue_pair),
        };
        if !region.is_valid() {
            region.note_unbound();
            return Err(BindError::Region(AccessError::UnknownKey));
        }
        Ok(Some(binding))
    }

    /// Ends the binding of a type 2 window by its key.
    pub(super) fn invalidate_window(&self, key: u32, accessor: Accessor) -> Result<(), AccessError> {
        let window = self.window(key).ok_or(AccessError::UnknownKey)?;
        if window.domain != accessor.domain {
            return Err(AccessError::WrongDomain);
        }
        if window.kind == MemoryWindowType::Type1 {
            return Err(AccessError::NotInvalidatable);
        }
        let ended = window.with(|state| {
            let binding = state.binding.filter(|_| state.key == key).ok_or(AccessError::UnknownKey)?;
            if binding.queue_pair.is_some_and(|queue_pair| queue_pair != accessor.queue_pair) {
                return Err(AccessError::WrongQueuePair);
            }
            Ok(Unbound(state.binding.take()))
        })?;
        self.settle(ended);
        Ok(())
    }

    fn settle(&self, ended: Unbound) {
        let region = ended.region_key().and_then(|key| self.registered(index_of(key)));
        ended.settle(region.map(|region| &**region));
    }
}

/// What a region must have been registered with for a window of these rights.
fn needed_of_region(access: AccessFlags) -> AccessFlags {
    let mut needed = AccessFlags::MEMORY_WINDOW_BIND | access & AccessFlags::FLUSH;
    if access.intersects(AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC) {
        needed |= AccessFlags::LOCAL_WRITE;
    }
    needed
}
