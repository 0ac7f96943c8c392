//! Memory windows: separate keys to parts of regions, bound and unbound without the table's write lock.
//!
//! A window has an index in the table, like a region. Its binding changes during the engine's passes, which only read
//! the table, so it has a lock of its own, held briefly. A binding names its region by key and serial number and does
//! not hold it. Once the region is deregistered, accesses through the window fail.

use std::fmt;
use std::sync::PoisonError;

use crate::types::{AccessFlags, Accessor, DomainId, Lkey, MemoryWindowType, Qpn, Rkey};

use super::key::index_of;
use super::region::{Region, offset_within};
use super::sync::Mutex;
use super::table::{Found, MemoryView};
use super::users::Users;
use super::{AccessError, BindError};

/// Access flags that only peers need; an access that needs one of them uses a remote key.
const PEERS: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::FLUSH);

/// A memory window, bound or not.
pub struct Window {
    kind: MemoryWindowType,
    domain: DomainId,
    state: Mutex<State>,
    /// Accesses in progress through a window of type 1. Those of type 2 belong to a queue pair, and so to one shard.
    users: Users,
}

struct State {
    key: u32,
    binding: Option<Binding>,
}

/// The range that a window is bound to.
#[derive(Clone, Copy)]
struct Binding {
    region: u32,
    serial: u64,
    /// First address, in the region's addresses.
    addr: u64,
    /// First address in requests of peers.
    base: u64,
    length: u64,
    access: AccessFlags,
    /// The queue pair that may use it; `None`: every queue pair of the domain.
    queue_pair: Option<Qpn>,
}

/// A request to bind a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowBind {
    /// The window's new key: its index, with a new tag.
    pub rkey: Rkey,
    /// The region.
    pub lkey: Lkey,
    /// First address, in the region's addresses.
    pub addr: u64,
    /// Length in bytes; 0 unbinds a type 1 window.
    pub length: u64,
    /// Access flags for peers.
    pub access: AccessFlags,
}

impl Window {
    pub(super) fn new(domain: DomainId, kind: MemoryWindowType, key: u32) -> Self {
        Self { kind, domain, state: Mutex::new(State { key, binding: None }), users: Users::new() }
    }

    /// Its type.
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

    /// Removes the binding. [`Unbound::notify_region`] reports its end to the region.
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
    /// Key of the region that it named.
    pub(super) fn region_key(&self) -> Option<u32> {
        self.0.map(|binding| binding.region)
    }

    /// The queue pair that it belonged to, if any.
    pub(super) fn owner(&self) -> Option<Qpn> {
        self.0.and_then(|binding| binding.queue_pair)
    }

    /// Reports the end of the binding to `region`, which has that key now, unless it is a later registration.
    pub(super) fn notify_region(self, region: Option<&Region>) {
        if let (Some(binding), Some(region)) = (self.0, region)
            && region.serial() == binding.serial
        {
            region.remove_window();
        }
    }
}

impl MemoryView<'_> {
    /// Resolves an access through a window's key.
    #[cold]
    pub(super) fn resolve_window(
        &self,
        key: u32,
        accessor: Accessor,
        addr: u64,
        length: u64,
        need: AccessFlags,
    ) -> Result<Found<'_>, AccessError> {
        // Scatter-gather entries cannot name windows.
        let window = self.window(key).filter(|_| need.intersects(PEERS)).ok_or(AccessError::UnknownKey)?;
        let using = (window.kind == MemoryWindowType::Type1).then(|| window.users.enter());
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
        // Binding checked that the whole window lies in the region, so this sum does not overflow.
        let offset = region.offset_of(binding.addr + offset as u64, length)?;
        Ok(Found { region, offset, _using: using })
    }

    /// Returns the first address and the length of the range behind a key, in the region's or window's addresses.
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

    /// Binds a window for a queue pair: its new key becomes valid for the range, and its old key invalid. Accesses
    /// through the window fail once the region's key is invalid.
    ///
    /// # Errors
    /// [`BindError`]; the window is unchanged.
    pub fn bind_window(&self, accessor: impl Into<Accessor>, bind: &WindowBind) -> Result<(), BindError> {
        let accessor = accessor.into();
        let window = self.window(bind.rkey.0).filter(|window| window.domain == accessor.domain);
        let window = window.ok_or(BindError::UnknownWindow)?;
        let new = self.plan_binding(window, accessor, bind)?;
        let old = window.with(|state| {
            // A window whose region is gone counts as unbound.
            let is_bound = state.binding.is_some_and(|binding| self.region_of(&binding).is_some());
            if window.kind == MemoryWindowType::Type2 && is_bound {
                return Err(BindError::AlreadyBound);
            }
            state.key = bind.rkey.0;
            Ok(Unbound(std::mem::replace(&mut state.binding, new)))
        });
        let old = old.inspect_err(|_| self.notify_region(Unbound(new)))?;
        window.users.wait();
        self.end_binding(old, bind.rkey.0);
        if let Some(owner) = new.and_then(|binding| binding.queue_pair) {
            self.owners().insert(owner, index_of(bind.rkey.0));
        }
        Ok(())
    }

    /// Checks the new binding (IBTA C10-72 to C10-75; only type 2 may be zero-based: o10-36.2.2), and counts it at its
    /// region. `None` unbinds.
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
        if !region.access().contains(needed_region_access(bind.access)) {
            return Err(BindError::NotBindable);
        }
        if !region.add_window() {
            return Err(BindError::Region(AccessError::UnknownKey));
        }
        Ok(Some(Binding {
            region: region.key(),
            serial: region.serial(),
            addr: bind.addr,
            base: if bind.access.contains(AccessFlags::ZERO_BASED) { 0 } else { bind.addr },
            length: bind.length,
            access: bind.access,
            queue_pair: is_type_2.then_some(accessor.queue_pair),
        }))
    }

    /// Ends the binding of a type 2 window by its key; windows of type 1 are not invalidated (IBTA o10-37.2.26).
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
        self.end_binding(ended, key);
        Ok(())
    }

    /// Ends the binding of the window with this index, if it belongs to this queue pair.
    pub(super) fn end_window_of(&self, queue_pair: Qpn, index: u32) {
        let Some(window) = self.window(index << 8) else { return };
        let is_its = |binding: &mut Binding| binding.queue_pair == Some(queue_pair);
        self.notify_region(Unbound(window.with(|state| state.binding.take_if(is_its))));
    }

    /// Reports an ended binding of the window with this key to its region and its owner.
    fn end_binding(&self, ended: Unbound, key: u32) {
        if let Some(owner) = ended.owner() {
            self.owners().remove(owner, index_of(key));
        }
        self.notify_region(ended);
    }

    fn notify_region(&self, ended: Unbound) {
        let region = ended.region_key().and_then(|key| self.registered(index_of(key)));
        ended.notify_region(region.map(|region| &**region));
    }
}

/// Returns the access flags that a region needs for a window with these flags (IBTA C10-73 and C10-74).
fn needed_region_access(access: AccessFlags) -> AccessFlags {
    let mut needed = AccessFlags::MEMORY_WINDOW_BIND | access & AccessFlags::FLUSH;
    if access.intersects(AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC) {
        needed |= AccessFlags::LOCAL_WRITE;
    }
    needed
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::{Backing, RegionTable, RegisterError};

    const DOMAIN: DomainId = DomainId(1);
    const OWNER: Accessor = Accessor { domain: DOMAIN, queue_pair: Qpn::new(0x11) };

    fn region(table: &RegionTable) -> Arc<Region> {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND;
        table.register(DOMAIN, Backing::from_vec(vec![0; 64]), Some(0x1000), access).unwrap()
    }

    fn whole(window: &Window, region: &Region) -> WindowBind {
        let (lkey, access) = (region.lkey(), AccessFlags::REMOTE_WRITE);
        WindowBind { rkey: window.rkey(), lkey, addr: 0x1000, length: 64, access }
    }

    #[test]
    fn bounds_are_those_of_the_region() {
        let table = RegionTable::new(10);
        let (region, window) =
            (region(&table), table.alloc_window(DOMAIN, MemoryWindowType::Type1, 1).expect("room for one"));
        let bind = whole(&window, &region);
        let view = table.read();
        for (addr, length) in [(0xfff, 8), (0x1000, 65), (0x1040, 1), (0x1001, u64::MAX), (u64::MAX, 1)] {
            let beyond = WindowBind { addr, length, ..bind };
            assert_eq!(view.bind_window(OWNER, &beyond), Err(BindError::Region(AccessError::OutOfBounds)));
        }
        assert_eq!(region.windows(), 0);
        assert_eq!(view.bind_window(OWNER, &bind), Ok(()));
        assert_eq!(view.bind_window(OWNER, &bind), Ok(()), "type 1 may be bound again");
        assert_eq!(region.windows(), 1);
        let need = AccessFlags::REMOTE_WRITE;
        assert_eq!(view.check(bind.rkey.0, DOMAIN, 0x1000, 64, need), Ok(()));
        assert_eq!(view.check(bind.rkey.0, DOMAIN, 0x1000, 65, need), Err(AccessError::OutOfBounds));
        let local = AccessFlags::LOCAL_WRITE;
        assert_eq!(view.check(bind.rkey.0, DOMAIN, 0x1000, 8, local), Err(AccessError::UnknownKey));
    }

    #[test]
    fn region_counts_its_windows() {
        let table = RegionTable::new(10);
        let region = region(&table);
        let windows: Vec<_> =
            (0..3).map(|_| table.alloc_window(DOMAIN, MemoryWindowType::Type2, 3).expect("room")).collect();
        let error = table.alloc_window(DOMAIN, MemoryWindowType::Type2, 3).err();
        assert_eq!(error, Some(RegisterError::TooManyWindows { limit: 3 }));
        for window in &windows {
            assert_eq!(table.read().bind_window(OWNER, &whole(window, &region)), Ok(()));
        }
        assert_eq!(table.deregister_unbound(&region), Err(RegisterError::Bound { windows: 3 }));
        assert_eq!(table.read().invalidate(windows[0].rkey().0, OWNER), Ok(()));
        assert_eq!(table.read().invalidate(windows[1].rkey().0, DOMAIN), Err(AccessError::WrongQueuePair));
        assert!(table.dealloc_window(&windows[1]) && !table.dealloc_window(&windows[1]));
        assert_eq!(region.windows(), 1);
        // Deregistration without a check: the last window becomes invalid, and may be bound to another region.
        assert!(table.deregister(&region));
        let key = windows[2].rkey().0;
        let found = table.read().check(key, OWNER, 0x1000, 8, AccessFlags::REMOTE_WRITE);
        assert_eq!(found, Err(AccessError::UnknownKey));
        let other = self::region(&table);
        assert_eq!(table.read().bind_window(OWNER, &whole(&windows[2], &other)), Ok(()));
        assert_eq!((region.windows(), other.windows()), (1, 1));
    }

    #[test]
    fn a_region_with_windows_is_not_invalidated() {
        let table = RegionTable::new(10);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND;
        let options = crate::memory::RegionInit { access, invalidatable: true, iova: Some(0x1000) };
        let region = table.register_with(DOMAIN, Backing::from_vec(vec![0; 64]), &options).unwrap();
        let window = table.alloc_window(DOMAIN, MemoryWindowType::Type2, 1).unwrap();
        let view = table.read();
        assert_eq!(view.bind_window(OWNER, &whole(&window, &region)), Ok(()));
        assert_eq!(view.invalidate(region.rkey().0, OWNER), Err(AccessError::NotInvalidatable));
        assert!(region.is_valid());
        assert_eq!(view.invalidate(window.rkey().0, OWNER), Ok(()));
        assert_eq!(view.invalidate(region.rkey().0, OWNER), Ok(()));
        let dead = BindError::Region(AccessError::UnknownKey);
        assert_eq!(view.bind_window(OWNER, &whole(&window, &region)), Err(dead));
        assert_eq!(region.windows(), 0);
    }
}
