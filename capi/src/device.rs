//! Devices: the list, and their properties before they are opened.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rdma_verbs::provider::{Provider, abi, soft::SoftProvider};

use crate::error::{Errno, Result, UNSUPPORTED, pointer, set_errno};
use crate::object::{Object, Zeroed, free_list, give_list, make, own};
use crate::settings::settings;
use crate::version::exported;

/// The state behind a device.
pub(crate) struct Device {
    /// The name that the provider opens.
    pub(crate) provider_name: String,
    /// Its GUID, in host byte order.
    pub(crate) guid: u64,
}

impl Object for abi::Device {
    type Own = Device;
}

/// A device that was listed once. It is never freed: programs use devices after they have freed the list, and some
/// never free the list.
#[derive(Clone, Copy)]
struct Known(*mut abi::Device);

// SAFETY: a device does not change, and any thread may read it.
unsafe impl Send for Known {}

/// The device that is listed last.
const LAST: &str = "soft_lo";

/// Every device by its name, whether it still exists or not: one entry for each name that was ever listed.
static KNOWN: Mutex<Option<HashMap<String, Known>>> = Mutex::new(None);

/// Returns the name in C of the device of one address.
fn name_of(address: IpAddr) -> String {
    format!("soft_{}", address.to_string().replace(':', "-"))
}

/// Returns each device's name in C and its name for the provider. Names have no colon, because programs separate the
/// port with one.
fn names() -> Result<Vec<(String, String)>> {
    let settings = settings();
    if !settings.addresses.is_empty() {
        return Ok(settings.addresses.iter().map(|address| (name_of(*address), format!("soft:{address}"))).collect());
    }
    let mut names = SoftProvider::new().device_names()?;
    // Programs that name no device use the first one. With the loopback last, the first one is reachable from other
    // hosts, if there is such an interface, and from this one.
    names.sort_by_key(|name| name == LAST);
    Ok(names.into_iter().map(|name| (name.clone(), name)).collect())
}

/// Returns the provider names of the listed devices, in their order, and their addresses.
pub(crate) fn addresses() -> Result<Vec<(String, Vec<IpAddr>)>> {
    let configured = &settings().addresses;
    if !configured.is_empty() {
        return Ok(configured.iter().map(|address| (format!("soft:{address}"), vec![*address])).collect());
    }
    let mut devices = SoftProvider::new().connectable_devices()?;
    devices.sort_by_key(|(name, _)| name == LAST);
    Ok(devices)
}

/// Returns bytes that identify this machine. In containers the machine's ID may be missing or empty: then the ID of the
/// kernel's current boot is used.
fn machine() -> Vec<u8> {
    let files = ["/etc/machine-id", "/proc/sys/kernel/random/boot_id"];
    files
        .into_iter()
        .filter_map(|file| std::fs::read(file).ok())
        .find(|id| !id.trim_ascii().is_empty())
        .unwrap_or_default()
}

/// Returns the device's GUID, which is the same whenever the device is listed, and marked as locally administered. It
/// is derived from the machine's ID, the device's name (with its address, if it has one), and the interface's hardware
/// address, because containers of one image have the same machine ID and the same interface names.
fn guid(name: &str) -> u64 {
    let interface = name.strip_prefix("soft_").unwrap_or(name);
    let hardware = std::fs::read(format!("/sys/class/net/{interface}/address")).unwrap_or_default();
    let machine = machine();
    // FNV-1a: stable, which the standard library's hashes are not.
    let bytes = machine.iter().chain(name.as_bytes()).chain(&hardware);
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let (group_bit, local_bit) = (1 << 56, 1 << 57);
    hash & !group_bit | local_bit
}

fn copy_text(to: &mut [c_char], text: &str) {
    let room = to.len() - 1;
    for (to, from) in to.iter_mut().zip(text.bytes().take(room)) {
        *to = from as c_char;
    }
}

fn new_device(name: &str, provider_name: String) -> Known {
    let mut visible = abi::Device::zeroed();
    // An InfiniBand channel adapter, as all RoCE devices report.
    (visible.node_type, visible.transport_type) = (1, 0);
    copy_text(&mut visible.name, name);
    copy_text(&mut visible.dev_name, name);
    copy_text(&mut visible.dev_path, &format!("/sys/class/infiniband_verbs/{name}"));
    copy_text(&mut visible.ibdev_path, &format!("/sys/class/infiniband/{name}"));
    Known(make(visible, Device { provider_name, guid: guid(name) }))
}

/// Returns the current devices, and a null pointer at the end.
pub(crate) fn list() -> Result<Vec<*mut abi::Device>> {
    let names = names()?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    let mut list = Vec::with_capacity(names.len() + 1);
    for (name, provider_name) in names {
        let device = known.entry(name).or_insert_with_key(|name| new_device(name, provider_name));
        list.push(device.0);
    }
    list.push(std::ptr::null_mut());
    Ok(list)
}

/// Returns the device with this provider name.
pub(crate) fn device_called(provider_name: &str) -> Result<*mut abi::Device> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut devices = known.iter().flat_map(HashMap::values);
    // SAFETY: devices are created by this library and never freed.
    let found = devices.find(|device| unsafe { own(device.0) }.provider_name == provider_name);
    found.map(|device| device.0).ok_or(Errno(libc::ENODEV))
}

/// Returns the device of one address, which need not be listed.
pub(crate) fn device_of_address(address: IpAddr) -> *mut abi::Device {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    let (name, provider_name) = (name_of(address), format!("soft:{address}"));
    known.entry(name).or_insert_with_key(|name| new_device(name, provider_name)).0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut abi::Device {
    // SAFETY: the program's number, which may be written.
    pointer(list().map(|list| unsafe { give_list(list, count) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut abi::Device) {
    // SAFETY: the list is null or one that `ibv_get_device_list` gave, and the program gives it up.
    unsafe { free_list(list) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut abi::Device) -> *const c_char {
    // SAFETY: a device of this library, which is never freed; the address is computed and not read.
    unsafe { &raw const (*device).name }.cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut abi::Device) -> u64 {
    // SAFETY: a device of this library, which is never freed.
    unsafe { own(device) }.guid.to_be()
}

/// Returns the kernel's index of a device; these devices have none.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(_device: *mut abi::Device) -> c_int {
    -1
}

/// Returns the mount point at which the kernel would list devices.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a small file into `buffer` as a C string, without the final line feed. Returns the number of bytes.
fn read_file(path: &Path, buffer: &mut [u8]) -> Result<usize> {
    let failed = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]).map_err(failed)? {
            0 => break,
            count => length += count,
        }
    }
    if length > 0 && buffer[length - 1] == b'\n' {
        length -= 1;
    }
    match buffer.get_mut(length) {
        Some(end) => *end = 0,
        None => return Err(Errno(libc::EOVERFLOW)),
    }
    Ok(length)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the program's strings.
    let [folder, file] = [folder, file].map(|text| unsafe { CStr::from_ptr(text) }.to_bytes());
    let path = Path::new(std::ffi::OsStr::from_bytes(folder)).join(std::ffi::OsStr::from_bytes(file));
    let mut read = vec![0; size.min(1 << 16)];
    match read_file(&path, &mut read) {
        Ok(length) => {
            let count = (length + 1).min(read.len());
            // SAFETY: the program's buffer of `size` bytes, and no more are copied.
            unsafe { std::ptr::copy_nonoverlapping(read.as_ptr().cast(), buffer, count) };
            length as c_int
        }
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// Fails: these devices have no files in sysfs.
#[unsafe(no_mangle)]
extern "C" fn ibv_read_ibdev_sysfs_file(_buffer: *mut c_char, _size: usize, _device: *mut c_void) -> c_int {
    set_errno(Errno(libc::ENOENT));
    -1
}

/// Fails. Vendors' drivers use this function to resolve Ethernet addresses.
#[unsafe(no_mangle)]
extern "C" fn ibv_resolve_eth_l2_from_gid() -> c_int {
    set_errno(UNSUPPORTED);
    -1
}

exported! {
    "IBVERBS_1.0": ibv_get_sysfs_path ibv_read_sysfs_file;
    "IBVERBS_1.1": ibv_get_device_list ibv_free_device_list ibv_get_device_name ibv_get_device_guid
        ibv_resolve_eth_l2_from_gid;
    "IBVERBS_1.9": ibv_get_device_index;
    "IBVERBS_PRIVATE_34": ibv_read_ibdev_sysfs_file;
}
