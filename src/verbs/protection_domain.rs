//! Protection domains, and the registration of memory with them.

use std::fmt;
use std::sync::Arc;

use super::{AccessFlags, Context, Error, Memory, MemoryRegion, MemoryWindow, RefusedMemory, RegisterOptions, Result};
use crate::memory::{self, Backing};
use crate::provider::{self, RefusedBacking};
use crate::types::{DomainId, MemoryWindowType};

/// A protection domain (`ibv_pd`). A queue pair accesses only regions of its own domain, both for local requests and
/// for those of the peer.
///
/// This is a handle: clones refer to the same domain. It is deallocated when the last handle and the last object
/// created from it are dropped.
#[doc(alias("ibv_pd", "ibv_dealloc_pd"))]
#[derive(Clone)]
pub struct ProtectionDomain {
    context: Context,
    inner: Arc<dyn provider::ProtectionDomain>,
}

impl ProtectionDomain {
    pub(super) fn new(context: Context, inner: Arc<dyn provider::ProtectionDomain>) -> Self {
        Self { context, inner }
    }

    /// Returns the device that the domain belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Registers memory (`ibv_reg_mr`): a moved-in `Vec<u8>` or `Box<[u8]>`, or any [`Memory`].
    ///
    /// The memory keeps its contents. [`MemoryRegion::dereg`] returns it; dropping the region instead deregisters and
    /// frees it. Requests address its bytes by their host addresses; [`RegisterOptions::iova`] changes that.
    ///
    /// `access` specifies which accesses are allowed; local requests may always read. `REMOTE_WRITE` and
    /// `REMOTE_ATOMIC` require `LOCAL_WRITE`.
    ///
    /// On failure, the error returns the memory unchanged, and converts to an [`Error`].
    ///
    /// # Errors
    /// `memory` is empty or longer than the device's `max_mr_size`; `access` is contradictory or not supported by the
    /// device; [`ErrorKind::ResourceLimit`](super::ErrorKind::ResourceLimit) at the device's `max_mr`.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, AccessFlags};
    ///
    /// let pd = verbs::open("soft:127.0.1.10")?.alloc_pd()?;
    /// let mr = pd.reg_mr(vec![7u8; 100], AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)?;
    /// assert_eq!(mr.len(), 100);
    /// let bytes = mr.dereg()?.into_vec().expect("a Vec went in");
    /// assert_eq!(bytes, [7; 100]);
    ///
    /// // REMOTE_WRITE without LOCAL_WRITE is refused.
    /// let refused = pd.reg_mr(bytes, AccessFlags::REMOTE_WRITE).unwrap_err();
    /// let mr = pd.reg_mr(refused.memory, AccessFlags::REMOTE_READ)?;
    /// assert_eq!(mr.to_vec(..2)?, [7, 7]);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg_mr(&self, memory: impl Into<Memory>, access: AccessFlags) -> Result<MemoryRegion, RefusedMemory> {
        self.reg_mr_with(memory, access, &RegisterOptions::default())
    }

    /// Registers memory like [`ProtectionDomain::reg_mr`], with options: the address of its first byte
    /// (`ibv_reg_mr_iova`), and whether the key may be invalidated.
    ///
    /// # Errors
    /// As for [`ProtectionDomain::reg_mr`]; also if the address plus the length exceeds 2^64.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, AccessFlags, RegisterOptions};
    ///
    /// let pd = verbs::open("soft:127.0.1.15")?.alloc_pd()?;
    /// let options = RegisterOptions::default().iova(0).invalidatable();
    /// let mr = pd.reg_mr_with(vec![0u8; 4096], AccessFlags::REMOTE_READ, &options)?;
    /// assert_eq!(mr.remote().addr(), 0);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias("ibv_reg_mr_iova", "ibv_reg_mr_iova2"))]
    pub fn reg_mr_with(
        &self,
        memory: impl Into<Memory>,
        access: AccessFlags,
        options: &RegisterOptions,
    ) -> Result<MemoryRegion, RefusedMemory> {
        let backing = memory.into().into_registrable("reg_mr")?;
        self.register(backing, &options.lower(access))
            .map_err(|RefusedBacking { error, backing }| RefusedMemory { error, memory: Memory::from_backing(backing) })
    }

    /// Allocates a memory window (`ibv_alloc_mw`): a key that can be bound to part of a region, and invalidated again,
    /// without registering anything. See [`MemoryWindow`] for an example.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceLimit`](super::ErrorKind::ResourceLimit) at the device's `max_mw`,
    /// [`ErrorKind::Unsupported`](super::ErrorKind::Unsupported) if it has none.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, kind: MemoryWindowType) -> Result<MemoryWindow> {
        Ok(MemoryWindow::new(self.clone(), self.inner.alloc_mw(kind)?))
    }

    /// Allocates `len` zeroed bytes, page-aligned, and registers them.
    ///
    /// # Errors
    /// As for [`ProtectionDomain::reg_mr`]; also if the system is out of memory.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, AccessFlags};
    ///
    /// let pd = verbs::open("soft:127.0.1.12")?.alloc_pd()?;
    /// let mr = pd.alloc_mr(1 << 20, AccessFlags::LOCAL_WRITE)?;
    /// let mut first = [1u8; 8];
    /// mr.read_at(0, &mut first)?;
    /// assert_eq!(first, [0; 8]);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn alloc_mr(&self, len: usize, access: AccessFlags) -> Result<MemoryRegion> {
        Ok(self.reg_mr(Memory::anonymous(len)?, access)?)
    }

    /// Registers memory by address; the caller keeps ownership. Requests address its bytes by their host addresses;
    /// [`ProtectionDomain::reg_mr_raw_with`] changes that.
    ///
    /// All copies between packets and such a region tolerate the memory being unmapped: a local request then completes
    /// with [`CompletionStatus::LocalProtectionError`](super::CompletionStatus::LocalProtectionError) and the cause
    /// [`Cause::LocalMemoryFault`](super::Cause::LocalMemoryFault), and a peer's request fails with a remote error.
    ///
    /// # Safety
    /// As long as the region exists, that is until [`MemoryRegion::dereg`] returns or the region is dropped, the bytes
    /// `addr .. addr + len` must be memory of this process that Rust's rules allow others to write and to read at any
    /// time: while the device, a peer or the region's own methods may write there, no `&[u8]` or `&mut [u8]` of them
    /// may exist; while these may read there, no `&mut [u8]` may exist. The region's own methods may write regardless
    /// of its access flags, and [`MemoryRegion::rereg`] may widen the flags. If the bytes are unmapped, nothing else
    /// may be mapped there.
    ///
    /// # Errors
    /// As for [`ProtectionDomain::reg_mr`].
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, AccessFlags};
    ///
    /// let mut storage = [0u64; 64];
    /// let pd = verbs::open("soft:127.0.1.13")?.alloc_pd()?;
    /// // SAFETY: `storage` outlives the region and is not touched while the region exists.
    /// let mr = unsafe { pd.reg_mr_raw(storage.as_mut_ptr().cast(), 512, AccessFlags::LOCAL_WRITE)? };
    /// mr.write_at(0, &[1])?;
    /// // The promise ends here: registering the range again needs a new one.
    /// assert!(pd.reg_mr(mr.dereg()?, AccessFlags::LOCAL_WRITE).is_err());
    /// assert_eq!(storage[0].to_ne_bytes()[0], 1);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn reg_mr_raw(&self, addr: *mut u8, len: usize, access: AccessFlags) -> Result<MemoryRegion> {
        // SAFETY: the caller promises the same.
        unsafe { self.reg_mr_raw_with(addr, len, access, &RegisterOptions::default()) }
    }

    /// Registers memory by address like [`ProtectionDomain::reg_mr_raw`], with options.
    ///
    /// # Safety
    /// As for [`ProtectionDomain::reg_mr_raw`].
    ///
    /// # Errors
    /// As for [`ProtectionDomain::reg_mr_with`].
    #[allow(unsafe_code)]
    pub unsafe fn reg_mr_raw_with(
        &self,
        addr: *mut u8,
        len: usize,
        access: AccessFlags,
        options: &RegisterOptions,
    ) -> Result<MemoryRegion> {
        // SAFETY: the caller promises what `Backing::raw` requires: the range stays this process's to write until the
        // region, which owns the backing, is gone. The memory that `dereg` returns is not registered again without a
        // new promise (`Memory::into_registrable`).
        let backing = unsafe { Backing::raw(addr, len) };
        Ok(self.register(backing, &options.lower(access))?)
    }

    pub(super) fn register(
        &self,
        backing: Backing,
        options: &memory::RegionInit,
    ) -> Result<MemoryRegion, RefusedBacking> {
        let access = options.access;
        let needs_local_write = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        if access.intersects(needs_local_write) && !access.contains(AccessFlags::LOCAL_WRITE) {
            let message = format!("access is {access:?}; REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE");
            let error = Error::unsuitable("reg_mr", "access", message);
            return Err(RefusedBacking { error, backing });
        }
        Ok(MemoryRegion::new(self.clone(), self.inner.reg_mr_with(backing, options)?))
    }

    pub(super) fn id(&self) -> DomainId {
        self.inner.id()
    }

    pub(super) fn inner(&self) -> &Arc<dyn provider::ProtectionDomain> {
        &self.inner
    }

    /// Returns whether both are handles of one domain.
    pub(super) fn is_same(&self, other: &ProtectionDomain) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ProtectionDomain");
        debug.field("id", &self.inner.id().0).field("context", &self.context.name()).finish()
    }
}
