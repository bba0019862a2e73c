//! Counts all operations by partition for some time, on request. While there is a recording, every
//! operation is a sample.
//!
//! Clients start recordings, so their memory is bounded. There are limits for the recordings of a
//! node ([`MOST_RECORDINGS`]), the partitions of a recording ([`MOST_PARTITIONS`]) and the keys
//! that are kept ([`LONGEST_KEY`]). Together, that is about 18 MB of a shard at most.

use super::LONGEST_KEY;
use super::sketch::{PartitionId, Sketch};
use crate::limiter::LimitKind;
use model::id::TableId;

/// The most recordings of a node at the same time.
pub const MOST_RECORDINGS: u32 = 4;

/// The most partitions of each kind that a recording counts at once on a shard.
pub const MOST_PARTITIONS: usize = 2_048;

/// A recording of a shard.
#[derive(Debug)]
pub(super) struct Recording {
    /// Its number.
    pub id: u64,
    /// Which tables are recorded, in order.
    tables: Vec<TableId>,
    /// Reads and writes.
    kinds: [Sketch<Option<Box<[u8]>>>; 2],
}

/// A partition of a recording.
#[derive(Clone, PartialEq, Debug)]
pub struct Recorded {
    /// The partition.
    pub id: PartitionId,
    /// The serialised partition key. None if it is longer than 1 KiB.
    pub key: Option<Box<[u8]>>,
    /// Its operations, at most.
    pub count: u64,
    /// The part of the count that may belong to other partitions.
    pub error: u64,
}

/// The counts of a recording: by kind, the most frequent partitions first.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct TopPartitions {
    /// Reads.
    pub reads: Vec<Recorded>,
    /// Writes.
    pub writes: Vec<Recorded>,
}

impl Recording {
    /// A recording of `tables` that counts about `capacity` partitions of each kind.
    pub fn new(id: u64, mut tables: Vec<TableId>, capacity: usize) -> Recording {
        tables.sort_unstable();
        let capacity = capacity.min(MOST_PARTITIONS);
        Recording { id, tables, kinds: [Sketch::new(capacity), Sketch::new(capacity)] }
    }

    /// Counts an operation.
    pub fn add(&mut self, id: PartitionId, key: &[u8], kind: LimitKind) {
        if self.tables.binary_search(&id.table).is_err() {
            return;
        }
        let value = &mut self.kinds[kind as usize].add(id, 1.0).value;
        if value.is_none() && !key.is_empty() && key.len() <= LONGEST_KEY {
            *value = Some(key.into());
        }
    }

    /// Ends the recording.
    pub fn finish(self) -> TopPartitions {
        let [reads, writes] = self.kinds.map(|sketch| {
            let recorded = sketch.into_slots().map(|slot| {
                let (count, error) = (slot.weight as u64, slot.missed as u64);
                Recorded { id: slot.id, key: slot.value, count, error }
            });
            let mut recorded: Vec<Recorded> = recorded.collect();
            recorded.sort_unstable_by_key(|one| (std::cmp::Reverse(one.count), one.id.token));
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
    fn kinds_and_tables_are_recorded_separately() {
        let (table, other) = (TableId::from_bytes([1; 16]), TableId::from_bytes([2; 16]));
        let id = |table, token| PartitionId { table, token: Token(token) };
        let mut recording = Recording::new(1, vec![table], 16);
        (0..5).for_each(|_| recording.add(id(table, 1), b"one", LimitKind::Read));
        (0..9).for_each(|_| recording.add(id(table, 2), b"two", LimitKind::Read));
        (0..3).for_each(|_| recording.add(id(table, 1), b"one", LimitKind::Write));
        (0..7).for_each(|_| recording.add(id(other, 1), b"other", LimitKind::Read));
        let top = recording.finish();
        let shown = |list: &[Recorded]| {
            list.iter().map(|one| (one.key.as_deref().map(<[u8]>::to_vec), one.count, one.error)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&top.reads), [(Some(b"two".to_vec()), 9, 0), (Some(b"one".to_vec()), 5, 0)]);
        assert_eq!(shown(&top.writes), [(Some(b"one".to_vec()), 3, 0)]);
    }

    #[test]
    fn a_recording_keeps_no_long_keys_and_not_more_partitions_than_its_maximum() {
        let table = TableId::from_bytes([1; 16]);
        let mut recording = Recording::new(1, vec![table], usize::MAX);
        for token in 0..10 * MOST_PARTITIONS as i64 {
            let key = vec![7; LONGEST_KEY + (token % 2) as usize];
            recording.add(PartitionId { table, token: Token(token) }, &key, LimitKind::Read);
        }
        let top = recording.finish();
        assert!(top.reads.len() <= MOST_PARTITIONS, "{}", top.reads.len());
        for one in &top.reads {
            assert_eq!(one.key.as_deref().map(<[u8]>::len), (one.id.token.0 % 2 == 0).then_some(LONGEST_KEY));
        }
    }
}
