//! Blocks that are files, parts of files, or C.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::blocks::Block;

/// Writes a block with a comment `file` below the folder of the console blocks.
pub(crate) fn write(block: &Block, home: &Path) -> Result<(), String> {
    let Some(name) = block.comment("file") else { return Ok(()) };
    if !Path::new(name).components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(format!("file: {name} is not below the folder of the console blocks"));
    }
    let path = home.join(name);
    let folder = path.parent().unwrap_or(home);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&path, block.as_file()))
        .map_err(|error| format!("{name}: {error}"))
}

/// Checks that a block is a part of the file that its comment `from` names.
pub(crate) fn check_part(block: &Block, root: &Path) -> Result<(), String> {
    let name = block.comment("from").ok_or("neither a comment `file` nor `from`: nothing checks this block")?;
    let whole = fs::read_to_string(root.join(name)).map_err(|error| format!("{name}: {error}"))?;
    let lines: Vec<&str> = block.text.lines().map(str::trim_end).collect();
    let whole: Vec<&str> = whole.lines().map(str::trim_end).collect();
    if !lines.is_empty() && whole.windows(lines.len()).any(|part| part == lines) {
        return Ok(());
    }
    Err(format!("the block is no part of {name}"))
}

/// Compiles a C block; one with `main` is linked as well. Blocks without `#include` are statements, with the names of
/// `prelude.h`.
pub(crate) fn compile(block: &Block, root: &Path, folder: &Path) -> Result<(), String> {
    let source = folder.join("block.c");
    let text = if block.text.contains("#include") {
        block.text.clone()
    } else {
        format!("#include \"prelude.h\"\nint block(void)\n{{\n#line 1\n{}\nreturn 0;\n}}\n", block.text)
    };
    fs::write(&source, &text).map_err(|error| error.to_string())?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-Wall", "-Werror", "-Wno-unused", "-I"]).arg(root.join("tests/guide"));
    if text.contains(" main(") {
        gcc.arg("-o").arg(folder.join("block")).arg(&source).args(["-libverbs", "-lrdmacm"]);
    } else {
        gcc.arg("-fsyntax-only").arg(&source);
    }
    let output = gcc.output().map_err(|error| format!("gcc: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// All Markdown pages of a folder but the summary, in the order of their names.
pub(crate) fn pages(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut pages: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    pages.retain(|path| path.extension().is_some_and(|end| end == "md") && !path.ends_with("SUMMARY.md"));
    pages.sort();
    Ok(pages)
}
