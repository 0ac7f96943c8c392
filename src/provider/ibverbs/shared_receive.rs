//! Shared receive queues and XRC domains.

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::completion_queue::own_queue;
use super::device::Device;
use super::errors::{self, check_range};
use super::memory::Domain;
use super::sys;
use super::work_queue::check_receive;
use super::wr_tracker::{Shared, WrTracker};
use crate::provider::{
    CompletionQueue, Error, ErrorKind, Result, SharedReceiveQueue, SharedReceiveQueueInit, XrcDomain,
};
use crate::queue::{ProducerLock, QueueError};
use crate::types::{
    AsyncEvent, BatchEnd, CompletionSource, EventObject, Qpn, ReceiveRequest, SharedReceiveQueueAttributes,
    SharedReceiveQueueNumber, SharedReceiveQueueStatus,
};

/// Bits of `ibv_srq_attr_mask`.
const MAX_WR: i32 = 1;
const LIMIT: i32 = 1 << 1;

/// An XRC domain of an adapter.
pub(super) struct IbverbsXrcDomain {
    pub(super) sys: Arc<sys::XrcDomain>,
    device: Arc<Device>,
}

impl IbverbsXrcDomain {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self> {
        let opened = sys::XrcDomain::open(&device.sys);
        let sys = opened.map_err(|error| errors::from_errno("open_xrcd", "an XRC domain", &error))?;
        Ok(Self { sys, device: Arc::clone(device) })
    }
}

impl XrcDomain for IbverbsXrcDomain {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Returns the domain behind the trait, if it belongs to this device.
pub(super) fn own_xrc_domain<'a>(
    device: &Arc<Device>,
    domain: &'a Arc<dyn XrcDomain>,
    verb: &'static str,
) -> Result<&'a IbverbsXrcDomain> {
    match domain.as_any().downcast_ref::<IbverbsXrcDomain>() {
        Some(domain) if Arc::ptr_eq(&domain.device, device) => Ok(domain),
        _ => Err(errors::foreign(verb, "xrc_domain")),
    }
}

/// A shared receive queue of an adapter.
pub(super) struct IbverbsSharedReceiveQueue {
    pub(super) sys: Arc<sys::SharedReceiveQueue>,
    number: SharedReceiveQueueNumber,
    /// Number by which events identify the queue.
    event_number: u64,
    tracker: Arc<WrTracker>,
    lock: ProducerLock,
    staging: Mutex<sys::ReceiveStaging>,
    max_sge: u32,
    /// Number of receives that it is guaranteed to hold.
    max_wr: AtomicU32,
    is_xrc: bool,
    /// Number of queue pairs that use it.
    users: Mutex<u32>,
    domain: Arc<Domain>,
    _xrc: Option<(Arc<dyn XrcDomain>, Arc<dyn CompletionQueue>)>,
}

/// A queue pair's use of the queue; ends when it is dropped.
pub(super) struct Use(Arc<dyn SharedReceiveQueue>);

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(queue) = self.0.as_any().downcast_ref::<IbverbsSharedReceiveQueue>()
            && !queue.domain.device.is_inherited()
        {
            *queue.users() -= 1;
        }
    }
}

impl IbverbsSharedReceiveQueue {
    pub(super) fn new(domain: &Arc<Domain>, init: &SharedReceiveQueueInit<'_>) -> Result<Self> {
        let device = &domain.device;
        let limits = device.limits();
        if limits.max_srq == 0 {
            let message = format!("max_srq of {} is 0: it has no shared receive queues", device.name());
            return Err(Error::new("create_srq", ErrorKind::Unsupported, message));
        }
        errors::check_srq_sizes(limits, init)?;
        let number = device.next_number("create_srq")?;
        let asked = sys::SrqAttr { max_wr: init.max_wr, max_sge: init.max_sge.max(1), srq_limit: 0 };
        let xrc = match &init.xrc {
            None => None,
            Some(xrc) => Some((
                &own_xrc_domain(device, xrc.domain, "create_srq")?.sys,
                own_queue(device, xrc.cq, "create_srq", "cq")?.sys(),
            )),
        };
        let created = sys::SharedReceiveQueue::create(&domain.sys, number.into(), asked, xrc);
        let (sys, actual) = created.map_err(|error| {
            let asked = format!("a queue of {} receives (max_srq {})", init.max_wr, limits.max_srq);
            errors::from_errno("create_srq", asked, &error)
        })?;
        let srq_num = SharedReceiveQueueNumber::new(sys.srq_num().unwrap_or(number));
        let numbers = &device.shared_receive_numbers;
        numbers.lock().unwrap_or_else(PoisonError::into_inner).insert(number.into(), srq_num);
        let tracker = Arc::new(WrTracker::Shared(Shared::new(number)));
        device.add_tracker(&tracker);
        let queue = Self {
            sys: Arc::new(sys),
            number: srq_num,
            event_number: number.into(),
            tracker,
            lock: ProducerLock::new(),
            staging: Mutex::default(),
            max_sge: actual.max_sge.max(1),
            max_wr: AtomicU32::new(actual.max_wr.max(init.max_wr)),
            is_xrc: init.xrc.is_some(),
            users: Mutex::default(),
            domain: Arc::clone(domain),
            _xrc: init.xrc.map(|xrc| (Arc::clone(xrc.domain), Arc::clone(xrc.cq))),
        };
        // Libraries need not return the size on creation: rxe's returns the one requested.
        if let Ok(now) = queue.status("create_srq") {
            queue.max_wr.store(now.max_wr, Ordering::Relaxed);
        }
        if init.srq_limit > 0 {
            queue.modify(&SharedReceiveQueueAttributes { srq_limit: Some(init.srq_limit), max_wr: None })?;
        }
        Ok(queue)
    }

    fn users(&self) -> MutexGuard<'_, u32> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn staging(&self) -> MutexGuard<'_, sys::ReceiveStaging> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self) -> &Shared {
        match &*self.tracker {
            WrTracker::Shared(tracker) => tracker,
            WrTracker::Ordered(_) => unreachable!("made as a shared one"),
        }
    }

    /// Posts a batch, all or nothing. A batch of several is refused if the adapter might take only a part of it. A
    /// single receive is always tried.
    fn post(&self, staging: &mut sys::ReceiveStaging) -> Result<()> {
        let full = || errors::from_queue("post_srq_recv", &QueueError::Full { limit: self.max_wr() });
        // Libraries free a slot when its completion is polled, not when a queue pair takes the receive.
        if staging.len() > 1 && self.shared().outstanding() > self.max_wr() as usize {
            return Err(full());
        }
        match staging.post_shared(&self.sys) {
            Some(Ok(())) => Ok(()),
            None => Err(self.destroyed("post_srq_recv")),
            Some(Err(failure)) if failure.nothing_posted => match failure.error.raw_os_error() {
                Some(libc::ENOMEM | libc::ENOSPC) => Err(full()),
                _ => Err(errors::from_errno("post_srq_recv", format!("{} receives", staging.len()), &failure.error)),
            },
            Some(Err(failure)) => {
                // `Ok` makes the poster keep their memory until the queue is destroyed, which is necessary because the
                // adapter may hold them.
                tracing::error!(
                    target: "rdma_verbs::queue_pair",
                    error = %failure.error, srq = %self.number, "receives may have been posted"
                );
                Ok(())
            }
        }
    }

    fn max_wr(&self) -> u32 {
        self.max_wr.load(Ordering::Relaxed)
    }

    fn destroyed(&self, verb: &'static str) -> Error {
        errors::destroyed_srq(verb, self.number)
    }

    fn status(&self, verb: &'static str) -> Result<sys::SrqAttr> {
        self.domain.device.check_process(verb)?;
        let asked = || format!("shared receive queue {}", self.number);
        let status = self.sys.query().ok_or_else(|| self.destroyed(verb))?;
        status.map_err(|error| errors::from_errno(verb, asked(), &error))
    }
}

/// Begins a queue pair's use of a queue of the same device.
pub(super) fn begin_use(device: &Arc<Device>, srq: &Arc<dyn SharedReceiveQueue>) -> Result<Use> {
    let queue = match srq.as_any().downcast_ref::<IbverbsSharedReceiveQueue>() {
        Some(queue) if Arc::ptr_eq(&queue.domain.device, device) => queue,
        _ => return Err(errors::foreign("create_qp", "srq")),
    };
    if queue.is_xrc {
        return Err(errors::srq_of_xrc(queue.number));
    }
    let mut users = queue.users();
    if queue.sys.query().is_none() {
        return Err(queue.destroyed("create_qp"));
    }
    *users += 1;
    Ok(Use(Arc::clone(srq)))
}

impl Use {
    pub(super) fn sys(&self) -> Option<&Arc<sys::SharedReceiveQueue>> {
        self.0.as_any().downcast_ref::<IbverbsSharedReceiveQueue>().map(|queue| &queue.sys)
    }

    pub(super) fn number(&self) -> SharedReceiveQueueNumber {
        self.0.number()
    }

    /// Returns the source that completions of this queue pair's receives carry.
    pub(super) fn source(&self, qpn: Qpn) -> Option<CompletionSource> {
        self.0.as_any().downcast_ref::<IbverbsSharedReceiveQueue>().map(|queue| queue.tracker.source(qpn))
    }

    /// Notes whether the queue pair of this number takes receives for datagrams.
    pub(super) fn note_datagrams(&self, qpn: Qpn, takes: bool) {
        if let Some(queue) = self.0.as_any().downcast_ref::<IbverbsSharedReceiveQueue>() {
            queue.shared().note_datagrams(qpn, takes);
        }
    }
}

impl SharedReceiveQueue for IbverbsSharedReceiveQueue {
    fn number(&self) -> SharedReceiveQueueNumber {
        self.number
    }

    fn modify(&self, attributes: &SharedReceiveQueueAttributes) -> Result<()> {
        if self.lock.is_held() {
            let message = "this thread has an open batch of this queue; post or drop it first";
            return Err(Error::new("modify_srq", ErrorKind::InvalidState, message));
        }
        let now = self.status("modify_srq")?;
        if let Some(max_wr) = attributes.max_wr {
            check_range("modify_srq", "max_wr", max_wr, 1..=self.domain.device.limits().max_srq_wr)?;
        }
        if let Some(limit) = attributes.srq_limit {
            check_range("modify_srq", "srq_limit", limit, 0..=attributes.max_wr.unwrap_or(now.max_wr))?;
        }
        let mut mask = 0;
        let mut wanted = sys::SrqAttr { max_sge: now.max_sge, ..sys::SrqAttr::default() };
        if let Some(max_wr) = attributes.max_wr {
            (mask, wanted.max_wr) = (mask | MAX_WR, max_wr);
        }
        if let Some(limit) = attributes.srq_limit {
            (mask, wanted.srq_limit) = (mask | LIMIT, limit);
        }
        if mask == 0 {
            return Ok(());
        }
        // The lock blocks posting meanwhile, so that the check below holds: when rxe of Linux 6.1 refuses the change,
        // it loses the queue, and the kernel panics when the queue is used again.
        let _staging = self.staging();
        let outstanding = self.shared().outstanding();
        if attributes.max_wr.is_some_and(|max_wr| outstanding > max_wr as usize) {
            let max_wr = wanted.max_wr;
            let message = format!("max_wr is {max_wr}, and {outstanding} receives have not completed");
            let allowed = outstanding as u64..=u32::MAX.into();
            return Err(Error::out_of_range("modify_srq", "max_wr", max_wr, allowed, message));
        }
        let modified = self.sys.modify(&wanted, mask).ok_or_else(|| self.destroyed("modify_srq"))?;
        modified.map_err(|error| {
            let asked = format!("max_wr is {}, srq_limit is {}", wanted.max_wr, wanted.srq_limit);
            errors::from_errno("modify_srq", asked, &error)
        })?;
        if let Ok(now) = self.status("modify_srq") {
            self.max_wr.store(now.max_wr, Ordering::Relaxed);
        }
        Ok(())
    }

    fn query(&self) -> Result<SharedReceiveQueueStatus> {
        let sys::SrqAttr { max_wr, max_sge, srq_limit } = self.status("query_srq")?;
        Ok(SharedReceiveQueueStatus { max_wr, max_sge, srq_limit })
    }

    fn recv_begin(&self) {
        if !self.domain.device.is_inherited() {
            self.lock.acquire();
        }
    }

    fn recv_push(&self, request: &ReceiveRequest<'_>) -> Result<()> {
        self.domain.device.check_process("post_srq_recv")?;
        if !self.lock.is_held() {
            return Err(errors::from_queue("post_srq_recv", &QueueError::NotBegun));
        }
        let checked = check_receive(request.sges, self.max_sge);
        checked.map_err(|error| errors::from_queue("post_srq_recv", &error))?;
        let Some(number) = self.shared().enter(request.wr_id) else {
            let message = "too many receives were taken by destroyed queue pairs; create another queue";
            return Err(Error::new("post_srq_recv", ErrorKind::ResourceLimit, message));
        };
        self.staging().push(number, request.sges);
        Ok(())
    }

    fn recv_end(&self, end: BatchEnd) -> Result<()> {
        self.domain.device.check_process("post_srq_recv")?;
        if !self.lock.is_held() {
            return Err(errors::from_queue("post_srq_recv", &QueueError::NotBegun));
        }
        let mut staging = self.staging();
        let outcome = match end {
            BatchEnd::Publish if staging.len() > 0 => self.post(&mut staging),
            _ => Ok(()),
        };
        if outcome.is_err() || end == BatchEnd::Rollback {
            staging.numbers().for_each(|number| self.shared().withdraw(number));
        }
        staging.clear();
        drop(staging);
        self.lock.release();
        outcome
    }

    fn destroy(&self) -> Result<()> {
        let device = &self.domain.device;
        device.check_process("destroy_srq")?;
        let users = self.users();
        if *users > 0 {
            return Err(errors::srq_in_use(self.number, *users));
        }
        let destroyed = self.sys.destroy();
        let destroyed = destroyed.map_err(|error| {
            errors::from_errno("destroy_srq", format!("shared receive queue {}", self.number), &error)
        })?;
        if destroyed {
            device.remove_tracker(&self.tracker);
            let object = AsyncEvent::SharedReceiveQueueLimitReached(self.number).object();
            debug_assert_eq!(object, EventObject::SharedReceiveQueue(self.number));
            device.events.discard(device, object);
            let numbers = &device.shared_receive_numbers;
            numbers.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.event_number);
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for IbverbsSharedReceiveQueue {
    fn drop(&mut self) {
        // Fails only in a process that inherited the queue, or if the adapter fails, which the drop of `sys` reports.
        let _ = self.destroy();
    }
}
