//! The figures of a measurement, and their targets.

use std::fmt;

use serde::Serialize;

use crate::perf::report::Line;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Figure {
    /// Median of half the round trip.
    Median,
    /// Mean of half the round trip.
    Mean,
    /// The 99.9th percentile of half the round trip.
    Tail,
    Bandwidth,
    Rate,
    /// Processor seconds of both ends for 10^9 bytes.
    Processor,
    /// Time for each message of a stream.
    TimePerMessage,
}

impl Figure {
    pub(super) fn of(self, line: &Line) -> f64 {
        match self {
            Self::Median => line.latency.map_or(f64::NAN, |latency| latency.p50),
            Self::Mean => line.latency.map_or(f64::NAN, |latency| latency.mean),
            Self::Tail => line.latency.map_or(f64::NAN, |latency| latency.p999),
            Self::Bandwidth => line.gigabytes_per_second,
            Self::Rate => line.million_messages_per_second,
            Self::Processor => line.cpu_seconds_per_gigabyte,
            Self::TimePerMessage => 1.0 / line.million_messages_per_second,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Median => "p50",
            Self::Mean => "mean",
            Self::Tail => "p99.9",
            Self::Bandwidth => "bandwidth",
            Self::Rate => "rate",
            Self::Processor => "CPU",
            Self::TimePerMessage => "time",
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Median | Self::Mean | Self::Tail | Self::TimePerMessage => "µs",
            Self::Bandwidth => "GB/s",
            Self::Rate => "M/s",
            Self::Processor => "s/GB",
        }
    }

    pub(super) fn is_better(self, one: f64, other: f64) -> bool {
        match self {
            Self::Median | Self::Mean | Self::Tail | Self::Processor | Self::TimePerMessage => one < other,
            Self::Bandwidth | Self::Rate => one > other,
        }
    }
}

/// The target of a ratio.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    pub(super) fn holds(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(limit) => ratio <= limit,
            Self::AtLeast(limit) => ratio >= limit,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(limit) => write!(f, "<= {limit}"),
            Self::AtLeast(limit) => write!(f, ">= {limit}"),
        }
    }
}

/// Returns the spread of the values, as a fraction of their median: the noise.
pub(super) fn spread(values: &[f64]) -> f64 {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (most - least) / median(values)
}

/// Returns the median; of an even number of values the upper of the two.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
