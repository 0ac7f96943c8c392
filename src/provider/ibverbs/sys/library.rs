//! Loading libibverbs.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use super::abi::*;

/// Name under which programs load the library, the same since 2006.
const SONAME: &str = "libibverbs.so.1";

/// Declares the type of a C library's functions, and how they are loaded. The user of the macro guarantees that the
/// signatures are those of the library's header, and that its initialisers may run.
macro_rules! functions {
    (
        visible $visibility:vis,
        $($(#[$doc:meta])* $symbol:literal $name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*
    ) => {
        /// The library's functions. Those that are inline in the C headers are in the tables of a context instead.
        $visibility struct Library {
            $($(#[$doc])* $visibility $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Keeps the code in memory.
            $visibility _file: Option<libloading::Library>,
        }

        impl Library {
            fn load(file: &str) -> Result<Self, libloading::Error> {
                // SAFETY: loading the library runs its initialisers, which register nothing but its own parts. The
                // signatures are those of the library's header, which its ABI has kept under this file name; the
                // pointers live as long as `_file`, which is never dropped once they are used.
                unsafe {
                    let library = libloading::Library::new(file)?;
                    Ok(Self {
                        $($name: *library.get(concat!($symbol, "\0").as_bytes())?,)*
                        _file: Some(library),
                    })
                }
            }
        }
    };
}
pub(super) use functions;

functions! {
    visible pub(super),
    "ibv_get_device_list" get_device_list: fn(*mut c_int) -> *mut *mut Device;
    "ibv_fork_init" fork_init: fn() -> c_int;
    "ibv_free_device_list" free_device_list: fn(*mut *mut Device);
    "ibv_open_device" open_device: fn(*mut Device) -> *mut Context;
    "ibv_close_device" close_device: fn(*mut Context) -> c_int;
    "ibv_query_device" query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
    /// Writes only the first 48 bytes of the attributes; for libraries whose table has no slot for it.
    "ibv_query_port" query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    "_ibv_query_gid_ex" query_gid_ex: fn(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
    "ibv_query_pkey" query_pkey: fn(*mut Context, u8, c_int, *mut u16) -> c_int;
    "ibv_get_async_event" get_async_event: fn(*mut Context, *mut AsyncEvent) -> c_int;
    "ibv_ack_async_event" ack_async_event: fn(*mut AsyncEvent);
    "ibv_alloc_pd" alloc_pd: fn(*mut Context) -> *mut Pd;
    "ibv_dealloc_pd" dealloc_pd: fn(*mut Pd) -> c_int;
    "ibv_reg_mr_iova2" reg_mr_iova2: fn(*mut Pd, *mut c_void, usize, u64, u32) -> *mut Mr;
    "ibv_reg_dmabuf_mr" reg_dmabuf_mr: fn(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr;
    "ibv_dereg_mr" dereg_mr: fn(*mut Mr) -> c_int;
    "ibv_create_comp_channel" create_comp_channel: fn(*mut Context) -> *mut CompChannel;
    "ibv_destroy_comp_channel" destroy_comp_channel: fn(*mut CompChannel) -> c_int;
    "ibv_create_cq" create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    "ibv_resize_cq" resize_cq: fn(*mut Cq, c_int) -> c_int;
    "ibv_destroy_cq" destroy_cq: fn(*mut Cq) -> c_int;
    "ibv_get_cq_event" get_cq_event: fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    "ibv_ack_cq_events" ack_cq_events: fn(*mut Cq, u32);
    "ibv_create_srq" create_srq: fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    "ibv_modify_srq" modify_srq: fn(*mut Srq, *mut SrqAttr, c_int) -> c_int;
    "ibv_query_srq" query_srq: fn(*mut Srq, *mut SrqAttr) -> c_int;
    "ibv_destroy_srq" destroy_srq: fn(*mut Srq) -> c_int;
    "ibv_create_qp" create_qp: fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    "ibv_query_qp" query_qp: fn(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
    "ibv_modify_qp" modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    "ibv_destroy_qp" destroy_qp: fn(*mut Qp) -> c_int;
    "ibv_create_ah" create_ah: fn(*mut Pd, *mut AhAttr) -> *mut Ah;
    "ibv_destroy_ah" destroy_ah: fn(*mut Ah) -> c_int;
    "ibv_attach_mcast" attach_mcast: fn(*mut Qp, *const Gid, u16) -> c_int;
    "ibv_detach_mcast" detach_mcast: fn(*mut Qp, *const Gid, u16) -> c_int;
    "ibv_qp_to_qp_ex" qp_to_qp_ex: fn(*mut Qp) -> *mut QpEx;
}

/// Returns the library, which is loaded on first use, or why it cannot be used.
pub(super) fn library() -> Result<&'static Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(|| load(SONAME)).as_ref().map_err(Clone::clone)
}

/// Returns why the library cannot be used, if it cannot.
pub(in super::super) fn unavailable() -> Option<String> {
    library().err()
}

fn load(file: &str) -> Result<Library, String> {
    Library::load(file).map_err(|error| {
        format!(
            "{file} was not found or cannot be used ({error}); adapters need it: install ibverbs-providers and \
             libibverbs1 (Debian, Ubuntu) or rdma-core and libibverbs (Fedora, RHEL, SUSE)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_packages() {
        let text = load("libibverbs-that-is-not-there.so.1").err().unwrap();
        for part in ["libibverbs-that-is-not-there.so.1", "libibverbs1", "ibverbs-providers", "rdma-core"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn a_library_without_the_verbs_is_refused() {
        assert!(load("libc.so.6").err().unwrap().contains("ibv_get_device_list"));
    }
}
