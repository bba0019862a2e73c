//! Seeded statements on one table, and their CQL text.

use crate::checker::{Global, Shape};
use crate::model::Change;
use rand::Rng;
use rand::rngs::SmallRng;

/// The number of partitions of the table.
pub const PARTITIONS: i32 = 6;
/// Clustering keys are below this.
pub const ROWS: i32 = 8;

/// The length of column `filler` is below this. All its bytes are `x`.
pub const LONGEST_FILLER: usize = 1500;

/// The statement that creates the keyspace.
pub const KEYSPACE: &str =
    "CREATE KEYSPACE IF NOT EXISTS w WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}";

/// One action of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Writes to one partition, or to several in one batch.
    Write(Vec<(i32, Change)>),
    /// Reads a partition in every way of [`crate::reads`].
    Read(i32),
    /// Waits for this number of milliseconds.
    Wait(u64),
}

/// The number of kinds of tables in `OPTIONS`.
pub const KINDS: usize = 6;

/// The compaction and compression options of each kind. Where only sstables of similar size are
/// compacted, tombstones meet the data that they cover late.
const OPTIONS: [&str; KINDS] = [
    "",
    " AND compaction = {'class': 'SizeTieredCompactionStrategy', 'min_threshold': 2, 'min_sstable_size': 1} \
     AND compression = {'sstable_compression': ''}",
    " AND compaction = {'class': 'SizeTieredCompactionStrategy', 'min_threshold': 2, 'min_sstable_size': 1, \
     'bucket_high': 1.1, 'bucket_low': 0.9}",
    " AND compression = {'sstable_compression': 'ZstdCompressor', 'chunk_length_in_kb': 1}",
    " AND compaction = {'class': 'LeveledCompactionStrategy', 'min_threshold': 2, 'sstable_size_in_mb': 1, 'fanout_size': 2}",
    " AND compaction = {'class': 'TimeWindowCompactionStrategy', 'min_threshold': 2, 'compaction_window_unit': 'MINUTES', \
     'expired_sstable_check_frequency_seconds': 0}",
];

/// The statement for `global`. Without `kind`, a new table gets a random kind.
pub fn global_statement(rng: &mut SmallRng, global: Global, kind: Option<usize>) -> String {
    let any = rng.gen_range(0..KINDS);
    match global {
        // Without grace, compaction may purge a tombstone at once. The data that it covers must be
        // purged by then.
        Global::Create => format!(
            "CREATE TABLE w.t (pk int, ck int, s int static, v int, m map<int, int>, e set<int>, filler text, \
             PRIMARY KEY (pk, ck)) WITH gc_grace_seconds = 0{}",
            OPTIONS[kind.unwrap_or(any)]
        ),
        Global::Drop => "DROP TABLE w.t".into(),
        Global::AddX => "ALTER TABLE w.t ADD x int".into(),
        Global::DropX => "ALTER TABLE w.t DROP x".into(),
        Global::Truncate => "TRUNCATE w.t".into(),
    }
}

/// A random change of the whole table that is possible now; mostly none.
pub fn global(rng: &mut SmallRng, shape: Shape) -> Option<Global> {
    if !shape.exists {
        return Some(Global::Create);
    }
    match rng.gen_range(0..10) {
        0 => Some(Global::Truncate),
        1 => Some(Global::Drop),
        2..=5 => Some(if shape.has_x { Global::DropX } else { Global::AddX }),
        _ => None,
    }
}

/// The next step of a client that owns `partitions`. `value` identifies the write. Without
/// `expiring`, no write has a TTL.
pub fn step(rng: &mut SmallRng, partitions: &[i32], shape: Shape, value: i32, expiring: bool) -> Step {
    let pk = partitions[rng.gen_range(0..partitions.len())];
    match rng.gen_range(0..100) {
        0..=9 => Step::Read(pk),
        10..=12 => Step::Wait(rng.gen_range(1..1500)),
        13..=18 => {
            let other = partitions[rng.gen_range(0..partitions.len())];
            let row = |pk, ck| (pk, Change::Insert { ck, v: Some(value), ttl: 0 });
            let mut writes = vec![row(pk, rng.gen_range(0..ROWS))];
            if other != pk {
                writes.push(row(other, rng.gen_range(0..ROWS)));
            }
            Step::Write(writes)
        }
        _ => Step::Write(vec![(pk, change(rng, shape, value, expiring))]),
    }
}

fn change(rng: &mut SmallRng, shape: Shape, value: i32, expiring: bool) -> Change {
    let (ck, k, v) = (rng.gen_range(0..ROWS), rng.gen_range(0..4), value);
    let ttl = if expiring && rng.gen_bool(0.2) { rng.gen_range(1..5) } else { 0 };
    match rng.gen_range(0..100) {
        0..=29 => Change::Insert { ck, v: (rng.gen_range(0..10) > 0).then_some(v), ttl },
        30..=44 => Change::Update { ck, v, ttl },
        45..=49 if shape.has_x => Change::UpdateX { ck, x: v },
        45..=52 => Change::DeleteCell { ck },
        53..=61 => Change::DeleteRow { ck },
        62..=69 => Change::DeleteRange { from: ck, to: ck + rng.gen_range(1..4) },
        70..=72 => Change::DeletePartition,
        73..=76 => Change::Static { s: v, ttl },
        77..=78 => Change::DeleteStatic,
        79..=84 => Change::MapPut { ck, k, v, ttl },
        85..=88 => Change::MapRemove { ck, k },
        89..=91 => Change::MapReplace { ck, of: (0..k).map(|key| (key, v)).collect() },
        92..=96 => Change::SetAdd { ck, k },
        _ => Change::SetRemove { ck, k },
    }
}

/// The CQL text of a write.
pub fn statement(writes: &[(i32, Change)]) -> String {
    match writes {
        [(pk, change)] => one(*pk, change),
        several => {
            let statements: Vec<String> = several.iter().map(|(pk, change)| one(*pk, change)).collect();
            format!("BEGIN BATCH {} APPLY BATCH", statements.join("; "))
        }
    }
}

fn one(pk: i32, change: &Change) -> String {
    let using = |ttl: i64| if ttl > 0 { format!(" USING TTL {ttl}") } else { String::new() };
    let row = |ck: &i32| format!("WHERE pk = {pk} AND ck = {ck}");
    match change {
        Change::Insert { ck, v, ttl } => {
            // Lengths differ, so that records and rows cross the boundaries of pages.
            let filler = "x".repeat((v.unwrap_or(1) as usize * 337) % LONGEST_FILLER);
            let v = v.map_or("null".to_owned(), |v| v.to_string());
            format!("INSERT INTO w.t (pk, ck, v, filler) VALUES ({pk}, {ck}, {v}, '{filler}'){}", using(*ttl))
        }
        Change::Update { ck, v, ttl } => format!("UPDATE w.t{} SET v = {v} {}", using(*ttl), row(ck)),
        Change::UpdateX { ck, x } => format!("UPDATE w.t SET x = {x} {}", row(ck)),
        Change::DeleteCell { ck } => format!("DELETE v FROM w.t {}", row(ck)),
        Change::DeleteRow { ck } => format!("DELETE FROM w.t {}", row(ck)),
        Change::DeleteRange { from, to } => format!("DELETE FROM w.t WHERE pk = {pk} AND ck >= {from} AND ck < {to}"),
        Change::DeletePartition => format!("DELETE FROM w.t WHERE pk = {pk}"),
        Change::Static { s, ttl } => format!("UPDATE w.t{} SET s = {s} WHERE pk = {pk}", using(*ttl)),
        Change::DeleteStatic => format!("DELETE s FROM w.t WHERE pk = {pk}"),
        Change::MapPut { ck, k, v, ttl } => format!("UPDATE w.t{} SET m[{k}] = {v} {}", using(*ttl), row(ck)),
        Change::MapRemove { ck, k } => format!("DELETE m[{k}] FROM w.t {}", row(ck)),
        Change::MapReplace { ck, of } => {
            let pairs: Vec<String> = of.iter().map(|(k, v)| format!("{k}: {v}")).collect();
            format!("UPDATE w.t SET m = {{{}}} {}", pairs.join(", "), row(ck))
        }
        Change::SetAdd { ck, k } => format!("UPDATE w.t SET e = e + {{{k}}} {}", row(ck)),
        Change::SetRemove { ck, k } => format!("UPDATE w.t SET e = e - {{{k}}} {}", row(ck)),
    }
}
