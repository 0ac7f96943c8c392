//! The results of checks, and their two formats: text for people, JSON for programs.

use std::io;

use serde::Serialize;

use crate::common::{print, print_json, printable};

/// Width of a line of text.
const WIDTH: usize = 110;
/// Column where the explanation begins.
const INDENT: usize = 26;

/// The verdict of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    /// As it should be.
    Ok,
    /// Worth knowing: it costs speed, or it matters in some cases only.
    Note,
    /// It prevents transfers, or will soon.
    Problem,
    /// Not checked.
    Skipped,
}

impl Outcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Problem => "problem",
            Self::Skipped => "skipped",
        }
    }
}

/// The result of one check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[must_use]
pub(super) struct Finding {
    pub(super) outcome: Outcome,
    pub(super) why: String,
    pub(super) details: Vec<String>,
    /// Shell commands that mend it, the best one first.
    pub(super) commands: Vec<String>,
}

impl Finding {
    fn new(outcome: Outcome, why: impl Into<String>) -> Self {
        Self { outcome, why: why.into(), details: Vec::new(), commands: Vec::new() }
    }

    pub(super) fn ok(why: impl Into<String>) -> Self {
        Self::new(Outcome::Ok, why)
    }

    pub(super) fn note(why: impl Into<String>) -> Self {
        Self::new(Outcome::Note, why)
    }

    /// A problem always has a command.
    pub(super) fn problem(why: impl Into<String>, command: impl Into<String>) -> Self {
        Self::new(Outcome::Problem, why).command(command)
    }

    pub(super) fn skipped(why: impl Into<String>) -> Self {
        Self::new(Outcome::Skipped, why)
    }

    pub(super) fn detail(mut self, line: impl Into<String>) -> Self {
        self.details.push(line.into());
        self
    }

    pub(super) fn command(mut self, command: impl Into<String>) -> Self {
        self.commands.push(command.into());
        self
    }
}

/// A finding with the name of its check.
#[derive(Serialize)]
struct Entry {
    name: &'static str,
    title: &'static str,
    #[serde(flatten)]
    finding: Finding,
}

#[derive(Serialize)]
struct Document<'a> {
    host: Option<&'a str>,
    problems: usize,
    checks: &'a [Entry],
}

/// Collects the findings. As text, each is printed when it is there, because some checks take seconds.
pub(super) struct Report<'a> {
    is_json: bool,
    host: Option<&'a str>,
    entries: Vec<Entry>,
}

impl<'a> Report<'a> {
    pub(super) const fn new(is_json: bool, host: Option<&'a str>) -> Self {
        Self { is_json, host, entries: Vec::new() }
    }

    pub(super) fn add(&mut self, name: &'static str, title: &'static str, finding: Finding) -> io::Result<()> {
        if !self.is_json {
            print(format_args!("{}", lines(name, &finding)))?;
        }
        self.entries.push(Entry { name, title, finding });
        Ok(())
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.entries.iter().filter(|entry| entry.finding.outcome == outcome).count()
    }

    /// Prints the end of the report. Returns the number of problems.
    pub(super) fn end(&self) -> io::Result<usize> {
        let problems = self.count(Outcome::Problem);
        if self.is_json {
            print_json("doctor", &Document { host: self.host, problems, checks: &self.entries })?;
            return Ok(problems);
        }
        let counts = [Outcome::Problem, Outcome::Note, Outcome::Skipped, Outcome::Ok].map(|outcome| {
            let count = self.count(outcome);
            let plural = if count == 1 || matches!(outcome, Outcome::Ok | Outcome::Skipped) { "" } else { "s" };
            format!("{count} {}{plural}", outcome.name())
        });
        print(format_args!("\n{} checks: {}\n", self.entries.len(), counts.join(", ")))?;
        Ok(problems)
    }
}

/// Returns the lines of a finding. It may contain names of processes and messages of peers.
fn lines(name: &str, finding: &Finding) -> String {
    let lead = format!("{:<8} {name:<16} ", finding.outcome.name());
    let indent = " ".repeat(INDENT);
    let why = wrapped(&finding.why, WIDTH - INDENT);
    let first = why.first().map(|line| format!("{lead}{line}"));
    let others = why.iter().skip(1).map(|line| format!("{indent}{line}"));
    let details = finding.details.iter().flat_map(|detail| wrapped(detail, WIDTH - INDENT - 2));
    let details = details.map(|line| format!("{indent}  {line}"));
    // Commands are not wrapped: they are copied.
    let commands = finding.commands.iter().map(|command| format!("{indent}$ {command}"));
    let lines = first.into_iter().chain(others).chain(details).chain(commands);
    lines.map(|line| printable(&line) + "\n").collect()
}

/// Breaks a text into lines of at most this width, except for longer words. Line breaks of the text stay.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("extraordinary word", 5), ["extraordinary", "word"]);
        assert_eq!(wrapped("a\nb", 9), ["a", "b"]);
    }

    #[test]
    fn findings_cannot_control_the_terminal() {
        let name = "a\u{1b}[2J\u{9b}";
        let finding = Finding::problem(format!("process 7 ({name}) has it"), format!("kill {name}")).detail(name);
        let text = lines("port", &finding);
        assert!(!text.chars().any(|character| character.is_control() && character != '\n'), "{text:?}");
        assert_eq!(text.lines().count(), 3);
    }

    #[test]
    fn problems_have_commands_and_names_are_those_of_the_schema() {
        let finding = Finding::problem("it is off", "turn it on").detail("since yesterday");
        let value = serde_json::to_value(Entry { name: "switch", title: "The switch", finding }).unwrap();
        assert_eq!(value["outcome"], "problem");
        assert_eq!(value["why"], "it is off");
        assert_eq!(value["details"][0], "since yesterday");
        assert_eq!(value["commands"][0], "turn it on");
    }
}
