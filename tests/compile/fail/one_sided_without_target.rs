//! Operations beyond SEND and WRITE cannot be built incomplete either.

use rdma_verbs::verbs::{FlushFlags, MemoryRegion, MemoryWindow, Payload, RemoteMemory, SendRequest};

fn flush_of_what(remote: RemoteMemory) {
    let _ = SendRequest::flush(remote);
}

fn flush_of_the_own_region(region: &MemoryRegion) {
    let _ = SendRequest::flush(region, FlushFlags::GLOBAL);
}

fn atomic_write_to_nowhere() {
    let _ = SendRequest::atomic_write(Payload::inline(&[0; 8]));
}

fn bind_of_nothing(window: &MemoryWindow) {
    let _ = SendRequest::bind_mw(window, 1);
}

fn invalidation_of_a_region(region: &MemoryRegion) {
    let _ = SendRequest::local_invalidate(region);
}

fn main() {}
