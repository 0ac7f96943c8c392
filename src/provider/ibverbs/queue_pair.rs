//! Queue pairs: lifecycle and posting.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::address_handle::IbverbsAddressHandle;
use super::completion_queue::{own_queue, pause_polls};
use super::device::Device;
use super::errors;
use super::memory::{Domain, IbverbsProtectionDomain};
use super::multicast::Membership;
use super::shared_receive::{Use, begin_use, own_xrc_domain};
use super::work_queue::{PostError, WorkQueue};
use super::wr_tracker::{Ordered, Retained, WrTracker};
use super::{convert, gid, sys};
use crate::provider::common::PostingState;
use crate::provider::{
    CompletionQueue, DatagramTarget, Error, ErrorKind, QueuePair, QueuePairInit, Result, XrcDomain, send_batch_of_one,
};
use crate::queue::QueueError;
use crate::types::{
    BatchEnd, CompletionSource, Counters, Data, EventObject, Gid, GidEntry, MemoryWindowType, Operation, Qpn,
    QueuePairAttributes, QueuePairCapabilities, QueuePairState, QueuePairStatus, QueuePairType, RateLimit,
    ReceiveRequest, SendRequest, SharedReceiveQueueNumber, Transport,
};

/// A queue pair of an adapter.
pub(super) struct IbverbsQueuePair {
    pub(super) sys: sys::QueuePair,
    pub(super) qpn: Qpn,
    pub(super) qp_type: QueuePairType,
    pub(super) sq_sig_all: bool,
    pub(super) cap: QueuePairCapabilities,
    pub(super) device: Arc<Device>,
    /// Attributes that were set. Locked during a state change, so that only one runs at a time.
    known: Mutex<QueuePairAttributes>,
    pub(super) state: PostingState,
    send: WorkQueue<sys::SendStaging>,
    receive: WorkQueue<sys::ReceiveStaging>,
    shared: Mutex<Option<Use>>,
    /// Number of the shared receive queue.
    srq: Option<SharedReceiveQueueNumber>,
    sources: [CompletionSource; 2],
    /// Multicast groups that it is attached to, with its share of the host's membership.
    groups: Mutex<Vec<(Gid, Option<Membership>)>>,
    domain: Arc<Domain>,
    /// Completion queues of the send and the receive queue.
    queues: [Arc<dyn CompletionQueue>; 2],
    _xrc_domain: Option<Arc<dyn XrcDomain>>,
}

/// Checks the sizes; those of queues that the queue pair does not have become 0.
fn check_sizes(device: &Device, init: &QueuePairInit<'_>) -> Result<QueuePairCapabilities> {
    let mut cap = errors::check_sizes(device.limits(), &init.cap)?;
    let is_xrc = matches!(init.qp_type, QueuePairType::XrcSend | QueuePairType::XrcReceive);
    if init.srq.is_some() || is_xrc {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    if init.qp_type == QueuePairType::XrcReceive {
        (cap.max_send_wr, cap.max_send_sge, cap.max_inline_data) = (0, 0, 0);
    }
    Ok(cap)
}

/// Checks that the type fits the device, the shared receive queue and the XRC domain.
fn check_parts(device: &Device, init: &QueuePairInit<'_>) -> Result<()> {
    let is_datagram = init.qp_type == QueuePairType::UnreliableDatagram;
    if is_datagram && device.limits().transport == Transport::Iwarp {
        let message = format!("qp_type is UnreliableDatagram; {} uses iWARP, which has no datagrams", device.name());
        return Err(Error::new("create_qp", ErrorKind::Unsupported, message));
    }
    errors::check_parts(init)
}

impl IbverbsQueuePair {
    pub(super) fn new(device: &Arc<Device>, init: &QueuePairInit<'_>) -> Result<Self> {
        let domain = match init.pd.as_any().downcast_ref::<IbverbsProtectionDomain>() {
            Some(domain) if Arc::ptr_eq(&domain.shared().device, device) => Arc::clone(domain.shared()),
            _ => return Err(errors::foreign("create_qp", "pd")),
        };
        let send_cq = own_queue(device, init.send_cq, "create_qp", "send_cq")?;
        let recv_cq = own_queue(device, init.recv_cq, "create_qp", "recv_cq")?;
        let asked = check_sizes(device, init)?;
        check_parts(device, init)?;
        let shared = init.srq.map(|srq| begin_use(device, srq)).transpose()?;
        let xrc_domain = init.xrc_domain.map(|domain| own_xrc_domain(device, domain, "create_qp")).transpose()?;
        let numbers = [device.next_number("create_qp")?, device.next_number("create_qp")?];
        let created = sys::QueuePair::create(&sys::QueuePairInit {
            pd: &domain.sys,
            send_cq: send_cq.sys(),
            recv_cq: recv_cq.sys(),
            srq: shared.as_ref().and_then(Use::sys),
            xrc_domain: xrc_domain.map(|domain| &domain.sys),
            qp_type: init.qp_type as u32,
            cap: convert::cap(asked),
            sq_sig_all: init.sq_sig_all,
        });
        let sys = created.map_err(|error| create_failed(device, init, &asked, &error))?;
        let given = actual(convert::capabilities(sys.cap()), &asked, device.limits().max_qp_wr);
        let (qpn, cap) = (Qpn::new(sys.number()), given);
        let queues = [(numbers[0], cap.max_send_wr, true), (numbers[1], cap.max_recv_wr, false)];
        let [send, receive] = queues.map(|(number, limit, holds)| {
            let mut tracker = Ordered::new(number, qpn, limit, holds);
            tracker.datagrams = init.qp_type == QueuePairType::UnreliableDatagram;
            Arc::new(WrTracker::Ordered(tracker))
        });
        if let Some(shared) = shared.as_ref().filter(|_| init.qp_type == QueuePairType::UnreliableDatagram) {
            shared.note_datagrams(qpn, true);
        }
        let receives = shared.as_ref().and_then(|shared| shared.source(qpn));
        let sources = [send.source(qpn), receives.unwrap_or_else(|| receive.source(qpn))];
        device.add_tracker(&send);
        device.add_tracker(&receive);
        Ok(Self {
            sys,
            qpn,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
            cap,
            device: Arc::clone(device),
            known: Mutex::default(),
            state: PostingState::new(qpn),
            send: WorkQueue::new(send, cap.max_send_sge),
            receive: WorkQueue::new(receive, cap.max_recv_sge),
            srq: shared.as_ref().map(Use::number),
            sources,
            shared: Mutex::new(shared),
            groups: Mutex::default(),
            domain,
            queues: [Arc::clone(init.send_cq), Arc::clone(init.recv_cq)],
            _xrc_domain: init.xrc_domain.cloned(),
        })
    }

    pub(super) fn known(&self) -> MutexGuard<'_, QueuePairAttributes> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn groups(&self) -> MutexGuard<'_, Vec<(Gid, Option<Membership>)>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn destroyed(&self, verb: &'static str) -> Error {
        errors::destroyed(verb, self.qpn)
    }

    /// Blocks posting while the guards live.
    pub(super) fn pause_posting(&self) -> impl Sized + '_ {
        (self.send.pause(), self.receive.pause())
    }

    /// Forgets the posted requests and their completions, at RESET or destruction. Posting is paused.
    pub(super) fn forget_requests(&self) {
        for (tracker, queue) in [self.send.tracker(), self.receive.tracker()].into_iter().zip(&self.queues) {
            let _paused = pause_polls(queue);
            tracker.reset();
        }
    }

    fn push(&self, request: &SendRequest<'_>, target: sys::Target) -> Result<()> {
        match request.operation {
            Operation::BindMemoryWindow { rkey, lkey, .. } => self.push_bind(request, target, rkey.0, lkey.0),
            Operation::AtomicWrite { .. } => self.push_atomic_write(request, target),
            Operation::Flush { .. } if !self.sys.can_flush() => {
                let message = format!("{} and its library have no FLUSH", self.device.name());
                Err(Error::new("post_send", ErrorKind::Unsupported, message))
            }
            _ => self.send.push(request, self.cap.max_inline_data, target, None),
        }
    }

    /// Pushes an ATOMIC WRITE. The library takes the eight bytes by value, not as an SGE.
    fn push_atomic_write(&self, request: &SendRequest<'_>, target: sys::Target) -> Result<()> {
        if !self.sys.can_atomic_write() {
            let message = format!("{} and its library have no ATOMIC WRITE", self.device.name());
            return Err(Error::new("post_send", ErrorKind::Unsupported, message));
        }
        let Data::Sges(sges) = request.data else {
            return self.send.push(request, self.cap.max_inline_data.max(8), target, None);
        };
        let mut word = [0; 8];
        let (mut filled, total) = (0, sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>());
        for sge in sges.iter().filter(|_| total == 8) {
            let bytes = &mut word[filled..filled + sge.length as usize];
            let region = self.device.region(sge.lkey.0).map(|region| Arc::clone(region.region()));
            let region = region.filter(|region| region.domain() == self.domain.id);
            let read = region.map(|region| region.read_at(sge.addr.wrapping_sub(region.iova()), bytes).is_ok());
            if read != Some(true) {
                let message = format!("the word of an ATOMIC WRITE cannot be read: key {}", sge.lkey);
                return Err(Error::new("post_send", ErrorKind::InvalidArgument, message));
            }
            filled += sge.length as usize;
        }
        let segments = [&word[..filled]];
        let inline = SendRequest { data: Data::Inline(&segments), ..*request };
        self.send.push(&inline, self.cap.max_inline_data.max(8), target, None)
    }

    fn push_bind(&self, request: &SendRequest<'_>, target: sys::Target, rkey: u32, lkey: u32) -> Result<()> {
        let refuse = |message: String| Err(Error::new("post_send", ErrorKind::InvalidArgument, message));
        let Some(window) = self.device.window(rkey) else {
            return refuse(format!("no memory window has key {rkey:#010x}"));
        };
        let region = match lkey {
            0 => self.domain.spare_region()?,
            _ => match self.device.region(lkey) {
                Some(region) => region,
                None => return refuse(format!("no memory region has key {lkey:#010x}")),
            },
        };
        let (old_rkey, old_lkey) = (window.sys.rkey(), window.bound_to());
        let next = old_rkey & !0xff | old_rkey.wrapping_add(1) & 0xff;
        if window.kind == MemoryWindowType::Type1 && next != rkey {
            let message = format!(
                "the adapter would bind the window to key {next:#010x}, not {rkey:#010x}: an earlier bind of it failed \
                 or has not been posted yet; post it, or allocate a new window"
            );
            return Err(Error::new("post_send", ErrorKind::InvalidState, message));
        }
        let bind = sys::Bind { window: Arc::clone(&window.sys), kind: window.kind, region };
        let held = Retained::Bind { window: Arc::clone(&window), old_rkey, old_lkey };
        self.send.push(request, 0, target, Some((bind, held)))?;
        window.note_bound(lkey);
        Ok(())
    }

    /// Checks that the request may be posted to the queue pair.
    fn check_send(&self, request: &SendRequest<'_>) -> Result<()> {
        self.device.check_process("post_send")?;
        self.state.check("post_send", QueuePairState::ReadyToSend)?;
        errors::check_operation(self.qp_type, &request.operation)
    }

    /// Destroys the queue pair if it is unknown which requests were posted: after that, none is in flight.
    ///
    /// If the adapter was removed from the machine, destruction fails too. The post then counts as successful: an error
    /// would return the buffers to the caller, and it is unknown whether they are still in use. The buffers stay with
    /// the queue pair until it can be destroyed.
    fn resolve_post_error(&self, outcome: Result<(), PostError>) -> Result<()> {
        match outcome {
            Ok(()) => Ok(()),
            Err(PostError::Refused(error)) => Err(error),
            Err(PostError::Unknown(error)) => {
                let Err(failure) = self.destroy() else { return Err(error) };
                tracing::error!(
                    target: "rdma_verbs::queue_pair",
                    qpn = %self.qpn, %error, reason = %failure, "a broken queue pair cannot be destroyed"
                );
                Ok(())
            }
        }
    }

    /// Joins the group on the host too, on ports whose packets have IP addresses.
    fn join_group(&self, gid: Gid, port_num: u8) -> Result<Option<Membership>> {
        let port = self.device.port("attach_mcast", port_num)?;
        if self.device.has_lids(&port) {
            let message = format!(
                "gid is {gid}, and port {port_num} is an InfiniBand port: its groups have LIDs, which only the subnet \
                 manager knows; joining one takes a connection manager"
            );
            return Err(Error::new("attach_mcast", ErrorKind::Unsupported, message));
        }
        let is_alike = |entry: &GidEntry| entry.gid.to_ip().is_ipv4() == gid.to_ip().is_ipv4();
        let table: Vec<GidEntry> = self.device.gid_table(port_num)?.into_iter().filter(is_alike).collect();
        let own = gid::choose(port.link_layer, &table).and_then(|index| self.device.gid(port_num, index).ok()?);
        let Some(own) = own else { return Ok(None) };
        self.device.memberships.join(gid, &own).map_err(|error| {
            let message = format!("gid is {gid}: the host cannot join the group on the interface of {}", own.gid);
            Error::from_io("attach_mcast", message, error)
        })
    }

    fn check_group(&self, verb: &'static str, gid: Gid) -> Result<()> {
        self.device.check_process(verb)?;
        errors::check_group(verb, self.qpn, self.qp_type, gid)
    }
}

/// Returns the sizes that the adapter granted, or the requested ones where it reports none. Numbers of requests are at
/// most `most`, whatever it reports, which bounds the trackers.
fn actual(given: QueuePairCapabilities, asked: &QueuePairCapabilities, most: u32) -> QueuePairCapabilities {
    let requests = |given: u32, asked: u32| given.min(most).max(asked);
    QueuePairCapabilities {
        max_send_wr: requests(given.max_send_wr, asked.max_send_wr),
        max_recv_wr: if asked.max_recv_wr == 0 { 0 } else { requests(given.max_recv_wr, asked.max_recv_wr) },
        max_send_sge: given.max_send_sge.max(asked.max_send_sge),
        max_recv_sge: if asked.max_recv_sge == 0 { 0 } else { given.max_recv_sge.max(asked.max_recv_sge) },
        max_inline_data: given.max_inline_data.max(asked.max_inline_data),
    }
}

fn create_failed(
    device: &Device,
    init: &QueuePairInit<'_>,
    asked: &QueuePairCapabilities,
    error: &std::io::Error,
) -> Error {
    if let Some(most) = device.max_inline_data().filter(|most| asked.max_inline_data > *most) {
        let message = format!("max_inline_data is {}; allowed are 0 to {most}", asked.max_inline_data);
        return Error::out_of_range("create_qp", "max_inline_data", asked.max_inline_data, 0..=most.into(), message);
    }
    let asked = format!("{} with {asked:?} (max_qp {})", init.qp_type.name(), device.limits().max_qp);
    errors::from_errno("create_qp", asked, error)
}

impl QueuePair for IbverbsQueuePair {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn modify(&self, attributes: &QueuePairAttributes) -> Result<()> {
        self.device.check_process("modify_qp")?;
        self.modify_state(attributes)
    }

    fn limit_rate(&self, limit: &RateLimit) -> Result<()> {
        let verb = "modify_qp_rate_limit";
        self.device.check_process(verb)?;
        let limited = self.sys.limit_rate(limit).ok_or_else(|| self.destroyed(verb))?;
        limited.map_err(|error| errors::from_errno(verb, format!("{limit:?}"), &error))
    }

    fn query(&self) -> Result<QueuePairStatus> {
        self.device.check_process("query_qp")?;
        self.status()
    }

    fn send_begin(&self) {
        if !self.device.is_inherited() {
            self.send.begin();
        }
    }

    fn send_push(&self, request: &SendRequest<'_>) -> Result<()> {
        self.check_send(request)?;
        if self.qp_type == QueuePairType::UnreliableDatagram {
            return Err(errors::from_queue("post_send", &QueueError::NoDestination));
        }
        errors::check_plain_send(self.qpn, self.qp_type)?;
        self.push(request, sys::Target::Peer)
    }

    fn send_push_to_srq(&self, request: &SendRequest<'_>, srq: SharedReceiveQueueNumber) -> Result<()> {
        self.check_send(request)?;
        errors::check_named_queue(self.qpn, self.qp_type, srq)?;
        self.push(request, sys::Target::SharedReceiveQueue(srq.value()))
    }

    fn send_push_to(&self, request: &SendRequest<'_>, target: &DatagramTarget<'_>) -> Result<()> {
        self.check_send(request)?;
        if self.qp_type != QueuePairType::UnreliableDatagram {
            return Err(errors::from_queue("post_send", &QueueError::DestinationNotAllowed));
        }
        let handle = IbverbsAddressHandle::of_request(target, &self.domain, errors::length_of(&request.data))?;
        let (qpn, qkey) = (target.remote_qpn.value(), target.remote_qkey.0);
        self.push(request, sys::Target::Datagram { handle, qpn, qkey })
    }

    fn attach_mcast(&self, gid: Gid) -> Result<()> {
        self.check_group("attach_mcast", gid)?;
        // Read before the groups are locked, which is the order in which `destroy` locks both.
        let port_num = self.known().port_num.unwrap_or(1);
        let mut groups = self.groups();
        if groups.iter().any(|(group, _)| *group == gid) {
            return Ok(());
        }
        let membership = self.join_group(gid, port_num)?;
        let attached = self.sys.attach_mcast(gid.to_bytes()).ok_or_else(|| self.destroyed("attach_mcast"))?;
        attached.map_err(|error| {
            let (members, groups) = (self.device.limits().max_mcast_qp_attach, self.device.limits().max_mcast_grp);
            let asked = format!("gid is {gid} (max_mcast_qp_attach {members}, max_mcast_grp {groups})");
            errors::from_errno("attach_mcast", asked, &error)
        })?;
        groups.push((gid, membership));
        Ok(())
    }

    fn detach_mcast(&self, gid: Gid) -> Result<()> {
        self.check_group("detach_mcast", gid)?;
        let mut groups = self.groups();
        if groups.iter().all(|(group, _)| *group != gid) {
            return Err(errors::not_attached(self.qpn, gid));
        }
        let detached = self.sys.detach_mcast(gid.to_bytes()).ok_or_else(|| self.destroyed("detach_mcast"))?;
        detached.map_err(|error| errors::from_errno("detach_mcast", format!("gid is {gid}"), &error))?;
        groups.retain(|(group, _)| *group != gid);
        Ok(())
    }

    fn send_end(&self, end: BatchEnd) -> Result<()> {
        self.device.check_process("post_send")?;
        // The state may have been changed since the requests were pushed.
        let allowed = || self.state.check("post_send", QueuePairState::ReadyToSend);
        self.resolve_post_error(self.send.end(end, &self.sys, allowed))
    }

    /// Posts most requests of connections directly, without staging them.
    fn send_one(&self, request: &SendRequest<'_>) -> Result<()> {
        let is_connected =
            matches!(self.qp_type, QueuePairType::ReliableConnection | QueuePairType::UnreliableConnection);
        if is_connected && let Some(unstaged) = sys::UnstagedRequest::of(&self.sys, request) {
            self.check_send(request)?;
            let allowed = || self.state.check("post_send", QueuePairState::ReadyToSend);
            let posted = self.send.post_unstaged(request, unstaged, self.cap.max_inline_data, &self.sys, allowed);
            return self.resolve_post_error(posted);
        }
        send_batch_of_one(self, request)
    }

    fn recv_begin(&self) {
        if !self.device.is_inherited() {
            self.receive.begin();
        }
    }

    fn recv_push(&self, request: &ReceiveRequest<'_>) -> Result<()> {
        self.device.check_process("post_recv")?;
        self.state.check("post_recv", QueuePairState::Init)?;
        errors::check_receive(self.qpn, self.qp_type, self.srq)?;
        self.receive.push(request)
    }

    fn recv_end(&self, end: BatchEnd) -> Result<()> {
        self.device.check_process("post_recv")?;
        let allowed = || self.state.check("post_recv", QueuePairState::Init);
        self.resolve_post_error(self.receive.end(end, &self.sys, allowed))
    }

    /// Moves the queue pair to ERR first, so that nothing starts while the adapter destroys it.
    fn destroy(&self) -> Result<()> {
        self.device.check_process("destroy_qp")?;
        // A second caller returns only after the queue pair is destroyed.
        let _known = self.known();
        let Some(before) = self.state.destroy() else { return Ok(()) };
        for (group, _) in self.groups().drain(..) {
            let _ = self.sys.detach_mcast(group.to_bytes());
        }
        if before != QueuePairState::Reset {
            let error = sys::QpAttr { qp_state: QueuePairState::Error as u32, ..sys::QpAttr::default() };
            let _ = self.sys.modify(&error, 1);
        }
        if let Err(error) = self.sys.destroy() {
            self.state.restore(before);
            return Err(errors::from_errno("destroy_qp", format!("queue pair {}", self.qpn), &error));
        }
        for tracker in [&self.send.tracker, &self.receive.tracker] {
            self.device.remove_tracker(tracker);
        }
        // A request that another thread is entering would otherwise lose its object without being undone.
        let paused = self.pause_posting();
        self.forget_requests();
        drop(paused);
        if let Some(shared) = self.shared.lock().unwrap_or_else(PoisonError::into_inner).take() {
            shared.note_datagrams(self.qpn, false);
        }
        self.device.events.discard(&self.device, EventObject::QueuePair(self.qpn));
        Ok(())
    }

    fn completion_sources(&self) -> [CompletionSource; 2] {
        self.sources
    }

    /// Returns zeros: adapters count for the device only.
    fn counters(&self) -> Counters {
        Counters::default()
    }
}

impl Drop for IbverbsQueuePair {
    fn drop(&mut self) {
        if !self.device.is_inherited()
            && let Err(error) = self.destroy()
        {
            tracing::warn!(
                target: "rdma_verbs::queue_pair",
                qpn = %self.qpn, %error, "a dropped queue pair could not be destroyed"
            );
        }
    }
}
