//! Prints the table as text.

use std::io;

use super::{Finished, Unmeasured, Verdict};
use crate::common::{note, print};
use crate::perf::machine::Description;

pub(super) fn head(machine: &Description, repetitions: u32) -> io::Result<()> {
    let Description { processor, cores, kernel, receive_buffer_limit, load, .. } = machine;
    let build = if machine.optimised { "" } else { "This is a debug build: the figures mean nothing.\n" };
    let titles = format!(
        "{:<52} {:>10} {:>10} {:<6} {:>6}  {:<15} {:>9}  {:<8} {:<6} compared with",
        "", "ours", "other", "", "ratio", "", "noise", "target", ""
    );
    print(format_args!(
        "{processor}, {cores} core(s), Linux {kernel}, rmem_max {receive_buffer_limit}, load {load}\n\
         Medians of {repetitions} alternating repetitions; in brackets the ratios of single repetitions; noise: the \
         spread of the repetitions, ours and the other's, in percent of the median.\n\
         Our messages go over UDP, in the rows of the same host through shared memory.\n{build}{titles}\n"
    ))
}

pub(super) fn row(finished: &Finished) -> io::Result<()> {
    finished.verdicts.iter().try_for_each(|verdict| {
        let Verdict { figure, unit, ours, other, compared_with, ratio, least_ratio, most_ratio, .. } = verdict;
        let name = format!("{} {figure}", finished.row);
        let target = verdict.target.map(|target| target.to_string()).unwrap_or_default();
        let mark = match verdict.is_met {
            Some(true) => "pass",
            Some(false) => "BELOW",
            None => "",
        };
        let spread = format!("({least_ratio:.2}-{most_ratio:.2})");
        let noise = format!("{:.0}/{:.0}", 100.0 * verdict.own_spread, 100.0 * verdict.other_spread);
        print(format_args!(
            "{name:<52} {ours:>10.3} {other:>10.3} {unit:<6} {ratio:>6.2}  {spread:<15} {noise:>9}  {target:<8} \
             {mark:<6} {compared_with}\n"
        ))
    })
}

/// Prints the rows that were not measured, each reason once, to standard error, so that they are seen beside JSON, too.
pub(super) fn not_measured(rows: &[Unmeasured]) {
    let mut reasons: Vec<&str> = Vec::new();
    for row in rows {
        if !reasons.contains(&row.why.as_str()) {
            reasons.push(&row.why);
        }
    }
    for reason in reasons {
        note!("perf: not measured: {reason}");
        rows.iter().filter(|row| row.why == reason).for_each(|row| note!("  {}", row.row));
    }
}
