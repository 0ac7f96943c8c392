//! A program in C whose registered memory goes away: its requests fail, by handlers of signals and by the kernel's
//! copies, and its own faults end it as ever.

use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

const ADDRESS: &str = "127.61.3.1";
const SIGSEGV: i32 = 11;
/// `IBV_WC_SUCCESS`, `IBV_WC_LOC_PROT_ERR`, `IBV_WC_REM_ACCESS_ERR`.
const STATUSES: &str = "0 4 10";

/// The folder of the library and the program, which `cargo test` does not build.
fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let test = std::env::current_exe().expect("a path");
        let target = test.ancestors().nth(3).expect("TARGET/PROFILE/deps/TEST");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "rdma-verbs-capi", "--target-dir"]).arg(target);
        assert!(cargo.status().expect("cargo").success(), "{cargo:?} failed");
        let folder = target.join("debug/capi-unmapped");
        std::fs::create_dir_all(&folder).expect("a folder");
        let library = folder.join("libibverbs.so.1");
        let _ = std::fs::remove_file(&library);
        symlink("../librdma_verbs_capi.so", &library).expect("a link");
        let mut compiler = Command::new("cc");
        compiler.args(["-Wall", "-Werror", "-o"]).arg(folder.join("unmapped"));
        compiler.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/unmapped.c")).arg(library);
        assert!(compiler.status().expect("a C compiler").success(), "{compiler:?} failed");
        folder
    })
}

fn run(faults: &str, arguments: &[&str]) -> Output {
    let mut program = Command::new(folder().join("unmapped"));
    program.args(arguments).env("LD_LIBRARY_PATH", folder());
    program.env("RDMA_VERBS_ADDRESSES", ADDRESS).env("RDMA_VERBS_FAULTS", faults);
    program.output().expect("the program runs")
}

#[test]
fn requests_whose_memory_is_gone_fail() {
    for (faults, handler) in [("signal", "handler"), ("kernel", "none")] {
        let output = run(faults, &[]);
        assert!(output.status.success(), "{faults}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{STATUSES} {handler}\n"), "{faults}");
    }
}

#[test]
fn a_programs_own_fault_ends_it() {
    for faults in ["signal", "kernel"] {
        let output = run(faults, &["fault"]);
        assert_eq!(output.status.signal(), Some(SIGSEGV), "{faults}: {output:?}");
        assert!(!output.stdout.is_empty(), "{faults}: it had come so far");
    }
}
