//! Reading: memtables and sstables of a range as one merged stream of fragments.
//!
//! A reader takes its sources of a tablet in one synchronous step, so it misses nothing and sees no
//! sstable twice. The stream is merged and not compacted: it has tombstones and the data that they
//! cover. Reads of one partition open only the sources that may have it. The fragments of a single
//! source pass through unmerged. Merging is lazy, so a reader can be [suspended](Reader::suspend)
//! between any two fragments and resumed as if it had been opened there.

mod filling;
mod source;
mod source_dump;
mod suspend;

pub use source_dump::Origin;
pub use suspend::{PartitionHead, Resumed, Stale, Suspended};

use crate::config::FILL_BYTES;
use crate::engine::Engine;
use crate::error::{NoSuchTable, ReadError};
use crate::memtable::{MemtableSource, Slices};
use crate::metrics::Counters;
use crate::table::{Attached, Table, Tablet};
use filling::Filling;
use model::TableId;
use model::fragment::Fragment;
use model::key::DecoratedKey;
use model::merge::{LargeRow, Merger, Step};
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use rt::fs::IoClass;
use source::{Source, Sources, SstableSource};
use sstable::{Corrupt, ReadId};
use std::collections::VecDeque;
use std::rc::Rc;

/// How a read uses disk and cache.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// The priority of its disk requests.
    pub class: IoClass,
    /// Whether pages that are read are kept in the cache.
    pub fill_cache: bool,
    /// Whether the cache is not used at all (`BYPASS CACHE`).
    pub bypass: bool,
    /// The read in [`Engine::large_reads`] that this is a part of. It limits the memory of large
    /// rows, unless it is [`ReadId::NONE`].
    pub read: ReadId,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions { class: IoClass::Foreground, fill_cache: true, bypass: false, read: ReadId::NONE }
    }
}

/// A stream of merged fragments. See the module.
pub struct Reader {
    schema: Rc<TableSchema>,
    slices: Slices,
    options: ReadOptions,
    counters: Counters,
    /// The sstable that the table lacks.
    missing: Option<Rc<Corrupt>>,
    /// The tablets still to be read, in ring order.
    left: VecDeque<(Rc<Tablet>, PartitionRange)>,
    /// The tablet of `current`, and the version of its sstable set that was opened.
    tablet: Option<(Rc<Tablet>, u64)>,
    current: Current,
}

/// Not boxed: a read of one key from one source allocates nothing.
#[allow(clippy::large_enum_variant)]
enum Current {
    Nothing,
    One(SingleSource),
    Several(Box<MergedSources>),
}

/// One source, whose fragments pass through.
struct SingleSource {
    source: Source,
    buffer: VecDeque<Fragment>,
    /// No fragments follow those in the buffer.
    finished: bool,
}

struct MergedSources {
    merger: Merger,
    sources: Vec<Source>,
    next: Next,
}

/// The event that the merger waits for.
enum Next {
    /// Its next step.
    Step,
    /// For the merge of a large row.
    Row(Box<LargeRow>),
    /// For the merged large row to be taken.
    Merged(Fragment),
    /// For more of this source.
    Source(usize),
    /// Nothing is left.
    End,
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
        let mut reader = Reader::closed(&table, schema, slices, options, self.counters());
        match range.singular_key() {
            Some(key) => {
                if let Some(tablet) = table.tablet_of(&key) {
                    reader.open_key(tablet, &key, &range, 0, Sources::default());
                }
            }
            None => reader.left = table.tablets_within(&range).into(),
        }
        Ok(reader)
    }
}

impl Reader {
    /// A reader of nothing yet.
    fn closed(
        table: &Table,
        schema: Rc<TableSchema>,
        slices: Slices,
        options: ReadOptions,
        counters: &Counters,
    ) -> Reader {
        counters.reads.set(counters.reads.get() + 1);
        table.done.reads.set(table.done.reads.get() + 1);
        Reader {
            schema,
            slices,
            options,
            counters: counters.clone(),
            missing: table.unreadable.error(),
            left: VecDeque::new(),
            tablet: None,
            current: Current::Nothing,
        }
    }

    /// The next fragment, if it is in memory. Otherwise [`Reader::advance`] reads more.
    #[inline]
    pub fn pop(&mut self) -> Option<Fragment> {
        match &mut self.current {
            Current::Nothing => None,
            Current::One(one) => one.buffer.pop_front(),
            Current::Several(several) => several.next(),
        }
    }

    /// Whether the stream is finished when [`Reader::pop`] returns `None`. It may be false where
    /// [`Reader::advance`] finds nothing more.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.left.is_empty()
            && match &self.current {
                Current::Nothing => self.missing.is_none(),
                Current::One(one) => one.finished,
                Current::Several(several) => matches!(several.next, Next::End),
            }
    }

    /// Reads more when [`Reader::pop`] returns `None`; false at the end. It never waits when
    /// everything is in memory or cached. It loses nothing if it is dropped.
    pub async fn advance(&mut self) -> Result<bool, ReadError> {
        if let Some(missing) = &self.missing {
            return Err(sstable::Error::Corrupt(Corrupt::clone(missing)).into());
        }
        loop {
            match &mut self.current {
                Current::Nothing => {}
                Current::One(one) => {
                    if !one.finished {
                        one.finished = !one.source.fill(&mut one.buffer, FILL_BYTES).await?;
                    }
                    if !one.finished || !one.buffer.is_empty() {
                        return Ok(true);
                    }
                }
                Current::Several(several) => {
                    if several.advance().await? {
                        return Ok(true);
                    }
                }
            }
            self.current = Current::Nothing;
            let Some((tablet, range)) = self.left.pop_front() else { return Ok(false) };
            self.open_range(tablet, &range, 0, Sources::default());
        }
    }

    /// Appends fragments of about 32 KiB; `false` when there are no more after these.
    pub async fn fill(&mut self, out: &mut VecDeque<Fragment>) -> Result<bool, ReadError> {
        let mut weight = 0;
        loop {
            while let Some(fragment) = self.pop() {
                weight += fragment.weight();
                out.push_back(fragment);
                if weight >= FILL_BYTES {
                    return Ok(true);
                }
            }
            rt::task::maybe_yield().await;
            if !self.advance().await? {
                return Ok(false);
            }
        }
    }

    /// Skips the rest of the current partition, including its end: the start of another follows.
    pub fn skip_partition(&mut self) {
        match &mut self.current {
            Current::Nothing => {}
            Current::One(one) => one.skip_partition(),
            Current::Several(several) => {
                for i in several.merger.skip_partition() {
                    several.sources[i].skip_partition();
                }
                several.next = Next::Step;
            }
        }
    }

    /// The read that this is a part of.
    pub fn read_id(&self) -> ReadId {
        self.options.read
    }

    /// The schema that fragments are read with.
    pub fn schema(&self) -> &Rc<TableSchema> {
        &self.schema
    }

    /// Opens the sources of a key in a tablet: memtables, and the sstables that were attached
    /// after a version of its set. `sources` are open already.
    fn open_key(
        &mut self,
        tablet: Rc<Tablet>,
        key: &DecoratedKey,
        range: &PartitionRange,
        after: u64,
        mut sources: Sources,
    ) {
        debug_assert!(tablet.range.contains(key), "a key is read from its own tablet");
        tablet.for_each_memtable(|memtable| {
            if let Some(source) = MemtableSource::of_key(memtable, &self.schema, &self.slices, key) {
                sources.push(Source::Memtable(source));
            }
        });
        let set = tablet.sstables();
        let is_cacheable = after == 0 && self.reads_whole_rows();
        let (rows, cached) = tablet.cached();
        let found = if is_cacheable && set.len() > 0 { rows.get(cached, key, &set) } else { None };
        if let Some(stored) = found {
            sources.push(Source::Memtable(MemtableSource::of_stored(&stored, &self.schema, &self.slices, key)));
        } else {
            let mut filling = Vec::new();
            for attached in set.attached_after(after) {
                if !attached.spans(key) {
                    continue;
                }
                if !attached.sstable.may_contain(key) {
                    self.counters.bloom_rejects.set(self.counters.bloom_rejects.get() + 1);
                    continue;
                }
                let source = self.sstable_source(attached, range, false);
                if is_cacheable {
                    filling.push(source);
                } else {
                    sources.push(Source::Sstable(Box::new(source)));
                }
            }
            if !filling.is_empty() {
                sources.push(Source::Filling(Box::new(Filling {
                    sstables: filling,
                    schema: self.schema.clone(),
                    key: key.clone(),
                    cache: rows.clone(),
                    tablet: cached,
                    version: set.version(),
                    merger: None,
                    large: None,
                    fragments: VecDeque::new(),
                })));
            }
        }
        self.tablet = Some((tablet, set.version()));
        self.set_sources(sources);
    }

    /// Whether the row cache may serve this read of a key.
    fn reads_whole_rows(&self) -> bool {
        let slice = self.slices.slice();
        self.schema.clustering.is_empty()
            && self.options.fill_cache
            && !self.options.bypass
            && slice.resume.is_none()
            && matches!(&slice.rows[..], [one] if one.is_full())
    }

    /// As `open_key`, for a range.
    fn open_range(&mut self, tablet: Rc<Tablet>, range: &PartitionRange, after: u64, mut sources: Sources) {
        let is_within = tablet.range.start <= range.start && range.end <= tablet.range.end;
        debug_assert!(is_within, "the part of a range is read from its own tablet");
        tablet.for_each_memtable(|memtable| {
            if !memtable.is_empty() {
                let source =
                    MemtableSource::new(memtable.clone(), self.schema.clone(), self.slices.clone(), range.clone());
                sources.push(Source::Memtable(source));
            }
        });
        let set = tablet.sstables();
        for attached in set.attached_after(after).filter(|attached| attached.sstable.overlaps(range)) {
            sources.push(Source::Sstable(Box::new(self.sstable_source(attached, range, true))));
        }
        self.tablet = Some((tablet, set.version()));
        self.set_sources(sources);
    }

    #[inline]
    fn sstable_source(&self, attached: &Rc<Attached>, range: &PartitionRange, read_ahead: bool) -> SstableSource {
        let options = sstable::ReadOptions {
            class: self.options.class,
            fill_cache: self.options.fill_cache && !self.options.bypass,
            use_cache: !self.options.bypass,
            read_ahead,
            window: sstable::LARGEST_WINDOW,
            read: self.options.read,
            job: ReadId::NONE,
        };
        let reader = attached.sstable.reader(&self.schema, range.clone(), self.slices.slice().clone(), options);
        SstableSource { reader, of: attached.clone() }
    }

    fn set_sources(&mut self, sources: Sources) {
        debug_assert!(matches!(self.current, Current::Nothing), "a tablet is opened when the one before was read");
        let Sources { first, others } = sources;
        self.current = match first {
            None => Current::Nothing,
            Some((source, rest)) if others.is_empty() => {
                Current::One(SingleSource { source, buffer: rest.buffer, finished: rest.finished })
            }
            Some(first) => {
                let order = self.slices.order(&self.schema).clone();
                let mut merger = Merger::new(self.schema.clone(), order, 1 + others.len());
                let mut sources = Vec::with_capacity(1 + others.len());
                for (i, (source, rest)) in others.into_iter().chain([first]).enumerate() {
                    *merger.buffer(i) = rest.buffer;
                    if rest.finished {
                        merger.finish(i);
                    }
                    sources.push(source);
                }
                Current::Several(Box::new(MergedSources { merger, sources, next: Next::Step }))
            }
        };
    }
}

impl SingleSource {
    fn skip_partition(&mut self) {
        match self.buffer.iter().position(|fragment| matches!(fragment, Fragment::PartitionEnd)) {
            Some(end) => drop(self.buffer.drain(..=end)),
            None => {
                self.buffer.clear();
                self.source.skip_partition();
            }
        }
    }
}

impl MergedSources {
    fn next(&mut self) -> Option<Fragment> {
        match self.next {
            Next::Step => match self.merger.step() {
                Step::Emit(fragment) => return Some(fragment),
                Step::Merge(large) => self.next = Next::Row(large),
                Step::Need(i) => self.next = Next::Source(i),
                Step::End => self.next = Next::End,
            },
            Next::Merged(_) => {
                if let Next::Merged(fragment) = std::mem::replace(&mut self.next, Next::Step) {
                    return Some(fragment);
                }
            }
            Next::Row(_) | Next::Source(_) | Next::End => {}
        }
        None
    }

    /// Whether there may be more to merge.
    async fn advance(&mut self) -> Result<bool, ReadError> {
        match &mut self.next {
            Next::Step | Next::Merged(_) => {}
            Next::Row(large) => loop {
                if let Some(fragment) = large.run(self.merger.schema()) {
                    self.next = Next::Merged(fragment);
                    break;
                }
                rt::task::maybe_yield().await;
            },
            &mut Next::Source(i) => {
                if !self.sources[i].fill(self.merger.buffer(i), FILL_BYTES).await? {
                    self.merger.finish(i);
                }
                self.next = Next::Step;
            }
            Next::End => return Ok(false),
        }
        Ok(true)
    }
}
