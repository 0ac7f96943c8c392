//! A program with a lock of its own: one thread polls while it holds the lock, the other one posts with it and waits
//! for the completion that the first one takes. A third thread computes on their core.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::Completion;

use super::end::End;
use super::{FAR, NEAR, Outcome, Samples, compute, pin};

pub(super) const NAME: &str = "locked";
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two requests.
const PAUSE: Duration = Duration::from_millis(5);

pub(super) fn run(length: Duration) -> Outcome {
    pin(0)?;
    let near = End::open(NEAR)?;
    pin(1)?;
    let far = End::open(FAR)?;
    pin(0)?;
    near.connect(&far.qp.connection_info()?)?;
    far.connect(&near.qp.connection_info()?)?;
    let (stop, near) = (AtomicBool::new(false), Mutex::new(near));
    let (taken, is_taken) = mpsc::channel();
    thread::scope(|scope| {
        let (stop, near) = (&stop, &near);
        scope.spawn(|| compute(0, stop));
        let poller = scope.spawn(move || poll(near, &taken, stop));
        let mut samples = Samples::new();
        let start = Instant::now();
        let requests = (1..).take_while(|_| start.elapsed() < length).try_for_each(|number| -> Outcome {
            let before = Instant::now();
            near.lock().unwrap_or_else(PoisonError::into_inner).write(number, far.region.remote())?;
            is_taken.recv_timeout(PATIENCE)?;
            samples.add(before.elapsed());
            thread::sleep(PAUSE);
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        poller.join().map_err(|_| "the poller panicked")??;
        requests?;
        samples.print();
        Ok(())
    })
}

/// Polls with the lock until it must stop, and reports each completion.
fn poll(near: &Mutex<End>, taken: &Sender<()>, stop: &AtomicBool) -> Outcome {
    let mut completions = [Completion::default(); 4];
    while !stop.load(Ordering::Relaxed) {
        let end = near.lock().unwrap_or_else(PoisonError::into_inner);
        let count = end.cq.poll(&mut completions)?;
        drop(end);
        (0..count).try_for_each(|_| taken.send(()))?;
    }
    Ok(())
}
