//! Settings from the environment. `docs/drop-in.md` describes the variables.

use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;

use once_cell::race::OnceBox;
use rdma_verbs::provider::recover_from_faults;
use rdma_verbs::provider::soft::{SoftOptions, environment_variable};
use rdma_verbs::types::{Mtu, VendorIdentity};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;

use crate::error_output::ErrorOutput;

/// All settings, read once.
pub(crate) struct Settings {
    /// Addresses of the listed devices. If there are none, the interfaces' devices are listed.
    pub(crate) addresses: Vec<IpAddr>,
    /// Peers that run this software although no registry lists them.
    pub(crate) peers: Vec<IpAddr>,
    /// Options that devices are opened with.
    pub(crate) options: SoftOptions,
    /// Whether signal handlers detect pages that the program unmaps.
    faults_by_signal: bool,
}

impl Settings {
    /// Prepares the process before the first device is opened.
    pub(crate) fn prepare_process(&self) {
        if !self.faults_by_signal {
            return;
        }
        if let Err(error) = recover_from_faults() {
            tracing::info!(target: "rdma_verbs::settings", "{error}");
        }
    }
}

/// Returns the settings of this process.
pub(crate) fn settings() -> &'static Settings {
    // A lock would stay taken in a child that is forked while another thread reads them. Threads that use the library
    // first at the same time each read them, and may each log what is ignored.
    static SETTINGS: OnceBox<Settings> = OnceBox::new();
    SETTINGS.get_or_init(|| {
        start_log();
        Box::new(Settings {
            addresses: list("RDMA_VERBS_ADDRESSES"),
            peers: list("RDMA_VERBS_PEERS"),
            options: options(),
            faults_by_signal: faults_by_signal(),
        })
    })
}

fn value(name: &str) -> Option<String> {
    environment_variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn ignored(name: &str, value: &str, expected: impl Display) {
    tracing::warn!(target: "rdma_verbs::settings", "{name} is \"{value}\", which is ignored; expected {expected}");
}

fn list<T: FromStr>(name: &str) -> Vec<T> {
    let Some(text) = value(name) else { return Vec::new() };
    let parse = |part: &str| part.trim().parse().inspect_err(|_| ignored(name, part, "an address")).ok();
    text.split(',').filter(|part| !part.trim().is_empty()).filter_map(parse).collect()
}

/// Returns the value of a variable as a number, with or without a leading `0x`.
fn number(name: &str) -> Option<u32> {
    let text = value(name)?;
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.inspect_err(|_| ignored(name, &text, "a number")).ok()
}

fn options() -> SoftOptions {
    // C programs exchange queue pair numbers in INIT, and do not exchange capabilities.
    let mut options = SoftOptions::new().present_from_init(true);
    if let Some(bytes) = number("RDMA_VERBS_MTU") {
        match Mtu::from_size(bytes) {
            Some(mtu) => options = options.max_mtu(mtu),
            None => ignored("RDMA_VERBS_MTU", &bytes.to_string(), "256, 512, 1024, 2048 or 4096"),
        }
    }
    if let Some(shards) = number("RDMA_VERBS_SHARDS") {
        options = options.shards(shards);
    }
    let usual = VendorIdentity::default();
    options.vendor(VendorIdentity {
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

/// Starts logging to the standard error output: warnings and errors, or the levels of `RDMA_VERBS_LOG`.
fn start_log() {
    let requested = value("RDMA_VERBS_LOG");
    let levels = requested.as_deref().map_or_else(|| Some(usual_levels()), levels);
    let output = ErrorOutput::begin();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(move || output)
        .with_ansi(false)
        .without_time()
        // If a line cannot be written, the program continues. By default the subscriber reports the failure to the same
        // output, and panics there.
        .log_internal_errors(false);
    let is_valid = levels.is_some();
    let subscriber = tracing_subscriber::registry().with(lines).with(levels.unwrap_or_else(usual_levels));
    // Fails only if a subscriber is set already, which is then used.
    let _ = tracing::subscriber::set_global_default(subscriber);
    if let (false, Some(requested)) = (is_valid, requested) {
        let levels = "off, error, warn, info, debug or trace";
        ignored("RDMA_VERBS_LOG", &requested, format_args!("{levels}, or targets with levels, as in {EXAMPLE}"));
    }
}

const EXAMPLE: &str = "warn,rdma_verbs::loss=debug";

fn usual_levels() -> Targets {
    Targets::new().with_default(LevelFilter::WARN)
}

/// Reads a level, or levels of targets, separated by commas. Without a level of its own, a target has the one that is
/// given alone, or that of warnings.
fn levels(text: &str) -> Option<Targets> {
    text.split(',').map(str::trim).try_fold(usual_levels(), |levels, part| match part.split_once('=') {
        None => Some(levels.with_default(part.parse::<LevelFilter>().ok()?)),
        Some((target, level)) if target.starts_with("rdma_verbs") => {
            Some(levels.with_target(target, level.parse::<LevelFilter>().ok()?))
        }
        Some(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn targets_have_their_level_and_the_others_the_one_alone() {
        let [device, loss] = ["rdma_verbs::device", "rdma_verbs::loss"];
        for (text, of_device, of_loss) in [
            ("info", Level::INFO, Level::INFO),
            (EXAMPLE, Level::WARN, Level::DEBUG),
            ("rdma_verbs::loss=debug, error", Level::ERROR, Level::DEBUG),
            ("rdma_verbs::loss=trace", Level::WARN, Level::TRACE),
        ] {
            let levels = levels(text).unwrap();
            for (target, most) in [(device, of_device), (loss, of_loss)] {
                for level in [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE] {
                    assert_eq!(levels.would_enable(target, &level), level <= most, "{text}: {target} {level}");
                }
            }
        }
        assert!(!levels("off").unwrap().would_enable(device, &Level::ERROR));
        for text in ["loud", "rdma_verbs::loss", "rdma_verbs::loss=", "other=info", "info,", ",", "=info", "info=info"]
        {
            assert!(levels(text).is_none(), "{text}");
        }
    }
}
