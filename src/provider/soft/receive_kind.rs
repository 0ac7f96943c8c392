//! The queues of a queue pair, and the requests that it therefore accepts.

use std::sync::{Arc, Mutex, PoisonError};

use super::device::Device;
use super::errors;
use super::shared_receive::{Use, begin_use, own_xrc_domain};
use crate::provider::{Error, ErrorKind, QueuePairInit, Result, XrcDomain};
use crate::queue::{self, QueueError, ReceiveQueue};
use crate::transport::ReceiveSource;
use crate::types::{Qpn, QueuePairCapabilities, QueuePairType, SharedReceiveQueueNumber};

/// The queues of a queue pair.
pub(super) enum ReceiveKind {
    /// A send queue and a receive queue of its own.
    Both,
    /// A send queue; receives come from a shared queue, which it uses until it is destroyed.
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

    /// Refuses send requests that name no queue of the peer but must.
    pub(super) fn check_plain_send(&self, qpn: Qpn) -> Result<()> {
        match self {
            Self::Initiator | Self::Target { .. } => Err(self.send_refused(qpn)),
            _ => Ok(()),
        }
    }

    /// Explains why a plain send request is refused.
    #[cold]
    fn send_refused(&self, qpn: Qpn) -> Error {
        let message = match self {
            Self::Target { .. } => format!("queue pair {qpn} is an XRC target, which only receives"),
            _ => format!(
                "queue pair {qpn} is an XRC initiator; its requests must name a shared receive queue of the peer \
                 (remote_srq)"
            ),
        };
        Error::new("post_send", ErrorKind::InvalidArgument, message)
    }

    /// Refuses requests that name a queue of the peer but cannot.
    pub(super) fn check_named_queue(&self, qpn: Qpn, srq: SharedReceiveQueueNumber) -> Result<()> {
        match self {
            Self::Initiator => Ok(()),
            Self::Target { .. } => Err(self.send_refused(qpn)),
            _ => {
                let message = format!(
                    "the request names shared receive queue {srq}, and queue pair {qpn} is no XRC initiator; leave \
                     remote_srq out"
                );
                Err(Error::new("post_send", ErrorKind::InvalidArgument, message))
            }
        }
    }

    /// Explains why a receive is refused. A queue that the queue pair does not have is always full.
    #[cold]
    pub(super) fn receive_refused(&self, qpn: Qpn, error: &QueueError) -> Error {
        let message = match self {
            Self::Both => return errors::from_queue("post_recv", error),
            Self::Sharing { queue, .. } => format!(
                "queue pair {qpn} takes its receives from shared receive queue {}; post them there",
                queue.number()
            ),
            Self::Initiator => format!("queue pair {qpn} is an XRC initiator, which only sends"),
            Self::Target { .. } => {
                format!("queue pair {qpn} is an XRC target; post receives to the shared receive queues of its domain")
            }
        };
        Error::new("post_recv", ErrorKind::InvalidArgument, message)
    }

    /// Ends the use of the shared queue when the queue pair is destroyed.
    pub(super) fn end(&self) {
        if let Self::Sharing { usage, .. } = self {
            let ended = usage.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(ended);
        }
    }
}
