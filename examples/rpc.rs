//! Remote procedure calls over SENDs: the client has several calls in progress, and the server responds in any order.
//!
//! A message begins with the number of its call. Each end has as many receives posted as messages can be on their way
//! to it, and posts a receive again before it sends the response, so no message finds the other end without one.
//!
//! `cargo run --example rpc`

use std::error::Error;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::cm::{ConnectionOptions, Listener, Route};
use rdma_verbs::verbs::{AccessFlags, Context, MemoryRegion, Payload};
use rdma_verbs::verbs::{QueuePair, QueuePairOptions, ReceiveRequest, SendRequest};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Most calls in progress.
const CALLS: u32 = 8;
const MESSAGE_BYTES: usize = 256;
const WAIT: Duration = Duration::from_secs(10);

/// A queue pair, and a place for each message that it receives.
struct End {
    qp: QueuePair,
    places: MemoryRegion,
    /// Messages that the other end has not acknowledged.
    unacknowledged: usize,
}

impl End {
    fn new(context: &Context) -> Outcome<Self> {
        let (pd, sent, received) = (context.alloc_pd()?, context.create_cq(CALLS)?, context.create_cq(CALLS)?);
        let places = pd.alloc_mr(CALLS as usize * MESSAGE_BYTES, AccessFlags::LOCAL_WRITE)?;
        let options = QueuePairOptions::default().max_inline_data(MESSAGE_BYTES as u32);
        let end = Self { qp: pd.create_qp_with(&sent, &received, &options)?, places, unacknowledged: 0 };
        end.qp.init()?;
        (0..CALLS as usize).try_for_each(|place| end.receive(place))?;
        Ok(end)
    }

    fn receive(&self, place: usize) -> Outcome<()> {
        let start = place * MESSAGE_BYTES;
        let memory = self.places.slice(start..start + MESSAGE_BYTES)?;
        Ok(self.qp.post_recv(&[ReceiveRequest::new(memory).wr_id(place as u64)])?)
    }

    /// Sends a message. The bytes are copied when it is posted.
    fn send(&mut self, number: u64, text: &[u8]) -> Outcome<()> {
        if self.unacknowledged == CALLS as usize {
            self.qp.send_cq().wait(WAIT)?.result()?;
            self.unacknowledged -= 1;
        }
        let message = [&number.to_be_bytes(), text].concat();
        self.qp.post_send(&[SendRequest::send(Payload::inline(&message)).signaled()])?;
        self.unacknowledged += 1;
        Ok(())
    }

    /// Waits for the next message. Returns its place, the number of its call, and its text.
    fn next(&self) -> Outcome<(usize, u64, Vec<u8>)> {
        let completion = self.qp.recv_cq().wait(WAIT)?;
        let (place, length) = (completion.wr_id() as usize, completion.result()?.byte_len as usize);
        let message = self.places.to_vec(place * MESSAGE_BYTES..place * MESSAGE_BYTES + length)?;
        let (number, text) = message.split_first_chunk().ok_or("a message without a number")?;
        Ok((place, u64::from_be_bytes(*number), text.to_vec()))
    }
}

/// Serves calls until the client disconnects: the procedure returns its argument in upper case.
fn serve(listener: &Listener, calls: usize) -> Outcome<()> {
    let request = listener.accept_within(WAIT)?.ok_or("no client connects")?;
    let mut end = End::new(request.context())?;
    let connection = request.accept(&end.qp, &ConnectionOptions::new())?;
    for _ in 0..calls {
        let (place, number, text) = end.next()?;
        end.receive(place)?;
        end.send(number, &text.to_ascii_uppercase())?;
    }
    connection.wait_disconnected(WAIT)?;
    Ok(())
}

fn call_all(server: &str, texts: &[String]) -> Outcome<Vec<String>> {
    let route = Route::to(server)?;
    let mut end = End::new(route.context())?;
    let connection = route.connect(&end.qp, &ConnectionOptions::new())?;
    let mut answers = vec![String::new(); texts.len()];
    let mut calls = texts.iter().enumerate();
    // A number is free again when its response is there.
    let mut in_progress = [0; CALLS as usize];
    for (number, (call, text)) in calls.by_ref().take(CALLS as usize).enumerate() {
        in_progress[number] = call;
        end.send(number as u64, text.as_bytes())?;
    }
    for _ in texts {
        let (place, number, text) = end.next()?;
        let call = in_progress.get_mut(number as usize).ok_or("a response to no call")?;
        answers[*call] = String::from_utf8(text)?;
        end.receive(place)?;
        if let Some((next, text)) = calls.next() {
            *call = next;
            end.send(number, text.as_bytes())?;
        }
    }
    connection.disconnect(&end.qp)?;
    Ok(answers)
}

fn main() -> Outcome<()> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let server = listener.local_addr().to_string();
    let texts: Vec<String> = (0..1000).map(|number| format!("call {number}")).collect();
    let calls = texts.len();
    let serving = std::thread::spawn(move || serve(&listener, calls));
    let start = Instant::now();
    let answers = call_all(&server, &texts)?;
    let elapsed = start.elapsed();
    serving.join().expect("the server does not panic")?;
    assert!(answers.iter().zip(&texts).all(|(answer, text)| *answer == text.to_uppercase()));
    println!("{calls} calls, the last one answered \"{}\", {:.0?} each", answers[calls - 1], elapsed / calls as u32);
    Ok(())
}
