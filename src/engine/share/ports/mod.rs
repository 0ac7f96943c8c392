//! The ports of the connection manager (`rdma_cm`), arbitrated among the processes of a user in a network namespace.
//!
//! Each port space has its own ports, separate from those of sockets. A process that binds a port enters it into the
//! registry's file of ports, and every process finds there which block of queue pair numbers listens. Other users are
//! not seen here: they cannot have the addresses of this user's devices at the same time.

mod error;
mod rules;
mod settings;
mod table;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

pub(crate) use self::error::PortError;
use self::error::Requested;
use self::rules::Conflict;
use self::table::{Refusal, Table, lock};
use super::registry::{Binding, RECORDS, Registry, namespace};
use crate::sys::{Generation, PerGeneration};
use crate::wire::mad::PortSpace;

/// Most network namespaces of one process.
const MAX_NAMESPACES: usize = 256;
/// Number of blocks of queue pair numbers.
const BLOCKS: u16 = 4_096;

/// The tables of this process, by network namespace.
static TABLES: PerGeneration<Mutex<BTreeMap<u64, Arc<Table>>>> = PerGeneration::new();

/// Attributes of a port to be bound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PortRequest {
    pub(crate) space: PortSpace,
    /// An address of this machine, which the caller checks; or the unspecified address, the wildcard of its family.
    pub(crate) address: IpAddr,
    /// The port; 0 for a free one.
    pub(crate) port: u16,
    /// Whether others may bind the port, too, if they allow it as well and none listens (`RDMA_OPTION_ID_REUSEADDR`).
    pub(crate) reuse_address: bool,
    /// Whether the port stays free for the other address family (`RDMA_OPTION_ID_AFONLY`). `None` is the system's
    /// default: true for IPv4, `net.ipv6.bindv6only` for IPv6.
    pub(crate) only_v6: Option<bool>,
    /// Block of queue pair numbers of the shard that is to receive the requests: their upper 12 bits.
    pub(crate) block: u16,
}

/// A bound port. Dropping it releases the port, except in a forked child.
pub(crate) struct Port {
    table: Arc<Table>,
    request: Requested,
    id: u64,
    /// The numbers of the same binding with further blocks.
    added: Mutex<Vec<u64>>,
    only_own_family: bool,
    generation: Generation,
}

impl Port {
    /// Binds a port of the network namespace of this thread.
    pub(crate) fn bind(request: &PortRequest) -> Result<Self, PortError> {
        Self::bind_in(&table()?, request)
    }

    fn bind_in(table: &Arc<Table>, request: &PortRequest) -> Result<Self, PortError> {
        let binding = binding_of(request)?;
        let requested = Requested { space: request.space, address: binding.address, port: request.port };
        if request.port == 0 {
            return Self::bind_one_of(table, requested, binding, settings::ephemeral_ports());
        }
        let first_unprivileged = settings::first_unprivileged_port();
        if request.port < first_unprivileged && !settings::may_bind_privileged() {
            return Err(PortError::Permission { requested, first_unprivileged });
        }
        match table.bind(request.space, std::iter::once(request.port), binding, true) {
            Ok(bound) => Ok(Self::of(table, requested, &binding, bound)),
            Err(refusal) => Err(error_of(requested, refusal.unwrap_or(Refusal::NotBound))),
        }
    }

    /// Binds the first free port from a random one on. A port that others share is not free, whatever they allow.
    fn bind_one_of(
        table: &Arc<Table>,
        requested: Requested,
        binding: Binding,
        range: RangeInclusive<u16>,
    ) -> Result<Self, PortError> {
        let (first, count) = (u32::from(*range.start()), range.len() as u32);
        let start = getrandom::u32().map_err(io::Error::other)? % count;
        let candidates = (0..count).map(|offset| (first + (start + offset) % count) as u16);
        match table.bind(requested.space, candidates, binding, false) {
            Ok(bound) => Ok(Self::of(table, requested, &binding, bound)),
            Err(_) => Err(PortError::NoneFree { requested, range }),
        }
    }

    fn of(table: &Arc<Table>, requested: Requested, binding: &Binding, (port, id): (u16, u64)) -> Self {
        Self {
            table: Arc::clone(table),
            request: Requested { port, ..requested },
            id,
            added: Mutex::default(),
            only_own_family: binding.only_own_family,
            generation: Generation::now(),
        }
    }

    /// Makes the port listen. The reuse flag ends, and the port must have no other owner of the same address.
    pub(crate) fn listen(&self) -> Result<(), PortError> {
        self.check_process()?;
        let Requested { space, port, .. } = self.request;
        self.table.listen((space, port), self.id).map_err(|refusal| error_of(self.request, refusal))
    }

    /// Has requests to the addresses of another device find the listener there. `block` is that of the device's shard.
    pub(crate) fn add_block(&self, block: u16) -> Result<(), PortError> {
        self.check_process()?;
        let Requested { space, port, .. } = self.request;
        let added = self.table.add_block((space, port), self.id, block);
        let id = added.map_err(|refusal| error_of(self.request, refusal))?;
        lock(&self.added).push(id);
        Ok(())
    }

    /// Returns whether a listener on all addresses of IPv6 leaves IPv4 alone.
    pub(crate) fn is_only_v6(&self) -> bool {
        self.only_own_family
    }

    /// Returns the port.
    pub(crate) fn number(&self) -> u16 {
        self.request.port
    }

    fn check_process(&self) -> io::Result<()> {
        let message = "the port belongs to the process that this one was forked from";
        if self.generation.is_current() { Ok(()) } else { Err(io::Error::other(message)) }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if self.generation.is_current() {
            let key = (self.request.space, self.request.port);
            lock(&self.added).drain(..).chain([self.id]).for_each(|id| self.table.release(key, id));
        }
    }
}

/// Where the listener of a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Listening {
    /// At the shard with this block.
    At(u16),
    /// At a shard that is not known yet: that with this block, or another one of the same listener.
    Elsewhere(u16),
    /// No process listens.
    Nowhere,
}

/// Returns where the listener is for a request that arrived at `destination`, among the shards that are known there. A
/// listener on the address comes before a wildcard.
///
/// It waits for no other process, so that the thread that receives packets may call it.
pub(crate) fn listener(space: PortSpace, port: u16, destination: IpAddr, is_known: impl Fn(u16) -> bool) -> Listening {
    let Ok(table) = table() else { return Listening::Nowhere };
    table.listener((space, port), destination.to_canonical(), &is_known)
}

/// Enters the ports of this process into the registry again if their file was removed, as some systems do when the
/// user's last session ends. Binding and listening do so, too; a process that only listens calls this at times.
pub(crate) fn restore() {
    if let Ok(table) = table() {
        table.restore();
    }
}

/// Returns the table of this thread's network namespace.
fn table() -> io::Result<Arc<Table>> {
    let mut tables = lock(TABLES.get().ok_or_else(|| io::Error::other("too many generations of forks"))?);
    let (namespace, count) = (namespace(), tables.len());
    if let Some(table) = tables.get(&namespace) {
        return Ok(Arc::clone(table));
    }
    if count >= MAX_NAMESPACES {
        return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too many network namespaces in one process"));
    }
    let table = Arc::new(Table::new(Registry::of_process(), namespace));
    tables.insert(namespace, Arc::clone(&table));
    Ok(table)
}

fn binding_of(request: &PortRequest) -> io::Result<Binding> {
    if request.block >= BLOCKS {
        let message = format!("block {}: blocks of queue pair numbers are below {BLOCKS}", request.block);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let address = request.address.to_canonical();
    Ok(Binding {
        address,
        only_own_family: request.only_v6.unwrap_or_else(|| address.is_ipv4() || settings::is_only_v6()),
        reuse_address: request.reuse_address,
        is_listening: false,
        block: request.block,
    })
}

fn error_of(requested: Requested, refusal: Refusal) -> PortError {
    match refusal {
        Refusal::Conflict(Conflict::SameAddress, holder) => PortError::InUse { requested, holder },
        Refusal::Conflict(Conflict::Loopback, holder) => PortError::LoopbackInUse { requested, holder },
        Refusal::Conflict(Conflict::Wildcard, holder) => PortError::NotAvailable { requested, holder },
        Refusal::TooManyOwners => PortError::TooManyOwners { requested, limit: RECORDS },
        Refusal::NotBound => io::Error::from(io::ErrorKind::InvalidInput).into(),
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
