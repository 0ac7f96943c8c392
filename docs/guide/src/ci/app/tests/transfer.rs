//! Both ends in one process, on two addresses of the loopback interface: no adapter, no root, no network.

use std::thread;

use counter::{add, serve_one};
use rdma_verbs::verbs::cm::Listener;

#[test]
fn a_counter_is_the_sum_of_what_clients_add() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().to_string();
    let server = thread::spawn(move || serve_one(&listener).unwrap());
    assert_eq!(add(&address, 3, 50).unwrap(), 147);
    assert_eq!(server.join().unwrap(), 150);
}

#[test]
fn a_server_that_is_not_there_is_an_error_and_no_hang() {
    // The address has a device, because another listener has it.
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let closed = format!("127.0.0.1:{}", listener.local_addr().port() ^ 1);
    let error = add(&closed, 1, 1).unwrap_err().to_string();
    assert!(error.contains("no application listens"), "{error}");
}
