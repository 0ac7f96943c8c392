//! The functions that `librdmacm.so.1` exports, in one table.

use crate::connection::{self, Table, VERSION};
use crate::rsocket::SOCKETS;
use crate::version::exported;

static TABLE: Table = Table { connections: connection::TABLE, sockets: SOCKETS };

/// Returns the functions of librdmacm, if the caller has the same list of them; otherwise null.
#[unsafe(no_mangle)]
extern "C" fn rdma_verbs_connection_functions(version: u64) -> *const Table {
    if version == VERSION { &raw const TABLE } else { std::ptr::null() }
}

exported! {
    "RDMA_VERBS_PRIVATE": rdma_verbs_connection_functions;
}
