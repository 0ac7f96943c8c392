//! A fake librdmacm on the fake machine. It sends nothing: the test decides which events come. Its calls are in the log
//! of the machine, and fail on demand.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::ptr;

use super::super::abi::QpAttr;
use super::super::abi::cm::{ConnParam, Event, EventChannel, Id, Param, UdParam};
use super::super::cm::Library;
use super::{Fake, make, refuse, signal, take_signal, unmake};

thread_local! {
    /// The machine of the channels that this thread creates.
    static MACHINE: Cell<Option<&'static Fake>> = const { Cell::new(None) };
}

/// Makes this thread's calls go to a machine.
pub(super) fn use_machine(fake: &'static Fake) {
    MACHINE.set(Some(fake));
}

/// Returns the library.
pub(super) fn library() -> Result<&'static Library, String> {
    static LIBRARY: Library = Library {
        create_event_channel,
        destroy_event_channel,
        create_id,
        destroy_id,
        migrate_id,
        bind_addr,
        resolve_addr,
        resolve_route,
        connect,
        listen,
        accept,
        reject,
        establish,
        notify,
        disconnect,
        set_option,
        init_qp_attr,
        get_cm_event,
        ack_cm_event,
        _file: None,
    };
    Ok(&LIBRARY)
}

/// An event that the test raises.
#[derive(Clone, Default)]
pub(in super::super::super) struct Raised {
    pub(in super::super::super) event: u32,
    pub(in super::super::super) status: c_int,
    pub(in super::super::super) qp_num: u32,
    pub(in super::super::super) resources: (u8, u8),
    pub(in super::super::super) qkey: u32,
    pub(in super::super::super) private_data: Vec<u8>,
}

/// The state of the library.
#[derive(Default)]
pub(super) struct Connections {
    /// Addresses of identifiers in the order of their creation; 0: destroyed.
    ids: Vec<usize>,
    /// The listener of each identifier whose request was not taken yet.
    listeners: HashMap<usize, usize>,
    /// Waiting events of each channel: the identifier, and the event.
    waiting: HashMap<usize, VecDeque<(usize, Raised)>>,
    /// The attributes that the library gives for queue pairs.
    attributes: QpAttr,
    /// Events that were taken and not acknowledged.
    taken: u32,
    /// Whether requests come without addresses.
    no_addresses: bool,
}

#[repr(C)]
struct FakeChannel {
    base: EventChannel,
    fake: Option<&'static Fake>,
}

#[repr(C)]
struct FakeId {
    base: Id,
    fake: Option<&'static Fake>,
}

#[repr(C)]
struct FakeEvent {
    base: Event,
    fake: Option<&'static Fake>,
    private_data: Vec<u8>,
}

fn pointer(id: usize) -> *mut Id {
    ptr::with_exposed_provenance_mut(id)
}

/// # Safety
/// The identifier is one of this library's, and not destroyed.
unsafe fn machine(id: *mut Id) -> &'static Fake {
    // SAFETY: as the caller promises.
    unsafe { (*id.cast::<FakeId>()).fake }.expect("a machine")
}

impl Fake {
    /// Raises an event of the identifier with this position in the order of creation.
    pub(in super::super::super) fn connection_event(&self, id: usize, raised: &Raised) {
        let mut state = self.state();
        let id = state.connections.ids[id];
        // SAFETY: the test raises events of identifiers that exist.
        let channel = unsafe { (*pointer(id)).channel };
        state.connections.waiting.entry(channel.addr()).or_default().push_back((id, raised.clone()));
        // SAFETY: the identifier's channel lives.
        signal(unsafe { (*channel).fd });
    }

    /// Raises a peer's request at a listener: it brings an identifier.
    pub(in super::super::super) fn connection_request(&'static self, listener: usize, raised: &Raised) {
        let listener = pointer(self.state().connections.ids[listener]);
        // SAFETY: the listener exists.
        let child = unsafe {
            make(|child: &mut FakeId| {
                (child.base.channel, child.base.ps) = ((*listener).channel, (*listener).ps);
                if !self.state().connections.no_addresses {
                    child.base.route.addr.src_addr = (*listener).route.addr.src_addr;
                    child.base.route.addr.dst_addr = (*listener).route.addr.src_addr;
                }
                child.fake = Some(self);
            })
        };
        self.count("identifier", 1);
        let index = {
            let mut state = self.state();
            state.connections.listeners.insert(child.addr(), listener.addr());
            state.connections.ids.push(child.expose_provenance());
            state.connections.ids.len() - 1
        };
        self.connection_event(index, raised);
    }

    /// Makes later requests of peers come without addresses.
    pub(in super::super::super) fn forget_addresses(&self) {
        self.state().connections.no_addresses = true;
    }

    /// Sets the attributes that the library gives for queue pairs.
    pub(in super::super::super) fn set_connection_attributes(&self, attributes: QpAttr) {
        self.state().connections.attributes = attributes;
    }
}

/// Fails like the library: returns -1 and sets `errno`; 0 succeeds.
fn outcome(errno: c_int) -> c_int {
    if errno == 0 {
        return 0;
    }
    let _: *mut c_void = refuse(errno);
    -1
}

unsafe extern "C" fn create_event_channel() -> *mut EventChannel {
    let fake = MACHINE.get().expect("a machine");
    let errno = fake.called("rdma_create_event_channel", "");
    if errno != 0 {
        return refuse(errno);
    }
    fake.count("event channel", 1);
    // SAFETY: numbers, and `None`.
    let channel = unsafe {
        make(|channel: &mut FakeChannel| {
            channel.base.fd = super::counting_descriptor();
            channel.fake = Some(fake);
        })
    };
    channel.cast()
}

unsafe extern "C" fn destroy_event_channel(channel: *mut EventChannel) {
    // SAFETY: the caller gives a channel of this library's.
    let (fake, fd) = unsafe { ((*channel.cast::<FakeChannel>()).fake.expect("a machine"), (*channel).fd) };
    let mut state = fake.state();
    state.connections.waiting.remove(&channel.addr());
    for id in state.connections.ids.iter().filter(|id| **id != 0) {
        // SAFETY: an identifier that exists.
        assert_ne!(unsafe { (*pointer(*id)).channel }, channel, "the channel has identifiers");
    }
    drop(state);
    fake.count("event channel", -1);
    // SAFETY: the channel's own descriptor, and the channel, are not used any more.
    unsafe {
        libc::close(fd);
        unmake(channel.cast::<FakeChannel>());
    }
}

unsafe extern "C" fn create_id(channel: *mut EventChannel, to: *mut *mut Id, _: *mut c_void, ps: u32) -> c_int {
    // SAFETY: the caller gives a channel of this library's.
    let fake = unsafe { (*channel.cast::<FakeChannel>()).fake.expect("a machine") };
    let errno = fake.called("rdma_create_id", format_args!("{ps:#x}"));
    if errno != 0 {
        return outcome(errno);
    }
    fake.count("identifier", 1);
    // SAFETY: numbers and pointers, for which all zeros are valid; the caller's variable lives.
    unsafe {
        let id = make(|id: &mut FakeId| {
            (id.base.channel, id.base.ps, id.fake) = (channel, ps, Some(fake));
        });
        fake.state().connections.ids.push(id.expose_provenance());
        to.write(id.cast());
    }
    0
}

unsafe extern "C" fn destroy_id(id: *mut Id) -> c_int {
    // SAFETY: the caller gives an identifier of this library's.
    let fake = unsafe { machine(id) };
    fake.called("rdma_destroy_id", "");
    let mut state = fake.state();
    let Connections { ids, listeners, waiting, taken, .. } = &mut state.connections;
    assert_eq!(*taken, 0, "it would wait for events that were not acknowledged");
    // With a listener, the kernel destroys the identifiers of its requests that were not taken.
    let children = listeners.extract_if(|_, listener| *listener == id.addr()).map(|(child, _)| child);
    let destroyed: Vec<_> = children.chain([id.expose_provenance()]).collect();
    ids.iter_mut().filter(|known| destroyed.contains(known)).for_each(|known| *known = 0);
    for waiting in waiting.values_mut() {
        waiting.retain(|(of, _)| !destroyed.contains(of));
    }
    drop(state);
    for id in destroyed {
        fake.count("identifier", -1);
        // SAFETY: it is not used any more.
        unsafe { unmake(pointer(id).cast::<FakeId>()) };
    }
    0
}

unsafe extern "C" fn migrate_id(id: *mut Id, channel: *mut EventChannel) -> c_int {
    // SAFETY: the caller gives an identifier and a channel of this library's.
    unsafe {
        let errno = machine(id).called("rdma_migrate_id", "");
        assert_eq!(machine(id).state().connections.taken, 0, "it would wait for events");
        if errno == 0 {
            (*id).channel = channel;
        }
        outcome(errno)
    }
}

unsafe extern "C" fn bind_addr(id: *mut Id, address: *mut libc::sockaddr) -> c_int {
    // SAFETY: the caller gives an identifier of this library's, and an address of IPv4.
    unsafe {
        let mut to = address.cast::<libc::sockaddr_in>().read();
        let (ip, port) = (u32::from_be(to.sin_addr.s_addr), u16::from_be(to.sin_port));
        let errno = machine(id).called("rdma_bind_addr", format_args!("{}:{port}", std::net::Ipv4Addr::from(ip)));
        if port == 0 {
            to.sin_port = 40_000_u16.to_be();
        }
        (&raw mut (*id).route.addr.src_addr).cast::<libc::sockaddr_in>().write(to);
        outcome(errno)
    }
}

/// Logs a call and its details, and fails on demand.
macro_rules! simple {
    ($($name:ident $symbol:literal ($id:ident $(, $argument:ident: $type:ty)*) $detail:expr;)*) => {
        $(unsafe extern "C" fn $name($id: *mut Id $(, $argument: $type)*) -> c_int {
            // SAFETY: the caller gives an identifier of this library's, and arguments as the library requires.
            unsafe { outcome(machine($id).called($symbol, $detail)) }
        })*
    };
}

simple! {
    resolve_addr "rdma_resolve_addr" (id, source: *mut libc::sockaddr, to: *mut libc::sockaddr, time: c_int) {
        assert!(source.is_null() && !to.is_null());
        // The device is known from now on.
        (*id).verbs = ptr::without_provenance_mut(8);
        format!("{time} ms")
    };
    resolve_route "rdma_resolve_route" (id, time: c_int) format!("{time} ms");
    listen "rdma_listen" (id, backlog: c_int) backlog;
    connect "rdma_connect" (id, param: *mut ConnParam) describe(&*param);
    accept "rdma_accept" (id, param: *mut ConnParam) describe(&*param);
    reject "rdma_reject" (id, data: *const c_void, length: u8) text(data, length);
    establish "rdma_establish" (id) "";
    notify "rdma_notify" (id, event: c_int) event;
    disconnect "rdma_disconnect" (id) "";
    set_option "rdma_set_option" (id, level: c_int, name: c_int, value: *mut c_void, length: usize) {
        let value = std::slice::from_raw_parts(value.cast::<u8>(), length);
        format!("{level} {name} {value:?}")
    };
}

/// # Safety
/// The data live.
unsafe fn text(data: *const c_void, length: u8) -> String {
    // SAFETY: as the caller promises.
    let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length.into()) };
    String::from_utf8_lossy(bytes).into_owned()
}

/// # Safety
/// The private data live.
unsafe fn describe(param: &ConnParam) -> String {
    let ConnParam { qp_num, responder_resources, initiator_depth, retry_count, rnr_retry_count, .. } = *param;
    // SAFETY: as the caller promises.
    let data = unsafe { text(param.private_data, param.private_data_len) };
    format!(
        "qp {qp_num} resources {responder_resources} {initiator_depth} retry {retry_count} {rnr_retry_count} {data}"
    )
}

unsafe extern "C" fn init_qp_attr(id: *mut Id, attributes: *mut QpAttr, mask: *mut c_int) -> c_int {
    // SAFETY: the caller gives an identifier of this library's, and two variables.
    unsafe {
        let fake = machine(id);
        let errno = fake.called("rdma_init_qp_attr", format_args!("state {}", (*attributes).qp_state));
        let qp_state = (*attributes).qp_state;
        attributes.write(QpAttr { qp_state, ..fake.state().connections.attributes });
        mask.write(1);
        outcome(errno)
    }
}

unsafe extern "C" fn get_cm_event(channel: *mut EventChannel, to: *mut *mut Event) -> c_int {
    // SAFETY: the caller gives a channel of this library's, and a variable.
    let (fake, fd) = unsafe { ((*channel.cast::<FakeChannel>()).fake.expect("a machine"), (*channel).fd) };
    if !take_signal(fd) {
        return outcome(libc::EAGAIN);
    }
    let mut state = fake.state();
    let next = state.connections.waiting.get_mut(&channel.addr()).and_then(VecDeque::pop_front);
    // The events of an identifier that was destroyed are gone.
    let Some((id, raised)) = next else { return outcome(libc::EAGAIN) };
    state.connections.listeners.remove(&id);
    state.connections.taken += 1;
    drop(state);
    let data = raised.private_data.clone();
    let private_data = if data.is_empty() { ptr::null() } else { data.as_ptr().cast() };
    let private_data_len = data.len() as u8;
    // SAFETY: an identifier that exists.
    let is_datagram = unsafe { (*pointer(id)).ps } == 0x0111;
    let (responder_resources, initiator_depth) = raised.resources;
    let param = match is_datagram {
        true => Param {
            ud: UdParam {
                private_data,
                private_data_len,
                ah_attr: Default::default(),
                qp_num: raised.qp_num,
                qkey: raised.qkey,
            },
        },
        false => {
            // SAFETY: numbers, for which all zeros are valid.
            let mut param: Param = unsafe { std::mem::zeroed() };
            param.conn = ConnParam {
                private_data,
                private_data_len,
                responder_resources,
                initiator_depth,
                flow_control: 1,
                retry_count: 5,
                rnr_retry_count: 6,
                srq: 0,
                qp_num: raised.qp_num,
            };
            param
        }
    };
    let (event, status) = (raised.event, raised.status);
    let base = Event { id: pointer(id), listen_id: ptr::null_mut(), event, status, param };
    let taken = Box::into_raw(Box::new(FakeEvent { base, fake: Some(fake), private_data: data }));
    // SAFETY: the caller's variable.
    unsafe { to.write(taken.cast()) };
    0
}

unsafe extern "C" fn ack_cm_event(event: *mut Event) -> c_int {
    // SAFETY: the caller gives an event of this library's, which it does not use any more. Its private data are freed,
    // so that a later use is noticed.
    let event = unsafe { Box::from_raw(event.cast::<FakeEvent>()) };
    event.fake.expect("a machine").state().connections.taken -= 1;
    0
}
