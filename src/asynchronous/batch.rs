//! Several requests with one doorbell, and one future.

use std::collections::VecDeque;

use super::RequestError;
use super::cells::Ticket;
use super::queue_pair::{QueuePair, outcome};
use crate::owned::{PartlyPosted, Request, RequestBuffer};
use crate::verbs::{Error, ErrorKind, Result, Success};

impl QueuePair {
    /// Executes requests in order, as [`QueuePair::execute`] does a single one, and posts them with one doorbell: as
    /// many as the queue has room for, then the next ones when all of these are finished. Returns the results with the
    /// memory, in order.
    ///
    /// A refused request ends the posting: those after it are refused as well, with the kind
    /// [`ErrorKind::InvalidState`]. If the future is dropped, posted requests continue, and the others are dropped.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// # runtime.block_on(async {
    /// # use rdma_verbs::asynchronous::{CompletionQueue, QueuePair};
    /// # use rdma_verbs::owned::{BufferPool, Request};
    /// # use rdma_verbs::verbs::{self, AccessFlags};
    /// # let context = verbs::open("soft:127.45.1.31")?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = CompletionQueue::new(&context, 64)?;
    /// # let qp = QueuePair::new(&pd, &cq)?;
    /// # qp.connect(&qp.connection_info()?)?; // to itself
    /// # let region = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE)?;
    /// # let remote = region.remote();
    /// # let pool = BufferPool::new(&pd, 1 << 20)?;
    /// let requests = vec![
    ///     Request::write(pool.copy_from(b"some bytes")?, remote),
    ///     Request::read(pool.take(5)?, remote.slice(5..10)?),
    /// ];
    /// let mut results = qp.execute_all(requests).await;
    /// let (read, buffer) = results.pop().expect("two results");
    /// read?;
    /// assert_eq!(*buffer.into_buffer().expect("a buffer"), *b"bytes");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn execute_all(&self, requests: Vec<Request>) -> Vec<(Result<Success, RequestError>, RequestBuffer)> {
        let mut results = Vec::with_capacity(requests.len());
        let mut requests = VecDeque::from(requests);
        while !requests.is_empty() {
            let (tickets, refused) = self.post_some(&mut requests).await;
            for ticket in tickets {
                results.push(outcome(ticket.await));
            }
            if let Some(error) = refused {
                let errors = std::iter::once(error).chain(std::iter::repeat_with(behind_a_refused_one));
                let refused = |(request, error): (Request, Error)| (Err(error.into()), request.into_request_buffer());
                results.extend(requests.drain(..).zip(errors).map(refused));
            }
        }
        results
    }

    /// Waits until the queue has room, and posts as many requests as it has room for. Takes them out of `requests`, and
    /// returns why the next one was refused.
    async fn post_some(&self, requests: &mut VecDeque<Request>) -> (Vec<Ticket>, Option<Error>) {
        let first = self.claim_send().await;
        let more = std::iter::from_fn(|| self.try_claim_send()).take(requests.len() - 1);
        // Nothing awaits from here on, so slots are never held for requests that are not posted.
        let (mut tickets, wr_ids): (Vec<_>, Vec<_>) = std::iter::once(first).chain(more).unzip();
        let numbered =
            requests.drain(..wr_ids.len()).zip(wr_ids).map(|(request, wr_id)| request.wr_id(wr_id).signaled());
        let mut posting: Vec<_> = numbered.collect();
        let refused = match self.owned().post_send_all(&mut posting) {
            Ok(()) => None,
            Err(PartlyPosted { accepted, error, .. }) => {
                tickets.truncate(accepted);
                Some(error)
            }
        };
        posting.into_iter().rev().for_each(|request| requests.push_front(request));
        (tickets.into_iter().map(Ticket::posted).collect(), refused)
    }
}

fn behind_a_refused_one() -> Error {
    Error::new("post_send", ErrorKind::InvalidState, "a request before it was refused")
}
