//! The sstables of a tablet, as an immutable set that is replaced whole: a reader keeps the set it began with.

use crate::memtable::Interval;
use model::HostId;
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
    /// The version of its set with which it came in; 0 before that.
    since: Cell<u64>,
    /// The version with which the newest of its contents came in: a compaction's output is as old as its inputs.
    contents_since: Cell<u64>,
}

impl Attached {
    /// An sstable that was opened; the intervals count only if this node wrote it.
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

    /// Whether Messina's own format: what is not is served, and left as it is.
    pub fn is_ours(&self) -> bool {
        self.sstable.version() == Version::Me
    }

    /// How many partitions it has.
    pub fn partitions(&self) -> u64 {
        self.sstable.stats().partition_sizes.count()
    }

    /// Whether somebody else has it open: a reader, also one that waits for its next page.
    pub fn is_read(&self) -> bool {
        Rc::strong_count(&self.sstable) > 1
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
    version: u64,
    /// The version at which an sstable last left it.
    shrunk: u64,
    /// The version at which something last came in that was not there before.
    news: u64,
    /// The newest `contents_since` of those that left it: what they brought may have been purged on the way into others.
    lost_news: u64,
}

impl SstableSet {
    pub fn iter(&self) -> impl Iterator<Item = &Rc<Attached>> {
        self.sstables.iter()
    }

    pub fn len(&self) -> usize {
        self.sstables.len()
    }

    /// Each set that replaces another has the next number.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Those that came in after a version of the set; all of them after 0.
    pub fn attached_after(&self, version: u64) -> impl Iterator<Item = &Rc<Attached>> {
        self.sstables.iter().filter(move |own| own.since.get() > version)
    }

    /// Whether it lost an sstable after a version.
    pub fn shrunk_after(&self, version: u64) -> bool {
        self.shrunk > version
    }

    /// The version at which something last came in that was not there before.
    #[inline]
    pub fn news(&self) -> u64 {
        self.news
    }

    /// What came in after an earlier version than this may have been merged and purged, so that no filter tells of it any more.
    #[inline]
    pub fn lost_news(&self) -> u64 {
        self.lost_news
    }

    /// Those that may hold what came in after a version.
    pub fn news_after(&self, version: u64) -> impl Iterator<Item = &Rc<Attached>> {
        self.sstables.iter().filter(move |own| own.contents_since.get() > version)
    }

    /// The set without some and with others. What comes in instead of others holds what they held.
    pub fn replace(&self, remove: &[Rc<Attached>], add: impl IntoIterator<Item = Rc<Attached>>) -> SstableSet {
        let mut sstables: Vec<_> =
            self.sstables.iter().filter(|own| !remove.iter().any(|gone| Rc::ptr_eq(own, gone))).cloned().collect();
        let version = self.version + 1;
        let contents_since = remove.iter().map(|own| own.contents_since.get()).max().unwrap_or(version);
        let before = sstables.len();
        sstables.extend(add.into_iter().inspect(|own| {
            own.since.set(version);
            own.contents_since.set(contents_since);
        }));
        let shrunk = if remove.is_empty() { self.shrunk } else { version };
        let news = if sstables.len() > before { self.news.max(contents_since) } else { self.news };
        let lost_news = remove.iter().map(|own| own.contents_since.get()).max().unwrap_or(0).max(self.lost_news);
        SstableSet { sstables, version, shrunk, news, lost_news }
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
