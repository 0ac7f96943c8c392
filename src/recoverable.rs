//! Text of `asm!` blocks whose access to memory may fault, and what a handler of faults needs to know of them.
//!
//! `memory::raw` and `checksum` have the blocks, `memory::raw::handler` the handler. A block begins with
//! `access_begins!()` and ends with `access_ends!()`; it has the operands `recoverable = const …`, 1 or 0, and
//! `out("r11") faulted`. With 0 nothing is added to it. With 1, register 11 is 0 behind the block, or 1 if an
//! instruction of it faulted and the handler ended it there; then other outputs are any bits.
//!
//! The block's bounds stand in a section of their own, relative to where they stand, so that nothing has to be
//! relocated when a library is loaded. The flag `R` keeps it whatever the linker finds unused, as `__start_` does for
//! older linkers.

macro_rules! access_begins {
    () => {
        ".if {recoverable}\nmov r11d, 0\n881:\n.endif"
    };
}

macro_rules! access_ends {
    () => {
        concat!(
            ".if {recoverable}\n882:\n",
            ".pushsection rdma_verbs_accesses, \"aR\", @progbits\n.balign 4\n",
            ".long 881b - .\n.long 882b - .\n.popsection\n.endif",
        )
    };
}
