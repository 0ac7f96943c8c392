//! Objects: C structures with this library's state behind them. The program sees the structure, which has the layout of
//! the headers, and passes its address back.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::AtomicU32;

use rdma_verbs::provider::abi;

/// A C structure that objects of this library begin with.
pub(crate) trait Object: Sized {
    /// The state behind it.
    type Own;
}

#[repr(C)]
struct Whole<C: Object> {
    /// Written by the program and by verbs at any time.
    visible: UnsafeCell<C>,
    own: C::Own,
}

/// Creates an object for the program.
pub(crate) fn make<C: Object>(visible: C, own: C::Own) -> *mut C {
    Box::into_raw(Box::new(Whole { visible: UnsafeCell::new(visible), own })).cast()
}

/// Returns the state behind an object.
///
/// # Safety
/// `object` came from [`make`] of the same type, and is not [taken](take) before the reference ends.
#[inline]
pub(crate) unsafe fn own<'a, C: Object>(object: *const C) -> &'a C::Own {
    // SAFETY: by the caller's promise there is a `Whole<C>`, whose first field is the visible part; the reference is to
    // the other field, which never changes.
    unsafe { &(*object.cast::<Whole<C>>()).own }
}

/// Returns a number in the visible part of an object as an atomic, for verbs that store there: verbs of other threads
/// may store there at the same time, and two plain stores would be a data race.
///
/// # Safety
/// The field belongs to an object of the program that is not [taken](take) before the reference ends, and this library
/// accesses it only through this function while other threads may.
pub(crate) unsafe fn atomic_field<'a>(field: *mut u32) -> &'a AtomicU32 {
    // SAFETY: the field is aligned and lives as long as the object, by the caller's promise. It lies in an
    // `UnsafeCell`, and no reference to the visible part exists.
    unsafe { AtomicU32::from_ptr(field) }
}

/// Takes an object back from the program.
///
/// # Safety
/// `object` came from [`make`] of the same type; nothing uses it afterwards.
pub(crate) unsafe fn take<C: Object>(object: *mut C) -> C::Own {
    // SAFETY: by the caller's promise this is the box that `make` released, and it is taken only once.
    unsafe { Box::from_raw(object.cast::<Whole<C>>()) }.own
}

/// Gives the program a list whose last pointer is null, and its number of entries without that if `count` is not null.
///
/// # Safety
/// `count` is null or the program's, and may be written.
pub(crate) unsafe fn give_list<T>(list: Vec<*mut T>, count: *mut c_int) -> *mut *mut T {
    if !count.is_null() {
        // SAFETY: the caller's promise.
        unsafe { count.write((list.len() - 1) as c_int) };
    }
    Box::into_raw(list.into_boxed_slice()).cast()
}

/// Frees a list, not what its entries point to. Does nothing without one.
///
/// # Safety
/// `list` is null, or came from [`give_list`]; nothing uses it afterwards.
pub(crate) unsafe fn free_list<T>(list: *mut *mut T) {
    if list.is_null() {
        return;
    }
    let mut length = 1;
    // SAFETY: by the caller's promise it ends with a null pointer.
    while unsafe { !(*list.add(length - 1)).is_null() } {
        length += 1;
    }
    // SAFETY: as above; it was released as a boxed slice of `length` entries, and is freed once.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, length)) });
}

/// A structure whose bytes may all be zero.
///
/// # Safety
/// Zero is a valid value of every field.
pub(crate) unsafe trait Zeroed: Sized {
    /// Returns the structure with all bytes zero.
    fn zeroed() -> Self {
        // SAFETY: the implementer's promise.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! zeroed {
    ($($($name:ident)::+)*) => {
        $(
            // SAFETY: its fields are numbers, pointers, arrays and structures of them, and function pointers in
            // `Option`, for all of which zero is valid.
            unsafe impl Zeroed for abi::$($name)::+ {}
        )*
    };
}

zeroed! {
    Device VerbsContext DeviceAttrEx Pd Mr Mw Dm Ah CompChannel CqEx QpEx QpExWithFlush Srq AsyncEvent QpAttr
    QpInitAttrEx SrqInitAttrEx cm::Id cm::Event cm::AddrInfo cm::PathRecord
}

/// The visible part of every queue pair.
pub(crate) type QueuePairShell = abi::QpExWithFlush;
