//! Rows compared with what two processes of one host can do through memory.

use super::{ROUNDS, Row, SMALL_BYTES, SMALL_MESSAGES, STREAM_BYTES, Scale};
use crate::perf::external::{External, LibfabricProvider, Program, UcxTest, UcxTransport};
use crate::perf::job::{Job, Operation, Waiting};
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
        rows.extend(self.same_host_program_memory());
        rows.extend(self.same_host_sends());
        rows.extend(self.same_host_rates());
        rows.extend(self.same_host_crowds());
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
            Row::new(
                &format!("Same host: {name} {length}"),
                Task::Verbs(Box::new(self.stream(operation, size, 4096, STREAM_BYTES))),
            )
            .beside("memcpy", self.copy(size, false))
            .beside("process_vm_readv", self.copy(size, true))
            .shows(Figure::Bandwidth)
        };
        operations.into_iter().flat_map(|operation| sizes.map(|size| row(operation, size))).collect()
    }

    /// Returns the rows of WRITE and READ with memory of the programs at both ends, beside the kernel's copies.
    fn same_host_program_memory(&self) -> Vec<Row> {
        let operations = [("WRITE", Operation::Write), ("READ", Operation::Read)];
        let sizes =
            [("64 KiB", 64 * KIBIBYTE), ("256 KiB", 256 * KIBIBYTE), ("1 MiB", MEBIBYTE), ("8 MiB", 8 * MEBIBYTE)];
        let row = |(name, operation), (length, size)| {
            let stream = Job { program_memory: true, ..self.stream(operation, size, 4096, STREAM_BYTES) };
            Row::new(&format!("Same host: {name} {length}, program's memory"), Task::Verbs(Box::new(stream)))
                .beside("process_vm_readv", self.copy(size, true))
                .at_least(Figure::Bandwidth, 0.8)
        };
        operations.into_iter().flat_map(|operation| sizes.map(|size| row(operation, size))).collect()
    }

    fn copy(&self, size: usize, by_kernel: bool) -> Task {
        let bytes = STREAM_BYTES / self.divisor;
        Task::Reference(Reference::MemoryCopy(MemoryCopy { size, by_kernel, bytes }))
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

    /// Returns the rows of short messages in batches. The other programs have no batches.
    fn same_host_rates(&self) -> Vec<Row> {
        let rows = [
            ("SEND 8 B, batches of 16", Operation::Send, 16),
            ("SEND 8 B, batches of 64", Operation::Send, 64),
            ("WRITE 8 B, batches of 16", Operation::Write, 16),
            ("WRITE 8 B, batches of 64", Operation::Write, 64),
        ];
        let row = |(name, operation, batch)| {
            let (other, test) = match operation {
                Operation::Write => ("ucx_perftest, put, posix", UcxTest::PutBandwidth),
                _ => ("ucx_perftest, tag, posix", UcxTest::TagBandwidth),
            };
            let ucx = self.ucx_over(UcxTransport::SharedMemory, test, SMALL_BYTES, SMALL_MESSAGES);
            Row::new(&format!("Same host: {name}"), Task::Verbs(Box::new(self.rate(operation, batch, 1))))
                .beside(other, ucx)
                .shows(Figure::Rate)
        };
        rows.map(row).into()
    }

    /// Returns the rows with many queue pairs, beside one.
    fn same_host_crowds(&self) -> Vec<Row> {
        let row = |(name, operation)| {
            let rate =
                |queue_pairs| Task::Verbs(Box::new(Job { tx_depth: 64, ..self.rate(operation, 16, queue_pairs) }));
            Row::new(&format!("Same host: {name} 8 B, 1000 queue pairs"), rate(1000))
                .beside("one queue pair", rate(1))
                .at_most(Figure::TimePerMessage, 1.3)
        };
        [("SEND", Operation::Send), ("WRITE", Operation::Write)].map(row).into()
    }
}
