//! Plain text, a table for each interval: for logs, and where the output is no terminal.

use std::io;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::terminal::Interrupted;
use crate::common::print;
use crate::watch::table::Table;
use crate::watch::views::View;
use crate::watch::{Collector, Update};

/// Columns of a line.
const WIDTH: usize = 250;
/// A signal is noticed after this time.
const NAP: Duration = Duration::from_millis(50);

/// Prints this many tables; without a number, until it is interrupted. Rates need two snapshots, so the first table
/// comes after an interval.
pub(super) fn run(mut collector: Collector, every: Duration, view: View, count: Option<u64>) -> io::Result<()> {
    let interrupted = Interrupted::new()?;
    collector.first(every);
    // Processes refresh their values from their answers on: later ones must not be missed by a moment.
    let mut due = Instant::now() + NAP * 2;
    let mut printed = 0;
    while count.is_none_or(|count| printed < count) {
        due += every;
        while Instant::now() < due {
            if interrupted.is_set() {
                return Ok(());
            }
            thread::sleep(NAP.min(due.saturating_duration_since(Instant::now())));
        }
        let update = collector.refresh();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        print(format_args!("{}", page(&update, view, now)))?;
        printed += 1;
    }
    Ok(())
}

/// Returns the table of one interval; `now` is the time since 1970.
fn page(update: &Update, view: View, now: Duration) -> String {
    let seconds = now.as_secs() % 86_400;
    let time = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let mut text = format!("{time} UTC  {}\n", view.title());
    let mut table = view.table(&update.processes);
    if let Some(problem) = &update.problem {
        text += &format!("{problem}\n");
    } else if table.rows.is_empty() {
        text += &format!("{}\n", view.empty());
    } else {
        if let Some(column) = view.busiest() {
            table.sort(column, false);
        }
        let fitted = table.fit(WIDTH);
        text += &format!("{}\n", table.head(&fitted));
        for row in &table.rows {
            text += &format!("{}\n", Table::line(row, &fitted));
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Watched;
    use crate::watch::tests::busy;

    #[test]
    fn a_page_has_a_time_and_a_line_for_each_process() {
        let mut watched = Watched::new(4711, "fio");
        busy().into_iter().for_each(|snapshot| watched.update(snapshot));
        let update = Update { processes: vec![watched], problem: None };
        let page = page(&update, View::Processes, Duration::from_secs(86_400 + 3_661));
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines[0], "01:01:01 UTC  Processes");
        assert!(lines[1].contains("PROCESS") && lines[2].contains("fio"), "{page}");
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn a_page_without_processes_says_what_to_start() {
        let page = page(&Update::default(), View::Processes, Duration::ZERO);
        assert!(page.contains("rdma-verbs perf self send bw"), "{page}");
        let problem = Some("the folder is not readable".to_owned());
        let failed = super::page(&Update { processes: Vec::new(), problem }, View::Drops, Duration::ZERO);
        assert!(failed.contains("the folder is not readable"), "{failed}");
    }
}
