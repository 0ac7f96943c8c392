//! librdmacm as safe objects.
//!
//! An event channel has a lock. Every call that reads or changes an identifier of the channel holds it, and so does the
//! call that takes an event, because that changes identifiers as well. None of them waits: the channel's descriptor
//! does not block. Each event is acknowledged as soon as it is copied, so that destroying an identifier never waits for
//! the program.

mod address;
mod event;
mod id;
mod library;

pub(in super::super) use event::{Channel, Event, EventType};
pub(in super::super) use id::{ConnectionOption, Id, Parameters};
pub(super) use library::library;
pub(in super::super) use library::{Library, unavailable};
