//! Runs a seed and reports how it failed, without printing an expected panic. The endpoint catches panics of its queue
//! pairs; the simulation then fails with a panic of its own.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use super::world::{Outcome, run};

thread_local! {
    /// The message of the first panic of this thread, if panics are to be kept quiet: later ones follow from it.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Runs one seed. Returns the message of its panic as an error.
pub(crate) fn run_watched(seed: u64) -> Result<Outcome, String> {
    watched(|| run(seed, false))
}

/// Runs `run`. Returns the message of its panic as an error.
pub(crate) fn watched(run: impl FnOnce() -> Outcome) -> Result<Outcome, String> {
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let is_quiet = SAID.with_borrow_mut(|said| match said {
                Some(said) if said.is_empty() => {
                    *said = info.to_string();
                    true
                }
                Some(_) => true,
                None => false,
            });
            if !is_quiet {
                before(info);
            }
        }));
    });
    SAID.set(Some(String::new()));
    let result = catch_unwind(AssertUnwindSafe(run));
    let said = SAID.take().unwrap_or_default();
    result.map_err(|_| said)
}
