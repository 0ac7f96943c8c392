//! Entry point of the registry's fuzz target: a file with any content.

use super::connection_record;
use super::port_record::{PROCESS_BYTES, PortRecord, ProcessEntry, RECORD_BYTES};
use super::table::{ANSWER_BYTES, Answer, HEADER_BYTES, Header, MEMBER_BYTES, Member, write_checksum};

/// Reads a file of an address, one of ports, and one of connections, as if another process had written these bytes, as
/// they are and with valid checksums. Entries that parse are encoded and parsed again.
pub fn registry_file(bytes: &[u8]) {
    check::<HEADER_BYTES>(bytes, |bytes| {
        let header = Header::parse(bytes)?;
        assert_eq!(Header::parse(&header.to_bytes()).as_ref(), Some(&header));
        Some(())
    });
    for record in bytes.get(HEADER_BYTES..).unwrap_or_default().chunks(MEMBER_BYTES + ANSWER_BYTES) {
        check::<MEMBER_BYTES>(record, |bytes| {
            let member = Member::parse(bytes)?;
            assert_eq!(Member::parse(&member.to_bytes()).as_ref(), Some(&member));
            Some(())
        });
        check::<ANSWER_BYTES>(record.get(MEMBER_BYTES..).unwrap_or_default(), |bytes| {
            let answer = Answer::parse(bytes)?;
            assert_eq!(Answer::parse(&answer.to_bytes()), Some(answer));
            Some(())
        });
    }
    for record in bytes.chunks(RECORD_BYTES) {
        check::<RECORD_BYTES>(record, |bytes| {
            let record = PortRecord::parse(bytes)?;
            assert_eq!(PortRecord::parse(&record.to_bytes()), Some(record));
            Some(())
        });
        check::<PROCESS_BYTES>(record, |bytes| {
            let entry = ProcessEntry::parse(bytes)?;
            assert_eq!(ProcessEntry::parse(&entry.to_bytes()), Some(entry));
            Some(())
        });
    }
    for record in bytes.chunks(connection_record::RECORD_BYTES) {
        check::<{ connection_record::RECORD_BYTES }>(record, |bytes| {
            let orphan = connection_record::parse(bytes)?;
            assert_eq!(connection_record::parse(&connection_record::to_bytes(&orphan)), Some(orphan));
            Some(())
        });
    }
}

fn check<const N: usize>(bytes: &[u8], read: impl Fn(&[u8; N]) -> Option<()>) {
    let Some(mut bytes) = bytes.first_chunk::<N>().copied() else { return };
    let _ = read(&bytes);
    write_checksum(&mut bytes);
    let _ = read(&bytes);
}
