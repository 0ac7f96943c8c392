//! Writes the manual, one page for each command, generated from the command line's definition.
//!
//! The text behind a command's help has the parts that its page shows as sections: `Exit status:`, and `Examples:` with
//! one command in each line. A part that a command does not have is that of the command above it.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command, ValueHint};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::common::{exit_code, note};

const MANUAL: &str = "RDMA verbs";
const STATUS: &str = "Exit status:";
const EXAMPLES: &str = "Examples:";

#[derive(Args)]
#[command(after_help = "Exit status: 0 if the pages are written, 1 if they cannot be, 2 for wrong usage.\n\
                        Examples:\n  rdma-verbs man | man -l -                   the page of the program\n  \
                        rdma-verbs man ping | man -l -              that of a command\n  \
                        rdma-verbs man --output ~/.local/share/man/man1    all pages, for man(1)")]
pub(crate) struct Options {
    /// The command whose page is printed, for example `perf send`; without one, the program's.
    #[arg(conflicts_with = "output")]
    command: Vec<String>,
    /// Writes all pages into this folder, which is created.
    #[arg(short, long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    output: Option<PathBuf>,
}

/// Writes the pages, or prints one.
pub(crate) fn run(options: &Options, program: Command) -> ExitCode {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let done = match &options.output {
        Some(folder) => write_all(&program, folder),
        None => print(&program, &options.command),
    };
    exit_code("man", done)
}

fn print(program: &Command, names: &[String]) -> io::Result<ExitCode> {
    let (mut command, mut help) = (program, Help::of(program, None));
    for name in names {
        let Some(next) = visible(command).find(|next| next.get_name() == name) else {
            let known: Vec<&str> = visible(command).map(Command::get_name).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            note!("man: {} has no command {name}; it has: {known}", command.get_name());
            return Ok(ExitCode::from(2));
        };
        (command, help) = (next, Help::of(next, Some(&help)));
    }
    io::stdout().lock().write_all(&page(command, &help)?)?;
    Ok(ExitCode::SUCCESS)
}

fn write_all(program: &Command, folder: &PathBuf) -> io::Result<ExitCode> {
    let named = |error: io::Error, path: &PathBuf| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    fs::create_dir_all(folder).map_err(|error| named(error, folder))?;
    let mut left = vec![(program, Help::of(program, None))];
    while let Some((command, help)) = left.pop() {
        let path = folder.join(format!("{}.1", full_name(command)));
        fs::write(&path, page(command, &help)?).map_err(|error| named(error, &path))?;
        left.extend(visible(command).map(|next| (next, Help::of(next, Some(&help)))));
    }
    Ok(ExitCode::SUCCESS)
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

/// Returns the name with those of the commands above it, as `rdma-verbs-perf-send`.
fn full_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// Returns the page of a command.
fn page(command: &Command, help: &Help) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    // The date is empty, so that a version has the same pages whenever they are built. clap_mangen leaves out an empty
    // argument, so that the version would be in its place.
    writeln!(
        page,
        ".TH \"{}\" \"1\" \"\" \"rdma-verbs {}\" \"{MANUAL}\"",
        full_name(command),
        env!("CARGO_PKG_VERSION")
    )?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    let mut roff = Roff::new();
    for line in &help.description {
        roff.control("PP", []);
        roff.text([roman(line.as_str())]);
    }
    roff.to_writer(&mut page)?;
    man.render_options_section(&mut page)?;
    if visible(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    roff.text([roman(help.status.as_str())]);
    roff.control("SH", ["EXAMPLES"]);
    roff.control("nf", []);
    for line in &help.examples {
        roff.text([roman(line.as_str())]);
    }
    roff.control("fi", []);
    roff.to_writer(&mut page)?;
    Ok(in_ascii(&String::from_utf8_lossy(&page)).into_bytes())
}

/// Returns the page with escapes for other characters: troff reads bytes, in the encoding of its user.
fn in_ascii(page: &str) -> String {
    let escaped = |character: char| match character.is_ascii() {
        true => character.to_string(),
        false => format!("\\[u{:04X}]", u32::from(character)),
    };
    page.chars().map(escaped).collect()
}

/// The parts of the text behind a command's help.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Help {
    description: Vec<String>,
    status: String,
    examples: Vec<String>,
}

impl Help {
    /// Returns the help of a command, completed by that of the command above it.
    fn of(command: &Command, above: Option<&Self>) -> Self {
        let own = command.get_after_help().map(|text| Self::parse(&text.to_string())).unwrap_or_default();
        let Some(above) = above else { return own };
        let status = if own.status.is_empty() { above.status.clone() } else { own.status };
        let examples = if own.examples.is_empty() { above.examples.clone() } else { own.examples };
        Self { description: own.description, status, examples }
    }

    fn parse(text: &str) -> Self {
        let mut help = Self::default();
        let mut lines = text.lines();
        for line in lines.by_ref() {
            if let Some(status) = line.strip_prefix(STATUS) {
                help.status = status.trim().to_owned();
            } else if line == EXAMPLES {
                break;
            } else if !line.trim().is_empty() {
                help.description.push(line.trim().to_owned());
            }
        }
        help.examples.extend(lines.map(|line| line.trim_end().to_owned()));
        help
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helps_have_parts() {
        let help = Help::parse("Start it twice.\nExit status: 0 or 1.\nExamples:\n  one   first\n  two");
        assert_eq!((help.description, help.status), (vec!["Start it twice.".to_owned()], "0 or 1.".to_owned()));
        assert_eq!(help.examples, ["  one   first", "  two"]);
    }

    #[test]
    fn missing_parts_are_those_of_the_command_above() {
        let above = Help::parse("Above.\nExit status: 7.\nExamples:\n  above");
        let command = Command::new("below").after_help("Below.\nExamples:\n  below");
        let help = Help::of(&command, Some(&above));
        let (status, examples) = ("7.".to_owned(), vec!["  below".to_owned()]);
        assert_eq!(help, Help { description: vec!["Below.".to_owned()], status, examples });
    }

    #[test]
    fn characters_have_escapes() {
        assert_eq!(in_ascii("4.096 µs × 2"), "4.096 \\[u00B5]s \\[u00D7] 2");
    }

    /// A new command needs both parts.
    #[test]
    fn each_command_has_exit_statuses_and_examples() {
        let mut program = crate::program().disable_help_subcommand(true);
        program.build();
        let mut left = vec![(&program, Help::of(&program, None))];
        while let Some((command, help)) = left.pop() {
            let has_example = help.examples.iter().any(|line| line.contains("rdma-verbs "));
            assert!(!help.status.is_empty() && has_example, "{}: {help:?}", full_name(command));
            // Commands below a command may have its parts; those of the program have their own.
            let above = Some(&help).filter(|_| command.get_name() != program.get_name());
            left.extend(visible(command).map(|next| (next, Help::of(next, above))));
        }
    }
}
