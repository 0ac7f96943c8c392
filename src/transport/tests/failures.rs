//! Requests that fail midway: none of their state may stay pending.

use super::*;

/// The memory of the request that the probe repeats is gone, while an older request is not acknowledged.
#[test]
fn a_probe_whose_memory_is_gone_ends() {
    let mut pair = Pair::new(NATIVE);
    let end = &mut pair.ends[0];
    let other = Backing::from_vec(vec![0; 4096]);
    let other = end.table.register(DomainId(1), other, Some(0x90_0000), AccessFlags::LOCAL_WRITE).unwrap();
    let (now, rkey) = (pair.now, pair.ends[1].region.rkey());
    let write = Operation::Write { remote_addr: 0x10_0000, rkey };
    let end = &mut pair.ends[0];
    let kept = end.sge(0, 8);
    end.post(now, write, &[kept]);
    end.post(now, write, &[Sge { addr: 0x90_0000, length: 8, lkey: other.lkey() }]);
    assert_eq!(end.transmit(now).len(), 2);
    assert!(end.table.deregister(&other));
    let probe_at = end.endpoint.next_timeout().unwrap();
    end.endpoint.handle_timeout(probe_at);
    assert!(end.transmit(probe_at).is_empty(), "the probe cannot be sent");
    pair.drive(Duration::from_secs(1));
    let statuses: Vec<_> = pair.ends[0].poll().iter().map(|completion| completion.status).collect();
    assert_eq!(statuses, [CompletionStatus::Success, CompletionStatus::LocalProtectionError]);
}

/// The standard's local access error: at the responder, for an RDMA WRITE with immediate data that may not write.
#[test]
fn a_refused_write_with_immediate_completes_the_receive_in_local_access_error() {
    for length in [8, 3_000] {
        let mut pair = Pair::new(NATIVE);
        let (local, into) = (pair.ends[0].sge(0, length), pair.ends[1].sge(0, 8));
        (0..2).for_each(|_| pair.ends[1].post_receive(&[into]));
        let remote_addr = 0x10_0000;
        let write = Operation::WriteWithImmediate { remote_addr, rkey: Rkey(1), immediate: 5 };
        pair.ends[0].post(pair.now, write, &[local]);
        pair.drive(Duration::from_millis(1));
        assert_eq!(pair.ends[0].poll()[0].status, CompletionStatus::RemoteAccessError);
        let statuses: Vec<_> = pair.ends[1].poll().iter().map(|completion| completion.status).collect();
        // A longer WRITE is refused at its first packet, which takes no receive.
        let first =
            if length == 8 { CompletionStatus::LocalAccessError } else { CompletionStatus::WorkRequestFlushedError };
        assert_eq!(statuses, [first, CompletionStatus::WorkRequestFlushedError], "{length} bytes");
    }
}

/// A READ that is refused when its response is due says nothing about the message that came after it.
#[test]
fn a_late_refusal_of_a_read_does_not_fail_the_next_messages_receive() {
    let mut pair = Pair::new(NATIVE);
    let read_from = Backing::from_vec(vec![0; 4096]);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
    let read_from = pair.ends[1].table.register(DomainId(1), read_from, Some(0x90_0000), access).unwrap();
    let (into, local) = (pair.ends[1].sge(0, 4_096), pair.ends[0].sge(0, 3_000));
    pair.ends[1].post_receive(&[into]);
    let read = Operation::Read { remote_addr: 0x90_0000, rkey: read_from.rkey() };
    pair.ends[0].post(pair.now, read, &[pair.ends[0].sge(0, 8)]);
    pair.ends[0].post(pair.now, Operation::Send, &[local]);
    let source = pair.ends[0].address;
    // The READ, and the first of several packets of the SEND.
    for _ in 0..2 {
        let packets = pair.ends[0].transmit(pair.now);
        pair.ends[1].handle(pair.now, source, &packets[..1]);
    }
    assert!(pair.ends[1].table.deregister(&read_from));
    pair.ends[1].transmit(pair.now);
    let statuses: Vec<_> = pair.ends[1].poll().iter().map(|completion| completion.status).collect();
    assert_eq!(statuses, [CompletionStatus::WorkRequestFlushedError]);
}
