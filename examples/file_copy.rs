//! Copies a file with WRITEs from one file's pages into the other's: no buffer, no copy on the way.
//!
//! The receiver maps the new file, registers it, and names it to the sender. The sender maps and registers the old one,
//! writes it part by part, and reports the end with an immediate value.
//!
//! ```text
//! cargo run --release --example file_copy                         copies a file of 64 MiB that it creates
//! cargo run --release --example file_copy -- FROM TO
//! ```

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rdma_verbs::verbs::cm::{ConnectionOptions, Listener, Route};
use rdma_verbs::verbs::{AccessFlags, Memory, ReceiveRequest, RemoteMemory, SendRequest};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PART_BYTES: usize = 1 << 20;
/// Most parts on their way.
const PARTS: usize = 16;
const WAIT: Duration = Duration::from_secs(60);

/// Receives a file whose length the request says.
fn receive(listener: &Listener, file: &File) -> Outcome<()> {
    let request = listener.accept_within(WAIT)?.ok_or("no sender connects")?;
    let length = u64::from_be_bytes(*request.private_data().first_chunk().ok_or("a request without a length")?);
    file.set_len(length)?;
    let (pd, cq) = (request.context().alloc_pd()?, request.context().create_cq(1)?);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let region = pd.reg_mr(Memory::file(file, 0, length as usize, true)?, access)?;
    let nothing = pd.alloc_mr(1, AccessFlags::LOCAL_WRITE)?;
    let qp = pd.create_qp(&cq, &cq)?;
    qp.init()?;
    qp.post_recv(&[ReceiveRequest::new(nothing.slice(..0)?)])?;
    let place = region.remote().to_bytes();
    let connection = request.accept(&qp, &ConnectionOptions::new().private_data(&place))?;
    cq.wait(WAIT)?.result()?;
    connection.wait_disconnected(WAIT)?;
    // The pages are the file's already; this waits until they are on the disk.
    file.sync_all()?;
    Ok(())
}

/// Sends a file of this length.
fn send(server: &str, file: &File, length: usize) -> Outcome<()> {
    let route = Route::to(server)?;
    let (pd, cq) = (route.context().alloc_pd()?, route.context().create_cq(PARTS as u32)?);
    let region = pd.reg_mr(Memory::file(file, 0, length, false)?, AccessFlags::empty())?;
    let qp = pd.create_qp(&cq, &cq)?;
    let options = ConnectionOptions::new().private_data(&(length as u64).to_be_bytes());
    let connection = route.connect(&qp, &options)?;
    let target = RemoteMemory::from_bytes(*connection.private_data().first_chunk().ok_or("no place for the file")?);
    let mut on_their_way = 0;
    for start in (0..length).step_by(PART_BYTES) {
        if on_their_way == PARTS {
            cq.wait(WAIT)?.result()?;
            on_their_way -= 1;
        }
        let part = start..length.min(start + PART_BYTES);
        let (bytes, place, is_last) = (region.slice(part.clone())?, target.slice(part.clone())?, part.end == length);
        let request = match is_last {
            true => SendRequest::write_with_immediate(bytes, place, 1),
            false => SendRequest::write(bytes, place),
        };
        qp.post_send(&[request.signaled()])?;
        on_their_way += 1;
    }
    for _ in 0..on_their_way {
        cq.wait(WAIT)?.result()?;
    }
    connection.disconnect(&qp)?;
    connection.wait_disconnected(WAIT)?;
    Ok(())
}

/// Opens both files, and keeps the contents of the new one until the old one is known to be another file.
fn open(from: &Path, to: &Path) -> Outcome<(File, File)> {
    let named = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let old = File::open(from).map_err(|error| named(from, error))?;
    let new = File::options().read(true).write(true).create(true).truncate(false).open(to);
    let new = new.map_err(|error| named(to, error))?;
    let identity = |file: &File| file.metadata().map(|found| (found.dev(), found.ino()));
    if identity(&old)? == identity(&new)? {
        return Err("FROM and TO are the same file".into());
    }
    new.set_len(0)?;
    Ok((old, new))
}

/// Creates the file to copy, and names the copy.
fn example_files(folder: &Path) -> Outcome<(PathBuf, PathBuf)> {
    let from = folder.join(format!("rdma-verbs-file-copy-{}", std::process::id()));
    let bytes: Vec<u8> = (0..64u32 << 20).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    std::fs::write(&from, bytes)?;
    let to = from.with_extension("copy");
    Ok((from, to))
}

fn main() -> Outcome<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let (from, to) = match &arguments[..] {
        [from, to] => (from.clone(), to.clone()),
        [] => example_files(&std::env::temp_dir())?,
        _ => return Err("usage: file_copy [FROM TO]".into()),
    };
    let (old, new) = open(&from, &to)?;
    let length = usize::try_from(old.metadata()?.len())?;
    let listener = Listener::bind("127.0.0.1:0")?;
    let server = listener.local_addr().to_string();
    let start = Instant::now();
    // No memory can be registered of an empty file, and none is needed.
    if length > 0 {
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&listener, &new));
            let sent = send(&server, &old, length);
            match (receiver.join().expect("the receiver does not panic"), sent) {
                // Either may be the cause of the other.
                (Err(receiver), Err(sender)) => Err(format!("receiver: {receiver}; sender: {sender}").into()),
                (received, sent) => received.and(sent),
            }
        })?;
    }
    println!("copied {length} bytes in {:.0?}", start.elapsed());
    let is_equal = std::fs::read(&from)? == std::fs::read(&to)?;
    if arguments.is_empty() {
        std::fs::remove_file(&from)?;
        std::fs::remove_file(&to)?;
    }
    if is_equal { Ok(()) } else { Err("the copy differs".into()) }
}
