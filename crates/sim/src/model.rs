//! The expected contents of a table, by the semantics of CQL. There are no timestamps, because each
//! partition has one writer, which sends its statements one after the other.
//!
//! [`Partition`] is the full state, including values that have not expired yet and row markers,
//! which readers cannot see. [`Partition::seen`] has the rows that a reader must get in a given
//! second.

use std::collections::{BTreeMap, BTreeSet};

/// The second from which a value has expired. [`NEVER`] for a value without TTL.
pub type Expiry = i64;

/// The expiry of values that were written without a TTL.
pub const NEVER: Expiry = i64::MAX;

/// A row.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Row {
    /// The row marker that INSERT writes. With it, the row exists even if all its columns are null.
    pub marker: Option<Expiry>,
    /// Column `v`.
    pub v: Option<(i32, Expiry)>,
    /// Column `x`, which is dropped and added again.
    pub x: Option<(i32, Expiry)>,
    /// Column `m`, a map.
    pub m: BTreeMap<i32, (i32, Expiry)>,
    /// Column `e`, a set.
    pub e: BTreeMap<i32, Expiry>,
}

/// A partition.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Partition {
    /// The static column `s`.
    pub s: Option<(i32, Expiry)>,
    /// The rows by their clustering key.
    pub rows: BTreeMap<i32, Row>,
}

/// A row of a result.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[allow(missing_docs)]
pub struct SeenRow {
    /// `None`: the partition has no rows, only its static column.
    pub ck: Option<i32>,
    pub s: Option<i32>,
    pub v: Option<i32>,
    pub x: Option<i32>,
    pub m: BTreeMap<i32, i32>,
    pub e: BTreeSet<i32>,
}

/// The effect of one statement on one partition.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Change {
    Insert { ck: i32, v: Option<i32>, ttl: i64 },
    Update { ck: i32, v: i32, ttl: i64 },
    UpdateX { ck: i32, x: i32 },
    DeleteCell { ck: i32 },
    DeleteRow { ck: i32 },
    DeleteRange { from: i32, to: i32 },
    DeletePartition,
    Static { s: i32, ttl: i64 },
    DeleteStatic,
    MapPut { ck: i32, k: i32, v: i32, ttl: i64 },
    MapRemove { ck: i32, k: i32 },
    MapReplace { ck: i32, of: Vec<(i32, i32)> },
    SetAdd { ck: i32, k: i32 },
    SetRemove { ck: i32, k: i32 },
}

impl Change {
    /// Whether the result depends on the second in which the change is executed.
    pub fn expires(&self) -> bool {
        use Change::*;
        matches!(self, Insert { ttl, .. } | Update { ttl, .. } | Static { ttl, .. } | MapPut { ttl, .. } if *ttl > 0)
    }
}

fn lives(expiry: Expiry, now: i64) -> bool {
    expiry > now
}

impl Row {
    fn prune(&mut self, now: i64) {
        self.marker = self.marker.filter(|expiry| lives(*expiry, now));
        self.v = self.v.filter(|(_, expiry)| lives(*expiry, now));
        self.x = self.x.filter(|(_, expiry)| lives(*expiry, now));
        self.m.retain(|_, (_, expiry)| lives(*expiry, now));
        self.e.retain(|_, expiry| lives(*expiry, now));
    }
}

impl Partition {
    /// The partition after `change` is executed in second `now`.
    pub fn after(&self, change: &Change, now: i64) -> Partition {
        let mut next = self.clone();
        let until = |ttl: i64| if ttl == 0 { NEVER } else { now + ttl };
        let row = |next: &mut Partition, ck: i32, f: &mut dyn FnMut(&mut Row)| f(next.rows.entry(ck).or_default());
        match change {
            Change::Insert { ck, v, ttl } => row(&mut next, *ck, &mut |row| {
                row.marker = Some(until(*ttl));
                row.v = v.map(|v| (v, until(*ttl)));
            }),
            Change::Update { ck, v, ttl } => row(&mut next, *ck, &mut |row| row.v = Some((*v, until(*ttl)))),
            Change::UpdateX { ck, x } => row(&mut next, *ck, &mut |row| row.x = Some((*x, NEVER))),
            Change::DeleteCell { ck } => row(&mut next, *ck, &mut |row| row.v = None),
            Change::DeleteRow { ck } => drop(next.rows.remove(ck)),
            Change::DeleteRange { from, to } => next.rows.retain(|ck, _| ck < from || ck >= to),
            Change::DeletePartition => next = Partition::default(),
            Change::Static { s, ttl } => next.s = Some((*s, until(*ttl))),
            Change::DeleteStatic => next.s = None,
            Change::MapPut { ck, k, v, ttl } => row(&mut next, *ck, &mut |row| {
                row.m.insert(*k, (*v, until(*ttl)));
            }),
            Change::MapRemove { ck, k } => row(&mut next, *ck, &mut |row| {
                row.m.remove(k);
            }),
            Change::MapReplace { ck, of } => {
                row(&mut next, *ck, &mut |row| row.m = of.iter().map(|(k, v)| (*k, (*v, NEVER))).collect())
            }
            Change::SetAdd { ck, k } => row(&mut next, *ck, &mut |row| {
                row.e.insert(*k, NEVER);
            }),
            Change::SetRemove { ck, k } => row(&mut next, *ck, &mut |row| {
                row.e.remove(k);
            }),
        }
        next.rows.retain(|_, row| *row != Row::default());
        next
    }

    /// The partition without column `x`.
    pub fn without_x(&self) -> Partition {
        let mut next = self.clone();
        next.rows.values_mut().for_each(|row| row.x = None);
        next.rows.retain(|_, row| *row != Row::default());
        next
    }

    /// The partition without values that have expired by second `now`.
    pub fn pruned(&self, now: i64) -> Partition {
        let mut next = self.clone();
        next.s = next.s.filter(|(_, expiry)| lives(*expiry, now));
        next.rows.values_mut().for_each(|row| row.prune(now));
        next.rows.retain(|_, row| *row != Row::default());
        next
    }

    /// The rows that a reader gets in second `now`.
    pub fn seen(&self, now: i64) -> Vec<SeenRow> {
        let live = self.pruned(now);
        let s = live.s.map(|(s, _)| s);
        let rows: Vec<SeenRow> = live
            .rows
            .iter()
            .map(|(ck, row)| SeenRow {
                ck: Some(*ck),
                s,
                v: row.v.map(|(v, _)| v),
                x: row.x.map(|(x, _)| x),
                m: row.m.iter().map(|(k, (v, _))| (*k, *v)).collect(),
                e: row.e.keys().copied().collect(),
            })
            .collect();
        match (rows.is_empty(), s) {
            (true, Some(_)) => vec![SeenRow { s, ..SeenRow::default() }],
            _ => rows,
        }
    }
}
