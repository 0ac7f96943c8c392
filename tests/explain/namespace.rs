//! A private network namespace, in which links can be changed.

use std::process::Command;

use rdma_verbs::verbs::{Mtu, SendRequest};

use super::world::{ends, hasty};

const CASE_VARIABLE: &str = "RDMA_VERBS_EXPLAIN_NAMESPACE_CASE";
const MARK: &str = "explanation: ";
/// Result of an injection that this system does not allow.
pub(crate) const SKIPPED: &str = "skipped";

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// The link shrinks below the packets of a connection.
#[test]
#[ignore = "started by the explanations test"]
fn inside() {
    let Ok(case) = std::env::var(CASE_VARIABLE) else { return };
    ip("link set lo up");
    let (left, right) = ends(case.parse().unwrap());
    left.qp.connect_with(&right.info(), &hasty().path_mtu(Mtu::Mtu4096)).unwrap();
    right.qp.connect_with(&left.info(), &hasty().path_mtu(Mtu::Mtu4096)).unwrap();
    ip("link set lo mtu 1500");
    let (near, far) = (left.region(16_384), right.region(16_384));
    left.post(SendRequest::write(&near, far.remote()));
    println!("\n{MARK}{}", left.why());
}

pub(crate) fn link_shrinks(case: u8) -> String {
    let unshared = Command::new("unshare").args(["-rn", "ip", "link", "set", "lo", "up"]).output();
    if !unshared.is_ok_and(|output| output.status.success()) {
        return SKIPPED.to_owned();
    }
    let output = Command::new("unshare")
        .arg("-rn")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "namespace::inside", "--ignored", "--nocapture"])
        .env(CASE_VARIABLE, case.to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text.lines().find_map(|line| line.strip_prefix(MARK));
    said.map_or_else(|| format!("the other process failed: {text}"), str::to_owned)
}
