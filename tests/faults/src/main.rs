//! Puts the faults of `tests/faults/table` into a copy of the source tree. `tests/faults/run` builds the copy and runs
//! the campaigns that must find them; `docs/testing.md` says how to add a fault.
#![forbid(unsafe_code)]

mod edit;
mod functions;
mod generate;
mod table;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use table::{Campaign, Table};

/// Puts the faults of tests/faults/table into a copy of the source tree.
#[derive(Parser)]
struct Arguments {
    /// The source tree.
    #[arg(long, global = true, value_name = "DIRECTORY", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))]
    root: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check that every text of the table occurs exactly once in its function; print those that do not.
    Check,
    /// Print every fault: its name, its campaign, and the functions that it changes.
    List,
    /// Make the directory a copy of the source tree with all faults in it, all of them off.
    Apply {
        /// A new or empty directory, or an earlier copy. Unchanged files keep their times.
        directory: PathBuf,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("error: {problem}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Vec<String>> {
    let root = &arguments.root;
    let table = Table::read(&root.join("tests/faults/table"))?;
    match &arguments.command {
        Command::Check => {
            edit::edit_files(root, &table)?;
            let of = |campaign: Campaign| table.faults.iter().filter(|fault| fault.campaign == campaign).count();
            let counts: Vec<String> =
                Campaign::ALL.iter().map(|campaign| format!("{} {campaign}", of(*campaign))).collect();
            println!("all {} faults fit the source: {}", table.faults.len(), counts.join(", "));
        }
        Command::List => list(&table),
        Command::Apply { directory } => apply(root, &table, directory)?,
    }
    Ok(())
}

fn list(table: &Table) {
    for fault in &table.faults {
        let mut locations: Vec<String> = Vec::new();
        for change in &fault.changes {
            let location = format!("{} {}", change.file, change.function);
            if !locations.contains(&location) {
                locations.push(location);
            }
        }
        println!("{}\t{}\t{}", fault.name, fault.campaign, locations.join(", "));
    }
}

fn apply(root: &Path, table: &Table, directory: &Path) -> Result<(), Vec<String>> {
    let mut changed = edit::edit_files(root, table)?;
    generate::add(root, table, &mut changed)?;
    let written = tree::copy(root, directory, changed).map_err(|problem| vec![problem])?;
    println!("{} faults in {}, {written} files written", table.faults.len(), directory.display());
    Ok(())
}
