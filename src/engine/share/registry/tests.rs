//! The folder, and the removal of leftovers.

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;

use super::*;
use crate::sys::try_lock_byte;

/// A folder that does not exist yet; removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(Path::new("/tmp").join(format!("rdma-verbs-{name}-{}", std::process::id())))
    }

    fn has(&self, name: &str) -> bool {
        self.0.join(name).symlink_metadata().is_ok()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn folder_that_others_can_enter_is_refused() {
    let folder = Folder::new("refused");
    std::fs::create_dir(&folder.0).unwrap();
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o750)).unwrap();
    let error = folder::prepare(&folder.0).unwrap_err();
    assert!(error.to_string().contains("other users can enter"), "{error}");
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o700)).unwrap();
    folder::prepare(&folder.0).unwrap();
    let long = folder.0.join("x".repeat(60));
    assert!(folder::prepare(&long).unwrap_err().to_string().contains("too long"));
    std::os::unix::fs::symlink(&folder.0, folder.0.join("link")).unwrap();
    assert!(folder::prepare(&folder.0.join("link")).is_err(), "a link");
}

#[test]
fn leftovers_of_dead_processes_are_removed() {
    let folder = Folder::new("swept");
    let registry = Registry::open_in(&folder.0).unwrap();
    let dead = [1; NAME_BYTES];
    for path in [inbox_path(&folder.0, &dead), life_path(&folder.0, &dead), links_path(&folder.0, &dead)] {
        place_socket(&path, |path| UnixDatagram::bind(path).map(drop)).unwrap();
    }
    let living = [2; NAME_BYTES];
    let mut inbox = None;
    place_socket(&inbox_path(&folder.0, &living), |path| {
        inbox = Some(UnixDatagram::bind(path)?);
        Ok(())
    })
    .unwrap();
    for name in ["7-blocks", "8-blocks", "7-ports", "7-127.0.0.1", "7-fe80::7", "7-other", "notes"] {
        std::fs::write(folder.0.join(name), "").unwrap();
    }
    // A lease of an earlier version.
    let leased = open_file(&folder.0.join("8-blocks")).unwrap();
    assert!(try_lock_byte(leased.as_fd(), 77).unwrap());
    registry.sweep();
    let mut left: Vec<String> =
        std::fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    let own = format!("{}-blocks", namespace());
    let mut expected =
        vec![own, "8-blocks".into(), "7-other".into(), "notes".into(), format!("inbox-{}", "02".repeat(16))];
    expected.sort();
    assert_eq!(left, expected);
}

#[test]
fn blocks_are_not_leased_in_a_file_that_was_removed() {
    let folder = Folder::new("removed");
    let first = Registry::open_in(&folder.0).unwrap();
    let name = format!("{}-blocks", namespace());
    BlocksFile::remove_unused(&folder.0.join(&name)).unwrap();
    assert!(folder.has(&name), "in use");
    drop(first);
    BlocksFile::remove_unused(&folder.0.join(&name)).unwrap();
    assert!(!folder.has(&name));
    let (second, third) = (Registry::open_in(&folder.0).unwrap(), Registry::open_in(&folder.0).unwrap());
    assert!(second.lease_block(5).unwrap());
    assert!(!third.lease_block(5).unwrap());
    second.release_block(5);
    assert!(third.lease_block(5).unwrap());
}
