//! The statistics as JSON.

use rdma_verbs::monitor::{
    ConnectionState, ConnectionStatistics, DeviceStatistics, ListenerStatistics, QueuePairStatistics, Snapshot,
};
use rdma_verbs::types::{Counter, Counters, DropReason, LiveObjects, QueuePairState};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::watch::{Update, Watched};

/// The document of `--json`.
#[derive(Serialize)]
pub(super) struct Document {
    processes: Vec<Value>,
}

impl Document {
    pub(super) fn of(update: &Update) -> Self {
        Self { processes: update.processes.iter().map(process).collect() }
    }
}

fn process(watched: &Watched) -> Value {
    // Without values there is a reason.
    let silence = || watched.snapshot().is_none().then(|| watched.status());
    let error = watched.problem.clone().or_else(silence);
    let mut value = json!({ "pid": watched.process, "name": watched.name, "error": error });
    if let (Some(snapshot), Some(object)) = (watched.snapshot(), value.as_object_mut()) {
        object.extend(values(snapshot));
    }
    value
}

fn values(snapshot: &Snapshot) -> Map<String, Value> {
    let devices: Vec<Value> = snapshot.devices.iter().map(device).collect();
    let fields = [
        ("taken_at_ns", json!(snapshot.taken_at)),
        ("age_seconds", json!(snapshot.age.as_secs_f64())),
        ("stopped", json!(snapshot.is_overdue())),
        ("devices", json!(devices)),
        ("omitted_devices", json!(snapshot.omitted_devices)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn device(device: &DeviceStatistics) -> Value {
    let queue_pairs: Vec<Value> = device.queue_pairs.iter().map(queue_pair).collect();
    let omitted = &device.omitted_queue_pairs;
    json!({
        "name": device.name,
        "id": device.id,
        "addresses": device.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "omitted_addresses": device.omitted_addresses,
        "shared_memory": device.shared_memory.name(),
        "counters": counters(&device.counters),
        "drops": drops(&device.counters),
        "objects": objects(&device.objects),
        "captures": device.captures,
        "queue_pair_states": counted(QueuePairState::ALL.iter().map(|state| state.name()), &device.states),
        "queue_pairs": queue_pairs,
        "omitted_queue_pairs": {
            "queue_pairs": omitted.queue_pairs,
            "sends": omitted.sends,
            "receives": omitted.receives,
            "counters": counters(&omitted.counters),
            "drops": drops(&omitted.counters),
        },
        "connections": connections(&device.connections),
        "listeners": device.listeners.iter().map(listener).collect::<Vec<_>>(),
        "omitted_listeners": device.omitted_listeners,
    })
}

fn counted(names: impl Iterator<Item = &'static str>, counts: &[u32]) -> Value {
    names.zip(counts).map(|(name, count)| (name.to_owned(), json!(count))).collect::<Map<_, _>>().into()
}

fn counters(counters: &Counters) -> Value {
    let named = Counter::ALL.iter().map(|counter| (counter.name().to_owned(), json!(counters.get(*counter))));
    named.collect::<Map<_, _>>().into()
}

fn drops(counters: &Counters) -> Value {
    let named = DropReason::ALL.iter().map(|reason| (reason.name().to_owned(), json!(counters.get_drop(*reason))));
    named.collect::<Map<_, _>>().into()
}

pub(super) const fn object_counts(objects: &LiveObjects) -> [(&'static str, u32); 8] {
    [
        ("queue_pairs", objects.queue_pairs),
        ("completion_queues", objects.completion_queues),
        ("shared_receive_queues", objects.shared_receive_queues),
        ("memory_regions", objects.memory_regions),
        ("memory_windows", objects.memory_windows),
        ("protection_domains", objects.protection_domains),
        ("xrc_domains", objects.xrc_domains),
        ("address_handles", objects.address_handles),
    ]
}

fn objects(objects: &LiveObjects) -> Value {
    let named = object_counts(objects).into_iter().map(|(name, count)| (name.to_owned(), json!(count)));
    named.collect::<Map<_, _>>().into()
}

fn queue_pair(qp: &QueuePairStatistics) -> Value {
    json!({
        "number": qp.qpn.value(),
        "type": qp.qp_type.name(),
        "state": qp.state.name(),
        "own_address": qp.own_address.map(|address| address.to_string()),
        "peer_address": qp.peer_address.map(|address| address.to_string()),
        "peer_number": qp.peer_qpn.map(|number| number.value()),
        "path": qp.path.map(|path| path.name()),
        "sends": qp.sends,
        "receives": qp.receives,
        "counters": counters(&qp.counters),
        "drops": drops(&qp.counters),
        "round_trip_seconds": qp.round_trip.map(|time| time.as_secs_f64()),
        "window_bytes": qp.window,
        "path_bytes_in_flight": qp.path_bytes_in_flight,
        "bytes_in_flight": qp.bytes_in_flight,
        "pending_sends": qp.pending_sends,
        "pending_receives": qp.pending_receives,
        "error": qp.error,
    })
}

fn connections(connections: &ConnectionStatistics) -> Value {
    json!({
        "states": counted(ConnectionState::ALL.iter().map(|state| state.name()), &connections.states),
        "received": connections.received,
        "sent": connections.sent,
        "repeated": connections.repeated,
        "duplicates": connections.duplicates,
        "stale": connections.stale,
        "refused": connections.refused,
        "dropped": connections.dropped,
        "dropped_full": connections.dropped_full,
    })
}

fn listener(listener: &ListenerStatistics) -> Value {
    json!({
        "service_id": format!("{:#x}", listener.service_id),
        "port": listener.port(),
        "address": listener.address.map(|address| address.to_string()),
        "type": listener.qp_type.name(),
        "backlog": listener.backlog,
        "waiting": listener.waiting,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::tests::busy;

    #[test]
    fn fields_are_those_of_the_schema() {
        let mut watched = Watched::new(4711, "fio");
        busy().into_iter().for_each(|snapshot| watched.update(snapshot));
        let mut refusing = Watched::new(4712, "su");
        refusing.problem = Some("it refuses".to_owned());
        let document = Document::of(&Update { processes: vec![watched, refusing], problem: None });
        let value = serde_json::to_value(document).expect("JSON");
        let process = &value["processes"][0];
        let device = &process["devices"][0];
        assert_eq!(
            (&process["pid"], &process["error"], &process["stopped"]),
            (&json!(4711), &Value::Null, &json!(false))
        );
        assert_eq!(device["counters"]["sent_bytes"], json!(1_251_000_000));
        assert_eq!(device["drops"]["drop_bad_icrc"], json!(1));
        assert_eq!(device["queue_pair_states"]["ERR"], json!(1));
        assert_eq!(device["queue_pairs"][0]["peer_number"], json!(0x2c));
        assert_eq!(device["queue_pairs"][0]["round_trip_seconds"], json!(0.000_052));
        assert_eq!(device["connections"]["states"]["established"], json!(4));
        assert_eq!(device["listeners"][0]["port"], json!(7471));
        assert_eq!(value["processes"][1]["error"], json!("it refuses"));
    }
}
