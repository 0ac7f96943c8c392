//! The sockets of a process in the registry's folder. Other users cannot enter the folder, so they cannot reach the
//! sockets.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::table::{NAME_BYTES, Name};

const INBOX: &str = "inbox-";
const LIFE: &str = "life-";
const LINKS: &str = "links-";
const WATCH: &str = "watch-";
/// Name prefix of a socket that is not ready yet.
const NEW: &str = "new-";
/// Age at which a socket with the prefix counts as abandoned. A socket gets its final name within microseconds, unless
/// its process ended before; the limit is generous.
const LONGEST_NEW: Duration = Duration::from_secs(60);

fn path(folder: &Path, kind: &str, name: &Name) -> PathBuf {
    folder.join(format!("{kind}{}", digits_of(name)))
}

/// Returns a process's name in hexadecimal digits.
pub(super) fn digits_of(name: &Name) -> String {
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the path where a process receives messages.
pub(crate) fn inbox_path(folder: &Path, name: &Name) -> PathBuf {
    path(folder, INBOX, name)
}

/// Returns the path where other processes connect to detect its end.
pub(crate) fn life_path(folder: &Path, name: &Name) -> PathBuf {
    path(folder, LIFE, name)
}

/// Returns the path where other processes connect to share memory.
pub(crate) fn links_path(folder: &Path, name: &Name) -> PathBuf {
    path(folder, LINKS, name)
}

/// Returns the path where other processes connect to watch this one.
pub(crate) fn watch_path(folder: &Path, name: &Name) -> PathBuf {
    path(folder, WATCH, name)
}

/// Returns the process of an entry of the folder, if it is the socket where it is watched.
pub(crate) fn watched_process(entry: &str) -> Option<Name> {
    parse(entry.strip_prefix(WATCH)?)
}

/// Creates a working socket with `bind`, and only then gives it its name: a socket with its final name that refuses
/// connections belongs to no live process. Returns what `bind` does.
pub(crate) fn place_socket<T>(path: &Path, bind: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!("{NEW}{name}"));
    bind(&new).and_then(|bound| std::fs::rename(&new, path).map(|()| bound)).inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })
}

/// Removes the sockets of a process that is dead, or about to end.
pub(crate) fn remove_sockets(folder: &Path, name: &Name) {
    let _ = std::fs::remove_file(life_path(folder, name));
    let _ = std::fs::remove_file(links_path(folder, name));
    let _ = std::fs::remove_file(watch_path(folder, name));
    // Last, because `sweep` treats a process without an inbox as dead.
    let _ = std::fs::remove_file(inbox_path(folder, name));
}

/// Removes an entry of the folder if it is a socket of a dead process. Returns false if it is not a socket.
pub(super) fn sweep(folder: &Path, entry: &str) -> bool {
    if entry.starts_with(NEW) {
        let made = std::fs::symlink_metadata(folder.join(entry)).and_then(|found| found.modified());
        if made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > LONGEST_NEW)) {
            let _ = std::fs::remove_file(folder.join(entry));
        }
        return true;
    }
    let Some(name) = [INBOX, LIFE, LINKS, WATCH].into_iter().find_map(|kind| parse(entry.strip_prefix(kind)?)) else {
        return false;
    };
    // The inbox is created first and removed last.
    let is_gone = UnixDatagram::unbound().and_then(|socket| socket.connect(inbox_path(folder, &name)));
    if is_gone.is_err_and(|error| matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)) {
        remove_sockets(folder, &name);
    }
    true
}

/// Returns the process's name in these digits.
pub(super) fn parse(digits: &str) -> Option<Name> {
    let mut name = [0; NAME_BYTES];
    if digits.len() != 2 * NAME_BYTES || !digits.is_ascii() {
        return None;
    }
    for (byte, digits) in name.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(name)
}
