//! The exchange of lines with the `peer` program, documented in `peer.c`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::{ConnectionInfo, Gid, Mtu, Psn, Qpn, RemoteMemory, Rkey};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The remote-controlled end in the guest.
pub(crate) struct Guest {
    lines: BufReader<TcpStream>,
}

/// A reply: its words by name.
pub(crate) struct Reply {
    line: String,
    words: HashMap<String, String>,
}

impl Guest {
    /// Connects and reads the greeting.
    pub(crate) fn connect(address: &str, patience: Duration) -> Result<Self> {
        let start = Instant::now();
        let stream = loop {
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(error) if start.elapsed() > patience => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        };
        stream.set_read_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        let mut guest = Self { lines: BufReader::new(stream) };
        guest.reply()?;
        Ok(guest)
    }

    /// Sends a command and returns the reply.
    pub(crate) fn command(&mut self, command: &str) -> Result<Reply> {
        self.send(command)?;
        self.reply().map_err(|error| format!("{command}: {error}").into())
    }

    /// Sends a command whose reply comes later.
    pub(crate) fn send(&mut self, command: &str) -> Result<()> {
        Ok(self.lines.get_mut().write_all(format!("{command}\n").as_bytes())?)
    }

    /// Waits for the next reply.
    pub(crate) fn reply(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        let line = line.trim_end().to_owned();
        let Some(words) = line.strip_prefix("ok") else { return Err(format!("the guest replied {line:?}").into()) };
        let words = words.split_whitespace().filter_map(|word| word.split_once('='));
        let words = words.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(Reply { line, words })
    }

    /// Checks that an area holds the pattern.
    pub(crate) fn expect_pattern(&mut self, area: &str, offset: usize, length: usize, seed: u32) -> Result<()> {
        self.command(&format!("check {area} {offset} {length} {seed}"))?.expect(&[("check", "good")])
    }
}

impl Reply {
    /// Returns a word of the reply.
    pub(crate) fn word(&self, name: &str) -> Result<&str> {
        let word = self.words.get(name).ok_or_else(|| format!("no {name} in {:?}", self.line))?;
        Ok(word)
    }

    /// Returns a number of the reply.
    pub(crate) fn number(&self, name: &str) -> Result<u64> {
        Ok(self.word(name)?.parse()?)
    }

    /// Checks that the reply contains these words.
    pub(crate) fn expect(&self, words: &[(&str, &str)]) -> Result<()> {
        for (name, value) in words {
            if self.word(name)? != *value {
                return Err(format!("{name} should be {value} in {:?}", self.line).into());
            }
        }
        Ok(())
    }

    /// Returns one of the areas named by a greeting.
    pub(crate) fn memory(&self, area: &str) -> Result<RemoteMemory> {
        let rkey = Rkey(self.number(&format!("{area}_rkey"))? as u32);
        Ok(RemoteMemory::new(self.number(&format!("{area}_addr"))?, rkey, self.number("length")?))
    }

    /// Returns the path MTU named by a greeting.
    pub(crate) fn path_mtu(&self) -> Result<Mtu> {
        let bytes = self.number("path_mtu")? as u32;
        Mtu::from_size(bytes).ok_or_else(|| format!("{bytes} is no path MTU").into())
    }

    /// Returns the queue pair described by a greeting.
    pub(crate) fn connection_info(&self, path_mtu: Mtu) -> Result<ConnectionInfo> {
        let digits = self.word("gid")?;
        let mut gid = [0; 16];
        for (index, byte) in gid.iter_mut().enumerate() {
            let pair = digits.get(2 * index..2 * index + 2).ok_or("a GID has 32 digits")?;
            *byte = u8::from_str_radix(pair, 16)?;
        }
        let (qpn, psn) = (Qpn::new(self.number("qpn")? as u32), Psn::new(self.number("psn")? as u32));
        Ok(ConnectionInfo::standard_peer(qpn, psn, Gid::from_bytes(gid), path_mtu))
    }
}

/// Returns the pattern of a seed.
pub(crate) fn pattern(seed: u32, length: usize) -> Vec<u8> {
    let byte = |index: usize| {
        let mut mixed = seed.wrapping_mul(0x9e37_79b1).wrapping_add(index as u32);
        mixed ^= mixed >> 16;
        mixed = mixed.wrapping_mul(0x7feb_352d);
        mixed ^= mixed >> 15;
        mixed as u8
    };
    (0..length).map(byte).collect()
}
