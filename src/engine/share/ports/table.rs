//! The ports of this process in one network namespace, and their records in the registry's file.
//!
//! The table in memory is the truth for this process's ports, the file for those of others. Without a file the ports
//! are arbitrated within this process only.
//!
//! Two locks: `changing` is held for a whole change, which waits for other processes. `own` is held for a lookup or a
//! single write of the file, because the thread that receives packets waits for it.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::registry::{Binding, Others, PortRecord, PortsChange, PortsFile, Registry};
use super::Listening;
use super::error::Holder;
use super::rules::{Conflict, Match, first_conflict, matches};
use crate::wire::mad::PortSpace;

/// Most times that a change opens the file again because it was removed.
const MAX_OPENS: usize = 3;

/// A port of a port space.
pub(super) type Key = (PortSpace, u16);

/// Why a port cannot be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    Conflict(Conflict, Holder),
    TooManyOwners,
    /// The port is not bound any more.
    NotBound,
}

pub(super) struct Table {
    registry: Option<&'static Registry>,
    namespace: u64,
    /// The locks of the file do not exclude threads of one process.
    changing: Mutex<()>,
    own: Mutex<Own>,
    /// Whether a warning was given that the file cannot be used.
    has_warned: AtomicBool,
}

#[derive(Default)]
struct Own {
    /// The bindings of each port; the key is the number of the port space, and the port.
    ports: BTreeMap<(u16, u16), Vec<Entry>>,
    next_id: u64,
    file: Option<Arc<PortsFile>>,
    /// Whether bindings that were entered into an earlier file, or without a file, are not in this one.
    is_incomplete: bool,
}

struct Entry {
    id: u64,
    binding: Binding,
    /// Index of the record in the file.
    index: Option<usize>,
}

/// A change of the file; `None` if there is no file.
type FileChange<'a> = Option<&'a PortsChange<'a>>;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number_of((space, port): Key) -> (u16, u16) {
    (space as u16, port)
}

impl Own {
    fn entries(&self, key: Key) -> &[Entry] {
        self.ports.get(&number_of(key)).map_or(&[], Vec::as_slice)
    }

    fn entry(&mut self, key: Key, id: u64) -> Option<&mut Entry> {
        self.ports.get_mut(&number_of(key))?.iter_mut().find(|entry| entry.id == id)
    }

    /// Returns the listeners of this process that take a request to the destination.
    fn listeners(&self, key: Key, destination: IpAddr) -> Vec<(Match, u16)> {
        let matching = |entry: &Entry| Some((matches(&entry.binding, destination)?, entry.binding.block));
        self.entries(key).iter().filter_map(matching).collect()
    }
}

impl Table {
    pub(super) fn new(registry: Option<&'static Registry>, namespace: u64) -> Self {
        let has_warned = AtomicBool::new(false);
        Self { registry, namespace, changing: Mutex::default(), own: Mutex::default(), has_warned }
    }

    /// Binds the first of the ports that is free; returns it with a number for the binding. With `may_share`, a port
    /// is free also if its owners and the binding allow reuse.
    ///
    /// # Errors
    ///
    /// The refusal of the last port, or `None` without any port.
    pub(super) fn bind(
        &self,
        space: PortSpace,
        ports: impl Iterator<Item = u16>,
        binding: Binding,
        may_share: bool,
    ) -> Result<(u16, u64), Option<Refusal>> {
        self.change(|change| {
            let mut refusal = None;
            for port in ports {
                match self.settle(change, (space, port), None, binding, may_share) {
                    Ok(id) => return Ok((port, id)),
                    Err(refused) => refusal = Some(refused),
                }
            }
            Err(refusal)
        })
    }

    /// Makes a bound port listen. No other owner may have the same address then, also if both allow reuse.
    pub(super) fn listen(&self, key: Key, id: u64) -> Result<(), Refusal> {
        self.change(|change| {
            let bound = lock(&self.own).entry(key, id).map(|entry| entry.binding).ok_or(Refusal::NotBound)?;
            let listening = Binding { is_listening: true, reuse_address: false, ..bound };
            self.settle(change, key, Some(id), listening, false).map(drop)
        })
    }

    /// Changes flags of a binding that decide about later ones only.
    pub(super) fn set_flags(&self, key: Key, id: u64, set: impl FnOnce(&mut Binding)) {
        let mut own = lock(&self.own);
        let file = own.file.clone();
        let Some(entry) = own.entry(key, id) else { return };
        set(&mut entry.binding);
        if let (Some(file), Some(index)) = (file, entry.index) {
            self.warn_of(file.write(key.0, key.1, index, Some(&entry.binding)));
        }
    }

    /// Ends a binding.
    pub(super) fn release(&self, key: Key, id: u64) {
        let mut own = lock(&self.own);
        let Some(entries) = own.ports.get_mut(&number_of(key)) else { return };
        let Some(position) = entries.iter().position(|entry| entry.id == id) else { return };
        let entry = entries.swap_remove(position);
        if entries.is_empty() {
            own.ports.remove(&number_of(key));
        }
        if let (Some(file), Some(index)) = (&own.file, entry.index) {
            self.warn_of(file.write(key.0, key.1, index, None));
        }
    }

    /// Returns where the listener is that takes a request to the destination. A listener on all addresses has a block
    /// for each device; it is the one that `is_known`.
    pub(super) fn listener(&self, key: Key, destination: IpAddr, is_known: &dyn Fn(u16) -> bool) -> Listening {
        let (mut found, file) = {
            let own = lock(&self.own);
            (own.listeners(key, destination), own.file.clone())
        };
        if !found.iter().any(|(quality, _)| *quality == Match::Address)
            && let Some(file) = file.or_else(|| self.find())
        {
            found.extend(listeners_elsewhere(&file, key, destination));
            if found.is_empty()
                && let Some(file) = self.replaced(&file)
            {
                found.extend(listeners_elsewhere(&file, key, destination));
            }
        }
        let Some(best) = found.iter().map(|(quality, _)| *quality).min() else { return Listening::Nowhere };
        let blocks: Vec<u16> =
            found.into_iter().filter(|(quality, _)| *quality == best).map(|(_, block)| block).collect();
        let known = blocks.iter().find(|block| is_known(**block)).map(|block| Listening::At(*block));
        known.or(blocks.first().map(|block| Listening::Elsewhere(*block))).unwrap_or(Listening::Nowhere)
    }

    /// Returns the file that is there instead of a removed one.
    fn replaced(&self, file: &Arc<PortsFile>) -> Option<Arc<PortsFile>> {
        if file.is_in_place() {
            return None;
        }
        self.forget(file);
        self.find()
    }

    /// Adds a block to a binding: requests to another device's addresses find the listener there.
    pub(super) fn add_block(&self, key: Key, id: u64, block: u16) -> Result<u64, Refusal> {
        self.change(|change| {
            let bound = lock(&self.own).entry(key, id).map(|entry| entry.binding).ok_or(Refusal::NotBound)?;
            let free = match change {
                None => None,
                Some(change) => {
                    let index = change.free_index(&change.others(key.0, key.1));
                    Some(index.ok_or(Refusal::TooManyOwners)?)
                }
            };
            self.enter(key, None, Binding { block, ..bound }, free)
        })
    }

    /// Registers this process's ports again if the file was removed.
    pub(super) fn restore(&self) {
        let is_in_place = |file: &Arc<PortsFile>| file.is_in_place();
        let (has_ports, is_incomplete, file) = {
            let own = lock(&self.own);
            (!own.ports.is_empty(), own.is_incomplete, own.file.clone())
        };
        if has_ports && (is_incomplete || !file.as_ref().is_some_and(is_in_place)) {
            self.change(|_| ());
        }
    }

    /// Calls the function while no other thread and no other process changes ports.
    pub(super) fn change<R>(&self, change: impl FnOnce(FileChange<'_>) -> R) -> R {
        let _turn = lock(&self.changing);
        for _ in 0..MAX_OPENS {
            let Some(file) = self.open() else { break };
            let changing = file.change();
            match changing {
                Ok(changing) => {
                    self.complete(&changing);
                    return change(Some(&changing));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.forget(&file),
                Err(error) => {
                    self.warn_of(Err(error));
                    break;
                }
            }
        }
        change(None)
    }

    /// Checks a binding against all others of the port, and enters it. `id` is the binding that it replaces.
    fn settle(
        &self,
        change: FileChange<'_>,
        key: Key,
        id: Option<u64>,
        binding: Binding,
        may_share: bool,
    ) -> Result<u64, Refusal> {
        {
            let own = lock(&self.own);
            let olds = || own.entries(key).iter().filter(|entry| Some(entry.id) != id).map(|entry| &entry.binding);
            if let Some((index, conflict)) = first_conflict(&binding, olds(), may_share) {
                let address = olds().nth(index).map_or(binding.address, |old| old.address);
                return Err(Refusal::Conflict(conflict, Holder { address, process: Some(std::process::id()) }));
            }
        }
        let Some(change) = change else { return self.enter(key, id, binding, None) };
        let others = change.others(key.0, key.1);
        check(change, &others, &binding, may_share)?;
        let index = change.free_index(&others);
        if index.is_none() && id.is_none() {
            return Err(Refusal::TooManyOwners);
        }
        let before = id.and_then(|id| lock(&self.own).entry(key, id).map(|entry| entry.binding));
        let id = self.enter(key, id, binding, index)?;
        if !change.is_exclusive() {
            // Another process may have entered a binding since the check. Each checks after it has entered its own, so
            // at least one of the two sees the other.
            check(change, &change.others(key.0, key.1), &binding, may_share).inspect_err(|_| match before {
                Some(before) => self.set_flags(key, id, |binding| *binding = before),
                None => self.release(key, id),
            })?;
        }
        Ok(id)
    }

    /// Enters a binding into the table and the file; `free` is the index of a record for a new one.
    fn enter(&self, key: Key, id: Option<u64>, binding: Binding, free: Option<usize>) -> Result<u64, Refusal> {
        let mut own = lock(&self.own);
        let file = own.file.clone();
        let new = own.next_id;
        let entry = match id {
            Some(id) => own.entry(key, id).ok_or(Refusal::NotBound)?,
            None => {
                own.next_id += 1;
                let entries = own.ports.entry(number_of(key)).or_default();
                entries.push(Entry { id: new, binding, index: None });
                own.entry(key, new).ok_or(Refusal::NotBound)?
            }
        };
        entry.binding = binding;
        let entered = entry.id;
        let Some(file) = file else {
            own.is_incomplete = true;
            return Ok(entered);
        };
        if let Some(index) = entry.index.or(free) {
            let written = file.write(key.0, key.1, index, Some(&binding));
            entry.index = written.is_ok().then_some(index);
            match written {
                // A lookup has opened another file since the change began, in which this process has no ports yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound => own.is_incomplete = true,
                written => self.warn_of(written),
            }
        }
        Ok(entered)
    }

    /// Enters the bindings of an earlier file into a new one.
    fn complete(&self, change: &PortsChange<'_>) {
        let missing: Vec<((u16, u16), u64, Binding)> = {
            let mut own = lock(&self.own);
            if !std::mem::take(&mut own.is_incomplete) {
                return;
            }
            let all = own.ports.iter().flat_map(|(number, entries)| entries.iter().map(|entry| (*number, entry)));
            all.filter(|(_, entry)| entry.index.is_none())
                .map(|(number, entry)| (number, entry.id, entry.binding))
                .collect()
        };
        for ((space, port), id, binding) in missing {
            let Some(space) = PortSpace::ALL.iter().find(|known| **known as u16 == space) else { continue };
            let others = change.others(*space, port);
            // If the binding was released meanwhile, it stays so.
            let _ = self.enter((*space, port), Some(id), binding, change.free_index(&others));
        }
    }

    /// Opens the file if it is not open.
    fn open(&self) -> Option<Arc<PortsFile>> {
        let current = lock(&self.own).file.clone();
        if current.is_some() {
            return current;
        }
        match self.registry?.ports(self.namespace) {
            Ok(file) => Some(self.keep(file)),
            Err(error) => {
                self.warn_of(Err(error));
                None
            }
        }
    }

    /// Opens the file if it exists.
    fn find(&self) -> Option<Arc<PortsFile>> {
        self.registry?.find_ports(self.namespace).ok().map(|file| self.keep(file))
    }

    /// Makes a file the current one, unless another thread has opened one meanwhile.
    fn keep(&self, file: PortsFile) -> Arc<PortsFile> {
        Arc::clone(lock(&self.own).file.get_or_insert_with(|| Arc::new(file)))
    }

    /// Forgets a file that was removed.
    fn forget(&self, removed: &Arc<PortsFile>) {
        let mut own = lock(&self.own);
        if own.file.as_ref().is_some_and(|file| Arc::ptr_eq(file, removed)) {
            own.file = None;
            own.is_incomplete = true;
            own.ports.values_mut().flatten().for_each(|entry| entry.index = None);
        }
    }

    /// Closes the file like a process that ends.
    #[cfg(test)]
    pub(super) fn close_file(&self) {
        lock(&self.own).file = None;
    }

    fn warn_of(&self, result: io::Result<()>) {
        if let Err(error) = result
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                target: "rdma_verbs::processes",
                %error,
                "ports of the connection manager are not shared with other processes of this user: two may bind the \
                 same one, and requests that reach another process do not find their listeners"
            );
        }
    }
}

/// Returns the conflict of a binding with those of other processes.
fn check(change: &PortsChange<'_>, others: &Others, binding: &Binding, may_share: bool) -> Result<(), Refusal> {
    let olds = || others.records.iter().map(|record| &record.binding);
    let Some((index, conflict)) = first_conflict(binding, olds(), may_share) else { return Ok(()) };
    let record = others.records.get(index);
    let holder = Holder {
        address: record.map_or(binding.address, |record| record.binding.address),
        process: record.and_then(|record| change.file().process(record.owner)),
    };
    Err(Refusal::Conflict(conflict, holder))
}

/// Returns the listeners of other processes that live, those that match best: at most as many as a port has records.
fn listeners_elsewhere(file: &PortsFile, key: Key, destination: IpAddr) -> Vec<(Match, u16)> {
    let matching = |(_, record): (usize, PortRecord)| Some((matches(&record.binding, destination)?, record));
    let mut found: Vec<(Match, PortRecord)> = file.records(key.0, key.1).filter_map(matching).collect();
    found.sort_by_key(|(quality, _)| *quality);
    let mut living: Vec<(Match, u16)> = Vec::new();
    for (quality, record) in found {
        if living.first().is_some_and(|(best, _)| *best < quality) {
            break;
        }
        if file.is_alive_elsewhere(record.owner) {
            living.push((quality, record.binding.block));
        }
    }
    living
}
