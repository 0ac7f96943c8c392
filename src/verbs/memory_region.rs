//! Registered memory, and ranges of it.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{AccessFlags, Error, ErrorKind, Lkey, Memory, ProtectionDomain, RemoteMemory, Result, Rkey};
use crate::memory::{AccessError, Region};
use crate::provider;
use crate::types::Sge;

/// Registered memory (`ibv_mr`): the device and peers may access it as its access flags allow.
///
/// Others may change the bytes at any time, so they are never exposed as a slice. Copies ([`MemoryRegion::read_at`],
/// [`MemoryRegion::write_at`]) read or write byte by byte in unspecified order. Use the atomics where ordering matters:
/// a `load_acquire` that sees the value of a `store_release` also sees everything written before that store. A peer's
/// message is placed in ascending address order, its last bytes last, so a program may also wait for the last aligned
/// word of a WRITE with `load_acquire`. In raw ranges and mapped files the word itself is one store only after
/// [`recover_from_faults`](super::recover_from_faults), or if the peer uses ATOMIC WRITE.
///
/// Dropping a region deregisters it and frees the memory. Once that returns, nothing accesses the memory; requests that
/// still refer to it complete with a local protection error, and memory windows bound to it are invalidated. (In the C
/// API, deregistration fails while windows are bound. In Rust, a drop cannot fail.)
///
/// ```
/// use rdma_verbs::verbs::{self, AccessFlags};
///
/// let pd = verbs::open("soft:127.0.1.30")?.alloc_pd()?;
/// let mr = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE)?;
/// mr.write_at(100, b"hello")?;
/// let mut bytes = [0u8; 5];
/// mr.read_at(100, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "ibv_mr")]
pub struct MemoryRegion {
    registration: Registration,
    region: Arc<Region>,
    domain: ProtectionDomain,
    iova: u64,
    len: usize,
    lkey: Lkey,
    access: AccessFlags,
    revoked: AtomicBool,
}

/// The provider's object. Dropping it deregisters the region, even if [`MemoryRegion`] is taken apart.
struct Registration(Arc<dyn provider::MemoryRegion>);

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(error) = self.0.revoke() {
            tracing::warn!(target: "rdma_verbs::memory", %error, "a dropped memory region could not be deregistered");
        }
    }
}

impl MemoryRegion {
    pub(super) fn new(domain: ProtectionDomain, inner: Arc<dyn provider::MemoryRegion>) -> Self {
        let region = Arc::clone(inner.region());
        Self {
            iova: region.iova(),
            len: region.len() as usize,
            lkey: inner.lkey(),
            access: region.access(),
            revoked: AtomicBool::new(false),
            registration: Registration(inner),
            region,
            domain,
        }
    }

    /// Returns the region with length 0, so that its own methods reach no bytes.
    pub(super) fn without_bytes(mut self) -> Self {
        self.len = 0;
        self
    }

    /// Returns the bytes; out of bounds if its own methods must not reach them.
    #[inline]
    fn bytes(&self) -> Result<&Region, AccessError> {
        if self.len > 0 { Ok(&self.region) } else { Err(AccessError::OutOfBounds) }
    }

    /// Returns a range of a region whose own methods reach no bytes. The bounds are not checked; the caller guarantees
    /// them.
    pub(super) fn range_unchecked(&self, offset: usize, len: usize) -> RegionRange<'_> {
        RegionRange { region: self, offset, len }
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the access flags.
    pub fn access(&self) -> AccessFlags {
        self.access
    }

    /// Returns the protection domain that the region belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Returns the address that requests use for the first byte.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Returns the key that local requests use for the region. [`RegionRange`] carries it; it matters only when reading
    /// a capture.
    pub fn lkey(&self) -> Lkey {
        self.lkey
    }

    /// Returns the key that peers use for the region.
    pub fn rkey(&self) -> Rkey {
        self.registration.0.rkey()
    }

    /// Returns what a peer needs to access the whole region: address, key and length. Send it to the peer over any
    /// channel.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, AccessFlags};
    ///
    /// let pd = verbs::open("soft:127.0.1.31")?.alloc_pd()?;
    /// let mr = pd.alloc_mr(4096, AccessFlags::REMOTE_READ)?;
    /// let last_page_half = mr.remote().slice(2048..4096)?;
    /// assert_eq!(last_page_half.addr(), mr.iova() + 2048);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory::new(self.iova, self.rkey(), self.len as u64)
    }

    /// Returns part of the region for a request. `range` counts bytes from the region's start; `..` is the whole
    /// region.
    ///
    /// # Errors
    /// The range does not lie within the region.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, AccessFlags};
    ///
    /// let mr = verbs::open("soft:127.0.1.32")?.alloc_pd()?.alloc_mr(4096, AccessFlags::LOCAL_WRITE)?;
    /// assert_eq!(mr.slice(4000..)?.len(), 96);
    /// let error = mr.slice(4000..5000).unwrap_err();
    /// assert_eq!(error.to_string(), "slice: range is 4000..5000; the region has 4096 bytes");
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<RegionRange<'_>> {
        let (offset, len) = resolve("slice", &range, self.len)?;
        Ok(RegionRange { region: self, offset, len })
    }

    /// Copies bytes out of the region, starting at `offset`.
    ///
    /// A byte that is written concurrently has its old or its new value, independently of the others.
    ///
    /// # Errors
    /// The range does not lie within the region; or the memory behind the region is gone (raw and file memory only).
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let result = self.bytes().and_then(|bytes| bytes.read_at(offset as u64, out));
        result.map_err(|error| self.access_error("read_at", offset, out.len(), error))
    }

    /// Copies bytes into the region, starting at `offset`. The region's access flags restrict the device and peers, not
    /// this method.
    ///
    /// # Errors
    /// The range does not lie within the region; or the memory behind the region is gone (raw and file memory only).
    pub fn write_at(&self, offset: usize, data: &[u8]) -> Result<()> {
        let result = self.bytes().and_then(|bytes| bytes.write_at(offset as u64, data));
        result.map_err(|error| self.access_error("write_at", offset, data.len(), error))
    }

    /// Copies a range of the region into a new `Vec`.
    ///
    /// # Errors
    /// As for [`MemoryRegion::read_at`].
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, AccessFlags};
    ///
    /// let mr = verbs::open("soft:127.0.1.33")?.alloc_pd()?.reg_mr(vec![1, 2, 3, 4], AccessFlags::LOCAL_WRITE)?;
    /// assert_eq!(mr.to_vec(1..3)?, [2, 3]);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Result<Vec<u8>> {
        let (offset, len) = resolve("to_vec", &range, self.len)?;
        let mut bytes = vec![0; len];
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Adds to the aligned 8-byte word at `offset` (host byte order, modulo 2^64) and returns the previous value, with
    /// acquire and release ordering. Also atomic with respect to peers' atomics on devices whose `atomic_cap` is
    /// global.
    ///
    /// # Errors
    /// As for [`MemoryRegion::load_acquire_u64`].
    pub fn fetch_add_u64(&self, offset: usize, add: u64) -> Result<u64> {
        let result = self.bytes().and_then(|bytes| bytes.fetch_add_u64(offset as u64, add));
        result.map_err(|error| self.access_error("fetch_add_u64", offset, 8, error))
    }

    /// Replaces the aligned 8-byte word at `offset` (host byte order) with `new` if it equals `current`. Returns the
    /// previous value; the word was replaced if that equals `current`. Atomic like [`MemoryRegion::fetch_add_u64`].
    ///
    /// # Errors
    /// As for [`MemoryRegion::load_acquire_u64`].
    pub fn compare_exchange_u64(&self, offset: usize, current: u64, new: u64) -> Result<u64> {
        let result = self.bytes().and_then(|bytes| bytes.compare_exchange_u64(offset as u64, current, new));
        result.map_err(|error| self.access_error("compare_exchange_u64", offset, 8, error))
    }

    /// Deregisters the region and keeps the object: the keys are invalidated, but local copies still work.
    ///
    /// Once it returns, neither the device nor a peer accesses the memory. Requests that still refer to it complete
    /// with a local protection error, later ones are refused. Use it for regions that several threads share; otherwise
    /// use [`MemoryRegion::dereg`]. Revoking again does nothing.
    ///
    /// # Errors
    /// Any provider error; the software transport never fails.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, AccessFlags, ReceiveRequest};
    ///
    /// let context = verbs::open("soft:127.0.1.34")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(4)?);
    /// let qp = pd.create_qp(&cq, &cq)?;
    /// qp.init()?;
    /// let mr = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE)?;
    /// mr.revoke()?;
    /// let error = qp.post_recv(&[ReceiveRequest::new(&mr)]).unwrap_err();
    /// assert!(error.to_string().contains("deregistered"));
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn revoke(&self) -> Result<()> {
        self.registration.0.revoke()?;
        self.revoked.store(true, Ordering::Release);
        Ok(())
    }

    /// Deregisters the region (`ibv_dereg_mr`) and returns the memory.
    ///
    /// Waits only for the device's in-progress pass, never for requests: those that still refer to the region complete
    /// with a local protection error.
    ///
    /// # Errors
    /// Any provider error; the memory is then freed as soon as that is safe. The software transport never fails.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn dereg(self) -> Result<Memory> {
        let region = Arc::clone(&self.region);
        self.registration.0.revoke()?;
        drop(self);
        Region::into_backing(region).map(Memory::from_backing).map_err(|_| {
            Error::new("dereg_mr", ErrorKind::Busy, "the region is deregistered, but its memory is still shared")
        })
    }

    /// Returns the address of the first byte in this process. Code that dereferences it must follow the rules of
    /// [`crate::memory`].
    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.region.as_mut_ptr()
    }

    pub(super) fn inner(&self) -> &Arc<dyn provider::MemoryRegion> {
        &self.registration.0
    }

    /// Returns the memory of a region whose keys are invalid, if nothing else holds it.
    pub(super) fn into_memory(self) -> Option<Memory> {
        let region = Arc::clone(&self.region);
        drop(self);
        Region::into_backing(region).ok().map(Memory::from_backing)
    }

    /// Returns whether its keys are invalid: the region was deregistered here, or its key invalidated.
    pub(super) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire) || !self.region.is_valid()
    }

    fn access_error(&self, verb: &'static str, offset: usize, len: usize, error: AccessError) -> Error {
        let message = match error {
            AccessError::OutOfBounds => {
                format!("{len} bytes at offset {offset} requested; the region has {} bytes", self.len)
            }
            AccessError::Misaligned => {
                format!("offset {offset} is not aligned in memory for a word of {len} bytes")
            }
            AccessError::Fault => format!("the memory behind the region is gone ({len} bytes at offset {offset})"),
            other => format!("{other} ({len} bytes at offset {offset})"),
        };
        let kind = if error == AccessError::Fault { ErrorKind::System } else { ErrorKind::InvalidArgument };
        Error::new(verb, kind, message)
    }
}

macro_rules! ordered_access {
    ($($load:ident $store:ident $word:ty, $bytes:literal, $address:literal;)*) => {
        impl MemoryRegion {
            $(
                #[doc = concat!("Reads the aligned ", $bytes, "-byte word at `offset`, in host byte order.")]
                ///
                /// Acquire ordering: everything that the word's writer wrote before it is visible afterwards, whether
                /// the writer is a peer's WRITE or a local `store_release`.
                ///
                /// # Errors
                /// The word does not lie within the region or is not aligned in memory; or the memory behind the
                /// region is gone (raw and file memory only).
                ///
                /// ```
                /// use rdma_verbs::verbs::{self, AccessFlags};
                ///
                #[doc = concat!("let pd = verbs::open(\"soft:127.0.1.", $address, "\")?.alloc_pd()?;")]
                /// let mr = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE)?;
                #[doc = concat!("mr.", stringify!($store), "(8, 7)?;")]
                #[doc = concat!("assert_eq!(mr.", stringify!($load), "(8)?, 7);")]
                /// # Ok::<(), verbs::Error>(())
                /// ```
                pub fn $load(&self, offset: usize) -> Result<$word> {
                    let result = self.bytes().and_then(|bytes| bytes.$load(offset as u64));
                    result.map_err(|error| self.access_error(stringify!($load), offset, size_of::<$word>(), error))
                }

                #[doc = concat!("Writes the aligned ", $bytes, "-byte word at `offset`, in host byte order.")]
                ///
                /// Release ordering: a READ or a `load_acquire` that sees the word also sees everything written before
                /// it.
                ///
                /// # Errors
                #[doc = concat!("As [`MemoryRegion::", stringify!($load), "`].")]
                pub fn $store(&self, offset: usize, value: $word) -> Result<()> {
                    let result = self.bytes().and_then(|bytes| bytes.$store(offset as u64, value));
                    result.map_err(|error| self.access_error(stringify!($store), offset, size_of::<$word>(), error))
                }
            )*
        }
    };
}

ordered_access! {
    load_acquire_u64 store_release_u64 u64, "8", "35";
    load_acquire_u32 store_release_u32 u32, "4", "36";
    load_acquire_u8 store_release_u8 u8, "1", "37";
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("iova", &format_args!("{:#x}", self.iova))
            .field("len", &self.len)
            .field("lkey", &self.lkey)
            .field("rkey", &self.rkey())
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// Part of a region, for use in requests. [`MemoryRegion::slice`] checks its bounds, and the borrow keeps the region
/// alive. [`ImplicitMemoryRegion::slice`](super::ImplicitMemoryRegion::slice) also creates one; its caller guarantees
/// the bytes.
///
/// ```
/// use rdma_verbs::verbs::{self, AccessFlags};
///
/// let mr = verbs::open("soft:127.0.1.38")?.alloc_pd()?.alloc_mr(4096, AccessFlags::LOCAL_WRITE)?;
/// let header = mr.slice(0..64)?;
/// assert_eq!((header.offset(), header.len()), (0, 64));
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias("ibv_sge", "ibv_wr_set_sge"))]
#[derive(Clone, Copy)]
pub struct RegionRange<'a> {
    region: &'a MemoryRegion,
    offset: usize,
    len: usize,
}

impl<'a> RegionRange<'a> {
    /// Returns the region.
    pub fn region(&self) -> &'a MemoryRegion {
        self.region
    }

    /// Returns the offset from the region's start, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the first address, counted from the region's `iova`, and the length.
    pub(super) fn extent(&self) -> (u64, u64) {
        (self.region.iova.wrapping_add(self.offset as u64), self.len as u64)
    }

    /// Returns the scatter-gather entry, or `None` if its length does not fit 32 bits.
    pub(super) fn to_sge(self) -> Option<Sge> {
        let length = u32::try_from(self.len).ok()?;
        // The region ends below 2^64, so this is exact; the wrap is for an empty range at the very end.
        let addr = self.region.iova.wrapping_add(self.offset as u64);
        Some(Sge { addr, length, lkey: self.region.lkey })
    }
}

/// Covers the whole region.
impl<'a> From<&'a MemoryRegion> for RegionRange<'a> {
    fn from(region: &'a MemoryRegion) -> Self {
        Self { region, offset: 0, len: region.len }
    }
}

impl fmt::Debug for RegionRange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.offset + self.len;
        f.debug_struct("RegionRange").field("lkey", &self.region.lkey).field("range", &(self.offset..end)).finish()
    }
}

/// Returns start and length of a range within a region of `len` bytes.
#[inline]
pub(super) fn resolve(verb: &'static str, range: &impl RangeBounds<usize>, len: usize) -> Result<(usize, usize)> {
    resolve_in(verb, range, len, "the region")
}

/// Returns start and length of a range within the `len` bytes of `what`.
#[inline]
pub(super) fn resolve_in(
    verb: &'static str,
    range: &impl RangeBounds<usize>,
    len: usize,
    what: &str,
) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok((start, end - start)),
        bounds => Err(out_of_range(verb, bounds.into(), len, what)),
    }
}

#[cold]
fn out_of_range(verb: &'static str, bounds: [Option<usize>; 2], len: usize, what: &str) -> Error {
    let [start, end] = bounds.map(|bound| bound.map_or("2^64".into(), |bound| bound.to_string()));
    let message = format!("range is {start}..{end}; {what} has {len} bytes");
    Error::unsuitable(verb, "range", message)
}
