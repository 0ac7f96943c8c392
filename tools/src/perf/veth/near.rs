//! The process at the near end: creates the cable, starts the far process, and measures the table's tasks.

use std::net::TcpStream;
use std::os::fd::AsFd;

use super::cable::{FAR, NEAR, lay};
use super::{Order, Veth};
use crate::perf::channel::Channel;
use crate::perf::job::Assignment;
use crate::perf::outcome::Outcome;
use crate::perf::partner::Partner;

/// Runs the near process. Its standard input is connected to the table.
pub(crate) fn serve() -> Outcome {
    let stream = TcpStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut channel = Channel::over(stream)?;
    channel.end_with_peer()?;
    let veth: Veth = channel.receive()?;
    let started = start(veth);
    channel.send(&started.as_ref().map(drop).map_err(ToString::to_string))?;
    // The table reports what went wrong.
    let Ok(mut partner) = started else { return Ok(()) };
    let devices = [NEAR, FAR].map(|address| format!("soft:{address}"));
    loop {
        match channel.receive()? {
            Order::Measure { task, placement } => {
                let line = task.perform(placement, [&devices[0], &devices[1]], &mut partner);
                channel.send(&line.map_err(|failure| failure.to_string()))?;
            }
            Order::End => {
                partner.channel.send(&Assignment::End)?;
                return partner.end();
            }
        }
    }
}

fn start(veth: Veth) -> Outcome<Partner> {
    let far = lay(veth)?;
    Partner::start_at(NEAR.into(), |command| far.enter(|| Ok(command.spawn()?)))
}
