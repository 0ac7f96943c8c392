//! Tables of devices and queue pairs, with totals.

use rdma_verbs::monitor::{ConnectionState, DeviceStatistics, QueuePairStatistics};
use rdma_verbs::types::{Counter, Counters};

use crate::common::printable;
use crate::watch::Watched;
use crate::watch::format::UNKNOWN;
use crate::watch::table::{Cell, Column, Key, Row, Table, Tone};
use crate::watch::views::{View, number_text, path_text, peer_text};

/// Columns of a line.
const WIDTH: usize = 250;

const DEVICE_COLUMNS: [Column; 11] = [
    Column::number("PID", 0),
    Column::text("PROCESS", 0, 15),
    Column::text("DEVICE", 0, 24),
    Column::text("MEMORY", 0, 7),
    Column::number("QPS", 0),
    Column::number("CONNS", 0),
    Column::number("OUT", 0),
    Column::number("IN", 0),
    Column::number("RETR", 0),
    Column::number("DROPS", 0),
    Column::text("STATUS", 0, 100),
];

const QUEUE_PAIR_COLUMNS: [Column; 14] = [
    Column::number("PID", 0),
    Column::text("DEVICE", 0, 24),
    Column::text("QPN", 0, 8),
    Column::text("TYPE", 0, 13),
    Column::text("STATE", 0, 5),
    Column::text("PEER", 0, 39),
    Column::text("PATH", 0, 6),
    Column::number("SENDS", 0),
    Column::number("RECVS", 0),
    Column::number("OUT", 0),
    Column::number("IN", 0),
    Column::number("RTT", 0),
    Column::number("RETR", 0),
    Column::number("DROPS", 0),
];

/// Returns the table of devices, and with `has_queue_pairs` that of queue pairs.
pub(super) fn tables(processes: &[Watched], has_queue_pairs: bool) -> String {
    if processes.is_empty() {
        return format!("{}\n", View::Processes.empty());
    }
    let mut text = lines(&Table { columns: &DEVICE_COLUMNS, rows: processes.iter().flat_map(device_rows).collect() });
    if has_queue_pairs {
        let rows = processes.iter().flat_map(queue_pair_rows).collect();
        text += &format!("\n{}", lines(&Table { columns: &QUEUE_PAIR_COLUMNS, rows }));
    }
    text
}

fn lines(table: &Table) -> String {
    let fitted = table.fit(WIDTH);
    let body = table.rows.iter().map(|row| Table::line(row, &fitted));
    [table.head(&fitted)].into_iter().chain(body).map(|line| line + "\n").collect()
}

fn row(process: u32, cells: Vec<Cell>) -> Row {
    Row { key: Key::Process(process), cells, tone: Tone::Normal }
}

/// A process without devices has a row with its state.
fn device_rows(watched: &Watched) -> Vec<Row> {
    let devices = watched.snapshot().map_or(&[][..], |snapshot| &snapshot.devices);
    let none = (devices.is_empty() && !watched.status().is_empty()).then(|| {
        let mut cells = vec![Cell::Count(watched.process.into()), Cell::text(&watched.name)];
        cells.extend((0..8).map(|_| Cell::text(UNKNOWN)));
        cells.push(Cell::Text(watched.status()));
        row(watched.process, cells)
    });
    devices.iter().map(|device| device_row(watched, device)).chain(none).collect()
}

fn device_row(watched: &Watched, device: &DeviceStatistics) -> Row {
    let connections = device.connections.in_state(ConnectionState::Established);
    let mut cells = vec![
        Cell::Count(watched.process.into()),
        Cell::text(&watched.name),
        Cell::Text(printable(&device.name)),
        Cell::text(device.shared_memory.name()),
        Cell::Count(device.objects.queue_pairs.into()),
        Cell::Count(connections.into()),
    ];
    cells.extend(packets(&device.counters));
    cells.push(Cell::Text(watched.status()));
    row(watched.process, cells)
}

fn packets(counters: &Counters) -> [Cell; 4] {
    [
        Cell::Bytes(Some(counters.get(Counter::SentBytes))),
        Cell::Bytes(Some(counters.get(Counter::ReceivedBytes))),
        Cell::Count(counters.get(Counter::RetransmittedPackets)),
        Cell::Count(counters.total_drops()),
    ]
}

fn queue_pair_rows(watched: &Watched) -> Vec<Row> {
    let devices = watched.snapshot().map_or(&[][..], |snapshot| &snapshot.devices);
    let listed = devices.iter().flat_map(|device| device.queue_pairs.iter().map(move |qp| (device, qp)));
    listed.map(|(device, qp)| queue_pair_row(watched.process, device, qp)).collect()
}

fn queue_pair_row(process: u32, device: &DeviceStatistics, qp: &QueuePairStatistics) -> Row {
    let [out, into, retransmissions, drops] = packets(&qp.counters);
    let cells = vec![
        Cell::Count(process.into()),
        Cell::Text(printable(&device.name)),
        Cell::Text(number_text(qp)),
        Cell::text(qp.qp_type.name()),
        Cell::text(qp.state.name()),
        Cell::Text(peer_text(qp)),
        Cell::text(path_text(qp)),
        Cell::Count(qp.sends),
        Cell::Count(qp.receives),
        out,
        into,
        Cell::Time(qp.round_trip),
        retransmissions,
        drops,
    ];
    row(process, cells)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::tests::busy;

    #[test]
    fn tables_have_totals() {
        let mut watched = Watched::new(4711, "fio");
        busy().into_iter().for_each(|snapshot| watched.update(snapshot));
        let mut refusing = Watched::new(4712, "su");
        refusing.problem = Some("process 4712 refuses".to_owned());
        let text = tables(&[watched, refusing], true);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1][..6], ["4711", "fio", "soft_eth0", "auto", "2", "4"]);
        assert_eq!(lines[1][6..], ["1.17", "GiB", "0", "B", "3", "1"]);
        assert_eq!(lines[2][10..], ["process", "4712", "refuses"]);
        assert_eq!(lines[5][2..8], ["0x00001b", "RC", "RTS", "10.0.0.2", "0x00002c", "UDP"]);
        assert_eq!(lines.len(), 7);
        assert!(tables(&[], true).contains("rdma-verbs perf self send bw"));
    }
}
