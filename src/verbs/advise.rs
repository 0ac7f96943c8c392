//! Advice about on-demand regions.

use super::request::Regions;
use super::{AdviceFlags, Error, ErrorKind, MemoryAdvice, ProtectionDomain, RegionList, RegionRange, Result};
use crate::types::{MAX_MESSAGE_BYTES, Sge};

/// Longest range: 128 TiB, more memory than any process has. Bounds the number of entries that a range is split into.
const MOST_BYTES: u64 = 1 << 47;

impl ProtectionDomain {
    /// Advises the device of upcoming accesses to ranges of on-demand regions (`ibv_advise_mr`), so that their pages
    /// are present when requests access them.
    ///
    /// [`MemoryAdvice::Prefetch`] makes the pages present for reading, [`MemoryAdvice::PrefetchWrite`] for writing.
    /// [`MemoryAdvice::PrefetchNoFault`] covers only pages that are already present. With [`AdviceFlags::FLUSH`], the
    /// advice has taken effect when this returns; on the software transport, it always has.
    ///
    /// # Errors
    /// A range does not belong to a region of this domain with
    /// [`AccessFlags::ON_DEMAND`](super::AccessFlags::ON_DEMAND), or the advice is for writing and the region's access
    /// flags forbid it; part of a range is unmapped or not writable; a range is longer than 128 TiB;
    /// [`ErrorKind::InvalidState`] if a region was deregistered. The error identifies the range. If several ranges were
    /// given, pages of the others may have been made present.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, AccessFlags, AdviceFlags, MemoryAdvice};
    ///
    /// let pd = verbs::open("soft:127.0.1.101")?.alloc_pd()?;
    /// let mr = pd.alloc_mr(1 << 20, AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND)?;
    /// pd.advise_mr(MemoryAdvice::PrefetchWrite, AdviceFlags::FLUSH, &mr)?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise_mr<'a>(
        &self,
        advice: MemoryAdvice,
        flags: AdviceFlags,
        ranges: impl Into<RegionList<'a>>,
    ) -> Result<()> {
        let mut entries = Vec::new();
        match ranges.into().0 {
            Regions::One(range) => self.add_entries(&range, &mut entries)?,
            Regions::Many(ranges) => ranges.iter().try_for_each(|range| self.add_entries(range, &mut entries))?,
        }
        self.inner().advise_mr(advice, flags, &entries)
    }

    /// Splits the range into entries no longer than one entry can describe.
    fn add_entries(&self, range: &RegionRange<'_>, entries: &mut Vec<Sge>) -> Result<()> {
        let region = range.region();
        let refused = |kind, why: &str| {
            let message = format!("sg_list: the region {} {why}", region.lkey());
            Err(Error::new("advise_mr", kind, message))
        };
        if !region.protection_domain().is_same(self) {
            return refused(ErrorKind::InvalidArgument, "belongs to another protection domain");
        }
        if region.is_revoked() {
            return refused(ErrorKind::InvalidState, "was deregistered");
        }
        let (mut addr, mut left) = range.extent();
        if left > MOST_BYTES {
            let why = format!("is asked for {left:#x} bytes; allowed are up to {MOST_BYTES:#x} in a range");
            return refused(ErrorKind::InvalidArgument, &why);
        }
        while left > 0 {
            let length = left.min(MAX_MESSAGE_BYTES.into());
            entries.push(Sge { addr, length: length as u32, lkey: region.lkey() });
            addr += length;
            left -= length;
        }
        Ok(())
    }
}
