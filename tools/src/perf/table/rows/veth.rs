//! Rows over a virtual cable.

use super::{PLAIN_STREAM_BYTES, Row, STREAM_BYTES, Scale};
use crate::perf::job::{Operation, Waiting};
use crate::perf::reference::{Offload, Wait};
use crate::perf::table::figure::Figure;
use crate::perf::task::Task;
use crate::perf::veth::Veth;

/// MTUs of the cable, and the largest path MTUs that fit.
const CABLES: [(u32, u32); 3] = [(1500, 1024), (4200, 4096), (9000, 4096)];
const SIZES: [(&str, usize); 2] = [("64 KiB", 64 << 10), ("1 MiB", 1 << 20)];

impl Scale {
    pub(super) fn veth(&self) -> Vec<Row> {
        let mut rows = vec![self.veth_latency()];
        for (mtu, path_mtu) in CABLES {
            for kernel_segments in [false, true] {
                let veth = Veth { mtu, kernel_segments };
                rows.extend(SIZES.map(|(name, size)| self.veth_stream(name, size, path_mtu, veth)));
            }
        }
        rows
    }

    fn veth_latency(&self) -> Row {
        Row::new("SEND 8 B, veth 1500", self.latency(Operation::Send, 8, Waiting::Polling))
            .over(Veth { mtu: 1500, kernel_segments: false })
            .beside("raw UDP, spinning", self.datagrams(8, Wait::Spin))
            .beside("raw UDP, yielding", self.datagrams(8, Wait::Yield))
            .at_most(Figure::Median, 1.2)
            .shows(Figure::Tail)
    }

    fn veth_stream(&self, size_name: &str, size: usize, path_mtu: u32, veth: Veth) -> Row {
        let Veth { mtu, kernel_segments } = veth;
        let (how, bytes) = if kernel_segments { (", kernel segments", PLAIN_STREAM_BYTES) } else { ("", STREAM_BYTES) };
        let ours = Task::Verbs(Box::new(self.stream(Operation::Write, size, path_mtu, bytes)));
        Row::new(&format!("WRITE {size_name}, veth {mtu}{how}"), ours)
            .over(veth)
            .beside("raw UDP GSO/GRO, copying", self.raw_stream(path_mtu, Offload::Segmentation, bytes))
            .beside("raw UDP GSO/GRO, gathering", self.raw_stream(path_mtu, Offload::Gather, bytes))
            .at_least(Figure::Bandwidth, 0.9)
            .shows(Figure::Processor)
    }
}
