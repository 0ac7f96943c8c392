//! Advice about on-demand regions: makes pages present before requests need them.

use std::sync::Arc;

use crate::types::{AccessFlags, DomainId, MemoryAdvice, Sge};

use super::raw::Unusable;
use super::table::{MemoryView, RegionTable};
use super::{AccessError, AdviseError, Region};

impl RegionTable {
    /// Applies advice to ranges of on-demand regions before it returns. The ranges are given as in local requests. No
    /// page is touched unless all ranges are found. Concurrent accesses are not affected.
    ///
    /// # Errors
    /// See [`AdviseError`]. A page that cannot be made present is an error, except with
    /// [`MemoryAdvice::PrefetchNoFault`], which makes none present.
    pub fn advise(&self, domain: DomainId, advice: MemoryAdvice, ranges: &[Sge]) -> Result<(), AdviseError> {
        let found: Vec<(Arc<Region>, usize)> = {
            let view = self.read();
            ranges.iter().map(|range| view.advisable(domain, advice, range)).collect::<Result<_, _>>()?
        };
        // Accesses use present pages without preparation, so there is nothing to do.
        if advice == MemoryAdvice::PrefetchNoFault {
            return Ok(());
        }
        // Touching pages may take long, so the table is unlocked, and references keep the regions. If a region is
        // deregistered meanwhile, its pages are made present unnecessarily.
        let write = advice == MemoryAdvice::PrefetchWrite;
        for ((region, offset), &Sge { addr, length, .. }) in found.iter().zip(ranges) {
            region.memory().make_present(*offset, length as usize, write).map_err(|unusable| match unusable {
                Unusable::NoCopy { errno } => AdviseError::NoFaultSafeCopy { errno },
                Unusable::NotMapped => AdviseError::NotMapped { addr, length },
                Unusable::NotWritable => AdviseError::NotWritable { addr, length },
            })?;
        }
        Ok(())
    }
}

impl MemoryView<'_> {
    /// Returns the region of `range` and the offset in it, if the advice is allowed.
    fn advisable(
        &self,
        domain: DomainId,
        advice: MemoryAdvice,
        range: &Sge,
    ) -> Result<(Arc<Region>, usize), AdviseError> {
        let &Sge { addr, length, lkey } = range;
        let refused = |error| AdviseError::Range { addr, length, lkey, error };
        let region = self.find(lkey.0).ok_or_else(|| refused(AccessError::UnknownKey))?;
        if region.domain() != domain {
            return Err(refused(AccessError::WrongDomain));
        }
        if !region.access().contains(AccessFlags::ON_DEMAND) {
            return Err(AdviseError::NotOnDemand { lkey, access: region.access() });
        }
        if advice == MemoryAdvice::PrefetchWrite && !region.access().contains(AccessFlags::LOCAL_WRITE) {
            return Err(refused(AccessError::NoPermission));
        }
        let offset = region.offset_of(addr, length.into()).map_err(refused)?;
        Ok((Arc::clone(region), offset))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::Backing;
    use crate::types::Lkey;

    const DOMAIN: DomainId = DomainId(3);

    fn registered(table: &RegionTable, access: AccessFlags) -> Arc<Region> {
        table.register(DOMAIN, Backing::anonymous(8192).unwrap(), 0x1000, access).unwrap()
    }

    fn range(region: &Region, addr: u64, length: u32) -> Sge {
        Sge { addr, length, lkey: region.lkey() }
    }

    #[test]
    fn advice_needs_ranges_of_on_demand_regions_of_the_domain() {
        let table = RegionTable::new(4);
        let region = registered(&table, AccessFlags::ON_DEMAND);
        let advise = |domain, advice, range| table.advise(domain, advice, &[range]);
        let good = range(&region, 0x1000, 8192);
        assert_eq!(advise(DOMAIN, MemoryAdvice::Prefetch, good), Ok(()));
        assert_eq!(advise(DOMAIN, MemoryAdvice::PrefetchNoFault, good), Ok(()));
        let error = |error| Err(AdviseError::Range { addr: 0x1000, length: 8192, lkey: region.lkey(), error });
        assert_eq!(advise(DomainId(4), MemoryAdvice::Prefetch, good), error(AccessError::WrongDomain));
        assert_eq!(advise(DOMAIN, MemoryAdvice::PrefetchWrite, good), error(AccessError::NoPermission));
        let text = advise(DOMAIN, MemoryAdvice::Prefetch, range(&region, 0x1001, 8192)).unwrap_err().to_string();
        assert!(text.contains("0x1001") && text.contains("8192") && text.contains("outside"), "{text}");
        let unknown = Sge { lkey: Lkey(region.lkey().0 ^ 1), ..good };
        assert!(matches!(
            advise(DOMAIN, MemoryAdvice::Prefetch, unknown),
            Err(AdviseError::Range { error: AccessError::UnknownKey, .. })
        ));
        let pinned = registered(&table, AccessFlags::LOCAL_WRITE);
        let text = advise(DOMAIN, MemoryAdvice::Prefetch, range(&pinned, 0x1000, 8)).unwrap_err().to_string();
        assert!(text.contains("LOCAL_WRITE") && text.contains("ON_DEMAND"), "{text}");
    }

    #[test]
    fn no_page_is_populated_unless_all_ranges_are_valid() {
        let table = RegionTable::new(4);
        let region = registered(&table, AccessFlags::ON_DEMAND | AccessFlags::LOCAL_WRITE);
        let ranges = [range(&region, 0x1000, 8), range(&region, 0x5000, 8)];
        assert!(table.advise(DOMAIN, MemoryAdvice::PrefetchWrite, &ranges).is_err());
        assert_eq!(table.advise(DOMAIN, MemoryAdvice::PrefetchWrite, &ranges[..1]), Ok(()));
        assert_eq!(table.advise(DOMAIN, MemoryAdvice::PrefetchWrite, &[]), Ok(()));
    }
}
