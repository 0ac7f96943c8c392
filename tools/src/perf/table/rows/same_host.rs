//! Rows compared with what two processes of one host can do through memory.

use super::{ROUNDS, Row, STREAM_BYTES, Scale};
use crate::perf::external::{External, LibfabricProvider, Program, UcxTest, UcxTransport};
use crate::perf::job::{Operation, Waiting};
use crate::perf::reference::{MemoryCopy, Reference};
use crate::perf::table::figure::Figure;
use crate::perf::task::Task;

const KIBIBYTE: usize = 1 << 10;
const MEBIBYTE: usize = 1 << 20;
/// Number of rounds of a ping-pong through memory, which is an order of magnitude faster than one through sockets.
const MEMORY_ROUNDS: u64 = 10 * ROUNDS;

impl Scale {
    pub(super) fn same_host(&self) -> Vec<Row> {
        let mut rows = self.same_host_latency();
        rows.extend(self.same_host_one_sided());
        rows.extend(self.same_host_sends());
        rows
    }

    fn same_host_latency(&self) -> Vec<Row> {
        let ucx = |test| self.ucx_over(UcxTransport::SharedMemory, test, 8, MEMORY_ROUNDS);
        let libfabric = Task::External(External {
            program: Program::LibfabricPingPong(LibfabricProvider::SharedMemory),
            size: 8,
            iterations: self.part(MEMORY_ROUNDS),
            warm_up: 0,
        });
        vec![
            Row::new("Same host: WRITE 8 B, no verb while waiting", self.latency(Operation::Write, 8, Waiting::Memory))
                .beside("ucx_perftest, put, posix", ucx(UcxTest::PutLatency))
                .shows(Figure::Median),
            Row::new("Same host: SEND 8 B beside UCX", self.latency(Operation::Send, 8, Waiting::Polling))
                .beside("ucx_perftest, tag, posix", ucx(UcxTest::TagLatency))
                .shows(Figure::Median),
            Row::new("Same host: SEND 8 B beside libfabric", self.latency(Operation::Send, 8, Waiting::Polling))
                .beside("fi_pingpong, shm", libfabric)
                .shows(Figure::Mean),
        ]
    }

    /// Returns the rows of WRITE and READ, beside copies of the same length between buffers of the same total length.
    fn same_host_one_sided(&self) -> Vec<Row> {
        let operations = [("WRITE", Operation::Write), ("READ", Operation::Read)];
        let sizes = [("4 KiB", 4 * KIBIBYTE), ("64 KiB", 64 * KIBIBYTE), ("1 MiB", MEBIBYTE)];
        let row = |(name, operation), (length, size)| {
            let copy = |by_kernel| {
                let bytes = STREAM_BYTES / self.divisor;
                Task::Reference(Reference::MemoryCopy(MemoryCopy { size, by_kernel, bytes }))
            };
            Row::new(
                &format!("Same host: {name} {length}"),
                Task::Verbs(Box::new(self.stream(operation, size, 4096, STREAM_BYTES))),
            )
            .beside("memcpy", copy(false))
            .beside("process_vm_readv", copy(true))
            .shows(Figure::Bandwidth)
        };
        operations.into_iter().flat_map(|operation| sizes.map(|size| row(operation, size))).collect()
    }

    fn same_host_sends(&self) -> Vec<Row> {
        let row = |(length, size): (&str, usize)| {
            let ucx = |transport| self.ucx_over(transport, UcxTest::TagBandwidth, size, STREAM_BYTES / size as u64);
            let send = self.stream(Operation::Send, size, 4096, STREAM_BYTES);
            Row::new(&format!("Same host: SEND {length}"), Task::Verbs(Box::new(send)))
                .beside("ucx_perftest, tag, posix", ucx(UcxTransport::SharedMemory))
                .beside("ucx_perftest, tag, posix and cma", ucx(UcxTransport::SharedMemoryAndCopies))
                .shows(Figure::Bandwidth)
        };
        [("64 KiB", 64 * KIBIBYTE), ("1 MiB", MEBIBYTE)].map(row).into()
    }
}
