//! Seeded operations on one table, and the model of what they lead to.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// The schema that the operations need.
pub const SCHEMA: [&str; 2] = [
    "CREATE KEYSPACE IF NOT EXISTS w WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}",
    "CREATE TABLE IF NOT EXISTS w.t (pk int, ck int, v int, filler text, PRIMARY KEY (pk, ck)) WITH gc_grace_seconds = 0",
];

/// The query that reads everything the model knows.
pub const READ_ALL: &str = "SELECT pk, ck, v FROM w.t";

const PARTITIONS: i32 = 6;
const ROWS: i32 = 8;

/// Something that is done to the node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Writes a row; the value names the operation.
    Insert {
        /// Partition.
        pk: i32,
        /// Row.
        ck: i32,
        /// Value.
        v: i32,
    },
    /// Deletes a row.
    DeleteRow {
        /// Partition.
        pk: i32,
        /// Row.
        ck: i32,
    },
    /// Deletes the rows in `from..to`.
    DeleteRange {
        /// Partition.
        pk: i32,
        /// The first row.
        from: i32,
        /// After the last row.
        to: i32,
    },
    /// Deletes a partition.
    DeletePartition {
        /// Partition.
        pk: i32,
    },
    /// Writes several rows of several partitions as one logged batch.
    Batch(Vec<(i32, i32, i32)>),
    /// Empties the table.
    Truncate,
    /// Flushes memtables.
    Flush,
    /// Compacts everything.
    Compact,
}

impl Op {
    /// The statement, if it is one.
    pub fn statement(&self) -> Option<String> {
        let insert = |pk: &i32, ck: &i32, v: &i32| {
            let filler = "x".repeat((*v as usize * 37) % 200);
            format!("INSERT INTO w.t (pk, ck, v, filler) VALUES ({pk}, {ck}, {v}, '{filler}')")
        };
        Some(match self {
            Op::Insert { pk, ck, v } => insert(pk, ck, v),
            Op::DeleteRow { pk, ck } => format!("DELETE FROM w.t WHERE pk = {pk} AND ck = {ck}"),
            Op::DeleteRange { pk, from, to } => format!("DELETE FROM w.t WHERE pk = {pk} AND ck >= {from} AND ck < {to}"),
            Op::DeletePartition { pk } => format!("DELETE FROM w.t WHERE pk = {pk}"),
            Op::Batch(rows) => {
                let inserts: Vec<String> = rows.iter().map(|(pk, ck, v)| insert(pk, ck, v)).collect();
                format!("BEGIN BATCH {} APPLY BATCH", inserts.join("; "))
            }
            Op::Truncate => "TRUNCATE w.t".into(),
            Op::Flush | Op::Compact => return None,
        })
    }
}

/// `count` operations of this seed.
pub fn ops(seed: u64, count: usize) -> Vec<Op> {
    let mut rng = SmallRng::seed_from_u64(seed);
    (0..count as i32)
        .map(|i| {
            let (pk, ck) = (rng.gen_range(0..PARTITIONS), rng.gen_range(0..ROWS));
            match rng.gen_range(0..100) {
                0..=59 => Op::Insert { pk, ck, v: i },
                60..=69 => Op::DeleteRow { pk, ck },
                70..=76 => Op::DeleteRange { pk, from: ck, to: ck + rng.gen_range(1..4) },
                77..=80 => Op::DeletePartition { pk },
                // One partition: a batch over several is atomic only where one shard owns them all.
                81..=86 => Op::Batch((0..3).map(|j| (pk, (ck + j) % ROWS, i)).collect()),
                87..=88 => Op::Truncate,
                89..=95 => Op::Flush,
                _ => Op::Compact,
            }
        })
        .collect()
}

/// What a reader should see: (partition, row) to value.
pub type State = BTreeMap<(i32, i32), i32>;

/// The state after these operations.
pub fn state_after(ops: &[Op]) -> State {
    let mut state = State::new();
    for op in ops {
        match op {
            Op::Insert { pk, ck, v } => drop(state.insert((*pk, *ck), *v)),
            Op::DeleteRow { pk, ck } => drop(state.remove(&(*pk, *ck))),
            Op::DeleteRange { pk, from, to } => state.retain(|(p, c), _| p != pk || c < from || c >= to),
            Op::DeletePartition { pk } => state.retain(|(p, _), _| p != pk),
            Op::Batch(rows) => state.extend(rows.iter().map(|(pk, ck, v)| ((*pk, *ck), *v))),
            Op::Truncate => state.clear(),
            Op::Flush | Op::Compact => {}
        }
    }
    state
}
