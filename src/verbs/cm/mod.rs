//! The connection manager: connections by address and port, like those of TCP.
//!
//! It speaks the protocol of Linux' `rdma_cm`, so that the other end may be any program that uses librdmacm, on
//! Soft-RoCE or on an adapter. On software devices it needs nothing but UDP port 4791. On RoCE adapters it uses the
//! system's librdmacm, which is loaded when it is first needed; an address of such an adapter selects it.
//!
//! If both ends are this crate, on any hosts, they agree on a key of the connection with the same messages, and drop
//! packets without it: a sender that does not see the traffic cannot forge them.
//!
//! ```text
//!  Listener::bind ─ accept                                Route::to
//!        │                          REQ: private data         │
//!     Request  ◄──────────────────────────────────────── connect
//!        │ accept, or reject                                  │
//!        │                          REP: private data         │
//!        ├────────────────────────────────────────────►  Connection
//!        │                          RTU                       │
//!   Connection ◄──────────────────────────────────────────────┤
//!        │                          DREQ, DREP                │
//!  wait_disconnected ◄─────────────────────────────────── disconnect
//! ```
//!
//! Each program brings its own queue pair, of any tier, and posts its receives first, for which
//! [`init`](crate::verbs::QueuePair::init) prepares the queue pair; the connection manager makes the other changes of
//! its state. The addresses choose the device: [`Route::context`] and [`Request::context`] return it.
//!
//! | | blocks | does not block |
//! |---|---|---|
//! | listen | [`Listener::accept`] | [`Listener::descriptors`], [`Listener::poll_accept`] |
//! | accept | [`Request::accept`] | [`Request::start_accept`] |
//! | connect | [`Route::connect`] | [`Route::start_connect`] |
//! | end | [`Connection::wait_disconnected`] | [`Connection::as_fd`], [`Connection::disconnected`] |
//!
//! | this module | librdmacm |
//! |---|---|
//! | [`Listener::bind`] | `rdma_bind_addr`, `rdma_listen` |
//! | [`Listener::accept`] | the event `CONNECT_REQUEST` |
//! | [`Request::accept`], [`Request::reject`] | `rdma_accept`, `rdma_reject` |
//! | [`Route::to`], [`Route::from`] | `rdma_resolve_addr`, `rdma_resolve_route` |
//! | [`Route::connect`] | `rdma_connect` and the event `ESTABLISHED` |
//! | [`Connection::disconnect`] | `rdma_disconnect` |
//! | [`Connection::wait_disconnected`] | the event `DISCONNECTED` |
//! | [`Route::resolve_datagram`], [`DatagramListener`] | the same verbs in the port space `RDMA_PS_UDP` |
//! | [`MulticastGroup::join`] | `rdma_join_multicast` |
//!
//! A waiting verb has a form that does not block, and a future of any runtime: [`Route::start_connect`] and
//! [`Request::start_accept`] return a [`PendingConnection`], which is both.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use rdma_verbs::verbs::cm::{ConnectionOptions, Listener, Route};
//! use rdma_verbs::verbs::{AccessFlags, Context, MemoryRegion, QueuePair, ReceiveRequest, SendRequest};
//!
//! /// A queue pair, and memory with a posted receive.
//! fn end(context: &Context) -> rdma_verbs::verbs::Result<(QueuePair, MemoryRegion)> {
//!     let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
//!     let (qp, mr) = (pd.create_qp(&cq, &cq)?, pd.alloc_mr(64, AccessFlags::LOCAL_WRITE)?);
//!     qp.init()?;
//!     qp.post_recv(&[ReceiveRequest::new(&mr)])?;
//!     Ok((qp, mr))
//! }
//!
//! let listener = Listener::bind("127.46.1.6:7471")?;
//! let server = std::thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     let request = listener.accept()?;
//!     assert_eq!(&request.private_data()[..5], b"hello");
//!     let (qp, mr) = end(request.context())?;
//!     let connection = request.accept(&qp, &ConnectionOptions::new())?;
//!     qp.recv_cq().wait(Duration::from_secs(10))?.result()?;
//!     qp.post_send(&[SendRequest::send(&mr)])?;
//!     connection.wait_disconnected(Duration::from_secs(10))?;
//!     Ok(())
//! });
//!
//! let route = Route::to("127.46.1.6:7471")?.from("127.46.1.7")?;
//! let (qp, mr) = end(route.context())?;
//! let connection = route.connect(&qp, &ConnectionOptions::new().private_data(b"hello"))?;
//! mr.write_at(0, b"echo me")?;
//! qp.post_send(&[SendRequest::send(&mr)])?;
//! qp.recv_cq().wait(Duration::from_secs(10))?.result()?;
//! connection.disconnect(&qp)?;
//! server.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! # Errors
//!
//! [`ConnectError`] tells the causes apart, which mean different things to try:
//!
//! * [`Rejected`](ConnectError::Rejected): RDMA works on the peer's address. Either no program listens on the port
//!   ([`Rejected::is_no_listener`]): start it, or correct the port. Or the program refuses, and
//!   [`Rejected::private_data`] may say why.
//! * [`Unreachable`](ConnectError::Unreachable): no response. The host is down, a firewall drops UDP port 4791, or no
//!   program and no adapter uses RDMA on that address.
//! * [`TimedOut`](ConnectError::TimedOut): the deadline of [`ConnectionOptions`] has passed.
//! * [`Verb`](ConnectError::Verb): a verb failed on this end.
//!
//! ```
//! use rdma_verbs::verbs::cm::{ConnectError, ConnectionOptions, Listener, Route};
//!
//! let _listener = Listener::bind("127.46.1.20:7471")?;
//! let route = Route::to("127.46.1.20:7472")?.from("127.46.1.21")?; // another port
//! let (pd, cq) = (route.context().alloc_pd()?, route.context().create_cq(16)?);
//! let qp = pd.create_qp(&cq, &cq)?;
//! match route.connect(&qp, &ConnectionOptions::new()) {
//!     Err(ConnectError::Rejected(rejected)) if rejected.is_no_listener() => println!("{rejected}"),
//!     other => panic!("{other:?}"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Noticing the peer's disconnect
//!
//! When the peer disconnects, the queue pair stays as it is: posted receives do not complete, and no completion
//! queue's event follows. A program that sleeps on its completion channel must therefore sleep on both descriptors: the
//! channel's ([`CompletionChannel`](crate::verbs::CompletionChannel)) and [`Connection::as_fd`]. Before it sleeps, it
//! arms the queue, polls it once more, and takes the events that wait:
//!
//! ```
//! use std::os::fd::AsFd;
//! use std::time::Duration;
//! use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
//! use rdma_verbs::verbs::cm::Connection;
//! use rdma_verbs::verbs::{Completion, CompletionChannel, CompletionQueue, ErrorKind, Notify, Result};
//!
//! /// Waits for a completion; returns `None` when the peer has disconnected. The queue is armed before the first call.
//! fn next(cq: &CompletionQueue, channel: &CompletionChannel, connection: &Connection) -> Result<Option<Completion>> {
//!     let mut completion = [Completion::default()];
//!     loop {
//!         if cq.poll(&mut completion)? == 1 {
//!             return Ok(Some(completion[0]));
//!         }
//!         if connection.wait_disconnected(Duration::ZERO)? {
//!             return Ok(None);
//!         }
//!         // Arming again is followed by a poll, because completions that are already queued raise no event.
//!         match channel.wait_event(Duration::ZERO) {
//!             Ok(_) => cq.req_notify(Notify::Any)?,
//!             Err(error) if error.kind() == ErrorKind::TimedOut => {
//!                 let descriptors = [channel.as_fd(), connection.as_fd()?];
//!                 let mut descriptors = descriptors.map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN));
//!                 // A signal ends the sleep early.
//!                 let _ = poll(&mut descriptors, PollTimeout::NONE);
//!             }
//!             Err(error) => return Err(error),
//!         }
//!     }
//! }
//! ```
//!
//! With futures, wait for the next message and for [`Connection::disconnected`] at the same time, as
//! `examples/cm_echo_async.rs` does.
//!
//! # Before the program ends
//!
//! [`Connection::disconnect`] and dropping a [`Connection`] do not wait for the peer: the device repeats the message in
//! the background, and stops when the program drops its last object of the device. That drop waits for the peer's
//! confirmation, up to 40 ms, and repeats the message meanwhile. Over a path that takes longer or loses all of these
//! messages, the peer may learn of the end only from the retries of its queue pair. A program that has such paths calls
//! [`Connection::wait_disconnected`] first, which returns as soon as the peer confirms, and gives up after 5 s without
//! a response. A program that ends without dropping its objects calls it, too.

mod bring_up;
mod connection;
mod contexts;
mod datagram;
mod error;
mod listener;
mod multicast;
mod options;
mod route;

pub(crate) use connection::sealed;
pub use connection::{Connection, ConnectionQueuePair, PendingConnection};
pub use datagram::{DEFAULT_QKEY, DatagramListener, DatagramPeer, DatagramRequest, PendingDatagram};
pub use error::{ConnectError, Reason, Rejected, Unreachable};
pub use listener::{Listener, ListenerOptions, Request};
pub use multicast::{MulticastGroup, MulticastMembership};
pub use options::ConnectionOptions;
pub use route::{LocalEnd, Route};

pub use crate::provider::{RejectReason, ServiceIdStatus};

use crate::provider::ConnectionManager;
use crate::verbs::{Context, Error, ErrorKind, Result};

/// Returns the connection manager of a device.
fn connection_manager<'a>(verb: &'static str, context: &'a Context) -> Result<&'a dyn ConnectionManager> {
    context.connection_manager().ok_or_else(|| {
        let message = format!("{} has no connection manager", context.name());
        Error::new(verb, ErrorKind::Unsupported, message)
    })
}
