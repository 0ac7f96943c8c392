//! Address handles.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_verbs::provider::{self, abi};
use rdma_verbs::types::{AddressVector, Gid, GlobalRouteHeader};

use crate::error::{Errno, INVALID, Result, number, pointer, zero_or_minus_one};
use crate::object::{Object, Zeroed, make, own, take};
use crate::protection_domain::domain_of;
use crate::shared::{Shared, shared_of};
use crate::usage::Use;
use crate::version::exported;

/// `IBV_WC_GRH`.
const WITH_HEADER: u32 = 1;

/// The state behind an address handle.
pub(crate) struct AddressHandle {
    shared: Arc<Shared>,
    pub(crate) inner: Arc<dyn provider::AddressHandle>,
    _domain: Use,
}

impl Object for abi::Ah {
    type Own = AddressHandle;
}

/// Converts a path to this library's form. Fails without a GID, which every path on Ethernet needs.
pub(crate) fn address_vector(from: &abi::AhAttr) -> Result<AddressVector> {
    if from.is_global == 0 {
        tracing::info!(
            target: "rdma_verbs::c_library",
            "ah_attr.is_global is 0; on Ethernet a path needs a GID: set is_global and grh.dgid"
        );
        return Err(INVALID);
    }
    let mut vector = AddressVector::new(Gid::from_bytes(from.dgid.0), from.sgid_index);
    vector.flow_label = from.flow_label & 0xf_ffff;
    vector.hop_limit = from.hop_limit;
    vector.traffic_class = from.traffic_class;
    vector.sl = from.sl;
    vector.dlid = from.dlid;
    vector.port_num = from.port_num;
    Ok(vector)
}

/// Converts a path to the C form.
pub(crate) fn address_attributes(from: &AddressVector) -> abi::AhAttr {
    abi::AhAttr {
        dgid: abi::Gid(from.dgid.to_bytes()),
        flow_label: from.flow_label,
        sgid_index: from.sgid_index,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: from.port_num,
    }
}

/// Creates a handle.
///
/// # Safety
/// `pd` is null or the program's.
unsafe fn create(pd: *mut abi::Pd, attributes: &abi::AhAttr) -> Result<*mut abi::Ah> {
    // SAFETY: the caller's promise.
    let domain = unsafe { domain_of(pd)? };
    let mut vector = address_vector(attributes)?;
    if vector.hop_limit == 0 {
        // Programs leave the hop limit unset, but packets with a hop limit of 0 would not be delivered.
        vector.hop_limit = 64;
    }
    let inner = domain.domain.inner.create_ah(&vector)?;
    let mut visible = abi::Ah::zeroed();
    // SAFETY: the caller's promise; this field never changes.
    (visible.context, visible.pd, visible.handle) = (unsafe { (*pd).context }, pd, domain.shared.next_handle());
    Ok(make(visible, AddressHandle { shared: Arc::clone(&domain.shared), inner, _domain: domain.users.begin() }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut abi::Pd, attributes: *mut abi::AhAttr) -> *mut abi::Ah {
    // SAFETY: the program's domain and structure.
    pointer(unsafe { create(pd, &*attributes) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut abi::Ah) -> c_int {
    // SAFETY: the program's handle.
    let own_process = unsafe { own(ah) }.shared.check_process("destroy_ah");
    // SAFETY: the program gives it up.
    number(own_process.map(|()| drop(unsafe { take(ah) })))
}

/// Returns the path to the sender of a datagram, from the first 40 bytes of the received message.
fn reply_path(shared: &Shared, port_num: u8, completion: &abi::Wc, header: &[u8; 40]) -> Result<abi::AhAttr> {
    if completion.wc_flags & WITH_HEADER == 0 {
        return Err(INVALID);
    }
    let header = GlobalRouteHeader::from_bytes(header).ok_or(Errno(libc::EPROTONOSUPPORT))?;
    let table = shared.device.gid_table(port_num)?;
    let exact = table.iter().find(|entry| entry.gid.to_ip() == header.destination);
    // A reply to a multicast leaves from the first address of the same family.
    let same_kind = || table.iter().find(|entry| entry.gid.to_ip().is_ipv4() == header.source.is_ipv4());
    let own = if header.destination.is_multicast() { same_kind() } else { exact }.ok_or(INVALID)?;
    let mut vector = AddressVector::new(header.source.into(), own.gid_index);
    vector.flow_label = header.flow_label;
    vector.traffic_class = header.traffic_class;
    vector.sl = completion.sl;
    vector.port_num = port_num;
    Ok(address_attributes(&vector))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut abi::Context,
    port_num: u8,
    completion: *mut abi::Wc,
    header: *mut [u8; 40],
    attributes: *mut abi::AhAttr,
) -> c_int {
    // SAFETY: the program's context, and its structures, which may be read.
    let path = unsafe { reply_path(shared_of(context), port_num, &*completion, &*header) };
    // SAFETY: the program's structure, which may be written.
    zero_or_minus_one(path.map(|path| unsafe { attributes.write(path) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut abi::Pd,
    completion: *mut abi::Wc,
    header: *mut [u8; 40],
    port_num: u8,
) -> *mut abi::Ah {
    let create_it = || {
        // SAFETY: the program's domain, and its structures, which may be read.
        unsafe {
            let path = reply_path(&domain_of(pd)?.shared, port_num, &*completion, &*header)?;
            create(pd, &path)
        }
    };
    pointer(create_it())
}

exported! {
    "IBVERBS_1.1": ibv_create_ah ibv_destroy_ah ibv_init_ah_from_wc ibv_create_ah_from_wc;
}
