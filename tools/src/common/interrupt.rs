//! Ctrl-C: commands that run until they are interrupted end cleanly.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static STATUS_REQUESTED: AtomicBool = AtomicBool::new(false);

/// Returns whether the command is to end.
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Returns whether the user has requested the state so far (Ctrl-\, as for ping(8)) since the last call.
pub(crate) fn take_status_request() -> bool {
    STATUS_REQUESTED.swap(false, Ordering::Relaxed)
}

/// From now on, Ctrl-C and SIGTERM only set a mark; the second one ends the process. Ctrl-\ requests the state so far.
pub(crate) fn watch_for_interrupt() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    // The handlers are installed before the function returns.
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut quit = signal(SignalKind::quit())?;
    drop(entered);
    let watch = move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = quit.recv() => STATUS_REQUESTED.store(true, Ordering::Relaxed),
                    _ = interrupt.recv() => interrupted(130),
                    _ = terminate.recv() => interrupted(143),
                }
            }
        });
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map(drop)
}

fn interrupted(status: i32) {
    if INTERRUPTED.swap(true, Ordering::Relaxed) {
        std::process::exit(status);
    }
}
