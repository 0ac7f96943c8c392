//! Counters of the device: those that its driver publishes under names that this crate uses too.

use std::path::Path;

use crate::types::{Counter, Counters};

/// Returns the sum over all ports.
pub(super) fn read(ibdev_path: &str, ports: u8) -> Counters {
    let mut counters = Counters::default();
    for port in 1..=ports {
        let folder = Path::new(ibdev_path).join(format!("ports/{port}/hw_counters"));
        for &counter in Counter::ALL {
            let text = std::fs::read_to_string(folder.join(counter.name())).unwrap_or_default();
            counters.add(counter, text.trim().parse().unwrap_or(0));
        }
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_of_all_ports_are_added() {
        let folder = std::env::temp_dir().join(format!("rdma-verbs-counters-{}", std::process::id()));
        for (port, text) in [(1, "40\n"), (2, "2\n")] {
            let counters = folder.join(format!("ports/{port}/hw_counters"));
            std::fs::create_dir_all(&counters).unwrap();
            std::fs::write(counters.join("sent_pkts"), text).unwrap();
            std::fs::write(counters.join("something_else"), "7\n").unwrap();
        }
        let counters = read(&folder.to_string_lossy(), 2);
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(counters.get(Counter::SentPackets), 42);
        assert_eq!(counters.get(Counter::ReceivedPackets), 0);
    }
}
