//! TCP: ping-pong, and a stream of messages.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use serde::{Deserialize, Serialize};

use super::{
    Measured, PATIENCE, Role, Rounds, Span, WALK_BYTES, WARM_UP_PART, Wait, WaitGuard, any_port, exchange_port,
    synchronize,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct TcpLatency {
    pub(crate) size: usize,
    pub(crate) wait: Wait,
    pub(crate) iterations: u64,
    pub(crate) warm_up: u64,
}

/// Messages of one size, one after the other. The client's time ends when the server has received all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct TcpRate {
    pub(crate) size: usize,
    /// Maximum number of bytes of a message in one system call.
    pub(crate) call: usize,
    pub(crate) wait: Wait,
    pub(crate) messages: u64,
}

impl TcpLatency {
    pub(super) fn run(&self, role: Role, stream: &mut TcpStream) -> io::Result<Measured> {
        let mut line = Line::open(role, self.wait, stream)?;
        let (message, mut answer) = (vec![7; self.size], vec![0; self.size]);
        synchronize(stream)?;
        let rounds = Rounds { size: self.size, iterations: self.iterations, warm_up: self.warm_up };
        rounds.play(role, || match role {
            Role::Client => line.write(&message).and_then(|()| line.read(&mut answer)),
            Role::Server => line.read(&mut answer).and_then(|()| line.write(&message)),
        })
    }
}

impl TcpRate {
    pub(super) fn run(&self, role: Role, stream: &mut TcpStream) -> io::Result<Measured> {
        let mut line = Line::open(role, self.wait, stream)?;
        // Both ends cycle through their memory, message by message.
        let count = (WALK_BYTES / self.size.max(1)).max(1);
        let mut memory = vec![7; count * self.size];
        let mut move_messages = |messages: u64| {
            for number in 0..messages {
                let start = (number % count as u64) as usize * self.size;
                for part in memory[start..start + self.size].chunks_mut(self.call.max(1)) {
                    match role {
                        Role::Client => line.write(part)?,
                        Role::Server => line.read(part)?,
                    }
                }
            }
            match role {
                Role::Client => line.read(&mut [0]),
                Role::Server => line.write(b"!"),
            }
        };
        synchronize(stream)?;
        move_messages((self.messages / WARM_UP_PART).max(1))?;
        synchronize(stream)?;
        let span = Span::start()?;
        move_messages(self.messages)?;
        let (seconds, cpu_seconds) = span.end()?;
        let bytes = self.size as u64 * self.messages;
        Ok(Measured { times: None, messages: self.messages, bytes, seconds, cpu_seconds })
    }
}

/// A connection for one measurement.
struct Line {
    stream: TcpStream,
}

impl Line {
    fn open(role: Role, wait: Wait, meeting: &mut TcpStream) -> io::Result<Self> {
        let stream = match role {
            Role::Server => {
                let listener = TcpListener::bind(any_port(meeting)?)?;
                exchange_port(meeting, listener.local_addr()?.port())?;
                listener.accept()?.0
            }
            Role::Client => TcpStream::connect(exchange_port(meeting, 0)?)?,
        };
        stream.set_nodelay(true)?;
        match wait {
            Wait::Block => stream.set_read_timeout(Some(PATIENCE))?,
            Wait::Spin | Wait::Yield | Wait::HandOver => stream.set_nonblocking(true)?,
        }
        Ok(Self { stream })
    }

    fn write(&mut self, mut message: &[u8]) -> io::Result<()> {
        let mut guard = WaitGuard::default();
        while !message.is_empty() {
            match self.stream.write(message) {
                Ok(count) => message = &message[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    guard.note_empty_poll()?;
                    std::hint::spin_loop();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read(&mut self, mut message: &mut [u8]) -> io::Result<()> {
        let mut guard = WaitGuard::default();
        while !message.is_empty() {
            match self.stream.read(message) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => message = &mut message[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    guard.note_empty_poll()?;
                    std::hint::spin_loop();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
