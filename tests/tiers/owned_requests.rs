//! ATOMIC WRITE and the requests without a buffer, in the owned tier: they come back in order with the others.

use rdma_verbs::owned::{NoBuffer, QueuePairOptions, Request, RequestBuffer};
use rdma_verbs::verbs::{
    AccessFlags, Cause, CompletionOpcode, CompletionStatus, ConnectOptions, ErrorKind, FlushFlags, MemoryRegion,
    MemoryWindowBind, MemoryWindowType, Rkey,
};
use support::ALL_ACCESS;

use super::owned::End;

const FLUSHABLE: AccessFlags = ALL_ACCESS.union(AccessFlags::FLUSH_GLOBAL);

/// Two ends on 127.90.4.`first` and the following address whose queue pairs grant a FLUSH.
fn pair(first: u8) -> (End, End) {
    let options = QueuePairOptions::default().access(AccessFlags::REMOTE | AccessFlags::FLUSH_GLOBAL);
    let [left, right] = [first, first + 1].map(|host| End::open(&format!("127.90.4.{host}"), &options));
    let (left_info, right_info) = (left.qp.connection_info().unwrap(), right.qp.connection_info().unwrap());
    let options = ConnectOptions::default().min_rnr_timer(1);
    left.qp.connect_with(&right_info, &options).unwrap();
    right.qp.connect_with(&left_info, &options).unwrap();
    (left, right)
}

fn word(end: &End, value: u64) -> RequestBuffer {
    end.pool.copy_from(&value.to_ne_bytes()).unwrap().into()
}

fn region(end: &End) -> MemoryRegion {
    end.pd.alloc_mr(4096, FLUSHABLE).unwrap()
}

/// Takes a request that has no memory.
#[track_caller]
fn succeeds_without_memory(end: &End, wr_id: u64, opcode: Option<CompletionOpcode>) {
    let finished = end.next();
    let success = finished.result().unwrap();
    assert_eq!((finished.wr_id(), success.map(|success| success.opcode)), (wr_id, opcode));
    assert!(matches!(finished.request_buffer(), RequestBuffer::None) && !finished.is_receive());
    assert!(matches!(finished.into_buffer(), Err(NoBuffer::None)));
}

#[test]
fn requests_with_and_without_memory_come_back_in_order() {
    let (a, b) = pair(1);
    let log = region(&b);
    for round in 0..20 {
        a.post(Request::write(a.pool.copy_from(b"entry").unwrap(), log.remote().slice(64..).unwrap()).wr_id(1));
        a.post(Request::flush(log.remote(), FlushFlags::GLOBAL).wr_id(2));
        a.post(Request::atomic_write(word(&a, round), log.remote()).wr_id(3));
        a.post(Request::flush(log.remote(), FlushFlags::GLOBAL | FlushFlags::WHOLE_REGION).wr_id(4).signaled());
        assert_eq!((a.qp.buffers_in_flight(), a.outstanding()), ((4, 0), 2));
        assert_eq!(*a.succeeds(1), *b"entry");
        succeeds_without_memory(&a, 2, None);
        assert_eq!(a.succeeds(3).to_u64(), Some(round));
        succeeds_without_memory(&a, 4, Some(CompletionOpcode::Flush));
        assert_eq!((log.load_acquire_u64(0).unwrap(), log.to_vec(64..69).unwrap()), (round, b"entry".to_vec()));
        assert_eq!((a.qp.buffers_in_flight(), a.outstanding()), ((0, 0), 0));
    }
}

#[test]
fn messages_without_a_payload_need_no_memory() {
    let (a, b) = pair(3);
    let target = region(&b);
    for wr_id in 1..4 {
        b.qp.post_recv(RequestBuffer::None, wr_id).unwrap();
    }
    a.post(Request::send(RequestBuffer::None).wr_id(11));
    a.post(Request::send_with_immediate(RequestBuffer::None, 7).wr_id(12));
    a.post(Request::write_with_immediate(word(&a, 5), target.remote(), 8).wr_id(13).signaled());
    for (wr_id, immediate) in [(1, None), (2, Some(7)), (3, Some(8))] {
        let received = b.next();
        assert_eq!((received.wr_id(), received.result().unwrap().unwrap().immediate), (wr_id, immediate));
        assert!(matches!(received.into_request_buffer(), RequestBuffer::None));
    }
    assert_eq!(target.load_acquire_u64(0).unwrap(), 5);
    succeeds_without_memory(&a, 11, None);
    succeeds_without_memory(&a, 12, None);
    assert_eq!(a.succeeds(13).to_u64(), Some(5));

    // A message with a payload does not fit.
    b.qp.post_recv(RequestBuffer::None, 4).unwrap();
    a.post(a.send(14, b"too long"));
    assert!(matches!(b.fails(4, CompletionStatus::LocalLengthError), RequestBuffer::None));
    a.fails(14, CompletionStatus::RemoteInvalidRequestError);
}

#[test]
fn refused_requests_return_their_buffers() {
    let (a, b) = pair(5);
    let target = region(&b);
    let remote = target.remote();
    let refused = |request: Request| {
        let refused = a.qp.post_send(request).unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::InvalidArgument, "{refused}");
        refused.given.into_request_buffer()
    };
    let long = a.pool.copy_from(&[1; 9]).unwrap();
    assert_eq!(refused(Request::atomic_write(long, remote)).len(), 9);
    assert_eq!(refused(Request::atomic_write(word(&a, 1), remote.slice(4..).unwrap())).len(), 8);
    let without = [
        Request::atomic_write(RequestBuffer::None, remote),
        Request::fetch_and_add(RequestBuffer::None, remote, 1),
        Request::read(RequestBuffer::None, remote),
        Request::flush(remote, FlushFlags::empty()),
    ];
    for request in without {
        assert!(matches!(refused(request), RequestBuffer::None));
    }
    assert_eq!((a.outstanding(), a.qp.buffers_in_flight()), (0, (0, 0)));
}

#[test]
fn failures_and_reset_return_requests_without_memory() {
    let (a, b) = pair(7);
    let forbidden = b.pd.alloc_mr(64, ALL_ACCESS).unwrap();
    a.post(Request::flush(forbidden.remote(), FlushFlags::GLOBAL).wr_id(1));
    let _ = a.qp.post_send(Request::flush(forbidden.remote(), FlushFlags::GLOBAL).wr_id(2));
    assert!(matches!(a.fails(1, CompletionStatus::RemoteAccessError), RequestBuffer::None));
    assert!(matches!(a.fails(2, CompletionStatus::WorkRequestFlushedError), RequestBuffer::None));
    a.post(Request::flush(forbidden.remote(), FlushFlags::GLOBAL).wr_id(3));
    a.post(Request::atomic_write(word(&a, 9), forbidden.remote()).wr_id(4));
    let returned = a.qp.reset().unwrap();
    assert_eq!(returned.iter().map(|finished| finished.wr_id()).collect::<Vec<_>>(), [3, 4]);
    assert!(returned.iter().all(|finished| finished.result().unwrap_err().cause == Cause::Destroyed));
    assert!(matches!(returned[0].request_buffer(), RequestBuffer::None));
    assert_eq!(returned[1].request_buffer().len(), 8);
}

#[test]
fn windows_are_bound_in_order_and_invalidated() {
    let (a, b) = pair(9);
    let bindable = b.pd.alloc_mr(4096, ALL_ACCESS | AccessFlags::MEMORY_WINDOW_BIND).unwrap();
    let (first, second) =
        (b.pd.alloc_mw(MemoryWindowType::Type1).unwrap(), b.pd.alloc_mw(MemoryWindowType::Type2).unwrap());
    let bind = MemoryWindowBind::new(bindable.slice(64..128).unwrap(), AccessFlags::REMOTE_WRITE);
    let write = |remote| Request::write(a.pool.copy_from(b"written").unwrap(), remote).wr_id(5).signaled();
    let mut keys = Vec::new();
    for wr_id in 1..4 {
        keys.push(b.qp.bind_mw(&first, &bind.wr_id(wr_id)).unwrap());
    }
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && first.rkey() == keys[2]);
    let key = b.qp.bind_mw_type2(&second, 7, &bind.wr_id(4).signaled()).unwrap();
    assert_eq!((key, b.qp.buffers_in_flight()), (second.rkey_with(7), (4, 0)));
    for wr_id in 1..4 {
        succeeds_without_memory(&b, wr_id, None);
    }
    succeeds_without_memory(&b, 4, Some(CompletionOpcode::BindMemoryWindow));
    for rkey in [keys[2], key] {
        a.post(write(bind.remote(rkey)));
        a.succeeds(5);
    }
    assert_eq!(bindable.to_vec(64..71).unwrap(), b"written");

    b.post(Request::local_invalidate(key).wr_id(6).signaled());
    succeeds_without_memory(&b, 6, Some(CompletionOpcode::LocalInvalidate));
    a.post(write(bind.remote(key)));
    a.fails(5, CompletionStatus::RemoteAccessError);
}

#[test]
fn binds_that_cannot_be_posted_leave_nothing_behind() {
    let (a, b) = pair(11);
    let bindable = a.pd.alloc_mr(64, ALL_ACCESS | AccessFlags::MEMORY_WINDOW_BIND).unwrap();
    let bind = MemoryWindowBind::new(&bindable, AccessFlags::REMOTE_READ).wr_id(1);
    let [first, second] = [MemoryWindowType::Type1, MemoryWindowType::Type2].map(|kind| a.pd.alloc_mw(kind).unwrap());
    let before = first.rkey();
    let error = a.qp.bind_mw(&second, &bind).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.to_string().contains("bind_mw_type2"), "{error}");
    let error = a.qp.bind_mw_type2(&first, 1, &bind).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.to_string().contains("bind_mw"), "{error}");
    let elsewhere = b.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
    assert_eq!(a.qp.bind_mw(&elsewhere, &bind).unwrap_err().kind(), ErrorKind::InvalidArgument);
    for _ in 0..a.qp.cap().max_send_wr {
        a.qp.bind_mw(&first, &bind).unwrap();
    }
    let posted = first.rkey();
    let error = a.qp.bind_mw(&first, &bind).unwrap_err();
    assert_eq!((error.kind(), first.rkey()), (ErrorKind::QueueFull, posted));
    assert_ne!(posted, before);
    assert_eq!(a.qp.reset().unwrap().len(), a.qp.cap().max_send_wr as usize);
    assert_eq!(a.qp.buffers_in_flight(), (0, 0));
}

/// The region and the window belong to the verbs tier: a waiting bind keeps neither alive, and fails if one is gone.
#[test]
fn a_bind_whose_region_or_window_is_gone_fails() {
    for drops_region in [true, false] {
        let (a, b) = pair(13);
        let bindable = a.pd.alloc_mr(64, ALL_ACCESS | AccessFlags::MEMORY_WINDOW_BIND).unwrap();
        let window = a.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
        // The message waits for a receive, and the bind for the message.
        a.post(a.send(1, b"waits"));
        let bind = MemoryWindowBind::new(&bindable, AccessFlags::REMOTE_READ).wr_id(2);
        a.qp.bind_mw(&window, &bind).unwrap();
        if drops_region {
            drop(bindable)
        } else {
            drop(window)
        }
        b.receive(3, 64);
        b.succeeds(3);
        assert_eq!(*a.succeeds(1), *b"waits");
        a.fails(2, CompletionStatus::MemoryWindowBindError);
        assert_eq!((a.qp.buffers_in_flight(), a.outstanding()), ((0, 0), 0));
    }
}

#[test]
fn buffers_have_no_key_that_can_be_invalidated() {
    let (a, _b) = pair(15);
    a.receive(1, 64);
    for key in [0, 1, 0x100, u32::MAX] {
        a.post(Request::local_invalidate(Rkey(key)).wr_id(2));
        assert!(a.next().result().is_err(), "key {key:#x}");
        a.qp.reset().unwrap();
        a.qp.connect(&a.qp.connection_info().unwrap()).unwrap();
    }
}
