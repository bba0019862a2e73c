//! `ledger-write` and `ledger-check`: what a server keeps of acknowledged writes over kills.
//!
//! Each key belongs to one worker, which sends its writes one after the other. Timestamps are
//! derived from versions, so a later write always wins over an earlier one. The clocks of servers
//! and clients do not matter. Neither does the delay with which a failed write is applied.

use crate::Error;
use crate::ledger::{Journal, Ledger, Note};
use crate::options::{LedgerOptions, Settings};
use crate::run::{ATTEMPTS, Numbers, Workload};
use crate::session::create_table;
use crate::tally::{Kind, Outcome, Report};
use crate::value::{Key, Random};
use crate::verdict::{Seen, Verdict, Write};
use scylla::client::session::Session;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::Counter;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

const ROWS: &str = "(pk bigint PRIMARY KEY, version bigint, v blob)";
const COUNTERS: &str = "(pk bigint PRIMARY KEY, n counter)";

/// The timestamp of version 0, in microseconds: 14 November 2023.
const EPOCH_US: i64 = 1_700_000_000_000_000;

/// Half of the writes go to the first of so many keys, so that there are overwrites. Counters are
/// as many.
const HOT: u64 = 50;

/// How many wrong keys a report names.
const SAMPLES: usize = 10;

fn counter_table(settings: &Settings) -> String {
    format!("{}_counters", settings.table)
}

fn key(ledger: &Ledger, partition: i64, version: i64) -> Key {
    Key { seed: ledger.seed, partition, row: 0, version }
}

/// New versions, deletions and increments.
pub struct Writes {
    put: PreparedStatement,
    delete: PreparedStatement,
    add: Option<PreparedStatement>,
    journal: Mutex<Journal>,
    seed: u64,
    size: usize,
    rows: u64,
    workers: u64,
    deletes: f64,
    counters: f64,
    deleted: AtomicU64,
    added: AtomicU64,
    round: u64,
}

pub enum Change {
    Row(Write, i64, i64),
    Add(i64),
}

impl Writes {
    pub async fn prepare(session: &Session, settings: &Settings, options: &LedgerOptions) -> Result<Self, Error> {
        let table = &settings.table;
        let mut journal = match Journal::open(&options.ledger)? {
            Some(_) if settings.options.drop => return Err("--drop would lose the rows of the ledger".into()),
            // The tables exist, or are lost: they must not be created again.
            Some(journal) => journal,
            None => {
                create_table(session, settings, table, ROWS).await?;
                if options.counters > 0.0 {
                    create_table(session, settings, &counter_table(settings), COUNTERS).await?;
                }
                let rows = session.query_unpaged(format!("SELECT pk FROM {table} LIMIT 1"), ()).await?;
                if rows.into_rows_result()?.rows_num() > 0 {
                    return Err(format!("{table} has rows that a new ledger does not know (--drop)").into());
                }
                Journal::create(&options.ledger, Ledger::new(settings.options.seed, settings.value_size))?
            }
        };
        journal.note(Note::Round(journal.ledger.round + 1));
        let add = format!("UPDATE {} SET n = n + 1 WHERE pk = ?", counter_table(settings));
        let put = format!("INSERT INTO {table} (pk, version, v) VALUES (?, ?, ?) USING TIMESTAMP ?");
        Ok(Writes {
            put: session.prepare(put).await?,
            delete: session.prepare(format!("DELETE FROM {table} USING TIMESTAMP ? WHERE pk = ?")).await?,
            add: if options.counters > 0.0 { Some(session.prepare(add).await?) } else { None },
            round: journal.ledger.round,
            seed: journal.ledger.seed,
            size: journal.ledger.value_size,
            journal: Mutex::new(journal),
            rows: settings.rows.max(settings.concurrency),
            workers: settings.concurrency,
            deletes: options.deletes,
            counters: options.counters,
            deleted: AtomicU64::new(0),
            added: AtomicU64::new(0),
        })
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().expect("no worker panicked")
    }

    /// Adds to a report what was acknowledged.
    pub fn describe(&self, report: &mut Report) {
        let journal = self.journal();
        report.insert("round".into(), json!(journal.ledger.round));
        report.insert("acked".into(), report["ops"].clone());
        report.insert("deletes".into(), json!(self.deleted.load(Relaxed)));
        report.insert("increments".into(), json!(self.added.load(Relaxed)));
        report.insert("keys".into(), json!(journal.ledger.rows.len()));
    }
}

/// A key of this worker, of the hot ones or of all.
fn choose(random: &mut Random, rows: u64, worker: u64, workers: u64, hot: bool) -> i64 {
    let own = rows / workers;
    let end = if hot { (own / HOT).max(1) } else { own };
    (worker + workers * random.below(end)) as i64
}

impl Workload for Writes {
    type Item = Change;

    fn next(&self, worker: u64, random: &mut Random) -> Option<Change> {
        if random.chance(self.counters) {
            return Some(Change::Add(choose(random, self.rows, worker, self.workers, true)));
        }
        let hot = random.chance(0.5);
        let key = choose(random, self.rows, worker, self.workers, hot);
        let delete = random.chance(self.deletes);
        let version = self.journal().ledger.rows.get(&key).map_or(0, |row| row.sent()) + 1;
        let write = if delete && version > 1 { Write::Delete } else { Write::Put };
        Some(Change::Row(write, key, version))
    }

    async fn send(&self, session: &Session, change: &mut Change) -> Result<Outcome, Error> {
        let (sent, acked) = match *change {
            Change::Row(write, key, version) => (Note::Sent(write, key, version), Note::Acked(key, version)),
            Change::Add(key) => (Note::Add(key), Note::Added(key)),
        };
        self.journal().note(sent);
        match *change {
            Change::Add(key) => {
                let add = self.add.as_ref().expect("increments are asked for");
                session.execute_unpaged(add, (key,)).await?;
                self.added.fetch_add(1, Relaxed);
            }
            Change::Row(Write::Delete, key, version) => {
                session.execute_unpaged(&self.delete, (EPOCH_US + version, key)).await?;
                self.deleted.fetch_add(1, Relaxed);
            }
            Change::Row(Write::Put, partition, version) => {
                let mut value = vec![0; self.size];
                Key { seed: self.seed, partition, row: 0, version }.fill(&mut value);
                session.execute_unpaged(&self.put, (partition, version, &value[..], EPOCH_US + version)).await?;
            }
        }
        self.journal().note(acked);
        Ok(Outcome { rows: 1, bytes: self.size as u64, ..Outcome::default() })
    }

    fn kind(&self, _change: &Change) -> Kind {
        Kind::Write
    }

    fn round(&self) -> u64 {
        self.round
    }

    /// A failed write is never sent again: the next one of its key has a new version.
    fn attempts(&self) -> u32 {
        1
    }
}

/// A row or a counter of the ledger.
#[derive(Clone, Copy, PartialEq)]
pub enum Subject {
    Row(i64),
    Counter(i64),
}

/// Reads all that a ledger names.
pub struct Check {
    row: PreparedStatement,
    counter: Option<PreparedStatement>,
    ledger: Ledger,
    subjects: Vec<Subject>,
    next: Numbers,
    judged: AtomicU64,
    wrong: Mutex<Vec<(Subject, Verdict, Option<i64>)>>,
}

impl Check {
    pub async fn prepare(session: &Session, settings: &Settings, options: &LedgerOptions) -> Result<Self, Error> {
        let ledger = Journal::read(&options.ledger)?;
        let chosen = |round: u64| !options.last_round || round == ledger.round;
        let rows = ledger.rows.iter().filter(|(_, row)| chosen(row.round));
        let counters = ledger.counters.iter().filter(|(_, counter)| chosen(counter.round));
        let subjects: Vec<_> =
            rows.map(|(key, _)| Subject::Row(*key)).chain(counters.map(|(key, _)| Subject::Counter(*key))).collect();
        let counter = format!("SELECT n FROM {} WHERE pk = ?", counter_table(settings));
        let any_counter = subjects.iter().any(|subject| matches!(subject, Subject::Counter(_)));
        Ok(Check {
            row: session.prepare(format!("SELECT version, v FROM {} WHERE pk = ?", settings.table)).await?,
            counter: if any_counter { Some(session.prepare(counter).await?) } else { None },
            ledger,
            subjects,
            next: Numbers::default(),
            judged: AtomicU64::new(0),
            wrong: Mutex::new(Vec::new()),
        })
    }

    async fn read_row(&self, session: &Session, pk: i64) -> Result<(Verdict, Option<i64>), Error> {
        let result = session.execute_unpaged(&self.row, (pk,)).await?.into_rows_result()?;
        let mut seen = Seen::Absent;
        for row in result.rows::<(Option<i64>, Option<&[u8]>)>()? {
            let (version, value) = row?;
            let first = seen == Seen::Absent;
            let matches =
                |version| key(&self.ledger, pk, version).matches(self.ledger.value_size, value.unwrap_or_default());
            seen = Seen::Row { version: version.unwrap_or(0), intact: first && version.is_some_and(matches) };
        }
        let version = match seen {
            Seen::Absent => None,
            Seen::Row { version, .. } => Some(version),
        };
        Ok((self.ledger.rows[&pk].judge(seen), version))
    }

    async fn read_counter(&self, session: &Session, pk: i64) -> Result<(Verdict, Option<i64>), Error> {
        let select = self.counter.as_ref().expect("it is prepared when there are counters");
        let result = session.execute_unpaged(select, (pk,)).await?.into_rows_result()?;
        let value = result.maybe_first_row::<(Option<Counter>,)>()?.and_then(|row| row.0).map(|counter| counter.0);
        Ok((self.ledger.counters[&pk].judge(value.unwrap_or(0)), value))
    }

    /// Adds the verdicts to a report.
    pub fn judge(&self, samples: bool, report: &mut Report) {
        let wrong = self.wrong.lock().expect("no worker panicked");
        let judged = self.judged.load(Relaxed);
        let count = |is: &dyn Fn(Verdict) -> bool| json!(wrong.iter().filter(|found| is(found.1)).count());
        let counters = self.subjects.iter().filter(|subject| matches!(subject, Subject::Counter(_))).count();
        let mut add = |name: &str, value: Value| report.insert(name.into(), value);
        add("round", json!(self.ledger.round));
        add("keys", json!(self.ledger.rows.len()));
        add("checked", json!(judged));
        add("counters", json!(counters));
        add("lost", count(&Verdict::is_loss));
        for (name, verdict) in [
            ("missing", Verdict::LostRow),
            ("lost_overwrites", Verdict::LostOverwrite),
            ("lost_deletes", Verdict::LostDelete),
            ("lost_increments", Verdict::LostIncrement),
            ("phantom", Verdict::Phantom),
            ("corrupt", Verdict::Corrupt),
        ] {
            add(name, count(&|found| found == verdict));
        }
        add("unreadable", json!(self.subjects.len() as u64 - judged));
        if samples {
            add("samples", wrong.iter().take(SAMPLES).map(|wrong| self.sample(wrong)).collect());
        }
    }

    fn sample(&self, (subject, verdict, found): &(Subject, Verdict, Option<i64>)) -> Value {
        match subject {
            Subject::Row(pk) => {
                let row = &self.ledger.rows[pk];
                json!({
                    "pk": pk, "verdict": verdict.name(), "version": found, "acked": row.acked(), "sent": row.sent(),
                    "round": row.round,
                })
            }
            Subject::Counter(pk) => {
                let counter = self.ledger.counters[pk];
                json!({
                    "counter": pk, "verdict": verdict.name(), "value": found, "acked": counter.acked,
                    "sent": counter.sent, "round": counter.round,
                })
            }
        }
    }
}

impl Workload for Check {
    type Item = Subject;

    fn next(&self, _worker: u64, _random: &mut Random) -> Option<Subject> {
        self.subjects.get(self.next.take() as usize).copied()
    }

    async fn send(&self, session: &Session, subject: &mut Subject) -> Result<Outcome, Error> {
        let (verdict, found) = match *subject {
            Subject::Row(pk) => self.read_row(session, pk).await?,
            Subject::Counter(pk) => self.read_counter(session, pk).await?,
        };
        self.judged.fetch_add(1, Relaxed);
        if verdict != Verdict::Good {
            self.wrong.lock().expect("no worker panicked").push((*subject, verdict, found));
        }
        Ok(Outcome { rows: u64::from(found.is_some()), ..Outcome::default() })
    }

    fn kind(&self, _subject: &Subject) -> Kind {
        Kind::Read
    }

    fn attempts(&self) -> u32 {
        ATTEMPTS
    }

    /// Longer than for load: the servers may have started just now.
    fn pause(&self, failures: u32) -> Duration {
        Duration::from_millis(200) * failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_one_worker() {
        for (rows, workers) in [(1000, 7), (64, 64), (5000, 1)] {
            for worker in 0..workers {
                let mut random = Random::new(1, worker);
                let mut hot = std::collections::BTreeSet::new();
                for n in 0..2000 {
                    let key = choose(&mut random, rows, worker, workers, n % 2 == 0) as u64;
                    assert!(key < rows && key % workers == worker);
                    if n % 2 == 0 {
                        hot.insert(key);
                    }
                }
                assert_eq!(hot.len() as u64, (rows / workers / HOT).max(1));
            }
        }
    }
}
