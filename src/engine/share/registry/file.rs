//! The file of one address: a header, and a slot for each member of its group.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::change::Change;
use super::table::{ANSWER_BYTES, Answer, HEADER_BYTES, Header, MEMBER_BYTES, Member, Nonce, SLOTS};
use super::{find_file, is_in_place, open_file};
use crate::sys::{NotInherited, is_byte_locked_by_others, is_range_locked_by_others, try_lock_byte, unlock_byte};

/// Offset of the bytes whose locks show that a member is present. They are never written.
const PRESENCE_OFFSET: u64 = 1 << 40;
const SLOT_BYTES: usize = MEMBER_BYTES + ANSWER_BYTES;

/// An open address file.
pub(crate) struct AddressFile {
    _not_inherited: NotInherited,
    file: File,
    path: PathBuf,
}

impl AddressFile {
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        open_file(&path).map(|file| Self::of(path, file))
    }

    /// Opens the file if it exists.
    pub(super) fn find(path: PathBuf) -> io::Result<Self> {
        find_file(&path).map(|file| Self::of(path, file))
    }

    fn of(path: PathBuf, file: File) -> Self {
        Self { _not_inherited: NotInherited::new(file.as_fd()), file, path }
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Starts a change of the group.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::NotFound`] if the file was removed meanwhile, because all members had left: open it again.
    pub(crate) fn change(&self) -> io::Result<Change<'_>> {
        Change::begin(&self.file, &self.path)
    }

    /// Removes the file unless another process is in the group, or may be about to join it because the change has no
    /// lock.
    pub(crate) fn remove_if_unused(&self, change: &Change<'_>) {
        let is_used = is_range_locked_by_others(self.file.as_fd(), PRESENCE_OFFSET, SLOTS as u64).unwrap_or(true);
        if change.is_locked() && !is_used {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Removes the file if no process is in the group, and none changes it. A process that has it open and wants to
    /// join takes the same lock and then finds that the file is no longer in place.
    pub(super) fn remove_unused(&self) -> io::Result<()> {
        let Some(change) = Change::try_begin(&self.file)? else { return Ok(()) };
        if is_in_place(&self.file, &self.path) {
            self.remove_if_unused(&change);
        }
        Ok(())
    }

    /// Claims a free slot; returns `None` if there is none. `own` lists the slots of this process.
    pub(crate) fn claim(&self, own: &[u8]) -> io::Result<Option<u8>> {
        for slot in (0..SLOTS as u8).filter(|slot| !own.contains(slot)) {
            if try_lock_byte(self.file.as_fd(), PRESENCE_OFFSET + u64::from(slot))? {
                // The first write, so it fails if the file system is full.
                let emptied = self.write(member_offset(slot), &[0; SLOT_BYTES]);
                return emptied.map(|()| Some(slot)).inspect_err(|_| self.release(slot));
            }
        }
        Ok(None)
    }

    /// Releases a slot.
    pub(crate) fn release(&self, slot: u8) {
        let _ = self.write(member_offset(slot), &[0; SLOT_BYTES]);
        let _ = unlock_byte(self.file.as_fd(), PRESENCE_OFFSET + u64::from(slot));
    }

    /// Returns whether the slot belongs to a live process.
    fn is_present(&self, slot: u8, own: &[u8]) -> bool {
        let by_others = || is_byte_locked_by_others(self.file.as_fd(), PRESENCE_OFFSET + u64::from(slot));
        // If the lock cannot be queried, keep the member rather than lose it.
        own.contains(&slot) || by_others().unwrap_or(true)
    }

    /// Returns all live members.
    pub(crate) fn members(&self, own: &[u8]) -> Vec<(u8, Member)> {
        self.live_members(own, |_| true).collect()
    }

    /// Returns the live member that has a block.
    pub(crate) fn member_with_block(&self, own: &[u8], block: u16) -> Option<Member> {
        self.live_members(own, |member| member.blocks.contains(&block)).next().map(|(_, member)| member)
    }

    /// Finds the live members among those that are `wanted`. One read finds the entries, so that only the locks of
    /// these are queried.
    fn live_members(&self, own: &[u8], wanted: impl Fn(&Member) -> bool) -> impl Iterator<Item = (u8, Member)> {
        let mut table = vec![0; SLOTS * SLOT_BYTES];
        // Bytes that do not exist or cannot be read stay zero: no entries.
        let _ = self.file.read_at(&mut table, HEADER_BYTES as u64);
        (0..SLOTS as u8).filter_map(move |slot| {
            let entry = table.get(usize::from(slot) * SLOT_BYTES..)?.first_chunk()?;
            Member::parse(entry).filter(&wanted)?;
            // Again once the lock is seen: the entry may have been that of an earlier process.
            let member = self.is_present(slot, own).then(|| self.member(slot)).flatten();
            Some((slot, member.filter(&wanted)?))
        })
    }

    fn member(&self, slot: u8) -> Option<Member> {
        Member::parse(&self.read(member_offset(slot))?)
    }

    pub(crate) fn write_member(&self, slot: u8, member: &Member) -> io::Result<()> {
        self.write(member_offset(slot), &member.to_bytes())
    }

    /// Returns the header; the default one if none can be read.
    pub(crate) fn header(&self) -> Header {
        self.read(0).and_then(|bytes| Header::parse(&bytes)).unwrap_or_default()
    }

    pub(crate) fn write_header(&self, header: &Header) -> io::Result<()> {
        self.write(0, &header.to_bytes())
    }

    pub(crate) fn write_answer(&self, slot: u8, answer: Answer) -> io::Result<()> {
        self.write(member_offset(slot) + MEMBER_BYTES as u64, &answer.to_bytes())
    }

    /// Returns the index that a member answered with, if it answered the probes with this nonce.
    pub(crate) fn answer(&self, slot: u8, nonce: &Nonce) -> Option<u16> {
        let answer = Answer::parse(&self.read(member_offset(slot) + MEMBER_BYTES as u64)?)?;
        (answer.nonce == *nonce).then_some(answer.index)
    }

    fn read<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, offset).ok().map(|()| bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }
}

fn member_offset(slot: u8) -> u64 {
    HEADER_BYTES as u64 + u64::from(slot) * SLOT_BYTES as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::NAME_BYTES;
    use super::super::change::LONGEST_CHANGE;
    use super::*;
    use crate::types::PeerCapabilities;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("rdma-verbs-registry-{}-{name}", std::process::id()))
    }

    fn member(block: u16) -> Member {
        let capabilities = PeerCapabilities::STANDARD;
        Member {
            process: 1,
            inode: 2,
            name: [3; NAME_BYTES],
            capabilities,
            key_share: None,
            blocks: vec![block],
            listeners: Vec::new(),
        }
    }

    #[test]
    fn members_come_and_go_and_are_seen_by_others() {
        let path = path("members");
        let (one, other) = (AddressFile::open(path.clone()).unwrap(), AddressFile::open(path.clone()).unwrap());
        let first = one.claim(&[]).unwrap().unwrap();
        one.write_member(first, &member(7)).unwrap();
        let second = other.claim(&[]).unwrap().unwrap();
        assert_ne!(first, second);
        other.write_member(second, &member(8)).unwrap();
        let both = vec![(first, member(7)), (second, member(8))];
        assert_eq!(one.members(&[first]), both);
        assert_eq!(other.members(&[second]), both);
        // Without releasing its slot, like a killed process.
        drop(one);
        assert_eq!(other.members(&[second]), both[1..]);
        other.remove_if_unused(&other.change().unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn removed_file_is_detected() {
        let path = path("removed");
        let file = AddressFile::open(path.clone()).unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(file.change().map(drop).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    /// A process may wait for many others that join before it, or that check the group without writing to the file.
    #[test]
    fn wait_continues_while_the_group_changes() {
        let path = path("busy");
        let (one, other) = (AddressFile::open(path.clone()).unwrap(), AddressFile::open(path.clone()).unwrap());
        let mut change = one.change().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| other.change().unwrap().is_locked());
            for _ in 0..3 {
                std::thread::sleep(LONGEST_CHANGE / 2);
                // The lock does not exclude the same open file, so the next change begins before this one has ended.
                let next = one.change().unwrap();
                std::mem::forget(std::mem::replace(&mut change, next));
            }
            drop(change);
            assert!(waiter.join().unwrap());
        });
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn unused_file_is_removed() {
        let path = path("unused");
        let (one, other) = (AddressFile::open(path.clone()).unwrap(), AddressFile::open(path.clone()).unwrap());
        let slot = one.claim(&[]).unwrap().unwrap();
        other.remove_unused().unwrap();
        assert!(path.exists(), "a member is there");
        one.release(slot);
        let change = one.change().unwrap();
        other.remove_unused().unwrap();
        assert!(path.exists(), "a member may be about to join");
        drop(change);
        other.remove_unused().unwrap();
        assert!(!path.exists());
        assert_eq!(one.change().map(drop).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn malformed_file_has_no_members() {
        let path = path("nonsense");
        std::fs::write(&path, [0xa5; 60_000]).unwrap();
        let file = AddressFile::open(path.clone()).unwrap();
        assert_eq!(file.header(), Header::default());
        let slot = file.claim(&[]).unwrap().unwrap();
        assert!(file.members(&[slot]).is_empty());
        assert_eq!(file.answer(slot, &[0xa5; 16]), None);
        std::fs::remove_file(path).unwrap();
    }
}
