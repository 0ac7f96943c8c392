//! The fenced blocks of a chapter, with the comments above them.

use std::path::Path;
use std::{fs, io};

/// A fenced block.
pub(crate) struct Block {
    /// Line of the fence, from 1.
    pub(crate) line: usize,
    /// The first word behind the fence: `rust`, `console`, ...
    pub(crate) kind: String,
    /// The other words: `no_run`, `compile_fail`, ...
    pub(crate) words: Vec<String>,
    /// Comments `<!-- name: value -->` above the block.
    comments: Vec<(String, String)>,
    pub(crate) text: String,
}

impl Block {
    /// The value of a comment above the block; empty for one without a value.
    pub(crate) fn comment(&self, name: &str) -> Option<&str> {
        self.comments.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.comment(name).is_some()
    }

    /// The names of all comments.
    pub(crate) fn comment_names(&self) -> impl Iterator<Item = &str> {
        self.comments.iter().map(|(key, _)| key.as_str())
    }

    /// The block as a file: hidden lines of Rust blocks are visible there.
    pub(crate) fn as_file(&self) -> String {
        let shown = |line: &str| match line.trim_start().strip_prefix("# ") {
            Some(hidden) if self.kind == "rust" => format!("{hidden}\n"),
            _ if self.kind == "rust" && line.trim() == "#" => "\n".to_owned(),
            _ => format!("{line}\n"),
        };
        self.text.lines().map(shown).collect()
    }
}

/// A page of the book.
pub(crate) struct Chapter {
    /// The file's name without its extension: `02-first-transfer`.
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) blocks: Vec<Block>,
    /// Chapters whose console blocks run before those of this one.
    pub(crate) needs: Vec<String>,
}

impl Chapter {
    pub(crate) fn read(path: &Path) -> io::Result<Chapter> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(path)?;
        let blocks = parse(&text)
            .map_err(|line| io::Error::other(format!("{}:{line}: the block has no end", path.display())))?;
        let needs =
            text.lines().filter_map(comment).filter(|(key, _)| key == "needs").map(|(_, value)| value).collect();
        Ok(Chapter { name, text, blocks, needs })
    }

    /// The text outside of blocks, with empty lines instead of them.
    pub(crate) fn prose(&self) -> String {
        let mut fence: Option<&str> = None;
        let mut prose = String::new();
        for line in self.text.lines() {
            let mark = fence_of(line);
            match (fence, mark) {
                (None, Some(mark)) => fence = Some(mark),
                (Some(open), Some(mark)) if mark.starts_with(open) && line.trim() == mark => fence = None,
                (None, None) => prose.push_str(line),
                _ => {}
            }
            prose.push('\n');
        }
        prose
    }
}

/// The backticks that a line begins with, if it opens or closes a block.
fn fence_of(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let count = line.bytes().take_while(|&byte| byte == b'`').count();
    (count >= 3).then(|| &line[..count])
}

/// Parses `<!-- name: value -->`, or `<!-- name -->`.
fn comment(line: &str) -> Option<(String, String)> {
    let inside = line.trim().strip_prefix("<!--")?.strip_suffix("-->")?.trim();
    let (key, value) = inside.split_once(':').unwrap_or((inside, ""));
    Some((key.trim().to_owned(), value.trim().to_owned()))
}

/// Returns the line of a block without an end as the error.
fn parse(text: &str) -> Result<Vec<Block>, usize> {
    let mut blocks = Vec::new();
    let mut comments = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if let Some(found) = comment(line) {
            comments.push(found);
            continue;
        }
        if let Some(fence) = fence_of(line) {
            let indent = line.len() - line.trim_start().len();
            let mut words = line.trim().trim_start_matches('`').split([',', ' ']).filter(|word| !word.is_empty());
            let kind = words.next().unwrap_or_default().to_owned();
            let words = words.map(str::to_owned).collect();
            let mut body = String::new();
            loop {
                let (_, line) = lines.next().ok_or(index + 1)?;
                if fence_of(line).is_some_and(|end| end.starts_with(fence) && line.trim() == end) {
                    break;
                }
                body.push_str(line.get(indent..).unwrap_or(line.trim_start()));
                body.push('\n');
            }
            blocks.push(Block { line: index + 1, kind, words, comments: std::mem::take(&mut comments), text: body });
        }
        comments.clear();
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(
        "# A\n\n<!-- needs: 02-b -->\n\n<!-- file: a/b.rs -->\n<!-- reason: it waits -->\n",
        "```rust,no_run\n# use a;\nfn main() {}\n```\n\n```console\n$ ls\n```\n\n````text\n```\n````\n",
    );

    #[test]
    fn blocks_have_kind_words_comments_and_text() {
        let blocks = parse(PAGE).unwrap();
        assert_eq!(blocks.len(), 3);
        assert_eq!((blocks[0].line, &*blocks[0].kind, &blocks[0].words[..]), (7, "rust", &["no_run".to_owned()][..]));
        assert_eq!(blocks[0].comment("file"), Some("a/b.rs"));
        assert_eq!(blocks[0].comment("reason"), Some("it waits"));
        assert_eq!(blocks[0].as_file(), "use a;\nfn main() {}\n");
        assert_eq!((blocks[1].kind.as_str(), blocks[1].comment("file")), ("console", None));
        assert_eq!(blocks[2].text, "```\n");
    }

    #[test]
    fn a_block_without_an_end_is_reported() {
        assert_eq!(parse("a\n```rust\nfn").err(), Some(2));
    }

    #[test]
    fn prose_has_no_blocks() {
        let chapter = Chapter { name: String::new(), text: PAGE.to_owned(), blocks: Vec::new(), needs: Vec::new() };
        assert!(!chapter.prose().contains("ls"));
        assert_eq!(chapter.prose().lines().count(), PAGE.lines().count());
    }
}
