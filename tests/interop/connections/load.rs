//! Many connections at once.

use std::time::Duration;

use rdma_verbs::verbs::QueuePair;
use rdma_verbs::verbs::cm::ConnectionOptions;

use crate::home::{Error, Home, LISTENER, Outcome, PATIENCE, PORT, ensure};

/// Number of connections with the checks that take long, more than the receives of the other end's queue pair 1, and
/// without them.
const COUNTS: (usize, usize) = (600, 100);
/// The first of the guest's slots for them; the others are behind it.
const FIRST_SLOT: u32 = 400;

/// The guest prepares all its queue pairs before its first request: on a busy machine, 600 take longer than a reply.
const GUEST_PREPARES: Duration = Duration::from_secs(100);

/// All requests leave at once. In the end each connection was set up and ended at both ends, once.
pub(crate) fn connects_many(home: &mut Home) -> Outcome {
    let count = if home.is_full { COUNTS.0 } else { COUNTS.1 };
    let cq = home.context.create_cq(16)?;
    let ends = (0..count).map(|_| home.pd.create_qp(&cq, &cq)).collect::<Result<Vec<QueuePair>, _>>()?;
    let guest_is_client = home.guest_is_client();
    let command = match guest_is_client {
        true => format!("storm {FIRST_SLOT} {} {PORT} {count} wait=150000", home.local),
        false => format!("serve {LISTENER} {count} wait=150000"),
    };
    // The guest's reply comes at the end.
    home.guest.send(&command)?;
    if guest_is_client {
        accept_all(home, &ends)?
    } else {
        connect_all(home, &ends)?
    }
    let reply = home.guest.reply()?;
    let count = count.to_string();
    reply.expect(&[("disconnected", &count), ("rejected", "0"), ("unreachable", "0")])?;
    if !guest_is_client {
        reply.expect(&[("requests", &count)])?;
    }
    Ok(())
}

fn connect_all(home: &Home, ends: &[QueuePair]) -> Outcome {
    let (route, options) = (home.route(PORT)?, ConnectionOptions::new());
    let pending = ends.iter().map(|qp| route.start_connect(qp, &options)).collect::<Result<Vec<_>, _>>()?;
    let connections = pending.into_iter().map(|pending| pending.wait()).collect::<Result<Vec<_>, _>>()?;
    for (connection, qp) in connections.iter().zip(ends) {
        connection.disconnect(qp)?;
    }
    for connection in &connections {
        ensure(connection.wait_disconnected(PATIENCE)?, "a connection does not end")?;
    }
    Ok(())
}

fn accept_all(home: &Home, ends: &[QueuePair]) -> Outcome {
    let options = ConnectionOptions::new();
    let accept = |qp| -> Result<_, Error> {
        let request = home.listener.accept_within(GUEST_PREPARES)?.ok_or("no request arrives")?;
        Ok(request.start_accept(qp, &options)?)
    };
    let pending = ends.iter().map(accept).collect::<Result<Vec<_>, _>>()?;
    for (pending, qp) in pending.into_iter().zip(ends) {
        let connection = pending.wait()?;
        ensure(connection.wait_disconnected(PATIENCE)?, "a connection does not end")?;
        connection.disconnect(qp)?;
    }
    Ok(())
}
