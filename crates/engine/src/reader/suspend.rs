//! A reader between two pages.
//!
//! Invariant: a resumed reader yields exactly the fragments of a new reader with the resumed range
//! and slice. These are the partition's start with its deletion, the static row, the open range
//! deletion as a change at the position, and the rest. So suspended readers change nothing but the
//! cost.
//!
//! Only sstables are kept, each with its decoded fragments that were not merged yet, its position
//! and read-ahead, and its open deletion. Memtables are cheap to find, so they are opened again.
//! The head of the partition (deletion, static row) is kept merged, memtables included. The
//! contents of these memtables are still in memory or were flushed, and merging the same data twice
//! changes nothing. Sstables that were attached meanwhile are opened at the position. So the
//! sources are the same as for a new reader. If the tablet lost an sstable (to a compaction or
//! TRUNCATE) the reader is [`Stale`], and a new one is needed.
//!
//! If nothing has changed and one sstable is left, resuming costs no seek, no index read and no
//! new reader.

use super::source::{Source, Sources, SstableSource};
use super::{Current, ReadOptions, Reader};
use crate::engine::Engine;
use crate::error::ReadError;
use crate::memtable::Slices;
use crate::table::Tablet;
use model::TableId;
use model::fragment::Fragment;
use model::id::SchemaVersion;
use model::key::{ClusteringCut, DecoratedKey};
use model::merge::{Absorbed, Rest};
use model::range::{PartitionRange, Slice};
use model::row::Row;
use model::schema::{ClusteringOrder, TableSchema};
use model::time::Tombstone;
use smallvec::SmallVec;
use std::rc::Rc;

/// How often a source is filled on the way to the position. A reader that is at the position
/// needs at most one fill.
const FILLS_TO_PLACE: u32 = 4;

/// How many fragments of a buffer are measured.
const WEIGHED: usize = 8;

/// The head of the partition in which a reader was suspended, as it was yielded, and the deletion
/// at the position.
#[derive(Clone, Debug)]
pub struct PartitionHead {
    /// The partition.
    pub key: DecoratedKey,
    /// Its deletion.
    pub tombstone: Tombstone,
    /// Its static row, if it was wanted and there is one.
    pub static_row: Option<Row>,
    /// The range deletion that was yielded last.
    pub open: Tombstone,
}

/// Why a suspended reader cannot be resumed. A new one must be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stale {
    /// The table has another schema now, or is no longer there.
    Schema,
    /// The tablet is no longer here.
    Tablet,
    /// The tablet lost an sstable: to a compaction, or to TRUNCATE.
    Sstables,
    /// The position is too far ahead.
    Behind,
}

impl Stale {
    /// As traces say it.
    pub fn why(self) -> &'static str {
        match self {
            Stale::Schema => "the schema has changed",
            Stale::Tablet => "the tablet is no longer here",
            Stale::Sstables => "sstables were replaced",
            Stale::Behind => "it is too far behind the position",
        }
    }
}

/// The outcome of resuming a suspended reader.
#[allow(clippy::large_enum_variant)]
pub enum Resumed {
    /// It is resumed.
    Reader(Reader),
    /// It cannot be resumed.
    Stale(Stale),
    /// It must [read on](Suspended::read_on) first, and be resumed again.
    Waits(Suspended),
}

/// A reader between two pages. See the module.
pub struct Suspended {
    schema: Rc<TableSchema>,
    options: ReadOptions,
    /// The tablet of its position, and the version of its sstable set that was opened.
    tablet: Option<(Rc<Tablet>, u64)>,
    /// The partition of its position, if any.
    head: Option<PartitionHead>,
    held: SmallVec<[Held; 1]>,
    /// How often it read on.
    fills: u32,
}

struct Held {
    source: Box<SstableSource>,
    rest: Rest,
}

impl Reader {
    /// Suspends the reader until the next page. `head` is given if a part of a partition was
    /// yielded, without its end.
    pub fn suspend(self, head: Option<PartitionHead>) -> Suspended {
        let mut held = SmallVec::new();
        match self.current {
            Current::Nothing => {}
            Current::One(one) => {
                if let Source::Sstable(mut source) = one.source {
                    source.reader.suspend();
                    let open = head.as_ref().map_or(Tombstone::LIVE, |head| head.open);
                    let rest = Rest { buffer: one.buffer, finished: one.finished, active: head.is_some(), open };
                    held.push(Held { source, rest });
                }
            }
            Current::Several(several) => {
                let all = several.sources.into_iter().zip(several.merger.dissolve());
                held.extend(all.filter_map(|(source, rest)| match source {
                    Source::Sstable(mut source) => {
                        source.reader.suspend();
                        Some(Held { source, rest })
                    }
                    // The one row of a partition that filled the cache was yielded.
                    Source::Memtable(_) | Source::Filling(_) => None,
                }));
            }
        }
        Suspended { schema: self.schema, options: self.options, tablet: self.tablet, head, held, fills: 0 }
    }
}

impl Suspended {
    /// The schema version of the reader.
    pub fn schema_version(&self) -> SchemaVersion {
        self.schema.version
    }

    /// The memory that it holds, approximately: decoded fragments, windows of files, read-ahead.
    pub fn memory_bytes(&self) -> usize {
        let held = |held: &Held| held.source.reader.memory_bytes() + buffered(&held.rest);
        std::mem::size_of::<Suspended>() + self.held.iter().map(held).sum::<usize>()
    }

    /// Resumes the reader. `range` and `slice` give the rest of the read, as for a new reader.
    /// `cut` is a position in the partition of the head, in the reader's order. It is at or behind
    /// the last fragment that was yielded. None: continue behind that partition. The range must
    /// have the same end as the reader's range, and the slice must select the same part of other
    /// partitions.
    pub fn resume(
        mut self,
        engine: &Engine,
        table: TableId,
        range: &PartitionRange,
        slice: &Rc<Slice>,
        cut: Option<&ClusteringCut>,
    ) -> Resumed {
        let Some(table) = engine.table(table) else { return Resumed::Stale(Stale::Schema) };
        let schema = table.schema();
        if schema.version != self.schema.version {
            return Resumed::Stale(Stale::Schema);
        }
        let slices = Slices::new(&schema, slice.clone());
        let singular = range.singular_key();
        let (tablet, range, left) = match &singular {
            Some(key) => (table.tablet_of(key), range.clone(), Default::default()),
            None => {
                let mut tablets = table.tablets_within(range).into_iter();
                match tablets.next() {
                    Some((tablet, range)) => (Some(tablet), range, tablets.collect()),
                    None => (None, range.clone(), Default::default()),
                }
            }
        };
        let (Some(tablet), Some((own, version))) = (tablet, &self.tablet) else {
            return Resumed::Stale(Stale::Tablet);
        };
        let mut sources = Sources::default();
        let mut after = 0;
        if !self.held.is_empty() {
            if !Rc::ptr_eq(&tablet, own) {
                return Resumed::Stale(Stale::Tablet);
            }
            if tablet.sstables().shrunk_after(*version) {
                return Resumed::Stale(Stale::Sstables);
            }
            after = *version;
            debug_assert!(after <= tablet.sstables().version(), "the version of a set only grows");
            if !self.go_to(slices.order(&schema), cut) {
                return if self.fills == FILLS_TO_PLACE { Resumed::Stale(Stale::Behind) } else { Resumed::Waits(self) };
            }
            for held in self.held {
                sources.push_begun(Source::Sstable(held.source), held.rest);
            }
        }
        let mut reader = Reader::closed(&table, schema, slices, self.options, engine.counters());
        reader.left = left;
        match &singular {
            Some(key) => reader.open_key(tablet, key, &range, after, sources),
            None => reader.open_range(tablet, &range, after, sources),
        }
        Resumed::Reader(reader)
    }

    /// Reads until the position may be reached.
    pub async fn read_on(&mut self) -> Result<(), ReadError> {
        self.fills += 1;
        for held in self.held.iter_mut().filter(|held| held.rest.active && held.rest.buffer.is_empty()) {
            if !held.rest.finished {
                held.rest.finished = !held.source.fill(&mut held.rest.buffer).await?;
            }
        }
        Ok(())
    }

    /// Moves every source to the position, where the partition begins again. False if a source
    /// must read on first.
    fn go_to(&mut self, order: &ClusteringOrder, cut: Option<&ClusteringCut>) -> bool {
        let Some(cut) = cut else {
            for held in self.held.iter_mut().filter(|held| held.rest.active) {
                if !held.rest.leave() {
                    held.source.reader.skip_partition();
                }
            }
            return true;
        };
        let mut there = true;
        for held in self.held.iter_mut().filter(|held| held.rest.active) {
            there &= held.rest.absorb(order, cut) == Absorbed::Reached;
        }
        if !there {
            return false;
        }
        let Some(head) = self.head.take() else { return true };
        // One source yields the partition's head; finished sources are removed.
        let teller = self.held.iter().position(|held| held.rest.active).unwrap_or(0);
        for (i, held) in self.held.iter_mut().enumerate() {
            if i == teller {
                held.rest.begin_again(head.key.clone(), head.tombstone, head.static_row.clone(), cut);
            } else if held.rest.active {
                held.rest.begin_again(head.key.clone(), Tombstone::LIVE, None, cut);
            }
        }
        self.held.retain(|held| !held.rest.finished || !held.rest.buffer.is_empty());
        true
    }
}

/// The approximate memory of the fragments in a buffer, estimated from the first ones.
fn buffered(rest: &Rest) -> usize {
    let some: usize = rest.buffer.iter().take(WEIGHED).map(Fragment::weight).sum();
    some * rest.buffer.len() / rest.buffer.len().clamp(1, WEIGHED)
}
