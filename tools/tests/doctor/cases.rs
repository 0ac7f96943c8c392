//! The problems that the tests of `doctor` provoke, as commands of a shell in namespaces.

/// A provoked problem.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Shell commands in the namespaces.
    pub(crate) setup: &'static str,
    pub(crate) arguments: &'static str,
    pub(crate) check: &'static str,
    pub(crate) outcome: &'static str,
    /// Text that the finding contains.
    pub(crate) says: &'static str,
    /// Text that its first command contains; with `mends`, it is run, and the check made again.
    pub(crate) command: &'static str,
    pub(crate) mends: bool,
    /// Whether the command works in namespaces of root only: in those of other users, tmpfs cannot be remounted.
    pub(crate) is_for_root: bool,
}

impl Case {
    const fn new(name: &'static str, setup: &'static str, check: &'static str, outcome: &'static str) -> Self {
        Self { name, setup, arguments: "", check, outcome, says: "", command: "", mends: false, is_for_root: false }
    }

    const fn of_host(mut self, host: &'static str) -> Self {
        self.arguments = host;
        self
    }

    const fn says(mut self, says: &'static str) -> Self {
        self.says = says;
        self
    }

    const fn suggests(mut self, command: &'static str) -> Self {
        self.command = command;
        self
    }

    const fn mended_by_root(mut self, command: &'static str) -> Self {
        self.is_for_root = true;
        self.mended_by(command)
    }

    const fn mended_by(mut self, command: &'static str) -> Self {
        self.command = command;
        self.mends = true;
        self
    }
}

pub(crate) const UP: &str = "ip link set dev lo up";
/// An interface beside the loopback, which is down.
const ETHERNET: &str = concat!(
    "ip link add near type veth peer name far && ip addr add 10.91.7.1/24 dev near && ",
    "ip link set dev near up && ip link set dev far up"
);

/// Commands after which the program runs with a filter of system calls that refuses these (`support/filter.pl`).
macro_rules! filtered {
    ($refused:literal) => {
        concat!(
            "ip link set dev lo up && export REAL=\"$PROGRAM\" PROGRAM=/tmp/filtered && ",
            "printf '#!/bin/sh\\nexec perl \"%s\" %s -- \"$REAL\" \"$@\"\\n' '",
            env!("CARGO_MANIFEST_DIR"),
            "/tests/support/filter.pl' '",
            $refused,
            "' > /tmp/filtered && chmod +x /tmp/filtered"
        )
    };
}

/// Problems of the machine.
pub(crate) const MACHINE: [Case; 39] = [
    Case::new("no_interface", "", "devices", "problem").says("no network interface").mended_by("ip link set dev lo up"),
    Case::new("loopback_down", ETHERNET, "devices", "problem")
        .says("the loopback interface is down")
        .mended_by("ip link set dev lo up"),
    Case::new("transfer_without_loopback", ETHERNET, "transfer", "skipped").says("it needs \"devices\""),
    Case::new("loopback_only", UP, "gids", "note")
        .says("127.0.0.1, RoCE v2, the default")
        .suggests("ip address show"),
    Case::new("port_held", "ip link set dev lo up && \"$TEST\" hold 0.0.0.0", "port", "problem")
        .says("which does not use this library")
        .mended_by("kill "),
    Case::new("port_held_over_ipv6", "ip link set dev lo up && \"$TEST\" hold ::", "port", "problem")
        .says("::: process")
        .mended_by("kill "),
    Case::new("port_of_another_address", "ip link set dev lo up && \"$TEST\" hold 127.5.5.5", "port", "note"),
    Case::new("port_held_by_rxe", concat!(
        "ip link set dev lo up && pid=$(\"$TEST\" hold 0.0.0.0) && mount -t tmpfs tmpfs /proc/$pid && ",
        "mount -t tmpfs tmpfs /sys/module && mkdir /sys/module/rdma_rxe"
    ), "port", "problem")
    .says("rdma_rxe")
    .suggests("modprobe -r rdma_rxe"),
    Case::new("transfer_without_port", "ip link set dev lo up && \"$TEST\" hold 0.0.0.0", "transfer", "problem")
        .says("is held by")
        .suggests("ss -ulpn"),
    Case::new("transfer_without_packets", concat!(
        "ip link set dev lo up && nft add table inet t && ",
        "nft 'add chain inet t c { type filter hook input priority 0; }' && nft add rule inet t c udp dport 4791 drop"
    ), "transfer", "problem")
    .says("failed")
    .suggests("nft list ruleset"),
    Case::new("setting_ignored", "ip link set dev lo up && export RDMA_VERBS_SHARED_MEMORY=yes", "settings", "problem")
        .says("auto, off or require")
        .mended_by("unset RDMA_VERBS_SHARED_MEMORY"),
    Case::new("setting_misspelled", "export RDMA_VERBS_SHARDSS=2", "settings", "problem")
        .says("RDMA_VERBS_SHARDSS is not known")
        .mended_by("unset RDMA_VERBS_SHARDSS"),
    Case::new("folder_is_a_file", "mount -t tmpfs tmpfs /dev/shm && touch /dev/shm/rdma-verbs-0", "registry", "problem")
        .says("is not a folder")
        .mended_by("rm "),
    Case::new("folder_is_open", concat!(
        "mount -t tmpfs tmpfs /dev/shm && ", "mkdir -m 755 /dev/shm/rdma-verbs-0"
    ), "registry", "problem")
        .says("mode 755")
        .mended_by("chmod 700"),
    Case::new("folder_is_read_only", "mount -t tmpfs -o ro tmpfs /dev/shm", "registry", "problem")
        .says("read-only")
        .mended_by_root("mount -o remount,rw"),
    Case::new("no_space", "mount -t tmpfs -o size=64k tmpfs /dev/shm", "space", "problem")
        .says("do not fit")
        .mended_by_root("mount -o remount,size=64M"),
    Case::new("memory_is_not_shared", concat!(
        "ip link set dev lo up && mount -t tmpfs tmpfs /dev/shm && ", "export RDMA_VERBS_SHARED_MEMORY=off"
    ), "shared-memory", "note")
        .says("switched off")
        .mended_by("export RDMA_VERBS_SHARED_MEMORY=auto"),
    Case::new("early_commitment", concat!(
        "echo 2 > /tmp/f && ", "mount --bind /tmp/f /proc/sys/vm/overcommit_memory"
    ), "overcommit", "note")
        .says("not exported")
        .mended_by("sysctl -w"),
    Case::new("default_buffers", concat!(
        "echo 212992 > /tmp/r && cp /tmp/r /tmp/w && mount --bind /tmp/r /proc/sys/net/core/rmem_max && ",
        "mount --bind /tmp/w /proc/sys/net/core/wmem_max"
    ), "socket-buffers", "note")
    .says("at most 212 MB/s")
    .mended_by("sysctl -w"),
    Case::new("tiny_buffers", concat!(
        "echo 4096 > /tmp/r && cp /tmp/r /tmp/w && mount --bind /tmp/r /proc/sys/net/core/rmem_max && ",
        "mount --bind /tmp/w /proc/sys/net/core/wmem_max"
    ), "socket-buffers", "problem")
    .says("rmem_max is 4 KiB")
    .mended_by("sysctl -w"),
    Case::new("few_descriptors", "ulimit -Sn 40", "descriptors", "problem").says("is 40").mended_by("ulimit -n"),
    Case::new("some_descriptors", "ulimit -Sn 300", "descriptors", "note").says("is 300").mended_by("ulimit -n"),
    Case::new("adapter_without_library", ADAPTER, "libibverbs", "problem")
        .says("mlx5_0")
        .suggests("apt-get install libibverbs1 ibverbs-providers"),
    Case::new("adapter_without_file", ADAPTER, "infiniband", "problem")
        .says("uverbs0 does not exist")
        .suggests("modprobe ib_uverbs"),
    Case::new("adapter_without_memory", concat!(
        "mount -t tmpfs tmpfs /sys/class && mkdir -p /sys/class/infiniband/mlx5_0 && ", "ulimit -l 64"
    ), "memlock", "problem")
    .says("RLIMIT_MEMLOCK is 64 KiB")
    .suggests("'root - memlock unlimited' | tee /etc/security/limits.d"),
    Case::new("adapter_without_rights", concat!(
        "mount -t tmpfs tmpfs /dev && mkdir -p /dev/shm /dev/infiniband && touch /dev/infiniband/uverbs0 && ",
        "mount -o remount,bind,ro /dev"
    ), "infiniband", "problem")
    .says("/dev/infiniband/uverbs0: ")
    .suggests("chmod a+rw"),
    Case::new("debuggers_restricted", concat!(
        "mount -t tmpfs tmpfs /proc/sys/kernel && mkdir /proc/sys/kernel/yama && ",
        "echo 1 > /proc/sys/kernel/yama/ptrace_scope"
    ), "ptrace", "note")
    .says("ptrace_scope is 1")
    .mended_by("sysctl -w"),
    Case::new("user_namespace", "", "user-namespace", "note").says("rootless"),
    Case::new("devices_without_capture", CAPTURE, "devices", "problem")
        .says("1 of 1 devices cannot be opened")
        .mended_by("unset RDMA_VERBS_CAPTURE"),
    Case::new("devices_without_descriptors", "ip link set dev lo up && ulimit -Sn 8", "devices", "problem")
        .says("Too many open files")
        .mended_by("ulimit -n"),
    Case::new("no_shared_folder", "mount -t tmpfs tmpfs /dev", "registry", "problem")
        .says("/dev/shm does not exist")
        .mended_by("mkdir -m 1777 /dev/shm"),
    Case::new("little_space", "mount -t tmpfs -o size=8m tmpfs /dev/shm", "space", "note")
        .says("8 MiB free")
        .mended_by_root("mount -o remount,size=64M"),
    Case::new("memory_cannot_be_shared", filtered!("memfd_create"), "shared-memory", "note")
        .says("packets within this host go through the loopback"),
    Case::new(
        "required_memory_cannot_be_shared",
        concat!("export RDMA_VERBS_SHARED_MEMORY=require && ", filtered!("memfd_create")),
        "shared-memory",
        "problem",
    )
    .says("it is required, and does not work")
    .mended_by("export RDMA_VERBS_SHARED_MEMORY=auto"),
    Case::new("no_bulk_sends", filtered!("setsockopt:17:103"), "segmentation", "note")
        .says("no UDP_SEGMENT")
        .suggests("uname -r"),
    Case::new("no_bulk_receives", filtered!("setsockopt:17:104"), "segmentation", "note")
        .says("no UDP_GRO")
        .suggests("uname -r"),
    Case::new("no_bulk", filtered!("setsockopt:17:103 setsockopt:17:104"), "segmentation", "note")
        .says("neither UDP_SEGMENT nor UDP_GRO")
        .suggests("uname -r"),
    Case::new("transfer_without_bulk", filtered!("setsockopt:17:103 setsockopt:17:104"), "transfer", "ok"),
    Case::new("filter_of_system_calls", filtered!(""), "seccomp", "note").says("seccomp=unconfined"),
];

/// A capture that cannot be written.
const CAPTURE: &str = "ip link set dev lo up && export RDMA_VERBS_CAPTURE=/tmp/none/file";
const ADAPTER: &str = "mount -t tmpfs tmpfs /sys/class && mkdir -p /sys/class/infiniband/mlx5_0";
/// A server whose socket listens, and a chain for rules.
pub(crate) const SERVER: &str = concat!(
    "ip link set dev lo up && { \"$PROGRAM\" doctor --serve --port 18516 2> /tmp/log & } && ",
    "until grep -q \":$(printf %04X 18516) .* 0A \" /proc/net/tcp /proc/net/tcp6; do sleep 0.02; done"
);
pub(crate) const FILTER: &str =
    "nft add table inet t && nft 'add chain inet t c { type filter hook input priority 0; }'";

/// Problems of the path to a host, with a server on all addresses.
pub(crate) const PATH: [Case; 20] = [
    Case::new("healthy_path", ":", "rdma", "ok").of_host("127.0.0.1").says("in each direction"),
    Case::new("healthy_path_over_ipv6", ":", "rdma", "ok").of_host("::1").says("in each direction"),
    Case::new("small_mtu", "ip link set dev lo mtu 1280", "path-mtu", "ok")
        .of_host("127.0.0.1")
        .says("1280 bytes; RoCE packets carry up to 1024 bytes"),
    Case::new("tiny_mtu", "ip link set dev lo mtu 300", "path-mtu", "problem")
        .of_host("127.0.0.1")
        .says("too few for the smallest RoCE packet")
        .mended_by("ip link set dev lo mtu 1500"),
    Case::new("black_hole", "nft add rule inet t c udp dport 18516 udp length '>' 1400 drop", "path-mtu", "problem")
        .of_host("127.0.0.1")
        .says("a black hole: packets of 1088 bytes return, those of 2112 vanish")
        .mended_by("ip link set dev lo mtu 1088"),
    Case::new("no_udp", "nft add rule inet t c udp dport 18516 drop", "path-mtu", "problem")
        .of_host("127.0.0.1")
        .says("no packet of any size"),
    Case::new("losses", "nft add rule inet t c udp dport 18516 numgen random mod 10 '<' 3 drop", "loss", "problem")
        .of_host("127.0.0.1")
        .says("% are lost")
        .suggests("ip -s link"),
    Case::new("traffic_class", ":", "traffic-class", "ok").of_host("127.0.0.1").says("DSCP 26 and ECN arrive"),
    Case::new("traffic_class_over_ipv6", ":", "traffic-class", "ok").of_host("::1").says("DSCP 26 and ECN arrive"),
    Case::new("cleared_dscp", "nft add rule inet t c udp dport 18516 ip dscp set cs0", "traffic-class", "note")
        .of_host("127.0.0.1")
        .says("on the way there, DSCP 26 with ECT(0) becomes DSCP 0 with ECT(0)")
        .suggests("tcpdump"),
    Case::new("cleared_ecn", "nft add rule inet t c udp sport 18516 ip ecn set not-ect", "traffic-class", "note")
        .of_host("127.0.0.1")
        .says("on the way back, DSCP 0 with ECT(0) becomes DSCP 0 with not ECT"),
    Case::new("firewall", "nft add rule inet t c ip daddr 127.0.0.2 udp dport 4791 drop", "rdma", "problem")
        .of_host("127.0.0.2")
        .says("nothing from here arrives at UDP port 4791 of 127.0.0.2")
        .suggests("# on 127.0.0.2"),
    Case::new(
        "firewall_for_responses",
        "nft add rule inet t c ip saddr 127.0.0.2 udp dport 4791 drop",
        "rdma",
        "problem",
    )
    .of_host("127.0.0.2")
    .says("packets arrive at 127.0.0.2, but nothing from there arrives at UDP port 4791 here")
    .suggests("# here"),
    Case::new("firewall_for_tcp", "nft add rule inet t c tcp dport 18516 drop", "service", "problem")
        .of_host("127.0.0.1")
        .says("a firewall drops"),
    Case::new("address_without_capture", CAPTURE, "address", "problem")
        .of_host("127.0.0.1")
        .says("soft:127.0.0.1 cannot be opened")
        .mended_by("unset RDMA_VERBS_CAPTURE"),
    Case::new("one_loss", "nft add rule inet t c udp dport 18516 numgen inc mod 1000 == 50 drop", "loss", "note")
        .of_host("127.0.0.1")
        .says("0.5 % are lost")
        .suggests("ip -s link"),
    Case::new("no_small_datagrams", "nft add rule inet t c udp dport 18516 drop", "loss", "problem")
        .of_host("127.0.0.1")
        .says("none of 200 small datagrams returned"),
    Case::new("port_of_the_server_held", "\"$TEST\" hold 127.0.0.2", "rdma", "problem")
        .of_host("127.0.0.2")
        .says("127.0.0.2 cannot take part")
        .suggests("rdma-verbs doctor   # on 127.0.0.2"),
    Case::new("own_port_held", "\"$TEST\" hold 127.0.0.1", "rdma", "problem")
        .of_host("127.0.0.2")
        .says("the device on the source address fails")
        .suggests("ss -ulpn"),
    // Acknowledgements of the requests from here are small.
    Case::new(
        "requests_of_the_server_vanish",
        "nft add rule inet t c ip saddr 127.0.0.2 udp dport 4791 udp length '>' 600 drop",
        "rdma",
        "problem",
    )
    .of_host("127.0.0.2")
    .says("requests from here succeed, those of 127.0.0.2 do not")
    .suggests("rdma-verbs doctor --serve   # here"),
];

/// Hosts without a server.
pub(crate) const HOSTS: [Case; 3] = [
    Case::new("unknown_host", UP, "route", "problem")
        .of_host("no.such.host.invalid")
        .says("\"no.such.host.invalid\" has no address")
        .suggests("getent ahosts"),
    Case::new("no_route", UP, "route", "problem")
        .of_host("192.0.2.1")
        .says("no route")
        .suggests("ip route get 192.0.2.1"),
    Case::new("no_server", UP, "service", "note").of_host("127.0.0.1").says("no server").suggests("doctor --serve"),
];
