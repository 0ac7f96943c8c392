//! Whoever wants the number of bytes must first look whether the request succeeded.

use rdma_verbs::verbs::Completion;

fn length(completion: &Completion) -> u32 {
    completion.byte_len
}

fn main() {}
