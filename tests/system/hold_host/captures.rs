//! Captures in folders that other users may write to.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rdma_verbs::verbs::{self, CaptureOptions};

use super::processes::{Folder, OTHER_USER, connect_to_itself, is_root};

/// Creates a folder that all may write to, without the sticky bit, with which Linux' own protection of links would
/// apply.
fn shared_folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o777)).unwrap();
    folder
}

/// Captures a connection into this file; returns the file that was used.
fn capture(device: &str, path: &Path) -> verbs::Result<PathBuf> {
    let context = verbs::open(device)?;
    let capture = context.start_capture(&CaptureOptions::new(path))?;
    let _connected = connect_to_itself(&context)?;
    let path = capture.path().to_owned();
    capture.stop()?;
    Ok(path)
}

/// Checks that a capture used another file or none, and that the file at `precious` is unchanged.
fn check_harmless(result: verbs::Result<PathBuf>, requested: &Path, precious: &Path) {
    let text = std::fs::read(precious).unwrap();
    assert!(text == b"precious", "{} bytes of packets in it; the capture: {result:?}", text.len());
    match result {
        Ok(taken) => {
            let found = taken.symlink_metadata().unwrap();
            let user = std::fs::metadata("/proc/self").unwrap().uid();
            assert_ne!(taken, requested);
            assert!(
                found.is_file() && found.uid() == user && found.nlink() == 1 && found.mode() & 0o077 == 0,
                "{found:?}"
            );
        }
        Err(error) => assert!(error.to_string().contains(&requested.display().to_string()), "{error}"),
    }
}

fn precious(folder: &Folder) -> PathBuf {
    let path = folder.0.join("precious");
    std::fs::write(&path, "precious").unwrap();
    path
}

#[test]
fn a_link_of_another_user_is_not_followed() {
    if !is_root() {
        return;
    }
    let folder = shared_folder("link");
    let (precious, link) = (precious(&folder), folder.0.join("capture.pcapng"));
    symlink(&precious, &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    check_harmless(capture("soft:127.99.2.1", &link), &link, &precious);
}

#[test]
fn a_dangling_link_makes_no_file() {
    if !is_root() {
        return;
    }
    let folder = shared_folder("dangling");
    let (target, link) = (folder.0.join("made-by-a-link"), folder.0.join("capture.pcapng"));
    symlink(&target, &link).unwrap();
    let result = capture("soft:127.99.2.2", &link);
    assert!(!target.exists(), "the capture followed a link: {result:?}");
}

#[test]
fn a_file_of_another_user_gets_no_packets() {
    if !is_root() {
        return;
    }
    let folder = shared_folder("file");
    let file = folder.0.join("capture.pcapng");
    std::fs::write(&file, "precious").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
    chown(&file, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    check_harmless(capture("soft:127.99.2.3", &file), &file, &file);
    // The same holds in a folder of the user's own.
    let own = Folder::new("own");
    let file = own.0.join("capture.pcapng");
    std::fs::write(&file, "precious").unwrap();
    chown(&file, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    check_harmless(capture("soft:127.99.2.4", &file), &file, &file);
}

#[test]
fn a_hard_linked_file_is_not_written_to() {
    let folder = Folder::new("second-name");
    let (precious, name) = (precious(&folder), folder.0.join("capture.pcapng"));
    std::fs::hard_link(&precious, &name).unwrap();
    check_harmless(capture("soft:127.99.2.5", &name), &name, &precious);
}

#[test]
fn an_own_file_in_a_world_writable_folder_is_not_written_to() {
    // Another user may have renamed it.
    let folder = shared_folder("renamed");
    let file = folder.0.join("capture.pcapng");
    std::fs::write(&file, "precious").unwrap();
    check_harmless(capture("soft:127.99.2.6", &file), &file, &file);
}
