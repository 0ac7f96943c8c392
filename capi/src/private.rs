//! The private interface, version `IBVERBS_PRIVATE_34`, which vendors' libraries call for their own devices.
//!
//! Programs that link those libraries (perftest, UCX) need the symbols in order to be loaded. This library has no
//! vendor's device, so none of the symbols is ever called with one. `verbs_register_driver_34`, which constructors
//! call, ignores the driver; operations return `EOPNOTSUPP`.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicBool;

use crate::error::{UNSUPPORTED, set_errno};
use crate::version::exported;

macro_rules! unsupported {
    ($($name:ident)+) => {
        $(
            /// Returns `EOPNOTSUPP`.
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> c_int {
                set_errno(UNSUPPORTED);
                UNSUPPORTED.0
            }
        )+
        exported! { "IBVERBS_PRIVATE_34": $($name)+; }
    };
}

macro_rules! nothing {
    ($($name:ident)+) => {
        $(
            /// Does nothing.
            #[unsafe(no_mangle)]
            extern "C" fn $name() {}
        )+
        exported! { "IBVERBS_PRIVATE_34": $($name)+; }
    };
}

macro_rules! no_object {
    ($($name:ident)+) => {
        $(
            /// Returns null, with `errno` set to `EOPNOTSUPP`.
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> *mut c_void {
                set_errno(UNSUPPORTED);
                std::ptr::null_mut()
            }
        )+
        exported! { "IBVERBS_PRIVATE_34": $($name)+; }
    };
}

unsupported! {
    execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast
    ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex
    ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex2
    ibv_cmd_create_qp_ex ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex ibv_cmd_create_wq
    ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah ibv_cmd_destroy_counters
    ibv_cmd_destroy_cq ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp
    ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_free_dm
    ibv_cmd_get_context ibv_cmd_modify_cq ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex
    ibv_cmd_modify_srq ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv
    ibv_cmd_post_send ibv_cmd_post_srq_recv ibv_cmd_query_context ibv_cmd_query_device_any ibv_cmd_query_mr
    ibv_cmd_query_port ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_counters ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq verbs_init_cq
}

// `__verbs_log` takes a format and any number of arguments, which can be ignored without knowing their number.
nothing! { __verbs_log verbs_register_driver_34 verbs_set_ops verbs_uninit_context }

no_object! { _verbs_init_and_alloc_context verbs_open_device }

/// Returns the number of attributes of a command: none.
#[unsafe(no_mangle)]
extern "C" fn __ioctl_final_num_attrs(_attributes: u32, _buffer: *const c_void) -> u32 {
    0
}

/// Whether objects of a device that is gone may be destroyed; read by drivers.
#[unsafe(no_mangle)]
static verbs_allow_disassociate_destroy: AtomicBool = AtomicBool::new(false);

exported! {
    "IBVERBS_PRIVATE_34": __ioctl_final_num_attrs verbs_allow_disassociate_destroy;
}
