//! Reports and explanations of the queue pairs of both tiers, and the settings of their completion queues.

use std::time::Duration;

use rdma_verbs::owned::{CompletionQueue, QueuePair, QueuePairOptions, Request};
use rdma_verbs::verbs::{AsyncEvent, ErrorKind, RemoteMemory, Rkey};
use support::PATIENCE;

use super::owned::End;

const NOWHERE: RemoteMemory = RemoteMemory::new(0x1000, Rkey(0x1234), 64);

/// An end on 127.90.11.`host`.
fn end(host: u8) -> End {
    End::open(&format!("127.90.11.{host}"), &QueuePairOptions::default())
}

#[test]
fn owned_queue_pairs_report_and_explain() {
    let end = end(1);
    assert!(end.qp.explain_state().contains("not connected"), "{}", end.qp.explain_state());
    end.qp.connect(&end.qp.connection_info().unwrap()).unwrap();
    let report = end.qp.report().unwrap();
    assert_eq!((report.last_packet(), report.error_origin), (None, None));
    end.post(Request::write(end.pool.copy_from(b"lost").unwrap(), NOWHERE));
    let failure = end.next().result().unwrap_err();
    assert!(end.qp.report().unwrap().error_origin.is_some());
    let event = end.context.wait_async_event(PATIENCE).unwrap();
    for text in [end.qp.explain(&failure), end.qp.explain_event(&event)] {
        assert!(text.contains("0x00001234"), "{text}");
    }
}

#[test]
fn owned_completion_queues_have_a_number_and_a_size() {
    let end = end(2);
    let cq = CompletionQueue::new(&end.context, 1).unwrap();
    assert_ne!(cq.number(), end.cq.number());
    let qp = QueuePair::new(&end.pd, &cq, &cq).unwrap();
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    assert_eq!(cq.resize(0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    // With one slot the queue would overflow.
    cq.resize(16).unwrap();
    assert!(cq.cqe() >= 16);
    for wr_id in 0..8 {
        qp.post_recv(end.pool.take(8).unwrap(), wr_id).unwrap();
        qp.post_send(end.send(wr_id, b"x").signaled()).unwrap();
    }
    for _ in 0..16 {
        cq.wait(PATIENCE).unwrap().into_buffer().unwrap();
    }
    cq.moderate(8, Duration::from_micros(50)).unwrap();
    assert_eq!(cq.moderate(8, Duration::from_secs(1)).unwrap_err().kind(), ErrorKind::InvalidArgument);

    let small = CompletionQueue::new(&end.context, 1).unwrap();
    let qp = QueuePair::new(&end.pd, &small, &small).unwrap();
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    for wr_id in 0..8 {
        qp.post_recv(end.pool.take(8).unwrap(), wr_id).unwrap();
        qp.post_send(end.send(wr_id, b"x").signaled()).unwrap();
    }
    assert_eq!(end.context.wait_async_event(PATIENCE).unwrap(), AsyncEvent::CompletionQueueError(small.number()));
}

#[cfg(all(feature = "tokio", not(loom)))]
mod asynchronous {
    use rdma_verbs::asynchronous::{AsyncEvents, QueuePairOptions};

    use super::*;
    use crate::owned_async::{End, failure, on_both};

    #[test]
    fn asynchronous_queue_pairs_report_and_explain() {
        on_both(|| async {
            let end = End::open("127.90.11.3", &QueuePairOptions::default());
            assert!(end.qp.explain_state().contains("not connected"), "{}", end.qp.explain_state());
            end.qp.connect(&end.qp.connection_info().unwrap()).unwrap();
            assert_eq!(end.qp.report().unwrap().error_origin, None);
            let mut events = AsyncEvents::new(&end.context).unwrap();
            let failure = failure(end.qp.write(end.bytes(b"lost"), NOWHERE).await.0);
            assert!(end.qp.report().unwrap().error_origin.is_some());
            let event = events.next_event().await.unwrap();
            for text in [end.qp.explain(&failure), end.qp.explain_event(&event)] {
                assert!(text.contains("0x00001234"), "{text}");
            }
        });
    }

    #[test]
    fn asynchronous_completion_queues_have_a_number_and_a_size() {
        on_both(|| async {
            let end = End::open("127.90.11.4", &QueuePairOptions::default());
            end.qp.connect(&end.qp.connection_info().unwrap()).unwrap();
            assert_eq!(end.cq.number(), end.cq.clone().number());
            let cqe = end.cq.cqe();
            end.cq.resize(4 * cqe).unwrap();
            assert!(end.cq.cqe() >= 4 * cqe);
            assert_eq!(end.cq.moderate(8, Duration::from_secs(1)).unwrap_err().kind(), ErrorKind::InvalidArgument);
            // The task is woken, only later.
            end.cq.moderate(100, Duration::from_millis(5)).unwrap();
            let mut messages = end.qp.messages(&end.pool, 64, 4).unwrap();
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(2)).await;
                end.qp.send(end.bytes(b"moderated")).await.0.unwrap();
                assert_eq!(*messages.next().await.unwrap().unwrap().buffer, *b"moderated");
            }
        });
    }
}
