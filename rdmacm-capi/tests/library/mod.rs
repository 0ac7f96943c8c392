//! The built libraries, in a folder as `capi/install` makes it, and C programs that use them.
#![allow(dead_code, unreachable_pub, reason = "no test needs all of it")]

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

/// Returns the folder of both libraries, and builds them if needed, because `cargo test` does not: tests cannot link to
/// them. If `RDMA_VERBS_CAPI` names a folder, the libraries installed there are used.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(folder) = std::env::var_os("RDMA_VERBS_CAPI") {
            return PathBuf::from(folder);
        }
        let test = std::env::current_exe().expect("a path");
        let target = test.ancestors().nth(3).expect("TARGET/PROFILE/deps/TEST");
        let mut cargo = Command::new(env!("CARGO"));
        let packages = ["--package", "rdma-verbs-capi", "--package", "rdma-verbs-rdmacm-capi"];
        cargo.args(["build", "--quiet"]).args(packages).arg("--target-dir").arg(target);
        assert!(cargo.status().expect("cargo").success(), "{cargo:?} failed");
        let folder = own_folder("libraries");
        link(&target.join("debug/librdma_verbs_capi.so"), &folder.join("libibverbs.so.1"));
        link(&target.join("debug/librdma_verbs_rdmacm_capi.so"), &folder.join("librdmacm.so.1"));
        folder
    })
}

/// Returns a folder of this test program.
pub fn own_folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rdmacm-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Makes a link.
pub fn link(to: &Path, at: &Path) {
    let _ = std::fs::remove_file(at);
    symlink(to.canonicalize().expect("the library"), at).expect("a link");
}

/// Builds the C program in the folder of this name, with the system's headers.
pub fn program(name: &str) -> PathBuf {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().expect("no test panics here");
    let build = || {
        let program = own_folder("program").join(name);
        let sources = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name));
        let sources = sources.expect("the folder of the program").map(|entry| entry.expect("an entry").path());
        let mut compiler = Command::new("cc");
        compiler.args(["-Wall", "-Werror", "-O1", "-pthread", "-o"]).arg(&program);
        compiler.args(sources.filter(|source| source.extension().is_some_and(|kind| kind == "c")));
        compiler.arg(folder().join("librdmacm.so.1")).arg(folder().join("libibverbs.so.1"));
        assert!(compiler.status().expect("a C compiler").success(), "{compiler:?} failed");
        program
    };
    built.entry(name.to_owned()).or_insert_with(build).clone()
}

/// Runs one case of a C program with the installed libraries, in an environment that `change` changes. Returns its
/// output, and asserts that it succeeds.
pub fn output_with(name: &str, case: &str, addresses: &[String], change: impl FnOnce(&mut Command)) -> String {
    let mut program = Command::new(program(name));
    program.arg(case).args(addresses).env("LD_LIBRARY_PATH", folder());
    for variable in ["RDMA_VERBS_ADDRESSES", "RDMA_VERBS_LOG", "RDMA_VERBS_MTU"] {
        program.env_remove(variable);
    }
    change(&mut program);
    let output = program.output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    assert!(output.status.success(), "{case}: {text} {output:?}");
    text
}
