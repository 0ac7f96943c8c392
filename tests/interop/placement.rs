//! FLUSH and ATOMIC WRITE in both directions. A guest whose device has neither must not misinterpret them.

use rdma_verbs::verbs::{
    AccessFlags, AsyncEvent, CompletionOpcode, CompletionStatus, FlushFlags, Memory, Payload, QueuePair, RemoteMemory,
    Rkey, SendRequest,
};

use super::{AREA_BYTES, Connection, Home, Outcome, PATIENCE, Reply, Terms, USUAL, ensure, lengths, pattern};

/// Both ends grant all access except persistence.
const FLUSHING: Terms = Terms { access: ALL, guest_access: "rwaf", ..USUAL };
const ALL: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::FLUSH);
/// Offset of the target of ATOMIC WRITEs.
const WORD_OFFSET: usize = 4096;
/// More than may be outstanding at once.
const MANY: usize = 40;

impl Home {
    /// Takes the next completion, which must be this success of this queue pair.
    fn done(&self, qp: &QueuePair, wr_id: u64, opcode: CompletionOpcode) -> Outcome {
        let completion = self.wait()?;
        let success = completion.result()?;
        let found = (completion.wr_id(), completion.qpn(), success.opcode, success.immediate, success.invalidated);
        ensure(found == (wr_id, qp.qpn(), opcode, None, None), &format!("{completion:?} is not {wr_id}, {opcode:?}"))
    }

    /// Posts a request that the guest refuses, and one behind it, which must be flushed.
    fn refused_there(&self, qp: &QueuePair, request: SendRequest<'_>, expected: &[CompletionStatus]) -> Outcome {
        let behind = SendRequest::send(self.open.slice(..8)?);
        qp.post_send(&[request.wr_id(1), behind.wr_id(2)])?;
        let (first, second) = (self.wait()?, self.wait()?);
        let found = (first.wr_id(), first.qpn(), second.wr_id(), second.qpn());
        ensure(found == (1, qp.qpn(), 2, qp.qpn()), &format!("{first:?}, {second:?}"))?;
        ensure(expected.contains(&first.status()), &format!("{first:?} instead of {expected:?}"))?;
        ensure(second.status() == CompletionStatus::WorkRequestFlushedError, &format!("{second:?} behind {first:?}"))
    }

    /// Has the guest send a request that this end refuses, with this status there and the matching event here.
    pub(super) fn refused_here(&mut self, connection: &Connection, command: &str, status: &str) -> Outcome {
        self.guest.command(command)?.expect(&[("status", status), ("done", "0")])?;
        self.guest.command("state")?.expect(&[("state", "err")])?;
        let qpn = connection.qp.qpn();
        let wanted = match status {
            "rem_access_err" => AsyncEvent::QueuePairAccessError(qpn),
            _ => AsyncEvent::QueuePairRequestError(qpn),
        };
        // Events of earlier connections come first.
        while let Ok(event) = self.context.wait_async_event(PATIENCE) {
            if event == wanted {
                return Ok(());
            }
        }
        Err(format!("{command}: no {wanted:?}").into())
    }

    /// Checks that the guest's next completion of a request is this success.
    fn guest_done(&mut self, remote: &Reply, wr_id: u64, opcode: &str) -> Outcome {
        let (wr_id, qpn) = (wr_id.to_string(), remote.number("qpn")?.to_string());
        let expected = [("status", "success"), ("wr_id", wr_id.as_str()), ("opcode", opcode), ("qpn", qpn.as_str())];
        self.guest.command("poll send")?.expect(&expected)
    }

    /// Connects, and returns whether the guest's device has a feature; without it, the usual access flags are used.
    fn connect_for(&mut self, feature: &str, terms: Terms) -> Result<(Connection, bool), Box<dyn std::error::Error>> {
        let usual = self.connect(Terms { retry_cnt: 2, ..USUAL })?;
        if usual.remote.number(feature)? == 0 {
            return Ok((usual, false));
        }
        Ok((self.connect(terms)?, true))
    }

    /// Checks that a guest without the feature drops or refuses the request, changes nothing, and continues to work.
    fn unknown_there(&mut self, connection: &Connection, request: SendRequest<'_>, name: &str) -> Outcome {
        use CompletionStatus::{RemoteInvalidRequestError, RetryExceededError};
        self.guest.command(&format!("fill open 0 {AREA_BYTES} 200"))?;
        self.refused_there(&connection.qp, request, &[RemoteInvalidRequestError, RetryExceededError])?;
        self.guest.expect_pattern("open", 0, AREA_BYTES, 200)?;
        println!("{name}: the guest's device does not know it, and did not take it");
        let next = self.connect(USUAL)?;
        self.fill(64, 201)?;
        let there = next.remote.memory("open")?.slice(..64)?;
        self.perform_well(&next.qp, SendRequest::write(self.open.slice(..64)?, there))?;
        self.guest.expect_pattern("open", 0, 64, 201)
    }

    /// Checks that the guest's program refuses the command before anything is sent.
    fn guest_cannot(&mut self, command: &str) -> Outcome {
        ensure(self.guest.command(command).is_err(), &format!("{command} on a device that does not have it"))
    }
}

pub(super) fn our_flushes(home: &mut Home) -> Outcome {
    let (connection, known) = home.connect_for("flush", FLUSHING)?;
    let (qp, memory) = (&connection.qp, connection.remote.memory("open")?);
    if !known {
        return home.unknown_there(&connection, SendRequest::flush(memory, FlushFlags::GLOBAL), "FLUSH");
    }
    let mtu = connection.remote.path_mtu()?.bytes() as usize;
    for (seed, length) in (300..).zip(lengths(mtu)) {
        home.fill(length, seed)?;
        let there = memory.slice(24..24 + length)?;
        let flush = SendRequest::flush(there, FlushFlags::GLOBAL).wr_id(u64::from(seed)).signaled();
        qp.post_send(&[SendRequest::write(home.open.slice(..length)?, there), flush])?;
        home.done(qp, u64::from(seed), CompletionOpcode::Flush)?;
        home.guest.expect_pattern("open", 24, length, seed)?;
    }
    // The whole region: address and length are ignored.
    let nowhere = RemoteMemory::new(0x10, memory.rkey(), 1 << 40);
    let flush = SendRequest::flush(nowhere, FlushFlags::GLOBAL | FlushFlags::WHOLE_REGION).wr_id(7).signaled();
    qp.post_send(&[flush])?;
    home.done(qp, 7, CompletionOpcode::Flush)?;
    our_flushes_among_others(home, qp, memory)
}

/// Many FLUSHes at once, between WRITEs and READs: all in order.
fn our_flushes_among_others(home: &mut Home, qp: &QueuePair, memory: RemoteMemory) -> Outcome {
    const STEP: usize = 700;
    home.fill(MANY * STEP, 320)?;
    for index in 0..MANY {
        let here = home.open.slice(index * STEP..(index + 1) * STEP)?;
        let back = home.open.slice((MANY + index) * STEP..(MANY + index + 1) * STEP)?;
        let (there, wr_id) = (memory.slice(index * STEP..(index + 1) * STEP)?, 10 * index as u64);
        qp.post_send(&[
            SendRequest::write(here, there).wr_id(wr_id).signaled(),
            SendRequest::flush(there, FlushFlags::GLOBAL).wr_id(wr_id + 1).signaled(),
            SendRequest::read(back, there).wr_id(wr_id + 2).signaled(),
        ])?;
    }
    for wr_id in (0..MANY as u64).map(|index| 10 * index) {
        home.done(qp, wr_id, CompletionOpcode::Write)?;
        home.done(qp, wr_id + 1, CompletionOpcode::Flush)?;
        home.done(qp, wr_id + 2, CompletionOpcode::Read)?;
    }
    home.own_bytes_are(MANY * STEP, &pattern(320, MANY * STEP))?;
    home.guest.expect_pattern("open", 0, MANY * STEP, 320)
}

pub(super) fn flushes_that_the_guest_refuses(home: &mut Home) -> Outcome {
    use CompletionStatus::{RemoteAccessError, RemoteInvalidRequestError};
    let (global, persistent) = (FlushFlags::GLOBAL, FlushFlags::PERSISTENT);
    let (first, known) = home.connect_for("flush", FLUSHING)?;
    if !known {
        return Ok(());
    }
    let open = first.remote.memory("open")?;
    let unknown = RemoteMemory::new(open.addr(), Rkey(open.rkey().0 ^ 0x5500), 64);
    let beyond = RemoteMemory::new(open.addr() + open.len() - 8, open.rkey(), 64);
    let cases = [
        ("rwaf", unknown, global, RemoteAccessError),
        ("rwaf", beyond, global, RemoteAccessError),
        ("rwaf", first.remote.memory("readable")?, global, RemoteAccessError),
        ("rwa", open, global, RemoteInvalidRequestError),
        ("rwaf", open, persistent, RemoteInvalidRequestError),
        // Its region is ordinary memory, which cannot persist.
        ("rwafp", open, persistent, RemoteAccessError),
    ];
    for (guest_access, memory, flags, status) in cases {
        let connection = home.connect(Terms { guest_access, ..USUAL })?;
        home.refused_there(&connection.qp, SendRequest::flush(memory, flags), &[status])?;
    }
    Ok(())
}

/// Creates a file for a region that peers may flush to persistence.
fn persistent_memory(len: usize) -> std::io::Result<std::fs::File> {
    let path = std::env::temp_dir().join(format!("rdma-verbs-interop-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    file.set_len(len as u64)?;
    Ok(file)
}

pub(super) fn guests_flushes(home: &mut Home) -> Outcome {
    let (connection, known) = home.connect_for("flush", FLUSHING)?;
    if !known {
        return home.guest_cannot("flush 0 0 0");
    }
    let file = persistent_memory(AREA_BYTES)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE | AccessFlags::FLUSH;
    let region = home.pd.reg_mr(Memory::file(&file, 0, AREA_BYTES, true)?, access)?;
    let (addr, rkey) = (region.iova() + 24, region.rkey().0);
    let mtu = connection.remote.path_mtu()?.bytes() as usize;
    let types = ["global", "persistent", "both"];
    for (seed, length) in (340..).zip(lengths(mtu)) {
        let write = home.guest.command(&format!("write {addr} {rkey} {length} {seed} post=1"))?.number("first")?;
        let kind = types[seed as usize % types.len()];
        let flush = format!("flush {addr} {rkey} {length} type={kind} post=1");
        let flush = home.guest.command(&flush)?.number("first")?;
        home.guest_done(&connection.remote, write, "write")?;
        home.guest_done(&connection.remote, flush, "flush")?;
        ensure(region.to_vec(24..24 + length)? == pattern(seed, length), "wrong bytes in the flushed region")?;
        let mut stored = vec![0; length];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut stored, 24)?;
        ensure(stored == pattern(seed, length), "wrong bytes in the flushed file")?;
    }
    let whole = home.guest.command(&format!("flush 16 {rkey} 8 level=region type=both count={MANY}"))?;
    whole.expect(&[("status", "success"), ("done", &MANY.to_string())])
}

pub(super) fn flushes_that_we_refuse(home: &mut Home) -> Outcome {
    let (_, known) = home.connect_for("flush", FLUSHING)?;
    if !known {
        return Ok(());
    }
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE | AccessFlags::FLUSH_GLOBAL;
    let region = home.pd.alloc_mr(4096, access)?;
    let (addr, rkey) = (region.iova(), region.rkey().0);
    let (plain_addr, plain_rkey) = (home.open.iova(), home.open.rkey().0);
    let global = AccessFlags::REMOTE | AccessFlags::FLUSH_GLOBAL;
    let cases = [
        (ALL, format!("flush {addr} {} 64", rkey ^ 0x5500), "rem_access_err"),
        (ALL, format!("flush {} {rkey} 64", addr + 4090), "rem_access_err"),
        (ALL, format!("flush {plain_addr} {plain_rkey} 64"), "rem_access_err"),
        (ALL, format!("flush {plain_addr} {plain_rkey} 64 level=region"), "rem_access_err"),
        (ALL, format!("flush {addr} {rkey} 64 type=persistent"), "rem_access_err"),
        (global, format!("flush {addr} {rkey} 64 type=both"), "rem_inv_req_err"),
        (AccessFlags::REMOTE, format!("flush {addr} {rkey} 64"), "rem_inv_req_err"),
    ];
    for (access, command, status) in cases {
        let connection = home.connect(Terms { access, ..FLUSHING })?;
        home.refused_here(&connection, &command, status)?;
    }
    Ok(())
}

pub(super) fn our_atomic_writes(home: &mut Home) -> Outcome {
    let (connection, known) = home.connect_for("atomic_write", USUAL)?;
    let (qp, memory) = (&connection.qp, connection.remote.memory("open")?);
    let word_target = memory.slice(WORD_OFFSET..WORD_OFFSET + 8)?;
    let word = 0x0123_4567_89ab_cdef_u64.to_ne_bytes();
    if !known {
        let request = SendRequest::atomic_write(Payload::inline(&word), word_target);
        return home.unknown_there(&connection, request, "ATOMIC WRITE");
    }
    home.guest.command(&format!("fill open 0 {} 360", 2 * WORD_OFFSET))?;
    home.open.write_at(64, &word)?;
    qp.post_send(&[SendRequest::atomic_write(home.open.slice(64..72)?, word_target).wr_id(3).signaled()])?;
    home.done(qp, 3, CompletionOpcode::AtomicWrite)?;
    let found = home.guest.command(&format!("peek open {WORD_OFFSET}"))?.number("value")?;
    ensure(found == u64::from_ne_bytes(word), &format!("the word is {found:#x}"))?;
    // Nothing else changed.
    home.guest.expect_pattern("open", 0, WORD_OFFSET, 360)?;
    let behind = WORD_OFFSET + 8;
    let check = format!("check open {behind} {} 360 {behind}", 2 * WORD_OFFSET - behind);
    home.guest.command(&check)?.expect(&[("check", "good")])?;
    our_atomic_writes_among_others(home, qp, memory)
}

/// More than may be outstanding, each behind a WRITE, between atomics on the same word.
fn our_atomic_writes_among_others(home: &mut Home, qp: &QueuePair, memory: RemoteMemory) -> Outcome {
    const STEP: usize = 1000;
    let word_target = memory.slice(AREA_BYTES..AREA_BYTES + 8)?;
    home.fill(MANY * STEP, 370)?;
    let results = home.pd.alloc_mr(8 * MANY, AccessFlags::LOCAL_WRITE)?;
    for index in 0..MANY {
        let (range, wr_id) = (index * STEP..(index + 1) * STEP, 10 * index as u64);
        let (word, old) = ((1000 * index as u64).to_ne_bytes(), results.slice(8 * index..8 * index + 8)?);
        qp.post_send(&[
            SendRequest::write(home.open.slice(range.clone())?, memory.slice(range)?).wr_id(wr_id).signaled(),
            SendRequest::atomic_write(Payload::inline(&word), word_target).wr_id(wr_id + 1).signaled(),
            SendRequest::fetch_and_add(old, word_target, 1).wr_id(wr_id + 2).signaled(),
        ])?;
    }
    for wr_id in (0..MANY as u64).map(|index| 10 * index) {
        home.done(qp, wr_id, CompletionOpcode::Write)?;
        home.done(qp, wr_id + 1, CompletionOpcode::AtomicWrite)?;
        home.done(qp, wr_id + 2, CompletionOpcode::FetchAndAdd)?;
    }
    let expected: Vec<u8> = (0..MANY as u64).flat_map(|index| (1000 * index).to_ne_bytes()).collect();
    ensure(results.to_vec(..)? == expected, "an atomic did not see the ATOMIC WRITE before it")?;
    let last = home.guest.command(&format!("peek open {AREA_BYTES}"))?.number("value")?;
    ensure(last == 1000 * (MANY as u64 - 1) + 1, &format!("the word is {last}"))?;
    home.guest.expect_pattern("open", 0, MANY * STEP, 370)
}

pub(super) fn atomic_writes_that_the_guest_refuses(home: &mut Home) -> Outcome {
    use CompletionStatus::{RemoteAccessError, RemoteInvalidRequestError};
    let (first, known) = home.connect_for("atomic_write", USUAL)?;
    if !known {
        return Ok(());
    }
    let open = first.remote.memory("open")?;
    let unknown = RemoteMemory::new(open.addr(), Rkey(open.rkey().0 ^ 0x5500), 8);
    let beyond = RemoteMemory::new(open.addr() + open.len(), open.rkey(), 8);
    let cases = [
        ("rwa", unknown, RemoteAccessError),
        ("rwa", beyond, RemoteAccessError),
        ("rwa", first.remote.memory("readable")?, RemoteAccessError),
        ("ra", open, RemoteInvalidRequestError),
    ];
    let word = [1; 8];
    for (guest_access, memory, status) in cases {
        let connection = home.connect(Terms { guest_access, ..USUAL })?;
        home.refused_there(&connection.qp, SendRequest::atomic_write(Payload::inline(&word), memory), &[status])?;
    }
    // This crate posts no misaligned address, but a zero-based window can begin anywhere.
    let connection = home.connect(USUAL)?;
    let window = home.guest.command("bind 4 64 access=wz")?;
    window.expect(&[("status", "success"), ("addr", "0")])?;
    let there = RemoteMemory::new(0, Rkey(window.number("rkey")? as u32), 64);
    let request = SendRequest::atomic_write(Payload::inline(&word), there);
    home.refused_there(&connection.qp, request, &[RemoteInvalidRequestError])
}

pub(super) fn guests_atomic_writes(home: &mut Home) -> Outcome {
    let (connection, known) = home.connect_for("atomic_write", USUAL)?;
    if !known {
        return home.guest_cannot("atomic_write 0 0 0");
    }
    let (base, rkey) = (home.open.iova(), home.open.rkey().0);
    home.fill(2 * WORD_OFFSET, 380)?;
    let (word_target, word) = (base + WORD_OFFSET as u64, 0xfedc_ba98_7654_3210_u64);
    let posted = home.guest.command(&format!("atomic_write {word_target} {rkey} {word} post=1"))?.number("first")?;
    home.guest_done(&connection.remote, posted, "atomic_write")?;
    let mut expected = pattern(380, 2 * WORD_OFFSET);
    expected[WORD_OFFSET..WORD_OFFSET + 8].copy_from_slice(&word.to_ne_bytes());
    home.own_bytes_are(0, &expected)?;
    // Many, with an atomic on the same word among them.
    let done = home.guest.command(&format!("atomic_write {word_target} {rkey} 500 count={MANY}"))?;
    done.expect(&[("status", "success"), ("done", &MANY.to_string())])?;
    let done = home.guest.command(&format!("faa {word_target} {rkey} 3 count=4"))?;
    done.expect(&[("status", "success"), ("old", "509")])?;
    let written = home.guest.command(&format!("write {base} {rkey} 60000 381 post=1"))?.number("first")?;
    let posted = home.guest.command(&format!("atomic_write {word_target} {rkey} 77 post=1"))?.number("first")?;
    home.guest_done(&connection.remote, written, "write")?;
    home.guest_done(&connection.remote, posted, "atomic_write")?;
    let mut expected = pattern(381, 60_000);
    expected[WORD_OFFSET..WORD_OFFSET + 8].copy_from_slice(&77_u64.to_ne_bytes());
    home.own_bytes_are(0, &expected)
}

pub(super) fn atomic_writes_that_we_refuse(home: &mut Home) -> Outcome {
    let (_, known) = home.connect_for("atomic_write", USUAL)?;
    if !known {
        return Ok(());
    }
    let (addr, rkey) = (home.open.iova(), home.open.rkey().0);
    let (read_addr, read_rkey) = (home.readable.iova(), home.readable.rkey().0);
    let cases = [
        (AccessFlags::REMOTE, format!("atomic_write {addr} {} 1", rkey ^ 0x5500), "rem_access_err"),
        (AccessFlags::REMOTE, format!("atomic_write {} {rkey} 1", addr + AREA_BYTES as u64), "rem_access_err"),
        (AccessFlags::REMOTE, format!("atomic_write {read_addr} {read_rkey} 1"), "rem_access_err"),
        (AccessFlags::REMOTE, format!("atomic_write {} {rkey} 1", addr + 4), "rem_inv_req_err"),
        (AccessFlags::REMOTE_READ, format!("atomic_write {addr} {rkey} 1"), "rem_inv_req_err"),
    ];
    home.fill(64, 390)?;
    for (access, command, status) in cases {
        let connection = home.connect(Terms { access, ..USUAL })?;
        home.refused_here(&connection, &command, status)?;
    }
    home.own_bytes_are(0, &pattern(390, 64))
}
