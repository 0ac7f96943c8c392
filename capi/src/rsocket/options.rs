//! Options of sockets.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use super::settings::{buffer_size, mapping_count, queue_size};
use super::stream::{Inner, Phase};
use crate::error::{Errno, INVALID, Result};

const NOT_SUPPORTED: Errno = Errno(libc::ENOTSUP);
/// `SOL_RDMA`, and its options.
pub(super) const SOL_RDMA: c_int = 0x10000;
pub(super) mod rdma {
    pub(crate) const SQSIZE: i32 = 0;
    pub(crate) const RQSIZE: i32 = 1;
    pub(crate) const INLINE: i32 = 2;
    pub(crate) const IOMAPSIZE: i32 = 3;
}
/// Options of the level `RDMA_OPTION_ID`.
mod id_option {
    pub(super) const TYPE_OF_SERVICE: i32 = 0;
    pub(super) const REUSE_ADDRESS: i32 = 1;
    pub(super) const ONLY_OWN_FAMILY: i32 = 2;
}
/// The time of `SO_KEEPALIVE` if the system does not tell another.
const KEEPALIVE: u32 = 7200;

/// Options that are only remembered, and those that streams and datagrams share.
#[derive(Clone, Copy, Default)]
pub(super) struct Options {
    pub(super) reuse_address: bool,
    pub(super) no_linger: bool,
    pub(super) out_of_band_inline: bool,
    pub(super) no_delay: bool,
    pub(super) only_v6: bool,
    pub(super) type_of_service: c_int,
    /// Seconds; 0 for the system's.
    pub(super) keepalive_time: u32,
    /// When the next message that keeps the connection alive is due.
    pub(super) keepalive: Option<Instant>,
}

impl Options {
    /// Returns the time between two messages that keep a connection alive.
    pub(super) fn keepalive_interval(&self) -> Duration {
        Duration::from_secs(u64::from(self.keepalive_time.max(1)))
    }

    fn set_keepalive(&mut self, is_on: bool) {
        if self.keepalive_time == 0 {
            let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time");
            let system = text.ok().and_then(|text| text.trim().parse().ok()).filter(|time| *time > 0);
            self.keepalive_time = system.unwrap_or(KEEPALIVE);
        }
        self.keepalive = match (is_on, self.keepalive) {
            (false, _) => None,
            (true, Some(due)) => Some(due),
            (true, None) => Some(Instant::now() + self.keepalive_interval()),
        };
    }
}

/// Returns the number of an option's value.
pub(super) fn number(value: &[u8]) -> Result<c_int> {
    value.get(..4).and_then(|value| value.try_into().ok()).map(c_int::from_ne_bytes).ok_or(INVALID)
}

/// Sets an option of a stream.
pub(super) fn set(inner: &mut Inner, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
    let is_on = || number(value).map(|value| value != 0);
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
            let reuse = is_on()?;
            // Once the address is bound, it is too late, and harmless.
            let set = inner.set_id_option(id_option::REUSE_ADDRESS, &c_int::from(reuse).to_ne_bytes());
            if inner.phase == Phase::Idle {
                set?;
            }
            inner.options.reuse_address = reuse;
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) => inner.options.no_linger = !is_on()?,
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => inner.options.set_keepalive(is_on()?),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => inner.options.out_of_band_inline = is_on()?,
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) | (SOL_RDMA, _) => {
            return set_size(inner, level, name, value);
        }
        (libc::IPPROTO_IP, libc::IP_TOS) => {
            let service = number(value)?;
            inner.set_id_option(id_option::TYPE_OF_SERVICE, &[service as u8])?;
            inner.options.type_of_service = service;
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG | libc::TCP_CONGESTION) => {}
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
            inner.options.keepalive_time =
                u32::try_from(number(value)?).ok().filter(|time| *time > 0).ok_or(INVALID)?;
            let due = Instant::now() + inner.options.keepalive_interval();
            inner.options.keepalive = inner.options.keepalive.map(|_| due);
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => inner.options.no_delay = is_on()?,
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
            let only = is_on()?;
            inner.set_id_option(id_option::ONLY_OWN_FAMILY, &c_int::from(only).to_ne_bytes())?;
            inner.options.only_v6 = only;
        }
        _ => return Err(NOT_SUPPORTED),
    }
    Ok(())
}

/// Sets the size of a queue or a buffer, which counts for the connections to come.
fn set_size(inner: &mut Inner, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
    let count = u64::from(number(value)? as u32);
    let is_early = matches!(inner.phase, Phase::Idle | Phase::Bound | Phase::Listening);
    match (level, name) {
        // The kernel doubles them as well.
        (libc::SOL_SOCKET, libc::SO_RCVBUF) if inner.endpoint.is_none() => {
            inner.init.sizes.receive_buffer = buffer_size(count * 2);
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) if inner.endpoint.is_none() => {
            inner.init.sizes.send_buffer = buffer_size(count * 2);
        }
        (libc::SOL_SOCKET, _) => {}
        (_, rdma::SQSIZE) if is_early => inner.init.sizes.send_queue = queue_size(count),
        (_, rdma::RQSIZE) if is_early => inner.init.sizes.receive_queue = queue_size(count),
        (_, rdma::INLINE) if is_early => inner.init.inline = count.min(u16::MAX.into()) as u32,
        (_, rdma::IOMAPSIZE) if is_early => inner.init.mappings = mapping_count(count),
        (_, rdma::SQSIZE | rdma::RQSIZE | rdma::INLINE | rdma::IOMAPSIZE) => return Err(INVALID),
        // Paths are those of IP routes.
        _ => return Err(NOT_SUPPORTED),
    }
    Ok(())
}

/// The value of an option.
pub(super) enum Value {
    Number(c_int),
    Linger(libc::linger),
    /// `tcp_info`: the state, and the congestion window.
    Info(u8, u32),
}

/// Returns an option of a stream.
pub(super) fn get(inner: &mut Inner, level: c_int, name: c_int) -> Result<Value> {
    let sizes = inner.init.sizes;
    let number = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => inner.options.reuse_address.into(),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => inner.options.keepalive.is_some().into(),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => inner.options.out_of_band_inline.into(),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => sizes.receive_buffer as c_int,
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => sizes.send_buffer as c_int,
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            return Ok(Value::Linger(libc::linger { l_onoff: (!inner.options.no_linger).into(), l_linger: 0 }));
        }
        (libc::SOL_SOCKET, libc::SO_ERROR) => std::mem::take(&mut inner.error),
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_BROADCAST) => 0,
        (libc::IPPROTO_IP, libc::IP_TOS) => inner.options.type_of_service,
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_CONGESTION) => 1,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => inner.options.keepalive_time as c_int,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => inner.options.no_delay.into(),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => inner.path_mtu().unwrap_or(2048),
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            const ESTABLISHED: u8 = 1;
            const CLOSED: u8 = 7;
            let state = if inner.phase == Phase::Connected { ESTABLISHED } else { CLOSED };
            return Ok(Value::Info(state, sizes.send_queue.into()));
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => inner.options.only_v6.into(),
        (SOL_RDMA, rdma::SQSIZE) => sizes.send_queue.into(),
        (SOL_RDMA, rdma::RQSIZE) => sizes.receive_queue.into(),
        (SOL_RDMA, rdma::INLINE) => inner.init.inline as c_int,
        (SOL_RDMA, rdma::IOMAPSIZE) => inner.init.mappings.into(),
        _ => return Err(NOT_SUPPORTED),
    };
    Ok(Value::Number(number))
}
