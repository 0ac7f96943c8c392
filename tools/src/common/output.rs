//! The standard streams. Each may be a pipe whose reader has gone, which is no reason to panic, as `println!` does.

use std::fmt;
use std::io::{self, Write};

use super::text::printable_lines;

/// Prints to the standard output. If its reader has gone, the error ends the command quietly: see `exit_code`.
pub(crate) fn print(text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(text)?;
    out.flush()
}

/// Writes a line to the standard error, without characters that a terminal acts on. Without a reader, the line is lost,
/// and the command goes on.
pub(crate) fn write_note(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{}", printable_lines(&line.to_string()));
}

/// Writes a line to the standard error; the arguments are those of `format!`.
macro_rules! note {
    ($($argument:tt)*) => { $crate::common::write_note(format_args!($($argument)*)) };
}
pub(crate) use note;
