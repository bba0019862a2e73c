//! The sstables of a tablet, as an immutable set that is replaced entirely. A reader keeps the
//! set it began with.

use crate::memtable::Interval;
use model::HostId;
use model::key::DecoratedKey;
use sstable::{Generation, Sstable, Version};
use std::cell::Cell;
use std::rc::Rc;

/// An sstable that belongs to a tablet.
pub(crate) struct Attached {
    pub sstable: Rc<Sstable>,
    /// The log intervals of this node that it covers.
    pub intervals: Vec<Interval>,
    /// A reader found it corrupt. Reads that need it fail, and it is not compacted.
    pub corrupt: Cell<bool>,
    /// A compaction reads it.
    pub compacting: Cell<bool>,
    /// The version of the set that it was added with; 0 before.
    since: Cell<u64>,
    /// The version in which the newest part of its contents was added: the output of a compaction
    /// is as old as its inputs.
    contents_since: Cell<u64>,
}

impl Attached {
    /// An sstable that was opened. Its log intervals count only if this node wrote it.
    pub fn open(sstable: Rc<Sstable>, host_id: HostId) -> Rc<Attached> {
        let stats = sstable.stats();
        let intervals = match stats.host_id == Some(host_id) {
            true => stats.log_intervals.iter().filter_map(Interval::of_stats).collect(),
            false => Vec::new(),
        };
        Attached::new(sstable, intervals)
    }

    pub fn new(sstable: Rc<Sstable>, intervals: Vec<Interval>) -> Rc<Attached> {
        Rc::new(Attached {
            sstable,
            intervals,
            corrupt: Cell::new(false),
            compacting: Cell::new(false),
            since: Cell::new(0),
            contents_since: Cell::new(0),
        })
    }

    pub fn generation(&self) -> Generation {
        self.sstable.generation()
    }

    /// Whether it has Messina's own format. Others are served and never compacted.
    pub fn is_ours(&self) -> bool {
        self.sstable.version() == Version::Me
    }

    /// The number of its partitions.
    pub fn partitions(&self) -> u64 {
        self.sstable.stats().partition_sizes.count()
    }

    /// Whether it is open elsewhere: in a reader, or a suspended reader.
    pub fn is_read(&self) -> bool {
        Rc::strong_count(&self.sstable) > 1
    }

    /// Whether it may be compacted.
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
    version: u64,
    /// The version in which an sstable was last removed.
    shrunk: u64,
    /// The version in which new contents were last added.
    last_added_version: u64,
    /// The newest `contents_since` of the removed sstables. A compaction may have purged their
    /// contents on the way into others.
    last_purged_version: u64,
}

impl SstableSet {
    pub fn iter(&self) -> impl Iterator<Item = &Rc<Attached>> {
        self.sstables.iter()
    }

    pub fn len(&self) -> usize {
        self.sstables.len()
    }

    /// The number of the set: each replacement adds one.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The sstables that were added after a version; all of them after 0.
    pub fn attached_after(&self, version: u64) -> impl Iterator<Item = &Rc<Attached>> {
        self.sstables.iter().filter(move |own| own.since.get() > version)
    }

    /// Whether an sstable was removed after a version.
    pub fn shrunk_after(&self, version: u64) -> bool {
        self.shrunk > version
    }

    /// The version in which new contents were last added.
    #[inline]
    pub fn last_added_version(&self) -> u64 {
        self.last_added_version
    }

    /// The newest version whose contents a compaction may have purged, so that no bloom filter
    /// knows them.
    #[inline]
    pub fn last_purged_version(&self) -> u64 {
        self.last_purged_version
    }

    /// The sstables that may hold contents added after a version.
    pub fn with_contents_after(&self, version: u64) -> impl Iterator<Item = &Rc<Attached>> {
        self.sstables.iter().filter(move |own| own.contents_since.get() > version)
    }

    /// The set without `remove` and with `add`. If something is removed, `add` holds its
    /// contents.
    pub fn replace(&self, remove: &[Rc<Attached>], add: impl IntoIterator<Item = Rc<Attached>>) -> SstableSet {
        let mut sstables: Vec<_> =
            self.sstables.iter().filter(|own| !remove.iter().any(|gone| Rc::ptr_eq(own, gone))).cloned().collect();
        // Contents of an sstable that was removed before, and that `add` has, would return.
        assert_eq!(sstables.len() + remove.len(), self.sstables.len(), "only sstables of the set are removed");
        let version = self.version + 1;
        let contents_since = remove.iter().map(|own| own.contents_since.get()).max().unwrap_or(version);
        let before = sstables.len();
        debug_assert!(remove.iter().all(|own| own.since.get() <= self.version), "a removed sstable was added before");
        sstables.extend(add.into_iter().inspect(|own| {
            own.since.set(version);
            own.contents_since.set(contents_since);
        }));
        let shrunk = if remove.is_empty() { self.shrunk } else { version };
        let last_added_version =
            if sstables.len() > before { self.last_added_version.max(contents_since) } else { self.last_added_version };
        let last_purged_version =
            remove.iter().map(|own| own.contents_since.get()).max().unwrap_or(0).max(self.last_purged_version);
        let set = SstableSet { sstables, version, shrunk, last_added_version, last_purged_version };
        debug_assert!(set.is_valid(), "a set has each sstable once, and no version is ahead of its own");
        set
    }

    /// Whether each sstable is there once, and no version is ahead of the set's.
    fn is_valid(&self) -> bool {
        let mut places: Vec<_> = self.sstables.iter().map(|own| (own.generation(), own.sstable.version())).collect();
        places.sort_unstable();
        places.is_sorted_by(|a, b| a < b)
            && [self.shrunk, self.last_added_version, self.last_purged_version]
                .iter()
                .all(|version| *version <= self.version)
            && self.sstables.iter().all(|own| (1..=self.version).contains(&own.since.get()))
    }
    /// Bytes on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.sstables.iter().map(|own| own.sstable.total_bytes()).sum()
    }
}

impl Attached {
    /// Marks a corrupt sstable and logs it once. It stays in its set, so that reads that need it
    /// fail instead of missing its data.
    pub fn note_error(&self, error: &sstable::Error) {
        if matches!(error, sstable::Error::Corrupt(_)) && !self.corrupt.replace(true) {
            tracing::error!(generation = %self.generation(), %error, "corrupt sstable: it is kept and no longer compacted");
        }
    }
}
