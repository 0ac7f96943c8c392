//! `advise_mr` for on-demand regions.

use libc::PROT_READ;
use rdma_verbs::verbs::{
    AccessFlags, AdviceFlags, ErrorKind, MemoryAdvice, MemoryRegion, Payload, ReceiveRequest, RegionList, SendRequest,
};

use super::end::{ALL_ACCESS, End, Shape, refused};
use super::pages::Pages;
use super::suite::{Capability, ODP_EXPLICIT, ODP_IMPLICIT, Scenario};
use super::world::World;

const EXPLICIT: &[Capability] = &[ODP_EXPLICIT];
const ADVISE: &str = "ibv_advise_mr(3)";

const fn scenario(name: &'static str, clause: &'static str, run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs: EXPLICIT, run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("mr/advise/prefetch_makes_present", "ibv_advise_mr(3) ADVICE_PREFETCH", prefetch),
    scenario("mr/advise/prefetch_for_write", "ibv_advise_mr(3) ADVICE_PREFETCH_WRITE", prefetch_write),
    scenario("mr/advise/no_fault_leaves_absent", "ibv_advise_mr(3) ADVICE_PREFETCH_NO_FAULT", no_fault),
    scenario("mr/advise/traffic_afterwards", ADVISE, traffic),
    scenario("mr/advise/unmapped_range_is_named", "ibv_advise_mr(3) EFAULT", unmapped),
    scenario("mr/advise/read_only_pages", "ibv_advise_mr(3) EFAULT", read_only_pages),
    scenario("mr/advise/region_not_on_demand", "ibv_advise_mr(3) EINVAL", not_on_demand),
    scenario("mr/advise/write_without_access_flag", "ibv_advise_mr(3) EPERM", without_access_flag),
    scenario("mr/advise/region_of_another_domain", ADVISE, other_domain),
    scenario("mr/advise/deregistered_region", "ibv_advise_mr(3) ENOENT", deregistered),
    scenario("mr/advise/one_bad_range_of_several", ADVISE, one_bad_range),
    scenario("mr/advise/unknown_flag", "ibv_advise_mr(3) EINVAL flags", unknown_flag),
    scenario("mr/advise/slice_of_the_address_space", ADVISE, implicit).needs(&[ODP_IMPLICIT]),
];

const FLUSH: AdviceFlags = AdviceFlags::FLUSH;
const INVALID: ErrorKind = ErrorKind::InvalidArgument;

/// Registers the pages as an on-demand region.
fn register(end: &End, pages: &Pages, access: AccessFlags) -> MemoryRegion {
    // SAFETY: the pages outlive the region, and no reference to them exists.
    unsafe { end.pd.reg_mr_raw(pages.at(0), pages.len(), access | AccessFlags::ON_DEMAND) }.expect("reg_mr_raw")
}

#[track_caller]
fn advise<'a>(end: &End, advice: MemoryAdvice, ranges: impl Into<RegionList<'a>>) {
    end.pd.advise_mr(advice, FLUSH, ranges).expect("advise_mr");
}

/// On-demand registration faults in no pages; advice faults in exactly the pages of its range.
fn prefetch(world: &World) {
    let end = world.end(0, &Shape::default());
    let (pages, page) = (Pages::new(6), Pages::size());
    let region = register(&end, &pages, ALL_ACCESS);
    assert_eq!(pages.present(), [false; 6]);
    advise(&end, MemoryAdvice::Prefetch, region.slice(2 * page - 1..3 * page + 1).unwrap());
    assert_eq!(pages.present(), [false, true, true, true, false, false]);
    assert_eq!(pages.read(page, page), vec![0; page], "nothing is changed");
}

fn prefetch_write(world: &World) {
    let end = world.end(0, &Shape::default());
    let (pages, page) = (Pages::new(4), Pages::size());
    pages.write(0, b"stays");
    let region = register(&end, &pages, ALL_ACCESS);
    advise(&end, MemoryAdvice::PrefetchWrite, region.slice(..3 * page).unwrap());
    assert_eq!(pages.present(), [true, true, true, false]);
    assert_eq!(pages.read(0, 5), b"stays");
}

fn no_fault(world: &World) {
    let end = world.end(0, &Shape::default());
    let pages = Pages::new(4);
    pages.write(0, &[1]);
    let region = register(&end, &pages, ALL_ACCESS);
    advise(&end, MemoryAdvice::PrefetchNoFault, &region);
    assert_eq!(pages.present(), [true, false, false, false]);
    // This advice succeeds even if pages cannot be accessed.
    let closed = Pages::closed(1);
    advise(&end, MemoryAdvice::PrefetchNoFault, &register(&end, &closed, ALL_ACCESS));
}

fn traffic(world: &World) {
    let (left, right) = world.pair();
    let (pages, page) = (Pages::new(4), Pages::size());
    let region = register(&right, &pages, ALL_ACCESS);
    let halves = [region.slice(..page).unwrap(), region.slice(3 * page..).unwrap()];
    right.pd.advise_mr(MemoryAdvice::PrefetchWrite, AdviceFlags::empty(), &halves).expect("advise_mr");
    right.qp.post_recv(&[ReceiveRequest::new(&region).wr_id(1)]).unwrap();
    left.post(&[SendRequest::send(Payload::inline(b"expected")).wr_id(2).signaled()]);
    right.received(1, 8);
    left.sent(2);
    assert_eq!(region.to_vec(..8).unwrap(), b"expected");
}

fn unmapped(world: &World) {
    let end = world.end(0, &Shape::default());
    let pages = Pages::closed(2);
    let region = register(&end, &pages, ALL_ACCESS);
    let address = format!("{:#x}", pages.at(8).addr());
    let range = region.slice(8..100).unwrap();
    let names = ["advise_mr", "sg_list", &address, "length 92", "mapped"];
    refused(end.pd.advise_mr(MemoryAdvice::Prefetch, FLUSH, range), INVALID, &names);
    refused(end.pd.advise_mr(MemoryAdvice::PrefetchWrite, FLUSH, range), INVALID, &names);
}

fn read_only_pages(world: &World) {
    let end = world.end(0, &Shape::default());
    let pages = Pages::new(2);
    pages.protect(PROT_READ);
    let region = register(&end, &pages, ALL_ACCESS);
    advise(&end, MemoryAdvice::Prefetch, &region);
    assert_eq!(pages.present(), [true, true]);
    let refusal = end.pd.advise_mr(MemoryAdvice::PrefetchWrite, FLUSH, &region);
    refused(refusal, INVALID, &["advise_mr", "sg_list", "not all writable"]);
}

fn not_on_demand(world: &World) {
    let end = world.end(0, &Shape::default());
    let refusal = end.pd.advise_mr(MemoryAdvice::Prefetch, FLUSH, &end.region);
    refused(refusal, INVALID, &["advise_mr", "access", "ON_DEMAND"]);
}

fn without_access_flag(world: &World) {
    let end = world.end(0, &Shape::default());
    let pages = Pages::new(1);
    let region = register(&end, &pages, AccessFlags::REMOTE_READ);
    advise(&end, MemoryAdvice::Prefetch, &region);
    let refusal = end.pd.advise_mr(MemoryAdvice::PrefetchWrite, FLUSH, &region);
    refused(refusal, INVALID, &["advise_mr", "sg_list", "access flag"]);
}

fn other_domain(world: &World) {
    let end = world.end(0, &Shape::default());
    let pages = Pages::new(1);
    let region = register(&end, &pages, ALL_ACCESS);
    let elsewhere = end.context.alloc_pd().unwrap();
    let refusal = elsewhere.advise_mr(MemoryAdvice::Prefetch, FLUSH, &region);
    refused(refusal, INVALID, &["advise_mr", "another protection domain"]);
    assert_eq!(pages.present(), [false]);
}

fn deregistered(world: &World) {
    let end = world.end(0, &Shape::default());
    let pages = Pages::new(1);
    let region = register(&end, &pages, ALL_ACCESS);
    region.revoke().unwrap();
    let refusal = end.pd.advise_mr(MemoryAdvice::Prefetch, FLUSH, &region);
    refused(refusal, ErrorKind::InvalidState, &["advise_mr", "deregistered"]);
}

/// Invalid ranges are found before any page is faulted in.
fn one_bad_range(world: &World) {
    let end = world.end(0, &Shape::default());
    let pages = Pages::new(2);
    let region = register(&end, &pages, ALL_ACCESS);
    let ranges = [region.slice(..8).unwrap(), end.at(0..8)];
    refused(end.pd.advise_mr(MemoryAdvice::Prefetch, FLUSH, &ranges), INVALID, &["advise_mr", "ON_DEMAND"]);
    assert_eq!(pages.present(), [false, false]);
    advise(&end, MemoryAdvice::Prefetch, RegionList::EMPTY);
    advise(&end, MemoryAdvice::Prefetch, &ranges[..1]);
    assert_eq!(pages.present(), [true, false]);
}

fn unknown_flag(world: &World) {
    let end = world.end(0, &Shape::default());
    let pages = Pages::new(1);
    let region = register(&end, &pages, ALL_ACCESS);
    let flags = AdviceFlags::from_bits_retain(1 << 7);
    let refusal = end.pd.advise_mr(MemoryAdvice::Prefetch, flags, &region);
    refused(refusal, INVALID, &["advise_mr", "flags", "0x80", "FLUSH"]);
    assert_eq!(pages.present(), [false]);
}

fn implicit(world: &World) {
    let end = world.end(0, &Shape::default());
    let (pages, page) = (Pages::new(3), Pages::size());
    // SAFETY: the region grants no remote access, and the scenario names only its own pages.
    let region = unsafe { end.pd.reg_mr_implicit(AccessFlags::LOCAL_WRITE) }.unwrap();
    // SAFETY: nothing else uses the pages, and advice changes nothing.
    let middle = unsafe { region.slice(pages.at(page), page) }.unwrap();
    advise(&end, MemoryAdvice::PrefetchWrite, middle);
    assert_eq!(pages.present(), [false, true, false]);
}
