//! Text that others have written: names of processes and devices, messages of peers, comments in files.

/// Returns the text with a replacement character for each character that a terminal acts on.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|character| if is_harmful(character) { char::REPLACEMENT_CHARACTER } else { character }).collect()
}

/// Like [`printable`], except that line breaks stay.
pub(super) fn printable_lines(text: &str) -> String {
    let is_replaced = |character: char| character != '\n' && is_harmful(character);
    text.chars().map(|character| if is_replaced(character) { char::REPLACEMENT_CHARACTER } else { character }).collect()
}

/// Like [`printable`], for bytes, of which at most `most` characters are returned.
pub(crate) fn printable_bytes(text: &[u8], most: usize) -> String {
    // A character has at most four bytes.
    let text = String::from_utf8_lossy(&text[..text.len().min(4 * most)]);
    printable(&text.chars().take(most).collect::<String>())
}

/// Returns a word as a shell takes it, in quotes if necessary.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_./:=,%+@".contains(character);
    match word {
        "" => "''".to_owned(),
        _ if word.chars().all(is_plain) => word.to_owned(),
        _ => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Whether the character moves the cursor, changes colors, is invisible, or changes the direction of writing.
pub(super) fn is_harmful(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(character, '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_control_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\u{fffd}[2Jb\u{fffd}c");
        assert_eq!(printable("x\u{202e}y\u{9b}z\u{2066}"), "x\u{fffd}y\u{fffd}z\u{fffd}");
        assert_eq!(printable("fio-3.33 ö"), "fio-3.33 ö");
    }

    #[test]
    fn words_for_the_shell() {
        assert_eq!(["server-1.example", "fe80::1%eth0", ""].map(quoted), ["server-1.example", "fe80::1%eth0", "''"]);
        assert_eq!(quoted("a'; reboot"), r"'a'\''; reboot'");
    }

    #[test]
    fn bytes_are_text_of_a_bounded_length() {
        assert_eq!(printable_bytes(b"a\x1b\xffb", 100), "a\u{fffd}\u{fffd}b");
        assert_eq!(printable_bytes(&[b'x'; 9_000], 64).len(), 64);
        assert_eq!(printable_bytes("ööö".as_bytes(), 2), "öö");
        assert_eq!(printable_bytes(b"", 2), "");
    }
}
