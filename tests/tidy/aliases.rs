//! The names that C programs use, by which the documentation finds the verbs.

use std::collections::BTreeSet;

use super::{report, rust_files};

/// Exported functions that have no counterpart in Rust: what they do is a method of a type, the library's own work, or
/// not a verb.
const WITHOUT_COUNTERPART: [&str; 47] = [
    // Structures that Rust programs do not pass to the kernel.
    "ibv_copy_ah_attr_from_kern",
    "ibv_copy_path_rec_from_kern",
    "ibv_copy_path_rec_to_kern",
    "ibv_copy_qp_attr_from_kern",
    "ibv_read_ibdev_sysfs_file",
    "ibv_read_sysfs_file",
    "ibv_get_sysfs_path",
    // Every process may fork.
    "ibv_fork_init",
    "ibv_is_fork_initialized",
    "ibv_dofork_range",
    "ibv_dontfork_range",
    // `Display` and methods of types.
    "ibv_event_type_str",
    "ibv_node_type_str",
    "ibv_port_state_str",
    "ibv_rate_to_mbps",
    "ibv_rate_to_mult",
    "ibv_query_gid_type",
    "ibv_get_device_guid",
    "ibv_get_device_index",
    "ibv_get_pkey_index",
    "ibv_resolve_eth_l2_from_gid",
    // Not supported.
    "ibv_import_device",
    "ibv_import_dm",
    "ibv_import_mr",
    "ibv_import_pd",
    "ibv_unimport_dm",
    "ibv_unimport_mr",
    "ibv_unimport_pd",
    "ibv_query_ece",
    "ibv_set_ece",
    "ibv_query_qp_data_in_order",
    "rdma_get_remote_ece",
    "rdma_migrate_id",
    "rdma_reject_ece",
    "rdma_set_local_ece",
    // Objects that do not exist here, or are dropped; events need no acknowledgement.
    "rdma_ack_cm_event",
    "rdma_create_event_channel",
    "rdma_destroy_ep",
    "rdma_destroy_event_channel",
    "rdma_destroy_id",
    "rdma_destroy_qp",
    "rdma_destroy_srq",
    "rdma_freeaddrinfo",
    // The connection manager changes the queue pair's state itself.
    "rdma_establish",
    "rdma_init_qp_attr",
    "rdma_notify",
    // `Display`.
    "rdma_event_str",
];

/// Verbs that are functions of a header, so that no library exports them, and that have a counterpart.
const OF_THE_HEADERS: [&str; 53] = [
    "ibv_advise_mr",
    "ibv_alloc_dm",
    "ibv_alloc_mw",
    "ibv_bind_mw",
    "ibv_close_xrcd",
    "ibv_create_cq_ex",
    "ibv_create_qp_ex",
    "ibv_create_srq_ex",
    "ibv_dealloc_mw",
    "ibv_end_poll",
    "ibv_free_dm",
    "ibv_get_srq_num",
    "ibv_inc_rkey",
    "ibv_memcpy_from_dm",
    "ibv_memcpy_to_dm",
    "ibv_modify_cq",
    "ibv_modify_qp_rate_limit",
    "ibv_next_poll",
    "ibv_open_xrcd",
    "ibv_poll_cq",
    "ibv_post_recv",
    "ibv_post_send",
    "ibv_post_srq_recv",
    "ibv_query_device_ex",
    "ibv_query_gid_ex",
    "ibv_query_gid_table",
    "ibv_query_rt_values_ex",
    "ibv_reg_dm_mr",
    "ibv_req_notify_cq",
    "ibv_start_poll",
    "ibv_wr_abort",
    "ibv_wr_atomic_cmp_swp",
    "ibv_wr_atomic_fetch_add",
    "ibv_wr_atomic_write",
    "ibv_wr_bind_mw",
    "ibv_wr_complete",
    "ibv_wr_flush",
    "ibv_wr_local_inv",
    "ibv_wr_rdma_read",
    "ibv_wr_rdma_write",
    "ibv_wr_rdma_write_imm",
    "ibv_wr_send",
    "ibv_wr_send_imm",
    "ibv_wr_send_inv",
    "ibv_wr_set_inline_data",
    "ibv_wr_set_inline_data_list",
    "ibv_wr_set_sge",
    "ibv_wr_set_sge_list",
    "ibv_wr_set_ud_addr",
    "ibv_wr_set_xrc_srqn",
    "ibv_wr_start",
    "rdma_get_local_addr",
    "rdma_get_peer_addr",
];

/// Returns the texts between these marks.
fn quoted(text: &str, mark: char) -> impl Iterator<Item = &str> {
    text.split(mark).skip(1).step_by(2)
}

#[test]
fn verbs_are_found_by_the_names_of_c() {
    let mut aliases = BTreeSet::new();
    for (_, text) in rust_files("src/verbs") {
        for line in text.lines().filter(|line| line.trim_start().starts_with("#[doc(alias")) {
            aliases.extend(quoted(line, '"').map(str::to_owned));
        }
    }
    let mut verbs: BTreeSet<String> = OF_THE_HEADERS.map(str::to_owned).into();
    for (_, text) in rust_files("capi/src") {
        for line in text.lines().filter(|line| line.contains("extern \"C")) {
            let name = line.split_once(" fn ").and_then(|(_, rest)| rest.split('(').next()).unwrap_or_default();
            if name.starts_with("ibv_") || (name.starts_with("rdma_") && !name.starts_with("rdma_verbs_")) {
                verbs.insert(name.to_owned());
            }
        }
    }
    assert!(verbs.len() > 140, "only {} verbs are exported", verbs.len());
    let is_missing = |verb: &&String| !aliases.contains(*verb) && !WITHOUT_COUNTERPART.contains(&verb.as_str());
    let missing = verbs.iter().filter(is_missing).map(|verb| format!("src/verbs: no #[doc(alias = \"{verb}\")]"));
    let known = WITHOUT_COUNTERPART.iter().filter(|verb| !verbs.contains(**verb) || aliases.contains(**verb));
    report(missing.chain(known.map(|verb| format!("{verb} has a counterpart, or is not exported"))).collect());
}
