//! The process that listens. It obeys the lines of its standard input and replies with a line to each.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, channel};

use rdma_verbs::verbs::cm::{Connection, ConnectionOptions, Listener, ListenerOptions, Request};
use rdma_verbs::verbs::{CompletionQueue, Context, ProtectionDomain, QueuePair};
use tokio::runtime::Runtime;
use tokio::task::{JoinSet, LocalSet};

use super::holdings::Holdings;
use super::{Outcome, PORT, SERVER, tcp};

/// Requests that may wait; more than the client has in progress.
const BACKLOG: u32 = 1_024;

/// Held connections. A connection is dropped before its queue pair.
type Held = Rc<RefCell<Vec<(Connection, QueuePair)>>>;

struct Server {
    listener: Listener,
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    runtime: Runtime,
    held: Held,
}

/// Returns the lines of the standard input. The process ends with its parent, whatever it does.
fn lines() -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
        std::process::exit(0);
    });
    lines
}

pub(crate) fn run() -> Outcome {
    let lines = lines();
    let context = rdma_verbs::verbs::open(&format!("soft:{SERVER}"))?;
    let listener = ListenerOptions::new().backlog(BACKLOG).on(&context).bind((SERVER, PORT))?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let server = Server { listener, context, pd, cq, runtime, held: Rc::default() };
    println!("ready");
    for line in lines {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("accept", count) => server.accept(count.parse()?)?,
            ("end", _) => server.end()?,
            ("tcp", count) => tcp::accept(count.parse()?)?,
            ("holdings", _) => {}
            _ => return Err(format!("unknown: {line}").into()),
        }
        println!("{}", serde_json::to_string(&Holdings::now(&server.context))?);
    }
    Ok(())
}

impl Server {
    /// Accepts that many requests, and holds the connections.
    fn accept(&self, count: usize) -> Outcome {
        LocalSet::new().block_on(&self.runtime, async {
            let mut accepting = JoinSet::new();
            for _ in 0..count {
                let request = self.listener.accept_async().await?;
                let qp = self.pd.create_qp(&self.cq, &self.cq)?;
                accepting.spawn_local(hold(request, qp, Rc::clone(&self.held)));
            }
            accepting.join_all().await.into_iter().collect::<Outcome>()
        })
    }

    /// Waits until the client has ended all connections.
    fn end(&self) -> Outcome {
        LocalSet::new().block_on(&self.runtime, async {
            let mut ending = JoinSet::new();
            for (connection, qp) in self.held.take() {
                ending.spawn_local(async move {
                    connection.disconnected().await?;
                    Ok(connection.disconnect(&qp)?)
                });
            }
            ending.join_all().await.into_iter().collect::<Outcome>()
        })
    }
}

async fn hold(request: Request, qp: QueuePair, held: Held) -> Outcome {
    let connection = request.start_accept(&qp, &ConnectionOptions::new())?.await?;
    held.borrow_mut().push((connection, qp));
    Ok(())
}
