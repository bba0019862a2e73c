//! Journals as the releases that wrote them left them, damaged at every byte.

use super::*;
use crate::files::bytes::seal_header;
use crate::raft_log::record::{FORMAT, RECORD_VERSION, header_crc};
use crate::scratch::Scratch;

fn id(number: u64) -> Uuid {
    if number == 0 { Uuid::nil() } else { Uuid::from_u64_pair(0xABCD, number) }
}

fn body(number: u64) -> Vec<u8> {
    vec![number as u8; (number as usize * 37) % 300]
}

fn entry(log: u64, at: usize, kind: u8, previous: Uuid, id: Uuid, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0; ENTRY_HEADER];
    out[4..8].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    out[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
    (out[12], out[KIND_AT]) = (RECORD_VERSION, kind);
    out[24..40].copy_from_slice(previous.as_bytes());
    out[40..56].copy_from_slice(id.as_bytes());
    let crc = header_crc(log, at as u64, &out);
    out[0..4].copy_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(body);
    out.resize(out.len().next_multiple_of(ALIGN), 0);
    out
}

fn file_start(magic: [u8; 8], len: usize, number: u64, id: Uuid) -> Vec<u8> {
    let mut out = vec![0; len];
    out[0..8].copy_from_slice(&magic);
    out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    out[16..24].copy_from_slice(&number.to_le_bytes());
    out[24..40].copy_from_slice(id.as_bytes());
    out
}

/// Log `log` with the entries `from + 1..=to` and an end mark, and where each entry ends.
fn log(log: u64, from: u64, to: u64) -> (Vec<u8>, Vec<usize>) {
    let mut out = file_start(LOG_MAGIC, LOG_HEADER, log, id(from));
    seal_header(&mut out);
    let mut ends = Vec::new();
    for number in from + 1..=to {
        let entry = entry(log, out.len(), 0, id(number - 1), id(number), &body(number));
        out.extend_from_slice(&entry);
        ends.push(out.len());
    }
    let mark = entry(log, out.len(), END_MARK, id(to), Uuid::nil(), &[]);
    out.extend_from_slice(&mark);
    (out, ends)
}

fn snapshot(number: u64, last: u64, body: &[u8]) -> Vec<u8> {
    let mut out = file_start(SNAPSHOT_MAGIC, SNAPSHOT_HEADER, number, id(last));
    out[40..48].copy_from_slice(&(body.len() as u64).to_le_bytes());
    out[52..56].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    seal_header(&mut out);
    out.extend_from_slice(body);
    out
}

fn check(entries: &[Entry], from: u64, to: u64) {
    assert_eq!(entries.len() as u64, to - from, "entries {from}..={to}");
    for (entry, number) in entries.iter().zip(from + 1..) {
        assert_eq!((entry.previous, entry.id, &entry.body[..]), (id(number - 1), id(number), &body(number)[..]));
    }
}

#[test]
fn entries_and_the_latest_snapshot_are_read() {
    rt::block_on(async {
        let scratch = Scratch::new("journal-read");
        let dir = scratch.path();
        assert_eq!(read_journal(&dir.join("none")).await.expect("no journal"), (Vec::new(), None));
        assert_eq!(read_journal(dir).await.expect("an empty one"), (Vec::new(), None));
        std::fs::write(dir.join("log-0"), log(0, 0, 20).0).expect("written");
        let (entries, none) = read_journal(dir).await.expect("readable");
        check(&entries, 0, 20);
        assert_eq!(none, None);
        // The log of a snapshot that was interrupted before its rename.
        std::fs::write(dir.join("log-1"), log(1, 18, 20).0).expect("written");
        check(&read_journal(dir).await.expect("readable").0, 0, 20);
        std::fs::write(dir.join("snapshot-1"), snapshot(1, 18, b"up to 18")).expect("written");
        let (entries, found) = read_journal(dir).await.expect("readable");
        check(&entries, 18, 20);
        assert_eq!(found, Some(Snapshot { id: id(18), body: Bytes::from_static(b"up to 18") }));
        std::fs::remove_file(dir.join("log-1")).expect("removed");
        let error = read_journal(dir).await.expect_err("the log of the snapshot is missing");
        assert!(matches!(error, RaftLogError::Corrupt { .. }), "{error}");
    });
}

#[test]
fn a_torn_tail_is_left_out_and_damage_before_it_is_an_error() {
    rt::block_on(async {
        let scratch = Scratch::new("journal-damage");
        let (good, ends) = log(0, 0, 8);
        let path = scratch.path().join("log-0");
        for len in ends[6]..ends[7] {
            std::fs::write(&path, &good[..len]).expect("cut");
            check(&read_journal(scratch.path()).await.expect("readable").0, 0, 7);
        }
        for at in (0..good.len()).step_by(5) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).expect("damaged");
            let in_padding = (1..=8u64).zip(&ends).any(|(number, end)| {
                let len = ENTRY_HEADER + body(number).len();
                (end - (len.next_multiple_of(ALIGN) - len)..*end).contains(&at)
            });
            match read_journal(scratch.path()).await {
                Ok((entries, _)) => {
                    // The end mark shows that the last entry was complete, too.
                    assert!(in_padding || at >= ends[7], "byte {at}");
                    check(&entries, 0, 8);
                }
                Err(error) => {
                    let corrupt = matches!(error, RaftLogError::Corrupt { .. });
                    assert!(corrupt && at < ends[7], "byte {at}: {error}");
                }
            }
        }
    });
}

#[test]
fn a_damaged_snapshot_is_an_error() {
    rt::block_on(async {
        let scratch = Scratch::new("journal-badsnap");
        std::fs::write(scratch.path().join("log-1"), log(1, 2, 3).0).expect("written");
        let (path, good) = (scratch.path().join("snapshot-1"), snapshot(1, 2, b"two"));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x20;
            std::fs::write(&path, &bad).expect("damaged");
            assert!(read_journal(scratch.path()).await.is_err(), "byte {at}");
        }
        std::fs::write(&path, &good).expect("restored");
        check(&read_journal(scratch.path()).await.expect("readable").0, 2, 3);
    });
}
