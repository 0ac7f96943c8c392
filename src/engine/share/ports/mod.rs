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
            Ok(bound) => Ok(Self::of(table, requested, bound)),
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
            Ok(bound) => Ok(Self::of(table, requested, bound)),
            Err(_) => Err(PortError::NoneFree { requested, range }),
        }
    }

    fn of(table: &Arc<Table>, requested: Requested, (port, id): (u16, u64)) -> Self {
        let request = Requested { port, ..requested };
        Self { table: Arc::clone(table), request, id, generation: Generation::now() }
    }

    /// Makes the port listen. The reuse flag ends, and the port must have no other owner of the same address.
    pub(crate) fn listen(&mut self) -> Result<(), PortError> {
        self.check_process()?;
        let Requested { space, port, .. } = self.request;
        self.table.listen((space, port), self.id).map_err(|refusal| error_of(self.request, refusal))
    }

    /// Allows others to bind the port, too.
    pub(crate) fn allow_reuse(&mut self) -> Result<(), PortError> {
        self.set_flags(|binding| binding.reuse_address = !binding.is_listening)
    }

    /// Changes whether the port stays free for the other address family. Earlier bindings are not checked again.
    pub(crate) fn set_only_v6(&mut self, only_v6: bool) -> Result<(), PortError> {
        self.set_flags(|binding| binding.only_own_family = only_v6)
    }

    fn set_flags(&mut self, set: impl FnOnce(&mut Binding)) -> Result<(), PortError> {
        self.check_process()?;
        self.table.set_flags((self.request.space, self.request.port), self.id, set);
        Ok(())
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
            self.table.release((self.request.space, self.request.port), self.id);
        }
    }
}

/// Returns the block of the listener for a request that arrived at `destination`, if a live process has one. A listener
/// on the address comes before a wildcard.
///
/// It waits for no other process, so that the thread that receives packets may call it.
pub(crate) fn listener(space: PortSpace, port: u16, destination: IpAddr) -> Option<u16> {
    table().ok()?.listener((space, port), destination.to_canonical())
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
        Refusal::Conflict(Conflict::Wildcard, holder) => PortError::NotAvailable { requested, holder },
        Refusal::TooManyOwners => PortError::TooManyOwners { requested, limit: RECORDS },
        Refusal::NotBound => io::Error::from(io::ErrorKind::InvalidInput).into(),
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
