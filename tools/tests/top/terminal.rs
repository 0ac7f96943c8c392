//! A program in a terminal: a pseudoterminal, whose screen is read with a terminal emulator.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::{Pid, ttyname};

use super::PATIENCE;

fn size(number: u16) -> Result<NonZero<u16>, Failed> {
    NonZero::new(number).ok_or_else(|| "a screen has at least one row and column".into())
}

pub(super) fn emulator(rows: u16, columns: u16) -> Result<vt100::Parser, Failed> {
    Ok(vt100::Parser::new(size(rows)?, size(columns)?, 0))
}

/// Returns both sides of a new terminal, and a program that runs in it.
fn spawn(
    program: &str,
    arguments: &str,
    (rows, columns): (u16, u16),
    variables: &[(&str, &str)],
) -> Result<(OwnedFd, OwnedFd, Child), Failed> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let OpenptyResult { master, slave } = openpty(&size, None)?;
    // A program that has this side of its own terminal would never lose it.
    fcntl(&master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    let pipe = |slave: &OwnedFd| -> Result<Stdio, Failed> { Ok(Stdio::from(slave.try_clone()?)) };
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait", program]).args(arguments.split_whitespace());
    command.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR");
    command.envs(variables.iter().copied());
    command.stdin(pipe(&slave)?).stdout(pipe(&slave)?).stderr(pipe(&slave)?);
    Ok((master, slave, command.spawn()?))
}

/// Closes the terminal of a program after its first output. Returns whether the program ends then.
pub(super) fn ends_with_its_terminal(program: &str, arguments: &str) -> Result<bool, Failed> {
    let (master, own_side, mut program) = spawn(program, arguments, (24, 80), &[])?;
    let mut keyboard = File::from(master);
    keyboard.read_exact(&mut [0; 64])?;
    drop((keyboard, own_side));
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if program.try_wait()?.is_some() {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(50));
    }
    program.kill()?;
    program.wait()?;
    Ok(false)
}

/// A program, which ends with this value.
pub(super) struct Terminal {
    keyboard: File,
    own_side: OwnedFd,
    program: Child,
    emulator: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    /// Starts a program as the foreground process of a new terminal. These variables are added to those of a usual one.
    pub(super) fn start(
        program: &str,
        arguments: &str,
        (rows, columns): (u16, u16),
        variables: &[(&str, &str)],
    ) -> Result<Self, Failed> {
        let (master, slave, program) = spawn(program, arguments, (rows, columns), variables)?;
        let emulator = Arc::new(Mutex::new(emulator(rows, columns)?));
        let (mut output, shown) = (File::from(master.try_clone()?), Arc::clone(&emulator));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The read fails when the other side is closed.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().expect("no reader panics").process(&bytes[..count]);
            }
        });
        Ok(Self { keyboard: File::from(master), own_side: slave, program, emulator })
    }

    pub(super) fn press(&mut self, keys: &str) -> Result<(), Failed> {
        Ok(self.keyboard.write_all(keys.as_bytes())?)
    }

    pub(super) fn screen(&self) -> vt100::Screen {
        self.emulator.lock().expect("no reader panics").screen().clone()
    }

    /// Waits until the screen satisfies a condition, and returns its text.
    pub(super) fn wait(&self, what: &str, is_there: impl Fn(&str) -> bool) -> Result<String, Failed> {
        let end = Instant::now() + PATIENCE;
        loop {
            let text = self.screen().contents();
            if is_there(&text) {
                return Ok(text);
            }
            if Instant::now() > end {
                return Err(format!("{what}: the screen shows\n{text}").into());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Changes the size, as a terminal's window does.
    pub(super) fn resize(&self, rows: u16, columns: u16) -> Result<(), Failed> {
        self.emulator.lock().expect("no reader panics").screen_mut().set_size(size(rows)?, size(columns)?);
        let status = Command::new("stty")
            .args(["-F".into(), ttyname(&self.own_side)?.into_os_string()])
            .args(["rows", &rows.to_string(), "cols", &columns.to_string()])
            .status()?;
        if status.success() { Ok(()) } else { Err(format!("stty: {status}").into()) }
    }

    /// Returns the program's process: a child of `setsid`, or its own process.
    fn process(&self) -> Result<Pid, Failed> {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.program.id()))?;
        let child = children.split_whitespace().next().and_then(|child| child.parse().ok());
        Ok(Pid::from_raw(child.unwrap_or(self.program.id() as i32)))
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<(), Failed> {
        Ok(kill(self.process()?, signal)?)
    }

    /// Waits for the end of the program.
    pub(super) fn end(&mut self) -> Result<ExitStatus, Failed> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.program.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > end {
                return Err(format!("it does not end; the screen shows\n{}", self.screen().contents()).into());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns what is wrong with the terminal after the program has ended.
    pub(super) fn damage(&self) -> Result<Option<&'static str>, Failed> {
        let flags = tcgetattr(&self.own_side)?.local_flags;
        // The last output of the program may still be on its way.
        let end = Instant::now() + Duration::from_secs(2);
        while self.screen().alternate_screen() && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
        let screen = self.screen();
        Ok(match () {
            () if screen.alternate_screen() => Some("the other screen is shown"),
            () if screen.hide_cursor() => Some("the cursor is hidden"),
            () if !flags.contains(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG) => {
                Some("it is in raw mode")
            }
            () => None,
        })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.signal(Signal::SIGKILL);
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}
