//! Large partitions: many rows with large values, written row by row and read page by page.

use crate::Error;
use crate::options::Settings;
use crate::run::{ATTEMPTS, Numbers, Workload};
use crate::tally::{Kind, Outcome};
use crate::value::{Key, Random};
use scylla::client::session::Session;
use scylla::response::PagingState;
use scylla::statement::Statement;
use scylla::statement::prepared::PreparedStatement;
use std::ops::ControlFlow;
use std::sync::Mutex;

pub const COLUMNS: &str = "(pk bigint, ck int, v blob, PRIMARY KEY (pk, ck))";

/// Each row of each partition once. Neighbours in time belong to different partitions.
pub struct Fill {
    insert: PreparedStatement,
    next: Numbers,
    partitions: u64,
    rows: u64,
    seed: u64,
    size: usize,
}

impl Fill {
    pub async fn prepare(session: &Session, settings: &Settings) -> Result<Self, Error> {
        let table = &settings.table;
        Ok(Fill {
            insert: session.prepare(format!("INSERT INTO {table} (pk, ck, v) VALUES (?, ?, ?)")).await?,
            next: Numbers::default(),
            partitions: settings.options.partitions,
            rows: settings.rows,
            seed: settings.options.seed,
            size: settings.value_size,
        })
    }
}

impl Workload for Fill {
    type Item = Key;

    fn next(&self, _worker: u64, _random: &mut Random) -> Option<Key> {
        let number = self.next.take();
        let (row, partition) = (number / self.partitions, number % self.partitions);
        let key = Key { seed: self.seed, partition: partition as i64, row: row as i32, version: 0 };
        (row < self.rows).then_some(key)
    }

    async fn send(&self, session: &Session, key: &mut Key) -> Result<Outcome, Error> {
        let mut value = vec![0; self.size];
        key.fill(&mut value);
        session.execute_unpaged(&self.insert, (key.partition, key.row, &value[..])).await?;
        Ok(Outcome { rows: 1, bytes: self.size as u64, ..Outcome::default() })
    }

    fn kind(&self, _key: &Key) -> Kind {
        Kind::Write
    }

    fn attempts(&self) -> u32 {
        ATTEMPTS
    }

    fn give_up(&self, _key: Key) -> u64 {
        1
    }
}

/// Whole partitions in random order, each page by page.
pub struct Read {
    select: PreparedStatement,
    /// The partitions of a pass that are still to be read.
    pass: Mutex<Vec<u64>>,
    timed: bool,
    partitions: u64,
    rows: u64,
    reverse: bool,
    seed: u64,
    size: usize,
}

/// A partition that is being read.
pub struct Partition {
    key: i64,
    state: PagingState,
    rows: Sequence,
}

impl Read {
    pub async fn prepare(session: &Session, settings: &Settings) -> Result<Self, Error> {
        let options = &settings.options;
        let order = if options.reverse { " ORDER BY ck DESC" } else { "" };
        let text = format!("SELECT ck, v FROM {} WHERE pk = ?{order}", settings.table);
        let mut order: Vec<u64> = (0..options.partitions).collect();
        Random::new(options.seed, u64::MAX).shuffle(&mut order);
        Ok(Read {
            select: session.prepare(Statement::new(text).with_page_size(settings.page_size)).await?,
            pass: Mutex::new(order),
            timed: settings.timed,
            partitions: options.partitions,
            rows: settings.rows,
            reverse: options.reverse,
            seed: options.seed,
            size: settings.value_size,
        })
    }
}

impl Workload for Read {
    type Item = Partition;

    fn next(&self, _worker: u64, random: &mut Random) -> Option<Partition> {
        let mut pass = self.pass.lock().expect("no worker panicked");
        if pass.is_empty() && self.timed {
            *pass = (0..self.partitions).collect();
            random.shuffle(&mut pass);
        }
        let key = pass.pop()? as i64;
        Some(Partition { key, state: PagingState::start(), rows: Sequence::new(self.rows, self.reverse) })
    }

    async fn send(&self, session: &Session, partition: &mut Partition) -> Result<Outcome, Error> {
        let (page, next) = session.execute_single_page(&self.select, (partition.key,), partition.state.clone()).await?;
        let page = page.into_rows_result()?;
        let mut outcome = Outcome::default();
        for row in page.rows::<(i32, Option<&[u8]>)>()? {
            let (row, value) = row?;
            let value = value.unwrap_or_default();
            let key = Key { seed: self.seed, partition: partition.key, row, version: 0 };
            outcome.rows += 1;
            outcome.bytes += value.len() as u64;
            let skipped = partition.rows.accept(row);
            outcome.missing += skipped.unwrap_or(0);
            outcome.corrupt += u64::from(skipped.is_none() || !key.matches(self.size, value));
        }
        match next.into_paging_control_flow() {
            ControlFlow::Continue(state) => {
                partition.state = state;
                outcome.more = true;
            }
            ControlFlow::Break(()) => outcome.missing += partition.rows.left(),
        }
        Ok(outcome)
    }

    fn kind(&self, _partition: &Partition) -> Kind {
        Kind::Read
    }

    fn attempts(&self) -> u32 {
        ATTEMPTS
    }

    fn give_up(&self, partition: Partition) -> u64 {
        if self.timed { 0 } else { partition.rows.left() }
    }
}

/// The clustering keys of a whole partition in the order of reading: 0 to the number of rows.
struct Sequence {
    rows: u64,
    reverse: bool,
    /// How many keys have passed.
    passed: u64,
}

impl Sequence {
    fn new(rows: u64, reverse: bool) -> Self {
        Sequence { rows, reverse, passed: 0 }
    }

    /// Takes the next key that was read. Returns how many keys before it are missing, or None: the
    /// key is not one of the partition, or comes late or twice.
    fn accept(&mut self, key: i32) -> Option<u64> {
        let key = u64::try_from(key).ok().filter(|key| *key < self.rows)?;
        let place = if self.reverse { self.rows - 1 - key } else { key };
        let skipped = place.checked_sub(self.passed)?;
        self.passed = place + 1;
        Some(skipped)
    }

    fn left(&self) -> u64 {
        self.rows - self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(reverse: bool, keys: &[i32]) -> (Vec<Option<u64>>, u64) {
        let mut sequence = Sequence::new(5, reverse);
        (keys.iter().map(|key| sequence.accept(*key)).collect(), sequence.left())
    }

    #[test]
    fn missing_rows_are_counted() {
        assert_eq!(accept(false, &[0, 1, 2, 3, 4]), (vec![Some(0); 5], 0));
        assert_eq!(accept(false, &[0, 3]), (vec![Some(0), Some(2)], 1));
        assert_eq!(accept(true, &[4, 3, 2, 1, 0]), (vec![Some(0); 5], 0));
        assert_eq!(accept(true, &[3, 0]), (vec![Some(1), Some(2)], 0));
        assert_eq!(accept(false, &[]), (vec![], 5));
    }

    #[test]
    fn rows_twice_late_or_unknown_are_wrong() {
        assert_eq!(accept(false, &[0, 0, 2, 1]), (vec![Some(0), None, Some(1), None], 2));
        assert_eq!(accept(false, &[-1, 5, 0]), (vec![None, None, Some(0)], 4));
        assert_eq!(accept(true, &[0, 1]), (vec![Some(4), None], 0));
    }
}
