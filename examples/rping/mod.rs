//! The program, apart from its `main`: a test runs it as well.

mod arguments;
mod buffer;
mod client;
mod end;
#[path = "../pingpong/program.rs"]
mod program;
mod server;

use std::ffi::OsString;

use arguments::{Arguments, Role};

/// Runs the program with these arguments, the first of which is its name. Returns the exit code.
pub(crate) fn run(given: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments = match Arguments::parse(given) {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    program::watch_for_interrupt();
    let outcome = match &arguments.role {
        Role::Server { address } => server::run(&arguments, address),
        Role::Client { server } => client::run(&arguments, server),
    };
    program::status("rping", outcome)
}
