//! Several requests with one doorbell and one future.

use rdma_verbs::asynchronous::{QueuePairOptions, RequestError};
use rdma_verbs::owned::Request;
use rdma_verbs::verbs::{CompletionStatus, ErrorKind, MemoryRegion, RemoteMemory, Rkey};
use support::ALL_ACCESS;

use super::owned_async::{End, connect, failure, give_up, on_both};

/// An end on 127.90.10.`host` that is its own peer, and memory that it may write.
fn end(host: u8, options: &QueuePairOptions) -> (End, MemoryRegion) {
    let end = End::open(&format!("127.90.10.{host}"), options);
    end.qp.connect(&end.qp.connection_info().unwrap()).unwrap();
    let region = end.pd.alloc_mr(4096, ALL_ACCESS).unwrap();
    (end, region)
}

fn writes(end: &End, remote: RemoteMemory, count: u64) -> Vec<Request> {
    (0..count).map(|number| Request::write(end.bytes(&number.to_ne_bytes()), remote)).collect()
}

#[test]
fn results_come_in_order_also_of_more_requests_than_the_queue_holds() {
    on_both(|| async {
        let (end, region) = end(1, &QueuePairOptions::default().max_send_wr(4));
        assert!(end.qp.execute_all(Vec::new()).await.is_empty());
        let count = 5 * u64::from(end.qp.cap().max_send_wr) + 1;
        // Two futures share the queue.
        let (first, second) = tokio::join!(
            end.qp.execute_all(writes(&end, region.remote(), count)),
            end.qp.execute_all(writes(&end, region.remote(), count))
        );
        for results in [first, second] {
            assert_eq!(results.len() as u64, count);
            for (number, (result, buffer)) in (0..).zip(results) {
                result.unwrap();
                assert_eq!(buffer.into_buffer().unwrap().to_u64(), Some(number));
            }
        }
        assert_eq!((end.outstanding(), end.qp.buffers_in_flight()), (0, (0, 0)));
    });
}

#[test]
fn nothing_behind_a_refused_request_is_posted() {
    on_both(|| async {
        let (end, region) = end(2, &QueuePairOptions::default());
        let mut requests = writes(&end, region.remote(), 2);
        requests.push(Request::atomic_write(end.bytes(b"too long!"), region.remote()));
        requests.extend(writes(&end, region.remote().slice(8..).unwrap(), 2));
        let results = end.qp.execute_all(requests).await;
        let kinds = results.iter().map(|(result, _)| match result {
            Ok(_) => None,
            Err(RequestError::Refused(error)) => Some(error.kind()),
            Err(other) => panic!("{other}"),
        });
        let (invalid, behind) = (Some(ErrorKind::InvalidArgument), Some(ErrorKind::InvalidState));
        assert_eq!(kinds.collect::<Vec<_>>(), [None, None, invalid, behind, behind]);
        assert_eq!(results.iter().map(|(_, buffer)| buffer.len()).collect::<Vec<_>>(), [8, 8, 9, 8, 8]);
        assert_eq!((region.load_acquire_u64(0).unwrap(), region.load_acquire_u64(8).unwrap()), (1, 0));
        drop(results);
        assert_eq!((end.outstanding(), end.qp.buffers_in_flight()), (0, (0, 0)));
    });
}

#[test]
fn a_failure_flushes_those_behind_it() {
    on_both(|| async {
        let [(end, _), (peer, region)] = [3, 5].map(|host| end(host, &QueuePairOptions::default()));
        for end in [&end, &peer] {
            end.qp.reset().unwrap();
        }
        connect(&end.qp, &peer.qp);
        let nothing = RemoteMemory::new(region.remote().addr(), Rkey(region.rkey().0 ^ 1), 64);
        let mut requests = writes(&end, region.remote(), 1);
        requests.extend(writes(&end, nothing, 1));
        requests.extend(writes(&end, region.remote(), 2));
        let mut results = end.qp.execute_all(requests).await.into_iter().map(|(result, _)| result);
        results.next().unwrap().unwrap();
        assert_eq!(failure(results.next().unwrap()).status, CompletionStatus::RemoteAccessError);
        results.for_each(|result| assert_eq!(failure(result).status, CompletionStatus::WorkRequestFlushedError));
        assert_eq!(end.outstanding(), 0);
    });
}

#[test]
fn canceled_batches_leave_nothing_behind() {
    on_both(|| async {
        let (end, region) = end(4, &QueuePairOptions::default().max_send_wr(4));
        let count = 2 * u64::from(end.qp.cap().max_send_wr);
        for polls in (0..60).map(|round| round % 6) {
            give_up(end.qp.execute_all(writes(&end, region.remote(), count)), polls).await;
        }
        assert!(
            end.qp.execute_all(writes(&end, region.remote(), count)).await.iter().all(|(result, _)| result.is_ok())
        );
        while end.qp.buffers_in_flight() != (0, 0) || end.outstanding() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(end.qp.abandoned() > 0);
    });
}
