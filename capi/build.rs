//! Links the library as `libibverbs.so.1`.

include!("link.rs");

fn main() {
    println!("cargo:rerun-if-changed=link.rs");
    link("libibverbs.so.1");
}
