//! The copy of the source tree.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::edit::Files;

/// The file that marks a directory as a copy. Nothing may be removed from other directories.
const MARK: &str = ".copy_with_faults";

/// Makes `destination` a copy of `root` with new texts in some files. Returns the number of files written.
pub(crate) fn copy(root: &Path, destination: &Path, changed: Files) -> Result<usize, String> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| format!("{path}: {error}")
    };
    prepare(destination)?;
    let mut wanted = files_of(root, destination).map_err(failed(root))?;
    wanted.extend(changed.keys().map(PathBuf::from));
    let mut written = 0;
    for file in &wanted {
        let (from, to) = (root.join(file), destination.join(file));
        let text = file.to_str().and_then(|file| changed.get(file));
        written += usize::from(update(&from, &to, text.map(String::as_bytes)).map_err(failed(&to))?);
    }
    for file in walk(destination).map_err(failed(destination))? {
        if !wanted.contains(&file) && file != Path::new(MARK) {
            let path = destination.join(file);
            fs::remove_file(&path).map_err(failed(&path))?;
        }
    }
    Ok(written)
}

/// Makes the directory, unless it is an earlier copy.
fn prepare(destination: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", destination.display());
    fs::create_dir_all(destination).map_err(failed)?;
    let is_empty = fs::read_dir(destination).map_err(failed)?.next().is_none();
    if !is_empty && !destination.join(MARK).exists() {
        return Err(format!("{} is neither empty nor an earlier copy", destination.display()));
    }
    fs::write(destination.join(MARK), "A copy of the source tree, made by tests/faults.\n").map_err(failed)
}

/// Writes a file if it differs. Returns whether it did.
fn update(from: &Path, to: &Path, text: Option<&[u8]>) -> io::Result<bool> {
    let wanted = match text {
        Some(text) => text.to_vec(),
        None => fs::read(from)?,
    };
    let permissions = fs::metadata(from).ok().map(|metadata| metadata.permissions());
    let is_same = fs::read(to).is_ok_and(|found| found == wanted);
    if !is_same {
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(to, wanted)?;
    }
    if let Some(permissions) = permissions
        && fs::metadata(to)?.permissions() != permissions
    {
        fs::set_permissions(to, permissions)?;
    }
    Ok(!is_same)
}

/// Returns the files of the source tree: those that git tracks or would add, or all without a repository.
fn files_of(root: &Path, destination: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut files = match known_to_git(root) {
        Some(files) => files,
        None => walk(root)?,
    };
    // The copy itself may be in the tree.
    let copy = fs::canonicalize(destination)?;
    let root = fs::canonicalize(root)?;
    files.retain(|file| !root.join(file).starts_with(&copy) && root.join(file).is_file());
    Ok(files)
}

fn known_to_git(root: &Path) -> Option<BTreeSet<PathBuf>> {
    if !root.join(".git").exists() {
        return None;
    }
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = git.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.split_terminator('\0').map(PathBuf::from).collect())
}

/// Returns all files below a directory, except those of a repository and of builds.
fn walk(root: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let (mut files, mut folders) = (BTreeSet::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_name() == "target" || entry.file_name() == ".git" {
                continue;
            } else if entry.file_type()?.is_dir() {
                folders.push(path);
            } else {
                files.insert(path);
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    /// A new directory, which is removed after the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("rdma-verbs-faults-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).expect("a directory");
            Self(path)
        }

        fn write(&self, file: &str, text: &str) {
            fs::create_dir_all(self.0.join(file).parent().expect("a folder")).expect("a directory");
            fs::write(self.0.join(file), text).expect("a file");
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).expect("it is there");
        }
    }

    fn time_of(path: &Path) -> SystemTime {
        fs::metadata(path).and_then(|metadata| metadata.modified()).expect("a time")
    }

    #[test]
    fn a_second_copy_writes_only_the_differences() {
        let (root, copy_in) = (Folder::new("root"), Folder::new("copy"));
        for (file, text) in [("a/b.rs", "1"), ("c.rs", "2"), ("d.rs", "3"), ("target/e", "4")] {
            root.write(file, text);
        }
        let changed = Files::from([("c.rs".to_owned(), "20".to_owned()), ("f.rs".to_owned(), "5".to_owned())]);
        assert_eq!(copy(&root.0, &copy_in.0, changed.clone()), Ok(4));
        let text = |file: &str| fs::read_to_string(copy_in.0.join(file)).ok();
        assert_eq!(
            ["a/b.rs", "c.rs", "f.rs", "target/e"].map(|file| text(file).unwrap_or_default()),
            ["1", "20", "5", ""]
        );
        let before = time_of(&copy_in.0.join("c.rs"));
        root.write("a/b.rs", "10");
        fs::remove_file(root.0.join("d.rs")).expect("it is there");
        assert_eq!(copy(&root.0, &copy_in.0, changed), Ok(1));
        assert_eq!((text("a/b.rs").as_deref(), text("d.rs")), (Some("10"), None));
        assert_eq!(time_of(&copy_in.0.join("c.rs")), before);
    }

    #[test]
    fn a_directory_without_the_marker_is_left_alone() {
        let (root, own) = (Folder::new("source"), Folder::new("own"));
        own.write("letter", "dear");
        assert!(copy(&root.0, &own.0, Files::new()).expect_err("it is no copy").contains("neither empty nor"));
        assert!(own.0.join("letter").exists());
    }
}
