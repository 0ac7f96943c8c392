//! Rows compared with other transports over the network stack, measured by their own programs.

use super::{PLAIN_STREAM_BYTES, ROUNDS, Row, STREAM_BYTES, Scale};
use crate::perf::external::{External, LibfabricProvider, Program, UcxTest, UcxTransport};
use crate::perf::job::{Amount, Job, Measure, Operation, Waiting};
use crate::perf::table::figure::Figure;
use crate::perf::task::Task;

const MEBIBYTE: usize = 1 << 20;
const WARM_UP: u64 = 1_000;
/// Number of warm-up messages of 1 MiB.
const WARM_UP_MEBIBYTES: u64 = 100;
const SLOW_ROUNDS: u64 = 200;

impl Scale {
    pub(super) fn others(&self) -> Vec<Row> {
        let eight = |operation| self.latency(operation, 8, Waiting::Polling);
        let mebibyte = || Task::Verbs(Box::new(self.stream(Operation::Write, MEBIBYTE, 4096, STREAM_BYTES)));
        let (tag, put) = ("ucx_perftest, tag", "ucx_perftest, put");
        vec![
            Row::new("SEND 8 B beside UCX tag", eight(Operation::Send))
                .beside(tag, self.ucx(UcxTest::TagLatency, 8, ROUNDS))
                .at_most(Figure::Median, 0.65),
            Row::new("WRITE 8 B beside UCX put", eight(Operation::Write))
                .beside(put, self.ucx(UcxTest::PutLatency, 8, ROUNDS))
                .at_most(Figure::Median, 0.4),
            Row::new("WRITE 1 MiB beside UCX tag", mebibyte())
                .beside(tag, self.ucx(UcxTest::TagBandwidth, MEBIBYTE, STREAM_BYTES >> 20))
                .at_least(Figure::Bandwidth, 1.2),
            Row::new("WRITE 1 MiB beside UCX put", mebibyte())
                .beside(put, self.ucx(UcxTest::PutBandwidth, MEBIBYTE, STREAM_BYTES >> 20))
                .at_least(Figure::Bandwidth, 2.5),
            Row::new("WRITE 1 MiB beside UCX tag, tuned", mebibyte())
                .beside(tag, self.ucx(UcxTest::TunedTagBandwidth, MEBIBYTE, STREAM_BYTES >> 20))
                .shows(Figure::Bandwidth),
            Row::new("WRITE 1 MiB beside UCX put, tuned", mebibyte())
                .beside(put, self.ucx(UcxTest::TunedPutBandwidth, MEBIBYTE, STREAM_BYTES >> 20))
                .shows(Figure::Bandwidth),
            Row::new("WRITE 1 MiB beside libfabric ping-pong", mebibyte())
                .beside("fi_pingpong, udp;ofi_rxd", self.libfabric())
                .at_least(Figure::Bandwidth, 8.0),
            Row::new("SEND 1 MiB, ping-pong, beside libfabric", self.ping_pong_of_mebibytes())
                .beside("fi_pingpong, udp;ofi_rxd", self.libfabric())
                .at_most(Figure::Mean, 0.125),
        ]
    }

    fn ucx(&self, test: UcxTest, size: usize, iterations: u64) -> Task {
        self.ucx_over(UcxTransport::Tcp, test, size, iterations)
    }

    pub(super) fn ucx_over(&self, transport: UcxTransport, test: UcxTest, size: usize, iterations: u64) -> Task {
        let warm_up = if size == MEBIBYTE { WARM_UP_MEBIBYTES } else { WARM_UP };
        Task::External(External {
            program: Program::Ucx(test, transport),
            size,
            iterations: self.part(iterations),
            warm_up: self.part(warm_up),
        })
    }

    /// Returns libfabric's task, which has its own warm-up.
    fn libfabric(&self) -> Task {
        let program = Program::LibfabricPingPong(LibfabricProvider::ReliableDatagrams);
        let iterations = self.part(SLOW_ROUNDS);
        Task::External(External { program, size: MEBIBYTE, iterations, warm_up: 0 })
    }

    fn ping_pong_of_mebibytes(&self) -> Task {
        Task::Verbs(Box::new(Job {
            amount: Amount::Iterations(self.part(PLAIN_STREAM_BYTES >> 20)),
            warm_up: self.part(WARM_UP_MEBIBYTES),
            mtu: Some(4096),
            rx_depth: 16,
            ..Job::new(Operation::Send, Measure::Latency, MEBIBYTE)
        }))
    }
}
