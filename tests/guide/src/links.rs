//! Links and pictures of the chapters, and those of the built book.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::blocks::Chapter;

/// Targets of the links and pictures of Markdown text.
fn targets(prose: &str) -> Vec<&str> {
    let inline = prose.match_indices("](").filter_map(|(at, _)| prose[at + 2..].split([')', ' ', '\n']).next());
    let sources = prose.match_indices("src=\"").filter_map(|(at, _)| prose[at + 5..].split('"').next());
    inline.chain(sources).collect()
}

/// Links of the chapters to files that do not exist, and their number.
pub(crate) fn check_sources(folder: &Path, chapters: &[Chapter]) -> (usize, Vec<String>) {
    let (mut count, mut problems) = (0, Vec::new());
    for chapter in chapters {
        let prose = chapter.prose();
        for target in targets(&prose) {
            count += 1;
            let path = target.split('#').next().unwrap_or_default();
            let elsewhere = target.starts_with("https://") || target.starts_with("mailto:");
            if !elsewhere && !path.is_empty() && !folder.join(path).exists() {
                problems.push(format!("{}.md: the link to {target} leads nowhere", chapter.name));
            }
        }
    }
    (count, problems)
}

/// Files of the guide's folder that no chapter shows, and pages that the summary does not have.
pub(crate) fn check_use(folder: &Path, chapters: &[Chapter]) -> Vec<String> {
    let summary = fs::read_to_string(folder.join("SUMMARY.md")).unwrap_or_default();
    let missing = chapters.iter().filter(|chapter| !summary.contains(&format!("({}.md)", chapter.name)));
    let mut problems: Vec<String> =
        missing.map(|chapter| format!("SUMMARY.md does not have {}.md", chapter.name)).collect();
    for picture in files(&folder.join("pictures")) {
        let name = picture.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !chapters.iter().any(|chapter| chapter.text.contains(&format!("pictures/{name}"))) {
            problems.push(format!("no chapter shows pictures/{name}"));
        }
    }
    problems
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

/// Pages of the book below its folder `reference`.
fn reference_pages(folder: &Path) -> Vec<PathBuf> {
    let (folders, files): (Vec<_>, Vec<_>) = files(folder).into_iter().partition(|path| path.is_dir());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "html");
    let below = folders.iter().flat_map(|folder| reference_pages(folder));
    files.into_iter().filter(is_page).chain(below).collect()
}

/// Links of the pages that mdBook made from the chapters and the reference, to files or headings that the book does not
/// have, and their number.
pub(crate) fn check_book(book: &Path, chapters: &[Chapter]) -> (usize, Vec<String>) {
    let (mut count, mut problems) = (0, Vec::new());
    let names = chapters.iter().map(|chapter| if chapter.name == "README" { "index" } else { &chapter.name });
    let pages = names.map(|name| book.join(format!("{name}.html"))).chain(reference_pages(&book.join("reference")));
    for page in pages {
        let Ok(html) = fs::read_to_string(&page) else {
            problems.push(format!("the book has no page {}", page.display()));
            continue;
        };
        let name = page.strip_prefix(book).unwrap_or(&page).display();
        // Navigation around the text is mdBook's.
        let text =
            html.split_once("<main>").and_then(|(_, rest)| rest.split_once("</main>")).map_or("", |(text, _)| text);
        for target in attribute(text, "href").into_iter().chain(attribute(text, "src")) {
            count += 1;
            if let Err(problem) = follow(book, &page, &target) {
                problems.push(format!("{name}: {problem}"));
            }
        }
    }
    (count, problems)
}

fn attribute(html: &str, name: &str) -> BTreeSet<String> {
    let start = format!(" {name}=\"");
    html.match_indices(&start)
        .filter_map(|(at, _)| html[at + start.len()..].split('"').next())
        .map(str::to_owned)
        .collect()
}

fn follow(book: &Path, page: &Path, target: &str) -> Result<(), String> {
    if target.starts_with("https://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() { page.to_owned() } else { page.parent().unwrap_or(book).join(path) };
    let html = fs::read(&file).map_err(|_| format!("the link to {target} leads nowhere"))?;
    let id = format!("id=\"{heading}\"");
    if heading.is_empty() || String::from_utf8_lossy(&html).contains(&id) {
        return Ok(());
    }
    Err(format!("the link to {target} names a heading that the page does not have"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_links_and_pictures_are_found() {
        let prose = "See [a](b.md#c), ![d](e.svg) and <img src=\"f.svg\">.";
        assert_eq!(targets(prose), ["b.md#c", "e.svg", "f.svg"]);
    }

    #[test]
    fn attributes_are_found() {
        let found = attribute("<a class=\"x\" href=\"y.html\">z</a>", "href");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["y.html"]);
    }
}
