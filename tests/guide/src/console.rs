//! Console blocks: their commands are executed by bash, and the output is compared.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::blocks::Block;
use crate::compare::{line_matches, matches};

/// For one command. Some compile the library.
const COMMAND_TIME: Duration = Duration::from_secs(600);
/// For a command in the background, after the last block.
const END_TIME: Duration = Duration::from_secs(60);
/// For the exit after SIGINT, before SIGKILL.
const PAUSE: Duration = Duration::from_millis(10);

/// A command with the output that the block shows.
#[derive(Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) command: String,
    pub(crate) shown: Vec<String>,
}

/// The commands of a block.
pub(crate) fn steps(text: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(start) = line.strip_prefix("$ ") else {
            let step = steps.last_mut().ok_or("the block does not begin with a command")?;
            step.shown.push(line.to_owned());
            continue;
        };
        let mut command = start.to_owned();
        while command.ends_with('\\') {
            command.push('\n');
            command.push_str(lines.next().ok_or("the command has no end")?);
        }
        if start.contains("<<'EOF'") {
            loop {
                let line = lines.next().ok_or("the command has no line EOF")?;
                command.push('\n');
                command.push_str(line);
                if line == "EOF" {
                    break;
                }
            }
        }
        steps.push(Step { command, shown: Vec::new() });
    }
    if steps.is_empty() {
        return Err("the block has no command".to_owned());
    }
    Ok(steps)
}

/// A command that still runs.
struct Running {
    child: Child,
    output: PathBuf,
    step: Step,
    /// The block's place in the guide, for messages.
    place: String,
    measured: bool,
    status: i32,
}

/// Where console blocks run: a folder, terminals with their current folders, and commands in the background.
pub(crate) struct Session {
    folder: PathBuf,
    /// Current folder and number of each terminal.
    terminals: BTreeMap<String, Option<Running>>,
    outputs: usize,
    /// Problems that came to light.
    pub(crate) problems: Vec<String>,
    /// Executed commands.
    pub(crate) commands: usize,
}

impl Session {
    pub(crate) fn new(folder: PathBuf) -> Session {
        Session { folder, terminals: BTreeMap::new(), outputs: 0, problems: Vec::new(), commands: 0 }
    }

    /// Executes a block.
    pub(crate) fn run(&mut self, block: &Block, place: &str) {
        let terminal = block.comment("terminal").unwrap_or("main").to_owned();
        if let Some(running) = self.terminals.insert(terminal.clone(), None).flatten() {
            self.end(running);
        }
        let result = self.run_steps(block, place, &terminal);
        self.problems.extend(result.err().map(|problem| format!("{place}: {problem}")));
    }

    fn run_steps(&mut self, block: &Block, place: &str, terminal: &str) -> Result<(), String> {
        let steps = steps(&block.text)?;
        let status = block.comment("status").map_or(Ok(0), str::parse).map_err(|_| "the status is no number")?;
        let namespace = if block.has("namespace") { Some(Namespace::new()?) } else { None };
        let last = steps.len() - 1;
        for (index, step) in steps.into_iter().enumerate() {
            self.commands += 1;
            let output = self.folder.join(format!("output-{}", self.outputs));
            self.outputs += 1;
            let background = index == last && block.has("background");
            let child = self
                .spawn(&step.command, terminal, namespace.as_ref(), &output, background)
                .map_err(|error| format!("$ {}: {error}", step.command))?;
            let status = if index == last { status } else { 0 };
            let place = place.to_owned();
            let mut running = Running { child, output, step, place, measured: block.has("measured"), status };
            if background {
                running.wait_for_first_line()?;
                self.terminals.insert(terminal.to_owned(), Some(running));
            } else {
                let ended = running.wait(COMMAND_TIME)?;
                running.check(ended)?;
            }
        }
        Ok(())
    }

    /// Starts a command in the terminal's folder, with the variables that earlier commands there exported.
    fn spawn(
        &self,
        command: &str,
        terminal: &str,
        namespace: Option<&Namespace>,
        output: &Path,
        background: bool,
    ) -> io::Result<Child> {
        let state = |name: &str| self.folder.join(format!("{name}-{terminal}"));
        let (here, variables) = (state("folder"), state("variables"));
        let script = format!(
            "cd \"$(cat {here} 2>/dev/null || echo {folder})\" || exit\n\
             [ ! -e {variables} ] || . {variables}\n\
             {command}\n\
             {{ status=$?; {save}; exit $status; }} 2>/dev/null",
            here = here.display(),
            folder = self.folder.join("home").display(),
            variables = variables.display(),
            save = if background {
                ":".to_owned()
            } else {
                format!("pwd >{}; export -p >{}", here.display(), variables.display())
            },
        );
        let file = File::options().create(true).append(true).open(output)?;
        let mut shell = match namespace {
            Some(namespace) => namespace.command("bash"),
            None => Command::new("bash"),
        };
        shell.args(["-c", &script]).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0).spawn()
    }

    /// Waits for a command in the background, or ends it, and compares its output.
    fn end(&mut self, mut running: Running) {
        let interrupted = running.step.shown.last().is_some_and(|line| line == "^C");
        if interrupted {
            running.step.shown.pop();
            signal("INT", &running.child);
        }
        let ended = running.wait(END_TIME);
        let ended = if interrupted { ended.map(|_| running.status) } else { ended };
        let result = ended.and_then(|status| running.check(status));
        self.problems.extend(result.err().map(|problem| format!("{}: {problem}", running.place)));
    }

    /// Ends all commands in the background, and closes the terminals.
    pub(crate) fn finish(&mut self) {
        for (terminal, running) in std::mem::take(&mut self.terminals) {
            if let Some(running) = running {
                self.end(running);
            }
            for name in ["folder", "variables"] {
                // A terminal may have none.
                let _ = fs::remove_file(self.folder.join(format!("{name}-{terminal}")));
            }
        }
    }
}

impl Running {
    fn wait_for_first_line(&mut self) -> Result<(), String> {
        let Some(first) = self.step.shown.first().filter(|line| !matches!(line.trim(), "..." | "^C")).cloned() else {
            return Ok(());
        };
        let end = Instant::now() + COMMAND_TIME;
        loop {
            let output = fs::read_to_string(&self.output).unwrap_or_default();
            if output.lines().any(|line| line_matches(&first, line, self.measured)) {
                return Ok(());
            }
            let ended = self.child.try_wait().map_err(|error| error.to_string())?.is_some();
            if ended || Instant::now() > end {
                signal("KILL", &self.child);
                return Err(format!("$ {}: the first line does not come\n{}", self.step.command, indented(&output)));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The exit status, after the command and all of its children have ended.
    fn wait(&mut self, time: Duration) -> Result<i32, String> {
        let end = Instant::now() + time;
        loop {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                signal("KILL", &self.child);
                return Ok(status.code().unwrap_or(128 + status.signal().unwrap_or_default()));
            }
            if Instant::now() > end {
                signal("KILL", &self.child);
                let output = fs::read_to_string(&self.output).unwrap_or_default();
                let seconds = time.as_secs();
                return Err(format!("$ {}: not ended after {seconds} s\n{}", self.step.command, indented(&output)));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn check(&self, status: i32) -> Result<(), String> {
        let bytes = fs::read(&self.output).map_err(|error| error.to_string())?;
        let output = String::from_utf8_lossy(&bytes);
        let command = &self.step.command;
        if status != self.status {
            let wanted = self.status;
            return Err(format!("$ {command}: exit status {status}, not {wanted}\n{}", indented(&output)));
        }
        let mut shown: Vec<&str> = self.step.shown.iter().map(String::as_str).collect();
        let mut printed: Vec<&str> = output.lines().collect();
        for lines in [&mut shown, &mut printed] {
            while lines.last().is_some_and(|line| line.trim().is_empty()) {
                lines.pop();
            }
        }
        if matches(&shown, &printed, self.measured) {
            return Ok(());
        }
        Err(format!(
            "$ {command}: the output differs. Shown:\n{}Printed:\n{}",
            indented(&shown.join("\n")),
            indented(&output)
        ))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        signal("KILL", &self.child);
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

/// Sends a signal to the process group of a command.
fn signal(name: &str, child: &Child) {
    let group = format!("-{}", child.id());
    // It fails if the group has ended.
    let _ = Command::new("kill").args(["-s", name, "--", &group]).stderr(Stdio::null()).status();
}

/// A user, network and mount namespace, held by a process.
struct Namespace {
    holder: Child,
}

impl Namespace {
    fn new() -> Result<Namespace, String> {
        let mut holder = Command::new("unshare");
        holder.args(["--user", "--map-root-user", "--net", "--mount", "bash", "-c"]);
        holder
            .arg("ip link set lo up && echo ready && exec sleep infinity")
            .stdout(Stdio::piped())
            .stdin(Stdio::null());
        let mut holder = holder.spawn().map_err(|error| format!("unshare: {error}"))?;
        let mut line = String::new();
        if let Some(output) = holder.stdout.take() {
            // An empty line is the error that is reported below.
            let _ = io::BufRead::read_line(&mut io::BufReader::new(output), &mut line);
        }
        let namespace = Namespace { holder };
        if line.trim() == "ready" { Ok(namespace) } else { Err("cannot make a network namespace".to_owned()) }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let target = self.holder.id().to_string();
        command.args(["--target", &target, "--user", "--net", "--mount", "--preserve-credentials", program]);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(command: &str, shown: &[&str]) -> Step {
        Step { command: command.to_owned(), shown: shown.iter().map(|&line| line.to_owned()).collect() }
    }

    #[test]
    fn commands_have_the_lines_below_them() {
        let text = "$ one\na\nb\n$ two \\\n  more\n$ cat <<'EOF'\n$ three\nEOF\nc\n";
        let expected =
            [step("one", &["a", "b"]), step("two \\\n  more", &[]), step("cat <<'EOF'\n$ three\nEOF", &["c"])];
        assert_eq!(steps(text).unwrap(), expected);
        assert!(steps("a\n").is_err());
        assert!(steps("").is_err());
        assert!(steps("$ cat <<'EOF'\n").is_err());
    }
}
