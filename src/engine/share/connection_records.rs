//! The records of this process's connections, by which another process ends them if this one dies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use super::mailbox::{lock, name_of_process};
use super::registry::{ConnectionsFile, Registry};
use crate::cm::{ConnectionHandle, Orphan};
use crate::sys::PerGeneration;

/// The file of all shards of this process.
static FILE: PerGeneration<Mutex<Weak<ConnectionsFile>>> = PerGeneration::new();

/// The records of a shard's connections. Dropping it removes them.
#[derive(Default)]
pub(crate) struct ConnectionRecords {
    file: Option<Arc<ConnectionsFile>>,
    indices: BTreeMap<ConnectionHandle, u32>,
    /// A connection could not be recorded.
    has_failed: bool,
}

impl ConnectionRecords {
    /// Records a connection, or removes its record if it has ended.
    pub(crate) fn note(&mut self, handle: ConnectionHandle, orphan: Option<&Orphan>) {
        if let (Some(file), Some(index)) = (&self.file, self.indices.remove(&handle)) {
            file.remove(index);
        }
        let Some(orphan) = orphan else { return };
        let Some(file) = self.file() else { return };
        match file.add(orphan) {
            Ok(index) => drop(self.indices.insert(handle, index)),
            Err(error) if self.has_failed => tracing::debug!(
                target: "rdma_verbs::processes", %error, "a connection is not recorded"
            ),
            Err(error) => {
                self.has_failed = true;
                let reason = "if this process is killed, peers without traffic do not learn of it";
                tracing::warn!(target: "rdma_verbs::processes", %error, "connections cannot be recorded: {reason}");
            }
        }
    }

    /// Returns the file; `None` if this process shares no addresses.
    fn file(&mut self) -> Option<Arc<ConnectionsFile>> {
        if let Some(file) = &self.file {
            return Some(Arc::clone(file));
        }
        if self.has_failed {
            return None;
        }
        let mut current = lock(FILE.get()?);
        let file = current.upgrade().or_else(|| {
            let created = Registry::of_process()?.create_connections(&name_of_process()?);
            let reason = "if this process is killed, peers without traffic do not learn of it";
            let failed = |error: &_| {
                tracing::warn!(
                    target: "rdma_verbs::processes", %error, "no file for the connections of this process: {reason}"
                )
            };
            created.inspect_err(failed).ok().map(Arc::new)
        });
        self.has_failed = file.is_none();
        *current = file.as_ref().map_or_else(Weak::new, Arc::downgrade);
        self.file.clone_from(&file);
        file
    }
}

impl Drop for ConnectionRecords {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            self.indices.values().for_each(|index| file.remove(*index));
        }
    }
}
