//! Guides with one mistake each: the check must find it, and accept the guide without it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A chapter with a block of each kind, all of them right.
const CHAPTER: &str = "# A chapter

[The picture](#a-chapter) ![of it](pictures/a.svg)

<!-- file: project/main.rs -->
<!-- reason: a console block runs it -->
```rust,no_run
fn main() {}
```

```console
$ cat project/main.rs
fn main() {}
$ echo 'took 15 ms of 1,000'
took ... ms of 1,000
```

<!-- measured -->
```console
$ echo 'took 15 ms'
took 3.7  ms
```

<!-- terminal: server -->
<!-- background -->
```console
$ echo ready; for i in $(seq 200); do [ -e stop ] && break; sleep 0.01; done; echo stopped
ready
stopped
```

<!-- status: 3 -->
```console
$ touch stop; (exit 3)
```

```c
int pages = 4096 / 64;
return pages == 64 ? 0 : 1;
```

<!-- from: Settings.toml -->
```toml
b = 2
```

```text
output
```
";

/// Results of the doc tests that fit the chapter.
const DOC_TESTS: &str =
    "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s\n";
const PAGE: &str = "<main><h1 id=\"a-chapter\">A</h1><a href=\"#a-chapter\">The picture</a></main>";

/// Checks a guide of one chapter, whose book has its page and one of the reference. Returns whether it was accepted,
/// and what was printed.
fn check(chapter: &str, doc_tests: &str, [page, reference]: [&str; 2]) -> (bool, String) {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let root = std::env::temp_dir().join(format!("guide-{}-{number}", std::process::id()));
    let source = root.join("docs/guide/src");
    let write = |path: &Path, text: &str| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(&source.join("01-a.md"), chapter);
    write(&source.join("SUMMARY.md"), "- [A](01-a.md)\n");
    write(&source.join("pictures/a.svg"), "<svg/>");
    write(&root.join("Settings.toml"), "a = 1\nb = 2\n");
    write(&root.join("book/01-a.html"), page);
    write(&root.join("book/reference/part/b.html"), reference);
    write(&root.join("doc-tests"), doc_tests);
    write(&root.join("tests/guide/prelude.h"), include_str!("../prelude.h"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdma-verbs-guide"));
    command.arg(&root).args(["book", "doc-tests", "console"].map(|name| root.join(name)));
    let output = command.output().unwrap();
    fs::remove_dir_all(&root).unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.success(), text)
}

#[test]
fn a_guide_without_mistakes_is_accepted() {
    let (accepted, text) = check(CHAPTER, DOC_TESTS, [PAGE; 2]);
    assert!(accepted, "{text}");
    assert!(text.contains("guide: 8 blocks, 7 checked, 5 commands executed; 0 problems"), "{text}");
}

/// Right text, wrong text, and the message.
const MISTAKES: &[(&str, &str, &str)] = &[
    ("<!-- reason: a console block runs it -->\n", "", "a block that is not run needs a comment `reason`"),
    ("rust,no_run", "rust,ignore", "the chapters have 0 Rust blocks to run and 1 to ignore"),
    ("$ cat project/main.rs\nfn main() {}", "$ cat project/main.rs\nfn main() { }", "the output differs"),
    ("$ cat project/main.rs\nfn main() {}", "$ cat project/main.rs", "the output differs"),
    ("took ... ms of 1,000", "took ... ms of 2,000", "the output differs"),
    ("took 3.7  ms", "took 3.7 us", "the output differs"),
    ("file: project/main.rs", "file: ../main.rs", "is not below the folder"),
    ("file: project/main.rs", "file: project/other.rs", "exit status 1, not 0"),
    ("file: project/main.rs", "fyle: project/main.rs", "blocks of this kind have no comment 'fyle'"),
    ("ready\nstopped", "Ready\nstopped", "the first line does not come"),
    ("ready\nstopped", "ready\nstopped\nagain", "the output differs"),
    ("(exit 3)", "(exit 4)", "exit status 4, not 3"),
    ("<!-- status: 3 -->\n", "", "exit status 3, not 0"),
    ("$ touch stop", "touch stop", "the block does not begin with a command"),
    ("4096 / 64;", "4096 / sixty_four;", "sixty_four"),
    ("int pages = 4096 / 64;", "int pages = pd;", "makes integer from pointer without a cast"),
    ("b = 2", "b = 3", "the block is no part of Settings.toml"),
    ("<!-- from: Settings.toml -->\n", "", "nothing checks this block"),
    ("<!-- from: Settings.toml -->", "<!-- from: Nothing.toml -->", "Nothing.toml"),
    ("```text", "```json", "nothing checks blocks of the kind 'json'"),
    ("```text", "```", "nothing checks blocks of the kind ''"),
    ("![of it](pictures/a.svg)", "![of it](pictures/b.svg)", "the link to pictures/b.svg leads nowhere"),
    ("![of it](pictures/a.svg)", "", "no chapter shows pictures/a.svg"),
    ("output\n```", "output\n", "the block has no end"),
];

#[test]
fn each_mistake_is_found() {
    for (right, wrong, message) in MISTAKES {
        assert!(CHAPTER.contains(right), "{right}");
        let (accepted, text) = check(&CHAPTER.replacen(right, wrong, 1), DOC_TESTS, [PAGE; 2]);
        assert!(!accepted && text.contains(message), "{right:?} became {wrong:?}:\n{text}");
    }
}

#[test]
fn failed_and_missing_doc_tests_are_found() {
    for doc_tests in ["", &DOC_TESTS.replace("1 passed; 0 failed", "0 passed; 1 failed"), &DOC_TESTS.repeat(2)] {
        let (accepted, text) = check(CHAPTER, doc_tests, [PAGE; 2]);
        assert!(!accepted && text.contains("the chapters have 1 Rust blocks to run"), "{text}");
    }
}

#[test]
fn broken_links_of_the_book_are_found() {
    for (right, wrong, message) in [
        ("href=\"#a-chapter\"", "href=\"#b\"", "names a heading that the page does not have"),
        ("href=\"#a-chapter\"", "href=\"02-b.html\"", "the link to 02-b.html leads nowhere"),
    ] {
        let broken = PAGE.replace(right, wrong);
        for (pages, name) in [([&*broken, PAGE], "01-a.html"), ([PAGE, &*broken], "reference/part/b.html")] {
            let (accepted, text) = check(CHAPTER, DOC_TESTS, pages);
            assert!(!accepted && text.contains(message) && text.contains(name), "{text}");
        }
    }
}
