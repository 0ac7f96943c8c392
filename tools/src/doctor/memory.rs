//! Checks of what the processes of a user share: the registry's folder, space, and memory.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};
use rdma_verbs::verbs::SharedMemory;

use super::check::Finding;
use super::devices::soft_devices;
use super::system::{is_in_user_namespace, number, own_user, size, sudo};
use super::transfer;

const FOLDER: &str = "/dev/shm";
/// The registry's files take some 100 KiB for each address.
const LEAST_SPACE: u64 = 1 << 20;
const GOOD_SPACE: u64 = 16 << 20;
/// The owner of the files of users that a user namespace does not have (`/proc/sys/kernel/overflowuid`).
const UNMAPPED: u32 = 65_534;
/// Permission bits for group and others.
const OF_OTHERS: u32 = 0o077;

/// Checks the folder in which the processes of this user find each other (`docs/architecture/processes.md`).
pub(super) fn registry() -> Finding {
    let folder = Path::new(FOLDER).join(format!("rdma-verbs-{}", own_user()));
    match std::fs::symlink_metadata(&folder) {
        Ok(found) => existing(&folder, &found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => missing(&folder),
        Err(error) => Finding::problem(format!("{}: {error}", folder.display()), format!("ls -ld {FOLDER}")),
    }
}

fn existing(folder: &Path, found: &Metadata) -> Finding {
    let (shown, own) = (folder.display(), own_user());
    let (is_folder, user, mode) = (found.is_dir(), found.uid(), found.mode() & 0o777);
    let consequence = "programs of this user use /tmp instead, apart from those that already use this folder";
    if user != own && user == UNMAPPED && is_in_user_namespace() {
        let why = format!("{shown} belongs to a user outside of this user namespace, which shares {FOLDER} with it");
        return Finding::problem(why, format!("mount -t tmpfs -o mode=1777 tmpfs {FOLDER}")).detail(consequence);
    }
    if user != own {
        let why = format!("{shown} belongs to user {user}, who created it first");
        return Finding::problem(why, format!("{}rm -r {shown}", sudo())).detail(consequence);
    }
    if !is_folder {
        return Finding::problem(format!("{shown} is not a folder"), format!("rm {shown}")).detail(consequence);
    }
    if mode & OF_OTHERS != 0 {
        let why = format!("{shown} has mode {mode:o}: other users can enter it");
        return Finding::problem(why, format!("chmod 700 {shown}")).detail(consequence);
    }
    match access(folder, AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => Finding::ok(format!("{shown} belongs to this user alone")),
        Err(error) => {
            let command = format!("{}mount -o remount,rw {FOLDER}", sudo());
            Finding::problem(format!("{shown} cannot be written: {}", error.desc()), command).detail(consequence)
        }
    }
}

/// The first program of this user creates the folder.
fn missing(folder: &Path) -> Finding {
    let shown = folder.display();
    if !Path::new(FOLDER).is_dir() {
        let command = format!("{0}mkdir -m 1777 {FOLDER} && {0}mount -t tmpfs -o mode=1777 tmpfs {FOLDER}", sudo());
        return Finding::problem(format!("{FOLDER} does not exist"), command);
    }
    match access(FOLDER, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => Finding::ok(format!("{shown} does not exist yet, and can be created")),
        Err(nix::errno::Errno::EROFS) => {
            let why = format!("{shown} cannot be created: {FOLDER} is mounted read-only");
            Finding::problem(why, format!("{}mount -o remount,rw {FOLDER}", sudo()))
        }
        Err(error) => {
            let why = format!("{shown} cannot be created: {}", error.desc());
            Finding::problem(why, format!("{}chmod 1777 {FOLDER}", sudo()))
        }
    }
}

pub(super) fn space() -> Finding {
    match statvfs(FOLDER) {
        Ok(found) => judge_space(found.blocks_available().saturating_mul(found.fragment_size())),
        Err(error) => Finding::skipped(format!("{FOLDER}: {}", error.desc())),
    }
}

fn judge_space(bytes: u64) -> Finding {
    let command = format!("{}mount -o remount,size=64M {FOLDER}", sudo());
    let is = format!("{FOLDER} has {} free", size(bytes));
    match bytes {
        ..LEAST_SPACE => Finding::problem(format!("{is}: the records of this user's processes do not fit"), command)
            .detail("in a container: start it with --shm-size=64m"),
        LEAST_SPACE..GOOD_SPACE => Finding::note(is).command(command),
        _ => Finding::ok(is),
    }
}

/// Makes a transfer that must go through memory.
pub(super) fn shared() -> Finding {
    let Some(device) = soft_devices().unwrap_or_default().into_iter().next() else {
        return Finding::skipped("there is no software device");
    };
    let setting = device.open().ok().and_then(|context| context.shared_memory()).unwrap_or_default();
    let tried = transfer::between_two(device.name(), SharedMemory::Require);
    if tried.as_ref().is_err_and(|error| error.contains("UDP port 4791")) {
        return Finding::skipped("it needs \"port\"");
    }
    judge_shared(setting, tried)
}

fn judge_shared(setting: SharedMemory, tried: Result<(), String>) -> Finding {
    let is_wanted = setting != SharedMemory::Off;
    match tried {
        Ok(()) if is_wanted => {
            Finding::ok(format!("a transfer went through memory; the setting is {}", setting.name()))
        }
        Ok(()) => Finding::note("it works, but is switched off: packets within this host go through the loopback")
            .command("export RDMA_VERBS_SHARED_MEMORY=auto"),
        Err(error) if setting == SharedMemory::Require => {
            let why = "it is required, and does not work: no connection within this host succeeds";
            Finding::problem(why, "export RDMA_VERBS_SHARED_MEMORY=auto").detail(error)
        }
        Err(error) => Finding::note("it does not work: packets within this host go through the loopback").detail(error),
    }
}

pub(super) fn overcommit() -> Finding {
    judge_overcommit(number("/proc/sys/vm/overcommit_memory"))
}

fn judge_overcommit(mode: Option<u64>) -> Finding {
    match mode {
        None => Finding::skipped("/proc/sys/vm/overcommit_memory cannot be read here"),
        Some(2) => Finding::note(
            "overcommit_memory is 2: memory is not exported to other processes, and requests go through packets",
        )
        .command(format!("{}sysctl -w vm.overcommit_memory=0", sudo())),
        Some(mode) => Finding::ok(format!("overcommit_memory is {mode}")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

    use super::super::check::Outcome::{Note, Ok as Fine, Problem, Skipped};
    use super::*;

    #[test]
    fn space_is_judged() {
        assert_eq!(
            [0, 64 << 10, 2 << 20, 1 << 30].map(|bytes| judge_space(bytes).outcome),
            [Problem, Problem, Note, Fine]
        );
    }

    #[test]
    fn early_commitment_is_noted() {
        assert_eq!(
            [None, Some(0), Some(1), Some(2)].map(|mode| judge_overcommit(mode).outcome),
            [Skipped, Fine, Fine, Note]
        );
    }

    #[test]
    fn memory_that_is_required_must_work() {
        let failed = || Err("no file".to_owned());
        assert_eq!(judge_shared(SharedMemory::Require, failed()).outcome, Problem);
        assert_eq!(judge_shared(SharedMemory::Auto, failed()).outcome, Note);
        assert_eq!(judge_shared(SharedMemory::Auto, Ok(())).outcome, Fine);
        assert_eq!(judge_shared(SharedMemory::Off, Ok(())).outcome, Note);
    }

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        let parent = std::env::temp_dir().join(format!("rdma-verbs-doctor-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&parent).unwrap();
        let folder = parent.join("rdma-verbs-test");
        std::fs::create_dir(&folder).unwrap();
        let outcome_of = |mode| {
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
            existing(&folder, &std::fs::symlink_metadata(&folder).unwrap()).outcome
        };
        assert_eq!([0o700, 0o750, 0o701].map(outcome_of), [Fine, Problem, Problem]);
        std::fs::remove_dir_all(parent).unwrap();
    }
}
