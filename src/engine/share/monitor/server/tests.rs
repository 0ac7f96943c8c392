//! Tests of both sides: a monitor on a thread, and requesters.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use socket2::{Domain, SockAddr, Type};

use super::super::super::registry::{NAME_BYTES, Name, inbox_path, watch_path};
use super::super::client::{Failure, Finder, Found};
use super::super::message::CaptureRequest;
use super::*;
use crate::sys::wait_readable;

const EVERY: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(10);
const NAME: Name = [0x5a; NAME_BYTES];

/// A monitor, and the thread that serves it.
struct Served {
    folder: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _inbox: std::os::unix::net::UnixDatagram,
}

impl Served {
    fn new(test: &str, is_protected: fn() -> bool) -> Self {
        let folder = std::env::temp_dir().join(format!("rdma-verbs-monitor-{test}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let inbox = std::os::unix::net::UnixDatagram::bind(inbox_path(&folder, &NAME)).unwrap();
        let (set, listener) = (Epoll::new().unwrap(), Listener::bind(&watch_path(&folder, &NAME)).unwrap());
        let mut monitor = Monitor::with_protection(listener, &set, is_protected).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let _ = wait_readable([set.as_fd()], Some(Duration::from_millis(5)));
                monitor.take_messages(&set);
                monitor.refresh(&set);
            }
        });
        Self { folder, stop, thread: Some(thread), _inbox: inbox }
    }

    fn found(&self) -> Found {
        let found = Finder::default().list_in(&self.folder).unwrap();
        assert_eq!(found.len(), 1);
        found.into_iter().next().unwrap()
    }

    fn connect(&self) -> Socket {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        socket.connect(&SockAddr::unix(watch_path(&self.folder, &NAME)).unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Whether the other end has closed the connection without a word.
fn is_closed(socket: &Socket) -> bool {
    socket.recv(&mut [std::mem::MaybeUninit::uninit(); 1]).is_ok_and(|length| length == 0)
}

#[test]
fn snapshots_come_at_the_interval_until_the_process_ends() {
    let mut served = Served::new("interval", || false);
    let mut watch = served.found().watch(EVERY, PATIENCE).unwrap();
    let first = watch.read().unwrap();
    assert_eq!(first.every, EVERY);
    let start = Instant::now();
    let later = loop {
        let later = watch.read().unwrap();
        if later.taken_at > first.taken_at {
            break later;
        }
        assert!(start.elapsed() < PATIENCE, "{later:?}");
    };
    assert!(Duration::from_nanos(later.taken_at - first.taken_at) >= EVERY / 2, "{first:?} {later:?}");
    served.end();
    // The listener's queue is gone, too.
    assert!(matches!(watch.read(), Err(Failure::Ended)));
}

#[test]
fn a_watcher_too_many_is_refused_and_gets_the_place_of_one_that_ends() {
    let served = Served::new("many", || false);
    let found = served.found();
    let mut watches: Vec<_> = (0..MOST_WATCHERS).map(|_| found.watch(EVERY, PATIENCE).unwrap()).collect();
    let refused = found.watch(EVERY, PATIENCE).err();
    assert!(matches!(&refused, Some(Failure::TooMany(text)) if text.contains("8 watchers")), "{refused:?}");
    watches.pop();
    let deadline = Instant::now() + PATIENCE;
    while found.watch(EVERY, PATIENCE).is_err() {
        assert!(Instant::now() < deadline);
    }
    watches.iter_mut().for_each(|watch| assert!(watch.read().is_ok()));
}

#[test]
fn a_protected_process_refuses_everything() {
    let served = Served::new("protected", || true);
    assert!(matches!(served.found().watch(EVERY, PATIENCE), Err(Failure::Protected)));
    let file = File::open("/dev/null").unwrap();
    let refused = served.found().capture(CaptureRequest::default(), &file, PATIENCE);
    assert!(matches!(refused, Err(Failure::Protected)));
}

#[test]
fn senseless_input_closes_the_connection_and_nothing_else() {
    let served = Served::new("senseless", || false);
    let mut watch = served.found().watch(EVERY, PATIENCE).unwrap();
    let watch_without_interval = Request::Watch { every: Duration::ZERO }.to_bytes();
    let capture_without_file = Request::Capture(CaptureRequest::default()).to_bytes();
    let long = vec![7; MOST_BYTES + 100];
    let mut inputs = vec![vec![0], long, watch_without_interval, capture_without_file, Request::Stop.to_bytes()];
    inputs.extend((1..27).map(|length| Request::Watch { every: EVERY }.to_bytes()[..].repeat(2)[..length].to_vec()));
    for input in inputs.into_iter().filter(|input| *input != Request::Watch { every: EVERY }.to_bytes()) {
        let socket = served.connect();
        socket.send(&input).unwrap();
        assert!(is_closed(&socket), "{input:?}");
    }
    // A descriptor with a request that has none.
    let socket = served.connect();
    let file = File::open("/dev/null").unwrap();
    send_with_descriptor(socket.as_fd(), &Request::Watch { every: EVERY }.to_bytes(), file.as_fd()).unwrap();
    assert!(is_closed(&socket));
    assert!(watch.read().is_ok());
}

#[test]
fn a_watcher_that_speaks_is_dismissed() {
    let served = Served::new("speaks", || false);
    let socket = served.connect();
    socket.send(&Request::Watch { every: EVERY }.to_bytes()).unwrap();
    let mut page = [std::mem::MaybeUninit::uninit(); MOST_BYTES];
    assert_eq!(socket.recv(&mut page).unwrap(), Response::Page.to_bytes().len());
    socket.send(b"more").unwrap();
    assert!(is_closed(&socket));
}

#[test]
fn silent_guests_make_room() {
    let served = Served::new("silent", || false);
    let guests: Vec<_> = (0..MOST_GUESTS + 1).map(|_| served.connect()).collect();
    assert!(is_closed(&guests[0]));
    assert!(served.found().watch(EVERY, PATIENCE).is_ok());
}

#[test]
fn another_version_is_told_so() {
    let served = Served::new("version", || false);
    let socket = served.connect();
    let mut request = Request::Watch { every: EVERY }.to_bytes();
    request[5] ^= 1;
    socket.send(&request).unwrap();
    let mut answer = [std::mem::MaybeUninit::new(0u8); MOST_BYTES];
    let length = socket.recv(&mut answer).unwrap();
    let expected = Response::Refused { kind: RefusalKind::Version, text: String::new() };
    assert_eq!(length, expected.to_bytes().len());
}

/// A process whose answers are these bytes, with a descriptor.
fn hostile(test: &str, answer: Vec<u8>, file: Option<File>) -> (PathBuf, JoinHandle<Socket>) {
    let folder = std::env::temp_dir().join(format!("rdma-verbs-hostile-{test}-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let listener = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    listener.bind(&SockAddr::unix(watch_path(&folder, &NAME)).unwrap()).unwrap();
    listener.listen(9).unwrap();
    let thread = std::thread::spawn(move || {
        drop(listener.accept().unwrap());
        let (socket, _) = listener.accept().unwrap();
        match file {
            Some(file) => send_with_descriptor(socket.as_fd(), &answer, file.as_fd()).unwrap(),
            None => drop(socket.send(&answer)),
        }
        socket
    });
    (folder, thread)
}

#[test]
fn requesters_trust_no_answer() {
    let page = Response::Page.to_bytes();
    let (_, memory) = StatisticsWriter::create().unwrap();
    let (empty, _) = std::io::pipe().unwrap();
    let answers = [
        ("short", vec![1], None),
        ("pageless", page.clone(), None),
        ("started", Response::Started { device: String::new() }.to_bytes(), None),
        ("pipe", page.clone(), Some(File::from(OwnedFd::from(empty)))),
        ("device", page.clone(), Some(File::open("/dev/zero").unwrap())),
        ("long", vec![page[0]; 4_000], None),
    ];
    for (test, answer, file) in answers {
        let (folder, thread) = hostile(test, answer, file);
        let found = Finder::default().list_in(&folder).unwrap();
        let failure = found[0].watch(EVERY, PATIENCE).err();
        assert!(matches!(failure, Some(Failure::Malformed)), "{test}: {failure:?}");
        drop(thread.join().unwrap());
        std::fs::remove_dir_all(folder).unwrap();
    }
    // A page without a snapshot.
    let (folder, thread) = hostile("empty", page, Some(File::from(memory)));
    let found = Finder::default().list_in(&folder).unwrap();
    let mut watch = found[0].watch(EVERY, PATIENCE).unwrap();
    assert!(matches!(watch.read(), Err(Failure::Malformed)));
    drop(thread.join().unwrap());
    assert!(matches!(watch.read(), Err(Failure::Ended)));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_process_that_does_not_answer_is_not_waited_for() {
    let folder = std::env::temp_dir().join(format!("rdma-verbs-mute-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let listener = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    listener.bind(&SockAddr::unix(watch_path(&folder, &NAME)).unwrap()).unwrap();
    listener.listen(3).unwrap();
    let inbox = std::os::unix::net::UnixDatagram::bind(inbox_path(&folder, &NAME)).unwrap();
    let mut finder = Finder::default();
    let found = finder.list_in(&folder).unwrap().pop().unwrap();
    let start = Instant::now();
    assert!(matches!(found.watch(EVERY, Duration::from_millis(50)), Err(Failure::NoAnswer)));
    assert!(start.elapsed() < PATIENCE);
    // Lists do not fill its queue, and a full one hides no process.
    (0..20).for_each(|_| assert_eq!(finder.list_in(&folder).unwrap(), std::slice::from_ref(&found)));
    let filling: Vec<_> = (0..9).map(|_| found.watch(EVERY, Duration::from_millis(1)).err().unwrap()).collect();
    assert!(filling.iter().all(|failure| matches!(failure, Failure::NoAnswer)), "{filling:?}");
    assert_eq!(finder.list_in(&folder).unwrap(), [found]);
    drop((listener, inbox));
    assert_eq!(finder.list_in(&folder).unwrap(), []);
    std::fs::remove_dir_all(folder).unwrap();
}
