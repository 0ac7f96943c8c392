//! Diagnoses of hosts without the service, as far as they can be seen from here.

use rdma_verbs::verbs::cm::{ConnectError, Route};
use serde::Serialize;

use super::probe::Presence;
use super::protocol;

/// Why there is no connection, and what to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Diagnosis {
    /// The same in later versions.
    pub(super) kind: &'static str,
    pub(super) text: String,
    pub(super) commands: Vec<String>,
}

impl Diagnosis {
    fn new(kind: &'static str, text: String, commands: &[String]) -> Self {
        Self { kind, text, commands: commands.to_vec() }
    }

    /// Returns the diagnosis of a connection that was not set up.
    pub(super) fn of(error: &ConnectError, presence: Option<Presence>, route: &Route) -> Self {
        let (address, port) = (route.remote_addr().ip(), route.remote_addr().port());
        let serve = format!("rdma-verbs ping --serve --port {port}   # on {address}");
        let check = format!("rdma-verbs doctor {address}   # with `rdma-verbs doctor --serve` there");
        match error {
            ConnectError::Rejected(rejected) if rejected.is_no_listener() => {
                let whose =
                    if address == route.local_addr().ip() { "this process's own RDMA stack" } else { "an RDMA stack" };
                let text = format!("{address} is reachable: {whose} answers there, but no service is on port {port}");
                Self::new("no-service", text, &[serve])
            }
            ConnectError::Rejected(rejected) => {
                let text = match protocol::refusal_text(rejected.private_data()) {
                    Some(why) => format!("the server at {address} refuses: {why}"),
                    None => format!("{rejected}; rdma-verbs ping is not there, or it is ending"),
                };
                Self::new("refused", text, &[serve])
            }
            ConnectError::TimedOut | ConnectError::Unreachable(_) => Self::of_presence(presence, route, [serve, check]),
            other => Self::failed(other.to_string()),
        }
    }

    /// Returns the diagnosis of a failure of this end, or of the exchange.
    pub(super) fn failed(text: String) -> Self {
        Self::new("failed", text, &["rdma-verbs doctor".to_owned()])
    }

    fn of_presence(presence: Option<Presence>, route: &Route, [serve, check]: [String; 2]) -> Self {
        let address = route.remote_addr().ip();
        match presence {
            Some(Presence::PortClosed) => {
                let text = format!(
                    "{address} is up, but has no RDMA stack: its UDP port 4791 is closed. A program opens it with its \
                     first listener or connection, not with the device"
                );
                Self::new("no-rdma", text, &[serve])
            }
            Some(Presence::Unreachable) => {
                let text =
                    format!("the network says that {address} cannot be reached: the host is down, or a router refuses");
                Self::new("unreachable", text, &[format!("ping {address}"), format!("ip route get {address}")])
            }
            Some(Presence::Up) => {
                let text = format!(
                    "{address} is up, but nothing responds on its UDP port 4791: a firewall drops packets there, here \
                     or on the way, or a program without a connection manager holds the port"
                );
                Self::new("blocked", text, &[check])
            }
            Some(Presence::Silent) | None => {
                let text = format!("{address} is silent: the host is down, or a firewall drops packets");
                Self::new("silent", text, &[format!("ping {address}"), check])
            }
        }
    }
}
