//! Tests that each run in a process of its own, one after the other: they count allocations, threads, descriptors,
//! context switches or system calls of the process, fork it, or need a quiet machine. Tests that count only the
//! allocations of their own thread need no such process.

mod allocation;
mod explain;
mod fork;
mod hold_owned;
mod idle;
mod processes;
mod queue_allocation;
mod resources;
mod scale;
mod shortages;
mod subscribers;
mod system_calls;
mod traffic;
mod watched_memory;

use support::allocator::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
