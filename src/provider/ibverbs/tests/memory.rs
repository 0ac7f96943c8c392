//! Memory stays while it is registered.

use std::os::fd::AsFd;

use super::*;
use crate::memory::{AccessError, Region, RegionInit};
use crate::provider::{DeviceMemoryInit, DmaBufInit, Reregistration};
use crate::types::{AdviceFlags, MemoryAdvice, MemoryWindowType};

fn with_device_memory() -> Machine {
    let mut machine = Machine::default();
    machine.attributes.max_dm_size = 1 << 16;
    machine.attributes.odp_general_caps = 3;
    machine
}

#[test]
fn the_error_for_unpinnable_memory_explains_the_limit() {
    let world = World::new(Machine::default());
    world.fake.fail("reg_mr", libc::ENOMEM);
    let refusal = world.pd.reg_mr(Backing::from_vec(vec![7; 100]), None, AccessFlags::LOCAL_WRITE).err().unwrap();
    assert_eq!(refusal.backing.into_vec().unwrap(), [7; 100], "the memory comes back");
    let parts = ["100 bytes", "RLIMIT_MEMLOCK", "ulimit -l", "limits.conf", "LimitMEMLOCK"];
    refused::<()>(Err(refusal.error), ErrorKind::ResourceLimit, &parts);
    world.end();
}

#[test]
fn memory_is_kept_if_deregistration_fails() {
    let world = World::new(Machine::default());
    let mr = world.region(AccessFlags::LOCAL_WRITE).unwrap();
    let region = Arc::clone(mr.region());
    world.fake.fail("dereg_mr", libc::EBUSY);
    refused(mr.dereg(), ErrorKind::Busy, &["region"]);
    drop(mr);
    // This holder and the one that is never dropped.
    assert_eq!(Arc::strong_count(&region), 2);
    let region = Region::into_backing(region).expect_err("held for ever");
    assert_eq!(region.write_at(0, &[1]), Ok(()));
}

#[test]
fn revoking_a_region_deallocates_its_bound_windows() {
    let world = World::new(Machine::default());
    let qp = world.connected();
    let mr = world.region(AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND).unwrap();
    let window = world.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
    bind(&*qp, &*mr, window.rkey().0 + 1).unwrap();
    world.fake.fail("dereg_mr", libc::EBUSY);
    refused(mr.dereg(), ErrorKind::Busy, &["1 bound memory windows"]);
    world.fake.log();
    let _ = mr.revoke();
    assert!(world.fake.log().contains(&"dealloc_mw".to_owned()));
    world.fake.fail("dereg_mr", 0);
    drop((window, mr, qp));
    world.end();
}

fn bind(qp: &dyn QueuePair, mr: &dyn MemoryRegion, rkey: u32) -> Result<(), Error> {
    let operation = Operation::BindMemoryWindow {
        rkey: crate::types::Rkey(rkey),
        lkey: mr.lkey(),
        addr: mr.region().iova(),
        length: 64,
        access: AccessFlags::REMOTE_READ,
    };
    qp.send_begin();
    let pushed = qp.send_push(&request(9, operation, Data::Sges(&[])));
    let end = if pushed.is_ok() { BatchEnd::Publish } else { BatchEnd::Rollback };
    pushed.and(qp.send_end(end))
}

#[test]
fn a_bind_that_is_not_posted_leaves_the_window_unchanged() {
    let world = World::new(Machine::default());
    let qp = world.connected();
    let mr = world.region(AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND).unwrap();
    let window = world.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
    let first = window.rkey();
    world.fake.fail("bind_mw", libc::ENOMEM);
    refused(bind(&*qp, &*mr, first.0 + 1), ErrorKind::QueueFull, &[]);
    assert_eq!(window.rkey(), first);
    world.fake.fail("bind_mw", 0);
    // Nothing is bound to the region, so the error does not mention windows.
    world.fake.fail("dereg_mr", libc::EBUSY);
    let text = mr.dereg().unwrap_err().to_string();
    assert!(!text.contains("bound"), "{text}");
    world.fake.fail("dereg_mr", 0);
    bind(&*qp, &*mr, first.0 + 1).unwrap();
    assert_eq!(window.rkey().0, first.0 + 1);
}

#[test]
fn a_refused_reregistration_changes_nothing() {
    let world = World::new(Machine::default());
    let mr = world.region(AccessFlags::LOCAL_WRITE).unwrap();
    // Either the new registration fails, or it succeeds and the old region cannot be deregistered.
    for verb in ["reg_mr", "dereg_mr"] {
        world.fake.fail_once(verb, libc::EBUSY);
        let change = Reregistration { access: Some(AccessFlags::empty()), ..Reregistration::default() };
        refused(world.pd.rereg_mr(&mr, change).map_err(|refusal| refusal.error), ErrorKind::Busy, &[]);
        assert!(world.fake.live().contains(&("mr", 1)));
    }
    let change = Reregistration { access: Some(AccessFlags::empty()), ..Reregistration::default() };
    let new = world.pd.rereg_mr(&mr, change).map_err(|refusal| refusal.error).unwrap();
    assert!(world.fake.live().contains(&("mr", 1)));
    assert_ne!(new.lkey(), mr.lkey());
    drop((mr, new));
    world.end();
}

#[test]
fn device_memory_is_cleared_copied_and_registered() {
    let world = World::new(with_device_memory());
    let alloc = |length| world.context.alloc_dm(&DeviceMemoryInit { length, log_align_req: 6 });
    refused(alloc(0), ErrorKind::InvalidArgument, &["length is 0", "65536"]);
    refused(alloc(65537), ErrorKind::ResourceLimit, &["65537", "max_dm_size is 65536"]);
    // Whole words are allocated.
    let dm = alloc(6001).unwrap();
    assert!(world.fake.log().contains(&"alloc_dm 6008 aligned 6 mask 0".to_owned()));
    let mut bytes = vec![1; 6001];
    dm.copy_out(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 6001]);
    // Also from an unaligned source, in more than one chunk.
    let data: Vec<u8> = (0..5001).map(|index| index as u8).collect();
    dm.copy_in(4, &data[1..]).unwrap();
    dm.copy_out(0, &mut bytes[..5004]).unwrap();
    assert_eq!(bytes[4..5004], data[1..]);
    refused(dm.copy_in(1, &[1]), ErrorKind::InvalidArgument, &["dm_offset is 1", "multiples of 4"]);
    refused(dm.copy_in(6000, &[1; 4]), ErrorKind::InvalidArgument, &["6001 bytes"]);
    world.fake.log();
    let part = |offset, length| world.pd.reg_dm_mr(&dm, offset, length, AccessFlags::LOCAL_WRITE);
    refused(part(6000, 2), ErrorKind::InvalidArgument, &["6001 bytes"]);
    let mr = part(64, 128).unwrap();
    // Zero-based, as the kernel demands.
    assert_eq!(world.fake.log(), ["reg_dm_mr offset 64 length 128 access 0x21"]);
    assert_eq!((mr.region().iova(), mr.region().len()), (0, 128));
    let access = mr.region().read_at(0, &mut [0; 4]);
    assert_eq!(access, Err(AccessError::Elsewhere), "not through this process");
    assert_eq!(mr.region().write_at(0, &[0; 4]), Err(AccessError::Elsewhere));
    assert_eq!(mr.region().fetch_add_u64(0, 1), Err(AccessError::Elsewhere));
    // The region keeps the memory.
    drop(dm);
    assert!(world.fake.live().contains(&("dm", 1)));
    drop(mr);
    world.end();
}

#[test]
fn dma_buf_regions_are_accessed_by_the_adapter_only() {
    let world = World::new(Machine::default());
    let file = std::fs::File::open("/dev/null").unwrap();
    let (fd, access) = (file.as_fd(), AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE);
    let register =
        |offset, length, iova, access| world.pd.reg_dmabuf_mr(&DmaBufInit { fd, offset, length, iova, access });
    let mr = register(4096, 8192, Some(0x7000), access).unwrap();
    assert_eq!(world.fake.log(), ["reg_dmabuf_mr offset 4096 length 8192 iova 0x7000 access 0x3"]);
    let mut bytes = [0; 8];
    assert_eq!(mr.region().read_at(0, &mut bytes), Err(AccessError::Elsewhere));
    // An ATOMIC WRITE takes its word when it is posted, from memory that this process can read.
    assert_eq!(register(4096, 8192, None, access).unwrap().region().iova(), 4096);
    refused(register(0, 0, None, access), ErrorKind::InvalidArgument, &["length"]);
    refused(register(1, u64::MAX, None, access), ErrorKind::InvalidArgument, &["sum"]);
    let on_demand = access | AccessFlags::ON_DEMAND;
    refused(register(0, 64, None, on_demand), ErrorKind::InvalidArgument, &["ON_DEMAND"]);
    world.fake.fail("reg_dmabuf_mr", libc::EOPNOTSUPP);
    refused(register(0, 64, None, access), ErrorKind::Unsupported, &["only dma-bufs"]);
    // The returned backing cannot be registered as other memory.
    mr.dereg().unwrap();
    let region = Arc::clone(mr.region());
    drop(mr);
    let backing = Region::into_backing(region).unwrap();
    assert!(world.pd.reg_mr_with(backing, &RegionInit::default()).is_err());
    world.end();
}

#[test]
fn the_address_space_is_registered_as_the_manual_says() {
    let world = World::new(with_device_memory());
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND;
    let mr = world.pd.reg_mr(whole(), None, access).map_err(Error::from).unwrap();
    let wanted = format!("reg_mr null length {} iova 0x0 access 0x41", usize::MAX);
    assert_eq!(world.fake.log(), [wanted]);
    drop(mr);
    world.end();
}

/// Returns the backing of a region of all memory.
fn whole() -> Backing {
    crate::provider::ibverbs::sys::fake::address_space()
}

#[test]
fn advice_requires_on_demand_regions_of_the_domain() {
    let world = World::new(with_device_memory());
    let mr = world.region(AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND).unwrap();
    let pinned = world.region(AccessFlags::LOCAL_WRITE).unwrap();
    world.fake.log();
    let advise = |pd: &dyn ProtectionDomain, sge| pd.advise_mr(MemoryAdvice::PrefetchWrite, AdviceFlags::FLUSH, &[sge]);
    advise(&*world.pd, entry(&*mr, 512)).unwrap();
    assert_eq!(world.fake.log(), ["advise_mr 1 flags 1 ranges 1, first 512"]);
    refused(advise(&*world.pd, entry(&*pinned, 8)), ErrorKind::InvalidArgument, &["advise_mr", "access", "ON_DEMAND"]);
    let other = world.context.alloc_pd().unwrap();
    refused(advise(&*other, entry(&*mr, 8)), ErrorKind::InvalidArgument, &["domain"]);
    world.fake.fail("advise_mr", libc::EFAULT);
    refused(advise(&*world.pd, entry(&*mr, 8)), ErrorKind::InvalidArgument, &["8 bytes from 0x"]);
    drop((mr, pinned, other));
    world.end();
}
