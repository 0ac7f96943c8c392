//! Posting, taking, completing and polling allocate nothing.

use std::sync::Arc;

use rdma_verbs::queue::{CompletionQueue, Notify, ReceiveQueue, SendQueue};
use rdma_verbs::types::{
    BatchEnd, CompletionOpcode, Data, Operation, RawCompletion, ReceiveRequest, SendFlags, SendRequest, Sge,
};
use support::allocator::allocations_of_thread;

struct Silent;

impl Notify for Silent {
    fn notify_within(&self, _: u32, _: std::time::Duration, _: u32) {}

    fn notify(&self, _completion_queue: u32) {}
}

/// Runs `work` and returns its number of allocations.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = allocations_of_thread();
    work();
    allocations_of_thread() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn send_and_completion_allocate_nothing() {
    let send_queue = SendQueue::new(8, 2, 16);
    let mut consumer = send_queue.consumer().unwrap();
    let completions = CompletionQueue::new(1, 8, Some(Arc::new(Silent)));
    let token = completions.attach(Some(Arc::clone(&send_queue)));
    let sges = [Sge { addr: 1, length: 8, ..Sge::default() }; 2];
    let mut out = [RawCompletion::default(); 8];
    let count = allocations(|| {
        for _ in 0..100 {
            send_queue.begin();
            for wr_id in 0..8 {
                let data = if wr_id % 2 == 0 { Data::Sges(&sges) } else { Data::Inline(&[b"12345", b"678"]) };
                let flags = SendFlags::SIGNALED;
                send_queue.push(&SendRequest { wr_id, operation: Operation::Send, flags, data }).unwrap();
            }
            assert_eq!(send_queue.end(BatchEnd::Publish), Ok(8));
            completions.req_notify(false);
            for index in consumer.retired()..consumer.published() {
                assert_eq!(consumer.sges(index).len() + consumer.inline_data(index).len() / 4, 2);
                consumer.retire(index + 1);
                let mut completion = RawCompletion::default();
                completion.wr_id = consumer.retired().into();
                completion.retired = index + 1;
                completions.push(token, completion, false).unwrap();
            }
            assert_eq!(completions.poll(&mut out), 8);
            assert_eq!(send_queue.pending(), 0);
        }
        completions.purge(token);
    });
    assert_eq!(count, 0);
}

#[test]
fn receive_allocates_nothing() {
    let receive_queue = ReceiveQueue::new(8, 2);
    let mut consumer = receive_queue.consumer().unwrap();
    let completions = CompletionQueue::new(1, 8, None);
    let token = completions.attach(None);
    let sges = [Sge::default(); 2];
    let mut taken = Vec::with_capacity(2);
    let mut out = [RawCompletion::default(); 3];
    let count = allocations(|| {
        for _ in 0..100 {
            receive_queue.begin();
            (0..8).for_each(|wr_id| receive_queue.push(&ReceiveRequest { wr_id, sges: &sges }).unwrap());
            receive_queue.end(BatchEnd::Publish).unwrap();
            while let Some((wr_id, index)) = consumer.take(&mut taken) {
                let mut completion = RawCompletion::default();
                completion.wr_id = wr_id;
                completion.opcode = CompletionOpcode::Receive;
                completion.retired = index.wrapping_add(1);
                completions.push(token, completion, true).unwrap();
            }
            while completions.poll(&mut out) > 0 {}
        }
    });
    assert_eq!(count, 0);
}
