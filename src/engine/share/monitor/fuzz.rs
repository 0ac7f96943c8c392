//! The entry of the fuzzer of statistics pages and of messages of the monitor.

use super::{message, page};

/// Reads bytes as the contents of a statistics page, and as messages in both directions. Returns the number of devices
/// in the page.
pub fn statistics_page(bytes: &[u8]) -> usize {
    let _ = (message::Request::parse(bytes), message::Response::parse(bytes));
    page::parse(bytes).map_or(0, |snapshot| snapshot.devices.len())
}
