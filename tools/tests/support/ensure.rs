//! The check of all tests of the program.

use libtest_mimic::Failed;

pub(crate) fn ensure(is_right: bool, what: impl FnOnce() -> String) -> Result<(), Failed> {
    if is_right { Ok(()) } else { Err(what().into()) }
}
