//! Seeded statements on a cluster's tables: what each does to which place, how it reads in CQL, and what its rows say.

use super::history::{Place, ROWS, STATIC, Shown};
use cql::api::Consistency;
use std::collections::BTreeMap;

/// Counters of the table of counters.
pub const COUNTERS: i32 = 3;
/// Timestamps of writes are their numbers on top of this, in microseconds: the moment at which simulated worlds begin.
const FIRST_TIMESTAMP: i64 = 1_767_225_600_000_000;
/// Column `filler` is shorter.
const LONGEST_FILLER: i32 = 400;

/// The statements that make keyspace and tables, each harmless when it is there already.
pub fn setup(copies: usize, tablets: u32) -> Vec<String> {
    vec![
        format!(
            "CREATE KEYSPACE IF NOT EXISTS c WITH replication = {{'class': 'NetworkTopologyStrategy', 'replication_factor': {copies}}} \
             AND tablets = {{'initial': {tablets}}}"
        ),
        "CREATE TABLE IF NOT EXISTS c.t (pk int, ck int, s int static, v int, filler text, PRIMARY KEY (pk, ck)) \
         WITH speculative_retry = '10ms'"
            .into(),
        "CREATE TABLE IF NOT EXISTS c.n (k int PRIMARY KEY, n counter)".into(),
    ]
}

/// Any number below `n`, by the world's seed.
pub fn any(n: i32) -> i32 {
    rt::random::below(n.max(1) as u64) as i32
}

fn one_in(n: i32) -> bool {
    any(n) == 0
}

/// A change of one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// INSERT of a row.
    Insert(i32, i32),
    /// UPDATE of a row.
    Update(i32, i32),
    /// The static column.
    Static(i32),
    /// DELETE of a row.
    DeleteRow(i32, i32),
    /// DELETE of the static column.
    DeleteStatic(i32),
    /// DELETE of rows from one clustering key up to another.
    DeleteRange(i32, i32, i32),
    /// DELETE of a partition.
    DeletePartition(i32),
}

impl Change {
    /// Any change of a partition.
    pub fn any(pk: i32) -> Change {
        let ck = any(ROWS);
        match any(100) {
            0..=39 => Change::Insert(pk, ck),
            40..=64 => Change::Update(pk, ck),
            65..=74 => Change::Static(pk),
            75..=84 => Change::DeleteRow(pk, ck),
            85..=87 => Change::DeleteStatic(pk),
            88..=96 => Change::DeleteRange(pk, ck, ck + 1 + any(3)),
            _ => Change::DeletePartition(pk),
        }
    }

    /// The places that it gives a value (true) or empties.
    pub fn places(self) -> Vec<(Place, bool)> {
        match self {
            Change::Insert(pk, ck) | Change::Update(pk, ck) => vec![((pk, ck), true)],
            Change::Static(pk) => vec![((pk, STATIC), true)],
            Change::DeleteRow(pk, ck) => vec![((pk, ck), false)],
            Change::DeleteStatic(pk) => vec![((pk, STATIC), false)],
            Change::DeleteRange(pk, from, to) => (from..to.min(ROWS)).map(|ck| ((pk, ck), false)).collect(),
            Change::DeletePartition(pk) => (STATIC..ROWS).map(|ck| ((pk, ck), false)).collect(),
        }
    }

    /// The statement of the write with this number, without a timestamp.
    fn text(self, number: i32, using: &str) -> String {
        let set = |what: &str, pk, and: &str| format!("UPDATE c.t{using} SET {what} = {number} WHERE pk = {pk}{and}");
        match self {
            Change::Insert(pk, ck) => {
                // Of many lengths, so that records and rows straddle pages.
                let filler = "x".repeat((number.wrapping_mul(97) % LONGEST_FILLER) as usize);
                format!("INSERT INTO c.t (pk, ck, v, filler) VALUES ({pk}, {ck}, {number}, '{filler}'){using}")
            }
            Change::Update(pk, ck) => set("v", pk, &format!(" AND ck = {ck}")),
            Change::Static(pk) => set("s", pk, ""),
            Change::DeleteRow(pk, ck) => format!("DELETE FROM c.t{using} WHERE pk = {pk} AND ck = {ck}"),
            Change::DeleteStatic(pk) => format!("DELETE s FROM c.t{using} WHERE pk = {pk}"),
            Change::DeleteRange(pk, from, to) => {
                format!("DELETE FROM c.t{using} WHERE pk = {pk} AND ck >= {from} AND ck < {to}")
            }
            Change::DeletePartition(pk) => format!("DELETE FROM c.t{using} WHERE pk = {pk}"),
        }
    }
}

/// The statement of a write of several changes.
pub fn write_text(changes: &[Change], number: i32) -> String {
    let using = format!(" USING TIMESTAMP {}", FIRST_TIMESTAMP + i64::from(number));
    match changes {
        [change] => change.text(number, &using),
        several => {
            let each: Vec<String> = several.iter().map(|change| change.text(number, "")).collect();
            format!("BEGIN BATCH{using} {} APPLY BATCH", each.join("; "))
        }
    }
}

/// A read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Read {
    /// The partition; none: all of them.
    pub pk: Option<i32>,
    /// The statement.
    pub text: String,
    /// Rows a page.
    pub page: i32,
    from: i32,
    to: i32,
    /// Whether a partition without rows shows its static column.
    shows_static: bool,
}

impl Read {
    /// Any read.
    pub fn any(partitions: i32) -> Read {
        let (pk, page) = (any(partitions), 1 + any(5));
        let columns = "SELECT pk, ck, s, v FROM c.t";
        let whole = Read { pk: Some(pk), text: String::new(), page, from: 0, to: ROWS, shows_static: true };
        let backward = if one_in(3) { " ORDER BY ck DESC" } else { "" };
        match any(10) {
            0 => Read { pk: None, text: columns.into(), ..whole },
            1..=2 => {
                let ck = any(ROWS);
                let text = format!("{columns} WHERE pk = {pk} AND ck = {ck}");
                Read { text, from: ck, to: ck + 1, shows_static: false, ..whole }
            }
            3..=4 => {
                let (from, to) = (any(ROWS), 1 + any(ROWS));
                let text = format!("{columns} WHERE pk = {pk} AND ck >= {from} AND ck < {to}{backward}");
                Read { text, from, to, shows_static: false, ..whole }
            }
            _ => Read { text: format!("{columns} WHERE pk = {pk}{backward}"), ..whole },
        }
    }

    /// Of a whole partition, or of all.
    pub fn whole(pk: Option<i32>, page: i32) -> Read {
        let filter = pk.map_or(String::new(), |pk| format!(" WHERE pk = {pk}"));
        let text = format!("SELECT pk, ck, s, v FROM c.t{filter}");
        Read { pk, text, page, from: 0, to: ROWS, shows_static: true }
    }

    /// What these rows show of the places that this read covers.
    pub fn shown(&self, partitions: i32, rows: &[BTreeMap<String, Vec<u8>>]) -> Result<Shown, String> {
        let mut values: BTreeMap<Place, i32> = BTreeMap::new();
        let mut statics: BTreeMap<i32, Vec<Option<i32>>> = BTreeMap::new();
        for row in rows {
            let int = |name: &str| row.get(name).map(|bytes| int(bytes)).transpose();
            let pk = int("pk")?.ok_or("a row without pk")?;
            let shown = statics.entry(pk).or_default();
            let s = int("s")?;
            if !shown.contains(&s) {
                shown.push(s);
            }
            let Some(ck) = int("ck")? else { continue };
            let inside = self.pk.is_none_or(|own| own == pk) && (self.from..self.to).contains(&ck);
            if !inside || !(0..partitions).contains(&pk) {
                return Err(format!("row ({pk}, {ck}) was not asked for: {}", self.text));
            }
            let v = int("v")?.ok_or_else(|| format!("row ({pk}, {ck}) has no value"))?;
            if values.insert((pk, ck), v).is_some() {
                return Err(format!("row ({pk}, {ck}) comes twice: {}", self.text));
            }
        }
        let mut shown = Shown::new();
        for pk in self.pk.map_or(0..partitions, |pk| pk..pk + 1) {
            shown.extend((self.from..self.to).map(|ck| ((pk, ck), values.get(&(pk, ck)).copied())));
            match statics.get(&pk) {
                Some(found) => shown.extend(found.iter().map(|s| ((pk, STATIC), *s))),
                None if self.shows_static => shown.push(((pk, STATIC), None)),
                None => {}
            }
        }
        Ok(shown)
    }
}

/// An int of an answer.
pub fn int(bytes: &[u8]) -> Result<i32, String> {
    bytes.try_into().map(i32::from_be_bytes).map_err(|_| format!("{bytes:?} is no int"))
}

/// Any level for a write, and whether a majority has it once it is acknowledged.
pub fn write_level() -> (Consistency, bool) {
    match any(20) {
        0..=12 => (Consistency::Quorum, true),
        13..=14 => (Consistency::LocalQuorum, true),
        15 => (Consistency::EachQuorum, true),
        16 => (Consistency::All, true),
        17 => (Consistency::Two, true),
        18 => (Consistency::LocalOne, false),
        _ => (Consistency::One, false),
    }
}

/// Any level for a read, and whether it meets every majority.
pub fn read_level() -> (Consistency, bool) {
    match any(20) {
        0..=13 => (Consistency::Quorum, true),
        14..=15 => (Consistency::LocalQuorum, true),
        16 => (Consistency::All, true),
        _ => (Consistency::One, false),
    }
}
