//! The whole address space as one region.

use std::fmt;

use super::{
    AccessFlags, Error, ErrorKind, MemoryRegion, ProtectionDomain, RegionRange, RegisterOptions, RemoteMemory, Result,
    Rkey,
};
use crate::memory::Backing;

/// All memory of this process as one region (an implicit on-demand region: `ibv_reg_mr` of address 0 and length
/// `SIZE_MAX`). Requests may use any memory without registering it first, including memory allocated later.
///
/// Pages are looked up on access. A page that is not mapped, or not writable, fails the request and never raises a
/// signal, as for memory of [`ProtectionDomain::reg_mr_raw`].
///
/// Dropping the region deregisters it, and frees no memory.
#[doc(alias = "IBV_ACCESS_ON_DEMAND")]
pub struct ImplicitMemoryRegion {
    /// Has length 0 for its own methods, which are safe: only [`ImplicitMemoryRegion::slice`] gives access to the
    /// bytes.
    region: MemoryRegion,
}

impl ProtectionDomain {
    /// Registers all memory of this process, now and later, as one region; [`AccessFlags::ON_DEMAND`] is added to
    /// `access`. [`DeviceAttributes::odp_caps`](super::DeviceAttributes::odp_caps) reports whether the device supports
    /// it.
    ///
    /// With remote access flags, the region exposes everything to every peer that knows its key: all allocations, the
    /// stacks, the program and this library's own state. Memory windows, bound to slices of a region without remote
    /// access flags, give peers access to only what they need.
    ///
    /// # Safety
    /// Only remote access flags in `access` impose a requirement here; requests of this process refer to bytes by
    /// [`ImplicitMemoryRegion::slice`], which has its own. As long as the region exists, every request that uses its
    /// key as a remote key, from a peer or from a queue pair of this process, must refer only to bytes that meet the
    /// requirements of [`ProtectionDomain::reg_mr_raw`] while the request may access them, and that the program
    /// obtained from [`ImplicitMemoryRegion::remote`] or exposed
    /// ([`expose_provenance`](https://doc.rust-lang.org/std/primitive.pointer.html#method.expose_provenance)).
    ///
    /// # Errors
    /// As for [`ProtectionDomain::reg_mr`]; [`ErrorKind::Unsupported`] on a device of a provider outside this crate.
    ///
    /// ```
    /// use std::time::Duration;
    /// use rdma_verbs::verbs::{self, AccessFlags, SendRequest};
    ///
    /// # let context = verbs::open("soft:127.0.1.100")?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let qp = pd.create_qp(&cq, &cq)?;
    /// # qp.connect(&qp.connection_info()?)?; // to itself
    /// let inbox = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
    /// // SAFETY: no peer can reach it.
    /// let all = unsafe { pd.reg_mr_implicit(AccessFlags::LOCAL_WRITE)? };
    /// let mut message = *b"never registered";
    /// // SAFETY: `message` is not touched until the request that names it has completed.
    /// let piece = unsafe { all.slice(message.as_mut_ptr(), message.len())? };
    /// qp.post_send(&[SendRequest::write(piece, inbox.remote()).signaled()])?;
    /// cq.wait(Duration::from_secs(10))?.result()?;
    /// assert_eq!(inbox.to_vec(..16)?, message);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn reg_mr_implicit(&self, access: AccessFlags) -> Result<ImplicitMemoryRegion> {
        if !self.context().is_built_in() {
            let message = format!(
                "{} comes from a provider outside this crate, which may access memory when it likes; the whole address \
                 space needs a device that verbs::open, verbs::open_soft or Device::open opened",
                self.context()
            );
            return Err(Error::new("reg_mr", ErrorKind::Unsupported, message));
        }
        // SAFETY: as a remote key, the key names only what the caller promised. In this process the device's provider
        // is this crate's, so only the verbs tier posts the key, and it takes only ranges of regions: those of this
        // region come from `slice`, whose callers promise the same, and so do windows bound to them. The region's own
        // methods reach no bytes.
        let backing = unsafe { Backing::address_space() };
        let options = RegisterOptions::default().lower(access | AccessFlags::ON_DEMAND);
        Ok(ImplicitMemoryRegion { region: self.register(backing, &options)?.without_bytes() })
    }
}

impl ImplicitMemoryRegion {
    /// Returns the access flags.
    pub fn access(&self) -> AccessFlags {
        self.region.access()
    }

    /// Returns the protection domain that the region belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        self.region.protection_domain()
    }

    /// Returns the key that peers use for the region.
    pub fn rkey(&self) -> Rkey {
        self.region.rkey()
    }

    /// Returns what a peer needs to access `len` bytes from `addr`, and exposes their provenance.
    pub fn remote(&self, addr: *mut u8, len: usize) -> RemoteMemory {
        RemoteMemory::new(addr.expose_provenance() as u64, self.rkey(), len as u64)
    }

    /// Returns `len` bytes from `addr` as a range for requests of this process, for windows, and for advice. Mappings
    /// are checked only on access.
    ///
    /// # Safety
    /// Until every request that uses the range has completed, and every window bound to it is rebound or invalidated,
    /// the bytes must meet the requirements of [`ProtectionDomain::reg_mr_raw`]: others may read them at any time, and
    /// write them if the requests or windows do.
    ///
    /// # Errors
    /// The range extends past the end of the address space.
    #[allow(unsafe_code)]
    pub unsafe fn slice(&self, addr: *mut u8, len: usize) -> Result<RegionRange<'_>> {
        let first = addr.expose_provenance();
        if first.checked_add(len).is_none() {
            let message = format!("addr is {first:#x} and len is {len}; their sum must not exceed {:#x}", usize::MAX);
            return Err(Error::unsuitable("slice", "len", message));
        }
        Ok(self.region.range_unchecked(first, len))
    }

    /// Deregisters the region and keeps the object; see [`MemoryRegion::revoke`].
    ///
    /// # Errors
    /// Any provider error; the software transport never fails.
    pub fn revoke(&self) -> Result<()> {
        self.region.revoke()
    }

    /// Deregisters the region (`ibv_dereg_mr`): once it returns, nothing accesses memory through it.
    ///
    /// # Errors
    /// Any provider error; the software transport never fails.
    pub fn dereg(self) -> Result<()> {
        self.region.revoke()
    }
}

impl fmt::Debug for ImplicitMemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ImplicitMemoryRegion");
        debug.field("rkey", &self.rkey()).field("access", &self.access()).finish_non_exhaustive()
    }
}
