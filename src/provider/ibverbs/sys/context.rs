//! The list of devices, and open devices.

use std::ffi::c_char;
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Once};

use super::abi::{self, VerbsContext};
use super::library::{Library, library};
use super::queue_pair::Accepted;
use super::{check, cm, not_supported};
use crate::sys::{Generation, watch_forks};

/// Loads the library of the connection manager on first use.
type LoadConnections = fn() -> Result<&'static cm::Library, String>;

/// A device as the list describes it.
pub(in super::super) struct DeviceInfo {
    /// Name, such as `mlx5_0`.
    pub(in super::super) name: String,
    /// Its directory in sysfs.
    pub(in super::super) ibdev_path: String,
    /// `ibv_transport_type`.
    pub(in super::super) transport_type: i32,
    /// `ibv_node_type`.
    pub(in super::super) node_type: i32,
}

/// The library's list, freed when it is dropped. Devices stay as long as the list or a context refers to them.
struct List {
    functions: &'static Library,
    first: NonNull<*mut abi::Device>,
    count: usize,
}

impl List {
    fn get(library: &'static Library) -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: the count is a live local variable.
        let first = unsafe { (library.get_device_list)(&raw mut count) };
        let first = NonNull::new(first).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { functions: library, first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> &[*mut abi::Device] {
        // SAFETY: the library gave a list of `count` pointers, which lives until it is freed in `drop`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }

    fn info(&self, device: *mut abi::Device) -> DeviceInfo {
        // SAFETY: a device of the list, which `self` keeps; its attributes do not change.
        let device = unsafe { &*device };
        DeviceInfo {
            name: text(&device.name),
            ibdev_path: text(&device.ibdev_path),
            transport_type: device.transport_type,
            node_type: device.node_type,
        }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the library's own list, freed once; open contexts keep their devices.
        unsafe { (self.functions.free_device_list)(self.first.as_ptr()) }
    }
}

/// Returns the characters up to the first zero.
pub(super) fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|character| *character as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn loaded() -> io::Result<&'static Library> {
    library().map_err(|text| io::Error::new(io::ErrorKind::NotFound, text))
}

/// Returns all devices.
pub(in super::super) fn device_list() -> io::Result<Vec<DeviceInfo>> {
    let list = List::get(loaded()?)?;
    Ok(list.devices().iter().map(|device| list.info(*device)).collect())
}

/// An open device.
pub(in super::super) struct Context {
    raw: NonNull<abi::Context>,
    pub(super) functions: &'static Library,
    /// Returns the functions of the connection manager, or why there are none.
    connections: LoadConnections,
    info: DeviceInfo,
    generation: Generation,
    accepted: Accepted,
}

// SAFETY: see the module's documentation.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The object of an asynchronous event.
pub(in super::super) enum EventSource {
    /// The queue pair of this number.
    QueuePair(u32),
    /// The completion queue that was created with this context number.
    CompletionQueue(u64),
    /// The shared receive queue that was created with this context number.
    SharedReceiveQueue(u64),
    /// A port.
    Port(u32),
}

/// An asynchronous event, acknowledged already.
pub(in super::super) struct Event {
    pub(in super::super) event_type: u32,
    pub(in super::super) source: EventSource,
}

/// Reads a slot of the extended table, if the library has it.
macro_rules! slot {
    ($context:expr, $field:ident) => {
        $context.extended(::std::mem::offset_of!($crate::provider::ibverbs::sys::abi::VerbsContext, $field)).and_then(
            |table| {
                // SAFETY: `extended` checked that the table reaches to this slot.
                unsafe { (&raw const (*table).$field).read() }
            },
        )
    };
}
pub(super) use slot;

impl Context {
    /// Opens the device of this name; `None` if there is none.
    pub(in super::super) fn open(name: &str) -> io::Result<Option<Arc<Self>>> {
        Self::open_by(loaded()?, cm::library, name)
    }

    /// Opens the device of this name with these libraries.
    pub(super) fn open_by(
        library: &'static Library,
        connections: LoadConnections,
        name: &str,
    ) -> io::Result<Option<Arc<Self>>> {
        let list = List::get(library)?;
        let Some((device, info)) =
            list.devices().iter().map(|device| (*device, list.info(*device))).find(|(_, info)| info.name == name)
        else {
            return Ok(None);
        };
        watch_forks();
        survive_forks(list.functions);
        // SAFETY: a device of the list.
        let raw = unsafe { (list.functions.open_device)(device) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let (functions, generation, accepted) = (list.functions, Generation::now(), Accepted::new());
        let context = Self { raw, functions, connections, info, generation, accepted };
        set_nonblocking(context.async_fd())?;
        Ok(Some(Arc::new(context)))
    }

    /// Returns the library of the connection manager, or why it cannot be used.
    pub(in super::super) fn connections(&self) -> Result<&'static cm::Library, String> {
        (self.connections)()
    }

    pub(in super::super) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Returns whether this process inherited the device through a fork: then nothing may be called.
    pub(in super::super) fn is_inherited(&self) -> bool {
        !self.generation.is_current()
    }

    /// Returns the operations of extended posting that the device was found to have.
    pub(super) fn accepted_operations(&self) -> &Accepted {
        &self.accepted
    }

    pub(super) fn raw(&self) -> *mut abi::Context {
        self.raw.as_ptr()
    }

    pub(super) fn ops(&self) -> &abi::ContextOps {
        // SAFETY: the table is filled in when the device is opened and not changed while it is open.
        unsafe { &(*self.raw()).ops }
    }

    pub(in super::super) fn num_comp_vectors(&self) -> u32 {
        // SAFETY: the context is open; the number does not change.
        unsafe { (*self.raw()).num_comp_vectors }.try_into().unwrap_or(0)
    }

    fn async_fd(&self) -> RawFd {
        // SAFETY: the context is open; the number does not change.
        unsafe { (*self.raw()).async_fd }
    }

    /// Returns a descriptor that is readable while an asynchronous event is pending.
    pub(in super::super) fn async_descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context is.
        unsafe { BorrowedFd::borrow_raw(self.async_fd()) }
    }

    /// Returns the table in front of the context, if it reaches to the slot at `offset`. The table grows at the front,
    /// so it contains the slot if its size is at least the distance from the slot to its end.
    pub(super) fn extended(&self, offset: usize) -> Option<*const VerbsContext> {
        // SAFETY: the context is open.
        let is_extended = unsafe { (*self.raw()).abi_compat }.addr() == usize::MAX;
        let before = offset_of!(VerbsContext, context);
        // The table precedes the context, so the pointer is not derived from a reference to the context. The library
        // allocated both as one.
        let table = self.raw().cast::<VerbsContext>().wrapping_byte_sub(before).cast_const();
        // SAFETY: every version of the library has the size right before an extended context.
        let reaches = is_extended && unsafe { (&raw const (*table).sz).read() } >= size_of::<VerbsContext>() - offset;
        reaches.then_some(table)
    }

    /// `ibv_query_device_ex`; fields that an older library does not report are zero.
    pub(in super::super) fn query_device(&self) -> io::Result<abi::DeviceAttrEx> {
        // SAFETY: plain numbers, for which all zeros are valid.
        let mut attributes: abi::DeviceAttrEx = unsafe { MaybeUninit::zeroed().assume_init() };
        if let Some(query) = slot!(self, query_device_ex) {
            // SAFETY: the attributes live and have the given size; no input is given.
            let result = unsafe { query(self.raw(), ptr::null(), &raw mut attributes, size_of::<abi::DeviceAttrEx>()) };
            match check(result) {
                Ok(()) => return Ok(attributes),
                Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {}
                Err(error) => return Err(error),
            }
        }
        // SAFETY: the attributes live.
        check(unsafe { (self.functions.query_device)(self.raw(), &raw mut attributes.orig_attr) })?;
        attributes.phys_port_cnt_ex = attributes.orig_attr.phys_port_cnt.into();
        Ok(attributes)
    }

    /// `ibv_query_port`.
    pub(in super::super) fn query_port(&self, port: u8) -> io::Result<abi::PortAttrWithSpeed> {
        let mut attributes = abi::PortAttrWithSpeed::default();
        let (query, first) = (slot!(self, query_port), (&raw mut attributes).cast());
        // SAFETY: the attributes live and have the given size; the old function writes less of them.
        let result = unsafe {
            match query {
                Some(query) => query(self.raw(), port, first, size_of::<abi::PortAttrWithSpeed>()),
                None => (self.functions.query_port)(self.raw(), port, first),
            }
        };
        check(result).map(|()| attributes)
    }

    /// Returns an entry of the GID table; `None` if it is unused.
    pub(in super::super) fn query_gid(&self, port: u8, index: u32) -> io::Result<Option<abi::GidEntry>> {
        let mut entry = abi::GidEntry::default();
        let size = size_of::<abi::GidEntry>();
        // SAFETY: the entry lives and has the given size.
        let result = unsafe { (self.functions.query_gid_ex)(self.raw(), port.into(), index, &raw mut entry, 0, size) };
        match check(result) {
            Ok(()) => Ok((entry.gid.0 != [0; 16]).then_some(entry)),
            Err(error) if error.raw_os_error() == Some(libc::ENODATA) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns an entry of the P_Key table.
    pub(in super::super) fn query_pkey(&self, port: u8, index: u16) -> io::Result<u16> {
        let mut key = 0u16;
        // SAFETY: the key lives.
        check(unsafe { (self.functions.query_pkey)(self.raw(), port, index.into(), &raw mut key) })?;
        Ok(u16::from_be(key))
    }

    /// Returns the time of the device's clock, in its own ticks.
    pub(in super::super) fn query_clock(&self) -> io::Result<u64> {
        let query = slot!(self, query_rt_values).ok_or_else(not_supported)?;
        // SAFETY: plain numbers.
        let mut values: abi::ValuesEx = unsafe { MaybeUninit::zeroed().assume_init() };
        values.comp_mask = 1;
        // SAFETY: the values live.
        check(unsafe { query(self.raw(), &raw mut values) })?;
        let clock = values.raw_clock;
        Ok((clock.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(clock.tv_nsec as u64))
    }

    /// Takes the next asynchronous event and acknowledges it at once, so that destroying its object does not wait.
    pub(in super::super) fn next_event(&self) -> Option<Event> {
        let mut event = abi::AsyncEvent { element: abi::EventElement { port_num: 0 }, event_type: 0 };
        // SAFETY: the event lives. The descriptor does not block.
        if unsafe { (self.functions.get_async_event)(self.raw(), &raw mut event) } != 0 {
            return None;
        }
        // SAFETY: the element is of the kind that the type says. The object that it points to exists: destroying it
        // waits until this event is acknowledged, below.
        let source = unsafe {
            match event.event_type {
                0 => EventSource::CompletionQueue((*event.element.cq).cq_context.addr() as u64),
                1..=7 | 16 => EventSource::QueuePair((*event.element.qp).qp_num),
                14 | 15 => EventSource::SharedReceiveQueue((*event.element.srq).srq_context.addr() as u64),
                19 => EventSource::Port(0), // a work queue's; there are none here
                _ => EventSource::Port(event.element.port_num.try_into().unwrap_or(0)),
            }
        };
        // SAFETY: the event was just taken, and is acknowledged once.
        unsafe { (self.functions.ack_async_event)(&raw mut event) };
        Some(Event { event_type: event.event_type, source })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.is_inherited() {
            // SAFETY: all objects of the context hold it, so this is the last use.
            if unsafe { (self.functions.close_device)(self.raw()) } != 0 {
                tracing::warn!(target: "rdma_verbs::device", device = self.info.name, "the device could not be closed");
            }
        }
    }
}

/// Makes the library keep the parent's registered pages in place when the process forks, before anything is registered.
/// Kernels from 5.12 on do that by themselves, which newer libraries detect.
fn survive_forks(library: &Library) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function takes no arguments.
        if let Err(error) = check(unsafe { (library.fork_init)() }) {
            tracing::info!(
                target: "rdma_verbs::device", %error, "registered memory is not protected if this process forks"
            );
        }
    });
}

/// Makes a descriptor of the library non-blocking.
pub(super) fn set_nonblocking(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: takes no pointers.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
