//! Ping-pong of futures in tokio: the cost of the asynchronous verbs.

use rdma_verbs::asynchronous::{CompletionQueue, Messages, QueuePair, QueuePairOptions};
use rdma_verbs::owned::{Buffer, BufferPool};
use rdma_verbs::verbs::{ConnectOptions, ConnectionInfo, Mtu};

use super::channel::Channel;
use super::end::Device;
use super::job::{Amount, Job};
use super::outcome::{Failure, Outcome};
use super::pattern;
use super::reference::{Measured, Role, Span, Stopwatch};

const POOL_BYTES: usize = 16 << 20;
const COMPLETIONS: u32 = 256;
/// Number of receives kept posted.
const RECEIVES: usize = 16;

/// Runs one end on its own runtime.
pub(crate) fn run(job: &Job, size: usize, device: &Device, role: Role, channel: &mut Channel) -> Outcome<Measured> {
    let Amount::Iterations(_) = job.amount else {
        return Err(Failure::Usage("-D: futures are counted, take -n".to_owned()));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = runtime.block_on(play(job, size, device, role, channel))?;
    // An end must not leave while the other one waits for an acknowledgement.
    channel.synchronize()?;
    Ok(measured)
}

async fn play(job: &Job, size: usize, device: &Device, role: Role, channel: &mut Channel) -> Outcome<Measured> {
    let pd = device.context.alloc_pd()?;
    let cq = CompletionQueue::new(&device.context, COMPLETIONS)?;
    let (port_num, gid_index) = (device.port_num, device.gid_index);
    let qp = QueuePair::with_options(&pd, &cq, &QueuePairOptions::default().port_num(port_num).gid_index(gid_index))?;
    let pool = BufferPool::new(&pd, POOL_BYTES.max(4 * RECEIVES * size))?;
    let remote: Vec<u8> = channel.exchange(&qp.connection_info()?.to_bytes())?;
    let mut options = ConnectOptions::default().timeout(job.timeout).sl(job.service_level);
    if let Some(mtu) = job.mtu.and_then(Mtu::from_size) {
        options = options.path_mtu(mtu);
    }
    qp.connect_with(&ConnectionInfo::from_bytes(&remote)?, &options)?;
    let messages = qp.messages(&pool, size, RECEIVES)?;
    channel.synchronize()?;

    let buffer = pool.copy_from(&pattern::bytes(job.seed, size))?;
    let mut player = Player { job, qp, messages, buffer: Some(buffer) };
    player.rounds(job.warm_up, role).await?;
    let span = Span::start()?;
    let iterations = job.iterations(size).unwrap_or(1);
    let times = player.rounds(iterations, role).await?.times();
    let (seconds, cpu_seconds) = span.end()?;
    let bytes = iterations * size as u64;
    Ok(Measured { times: Some(times), messages: iterations, bytes, seconds, cpu_seconds })
}

struct Player<'a> {
    job: &'a Job,
    qp: QueuePair,
    messages: Messages,
    /// The buffer to send; the queue pair owns it while a SEND is in flight.
    buffer: Option<Buffer>,
}

impl Player<'_> {
    async fn rounds(&mut self, count: u64, role: Role) -> Outcome<Stopwatch> {
        let mut stopwatch = Stopwatch::start(2);
        if role == Role::Server && count > 0 {
            self.receive().await?;
        }
        for number in 1..=count {
            // No message follows the server's last response.
            if role == Role::Server && number == count {
                self.send().await?;
            } else {
                self.send_and_receive().await?;
            }
            if role == Role::Client {
                stopwatch.mark();
            }
        }
        Ok(stopwatch)
    }

    async fn send(&mut self) -> Outcome {
        let buffer = self.buffer.take().ok_or("the buffer is in flight")?;
        let (sent, buffer) = self.qp.send(buffer).await;
        self.buffer = Some(buffer);
        sent.map(drop).map_err(failure)
    }

    /// Sends and receives concurrently, because the acknowledgement may come with the next message.
    async fn send_and_receive(&mut self) -> Outcome {
        let buffer = self.buffer.take().ok_or("the buffer is in flight")?;
        let sending = self.qp.send(buffer);
        let ((sent, buffer), received) = tokio::join!(sending, take(self.job, &mut self.messages));
        self.buffer = Some(buffer);
        sent.map_err(failure)?;
        received
    }

    async fn receive(&mut self) -> Outcome {
        take(self.job, &mut self.messages).await
    }
}

/// Receives the next message.
async fn take(job: &Job, messages: &mut Messages) -> Outcome {
    let message = messages.next().await.ok_or("no more messages arrive")?.map_err(failure)?;
    if job.check { pattern::check("a message", &message.buffer, job.seed) } else { Ok(()) }
}

fn failure(error: rdma_verbs::asynchronous::RequestError) -> Failure {
    Failure::Failed(error.to_string())
}
