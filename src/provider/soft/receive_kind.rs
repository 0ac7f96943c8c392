//! The queues of a queue pair.

use std::sync::{Arc, Mutex, PoisonError};

use super::device::Device;
use super::errors;
use super::shared_receive::{Use, begin_use, own_xrc_domain};
use crate::provider::{QueuePairInit, Result, XrcDomain};
use crate::queue::{self, ReceiveQueue};
use crate::transport::ReceiveSource;
use crate::types::{QueuePairCapabilities, QueuePairType, SharedReceiveQueueNumber};

/// The queues of a queue pair.
pub(super) enum ReceiveKind {
    /// A send queue and a receive queue of its own.
    Both,
    /// A send queue; receives come from a shared queue, which is in use until the queue pair is destroyed.
    Sharing { queue: Arc<queue::SharedReceiveQueue>, usage: Mutex<Option<Use>> },
    /// An XRC initiator: a send queue, whose requests name shared receive queues of the peer.
    Initiator,
    /// An XRC target: no queue.
    Target { table: Arc<queue::XrcDomain>, _domain: Arc<dyn XrcDomain> },
}

impl ReceiveKind {
    /// Returns the kind that `init` requests.
    pub(super) fn of(device: &Arc<Device>, init: &QueuePairInit<'_>) -> Result<Self> {
        errors::check_parts(init)?;
        match (init.qp_type, init.srq, init.xrc_domain) {
            (_, _, Some(domain)) => {
                let table = Arc::clone(own_xrc_domain(device, domain, "create_qp")?.table());
                Ok(Self::Target { table, _domain: Arc::clone(domain) })
            }
            (_, Some(srq), None) => {
                let (usage, queue) = begin_use(device, srq)?;
                Ok(Self::Sharing { queue, usage: Mutex::new(Some(usage)) })
            }
            (QueuePairType::XrcSend, None, None) => Ok(Self::Initiator),
            (_, None, None) => Ok(Self::Both),
        }
    }

    /// Sets the sizes of missing queues to 0.
    pub(super) fn limit(&self, mut cap: QueuePairCapabilities) -> QueuePairCapabilities {
        if !matches!(self, Self::Both) {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        if matches!(self, Self::Target { .. }) {
            (cap.max_send_wr, cap.max_send_sge, cap.max_inline_data) = (0, 0, 0);
        }
        cap
    }

    /// Returns the source of the endpoint's receives; `own` is the queue pair's own queue.
    pub(super) fn receive_source(&self, own: &Arc<ReceiveQueue>) -> ReceiveSource {
        match self {
            Self::Both => match own.consumer() {
                Some(consumer) => ReceiveSource::Own(consumer),
                None => unreachable!("a new queue's consuming end is given out once"),
            },
            Self::Sharing { queue, .. } => ReceiveSource::Shared(Arc::clone(queue)),
            Self::Initiator => ReceiveSource::Nothing,
            Self::Target { table, .. } => ReceiveSource::Named(Arc::clone(table)),
        }
    }

    /// Returns the number of the shared queue, if the queue pair uses one.
    pub(super) fn shared(&self) -> Option<SharedReceiveQueueNumber> {
        match self {
            Self::Sharing { queue, .. } => Some(queue.number()),
            _ => None,
        }
    }

    /// Ends the use of the shared queue when the queue pair is destroyed.
    pub(super) fn end(&self) {
        if let Self::Sharing { usage, .. } = self {
            let ended = usage.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(ended);
        }
    }
}
