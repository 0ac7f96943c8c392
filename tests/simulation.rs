//! The transport in virtual time: connections on faulty links, and streams over links with a limited rate.

#[path = "netsim/campaign.rs"]
mod campaign;
mod netsim;
mod networks;
