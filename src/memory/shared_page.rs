//! A page that this process writes, and that another process reads: a file without a name, whose length is sealed.
//!
//! The writer maps it; the reader reads the file, so that it takes no part in the writer's mapping. Either may see any
//! bytes at any moment: the contents show by themselves whether they are whole.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use super::Backing;
use super::raw::{Memory, sealed};

/// The writer's end of a page.
pub(crate) struct PageWriter(Memory);

impl PageWriter {
    /// Creates a page of this length, and the file for its readers.
    ///
    /// # Errors
    /// As [`Backing::create_shared`].
    pub(crate) fn create(length: usize) -> io::Result<(Self, OwnedFd)> {
        let (backing, file) = Backing::create_shared(c"rdma-verbs-statistics", length)?;
        Ok((Self(Memory::new(backing)), file))
    }

    /// Writes bytes; those beyond the end are not written.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        // Only ranges beyond the end fail: the pages of a sealed file are always there.
        let _ = self.0.write(offset, bytes);
    }
}

/// A reader's end of a page.
#[derive(Debug)]
pub(crate) struct PageReader(File);

impl PageReader {
    /// Takes the file of a page. Another process may have sent any descriptor: reading this one never waits.
    ///
    /// # Errors
    /// `InvalidData` or that of the system, if the file is not a page of this length.
    pub(crate) fn open(file: OwnedFd, length: usize) -> io::Result<Self> {
        sealed::check_sealed(file.as_fd(), length)?;
        Ok(Self(file.into()))
    }

    /// Reads bytes.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, offset as u64)
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_what_was_written() {
        let (mut writer, file) = PageWriter::create(8_192).unwrap();
        let reader = PageReader::open(file, 8_192).unwrap();
        writer.write(4_000, b"across pages");
        let mut bytes = [0; 12];
        reader.read(4_000, &mut bytes).unwrap();
        assert_eq!(&bytes, b"across pages");
        writer.write(8_190, b"too long");
        reader.read(8_184, &mut bytes[..8]).unwrap();
        assert_eq!(&bytes[..8], &[0; 8]);
        assert!(reader.read(8_190, &mut bytes).is_err());
    }

    #[test]
    fn other_descriptors_are_refused() {
        let (_writer, file) = PageWriter::create(8_192).unwrap();
        assert!(PageReader::open(file, 4_096).is_err());
        assert!(PageReader::open(File::open("/dev/zero").unwrap().into(), 8_192).is_err());
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(PageReader::open(reader.into(), 8_192).is_err());
    }
}
