//! How a command ends.

use std::io;
use std::process::ExitCode;

use super::note;

/// Returns the exit status of a command. A closed pipe is no error: the reader, such as `head`, has seen enough.
pub(crate) fn exit_code(command: &str, done: io::Result<ExitCode>) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            note!("{command}: {error}");
            ExitCode::FAILURE
        }
    }
}
