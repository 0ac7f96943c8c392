//! Loss: drops the first datagrams of a kind, with nftables in this network namespace.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::home::{Error, Outcome};

const TABLE: &str = "rdma_verbs_loss";
/// IP packets with a MAD: the IP header, 8 bytes UDP, 280 bytes.
const V4_BYTES: u32 = 20 + 8 + 280;
const V6_BYTES: u32 = 40 + 8 + 280;

/// Rules that stay until this is dropped.
pub(crate) struct Filter(());

impl Filter {
    /// Drops the first datagrams with these attributes: those that we send (`true`), or those of the guest.
    pub(crate) fn first(is_v4: bool, losses: &[(u16, bool, u32)]) -> Result<Self, Error> {
        let bytes = if is_v4 { V4_BYTES } else { V6_BYTES };
        let rule = |(attribute, is_ours, count): &(u16, bool, u32)| {
            let chain = if *is_ours { "leave" } else { "arrive" };
            // The opcode of the BTH and the attribute of the MAD, from the UDP header on.
            let kind = format!("udp dport 4791 @th,64,8 0x64 @th,352,16 {attribute:#x}");
            format!("add rule inet {TABLE} {chain} {kind} quota until {} bytes counter drop\n", count * bytes + 1)
        };
        let mut script = format!("add table inet {TABLE}\ndelete table inet {TABLE}\nadd table inet {TABLE}\n");
        script += &format!("add chain inet {TABLE} arrive {{ type filter hook input priority 0; }}\n");
        script += &format!("add chain inet {TABLE} leave {{ type filter hook output priority 0; }}\n");
        script.extend(losses.iter().map(rule));
        nft(&script)?;
        Ok(Self(()))
    }

    /// Checks that each rule has dropped as many as it should.
    pub(crate) fn expect_used(&self, counts: &[u32]) -> Outcome {
        let listing = Command::new("nft").args(["list", "table", "inet", TABLE]).output()?;
        let text = String::from_utf8_lossy(&listing.stdout).into_owned();
        let dropped = |line: &str| line.split("counter packets ").nth(1)?.split(' ').next()?.parse().ok();
        // The chains are listed in the order in which they were made: arrive, then leave.
        let found: Vec<u32> = text.lines().filter_map(dropped).collect();
        if found == counts { Ok(()) } else { Err(format!("dropped {found:?} instead of {counts:?}").into()) }
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        let _ = nft(&format!("delete table inet {TABLE}\n"));
    }
}

fn nft(script: &str) -> Outcome {
    let mut child = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("no standard input")?.write_all(script.as_bytes())?;
    if child.wait()?.success() { Ok(()) } else { Err("nft failed".into()) }
}
