//! The file of a capture: its name and its creation.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use libc::{O_NOFOLLOW, O_NONBLOCK};

use crate::sys::{OpenError, is_writable, own_group, own_user};
use crate::types::CaptureOptions;

/// File name used if the configured path is a folder.
const NAME_IN_FOLDER: &str = "rdma-verbs-%d-%p.pcapng";
/// Most captures that may use numbered files of one name.
const MOST_NUMBERS: u32 = 1_000;
/// Packets hold the application's data: only the user may read them.
const PERMISSIONS: u32 = 0o600;

/// Permission bits of a folder: its writers may create and rename files in it, with the sticky bit only their own.
const WRITABLE_BY_ALL: u32 = 0o002;
const WRITABLE_BY_GROUP: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// Creates the file that the options name, empty.
pub(super) fn create(options: &CaptureOptions, device: &str) -> Result<(PathBuf, File), OpenError> {
    let path = expand(&options.path, device)?;
    for number in 1..=MOST_NUMBERS {
        let path = numbered(&path, number);
        match open(&path).map_err(|error| explain(&path, error))? {
            Some(file) => return Ok((path, file)),
            None => continue,
        }
    }
    let message = format!(
        "{MOST_NUMBERS} files named as {} are there already, and other captures write to them or other users may \
         rename them; name a file in a folder of this user alone",
        path.display()
    );
    Err(OpenError { message, source: io::ErrorKind::AlreadyExists.into() })
}

/// Creates a file, or truncates an existing one. Returns `None` if the name belongs to a file that must stay unchanged.
///
/// In a folder that other users can write to, a name proves nothing: they may have created a link to another file of
/// this user, a file that they can read, or a device that blocks. So an existing file is used only if it is a regular
/// file of this user with a single name, and if no other user could have given it that name.
fn open(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    // Without blocking: a FIFO that another user created would hang the program.
    options.write(true).mode(PERMISSIONS).custom_flags(O_NOFOLLOW | O_NONBLOCK);
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            // The lock shows the next capture of this name that the file is in use. Some file systems have no locks.
            let _ = file.try_lock();
            return Ok(Some(file));
        }
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Err(_) => {}
    }
    if others_may_rename_files(path) {
        return Ok(None);
    }
    check_kind(&path.symlink_metadata()?)?;
    let file = options.open(path)?;
    check(&file.metadata()?)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(None),
        // Without locks, the last one wins.
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    file.set_len(0)?;
    Ok(Some(file))
}

/// Prepares an open file of another process for a capture: it is emptied. The rules are those for existing files.
pub(in crate::engine) fn prepare(file: &File) -> io::Result<()> {
    check(&file.metadata()?)?;
    if !is_writable(file.as_fd()) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not open for writing"));
    }
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another capture writes to it"));
    }
    file.set_len(0)
}

/// Returns whether other users may rename files of this user in the folder of this path. The user's own group counts as
/// the user: on many systems it has no other members, and folders are writable by it.
fn others_may_rename_files(path: &Path) -> bool {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(found) = folder.metadata() else { return true };
    let may = |permission| found.mode() & permission != 0;
    let by_others = may(WRITABLE_BY_ALL) || may(WRITABLE_BY_GROUP) && found.gid() != own_group();
    let is_ours = [0, own_user()].contains(&found.uid());
    !is_ours || by_others && !may(STICKY)
}

/// Checks that a capture may overwrite the file with this metadata.
fn check(found: &Metadata) -> io::Result<()> {
    check_kind(found)?;
    let refuse = |message: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    match (found.uid(), found.nlink()) {
        (user, _) if user != own_user() => refuse(format!("it belongs to user {user}")),
        (_, 1) => Ok(()),
        (_, names) => refuse(format!("the file has {names} names (hard links)")),
    }
}

fn check_kind(found: &Metadata) -> io::Result<()> {
    let refuse = |message| Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    match found {
        found if found.is_symlink() => refuse("it is a symbolic link, which captures do not follow"),
        found if !found.is_file() => refuse("it is not a regular file"),
        _ => Ok(()),
    }
}

fn explain(path: &Path, source: io::Error) -> OpenError {
    let message = format!(
        "the capture file {} cannot be written; name a file, or a folder that exists and in which this process may \
         create files",
        path.display()
    );
    OpenError { message, source }
}

/// Expands the placeholders for device and process.
fn expand(path: &Path, device: &str) -> Result<PathBuf, OpenError> {
    let Some(text) = path.to_str().filter(|text| !text.is_empty()) else {
        return Err(invalid("the capture's path is empty or no UTF-8 text; name a file or a folder".to_owned()));
    };
    let path = if path.is_dir() || text.ends_with('/') { path.join(NAME_IN_FOLDER) } else { path.to_owned() };
    let mut expanded = String::new();
    let text = path.to_string_lossy();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            expanded.push(character);
            continue;
        }
        match characters.next() {
            Some('d') => expanded.extend(device.chars().map(harmless)),
            Some('p') => expanded.push_str(&std::process::id().to_string()),
            Some('%') => expanded.push('%'),
            other => {
                let found: String = other.into_iter().collect();
                let message = format!(
                    "the capture's path {text} contains \"%{found}\"; allowed are %d for the device, %p for the \
                     process, %% for a percent sign"
                );
                return Err(invalid(message));
            }
        }
    }
    Ok(expanded.into())
}

pub(super) fn invalid(message: String) -> OpenError {
    OpenError { message, source: io::ErrorKind::InvalidInput.into() }
}

/// Replaces a character of a device name that does not belong in a file name.
fn harmless(character: char) -> char {
    if character.is_ascii_alphanumeric() || "._-".contains(character) { character } else { '-' }
}

/// Returns `file.pcapng`, `file-2.pcapng`, `file-3.pcapng`, … for the numbers from 1 on.
fn numbered(path: &Path, number: u32) -> PathBuf {
    if number == 1 {
        return path.to_owned();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut name = format!("{stem}-{number}");
    if let Some(extension) = path.extension() {
        name = format!("{name}.{}", extension.to_string_lossy());
    }
    path.with_file_name(name)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Creates a folder for one test.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("rdma-verbs-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn placeholders_for_device_and_process_are_expanded() {
        let expanded = expand(Path::new("/x/%d_%p_%%.pcapng"), "soft:fe80::1/é").unwrap();
        assert_eq!(expanded.to_str().unwrap(), format!("/x/soft-fe80--1--_{}_%.pcapng", std::process::id()));
        let inside = expand(Path::new("/tmp"), "soft_lo").unwrap();
        assert_eq!(inside.to_str().unwrap(), format!("/tmp/rdma-verbs-soft_lo-{}.pcapng", std::process::id()));
    }

    #[test]
    fn wrong_names_are_explained() {
        let message = expand(Path::new("/x/%q"), "d").unwrap_err().message;
        assert!(message.contains("\"%q\"") && message.contains("%d for the device"), "{message}");
        assert!(expand(Path::new("/x/%"), "d").is_err());
        assert!(expand(Path::new(""), "d").is_err());
        let error = create(&CaptureOptions::new("/nowhere/at/all.pcapng"), "d").unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::NotFound);
        assert!(error.message.contains("a folder that exists"), "{}", error.message);
        let device = create(&CaptureOptions::new("/dev/null"), "d").unwrap_err();
        assert!(device.source.to_string().contains("not a regular file"), "{}", device.source);
    }

    #[test]
    fn files_in_use_are_left_alone_and_others_overwritten() {
        let folder = folder("capture-names");
        let options = CaptureOptions::new(folder.join("a.pcapng"));
        std::fs::write(&options.path, "old").unwrap();
        let (first, file) = create(&options, "d").unwrap();
        assert_eq!((first.as_path(), file.metadata().unwrap().len()), (options.path.as_path(), 0));
        let (second, _) = create(&options, "d").unwrap();
        assert_eq!(second, folder.join("a-2.pcapng"));
        drop(file);
        assert_eq!(create(&options, "d").unwrap().0, options.path);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
