//! Prints the results as a table or as JSON.

use serde::Serialize;

use super::known;
use super::row::{Check, Outcome, Row};

/// Number of seeds by default.
pub(crate) const SEEDS: u64 = 3;

/// The verdict on a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Pass,
    KnownMiss,
    Missed,
    /// A known miss that passes now.
    PassesNow,
}

impl Verdict {
    /// Judges a row. Known misses were listed with all seeds: a row may pass with fewer.
    fn of(row: &Row, outcome: &Outcome, seeds: u64) -> Self {
        match (outcome.passes(), known::reason(row).is_some()) {
            (true, true) if seeds < SEEDS => Self::Pass,
            (true, false) => Self::Pass,
            (false, true) => Self::KnownMiss,
            (false, false) => Self::Missed,
            (true, true) => Self::PassesNow,
        }
    }

    fn is_as_known(self) -> bool {
        matches!(self, Self::Pass | Self::KnownMiss)
    }

    fn write(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::KnownMiss => "MISSED (known)",
            Self::Missed => "MISSED",
            Self::PassesNow => "passes, but is listed as a known miss",
        }
    }
}

fn joined(checks: &[Check], write: fn(&Check) -> String) -> String {
    checks.iter().map(write).collect::<Vec<_>>().join(", ")
}

/// Prints the table. Returns whether all rows are as known.
pub(crate) fn table(rows: &[Row], outcomes: &[Outcome], seeds: u64, left_out: &[&str]) -> bool {
    let pairs = || rows.iter().zip(outcomes);
    let verdicts: Vec<Verdict> = pairs().map(|(row, outcome)| Verdict::of(row, outcome, seeds)).collect();
    let line = |((row, outcome), verdict)| line(row, outcome, verdict);
    let lines: Vec<[String; 5]> = pairs().zip(verdicts.iter().copied()).map(line).collect();
    let heads = ["parameters", "mark", "ours", "TCP", "verdict"].map(str::to_owned);
    let width = |column: usize| lines.iter().chain([&heads]).map(|line| line[column].chars().count()).max();
    let widths = [0, 1, 2, 3].map(|column| width(column).unwrap_or_default());
    let write = |line: &[String; 5]| {
        let columns = line.iter().zip(widths).map(|(text, width)| format!("{text:<width$}"));
        println!("  {}  {}", columns.collect::<Vec<_>>().join("  "), line[4]);
    };
    write(&heads);
    let mut case = 0;
    for (row, line) in rows.iter().zip(&lines) {
        if row.case != case {
            case = row.case;
            println!("{case}: {}", row.name);
        }
        write(line);
    }
    let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
    println!("\nRates are parts of what packets of 1 KiB carry; the worst of {seeds} seeds. Left out:");
    left_out.iter().for_each(|what| println!("* {what}"));
    println!("Known misses:");
    for row in rows {
        if let Some(reason) = known::reason(row) {
            println!("* {}, {}: {reason}", row.case, row.parameters);
        }
    }
    println!(
        "\ncongestion: {} rows, {} passed, {} missed as known, {} missed, {} known misses passed",
        rows.len(),
        count(Verdict::Pass),
        count(Verdict::KnownMiss),
        count(Verdict::Missed),
        count(Verdict::PassesNow)
    );
    verdicts.into_iter().all(Verdict::is_as_known)
}

fn line(row: &Row, outcome: &Outcome, verdict: Verdict) -> [String; 5] {
    [
        row.parameters.clone(),
        joined(&outcome.checks, Check::mark),
        joined(&outcome.checks, Check::measured),
        outcome.tcp.clone().unwrap_or_default(),
        verdict.write().to_owned(),
    ]
}

#[derive(Serialize)]
struct JsonRow<'a> {
    case: u8,
    name: &'a str,
    parameters: &'a str,
    #[serde(flatten)]
    outcome: &'a Outcome,
    verdict: Verdict,
    known: Option<&'a str>,
}

impl<'a> JsonRow<'a> {
    fn new(row: &'a Row, outcome: &'a Outcome, seeds: u64) -> Self {
        let Row { case, name, parameters, .. } = row;
        Self {
            case: *case,
            name,
            parameters,
            outcome,
            verdict: Verdict::of(row, outcome, seeds),
            known: known::reason(row),
        }
    }
}

/// Prints one JSON document. Returns whether all rows are as known.
pub(crate) fn json(rows: &[Row], outcomes: &[Outcome], seeds: u64) -> bool {
    let rows: Vec<JsonRow<'_>> =
        rows.iter().zip(outcomes).map(|(row, outcome)| JsonRow::new(row, outcome, seeds)).collect();
    println!("{}", serde_json::to_string_pretty(&rows).expect("rows are JSON"));
    rows.iter().all(|row| row.verdict.is_as_known())
}
