//! Reading: memtables and sstables of a range as one merged stream of fragments.
//!
//! A reader takes its sources of a tablet in one synchronous step, so it misses nothing and sees no sstable twice. It is not
//! compacted: tombstones and what they cover come out, merged. Reads of one partition open only the sources that may have it,
//! and where one source is left its fragments pass through unmerged. It owns what it reads from and may be kept for long.

use crate::config::FILL_BYTES;
use crate::engine::Engine;
use crate::error::{NoSuchTable, ReadError};
use crate::memtable::MemtableSource;
use crate::metrics::Counters;
use crate::slices::Slices;
use crate::sstable_set::Attached;
use crate::tablet::Tablet;
use model::TableId;
use model::fragment::Fragment;
use model::key::DecoratedKey;
use model::merge::{Merger, Step};
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use rt::fs::IoClass;
use sstable::Corrupt;
use std::collections::VecDeque;
use std::rc::Rc;

/// How many merge steps are made between two looks at the clock.
const STEPS_PER_LOOK: u32 = 128;

/// How a read uses disk and cache.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Who waits.
    pub class: IoClass,
    /// Whether pages that are read are kept in the cache.
    pub fill_cache: bool,
    /// Whether the cache is not even looked at (`BYPASS CACHE`).
    pub bypass: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions { class: IoClass::Foreground, fill_cache: true, bypass: false }
    }
}

/// A stream of merged fragments. See the module.
pub struct Reader {
    schema: Rc<TableSchema>,
    slices: Slices,
    options: ReadOptions,
    counters: Counters,
    /// The table lacks this sstable.
    missing: Option<Rc<Corrupt>>,
    /// The tablets still to be read, in ring order.
    left: VecDeque<(Rc<Tablet>, PartitionRange)>,
    current: Current,
}

/// Not boxed: a read of one key from one source allocates nothing.
#[allow(clippy::large_enum_variant)]
enum Current {
    Nothing,
    One(Source),
    Several(Box<Several>),
}

struct Several {
    merger: Merger,
    sources: Vec<Source>,
}

/// Not boxed: see [`Current`].
#[allow(clippy::large_enum_variant)]
enum Source {
    Memtable(MemtableSource),
    Sstable(Box<SstableSource>),
}

struct SstableSource {
    reader: sstable::Reader,
    of: Rc<Attached>,
}

impl Engine {
    /// A reader of a range of a table, over this shard's tablets in ring order.
    pub fn reader(
        &self,
        table: TableId,
        range: PartitionRange,
        slice: Rc<Slice>,
        options: ReadOptions,
    ) -> Result<Reader, NoSuchTable> {
        let table = self.table(table).ok_or(NoSuchTable(table))?;
        let schema = table.schema();
        let slices = Slices::new(&schema, slice);
        let mut reader = Reader {
            schema,
            slices,
            options,
            counters: self.counters().clone(),
            missing: table.missing.borrow().clone(),
            left: VecDeque::new(),
            current: Current::Nothing,
        };
        self.counters().reads.set(self.counters().reads.get() + 1);
        match range.singular_key() {
            Some(key) => {
                if let Some(tablet) = table.tablet_of(&key) {
                    reader.open_key(&tablet, &key, range);
                }
            }
            None => reader.left = table.tablets_within(&range).into(),
        }
        Ok(reader)
    }
}

impl Reader {
    /// Yields the next fragments, about 32 KiB of them; `false` when there are no more after these. Never waits when
    /// everything is in memory or cached, except to let others run.
    pub async fn fill(&mut self, out: &mut VecDeque<Fragment>) -> Result<bool, ReadError> {
        if let Some(missing) = &self.missing {
            return Err(sstable::Error::Corrupt(Corrupt::clone(missing)).into());
        }
        loop {
            let before = out.len();
            let more = match &mut self.current {
                Current::Nothing => false,
                Current::One(source) => source.fill(out, FILL_BYTES).await?,
                Current::Several(several) => several.fill(out, FILL_BYTES).await?,
            };
            if more {
                return Ok(true);
            }
            self.current = Current::Nothing;
            let Some((tablet, range)) = self.left.pop_front() else { return Ok(false) };
            self.open_range(&tablet, range);
            if out.len() > before {
                return Ok(true);
            }
        }
    }

    /// As [`Reader::fill`], when all that is left is in memtables; `None` when it is not.
    pub fn try_fill(&mut self, out: &mut VecDeque<Fragment>) -> Option<bool> {
        if !self.left.is_empty() || self.missing.is_some() {
            return None;
        }
        let more = match &mut self.current {
            Current::Nothing => false,
            Current::One(Source::Memtable(source)) => source.fill(out, FILL_BYTES),
            Current::One(Source::Sstable(_)) => return None,
            Current::Several(several) => {
                if several.sources.iter().any(|source| matches!(source, Source::Sstable(_))) {
                    return None;
                }
                several.fill_from_memory(out)
            }
        };
        if !more {
            self.current = Current::Nothing;
        }
        Some(more)
    }

    /// Leaves the current partition: what comes next is the start of another. No end of it is yielded.
    pub fn skip_partition(&mut self) {
        match &mut self.current {
            Current::Nothing => {}
            Current::One(source) => source.skip_partition(),
            Current::Several(several) => {
                for i in several.merger.skip_partition() {
                    several.sources[i].skip_partition();
                }
            }
        }
    }

    /// The schema that fragments are read with.
    pub fn schema(&self) -> &Rc<TableSchema> {
        &self.schema
    }

    fn open_key(&mut self, tablet: &Tablet, key: &DecoratedKey, range: PartitionRange) {
        let mut sources = Sources::default();
        tablet.for_each_memtable(|memtable| {
            if let Some(source) = MemtableSource::of_key(memtable, &self.schema, &self.slices, key) {
                sources.push(Source::Memtable(source));
            }
        });
        for attached in tablet.sstables().iter() {
            if !attached.spans(key) {
                continue;
            }
            if !attached.sstable.may_contain(key) {
                self.counters.bloom_rejects.set(self.counters.bloom_rejects.get() + 1);
                continue;
            }
            sources.push(self.sstable_source(attached, &range, false));
        }
        self.set_sources(sources);
    }

    fn open_range(&mut self, tablet: &Tablet, range: PartitionRange) {
        let mut sources = Sources::default();
        tablet.for_each_memtable(|memtable| {
            if !memtable.is_empty() {
                let source =
                    MemtableSource::new(memtable.clone(), self.schema.clone(), self.slices.clone(), range.clone());
                sources.push(Source::Memtable(source));
            }
        });
        for attached in tablet.sstables().iter().filter(|attached| attached.sstable.overlaps(&range)) {
            sources.push(self.sstable_source(attached, &range, true));
        }
        self.set_sources(sources);
    }

    fn sstable_source(&self, attached: &Rc<Attached>, range: &PartitionRange, read_ahead: bool) -> Source {
        let options = sstable::ReadOptions {
            class: self.options.class,
            fill_cache: self.options.fill_cache && !self.options.bypass,
            use_cache: !self.options.bypass,
            read_ahead,
        };
        let reader = attached.sstable.reader(&self.schema, range.clone(), self.slices.slice().clone(), options);
        Source::Sstable(Box::new(SstableSource { reader, of: attached.clone() }))
    }

    fn set_sources(&mut self, sources: Sources) {
        let Sources { first, others } = sources;
        self.current = match first {
            None => Current::Nothing,
            Some(one) if others.is_empty() => Current::One(one),
            Some(first) => {
                let mut sources = others;
                sources.push(first);
                let order = self.slices.order(&self.schema).clone();
                let merger = Merger::new(self.schema.clone(), order, sources.len());
                Current::Several(Box::new(Several { merger, sources }))
            }
        };
    }
}

/// The sources of a reader while they are collected: the first needs no list.
#[derive(Default)]
struct Sources {
    first: Option<Source>,
    others: Vec<Source>,
}

impl Sources {
    fn push(&mut self, source: Source) {
        if self.first.is_none() {
            self.first = Some(source);
        } else {
            self.others.push(source);
        }
    }
}

impl Several {
    async fn fill(&mut self, out: &mut VecDeque<Fragment>, limit: usize) -> Result<bool, ReadError> {
        let (mut weight, mut steps) = (0, 0);
        loop {
            steps += 1;
            if steps % STEPS_PER_LOOK == 0 {
                rt::task::maybe_yield().await;
            }
            match self.merger.step() {
                Step::Emit(fragment) => {
                    weight += fragment.weight();
                    out.push_back(fragment);
                    if weight >= limit {
                        return Ok(true);
                    }
                }
                Step::Need(i) => {
                    if !self.sources[i].fill(self.merger.buffer(i), limit).await? {
                        self.merger.finish(i);
                    }
                }
                Step::End => return Ok(false),
            }
        }
    }

    /// As `fill`, where every source is a memtable.
    fn fill_from_memory(&mut self, out: &mut VecDeque<Fragment>) -> bool {
        let mut weight = 0;
        loop {
            match self.merger.step() {
                Step::Emit(fragment) => {
                    weight += fragment.weight();
                    out.push_back(fragment);
                    if weight >= FILL_BYTES {
                        return true;
                    }
                }
                Step::Need(i) => match &mut self.sources[i] {
                    Source::Memtable(source) => {
                        if !source.fill(self.merger.buffer(i), FILL_BYTES) {
                            self.merger.finish(i);
                        }
                    }
                    Source::Sstable(_) => unreachable!("all sources are in memory"),
                },
                Step::End => return false,
            }
        }
    }
}

impl Source {
    async fn fill(&mut self, out: &mut VecDeque<Fragment>, limit: usize) -> Result<bool, ReadError> {
        match self {
            Source::Memtable(source) => Ok(source.fill(out, limit)),
            Source::Sstable(source) => match source.reader.fill(out).await {
                Ok(more) => Ok(more),
                Err(error) => {
                    source.of.note_error(&error);
                    Err(error.into())
                }
            },
        }
    }

    fn skip_partition(&mut self) {
        match self {
            Source::Memtable(source) => source.skip_partition(),
            Source::Sstable(source) => source.reader.skip_partition(),
        }
    }
}
