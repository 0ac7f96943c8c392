//! This end is the target of the kernel's host, `nvme-rdma`.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rdma_verbs::verbs::cm::{Listener, Request};

use super::capsule::{ANY_CONTROLLER, COMMAND_BYTES, ConnectRequest, answer_data, connect, refusal, status};
use super::controller::{CONTROLLER, Controller, IDENTIFY_BYTES};
use super::target_queue::{QUEUE_SIZE, TargetQueue};
use super::{Outcome, PATIENCE, ensure};

/// Another id in the data of Identify than in the response to Connect: the kernel compares them, and reports both.
const OTHER_CONTROLLER: u16 = 9;

pub(crate) fn run(address: SocketAddr, subsystem: &str, data: &Path) -> Outcome {
    let listener = Listener::bind(address)?;
    println!("listening on {}", listener.local_addr());
    reject(&listener).map_err(|error| format!("the rejected connection: {error}"))?;
    refuse(&listener, subsystem).map_err(|error| format!("the refused Connect: {error}"))?;
    for identified in [OTHER_CONTROLLER, CONTROLLER] {
        let mut controller = Controller::new(next_admin_queue(&listener)?, subsystem, identified);
        let command = controller.admin.receive_connect(subsystem, ANY_CONTROLLER)?;
        controller.admin.respond(&command, status::SUCCESS, CONTROLLER.into())?;
        controller.serve(&listener).map_err(|error| format!("controller {identified}: {error}"))?;
        println!("ok: the kernel disconnects from controller {identified}");
        let namespace = controller.namespace()?;
        ensure(namespace.is_some() == (identified == CONTROLLER), || "an I/O queue, or none".to_owned())?;
        if let Some(namespace) = namespace {
            ensure(namespace == std::fs::read(data)?, || "the namespace has other bytes than the file".to_owned())?;
            println!("ok: the namespace has the file's {} bytes", namespace.len());
        }
    }
    Ok(())
}

/// Returns the next request, if there is one in this time. Its private data must be those of the kernel's host.
pub(crate) fn next_request(listener: &Listener, patience: Duration, queue_id: u16) -> Outcome<Option<Request>> {
    let Some(request) = listener.accept_within(patience)? else { return Ok(None) };
    let found = ConnectRequest::from_bytes(request.private_data());
    let expected = ConnectRequest {
        queue_id,
        host_receive_queue_size: QUEUE_SIZE,
        host_send_queue_size: QUEUE_SIZE - 1,
        // Linux 6.1 sends 0 for I/O queues, too.
        controller_id: if queue_id == 0 { 0 } else { found.controller_id },
        record_format: 0,
    };
    ensure(found == expected, || format!("{found:?} instead of {expected:?}"))?;
    let (served, outstanding) = request.peer_resources();
    println!("ok: REQ: {found:?}; serves {served} READs, has {outstanding}, path MTU {}", request.path_mtu().bytes());
    Ok(Some(request))
}

fn next_admin_request(listener: &Listener) -> Outcome<Request> {
    Ok(next_request(listener, PATIENCE, 0)?.ok_or("the kernel does not request a connection")?)
}

fn next_admin_queue(listener: &Listener) -> Outcome<TargetQueue> {
    TargetQueue::accept(next_admin_request(listener)?, COMMAND_BYTES, IDENTIFY_BYTES)
}

fn reject(listener: &Listener) -> Outcome {
    next_admin_request(listener)?.reject(&answer_data(refusal::INVALID_QUEUE_ID)[..4])?;
    println!("ok: rejected, NVMe status {}", refusal::INVALID_QUEUE_ID);
    Ok(())
}

/// Refuses a Connect command because of the subsystem's name in its data.
fn refuse(listener: &Listener, subsystem: &str) -> Outcome {
    let mut queue = next_admin_queue(listener)?;
    let command = queue.receive_connect(subsystem, ANY_CONTROLLER)?;
    let place = 1 << 16 | connect::DATA_SUBSYSTEM as u64;
    queue.respond(&command, status::CONNECT_INVALID_PARAMETERS, place)?;
    ensure(queue.ends_within(PATIENCE)?, || "the kernel does not disconnect".to_owned())?;
    println!("ok: the kernel disconnects after status {:#x}", status::CONNECT_INVALID_PARAMETERS);
    Ok(())
}
