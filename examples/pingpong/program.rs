//! How the example programs end: errors, exit codes, and Ctrl-C.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const FAILED: u8 = 1;
const INTERRUPTED_STATUS: u8 = 130;

/// Set by Ctrl-C; the loops end when they see it.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Prints the error, and returns the exit code.
pub(crate) fn status(name: &str, outcome: Outcome) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(_) if interrupted() => INTERRUPTED_STATUS,
        Err(error) => {
            eprintln!("{name}: {error}");
            FAILED
        }
    }
}

pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// On Ctrl-C, lets the loops end and the queue pairs be destroyed; exits if that takes too long.
pub(crate) fn watch_for_interrupt() {
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let Ok(runtime) = runtime else { return };
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            INTERRUPTED.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(500));
            std::process::exit(INTERRUPTED_STATUS.into());
        }
    });
}
