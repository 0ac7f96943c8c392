//! Processes started by the tests: victims, attackers, and groups of processes in their own namespaces.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_verbs::verbs::{self, CompletionQueue, Context, QueuePair};

/// The user that attackers run as.
pub(crate) const OTHER_USER: u32 = 65_534;
/// The device that a process opens.
const DEVICE: &str = "RDMA_VERBS_TEST_DEVICE";

/// Returns false, with a message, where the tests cannot run.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid takes no arguments and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "attacks by other users need root");
        println!("skipped: attacks by other users need root");
    }
    is_root
}

/// A folder of one test, removed at the end. Other users may read it.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = Path::new("/tmp").join(format!("hold-host-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Copies this program, with these permissions, to a folder from which every user can start it.
pub(crate) fn copy_of_this_program(folder: &Folder, mode: u32) -> PathBuf {
    let path = folder.0.join("program");
    // Not by this process: a child that another thread starts meanwhile would have the file open for writing, and the
    // kernel runs no such file.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&path).status().unwrap();
    assert!(copied.success());
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    path
}

/// Returns a command that runs one ignored test of this folder in a copy of this program.
pub(crate) fn role(program: &Path, name: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", &format!("hold_host::{name}"), "--ignored", "--nocapture", "--test-threads=1"]);
    command
}

/// Like [`role`], as another user.
pub(crate) fn role_of_other_user(program: &Path, name: &str) -> Command {
    let mut command = role(program, name);
    command.uid(OTHER_USER).gid(OTHER_USER).current_dir("/");
    command
}

/// Runs a command to its end; returns its success and its output.
pub(crate) fn run(mut command: Command) -> (bool, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.success(), text)
}

/// Runs an ignored test of this program after a shell script, in its own mount and network namespaces: processes
/// without a common registry cannot share addresses, not even with those of a concurrent test.
pub(crate) fn run_inside(script: &str, name: &str) {
    let exe = std::env::current_exe().unwrap();
    let inner = role(&exe, name);
    let mut command = Command::new("unshare");
    let script = format!("ip link set lo up\n{script}\nexec \"$0\" \"$@\"");
    command.args(["--mount", "--net", "--propagation", "private", "sh", "-ec", &script]);
    command.arg(exe).args(inner.get_args());
    let (is_success, text) = run(command);
    assert!(is_success, "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

/// A process that has a connected queue pair until it is dropped or killed.
pub(crate) struct Victim {
    child: Child,
    _stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// Its output until it was ready.
    pub(crate) said: String,
}

impl Victim {
    /// Starts a victim; the error is its output if it never got ready.
    pub(crate) fn start(mut command: Command, device: &str) -> Result<Self, String> {
        command.env(DEVICE, device).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut victim = Self { child, _stdin: stdin, stdout, said: String::new() };
        while victim.stdout.read_line(&mut victim.said).unwrap() > 0 {
            if victim.said.ends_with("ready\n") {
                return Ok(victim);
            }
        }
        Err(std::mem::take(&mut victim.said))
    }

    pub(crate) fn new(device: &str) -> Self {
        let command = role(&std::env::current_exe().unwrap(), "processes::victim");
        Self::start(command, device).unwrap_or_else(|said| panic!("{said}"))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap().count()
    }

    /// Ends the process like a program that closes its device.
    pub(crate) fn end(self) {
        let Self { mut child, _stdin, mut stdout, .. } = self;
        drop(_stdin);
        stdout.read_to_string(&mut String::new()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A queue pair connected to itself, with everything it needs.
pub(crate) struct Connected {
    _qp: QueuePair,
    _cq: CompletionQueue,
}

pub(crate) fn connect_to_itself(context: &Context) -> verbs::Result<Connected> {
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    let qp = pd.create_qp(&cq, &cq)?;
    qp.init()?;
    qp.connect(&qp.connection_info()?)?;
    Ok(Connected { _qp: qp, _cq: cq })
}

/// Prints warnings to standard output.
pub(crate) fn print_warnings() {
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::level_filters::LevelFilter::WARN);
    let _ = subscriber.with_writer(std::io::stdout).with_ansi(false).without_time().try_init();
}

/// Not a test: the victims' program.
#[test]
#[ignore = "started by the other tests"]
fn victim() {
    let Ok(device) = std::env::var(DEVICE) else { return };
    print_warnings();
    let context = verbs::open(&device).unwrap_or_else(|error| panic!("{error}"));
    let _connected = connect_to_itself(&context).unwrap_or_else(|error| panic!("{error}"));
    println!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
