//! Compares the layout of this crate's own bindings with the headers of libibverbs and librdmacm: C programs print the
//! sizes and offsets of the installed headers, and each must equal the number that `src/provider/abi/layout.rs`
//! asserts.
//!
//! Skipped without a C compiler or the headers, except where `CI=true`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

const LAYOUT: &str = include_str!("../../src/provider/abi/layout.rs");

/// The fields of an address vector that are in its global route header.
const AH_ATTR: &[(&str, &str)] = &[
    ("dgid", "grh.dgid"),
    ("flow_label", "grh.flow_label"),
    ("sgid_index", "grh.sgid_index"),
    ("hop_limit", "grh.hop_limit"),
    ("traffic_class", "grh.traffic_class"),
];

/// Returns the C structure for ours, and the C names of fields that are named differently or nested.
fn in_c(ours: &str) -> Option<InC> {
    Some(match ours {
        "Device" => ("ibv_device", &[("ops", "_ops")]),
        "Context" => ("ibv_context", &[]),
        "ContextOps" => ("ibv_context_ops", &[]),
        "DeviceAttr" => ("ibv_device_attr", &[]),
        "DeviceAttrEx" => (
            "ibv_device_attr_ex",
            &[
                ("odp_general_caps", "odp_caps.general_caps"),
                ("odp_transport_caps", "odp_caps.per_transport_caps"),
                ("rest", "tso_caps"),
                ("max_cq_count", "cq_mod_caps.max_cq_count"),
                ("max_cq_period", "cq_mod_caps.max_cq_period"),
            ],
        ),
        "QpRateLimitAttr" => ("ibv_qp_rate_limit_attr", &[]),
        "PacketPacingCaps" => ("ibv_packet_pacing_caps", &[]),
        "PortAttr" => ("ibv_port_attr", &[]),
        "GidEntry" => ("ibv_gid_entry", &[]),
        "AhAttr" => ("ibv_ah_attr", AH_ATTR),
        "Pd" => ("ibv_pd", &[]),
        "Td" => ("ibv_td", &[]),
        "TdInitAttr" => ("ibv_td_init_attr", &[]),
        "ParentDomainInitAttr" => ("ibv_parent_domain_init_attr", &[]),
        "DataBuf" => ("ibv_data_buf", &[]),
        "Mr" => ("ibv_mr", &[]),
        "AllocDmAttr" => ("ibv_alloc_dm_attr", &[]),
        "Dm" => ("ibv_dm", &[]),
        "Mw" => ("ibv_mw", &[("kind", "type")]),
        "CompChannel" => ("ibv_comp_channel", &[]),
        "Cq" => ("ibv_cq", &[]),
        "CqEx" => ("ibv_cq_ex", &[("base", "context")]),
        "CqInitAttrEx" => ("ibv_cq_init_attr_ex", &[]),
        "ModifyCqAttr" => {
            ("ibv_modify_cq_attr", &[("cq_count", "moderate.cq_count"), ("cq_period", "moderate.cq_period")])
        }
        "ValuesEx" => ("ibv_values_ex", &[]),
        "Wc" => ("ibv_wc", &[]),
        "QpCap" => ("ibv_qp_cap", &[]),
        "QpInitAttr" => ("ibv_qp_init_attr", &[]),
        "QpInitAttrEx" => ("ibv_qp_init_attr_ex", &[]),
        "QpAttr" => ("ibv_qp_attr", &[]),
        "Qp" => ("ibv_qp", &[]),
        "SrqAttr" => ("ibv_srq_attr", &[]),
        "SrqInitAttr" => ("ibv_srq_init_attr", &[]),
        "SrqInitAttrEx" => ("ibv_srq_init_attr_ex", &[]),
        "Srq" => ("ibv_srq", &[]),
        "XrcdInitAttr" => ("ibv_xrcd_init_attr", &[]),
        "Sge" => ("ibv_sge", &[]),
        "MwBindInfo" => ("ibv_mw_bind_info", &[]),
        "MwBind" => ("ibv_mw_bind", &[]),
        "SendWr" => ("ibv_send_wr", &[("remote_srqn", "qp_type.xrc.remote_srqn")]),
        "RecvWr" => ("ibv_recv_wr", &[]),
        "AsyncEvent" => ("ibv_async_event", &[]),
        // These grow at the front or at the end: offsets must match, and the size must not be smaller.
        "VerbsContext" => ("verbs_context", &[]),
        "QpEx" => ("ibv_qp_ex", &[("wr_flush", "wr_flush")]),
        // Not named in the headers, or newer than the oldest supported headers.
        "RdmaWr" | "AtomicWr" | "UdWr" | "QpExWithFlush" | "PortAttrWithSpeed" => return None,
        other => panic!("{other} is new in layout.rs: say here what it is in C"),
    })
}

/// Returns the structure of librdmacm for ours, with the C names of fields that are named differently.
fn in_connection_manager(ours: &str) -> Option<InC> {
    Some(match ours {
        "EventChannel" => ("rdma_event_channel", &[]),
        "Id" => ("rdma_cm_id", &[]),
        "Route" => ("rdma_route", &[]),
        "Addr" => ("rdma_addr", &[("ibaddr", "addr.ibaddr")]),
        "IbAddr" => ("rdma_ib_addr", &[]),
        "ConnParam" => ("rdma_conn_param", &[]),
        "UdParam" => ("rdma_ud_param", &[]),
        "Event" => ("rdma_cm_event", &[]),
        "PathRecord" => ("ibv_sa_path_rec", &[]),
        "AddrInfo" => ("rdma_addrinfo", &[]),
        "JoinMcAttrEx" => ("rdma_cm_join_mc_attr_ex", &[]),
        "Ece" => ("ibv_ece", &[]),
        other => panic!("{other} is new in layout.rs: say here what it is in C"),
    })
}

/// A structure in C: its name, and the names of fields that are named differently.
type InC = (&'static str, &'static [(&'static str, &'static str)]);

/// A header, the package that has it, and what our structures are in it.
struct Header {
    name: &'static str,
    package: &'static str,
    in_c: fn(&str) -> Option<InC>,
}

struct Layout {
    name: String,
    size: Option<usize>,
    fields: Vec<(String, usize)>,
}

/// Returns the layouts that a `layout!` block asserts, which begins with `indent`.
fn asserted(indent: &str) -> Vec<Layout> {
    let block = LAYOUT.split_once(&format!("\n{indent}layout! {{")).expect("a layout! block").1;
    let block = block.split_once(&format!("\n{indent}}}")).expect("its end").0;
    let mut found = Vec::new();
    for part in block.split('}').map(str::trim).filter(|part| !part.is_empty()) {
        let (head, fields) = part.split_once('{').expect("fields");
        let (name, size) = match head.split_once('=') {
            Some((name, size)) => (name, Some(size.trim().parse().expect("a size"))),
            None => (head, None),
        };
        let fields = fields.split(',').map(str::trim).filter(|field| !field.is_empty());
        let fields = fields.map(|field| {
            let (name, offset) = field.split_once(' ').expect("a name and an offset");
            (name.to_owned(), offset.trim().parse().expect("an offset"))
        });
        found.push(Layout { name: name.trim().to_owned(), size, fields: fields.collect() });
    }
    found
}

fn program(layouts: &[Layout], header: &Header) -> String {
    let mut text = format!("#include <{}>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n", header.name);
    for layout in layouts {
        let Some((name, renamed)) = (header.in_c)(&layout.name) else { continue };
        writeln!(text, "printf(\"{} %zu\\n\", sizeof(struct {name}));", layout.name).unwrap();
        for (field, _) in &layout.fields {
            let in_c = renamed.iter().find(|(ours, _)| ours == field).map_or(field.as_str(), |(_, theirs)| theirs);
            writeln!(text, "printf(\"{}.{field} %zu\\n\", offsetof(struct {name}, {in_c}));", layout.name).unwrap();
        }
    }
    text + "return 0; }\n"
}

fn skip(why: &str) {
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "cannot compare with the headers: {why}");
    eprintln!("skipped: {why}");
}

#[test]
fn bindings_have_the_layout_of_the_headers() {
    let layouts = asserted("");
    assert!(layouts.len() > 30, "{} structures", layouts.len());
    compare(&layouts, &Header { name: "infiniband/verbs.h", package: "libibverbs-dev", in_c });
}

#[test]
fn bindings_of_the_connection_manager_have_the_layout_of_its_header() {
    let layouts = asserted("    ");
    assert_eq!(layouts.len(), 12);
    let in_c = in_connection_manager;
    compare(&layouts, &Header { name: "rdma/rdma_cma.h", package: "librdmacm-dev", in_c });
}

fn compare(layouts: &[Layout], header: &Header) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let name = format!("layout_{}", header.package);
    let (source, binary) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, program(layouts, header)).unwrap();
    let compiled = match Command::new("cc").arg("-o").arg(&binary).arg(&source).output() {
        Ok(output) => output,
        Err(error) => return skip(&format!("no C compiler: {error}")),
    };
    let said = String::from_utf8_lossy(&compiled.stderr);
    if said.contains(&format!("{}: No such file", header.name)) {
        return skip(&format!("no {}: install {}", header.name, header.package));
    }
    assert!(compiled.status.success(), "{said}");
    let output = Command::new(&binary).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let number = |name: &str| -> usize {
        let line = output.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    };
    for layout in layouts.iter().filter(|layout| (header.in_c)(&layout.name).is_some()) {
        let size = number(&layout.name);
        // Slots are located from the end of the table, which has grown at the front since.
        let shift = if layout.name == "VerbsContext" { size - layout.size.unwrap() } else { 0 };
        let grows = matches!(layout.name.as_str(), "VerbsContext" | "QpEx" | "PortAttr");
        assert!(layout.size.is_none_or(|ours| size == ours || grows && size > ours), "size of {}: {size}", layout.name);
        for (field, offset) in &layout.fields {
            assert_eq!(number(&format!("{}.{field}", layout.name)), offset + shift, "{}.{field}", layout.name);
        }
    }
}
