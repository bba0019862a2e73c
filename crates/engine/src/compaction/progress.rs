//! The running compactions: their inputs and progress, and the handle to stop each.

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
    /// To drop data that this shard does not own any more.
    Cleanup,
}

impl CompactionKind {
    /// All kinds.
    pub const ALL: [CompactionKind; 2] = [CompactionKind::Compaction, CompactionKind::Cleanup];

    /// The name for administrators.
    pub fn name(self) -> &'static str {
        match self {
            CompactionKind::Compaction => "COMPACTION",
            CompactionKind::Cleanup => "CLEANUP",
        }
    }

    /// The kind with this name, in upper or lower case.
    pub fn named(name: &str) -> Option<CompactionKind> {
        CompactionKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }
}

/// A running compaction.
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

/// Registers a running compaction, until dropped.
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

/// The running compactions of a shard.
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

    /// Its description.
    pub fn what(&self) -> &CompactionProgress {
        &self.entry.what
    }

    /// Whether an administrator has stopped it.
    pub fn is_stopped(&self) -> bool {
        self.entry.stop.is_cancelled()
    }

    /// Sets the number of bytes to read.
    pub fn expect(&self, bytes: u64) {
        self.entry.total.set(bytes);
    }

    /// Adds to the number of bytes read.
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

    /// Stops running compactions of this shard: of one kind or all, of one table or all. A stopped
    /// compaction changes nothing; an automatic one is started again later. Returns how many were
    /// stopped.
    pub fn stop_compactions(&self, kind: Option<CompactionKind>, table: Option<TableId>) -> usize {
        let running = self.compactions().running.borrow();
        let selected = running.iter().filter(|own| {
            kind.is_none_or(|kind| kind == own.what.kind) && table.is_none_or(|table| table == own.what.table)
        });
        selected.inspect(|own| own.stop.cancel()).count()
    }
}
