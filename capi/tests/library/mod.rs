//! The built library as loaded by a program, and connections to test it with.
#![allow(dead_code, unreachable_pub, reason = "no test needs all of it")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use rdma_verbs::provider::abi::{
    AhAttr, AsyncEvent, CompChannel, Context, Cq, CqInitAttrEx, Device, Gid, Mr, Pd, Qp, QpAttr, QpCap, QpEx,
    QpInitAttr, QpInitAttrEx, RecvWr, SendWr, Sge, VerbsContext, Wc, create, qp_attr, wr,
};
use rdma_verbs::types::Lkey;

/// Time limit for anything that must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);
const READABLE_AND_WRITABLE: c_int = 0xf;
const RC: u32 = 2;
/// Entries of a completion queue.
const ENTRIES: c_int = 64;
pub const SIGNALED: u32 = 2;
const SOLICITED: u32 = 4;
/// `wr_id` of a send whose completion only frees slots for further ones.
const MAKES_ROOM: u64 = u64::MAX;
/// One in this many unsignaled sends is signaled to free slots.
const ROOM: u64 = 8;
/// Size of a connection's memory in bytes.
pub const BYTES: usize = 4096;

/// Returns the path of the library, and builds it if needed, because `cargo test` does not: tests cannot link to it. If
/// `RDMA_VERBS_CAPI` names a folder, the library installed there is used.
pub fn path() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if let Some(folder) = std::env::var_os("RDMA_VERBS_CAPI") {
            return Path::new(&folder).join("libibverbs.so.1");
        }
        let test = std::env::current_exe().expect("a path");
        let target = test.ancestors().nth(3).expect("TARGET/PROFILE/deps/TEST");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "rdma-verbs-capi", "--target-dir"]).arg(target);
        assert!(cargo.status().expect("cargo").success(), "{cargo:?} failed");
        target.join("debug/librdma_verbs_capi.so")
    })
}

/// Builds a C program of this folder, which finds the library in the same way as other programs.
pub fn program(name: &str) -> Command {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("capi-{name}"));
    let program = folder.join(name);
    static BUILT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let mut built = BUILT.lock().expect("no test fails while it builds");
    if !built.contains(&program) {
        std::fs::create_dir_all(&folder).expect("a folder");
        let library = folder.join("libibverbs.so.1");
        let _ = std::fs::remove_file(&library);
        symlink(path().canonicalize().expect("the library"), &library).expect("a link");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).with_extension("c");
        let mut compiler = Command::new("cc");
        compiler.args(["-Wall", "-Werror", "-O1", "-pthread", "-o"]).arg(&program).arg(source).arg(library);
        assert!(compiler.status().expect("a C compiler").success(), "{compiler:?} failed");
        built.push(program.clone());
    }
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", folder);
    command
}

/// Verbs that wait may be unwound by a cancellation.
pub type GetCqEvent = unsafe extern "C-unwind" fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
pub type GetAsyncEvent = unsafe extern "C-unwind" fn(*mut Context, *mut AsyncEvent) -> c_int;

macro_rules! functions {
    ($($name:ident: $kind:ty;)*) => {
        /// The library's functions.
        pub struct Verbs {
            $(pub $name: $kind,)*
        }

        impl Verbs {
            fn find(handle: *mut c_void) -> Self {
                $(
                    let name = CString::new(concat!("ibv_", stringify!($name))).expect("no zero");
                    // SAFETY: the handle is open; the name ends with a zero.
                    let $name = unsafe { libc::dlsym(handle, name.as_ptr()) };
                    assert!(!$name.is_null(), "{name:?}");
                )*
                // SAFETY: each is the function of that name, with the type that libibverbs' headers give it.
                unsafe { Self { $($name: std::mem::transmute::<*mut c_void, $kind>($name),)* } }
            }
        }
    };
}

functions! {
    get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut Device;
    free_device_list: unsafe extern "C" fn(*mut *mut Device);
    open_device: unsafe extern "C" fn(*mut Device) -> *mut Context;
    close_device: unsafe extern "C" fn(*mut Context) -> c_int;
    get_async_event: GetAsyncEvent;
    ack_async_event: unsafe extern "C" fn(*mut AsyncEvent);
    query_gid: unsafe extern "C" fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
    alloc_pd: unsafe extern "C" fn(*mut Context) -> *mut Pd;
    dealloc_pd: unsafe extern "C" fn(*mut Pd) -> c_int;
    reg_mr: unsafe extern "C" fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    rereg_mr: unsafe extern "C" fn(*mut Mr, c_int, *mut Pd, *mut c_void, usize, c_int) -> c_int;
    dereg_mr: unsafe extern "C" fn(*mut Mr) -> c_int;
    create_comp_channel: unsafe extern "C" fn(*mut Context) -> *mut CompChannel;
    destroy_comp_channel: unsafe extern "C" fn(*mut CompChannel) -> c_int;
    create_cq: unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq: unsafe extern "C" fn(*mut Cq) -> c_int;
    get_cq_event: GetCqEvent;
    ack_cq_events: unsafe extern "C" fn(*mut Cq, u32);
    create_qp: unsafe extern "C" fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp: unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    query_qp: unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
    destroy_qp: unsafe extern "C" fn(*mut Qp) -> c_int;
    qp_to_qp_ex: unsafe extern "C" fn(*mut Qp) -> *mut QpEx;
}

/// Opens the library without using it yet.
pub fn load(flags: c_int) -> *mut c_void {
    let path = CString::new(path().to_str().expect("text")).expect("no zero");
    // SAFETY: the path ends with a zero; the effects of loading the library are under test.
    let handle = unsafe { libc::dlopen(path.as_ptr(), flags) };
    assert!(!handle.is_null(), "{}", dl_error());
    handle
}

fn dl_error() -> String {
    // SAFETY: called right after a failure, so there is a text.
    unsafe { std::ffi::CStr::from_ptr(libc::dlerror() as *const c_char) }.to_string_lossy().into_owned()
}

/// Returns the library's functions, with a device for this address alone. All tests of a process share one address.
pub fn verbs(address: &str) -> &'static Verbs {
    static VERBS: OnceLock<Verbs> = OnceLock::new();
    VERBS.get_or_init(|| {
        // SAFETY: no other thread of the test reads variables now: all of them wait here for the library as well.
        unsafe { std::env::set_var("RDMA_VERBS_ADDRESSES", address) };
        Verbs::find(load(libc::RTLD_NOW | libc::RTLD_LOCAL))
    })
}

/// Returns this thread's error number.
pub fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Returns whether a descriptor becomes readable within this time.
pub fn is_readable(fd: c_int, within: Duration) -> bool {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one local structure.
    unsafe { libc::poll(&raw mut entry, 1, within.as_millis() as c_int) > 0 }
}

/// Makes reading from a descriptor fail instead of block.
pub fn set_nonblocking(fd: c_int) {
    // SAFETY: the calls take no pointers.
    let set = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK) };
    assert_eq!(set, 0);
}

/// Opens the only device.
pub fn open(verbs: &Verbs) -> *mut Context {
    // SAFETY: the list has a device; the rest is how programs open one.
    unsafe {
        let mut count = 0;
        let list = (verbs.get_device_list)(&raw mut count);
        assert_eq!(count, 1, "devices");
        let context = (verbs.open_device)(*list);
        assert!(!context.is_null(), "open_device: {}", errno());
        (verbs.free_device_list)(list);
        context
    }
}

/// One end of a reliable connection, with a channel and a queue of its own.
pub struct End {
    verbs: &'static Verbs,
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub channel: *mut CompChannel,
    pub cq: *mut Cq,
    pub qp: *mut Qp,
    pub mr: *mut Mr,
    memory: Box<[u8; BYTES]>,
    sends: AtomicU64,
}

// SAFETY: verbs may be called from any thread; only requests access the memory.
unsafe impl Send for End {}
// SAFETY: as for `Send`.
unsafe impl Sync for End {}

/// Returns the function table in front of a context.
pub fn table(context: *mut Context) -> *mut VerbsContext {
    context.wrapping_byte_sub(std::mem::offset_of!(VerbsContext, context)).cast()
}

impl End {
    pub fn new(verbs: &'static Verbs, context: *mut Context) -> Self {
        Self::with(verbs, context, false)
    }

    /// Creates an end for the extended interface: `ibv_wr_*` and `ibv_start_poll`.
    pub fn extended(verbs: &'static Verbs, context: *mut Context) -> Self {
        Self::with(verbs, context, true)
    }

    fn with(verbs: &'static Verbs, context: *mut Context, is_extended: bool) -> Self {
        let mut memory = Box::new([0; BYTES]);
        // SAFETY: each object is created from those before it, and all live as long as they are used.
        unsafe {
            let pd = (verbs.alloc_pd)(context);
            let channel = (verbs.create_comp_channel)(context);
            assert!(!pd.is_null() && !channel.is_null());
            let mr = (verbs.reg_mr)(pd, memory.as_mut_ptr().cast(), BYTES, READABLE_AND_WRITABLE);
            assert!(!mr.is_null());
            let cq = if is_extended {
                let mut init: CqInitAttrEx = std::mem::zeroed();
                (init.cqe, init.channel) = (ENTRIES as u32, channel);
                (*table(context)).create_cq_ex.expect("always there")(context, &raw mut init).cast()
            } else {
                (verbs.create_cq)(context, ENTRIES, null_mut(), channel, 0)
            };
            assert!(!cq.is_null());
            let mut init: QpInitAttrEx = std::mem::zeroed();
            (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, RC);
            init.cap =
                QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
            let qp = if is_extended {
                (init.comp_mask, init.pd) = (create::PD | create::SEND_OPS_FLAGS, pd);
                init.send_ops_flags = create::WITH_SEND | create::WITH_RDMA_WRITE;
                (*table(context)).create_qp_ex.expect("always there")(context, &raw mut init)
            } else {
                // The classic structure is the beginning of the extended one.
                (verbs.create_qp)(pd, (&raw mut init).cast())
            };
            assert!(!qp.is_null());
            Self { verbs, context, pd, channel, cq, qp, mr, memory, sends: AtomicU64::new(0) }
        }
    }

    /// Creates an end that is connected to itself.
    pub fn looped(verbs: &'static Verbs, context: *mut Context) -> Self {
        let end = Self::new(verbs, context);
        end.connect(&end);
        end
    }

    pub fn connect(&self, peer: &Self) {
        // SAFETY: the queue pairs are alive.
        unsafe {
            let mut gid = Gid([0; 16]);
            assert_eq!((self.verbs.query_gid)(self.context, 1, 0, &raw mut gid), 0);
            self.connect_to((*peer.qp).qp_num, gid);
        }
    }

    /// Connects to the queue pair with this number and address.
    pub fn connect_to(&self, number: u32, gid: Gid) {
        let mut attributes = QpAttr { qp_state: 1, port_num: 1, ..QpAttr::default() };
        attributes.qp_access_flags = READABLE_AND_WRITABLE as u32;
        self.modify(&attributes, qp_attr::STATE | qp_attr::PKEY_INDEX | qp_attr::PORT | qp_attr::ACCESS_FLAGS);
        let ah = AhAttr { is_global: 1, port_num: 1, dgid: gid, hop_limit: 64, ..AhAttr::default() };
        let mut attributes = QpAttr { qp_state: 2, path_mtu: 3, dest_qp_num: number, ah_attr: ah, ..QpAttr::default() };
        (attributes.max_dest_rd_atomic, attributes.min_rnr_timer) = (1, 12);
        let wanted = qp_attr::STATE | qp_attr::AV | qp_attr::PATH_MTU | qp_attr::DEST_QPN | qp_attr::RQ_PSN;
        self.modify(&attributes, wanted | qp_attr::MAX_DEST_RD_ATOMIC | qp_attr::MIN_RNR_TIMER);
        attributes = QpAttr { qp_state: 3, timeout: 14, retry_cnt: 7, rnr_retry: 7, ..QpAttr::default() };
        attributes.max_rd_atomic = 1;
        let wanted = qp_attr::STATE | qp_attr::TIMEOUT | qp_attr::RETRY_CNT | qp_attr::RNR_RETRY | qp_attr::SQ_PSN;
        self.modify(&attributes, wanted | qp_attr::MAX_QP_RD_ATOMIC);
    }

    pub fn modify(&self, attributes: &QpAttr, bits: u32) {
        let mut attributes = *attributes;
        // SAFETY: the queue pair is alive; the structure is a copy.
        let result = unsafe { (self.verbs.modify_qp)(self.qp, &raw mut attributes, bits as c_int) };
        assert_eq!(result, 0, "modify_qp");
    }

    /// Returns an SGE of this length in its memory.
    fn entry(&self, length: usize) -> Sge {
        // SAFETY: the region is alive.
        let lkey = Lkey(unsafe { (*self.mr).lkey });
        Sge { addr: self.memory.as_ptr().expose_provenance() as u64, length: length as u32, lkey }
    }

    pub fn post_recv(&self, wr_id: u64) {
        let mut entry = self.entry(BYTES);
        let mut request = RecvWr { wr_id, next: null_mut(), sg_list: &raw mut entry, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: the context's own function; the queue pair and the memory that the request names are alive.
        let posted = unsafe {
            let post = (*self.context).ops.post_recv.expect("always there");
            post(self.qp, &raw mut request, &raw mut bad)
        };
        assert_eq!(posted, 0, "post_recv");
    }

    /// Posts a SEND of some bytes, which causes an event where it arrives.
    pub fn post_send(&self, wr_id: u64, flags: u32) {
        let makes_room = flags == 0 && self.sends.fetch_add(1, Ordering::Relaxed).is_multiple_of(ROOM);
        let (wr_id, flags) = if makes_room { (MAKES_ROOM, SIGNALED) } else { (wr_id, flags) };
        let mut entry = self.entry(8);
        // SAFETY: zero is valid for numbers and pointers, its only kinds of fields.
        let mut request: SendWr = unsafe { std::mem::zeroed() };
        (request.wr_id, request.sg_list, request.num_sge) = (wr_id, &raw mut entry, 1);
        (request.opcode, request.send_flags) = (wr::SEND, flags | SOLICITED);
        let mut bad = null_mut();
        // SAFETY: as for receives.
        let posted = unsafe {
            let post = (*self.context).ops.post_send.expect("always there");
            post(self.qp, &raw mut request, &raw mut bad)
        };
        assert_eq!(posted, 0, "post_send");
    }

    /// Requests an event for the next message that arrives.
    pub fn arm(&self) {
        // SAFETY: the context's own function, and a live queue.
        let armed = unsafe { (*self.context).ops.req_notify_cq.expect("always there")(self.cq, 1) };
        assert_eq!(armed, 0, "req_notify_cq");
    }

    /// Returns a completion, if one is queued.
    pub fn poll(&self) -> Option<Wc> {
        let mut completion = Wc::default();
        // SAFETY: the context's own function, a live queue and room for one completion.
        let found = unsafe { (*self.context).ops.poll_cq.expect("always there")(self.cq, 1, &raw mut completion) };
        assert!(found >= 0, "poll_cq");
        match completion.wr_id {
            _ if found == 0 => None,
            MAKES_ROOM => self.poll(),
            _ => Some(completion),
        }
    }

    /// Returns the next completion, which must be a success.
    pub fn complete(&self) -> Wc {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(completion) = self.poll() {
                assert_eq!(completion.status, 0, "vendor_err {}", completion.vendor_err);
                return completion;
            }
            assert!(Instant::now() < end, "nothing completes");
        }
    }

    /// Sends a message to itself.
    pub fn exchange(&self, number: u64) {
        self.post_recv(number);
        self.post_send(number, SIGNALED);
        assert_eq!((self.complete().wr_id, self.complete().wr_id), (number, number));
    }

    /// Calls `ibv_get_cq_event` and returns 0 or the error number. Checks and acknowledges the event.
    pub fn get_event(&self) -> c_int {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is alive, and so are the variables.
        let result = unsafe { (self.verbs.get_cq_event)(self.channel, &raw mut cq, &raw mut context) };
        if result != 0 {
            return errno();
        }
        assert_eq!(cq, self.cq);
        // SAFETY: an event of this queue was given.
        unsafe { (self.verbs.ack_cq_events)(cq, 1) };
        0
    }

    /// Returns the channel's descriptor.
    pub fn fd(&self) -> c_int {
        // SAFETY: the channel is alive.
        unsafe { (*self.channel).fd }
    }

    /// Destroys everything but the device. Must not be called in a child that inherited the objects.
    pub fn destroy(self) {
        // SAFETY: in this order no object is in use any more.
        let results = unsafe {
            [
                (self.verbs.destroy_qp)(self.qp),
                (self.verbs.destroy_cq)(self.cq),
                (self.verbs.destroy_comp_channel)(self.channel),
                (self.verbs.dereg_mr)(self.mr),
                (self.verbs.dealloc_pd)(self.pd),
            ]
        };
        assert_eq!(results, [0; 5]);
    }
}
