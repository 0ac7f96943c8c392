//! Loading librdmacm.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use super::super::abi::QpAttr;
use super::super::abi::cm::{ConnParam, Event, EventChannel, Id};
use super::super::library::functions;

/// Name under which programs load the library, the same since 2006.
const SONAME: &str = "librdmacm.so.1";
/// The symbol by which a library declares itself as this project's, for software devices: it would have no adapters,
/// and call this crate.
const MARKER: &[u8] = b"rdma_verbs_librdmacm\0";

functions! {
    visible pub(in crate::provider::ibverbs),
    "rdma_create_event_channel" create_event_channel: fn() -> *mut EventChannel;
    "rdma_destroy_event_channel" destroy_event_channel: fn(*mut EventChannel);
    "rdma_create_id" create_id: fn(*mut EventChannel, *mut *mut Id, *mut c_void, u32) -> c_int;
    "rdma_destroy_id" destroy_id: fn(*mut Id) -> c_int;
    "rdma_migrate_id" migrate_id: fn(*mut Id, *mut EventChannel) -> c_int;
    "rdma_bind_addr" bind_addr: fn(*mut Id, *mut libc::sockaddr) -> c_int;
    "rdma_resolve_addr" resolve_addr: fn(*mut Id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
    "rdma_resolve_route" resolve_route: fn(*mut Id, c_int) -> c_int;
    "rdma_connect" connect: fn(*mut Id, *mut ConnParam) -> c_int;
    "rdma_listen" listen: fn(*mut Id, c_int) -> c_int;
    "rdma_accept" accept: fn(*mut Id, *mut ConnParam) -> c_int;
    "rdma_reject" reject: fn(*mut Id, *const c_void, u8) -> c_int;
    "rdma_establish" establish: fn(*mut Id) -> c_int;
    "rdma_notify" notify: fn(*mut Id, c_int) -> c_int;
    "rdma_disconnect" disconnect: fn(*mut Id) -> c_int;
    "rdma_set_option" set_option: fn(*mut Id, c_int, c_int, *mut c_void, usize) -> c_int;
    "rdma_init_qp_attr" init_qp_attr: fn(*mut Id, *mut QpAttr, *mut c_int) -> c_int;
    "rdma_get_cm_event" get_cm_event: fn(*mut EventChannel, *mut *mut Event) -> c_int;
    "rdma_ack_cm_event" ack_cm_event: fn(*mut Event) -> c_int;
}

/// Returns the library, which is loaded on first use, or why it cannot be used.
pub(in crate::provider::ibverbs) fn library() -> Result<&'static Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(|| load(SONAME)).as_ref().map_err(Clone::clone)
}

/// Returns why the library cannot be used, if it cannot.
pub(in crate::provider::ibverbs) fn unavailable() -> Option<String> {
    library().err()
}

fn load(file: &str) -> Result<Library, String> {
    let library = Library::load(file).map_err(|error| {
        format!(
            "{file} was not found or cannot be used ({error}); the connection manager of adapters needs it: install \
             librdmacm1 (Debian, Ubuntu; librdmacm1t64 on newer ones) or librdmacm (Fedora, RHEL, SUSE)"
        )
    })?;
    // SAFETY: only the presence of the symbol matters.
    let marker = library._file.as_ref().map(|file| unsafe { file.get::<*const c_void>(MARKER) }.is_ok());
    if marker == Some(true) {
        return Err(format!(
            "{file} declares itself as one for software devices, which has no adapters (by the symbol \
             rdma_verbs_librdmacm): remove its folder from LD_LIBRARY_PATH, so that the system's is found"
        ));
    }
    Ok(library)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_packages() {
        let text = load("librdmacm-that-is-not-there.so.1").err().unwrap();
        for part in ["librdmacm-that-is-not-there.so.1", "librdmacm1", "librdmacm1t64", "Fedora"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn a_library_without_the_functions_is_refused() {
        assert!(load("libc.so.6").err().unwrap().contains("rdma_create_event_channel"));
    }

    const FUNCTIONS: &[&str] = &[
        "rdma_create_event_channel",
        "rdma_destroy_event_channel",
        "rdma_create_id",
        "rdma_destroy_id",
        "rdma_migrate_id",
        "rdma_bind_addr",
        "rdma_resolve_addr",
        "rdma_resolve_route",
        "rdma_connect",
        "rdma_listen",
        "rdma_accept",
        "rdma_reject",
        "rdma_establish",
        "rdma_notify",
        "rdma_disconnect",
        "rdma_set_option",
        "rdma_init_qp_attr",
        "rdma_get_cm_event",
        "rdma_ack_cm_event",
    ];

    /// Builds a library that has all functions, and `more`, with the C compiler that links programs of this crate.
    fn build(folder: &Path, name: &str, more: &str) -> PathBuf {
        let (source, file) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
        let functions = FUNCTIONS.iter().map(|function| format!("int {function}(void) {{ return -1; }}\n"));
        std::fs::write(&source, functions.collect::<String>() + more).unwrap();
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&file).arg(&source).status();
        assert!(built.unwrap().success());
        file
    }

    #[test]
    fn a_library_for_software_devices_is_refused() {
        let folder = std::env::temp_dir().join(format!("rdma-verbs-librdmacm-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let plain = build(&folder, "plain", "");
        let marked = build(&folder, "marked", "const char rdma_verbs_librdmacm = 1;\n");
        let loaded = [plain, marked].map(|file| load(file.to_str().unwrap()).err());
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(loaded[0], None);
        assert!(loaded[1].as_ref().is_some_and(|text| text.contains("software devices")), "{:?}", loaded[1]);
    }
}
