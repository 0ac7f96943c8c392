//! The whole address space as one region.

use std::fmt;

use super::{
    AccessFlags, Error, ErrorKind, MemoryRegion, ProtectionDomain, RegionRange, RegisterOptions, RemoteMemory, Result,
    Rkey,
};
use crate::memory::Backing;

/// All memory of this process as one region (an implicit on-demand region: `ibv_reg_mr` of address 0 and length
/// `SIZE_MAX`). Requests name any memory without registering it first, memory that is allocated later included.
///
/// Pages are looked up when they are accessed. One that is not there, or must not be written, fails the request and
/// never raises a signal: as for memory of [`ProtectionDomain::reg_mr_raw`].
///
/// Dropping it deregisters it, and frees nothing.
pub struct ImplicitMemoryRegion {
    /// Of no length towards its own methods, which are safe: [`ImplicitMemoryRegion::slice`] is the way to the bytes.
    region: MemoryRegion,
}

impl ProtectionDomain {
    /// Registers all memory of this process, now and later, as one region; [`AccessFlags::ON_DEMAND`] is added to
    /// `access`. The device says in [`DeviceAttributes::odp_caps`](super::DeviceAttributes::odp_caps) whether it can.
    ///
    /// With remote rights the region opens everything to whoever knows its key: each allocation, the stacks, the
    /// program and this library's own state. Memory windows, bound to slices of a region without remote rights, give
    /// peers just what they need.
    ///
    /// # Safety
    /// Only remote rights in `access` ask for a promise; requests of this process name bytes by
    /// [`ImplicitMemoryRegion::slice`], which has its own. The promise is that as long as the region exists, every
    /// request that names its key from afar, of a peer or of a queue pair of this process, names only bytes for which
    /// what [`ProtectionDomain::reg_mr_raw`] asks for holds while the request may access them, and which the program
    /// took from [`ImplicitMemoryRegion::remote`] or exposed
    /// ([`expose_provenance`](https://doc.rust-lang.org/std/primitive.pointer.html#method.expose_provenance)).
    ///
    /// # Errors
    /// As [`ProtectionDomain::reg_mr`]; [`ErrorKind::Unsupported`] on a device of a provider that is not this crate's.
    ///
    /// ```
    /// use std::time::Duration;
    /// use rdma_verbs::verbs::{self, AccessFlags, SendRequest};
    ///
    /// # let context = verbs::open("soft:127.0.1.100")?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let qp = pd.create_qp(&cq, &cq).build()?;
    /// # qp.connect(&qp.connection_info()?)?; // to itself
    /// let inbox = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
    /// // SAFETY: no peer can reach it.
    /// let all = unsafe { pd.reg_mr_implicit(AccessFlags::LOCAL_WRITE)? };
    /// let mut message = *b"never registered";
    /// // SAFETY: nobody touches `message` until the request that names it has completed.
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
                 space needs a device that verbs::open or Device::open opened",
                self.context()
            );
            return Err(Error::new("reg_mr", ErrorKind::Unsupported, message));
        }
        // SAFETY: from afar the key names only what the caller promised. In this process the device's provider is this
        // crate's, so nobody posts the key but the verbs tier, which takes ranges of regions alone: those of this one
        // come from `slice`, whose callers promise the same, and so do windows bound to them. The region's own methods
        // find no bytes.
        let backing = unsafe { Backing::address_space() };
        let options = RegisterOptions { access: access | AccessFlags::ON_DEMAND, ..RegisterOptions::default() };
        Ok(ImplicitMemoryRegion { region: self.register(backing, &options)?.without_bytes() })
    }
}

impl ImplicitMemoryRegion {
    /// Access rights.
    pub fn access(&self) -> AccessFlags {
        self.region.access()
    }

    /// The protection domain it belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        self.region.protection_domain()
    }

    /// The key by which peers name it.
    pub fn rkey(&self) -> Rkey {
        self.region.rkey()
    }

    /// What a peer needs to reach `len` bytes from `addr`. Their provenance is exposed.
    pub fn remote(&self, addr: *mut u8, len: usize) -> RemoteMemory {
        RemoteMemory::new(addr.expose_provenance() as u64, self.rkey(), len as u64)
    }

    /// `len` bytes from `addr` for requests of this process, for windows, and for advice. Whether they are there is
    /// found out when they are accessed.
    ///
    /// # Safety
    /// Until every request that names the range has completed, and every window that was bound to it leads elsewhere
    /// or nowhere, the bytes are as [`ProtectionDomain::reg_mr_raw`] asks for: others may read them at any time, and
    /// change them, if the requests or windows do.
    ///
    /// # Errors
    /// The range passes the end of the address space.
    #[allow(unsafe_code)]
    pub unsafe fn slice(&self, addr: *mut u8, len: usize) -> Result<RegionRange<'_>> {
        let first = addr.expose_provenance();
        if first.checked_add(len).is_none() {
            let message = format!("addr is {first:#x} and len is {len}; their sum must not exceed {:#x}", usize::MAX);
            return Err(Error::new("slice", ErrorKind::InvalidArgument, message));
        }
        Ok(self.region.range_unchecked(first, len))
    }

    /// Deregisters the region and keeps the object; see [`MemoryRegion::revoke`].
    ///
    /// # Errors
    /// What the provider meets; the software transport cannot fail here.
    pub fn revoke(&self) -> Result<()> {
        self.region.revoke()
    }

    /// Deregisters the region (`ibv_dereg_mr`): when it returns, nothing accesses memory through it any more.
    ///
    /// # Errors
    /// What the provider meets; the software transport cannot fail here.
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
