//! Watches the processes of this user that have software devices, live, like top(1).
//!
//! ```text
//! rdma-verbs top                      all processes
//! rdma-verbs top --pid 4711           one
//! rdma-verbs top --batch -n 10        ten tables as text
//! ```
//!
//! `docs/top.md` describes columns and keys.

mod batch;
mod draw;
mod screen;
mod terminal;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use crossterm::event::{self, Event};
use rdma_verbs::monitor::Process;

use crate::common::{exit_code, note};
use crate::watch::views::View;
use crate::watch::{Collector, Selection, Update};
use draw::Abilities;
use screen::{Reaction, Screen};
use terminal::{Entered, Interrupted};

/// Newer values are drawn, and signals noticed, after this time.
const NAP: Duration = Duration::from_millis(50);
/// The first table is shown without the processes that have not answered after this time.
const FIRST: Duration = Duration::from_millis(300);

#[derive(Args)]
#[command(after_help = "Exit status: 0 when it is left, 1 if it failed, 2 for wrong usage.\n\
                        Examples:\n  rdma-verbs top                        all processes of this user\n  \
                        rdma-verbs top --view queue-pairs     begins with the queue pairs\n  \
                        rdma-verbs top --batch -n 60 >> log   a table each second, for a minute")]
pub(crate) struct Options {
    /// Time between two refreshes, in seconds: 0.1 to 10.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Only this process.
    #[arg(short, long)]
    pid: Option<u32>,
    /// Only devices with this name or address.
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Prints text, one table for each interval; also done if the output is no terminal, or TERM is dumb.
    #[arg(short, long)]
    batch: bool,
    /// With `--batch`: the number of tables.
    #[arg(short = 'n', long, requires = "batch", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// The view that is shown at first, or printed.
    #[arg(long, value_enum, default_value_t = Choice::Processes)]
    view: Choice,
}

#[derive(Clone, Copy, ValueEnum)]
enum Choice {
    Processes,
    QueuePairs,
    Connections,
    Drops,
}

impl From<Choice> for View {
    fn from(choice: Choice) -> Self {
        match choice {
            Choice::Processes => Self::Processes,
            Choice::QueuePairs => Self::QueuePairs,
            Choice::Connections => Self::Connections,
            Choice::Drops => Self::Drops,
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 0.1..=10.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("the interval is a number of seconds from 0.1 to 10".to_owned()),
    }
}

/// Returns 0 when the user leaves, 1 if it failed.
pub(crate) fn run(options: &Options) -> ExitCode {
    if let Some(Err(error)) = options.pid.map(Process::find) {
        note!("top: {error}");
        return ExitCode::FAILURE;
    }
    let selection = Selection { process: options.pid, device: options.device.clone() };
    let collector = Collector::new(selection, options.interval);
    let done = if options.batch || !has_screen() {
        batch::run(collector, options.interval, options.view.into(), options.count)
    } else {
        live(collector, Screen::new(options.view.into(), options.interval))
    };
    // A terminal that is gone is a closed pipe, too.
    exit_code("top", done.map(|()| ExitCode::SUCCESS))
}

/// Whether the output is a terminal whose cursor can be moved.
fn has_screen() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn live(collector: Collector, mut screen: Screen) -> io::Result<()> {
    let interrupted = Interrupted::new()?;
    let abilities = Abilities::of_environment();
    let (send, updates) = channel();
    // The thread ends when this one drops `_end`.
    let (_end, ended) = channel();
    let every = screen.every;
    start_thread(move || collect(collector, every, &send, &ended))?;
    let mut terminal = Entered::new()?;
    terminal::end_if_stuck(interrupted.clone())?;
    let mut is_changed = true;
    while !interrupted.is_set() {
        if is_changed {
            terminal.0.draw(|frame| draw::draw(frame, &mut screen, abilities))?;
        }
        is_changed = take(&updates, &mut screen)?;
        if !event::poll(NAP)? {
            continue;
        }
        is_changed = true;
        let Event::Key(key) = event::read()? else { continue };
        match screen.press(key) {
            Reaction::Continue => {}
            Reaction::Quit => break,
            Reaction::Suspend => terminal.suspend()?,
            Reaction::Redraw => terminal.redraw()?,
        }
    }
    Ok(())
}

fn start_thread(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let started = thread::Builder::new().spawn(work);
    started.map(drop).map_err(|error| io::Error::other(format!("no thread can be started: {error}")))
}

/// Takes the values that are there. Returns whether there are any.
fn take(updates: &Receiver<Update>, screen: &mut Screen) -> io::Result<bool> {
    let mut is_changed = false;
    loop {
        match updates.try_recv() {
            Ok(update) => {
                screen.update(update);
                is_changed = true;
            }
            Err(TryRecvError::Empty) => return Ok(is_changed),
            Err(TryRecvError::Disconnected) => return Err(io::Error::other("the thread that collects has ended")),
        }
    }
}

/// Collects until the other thread ends.
fn collect(mut collector: Collector, every: Duration, updates: &Sender<Update>, ended: &Receiver<()>) {
    let mut update = collector.first(FIRST);
    while updates.send(update).is_ok() {
        if ended.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        update = collector.refresh();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_bounds() {
        for (text, expected) in [("0.1", Some(100)), ("10", Some(10_000)), ("1.5", Some(1500))] {
            assert_eq!(seconds(text).ok(), expected.map(Duration::from_millis), "{text}");
        }
        for text in ["0.09", "10.1", "-1", "x", "", "NaN", "inf"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
