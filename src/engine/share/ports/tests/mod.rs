//! Ports within a process, between tables with a file each, which are like processes, and between processes.

mod arbitration;
mod file;
mod processes;

use std::path::PathBuf;

use super::*;

/// A registry folder that is removed at the end.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("rdma-verbs-ports-{name}-{}", std::process::id())))
    }

    /// Returns a table like that of another process: its locks are those of its own open file.
    pub(super) fn table(&self) -> Arc<Table> {
        let registry: &'static Registry = Box::leak(Box::new(Registry::open_in(&self.0).unwrap()));
        Arc::new(Table::new(Some(registry), namespace()))
    }

    pub(super) fn file(&self) -> PathBuf {
        self.0.join(format!("{}-ports", namespace()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a request without reuse.
pub(super) fn request(address: &str, port: u16) -> PortRequest {
    let address = address.parse().unwrap();
    PortRequest { space: PortSpace::Tcp, address, port, reuse_address: false, only_v6: None, block: 0x123 }
}

pub(super) fn reusable(address: &str, port: u16) -> PortRequest {
    PortRequest { reuse_address: true, ..request(address, port) }
}

/// Binds and listens.
pub(super) fn listen(table: &Arc<Table>, request: &PortRequest) -> Port {
    let port = Port::bind_in(table, request).unwrap();
    port.listen().unwrap();
    port
}

pub(super) fn errno<T>(result: Result<T, PortError>) -> Result<T, i32> {
    result.map_err(|error| error.errno())
}

pub(super) fn listener_in(table: &Table, port: u16, destination: &str) -> Option<u16> {
    block_of(table, (PortSpace::Tcp, port), destination.parse().unwrap())
}

/// Returns the block of a listener.
pub(super) fn block_of(table: &Table, key: (PortSpace, u16), destination: IpAddr) -> Option<u16> {
    match table.listener(key, destination, &|_| true) {
        Listening::At(block) => Some(block),
        Listening::Nowhere => None,
        Listening::Elsewhere(_) => panic!("all blocks are known"),
    }
}
