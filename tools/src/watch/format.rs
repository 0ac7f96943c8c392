//! Numbers for people: three significant digits, and a unit prefix.

use std::time::Duration;

/// Shown where a value is unknown.
pub(crate) const UNKNOWN: &str = "-";
/// Steps between the prefixes.
const DECIMAL: f64 = 1000.0;
const BINARY: f64 = 1024.0;

/// Returns a count, exact up to six digits, with a decimal prefix above.
pub(crate) fn count(number: u64) -> String {
    if number < 1_000_000 {
        number.to_string()
    } else {
        scaled(number as f64, DECIMAL, "", &["", "k", "M", "G", "T", "P", "E"])
    }
}

/// Returns a rate in events per second, with a decimal prefix.
pub(crate) fn rate(per_second: Option<f64>) -> String {
    per_second.map_or(UNKNOWN.to_owned(), |rate| scaled(rate, DECIMAL, "", &["", "k", "M", "G", "T"]))
}

/// Returns a rate in bits per second: `9.41 Gb`.
pub(crate) fn bits(per_second: Option<f64>) -> String {
    let units = ["b", "kb", "Mb", "Gb", "Tb"];
    per_second.map_or(UNKNOWN.to_owned(), |rate| scaled(rate, DECIMAL, " ", &units))
}

/// Returns a size in bytes, with a binary prefix: `64 KiB`.
pub(crate) fn bytes(size: Option<u64>) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    size.map_or(UNKNOWN.to_owned(), |size| scaled(size as f64, BINARY, " ", &units))
}

/// Returns a time: `12.3 us`, `4.56 ms`, `12 s`, `3 min`, `2 h`, `5 d`.
pub(crate) fn time(time: Option<Duration>) -> String {
    let Some(time) = time else { return UNKNOWN.to_owned() };
    match time.as_secs() {
        0 => scaled(time.as_nanos() as f64, DECIMAL, " ", &["ns", "us", "ms", "s"]),
        seconds @ 1..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds @ 3600..86_400 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// Divides by the step until three digits are left before the point, and appends the unit.
fn scaled(number: f64, step: f64, space: &str, units: &[&str]) -> String {
    let (mut scaled, mut unit) = (number, 0);
    // 999.5 would be shown as 1000.
    while scaled >= step - 0.5 && unit + 1 < units.len() {
        scaled /= step;
        unit += 1;
    }
    let is_exact = scaled.fract() == 0.0 && (unit == 0 || step == BINARY);
    let digits = match scaled {
        _ if is_exact => 0,
        99.95.. => 0,
        9.995.. => 1,
        _ => 2,
    };
    format!("{scaled:.digits$}{space}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_prefix() {
        assert_eq!([0, 7, 999_999, 1_000_000, 1_234_567].map(count), ["0", "7", "999999", "1.00M", "1.23M"]);
        assert_eq!(count(u64::MAX), "18.4E");
        let rates = [0.0, 0.25, 7.0, 12.34, 999.4, 999.6, 1234.0, 45_678.0, 9.1e6, 1e16];
        let texts = ["0", "0.25", "7", "12.3", "999", "1.00k", "1.23k", "45.7k", "9.10M", "10000T"];
        assert_eq!(rates.map(|number| rate(Some(number))), texts);
        assert_eq!(rate(None), "-");
    }

    #[test]
    fn sizes_and_bits_have_units() {
        let sizes = [0, 512, 1023, 1024, 65_536, 1_500_000, 1 << 30].map(|size| bytes(Some(size)));
        assert_eq!(sizes, ["0 B", "512 B", "1023 B", "1 KiB", "64 KiB", "1.43 MiB", "1 GiB"]);
        let rates = [0.0, 800.0, 12_345.0, 9.41e9].map(|rate| bits(Some(rate)));
        assert_eq!(rates, ["0 b", "800 b", "12.3 kb", "9.41 Gb"]);
        assert_eq!((bytes(None), bits(None)), ("-".to_owned(), "-".to_owned()));
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        let nanoseconds =
            [0, 650, 12_345, 4_560_000, 999_000_000].map(|time| super::time(Some(Duration::from_nanos(time))));
        assert_eq!(nanoseconds, ["0 ns", "650 ns", "12.3 us", "4.56 ms", "999 ms"]);
        let seconds = [1, 59, 60, 3599, 3600, 86_399, 172_800].map(|time| super::time(Some(Duration::from_secs(time))));
        assert_eq!(seconds, ["1 s", "59 s", "1 min", "59 min", "1 h", "23 h", "2 d"]);
    }
}
