//! Memory windows in both directions. The other end's SEND with invalidate invalidates a type 2 window; Linux
//! implements the kind that belongs to the queue pair that bound it (2B).
//!
//! A guest's window is never invalidated twice: the kernels 6.1 and 6.12 dereference a null pointer then.

use rdma_verbs::verbs::{
    AccessFlags, CompletionOpcode, CompletionStatus, MemoryRegion, MemoryWindow, MemoryWindowBind, MemoryWindowType,
    QueuePair, ReceiveRequest, RemoteMemory, Rkey, SendRequest,
};

use super::{Connection, Home, Outcome, Terms, USUAL, ensure, lengths, pattern};

const REFUSED: &[CompletionStatus] = &[CompletionStatus::RemoteAccessError];
/// Offset of windows in their regions.
const START: usize = 8_192;
const LENGTH: usize = 65_536;
/// Offset of the atomics' target in a window.
const COUNTER: usize = 512;

impl Home {
    /// Binds a window of the guest and returns it as this end names it.
    fn guests_window(&mut self, options: &str) -> Result<RemoteMemory, Box<dyn std::error::Error>> {
        let window = self.guest.command(&format!("bind {START} {LENGTH} {options}"))?;
        window.expect(&[("status", "success")])?;
        let rkey = Rkey(window.number("rkey")? as u32);
        Ok(RemoteMemory::new(window.number("addr")?, rkey, LENGTH as u64))
    }

    fn use_guests_window(&mut self, connection: &Connection, window: RemoteMemory) -> Outcome {
        let qp = &connection.qp;
        let mtu = connection.remote.path_mtu()?.bytes() as usize;
        for (seed, length) in (400..).zip(lengths(mtu)) {
            self.fill(length, seed)?;
            // At the window's end.
            let there = window.slice(LENGTH - length..)?;
            self.perform_well(qp, SendRequest::write(self.open.slice(..length)?, there))?;
            self.guest.expect_pattern("open", START + LENGTH - length, length, seed)?;
            self.open.write_at(0, &vec![0; length])?;
            self.perform_well(qp, SendRequest::read(self.open.slice(..length)?, there))?;
            self.own_bytes_are(0, &pattern(seed, length))?;
        }
        let counter = window.slice(COUNTER..COUNTER + 8)?;
        self.guest.command(&format!("poke open {} 70", START + COUNTER))?;
        self.perform_well(qp, SendRequest::fetch_and_add(self.open.slice(..8)?, counter, 5))?;
        self.own_bytes_are(0, &70_u64.to_ne_bytes())?;
        self.perform_well(qp, SendRequest::compare_and_swap(self.open.slice(..8)?, counter, 75, 99))?;
        self.own_bytes_are(0, &75_u64.to_ne_bytes())?;
        let found = self.guest.command(&format!("peek open {}", START + COUNTER))?.number("value")?;
        ensure(found == 99, &format!("the counter is {found}"))
    }

    /// Invalidates the guest's window, and checks the guest's completion.
    fn invalidate_guests(&mut self, connection: &Connection, rkey: Rkey) -> Outcome {
        let receive = self.guest.command("recv 1 4096")?.number("first")?.to_string();
        self.fill(100, 430)?;
        self.perform_well(&connection.qp, SendRequest::send_with_invalidate(self.open.slice(..100)?, rkey))?;
        let (qpn, key) = (connection.remote.number("qpn")?.to_string(), rkey.0.to_string());
        let come = self.guest.command("poll recv")?;
        come.expect(&[("status", "success"), ("opcode", "recv"), ("byte_len", "100"), ("wr_id", &receive)])?;
        come.expect(&[("qpn", &qpn), ("invalidated", &key)])?;
        self.guest.expect_pattern("receive", 0, 100, 430)
    }

    /// Binds one of our windows, and checks its completion.
    fn bind(&self, qp: &QueuePair, window: &MemoryWindow, tag: u8, bind: &MemoryWindowBind<'_>) -> Outcome {
        qp.post_send(&[SendRequest::bind_mw(window, tag, &bind.wr_id(u64::from(tag)).signaled())?])?;
        let completion = self.wait()?;
        let found = (completion.wr_id(), completion.qpn(), completion.result()?.opcode);
        let expected = (u64::from(tag), qp.qpn(), CompletionOpcode::BindMemoryWindow);
        ensure(found == expected, &format!("{found:?} instead of {expected:?}"))
    }

    /// Has the guest use one of our windows.
    fn guest_uses(&mut self, region: &MemoryRegion, mtu: usize, window: RemoteMemory) -> Outcome {
        let (addr, rkey) = (window.addr(), window.rkey().0);
        for (seed, length) in (440..).zip(lengths(mtu)) {
            let end = addr + (LENGTH - length) as u64;
            let done = self.guest.command(&format!("write {end} {rkey} {length} {seed}"))?;
            done.expect(&[("status", "success")])?;
            let found = region.to_vec(START + LENGTH - length..START + LENGTH)?;
            ensure(found == pattern(seed, length), &format!("wrong bytes of {length} in the window"))?;
            let done = self.guest.command(&format!("read {end} {rkey} {length} {seed}"))?;
            done.expect(&[("status", "success"), ("check", "good")])?;
        }
        region.write_at(START + COUNTER, &11_u64.to_ne_bytes())?;
        let counter = addr + COUNTER as u64;
        let done = self.guest.command(&format!("faa {counter} {rkey} 4"))?;
        done.expect(&[("status", "success"), ("old", "11")])?;
        let done = self.guest.command(&format!("cas {counter} {rkey} 15 1234567"))?;
        done.expect(&[("status", "success"), ("old", "15")])?;
        let found = region.to_vec(START + COUNTER..START + COUNTER + 8)?;
        ensure(found == 1_234_567_u64.to_ne_bytes(), "the atomics did not work through the window")
    }

    /// Has the guest invalidate one of our windows, and checks our completion.
    fn guest_invalidates(&mut self, connection: &Connection, rkey: Rkey, seed: u32) -> Outcome {
        let receive = ReceiveRequest::new(self.open.slice(..4096)?).wr_id(u64::from(seed));
        connection.qp.post_recv(&[receive])?;
        self.guest.command(&format!("send_inv 777 {seed} {}", rkey.0))?.expect(&[("status", "success")])?;
        let completion = self.wait()?;
        let success = completion.result()?;
        let found = (completion.wr_id(), completion.qpn(), success.opcode, success.byte_len);
        let expected = (u64::from(seed), connection.qp.qpn(), CompletionOpcode::Receive, 777);
        ensure(found == expected, &format!("{found:?} instead of {expected:?}"))?;
        let carried = (success.invalidated, success.immediate);
        ensure(carried == (Some(rkey), None), &format!("{carried:?} instead of {rkey:?}"))?;
        self.own_bytes_are(0, &pattern(seed, 777))
    }
}

pub(super) fn the_guests_windows(home: &mut Home) -> Outcome {
    for options in ["", "access=rwaz", "type=1"] {
        let connection = home.connect(USUAL)?;
        let window = home.guests_window(options)?;
        home.use_guests_window(&connection, window)?;
    }
    Ok(())
}

pub(super) fn the_guests_windows_invalidated(home: &mut Home) -> Outcome {
    for attempt in 0..4 {
        let connection = home.connect(USUAL)?;
        let window = home.guests_window("")?;
        home.use_guests_window(&connection, window)?;
        home.invalidate_guests(&connection, window.rkey())?;
        let (here, word) = (home.open.slice(..64)?, home.open.slice(..8)?);
        let request = match attempt {
            0 => SendRequest::write(here, window),
            1 => SendRequest::read(here, window),
            2 => SendRequest::fetch_and_add(word, window, 1),
            _ => SendRequest::compare_and_swap(word, window, 99, 1),
        };
        home.perform_badly(&connection.qp, request, REFUSED)?;
        let found = home.guest.command(&format!("peek open {}", START + COUNTER))?.number("value")?;
        ensure(found == 99, &format!("the counter is {found} after a refused request"))?;
    }
    Ok(())
}

pub(super) fn the_guests_windows_refuse_access(home: &mut Home) -> Outcome {
    for options in ["access=r", "access=w", "access=rw"] {
        let connection = home.connect(USUAL)?;
        let window = home.guests_window(options)?;
        let (here, word) = (home.open.slice(..64)?, home.open.slice(..8)?);
        let request = match options {
            "access=r" => SendRequest::write(here, window),
            "access=w" => SendRequest::read(here, window),
            _ => SendRequest::fetch_and_add(word, window, 1),
        };
        home.perform_badly(&connection.qp, request, REFUSED)?;
    }
    // Linux 6.1 and 6.12 check the region's bounds only; an implementation that checks the window's must refuse.
    let connection = home.connect(USUAL)?;
    let window = home.guests_window("")?;
    home.fill(64, 435)?;
    home.guest.command(&format!("zero open {} 64", START + LENGTH))?;
    let behind = RemoteMemory::new(window.addr() + LENGTH as u64, window.rkey(), 64);
    let status = home.perform(&connection.qp, SendRequest::write(home.open.slice(..64)?, behind))?.status();
    println!("a WRITE behind the guest's window: {status:?}");
    if status.is_success() {
        return home.guest.expect_pattern("open", START + LENGTH, 64, 435);
    }
    ensure(REFUSED.contains(&status), &format!("{status:?} instead of {REFUSED:?}"))
}

/// Registers a region that peers can reach only through windows.
fn hidden_region(home: &Home) -> Result<MemoryRegion, Box<dyn std::error::Error>> {
    Ok(home.pd.alloc_mr(START + 2 * LENGTH, AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND)?)
}

pub(super) fn our_windows(home: &mut Home) -> Outcome {
    let region = hidden_region(home)?;
    let window = home.pd.alloc_mw(MemoryWindowType::Type2)?;
    for (tag, access) in [(1, AccessFlags::empty()), (2, AccessFlags::ZERO_BASED)] {
        let connection = home.connect(USUAL)?;
        let bind = MemoryWindowBind::new(region.slice(START..START + LENGTH)?, AccessFlags::REMOTE | access);
        home.bind(&connection.qp, &window, tag, &bind)?;
        let mtu = connection.remote.path_mtu()?.bytes() as usize;
        let remote = bind.remote(window.rkey_with(tag));
        ensure((remote.addr() == 0) == (tag == 2), "where the window begins")?;
        home.guest_uses(&region, mtu, remote)?;
        home.guest_invalidates(&connection, remote.rkey(), 470 + u32::from(tag))?;
    }
    let connection = home.connect(USUAL)?;
    let first_kind = home.pd.alloc_mw(MemoryWindowType::Type1)?;
    let bind = MemoryWindowBind::new(region.slice(START..START + LENGTH)?, AccessFlags::REMOTE).signaled();
    let mtu = connection.remote.path_mtu()?.bytes() as usize;
    let old = connection.qp.bind_mw(&first_kind, &bind)?;
    home.wait()?.result()?;
    home.guest_uses(&region, mtu, bind.remote(old))?;
    let new = connection.qp.bind_mw(&first_kind, &bind)?;
    home.wait()?.result()?;
    home.guest_uses(&region, mtu, bind.remote(new))?;
    let command = format!("read {} {} 64 1", bind.remote(old).addr(), old.0);
    home.refused_here(&connection, &command, "rem_access_err")
}

pub(super) fn our_windows_invalidated(home: &mut Home) -> Outcome {
    let region = hidden_region(home)?;
    let window = home.pd.alloc_mw(MemoryWindowType::Type2)?;
    let bind = MemoryWindowBind::new(region.slice(START..START + LENGTH)?, AccessFlags::REMOTE);
    for (tag, verb) in (1..).zip(["write", "read", "faa", "cas", "write"]) {
        let connection = home.connect(USUAL)?;
        home.bind(&connection.qp, &window, tag, &bind)?;
        let remote = bind.remote(window.rkey_with(tag));
        let mtu = connection.remote.path_mtu()?.bytes() as usize;
        home.guest_uses(&region, mtu, remote)?;
        let before = region.to_vec(..)?;
        // By the guest, and once locally.
        if tag < 5 {
            home.guest_invalidates(&connection, remote.rkey(), 480 + u32::from(tag))?;
        } else {
            home.perform_well(&connection.qp, SendRequest::local_invalidate(remote.rkey()))?;
        }
        let arguments = match verb {
            "faa" => "1",
            "cas" => "1234567 1",
            _ => "64 1",
        };
        let command = format!("{verb} {} {} {arguments}", remote.addr() + COUNTER as u64, remote.rkey().0);
        home.refused_here(&connection, &command, "rem_access_err")?;
        ensure(region.to_vec(..)? == before, "a refused request changed the region")?;
    }
    Ok(())
}

pub(super) fn our_windows_refuse_access(home: &mut Home) -> Outcome {
    let region = hidden_region(home)?;
    let base = region.iova() + START as u64;
    let all = AccessFlags::REMOTE;
    let cases = [
        (all, format!("write {} KEY 64 1", base - 1)),
        (all, format!("read {} KEY 64 1", base + LENGTH as u64 - 63)),
        (all, format!("faa {} KEY 1", base + LENGTH as u64)),
        (AccessFlags::REMOTE_READ, format!("write {base} KEY 64 1")),
        (AccessFlags::REMOTE_WRITE, format!("read {base} KEY 64 1")),
        (AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE, format!("cas {base} KEY 0 1")),
        // The region's own key grants no remote access.
        (all, format!("write {base} {} 64 1", region.rkey().0)),
    ];
    let before = region.to_vec(..)?;
    for (tag, (access, command)) in (10..).zip(cases) {
        let connection = home.connect(USUAL)?;
        let window = home.pd.alloc_mw(MemoryWindowType::Type2)?;
        let bind = MemoryWindowBind::new(region.slice(START..START + LENGTH)?, access);
        home.bind(&connection.qp, &window, tag, &bind)?;
        let key = window.rkey_with(tag);
        home.refused_here(&connection, &command.replace("KEY", &key.0.to_string()), "rem_access_err")?;
        let other = home.connect(Terms { access: all, ..USUAL })?;
        // The window belongs to the queue pair that bound it, which is in error now.
        home.refused_here(&other, &format!("write {base} {} 64 1", key.0), "rem_access_err")?;
    }
    ensure(region.to_vec(..)? == before, "a refused request changed the region")
}
