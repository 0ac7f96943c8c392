//! The file of a capture: its name, and making it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::super::udp::OpenError;
use crate::types::CaptureConfig;

/// Name of a file in a folder that was named.
const NAME_IN_FOLDER: &str = "rdma-verbs-%d-%p.pcapng";
/// Captures that may write to files of one name.
const MOST_NUMBERS: u32 = 1_000;
/// Packets hold the application's data: only the user may read them.
const PERMISSIONS: u32 = 0o600;

/// Makes the file that the configuration names, empty.
pub(super) fn create(config: &CaptureConfig, device: &str) -> Result<(PathBuf, File), OpenError> {
    let path = expand(&config.path, device)?;
    for number in 1..=MOST_NUMBERS {
        let path = numbered(&path, number);
        let fail = |error| explain(&path, error);
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(PERMISSIONS).open(&path).map_err(fail)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => continue,
            // Some file systems know no locks; then whoever comes last wins.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        file.set_len(0).map_err(fail)?;
        return Ok((path, file));
    }
    let message = format!("{MOST_NUMBERS} captures write to files named as {} already", path.display());
    Err(OpenError { message, source: io::ErrorKind::AlreadyExists.into() })
}

fn explain(path: &Path, source: io::Error) -> OpenError {
    let message = format!(
        "the capture file {} cannot be written; name a file, or a folder that exists and in which this process may \
         create files",
        path.display()
    );
    OpenError { message, source }
}

/// Puts in what stands for device and process.
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

/// What a name of a device may contribute to the name of a file.
fn harmless(character: char) -> char {
    if character.is_ascii_alphanumeric() || "._-".contains(character) { character } else { '-' }
}

/// `file.pcapng`, `file-2.pcapng`, `file-3.pcapng`, …
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

    /// A folder of the test's own.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("rdma-verbs-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn device_and_process_come_into_the_name() {
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
        let error = create(&CaptureConfig::new("/nowhere/at/all.pcapng"), "d").unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::NotFound);
        assert!(error.message.contains("a folder that exists"), "{}", error.message);
        let device = create(&CaptureConfig::new("/dev/null"), "d").unwrap_err();
        assert!(device.source.to_string().contains("not a regular file"), "{}", device.source);
    }

    #[test]
    fn files_in_use_are_left_alone_and_others_overwritten() {
        let folder = folder("capture-names");
        let config = CaptureConfig::new(folder.join("a.pcapng"));
        std::fs::write(&config.path, "old").unwrap();
        let (first, file) = create(&config, "d").unwrap();
        assert_eq!((first.as_path(), file.metadata().unwrap().len()), (config.path.as_path(), 0));
        let (second, _) = create(&config, "d").unwrap();
        assert_eq!(second, folder.join("a-2.pcapng"));
        drop(file);
        assert_eq!(create(&config, "d").unwrap().0, config.path);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
