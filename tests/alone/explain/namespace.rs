//! A private network namespace, in which links can be changed.

use rdma_verbs::verbs::{Mtu, SendRequest};
use support::process::{ignored_test, in_namespace, ip, namespace_allows};

use super::world::{End, hasty};

const CASE_VARIABLE: &str = "RDMA_VERBS_EXPLAIN_NAMESPACE_CASE";
const MARK: &str = "explanation: ";
/// Result of an injection that this system does not allow.
pub(crate) const SKIPPED: &str = "skipped";

/// The link shrinks below the packets of a connection.
#[test]
#[ignore = "started by the explanations test"]
fn inside() {
    let Ok(case) = std::env::var(CASE_VARIABLE) else { return };
    ip("link set lo up");
    let case = case.parse().unwrap();
    let [left, right] = [1, 2].map(|host| End::without_shared_memory(case, host));
    left.qp.connect_with(&right.info(), &hasty().path_mtu(Mtu::Mtu4096)).unwrap();
    right.qp.connect_with(&left.info(), &hasty().path_mtu(Mtu::Mtu4096)).unwrap();
    ip("link set lo mtu 1500");
    let (near, far) = (left.region(16_384), right.region(16_384));
    left.post(SendRequest::write(&near, far.remote()));
    println!("\n{MARK}{}", left.why());
}

pub(crate) fn link_shrinks(case: u8) -> String {
    if !namespace_allows("link set lo up") {
        return SKIPPED.to_owned();
    }
    let inside = ignored_test(concat!(module_path!(), "::inside"));
    let output = in_namespace(&inside).env(CASE_VARIABLE, case.to_string()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text.lines().find_map(|line| line.strip_prefix(MARK));
    said.map_or_else(|| format!("the other process failed: {text}"), str::to_owned)
}
