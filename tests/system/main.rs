//! Several processes, their environment, files and network namespaces. The tests start this program again, as other
//! processes, other users and in other namespaces.

mod capture;
mod connection_keys;
mod connections;
mod direct_access;
mod discovery;
mod hold_host;
mod link_events;
mod monitor;
mod multicast;
mod rping;
mod shared_memory;
