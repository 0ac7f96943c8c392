//! The output of `ping`: lines for people, one document for programs.

use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdma_verbs::types::PacketPath;
use rdma_verbs::verbs::cm::Route;
use serde::Serialize;

use super::Options;
use super::diagnosis::Diagnosis;
use super::protocol::{HEADER_BYTES, Hello, Service};
use super::session::Session;
use super::statistics::{Listed, RoundTrips, Statistics, Verdict};
use super::target::Target;
use crate::common::{note, print_json};

/// The path to the server, as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Way {
    address: IpAddr,
    local: IpAddr,
    device: String,
    path: Option<PacketPath>,
    mtu: Option<u32>,
    interval: Option<Duration>,
}

impl Way {
    pub(super) fn new(route: &Route, session: Option<&Session>) -> Self {
        Self {
            address: route.remote_addr().ip(),
            local: route.local_addr().ip(),
            device: route.context().name().to_owned(),
            path: session.and_then(Session::packet_path),
            mtu: session.and_then(Session::mtu),
            interval: session.map(|session| session.welcome.interval),
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    host: &'a str,
    address: IpAddr,
    port: u16,
    service: Service,
    one_sided: bool,
    data_bytes: usize,
    message_bytes: usize,
    local: IpAddr,
    device: &'a str,
    /// `memory` or `sockets`; null if the device does not say.
    path: Option<&'static str>,
    path_reason: Option<String>,
    path_mtu: Option<u32>,
    /// Seconds between echoes that the server allows.
    server_interval: Option<f64>,
    sent: u64,
    received: u64,
    lost: u64,
    loss_percent: f64,
    late: u64,
    duplicates: u64,
    corrupted: u64,
    broken_connections: u64,
    packets_sent_again: u64,
    seconds: f64,
    round_trip: Option<RoundTrips>,
    echoes: &'a [Listed],
    diagnosis: Option<&'a Diagnosis>,
}

/// Prints what happens, as the options say.
pub(super) struct Printer<'a> {
    pub(super) options: &'a Options,
    pub(super) target: &'a Target,
    pub(super) hello: Hello,
}

impl Printer<'_> {
    fn is_quiet(&self) -> bool {
        self.options.quiet || self.options.json
    }

    /// Prints the first line.
    pub(super) fn begin(&self, way: &Way) -> io::Result<()> {
        if self.options.json {
            return Ok(());
        }
        let Self { target, hello, .. } = self;
        let what = match (hello.service, hello.is_one_sided) {
            (Service::Rc, true) => "RC READ",
            (service, _) => service.name(),
        };
        let mtu = way.mtu.map_or_else(String::new, |mtu| format!(", path MTU {mtu}"));
        let path = match &way.path {
            Some(PacketPath::SharedMemory) => ", through shared memory",
            Some(PacketPath::Sockets(_)) => ", through sockets",
            _ => "",
        };
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "PING {} ({}) port {} over {what}, {}({}) bytes of data, from {} on {}{mtu}{path}",
            target.name,
            way.address,
            target.port,
            hello.bytes - HEADER_BYTES,
            hello.bytes,
            way.local,
            way.device,
        )?;
        match &way.path {
            Some(path) if self.options.verbose => writeln!(out, "packets go {path}"),
            _ => Ok(()),
        }
    }

    /// Prints that the path has changed since the last line about it.
    pub(super) fn path_changed(&self, way: &Way) -> io::Result<()> {
        match &way.path {
            Some(path) => self.line(format_args!("packets now go {path}")),
            None => Ok(()),
        }
    }

    /// Prints a line in front of the summary, unless the output is quiet.
    pub(super) fn line(&self, text: fmt::Arguments<'_>) -> io::Result<()> {
        if self.is_quiet() || self.options.flood {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        if self.options.timestamps {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            write!(out, "[{}.{:06}] ", now.as_secs(), now.subsec_micros())?;
        }
        writeln!(out, "{text}")
    }

    /// In a flood, prints a dot for each echo, and takes it back for each reply.
    pub(super) fn flood(&self, text: &str) -> io::Result<()> {
        if self.is_quiet() || !self.options.flood {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    pub(super) fn reply(&self, sequence: u32, verdict: Verdict, is_intact: bool, way: &Way) -> io::Result<()> {
        let damage = if is_intact { "" } else { " (wrong data!)" };
        let bytes = self.hello.bytes;
        let from = way.address;
        match verdict {
            Verdict::InTime(time) => {
                self.line(format_args!("{bytes} bytes from {from}: seq={sequence} time={}{damage}", Time(time)))
            }
            Verdict::Late(time) => {
                self.line(format_args!("{bytes} bytes from {from}: seq={sequence} time={} (late){damage}", Time(time)))
            }
            Verdict::Duplicate => self.line(format_args!("{bytes} bytes from {from}: seq={sequence} (DUP!){damage}")),
        }
    }

    /// Prints the summary, or the document.
    pub(super) fn end(
        &self,
        way: &Way,
        statistics: &Statistics,
        elapsed: Duration,
        packets_again: u64,
        diagnosis: Option<&Diagnosis>,
    ) -> io::Result<()> {
        if self.options.json {
            return print_json("ping", &self.document(way, statistics, elapsed, packets_again, diagnosis));
        }
        let mut out = io::stdout().lock();
        if let Some(Diagnosis { text, commands, .. }) = diagnosis {
            writeln!(out, "PING {} ({}) port {}: {text}", self.target.name, way.address, self.target.port)?;
            return commands.iter().try_for_each(|command| writeln!(out, "  $ {command}"));
        }
        if self.options.flood && !self.is_quiet() {
            writeln!(out)?;
        }
        self.summary(&mut out, statistics, elapsed, packets_again)
    }

    /// Prints the lines of ping(8), so that programs that read those read these.
    fn summary(
        &self,
        out: &mut impl Write,
        statistics: &Statistics,
        elapsed: Duration,
        packets_again: u64,
    ) -> io::Result<()> {
        let Statistics { sent, received, late, duplicates, corrupted, broken, last_failure, .. } = statistics;
        writeln!(out, "\n--- {} ping statistics ---", self.target.name)?;
        write!(out, "{sent} packets transmitted, {received} received")?;
        for (count, what) in [(duplicates, "duplicates"), (corrupted, "corrupted"), (late, "late")] {
            if *count > 0 {
                write!(out, ", +{count} {what}")?;
            }
        }
        let loss = Percent(statistics.loss_percent());
        writeln!(out, ", {loss} packet loss, time {}ms", elapsed.as_millis())?;
        if let Some(RoundTrips { min, mean, max, deviation, p50, p90, p99, p999 }) = statistics.round_trips() {
            let [min, mean, max, deviation] = [min, mean, max, deviation].map(|time| time / 1e3);
            writeln!(out, "rtt min/avg/max/mdev = {min:.3}/{mean:.3}/{max:.3}/{deviation:.3} ms")?;
            if self.options.verbose || self.options.quiet {
                let [p50, p90, p99, p999] = [p50, p90, p99, p999].map(|time| time / 1e3);
                writeln!(out, "rtt p50/p90/p99/p99.9 = {p50:.3}/{p90:.3}/{p99:.3}/{p999:.3} ms")?;
            }
        }
        match packets_again {
            0 => {}
            1 => writeln!(out, "1 packet was sent again by the transport")?,
            count => writeln!(out, "{count} packets were sent again by the transport")?,
        }
        match broken {
            0 => {}
            1 => writeln!(out, "1 connection broke")?,
            count => writeln!(out, "{count} connections broke")?,
        }
        // Otherwise a line above has it.
        match last_failure.as_ref().filter(|_| self.is_quiet() || self.options.flood) {
            Some(why) => writeln!(out, "last failure: {why}"),
            None => Ok(()),
        }
    }

    /// Prints one line with the counts so far, on the standard error.
    pub(super) fn status(&self, statistics: &Statistics) {
        let Statistics { sent, received, .. } = statistics;
        let loss = Percent(statistics.loss_percent());
        let times = statistics.round_trips().map_or_else(String::new, |RoundTrips { min, mean, max, .. }| {
            format!(", min/avg/max = {:.3}/{:.3}/{:.3} ms", min / 1e3, mean / 1e3, max / 1e3)
        });
        note!("{received}/{sent} packets, {loss} loss{times}");
    }

    fn document<'b>(
        &'b self,
        way: &'b Way,
        statistics: &'b Statistics,
        elapsed: Duration,
        packets_again: u64,
        diagnosis: Option<&'b Diagnosis>,
    ) -> Document<'b> {
        let (path, reason) = match &way.path {
            Some(PacketPath::SharedMemory) => (Some("memory"), None),
            Some(PacketPath::Sockets(reason)) => (Some("sockets"), Some(reason.to_string())),
            // A path of a later version.
            Some(_) | None => (None, None),
        };
        Document {
            host: &self.target.name,
            address: way.address,
            port: self.target.port,
            service: self.hello.service,
            one_sided: self.hello.is_one_sided,
            data_bytes: self.hello.bytes - HEADER_BYTES,
            message_bytes: self.hello.bytes,
            local: way.local,
            device: &way.device,
            path,
            path_reason: reason,
            path_mtu: way.mtu,
            server_interval: way.interval.map(|interval| interval.as_secs_f64()),
            sent: statistics.sent,
            received: statistics.received,
            lost: statistics.lost(),
            loss_percent: statistics.loss_percent(),
            late: statistics.late,
            duplicates: statistics.duplicates,
            corrupted: statistics.corrupted,
            broken_connections: statistics.broken,
            packets_sent_again: packets_again,
            seconds: elapsed.as_secs_f64(),
            round_trip: statistics.round_trips(),
            echoes: statistics.listed(),
            diagnosis,
        }
    }
}

/// A share, with the digits that ping(8) prints.
struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As `%g`: six digits, without the zeros at the end.
        let Self(share) = self;
        let before = if *share > 0.0 { share.log10().floor().max(-10.0) as i32 } else { 0 };
        let digits = usize::try_from(5 - before).unwrap_or(0);
        let text = format!("{share:.digits$}");
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        write!(f, "{text}%")
    }
}

/// A time in milliseconds, with the digits that ping(8) prints.
struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = self.0.as_secs_f64() * 1e3;
        let digits = match milliseconds {
            // Below the powers of ten by what rounding adds, so that no time has four digits.
            time if time >= 99.95 => 0,
            time if time >= 9.995 => 1,
            time if time >= 0.9995 => 2,
            _ => 3,
        };
        write!(f, "{milliseconds:.digits$} ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_shares_have_the_digits_of_ping() {
        let times = [45, 1_234, 9_996, 12_345, 99_960, 123_456];
        let times = times.map(|time| Time(Duration::from_micros(time)).to_string());
        assert_eq!(times, ["0.045 ms", "1.23 ms", "10.0 ms", "12.3 ms", "100 ms", "123 ms"]);
        let shares = [0.0, 100.0, 100.0 / 3.0, 12.5, 10.0, 100.0 / 3000.0].map(|share| Percent(share).to_string());
        assert_eq!(shares, ["0%", "100%", "33.3333%", "12.5%", "10%", "0.0333333%"]);
    }
}
