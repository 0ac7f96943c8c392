//! This process's share of the keys that it has with each other process of the user.

use crate::sys::PerGeneration;
use crate::types::KeyShare;

static KEY_SHARE: PerGeneration<OwnShare> = PerGeneration::new();

/// `None` if the system provides no random bytes.
struct OwnShare(Option<KeyShare>);

impl Default for OwnShare {
    fn default() -> Self {
        let mut bits = [0; KeyShare::BYTES];
        Self(getrandom::fill(&mut bits).ok().map(|()| KeyShare::new(bits)))
    }
}

/// Returns this process's share. `None` if the system provides no random bytes: then its connections have no key.
pub(super) fn key_share() -> Option<KeyShare> {
    KEY_SHARE.get()?.0
}
