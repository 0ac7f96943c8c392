//! Checks of devices: the software devices, and what adapters need.

use std::net::IpAddr;
use std::path::Path;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::unistd::{AccessFlags, access};
use rdma_verbs::provider::providers;
use rdma_verbs::verbs::{self, Context, Device, SharedMemory};

use super::check::Finding;
use super::system::{kernel_devices, names_in, own_user, sudo};
use super::{limits, ports, transfer};

/// The most devices on which transfers are made.
const MAX_TRANSFERS: usize = 8;
const SOFT: &str = "soft";
const DEVICE_FILES: &str = "/dev/infiniband";

/// Returns the software devices of this machine: one for each interface that is up and has addresses.
pub(super) fn soft_devices() -> Result<Vec<Device>, String> {
    let all = verbs::devices().map_err(|error| error.to_string())?;
    Ok(all.into_iter().filter(|device| device.provider_name() == SOFT).collect())
}

/// Returns the addresses of all software devices.
pub(super) fn addresses() -> Vec<IpAddr> {
    let contexts = soft_devices().unwrap_or_default().into_iter().filter_map(|device| device.open().ok());
    contexts.filter_map(|context| context.gid_table(1).ok()).flatten().map(|entry| entry.gid.to_ip()).collect()
}

pub(super) fn devices() -> Finding {
    let found = match soft_devices() {
        Ok(found) => found,
        Err(error) => {
            let command = command_for_opening(&error).unwrap_or_else(|| "ip address show".to_owned());
            return Finding::problem(error, command);
        }
    };
    if found.is_empty() {
        let why = "there is no software device: no network interface is up and has an address";
        return Finding::problem(why, loopback_up());
    }
    if is_loopback_down() {
        let why = "the loopback interface is down: packets to addresses of this machine are lost, whatever interface \
                   has the address";
        return Finding::problem(why, loopback_up());
    }
    let names: Vec<&str> = found.iter().map(Device::name).collect();
    let failures: Vec<String> = found
        .iter()
        .filter_map(|device| device.open().err().map(|error| format!("{}: {error}", device.name())))
        .collect();
    if failures.is_empty() {
        return Finding::ok(format!("{} can be opened", names.join(", ")));
    }
    let why = format!("{} of {} devices cannot be opened", failures.len(), found.len());
    let command = command_for_opening(&failures.join(" ")).unwrap_or_else(|| "rdma-verbs devices".to_owned());
    failures.into_iter().fold(Finding::problem(why, command), Finding::detail)
}

/// Returns the command that mends what prevents a device from being opened, if there is one.
pub(super) fn command_for_opening(failure: &str) -> Option<String> {
    match failure {
        text if text.contains("Too many open files") => Some(limits::more_descriptors()),
        text if text.contains("RDMA_VERBS_CAPTURE") => {
            Some("unset RDMA_VERBS_CAPTURE RDMA_VERBS_CAPTURE_BYTES".to_owned())
        }
        _ => None,
    }
}

fn loopback_up() -> String {
    format!("{}ip link set dev lo up", sudo())
}

/// Returns whether the loopback interface is down, while others are up.
fn is_loopback_down() -> bool {
    let all = getifaddrs().into_iter().flatten();
    let flags: Vec<InterfaceFlags> =
        all.map(|interface| interface.flags).filter(|flags| flags.contains(InterfaceFlags::IFF_LOOPBACK)).collect();
    !flags.is_empty() && !flags.iter().any(|flags| flags.contains(InterfaceFlags::IFF_UP))
}

/// Makes a transfer on each device, over sockets even if it could use memory.
pub(super) fn transfer() -> Finding {
    let found = soft_devices().unwrap_or_default();
    if found.is_empty() {
        return Finding::skipped("there is no software device");
    }
    if is_loopback_down() {
        return Finding::skipped("it needs \"devices\"");
    }
    let tried = &found[..found.len().min(MAX_TRANSFERS)];
    let names: Vec<&str> = tried.iter().map(Device::name).collect();
    let failures: Vec<String> = tried
        .iter()
        .filter_map(|device| {
            let error = transfer::between_two(device.name(), SharedMemory::Off).err()?;
            Some(format!("{}: {error}", device.name()))
        })
        .collect();
    if failures.is_empty() {
        return Finding::ok(format!("two queue pairs of this process exchanged data on {}", names.join(", ")));
    }
    let why = format!("transfers fail on {} of {} devices", failures.len(), tried.len());
    let command = command_for(&failures.join(" "));
    failures.into_iter().fold(Finding::problem(why, command), Finding::detail)
}

/// Returns a command that finds or mends the cause of a failed transfer.
pub(super) fn command_for(failure: &str) -> String {
    if let Some(command) = command_for_opening(failure) {
        return command;
    }
    match failure {
        text if text.contains("is held by") => ports::show(),
        // A rule for packets that leave, or for those that arrive: on this machine, nothing else loses them all.
        text if text.contains("not permitted") || text.contains("NoResponse") => format!("{}nft list ruleset", sudo()),
        _ => "RDMA_VERBS_CAPTURE=/tmp rdma-verbs doctor".to_owned(),
    }
}

/// Lists the GIDs, and which one a queue pair uses by default.
pub(super) fn gids() -> Finding {
    let contexts: Vec<Context> =
        soft_devices().unwrap_or_default().iter().filter_map(|device| device.open().ok()).collect();
    if contexts.is_empty() {
        return Finding::skipped("there is no software device");
    }
    let mut lines = Vec::new();
    let mut reachable = Vec::new();
    for context in &contexts {
        let default = context.default_gid_index(1).ok();
        for entry in context.gid_table(1).unwrap_or_default() {
            let is_default = default == Some(entry.gid_index);
            let address = entry.gid.to_ip();
            if is_default && !address.is_loopback() {
                reachable.push(format!("{address} of {}", context.name()));
            }
            let mark = if is_default { ", the default" } else { "" };
            let kind = entry.gid_type.name();
            lines.push(format!("{} GID {}: {address}, {kind}{mark}", context.name(), entry.gid_index));
        }
    }
    let finding = if reachable.is_empty() {
        Finding::note("only loopback addresses: other hosts cannot be reached").command("ip address show")
    } else {
        Finding::ok(format!("by default, queue pairs use {}", reachable.join(", ")))
    };
    lines.into_iter().fold(finding, Finding::detail)
}

/// Checks the library that adapters need: their kernel drivers without it are useless for programs.
pub(super) fn library() -> Finding {
    let adapters = providers().iter().find(|provider| provider.name() != SOFT);
    let Some(adapters) = adapters else {
        return Finding::skipped("this program was built without the feature \"ibverbs\"");
    };
    judge_library(adapters.unavailable(), adapters.device_names().unwrap_or_default(), &kernel_devices())
}

fn judge_library(unavailable: Option<String>, names: Vec<String>, in_kernel: &[String]) -> Finding {
    const INSTALL: &str = "apt-get install libibverbs1 ibverbs-providers";
    let install = format!("{}{INSTALL}", sudo());
    match unavailable {
        Some(reason) if in_kernel.is_empty() => Finding::ok("not needed: the kernel has no adapters").detail(reason),
        Some(reason) => {
            let why = format!("the kernel has {}, but programs cannot use it", in_kernel.join(", "));
            Finding::problem(why, install).detail(reason)
        }
        None if names.is_empty() && in_kernel.is_empty() => Finding::ok("it is installed; the kernel has no adapters"),
        None if names.is_empty() => {
            let why = format!(
                "the kernel has {}, but libibverbs lists no device: the adapter's provider library or the module \
                 ib_uverbs is missing",
                in_kernel.join(", ")
            );
            Finding::problem(why, install).command(format!("{}modprobe ib_uverbs", sudo()))
        }
        None => Finding::ok(format!("it lists {}", names.join(", "))),
    }
}

/// Checks that this user may use the files of adapters.
pub(super) fn device_files() -> Finding {
    let names = names_in(DEVICE_FILES);
    let wanted = names.iter().filter(|name| name.starts_with("uverbs") || *name == "rdma_cm");
    let refused: Vec<(String, Errno)> = wanted
        .map(|name| Path::new(DEVICE_FILES).join(name))
        .filter_map(|path| {
            let error = access(&path, AccessFlags::R_OK | AccessFlags::W_OK).err()?;
            Some((path.display().to_string(), error))
        })
        .collect();
    let in_kernel = kernel_devices();
    if !refused.is_empty() {
        let why = format!("user {} may not read and write the files of adapters", own_user());
        let paths: Vec<&str> = refused.iter().map(|(path, _)| path.as_str()).collect();
        let finding = Finding::problem(why, format!("{}chmod a+rw {}", sudo(), paths.join(" ")));
        return refused
            .iter()
            .fold(finding, |finding, (path, error)| finding.detail(format!("{path}: {}", error.desc())));
    }
    let is_missing = !names.iter().any(|name| name.starts_with("uverbs"));
    match (is_missing, in_kernel.is_empty()) {
        (true, true) => Finding::ok("not needed: the kernel has no adapters"),
        (true, false) => {
            let why = format!("the kernel has {}, but {DEVICE_FILES}/uverbs0 does not exist", in_kernel.join(", "));
            Finding::problem(why, format!("{}modprobe ib_uverbs", sudo()))
                .detail("in a container: start it with --device /dev/infiniband/uverbs0")
        }
        (false, _) => Finding::ok(format!("{DEVICE_FILES} can be used: {}", names.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Outcome;
    use super::*;

    #[test]
    fn the_library_is_missing_only_if_there_are_adapters() {
        let reason = || Some("not found".to_owned());
        let adapter = ["mlx5_0".to_owned()];
        assert_eq!(judge_library(reason(), Vec::new(), &[]).outcome, Outcome::Ok);
        let missing = judge_library(reason(), Vec::new(), &adapter);
        assert_eq!(missing.outcome, Outcome::Problem);
        assert!(missing.commands[0].contains("ibverbs-providers"));
        let without_provider = judge_library(None, Vec::new(), &adapter);
        assert_eq!((without_provider.outcome, without_provider.commands.len()), (Outcome::Problem, 2));
        assert_eq!(judge_library(None, adapter.to_vec(), &adapter).outcome, Outcome::Ok);
    }
}
