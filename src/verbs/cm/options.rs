//! Options of connections and listeners.

use std::time::{Duration, Instant};

use crate::provider::{ConnectionEnd, ConnectionPath, combined_ack_timeout};
use crate::types::{DeviceAttributes, Mtu};
use crate::verbs::{Context, Error, QueuePair, Result};

/// Default limit of outstanding READs and atomics in each direction.
const DEFAULT_RD_ATOMIC: u8 = 16;
/// Default code of the transport timeout: 67 ms, as in [`ConnectOptions`](crate::verbs::ConnectOptions).
const DEFAULT_TIMEOUT: u8 = 14;
/// Longest private data of a request.
const REQUEST_BYTES: usize = 56;
/// Longest private data of a reply.
const REPLY_BYTES: usize = 196;

/// Options of one end of a connection. The handshake carries those that both ends need.
///
/// | option | active end | passive end |
/// |---|---|---|
/// | `private_data` | at most 56 bytes | at most 196 bytes |
/// | `responder_resources`, `initiator_depth` | offered | lowered to what the other end offers |
/// | `path_mtu`, `traffic_class`, `hop_limit`, `retry_count` | chosen | the other end's |
/// | `timeout` | of both ends | replaces the other end's choice |
/// | `rnr_retry_count` | of the *other* end while this one is not ready | the same |
/// | `min_rnr_timer` | of this end | of this end |
/// | `deadline` | of the whole handshake | of the wait for the other end |
///
/// ```
/// use std::time::Duration;
/// use rdma_verbs::verbs::cm::ConnectionOptions;
///
/// let options = ConnectionOptions::new().private_data(b"hello").deadline(Duration::from_secs(5));
/// # let _ = options;
/// ```
#[doc(alias = "rdma_conn_param")]
#[derive(Clone, PartialEq, Eq)]
#[must_use]
pub struct ConnectionOptions {
    private_data: Vec<u8>,
    responder_resources: Option<u8>,
    initiator_depth: Option<u8>,
    flow_control: bool,
    retry_count: u8,
    rnr_retry_count: u8,
    min_rnr_timer: u8,
    path_mtu: Option<Mtu>,
    timeout: Option<u8>,
    traffic_class: u8,
    hop_limit: u8,
    pub(super) deadline: Option<Duration>,
}

/// The private data may contain secrets.
impl std::fmt::Debug for ConnectionOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionOptions")
            .field("private_data", &self.private_data.len())
            .field("responder_resources", &self.responder_resources)
            .field("initiator_depth", &self.initiator_depth)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl ConnectionOptions {
    /// Creates the default options.
    pub const fn new() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: None,
            initiator_depth: None,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 12,
            path_mtu: None,
            timeout: None,
            traffic_class: 0,
            hop_limit: 64,
            deadline: None,
        }
    }

    /// Sets data for the other end's application. It arrives with the request, or with the reply to it, with zeros
    /// behind it up to the maximum length: the message has no length for it.
    pub fn private_data(mut self, data: &[u8]) -> Self {
        self.private_data = data.to_vec();
        self
    }

    /// Sets the number of READs and atomics that this end serves at once; by default 16, or as many as the device can.
    pub const fn responder_resources(mut self, responder_resources: u8) -> Self {
        self.responder_resources = Some(responder_resources);
        self
    }

    /// Sets the number of READs and atomics that this end may have outstanding; by default 16, or as many as the device
    /// can.
    pub const fn initiator_depth(mut self, initiator_depth: u8) -> Self {
        self.initiator_depth = Some(initiator_depth);
        self
    }

    /// Sets whether the message says that the receive queue reports credits; by default it does.
    pub const fn flow_control(mut self, flow_control: bool) -> Self {
        self.flow_control = flow_control;
        self
    }

    /// Sets how many times both ends retry a request without a response, 0 to 7; 7 by default.
    pub const fn retry_count(mut self, retry_count: u8) -> Self {
        self.retry_count = retry_count;
        self
    }

    /// Sets how many times the other end retries while no receive is posted here, 0 to 6; 7, the default, means without
    /// limit.
    pub const fn rnr_retry_count(mut self, rnr_retry_count: u8) -> Self {
        self.rnr_retry_count = rnr_retry_count;
        self
    }

    /// Sets the code (0 to 31) of the time that the other end waits when no receive is posted here. 12 (0.64 ms) by
    /// default.
    pub const fn min_rnr_timer(mut self, min_rnr_timer: u8) -> Self {
        self.min_rnr_timer = min_rnr_timer;
        self
    }

    /// Sets the path MTU of both ends; by default the largest one that this end's port carries. On adapters the kernel
    /// chooses it, from the network interface, and a program that sets another one is refused.
    pub const fn path_mtu(mut self, path_mtu: Mtu) -> Self {
        self.path_mtu = Some(path_mtu);
        self
    }

    /// Sets the code (1 to 31) of the time to wait for a response: 4.096 µs × 2^timeout. 14 (67 ms) by default.
    pub const fn timeout(mut self, timeout: u8) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the type of service byte of the packets of both ends, and of the messages that set up the connection; 0 by
    /// default.
    pub const fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }

    /// Sets the time to live of the packets of both ends; 64 by default.
    pub const fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// Sets how long this end tries to connect. Without it an active end gives up after 52 s without a response, and a
    /// passive end as soon as the other end's request says.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Returns the time of the deadline; `None` if there is none, or if the clock does not reach it.
    pub(super) fn deadline_time(&self) -> Option<Instant> {
        self.deadline.and_then(|deadline| Instant::now().checked_add(deadline))
    }

    /// Refuses codes that the messages cannot carry.
    fn check_codes(&self, verb: &'static str) -> Result<()> {
        let codes = [
            ("retry_count", Some(self.retry_count), 7),
            ("rnr_retry_count", Some(self.rnr_retry_count), 7),
            ("min_rnr_timer", Some(self.min_rnr_timer), 31),
            ("timeout", self.timeout, 31),
        ];
        for (name, given, most) in codes {
            within(verb, name, given, 0, most)?;
        }
        Ok(())
    }

    /// Returns the private data.
    pub(super) fn data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns the code of this end's transport timeout, if it is set.
    pub(super) const fn own_timeout(&self) -> Option<u8> {
        self.timeout
    }

    /// Returns the code of this end's transport timeout without the delays of the devices.
    pub(super) const fn ack_timeout(&self) -> u8 {
        match self.timeout {
            Some(timeout) => timeout,
            None => DEFAULT_TIMEOUT,
        }
    }

    pub(super) const fn own_min_rnr_timer(&self) -> u8 {
        self.min_rnr_timer
    }

    /// Returns the active end.
    pub(super) fn requesting_end(&self, qp: &QueuePair) -> Result<ConnectionEnd> {
        check_length("connect", &self.private_data, REQUEST_BYTES)?;
        self.check_codes("connect")?;
        let limits = Limits::of(qp.context());
        let end = self.end(qp);
        Ok(ConnectionEnd {
            responder_resources: limits.resources("connect", self.responder_resources, DEFAULT_RD_ATOMIC)?,
            initiator_depth: limits.depth("connect", self.initiator_depth, DEFAULT_RD_ATOMIC)?,
            ..end
        })
    }

    /// Returns the passive end: it serves no more READs than the peer has outstanding, and the other way round.
    pub(super) fn accepting_end(&self, qp: &QueuePair, remote: &ConnectionEnd) -> Result<ConnectionEnd> {
        check_length("accept", &self.private_data, REPLY_BYTES)?;
        self.check_codes("accept")?;
        let limits = Limits::of(qp.context());
        let (most_served, most_outstanding) = (remote.initiator_depth, remote.responder_resources);
        let resources = limits.resources("accept", self.responder_resources, most_served)?;
        let depth = limits.depth("accept", self.initiator_depth, most_outstanding)?;
        Ok(ConnectionEnd {
            responder_resources: resources.min(most_served),
            initiator_depth: depth.min(most_outstanding),
            ack_delay: limits.0.local_ca_ack_delay,
            ..self.end(qp)
        })
    }

    fn end(&self, qp: &QueuePair) -> ConnectionEnd {
        ConnectionEnd {
            qpn: qp.qpn(),
            starting_psn: qp.first_psn(),
            flow_control: self.flow_control,
            rnr_retry_count: self.rnr_retry_count,
            has_srq: qp.srq().is_some(),
            capabilities: qp.context().advertised_capabilities(),
            private_data: self.private_data.clone(),
            ..ConnectionEnd::default()
        }
    }

    /// Returns the path that an active end requests.
    pub(super) fn path(&self, route: &super::Route) -> Result<ConnectionPath> {
        let context = route.context();
        let timeout = self.ack_timeout();
        let ack_delay = context.query_device().local_ca_ack_delay;
        Ok(ConnectionPath {
            local: route.local_addr(),
            remote: route.remote_addr(),
            remote_gid: route.remote_addr().ip().into(),
            local_gid: route.local_addr().ip().into(),
            traffic_class: self.traffic_class,
            flow_label: 0,
            hop_limit: self.hop_limit,
            path_mtu: self.path_mtu.map_or_else(|| context.query_port(1).map(|port| port.active_mtu), Ok)?,
            retry_count: self.retry_count,
            ack_timeout: combined_ack_timeout(ack_delay, timeout.saturating_sub(1)),
        })
    }
}

/// The limits of a device.
struct Limits(DeviceAttributes);

impl Limits {
    fn of(context: &Context) -> Self {
        Self(context.query_device())
    }

    fn resources(&self, verb: &'static str, given: Option<u8>, default: u8) -> Result<u8> {
        within(verb, "responder_resources", given, default, self.0.max_qp_rd_atom)
    }

    fn depth(&self, verb: &'static str, given: Option<u8>, default: u8) -> Result<u8> {
        within(verb, "initiator_depth", given, default, self.0.max_qp_init_rd_atom)
    }
}

/// Returns the value of an option, or the default, within a limit.
fn within(verb: &'static str, name: &'static str, given: Option<u8>, default: u8, limit: u8) -> Result<u8> {
    match given {
        None => Ok(default.min(limit)),
        Some(given) if given <= limit => Ok(given),
        Some(given) => {
            let message = format!("{name} is {given}; allowed are 0 to {limit}");
            Err(Error::out_of_range(verb, name, given, 0..=limit.into(), message))
        }
    }
}

fn check_length(verb: &'static str, data: &[u8], most: usize) -> Result<()> {
    if data.len() <= most {
        return Ok(());
    }
    let message = format!("private_data has {} bytes; allowed are at most {most}", data.len());
    Err(Error::out_of_range(verb, "private_data", data.len() as u64, 0..=most as u64, message))
}
