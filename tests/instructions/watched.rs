//! Holds queue pairs for some time in which nothing else happens, for `tests/instructions/run`, which counts the
//! processor's instructions with callgrind: those of a process that is watched are those of its snapshots.
//!
//! `watched_instructions QUEUE_PAIRS SECONDS`: not watched.
//! `watched_instructions QUEUE_PAIRS SECONDS watched`: watched by itself, ten times a second if that is possible.
//! Prints the number of snapshots.

use std::error::Error;
use std::time::{Duration, Instant};

use rdma_verbs::monitor::Process;
use rdma_verbs::verbs::{self, QueuePairOptions};

const EVERY: Duration = Duration::from_millis(100);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [queue_pairs, seconds, rest @ ..] = &arguments[..] else {
        return Err("QUEUE_PAIRS SECONDS [watched]".into());
    };
    let (queue_pairs, seconds): (usize, f64) = (queue_pairs.parse()?, seconds.parse()?);
    let context = verbs::open("soft:127.50.1.3")?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    let options = QueuePairOptions::default().max_send_wr(4).max_recv_wr(4);
    let mut all = Vec::new();
    for _ in 0..queue_pairs {
        let qp = pd.create_qp_with(&cq, &cq, &options)?;
        qp.connect(&qp.connection_info()?)?;
        all.push(qp);
    }
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut watch = match rest {
        [] => None,
        _ => Some(Process::find(std::process::id())?.watch(EVERY)?),
    };
    let first = watch.as_mut().map(|watch| watch.snapshot()).transpose()?;
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
    if let (Some(first), Some(watch)) = (first, &mut watch) {
        let last = watch.snapshot()?;
        let lasted = Duration::from_nanos(last.taken_at - first.taken_at);
        println!("{}", 1.0 + (lasted.as_secs_f64() / last.every.as_secs_f64()).round());
    }
    Ok(())
}
