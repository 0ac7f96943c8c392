//! Event descriptors as programs use them: readable only while an event is pending, however a program waits.

mod library;

use std::ffi::c_int;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use library::{End, PATIENCE, SIGNALED, Verbs, is_readable, open, set_nonblocking, verbs};

const ADDRESS: &str = "127.62.1.1";
const NOW: Duration = Duration::ZERO;

fn library() -> &'static Verbs {
    verbs(ADDRESS)
}

/// Runs `work`, and fails the test instead of hanging it if that takes too long.
fn within_patience(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let worker = std::thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    match ended.recv_timeout(PATIENCE) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it waits forever"),
        _ => worker.join().unwrap(),
    }
}

#[test]
fn packets_of_others_make_no_descriptor_readable() {
    let verbs = library();
    let context = open(verbs);
    let (busy, idle) = (End::looped(verbs, context), End::looped(verbs, context));
    idle.arm();
    // SAFETY: the context is open.
    let async_fd = unsafe { (*context).async_fd };
    for number in 0..2_000 {
        busy.exchange(number);
        assert!(!is_readable(idle.fd(), NOW), "nothing arrived for it");
        assert!(!is_readable(busy.fd(), NOW), "it is not armed");
        assert!(!is_readable(async_fd, NOW), "nothing happened");
    }
    // While no thread polls, the library's thread serves the packets, which do not raise events either.
    for number in 0..200 {
        busy.post_recv(number);
        busy.post_send(number, 0);
        assert!(!is_readable(idle.fd(), Duration::from_millis(1)));
        assert_eq!(busy.complete().wr_id, number);
    }
    idle.post_recv(7);
    idle.post_send(7, 0);
    assert!(is_readable(idle.fd(), PATIENCE), "this arrived for it");
    assert!(!is_readable(busy.fd(), NOW));
    assert_eq!(idle.get_event(), 0);
    assert!(!is_readable(idle.fd(), NOW), "it was taken");
    idle.destroy();
    busy.destroy();
    // SAFETY: all of its objects are destroyed.
    assert_eq!(unsafe { (verbs.close_device)(context) }, 0);
}

/// A message circulates through all connections, and each end forwards it. Only one channel has an event at a time, so
/// a wait on any other would last forever.
#[test]
fn readable_channel_descriptor_always_has_an_event() {
    const MESSAGES: u64 = 4_000;
    within_patience(|| {
        let context = open(library());
        let ends: Vec<End> = (0..8).map(|_| End::looped(library(), context)).collect();
        for end in &ends {
            end.arm();
            end.post_recv(0);
        }
        ends[0].post_send(0, 0);
        let mut messages = 0;
        while messages < MESSAGES {
            let mut poll_fds: Vec<libc::pollfd> =
                ends.iter().map(|end| libc::pollfd { fd: end.fd(), events: libc::POLLIN, revents: 0 }).collect();
            // SAFETY: `poll_fds` has eight structures.
            let ready = unsafe { libc::poll(poll_fds.as_mut_ptr(), 8, PATIENCE.as_millis() as c_int) };
            assert!(ready > 0, "no more events after {messages} messages");
            for (index, end) in ends.iter().enumerate().filter(|(index, _)| poll_fds[*index].revents != 0) {
                // This would block if the descriptor were readable without an event.
                assert_eq!(end.get_event(), 0);
                end.arm();
                while let Some(completion) = end.poll() {
                    assert_eq!(completion.status, 0);
                    messages += 1;
                    end.post_recv(messages);
                    ends[(index + 1) % ends.len()].post_send(messages, 0);
                }
            }
        }
        ends.into_iter().for_each(End::destroy);
    });
}

#[test]
fn edge_triggered_epoll_misses_no_event() {
    within_patience(|| {
        let end = End::looped(library(), open(library()));
        set_nonblocking(end.fd());
        assert_eq!(end.get_event(), libc::EAGAIN);
        // SAFETY: the call takes no pointers; the set is closed with the process.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        // SAFETY: one local structure.
        assert_eq!(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, end.fd(), &raw mut event) }, 0);
        let start = Instant::now();
        for number in 0..2_000 {
            end.arm();
            end.post_recv(number);
            end.post_send(number, 0);
            // SAFETY: room for one structure.
            let ready = unsafe { libc::epoll_wait(set, &raw mut event, 1, PATIENCE.as_millis() as c_int) };
            assert_eq!(ready, 1, "message {number}");
            assert_eq!((end.get_event(), end.get_event()), (0, libc::EAGAIN));
            assert_eq!(end.complete().wr_id, number);
        }
        println!("messages to a program that sleeps on a descriptor: {:?} each", start.elapsed() / 2_000);
        end.destroy();
    });
}

/// Sends a message to `end` after a while, from another thread.
fn send_later<'a>(scope: &'a std::thread::Scope<'a, '_>, end: &'a End, number: u64) {
    scope.spawn(move || {
        std::thread::sleep(Duration::from_millis(u64::from(number.is_multiple_of(7)) * 3));
        end.post_send(number, 0);
    });
}

/// A program may alternate between waiting in the verb and on the descriptor: the library supports both.
#[test]
fn waits_in_the_verb_and_on_the_descriptor_alternate() {
    within_patience(|| {
        let end = End::looped(library(), open(library()));
        for number in 0..700 {
            end.arm();
            end.post_recv(number);
            std::thread::scope(|scope| {
                send_later(scope, &end, number);
                if number / 100 % 2 == 1 {
                    assert!(is_readable(end.fd(), PATIENCE), "message {number}");
                }
                assert_eq!(end.get_event(), 0);
            });
            assert_eq!(end.complete().wr_id, number);
        }
        end.destroy();
    });
}

/// While a program polls, the library's thread does not serve the sockets. Then the program blocks on a descriptor.
#[test]
fn descriptor_wakes_a_program_that_polled_just_before() {
    within_patience(|| {
        let (near, far) = (End::new(library(), open(library())), End::new(library(), open(library())));
        near.connect(&far);
        far.connect(&near);
        let mut longest = NOW;
        for number in 0..100 {
            far.post_recv(number);
            far.arm();
            let polled = Instant::now();
            while polled.elapsed() < Duration::from_millis(1) {
                assert!(far.poll().is_none());
            }
            near.post_send(number, SIGNALED);
            let start = Instant::now();
            assert!(is_readable(far.fd(), PATIENCE), "message {number}");
            longest = longest.max(start.elapsed());
            assert_eq!((far.get_event(), far.complete().wr_id), (0, number));
            near.complete();
        }
        println!("the longest wait for a message: {longest:?}");
        near.destroy();
        far.destroy();
    });
}
