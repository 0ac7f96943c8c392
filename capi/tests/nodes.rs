//! `rdma-verbs-run --nodes`: the files that programs look for before they call the library.

use std::path::Path;
use std::process::{Command, Output};

/// The device is named after an address that no interface has, so that its files do not exist yet.
const ADDRESS: &str = "127.61.3.4";
/// Checks that the files exist that UCX needs, and those that Mooncake needs, which resolves the link and goes up two
/// levels, and that the rest of the file system is unchanged.
const CHECKS: &str = "test -c /dev/infiniband/soft_127.61.3.4 && test -w /dev/null && test -d /dev/shm &&
    cat /sys/class/infiniband/soft_127.61.3.4/../../numa_node /sys/class/infiniband/soft_127.61.3.4/device/numa_node &&
    basename \"$(realpath /sys/class/infiniband/soft_127.61.3.4)\" && cat /sys/class/net/lo/ifindex && id -u";

fn run() -> Output {
    let runner = Path::new(env!("CARGO_MANIFEST_DIR")).join("rdma-verbs-run");
    let mut command = Command::new(runner);
    command.args(["--nodes", "sh", "-c", CHECKS]).env("RDMA_VERBS_ADDRESSES", ADDRESS);
    command.output().expect("a shell")
}

#[test]
fn nodes_and_sysfs_files_exist() {
    let output = run();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("no mount namespace") && std::env::var_os("CI").is_none() {
        return println!("skipped: {stderr}");
    }
    // SAFETY: takes no arguments.
    let user = unsafe { libc::geteuid() };
    let expected = format!("-1\n-1\nsoft_{ADDRESS}\n1\n{user}\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{stderr}");
    assert!(!Path::new("/dev/infiniband").join(format!("soft_{ADDRESS}")).exists(), "it is there for all programs");
}
