//! Reserved space for the missed writes of a shard. It is used when their file cannot be written,
//! because the disk is full or the process has no descriptors left.
//!
//! The file has two slots of fixed length. It is written in place, so it needs neither free space
//! nor a descriptor. A write replaces the older slot: a crash during a write leaves the newer one.

use super::missed::MissedWrites;
use super::sealed;
use model::id::HostId;
use rt::fs::{File, IoClass, OpenOptions};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The version of a slot: the sequence number and the entries.
const FORMAT: u8 = 1;
/// The length of a slot in bytes: room for about 380 entries.
const SLOT: usize = 16 << 10;
const SLOTS: usize = 2;

/// The reserved space of one shard.
pub(super) struct ReservedNotes {
    path: PathBuf,
    /// None: the space could not be reserved yet.
    file: RefCell<Option<File>>,
    next_slot: Cell<usize>,
}

impl ReservedNotes {
    /// Not reserved yet.
    pub fn new(path: PathBuf) -> ReservedNotes {
        ReservedNotes { path, file: RefCell::default(), next_slot: Cell::new(0) }
    }

    /// The newest contents of a file, with their sequence number. None if the file does not exist
    /// or was never used.
    pub async fn read(path: &Path) -> io::Result<Option<(u64, Vec<MissedWrites>)>> {
        match rt::fs::read(path).await {
            Ok(bytes) => Ok(newest(&bytes).map(|(_, sequence, entries)| (sequence, entries))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reserves the space, unless this is done. Keeps the contents of a file that exists.
    pub async fn reserve(&self) -> io::Result<()> {
        let file = self.file.borrow().clone();
        if let Some(file) = file
            && is_there(&file).await
        {
            return Ok(());
        }
        self.file.replace(None);
        let found = match rt::fs::read(&self.path).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            found => found?,
        };
        if found.len() != SLOT * SLOTS {
            // Zeros, because a write to space that is only allocated may need space for metadata.
            rt::fs::write_durably(&self.path, &[0; SLOT * SLOTS]).await?;
        }
        self.next_slot.set(newest(&found).map_or(0, |(slot, ..)| (slot + 1) % SLOTS));
        let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
        let file = rt::fs::open(&self.path, &options).await?;
        self.file.replace(Some(file));
        Ok(())
    }

    /// Writes the entries. They are durable on return.
    pub async fn write(&self, sequence: u64, entries: &[MissedWrites]) -> io::Result<()> {
        let file = self.file.borrow().clone();
        let file = file.ok_or_else(|| io::Error::other("no space is reserved for missed-write records"))?;
        if !is_there(&file).await {
            // A file without a name is lost when the node ends.
            return Err(io::Error::other(format!("{} was removed, replaced or cut off", self.path.display())));
        }
        let mut bytes = sealed::encode(FORMAT, &(sequence, entries));
        if bytes.len() > SLOT {
            bytes = sealed::encode(FORMAT, &(sequence, by_node(entries)));
        }
        if bytes.len() > SLOT {
            return Err(io::Error::other("the missed-write records are larger than their reserved space"));
        }
        bytes.resize(SLOT, 0);
        let slot = self.next_slot.get();
        file.write_at((slot * SLOT) as u64, bytes, IoClass::Foreground).await?;
        file.sync_data().await?;
        self.next_slot.set((slot + 1) % SLOTS);
        Ok(())
    }
}

/// Whether the file still has its name and its full length.
async fn is_there(file: &File) -> bool {
    matches!(file.len().await, Ok(len) if len == (SLOT * SLOTS) as u64) && matches!(file.is_in_place().await, Ok(true))
}

/// The readable slot with the highest sequence number: its index, and its contents.
fn newest(bytes: &[u8]) -> Option<(usize, u64, Vec<MissedWrites>)> {
    let slots = bytes.chunks_exact(SLOT).enumerate();
    let read = slots.filter_map(|(slot, bytes)| {
        let (sequence, entries) = sealed::decode_first(FORMAT, bytes)?;
        Some((slot, sequence, entries))
    });
    read.max_by_key(|(_, sequence, _)| *sequence)
}

/// The entries without their tables: one for each node. `Expired` replaces other causes, because a
/// resync must not spread data of such a node.
fn by_node(entries: &[MissedWrites]) -> Vec<MissedWrites> {
    let mut nodes: BTreeMap<HostId, MissedWrites> = BTreeMap::new();
    for one in entries {
        let node = nodes.entry(one.target).or_insert(MissedWrites { table: None, ..*one });
        node.since = node.since.min(one.since);
        if one.cause == super::Cause::Expired {
            node.cause = one.cause;
        }
    }
    nodes.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hints::Cause;
    use model::id::TableId;
    use test_support::Scratch;
    use uuid::Uuid;

    fn entry(table: u128) -> MissedWrites {
        let table = Some(TableId(Uuid::from_u128(table)));
        MissedWrites { target: HostId(Uuid::from_u128(5)), table, cause: Cause::Refused, since: table_time(table) }
    }

    fn table_time(table: Option<TableId>) -> i64 {
        table.map_or(0, |table| table.0.as_u128() as i64)
    }

    #[test]
    fn the_newest_contents_that_can_be_read_are_used() {
        rt::block_on(async {
            let scratch = Scratch::new("reserved");
            let path = scratch.join("0.reserve");
            for sequence in 1..6 {
                // Each time after a restart.
                let notes = ReservedNotes::new(path.clone());
                notes.reserve().await.expect("there is space");
                notes.write(sequence, &[entry(sequence.into())]).await.expect("written");
                let read = ReservedNotes::read(&path).await.expect("readable");
                assert_eq!(read, Some((sequence, vec![entry(sequence.into())])));
            }
            let mut bytes = std::fs::read(&path).expect("there");
            let (slot, ..) = newest(&bytes).expect("used");
            bytes[slot * SLOT + 20] ^= 1;
            assert_eq!(newest(&bytes).map(|(_, sequence, _)| sequence), Some(4));
        });
    }

    #[test]
    fn entries_that_do_not_fit_are_kept_by_node() {
        rt::block_on(async {
            let scratch = Scratch::new("reserved-many");
            let notes = ReservedNotes::new(scratch.join("0.reserve"));
            notes.write(1, &[entry(1)]).await.expect_err("no space is reserved");
            notes.reserve().await.expect("there is space");
            let many: Vec<_> = (1..2000).map(entry).collect();
            notes.write(1, &many).await.expect("one entry for each node");
            let read = ReservedNotes::read(&notes.path).await.expect("readable");
            assert_eq!(read, Some((1, vec![MissedWrites { table: None, ..entry(1) }])));
            std::fs::remove_file(&notes.path).expect("removed");
            notes.write(2, &[entry(1)]).await.expect_err("the file was removed");
            notes.reserve().await.expect("again");
            notes.write(2, &[entry(1)]).await.expect("written");
            // A copy has the same length, and another file is open.
            let copy = scratch.join("copy");
            std::fs::copy(&notes.path, &copy).expect("copied");
            std::fs::rename(&copy, &notes.path).expect("replaced");
            notes.write(3, &[entry(2)]).await.expect_err("the file was replaced");
            notes.reserve().await.expect("again");
            notes.write(3, &[entry(2)]).await.expect("written");
            let read = ReservedNotes::read(&notes.path).await.expect("readable");
            assert_eq!(read, Some((3, vec![entry(2)])));
        });
    }
}
