//! State that objects keep, and changes that they refuse.

mod library;

use std::ffi::c_int;
use std::ptr::null_mut;

use library::{End, errno, open, table, verbs};
use rdma_verbs::provider::abi::{AhAttr, AllocDmAttr, Gid, QpAttr, QpInitAttr, qp_attr};

/// Bits of `ibv_rereg_mr_flags`.
const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 2;
const CHANGE_ACCESS: c_int = 4;
/// `IBV_REREG_MR_ERR_CMD`.
const COMMAND_FAILED: c_int = -4;
const ZERO_BASED: u32 = 1 << 5;
const LOCAL_WRITE: u32 = 1;

#[test]
fn device_memory_cannot_be_reregistered() {
    let verbs = verbs("127.62.1.5");
    let context = open(verbs);
    let mut memory = [0u64; 8];
    // SAFETY: the context's own functions; each object is created from those before it, and destroyed after those that
    // were created from it.
    unsafe {
        let table = table(context);
        let pd = (verbs.alloc_pd)(context);
        let mut wanted = AllocDmAttr { length: 4096, log_align_req: 0, comp_mask: 0 };
        let dm = (*table).alloc_dm.expect("always there")(context, &raw mut wanted);
        let mr = (*table).reg_dm_mr.expect("always there")(pd, dm, 0, 4096, ZERO_BASED | LOCAL_WRITE);
        assert!(!mr.is_null());
        let keys = ((*mr).lkey, (*mr).rkey);
        let address = memory.as_mut_ptr().cast();
        let changes = [
            (verbs.rereg_mr)(mr, CHANGE_TRANSLATION, null_mut(), address, 64, 0),
            (verbs.rereg_mr)(mr, CHANGE_PD, pd, null_mut(), 0, 0),
            (verbs.rereg_mr)(mr, CHANGE_ACCESS, null_mut(), null_mut(), 0, LOCAL_WRITE as c_int),
        ];
        assert_eq!((changes, errno()), ([COMMAND_FAILED; 3], libc::EINVAL));
        assert_eq!(((*mr).lkey, (*mr).rkey, (*mr).length, (*mr).pd), (keys.0, keys.1, 4096, pd));
        assert_eq!((*table).free_dm.expect("always there")(dm), libc::EBUSY, "it is registered as before");
        assert_eq!((verbs.dereg_mr)(mr), 0);
        assert_eq!((*table).free_dm.expect("always there")(dm), 0);
        assert_eq!((verbs.dealloc_pd)(pd), 0);
        assert_eq!((verbs.close_device)(context), 0);
    }
}

#[test]
fn query_qp_returns_the_path_that_was_set() {
    let verbs = verbs("127.62.1.5");
    let context = open(verbs);
    let end = End::looped(verbs, context);
    let query = || {
        let (mut found, mut init) = (QpAttr::default(), std::mem::MaybeUninit::<QpInitAttr>::uninit());
        // SAFETY: the queue pair and both structures are alive.
        assert_eq!(unsafe { (verbs.query_qp)(end.qp, &raw mut found, -1, init.as_mut_ptr()) }, 0);
        found.ah_attr
    };
    assert_eq!((query().static_rate, query().src_path_bits), (0, 0));
    let reset = QpAttr::default();
    end.modify(&reset, qp_attr::STATE);
    let init = QpAttr { qp_state: 1, port_num: 1, ..QpAttr::default() };
    end.modify(&init, qp_attr::STATE | qp_attr::PKEY_INDEX | qp_attr::PORT | qp_attr::ACCESS_FLAGS);
    assert_eq!(query().is_global, 0, "it has no path yet");
    let mut gid = Gid([0; 16]);
    // SAFETY: the context is open, and there is room for the GID.
    assert_eq!(unsafe { (verbs.query_gid)(context, 1, 0, &raw mut gid) }, 0);
    let given = AhAttr {
        dgid: gid,
        hop_limit: 17,
        traffic_class: 12,
        static_rate: 3,
        src_path_bits: 5,
        is_global: 1,
        port_num: 1,
        ..AhAttr::default()
    };
    let ready = QpAttr { qp_state: 2, path_mtu: 3, ah_attr: given, ..QpAttr::default() };
    let wanted = qp_attr::STATE | qp_attr::AV | qp_attr::PATH_MTU | qp_attr::DEST_QPN | qp_attr::RQ_PSN;
    end.modify(&ready, wanted | qp_attr::MAX_DEST_RD_ATOMIC | qp_attr::MIN_RNR_TIMER);
    let found = query();
    assert_eq!((found.static_rate, found.src_path_bits), (3, 5));
    assert_eq!((found.hop_limit, found.traffic_class, found.is_global), (17, 12, 1));
    end.destroy();
    // SAFETY: all of its objects are destroyed.
    assert_eq!(unsafe { (verbs.close_device)(context) }, 0);
}
