//! Finding and opening devices.

use std::fmt;

use super::{Context, Error, ErrorKind, Result, SoftOptions};
use crate::provider::{self, Provider};

/// A device, of any provider, that can be opened.
///
/// A software device exists for each network interface that is up, for example `soft_lo` or `soft_eth0`. Its GIDs are
/// the interface's addresses. `soft:ADDRESS` names a device on one address of this machine; it always exists and is
/// never listed.
#[doc(alias = "ibv_device")]
#[derive(Clone)]
pub struct Device {
    name: String,
    provider: &'static dyn Provider,
}

impl Device {
    /// Returns the name that [`open`] takes.
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the device's provider, for example `soft`.
    pub fn provider_name(&self) -> &'static str {
        self.provider.name()
    }

    /// Opens the device (`ibv_open_device`). A device may be opened many times; the resulting contexts are independent.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the device no longer exists; otherwise any error of the provider.
    ///
    /// ```
    /// for device in rdma_verbs::verbs::devices()? {
    ///     let context = device.open()?;
    ///     println!("{}: {} GIDs", device.name(), context.gid_table(1)?.len());
    /// }
    /// # Ok::<(), rdma_verbs::verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        self.provider.open(&self.name).map(Context::built_in)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).field("provider", &self.provider.name()).finish()
    }
}

/// Returns all devices of all providers that exist now (`ibv_get_device_list`).
///
/// # Errors
/// The last provider's error, if providers failed to list their devices and no device was found.
///
/// ```
/// let devices = rdma_verbs::verbs::devices()?;
/// assert!(devices.iter().any(|device| device.name() == "soft_lo"));
/// # Ok::<(), rdma_verbs::verbs::Error>(())
/// ```
#[doc(alias("ibv_get_device_list", "ibv_free_device_list", "rdma_get_devices", "rdma_free_devices"))]
pub fn devices() -> Result<Vec<Device>> {
    let mut devices = Vec::new();
    let mut failure = None;
    for &provider in provider::providers() {
        match provider.device_names() {
            Ok(names) => devices.extend(names.into_iter().map(|name| Device { name, provider })),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if devices.is_empty() => Err(error),
        _ => Ok(devices),
    }
}

/// Opens a device by name: one of [`devices`], or `soft:ADDRESS` for the software transport on one address.
///
/// No socket is bound and no thread is started for an address before it is used.
///
/// # Errors
/// [`ErrorKind::NotFound`] if no provider has a device of that name. The message lists the existing names, and states
/// what to install if the name may be that of an adapter and libibverbs is missing.
///
/// ```
/// use rdma_verbs::verbs;
///
/// let context = verbs::open("soft:127.0.1.1")?;
/// assert_eq!(context.query_gid(1, 0)?.gid.to_string(), "::ffff:127.0.1.1");
///
/// let error = verbs::open("soft_nonsense0").unwrap_err();
/// assert_eq!(error.kind(), verbs::ErrorKind::NotFound);
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "ibv_open_device")]
pub fn open(name: &str) -> Result<Context> {
    for provider in provider::providers() {
        match provider.open(name) {
            Ok(context) => return Ok(Context::built_in(context)),
            Err(error) if error.kind() == ErrorKind::NotFound && !is_for(name, provider.name()) => {}
            Err(error) => return Err(error),
        }
    }
    let names: Vec<String> = devices()?.into_iter().map(|device| device.name).collect();
    let missing = missing_for(name);
    let message = format!("there is no device \"{name}\"; there are: {}, and soft:ADDRESS{missing}", names.join(", "));
    Err(Error::new("open_device", ErrorKind::NotFound, message))
}

/// Opens a software device by name (`soft_eth0`, `soft:ADDRESS`) like [`open`], with options. All tiers work on it.
///
/// # Errors
/// [`ErrorKind::NotFound`] if there is no such interface or address.
///
/// ```
/// use rdma_verbs::owned::Buffer;
/// use rdma_verbs::verbs::{self, Mtu, SoftOptions};
///
/// let context = verbs::open_soft("soft:127.0.1.115", &SoftOptions::new().shards(2).max_mtu(Mtu::Mtu1024))?;
/// assert_eq!(context.query_port(1)?.active_mtu, Mtu::Mtu1024);
/// let buffer = Buffer::from_vec(&context.alloc_pd()?, vec![1, 2, 3])?;
/// # drop(buffer);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn open_soft(name: &str, options: &SoftOptions) -> Result<Context> {
    options.clone().open(name).map(Context::built_in)
}

/// Explains why providers that could have such a device are unavailable on this machine, as the end of a sentence.
fn missing_for(name: &str) -> String {
    let providers = provider::providers();
    if providers.iter().any(|provider| name.starts_with(provider.name())) {
        return String::new();
    }
    let reasons = providers.iter().filter_map(|provider| provider.unavailable());
    reasons.map(|reason| format!("; {reason}")).collect()
}

/// Returns whether the name specifies its provider, as `soft:192.0.2.1` does; that provider's error is then final.
fn is_for(name: &str, provider: &str) -> bool {
    name.split_once(':').is_some_and(|(before, _)| before == provider)
}
