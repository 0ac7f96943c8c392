// How the C libraries are linked. Both build scripts include this file.

/// Links the library under a name, with the versions of `nodes.map`.
fn link(soname: &str) {
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-changed=nodes.map");
    println!("cargo:rerun-if-changed=build.rs");
    // The compiler passes an anonymous version script of its own, which only lld combines with named versions. On
    // x86-64 lld is the default.
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={folder}/nodes.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    // Threads of the library may outlive a `dlclose`, which must not unmap their code.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
