//! A C program whose registered memory becomes inaccessible: its requests fail, whether signal handlers or the kernel's
//! copies detect this, and its own faults end it as usual.

mod library;

use std::os::unix::process::ExitStatusExt;
use std::process::Output;

const ADDRESS: &str = "127.61.3.1";
const SIGSEGV: i32 = 11;
/// `IBV_WC_SUCCESS`, `IBV_WC_LOC_PROT_ERR`, `IBV_WC_REM_ACCESS_ERR`.
const STATUSES: &str = "0 4 10";
/// The statuses if the library can read no memory.
const NO_COPIES: &str = "4 4 4";

fn run(faults: &str, arguments: &[&str]) -> Output {
    let mut program = library::program("unmapped");
    program.args(arguments);
    program.env("RDMA_VERBS_ADDRESSES", ADDRESS).env("RDMA_VERBS_FAULTS", faults);
    program.output().expect("the program runs")
}

#[test]
fn requests_on_inaccessible_memory_fail() {
    for (faults, handler) in [("signal", "handler"), ("kernel", "none")] {
        expect(faults, &[], &format!("{STATUSES} {handler}\n"));
    }
}

/// Shows which mechanism is in use.
#[test]
fn kernel_copies_are_used_only_without_the_handlers() {
    expect("signal", &["filter"], &format!("{STATUSES} handler\n"));
    expect("kernel", &["filter"], &format!("{NO_COPIES} none\n"));
}

fn expect(faults: &str, arguments: &[&str], lines: &str) {
    let output = run(faults, arguments);
    assert!(output.status.success(), "{faults} {arguments:?}: {output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), lines, "{faults} {arguments:?}");
}

#[test]
fn fault_outside_the_library_ends_the_process() {
    for faults in ["signal", "kernel"] {
        let output = run(faults, &["fault"]);
        assert_eq!(output.status.signal(), Some(SIGSEGV), "{faults}: {output:?}");
        assert!(!output.stdout.is_empty(), "{faults}: it ran until the fault");
    }
}
