//! The order of the parts of folders whose parts import downward only.

const SHARE: &[&str] = &[
    "registry",
    "key_share",
    "ports",
    "management",
    "steering",
    "port_holder",
    "mailbox",
    "port_group",
    "connection_records",
    "qpn_block",
];
const TRANSPORT: &[&str] = &[
    "loop_bound",
    "segments",
    "peer_fault",
    "packet_check",
    "discovery",
    "burst",
    "datagram",
    "marks",
    "udp_sink",
    "pacing",
    "congestion",
    "path_measures",
    "path_control",
    "window_share",
    "path",
    "history",
    "common",
    "requester",
    "responder",
    "management",
    "queue_pair",
    "endpoint",
];

/// Folders with parts that import downward only, each with its parts from the lowest to the highest. The folder's root
/// file and its tests belong to no part.
pub(crate) const PARTS: &[(&str, &[&str])] = &[
    ("transport", TRANSPORT),
    ("engine", &["capture", "share", "net", "drive"]),
    ("engine/share", SHARE),
    ("engine/net", &["path_errors", "paths", "link_listener", "udp", "multicast", "inbound", "link"]),
    ("engine/drive/policy", &["constants", "lease", "fd_waiters", "contention", "poll_backoff", "thread_rest"]),
    (
        "engine/drive",
        &[
            "wake",
            "policy",
            "doorbell",
            "shard_lock",
            "event_queue",
            "connections",
            "core",
            "shard",
            "held_acks",
            "driver",
            "disconnects",
            "idle",
            "channel",
            "thread",
        ],
    ),
];
