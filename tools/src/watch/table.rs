//! Tables of values that are sorted, filtered and fitted into a width, for the screen and for plain text.

use std::cmp::Ordering;
use std::time::Duration;

use super::format;

/// Columns are this far apart.
const GAP: usize = 2;

/// A value, which sorts by itself and not by its text.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Cell {
    Text(String),
    Count(u64),
    /// Events per second.
    Rate(Option<f64>),
    /// Bits per second.
    Bits(Option<f64>),
    Bytes(Option<u64>),
    Time(Option<Duration>),
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Returns what is shown.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(number) => format::count(*number),
            Self::Rate(rate) => format::rate(*rate),
            Self::Bits(rate) => format::bits(*rate),
            Self::Bytes(size) => format::bytes(*size),
            Self::Time(time) => format::time(*time),
        }
    }

    /// Orders values of one column. Unknown ones are the smallest.
    fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            (Self::Count(one), Self::Count(other)) => one.cmp(other),
            (Self::Rate(one), Self::Rate(other)) | (Self::Bits(one), Self::Bits(other)) => {
                one.unwrap_or(-1.0).total_cmp(&other.unwrap_or(-1.0))
            }
            (Self::Bytes(one), Self::Bytes(other)) => one.cmp(other),
            (Self::Time(one), Self::Time(other)) => one.cmp(other),
            _ => Ordering::Equal,
        }
    }

    const fn is_text(&self) -> bool {
        matches!(self, Self::Text(_))
    }
}

/// A column of a view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// Numbers are aligned to the right.
    pub(crate) is_number: bool,
    /// Where there is no room for all columns, those with the highest rank are left out first. Rank 0 always stays.
    pub(crate) rank: u8,
    /// Longer texts are cut.
    pub(crate) limit: usize,
    /// Whether its cells are what a row with [`Tone::Warning`] warns of.
    pub(crate) is_warning: bool,
}

impl Column {
    pub(crate) const fn number(title: &'static str, rank: u8) -> Self {
        Self { title, is_number: true, rank, limit: 16, is_warning: false }
    }

    pub(crate) const fn text(title: &'static str, rank: u8, limit: usize) -> Self {
        Self { title, is_number: false, rank, limit, is_warning: false }
    }

    /// A number that rows may warn of.
    pub(crate) const fn warning(title: &'static str, rank: u8) -> Self {
        Self { is_warning: true, ..Self::number(title, rank) }
    }
}

/// Identifies a row. It stays the same between two refreshes, so that the selection stays with it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    Process(u32),
    QueuePair {
        process: u32,
        device: u64,
        number: u32,
    },
    /// A row of which no details exist.
    Line(String),
}

/// How a row stands out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tone {
    Normal,
    /// Values that are old, or of which nothing moves.
    Faint,
    /// Something is lost or waits.
    Warning,
    /// An error state.
    Error,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row {
    pub(crate) key: Key,
    pub(crate) cells: Vec<Cell>,
    pub(crate) tone: Tone,
}

impl Row {
    fn contains(&self, lower_case: &str) -> bool {
        self.cells.iter().any(|cell| cell.shown().to_lowercase().contains(lower_case))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) columns: &'static [Column],
    pub(crate) rows: Vec<Row>,
}

/// A column as it is shown: its index, its width, and whether it is aligned to the right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fitted {
    pub(crate) column: usize,
    pub(crate) width: usize,
    pub(crate) is_number: bool,
}

impl Table {
    /// Keeps the rows that contain the text in any column; case does not matter.
    pub(crate) fn filter(&mut self, text: &str) {
        let lower_case = text.to_lowercase();
        self.rows.retain(|row| row.contains(&lower_case));
    }

    /// Sorts by a column: texts upwards, numbers downwards, or the other way round. Equal rows keep their order.
    pub(crate) fn sort(&mut self, column: usize, is_reversed: bool) {
        self.rows.sort_by(|one, other| {
            let (Some(first), Some(second)) = (one.cells.get(column), other.cells.get(column)) else {
                return Ordering::Equal;
            };
            let order = first.order(second);
            if first.is_text() == is_reversed { order.reverse() } else { order }
        });
    }

    /// Selects the columns that fit the width, and their widths.
    pub(crate) fn fit(&self, width: usize) -> Vec<Fitted> {
        let mut fitted: Vec<Fitted> = (0..self.columns.len()).map(|column| self.natural(column)).collect();
        loop {
            let needed = fitted.iter().map(|one| one.width + GAP).sum::<usize>().saturating_sub(GAP);
            if needed <= width {
                return fitted;
            }
            // The last one of the highest rank goes first.
            let last = fitted.iter().enumerate().max_by_key(|(_, one)| self.columns[one.column].rank);
            match last {
                Some((index, one)) if self.columns[one.column].rank > 0 => drop(fitted.remove(index)),
                _ => break,
            }
        }
        cut(&mut fitted, width);
        fitted
    }

    fn natural(&self, column: usize) -> Fitted {
        let Column { title, is_number, limit, .. } = self.columns[column];
        let cells = self.rows.iter().filter_map(|row| row.cells.get(column));
        let longest = cells.map(|cell| cell.shown().chars().count()).max().unwrap_or(0);
        // A number that gets a digit more must not move all columns to its right.
        let least = if is_number { 7 } else { 0 };
        Fitted { column, width: longest.min(limit).max(title.len()).max(least), is_number }
    }

    /// Returns the line with the titles.
    pub(crate) fn head(&self, fitted: &[Fitted]) -> String {
        line(fitted.iter().map(|one| (*one, self.columns[one.column].title.to_owned())))
    }

    /// Returns where a column begins and ends in its line, if it is shown.
    pub(crate) fn position(fitted: &[Fitted], column: usize) -> Option<(usize, usize)> {
        let index = fitted.iter().position(|one| one.column == column)?;
        let start = fitted[..index].iter().map(|one| one.width + GAP).sum();
        Some((start, start + fitted[index].width))
    }

    /// Returns a row as a line of text.
    pub(crate) fn line(row: &Row, fitted: &[Fitted]) -> String {
        line(fitted.iter().map(|one| (*one, shown(row, *one))))
    }

    /// Returns a row as a text for each column, with the gap behind it.
    pub(crate) fn parts(row: &Row, fitted: &[Fitted]) -> Vec<String> {
        let part = |one: &Fitted| aligned(&shown(row, *one), one.width, one.is_number) + &" ".repeat(GAP);
        fitted.iter().map(part).collect()
    }
}

fn shown(row: &Row, fitted: Fitted) -> String {
    row.cells.get(fitted.column).map(Cell::shown).unwrap_or_default()
}

/// Makes columns narrower until they fit, the last ones first.
fn cut(fitted: &mut Vec<Fitted>, width: usize) {
    let mut left = width;
    for one in fitted.iter_mut() {
        one.width = one.width.min(left);
        left = left.saturating_sub(one.width + GAP);
    }
    fitted.retain(|one| one.width > 0);
}

fn line(parts: impl Iterator<Item = (Fitted, String)>) -> String {
    let cells: Vec<String> = parts.map(|(one, text)| aligned(&text, one.width, one.is_number)).collect();
    cells.join(&" ".repeat(GAP)).trim_end().to_owned()
}

/// Fills or cuts a text. A cut one ends with `~`.
fn aligned(text: &str, width: usize, is_right: bool) -> String {
    let length = text.chars().count();
    if length > width {
        return text.chars().take(width.saturating_sub(1)).chain(['~']).take(width).collect();
    }
    if is_right { format!("{text:>width$}") } else { format!("{text:<width$}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] =
        [Column::text("NAME", 0, 8), Column::number("MSG/S", 0), Column::number("RTT", 2), Column::text("PEER", 1, 20)];

    fn row(name: &str, rate: Option<f64>, micros: u64, peer: &str) -> Row {
        let time = Cell::Time(Some(Duration::from_micros(micros)));
        let cells = vec![Cell::text(name), Cell::Rate(rate), time, Cell::text(peer)];
        Row { key: Key::Line(name.to_owned()), cells, tone: Tone::Normal }
    }

    fn table() -> Table {
        let rows = vec![
            row("fio", Some(900.0), 12, "10.0.0.2"),
            row("server", Some(1200.0), 3, "10.0.0.3"),
            row("idle", None, 1000, "2001:db8::1"),
        ];
        Table { columns: &COLUMNS, rows }
    }

    fn names(table: &Table) -> Vec<String> {
        table.rows.iter().map(|row| row.cells[0].shown()).collect()
    }

    #[test]
    fn numbers_sort_by_value_and_downwards() {
        let mut table = table();
        table.sort(1, false);
        assert_eq!(names(&table), ["server", "fio", "idle"]);
        table.sort(1, true);
        assert_eq!(names(&table), ["idle", "fio", "server"]);
        table.sort(2, false);
        assert_eq!(names(&table), ["idle", "fio", "server"]);
        table.sort(0, false);
        assert_eq!(names(&table), ["fio", "idle", "server"]);
        table.sort(9, false);
        assert_eq!(names(&table), ["fio", "idle", "server"]);
    }

    #[test]
    fn filters_look_at_every_column() {
        for (text, expected) in [("DB8", vec!["idle"]), ("10.0.0.", vec!["fio", "server"]), ("1.20k", vec!["server"])] {
            let mut table = table();
            table.filter(text);
            assert_eq!(names(&table), expected, "{text}");
        }
    }

    #[test]
    fn columns_of_high_rank_go_first() {
        let table = table();
        let titles = |width| table.fit(width).iter().map(|one| COLUMNS[one.column].title).collect::<Vec<_>>();
        assert_eq!(titles(80), ["NAME", "MSG/S", "RTT", "PEER"]);
        assert_eq!(titles(6 + 2 + 7 + 2 + 11), ["NAME", "MSG/S", "PEER"]);
        assert_eq!(titles(15), ["NAME", "MSG/S"]);
        assert_eq!(titles(7), ["NAME"]);
        assert!(titles(0).is_empty());
    }

    #[test]
    fn lines_are_aligned_and_never_wider() {
        let mut table = table();
        table.rows[0].cells[0] = Cell::text("a-very-long-name");
        for width in 0..60 {
            let fitted = table.fit(width);
            let lines = table.rows.iter().map(|row| Table::line(row, &fitted)).chain([table.head(&fitted)]);
            assert!(lines.into_iter().all(|line| line.chars().count() <= width), "{width}");
        }
        let fitted = table.fit(60);
        assert_eq!(table.head(&fitted), "NAME        MSG/S      RTT  PEER");
        assert_eq!(Table::line(&table.rows[0], &fitted), "a-very-~      900  12.0 us  10.0.0.2");
    }
}
