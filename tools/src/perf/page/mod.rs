//! `rdma-verbs perf report`: one HTML page about results, which needs no other file and no network.
//!
//! `input` reads results, `figures` combines and compares them, `verdict` judges them, `sections` writes the page with
//! the elements of `markup` and the charts of `chart`; `suite` measures if there are no files.

mod cards;
mod chart;
mod figures;
mod format;
mod input;
mod markup;
mod sections;
mod suite;
mod verdict;

use std::path::Path;

use super::arguments::ReportFlags;
use super::file;
use super::outcome::{Failure, Outcome, printed};
use crate::common::{note, print};
use figures::Source;
use input::Named;
use verdict::Verdict;

/// The default title.
const TITLE: &str = "RDMA verbs: performance";

/// Writes the page about the files, or about new measurements.
pub(crate) fn run(flags: &ReportFlags) -> Outcome {
    let saves_to_output = flags.save.as_deref() == Some(Path::new("-"));
    if saves_to_output && flags.output == Path::new("-") {
        return Err(Failure::Usage("--output and --save are both \"-\": name a file for one of them".to_owned()));
    }
    let named = if flags.files.is_empty() {
        prepare(&flags.output)?;
        flags.save.as_deref().map_or(Ok(()), prepare)?;
        note!("perf: measuring for about {} s", flags.seconds);
        let text = suite::measure(flags.seconds)?;
        if let Some(file) = &flags.save {
            write(file, &format!("{text}\n"))?;
        }
        let value = serde_json::from_str(&text).map_err(|error| format!("no JSON: {error}"))?;
        vec![Named { name: "results".to_owned(), value }]
    } else {
        input::read_all(&flags.files)?
    };
    let sources = named.iter().map(Source::of).collect::<Outcome<Vec<Source>>>()?;
    let verdict = Verdict::of(&sources);
    let page = sections::page(flags.title.as_deref().unwrap_or(TITLE), &verdict, &sources, &named);
    write(&flags.output, &page)?;
    if flags.output != Path::new("-") {
        let text = format!("{}\nThe page is {}.", verdict.lines().join("\n"), flags.output.display());
        match saves_to_output {
            // The standard output has the document.
            true => note!("{text}"),
            false => printed(print(format_args!("{text}\n")))?,
        }
    }
    Ok(())
}

/// Checks a file, unless it is the standard output.
fn prepare(name: &Path) -> Outcome {
    if name == Path::new("-") { Ok(()) } else { file::prepare(name) }
}

fn write(name: &Path, text: &str) -> Outcome {
    if name == Path::new("-") { printed(print(format_args!("{text}"))) } else { file::write(name, text) }
}
