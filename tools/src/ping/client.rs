//! Sends echoes and awaits their replies, again and again, through the ends of connections, until it is to end.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::cm::Route;

use super::Options;
use super::connect::Failure;
use super::diagnosis::Diagnosis;
use super::protocol::{HEADER_BYTES, Hello};
use super::report::{Printer, Way};
use super::session::Session;
use super::statistics::Statistics;
use super::target::Target;
use crate::common::{is_interrupted, note, take_status_request};

/// How long the first connection may take.
const CONNECT_TIME: Duration = Duration::from_secs(6);
/// In a flood, the next echo is sent after this time without a reply.
const FLOOD_PAUSE: Duration = Duration::from_millis(10);
/// How often a pause looks whether the command is to end.
const TICK: Duration = Duration::from_millis(50);
/// Wrong usage, or a host without an address or route, as for ping(8).
const WRONG: u8 = 2;

/// Pings the host. Returns 0: there was a reply; 1: none, or fewer than `--count` before `--deadline`; 2: wrong usage,
/// or the host has no address or route.
pub(super) fn run(options: &Options, target: &Target) -> io::Result<ExitCode> {
    let begin = Instant::now();
    let hello = Hello { service: options.service, is_one_sided: options.one_sided, bytes: HEADER_BYTES + options.size };
    let printer = Printer { options, target, hello };
    let route = match target.route(options.device.as_deref()) {
        Ok(route) => route,
        Err(error) => return Ok(wrong(&error)),
    };
    let run = rand::random();
    let end = options.deadline.and_then(|deadline| begin.checked_add(deadline));
    let first = end.map_or(begin + CONNECT_TIME, |end| end.min(begin + CONNECT_TIME));
    match Session::open(&route, hello, run, first) {
        Ok(session) => {
            let way = Way::new(&route, Some(&session));
            printer.begin(&way)?;
            let client = Client::new(printer, route, run, end, session, way);
            client.run(begin)
        }
        Err(Failure::Usage(error)) => Ok(wrong(&error)),
        Err(Failure::Interrupted) => Ok(ExitCode::FAILURE),
        Err(failure) => {
            let diagnosis = diagnosis_of(failure, &route);
            let way = Way::new(&route, None);
            printer.end(&way, &Statistics::new(), begin.elapsed(), 0, Some(&diagnosis))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn wrong(error: &str) -> ExitCode {
    note!("ping: {error}");
    ExitCode::from(WRONG)
}

fn diagnosis_of(failure: Failure, route: &Route) -> Diagnosis {
    match failure {
        Failure::Connect(attempt) => Diagnosis::of(&attempt.0, attempt.1, route),
        Failure::Usage(text) | Failure::Failed(text) => Diagnosis::failed(text),
        Failure::Interrupted => Diagnosis::failed("interrupted".to_owned()),
    }
}

struct Client<'a> {
    printer: Printer<'a>,
    route: Route,
    run: u64,
    /// The end of `--deadline`.
    end: Option<Instant>,
    session: Option<Session>,
    way: Way,
    interval: Duration,
    statistics: Statistics,
    /// The number of the next echo.
    next: u32,
    /// Packets that the transport has sent again on connections that have ended.
    packets_again: u64,
}

impl<'a> Client<'a> {
    fn new(printer: Printer<'a>, route: Route, run: u64, end: Option<Instant>, session: Session, way: Way) -> Self {
        let allowed = session.welcome.interval;
        let asked = if printer.options.flood { Duration::ZERO } else { printer.options.interval };
        if asked < allowed && !printer.options.flood {
            note!("ping: the server allows one echo in {allowed:?}: that is the interval");
        }
        let interval = asked.max(allowed);
        let (statistics, session) = (Statistics::new(), Some(session));
        Self { printer, route, run, end, session, way, interval, statistics, next: 1, packets_again: 0 }
    }

    fn run(mut self, begin: Instant) -> io::Result<ExitCode> {
        let first = Instant::now();
        self.exchange()?;
        // Not the time of the connection.
        let elapsed = if self.statistics.sent == 0 { begin.elapsed() } else { first.elapsed() };
        let again = self.packets_again + self.session.as_ref().map_or(0, Session::packets_again);
        self.printer.end(&self.way, &self.statistics, elapsed, again, None)?;
        let Options { count, deadline, .. } = *self.printer.options;
        let wanted = count.filter(|_| deadline.is_some()).unwrap_or(1);
        Ok(if self.statistics.received >= wanted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Sends and receives until the end.
    fn exchange(&mut self) -> io::Result<()> {
        let mut due = Instant::now();
        while !self.is_over() {
            if take_status_request() {
                self.printer.status(&self.statistics);
            }
            self.expire()?;
            let now = Instant::now();
            if self.may_send() && now >= due {
                self.send()?;
                // A pause of the process is not made up for by a burst.
                due = (due + self.interval).max(now);
                continue;
            }
            self.receive(self.wake_up(due, now))?;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let Options { count, deadline, .. } = *self.printer.options;
        let is_complete = count.is_some_and(|count| match deadline {
            // As for ping(8): until so many replies are there.
            Some(_) => self.statistics.received >= count,
            None => self.statistics.sent >= count && self.statistics.waiting().0 == 0,
        });
        is_interrupted() || is_complete || self.end.is_some_and(|end| Instant::now() >= end)
    }

    fn may_send(&self) -> bool {
        let Options { count, deadline, flood, .. } = *self.printer.options;
        let has_more = count.is_none_or(|count| self.statistics.sent < count || deadline.is_some());
        let (waiting, _) = self.statistics.waiting();
        let is_paced = !flood || waiting == 0 || self.last_is_old();
        has_more && is_paced && self.session.as_ref().is_none_or(|session| session.has_place(waiting))
    }

    /// Returns whether no reply has come for some time, in a flood.
    fn last_is_old(&self) -> bool {
        self.statistics.waiting().1.is_none_or(|first| first.elapsed() > FLOOD_PAUSE)
    }

    /// Returns when something else than a reply is next.
    fn wake_up(&self, due: Instant, now: Instant) -> Instant {
        let expiry = self.statistics.waiting().1.map(|first| first + self.printer.options.timeout);
        let flood = self.statistics.waiting().1.filter(|_| self.printer.options.flood).map(|first| first + FLOOD_PAUSE);
        let due = Some(due).filter(|due| *due > now);
        let next = [expiry, flood, due, self.end].into_iter().flatten().filter(|time| *time > now).min();
        next.map_or(now + TICK, |next| next.min(now + TICK))
    }

    /// Gives up echoes without a reply in time.
    fn expire(&mut self) -> io::Result<()> {
        let timeout = self.printer.options.timeout;
        let Some(before) = Instant::now().checked_sub(timeout) else { return Ok(()) };
        while let Some(sequence) = self.statistics.expire(before) {
            self.printer.line(format_args!("no reply to seq={sequence} in {} s", timeout.as_secs_f64()))?;
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        let sequence = self.next;
        self.next = self.next.wrapping_add(1);
        let opened = match self.session.take() {
            Some(session) => Ok(session),
            None => self.connect_again(),
        };
        let sent = opened.and_then(|mut session| match session.send(sequence) {
            Ok(at) => Ok((session, at)),
            Err(error) => Err(error.to_string()),
        });
        match sent {
            Ok((session, at)) => {
                self.statistics.sent(sequence, Some(at));
                self.session = Some(session);
                self.printer.flood(".")
            }
            Err(error) => {
                self.statistics.sent(sequence, None);
                let printed = self.printer.line(format_args!("seq={sequence} not sent: {error}"));
                self.statistics.last_failure = Some(error);
                printed
            }
        }
    }

    /// Connects again, within the time for a reply.
    fn connect_again(&mut self) -> Result<Session, String> {
        let until = Instant::now() + self.printer.options.timeout;
        let until = self.end.map_or(until, |end| end.min(until));
        match Session::open(&self.route, self.printer.hello, self.run, until) {
            Ok(session) => {
                let way = Way::new(&self.route, Some(&session));
                if way != self.way {
                    self.way = way;
                    self.printer.path_changed(&self.way).map_err(|error| error.to_string())?;
                }
                self.interval = self.interval.max(session.welcome.interval);
                Ok(session)
            }
            Err(failure) => Err(diagnosis_of(failure, &self.route).text),
        }
    }

    /// Receives a reply, or waits until this time.
    fn receive(&mut self, until: Instant) -> io::Result<()> {
        let Some(session) = &mut self.session else {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            return Ok(());
        };
        match session.next(until) {
            Ok(Some(reply)) => {
                let verdict = self.statistics.replied(reply.sequence, reply.at, reply.is_intact);
                self.printer.flood("\u{8} \u{8}")?;
                self.printer.reply(reply.sequence, verdict, reply.is_intact, &self.way)
            }
            Ok(None) => Ok(()),
            Err(why) => {
                self.packets_again += session.packets_again();
                self.session = None;
                self.statistics.forget();
                let printed = self.printer.line(format_args!("connection lost: {why}"));
                self.statistics.last_failure = Some(why);
                printed
            }
        }
    }
}
