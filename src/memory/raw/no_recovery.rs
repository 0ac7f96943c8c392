//! The absence of fault recovery: on other processors, and under checkers that must see the accesses. The kernel makes
//! every copy of memory whose pages can vanish.

use super::{AccessError, RecoverError};
use crate::checksum::Sum;

/// Has no values: faults are never recovered from.
#[derive(Clone, Copy)]
pub(super) enum Recovery {}

pub(super) fn install() -> Result<(), RecoverError> {
    Err(RecoverError::Unsupported)
}

pub(super) fn ready() -> Option<Recovery> {
    None
}

impl Recovery {
    /// # Safety
    /// Never called: no [`Recovery`] exists.
    pub(super) unsafe fn read(self, _: *const u8, _: &mut [u8]) -> Result<(), AccessError> {
        match self {}
    }

    /// # Safety
    /// Never called: no [`Recovery`] exists.
    pub(super) unsafe fn read_summed(self, _: *const u8, _: &mut [u8], _: usize) -> Result<Option<Sum>, AccessError> {
        match self {}
    }

    /// # Safety
    /// Never called: no [`Recovery`] exists.
    pub(super) unsafe fn write(self, _: *mut u8, _: &[u8]) -> Result<(), AccessError> {
        match self {}
    }

    /// # Safety
    /// Never called: no [`Recovery`] exists.
    pub(super) unsafe fn copy_across(self, _: *mut u8, _: *const u8, _: usize) -> Result<(), AccessError> {
        match self {}
    }

    /// # Safety
    /// Never called: no [`Recovery`] exists.
    pub(super) unsafe fn compare_exchange_u64(self, _: *mut u64, _: u64, _: u64) -> Result<u64, AccessError> {
        match self {}
    }

    /// # Safety
    /// Never called: no [`Recovery`] exists.
    pub(super) unsafe fn fetch_add_u64(self, _: *mut u64, _: u64) -> Result<u64, AccessError> {
        match self {}
    }
}

macro_rules! words {
    ($($word:ty, $load:ident, $store:ident;)*) => {
        impl Recovery {
            $(
                /// # Safety
                /// Never called: no [`Recovery`] exists.
                pub(super) unsafe fn $load(self, _: *const $word) -> Result<$word, AccessError> {
                    match self {}
                }

                /// # Safety
                /// Never called: no [`Recovery`] exists.
                pub(super) unsafe fn $store(self, _: *mut $word, _: $word) -> Result<(), AccessError> {
                    match self {}
                }
            )*
        }
    };
}

words! {
    u8, load_acquire_u8, store_release_u8;
    u16, load_acquire_u16, store_release_u16;
    u32, load_acquire_u32, store_release_u32;
    u64, load_acquire_u64, store_release_u64;
}
