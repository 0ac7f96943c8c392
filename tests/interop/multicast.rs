//! interop_multicast: exchanges multicasts with the kernel's member of a group, which `multicast.c` is.
//!
//! ```text
//! interop_multicast DEVICE GROUP HOST:PORT
//! ```

use std::error::Error;
use std::io::Write;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use rdma_verbs::verbs::{
    self, AccessFlags, AddressVector, Gid, GlobalRouteHeader, Payload, Qkey, Qpn, QueuePairOptions, QueuePairType,
    ReceiveRequest, SendRequest,
};

const QKEY: Qkey = Qkey(0x31);
const PATIENCE: Duration = Duration::from_secs(20);
const SAID: usize = 100;
const HEARD: usize = 200;
const IMMEDIATE: u32 = 0x31;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (7 * index + length) as u8).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, group, peer] = &arguments[..] else { return Err("usage: interop_multicast DEVICE GROUP PEER".into()) };
    let group: Gid = group.parse::<IpAddr>()?.into();
    let context = verbs::open(device)?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(QKEY);
    let qp = pd.create_qp_with(&cq, &cq, &options.max_inline_data(SAID as u32))?;
    qp.bring_up_ud()?;
    let inbox = pd.alloc_mr(1024, AccessFlags::LOCAL_WRITE)?;
    qp.post_recv(&[
        ReceiveRequest::new(inbox.slice(..512)?).wr_id(1),
        ReceiveRequest::new(inbox.slice(512..)?).wr_id(2),
    ])?;
    qp.attach_mcast(group)?;
    // The peer listens once its member is attached.
    let mut stream = TcpStream::connect(peer)?;
    let members = pd.create_ah(&AddressVector::new(group, 0))?;
    let bytes = pattern(SAID);
    let said = Payload::inline(&bytes);
    qp.post_send(&[SendRequest::send_to_with_immediate(said, &members, Qpn::MULTICAST, QKEY, IMMEDIATE)])?;

    // The local message first, then the peer's.
    for (wr_id, length, offset) in [(1, SAID, 0), (2, HEARD, 512)] {
        let completion = cq.wait(PATIENCE)?;
        let done = completion.result()?;
        if (completion.wr_id(), done.byte_len as usize) != (wr_id, GlobalRouteHeader::BYTES + length) {
            return Err(format!("{completion:?} instead of {length} bytes").into());
        }
        let found = inbox.to_vec(offset..offset + done.byte_len as usize)?;
        let (header, message) = found.split_at(GlobalRouteHeader::BYTES);
        let header = header.first_chunk().and_then(GlobalRouteHeader::from_bytes).ok_or("no route header")?;
        if message != pattern(length) || Gid::from(header.destination) != group {
            return Err(format!("message {wr_id} is wrong: {header:?}").into());
        }
        println!("{length} bytes from {}, hop limit {}", header.source, header.hop_limit);
    }
    stream.write_all(b"!")?;
    Ok(())
}
