//! Datagrams and multicast as futures and streams.

use std::net::Ipv4Addr;

use rdma_verbs::asynchronous::{QueuePairOptions, RequestError};
use rdma_verbs::verbs::{AddressHandle, AddressVector, ErrorKind, Gid, Qkey, Qpn, QueuePairType};

use super::owned_async::{End, give_up, on_both};

const QKEY: Qkey = Qkey(0x1234);
/// Bytes in front of the payload.
const HEADER: usize = 40;

/// An end on 127.90.7.`host` with a datagram queue pair.
fn end(host: u8) -> End {
    end_with(host, QueuePairOptions::default())
}

fn end_with(host: u8, options: QueuePairOptions) -> End {
    let options = options.qp_type(QueuePairType::UnreliableDatagram).qkey(QKEY);
    let end = End::open(&format!("127.90.7.{host}"), &options);
    end.qp.bring_up_ud().unwrap();
    end
}

fn pair(first: u8) -> (End, End) {
    (end(first), end(first + 1))
}

fn path(from: &End, to: &End) -> AddressHandle {
    from.pd.create_ah(&AddressVector::new(to.context.query_gid(1, 0).unwrap().gid, 0)).unwrap()
}

#[test]
fn datagrams_are_futures_and_messages() {
    on_both(|| async {
        let (a, b) = pair(1);
        let handle = path(&a, &b);
        let mut messages = b.qp.messages(&b.pool, HEADER + 64, 4).unwrap();
        for number in 0..20u64 {
            let (sent, buffer) = a.qp.send_to(a.bytes(&number.to_ne_bytes()), &handle, b.qp.qpn(), QKEY).await;
            sent.unwrap();
            assert_eq!(buffer.to_u64(), Some(number));
            let message = messages.next().await.unwrap().unwrap();
            assert_eq!((message.payload(), message.success.source_qpn), (&number.to_ne_bytes()[..], a.qp.qpn()));
        }
        // A datagram that is received without a stream, and to which the application replies.
        let back = path(&b, &a);
        // The receive is posted first: a datagram that finds none is lost.
        let (received, sent) = tokio::join!(
            a.qp.recv(a.pool.take(HEADER + 64).unwrap()),
            b.qp.send_to(b.bytes(b"question"), &back, a.qp.qpn(), QKEY)
        );
        sent.0.unwrap();
        let (success, buffer) = (received.0.unwrap(), received.1);
        assert_eq!(buffer[HEADER..], *b"question");
        let back = a.pd.create_ah_from_success(&success, buffer.first_chunk().unwrap(), 1).unwrap();
        a.qp.send_to(a.bytes(b"answer"), &back, success.source_qpn, QKEY).await.0.unwrap();
        let answer = messages.next().await.unwrap().unwrap();
        assert_eq!(answer.payload(), b"answer");
        assert_eq!(answer.route_header().unwrap()[..], answer.buffer[..HEADER]);
    });
}

#[test]
fn members_of_a_group_get_messages() {
    on_both(|| async {
        let (a, b) = pair(3);
        let group: Gid = Ipv4Addr::new(239, 90, 7, 3).into();
        b.qp.attach_mcast(group).unwrap();
        let mut messages = b.qp.messages(&b.pool, HEADER + 64, 4).unwrap();
        let members = a.pd.create_ah(&AddressVector::new(group, 0)).unwrap();
        a.qp.send_to(a.bytes(b"to all"), &members, Qpn::MULTICAST, QKEY).await.0.unwrap();
        assert_eq!(messages.next().await.unwrap().unwrap().payload(), b"to all");
        b.qp.detach_mcast(group).unwrap();
        assert_eq!(b.qp.detach_mcast(group).unwrap_err().kind(), ErrorKind::InvalidArgument);
    });
}

#[test]
fn refused_and_canceled_datagrams_leave_nothing_behind() {
    on_both(|| async {
        let (a, b) = (end_with(5, QueuePairOptions::default().max_send_wr(4)), end(6));
        let handle = path(&a, &b);
        let (refused, buffer) = a.qp.send(a.bytes(b"no destination")).await;
        assert!(matches!(refused, Err(RequestError::Refused(error)) if error.kind() == ErrorKind::InvalidArgument));
        assert_eq!(*buffer, *b"no destination");
        drop(buffer);
        let (refused, buffer) = a.qp.send_to(a.bytes(&[1; 65_536]), &handle, b.qp.qpn(), QKEY).await;
        assert!(refused.is_err() && buffer.len() == 65_536);
        drop(buffer);
        for polls in (0..100).map(|round| round % 3) {
            give_up(a.qp.send_to(a.bytes(b"canceled"), &handle, b.qp.qpn(), QKEY), polls).await;
        }
        a.qp.send_to(a.bytes(b"last"), &handle, b.qp.qpn(), QKEY).await.0.unwrap();
        while a.qp.buffers_in_flight() != (0, 0) || a.outstanding() > 0 {
            tokio::task::yield_now().await;
        }
    });
}
