//! The state that all devices of this process share. A fork gets a fresh one.
//!
//! A child inherits copies of the parent's objects, including locks that some thread of the parent held at the time and
//! that will never be released. So each generation has its own state, and leaves that of others untouched.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::mailbox::Mailbox;
use super::port_group::Group;
use super::registry::Registry;
use super::sys::Generation;
use crate::types::KeyShare;

/// Most generations (forks of forks) that can use the engine.
const MAX_GENERATIONS: usize = 64;

static STATES: [OnceLock<State>; MAX_GENERATIONS] = [const { OnceLock::new() }; MAX_GENERATIONS];

/// The state of one generation.
#[derive(Default)]
pub(super) struct State {
    groups: Mutex<BTreeMap<IpAddr, Group>>,
    leased: Mutex<BTreeSet<u32>>,
    mailbox: Mutex<Weak<Mailbox>>,
    registry: OnceLock<Option<Arc<Registry>>>,
    key_share: OnceLock<Option<KeyShare>>,
}

/// Returns this generation's state; `None` after too many forks.
pub(super) fn state() -> Option<&'static State> {
    STATES.get(Generation::now().number()).map(|state| state.get_or_init(State::default))
}

impl State {
    /// Locks the groups of sockets that this process receives with, by address. Taken before a mailbox's locks.
    pub(super) fn groups(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the QPN blocks in use by this process.
    pub(super) fn leased(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.leased.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the registry of this user's processes; `None` if no folder can be used for it.
    pub(super) fn registry(&self) -> Option<&Arc<Registry>> {
        self.registry.get_or_init(|| Registry::open().map(Arc::new)).as_ref()
    }

    /// Returns this process's share of the keys that it has with each other process of the user. `None` without
    /// randomness: then its connections have no key.
    pub(super) fn key_share(&self) -> Option<KeyShare> {
        *self.key_share.get_or_init(|| {
            let mut bits = [0; KeyShare::BYTES];
            getrandom::fill(&mut bits).ok().map(|()| KeyShare::new(bits))
        })
    }

    /// Returns the mailbox in the registry's folder, which lives as long as there is a reference to it.
    pub(super) fn mailbox(&self) -> Option<Arc<Mailbox>> {
        let mut place = self.mailbox.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mailbox) = place.upgrade() {
            return Some(mailbox);
        }
        let registry = self.registry()?;
        match registry.prepare().and_then(|()| Mailbox::open(registry.folder())) {
            Ok(mailbox) => {
                *place = Arc::downgrade(&mailbox);
                Some(mailbox)
            }
            Err(error) => {
                tracing::warn!(%error, "no mailbox for other processes of this user: addresses are not shared");
                None
            }
        }
    }
}
