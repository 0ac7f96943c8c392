//! Writes HTML that is also well-formed XML. All text and all attributes are escaped here, and nowhere else.

/// A page in the making.
#[derive(Default)]
pub(super) struct Markup {
    text: String,
}

/// Names and values of attributes.
pub(super) type Attributes<'a> = &'a [(&'a str, &'a str)];

impl Markup {
    /// Adds constant text of this program as it is.
    pub(super) fn constant(&mut self, text: &'static str) {
        self.text.push_str(text);
    }

    pub(super) fn open(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.begin(name, attributes);
        self.text.push('>');
    }

    pub(super) fn close(&mut self, name: &'static str) {
        self.text.push_str("</");
        self.text.push_str(name);
        self.text.push_str(">\n");
    }

    /// Adds an element without contents.
    pub(super) fn empty(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.begin(name, attributes);
        self.text.push_str(" />");
    }

    /// Adds an element with this text.
    pub(super) fn leaf(&mut self, name: &'static str, attributes: Attributes<'_>, text: &str) {
        self.open(name, attributes);
        self.escape(text);
        self.text.push_str("</");
        self.text.push_str(name);
        self.text.push('>');
    }

    /// Adds an element whose contents the function adds.
    pub(super) fn element(&mut self, name: &'static str, attributes: Attributes<'_>, contents: impl FnOnce(&mut Self)) {
        self.open(name, attributes);
        contents(self);
        self.close(name);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.escape(text);
    }

    /// Adds a JSON document. Its characters that mean something in HTML can only occur in strings, where JSON has
    /// another way to write them.
    pub(super) fn json(&mut self, document: &serde_json::Value) {
        for character in document.to_string().chars() {
            match character {
                '<' | '>' | '&' | '\u{7f}'.. => {
                    let mut units = [0; 2];
                    for unit in character.encode_utf16(&mut units) {
                        self.text.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => self.text.push(character),
            }
        }
    }

    pub(super) fn finish(self) -> String {
        self.text
    }

    fn begin(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.text.push('<');
        self.text.push_str(name);
        for (name, value) in attributes {
            self.text.push(' ');
            self.text.push_str(name);
            self.text.push_str("=\"");
            self.escape(value);
            self.text.push('"');
        }
    }

    fn escape(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '&' => self.text.push_str("&amp;"),
                '<' => self.text.push_str("&lt;"),
                '>' => self.text.push_str("&gt;"),
                '"' => self.text.push_str("&quot;"),
                '\'' => self.text.push_str("&#39;"),
                '\n' => self.text.push('\n'),
                // XML allows no other control characters, nor these two. Marks that change the direction of text can
                // make it look like other text.
                '\0'..' ' | '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => self.text.push('\u{fffd}'),
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => self.text.push('\u{fffd}'),
                _ => self.text.push(character),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Markup;

    #[test]
    fn text_attributes_and_json_cannot_leave_their_place() {
        let hostile = "\"'><script>&amp;</script>\u{0}\u{202e}\n";
        let mut page = Markup::default();
        page.leaf("p", &[("title", hostile)], hostile);
        let escaped = "&quot;&#39;&gt;&lt;script&gt;&amp;amp;&lt;/script&gt;\u{fffd}\u{fffd}\n";
        assert_eq!(page.finish(), format!("<p title=\"{escaped}\">{escaped}</p>"));

        let value = serde_json::json!({ "</script>": "<!--\u{1f600}\u{2028}&" });
        let mut page = Markup::default();
        page.json(&value);
        let text = page.finish();
        assert!(!text.contains(['<', '>', '&']), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
