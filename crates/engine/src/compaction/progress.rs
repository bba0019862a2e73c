//! The compactions that run: what they work on, how far they are, and the handle to stop each.

use super::Compactions;
use crate::engine::Engine;
use crate::metrics::add;
use model::TableId;
use model::schema::TableSchema;
use rt::sync::Cancel;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use uuid::Uuid;

/// Why sstables are rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionKind {
    /// To have fewer of them.
    Compaction,
    /// To drop what this shard no longer owns.
    Cleanup,
}

impl CompactionKind {
    /// All of them.
    pub const ALL: [CompactionKind; 2] = [CompactionKind::Compaction, CompactionKind::Cleanup];

    /// As administrators name it.
    pub fn name(self) -> &'static str {
        match self {
            CompactionKind::Compaction => "COMPACTION",
            CompactionKind::Cleanup => "CLEANUP",
        }
    }

    /// The kind of a name, in capitals or not.
    pub fn named(name: &str) -> Option<CompactionKind> {
        CompactionKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }
}

/// A compaction that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionProgress {
    /// Its id.
    pub id: Uuid,
    /// Why it runs.
    pub kind: CompactionKind,
    /// The table.
    pub table: TableId,
    /// The table's keyspace.
    pub keyspace: String,
    /// The table's name.
    pub name: String,
    /// The tablet's number.
    pub tablet: u32,
    /// Uncompressed bytes of the inputs read so far.
    pub completed_bytes: u64,
    /// Uncompressed bytes of all inputs.
    pub total_bytes: u64,
    /// Milliseconds since 1970.
    pub started_at_millis: i64,
}

/// An entry among those that run, until dropped.
pub(super) struct Running<'a> {
    compactions: &'a Compactions,
    counter: &'a Cell<u64>,
    entry: Rc<Entry>,
}

pub(super) struct Entry {
    what: CompactionProgress,
    read: Cell<u64>,
    total: Cell<u64>,
    stop: Cancel,
}

/// The entries of a shard.
pub(super) type Entries = RefCell<Vec<Rc<Entry>>>;

impl<'a> Running<'a> {
    pub fn new(engine: &'a Engine, kind: CompactionKind, schema: &TableSchema, tablet: u32) -> Running<'a> {
        let what = CompactionProgress {
            id: rt::random::time_uuid(),
            kind,
            table: schema.id,
            keyspace: schema.keyspace.clone(),
            name: schema.name.clone(),
            tablet,
            completed_bytes: 0,
            total_bytes: 0,
            started_at_millis: rt::time::wall_micros() / 1000,
        };
        let entry = Rc::new(Entry { what, read: Cell::new(0), total: Cell::new(0), stop: Cancel::new() });
        let (compactions, counter) = (engine.compactions(), &engine.counters().compactions_running);
        add(counter, 1);
        compactions.running.borrow_mut().push(entry.clone());
        Running { compactions, counter, entry }
    }

    /// What it is.
    pub fn what(&self) -> &CompactionProgress {
        &self.entry.what
    }

    /// Whether it should stop.
    pub fn is_stopped(&self) -> bool {
        self.entry.stop.is_cancelled()
    }

    /// How much there is to read.
    pub fn expect(&self, bytes: u64) {
        self.entry.total.set(bytes);
    }

    /// More was read.
    pub fn has_read(&self, bytes: u64) {
        self.entry.read.set(self.entry.read.get() + bytes);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.counter.set(self.counter.get() - 1);
        self.compactions.running.borrow_mut().retain(|own| !Rc::ptr_eq(own, &self.entry));
    }
}

impl Engine {
    /// The compactions that run on this shard.
    pub fn compactions_running(&self) -> Vec<CompactionProgress> {
        let running = self.compactions().running.borrow();
        let progress = |own: &Rc<Entry>| CompactionProgress {
            completed_bytes: own.read.get().min(own.total.get()),
            total_bytes: own.total.get(),
            ..own.what.clone()
        };
        running.iter().map(progress).collect()
    }

    /// Stops the compactions that run on this shard: of one kind or all, of one table or all. They change nothing then, and one that
    /// ran by itself begins again later. Gives how many were told.
    pub fn stop_compactions(&self, kind: Option<CompactionKind>, table: Option<TableId>) -> usize {
        let running = self.compactions().running.borrow();
        let meant = running.iter().filter(|own| {
            kind.is_none_or(|kind| kind == own.what.kind) && table.is_none_or(|table| table == own.what.table)
        });
        meant.inspect(|own| own.stop.cancel()).count()
    }
}
