//! A process whose kernel refuses it resources: its mailbox, and its packets.

use std::io::{ErrorKind, Read};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use rdma_verbs::types::{NoSharedMemory, PacketPath};
use rdma_verbs::verbs::{self, ConnectOptions, QueuePairOptions, SendRequest, SharedMemory, SoftOptions};
use support::node::{PeerKind, pair};
use support::process::{alone, unix_sockets};
use support::{End, entries};

const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the path of this process's socket of this kind in the registry.
fn own_socket(kind: &str) -> String {
    unix_sockets(std::process::id(), kind).pop().expect("the process has a mailbox")
}

/// Makes the kernel refuse a system call in all threads of this process.
fn refuse(call: libc::c_long, errno: libc::c_int) {
    let instruction = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut filter = [
        // The number of the call is the first word.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel reads the program, which lives until the calls return.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_TSYNC,
                &raw const program,
            ) == 0
    };
    assert!(refused, "{}", std::io::Error::last_os_error());
}

#[test]
fn watching_process_stays_connected_if_its_connection_cannot_be_watched() {
    alone(|| {
        let _ends = pair("127.78.7.11", "127.78.7.12", 64, PeerKind::Native);
        let (life, inbox) = (own_socket("/life-"), own_socket("/inbox-"));
        let sender = UnixDatagram::unbound().unwrap();
        refuse(libc::SYS_epoll_ctl, libc::ENOSPC);
        // The mailbox opens files of the registry for a moment.
        let reads = std::iter::repeat_with(|| {
            std::thread::sleep(Duration::from_millis(1));
            entries("/proc/self/fd")
        });
        let before = reads.take(50).min().unwrap();
        let mut watcher = UnixStream::connect(life).unwrap();
        watcher.set_nonblocking(true).unwrap();
        let start = Instant::now();
        // The watcher's end and the accepted one.
        while entries("/proc/self/fd") < before + 2 {
            // A message wakes the mailbox's thread, which then accepts connections.
            sender.send_to(&[0], &inbox).unwrap();
            let read = watcher.read(&mut [0]).map_err(|error| error.kind());
            assert_eq!(read, Err(ErrorKind::WouldBlock), "the process seems to have ended");
            assert!(start.elapsed() < PATIENCE, "the connection is not accepted");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(watcher.read(&mut [0]).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
        // The end of a connection that cannot be watched is noticed, too.
        drop(watcher);
        while entries("/proc/self/fd") > before {
            sender.send_to(&[0], &inbox).unwrap();
            assert!(start.elapsed() < PATIENCE, "a connection that has ended stays open");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

fn set_descriptor_limit(limit: libc::rlimit) {
    // SAFETY: the kernel reads one structure, which lives until the call returns.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}

fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap().into()
}

#[test]
fn mailbox_that_cannot_wait_leaves_the_processor_to_others() {
    alone(|| {
        let _ends = pair("127.78.7.13", "127.78.7.14", 64, PeerKind::Native);
        let (inbox, sender) = (own_socket("/inbox-"), UnixDatagram::unbound().unwrap());
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel writes one structure, which lives until the call returns.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
        // The kernel refuses to wait for more descriptors than a process may open.
        set_descriptor_limit(libc::rlimit { rlim_cur: 2, ..limit });
        sender.send_to(&[0], &inbox).unwrap();
        let (start, used) = (Instant::now(), processor_time());
        std::thread::sleep(Duration::from_millis(500));
        let (elapsed, used) = (start.elapsed(), processor_time() - used);
        set_descriptor_limit(limit);
        assert!(used < elapsed / 4, "{used:?} of {elapsed:?}");
    });
}

/// As in a container that forbids the call.
#[test]
fn packets_go_through_sockets_without_the_call_that_creates_shared_memory() {
    alone(|| {
        refuse(libc::SYS_memfd_create, libc::EPERM);
        let options = SoftOptions::new().shared_memory(SharedMemory::Auto);
        let [one, other] = ["soft:127.78.7.15", "soft:127.78.7.16"]
            .map(|device| End::on(verbs::open_soft(device, &options).unwrap(), &QueuePairOptions::default()));
        one.connect(&other, &ConnectOptions::default());
        let (source, target) = (one.region(64), other.region(64));
        source.write_at(0, &[7; 64]).unwrap();
        let remote = target.remote();
        let start = Instant::now();
        for number in 0.. {
            one.post(SendRequest::write(source.slice(..).unwrap(), remote).wr_id(number));
            one.succeeds(number);
            // The one that connects last offers a link.
            match other.qp.report().unwrap().packet_path {
                Some(PacketPath::Sockets(NoSharedMemory::System(reason))) => {
                    assert!(reason.contains("not permitted"), "{reason}");
                    break;
                }
                path => assert!(start.elapsed() < PATIENCE, "{path:?}"),
            }
        }
        assert_eq!(target.to_vec(..).unwrap(), [7; 64]);
    });
}
