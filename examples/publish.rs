//! Publish and subscribe with multicast datagrams: one send reaches all subscribers.
//!
//! Datagrams are neither acknowledged nor repeated. A subscriber that has no receive posted, or whose socket is full,
//! misses messages; the numbers in them show how many.
//!
//! `cargo run --example publish`

use std::error::Error;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rdma_verbs::verbs::cm::MulticastGroup;
use rdma_verbs::verbs::{
    AccessFlags, CompletionQueue, Payload, ProtectionDomain, QueuePair, QueuePairOptions, QueuePairType,
    ReceiveRequest, SendRequest,
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const MESSAGES: u64 = 2_000;
/// The number that ends a subscription.
const END: u64 = u64::MAX;
const RECEIVES: usize = 64;
/// A global route header is before each received datagram.
const HEADER_BYTES: usize = 40;
const PLACE_BYTES: usize = HEADER_BYTES + 8;
const WAIT: Duration = Duration::from_secs(10);

fn group_at(address: &str) -> Outcome<MulticastGroup> {
    Ok(MulticastGroup::via(address, "239.46.1.40".parse::<IpAddr>()?)?)
}

fn open(group: &MulticastGroup) -> Outcome<(ProtectionDomain, CompletionQueue, QueuePair)> {
    let (pd, cq) = (group.context().alloc_pd()?, group.context().create_cq(RECEIVES as u32)?);
    let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(group.qkey());
    let qp = pd.create_qp_with(&cq, &cq, &options.max_recv_wr(RECEIVES as u32))?;
    qp.bring_up_ud()?;
    Ok((pd, cq, qp))
}

/// Receives until the publisher ends, and drops `joined` when it can. Returns the number of messages that arrived.
fn subscribe(address: &str, joined: Sender<()>) -> Outcome<u64> {
    let group = group_at(address)?;
    let (pd, cq, qp) = open(&group)?;
    let places = pd.alloc_mr(RECEIVES * PLACE_BYTES, AccessFlags::LOCAL_WRITE)?;
    let post = |place: usize| -> Outcome<()> {
        let memory = places.slice(place * PLACE_BYTES..(place + 1) * PLACE_BYTES)?;
        Ok(qp.post_recv(&[ReceiveRequest::new(memory).wr_id(place as u64)])?)
    };
    (0..RECEIVES).try_for_each(post)?;
    let membership = group.join(&qp)?;
    drop(joined);
    let (mut arrived, mut next) = (0, 0);
    loop {
        let completion = cq.wait(WAIT)?;
        completion.result()?;
        let place = completion.wr_id() as usize;
        let start = place * PLACE_BYTES + HEADER_BYTES;
        let number = u64::from_be_bytes(places.to_vec(start..start + 8)?.as_slice().try_into()?);
        post(place)?;
        if number == END {
            membership.leave()?;
            return Ok(arrived);
        }
        assert!(number >= next, "message {number} after {next}");
        (arrived, next) = (arrived + 1, number + 1);
    }
}

fn publish(address: &str, joined: &Receiver<()>) -> Outcome<()> {
    let group = group_at(address)?;
    let (pd, cq, qp) = open(&group)?;
    let members = pd.create_ah(&group.address())?;
    // Nothing is sent through this channel: the wait ends when each subscriber has joined, or failed.
    let _ = joined.recv();
    // The end is repeated: a subscriber may miss it, too.
    for number in (0..MESSAGES).chain([END; 20]) {
        let message = number.to_be_bytes();
        let request = SendRequest::send_to(Payload::inline(&message), &members, group.qpn(), group.qkey());
        qp.post_send(&[request.signaled()])?;
        cq.wait(WAIT)?.result()?;
        std::thread::sleep(if number == END { Duration::from_millis(10) } else { Duration::from_micros(20) });
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let addresses = ["127.0.0.2", "127.0.0.3", "127.0.0.4"];
    let (joins, joined) = channel();
    let arrived = std::thread::scope(|scope| {
        let subscribers = addresses.map(|address| {
            let joined = joins.clone();
            scope.spawn(move || subscribe(address, joined))
        });
        drop(joins);
        publish("127.0.0.1", &joined)?;
        let counts = subscribers.into_iter().map(|subscriber| subscriber.join().expect("no subscriber panics"));
        counts.collect::<Outcome<Vec<u64>>>()
    })?;
    assert!(arrived.iter().all(|count| *count > 0), "{arrived:?}");
    println!("of {MESSAGES} messages, {arrived:?} arrived at the subscribers");
    Ok(())
}
