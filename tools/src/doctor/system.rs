//! Reads what the kernel says about this process and this machine.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use nix::unistd::geteuid;

/// The longest file that is read: a bound, whatever is mounted there.
const LONGEST: u64 = 4 << 20;

/// Returns the text of a file of `/proc` or `/sys`, at most 4 MiB of it.
pub(super) fn read(path: impl AsRef<Path>) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the number that a file contains.
pub(super) fn number(path: impl AsRef<Path>) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

/// Returns the value of a field of `/proc/self/status`, for example `Seccomp`.
pub(super) fn status(field: &str) -> Option<String> {
    field_of(&read("/proc/self/status")?, field)
}

fn field_of(text: &str, field: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// Returns the names in a folder, sorted; none if it cannot be read.
pub(super) fn names_in(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Returns the names of the kernel's RDMA devices: adapters and rxe.
pub(super) fn kernel_devices() -> Vec<String> {
    names_in("/sys/class/infiniband")
}

/// Returns whether the kernel's own soft transport is there, as a module or built in.
pub(super) fn is_rxe_loaded() -> bool {
    let is_module = read("/proc/modules").is_some_and(|text| text.lines().any(|line| line.starts_with("rdma_rxe ")));
    is_module || Path::new("/sys/module/rdma_rxe").exists()
}

/// Returns whether this process is in a user namespace of its own, where root has no privileges outside.
pub(super) fn is_in_user_namespace() -> bool {
    read("/proc/self/uid_map").is_some_and(|map| !is_whole(&map))
}

/// Returns whether a map contains all user numbers, as that of the initial namespace does.
fn is_whole(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Returns the number of this user.
pub(super) fn own_user() -> u32 {
    geteuid().as_raw()
}

/// Returns `sudo `, unless this user is root.
pub(super) fn sudo() -> &'static str {
    if geteuid().is_root() { "" } else { "sudo " }
}

/// Returns a size with its unit, as `4 MiB`.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = UNITS.into_iter().find(|(_, shift)| bytes >= 1 << shift);
    match unit {
        Some((name, shift)) if bytes.is_multiple_of(1 << shift) => format!("{} {name}", bytes >> shift),
        Some((name, shift)) => format!("{:.1} {name}", bytes as f64 / f64::from(1 << shift)),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let texts = [0, 512, 1024, 212_992, 4 << 20, 3 << 29].map(size);
        assert_eq!(texts, ["0 bytes", "512 bytes", "1 KiB", "208 KiB", "4 MiB", "1.5 GiB"]);
    }

    #[test]
    fn fields_of_the_status() {
        let text = "Name:\tdoctor\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(field_of(text, "Seccomp").as_deref(), Some("2"));
        assert_eq!(field_of(text, "Sec"), None);
    }

    #[test]
    fn the_first_user_namespace_has_all_users() {
        assert!(is_whole("         0          0 4294967295\n"));
        assert!(!is_whole("         0       1000          1\n"));
    }
}
