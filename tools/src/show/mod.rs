//! Shows the messages in captures of RoCEv2 packets, request by request.
//!
//! ```text
//! rdma-verbs show FILE...            requests, connection manager messages
//! rdma-verbs show --problems FILE    only what went wrong
//! rdma-verbs show --summary FILE     rates and latencies of connections
//! ```
//!
//! `docs/capture.md` describes the output. Files are read once, from the beginning to the end, and all that is
//! remembered has a bound, so a file may be larger than memory. Several files are merged by time.

mod flow;
mod frame;
mod json;
mod request;
mod response;
mod sequence;
mod source;
mod summary;
mod tracker;
mod words;

#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use serde::Serialize;

use crate::common::{exit_code, note};
use frame::Other;
use json::Counts;
use request::Request;
use source::{Damage, Direction, Following, Record, Source};
use summary::Summary;
use tracker::{Item, Management, Tracker};

/// Files that are read at the same time.
const MOST_FILES: usize = 64;
const NANOSECONDS: f64 = 1e9;

#[derive(Args, Default)]
#[command(
    after_help = "Exit status: 0 done, 1 a file cannot be read or, with --problems, there are problems, 2 wrong \
                        usage.\nExamples:\n  rdma-verbs show FILE                      all requests\n  \
                        rdma-verbs show --problems --packets FILE requests with problems, and their packets\n  \
                        rdma-verbs show --summary A.pcapng B.pcapng   both ends of connections\n  \
                        ssh HOST tcpdump -i eth0 -w - udp port 4791 | rdma-verbs show -"
)]
pub(crate) struct Options {
    /// Captures, pcapng or pcap; `-` is the standard input. Several are merged by time.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Prints a line for each packet below its request (the first 32).
    #[arg(long, conflicts_with = "summary")]
    packets: bool,
    /// Only connections of this queue pair: 18, or 0x12.
    #[arg(long, value_name = "NUMBER", value_parser = queue_pair)]
    qp: Option<u32>,
    /// Only connections with this address at one end.
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<IpAddr>,
    /// Only requests with retransmissions, NAKs, drops or refusals, and messages that reject something.
    #[arg(long)]
    problems: bool,
    /// Only packets from this time on, in seconds after the first one.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    from: Option<f64>,
    /// Only packets before this time, in seconds after the first one.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    to: Option<f64>,
    /// Prints a JSON document for each request and message, one a line, with --summary one for all; `docs/json.md`
    /// describes the fields.
    #[arg(long)]
    json: bool,
    /// Prints the sums for each connection instead of its requests.
    #[arg(long)]
    summary: bool,
}

/// Reads the number of a queue pair.
pub(crate) fn queue_pair(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.ok().filter(|number| *number < 1 << 24).ok_or_else(|| "allowed are 0 to 0xffffff".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds.filter(|seconds| (0.0..1e9).contains(seconds)).ok_or_else(|| "allowed are 0 to 1e9 seconds".to_owned())
}

/// Shows the files.
pub(crate) fn run(options: &Options) -> ExitCode {
    if options.files.len() > MOST_FILES {
        note!("show: {} files; allowed are {MOST_FILES} at a time", options.files.len());
        return ExitCode::from(2);
    }
    let out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let shown = show(options, out);
    exit_code(
        "show",
        shown.map(|Outcome { is_damaged, problems }| {
            ExitCode::from(u8::from(is_damaged || (options.problems && problems > 0)))
        }),
    )
}

/// Shows a file that is being written, until it is complete.
pub(crate) fn follow(path: PathBuf, is_complete: Arc<AtomicBool>) {
    let options = Options { files: vec![path], ..Options::default() };
    let input = options.files.first().map(|path| Input::follow(path, is_complete));
    let shown = match input {
        Some(Ok(input)) => show_inputs(&options, vec![input], false, io::stdout()).map(|_| ()),
        Some(Err(damage)) => Err(io::Error::other(damage)),
        None => Ok(()),
    };
    match shown {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => note!("show: {error}"),
        _ => {}
    }
}

struct Outcome {
    is_damaged: bool,
    problems: u64,
}

fn show(options: &Options, out: impl Write) -> io::Result<Outcome> {
    let mut inputs = Vec::new();
    let mut is_damaged = false;
    for path in &options.files {
        match Input::open(path) {
            Ok(input) => inputs.push(input),
            Err(damage) => {
                note!("show: {}: {damage}", path.display());
                is_damaged = true;
            }
        }
    }
    show_inputs(options, inputs, is_damaged, out)
}

fn show_inputs(
    options: &Options,
    mut inputs: Vec<Input>,
    mut is_damaged: bool,
    out: impl Write,
) -> io::Result<Outcome> {
    let mut view = View::new(options, out);
    // The input with the earliest packet comes next.
    while let Some(input) = inputs.iter_mut().filter(|input| input.has_record).min_by_key(|input| input.record.time) {
        view.record(&input.record)?;
        input.advance();
    }
    is_damaged |= inputs.iter().any(|input| input.is_damaged);
    let lost = inputs.iter().map(|input| input.source.lost()).fold(0, u64::saturating_add);
    if inputs.is_empty() && !options.json {
        // The reasons are printed already; sums of nothing would look like a result.
        return Ok(Outcome { is_damaged, problems: 0 });
    }
    let problems = view.end(lost, inputs.iter().any(|input| input.source.is_cut))?;
    Ok(Outcome { is_damaged, problems })
}

/// A file, with its next packet.
struct Input {
    name: String,
    source: Source,
    record: Record,
    has_record: bool,
    is_damaged: bool,
}

impl Input {
    fn open(path: &Path) -> Result<Self, Damage> {
        Ok(Self::new(path, Source::open(path)?))
    }

    fn follow(path: &Path, is_complete: Arc<AtomicBool>) -> Result<Self, Damage> {
        Ok(Self::new(path, Source::new(Following::new(File::open(path)?, is_complete))?))
    }

    fn new(path: &Path, source: Source) -> Self {
        let name = path.display().to_string();
        let mut input = Self { name, source, record: Record::default(), has_record: false, is_damaged: false };
        input.advance();
        input
    }

    fn advance(&mut self) {
        self.has_record = match self.source.next(&mut self.record) {
            Ok(has_record) => has_record,
            Err(damage) => {
                note!("show: {}: {damage}", self.name);
                self.is_damaged = true;
                false
            }
        };
    }
}

/// Counts of frames.
#[derive(Clone, Copy, Default, Serialize)]
struct Frames {
    frames: u64,
    other: u64,
    fragments: u64,
    cut: u64,
}

/// Prints what the tracker finds.
struct View<'a, W> {
    options: &'a Options,
    out: W,
    tracker: Tracker,
    summary: Summary,
    /// Time of the first frame.
    start: Option<u64>,
    frames: Frames,
    requests: u64,
    problems: u64,
}

impl<'a, W: Write> View<'a, W> {
    fn new(options: &'a Options, out: W) -> Self {
        Self {
            options,
            out,
            tracker: Tracker::new(options.packets),
            summary: Summary::default(),
            start: None,
            frames: Frames::default(),
            requests: 0,
            problems: 0,
        }
    }

    fn record(&mut self, record: &Record) -> io::Result<()> {
        self.frames.frames += 1;
        if self.start.is_none() {
            self.start = Some(record.time);
            if !self.options.json && !self.options.summary {
                writeln!(self.out, "Times are seconds after {}.", words::date(record.time))?;
            }
        }
        let after = record.time.saturating_sub(self.start.unwrap_or_default()) as f64 / NANOSECONDS;
        if self.options.from.is_some_and(|from| after < from) || self.options.to.is_some_and(|to| after >= to) {
            return Ok(());
        }
        let datagram = match frame::datagram(record.link, &record.data) {
            Ok(datagram) => datagram,
            Err(other) => {
                match other {
                    Other::Traffic => self.frames.other += 1,
                    Other::Fragment => self.frames.fragments += 1,
                    Other::Cut => self.frames.cut += 1,
                }
                return Ok(());
            }
        };
        let direction = if record.direction == Direction::Unknown { datagram.direction } else { record.direction };
        if self.options.peer.is_some_and(|peer| peer != datagram.source && peer != datagram.destination) {
            return Ok(());
        }
        self.tracker.take(record.time, direction, &datagram, record.comment.as_deref());
        self.items()
    }

    /// Prints what has ended.
    fn items(&mut self) -> io::Result<()> {
        for item in std::mem::take(&mut self.tracker.items) {
            match item {
                Item::Request(flow, request) => self.request(flow, &request)?,
                Item::Management(management) => self.management(&management)?,
            }
        }
        Ok(())
    }

    fn seconds(&self, time: u64) -> f64 {
        let start = self.start.unwrap_or_default();
        if time < start { -((start - time) as f64) / NANOSECONDS } else { (time - start) as f64 / NANOSECONDS }
    }

    fn request(&mut self, index: usize, request: &Request) -> io::Result<()> {
        let flow = self.tracker.flow(index);
        let source_queue_pair = self.source_queue_pair(index);
        let destination_queue_pair = flow.key.destination_qpn.value();
        let is_wanted = self.options.qp.is_none_or(|qp| qp == destination_queue_pair || source_queue_pair == Some(qp));
        if !is_wanted {
            return Ok(());
        }
        self.requests += 1;
        self.problems += u64::from(request.is_problem());
        if self.options.problems && !request.is_problem() {
            return Ok(());
        }
        let (connection, is_back, is_new) = self.tracker.connection(index);
        let flow = self.tracker.flow(index);
        if self.options.summary {
            self.summary.add((connection, is_back), flow, source_queue_pair, request);
            return Ok(());
        }
        if self.options.json {
            return writeln!(self.out, "{}", json::request(connection, flow, source_queue_pair, request)?);
        }
        if is_new {
            let from = source_queue_pair.map_or(String::new(), |qpn| format!(" queue pair {qpn:#08x}"));
            let (source, destination) = (flow.key.source, flow.key.destination);
            let service = words::service(flow.service());
            let to = format!("{destination} queue pair {destination_queue_pair:#08x}");
            writeln!(self.out, "connection {connection}: {service}, {source}{from} > {to}")?;
        }
        let arrow = if is_back { '<' } else { '>' };
        let seconds = self.seconds(request.best().first);
        let (number, title, course) = (request.number, words::title(request), words::course(request));
        writeln!(self.out, "{seconds:>12.6}  {connection}{arrow} #{number} {title}: {course}")?;
        self.packets(request)
    }

    fn packets(&mut self, request: &Request) -> io::Result<()> {
        let start = request.lines.first().map_or(0, |line| line.time);
        for line in &request.lines {
            writeln!(self.out, "{:>14}{}", "", words::packet(line, start))?;
        }
        if request.omitted_lines > 0 {
            writeln!(self.out, "{:>14}… {}", "", words::count(request.omitted_lines.into(), "more packet"))?;
        }
        Ok(())
    }

    /// The queue pair that sends the packets of a flow.
    fn source_queue_pair(&self, index: usize) -> Option<u32> {
        let flow = self.tracker.flow(index);
        if flow.key.source_qpn.value() != 0 {
            return Some(flow.key.source_qpn.value());
        }
        flow.partner.map(|partner| self.tracker.flow(partner).key.destination_qpn.value())
    }

    fn management(&mut self, management: &Management) -> io::Result<()> {
        if self.options.summary || (self.options.problems && !management.is_problem) {
            return Ok(());
        }
        if let Some(qp) = self.options.qp
            && !management.text.contains(&format!("{qp:#08x}"))
        {
            return Ok(());
        }
        if self.options.json {
            return writeln!(self.out, "{}", json::message(management)?);
        }
        let Management { source, destination, text, .. } = management;
        let again = if management.is_again { "; again" } else { "" };
        let seconds = self.seconds(management.time);
        writeln!(self.out, "{seconds:>12.6}  {source} > {destination}  {text}{again}")
    }

    /// Prints what is left, and counts. Returns the number of requests with problems.
    fn end(mut self, lost: u64, is_cut: bool) -> io::Result<u64> {
        self.tracker.finish();
        self.items()?;
        match self.options {
            Options { json: true, summary: false, .. } => {
                writeln!(self.out, "{}", json::end(&self.counts(lost, is_cut))?)?;
            }
            Options { json: true, .. } => {
                let counts = self.counts(lost, is_cut);
                let document = json::summary(&self.summary.objects(), self.summary.omitted, &counts)?;
                writeln!(self.out, "{document}")?;
            }
            _ => {
                for text in self.summary.texts() {
                    writeln!(self.out, "{text}")?;
                }
                self.notes(&self.counts(lost, is_cut))?;
            }
        }
        self.out.flush()?;
        Ok(self.problems)
    }

    fn counts(&self, lost: u64, is_cut: bool) -> Counts {
        let (counts, frames) = (self.tracker.counts, self.frames);
        let totals = || self.tracker.flows().map(|(_, flow)| &flow.totals);
        Counts {
            requests: self.requests,
            problems: self.problems,
            roce_packets: counts.roce,
            malformed_packets: counts.malformed,
            unfollowed_packets: counts.unfollowed,
            unmatched_responses: counts.unmatched_responses,
            late_retransmissions: totals().map(|totals| totals.again_after_end).sum(),
            congestion_notifications: totals().map(|totals| totals.congestion_notifications).sum(),
            lost_packets: lost,
            is_cut,
            frames: Frames { cut: frames.cut + counts.cut, ..frames },
        }
    }

    /// The last lines of text: sums, and what is not shown.
    fn notes(&mut self, counts: &Counts) -> io::Result<()> {
        let frames = counts.frames;
        let sums = [
            words::count(frames.frames, "frame"),
            format!("{} of RoCEv2", counts.roce_packets),
            words::count(counts.requests, "request"),
            format!("{} with problems", counts.problems),
        ];
        writeln!(self.out, "{}", sums.join(", "))?;
        let again = " again of requests that had been acknowledged: the acknowledgement was lost or late";
        let notes = [
            (counts.late_retransmissions, "packet", again),
            (counts.congestion_notifications, "congestion notification", ""),
            (counts.unmatched_responses, "response", " to requests that are not in the capture"),
            (counts.malformed_packets, "malformed packet", ""),
            (frames.cut, "packet", " cut within the headers: capture more bytes of each"),
            (frames.fragments, "IP fragment", ": an MTU on the path is too small"),
            (frames.other, "frame", " of other traffic"),
            (counts.unfollowed_packets, "packet", " of connections beyond the bound of 16384"),
            (self.summary.omitted, "request", " of connections beyond the bound of the summary"),
            (counts.lost_packets, "packet", " missing in the capture, as it says itself"),
        ];
        for (number, what, text) in notes.into_iter().filter(|(number, _, _)| *number > 0) {
            writeln!(self.out, "note: {}{text}", words::count(number, what))?;
        }
        if counts.is_cut {
            writeln!(self.out, "note: a file ends within a block, as if its writer was killed or has not ended")?;
        }
        if counts.roce_packets == 0 {
            writeln!(self.out, "note: no packets to UDP port 4791; packets through shared memory are on no network")?;
        }
        Ok(())
    }
}
