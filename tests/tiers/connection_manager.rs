//! Connections by address and port with the queue pairs of the tiers that own their buffers.

use std::time::Instant;

use rdma_verbs::owned::{BufferPool, CompletionQueue, Finished, QueuePair, Request};
use rdma_verbs::verbs::cm::{ConnectError, ConnectionOptions, Listener, ListenerOptions, Route};
use rdma_verbs::verbs::{self, CompletionStatus, Context, ErrorKind, QueuePairState};
use support::PATIENCE;

fn end(context: &Context) -> (QueuePair, CompletionQueue, BufferPool) {
    let (pd, cq) = (context.alloc_pd().unwrap(), CompletionQueue::new(context, 64).unwrap());
    let qp = QueuePair::new(&pd, &cq, &cq).unwrap();
    qp.init().unwrap();
    (qp, cq, BufferPool::new(&pd, 1 << 16).unwrap())
}

/// Waits for a receive. Sends that have finished are dropped.
fn next_receive(cq: &CompletionQueue) -> Finished {
    loop {
        let finished = cq.wait(PATIENCE).unwrap();
        if finished.is_receive() {
            return finished;
        }
    }
}

/// Takes one connection, echoes one message, and returns the status of the receive that is posted when the client
/// disconnects.
fn echo_once(listener: &Listener) -> CompletionStatus {
    let request = listener.accept().unwrap();
    let (qp, cq, pool) = end(request.context());
    for wr_id in 1..=2 {
        qp.post_recv(pool.take(64).unwrap(), wr_id).unwrap();
    }
    let connection = request.accept(&qp, &ConnectionOptions::new().private_data(b"welcome")).unwrap();
    let message = next_receive(&cq).into_buffer().unwrap();
    qp.post_send(Request::send(message).signaled()).unwrap();
    assert!(connection.wait_disconnected(PATIENCE).unwrap());
    connection.disconnect(&qp).unwrap();
    let flushed = next_receive(&cq);
    assert_eq!(flushed.wr_id(), 2);
    let status = flushed.result().unwrap_err().status;
    assert!(flushed.into_request_buffer().into_buffer().is_some());
    status
}

#[test]
fn buffers_come_back_when_a_connection_of_the_owned_tier_ends() {
    let listener = Listener::bind("127.46.3.1:7471").unwrap();
    let server = std::thread::spawn(move || echo_once(&listener));
    let route = Route::to("127.46.3.1:7471").unwrap().from("127.46.3.2").unwrap();
    let (qp, cq, pool) = end(route.context());
    qp.post_recv(pool.take(64).unwrap(), 1).unwrap();
    let connection = route.connect(&qp, &ConnectionOptions::new()).unwrap();
    assert_eq!(&connection.private_data()[..8], b"welcome\0");
    qp.post_send(Request::send(pool.copy_from(b"hello").unwrap()).signaled()).unwrap();
    assert_eq!(*next_receive(&cq).into_buffer().unwrap(), *b"hello");
    connection.disconnect(&qp).unwrap();
    assert_eq!(qp.state().unwrap(), QueuePairState::Error);
    assert_eq!(server.join().unwrap(), CompletionStatus::WorkRequestFlushedError);
}

/// As with rdma_cm, which takes requests to the addresses that come later. Without `only_v6`, it takes those to IPv4
/// addresses.
#[test]
fn a_listener_on_all_addresses_of_ipv6_needs_none() {
    let context = verbs::open("soft:127.46.3.14").unwrap();
    let listener = ListenerOptions::new().only_v6(true).on(&context).bind("[::]:7493").unwrap();
    assert_eq!(listener.local_addr(), "[::]:7493".parse().unwrap());
    drop(listener);
    let listener = ListenerOptions::new().only_v6(false).on(&context).bind("[::]:7493").unwrap();
    let server = std::thread::spawn(move || listener.accept().unwrap().reject(b"taken").unwrap());
    let route = Route::to("127.46.3.14:7493").unwrap().from("127.46.3.15").unwrap();
    let (qp, ..) = end(route.context());
    match route.connect(&qp, &ConnectionOptions::new()) {
        Err(ConnectError::Rejected(rejected)) => assert_eq!(&rejected.private_data()[..6], b"taken\0"),
        other => panic!("{other:?}"),
    }
    server.join().unwrap();
}

#[test]
fn a_rejected_queue_pair_of_the_owned_tier_connects_after_a_reset() {
    let listener = Listener::bind("127.46.3.3:7471").unwrap();
    let server = std::thread::spawn(move || {
        listener.accept().unwrap().reject(b"not now").unwrap();
        echo_once(&listener)
    });
    let route = Route::to("127.46.3.3:7471").unwrap().from("127.46.3.4").unwrap();
    let (qp, cq, pool) = end(route.context());
    match route.connect(&qp, &ConnectionOptions::new()) {
        Err(ConnectError::Rejected(rejected)) => assert_eq!(&rejected.private_data()[..8], b"not now\0"),
        other => panic!("{other:?}"),
    }
    let ConnectError::Verb(error) = route.connect(&qp, &ConnectionOptions::new()).unwrap_err() else { panic!() };
    assert_eq!(error.kind(), ErrorKind::InvalidState, "{error}");
    assert!(qp.reset().unwrap().is_empty());
    qp.init().unwrap();
    qp.post_recv(pool.take(64).unwrap(), 1).unwrap();
    let connection = route.connect(&qp, &ConnectionOptions::new()).unwrap();
    qp.post_send(Request::send(pool.copy_from(b"hello").unwrap()).signaled()).unwrap();
    assert_eq!(*next_receive(&cq).into_buffer().unwrap(), *b"hello");
    connection.disconnect(&qp).unwrap();
    server.join().unwrap();
}

/// The peer's application does not confirm the end of the connection.
#[test]
fn the_end_of_a_device_waits_for_peers_within_a_bound() {
    let listener = Listener::bind("127.46.3.11:7471").unwrap();
    let route = Route::to("127.46.3.11:7471").unwrap().from("127.46.3.12").unwrap();
    let (own, options) = (end(route.context()), ConnectionOptions::new());
    let attempt = route.start_connect(&own.0, &options).unwrap();
    let request = listener.accept().unwrap();
    let peer = end(request.context());
    let accepted = request.start_accept(&peer.0, &options).unwrap();
    let (connection, other) = (attempt.wait().unwrap(), accepted.wait().unwrap());
    connection.disconnect(&own.0).unwrap();
    drop((connection, own));
    let start = Instant::now();
    drop(route);
    assert!((40..5_000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    assert!(other.wait_disconnected(PATIENCE).unwrap());
}

#[cfg(all(feature = "tokio", not(loom)))]
mod asynchronous {
    use std::time::Duration;

    use rdma_verbs::asynchronous::{CompletionQueue, QueuePair, RequestError};
    use rdma_verbs::verbs::cm::Request;

    use super::*;

    fn end(context: &Context) -> (QueuePair, BufferPool) {
        let pd = context.alloc_pd().unwrap();
        let qp = QueuePair::new(&pd, &CompletionQueue::new(context, 64).unwrap()).unwrap();
        qp.init().unwrap();
        (qp, BufferPool::new(&pd, 1 << 16).unwrap())
    }

    async fn echo(request: Request) {
        let (qp, pool) = end(request.context());
        let mut messages = qp.messages(&pool, 64, 4).unwrap();
        let connection = request.start_accept(&qp, &ConnectionOptions::new()).unwrap().await.unwrap();
        loop {
            let message = tokio::select! {
                message = messages.next() => message.unwrap().unwrap(),
                ended = connection.disconnected() => break ended.unwrap(),
            };
            qp.send(message.buffer).await.0.unwrap();
        }
    }

    async fn ask(server: &str, number: u64) {
        let route = Route::to(server).unwrap().from("127.46.3.6").unwrap();
        let (qp, pool) = end(route.context());
        let connection = route.start_connect(&qp, &ConnectionOptions::new()).unwrap().await.unwrap();
        for number in [number, number + 1] {
            let receiving = qp.recv(pool.take(64).unwrap());
            let sending = qp.send(pool.copy_from(&number.to_ne_bytes()).unwrap());
            let ((received, answer), (sent, _)) = tokio::join!(receiving, sending);
            sent.and(received).unwrap();
            assert_eq!(answer.to_u64(), Some(number));
        }
        let receiving = qp.recv(pool.take(64).unwrap());
        let ending = async {
            connection.disconnect(&qp).unwrap();
            connection.disconnected().await.unwrap();
        };
        let ((received, _), ()) = tokio::join!(receiving, ending);
        let Err(RequestError::Failed(failure)) = received else { panic!("{received:?}") };
        assert_eq!(failure.status, CompletionStatus::WorkRequestFlushedError);
    }

    #[tokio::test]
    async fn tasks_connect_at_once_on_one_thread() {
        let listener = Listener::bind("127.46.3.5:7471").unwrap();
        let clients = async {
            let clients: Vec<_> =
                (0..20).map(|client| tokio::spawn(async move { ask("127.46.3.5:7471", client * 10).await })).collect();
            for client in clients {
                client.await.unwrap();
            }
        };
        let serving = async {
            let mut servers = tokio::task::JoinSet::new();
            while servers.len() < 20 {
                servers.spawn(echo(listener.accept_async().await.unwrap()));
            }
            servers.join_all().await;
        };
        let all = async { tokio::join!(clients, serving) };
        tokio::time::timeout(PATIENCE, all).await.expect("all connect in time");
    }

    #[tokio::test]
    async fn dropping_an_attempt_ends_it_at_both_ends() {
        let listener = Listener::bind("127.46.3.7:7471").unwrap();
        let route = Route::to("127.46.3.7:7471").unwrap().from("127.46.3.8").unwrap();
        let (qp, _pool) = end(route.context());
        let attempt = route.start_connect(&qp, &ConnectionOptions::new()).unwrap();
        let request = listener.accept_async().await.unwrap();
        let outcome = tokio::time::timeout(Duration::from_millis(20), attempt).await;
        assert!(outcome.is_err(), "the request is not accepted: {outcome:?}");
        // The timeout has dropped it.
        let (peer, _pool) = end(request.context());
        let accepting = async { request.start_accept(&peer, &ConnectionOptions::new())?.await };
        let accepted = tokio::time::timeout(PATIENCE, accepting).await.expect("the peer learns it");
        assert!(accepted.is_err(), "{accepted:?}");
    }

    /// The active end does not take the reply, so it sends no RTU.
    #[tokio::test]
    async fn an_awaited_passive_end_keeps_its_deadline() {
        let listener = Listener::bind("127.46.3.9:7471").unwrap();
        let route = Route::to("127.46.3.9:7471").unwrap().from("127.46.3.10").unwrap();
        let (qp, _pool) = end(route.context());
        let _silent = route.start_connect(&qp, &ConnectionOptions::new()).unwrap();
        let request = listener.accept_async().await.unwrap();
        let (peer, _pool) = end(request.context());
        let options = ConnectionOptions::new().deadline(Duration::from_millis(200));
        let start = Instant::now();
        let accepted = tokio::time::timeout(PATIENCE, request.start_accept(&peer, &options).unwrap()).await;
        assert!(matches!(accepted, Ok(Err(ConnectError::TimedOut))), "{accepted:?}");
        // Without a deadline the repetitions of the REP end after 16 s.
        assert!((200..8_000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
        assert_eq!(peer.state().unwrap(), QueuePairState::Error);
    }
}
