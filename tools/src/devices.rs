//! Prints all devices of all providers, like `ibv_devinfo -v`: limits, ports, GIDs.
//!
//! ```text
//! rdma-verbs devices                 all devices
//! rdma-verbs devices -d rxe0         one
//! rdma-verbs devices --json          for programs
//! ```

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use rdma_verbs::types::{AtomicCapability, LinkLayer, OnDemandCapabilities, OnDemandOperations};
use rdma_verbs::verbs::{self, Context, DeviceAttributes, GidEntry, PortAttributes};
use serde::{Serialize, Serializer};

use crate::common::{exit_code, note, print_json};

#[derive(Args)]
#[command(after_help = "Exit status: 0 if the devices are listed, 1 if they cannot be, 2 for wrong usage.\n\
                        Examples:\n  rdma-verbs devices                        all devices that can be opened\n  \
                        rdma-verbs devices -d soft:192.0.2.1      one, by its address\n  \
                        rdma-verbs devices --json | jq -r .devices[].name")]
pub(crate) struct Options {
    /// Only this device; `soft:ADDRESS` is allowed, too.
    #[arg(short, long)]
    device: Option<String>,
    /// Prints JSON; `docs/json.md` describes the fields.
    #[arg(long)]
    json: bool,
}

/// A value of the report.
enum Value {
    Number(u64),
    Text(String),
    Flag(bool),
    /// An object, in the order of the attributes.
    Table(Vec<(&'static str, Value)>),
    List(Vec<Value>),
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

fn guid(number: u64) -> String {
    let bytes = number.to_be_bytes();
    let words: Vec<String> = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    words.join(":")
}

fn device(context: &Context, provider: &str) -> Result<Value, verbs::Error> {
    let attributes = context.query_device();
    let mut table = vec![("name", context.name().into()), ("provider", provider.into())];
    if let Some(setting) = context.shared_memory() {
        table.push(("shared_memory", setting.name().into()));
    }
    table.extend(limits(&attributes));
    let ports: Result<Vec<Value>, verbs::Error> =
        (1..=attributes.phys_port_cnt).map(|number| port(context, number)).collect();
    table.push(("ports", Value::List(ports?)));
    Ok(Value::Table(table))
}

fn limits(device: &DeviceAttributes) -> Vec<(&'static str, Value)> {
    let atomic_cap = match device.atomic_cap {
        AtomicCapability::None => "ATOMIC_NONE",
        AtomicCapability::Device => "ATOMIC_HCA",
        AtomicCapability::Global => "ATOMIC_GLOB",
    };
    let flags: Vec<Value> = device.device_cap_flags.iter_names().map(|(name, _)| name.into()).collect();
    let access: Vec<Value> = device.supported_access.iter_names().map(|(name, _)| name.into()).collect();
    vec![
        ("transport", device.transport.name().into()),
        ("fw_ver", device.fw_ver.clone().into()),
        ("node_guid", guid(device.node_guid).into()),
        ("sys_image_guid", guid(device.sys_image_guid).into()),
        ("vendor_id", format!("{:#08x}", device.vendor.vendor_id).into()),
        ("vendor_part_id", device.vendor.vendor_part_id.into()),
        ("hw_ver", format!("{:#x}", device.vendor.hw_ver).into()),
        ("phys_port_cnt", u32::from(device.phys_port_cnt).into()),
        ("max_mr_size", device.max_mr_size.into()),
        ("page_size_cap", format!("{:#x}", device.page_size_cap).into()),
        ("max_qp", device.max_qp.into()),
        ("max_qp_wr", device.max_qp_wr.into()),
        ("device_cap_flags", Value::List(flags)),
        ("max_sge", device.max_sge.into()),
        ("max_sge_rd", device.max_sge_rd.into()),
        ("max_inline_data", device.max_inline_data.into()),
        ("max_cq", device.max_cq.into()),
        ("max_cqe", device.max_cqe.into()),
        ("max_mr", device.max_mr.into()),
        ("max_pd", device.max_pd.into()),
        ("max_qp_rd_atom", u32::from(device.max_qp_rd_atom).into()),
        ("max_qp_init_rd_atom", u32::from(device.max_qp_init_rd_atom).into()),
        ("atomic_cap", atomic_cap.into()),
        ("max_mw", device.max_mw.into()),
        ("max_mcast_grp", device.max_mcast_grp.into()),
        ("max_mcast_qp_attach", device.max_mcast_qp_attach.into()),
        ("max_total_mcast_qp_attach", device.max_total_mcast_qp_attach.into()),
        ("max_ah", device.max_ah.into()),
        ("max_srq", device.max_srq.into()),
        ("max_srq_wr", device.max_srq_wr.into()),
        ("max_srq_sge", device.max_srq_sge.into()),
        ("max_pkeys", u32::from(device.max_pkeys).into()),
        ("local_ca_ack_delay", u32::from(device.local_ca_ack_delay).into()),
        ("supported_access", Value::List(access)),
        ("num_comp_vectors", device.num_comp_vectors.into()),
        ("completion_timestamp_mask", format!("{:#018x}", device.completion_timestamp_mask).into()),
        ("hca_core_clock_khz", device.hca_core_clock_khz.into()),
        ("max_cq_count", u32::from(device.max_cq_count).into()),
        ("max_cq_period", u32::from(device.max_cq_period).into()),
        ("odp_caps", on_demand(&device.odp_caps)),
        ("max_dm_size", device.max_dm_size.into()),
    ]
}

fn on_demand(caps: &OnDemandCapabilities) -> Value {
    let names = |names: Vec<&'static str>| Value::List(names.into_iter().map(Value::from).collect());
    let of = |operations: OnDemandOperations| names(operations.iter_names().map(|(name, _)| name).collect());
    let mut table = vec![("general", names(caps.general.iter_names().map(|(name, _)| name).collect()))];
    table.extend([("rc", of(caps.rc)), ("uc", of(caps.uc)), ("ud", of(caps.ud)), ("xrc", of(caps.xrc))]);
    Value::Table(table)
}

fn port(context: &Context, number: u8) -> Result<Value, verbs::Error> {
    let port = context.query_port(number)?;
    let mut table = vec![("port", u32::from(number).into())];
    table.extend(port_attributes(&port));
    let default = context.default_gid_index(number).ok();
    let gids = context.gid_table(number)?;
    table.push(("GID", Value::List(gids.iter().map(|entry| gid(entry, default)).collect())));
    Ok(Value::Table(table))
}

fn port_attributes(port: &PortAttributes) -> Vec<(&'static str, Value)> {
    let mut table: Vec<(&'static str, Value)> = vec![
        ("state", port.state.name().into()),
        ("max_mtu", port.max_mtu.bytes().into()),
        ("active_mtu", port.active_mtu.bytes().into()),
        ("sm_lid", u32::from(port.sm_lid).into()),
        ("port_lid", u32::from(port.lid).into()),
        ("port_lmc", format!("{:#04x}", port.lmc).into()),
        ("link_layer", port.link_layer.name().into()),
        ("max_msg_sz", port.max_msg_sz.into()),
        ("port_cap_flags", format!("{:#010x}", port.port_cap_flags).into()),
        ("max_vl_num", u32::from(port.max_vl_num).into()),
        ("bad_pkey_cntr", port.bad_pkey_cntr.into()),
        ("qkey_viol_cntr", port.qkey_viol_cntr.into()),
        ("sm_sl", u32::from(port.sm_sl).into()),
        ("pkey_tbl_len", u32::from(port.pkey_tbl_len).into()),
        ("gid_tbl_len", port.gid_tbl_len.into()),
        ("active_width", format!("{}X", port.active_width.lanes()).into()),
        ("active_speed", format!("{:.1} Gbps", f64::from(port.active_speed.megabits()) / 1000.0).into()),
        ("phys_state", u32::from(port.phys_state).into()),
    ];
    if port.link_layer == LinkLayer::InfiniBand {
        table.push(("grh_required", Value::Flag(port.grh_required)));
    }
    table
}

fn gid(entry: &GidEntry, default: Option<u8>) -> Value {
    Value::Table(vec![
        ("index", u32::from(entry.gid_index).into()),
        ("gid", entry.gid.to_string().into()),
        ("type", entry.gid_type.name().into()),
        ("ndev_ifindex", entry.ndev_ifindex.into()),
        ("default", Value::Flag(default == Some(entry.gid_index))),
    ])
}

impl Value {
    /// Prints it as text: a line for each attribute, those of ports indented.
    fn print(&self, depth: usize, out: &mut impl Write) -> io::Result<()> {
        let Value::Table(table) = self else { return Ok(()) };
        for (name, value) in table {
            let (indent, label) = ("\t".repeat(depth), format!("{name}:"));
            match value {
                Value::List(entries) if entries.iter().all(|entry| matches!(entry, Value::Text(_))) => {
                    let joined = entries.iter().map(Value::line).collect::<Vec<_>>().join(" | ");
                    writeln!(out, "{indent}{label:<30} {joined}")?;
                }
                Value::List(entries) if *name == "ports" => {
                    entries.iter().try_for_each(|port| port.print(depth + 1, out))?;
                }
                Value::List(entries) => {
                    entries.iter().try_for_each(|entry| writeln!(out, "{indent}{label:<30} {}", entry.line()))?;
                }
                other => writeln!(out, "{indent}{label:<30} {}", other.line())?,
            }
        }
        Ok(())
    }

    /// Returns the value in one line.
    fn line(&self) -> String {
        match self {
            Value::Number(number) => number.to_string(),
            Value::Text(text) => text.clone(),
            Value::Flag(flag) => flag.to_string(),
            Value::Table(table) => {
                table.iter().map(|(name, value)| format!("{name} {}", value.line())).collect::<Vec<_>>().join(", ")
            }
            Value::List(entries) => entries.iter().map(Value::line).collect::<Vec<_>>().join(", "),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::Table(table) => serializer.collect_map(table.iter().map(|(name, value)| (name, value))),
            Self::List(entries) => serializer.collect_seq(entries),
        }
    }
}

/// The document of `--json`.
#[derive(Serialize)]
struct Document {
    devices: Vec<Value>,
    /// Devices that cannot be opened.
    failed: Vec<Failed>,
}

#[derive(Serialize)]
struct Failed {
    name: String,
    error: String,
}

/// Prints the devices.
pub(crate) fn run(options: &Options) -> ExitCode {
    exit_code("devices", list(options))
}

fn list(options: &Options) -> io::Result<ExitCode> {
    let document = document(options).map_err(|error| io::Error::other(error.to_string()))?;
    for Failed { name, error } in &document.failed {
        note!("{name}: {error}");
    }
    if options.json {
        print_json("devices", &document)?;
    } else {
        print(&document.devices)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn document(options: &Options) -> Result<Document, verbs::Error> {
    let (mut devices, mut failed) = (Vec::new(), Vec::new());
    match &options.device {
        Some(name) => {
            let known = verbs::devices()?.into_iter().find(|device| device.name() == name);
            // Software devices are opened by address, adapters by name; the prefix tells them apart.
            let prefix = name.split_once(':').map_or("soft", |(provider, _)| provider);
            let provider = known.as_ref().map_or(prefix, |device| device.provider_name());
            devices.push(device(&verbs::open(name)?, provider)?);
        }
        None => {
            for found in verbs::devices()? {
                // A device that cannot be opened must not hide the others.
                match found.open().and_then(|context| device(&context, found.provider_name())) {
                    Ok(report) => devices.push(report),
                    Err(error) => failed.push(Failed { name: found.name().to_owned(), error: error.to_string() }),
                }
            }
        }
    }
    Ok(Document { devices, failed })
}

fn print(devices: &[Value]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for device in devices {
        device.print(0, &mut out)?;
        writeln!(out)?;
    }
    Ok(())
}
