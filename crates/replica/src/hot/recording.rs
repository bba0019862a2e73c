//! Counts all operations by partition for some time, on request. While there is a recording, every
//! operation is a sample.

use super::sketch::{PartitionId, Sketch};
use crate::limiter::LimitKind;
use model::id::TableId;

/// A recording of a shard.
#[derive(Debug)]
pub(super) struct Recording {
    /// Its number.
    pub id: u64,
    /// Which tables are recorded.
    tables: Vec<TableId>,
    /// Reads and writes.
    kinds: [Sketch<Option<Box<[u8]>>>; 2],
}

/// A partition of a recording.
#[derive(Clone, PartialEq, Debug)]
pub struct Recorded {
    /// The partition.
    pub id: PartitionId,
    /// The serialised partition key.
    pub key: Box<[u8]>,
    /// Its operations, at most.
    pub count: u64,
    /// The part of the count that may belong to other partitions.
    pub error: u64,
}

/// What a recording counted: by kind, the most frequent partitions first.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct TopPartitions {
    /// Reads.
    pub reads: Vec<Recorded>,
    /// Writes.
    pub writes: Vec<Recorded>,
}

impl Recording {
    /// A recording of `tables` that counts about `capacity` partitions of each kind.
    pub fn new(id: u64, tables: Vec<TableId>, capacity: usize) -> Recording {
        Recording { id, tables, kinds: [Sketch::new(capacity), Sketch::new(capacity)] }
    }

    /// Counts an operation.
    pub fn add(&mut self, id: PartitionId, key: &[u8], kind: LimitKind) {
        if self.tables.contains(&id.table) {
            self.kinds[kind as usize].add(id, 1.0).value.get_or_insert_with(|| key.into());
        }
    }

    /// Ends the recording.
    pub fn finish(self) -> TopPartitions {
        let [reads, writes] = self.kinds.map(|sketch| {
            let recorded = sketch.iter().filter_map(|slot| {
                let (count, error) = (slot.weight as u64, slot.missed as u64);
                Some(Recorded { id: slot.id, key: slot.value.clone()?, count, error })
            });
            let mut recorded: Vec<Recorded> = recorded.collect();
            recorded.sort_by_key(|one| std::cmp::Reverse(one.count));
            recorded
        });
        TopPartitions { reads, writes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::token::Token;

    #[test]
    fn kinds_and_tables_are_told_apart() {
        let (table, other) = (TableId::from_bytes([1; 16]), TableId::from_bytes([2; 16]));
        let id = |table, token| PartitionId { table, token: Token(token) };
        let mut recording = Recording::new(1, vec![table], 16);
        (0..5).for_each(|_| recording.add(id(table, 1), b"one", LimitKind::Read));
        (0..9).for_each(|_| recording.add(id(table, 2), b"two", LimitKind::Read));
        (0..3).for_each(|_| recording.add(id(table, 1), b"one", LimitKind::Write));
        (0..7).for_each(|_| recording.add(id(other, 1), b"other", LimitKind::Read));
        let top = recording.finish();
        let shown =
            |list: &[Recorded]| list.iter().map(|one| (one.key.to_vec(), one.count, one.error)).collect::<Vec<_>>();
        assert_eq!(shown(&top.reads), [(b"two".to_vec(), 9, 0), (b"one".to_vec(), 5, 0)]);
        assert_eq!(shown(&top.writes), [(b"one".to_vec(), 3, 0)]);
    }
}
