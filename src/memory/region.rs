//! One registration: a backing, its addresses and access flags, and its keys.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::types::setters::{optional_setters, setters};
use crate::types::{AccessFlags, DomainId, Lkey, Rkey};

#[cfg(feature = "ibverbs")]
use super::RefusedBacking;
use super::raw::{self, Memory, Unusable};
use super::sync::AtomicU32;
use super::users::{Users, Using};
use super::{AccessError, Backing, RegisterError};

/// Access flags that a registration may request. Huge pages need no special treatment, so [`AccessFlags::HUGETLB`] is
/// accepted and ignored.
pub(super) const SUPPORTED: AccessFlags = AccessFlags::REMOTE
    .union(AccessFlags::LOCAL_WRITE)
    .union(AccessFlags::MEMORY_WINDOW_BIND)
    .union(AccessFlags::ZERO_BASED)
    .union(AccessFlags::HUGETLB)
    .union(AccessFlags::FLUSH)
    .union(AccessFlags::ON_DEMAND)
    .union(AccessFlags::RELAXED_ORDERING);

/// Bits 20 to 29 are optional (`IBV_ACCESS_OPTIONAL_RANGE`): a device ignores those that it does not support.
const OPTIONAL_BITS: u32 = 0x3ff0_0000;

/// Options of a registration. Setters have the names of the fields.
///
/// ```
/// use rdma_verbs::provider::RegionInit;
/// use rdma_verbs::types::AccessFlags;
///
/// let options = RegionInit::default().access(AccessFlags::REMOTE_READ).iova(0x10_0000);
/// assert_eq!((options.iova, options.invalidatable), (Some(0x10_0000), false));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RegionInit {
    /// Access flags for local and remote requests. The default, no flag, lets local requests read the region.
    pub access: AccessFlags,
    /// First address of the region in requests; `None`: its address in this process. With [`AccessFlags::ZERO_BASED`]
    /// it is 0, regardless of this field.
    pub iova: Option<u64>,
    /// Whether a peer's SEND with invalidate, or a local request, may revoke its key.
    pub invalidatable: bool,
}

impl RegionInit {
    setters! {
        access: AccessFlags,
    }

    optional_setters! {
        iova: u64,
    }

    /// Lets a peer's SEND with invalidate, or a local request, revoke the key.
    #[must_use]
    pub const fn invalidatable(mut self) -> Self {
        self.invalidatable = true;
        self
    }
}

/// Registered memory: its bytes, addresses, access flags and keys.
///
/// Methods take offsets from the first byte, independent of the addresses in requests. They work on any handle,
/// registered or not. Where they overlap with accesses of others, they see and leave old bytes, new bytes or a mixture.
pub struct Region {
    memory: Memory,
    iova: u64,
    access: AccessFlags,
    key: u32,
    domain: DomainId,
    invalidatable: bool,
    /// Number of windows bound to it, or `REVOKED`. One word holds both, so that a region with windows is never
    /// revoked.
    bound: AtomicU32,
    /// Accesses in progress, if its key can be revoked meanwhile.
    users: Users,
    /// Distinguishes consecutive registrations with the same key.
    serial: u64,
}

/// Marks an invalidated key. Not a valid count: there are never that many windows.
const REVOKED: u32 = u32::MAX;

impl Region {
    /// Creates a region from options that passed [`check`].
    pub(super) fn new(domain: DomainId, backing: Backing, checked: Checked, key: (u32, u64)) -> Self {
        Self::of(domain, Memory::new(backing), checked, key)
    }

    /// As [`Region::new`], for memory that another region holds as well.
    pub(super) fn of(domain: DomainId, memory: Memory, checked: Checked, (key, serial): (u32, u64)) -> Self {
        Self {
            memory,
            iova: checked.iova,
            access: checked.access,
            key,
            domain,
            invalidatable: checked.invalidatable,
            bound: AtomicU32::new(0),
            users: Users::new(),
            serial,
        }
    }

    /// Creates a region outside any table, for a device that resolves its own keys. It is checked like one in a table.
    #[cfg(feature = "ibverbs")]
    pub(crate) fn unlisted(
        domain: DomainId,
        backing: Backing,
        options: &RegionInit,
    ) -> Result<Arc<Self>, RefusedBacking> {
        match check(&backing, options) {
            Ok(checked) => Ok(Arc::new(Self::new(domain, backing, checked, (0, 0)))),
            Err(error) => Err(RefusedBacking { error, backing }),
        }
    }

    /// Creates an unlisted region of `length` bytes that this process cannot reach.
    #[cfg(feature = "ibverbs")]
    pub(crate) fn elsewhere(domain: DomainId, length: usize, options: &RegionInit) -> Result<Arc<Self>, RegisterError> {
        let backing = Backing::elsewhere(length);
        let checked = check_options(&backing, options)?;
        Ok(Arc::new(Self::new(domain, backing, checked, (0, 0))))
    }

    /// Creates another unlisted region over the same memory.
    #[cfg(feature = "ibverbs")]
    pub(crate) fn unlisted_copy(&self, domain: DomainId, options: &RegionInit) -> Result<Arc<Self>, RegisterError> {
        let checked = check(self.memory.backing(), options)?;
        Ok(Arc::new(Self::of(domain, self.memory.share(), checked, (0, 0))))
    }

    /// Number of bytes.
    pub fn len(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Whether it has no bytes, which only a region of device memory may have.
    pub fn is_empty(&self) -> bool {
        self.memory.len() == 0
    }

    /// First address of the region in requests.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Returns a pointer to the first byte in this process, as [`Backing::as_mut_ptr`].
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.memory.base()
    }

    /// Access flags, without the ignored hints.
    pub fn access(&self) -> AccessFlags {
        self.access
    }

    /// The key for local requests (IBTA 10.6.3.3).
    pub fn lkey(&self) -> Lkey {
        Lkey(self.key)
    }

    /// The key for peers: the same number as the local one.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.key)
    }

    /// The protection domain.
    pub fn domain(&self) -> DomainId {
        self.domain
    }

    /// Whether a peer's SEND with invalidate may revoke its key.
    pub fn is_invalidatable(&self) -> bool {
        self.invalidatable
    }

    /// Whether its key was not invalidated. Deregistration does not change this.
    pub fn is_valid(&self) -> bool {
        self.bound.load(Ordering::SeqCst) != REVOKED
    }

    /// Copies `out.len()` bytes out of the region, starting at `offset`, in unspecified order.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`], and [`AccessError::Fault`] for memory that others unmapped or truncated.
    #[inline]
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.memory.read(index(offset)?, out)
    }

    /// Copies `data` into the region, starting at `offset`: the body first, in unspecified order, the last byte last
    /// (see the module for the kernel's copies).
    ///
    /// # Errors
    /// As [`Region::read_at`]; [`AccessError::NoPermission`] for a file mapped read-only.
    #[inline]
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        self.memory.write(index(offset)?, data)
    }

    /// Replaces the word at `offset` with `new` if it equals `current`, atomically with respect to every other atomic
    /// access, including those of peers. Returns the previous value: the word was replaced if that is `current`.
    ///
    /// # Errors
    /// As [`Region::write_at`]; [`AccessError::Misaligned`] if the word's address in this process is not a multiple
    /// of 8.
    pub fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, AccessError> {
        self.memory.compare_exchange_u64(index(offset)?, current, new)
    }

    /// Adds to the word at `offset`, modulo 2^64, atomically as [`Region::compare_exchange_u64`]. Returns the previous
    /// value.
    ///
    /// # Errors
    /// As [`Region::compare_exchange_u64`].
    pub fn fetch_add_u64(&self, offset: u64, add: u64) -> Result<u64, AccessError> {
        self.memory.fetch_add_u64(index(offset)?, add)
    }

    /// Returns the memory of a deregistered region with its current contents.
    ///
    /// # Errors
    /// Returns the region while it is registered or another handle to it exists.
    pub fn into_backing(region: Arc<Region>) -> Result<Backing, Arc<Region>> {
        let region = Arc::try_unwrap(region)?;
        let Self { memory, iova, access, key, domain, invalidatable, bound, users, serial } = region;
        memory
            .into_owner()
            .map_err(|memory| Arc::new(Self { memory, iova, access, key, domain, invalidatable, bound, users, serial }))
    }

    pub(super) fn key(&self) -> u32 {
        self.key
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Number of memory windows bound to it.
    pub fn windows(&self) -> u32 {
        match self.bound.load(Ordering::SeqCst) {
            REVOKED => 0,
            windows => windows,
        }
    }

    /// Counts a bound window. Returns false if the key was revoked.
    #[must_use]
    pub(super) fn add_window(&self) -> bool {
        let one_more = |bound: u32| (bound != REVOKED).then_some(bound + 1);
        self.bound.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok()
    }

    pub(super) fn remove_window(&self) {
        self.bound.fetch_sub(1, Ordering::SeqCst);
    }

    /// Begins an access through the key. It is counted if the key may be revoked before it ends.
    #[inline]
    pub(super) fn enter(&self) -> Result<Option<Using<'_>>, AccessError> {
        if !self.invalidatable {
            return Ok(None);
        }
        let using = self.users.enter();
        if self.is_valid() { Ok(Some(using)) } else { Err(AccessError::UnknownKey) }
    }

    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Revokes the key, unless windows are bound to the region or the key is already revoked. When it returns, no shard
    /// reaches the memory through the key any more.
    pub(super) fn invalidate(&self) -> Result<(), AccessError> {
        match self.bound.compare_exchange(0, REVOKED, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => {
                self.users.wait();
                Ok(())
            }
            Err(REVOKED) => Err(AccessError::UnknownKey),
            Err(_) => Err(AccessError::NotInvalidatable),
        }
    }

    /// Returns the offset of `length` bytes at the request address `addr`, if all of them lie in the region.
    #[inline]
    pub(super) fn offset_of(&self, addr: u64, length: u64) -> Result<usize, AccessError> {
        offset_within(self.iova, self.len(), addr, length).ok_or(AccessError::OutOfBounds)
    }
}

macro_rules! word_access {
    ($($word:ty, $load:ident, $store:ident;)*) => {
        impl Region {
            $(
                /// Loads the aligned word at `offset`. Seeing a value implies seeing everything that its writer stored
                /// before, so a program may poll the last bytes of a message with it.
                ///
                /// # Errors
                /// As [`Region::read_at`]; [`AccessError::Misaligned`] if the word's address in this process is not a
                /// multiple of its size.
                pub fn $load(&self, offset: u64) -> Result<$word, AccessError> {
                    self.memory.$load(index(offset)?)
                }

                /// Stores the aligned word at `offset`, after everything that this thread stored before.
                ///
                /// # Errors
                /// As [`Region::write_at`]; [`AccessError::Misaligned`] if the word's address in this process is not a
                /// multiple of its size.
                pub fn $store(&self, offset: u64, value: $word) -> Result<(), AccessError> {
                    self.memory.$store(index(offset)?, value)
                }
            )*
        }
    };
}

word_access! {
    u8, load_acquire_u8, store_release_u8;
    u16, load_acquire_u16, store_release_u16;
    u32, load_acquire_u32, store_release_u32;
    u64, load_acquire_u64, store_release_u64;
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("key", &Rkey(self.key))
            .field("domain", &self.domain.0)
            .field("iova", &format_args!("{:#x}", self.iova))
            .field("len", &self.len())
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// The options of a registration that passed [`check`].
#[derive(Clone, Copy)]
pub(super) struct Checked {
    iova: u64,
    access: AccessFlags,
    invalidatable: bool,
}

/// Checks that `backing` may be registered with `options`.
pub(super) fn check(backing: &Backing, options: &RegionInit) -> Result<Checked, RegisterError> {
    let checked = check_options(backing, options)?;
    check_memory(backing, checked.access)?;
    Ok(checked)
}

/// As [`check`], without checking the memory itself.
fn check_options(backing: &Backing, options: &RegionInit) -> Result<Checked, RegisterError> {
    let access = check_access(options.access)?;
    let (address, length) = (backing.as_mut_ptr(), backing.len());
    // C programs also register 0 bytes of device memory, so such a region is allowed, although it has no use.
    if length == 0 && !backing.is_of_device() {
        return Err(RegisterError::Empty);
    }
    let iova = match options.iova {
        _ if access.contains(AccessFlags::ZERO_BASED) => 0,
        Some(iova) => iova,
        None => address.addr() as u64,
    };
    if iova.checked_add(length as u64).is_none() {
        return Err(RegisterError::AddressOverflow { iova, length: length as u64 });
    }
    if access.contains(AccessFlags::FLUSH_PERSISTENT) && !backing.can_persist() {
        return Err(RegisterError::NotPersistent);
    }
    Ok(Checked { iova, access, invalidatable: options.invalidatable })
}

fn check_access(given: AccessFlags) -> Result<AccessFlags, RegisterError> {
    let hints = AccessFlags::from_bits_retain(OPTIONAL_BITS).difference(SUPPORTED);
    let access = given.difference(hints);
    let unsupported = access.difference(SUPPORTED);
    if !unsupported.is_empty() {
        return Err(RegisterError::UnsupportedAccess { given, unsupported, allowed: SUPPORTED });
    }
    let changes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if access.intersects(changes) && !access.contains(AccessFlags::LOCAL_WRITE) {
        return Err(RegisterError::MissingLocalWrite { given });
    }
    Ok(access)
}

fn check_memory(backing: &Backing, access: AccessFlags) -> Result<(), RegisterError> {
    let write = access.contains(AccessFlags::LOCAL_WRITE);
    let (address, length) = (backing.as_mut_ptr().addr() as u64, backing.len() as u64);
    if write && !backing.is_writable() {
        return Err(RegisterError::NotWritable { address, length });
    }
    if !backing.can_fault() {
        return Ok(());
    }
    if backing.is_elsewhere() {
        return Err(RegisterError::NotMapped { address, length });
    }
    // The pages of an on-demand region may be absent: each access detects it.
    let is_on_demand = access.contains(AccessFlags::ON_DEMAND) && backing.may_be_absent();
    let length_now = if is_on_demand { 0 } else { backing.len() };
    raw::probe(backing.as_mut_ptr(), length_now, write).map_err(|unusable| match unusable {
        Unusable::NoCopy { errno } => RegisterError::NoFaultSafeCopy { errno },
        Unusable::NotMapped => RegisterError::NotMapped { address, length },
        Unusable::NotWritable => RegisterError::NotWritable { address, length },
    })
}

/// Converts an offset to an index; one that does not fit is out of bounds of any region.
fn index(offset: u64) -> Result<usize, AccessError> {
    usize::try_from(offset).map_err(|_| AccessError::OutOfBounds)
}

/// Returns the offset of `addr .. addr + length` in the region `iova .. iova + region_length`, if it lies inside. No
/// sum is formed that could overflow.
#[inline]
pub(super) fn offset_within(iova: u64, region_length: u64, addr: u64, length: u64) -> Option<usize> {
    let offset = addr.checked_sub(iova)?;
    let room = region_length.checked_sub(offset)?;
    if length > room {
        return None;
    }
    usize::try_from(offset).ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refusal(backing: &Backing, access: AccessFlags) -> Option<RegisterError> {
        check(backing, &RegionInit { access, ..Default::default() }).err()
    }

    #[test]
    fn flags_are_checked() {
        let backing = Backing::from_vec(vec![0; 8]);
        for access in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC, AccessFlags::REMOTE] {
            assert_eq!(refusal(&backing, access), Some(RegisterError::MissingLocalWrite { given: access }));
            assert_eq!(refusal(&backing, access | AccessFlags::LOCAL_WRITE), None);
        }
        assert_eq!(refusal(&backing, AccessFlags::REMOTE_READ), None);
        assert_eq!(refusal(&backing, AccessFlags::MEMORY_WINDOW_BIND | AccessFlags::RELAXED_ORDERING), None);
        for unsupported in [
            AccessFlags::from_bits_retain(1 << 10),
            AccessFlags::from_bits_retain(1 << 19),
            AccessFlags::from_bits_retain(1 << 31),
        ] {
            let given = unsupported | AccessFlags::LOCAL_WRITE;
            let error = refusal(&backing, given).unwrap();
            assert_eq!(error, RegisterError::UnsupportedAccess { given, unsupported, allowed: SUPPORTED });
        }
    }

    #[test]
    fn persistence_needs_a_file() {
        let access = AccessFlags::FLUSH_PERSISTENT | AccessFlags::LOCAL_WRITE;
        for backing in [Backing::from_vec(vec![0; 8]), Backing::anonymous(8).unwrap()] {
            assert_eq!(refusal(&backing, access), Some(RegisterError::NotPersistent));
            assert_eq!(refusal(&backing, AccessFlags::FLUSH_GLOBAL), None);
        }
    }

    #[test]
    fn unknown_hints_are_ignored() {
        let access = AccessFlags::from_bits_retain(OPTIONAL_BITS) | AccessFlags::REMOTE_READ;
        let kept = check_access(access).unwrap();
        assert_eq!(kept, AccessFlags::RELAXED_ORDERING | AccessFlags::REMOTE_READ);
    }

    #[test]
    fn error_texts_name_attribute_value_and_limit() {
        let backing = Backing::from_vec(vec![0; 8]);
        let unknown = AccessFlags::from_bits_retain(1 << 19);
        let text = refusal(&backing, unknown | AccessFlags::LOCAL_WRITE).unwrap().to_string();
        assert!(text.starts_with("access: unsupported flags AccessFlags(0x80000)"), "{text}");
        assert!(text.contains("LOCAL_WRITE | 0x80000") && text.contains("allowed:"), "{text}");
        let options = RegionInit { iova: Some(u64::MAX - 7), ..Default::default() };
        let error = check(&backing, &options).err().unwrap();
        assert_eq!(
            error.to_string(),
            "iova: 0xfffffffffffffff8 with length 8 given; their sum must not exceed 2^64 - 1"
        );
        assert_eq!(error.errno(), libc::EINVAL);
    }

    #[test]
    fn addresses_follow_the_options() {
        let backing = Backing::from_vec(vec![0; 8]);
        let iova = |iova, access| check(&backing, &RegionInit { iova, access, ..Default::default() }).unwrap().iova;
        assert_eq!(iova(None, AccessFlags::empty()), backing.as_mut_ptr().addr() as u64);
        assert_eq!(iova(Some(7), AccessFlags::empty()), 7);
        assert_eq!(iova(Some(u64::MAX - 8), AccessFlags::empty()), u64::MAX - 8);
        assert_eq!(iova(Some(7), AccessFlags::ZERO_BASED), 0);
        assert_eq!(refusal(&Backing::from_vec(Vec::new()), AccessFlags::empty()), Some(RegisterError::Empty));
    }

    /// Numbers near the points where sums overflow.
    fn edge() -> impl Strategy<Value = u64> {
        prop_oneof![
            any::<u64>(),
            0..64u64,
            (0..64u64).prop_map(|distance| u64::MAX - distance),
            (0..64u64).prop_map(|distance| (1 << 63) - 32 + distance),
            (0..64u64).prop_map(|distance| (1 << 32) - 32 + distance),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn bounds_agree_with_wide_arithmetic(iova in edge(), size in edge(), addr in edge(), length in edge()) {
            let size = size.min(u64::MAX - iova);
            let (start, end) = (u128::from(iova), u128::from(iova) + u128::from(size));
            let (first, past) = (u128::from(addr), u128::from(addr) + u128::from(length));
            let expected = (start <= first && past <= end).then(|| (first - start) as usize);
            prop_assert_eq!(offset_within(iova, size, addr, length), expected);
        }

        #[test]
        fn ranges_around_a_small_region_agree(iova in edge(), size in 1..32u64, shift in 0..40u64, length in 0..40u64) {
            let iova = iova.min(u64::MAX - size);
            let addr = iova.wrapping_add(shift).wrapping_sub(4);
            let (first, past) = (u128::from(addr), u128::from(addr) + u128::from(length));
            let inside = u128::from(iova) <= first && past <= u128::from(iova) + u128::from(size);
            prop_assert_eq!(offset_within(iova, size, addr, length).is_some(), inside);
        }
    }
}
