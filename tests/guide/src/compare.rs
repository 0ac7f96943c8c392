//! Output of commands, compared with the lines that a console block shows.

const ANY: &str = "...";

/// Whether the output is as shown. A shown line `...` stands for any number of lines, and `...` within a line for any
/// characters. With `measured`, numbers and white space may differ.
pub(crate) fn matches(shown: &[&str], output: &[&str], measured: bool) -> bool {
    // Columns of a table with a row for each prefix of the shown lines: whether it matches the output so far.
    let mut reached = vec![false; output.len() + 1];
    reached[0] = true;
    for line in shown {
        let mut next = vec![false; output.len() + 1];
        if line.trim() == ANY {
            let first = reached.iter().position(|&here| here).unwrap_or(reached.len());
            next[first..].fill(true);
        } else {
            for at in 0..output.len() {
                next[at + 1] = reached[at] && line_matches(line, output[at], measured);
            }
        }
        reached = next;
    }
    reached[output.len()]
}

/// Whether one line is as shown.
pub(crate) fn line_matches(shown: &str, output: &str, measured: bool) -> bool {
    if measured {
        return pattern_matches(&without_numbers(shown), &without_numbers(output));
    }
    pattern_matches(shown.trim_end(), output.trim_end())
}

fn pattern_matches(shown: &str, output: &str) -> bool {
    let mut parts = shown.split(ANY);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = output.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// A mark for each number, and one space for each run of white space. Hexadecimal numbers begin with `0x`.
fn without_numbers(line: &str) -> String {
    let mut result = String::new();
    let mut rest = line.trim();
    while let Some(first) = rest.chars().next() {
        let taken = if first.is_ascii_digit() {
            result.push('#');
            match rest.strip_prefix("0x") {
                Some(digits) => 2 + digits.bytes().take_while(u8::is_ascii_hexdigit).count(),
                None => number_length(rest.as_bytes()),
            }
        } else if first.is_whitespace() {
            result.push(' ');
            rest.len() - rest.trim_start().len()
        } else {
            result.push(first);
            first.len_utf8()
        };
        rest = &rest[taken..];
    }
    result
}

/// Digits, with points and commas between them.
fn number_length(text: &[u8]) -> usize {
    let mut length = 0;
    while let Some(byte) = text.get(length) {
        let separator = matches!(byte, b'.' | b',') && text.get(length + 1).is_some_and(u8::is_ascii_digit);
        if !byte.is_ascii_digit() && !separator {
            break;
        }
        length += 1;
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stand_for_themselves() {
        assert!(matches(&["a", "b"], &["a", "b "], false));
        assert!(!matches(&["a"], &["a", "b"], false));
        assert!(!matches(&["a", "b"], &["a"], false));
        assert!(!matches(&[], &["a"], false));
        assert!(matches(&[], &[], false));
    }

    #[test]
    fn dots_stand_for_lines_and_for_characters() {
        assert!(matches(&["a", "...", "c"], &["a", "b", "b", "c"], false));
        assert!(matches(&["a", "...", "c"], &["a", "c"], false));
        assert!(matches(&["..."], &[], false));
        assert!(!matches(&["a", "...", "c"], &["a", "c", "d"], false));
        assert!(matches(&["key 0x... of ... bytes"], &["key 0x12 of 13 bytes"], false));
        assert!(!matches(&["key 0x... of"], &["key 0x12 of 13"], false));
        assert!(!matches(&["ab...ba"], &["aba"], false));
    }

    #[test]
    fn measured_numbers_differ_and_nothing_else() {
        assert!(matches(&["took 1.5 us,  3 of 1,000"], &["took 12 us, 7 of 10"], true));
        assert!(!matches(&["took 1.5 us"], &["took 1.5 ms"], true));
        assert!(!matches(&["took 1.5 us"], &["took 2.5 us"], false));
        assert!(matches(&["key 0x12ab."], &["key 0xff."], true));
    }
}
