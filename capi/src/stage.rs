//! The stage of extended posting: the request that a thread builds between `ibv_wr_start` and `ibv_wr_complete`.

use std::cell::UnsafeCell;

use rdma_verbs::provider::{self, DatagramTarget, abi};
use rdma_verbs::types::{
    Data, Operation, Qkey, Qpn, QueuePairCapabilities, QueuePairType, SendFlags, SendRequest, Sge,
    SharedReceiveQueueNumber,
};

use crate::error::{Errno, INVALID, Result};
use crate::object::own;

/// Builds requests for the open batch. Only the thread that opened the batch uses the cell (`queue_pair_ex`).
pub(crate) struct Stage(pub(crate) UnsafeCell<State>);

/// A request that is being built, and its buffers.
pub(crate) struct State {
    pub(crate) pending: Option<Pending>,
    /// The first error. If there is one, nothing of the batch is posted.
    pub(crate) error: Option<Errno>,
    pub(crate) sges: Box<[Sge]>,
    inline: Box<[u8]>,
}

/// The request.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) wr_id: u64,
    pub(crate) flags: SendFlags,
    pub(crate) operation: Operation,
    pub(crate) payload: Payload,
    pub(crate) target: Target,
}

/// The used part of the stage's buffers.
#[derive(Clone, Copy)]
pub(crate) enum Payload {
    Sges(usize),
    Inline(usize),
}

/// The destination, as far as the queue pair does not determine it.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    Connected,
    Datagram { ah: *mut abi::Ah, qpn: u32, qkey: u32 },
    SharedReceiveQueue(u32),
}

impl Stage {
    /// Creates a stage for requests of a queue pair of this size.
    pub(crate) fn new(cap: &QueuePairCapabilities) -> Self {
        Self(UnsafeCell::new(State {
            pending: None,
            error: None,
            sges: vec![Sge::default(); cap.max_send_sge as usize].into(),
            inline: vec![0; cap.max_inline_data as usize].into(),
        }))
    }
}

impl State {
    /// Refuses the batch.
    pub(crate) fn fail(&mut self, error: Errno) {
        self.error.get_or_insert(error);
    }

    /// Adds the complete request to the batch.
    pub(crate) fn flush(&mut self, inner: &dyn provider::QueuePair, qp_type: QueuePairType) {
        let Some(pending) = self.pending.take() else { return };
        if self.error.is_none()
            && let Err(error) = self.push(inner, qp_type, &pending)
        {
            self.error = Some(error);
        }
    }

    fn push(&self, inner: &dyn provider::QueuePair, qp_type: QueuePairType, pending: &Pending) -> Result<()> {
        let segment;
        let data = match pending.payload {
            Payload::Sges(count) => Data::Sges(&self.sges[..count]),
            Payload::Inline(length) => {
                segment = [&self.inline[..length]];
                Data::Inline(&segment)
            }
        };
        let Pending { wr_id, flags, operation, .. } = *pending;
        let request = SendRequest { wr_id, operation, flags, data };
        match (pending.target, qp_type) {
            (Target::Datagram { ah, qpn, qkey }, QueuePairType::UnreliableDatagram) if !ah.is_null() => {
                // SAFETY: the program's address handle, which it keeps until the request is posted.
                let handle = unsafe { own(ah) }.inner.as_ref();
                let (remote_qpn, remote_qkey) = (Qpn::new(qpn), Qkey(qkey));
                let target = DatagramTarget { handle, remote_qpn, remote_qkey, long_fails_later: true };
                inner.send_push_to(&request, &target)?;
            }
            (Target::SharedReceiveQueue(queue), QueuePairType::XrcSend) => {
                inner.send_push_to_srq(&request, SharedReceiveQueueNumber::new(queue))?;
            }
            (Target::Connected, QueuePairType::UnreliableDatagram) => return Err(INVALID),
            (Target::Connected, _) => inner.send_push(&request)?,
            _ => return Err(INVALID),
        }
        Ok(())
    }

    /// Returns the request that setters apply to.
    pub(crate) fn pending(&mut self) -> Option<&mut Pending> {
        if self.pending.is_none() {
            self.fail(INVALID);
        }
        self.pending.as_mut()
    }

    /// Sets the payload of the request.
    pub(crate) fn set_payload(&mut self, payload: Payload) {
        if let Some(pending) = self.pending() {
            pending.payload = payload;
        }
    }

    /// Copies the segments one after another.
    pub(crate) fn set_inline<'a>(&mut self, segments: impl Iterator<Item = &'a [u8]>) {
        let mut used = 0;
        for segment in segments {
            match self.inline.get_mut(used..used + segment.len()) {
                Some(room) => room.copy_from_slice(segment),
                None => return self.fail(INVALID),
            }
            used += segment.len();
        }
        self.set_payload(Payload::Inline(used));
    }
}
