//! The envelope of all JSON documents that the program writes; `docs/json.md` describes them.

use std::io;

use serde::Serialize;

use super::print;
use super::text::is_harmful;

/// Version of the documents. It grows when a field of any command is removed or changes its meaning; a new field does
/// not change it.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Envelope<'a, T> {
    schema: u32,
    command: &'a str,
    version: &'static str,
    #[serde(flatten)]
    body: &'a T,
}

/// Returns a document: an object with the fields of `body`, behind those of the envelope.
pub(crate) fn to_json<T: Serialize>(command: &str, body: &T) -> io::Result<String> {
    Ok(harmless(serde_json::to_string_pretty(&envelope(command, body))?))
}

/// Returns a document in one line, for commands that write many.
pub(crate) fn to_json_line<T: Serialize>(command: &str, body: &T) -> io::Result<String> {
    Ok(harmless(serde_json::to_string(&envelope(command, body))?))
}

/// Prints a document.
pub(crate) fn print_json<T: Serialize>(command: &str, body: &T) -> io::Result<()> {
    print(format_args!("{}\n", to_json(command, body)?))
}

const fn envelope<'a, T>(command: &'a str, body: &'a T) -> Envelope<'a, T> {
    Envelope { schema: SCHEMA, command, version: env!("CARGO_PKG_VERSION"), body }
}

/// Escapes the characters that a terminal acts on, of which JSON requires only the first 32 to be escaped. They occur
/// in texts only, except for the line breaks of the document.
fn harmless(document: String) -> String {
    let is_escaped = |character: char| character != '\n' && is_harmful(character);
    if !document.contains(is_escaped) {
        return document;
    }
    let mut escaped = String::with_capacity(document.len());
    for character in document.chars() {
        match is_escaped(character) {
            true => escaped.push_str(&format!("\\u{:04x}", u32::from(character))),
            false => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_envelope_comes_first() {
        #[derive(Serialize)]
        struct Body {
            unknown: f64,
            names: [&'static str; 1],
        }
        let text = to_json("devices", &Body { unknown: f64::NAN, names: ["a\"b"] }).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&value["schema"], &value["command"], &value["unknown"]),
            (&1.into(), &"devices".into(), &().into())
        );
        assert_eq!(value["names"][0], "a\"b");
        assert!(text.find("schema") < text.find("command") && text.find("command") < text.find("unknown"));
    }

    #[test]
    fn texts_cannot_control_the_terminal_and_keep_their_value() {
        let name = "a\u{1b}[2J\u{9b}\u{7f}\u{202e}\nö";
        let body = std::collections::BTreeMap::from([("name", name)]);
        for document in [to_json("stat", &body).unwrap(), to_json_line("show", &body).unwrap()] {
            assert!(!document.chars().any(|character| character != '\n' && is_harmful(character)), "{document:?}");
            let value: serde_json::Value = serde_json::from_str(&document).unwrap();
            assert_eq!(value["name"], name);
        }
        assert_eq!(to_json_line("show", &body).unwrap().lines().count(), 1);
    }
}
