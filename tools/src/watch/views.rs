//! The views: tables of processes, queue pairs, connections and drops.

use rdma_verbs::monitor::{ConnectionState, DeviceStatistics, ListenerStatistics, QueuePairStatistics};
use rdma_verbs::types::{Counter, DropReason, QueuePairState};

use super::format;
use super::process::Watched;
use super::rates::{Change, Rates};
use super::table::{Cell, Column, Key, Row, Table, Tone};
use crate::common::printable;

/// A kind of table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum View {
    Processes,
    QueuePairs,
    Connections,
    Drops,
}

impl View {
    pub(crate) const ALL: [Self; 4] = [Self::Processes, Self::QueuePairs, Self::Connections, Self::Drops];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Processes => "Processes",
            Self::QueuePairs => "Queue pairs",
            Self::Connections => "Connections",
            Self::Drops => "Drops",
        }
    }

    /// Returns what stands in place of an empty table.
    pub(crate) const fn empty(self) -> &'static str {
        match self {
            Self::Processes => {
                "No process of this user has a software device in use.\nStart one, for example: rdma-verbs perf self \
                 send bw -D 60"
            }
            Self::QueuePairs => "No queue pairs.",
            Self::Connections => "No connections, and no listeners of the connection manager.",
            Self::Drops => "Nothing was dropped, lost or repeated.",
        }
    }

    pub(crate) const fn columns(self) -> &'static [Column] {
        match self {
            Self::Processes => &PROCESS_COLUMNS,
            Self::QueuePairs => &QUEUE_PAIR_COLUMNS,
            Self::Connections => &CONNECTION_COLUMNS,
            Self::Drops => &DROP_COLUMNS,
        }
    }

    /// Returns the column that the view is sorted by at first: the busiest rows are on top.
    pub(crate) fn busiest(self) -> Option<usize> {
        self.columns().iter().position(|column| column.title == "OUT")
    }

    pub(crate) fn table(self, processes: &[Watched]) -> Table {
        let rows = match self {
            Self::Processes => processes.iter().map(process_row).collect(),
            Self::QueuePairs => of_devices(processes, queue_pair_rows),
            Self::Connections => of_devices(processes, connection_rows),
            Self::Drops => of_devices(processes, drop_rows),
        };
        Table { columns: self.columns(), rows }
    }
}

const PROCESS_COLUMNS: [Column; 11] = [
    Column::number("PID", 0),
    Column::text("PROCESS", 0, 15),
    Column::number("QPS", 2),
    Column::number("CONNS", 4),
    Column::number("SENDS/S", 1),
    Column::number("RECVS/S", 3),
    Column::number("OUT", 0),
    Column::number("IN", 0),
    Column::warning("RETR/S", 2),
    Column::warning("DROPS/S", 3),
    Column::text("STATUS", 0, 60),
];

fn process_row(watched: &Watched) -> Row {
    let (mut qps, mut connections, mut failed, mut rates) = (0, 0, 0, Rates::default());
    if let Some((now, change)) = watched.change() {
        rates = change.process();
        for device in &now.devices {
            qps += u64::from(device.objects.queue_pairs);
            connections += u64::from(device.connections.in_state(ConnectionState::Established));
            failed += failures(device);
        }
    }
    let mut status = watched.status();
    let is_silent = !status.is_empty();
    if !is_silent && failed > 0 {
        status = format!("{failed} in error");
    }
    let tone = match () {
        () if is_silent => Tone::Faint,
        () if failed > 0 => Tone::Error,
        () => tone(&rates),
    };
    let mut cells = vec![Cell::Count(watched.process.into()), Cell::text(&watched.name)];
    cells.extend([Cell::Count(qps), Cell::Count(connections)]);
    cells.extend(rate_cells(&rates));
    cells.push(Cell::Text(status));
    Row { key: Key::Process(watched.process), cells, tone }
}

/// Returns the number of queue pairs in an error state.
pub(crate) fn failures(device: &DeviceStatistics) -> u64 {
    [QueuePairState::Error, QueuePairState::SendQueueError]
        .map(|state| u64::from(device.states[state as usize]))
        .iter()
        .sum()
}

fn rate_cells(rates: &Rates) -> [Cell; 6] {
    [
        Cell::Rate(rates.sends),
        Cell::Rate(rates.receives),
        Cell::Bits(rates.bits_out),
        Cell::Bits(rates.bits_in),
        Cell::Rate(rates.retransmissions),
        Cell::Rate(rates.drops),
    ]
}

fn tone(rates: &Rates) -> Tone {
    let loses = [rates.retransmissions, rates.drops].iter().flatten().any(|rate| *rate > 0.0);
    match () {
        () if loses => Tone::Warning,
        () if rates.is_busy() => Tone::Normal,
        () => Tone::Faint,
    }
}

/// Collects the rows of all devices of all processes.
fn of_devices(processes: &[Watched], rows: impl Fn(&Watched, &DeviceStatistics, &Change<'_>) -> Vec<Row>) -> Vec<Row> {
    let mut all = Vec::new();
    for watched in processes {
        if let Some((now, change)) = watched.change() {
            all.extend(now.devices.iter().flat_map(|device| rows(watched, device, &change)));
        }
    }
    all
}

const QUEUE_PAIR_COLUMNS: [Column; 17] = [
    Column::number("PID", 3),
    Column::text("PROCESS", 3, 15),
    Column::text("DEVICE", 6, 16),
    Column::text("QPN", 0, 8),
    Column::text("TYPE", 2, 13),
    Column::text("STATE", 0, 5),
    Column::text("PEER", 1, 39),
    Column::text("PATH", 1, 6),
    Column::number("SENDS/S", 0),
    Column::number("RECVS/S", 3),
    Column::number("OUT", 0),
    Column::number("IN", 0),
    Column::number("RTT", 2),
    Column::number("WINDOW", 6),
    Column::number("FLIGHT", 5),
    Column::warning("RETR/S", 2),
    Column::warning("DROPS/S", 4),
];

fn queue_pair_rows(watched: &Watched, device: &DeviceStatistics, change: &Change<'_>) -> Vec<Row> {
    device.queue_pairs.iter().map(|qp| queue_pair_row(watched, device, qp, &change.queue_pair(device, qp))).collect()
}

fn queue_pair_row(watched: &Watched, device: &DeviceStatistics, qp: &QueuePairStatistics, rates: &Rates) -> Row {
    let mut cells = lead(watched, device);
    cells.extend([Cell::Text(number_text(qp)), Cell::text(qp.qp_type.name()), Cell::text(qp.state.name())]);
    cells.extend([Cell::Text(peer_text(qp)), Cell::text(path_text(qp))]);
    let [sends, receives, out, into, retransmissions, drops] = rate_cells(rates);
    let window = (qp.window > 0).then_some(qp.window);
    cells.extend([sends, receives, out, into, Cell::Time(qp.round_trip), Cell::Bytes(window)]);
    cells.extend([Cell::Bytes(Some(qp.bytes_in_flight)), retransmissions, drops]);
    let is_failed = matches!(qp.state, QueuePairState::Error | QueuePairState::SendQueueError);
    let tone = match () {
        () if watched.is_overdue() => Tone::Faint,
        () if is_failed => Tone::Error,
        () => tone(rates),
    };
    let key = Key::QueuePair { process: watched.process, device: device.id, number: qp.qpn.value() };
    Row { key, cells, tone }
}

fn lead(watched: &Watched, device: &DeviceStatistics) -> Vec<Cell> {
    vec![Cell::Count(watched.process.into()), Cell::text(&watched.name), Cell::Text(printable(&device.name))]
}

pub(crate) fn number_text(qp: &QueuePairStatistics) -> String {
    format!("{:#08x}", qp.qpn.value())
}

pub(crate) fn peer_text(qp: &QueuePairStatistics) -> String {
    match (qp.peer_address, qp.peer_qpn) {
        (Some(address), Some(number)) => format!("{address} {:#08x}", number.value()),
        (Some(address), None) => address.to_string(),
        _ => format::UNKNOWN.to_owned(),
    }
}

pub(crate) fn path_text(qp: &QueuePairStatistics) -> &'static str {
    qp.path.map_or(format::UNKNOWN, |path| path.name())
}

const CONNECTION_COLUMNS: [Column; 7] = [
    Column::number("PID", 0),
    Column::text("PROCESS", 1, 15),
    Column::text("DEVICE", 2, 16),
    Column::text("KIND", 0, 11),
    Column::text("NAME", 0, 44),
    Column::warning("NUMBER", 0),
    Column::warning("PER S", 0),
];

fn connection_rows(watched: &Watched, device: &DeviceStatistics, change: &Change<'_>) -> Vec<Row> {
    let row = |kind: &str, name: String, number: u64, rate, tone| {
        let key = Key::Line(format!("{} {} {kind} {name}", watched.process, device.id));
        let mut cells = lead(watched, device);
        cells.extend([Cell::text(kind), Cell::Text(name), Cell::Count(number), Cell::Rate(rate)]);
        Row { key, cells, tone: if watched.is_overdue() { Tone::Faint } else { tone } }
    };
    let mut rows = Vec::new();
    for state in ConnectionState::ALL {
        let number = device.connections.in_state(*state);
        if number > 0 {
            rows.push(row("connections", state.name().to_owned(), number.into(), None, Tone::Normal));
        }
    }
    for listener in &device.listeners {
        let tone = if listener.waiting > 0 { Tone::Warning } else { Tone::Normal };
        rows.push(row("listener", listener_text(listener), listener.waiting.into(), None, tone));
    }
    if device.omitted_listeners > 0 {
        rows.push(row("listener", "others".to_owned(), device.omitted_listeners.into(), None, Tone::Faint));
    }
    for (name, count) in MESSAGE_COUNTS {
        let number = count(device);
        if number > 0 {
            rows.push(row("messages", name.to_owned(), number, change.of_device(device, count), Tone::Normal));
        }
    }
    rows
}

/// A count of a device, and its name.
type Count = (&'static str, fn(&DeviceStatistics) -> u64);

/// Messages of the connection manager.
pub(crate) const MESSAGE_COUNTS: [Count; 8] = [
    ("received", |device| device.connections.received),
    ("sent", |device| device.connections.sent),
    ("repeated", |device| device.connections.repeated),
    ("duplicates", |device| device.connections.duplicates),
    ("stale", |device| device.connections.stale),
    ("refused", |device| device.connections.refused),
    ("dropped", |device| device.connections.dropped),
    ("dropped_full", |device| device.connections.dropped_full),
];

/// Returns where a listener listens, and how many requests may wait. The number beside it is of those that do.
pub(crate) fn listener_text(listener: &ListenerStatistics) -> String {
    let address = listener.address.map_or("*".to_owned(), |address| address.to_string());
    let (kind, backlog) = (listener.qp_type.name(), listener.backlog);
    match listener.port() {
        Some(port) => format!("{address} port {port} {kind}, backlog {backlog}"),
        None => format!("{address} service {:#x} {kind}, backlog {backlog}", listener.service_id),
    }
}

const DROP_COLUMNS: [Column; 6] = [
    Column::number("PID", 0),
    Column::text("PROCESS", 1, 15),
    Column::text("DEVICE", 2, 16),
    Column::text("REASON", 0, 28),
    Column::number("TOTAL", 0),
    Column::warning("PER S", 0),
];

/// Counters of what was lost, repeated or given up.
const LOSSES: [Counter; 15] = [
    Counter::SocketOverflow,
    Counter::SendQueueDrops,
    Counter::SendErrors,
    Counter::LostPackets,
    Counter::RetransmittedPackets,
    Counter::SpuriousRetransmits,
    Counter::ReadRepair,
    Counter::LocalAckTimeout,
    Counter::ReceivedSequenceNak,
    Counter::SentSequenceNak,
    Counter::ReceivedRnr,
    Counter::SentRnr,
    Counter::RetryExceeded,
    Counter::RnrRetryExceeded,
    Counter::CompletionQueueOverflow,
];

fn drop_rows(watched: &Watched, device: &DeviceStatistics, change: &Change<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |name: &'static str, count: &dyn Fn(&DeviceStatistics) -> u64| {
        let total = count(device);
        if total > 0 {
            let rate = change.of_device(device, count);
            let is_quiet = watched.is_overdue() || rate.is_none_or(|rate| rate == 0.0);
            let tone = if is_quiet { Tone::Faint } else { Tone::Warning };
            let mut cells = lead(watched, device);
            cells.extend([Cell::text(name), Cell::Count(total), Cell::Rate(rate)]);
            rows.push(Row { key: Key::Line(format!("{} {} {name}", watched.process, device.id)), cells, tone });
        }
    };
    for reason in DropReason::ALL {
        add(reason.name(), &|device| device.counters.get_drop(*reason));
    }
    for counter in LOSSES {
        add(counter.name(), &|device| device.counters.get(counter));
    }
    rows
}

/// Returns all that is known of a queue pair, as names and values. `None` if it is gone.
pub(crate) fn details(processes: &[Watched], key: &Key) -> Option<Vec<(String, String)>> {
    let Key::QueuePair { process, device, number } = key else { return None };
    let watched = processes.iter().find(|watched| watched.process == *process)?;
    let (now, change) = watched.change()?;
    let device = now.devices.iter().find(|one| one.id == *device)?;
    let qp = device.queue_pairs.iter().find(|qp| qp.qpn.value() == *number)?;
    let rates = change.queue_pair(device, qp);
    let mut lines = identity(watched, device, qp);
    let [sends, receives, out, into, retransmissions, drops] = rate_cells(&rates).map(|cell| cell.shown());
    let mut line = |name: &str, value: String| lines.push((name.to_owned(), value));
    line("sends", format!("{} ({sends} a second, {} pending)", qp.sends, qp.pending_sends));
    line("receives", format!("{} ({receives} a second, {} pending)", qp.receives, qp.pending_receives));
    line("out, in", format!("{out}/s, {into}/s"));
    line("retransmissions, drops", format!("{retransmissions}, {drops} a second"));
    line("round-trip time", format::time(qp.round_trip));
    line("window of the path", format::bytes((qp.window > 0).then_some(qp.window)));
    let in_flight = [qp.bytes_in_flight, qp.path_bytes_in_flight].map(|size| format::bytes(Some(size)));
    line("in flight", format!("{}, of the path {}", in_flight[0], in_flight[1]));
    for (name, count) in qp.counters.iter().filter(|(_, count)| *count > 0) {
        line(name, count.to_string());
    }
    Some(lines)
}

fn identity(watched: &Watched, device: &DeviceStatistics, qp: &QueuePairStatistics) -> Vec<(String, String)> {
    let mut lines = vec![
        ("process", format!("{} {}", watched.process, watched.name)),
        ("device", printable(&device.name)),
        ("queue pair", format!("{} ({})", number_text(qp), qp.qpn.value())),
        ("type, state", format!("{}, {}", qp.qp_type.name(), qp.state.name())),
        ("own address", qp.own_address.map_or(format::UNKNOWN.to_owned(), |address| address.to_string())),
        ("peer", peer_text(qp)),
        ("path", path_text(qp).to_owned()),
    ];
    lines.extend(qp.error.as_ref().map(|error| ("error", printable(error))));
    let status = watched.status();
    lines.extend((!status.is_empty()).then_some(("status", status)));
    lines.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::tests::{busy, snapshot};

    fn watched() -> Watched {
        let mut watched = Watched::new(7, "fio");
        busy().into_iter().for_each(|snapshot| watched.update(snapshot));
        watched
    }

    fn text(view: View, processes: &[Watched]) -> Vec<String> {
        let table = view.table(processes);
        let fitted = table.fit(200);
        [table.head(&fitted)].into_iter().chain(table.rows.iter().map(|row| Table::line(row, &fitted))).collect()
    }

    #[test]
    fn rows_have_a_cell_for_each_column() {
        for view in View::ALL {
            let table = view.table(&[watched()]);
            assert!(!table.rows.is_empty(), "{view:?}");
            assert!(table.rows.iter().all(|row| row.cells.len() == table.columns.len()), "{view:?}");
        }
    }

    #[test]
    fn processes_show_the_sums_and_what_is_wrong() {
        let lines = text(View::Processes, &[watched()]);
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(words, ["7", "fio", "2", "4", "250k", "0", "10.0", "Gb", "0", "b", "3", "0", "1", "in", "error"]);
        assert_eq!(View::Processes.table(&[watched()]).rows[0].tone, Tone::Error);
    }

    #[test]
    fn queue_pairs_show_peer_path_and_rates() {
        let lines = text(View::QueuePairs, &[watched()]);
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        let left = ["7", "fio", "soft_eth0", "0x00001b", "RC", "RTS", "10.0.0.2", "0x00002c", "UDP", "250k", "0"];
        assert_eq!(words[..11], left);
        assert_eq!(words[11..], ["10.0", "Gb", "0", "b", "52.0", "us", "1", "MiB", "64", "KiB", "3", "0"]);
        assert_eq!(
            View::QueuePairs.table(&[watched()]).rows.iter().map(|row| row.tone).collect::<Vec<_>>(),
            [Tone::Warning, Tone::Error]
        );
    }

    #[test]
    fn connections_and_drops_show_what_is_not_zero() {
        let connections = text(View::Connections, &[watched()]);
        assert!(connections[1].contains("established") && connections[1].contains('4'), "{connections:?}");
        assert!(connections[2].contains("* port 7471 RC, backlog 16"), "{connections:?}");
        assert!(connections[3].contains("received"), "{connections:?}");
        assert_eq!(connections.len(), 4);
        let drops = text(View::Drops, &[watched()]);
        assert_eq!(drops.len(), 3);
        assert!(drops[1].contains("drop_bad_icrc") && drops[2].contains("retransmitted_pkts"), "{drops:?}");
    }

    #[test]
    fn details_name_the_error_and_end_with_the_queue_pair() {
        let processes = [watched()];
        let keys: Vec<Key> = View::QueuePairs.table(&processes).rows.into_iter().map(|row| row.key).collect();
        let lines = details(&processes, &keys[1]).expect("details");
        assert!(lines.contains(&("error".to_owned(), "the peer does not respond".to_owned())), "{lines:?}");
        let lines = details(&processes, &keys[0]).expect("details");
        assert!(lines.contains(&("retransmitted_pkts".to_owned(), "3".to_owned())), "{lines:?}");
        let mut gone = watched();
        gone.update(snapshot(9_000_000_000, Vec::new()));
        assert_eq!(details(&[gone], &keys[0]), None);
    }
}
