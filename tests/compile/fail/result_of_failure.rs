//! The number of bytes is available only after a check that the request succeeded.

use rdma_verbs::verbs::Completion;

fn length(completion: &Completion) -> u32 {
    completion.byte_len
}

fn main() {}
