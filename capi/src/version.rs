//! Symbol versions.

/// Exports functions defined here under their names with a version: `exported! { "IBVERBS_1.1": ibv_f; }`. Each must be
/// `#[unsafe(no_mangle)]`. `tests/symbols.rs` compares the result with the list.
macro_rules! exported {
    ($($node:literal: $($name:ident)+;)+) => {
        $($(
            std::arch::global_asm!(concat!(".symver ", stringify!($name), ", ", stringify!($name), "@@", $node));
        )+)+
    };
}

pub(crate) use exported;
