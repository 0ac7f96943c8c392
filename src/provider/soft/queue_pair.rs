//! Queue pairs: lifecycle and posting.

use std::sync::{Arc, Mutex};

use super::address_handle::SoftAddressHandle;
use super::completion_queue::{SoftCompletionQueue, soft};
use super::device::Device;
use super::errors;
use super::limit::check_range;
use super::modify::PathKind;
use super::protection_domain::{Domain, SoftProtectionDomain};
use super::receive_kind::ReceiveKind;
use crate::engine::{Doorbell, Shard};
use crate::provider::common::PostingState;
use crate::provider::{CompletionQueue, DatagramTarget, Error, QueuePair, QueuePairInit, Result, SoftwareQueuePair};
use crate::queue::{QueueError, ReceiveQueue, SendQueue, SourceToken};
use crate::transport;
use crate::types::{
    BatchEnd, CompletionSource, Counters, EventObject, Gid, PacketPath, Qpn, QueuePairAttributes, QueuePairReport,
    QueuePairState, QueuePairStatus, QueuePairType, RateLimit, ReceiveRequest, SendRequest, SharedMemory,
    SharedReceiveQueueNumber,
};

/// A queue pair of a software device.
pub(super) struct SoftQueuePair {
    pub(super) qpn: Qpn,
    pub(super) qp_type: QueuePairType,
    pub(super) shard: Arc<Shard>,
    pub(super) device: Arc<Device>,
    /// Kind of the path. The lock serializes state changes.
    pub(super) path: Mutex<PathKind>,
    pub(super) state: PostingState,
    doorbell: Arc<Doorbell>,
    send: Arc<SendQueue>,
    receive: Arc<ReceiveQueue>,
    send_attachment: CqAttachment,
    receive_attachment: CqAttachment,
    receive_kind: ReceiveKind,
    domain: Arc<Domain>,
}

/// The completion source of the send or receive side. Keeps the completion queue alive.
struct CqAttachment {
    queue: Arc<dyn CompletionQueue>,
    token: SourceToken,
    shard: usize,
}

impl CqAttachment {
    fn attach(queue: &Arc<dyn CompletionQueue>, shard: usize, send: Option<Arc<SendQueue>>) -> Self {
        let attachment = Self { token: soft(queue).engine_side().attach(send), queue: Arc::clone(queue), shard };
        soft(queue).add_source(shard);
        attachment
    }

    fn for_endpoint(&self) -> (Arc<crate::queue::CompletionQueue>, SourceToken) {
        (Arc::clone(soft(&self.queue).engine_side()), self.token)
    }
}

impl Drop for CqAttachment {
    fn drop(&mut self) {
        if soft(&self.queue).is_inherited() {
            return;
        }
        soft(&self.queue).engine_side().detach(self.token);
        soft(&self.queue).remove_source(self.shard);
    }
}

fn check_queue(device: &Arc<Device>, queue: &Arc<dyn CompletionQueue>, name: &'static str) -> Result<()> {
    match queue.as_any().downcast_ref::<SoftCompletionQueue>() {
        Some(queue) if queue.is_of(device) => Ok(()),
        _ => Err(errors::foreign("create_qp", name)),
    }
}

impl SoftQueuePair {
    pub(super) fn new(device: &Arc<Device>, init: &QueuePairInit<'_>) -> Result<Self> {
        let domain = match init.pd.as_any().downcast_ref::<SoftProtectionDomain>() {
            Some(domain) if Arc::ptr_eq(&domain.shared().device, device) => Arc::clone(domain.shared()),
            _ => return Err(errors::foreign("create_qp", "pd")),
        };
        check_queue(device, init.send_cq, "send_cq")?;
        check_queue(device, init.recv_cq, "recv_cq")?;
        let limits = &device.attributes;
        let cap = errors::check_sizes(limits, &init.cap)?;
        check_range("create_qp", "max_inline_data", cap.max_inline_data, 0..=limits.max_inline_data)?;
        let receive_kind = ReceiveKind::of(device, init)?;
        let cap = receive_kind.limit(cap);
        let started = device.engine.start();
        started.map_err(|error| Error::from_io("create_qp", "the engine's thread cannot be started", error))?;

        let new_queue = match init.qp_type {
            QueuePairType::UnreliableDatagram => SendQueue::for_datagrams,
            _ => SendQueue::new,
        };
        let send = new_queue(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data);
        let receive = ReceiveQueue::new(cap.max_recv_wr, cap.max_recv_sge);
        let (shard_index, shard) = device.next_shard();
        let send_attachment = CqAttachment::attach(init.send_cq, shard_index, Some(Arc::clone(&send)));
        let receive_attachment = CqAttachment::attach(init.recv_cq, shard_index, None);
        let Some(send_end) = send.consumer() else {
            unreachable!("a new queue's consuming end is given out once");
        };
        let endpoint_init = transport::QueuePairInit {
            service: init.qp_type,
            domain: domain.id,
            send: send_end,
            receive: receive_kind.receive_source(&receive),
            send_completions: send_attachment.for_endpoint(),
            receive_completions: receive_attachment.for_endpoint(),
            signal_all: init.sq_sig_all,
            cap,
            events: Arc::clone(&device.events.queue),
        };
        let mut created = Err(errors::engine_failed("create_qp"));
        shard.command(|core, _| {
            created = core.endpoint.create_queue_pair(endpoint_init).map_err(|error| errors::from_create(&error));
        });
        let qpn = created?;
        if device.shared_memory == SharedMemory::Require && init.qp_type.is_connected() {
            // Its peer may be the first to wait.
            shard.receive_connected(&device.local_addresses());
        }
        Ok(Self {
            qpn,
            qp_type: init.qp_type,
            shard,
            device: Arc::clone(device),
            path: Mutex::default(),
            state: PostingState::new(qpn),
            doorbell: Doorbell::new(qpn),
            send,
            receive,
            send_attachment,
            receive_attachment,
            receive_kind,
            domain,
        })
    }

    /// Returns the path to the peer, if there is one.
    fn packet_path(&self, status: &QueuePairStatus) -> Option<PacketPath> {
        let (vector, destination) = (status.attributes.ah_attr?, status.attributes.dest_qp_num?);
        let own = self.device.local_address("query_qp", "ah_attr.sgid_index", vector.sgid_index).ok()?;
        Some(self.shard.memory_path(own.ip, vector.dgid.to_ip(), destination))
    }

    /// Checks the state again, since it may have changed after the batch began. If it becomes RESET after this check,
    /// the transition out of RESET discards these requests.
    #[inline]
    fn check_batch(&self, verb: &'static str, first: QueuePairState, end: BatchEnd) -> Result<()> {
        if end == BatchEnd::Rollback { Ok(()) } else { self.state.check(verb, first) }
    }

    /// Explains why a receive is refused. A queue that the queue pair does not have reports that it is full.
    #[cold]
    fn receive_refused(&self, error: &QueueError) -> Error {
        let allowed = errors::check_receive(self.qpn, self.qp_type, self.receive_kind.shared());
        allowed.err().unwrap_or_else(|| errors::from_queue("post_recv", error))
    }

    /// Runs `read` on the endpoint, unless the queue pair is destroyed.
    pub(super) fn with_endpoint<R>(
        &self,
        verb: &'static str,
        read: impl FnOnce(&transport::Endpoint) -> Option<R>,
    ) -> Result<R> {
        let mut value = None;
        let commanded = self.shard.command(|core, _| {
            // Checked with the shard held: destruction marks the queue pair before it takes the shard, and the number
            // may belong to another queue pair afterwards.
            if !self.state.is_destroyed() {
                value = read(&core.endpoint);
            }
        });
        if !commanded {
            return Err(errors::engine_failed(verb));
        }
        value.ok_or_else(|| errors::destroyed(verb, self.qpn))
    }
}

impl QueuePair for SoftQueuePair {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn modify(&self, attributes: &QueuePairAttributes) -> Result<()> {
        self.device.check_process("modify_qp")?;
        self.modify_state(attributes)
    }

    fn limit_rate(&self, limit: &RateLimit) -> Result<()> {
        self.device.check_process("modify_qp_rate_limit")?;
        self.change_rate(limit)
    }

    fn query(&self) -> Result<QueuePairStatus> {
        self.device.check_process("query_qp")?;
        self.with_endpoint("query_qp", |endpoint| endpoint.query_queue_pair(self.qpn))
    }

    #[inline]
    fn send_begin(&self) {
        if !self.device.is_inherited() {
            self.send.begin();
        }
    }

    #[inline]
    fn send_push(&self, request: &SendRequest<'_>) -> Result<()> {
        self.device.check_process("post_send")?;
        self.state.check("post_send", QueuePairState::ReadyToSend)?;
        if self.qp_type != QueuePairType::ReliableConnection {
            errors::check_plain_send(self.qpn, self.qp_type)?;
            errors::check_operation(self.qp_type, &request.operation)?;
        }
        self.send.push(request).map_err(|error| errors::from_send_queue(&self.send, &error))
    }

    fn send_push_to_srq(&self, request: &SendRequest<'_>, srq: SharedReceiveQueueNumber) -> Result<()> {
        self.device.check_process("post_send")?;
        self.state.check("post_send", QueuePairState::ReadyToSend)?;
        errors::check_named_queue(self.qpn, self.qp_type, srq)?;
        self.send.push_to_srq(request, srq).map_err(|error| errors::from_send_queue(&self.send, &error))
    }

    fn send_push_to(&self, request: &SendRequest<'_>, target: &DatagramTarget<'_>) -> Result<()> {
        self.device.check_process("post_send")?;
        self.state.check("post_send", QueuePairState::ReadyToSend)?;
        errors::check_operation(self.qp_type, &request.operation)?;
        let length = errors::length_of(&request.data);
        let destination = SoftAddressHandle::destination(target, &self.domain, self.send_attachment.shard, length)?;
        self.send.push_to(request, &destination).map_err(|error| errors::from_send_queue(&self.send, &error))
    }

    fn attach_mcast(&self, gid: Gid) -> Result<()> {
        self.device.check_process("attach_mcast")?;
        self.attach_group(gid)
    }

    fn detach_mcast(&self, gid: Gid) -> Result<()> {
        self.device.check_process("detach_mcast")?;
        self.detach_group(gid)
    }

    #[inline]
    fn send_end(&self, end: BatchEnd) -> Result<()> {
        self.device.check_process("post_send")?;
        let ready = self.check_batch("post_send", QueuePairState::ReadyToSend, end);
        let end = if ready.is_ok() { end } else { BatchEnd::Rollback };
        let published = self.send.end(end).map_err(|error| errors::from_queue("post_send", &error))?;
        if published > 0 {
            self.shard.post(&self.doorbell);
        }
        ready
    }

    #[inline]
    fn recv_begin(&self) {
        if !self.device.is_inherited() {
            self.receive.begin();
        }
    }

    #[inline]
    fn recv_push(&self, request: &ReceiveRequest<'_>) -> Result<()> {
        self.device.check_process("post_recv")?;
        self.state.check("post_recv", QueuePairState::Init)?;
        self.receive.push(request).map_err(|error| self.receive_refused(&error))
    }

    #[inline]
    fn recv_end(&self, end: BatchEnd) -> Result<()> {
        self.device.check_process("post_recv")?;
        let ready = self.check_batch("post_recv", QueuePairState::Init, end);
        let end = if ready.is_ok() { end } else { BatchEnd::Rollback };
        let published = self.receive.end(end).map_err(|error| errors::from_queue("post_recv", &error))?;
        if published > 0 && self.receive.flushes() {
            self.shard.post(&self.doorbell);
        }
        ready
    }

    fn completion_sources(&self) -> [CompletionSource; 2] {
        [self.send_attachment.token.source(), self.receive_attachment.token.source()]
    }

    /// Waits only for the engine's pass in progress. Outstanding requests are discarded, not flushed.
    fn destroy(&self) -> Result<()> {
        self.device.check_process("destroy_qp")?;
        if self.state.destroy().is_none() {
            return Ok(());
        }
        self.leave_groups();
        self.shard.send_acknowledgements(self.qpn);
        self.shard.command(|core, _| {
            core.endpoint.destroy_queue_pair(self.qpn);
            // The number can be reused as soon as the shard is free.
            self.device.memory.end_windows_of(self.qpn);
        });
        for attachment in [&self.send_attachment, &self.receive_attachment] {
            soft(&attachment.queue).engine_side().detach(attachment.token);
        }
        self.receive_kind.end();
        self.device.events.discard(|event| event.object() == EventObject::QueuePair(self.qpn));
        Ok(())
    }

    fn counters(&self) -> Counters {
        if self.device.is_inherited() {
            return Counters::default();
        }
        let read = |endpoint: &transport::Endpoint| endpoint.queue_pair_counters(self.qpn).cloned();
        self.with_endpoint("query_qp", read).unwrap_or_default()
    }

    fn software(&self) -> Option<&dyn SoftwareQueuePair> {
        Some(self)
    }
}

impl SoftwareQueuePair for SoftQueuePair {
    fn stop_receiving(&self) -> Result<Option<u64>> {
        self.device.check_process("stop_receiving")?;
        let mut begun = None;
        self.shard.command(|core, _| {
            if !self.state.is_destroyed() {
                begun = core.endpoint.stop_receiving(self.qpn);
            }
        });
        Ok(begun)
    }

    fn report(&self) -> Result<QueuePairReport> {
        self.device.check_process("query_qp")?;
        let destroyed = || errors::destroyed("query_qp", self.qpn);
        let (mut report, since) =
            self.shard.queue_pair_report(self.qpn).filter(|_| !self.state.is_destroyed()).ok_or_else(destroyed)?;
        if let Some(peer) = report.peer_address() {
            // Unmatched packets may arrive at any shard. The shards' clocks start with the device, within microseconds
            // of each other.
            let shards = self.device.engine.shards().iter();
            report.unmatched_packets = shards.flat_map(|shard| shard.unmatched_packets(peer, since)).collect();
            report.packet_path = self.packet_path(&report.status);
        }
        Ok(report)
    }
}

impl Drop for SoftQueuePair {
    fn drop(&mut self) {
        // Fails only in a process that inherited the queue pair, where there is nothing to do.
        let _ = self.destroy();
    }
}
