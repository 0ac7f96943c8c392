//! The terminal: entered, left at the end, at a panic and at a signal, and left for a while at Ctrl-Z.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{io, process, thread};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, raise};
use ratatui::DefaultTerminal;
use ratatui::layout::Rect;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Time in which the program should end by itself.
const GRACE: Duration = Duration::from_millis(500);

/// Whether a signal asked the program to end.
#[derive(Clone, Debug)]
pub(super) struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    pub(super) fn new() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Self(flag))
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Ends the program some time after a signal asked for it, or after the terminal has gone, if it has not ended by
/// itself: reading keys of a terminal that is gone never returns, and writing to one that does not take more may wait.
pub(super) fn end_if_stuck(interrupted: Interrupted) -> io::Result<()> {
    super::start_thread(move || {
        while !interrupted.is_set() && !is_gone() {
            thread::sleep(GRACE);
        }
        thread::sleep(GRACE);
        let _ = ratatui::try_restore();
        process::exit(0);
    })
}

fn is_gone() -> bool {
    let out = io::stdout();
    let mut descriptors = [PollFd::new(out.as_fd(), PollFlags::empty())];
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR;
    poll(&mut descriptors, PollTimeout::ZERO).is_ok()
        && descriptors[0].revents().is_some_and(|events| events.intersects(gone))
}

/// The terminal in raw mode, on its other screen. Dropping it restores the terminal.
pub(super) struct Entered(pub(super) DefaultTerminal);

impl Entered {
    /// Enters it; a panic of any thread leaves it before its message is printed.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(ratatui::try_init()?))
    }

    /// Leaves it, and stops until the shell continues the program.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        ratatui::try_restore()?;
        raise(Signal::SIGTSTP)?;
        crossterm::terminal::enable_raw_mode()?;
        crossterm::execute!(io::stdout(), crossterm::terminal::EnterAlternateScreen)?;
        self.redraw()
    }

    /// Has the next drawing write each character. `Terminal::clear` would ask the terminal for its cursor, and wait for
    /// the response, which another thread's or a slow connection's may delay.
    pub(super) fn redraw(&mut self) -> io::Result<()> {
        let size = self.0.size()?;
        self.0.resize(Rect::new(0, 0, size.width, size.height))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // The cursor is hidden while the program draws. Without a terminal, there is nothing to restore.
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}
