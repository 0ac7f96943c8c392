//! Another process: it connects to the first one, exchanges until it is killed, and reports what goes wrong.
//!
//! It writes `infos INTRODUCTION`, reads the introduction of the first process, and writes `ready`. Then it answers
//! `holdings` and `clean` (whether all its connections live), and ends with its standard input.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use super::end::{End, Event, Failure};
use super::holdings::Holdings;
use super::leftovers::mapped_rings;

/// 0.5 s, for eight tries: the first process judges, so this end gives up later.
const TIMEOUT: u8 = 17;
const NAP: Duration = Duration::from_millis(5);

/// Runs the process.
pub(crate) fn run(address: &str) -> ExitCode {
    match serve(address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("link_kills: the process at {address}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(address: &str) -> Result<(), Failure> {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut out = socket.try_clone()?;
    let lines = lines(socket);
    let mut end = End::new(address, 1, false)?;
    writeln!(out, "infos {}", end.introduce(0)?)?;
    let Ok(introduction) = lines.recv() else { return Ok(()) };
    end.connect(0, &introduction, TIMEOUT)?;
    writeln!(out, "ready")?;
    end.begin(0, false)?;
    let mut verified = 0u64;
    loop {
        match lines.try_recv() {
            Ok(line) if line == "holdings" => {
                let holdings = serde_json::to_string(&Holdings::now(&end.context))?;
                writeln!(out, "holdings {} {verified} {holdings}", mapped_rings())?;
            }
            Ok(line) => return Err(format!("unknown command {line}").into()),
            Err(TryRecvError::Disconnected) => return Ok(()),
            Err(TryRecvError::Empty) => {}
        }
        let mut troubles = Vec::new();
        end.turn(NAP, |event| match event {
            Event::Verified => verified += 1,
            Event::Failed { index, why, .. } => troubles.push(format!("connection {index}: {why}")),
            Event::Wrong { index, what } => troubles.push(format!("connection {index}: {what}")),
        })?;
        troubles.iter().try_for_each(|trouble| writeln!(out, "error {}", trouble.replace('\n', "; ")))?;
    }
}

fn lines(socket: UnixStream) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(socket).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
