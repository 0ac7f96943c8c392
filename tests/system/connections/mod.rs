//! Connections by address and port between several processes on one address.
//!
//! A test starts this program again as members, which obey its lines. Every request, reply and message names the server
//! and the connection that it belongs to, so that a wrong connection is noticed at either end.

mod end;
mod listeners;
mod member;
mod neighbors;
mod process;
mod storm;

use std::time::Duration;

/// Set in members.
const MEMBER: &str = "RDMA_VERBS_TEST_CONNECTIONS";
/// The test that is a member's program.
const PROGRAM: &str = concat!(module_path!(), "::member_process");
/// Beginning of a member's replies.
const REPLY: &str = "= ";
/// Longer than any attempt to connect takes.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
#[ignore = "started by the other tests"]
fn member_process() {
    if std::env::var(MEMBER).is_ok() {
        member::Member::default().run();
    }
}
