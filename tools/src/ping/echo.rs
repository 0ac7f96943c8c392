//! The server's end of a connection, or its datagram queue pair: returns messages as they came.

use std::time::{Duration, Instant};

use rdma_verbs::verbs::{AddressHandle, Completion, Context, ProtectionDomain, QueuePairOptions, SendRequest, Success};

use super::protocol::{DEPTH, HEADER_BYTES, Header, Kind};
use super::queue::{Lane, Queue};

/// The global route header before a received datagram.
pub(super) const ROUTE_HEADER_BYTES: usize = 40;
/// The only port of software devices, and the first of others.
pub(super) const PORT: u8 = 1;

/// Limits the echoes to one in each interval, with bursts of [`DEPTH`].
pub(super) struct Budget {
    interval: Duration,
    /// The time up to which the echoes so far have used it up.
    used: Instant,
}

impl Budget {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, used: Instant::now() }
    }

    /// Returns how long the next echo must wait.
    fn wait(&self, now: Instant) -> Duration {
        self.used.saturating_duration_since(now).saturating_sub(self.interval * DEPTH as u32)
    }

    fn spend(&mut self, now: Instant) {
        self.used = self.used.max(now) + self.interval;
    }
}

/// The request of a message, besides its return.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// It was returned, or needs nothing.
    Done,
    /// A client's data of its unreliable connection.
    Address(Vec<u8>),
}

/// Queue pairs whose messages are returned.
pub(super) struct Echo {
    queue: Queue,
    pub(super) lanes: Vec<Lane>,
    /// For datagrams: the path to the sender of each place's message, until the send has ended.
    handles: Vec<Option<AddressHandle>>,
    budget: Budget,
    /// Echoes of datagrams that would exceed the budget.
    pub(super) dropped: u64,
    pub(super) returned: u64,
}

/// Where a completion belongs.
struct Job {
    lane: usize,
    place: usize,
    is_send: bool,
}

impl Job {
    fn wr_id(&self) -> u64 {
        (self.lane << 16 | self.place << 1 | usize::from(self.is_send)) as u64
    }

    const fn of(wr_id: u64) -> Self {
        Self { lane: (wr_id >> 16) as usize, place: (wr_id >> 1) as usize % DEPTH, is_send: wr_id & 1 == 1 }
    }
}

impl Echo {
    pub(super) fn new(context: &Context, budget: Budget) -> Result<Self, String> {
        // Two queue pairs at most, with sends and receives.
        let queue = Queue::new(context, 8 * DEPTH).map_err(|error| error.to_string())?;
        let handles = (0..DEPTH).map(|_| None).collect();
        Ok(Self { queue, lanes: Vec::new(), handles, budget, dropped: 0, returned: 0 })
    }

    /// Adds a queue pair in RESET, for messages of at most this length, with a route header.
    pub(super) fn add(&mut self, pd: &ProtectionDomain, options: QueuePairOptions, bytes: usize) -> Result<(), String> {
        let lane = Lane::new(pd, &self.queue, options, bytes).map_err(|error| error.to_string())?;
        self.lanes.push(lane);
        Ok(())
    }

    /// Posts all receives of the last queue pair, which is in INIT.
    pub(super) fn fill(&self) -> Result<(), String> {
        let lane = self.lanes.len() - 1;
        (0..DEPTH).try_for_each(|place| self.post_recv(lane, place))
    }

    fn post_recv(&self, lane: usize, place: usize) -> Result<(), String> {
        let job = Job { lane, place, is_send: false };
        self.lanes[lane].post_recv(place, job.wr_id()).map_err(|error| error.to_string())
    }

    /// Waits for a completion until this time, and handles it. `None`: nothing has happened.
    pub(super) fn serve_one(&mut self, until: Instant) -> Result<Option<Arrival>, String> {
        match self.queue.next(until).map_err(|error| error.to_string())? {
            Some(completion) => self.handle(&completion).map(Some),
            None => Ok(None),
        }
    }

    fn handle(&mut self, completion: &Completion) -> Result<Arrival, String> {
        let Job { lane, place, is_send } = Job::of(completion.wr_id());
        let success = completion.result().map_err(|error| self.lanes[lane].qp.explain(&error))?;
        if is_send {
            self.handles[place] = None;
            return self.post_recv(lane, place).map(|()| Arrival::Done);
        }
        let start = if success.global_route_header { ROUTE_HEADER_BYTES } else { 0 };
        let end = success.byte_len as usize;
        let header = match end >= start + HEADER_BYTES {
            true => self.lanes[lane].read(place, start, start + HEADER_BYTES).map_err(|error| error.to_string())?,
            false => Vec::new(),
        };
        match Header::decode(&header).map(|header| header.kind) {
            Some(Kind::Echo) => self.echo(lane, place, start..end, &success),
            Some(Kind::Address) => {
                let note =
                    self.lanes[lane].read(place, start + HEADER_BYTES, end).map_err(|error| error.to_string())?;
                self.post_recv(lane, place).map(|()| Arrival::Address(note))
            }
            Some(Kind::Life) | None => self.post_recv(lane, place).map(|()| Arrival::Done),
        }
    }

    /// Returns a message from its place. Beyond the budget, connections wait and datagrams are dropped.
    fn echo(
        &mut self,
        lane: usize,
        place: usize,
        bytes: std::ops::Range<usize>,
        success: &Success,
    ) -> Result<Arrival, String> {
        let wait = self.budget.wait(Instant::now());
        if !wait.is_zero() && success.global_route_header {
            self.dropped += 1;
            return self.post_recv(lane, place).map(|()| Arrival::Done);
        }
        std::thread::sleep(wait);
        self.budget.spend(Instant::now());
        let way = if success.global_route_header { Some(self.way_back(lane, place, success)?) } else { None };
        self.send(lane, place, bytes, way)
    }

    fn send(
        &mut self,
        lane: usize,
        place: usize,
        bytes: std::ops::Range<usize>,
        way: Option<Way>,
    ) -> Result<Arrival, String> {
        let text = |error: rdma_verbs::verbs::Error| error.to_string();
        let Self { lanes, handles, .. } = self;
        let range = lanes[lane].place(place, bytes.start, bytes.end).map_err(text)?;
        let request = match way {
            Some((handle, qpn, qkey)) => SendRequest::send_to(range, handles[place].insert(handle), qpn, qkey),
            None => SendRequest::send(range),
        };
        let job = Job { lane, place, is_send: true };
        lanes[lane].qp.post_send(&[request.wr_id(job.wr_id()).signaled()]).map_err(text)?;
        self.returned += 1;
        Ok(Arrival::Done)
    }

    /// Returns the address of a datagram's sender, whose Q_Key is that of this service.
    fn way_back(&self, lane: usize, place: usize, success: &Success) -> Result<Way, String> {
        let text = |error: rdma_verbs::verbs::Error| error.to_string();
        let lane = &self.lanes[lane];
        let header = lane.read(place, 0, ROUTE_HEADER_BYTES).map_err(text)?;
        let header = header.first_chunk().ok_or("a datagram without a route header")?;
        let handle = lane.qp.protection_domain().create_ah_from_success(success, header, PORT).map_err(text)?;
        let qkey = lane.qp.query().map_err(text)?.attributes.qkey.ok_or("no Q_Key")?;
        Ok((handle, success.source_qpn, qkey))
    }
}

/// The way to a datagram's sender.
type Way = (AddressHandle, rdma_verbs::verbs::Qpn, rdma_verbs::verbs::Qkey);

#[cfg(test)]
mod tests {
    use rdma_verbs::verbs::{AddressVector, CompletionOpcode, Payload, Qkey, QueuePairType};

    use super::*;

    #[test]
    fn the_budget_allows_a_burst_and_then_one_echo_in_each_interval() {
        let mut budget = Budget::new(Duration::from_millis(10));
        let now = Instant::now();
        budget.used = now;
        for _ in 0..DEPTH {
            assert_eq!(budget.wait(now), Duration::ZERO);
            budget.spend(now);
        }
        assert_eq!(budget.wait(now), Duration::ZERO);
        budget.spend(now);
        assert_eq!(budget.wait(now), Duration::from_millis(10));
        assert_eq!(budget.wait(now + Duration::from_millis(10)), Duration::ZERO);
    }

    /// A client of the server's datagram queue pair, or of its connection, that knows no limit.
    struct Greedy {
        lane: Lane,
        queue: Queue,
    }

    impl Greedy {
        fn new(pd: &ProtectionDomain, options: QueuePairOptions) -> Self {
            let queue = Queue::new(pd.context(), 8 * DEPTH).unwrap();
            let lane = Lane::new(pd, &queue, options, ROUTE_HEADER_BYTES + 64).unwrap();
            lane.qp.init().unwrap();
            (0..DEPTH).for_each(|place| lane.post_recv(place, place as u64).unwrap());
            Self { lane, queue }
        }

        /// Takes replies until none has come for some time. Returns their number, and the time up to the last one.
        fn replies(&self, echo: &mut Echo, mut send: impl FnMut(&Lane, usize), count: usize) -> (usize, Duration) {
            let (begin, mut sent, mut replies) = (Instant::now(), 0, 0);
            let (mut quiet, mut last) = (begin, Duration::ZERO);
            while quiet.elapsed() < Duration::from_millis(500) {
                // No more are under way than the server has receives.
                if sent < count && sent - replies < DEPTH / 2 {
                    send(&self.lane, sent);
                    sent += 1;
                }
                while echo.serve_one(Instant::now()).unwrap().is_some() {}
                while let Some(completion) = self.queue.poll().unwrap() {
                    quiet = Instant::now();
                    let success = completion.result().unwrap();
                    if success.opcode == CompletionOpcode::Receive {
                        replies += 1;
                        last = begin.elapsed();
                        self.lane.post_recv(completion.wr_id() as usize, completion.wr_id()).unwrap();
                    }
                }
            }
            (replies, last)
        }
    }

    fn message() -> Vec<u8> {
        [&Header { kind: Kind::Echo, sequence: 1, run: 2 }.encode()[..], &[7; 24]].concat()
    }

    #[test]
    fn a_connection_beyond_its_rate_waits() {
        let context = rdma_verbs::verbs::open("soft:127.91.3.1").unwrap();
        let pd = context.alloc_pd().unwrap();
        let interval = Duration::from_millis(50);
        let mut echo = Echo::new(&context, Budget::new(interval)).unwrap();
        echo.add(&pd, QueuePairOptions::default(), 64).unwrap();
        let greedy = Greedy::new(&pd, QueuePairOptions::default());
        let (near, far) = (&greedy.lane.qp, echo.lanes[0].qp.clone());
        far.init().unwrap();
        echo.fill().unwrap();
        near.connect(&far.connection_info().unwrap()).unwrap();
        far.connect(&near.connection_info().unwrap()).unwrap();
        let message = message();
        let send = |lane: &Lane, _| {
            lane.qp.post_send(&[SendRequest::send(Payload::inline(&message)).signaled()]).unwrap();
        };
        let (replies, time) = greedy.replies(&mut echo, send, DEPTH + 10);
        assert_eq!(replies, DEPTH + 10);
        assert!(time > 8 * interval, "{time:?}");
        assert_eq!((echo.returned, echo.dropped), (DEPTH as u64 + 10, 0));
    }

    #[test]
    fn datagrams_beyond_their_rate_are_dropped() {
        let context = rdma_verbs::verbs::open("soft:127.91.3.2").unwrap();
        let pd = context.alloc_pd().unwrap();
        let mut echo = Echo::new(&context, Budget::new(Duration::from_secs(100))).unwrap();
        let options = || QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(Qkey(7));
        echo.add(&pd, options(), ROUTE_HEADER_BYTES + 64).unwrap();
        echo.lanes[0].qp.bring_up_ud().unwrap();
        echo.fill().unwrap();
        let greedy = Greedy::new(&pd, options());
        greedy.lane.qp.bring_up_ud().unwrap();
        let way = pd.create_ah(&AddressVector::new(context.query_gid(PORT, 0).unwrap().gid, 0)).unwrap();
        let (message, target) = (message(), echo.lanes[0].qp.qpn());
        let send = |lane: &Lane, number: usize| {
            // Some are no echoes: nothing returns.
            let data = if number.is_multiple_of(2) { &message[..] } else { b"something else" };
            let request = SendRequest::send_to(Payload::inline(data), &way, target, Qkey(7));
            lane.qp.post_send(&[request.signaled()]).unwrap();
            std::thread::sleep(Duration::from_micros(200));
        };
        let (replies, _) = greedy.replies(&mut echo, send, DEPTH / 2);
        assert_eq!((replies as u64, echo.returned), (DEPTH as u64 / 4, DEPTH as u64 / 4));
        for _ in 0..8 {
            greedy.replies(&mut echo, send, DEPTH / 2);
        }
        assert_eq!(echo.returned, DEPTH as u64 + 1);
        assert_eq!(echo.dropped, 9 * (DEPTH as u64 / 4) - echo.returned);
    }

    #[test]
    fn jobs_return_as_they_were() {
        for (lane, place, is_send) in [(0, 0, false), (1, DEPTH - 1, true), (0, 7, true)] {
            let job = Job::of(Job { lane, place, is_send }.wr_id());
            assert_eq!((job.lane, job.place, job.is_send), (lane, place, is_send));
        }
    }
}
