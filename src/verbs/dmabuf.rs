//! Memory behind a file descriptor.

use std::os::fd::AsFd;

use super::{AccessFlags, Error, ErrorKind, MemoryRegion, ProtectionDomain, RegisterOptions, Result};
use crate::provider::DmaBufInit;

impl ProtectionDomain {
    /// Registers memory behind a file descriptor (`ibv_reg_dmabuf_mr`): `len` bytes of a dma-buf from `offset`.
    ///
    /// Adapters access a dma-buf without a mapping: the region's own methods cannot access it, and requests address its
    /// bytes by their offsets in the dma-buf. On other devices, requests use the mapped addresses.
    /// [`ProtectionDomain::reg_dmabuf_mr_with`] changes both.
    ///
    /// The software transport maps it with `mmap` (writable if `access` has [`AccessFlags::LOCAL_WRITE`]) and lets the
    /// kernel make all copies. It therefore accepts anything that can be mapped this way and consists of ordinary
    /// pages, including memfds and files; memory of other devices, such as graphics cards, is refused. The descriptor
    /// may be closed afterwards: the mapping belongs to the region, and ends with it or with the
    /// [`Memory`](super::Memory) that [`MemoryRegion::dereg`] returns. If the memory behind it disappears (for example,
    /// a file is truncated), requests fail as for [`Memory::file`](super::Memory::file).
    ///
    /// # Errors
    /// As for [`ProtectionDomain::reg_mr`]; the range does not lie within the descriptor; [`ErrorKind::Unsupported`] if
    /// it cannot be mapped, or does not consist of ordinary pages; [`ErrorKind::PermissionDenied`] if it was not opened
    /// with the permissions that `access` needs.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, AccessFlags, ErrorKind, RegisterOptions};
    ///
    /// let pd = verbs::open("soft:127.0.1.105")?.alloc_pd()?;
    /// # let path = std::env::temp_dir().join(format!("rdma-verbs-dmabuf-{}", std::process::id()));
    /// # std::fs::write(&path, [7u8; 8192])?;
    /// # let descriptor = std::fs::File::open(&path)?;
    /// # std::fs::remove_file(path)?;
    /// let mr = pd.reg_dmabuf_mr(&descriptor, 4096, 4096, AccessFlags::REMOTE_READ)?;
    /// assert_eq!(mr.to_vec(..2)?, [7, 7]);
    /// let options = RegisterOptions::default().iova(0x1000);
    /// let mr = pd.reg_dmabuf_mr_with(&descriptor, 4096, 4096, AccessFlags::REMOTE_READ, &options)?;
    /// assert_eq!(mr.iova(), 0x1000);
    ///
    /// let (pipe, _) = std::io::pipe()?;
    /// let error = pd.reg_dmabuf_mr(&pipe, 0, 4096, AccessFlags::REMOTE_READ).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Unsupported);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn reg_dmabuf_mr(&self, fd: impl AsFd, offset: u64, len: usize, access: AccessFlags) -> Result<MemoryRegion> {
        self.reg_dmabuf_mr_with(fd, offset, len, access, &RegisterOptions::default())
    }

    /// Registers memory behind a file descriptor like [`ProtectionDomain::reg_dmabuf_mr`], with options: the address of
    /// its first byte.
    ///
    /// # Errors
    /// As for [`ProtectionDomain::reg_dmabuf_mr`]; also if the address plus the length exceeds 2^64;
    /// [`ErrorKind::Unsupported`] if an invalidatable key is requested.
    pub fn reg_dmabuf_mr_with(
        &self,
        fd: impl AsFd,
        offset: u64,
        len: usize,
        access: AccessFlags,
        options: &RegisterOptions,
    ) -> Result<MemoryRegion> {
        let options = options.lower(access);
        if options.invalidatable {
            let message = "the key of memory behind a descriptor cannot be invalidatable";
            return Err(Error::new("reg_dmabuf_mr", ErrorKind::Unsupported, message));
        }
        let init = DmaBufInit { fd: fd.as_fd(), offset, length: len as u64, iova: options.iova, access };
        Ok(MemoryRegion::new(self.clone(), self.inner().reg_dmabuf_mr(&init)?))
    }
}
