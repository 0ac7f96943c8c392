//! Programs that run with more privileges than the user who starts them.

use std::os::unix::fs::PermissionsExt;

use super::processes::{Folder, OTHER_USER, copy_of_this_program, is_root, print_warnings, role_of_other_user, run};

/// Set in the process that is the victim.
const GO: &str = "RDMA_VERBS_TEST_GO";

/// Not a test: the setuid program.
#[test]
#[ignore = "started by the other tests"]
fn privileged_program() {
    if std::env::var_os(GO).is_none() {
        return;
    }
    print_warnings();
    // SAFETY: both functions take no arguments and cannot fail.
    println!("runs as {} of {}", unsafe { libc::geteuid() }, unsafe { libc::getuid() });
    let context = rdma_verbs::verbs::open("soft:127.99.1.1").unwrap_or_else(|error| panic!("{error}"));
    let _connected = super::processes::connect_to_itself(&context).unwrap_or_else(|error| panic!("{error}"));
    println!("connected");
}

#[test]
fn a_setuid_program_ignores_the_environment() {
    if !is_root() {
        return;
    }
    let folder = Folder::new("setuid");
    let program = copy_of_this_program(&folder, 0o4755);
    let precious = folder.0.join("precious");
    std::fs::write(&precious, "of root alone").unwrap();
    std::fs::set_permissions(&precious, PermissionsExt::from_mode(0o600)).unwrap();
    let mut command = role_of_other_user(&program, "environment::privileged_program");
    command.env(GO, "1").env("RDMA_VERBS_CAPTURE", &precious).env("RDMA_VERBS_CAPTURE_BYTES", "1000000");
    let (_, said) = run(command);
    // Otherwise the file system has ignored the setuid bit, and the test shows nothing.
    assert!(said.contains(&format!("runs as 0 of {OTHER_USER}")), "{said}");
    assert!(std::fs::read(&precious).unwrap() == b"of root alone", "another user had root's file overwritten");
    assert!(said.contains("connected"), "{said}");
    assert!(said.contains("RDMA_VERBS_CAPTURE"), "no reason for the missing capture: {said}");
}
