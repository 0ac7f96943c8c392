//! A shell in namespaces of its own, in which tests of the program provoke what they need.

mod ensure;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub(crate) use ensure::ensure;
use libtest_mimic::Failed;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_rdma-verbs");

/// A shell in namespaces of its own, of users, network, mounts and processes: all end with it.
pub(crate) struct Shell {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Shell {
    /// Starts it; `None` if this system gives no namespaces. With `--map-root-user`, its root is this user.
    pub(crate) fn start(users: &[&str]) -> Result<Option<Self>, Failed> {
        let namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let mut command = Command::new("unshare");
        command.args(users).args(namespaces).arg("sh");
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RDMA_VERBS_")) {
            command.env_remove(name);
        }
        let tried = Command::new("unshare").args(users).args(namespaces).arg("true").output();
        if !tried.is_ok_and(|output| output.status.success()) {
            return Ok(None);
        }
        command.env("PROGRAM", PROGRAM).env("TEST", std::env::current_exe()?);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).ok_or("no pipes")?;
        let mut shell = Self { child, stdin, stdout: BufReader::new(stdout) };
        // Private folders.
        shell.succeed("mount -t tmpfs tmpfs /tmp && cd /tmp && mount -t tmpfs tmpfs /dev/shm")?;
        Ok(Some(shell))
    }

    /// Runs a command. Returns its exit status and its output.
    pub(crate) fn run(&mut self, command: &str) -> Result<(i32, String), Failed> {
        writeln!(self.stdin, "{command}\nprintf '\\nEND %d\\n' $?")?;
        let mut output = String::new();
        loop {
            let mut line = String::new();
            ensure(self.stdout.read_line(&mut line)? > 0, || format!("{command}: the shell ended: {output}"))?;
            match line.strip_prefix("END ") {
                Some(status) => return Ok((status.trim().parse()?, output)),
                None => output += &line,
            }
        }
    }

    pub(crate) fn succeed(&mut self, command: &str) -> Result<String, Failed> {
        let (status, output) = self.run(command)?;
        ensure(status == 0, || format!("{command}: status {status}: {output}"))?;
        Ok(output)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a test in new namespaces. Without any, it is skipped, but never in CI.
pub(crate) fn in_namespace(name: &str, test: impl FnOnce(&mut Shell) -> Result<(), Failed>) -> Result<(), Failed> {
    with_users(name, &["--map-root-user"], test)
}

pub(crate) fn with_users(
    name: &str,
    users: &[&str],
    test: impl FnOnce(&mut Shell) -> Result<(), Failed>,
) -> Result<(), Failed> {
    match Shell::start(users)? {
        Some(mut shell) => test(&mut shell),
        None if std::env::var_os("CI").is_some_and(|value| value == "true") => Err("no namespaces".into()),
        None => {
            println!("{name}: skipped, this system gives no namespaces (unshare)");
            Ok(())
        }
    }
}
