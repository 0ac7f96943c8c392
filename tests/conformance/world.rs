//! The devices of a scenario.

use std::fmt;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_verbs::verbs::{self, ConnectOptions, Context};

use super::end::{End, Shape};
use super::suite::{Capability, Scenario};

/// Names of devices, separated by commas; if unset, the software device is used.
const DEVICES: &str = "RDMA_VERBS_DEVICES";

/// The devices that the suite runs on.
pub(crate) enum Devices {
    /// Software devices, each on its own loopback address; the counter makes the addresses unique.
    Soft(AtomicU32),
    /// Devices of these names, the same for all scenarios.
    Named(Vec<String>),
}

impl Devices {
    pub(crate) fn from_environment() -> Self {
        match std::env::var(DEVICES) {
            Ok(names) if !names.is_empty() => Self::Named(names.split(',').map(str::to_owned).collect()),
            _ => Self::Soft(AtomicU32::new(1)),
        }
    }

    /// Returns the name of the device that represents all of them.
    pub(crate) fn first(&self) -> String {
        match self {
            Self::Soft(_) => "soft".to_owned(),
            Self::Named(names) => names[0].clone(),
        }
    }

    /// Returns a name for the `index`-th device of a scenario.
    fn name(&self, index: usize) -> String {
        match self {
            // The second byte differs between processes, so that several suites may run concurrently.
            Self::Soft(count) => {
                let number = count.fetch_add(1, Ordering::Relaxed);
                assert!(number < 0xff00, "the suite has used up its addresses");
                format!("soft:127.{}.{}.{}", 128 + process::id() % 96, number >> 8, number & 0xff)
            }
            Self::Named(names) => names[index % names.len()].clone(),
        }
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Soft(_) => f.write_str("soft"),
            Self::Named(names) => f.write_str(&names.join(" and ")),
        }
    }
}

/// Maximum number of devices that one scenario may use.
const MOST_DEVICES: usize = 4;

/// A scenario's own devices, by number.
pub(crate) struct World {
    scenario: &'static Scenario,
    names: [String; MOST_DEVICES],
}

impl World {
    pub(crate) fn new(scenario: &'static Scenario, devices: Arc<Devices>) -> Self {
        Self { scenario, names: std::array::from_fn(|index| devices.name(index)) }
    }

    /// Returns the name of a device (0 to 3).
    pub(crate) fn name(&self, index: usize) -> &str {
        &self.names[index]
    }

    /// Opens a device (0 to 3). Opening the same one again gives another context on the same address.
    #[track_caller]
    pub(crate) fn device(&self, index: usize) -> Context {
        let name = self.name(index);
        verbs::open(name).unwrap_or_else(|error| panic!("{name} for {}: {error}", self.scenario.name))
    }

    /// Returns whether the first device has the capability.
    pub(crate) fn has(&self, capability: &Capability) -> bool {
        (capability.present)(&self.device(0).query_device())
    }

    /// Creates a queue pair of this shape, in RESET, on a new context of a device.
    #[track_caller]
    pub(crate) fn end(&self, index: usize, shape: &Shape) -> End {
        End::new(self.device(index), shape)
    }

    /// Connects two reliable ends on devices 0 and 1, with all access flags.
    #[track_caller]
    pub(crate) fn pair(&self) -> (End, End) {
        self.pair_of(&Shape::default(), &ConnectOptions::default())
    }

    /// Connects two ends of this shape on devices 0 and 1.
    #[track_caller]
    pub(crate) fn pair_of(&self, shape: &Shape, options: &ConnectOptions) -> (End, End) {
        let (left, right) = (self.end(0, shape), self.end(1, shape));
        connect(&left, &right, options);
        (left, right)
    }

    /// Creates an end of this shape on device 0, connected to itself.
    #[track_caller]
    pub(crate) fn loopback(&self, shape: &Shape) -> End {
        let end = self.end(0, shape);
        let own = end.qp.connection_info().expect("connection_info");
        end.qp.connect(&own).expect("a queue pair connects to itself");
        end
    }
}

/// Brings both ends to RTS.
#[track_caller]
pub(crate) fn connect(left: &End, right: &End, options: &ConnectOptions) {
    let [near, far] = [left, right].map(|end| end.qp.connection_info().expect("connection_info"));
    left.qp.connect_with(&far, options).expect("connect");
    right.qp.connect_with(&near, options).expect("connect");
}
