//! An end of a connection whose messages say which server and which connection they belong to.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rdma_verbs::verbs::cm::{Connection, ConnectionOptions, PendingConnection, Route};
use rdma_verbs::verbs::{
    AccessFlags, Completion, CompletionChannel, CompletionOpcode, CompletionQueue, CompletionQueueOptions, Context,
    ErrorKind, MemoryRegion, Notify, Payload, QueuePair, QueuePairOptions, ReceiveRequest, SendRequest,
};
use support::PATIENCE;

pub(super) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Length of every message, and of the greetings in the private data.
const BYTES: usize = 48;
/// How long a wait for a completion lasts before the caller looks at something else.
const SLICE: Duration = Duration::from_millis(50);

/// The text that both ends of a connection send: the server's name, and the number of the connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Greeting {
    pub(super) server: String,
    pub(super) number: u64,
}

impl Greeting {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {}", self.server, self.number).into_bytes();
        bytes.resize(BYTES, 0);
        bytes
    }

    /// Parses a greeting; zeros may follow it.
    pub(super) fn parse(bytes: &[u8]) -> Outcome<Self> {
        let text = std::str::from_utf8(bytes)?.trim_end_matches('\0');
        let (server, number) = text.split_once(' ').ok_or_else(|| format!("\"{text}\" arrived"))?;
        Ok(Self { server: server.to_owned(), number: number.parse()? })
    }
}

/// A queue pair with one posted receive.
pub(super) struct End {
    channel: CompletionChannel,
    cq: CompletionQueue,
    pub(super) qp: QueuePair,
    memory: MemoryRegion,
}

impl End {
    pub(super) fn new(context: &Context) -> Outcome<Self> {
        let channel = context.create_comp_channel()?;
        let (pd, cq) =
            (context.alloc_pd()?, context.create_cq_with(16, &CompletionQueueOptions::default().channel(&channel, 0))?);
        let qp =
            pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().max_inline_data(BYTES as u32).sq_sig_all())?;
        let memory = pd.alloc_mr(BYTES, AccessFlags::LOCAL_WRITE)?;
        qp.init()?;
        qp.post_recv(&[ReceiveRequest::new(&memory)])?;
        Ok(Self { channel, cq, qp, memory })
    }

    pub(super) fn send(&self, greeting: &Greeting) -> Outcome {
        Ok(self.qp.post_send(&[SendRequest::send(Payload::inline(&greeting.to_bytes()))])?)
    }

    /// Returns the next message, or `None` after a slice of time without one.
    pub(super) fn receive(&self) -> Outcome<Option<Greeting>> {
        let mut completions = [Completion::default()];
        loop {
            self.cq.req_notify(Notify::Any)?;
            if self.cq.poll(&mut completions)? == 0 {
                match self.channel.wait_event(SLICE) {
                    Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(None),
                    event => drop(event?),
                }
                continue;
            }
            let done = completions[0].result().map_err(|failure| self.qp.explain(&failure))?;
            if done.opcode == CompletionOpcode::Receive {
                let greeting = Greeting::parse(&self.memory.to_vec(..BYTES)?)?;
                self.qp.post_recv(&[ReceiveRequest::new(&self.memory)])?;
                return Ok(Some(greeting));
            }
        }
    }
}

/// The active end of a connection to a server with a name.
pub(super) struct Client {
    end: End,
    connection: Connection,
    greeting: Greeting,
}

/// An error that shows a connection between the wrong ends.
pub(super) const WRONG: &str = "wrong connection";

impl Client {
    /// Connects that many queue pairs at once, and checks which server has accepted each.
    pub(super) fn connect(
        source: IpAddr,
        server: SocketAddr,
        name: &str,
        count: usize,
        deadline: Duration,
    ) -> Outcome<Vec<Self>> {
        let route = Route::to(server)?.from(source)?;
        let ends = (0..count).map(|_| End::new(route.context())).collect::<Outcome<Vec<_>>>()?;
        let greetings: Vec<_> =
            (0..count).map(|_| Greeting { server: name.to_owned(), number: rand::random() }).collect();
        let attempts = ends.iter().zip(&greetings).map(|(end, greeting)| {
            let options = ConnectionOptions::new().private_data(&greeting.to_bytes()).deadline(deadline);
            route.start_connect(&end.qp, &options)
        });
        let attempts = attempts.collect::<Result<Vec<_>, _>>()?;
        let connected = attempts.into_iter().map(PendingConnection::wait).collect::<Result<Vec<_>, _>>()?;
        let clients = ends.into_iter().zip(greetings).zip(connected);
        clients.map(|((end, greeting), connection)| Self { end, connection, greeting }.checked()).collect()
    }

    fn checked(self) -> Outcome<Self> {
        let replied = Greeting::parse(self.connection.private_data())?;
        if replied != self.greeting {
            return Err(format!("{WRONG}: {replied:?} replies to {:?}", self.greeting).into());
        }
        Ok(self)
    }

    /// Sends a message and waits for its echo, at most for this time.
    pub(super) fn exchange(&self, patience: Duration) -> Outcome {
        self.end.send(&self.greeting)?;
        let end = Instant::now() + patience;
        while Instant::now() < end {
            match self.end.receive()? {
                Some(echo) if echo == self.greeting => return Ok(()),
                Some(echo) => return Err(format!("{WRONG}: {echo:?} is the echo of {:?}", self.greeting).into()),
                None => {}
            }
        }
        Err(format!("no echo of {:?}: {:?}", self.greeting, self.end.qp.state()).into())
    }

    /// Returns whether the connection ends within this time.
    pub(super) fn has_ended(&self, patience: Duration) -> Outcome<bool> {
        Ok(self.connection.wait_disconnected(patience)?)
    }

    /// Disconnects, and waits until the peer has confirmed it.
    pub(super) fn hang_up(self) -> Outcome {
        self.connection.disconnect(&self.end.qp)?;
        let is_over = self.connection.wait_disconnected(PATIENCE)?;
        if is_over { Ok(()) } else { Err(format!("no end of {:?}", self.greeting).into()) }
    }
}
