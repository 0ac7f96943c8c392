//! The registry's folder: candidates, and the check that it can be trusted.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::sys::{own_user, variable};

/// Longest path of the folder: the address of a Unix socket holds 107 bytes, and the longest socket name has 42.
const LONGEST: usize = 64;
/// Permission bits for group and others.
const OF_OTHERS: u32 = 0o077;

/// Returns the candidates for the folder. The order is the same for all processes of the user; the environment comes
/// last.
pub(super) fn candidates() -> impl Iterator<Item = PathBuf> {
    let user = own_user();
    let open_to_all = ["/dev/shm", "/tmp"].map(|folder| Path::new(folder).join(format!("rdma-verbs-{user}")));
    let of_session = std::iter::once(PathBuf::from(format!("/run/user/{user}")));
    let of_environment = std::iter::once_with(|| variable("XDG_RUNTIME_DIR").map(PathBuf::from)).flatten();
    let private = of_session.chain(of_environment).filter(|folder| is_private(folder));
    open_to_all.into_iter().chain(private.map(|folder| folder.join("rdma-verbs")))
}

/// Returns whether only this user can create entries there.
fn is_private(folder: &Path) -> bool {
    folder.is_absolute() && std::fs::symlink_metadata(folder).is_ok_and(|found| belongs_to_this_user(&found))
}

fn belongs_to_this_user(found: &std::fs::Metadata) -> bool {
    found.is_dir() && found.uid() == own_user() && found.mode() & OF_OTHERS == 0
}

/// Creates the folder, or accepts an existing one that belongs to this user alone.
pub(super) fn prepare(folder: &Path) -> io::Result<()> {
    if folder.as_os_str().len() > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "its name is too long for sockets in it"));
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = std::fs::symlink_metadata(folder)?;
    if belongs_to_this_user(&found) {
        return Ok(());
    }
    let message = match found.uid() {
        user if user != own_user() => format!("it belongs to user {user}, who created it first"),
        _ if !found.is_dir() => "it is not a folder".to_owned(),
        _ => "other users can enter it".to_owned(),
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// Warns if another user, or a mistake, occupies the folder's name. A candidate that does not exist or cannot be
/// written is unusable for all processes of the user, so it is not worth a warning.
pub(super) fn warn_of_others(refused: &[(PathBuf, io::Error)], used: &Path) {
    for (folder, error) in refused {
        // Errors of system calls have a number; refusals by `prepare` have none.
        if error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none() {
            let (folder, used) = (folder.display(), used.display());
            tracing::warn!(
                target: "rdma_verbs::processes",
                "{folder} cannot be used: {error}. Ask its owner or root to remove it, then restart the programs of \
                 this user that share addresses. Until then {used} is used"
            );
        } else {
            tracing::debug!(target: "rdma_verbs::processes", path = %folder.display(), %error, "no registry here");
        }
    }
}

/// Warns that addresses are not shared, with the reasons.
pub(super) fn warn_of_none(refused: &[(PathBuf, io::Error)]) {
    let reasons: Vec<String> = refused.iter().map(|(folder, error)| format!("{}: {error}", folder.display())).collect();
    tracing::warn!(
        target: "rdma_verbs::processes",
        "this process cannot share its addresses with other processes of this user, because no folder for the \
         registry can be used. Free space, or have other users' folders removed, in one of these places: {}",
        reasons.join("; ")
    );
}
