//! The system's allocator with counts, for test programs that set it as `#[global_allocator]`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};

/// Counts allocations, of the process and of each thread, and the bytes in use.
pub struct Counting;

static BYTES: AtomicIsize = AtomicIsize::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded to the system's allocator unchanged; counting only changes integers, of which the
// thread-local one has neither a lazy initializer nor a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as isize - layout.size() as isize);
        // SAFETY: the caller upholds the contract of `realloc`; the pointer came from `System`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the pointer came from one of the functions above, thus from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Counts an allocation that adds this many bytes.
fn count(bytes: isize) {
    BYTES.fetch_add(bytes, Ordering::Relaxed);
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    OF_THREAD.set(OF_THREAD.get() + 1);
}

/// Returns the number of bytes in use.
pub fn bytes() -> isize {
    BYTES.load(Ordering::Relaxed)
}

/// Returns the number of allocations of the process.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Returns the number of allocations of the calling thread.
pub fn allocations_of_thread() -> u64 {
    OF_THREAD.get()
}
