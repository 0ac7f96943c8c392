//! Numbers, sizes and times as text.

use crate::common::calendar::date;

/// Formats a number with three digits.
pub(super) fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = (2.0 - value.abs().max(1e-9).log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats a fraction as a percentage.
pub(super) fn percent(fraction: f64) -> String {
    format!("{}\u{a0}%", number(100.0 * fraction))
}

/// Formats noise, as a percentage with one or two digits.
pub(super) fn noise(fraction: f64) -> String {
    let percent = 100.0 * fraction;
    let digits = usize::from(percent < 10.0);
    format!("±{percent:.digits$}\u{a0}%")
}

/// Formats a change with its sign.
pub(super) fn change(fraction: f64) -> String {
    let percent = 100.0 * fraction;
    let digits = if percent.abs() < 10.0 { 1 } else { 0 };
    let sign = if percent < 0.0 { '−' } else { '+' };
    format!("{sign}{:.digits$}\u{a0}%", percent.abs())
}

/// Formats a ratio.
pub(super) fn ratio(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}×") } else { format!("{value:.0}×") }
}

/// Formats a number of bytes in the largest unit that divides it, or is less than it by far.
pub(super) fn bytes(count: u64) -> String {
    let (value, unit) = in_unit(count as f64);
    format!("{}\u{a0}{}", number(value), ["B", "KiB", "MiB", "GiB"][unit])
}

/// Formats a number of bytes for an axis.
pub(super) fn short_bytes(count: f64) -> String {
    let (value, unit) = in_unit(count.round());
    format!("{}{}", number(value), ["", "K", "M", "G"][unit])
}

fn in_unit(count: f64) -> (f64, usize) {
    let unit = (1..=3).rev().find(|unit| count >= 1024f64.powi(*unit)).unwrap_or(0);
    (count / 1024f64.powi(unit), unit as usize)
}

/// Formats a count with a space between thousands.
pub(super) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Formats a time, given in seconds since 1970, as date and time of UTC.
pub(super) fn time(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // The last day of the year 9999.
    if days > 2_932_896 {
        return "at an unknown time".to_owned();
    }
    let (year, month, day) = date(days);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3600, second / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let texts = [0.0, 0.001_234, 0.5, 3.9, 12.345, 123.4, 1234.0, 1e12].map(number);
        assert_eq!(texts, ["0", "0.00123", "0.5", "3.9", "12.3", "123", "1234", "1000000000000"]);
        assert_eq!([0.1, 0.001, 1.0].map(percent), ["10\u{a0}%", "0.1\u{a0}%", "100\u{a0}%"]);
        assert_eq!([0.0312, -0.25].map(change), ["+3.1\u{a0}%", "−25\u{a0}%"]);
        assert_eq!([0.0312, 0.254].map(noise), ["±3.1\u{a0}%", "±25\u{a0}%"]);
        assert_eq!([8, 1536, 1 << 20].map(bytes), ["8\u{a0}B", "1.5\u{a0}KiB", "1\u{a0}MiB"]);
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(time(0), "1970-01-01 00:00 UTC");
        assert_eq!(time(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(time(1_764_359_999), "2025-11-28 19:59 UTC");
        assert_eq!(time(253_402_300_799), "9999-12-31 23:59 UTC");
        assert_eq!(time(u64::MAX), "at an unknown time");
    }
}
