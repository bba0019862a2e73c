//! Seeded statements on a cluster's tables: the rows that each changes, its CQL text, and the
//! decoding of answers.

use super::history::{EVERY, Effect, Majority, ROWS, RowKey, STATIC, Shown};
use super::shared::Plan;
use cql::api::Consistency;
use std::collections::BTreeMap;

/// The number of counters.
pub const COUNTERS: i32 = 3;
/// The timestamp of a write, in microseconds, is this plus its number. Simulated worlds begin at
/// this time.
const FIRST_TIMESTAMP: i64 = 1_767_225_600_000_000;
/// The longest TTL, in seconds.
const LONGEST_TTL: i32 = 6;
/// The length of column `filler` is below this.
const LONGEST_FILLER: i32 = 400;

/// The statements that create the keyspace and the tables. Each has no effect if its object exists.
pub fn setup(plan: &Plan, tablets: u32) -> Vec<String> {
    let copies = match plan.datacenters {
        1 => format!("'replication_factor': {}", plan.copies),
        _ => {
            let copies = |n| (0..plan.shards.len()).filter(|node| plan.datacenter(*node) == n).count();
            let each = (0..plan.datacenters).map(|n| format!("'datacenter{}': {}", n + 1, copies(n)));
            each.collect::<Vec<_>>().join(", ")
        }
    };
    let mut statements = vec![
        format!(
            "CREATE KEYSPACE IF NOT EXISTS c WITH replication = {{'class': 'NetworkTopologyStrategy', {copies}}} \
             AND tablets = {{'initial': {tablets}}}"
        ),
        "CREATE TABLE IF NOT EXISTS c.t (pk int, ck int, s int static, v int, filler text, PRIMARY KEY (pk, ck)) \
         WITH speculative_retry = '10ms'"
            .into(),
        "CREATE TABLE IF NOT EXISTS c.n (k int PRIMARY KEY, n counter)".into(),
        "CREATE TABLE IF NOT EXISTS c.e (k int PRIMARY KEY, v int)".into(),
    ];
    if plan.paging {
        statements.push(super::pages::TABLE.into());
    }
    statements.extend(plan.limited.iter().map(|table| table.statement.into()));
    statements
}

/// A random number below `n`, by the world's seed.
pub fn any(n: i32) -> i32 {
    rt::random::below(n.max(1) as u64) as i32
}

fn one_in(n: i32) -> bool {
    any(n) == 0
}

/// A change of one partition. The fields are the partition key, then clustering keys and the TTL in
/// seconds where the change has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// INSERT of a row.
    Insert(i32, i32),
    /// INSERT of a row with a TTL in seconds.
    InsertFor(i32, i32, i32),
    /// UPDATE of a row.
    Update(i32, i32),
    /// A write of the static column.
    Static(i32),
    /// A write of the static column with a TTL in seconds.
    StaticFor(i32, i32),
    /// DELETE of a row.
    DeleteRow(i32, i32),
    /// DELETE of the static column.
    DeleteStatic(i32),
    /// DELETE of the rows from one clustering key up to, but without, another.
    DeleteRange(i32, i32, i32),
    /// DELETE of a partition.
    DeletePartition(i32),
}

impl Change {
    /// A random change of a partition. Some have a TTL, if `expiring`.
    pub fn any(pk: i32, expiring: bool) -> Change {
        let ck = any(ROWS);
        let seconds = if expiring && any(2) == 0 { any(LONGEST_TTL) + 1 } else { 0 };
        match any(100) {
            0..=39 if seconds > 0 => Change::InsertFor(pk, ck, seconds),
            65..=74 if seconds > 0 => Change::StaticFor(pk, seconds),
            0..=39 => Change::Insert(pk, ck),
            40..=64 => Change::Update(pk, ck),
            65..=74 => Change::Static(pk),
            75..=84 => Change::DeleteRow(pk, ck),
            85..=87 => Change::DeleteStatic(pk),
            88..=96 => Change::DeleteRange(pk, ck, ck + 1 + any(3)),
            _ => Change::DeletePartition(pk),
        }
    }

    /// The rows that it writes or deletes.
    pub fn places(self) -> Vec<(RowKey, Effect)> {
        let empty = |pk, rows: std::ops::Range<i32>| rows.map(|ck| ((pk, ck), Effect::Empty)).collect();
        match self {
            Change::Insert(pk, ck) | Change::Update(pk, ck) => vec![((pk, ck), Effect::Put)],
            Change::InsertFor(pk, ck, seconds) => vec![((pk, ck), Effect::PutFor(seconds))],
            Change::Static(pk) => vec![((pk, STATIC), Effect::Put)],
            Change::StaticFor(pk, seconds) => vec![((pk, STATIC), Effect::PutFor(seconds))],
            Change::DeleteRow(pk, ck) => empty(pk, ck..ck + 1),
            Change::DeleteStatic(pk) => empty(pk, STATIC..STATIC + 1),
            Change::DeleteRange(pk, from, to) => empty(pk, from..to.min(ROWS)),
            Change::DeletePartition(pk) => empty(pk, STATIC..ROWS),
        }
    }

    /// Removes the TTL.
    pub fn make_lasting(&mut self) {
        *self = match *self {
            Change::InsertFor(pk, ck, _) => Change::Insert(pk, ck),
            Change::StaticFor(pk, _) => Change::Static(pk),
            other => other,
        };
    }

    /// The CQL text of the write with this number. `using` is its USING clause, or empty.
    fn text(self, number: i32, using: &str) -> String {
        let set = |what: &str, pk, and: &str| format!("UPDATE c.t{using} SET {what} = {number} WHERE pk = {pk}{and}");
        let for_a_while = |seconds| match using {
            "" => format!(" USING TTL {seconds}"),
            using => format!("{using} AND TTL {seconds}"),
        };
        match self {
            Change::Insert(pk, ck) => {
                // Lengths differ, so that records and rows cross the boundaries of pages.
                let filler = "x".repeat((number.wrapping_mul(97) % LONGEST_FILLER) as usize);
                format!("INSERT INTO c.t (pk, ck, v, filler) VALUES ({pk}, {ck}, {number}, '{filler}'){using}")
            }
            Change::InsertFor(pk, ck, seconds) => Change::Insert(pk, ck).text(number, &for_a_while(seconds)),
            Change::StaticFor(pk, seconds) => Change::Static(pk).text(number, &for_a_while(seconds)),
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

/// The timestamp of the write with this number, in microseconds.
pub fn timestamp(number: i32) -> i64 {
    FIRST_TIMESTAMP + i64::from(number)
}

/// The CQL text of a write of several changes.
pub fn write_text(changes: &[Change], number: i32) -> String {
    let using = format!(" USING TIMESTAMP {}", timestamp(number));
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
    /// The partition; `None`: all partitions.
    pub pk: Option<i32>,
    /// The CQL text.
    pub text: String,
    /// The page size in rows.
    pub page: i32,
    from: i32,
    to: i32,
    /// Whether a partition without rows shows its static column.
    shows_static: bool,
}

impl Read {
    /// A random read.
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

    /// A read of a whole partition, or of all.
    pub fn whole(pk: Option<i32>, page: i32) -> Read {
        let filter = pk.map_or(String::new(), |pk| format!(" WHERE pk = {pk}"));
        let text = format!("SELECT pk, ck, s, v FROM c.t{filter}");
        Read { pk, text, page, from: 0, to: ROWS, shows_static: true }
    }

    /// The values that these rows show for the rows that this read covers.
    pub fn shown(&self, partitions: i32, rows: &[BTreeMap<String, Vec<u8>>]) -> Result<Shown, String> {
        let mut values: BTreeMap<RowKey, i32> = BTreeMap::new();
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

/// The value of an int in an answer.
pub fn int(bytes: &[u8]) -> Result<i32, String> {
    bytes.try_into().map(i32::from_be_bytes).map_err(|_| format!("{bytes:?} is no int"))
}

/// A random level for a write by a client of a datacenter (`None`: there is only one), and the
/// majorities that have the write after it is acknowledged.
pub fn write_level(datacenter: Option<usize>) -> (Consistency, &'static [Majority]) {
    match (any(20), datacenter) {
        (0..=12, None) => (Consistency::Quorum, EVERY),
        (13..=14, None) => (Consistency::LocalQuorum, EVERY),
        (15, None) => (Consistency::EachQuorum, EVERY),
        (17, None) => (Consistency::Two, EVERY),
        (0..=5, Some(_)) => (Consistency::Quorum, &EVERY[..1]),
        (6..=11, Some(own)) => (Consistency::LocalQuorum, &EVERY[own + 1..own + 2]),
        (12..=15, Some(_)) => (Consistency::EachQuorum, EVERY),
        (17, Some(_)) => (Consistency::Two, &[]),
        (16, _) => (Consistency::All, EVERY),
        (18, _) => (Consistency::LocalOne, &[]),
        _ => (Consistency::One, &[]),
    }
}

/// A random level for a read by a client of a datacenter, and the majorities that it asks.
pub fn read_level(datacenter: Option<usize>) -> (Consistency, &'static [Majority]) {
    match (any(20), datacenter) {
        (0..=13, None) => (Consistency::Quorum, EVERY),
        (14..=15, None) => (Consistency::LocalQuorum, EVERY),
        (0..=5, Some(_)) => (Consistency::Quorum, &EVERY[..1]),
        (6..=15, Some(own)) => (Consistency::LocalQuorum, &EVERY[own + 1..own + 2]),
        (16, _) => (Consistency::All, EVERY),
        _ => (Consistency::One, &[]),
    }
}
