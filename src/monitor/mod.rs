//! Watching processes from outside: the statistics of other processes of this user that have software devices, and
//! captures of their packets.
//!
//! Each process of this crate, and each program that uses its C library, serves both to the user who runs it, over a
//! Unix socket that other users cannot reach. It collects statistics only while it is watched.
//!
//! * [`processes`] lists the processes of this user that have a software device which receives on an address.
//! * [`Process::watch`] has a process export its statistics; [`Watch::snapshot`] reads them without waiting for the
//!   process, so a stopped one shows its last values.
//! * [`Process::start_capture`] has a process record its packets in a file that the caller has opened.
//!
//! A program that has more privileges than the user who started it (setuid, setgid, capabilities), or that is
//! protected from being traced, refuses both.
//!
//! ```
//! use std::time::Duration;
//! use rdma_verbs::{monitor, verbs};
//!
//! // A process finds itself, too.
//! let context = verbs::open("soft:127.0.1.160")?;
//! let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
//! let qp = pd.create_qp(&cq, &cq)?;
//! qp.connect(&qp.connection_info()?)?;
//!
//! let own = monitor::processes()?.into_iter().find(|process| process.id() == std::process::id());
//! let mut watch = own.expect("this process").watch(Duration::from_millis(100))?;
//! let snapshot = watch.snapshot()?;
//! let device = snapshot.devices.iter().find(|device| device.name == "soft:127.0.1.160").expect("the device");
//! assert_eq!(device.objects.queue_pairs, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod capture;
mod error;
mod process;

pub use capture::{CaptureEnd, RemoteCapture, RemoteCaptureOptions, RemoteCaptureResult};
pub use error::{MonitorError, Result};
pub use process::{Process, Processes, Watch, processes};

pub use crate::types::{
    ConnectionState, ConnectionStatistics, DeviceStatistics, ListenerStatistics, PathKind, QueuePairStatistics,
    QueuePairSums, Snapshot,
};
