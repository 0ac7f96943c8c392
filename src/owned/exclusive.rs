//! The unsafe part of the owned tier, first half: registered memory as slices.
//!
//! Registered memory is in general never a slice, because the device or a peer may access it at any time (see
//! [`crate::memory`]). [`Exclusive`] is the exception. Its slices are sound for these reasons:
//!
//! * *No peer reaches the memory.* It is registered with `LOCAL_WRITE` alone: without remote access flags, without the
//!   flag to bind windows, and not invalidatable. The access check refuses packets with its key.
//! * *No other code of this process reaches it.* The region is registered here and never leaves this file: the only
//!   path to a [`RegionRange`] of it is [`Exclusive::range`], which [`super::in_flight`] alone uses, and the verbs tier
//!   takes nothing but ranges. The bytes were moved in (a vector) or never had another owner (fresh pages). A provider
//!   holds the region as well, so only devices of this crate's own providers are accepted: they access memory only for
//!   requests.
//! * *No two `Exclusive`s share a byte.* [`Exclusive::pieces`] splits a region into disjoint ranges, once.
//! * *The device does not touch it meanwhile.* Posting takes an `Exclusive` by value and keeps it in
//!   [`super::in_flight`] until the request is finished, so an accessible `Exclusive` is never in flight.
//! * *It is allocated and initialized.* The region lives as long as any `Exclusive` of it; fresh pages are zero, and
//!   only a vector's length is registered, not its spare capacity. File mappings, which other processes can truncate
//!   and write, are not accepted.

use std::sync::Arc;

use crate::verbs::{AccessFlags, Error, ErrorKind, MemoryRegion, ProtectionDomain, RefusedMemory, RegionRange, Result};

/// Bytes of a registered region that nothing else can reach.
#[derive(Debug)]
pub(super) struct Exclusive {
    region: Arc<MemoryRegion>,
    offset: usize,
    len: usize,
}

impl Exclusive {
    /// Registers one region of fresh memory and splits it into `count` ranges of `size` bytes.
    pub(super) fn pieces(domain: &ProtectionDomain, size: usize, count: usize) -> Result<Vec<Self>> {
        check_device(domain)?;
        let bytes = size.checked_mul(count).ok_or_else(|| {
            let message = format!("{count} buffers of {size} bytes requested; together they exceed 2^64 bytes");
            Error::new("reg_mr", ErrorKind::InvalidArgument, message)
        })?;
        let region = Arc::new(domain.alloc_mr(bytes, AccessFlags::LOCAL_WRITE)?);
        let piece = |index| Self { region: Arc::clone(&region), offset: index * size, len: size };
        Ok((0..count).map(piece).collect())
    }

    /// Registers the bytes of a vector.
    pub(super) fn from_vec(domain: &ProtectionDomain, bytes: Vec<u8>) -> Result<Self, (Error, Vec<u8>)> {
        if let Err(error) = check_device(domain) {
            return Err((error, bytes));
        }
        match domain.reg_mr(bytes, AccessFlags::LOCAL_WRITE) {
            Ok(region) => Ok(Self { len: region.len(), region: Arc::new(region), offset: 0 }),
            Err(RefusedMemory { error, memory, .. }) => Err((error, memory.into_vec().unwrap_or_default())),
        }
    }

    /// Deregisters the memory of [`Exclusive::from_vec`] and returns the vector.
    pub(super) fn into_vec(self) -> Result<Vec<u8>> {
        let not_a_vector = || Error::new("dereg_mr", ErrorKind::InvalidArgument, "the memory was not a vector");
        let region = Arc::try_unwrap(self.region).map_err(|_| not_a_vector())?;
        region.dereg()?.into_vec().map_err(|_| not_a_vector())
    }

    /// Returns the number of bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether both are ranges of one region.
    pub(super) fn shares_region(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.region, &other.region)
    }

    /// Returns the number of ranges that its region was split into.
    pub(super) fn pieces_of_region(&self) -> usize {
        self.region.len() / self.len
    }

    pub(super) fn domain(&self) -> &ProtectionDomain {
        self.region.protection_domain()
    }

    /// Returns the first `len` bytes as a range, for a request. Only [`super::in_flight`] may use it, for posting,
    /// after it has taken the memory by value.
    pub(super) fn range(&self, len: usize) -> Result<RegionRange<'_>> {
        let room = self.len;
        if len > room {
            let message = format!("{len} bytes requested; the buffer has {room}");
            return Err(Error::new("post", ErrorKind::InvalidArgument, message));
        }
        self.region.slice(self.offset..self.offset + len)
    }

    /// Returns the bytes.
    pub(super) fn as_slice(&self) -> &[u8] {
        let first = self.region.as_mut_ptr().wrapping_add(self.offset);
        // SAFETY: the range lies within the region, as established when this value was made, and the region neither
        // shrinks nor moves; `region` keeps it allocated, and all of it is initialized. Nothing else writes it while
        // this value is accessible (see the module's documentation), and the slice borrows this value.
        unsafe { std::slice::from_raw_parts(first, self.len) }
    }

    /// Returns the bytes, mutably.
    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        let first = self.region.as_mut_ptr().wrapping_add(self.offset);
        // SAFETY: as for `as_slice`; nothing else reads it either, `Exclusive`s are disjoint, and this value is
        // borrowed mutably. The memory is writable: fresh pages or a vector's.
        unsafe { std::slice::from_raw_parts_mut(first, self.len) }
    }
}

/// Refuses devices of providers outside this crate.
pub(super) fn check_device(domain: &ProtectionDomain) -> Result<()> {
    if domain.context().is_built_in() {
        return Ok(());
    }
    let message = format!(
        "{} comes from a provider outside this crate, which may access memory when it likes; buffers need a device \
         that verbs::open, verbs::open_soft or Device::open opened",
        domain.context()
    );
    Err(Error::new("reg_mr", ErrorKind::Unsupported, message))
}
