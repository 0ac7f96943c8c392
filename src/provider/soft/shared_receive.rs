//! Shared receive queues and XRC domains.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use super::completion_queue::{CompletionFeed, SoftCompletionQueue};
use super::device::Device;
use super::errors;
use super::limit::{Share, check_range};
use super::protection_domain::Domain;
use crate::provider::{
    CompletionQueue, Error, ErrorKind, Result, SharedReceiveQueue, SharedReceiveQueueInit, XrcDomain,
};
use crate::queue::{self, ChangeError, SharedReceiveInit};
use crate::types::{
    AsyncEvent, BatchEnd, ReceiveRequest, SharedReceiveQueueAttributes, SharedReceiveQueueNumber,
    SharedReceiveQueueStatus,
};

/// An XRC domain of a software device.
pub(super) struct SoftXrcDomain {
    device: Arc<Device>,
    table: Arc<queue::XrcDomain>,
    _share: Share,
}

impl SoftXrcDomain {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self> {
        let share = device.counts.xrc_domains.take("open_xrcd")?;
        Ok(Self { device: Arc::clone(device), table: queue::XrcDomain::new(), _share: share })
    }

    pub(super) fn table(&self) -> &Arc<queue::XrcDomain> {
        &self.table
    }
}

impl XrcDomain for SoftXrcDomain {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Returns the domain behind the trait object, if it belongs to this device.
pub(super) fn own_xrc_domain<'a>(
    device: &Arc<Device>,
    domain: &'a Arc<dyn XrcDomain>,
    verb: &'static str,
) -> Result<&'a SoftXrcDomain> {
    match domain.as_any().downcast_ref::<SoftXrcDomain>() {
        Some(domain) if Arc::ptr_eq(&domain.device, device) => Ok(domain),
        _ => Err(errors::foreign(verb, "xrc_domain")),
    }
}

/// The queue's users, and whether it is destroyed.
#[derive(Default)]
struct Life {
    queue_pairs: u32,
    destroyed: bool,
}

/// The additional parts of an XRC queue.
struct XrcParts {
    _domain: Arc<dyn XrcDomain>,
    table: Arc<queue::XrcDomain>,
    feed: CompletionFeed,
}

/// A shared receive queue of a software device.
pub(super) struct SoftSharedReceiveQueue {
    queue: Arc<queue::SharedReceiveQueue>,
    device: Arc<Device>,
    life: Mutex<Life>,
    xrc: Option<XrcParts>,
    _domain: Arc<Domain>,
    _share: Share,
}

/// A queue pair's use of the queue; ends when it is dropped.
pub(super) struct Use(Arc<dyn SharedReceiveQueue>);

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(queue) = self.0.as_any().downcast_ref::<SoftSharedReceiveQueue>()
            && !queue.device.is_inherited()
        {
            queue.life().queue_pairs -= 1;
        }
    }
}

impl SoftSharedReceiveQueue {
    pub(super) fn new(domain: &Arc<Domain>, init: &SharedReceiveQueueInit<'_>) -> Result<Self> {
        let device = &domain.device;
        errors::check_srq_sizes(&device.attributes, init)?;
        let xrc = init.xrc.map(|xrc| XrcParts::new(device, xrc.domain, xrc.cq)).transpose()?;
        let share = device.counts.shared_receive_queues.take("create_srq")?;
        let queue = queue::SharedReceiveQueue::new(SharedReceiveInit {
            number: SharedReceiveQueueNumber::new(device.shared_receive_numbers.take()),
            domain: domain.id,
            max_wr: init.max_wr,
            max_sge: init.max_sge.max(1),
            srq_limit: init.srq_limit,
            events: Arc::clone(&device.events.queue),
            completions: xrc.as_ref().map(|xrc| xrc.feed.for_endpoint()),
        });
        if let Some(xrc) = &xrc {
            xrc.table.add(&queue);
        }
        let (device, life) = (Arc::clone(device), Mutex::default());
        Ok(Self { queue, device, life, xrc, _domain: Arc::clone(domain), _share: share })
    }

    fn life(&self) -> std::sync::MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_alive(&self, verb: &'static str) -> Result<()> {
        self.device.check_process(verb)?;
        if !self.queue.is_closed() {
            return Ok(());
        }
        Err(self.destroyed(verb))
    }

    fn destroyed(&self, verb: &'static str) -> Error {
        errors::destroyed_srq(verb, self.queue.number())
    }

    fn error_of(&self, verb: &'static str, error: &ChangeError) -> Error {
        let message = error.to_string();
        match *error {
            ChangeError::TooSmall { requested, waiting } => {
                Error::out_of_range(verb, "max_wr", requested, waiting.into()..=u32::MAX.into(), message)
            }
            ChangeError::LimitTooLarge { limit, max_wr } => {
                Error::out_of_range(verb, "srq_limit", limit, 0..=max_wr.into(), message)
            }
            ChangeError::BatchOpen => Error::new(verb, ErrorKind::InvalidState, message),
        }
    }
}

/// Begins a queue pair's use of a queue of the same device.
pub(super) fn begin_use(
    device: &Arc<Device>,
    srq: &Arc<dyn SharedReceiveQueue>,
) -> Result<(Use, Arc<queue::SharedReceiveQueue>)> {
    let queue = match srq.as_any().downcast_ref::<SoftSharedReceiveQueue>() {
        Some(queue) if Arc::ptr_eq(&queue.device, device) => queue,
        _ => return Err(errors::foreign("create_qp", "srq")),
    };
    if queue.xrc.is_some() {
        return Err(errors::srq_of_xrc(queue.queue.number()));
    }
    let mut life = queue.life();
    if life.destroyed {
        return Err(queue.destroyed("create_qp"));
    }
    life.queue_pairs += 1;
    Ok((Use(Arc::clone(srq)), Arc::clone(&queue.queue)))
}

impl XrcParts {
    fn new(device: &Arc<Device>, domain: &Arc<dyn XrcDomain>, cq: &Arc<dyn CompletionQueue>) -> Result<Self> {
        let table = Arc::clone(own_xrc_domain(device, domain, "create_srq")?.table());
        match cq.as_any().downcast_ref::<SoftCompletionQueue>() {
            Some(queue) if queue.is_of(device) => {}
            _ => return Err(errors::foreign("create_srq", "cq")),
        }
        Ok(Self { _domain: Arc::clone(domain), table, feed: CompletionFeed::from_all_shards(cq) })
    }
}

impl SharedReceiveQueue for SoftSharedReceiveQueue {
    fn number(&self) -> SharedReceiveQueueNumber {
        self.queue.number()
    }

    fn modify(&self, attributes: &SharedReceiveQueueAttributes) -> Result<()> {
        self.check_alive("modify_srq")?;
        let changed = match (attributes.max_wr, attributes.srq_limit) {
            (None, None) => Ok(()),
            (None, Some(limit)) => self.queue.arm(limit),
            (Some(max_wr), limit) => {
                check_range("modify_srq", "max_wr", max_wr, 1..=self.device.attributes.max_srq_wr)?;
                self.queue.resize(max_wr, limit)
            }
        };
        changed.map_err(|error| self.error_of("modify_srq", &error))
    }

    fn query(&self) -> Result<SharedReceiveQueueStatus> {
        self.check_alive("query_srq")?;
        Ok(self.queue.status())
    }

    fn recv_begin(&self) {
        if !self.device.is_inherited() {
            self.queue.begin();
        }
    }

    fn recv_push(&self, request: &ReceiveRequest<'_>) -> Result<()> {
        self.check_alive("post_srq_recv")?;
        self.queue.push(request).map_err(|error| errors::from_queue("post_srq_recv", &error))
    }

    fn recv_end(&self, end: BatchEnd) -> Result<()> {
        self.device.check_process("post_srq_recv")?;
        self.queue.end(end).map_err(|error| errors::from_queue("post_srq_recv", &error))?;
        Ok(())
    }

    fn destroy(&self) -> Result<()> {
        self.device.check_process("destroy_srq")?;
        let mut life = self.life();
        if life.queue_pairs > 0 {
            return Err(errors::srq_in_use(self.queue.number(), life.queue_pairs));
        }
        if std::mem::replace(&mut life.destroyed, true) {
            return Ok(());
        }
        drop(life);
        self.queue.close();
        let number = self.queue.number();
        if let Some(xrc) = &self.xrc {
            xrc.table.remove(number);
            // XRC targets that can find the queue need not be destroyed first, so a pass in progress may be about to
            // complete a receive or push an event. The empty command waits for that pass.
            self.device.engine.shards().iter().for_each(|shard| {
                shard.command(|_, _| {});
            });
            xrc.feed.detach();
        }
        self.device.events.discard(|event| *event == AsyncEvent::SharedReceiveQueueLimitReached(number));
        self.device.shared_receive_numbers.give_back(number.value());
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SoftSharedReceiveQueue {
    fn drop(&mut self) {
        // Queue pairs that use it keep it alive, so this fails only in a process that inherited the queue.
        let _ = self.destroy();
    }
}
