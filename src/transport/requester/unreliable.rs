//! The sending half of unreliable connections: nothing is acknowledged, nothing is sent again. A request is finished
//! when its last packet has left (IBTA 9.8).

use std::time::Duration;

use super::{Common, Pass, Requester};
use crate::transport::path::Path;
use crate::types::Psn;

/// Pause between bursts to native peers, whose socket buffers are large: at most about 2 GB/s.
const NATIVE_PAUSE: Duration = Duration::from_micros(500);
/// Pause between bursts to standard peers, as for READ responses.
const STANDARD_PAUSE: Duration = Duration::from_micros(200);
const STANDARD_BURST_PACKETS: u32 = 32;

impl Requester {
    /// Notes that a packet of an unreliable request has been written: it counts as sent and is not sent again. Pauses
    /// keep a long message, which no acknowledgement slows down, from overrunning the receiver's socket.
    pub(super) fn note_sent_unreliable(&mut self, common: &mut Common, pass: &Pass<'_>, end: Psn) {
        self.move_cursor(end);
        self.retire_before(common, pass, end);
        let Some(path) = &common.path else { return };
        // A rate replaces the pauses.
        let rate = |path: &Path| path.window_share.unacknowledged_allowance(pass.now, 0);
        if common.controlled_path().and_then(rate).is_some() {
            return;
        }
        let window = self.window_on(path);
        let (most, pause) = match path.peer.is_native() {
            true => (window, NATIVE_PAUSE),
            false => (window.min(STANDARD_BURST_PACKETS), STANDARD_PAUSE),
        };
        self.pace.note_unreliable(pass.now, most, pause);
    }
}
