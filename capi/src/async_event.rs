//! Asynchronous events: translation from the provider's numbers to the program's objects, and acknowledgement.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use rdma_verbs::provider::abi;
use rdma_verbs::types::{AsyncEvent, EventObject};

use crate::object::{Zeroed, own};
use crate::shared::{Shared, shared_of};
use crate::version::exported;
use crate::waiting::{PollResult, Uncancelled, may_block, wait_for};

/// Values of `ibv_event_type`.
mod kind {
    pub(super) const CQ_ERR: u32 = 0;
    pub(super) const QP_FATAL: u32 = 1;
    pub(super) const QP_REQ_ERR: u32 = 2;
    pub(super) const QP_ACCESS_ERR: u32 = 3;
    pub(super) const COMM_EST: u32 = 4;
    pub(super) const SQ_DRAINED: u32 = 5;
    pub(super) const DEVICE_FATAL: u32 = 8;
    pub(super) const PORT_ACTIVE: u32 = 9;
    pub(super) const PORT_ERR: u32 = 10;
    pub(super) const LID_CHANGE: u32 = 11;
    pub(super) const PKEY_CHANGE: u32 = 12;
    pub(super) const SM_CHANGE: u32 = 13;
    pub(super) const SRQ_ERR: u32 = 14;
    pub(super) const SRQ_LIMIT_REACHED: u32 = 15;
    pub(super) const QP_LAST_WQE_REACHED: u32 = 16;
    pub(super) const CLIENT_REREGISTER: u32 = 17;
    pub(super) const GID_CHANGE: u32 = 18;
}

impl Shared {
    /// Returns the next event of a live object.
    fn next_event(&self) -> Option<abi::AsyncEvent> {
        // Held while an event is taken: an object that is destroyed concurrently either sees that its event was
        // delivered, or prevents the delivery.
        let objects = self.event_objects.lock();
        loop {
            let event = self.device.take_async_event()?;
            let mut found = abi::AsyncEvent::zeroed();
            let Some(event_type) = event_type(&event) else {
                // Destroying its object would wait for the acknowledgement.
                self.device.ack_async_event(&event);
                continue;
            };
            found.event_type = event_type;
            match event.object() {
                EventObject::Port(port) => found.element.port_num = port.into(),
                EventObject::Device => {}
                object => match objects.get(&object) {
                    Some(pointer) => {
                        found.element.qp = pointer.as_ptr().cast();
                        return Some(found);
                    }
                    None => {
                        self.device.ack_async_event(&event);
                        continue;
                    }
                },
            }
            // No destruction waits for the acknowledgement of events without an object.
            self.device.ack_async_event(&event);
            return Some(found);
        }
    }
}

/// Returns the `ibv_event_type`. Every event that this version of the provider tier reports has one.
fn event_type(event: &AsyncEvent) -> Option<u32> {
    Some(match event {
        AsyncEvent::QueuePairFatal(_) => kind::QP_FATAL,
        AsyncEvent::QueuePairRequestError(_) => kind::QP_REQ_ERR,
        AsyncEvent::QueuePairAccessError(_) => kind::QP_ACCESS_ERR,
        AsyncEvent::CommunicationEstablished(_) => kind::COMM_EST,
        AsyncEvent::SendQueueDrained(_) => kind::SQ_DRAINED,
        AsyncEvent::LastWorkQueueElementReached(_) => kind::QP_LAST_WQE_REACHED,
        AsyncEvent::SharedReceiveQueueLimitReached(_) => kind::SRQ_LIMIT_REACHED,
        AsyncEvent::SharedReceiveQueueError(_) => kind::SRQ_ERR,
        AsyncEvent::CompletionQueueError(_) => kind::CQ_ERR,
        AsyncEvent::PortActive(_) => kind::PORT_ACTIVE,
        AsyncEvent::PortError(_) => kind::PORT_ERR,
        AsyncEvent::GidChange(_) => kind::GID_CHANGE,
        AsyncEvent::LidChange(_) => kind::LID_CHANGE,
        AsyncEvent::PkeyChange(_) => kind::PKEY_CHANGE,
        AsyncEvent::SubnetManagerChange(_) => kind::SM_CHANGE,
        AsyncEvent::ClientReregister(_) => kind::CLIENT_REREGISTER,
        AsyncEvent::DeviceFatal => kind::DEVICE_FATAL,
        _ => return None,
    })
}

/// Polls for an event once, without waiting. Does not unwind.
///
/// # Safety
/// `context` is the program's, and `event` may be written.
unsafe extern "C" fn try_event(context: *mut abi::Context, event: *mut abi::AsyncEvent) -> PollResult {
    // SAFETY: the caller's promise.
    let shared = unsafe { shared_of(context) };
    PollResult::from(shared.check_process("get_async_event").and_then(|()| match shared.next_event() {
        None => {
            let descriptor = shared.async_fd()?;
            may_block(descriptor)?;
            Ok(PollResult::Wait(descriptor.as_raw_fd()))
        }
        Some(found) => {
            // SAFETY: the caller's promise.
            unsafe { event.write(found) };
            Ok(PollResult::Found)
        }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_async_event(context: *mut abi::Context, event: *mut abi::AsyncEvent) -> c_int {
    // SAFETY: the program's context and structure.
    unsafe { wait_for(|| try_event(context, event)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut abi::AsyncEvent) {
    let _held = Uncancelled::begin();
    // The acknowledgement allows another thread to destroy the object, and perhaps the device. So it is made through a
    // separate reference, and the object is not accessed afterwards.
    // SAFETY: the program's structure, which it got from `ibv_get_async_event`; the event type determines which pointer
    // it holds, and destroying that object waits for this acknowledgement.
    let (shared, about) = unsafe {
        match (*event).event_type {
            kind::CQ_ERR => {
                let queue = own((*event).element.cq.cast::<abi::CqEx>());
                (Arc::clone(&queue.shared), AsyncEvent::CompletionQueueError(queue.inner.number()))
            }
            kind::SRQ_ERR | kind::SRQ_LIMIT_REACHED => {
                let queue = own((*event).element.srq);
                (Arc::clone(&queue.shared), AsyncEvent::SharedReceiveQueueLimitReached(queue.inner.number()))
            }
            kind::QP_FATAL..=kind::SQ_DRAINED | kind::QP_LAST_WQE_REACHED => {
                let queue_pair = own((*event).element.qp.cast::<abi::QpExWithFlush>());
                (Arc::clone(&queue_pair.shared), AsyncEvent::QueuePairFatal(queue_pair.inner.qpn()))
            }
            _ => return,
        }
    };
    // The parent's objects do not wait for acknowledgements in this process.
    if shared.check_process("ack_async_event").is_ok() {
        shared.device.ack_async_event(&about);
    }
}

exported! {
    "IBVERBS_1.1": ibv_get_async_event ibv_ack_async_event;
}
