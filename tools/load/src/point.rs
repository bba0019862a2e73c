//! Reads and writes of single rows, in a table with one row to a partition.

use crate::Error;
use crate::options::Settings;
use crate::run::{ATTEMPTS, Numbers, Workload};
use crate::tally::{Kind, Outcome};
use crate::value::{Key, Random};
use scylla::client::session::Session;
use scylla::statement::prepared::PreparedStatement;

pub const COLUMNS: &str = "(pk bigint PRIMARY KEY, v blob)";

/// Random rows, or each row once.
pub struct Points {
    read: PreparedStatement,
    write: PreparedStatement,
    /// The share of reads.
    reads: f64,
    once: bool,
    next: Numbers,
    first: u64,
    rows: u64,
    seed: u64,
    size: usize,
}

pub struct Point {
    kind: Kind,
    key: Key,
}

impl Points {
    pub async fn prepare(session: &Session, settings: &Settings, reads: f64) -> Result<Self, Error> {
        let table = &settings.table;
        Ok(Points {
            read: session.prepare(format!("SELECT v FROM {table} WHERE pk = ?")).await?,
            write: session.prepare(format!("INSERT INTO {table} (pk, v) VALUES (?, ?)")).await?,
            reads,
            once: settings.options.once,
            next: Numbers::default(),
            first: settings.options.first_row,
            rows: settings.rows,
            seed: settings.options.seed,
            size: settings.value_size,
        })
    }

    async fn read(&self, session: &Session, key: Key) -> Result<Outcome, Error> {
        let result = session.execute_unpaged(&self.read, (key.partition,)).await?.into_rows_result()?;
        let mut outcome = Outcome::default();
        for row in result.rows::<(Option<&[u8]>,)>()? {
            let value = row?.0.unwrap_or_default();
            outcome.rows += 1;
            outcome.bytes += value.len() as u64;
            // A second row with one primary key is wrong, whatever it has.
            outcome.corrupt += u64::from(outcome.rows > 1 || !key.matches(self.size, value));
        }
        outcome.missing = u64::from(outcome.rows == 0);
        Ok(outcome)
    }
}

impl Workload for Points {
    type Item = Point;

    fn next(&self, _worker: u64, random: &mut Random) -> Option<Point> {
        let number = if self.once { self.next.take() } else { random.below(self.rows) };
        let kind = if random.chance(self.reads) { Kind::Read } else { Kind::Write };
        let key = Key { seed: self.seed, partition: (self.first + number) as i64, row: 0, version: 0 };
        (number < self.rows).then_some(Point { kind, key })
    }

    async fn send(&self, session: &Session, point: &mut Point) -> Result<Outcome, Error> {
        if point.kind == Kind::Read {
            return self.read(session, point.key).await;
        }
        let mut value = vec![0; self.size];
        point.key.fill(&mut value);
        session.execute_unpaged(&self.write, (point.key.partition, &value[..])).await?;
        Ok(Outcome { rows: 1, bytes: self.size as u64, ..Outcome::default() })
    }

    fn kind(&self, point: &Point) -> Kind {
        point.kind
    }

    fn attempts(&self) -> u32 {
        if self.once { ATTEMPTS } else { 1 }
    }

    fn give_up(&self, _point: Point) -> u64 {
        u64::from(self.once)
    }
}
