//! ATOMIC WRITE and the requests without a buffer, as futures.

use rdma_verbs::asynchronous::{QueuePair, QueuePairOptions, RequestError};
use rdma_verbs::owned::{Request, RequestBuffer};
use rdma_verbs::verbs::{
    AccessFlags, CompletionOpcode, CompletionStatus, ErrorKind, FlushFlags, MemoryWindowBind, MemoryWindowType,
};
use support::ALL_ACCESS;

use super::owned_async::{End, connect, failure, give_up, on_both};

/// Two connected ends on 127.90.5.`first` and the following address whose queue pairs grant a FLUSH.
fn pair_with(first: u8, options: QueuePairOptions) -> (End, End) {
    let options = options.access(AccessFlags::REMOTE | AccessFlags::FLUSH_GLOBAL);
    let [left, right] = [first, first + 1].map(|host| End::open(&format!("127.90.5.{host}"), &options));
    connect(&left.qp, &right.qp);
    (left, right)
}

fn pair(first: u8) -> (End, End) {
    pair_with(first, QueuePairOptions::default())
}

#[test]
fn requests_without_a_buffer_are_futures() {
    on_both(|| async {
        let (a, b) = pair(1);
        let log = b.pd.alloc_mr(4096, ALL_ACCESS | AccessFlags::FLUSH_GLOBAL).unwrap();
        let (written, flushed, word) = tokio::join!(
            a.qp.write(a.bytes(b"entry"), log.remote().slice(64..).unwrap()),
            a.qp.flush(log.remote(), FlushFlags::GLOBAL),
            a.qp.atomic_write(a.bytes(&7u64.to_ne_bytes()), log.remote()),
        );
        written.0.unwrap();
        assert_eq!(flushed.unwrap().opcode, CompletionOpcode::Flush);
        word.0.unwrap();
        assert_eq!((*word.1).len(), 8);
        assert_eq!((log.load_acquire_u64(0).unwrap(), log.to_vec(64..69).unwrap()), (7, b"entry".to_vec()));

        let (sent, received) = tokio::join!(a.qp.send(RequestBuffer::None), b.qp.recv(RequestBuffer::None));
        sent.0.unwrap();
        assert_eq!(received.0.unwrap().byte_len, 0);
        let (result, buffer) = a.qp.execute(Request::flush(log.remote(), FlushFlags::GLOBAL)).await;
        assert!(result.is_ok() && matches!(buffer, RequestBuffer::None));
        drop((written.1, word.1));
        assert_eq!((a.outstanding(), a.qp.buffers_in_flight()), (0, (0, 0)));
    });
}

#[test]
fn windows_are_bound_and_invalidated() {
    on_both(|| async {
        let (a, b) = pair(3);
        let bindable = b.pd.alloc_mr(64, ALL_ACCESS | AccessFlags::MEMORY_WINDOW_BIND).unwrap();
        let bind = MemoryWindowBind::new(&bindable, AccessFlags::REMOTE_WRITE);
        let first = b.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
        let second = b.pd.alloc_mw(MemoryWindowType::Type2).unwrap();
        let keys = [b.qp.bind_mw(&first, &bind).await.unwrap(), b.qp.bind_mw_type2(&second, 3, &bind).await.unwrap()];
        for key in keys {
            a.qp.write(a.bytes(b"through"), bind.remote(key)).await.0.unwrap();
        }
        b.qp.local_invalidate(keys[1]).await.unwrap();
        let refused = a.qp.write(a.bytes(b"too late"), bind.remote(keys[1])).await.0;
        assert_eq!(failure(refused).status, CompletionStatus::RemoteAccessError);

        let wrong = b.qp.bind_mw(&second, &bind).await;
        assert!(matches!(wrong, Err(RequestError::Refused(error)) if error.kind() == ErrorKind::InvalidArgument));
    });
}

#[test]
fn refused_requests_leave_their_slot() {
    on_both(|| async {
        let (a, b) = pair_with(5, QueuePairOptions::default().max_send_wr(1));
        let target = b.pd.alloc_mr(64, ALL_ACCESS | AccessFlags::FLUSH_GLOBAL).unwrap();
        for _ in 0..2 * a.qp.cap().max_send_wr {
            let refused = a.qp.flush(target.remote(), FlushFlags::empty()).await;
            assert!(matches!(refused, Err(RequestError::Refused(error)) if error.kind() == ErrorKind::InvalidArgument));
            let (refused, buffer) = a.qp.atomic_write(a.bytes(b"too long!"), target.remote()).await;
            assert!(matches!(refused, Err(RequestError::Refused(_))) && *buffer == *b"too long!");
        }
        a.qp.flush(target.remote(), FlushFlags::GLOBAL).await.unwrap();
    });
}

/// Futures are dropped before, while and after their requests are posted: their slots come back.
#[test]
fn canceled_requests_leave_nothing_behind() {
    async fn canceled(qp: &QueuePair, polls: usize, future: impl Future) -> bool {
        let is_canceled = give_up(future, polls).await.is_none();
        assert!(qp.buffers_in_flight().0 <= qp.cap().max_send_wr as usize);
        is_canceled
    }
    on_both(|| async {
        let (a, b) = pair_with(7, QueuePairOptions::default().max_send_wr(4));
        let target = b.pd.alloc_mr(64, ALL_ACCESS | AccessFlags::FLUSH_GLOBAL).unwrap();
        let bindable = a.pd.alloc_mr(64, ALL_ACCESS | AccessFlags::MEMORY_WINDOW_BIND).unwrap();
        let window = a.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
        let bind = MemoryWindowBind::new(&bindable, AccessFlags::REMOTE_READ);
        let mut count = 0;
        for polls in (0..200).map(|round| round % 4) {
            count += usize::from(canceled(&a.qp, polls, a.qp.flush(target.remote(), FlushFlags::GLOBAL)).await);
            count += usize::from(canceled(&a.qp, polls, a.qp.bind_mw(&window, &bind)).await);
            let word = a.bytes(&1u64.to_ne_bytes());
            count += usize::from(canceled(&a.qp, polls, a.qp.atomic_write(word, target.remote())).await);
        }
        assert!(count > 200, "{count} were canceled");
        a.qp.flush(target.remote(), FlushFlags::GLOBAL).await.unwrap();
        while a.qp.buffers_in_flight() != (0, 0) || a.outstanding() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(a.qp.abandoned() > 0, "{} came back later", a.qp.abandoned());
    });
}
