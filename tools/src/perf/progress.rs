//! The progress of a long run, if standard error is a terminal.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::job::Job;
use super::run::Phase;

/// Short runs show no progress.
const SHOWN_AFTER: Duration = Duration::from_millis(700);
const DRAWN_EVERY: Duration = Duration::from_millis(250);

/// Drawn by its own thread, so that the measuring thread only stores a number.
pub(crate) struct Progress {
    shared: Arc<Shared>,
    drawer: Option<(ProgressBar, JoinHandle<()>)>,
}

#[derive(Default)]
struct Shared {
    done: AtomicU64,
    stop: AtomicBool,
}

impl Progress {
    /// Returns a progress that draws nothing.
    pub(crate) fn none() -> Self {
        Self { shared: Arc::default(), drawer: None }
    }

    pub(crate) fn start(job: &Job) -> Self {
        Self::draw(job.operation.name())
    }

    fn draw(what: &'static str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::none();
        }
        let shared = Arc::<Shared>::default();
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what);
        let drawer = std::thread::spawn({
            let (shared, bar) = (Arc::clone(&shared), bar.clone());
            move || {
                std::thread::park_timeout(SHOWN_AFTER);
                while !shared.stop.load(Ordering::Relaxed) {
                    bar.set_position(shared.done.load(Ordering::Relaxed));
                    std::thread::park_timeout(DRAWN_EVERY);
                }
            }
        });
        Self { shared, drawer: Some((bar, drawer)) }
    }

    /// Starts the progress of a run with this many parts.
    pub(crate) fn of_parts(what: &'static str, count: u64) -> Self {
        let progress = Self::draw(what);
        if let Some((bar, _)) = &progress.drawer {
            bar.set_length(count);
        }
        progress
    }

    pub(crate) fn begin(&self, size: usize, phase: &Phase) {
        if let Some((bar, _)) = &self.drawer {
            self.note(0);
            bar.set_message(format!("{size} B"));
            match phase.iterations {
                Some(iterations) => bar.set_length(iterations),
                None => bar.unset_length(),
            }
        }
    }

    /// Records the number of parts done.
    #[inline]
    pub(crate) fn note(&self, done: u64) {
        self.shared.done.store(done, Ordering::Relaxed);
    }

    /// Prints without disturbing the bar.
    pub(crate) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.drawer {
            Some((bar, _)) => bar.suspend(print),
            None => print(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some((bar, drawer)) = self.drawer.take() {
            drawer.thread().unpark();
            // The thread returns no result.
            let _ = drawer.join();
            bar.finish_and_clear();
        }
    }
}
