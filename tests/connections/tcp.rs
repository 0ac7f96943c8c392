//! TCP connects, for comparison.

use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::client::Server;
use super::{Outcome, SERVER};

/// Most streams that are held at once: each has a descriptor.
const HELD: usize = 256;

/// Holds the last streams, and closes older ones.
fn hold(held: &mut VecDeque<TcpStream>, stream: TcpStream) {
    held.push_back(stream);
    if held.len() > HELD {
        held.pop_front();
    }
}

/// Accepts that many connects.
pub(crate) fn accept(count: usize) -> Outcome {
    // A new port each time: closed connections keep the pair of ports for a minute.
    let listener = TcpListener::bind((SERVER, 0))?;
    println!("{}", listener.local_addr()?.port());
    let mut held = VecDeque::new();
    for _ in 0..count {
        hold(&mut held, listener.accept()?.0);
    }
    Ok(())
}

/// Connects that many times, one after the other; returns the time of each.
pub(crate) fn connect(server: &mut Server, count: u32) -> Outcome<Vec<Duration>> {
    server.order(&format!("tcp {count}"))?;
    let port = server.line()?.parse::<u16>()?;
    let mut held = VecDeque::new();
    let mut times = Vec::new();
    for _ in 0..count {
        let begin = Instant::now();
        let stream = TcpStream::connect((SERVER, port))?;
        times.push(begin.elapsed());
        hold(&mut held, stream);
    }
    server.holdings()?;
    Ok(times)
}
