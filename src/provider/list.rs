//! The providers of this build, and the settings of the one that has any.
#![forbid(unsafe_code)]

use super::Provider;
use super::soft::SoftProvider;

pub use super::soft::SoftOptions;

/// Returns the providers of this build.
pub fn providers() -> &'static [&'static dyn Provider] {
    static SOFT: SoftProvider = SoftProvider::new();
    static ALL: &[&dyn Provider] = &[
        &SOFT,
        #[cfg(all(feature = "ibverbs", target_os = "linux", target_pointer_width = "64"))]
        &super::ibverbs::IbverbsProvider,
    ];
    ALL
}
