//! Files that are written after measurements.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::outcome::Outcome;

/// Checks that a file can be written, before anything is measured. It keeps its contents, and none is left if there was
/// none: a measurement that is interrupted must not leave an empty file.
pub(crate) fn prepare(file: &Path) -> Outcome {
    check(file).map_err(|error| cannot_write(file, &error).into())
}

fn check(file: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    match options.append(true).open(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let part = part_of(file);
            match options.create_new(true).open(&part) {
                Ok(_) => fs::remove_file(&part),
                // Left by a process that was killed.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
                Err(error) => Err(error),
            }
        }
        opened => opened.map(drop),
    }
}

/// Writes a file. If that fails, as on a full disk, the file keeps its old contents. Devices and pipes are written
/// directly.
pub(crate) fn write(file: &Path, text: &str) -> Outcome {
    replace(file, text).map_err(|error| cannot_write(file, &error).into())
}

fn replace(file: &Path, text: &str) -> io::Result<()> {
    let found = fs::metadata(file).ok();
    if let Some(found) = &found {
        if !found.is_file() {
            return fs::write(file, text);
        }
        // One that may not be written stays, although its folder would take another one.
        OpenOptions::new().append(true).open(file)?;
    }
    // A link stays one.
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let part = part_of(&file);
    // Left by a process that was killed, or a link of another user.
    let _ = fs::remove_file(&part);
    let create = || {
        let mut new = OpenOptions::new().write(true).create_new(true).open(&part)?;
        if let Some(found) = found {
            new.set_permissions(found.permissions())?;
        }
        new.write_all(text.as_bytes())
    };
    let Err(error) = create().and_then(|()| fs::rename(&part, &file)) else { return Ok(()) };
    // A part of a page is of no use.
    let _ = fs::remove_file(&part);
    match error.kind() {
        // The folder takes no other file, or the file is a mount of its own, as in containers.
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::ResourceBusy => fs::write(&file, text),
        _ => Err(error),
    }
}

/// Returns the name under which a file is written at first.
fn part_of(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(".part");
    name.into()
}

fn cannot_write(file: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {error}", file.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Runs a test with the path of a file that does not exist, alone in its folder.
    fn with_file(name: &str, test: impl FnOnce(&Path)) {
        let folder = std::env::temp_dir().join(format!("rdma-verbs-file-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        test(&folder.join("page.html"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_is_prepared_has_its_old_contents_or_none() {
        with_file("prepared", |file| {
            prepare(file).unwrap();
            assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 0);
            fs::write(file, "before").unwrap();
            prepare(file).unwrap();
            assert_eq!(fs::read_to_string(file).unwrap(), "before");
            assert!(prepare(&file.join("below")).is_err() && prepare(Path::new("/nonexistent/page.html")).is_err());
            prepare(Path::new("/dev/null")).unwrap();
        });
    }

    #[test]
    fn links_and_rights_stay() {
        with_file("link", |file| {
            let link = file.with_file_name("link.html");
            symlink(file, &link).unwrap();
            prepare(&link).unwrap();
            fs::write(file, "before").unwrap();
            fs::set_permissions(file, PermissionsExt::from_mode(0o600)).unwrap();
            write(&link, "after").unwrap();
            assert!(link.is_symlink());
            assert_eq!(fs::read_to_string(file).unwrap(), "after");
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 2);
        });
    }
}
