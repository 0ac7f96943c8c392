//! Checks the guide in `docs/guide`: links, and each block by its kind. `docs/guide/README.md` has the rules.
//!
//! `tests/guide/run` builds the book and the programs, and starts this.

mod blocks;
mod compare;
mod console;
mod files;
mod links;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use blocks::{Block, Chapter};
use console::Session;

const USAGE: &str = "usage: rdma-verbs-guide ROOT BOOK DOC_TESTS FOLDER [CHAPTER...]
  ROOT       the source tree
  BOOK       the folder of the built book
  DOC_TESTS  the output of `cargo test --doc guide`
  FOLDER     an empty folder for the console blocks
  CHAPTER    the beginnings of file names, for example 02: only these chapters, and those that they need";

/// The comments that each kind of block may have.
const COMMENTS: &[(&str, &[&str])] = &[
    ("rust", &["file", "reason", "needs"]),
    ("console", &["terminal", "background", "measured", "status", "namespace", "needs"]),
    ("c", &["file", "needs"]),
    ("toml", &["file", "from", "needs"]),
    ("yaml", &["file", "from", "needs"]),
    ("dockerfile", &["file", "from", "needs"]),
    ("text", &["needs"]),
];

/// Blocks of one kind.
#[derive(Default)]
struct Count {
    blocks: usize,
    checked: usize,
}

struct Check {
    root: PathBuf,
    folder: PathBuf,
    session: Session,
    counts: BTreeMap<String, Count>,
    /// Doc tests that the chapters have: blocks to run, and blocks to ignore.
    doc_tests: (usize, usize),
    problems: Vec<String>,
}

impl Check {
    fn chapter(&mut self, chapter: &Chapter) {
        let home = self.folder.join("home");
        for block in &chapter.blocks {
            let place = format!("{}.md:{}", chapter.name, block.line);
            let before = (self.problems.len(), self.session.problems.len());
            if let Err(problem) = self.block(block, &place, &home) {
                self.problems.push(format!("{place}: {problem}"));
            }
            let count = self.counts.entry(block.kind.clone()).or_default();
            count.blocks += 1;
            let ignored = block.words.iter().any(|word| word == "ignore");
            if before == (self.problems.len(), self.session.problems.len()) && block.kind != "text" && !ignored {
                count.checked += 1;
            }
        }
        self.session.finish();
        self.problems.append(&mut self.session.problems);
        println!("guide: {}: {} blocks", chapter.name, chapter.blocks.len());
    }

    fn block(&mut self, block: &Block, place: &str, home: &Path) -> Result<(), String> {
        let (_, allowed) = COMMENTS
            .iter()
            .find(|(kind, _)| *kind == block.kind)
            .ok_or_else(|| format!("nothing checks blocks of the kind '{}'", block.kind))?;
        if let Some(unknown) = block.comment_names().find(|name| !allowed.contains(name)) {
            return Err(format!("blocks of this kind have no comment '{unknown}'"));
        }
        match block.kind.as_str() {
            "rust" => self.rust(block)?,
            "console" => self.session.run(block, place),
            "c" => files::compile(block, &self.root, &self.folder)?,
            "toml" | "yaml" | "dockerfile" if !block.has("file") => files::check_part(block, &self.root)?,
            _ => {}
        }
        files::write(block, home)
    }

    /// Doc tests compile and run Rust blocks; here they are counted.
    fn rust(&mut self, block: &Block) -> Result<(), String> {
        let has = |word: &str| block.words.iter().any(|found| found == word);
        if (has("no_run") || has("ignore")) && block.comment("reason").is_none_or(str::is_empty) {
            return Err("a block that is not run needs a comment `reason`".to_owned());
        }
        if has("ignore") {
            self.doc_tests.1 += 1;
        } else {
            self.doc_tests.0 += 1;
        }
        Ok(())
    }

    /// Compares the number of blocks with the results of the doc tests.
    fn doc_test_results(&mut self, output: &str) {
        let results: Vec<&str> = output.lines().filter(|line| line.starts_with("test result: ")).collect();
        let sum = |name: &str| -> usize {
            let number = |part: &str| part.trim().strip_suffix(name)?.trim().parse::<usize>().ok();
            results.iter().filter_map(|line| line.split(['.', ';']).find_map(number)).sum()
        };
        let (passed, failed, ignored) = (sum("passed"), sum("failed"), sum("ignored"));
        let (run, not_run) = self.doc_tests;
        if results.is_empty() || failed != 0 || (passed, ignored) != (run, not_run) {
            self.problems.push(format!(
                "the chapters have {run} Rust blocks to run and {not_run} to ignore; \
                 {passed} doc tests passed, {failed} failed, {ignored} are ignored"
            ));
        }
    }
}

/// The chapters whose names begin with one of the arguments, and those that they need, in the order of the book.
fn select(chapters: Vec<Chapter>, wanted: &[String]) -> Result<Vec<Chapter>, String> {
    let found = |start: &String| chapters.iter().any(|chapter| chapter.name.starts_with(start.as_str()));
    if let Some(missing) = wanted.iter().find(|start| !found(start)) {
        return Err(format!("no chapter begins with {missing}"));
    }
    let mut names: Vec<String> = wanted.to_vec();
    loop {
        let is_in = |chapter: &&Chapter| names.iter().any(|start| chapter.name.starts_with(start.as_str()));
        let needed = chapters.iter().filter(is_in).flat_map(|chapter| &chapter.needs);
        let new: Vec<String> = needed.filter(|name| !names.contains(name)).cloned().collect();
        if new.is_empty() {
            break;
        }
        names.extend(new);
    }
    let all = wanted.is_empty();
    Ok(chapters.into_iter().filter(|one| all || names.iter().any(|start| one.name.starts_with(start))).collect())
}

fn check(root: &Path, book: &Path, doc_tests: &Path, folder: &Path, wanted: &[String]) -> Result<bool, String> {
    let source = root.join("docs/guide/src");
    let chapters: Result<Vec<Chapter>, _> = files::pages(&source)?.iter().map(|page| Chapter::read(page)).collect();
    let chapters = chapters.map_err(|error| error.to_string())?;
    let (links, mut problems) = links::check_sources(&source, &chapters);
    let (book_links, broken) = links::check_book(book, &chapters);
    problems.extend(broken);
    problems.extend(links::check_use(&source, &chapters));
    let pages = chapters.len();

    let home = folder.join("home");
    fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    std::os::unix::fs::symlink(root, home.join("rdma-verbs")).map_err(|error| format!("rdma-verbs: {error}"))?;
    let mut check = Check {
        root: root.to_owned(),
        folder: folder.to_owned(),
        session: Session::new(folder.to_owned()),
        counts: BTreeMap::new(),
        doc_tests: (0, 0),
        problems,
    };
    for chapter in select(chapters, wanted)? {
        check.chapter(&chapter);
    }
    check
        .doc_test_results(&fs::read_to_string(doc_tests).map_err(|error| format!("{}: {error}", doc_tests.display()))?);

    println!("guide: {pages} pages, {links} links in them, {book_links} in the book");
    for (kind, Count { blocks, checked }) in &check.counts {
        println!("guide: {kind}: {blocks} blocks, {checked} checked");
    }
    let (blocks, checked) = check.counts.values().fold((0, 0), |sum, one| (sum.0 + one.blocks, sum.1 + one.checked));
    let (commands, failed) = (check.session.commands, check.problems.len());
    for problem in &check.problems {
        eprintln!("FAILED {problem}");
    }
    println!("guide: {blocks} blocks, {checked} checked, {commands} commands executed; {failed} problems");
    Ok(failed == 0)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [root, book, doc_tests, folder, wanted @ ..] = &arguments[..] else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match check(root.as_ref(), book.as_ref(), doc_tests.as_ref(), folder.as_ref(), wanted) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("guide: {error}");
            ExitCode::FAILURE
        }
    }
}
