//! Identifiers: listeners, and ends of connections.

use std::ffi::c_void;
use std::io;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::super::abi::cm::{ConnParam, Id as RawId};
use super::super::abi::{Gid, QpAttr};
use super::super::check;
use super::address;
use super::event::Channel;
use super::library::Library;

/// The port space of datagrams.
pub(super) const UDP: u32 = 0x0111;
/// `RDMA_OPTION_ID`.
const OPTION_LEVEL_ID: i32 = 0;
/// `IBV_EVENT_COMM_EST`.
const COMMUNICATION_ESTABLISHED: i32 = 4;

/// An identifier (`rdma_cm_id`), which keeps its channel.
pub(in super::super::super) struct Id {
    raw: NonNull<RawId>,
    channel: Arc<Channel>,
}

// SAFETY: each use holds the lock of the channel.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

/// The parameters of a message, by the names of `rdma_conn_param`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in super::super::super) struct Parameters {
    pub(in super::super::super) responder_resources: u8,
    pub(in super::super::super) initiator_depth: u8,
    pub(in super::super::super) flow_control: bool,
    pub(in super::super::super) retry_count: u8,
    pub(in super::super::super) rnr_retry_count: u8,
    pub(in super::super::super) srq: bool,
    pub(in super::super::super) qp_num: u32,
}

impl Parameters {
    pub(super) fn of_event(param: &ConnParam) -> Self {
        Self {
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control != 0,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: param.srq != 0,
            qp_num: param.qp_num,
        }
    }

    /// Returns the C structure, which points to the private data.
    fn to_c(self, private_data: &[u8]) -> io::Result<ConnParam> {
        Ok(ConnParam {
            private_data: private_data.as_ptr().cast(),
            private_data_len: length(private_data)?,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control.into(),
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: self.srq.into(),
            qp_num: self.qp_num,
        })
    }
}

fn length(private_data: &[u8]) -> io::Result<u8> {
    private_data.len().try_into().map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// An option of an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super::super) enum ConnectionOption {
    /// Type of service byte.
    TypeOfService(u8),
    /// The port may have several owners while none of them listens.
    ReuseAddress(bool),
    /// Code of the transport timeout.
    AckTimeout(u8),
}

impl Id {
    /// Creates an identifier in a port space.
    pub(in super::super::super) fn create(channel: &Arc<Channel>, space: u32) -> io::Result<Self> {
        let mut raw = ptr::null_mut();
        let held = channel.lock();
        // SAFETY: the channel and the variable live.
        check(unsafe { (channel.functions.create_id)(channel.raw(), &raw mut raw, ptr::null_mut(), space) })?;
        drop(held);
        let raw = NonNull::new(raw).ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))?;
        Ok(Self { raw, channel: Arc::clone(channel) })
    }

    /// Takes the identifier that a peer's request has brought, and gives it a channel of its own. On failure it is
    /// destroyed, which rejects the request.
    ///
    /// # Safety
    /// The identifier is one of this library's, no other code uses it, and its event is acknowledged.
    pub(super) unsafe fn adopt(raw: NonNull<RawId>, functions: &'static Library) -> io::Result<Self> {
        let moved = Channel::create(functions).and_then(|channel| {
            // SAFETY: as the caller promises; the channel lives.
            check(unsafe { (functions.migrate_id)(raw.as_ptr(), channel.raw()) }).map(|()| channel)
        });
        moved.map(|channel| Self { raw, channel }).inspect_err(|_| {
            // SAFETY: as above; it is not used any more.
            unsafe { (functions.destroy_id)(raw.as_ptr()) };
        })
    }

    pub(in super::super::super) fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Calls a function of the library with the identifier.
    fn call(&self, function: impl FnOnce(&Library, *mut RawId) -> i32) -> io::Result<()> {
        let _held = self.channel.lock();
        check(function(self.channel.functions, self.raw.as_ptr()))
    }

    pub(in super::super::super) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let mut address = address::to_c(address);
        // SAFETY: the identifier and the address live.
        self.call(|library, id| unsafe { (library.bind_addr)(id, (&raw mut address).cast()) })
    }

    /// Resolves the peer's address, within so many milliseconds.
    pub(in super::super::super) fn resolve_addr(&self, address: SocketAddr, milliseconds: i32) -> io::Result<()> {
        let mut address = address::to_c(address);
        let to = (&raw mut address).cast();
        // SAFETY: the identifier and the address live. No source is given: the identifier is bound.
        self.call(|library, id| unsafe { (library.resolve_addr)(id, ptr::null_mut(), to, milliseconds) })
    }

    /// Resolves the route, within so many milliseconds. The address must be resolved: the library needs the device.
    pub(in super::super::super) fn resolve_route(&self, milliseconds: i32) -> io::Result<()> {
        self.call(|library, id| {
            // SAFETY: the identifier lives, and its channel is locked.
            if unsafe { (*id).verbs }.is_null() {
                return libc::EINVAL;
            }
            // SAFETY: as above.
            unsafe { (library.resolve_route)(id, milliseconds) }
        })
    }

    pub(in super::super::super) fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: the identifier lives.
        self.call(|library, id| unsafe { (library.listen)(id, backlog) })
    }

    pub(in super::super::super) fn connect(&self, parameters: Parameters, private_data: &[u8]) -> io::Result<()> {
        let mut param = parameters.to_c(private_data)?;
        // SAFETY: the identifier, the parameters and the private data live.
        self.call(|library, id| unsafe { (library.connect)(id, &raw mut param) })
    }

    pub(in super::super::super) fn accept(&self, parameters: Parameters, private_data: &[u8]) -> io::Result<()> {
        let mut param = parameters.to_c(private_data)?;
        // SAFETY: as above.
        self.call(|library, id| unsafe { (library.accept)(id, &raw mut param) })
    }

    pub(in super::super::super) fn reject(&self, private_data: &[u8]) -> io::Result<()> {
        let (data, length) = (private_data.as_ptr().cast::<c_void>(), length(private_data)?);
        // SAFETY: the identifier and the data live.
        self.call(|library, id| unsafe { (library.reject)(id, data, length) })
    }

    /// Confirms the peer's reply.
    pub(in super::super::super) fn establish(&self) -> io::Result<()> {
        // SAFETY: the identifier lives.
        self.call(|library, id| unsafe { (library.establish)(id) })
    }

    /// Notes that a packet of the peer has arrived.
    pub(in super::super::super) fn communication_established(&self) -> io::Result<()> {
        // SAFETY: the identifier lives.
        self.call(|library, id| unsafe { (library.notify)(id, COMMUNICATION_ESTABLISHED) })
    }

    pub(in super::super::super) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: the identifier lives.
        self.call(|library, id| unsafe { (library.disconnect)(id) })
    }

    pub(in super::super::super) fn set(&self, option: ConnectionOption) -> io::Result<()> {
        let (name, mut byte, mut number) = match option {
            ConnectionOption::TypeOfService(byte) => (0, byte, 0),
            ConnectionOption::ReuseAddress(reuse) => (1, 0, i32::from(reuse)),
            ConnectionOption::AckTimeout(code) => (3, code, 0),
        };
        let (value, length): (*mut c_void, usize) = match option {
            ConnectionOption::ReuseAddress(_) => ((&raw mut number).cast(), size_of::<i32>()),
            _ => ((&raw mut byte).cast(), 1),
        };
        // SAFETY: the identifier and the value live, and the value has this length.
        self.call(|library, id| unsafe { (library.set_option)(id, OPTION_LEVEL_ID, name, value, length) })
    }

    /// Returns the attributes of a queue pair that is moved to a state.
    pub(in super::super::super) fn queue_pair_attributes(&self, qp_state: u32) -> io::Result<QpAttr> {
        let (mut attributes, mut mask) = (QpAttr { qp_state, ..QpAttr::default() }, 0);
        // SAFETY: the identifier and the two variables live.
        self.call(|library, id| unsafe { (library.init_qp_attr)(id, &raw mut attributes, &raw mut mask) })?;
        Ok(attributes)
    }

    /// Reads from the identifier.
    fn read<R>(&self, read: impl FnOnce(&RawId) -> R) -> R {
        let _held = self.channel.lock();
        // SAFETY: the identifier lives, and only calls that hold the lock change it.
        read(unsafe { self.raw.as_ref() })
    }

    /// Returns address and port of this end; `None` before it is bound.
    pub(in super::super::super) fn local_addr(&self) -> Option<SocketAddr> {
        self.read(|id| address::from_c(&id.route.addr.src_addr))
    }

    /// Returns address and port of the peer, if it is known.
    pub(in super::super::super) fn remote_addr(&self) -> Option<SocketAddr> {
        self.read(|id| address::from_c(&id.route.addr.dst_addr))
    }

    pub(in super::super::super) fn is_for_datagrams(&self) -> bool {
        self.read(|id| id.ps == UDP)
    }

    /// Returns the GID of this end.
    pub(in super::super::super) fn local_gid(&self) -> Gid {
        self.read(|id| id.route.addr.ibaddr.sgid)
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if self.channel.generation.is_current()
            // SAFETY: this is the last use. Every event of the identifier that was taken is acknowledged, so it does
            // not wait.
            && let Err(error) = self.call(|library, id| unsafe { (library.destroy_id)(id) })
        {
            tracing::warn!(
                target: "rdma_verbs::connection",
                %error, "an identifier of the connection manager could not be destroyed"
            );
        }
    }
}
