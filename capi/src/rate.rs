//! Conversion of `ibv_rate` to numbers: multiples of 2.5 Gbit/s, and Mbit/s.

use std::ffi::c_int;

use crate::version::exported;

/// `ibv_rate`, its multiple (-1 if it is none), and Mbit/s.
const RATES: &[(c_int, c_int, c_int)] = &[
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, -1, 14_062),
    (12, -1, 56_250),
    (13, -1, 112_500),
    (14, -1, 168_750),
    (15, -1, 25_781),
    (16, -1, 103_125),
    (17, -1, 206_250),
    (18, -1, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// `IBV_RATE_MAX`.
const MAX: c_int = 0;

/// Returns the multiple of 2.5 Gbit/s, or -1.
#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|known| known.0 == rate).map_or(-1, |known| known.1)
}

/// The inverse; `IBV_RATE_MAX` if there is none.
#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    RATES.iter().find(|known| known.1 == multiple && multiple > 0).map_or(MAX, |known| known.0)
}

/// Returns Mbit/s, or -1.
#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|known| known.0 == rate).map_or(-1, |known| known.2)
}

/// The inverse; `IBV_RATE_MAX` if there is none.
#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(megabits: c_int) -> c_int {
    RATES.iter().find(|known| known.2 == megabits).map_or(MAX, |known| known.0)
}

exported! {
    "IBVERBS_1.0": ibv_rate_to_mult mult_to_ibv_rate;
    "IBVERBS_1.1": ibv_rate_to_mbps mbps_to_ibv_rate;
}
