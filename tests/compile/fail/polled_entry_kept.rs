//! A lent completion is valid until the next one is requested or the poll ends.

use rdma_verbs::verbs::{Completion, CompletionQueue, Result};

fn two_at_once(cq: &CompletionQueue) -> Result<()> {
    let mut polling = cq.polling();
    let first = polling.next()?;
    let second = polling.next()?;
    println!("{first:?} {second:?}");
    Ok(())
}

fn after_the_poll(cq: &CompletionQueue) -> Result<Option<&Completion>> {
    cq.polling().next()
}

fn out_of_the_look(cq: &CompletionQueue) -> Result<()> {
    let mut kept = None;
    cq.poll_with(|completion| {
        kept = Some(completion);
        std::ops::ControlFlow::Continue(())
    })?;
    println!("{kept:?}");
    Ok(())
}

fn main() {}
