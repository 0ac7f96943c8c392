//! A program in C whose threads share a completion queue under a lock of their own.

mod library;

const ADDRESS: &str = "127.61.3.3";

/// A poll that blocks does so with the program's lock held. If both threads share a core, the other thread then runs
/// only while it cannot acquire the lock.
#[test]
fn a_polling_thread_does_not_starve_one_that_waits_for_its_lock() {
    let output = library::program("two_threads").env("RDMA_VERBS_ADDRESSES", ADDRESS).output();
    let output = output.expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n");
}
