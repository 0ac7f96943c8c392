//! The types in the list of functions. Nothing is read or written here.

pub(crate) use std::ffi::{c_char, c_int, c_void};

macro_rules! opaque {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of `rdma_verbs::provider::abi`.")]
            #[repr(C)]
            pub(crate) struct $name {
                _private: [u8; 0],
            }
        )*
    };
}

opaque! {
    AddrInfo ConnParam Context Ece Event EventChannel Id JoinMcAttrEx Pd QpAttr QpInitAttr QpInitAttrEx SrqInitAttr
    SrqInitAttrEx
}

pub(crate) use libc::sockaddr;
