//! A datagram queue pair of a socket: each local address that the socket sends from, or receives at, has one.

use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::Arc;

use rdma_verbs::provider::{self, AddressHandle, DatagramTarget, MemoryRegion, PortSpace, abi};
use rdma_verbs::types::{
    AccessFlags, AddressVector, BatchEnd, CompletionStatus, Data, GlobalRouteHeader, Lkey, Operation, Qkey, Qpn,
    ReceiveRequest, SendFlags, SendRequest, Sge,
};

use super::header::data_header;
use crate::error::{Errno, Result};
use crate::protection_domain::domain_of;
use crate::queue_pair::queue_pair_of;
use crate::rsocket::address;
use crate::rsocket::endpoint::{Completions, DATAGRAM, allocate};
use crate::rsocket::identifier::Identifier;
use crate::shared::shared_of;

/// Bytes of a datagram with its header.
pub(super) const SLOT: u32 = 2048;
/// `RDMA_UDP_QKEY`.
const QKEY: Qkey = Qkey(0x0123_4567);
/// The number of a receive is that of its slot with this bit.
const RECEIVE: u64 = 1 << 63;
const PORT: u8 = 1;
const HEADER: u32 = GlobalRouteHeader::BYTES as u32;

/// The queue pair, with its memory.
pub(super) struct QueuePair {
    pub(super) local: SocketAddr,
    identifier: Identifier,
    inner: Arc<dyn provider::QueuePair>,
    pub(super) completions: Completions,
    sending: Arc<dyn MemoryRegion>,
    receiving: Arc<dyn MemoryRegion>,
    receives: u16,
    /// Free slots for sending.
    free: Vec<u32>,
    sends: u16,
}

impl QueuePair {
    /// Creates the queue pair of a local address, with receives.
    pub(super) fn create(local: SocketAddr, (sends, receives): (u16, u16)) -> Result<Self> {
        let identifier = Identifier::create(PortSpace::Udp as i32)?;
        let (address, _) = address::to_c(local);
        // An address of `localhost` alone names no device: a route does.
        // SAFETY: the address that was just made.
        unsafe {
            identifier.bind((&raw const address).cast())?;
            identifier.resolve(std::ptr::null(), (&raw const address).cast())?;
        }
        let (context, pd) = identifier.device();
        if context.is_null() {
            return Err(Errno(libc::EADDRNOTAVAIL));
        }
        let length = |slots: u16, more: u32| (u32::from(slots) * SLOT + more) as usize;
        let sending = allocate(pd, length(sends, 0), AccessFlags::LOCAL_WRITE)?;
        let receiving = allocate(pd, length(receives, HEADER), AccessFlags::LOCAL_WRITE)?;
        let completions = Completions::create(context, u32::from(sends) + u32::from(receives))?;
        let cap = abi::QpCap {
            max_send_wr: sends.into(),
            max_recv_wr: receives.into(),
            max_send_sge: 1,
            max_recv_sge: 2,
            max_inline_data: 0,
        };
        let (cq, qp_context) = (completions.cq(), null_mut());
        let mut init = abi::QpInitAttr {
            qp_context,
            send_cq: cq,
            recv_cq: cq,
            srq: null_mut(),
            cap,
            qp_type: DATAGRAM,
            sq_sig_all: 1,
        };
        let qp = identifier.create_queue_pair(&mut init)?;
        // SAFETY: the queue pair that was just made.
        let inner = Arc::clone(&unsafe { queue_pair_of(qp) }.inner);
        let free = (0..u32::from(sends)).collect();
        let mut made = Self { local, identifier, inner, completions, sending, receiving, receives, free, sends };
        (0..u32::from(receives)).try_for_each(|slot| made.post_receive(slot))?;
        // The first completion makes the descriptor readable that others may be waiting for already.
        made.completions.arm()?;
        Ok(made)
    }

    pub(super) fn qpn(&self) -> u32 {
        self.inner.qpn().value()
    }

    /// Returns the path to a peer's queue pair.
    pub(super) fn path_to(&self, peer: SocketAddr) -> Result<Arc<dyn AddressHandle>> {
        let (context, pd) = self.identifier.device();
        // SAFETY: the context of an identifier, which is never closed.
        let shared = unsafe { shared_of(context) };
        let table = shared.device.gid_table(PORT)?;
        let own = self.local.ip().into();
        let entry = table.iter().find(|entry| entry.gid == own).ok_or(Errno(libc::EADDRNOTAVAIL))?;
        let mut vector = AddressVector::new(peer.ip().into(), entry.gid_index);
        (vector.hop_limit, vector.port_num) = (64, PORT);
        // SAFETY: the protection domain of an identifier, which is never freed.
        Ok(unsafe { domain_of(pd)? }.domain.inner.create_ah(&vector)?)
    }

    /// Posts the receive of a slot. The network header goes behind the slots.
    pub(super) fn post_receive(&self, slot: u32) -> Result<()> {
        let (iova, lkey) = (self.receiving.region().iova(), Lkey(self.receiving.lkey().0));
        let header = Sge { addr: iova + u64::from(self.receives) * u64::from(SLOT), length: HEADER, lkey };
        let data = Sge { addr: iova + u64::from(slot) * u64::from(SLOT), length: SLOT, lkey };
        let request = ReceiveRequest { wr_id: RECEIVE | u64::from(slot), sges: &[header, data] };
        self.inner.recv_begin();
        let pushed = self.inner.recv_push(&request);
        let ended = self.inner.recv_end(if pushed.is_ok() { BatchEnd::Publish } else { BatchEnd::Rollback });
        Ok(pushed.and(ended)?)
    }

    /// Returns whether a datagram can be sent.
    pub(super) fn can_send(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns whether all datagrams have been sent.
    pub(super) fn has_sent_all(&self) -> bool {
        self.free.len() == usize::from(self.sends)
    }

    /// Sends a datagram, for which there is room. `copy` passes the data on, piece by piece.
    pub(super) fn send(
        &mut self,
        handle: &dyn AddressHandle,
        qpn: u32,
        length: usize,
        copy: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let header = data_header(self.local);
        if header.len() + length > SLOT as usize {
            return Err(Errno(libc::EMSGSIZE));
        }
        let slot = self.free.pop().ok_or(Errno(libc::EAGAIN))?;
        let sent = self.send_from(slot, &header, handle, (qpn, length), copy);
        if sent.is_err() {
            self.free.push(slot);
        }
        sent
    }

    fn send_from(
        &self,
        slot: u32,
        header: &[u8],
        handle: &dyn AddressHandle,
        (qpn, length): (u32, usize),
        copy: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let (region, begin) = (self.sending.region(), u64::from(slot) * u64::from(SLOT));
        let mut at = begin;
        let mut put = |bytes: &[u8]| {
            region.write_at(at, bytes).map_err(|_| Errno(libc::EFAULT))?;
            at += bytes.len() as u64;
            Ok(())
        };
        put(header)?;
        copy(&mut put)?;
        let sge = Sge {
            addr: region.iova() + begin,
            length: (header.len() + length) as u32,
            lkey: Lkey(self.sending.lkey().0),
        };
        let (flags, data) = (SendFlags::empty(), Data::Sges(&[sge]));
        let request = SendRequest { wr_id: slot.into(), operation: Operation::Send, flags, data };
        let remote_qpn = Qpn::new(qpn);
        let target = DatagramTarget { handle, remote_qpn, remote_qkey: QKEY, long_fails_later: false };
        self.inner.send_begin();
        let pushed = self.inner.send_push_to(&request, &target);
        let ended = self.inner.send_end(if pushed.is_ok() { BatchEnd::Publish } else { BatchEnd::Rollback });
        Ok(pushed.and(ended)?)
    }

    /// Takes the completions. Calls `received` with the slot and the length of each datagram.
    pub(super) fn poll(&mut self, mut received: impl FnMut(u32, u32)) -> Result<usize> {
        let (free, mut failed) = (&mut self.free, Vec::new());
        let count = self.completions.poll(|completion| match completion.wr_id & RECEIVE {
            0 => free.push(completion.wr_id as u32),
            _ => {
                let (slot, is_good) = (completion.wr_id as u32, completion.status == CompletionStatus::Success);
                match completion.byte_len.checked_sub(HEADER).filter(|_| is_good) {
                    Some(length) => received(slot, length.min(SLOT)),
                    None => failed.push(slot),
                }
            }
        })?;
        failed.into_iter().try_for_each(|slot| self.post_receive(slot))?;
        Ok(count)
    }

    /// Copies a part of a received datagram.
    pub(super) fn copy(&self, slot: u32, offset: usize, to: &mut [u8]) -> Result<()> {
        let at = u64::from(slot) * u64::from(SLOT) + offset as u64;
        self.receiving.region().read_at(at, to).map_err(|_| Errno(libc::EFAULT))
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.identifier.destroy_queue_pair();
        for region in [&self.sending, &self.receiving] {
            let _ = region.dereg();
        }
    }
}
