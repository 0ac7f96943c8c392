//! What the environment says. `docs/drop-in.md` describes the variables.

use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::OnceLock;

use rdma_verbs::memory;
use rdma_verbs::provider::soft::{SoftConfig, environment_variable};
use rdma_verbs::types::{Mtu, VendorIdentity};
use tracing::level_filters::LevelFilter;

use crate::error_output::ErrorOutput;

/// All settings; read once.
pub(crate) struct Settings {
    /// Devices that are listed: those of these addresses, or, if there are none, those of the interfaces.
    pub(crate) addresses: Vec<IpAddr>,
    /// Peers that run this software, though no registry says so.
    pub(crate) peers: Vec<IpAddr>,
    /// How devices are opened.
    pub(crate) config: SoftConfig,
    /// Whether pages that the program takes away are found by handlers of signals.
    faults_by_signal: bool,
}

impl Settings {
    /// What the process needs before the first device is open.
    pub(crate) fn prepare_process(&self) {
        if !self.faults_by_signal {
            return;
        }
        if let Err(error) = memory::recover_from_faults() {
            tracing::info!("{error}");
        }
    }
}

/// The settings of this process.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        start_log();
        Settings {
            addresses: list("RDMA_VERBS_ADDRESSES"),
            peers: list("RDMA_VERBS_PEERS"),
            config: config(),
            faults_by_signal: faults_by_signal(),
        }
    })
}

fn value(name: &str) -> Option<String> {
    environment_variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn ignored(name: &str, value: &str, expected: impl Display) {
    tracing::warn!("{name} is \"{value}\", which is ignored: expected is {expected}");
}

fn list<T: FromStr>(name: &str) -> Vec<T> {
    let Some(text) = value(name) else { return Vec::new() };
    let parse = |part: &str| part.trim().parse().inspect_err(|_| ignored(name, part, "an address")).ok();
    text.split(',').filter(|part| !part.trim().is_empty()).filter_map(parse).collect()
}

/// A number, with `0x` in front or without.
fn number(name: &str) -> Option<u32> {
    let text = value(name)?;
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.inspect_err(|_| ignored(name, &text, "a number")).ok()
}

fn config() -> SoftConfig {
    // Programs in C tell each other numbers of queue pairs in INIT, and no capabilities.
    let mut config = SoftConfig::new().present_from_init(true);
    if let Some(bytes) = number("RDMA_VERBS_MTU") {
        match Mtu::from_bytes(bytes) {
            Some(mtu) => config = config.max_mtu(mtu),
            None => ignored("RDMA_VERBS_MTU", &bytes.to_string(), "256, 512, 1024, 2048 or 4096"),
        }
    }
    if let Some(shards) = number("RDMA_VERBS_SHARDS") {
        config = config.shards(shards);
    }
    let usual = VendorIdentity::default();
    config.vendor(VendorIdentity {
        vendor_id: number("RDMA_VERBS_VENDOR_ID").unwrap_or(usual.vendor_id),
        vendor_part_id: number("RDMA_VERBS_VENDOR_PART_ID").unwrap_or(usual.vendor_part_id),
        ..usual
    })
}

fn faults_by_signal() -> bool {
    match value("RDMA_VERBS_FAULTS").as_deref() {
        None | Some("signal") => true,
        Some("kernel") => false,
        Some(other) => {
            ignored("RDMA_VERBS_FAULTS", other, "signal or kernel");
            true
        }
    }
}

/// Warnings and errors go to the standard error output, more or less if `RDMA_VERBS_LOG` says so.
fn start_log() {
    let asked = value("RDMA_VERBS_LOG");
    let level = asked.as_deref().map_or(Ok(LevelFilter::WARN), str::parse);
    let output = ErrorOutput::begin();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(*level.as_ref().unwrap_or(&LevelFilter::WARN))
        .with_writer(move || output)
        .with_ansi(false)
        .without_time()
        // Where nobody can be told, the program goes on: the default tells it where it just failed, and panics there.
        .log_internal_errors(false)
        .finish();
    // Fails only if there is a log already, which then serves.
    let _ = tracing::subscriber::set_global_default(subscriber);
    if let (Err(_), Some(asked)) = (level, asked) {
        ignored("RDMA_VERBS_LOG", &asked, "off, error, warn, info, debug or trace");
    }
}
