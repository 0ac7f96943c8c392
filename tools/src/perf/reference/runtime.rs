//! Ping-pong of UDP datagrams in tokio: the cost of tokio's own sockets.

use std::io;
use std::net::TcpStream;

use serde::{Deserialize, Serialize};
use tokio::net::UdpSocket;

use super::{Measured, PATIENCE, Role, Span, Stopwatch, any_port, exchange_port, synchronize};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RuntimeLatency {
    pub(crate) size: usize,
    pub(crate) iterations: u64,
    pub(crate) warm_up: u64,
}

impl RuntimeLatency {
    pub(super) fn run(&self, role: Role, stream: &mut TcpStream) -> io::Result<Measured> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { tokio::time::timeout(self.patience(), self.play(role, stream)).await })?
    }

    /// Lost datagrams are not retransmitted, so the run has a time limit.
    fn patience(&self) -> std::time::Duration {
        PATIENCE + std::time::Duration::from_millis(self.iterations + self.warm_up)
    }

    async fn play(&self, role: Role, stream: &mut TcpStream) -> io::Result<Measured> {
        let socket = UdpSocket::bind(any_port(stream)?).await?;
        let peer = exchange_port(stream, socket.local_addr()?.port())?;
        let (message, mut answer) = (vec![7; self.size], vec![0; self.size.max(1)]);
        synchronize(stream)?;
        let mut span = Span::start()?;
        let mut stopwatch = Stopwatch::start(2);
        for number in 0..self.warm_up + self.iterations {
            if number == self.warm_up {
                (span, stopwatch) = (Span::start()?, Stopwatch::start(2));
            }
            match role {
                Role::Client => {
                    socket.send_to(&message, peer).await?;
                    socket.recv(&mut answer).await?;
                    stopwatch.mark();
                }
                Role::Server => {
                    socket.recv(&mut answer).await?;
                    socket.send_to(&message, peer).await?;
                }
            }
        }
        let (seconds, cpu_seconds) = span.end()?;
        let bytes = self.size as u64 * self.iterations;
        Ok(Measured { times: Some(stopwatch.times()), messages: self.iterations, bytes, seconds, cpu_seconds })
    }
}
