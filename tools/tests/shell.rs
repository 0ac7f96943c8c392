//! Loads the completions of `rdma-verbs` into the shells that are installed, and formats the pages of its manual.

#[path = "support/ensure.rs"]
mod ensure;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Output, Stdio};

use ensure::ensure;
use libtest_mimic::{Arguments, Failed, Trial};

const PROGRAM: &str = env!("CARGO_BIN_EXE_rdma-verbs");
const SHELLS: [&str; 5] = ["bash", "elvish", "fish", "powershell", "zsh"];

fn main() -> ExitCode {
    type Test = fn() -> Result<(), Failed>;
    let tests: [(&str, Test); 7] = [
        ("all_shells", all_shells),
        ("bash", bash),
        ("other_shells", other_shells),
        ("pages", pages),
        ("one_page", one_page),
        ("wrong_usage", wrong_usage),
        ("closed_pipe", closed_pipe),
    ];
    let tests = tests.into_iter().map(|(name, test)| Trial::test(name, test));
    libtest_mimic::run(&Arguments::from_args(), tests.collect()).exit_code()
}

fn ended(arguments: &[&str]) -> Result<Output, Failed> {
    Ok(Command::new(PROGRAM).args(arguments).output()?)
}

fn output(arguments: &[&str]) -> Result<String, Failed> {
    let Output { status, stdout, stderr } = ended(arguments)?;
    ensure(status.success() && stderr.is_empty(), || format!("{arguments:?}: {status}"))?;
    Ok(String::from_utf8(stdout)?)
}

fn is_installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok()
}

/// Returns a new folder of this test.
fn folder(name: &str) -> Result<PathBuf, Failed> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn all_shells() -> Result<(), Failed> {
    for shell in SHELLS {
        let script = output(&["completions", shell])?;
        for word in ["doctor", "ping", "one-sided", "table"] {
            ensure(script.contains(word), || format!("{shell}: {word} is not completed"))?;
        }
    }
    Ok(())
}

/// Loads the completions, and completes words as a key press does.
fn bash() -> Result<(), Failed> {
    let complete = |line: &str| -> Result<Vec<String>, Failed> {
        let script = format!(
            "set -u; source <(\"$PROGRAM\" completions bash) || exit 1\n\
             function=$(complete -p rdma-verbs | sed 's/.*-F \\([^ ]*\\) .*/\\1/')\n\
             COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()\n\
             \"$function\" rdma-verbs \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let ended = Command::new("bash").args(["--norc", "-c", &script]).env("PROGRAM", PROGRAM).output()?;
        let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure(ended.status.success() && errors.is_empty(), || format!("{line}: {}: {errors}", ended.status))?;
        // Without any, there is an empty line.
        Ok(String::from_utf8(ended.stdout)?.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
    };
    for (line, words) in [
        ("rdma-verbs do", &["doctor"][..]),
        ("rdma-verbs pi", &["ping"]),
        ("rdma-verbs ping --one", &["--one-sided"]),
        ("rdma-verbs ping --type u", &["uc", "ud"]),
        ("rdma-verbs perf self at", &["atomic"]),
        ("rdma-verbs completions zs", &["zsh"]),
        // They are for this program alone.
        ("rdma-verbs perf par", &[]),
        ("rdma-verbs perf ne", &[]),
    ] {
        let found = complete(line)?;
        ensure(found == words, || format!("{line}: {found:?}"))?;
    }
    let all = complete("rdma-verbs ''")?;
    for word in ["perf", "devices", "doctor", "ping", "completions", "man"] {
        ensure(all.iter().any(|found| found == word), || format!("{word} is not in {all:?}"))?;
    }
    Ok(())
}

fn other_shells() -> Result<(), Failed> {
    let folder = folder("completions")?;
    for (shell, check) in [("zsh", "zsh -n"), ("fish", "fish --no-execute")] {
        let file = folder.join(shell);
        std::fs::write(&file, output(&["completions", shell])?)?;
        if !is_installed(shell) {
            println!("other_shells: {shell} is not installed");
            continue;
        }
        let ended = Command::new("sh").args(["-c", &format!("{check} \"$1\""), "sh"]).arg(&file).output()?;
        let is_clean = ended.status.success() && ended.stderr.is_empty();
        ensure(is_clean, || format!("{shell}: {}", String::from_utf8_lossy(&ended.stderr)))?;
    }
    if is_installed("fish") {
        let file = folder.join("fish");
        let script = format!("source {}; complete --do-complete 'rdma-verbs do'", file.display());
        let ended = Command::new("fish").args(["--no-config", "-c", &script]).output()?;
        ensure(ended.stdout.starts_with(b"doctor"), || String::from_utf8_lossy(&ended.stdout).into_owned())?;
    }
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// Each command has a page, which formats without a warning, and has examples and exit statuses.
fn pages() -> Result<(), Failed> {
    let folder = folder("man")?.join("new").join("man1");
    output(&["man", "--output", folder.to_str().ok_or("no text")?])?;
    let mut names: Vec<String> = std::fs::read_dir(&folder)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_, Failed>>()?;
    names.sort();
    for command in ["", "-perf", "-perf-send", "-perf-table", "-devices", "-doctor", "-ping", "-completions", "-man"] {
        let name = format!("rdma-verbs{command}.1");
        ensure(names.contains(&name), || format!("{name} is not in {names:?}"))?;
    }
    ensure(!names.iter().any(|name| name.contains("partner") || name.contains("help")), || format!("{names:?}"))?;
    for name in &names {
        let path = folder.join(name);
        let page = std::fs::read_to_string(&path)?;
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES"] {
            let is_there = page.lines().any(|line| line.trim_start_matches(".SH ").trim_matches('"') == section);
            ensure(is_there, || format!("{name} has no section {section}: {page}"))?;
        }
        formatted(name, &path, &["groff", "-man", "-Tutf8", "-ww"])?;
        formatted(name, &path, &["man", "--warnings", "-l"])?;
        formatted(name, &path, &["mandoc", "-T", "lint", "-W", "error"])?;
    }
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// Formats a page with a program, if it is installed; it must print no warning.
fn formatted(name: &str, path: &PathBuf, program: &[&str]) -> Result<(), Failed> {
    if !is_installed(program[0]) {
        println!("pages: {} is not installed", program[0]);
        return Ok(());
    }
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg(path).env("MANPAGER", "cat").env("LC_ALL", "C.UTF-8");
    let ended = command.output()?;
    let text = [&ended.stdout[..], &ended.stderr].concat();
    let printed = String::from_utf8_lossy(if program[0] == "mandoc" { &text } else { &ended.stderr }).into_owned();
    ensure(ended.status.success() && printed.is_empty(), || format!("{name}: {program:?}: {}: {printed}", ended.status))
}

fn one_page() -> Result<(), Failed> {
    let program = output(&["man"])?;
    ensure(program.contains(".TH \"rdma-verbs\" \"1\" \"\" \"rdma-verbs ") && program.contains("doctor"), || {
        program.clone()
    })?;
    let ping = output(&["man", "ping"])?;
    ensure(ping.contains("rdma-verbs-ping") && ping.contains("one\\-sided"), || ping.clone())?;
    let send = output(&["man", "perf", "send"])?;
    ensure(send.contains("rdma-verbs-perf-send") && send.contains("both processes on this machine"), || send.clone())
}

fn wrong_usage() -> Result<(), Failed> {
    for arguments in [
        "completions",
        "completions tcsh",
        "man no-such",
        "man perf no-such",
        "man ping more",
        "man --output /tmp ping",
    ] {
        let ended = ended(&arguments.split_whitespace().collect::<Vec<_>>())?;
        ensure(ended.status.code() == Some(2) && !ended.stderr.is_empty(), || {
            format!("{arguments}: {}", ended.status)
        })?;
    }
    let refused = ended(&["man", "--output", "/proc/no-such-folder"])?;
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure(refused.status.code() == Some(1) && text.contains("/proc/no-such-folder"), || text.clone())
}

/// A reader that ends early is no error.
fn closed_pipe() -> Result<(), Failed> {
    for arguments in [["completions", "bash"], ["man", "ping"]] {
        let mut child = Command::new(PROGRAM).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        drop(child.stdout.take());
        let ended = child.wait_with_output()?;
        ensure(ended.status.success() && ended.stderr.is_empty(), || format!("{arguments:?}: {}", ended.status))?;
    }
    Ok(())
}
