//! The sstables of a tablet, as an immutable set that is replaced whole: a reader keeps the set it began with.

use crate::memtable::Interval;
use model::key::DecoratedKey;
use sstable::{Generation, Sstable, Version};
use std::cell::Cell;
use std::rc::Rc;

/// An sstable that belongs to a tablet.
pub(crate) struct Attached {
    pub sstable: Rc<Sstable>,
    /// Its position intervals in logs of this node.
    pub intervals: Vec<Interval>,
    /// A reader found it corrupt: reads that need it fail, compaction leaves it alone.
    pub corrupt: Cell<bool>,
    /// A compaction works on it.
    pub compacting: Cell<bool>,
}

impl Attached {
    pub fn new(sstable: Rc<Sstable>, intervals: Vec<Interval>) -> Rc<Attached> {
        Rc::new(Attached { sstable, intervals, corrupt: Cell::new(false), compacting: Cell::new(false) })
    }

    pub fn generation(&self) -> Generation {
        self.sstable.generation()
    }

    /// Whether Messina's own format: what is not is served, and left as it is.
    pub fn is_ours(&self) -> bool {
        self.sstable.version() == Version::Me
    }

    /// How many partitions it has.
    pub fn partitions(&self) -> u64 {
        self.sstable.stats().partition_sizes.count()
    }

    /// Whether compaction may take it.
    pub fn is_free(&self) -> bool {
        !self.compacting.get() && !self.corrupt.get() && self.is_ours()
    }

    /// Whether a key lies between its first and last.
    pub fn spans(&self, key: &DecoratedKey) -> bool {
        self.sstable.first_key() <= key && key <= self.sstable.last_key()
    }

    /// Whether it may hold the key.
    pub fn may_contain(&self, key: &DecoratedKey) -> bool {
        self.sstable.may_contain(key)
    }

    /// Whether both may hold the same keys.
    pub fn overlaps_with(&self, other: &Attached) -> bool {
        self.sstable.first_key() <= other.sstable.last_key() && other.sstable.first_key() <= self.sstable.last_key()
    }
}

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct SstableSet {
    sstables: Vec<Rc<Attached>>,
}

impl SstableSet {
    pub fn iter(&self) -> impl Iterator<Item = &Rc<Attached>> {
        self.sstables.iter()
    }

    pub fn len(&self) -> usize {
        self.sstables.len()
    }

    /// The set without some and with others.
    pub fn replace(&self, remove: &[Rc<Attached>], add: impl IntoIterator<Item = Rc<Attached>>) -> SstableSet {
        let mut sstables: Vec<_> =
            self.sstables.iter().filter(|own| !remove.iter().any(|gone| Rc::ptr_eq(own, gone))).cloned().collect();
        sstables.extend(add);
        SstableSet { sstables }
    }

    /// Bytes on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.sstables.iter().map(|own| own.sstable.total_bytes()).sum()
    }
}

impl Attached {
    /// Sets a corrupt sstable apart and says so, once. It stays in its set, so that reads which need it fail instead of
    /// missing what it holds.
    pub fn note_error(&self, error: &sstable::Error) {
        if matches!(error, sstable::Error::Corrupt(_)) && !self.corrupt.replace(true) {
            tracing::error!(generation = %self.generation(), %error, "corrupt sstable: it is kept and no longer compacted");
        }
    }
}
