//! The measurement of a row of the table, over any network.

use serde::{Deserialize, Serialize};

use super::end::Device;
use super::external::External;
use super::job::{Assignment, Job};
use super::machine::{Placement, pin};
use super::outcome::Outcome;
use super::partner::Partner;
use super::progress::Progress;
use super::reference::{Reference, Role};
use super::report::Line;
use super::run::{perform, refer};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    Verbs(Box<Job>),
    Reference(Reference),
    External(External),
}

impl Task {
    /// Checks that this machine has what the task needs.
    pub(crate) fn check(&self) -> Outcome {
        match self {
            Self::Verbs(_) | Self::Reference(_) => Ok(()),
            Self::External(external) => external.check(),
        }
    }

    /// Runs the task as the client. `devices`: this process's and the other one's.
    pub(crate) fn perform(&self, placement: Placement, devices: [&str; 2], partner: &mut Partner) -> Outcome<Line> {
        pin(Role::Client, placement)?;
        let [own, other] = devices;
        match self {
            Self::Verbs(job) => {
                let device = other.to_owned();
                partner.channel.send(&Assignment::Verbs { job: (**job).clone(), placement, device })?;
                // Opened for each task, so that its threads run on the task's cores.
                let device = Device::open(Some(own), 1, None, job.sharing)?;
                perform(job, job.largest(), &device, Role::Client, &mut partner.channel, &Progress::none())
            }
            Self::Reference(reference) => {
                partner.channel.send(&Assignment::Reference { reference: *reference, placement })?;
                refer(reference, None, Role::Client, &mut partner.channel)
            }
            Self::External(external) => external.run(placement),
        }
    }
}
