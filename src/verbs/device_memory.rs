//! Device memory.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use super::memory_region::resolve_in;
use super::{AccessFlags, Context, MemoryRegion, ProtectionDomain, Result};
use crate::provider;

/// Memory of the device itself (`ibv_dm`). The software transport uses host memory.
///
/// This host copies bytes in and out; requests and peers access the parts that are registered with
/// [`ProtectionDomain::reg_dm_mr`].
///
/// This is a handle: clones refer to the same memory. It is freed when the last handle and the last region of it are
/// dropped. (In the C API, freeing fails while regions exist. In Rust, a drop cannot fail.)
///
/// ```
/// use rdma_verbs::verbs::{self, AccessFlags};
///
/// let context = verbs::open("soft:127.0.1.102")?;
/// let pd = context.alloc_pd()?;
/// let dm = context.alloc_dm(8192)?;
/// dm.copy_in(4096, b"counters")?;
/// // Addresses in requests count from the part's first byte.
/// let mr = pd.reg_dm_mr(&dm, 4096.., AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)?;
/// assert_eq!((mr.remote().addr(), mr.len()), (0, 4096));
/// let mut bytes = [0u8; 8];
/// mr.read_at(0, &mut bytes)?;
/// assert_eq!(&bytes, b"counters");
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias("ibv_dm", "ibv_free_dm"))]
#[derive(Clone)]
pub struct DeviceMemory {
    context: Context,
    inner: Arc<dyn provider::DeviceMemory>,
}

/// Options for allocating device memory with [`Context::alloc_dm_with`].
#[doc(alias = "ibv_alloc_dm_attr")]
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing by themselves"]
pub struct DeviceMemoryOptions {
    log_align_req: u32,
}

impl DeviceMemoryOptions {
    /// Aligns the memory to 2^`log_align_req` bytes; 0 by default.
    pub fn log_align_req(mut self, log_align_req: u32) -> Self {
        self.log_align_req = log_align_req;
        self
    }
}

impl Context {
    /// Allocates zeroed device memory (`ibv_alloc_dm`).
    ///
    /// # Errors
    /// `len` is 0; [`ErrorKind::ResourceLimit`](super::ErrorKind::ResourceLimit) if less than `len` of the device's
    /// `max_dm_size` is left; [`ErrorKind::Unsupported`](super::ErrorKind::Unsupported) if the device has no device
    /// memory.
    ///
    /// See [`DeviceMemory`] for an example.
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_dm(&self, len: usize) -> Result<DeviceMemory> {
        self.alloc_dm_with(len, &DeviceMemoryOptions::default())
    }

    /// Allocates memory like [`Context::alloc_dm`], with options.
    ///
    /// # Errors
    /// As for [`Context::alloc_dm`]; also if the device does not support the alignment.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, DeviceMemoryOptions};
    ///
    /// let context = verbs::open("soft:127.0.1.103")?;
    /// let aligned = |log_align_req| DeviceMemoryOptions::default().log_align_req(log_align_req);
    /// assert_eq!(context.alloc_dm_with(100, &aligned(6))?.len(), 100);
    /// let error = context.alloc_dm_with(100, &aligned(40)).unwrap_err();
    /// assert_eq!(error.to_string(), "alloc_dm: log_align_req is 40; allowed are 0 to 12");
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn alloc_dm_with(&self, len: usize, options: &DeviceMemoryOptions) -> Result<DeviceMemory> {
        let init = provider::DeviceMemoryInit { length: len as u64, log_align_req: options.log_align_req };
        Ok(DeviceMemory { context: self.clone(), inner: self.inner().alloc_dm(&init)? })
    }
}

impl DeviceMemory {
    /// Returns the device that the memory belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.inner.length() as usize
    }

    /// Returns `false`: the memory has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes to the memory, starting at `offset` (`ibv_memcpy_to_dm`), in unspecified order.
    ///
    /// # Errors
    /// The range does not lie within it.
    ///
    /// ```
    /// use rdma_verbs::verbs;
    ///
    /// let dm = verbs::open("soft:127.0.1.104")?.alloc_dm(64)?;
    /// let error = dm.copy_in(60, b"hello").unwrap_err();
    /// assert_eq!(error.to_string(), "memcpy_to_dm: dm_offset is 60 and length 5; the device memory has 64 bytes");
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn copy_in(&self, offset: usize, data: &[u8]) -> Result<()> {
        self.inner.copy_in(offset as u64, data)
    }

    /// Copies bytes from the memory, starting at `offset` (`ibv_memcpy_from_dm`). A byte that is written concurrently
    /// has its old or its new value, independently of the others.
    ///
    /// # Errors
    /// The range does not lie within it.
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        self.inner.copy_out(offset as u64, out)
    }
}

impl ProtectionDomain {
    /// Registers part of the device memory (`ibv_reg_dm_mr`). Requests address its first byte as 0: the device adds
    /// [`AccessFlags::ZERO_BASED`] to `access`.
    ///
    /// An adapter's memory is not part of this process: only the methods of [`DeviceMemory`] can access it, not those
    /// of the region. The region keeps the memory alive. Parts may overlap, and may belong to different domains.
    /// [`MemoryRegion::dereg`] returns the part as a [`Memory`](super::Memory), to be dropped.
    ///
    /// # Errors
    /// As for [`ProtectionDomain::reg_mr`]; the range does not lie within the memory; `access` has
    /// [`AccessFlags::ON_DEMAND`] or [`AccessFlags::HUGETLB`]; the memory belongs to another device.
    ///
    /// See [`DeviceMemory`](super::DeviceMemory) for an example.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn reg_dm_mr(
        &self,
        memory: &DeviceMemory,
        range: impl RangeBounds<usize>,
        access: AccessFlags,
    ) -> Result<MemoryRegion> {
        let (offset, len) = resolve_in("reg_dm_mr", &range, memory.len(), "the device memory")?;
        let inner = self.inner().reg_dm_mr(&memory.inner, offset as u64, len as u64, access)?;
        Ok(MemoryRegion::new(self.clone(), inner))
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory").field("len", &self.len()).finish_non_exhaustive()
    }
}
