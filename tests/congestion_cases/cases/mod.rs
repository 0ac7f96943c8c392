//! The cases.

mod directions;
mod incast;
mod loss;
mod queue;
mod share;
mod single;

use std::time::Duration;

use super::row::Row;

/// Round trips of a rack, a site and a country.
const RACK: Duration = Duration::from_micros(50);
const SITE: Duration = Duration::from_millis(1);
const COUNTRY: Duration = Duration::from_millis(20);
/// The rate in Mbit/s of cases that have only one.
const RATE: u64 = 1_000;

/// Returns all rows, by case.
pub(crate) fn all() -> Vec<Row> {
    let mut rows: Vec<Row> =
        [single::rows(), share::rows(), loss::rows(), queue::rows(), incast::rows(), directions::rows()]
            .into_iter()
            .flatten()
            .collect();
    rows.sort_by_key(|row| row.case);
    rows
}
