//! Reads partitions of an sstable as fragments.
//!
//! A reader finds its position by the index once, then reads Data.db onward. If only some rows of a
//! large partition are wanted, or rows in descending order, it uses the blocks of the promoted
//! index. It outputs about 32 KiB of fragments at a time, and never waits while the chunks it needs
//! are cached. A `fill` that is dropped loses nothing: the next one resumes.
//!
//! Reads grow: one chunk, then as much again as was read in sequence, up to 512 KiB or the reader's
//! `window`. Adjacent chunks are read together.
//!
//! Sequential readers start with larger reads, and read the next window while they decode the
//! current one. Readers of class [`IoClass::Foreground`] have up to four windows in progress after
//! a while, within the shard's limit for reads ahead. Four windows are twice a large page, so that
//! the disk works while pages are sent.

mod backward;
mod batch;
mod clip;
mod forward;
mod placement;
pub(crate) mod stream;

use crate::data::layout::Layout;
use crate::data::{self, Head, flags};
use crate::error::Error;
use crate::index::{IndexCursor, IndexEntry};
use crate::input::Fault;
use crate::large_reads::{LARGE, ReadId};
use crate::promoted::Promoted;
use crate::table::Sstable;
use backward::Backward;
use batch::{Batch, Item};
use bytes::Bytes;
use clip::Clip;
use model::TableSchema;
use model::fragment::Fragment;
use model::key::{DecoratedKey, RingCut};
use model::range::{PartitionRange, RowRange, Slice};
use model::schema::ClusteringOrder;
use model::time::Tombstone;
use model::token::{self, Token};
use rt::fs::IoClass;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::rc::Rc;
use stream::Stream;

/// The largest window of content that is read at once, in bytes.
pub const LARGEST_WINDOW: u32 = 512 << 10;

/// How a reader reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// The class of its disk reads.
    pub class: IoClass,
    /// Whether content that is read from disk enters the cache.
    pub fill_cache: bool,
    /// Whether the cache is used.
    pub use_cache: bool,
    /// Whether the reader will read on, so that the next window is read while the current one is
    /// decoded. Other readers begin to read ahead when they turn out to be sequential.
    pub read_ahead: bool,
    /// The most content that is read at once, in bytes; at most [`LARGEST_WINDOW`]. Readers that
    /// read ahead hold two such windows, or up to five in class [`IoClass::Foreground`].
    pub window: u32,
    /// The read that this reader belongs to. The memory of large rows in this read is bounded,
    /// unless this is 0.
    pub read: ReadId,
    /// The compaction that this reader belongs to, which has the budget of jobs for large rows; 0
    /// for none.
    pub job: ReadId,
}

impl ReadOptions {
    /// For reads of single partitions.
    pub const POINT: ReadOptions = ReadOptions {
        class: IoClass::Foreground,
        fill_cache: true,
        use_cache: true,
        read_ahead: false,
        window: LARGEST_WINDOW,
        read: ReadId::NONE,
        job: ReadId::NONE,
    };
    /// For scans of clients.
    pub const SCAN: ReadOptions = ReadOptions { fill_cache: false, read_ahead: true, ..ReadOptions::POINT };
    /// For compaction, streaming and repair.
    pub const BACKGROUND: ReadOptions = ReadOptions { class: IoClass::Background, ..ReadOptions::SCAN };
}

/// The most bytes of fragments that one `fill` appends, about.
const FILL: usize = 32 << 10;
/// The same for the first `fill`; it doubles from then on. A short page decodes no more than it
/// needs, and wastes little if the reader is dropped.
const FIRST_FILL: usize = 4 << 10;
/// Capacity for the first row of a partition, so that a small one takes one allocation.
const FIRST_BYTES: usize = 256;
/// Steps without output between two checks of the clock.
const YIELD_EVERY: u32 = 32;

/// A reader of one sstable.
pub struct Reader {
    table: Rc<Sstable>,
    schema: Rc<TableSchema>,
    range: PartitionRange,
    slice: Rc<Slice>,
    /// The partition, if the range is a single one.
    single: Option<DecoratedKey>,
    layout: Option<Rc<Layout>>,
    /// The reversed order, for reversed readers.
    reversed: Option<ClusteringOrder>,
    /// The rows wanted of most partitions, in reading order.
    ranges: Rc<Vec<RowRange>>,
    stream: Stream,
    index: IndexCursor,
    batch: Batch,
    /// The size of the next batch.
    fill: usize,
    state: State,
    /// The partition that was read last: its key, and its start in the content.
    key: Vec<u8>,
    token: Token,
    start: u64,
    any: bool,
    /// The index entry of a partition, if it was looked up. It applies to the partition that begins
    /// at its position.
    entry: Option<IndexEntry>,
    /// The first partition behind the range, unless the range reaches beyond the last partition.
    behind: Option<IndexEntry>,
    promoted: Option<Promoted>,
    /// Whether range tombstone markers that change nothing are output.
    every_marker: bool,
    /// Whether rows out of order, keys that the filter excludes, and another checksum of the
    /// content are errors. They are errors in background reads, which write the rows again.
    checks_order: bool,
    /// The prefix and weight of the unfiltered before, if there was one in this partition.
    before: (Vec<u8>, Option<i8>),
    /// A large row follows: the batch before it is output first.
    large_follows: bool,
}

enum State {
    /// Nothing was read yet.
    Begin,
    /// The stream is at the start of a partition.
    Partition,
    /// The stream is after a partition's key and deletion.
    Static,
    /// The stream is after the static row.
    Choose,
    /// The stream is at an unfiltered.
    Forward(Forward),
    /// The stream is anywhere in the partition.
    Backward(Backward),
    /// The partition is finished. True if the stream is at the next one.
    Leave(bool),
    /// There is no more output.
    Done,
}

/// A forward reader of a partition.
struct Forward {
    clip: Clip,
    /// The range that was looked up in the promoted index, counted from 1.
    jumped: usize,
}

impl Reader {
    pub(crate) fn new(
        table: Rc<Sstable>,
        schema: Rc<TableSchema>,
        range: PartitionRange,
        slice: Rc<Slice>,
        options: ReadOptions,
    ) -> Self {
        let single = range.singular_key();
        Reader {
            stream: Stream::new(table.clone(), options),
            index: IndexCursor::new(table.clone(), options),
            reversed: slice.reversed.then(|| schema.order.reversed()),
            table,
            schema,
            range,
            slice,
            single,
            layout: None,
            ranges: Rc::default(),
            batch: Batch::default(),
            fill: if options.read_ahead { FILL } else { FIRST_FILL },
            state: State::Begin,
            key: Vec::new(),
            token: Token::MIN,
            start: 0,
            any: false,
            entry: None,
            behind: None,
            promoted: None,
            every_marker: false,
            checks_order: options.class == IoClass::Background,
            before: (Vec::new(), None),
            large_follows: false,
        }
    }

    /// Outputs range tombstone markers that change nothing, as some writers leave them, for tools
    /// that show the file.
    pub(crate) fn show_every_marker(&mut self) {
        self.every_marker = true;
    }

    /// The position in the content, in bytes.
    pub fn position(&self) -> u64 {
        self.stream.position()
    }

    /// The sstable.
    pub fn table(&self) -> &Rc<Sstable> {
        &self.table
    }

    /// Appends about 32 KiB of fragments; at least one, unless nothing is left. False: nothing
    /// follows the appended bytes. Never pending while the chunks are cached. After an error there
    /// is no more output.
    pub async fn fill(&mut self, out: &mut VecDeque<Fragment>) -> Result<bool, Error> {
        match self.run().await {
            Ok(more) => {
                self.batch.flush(out);
                // A backward reader continues in the same window.
                if self.stream.has_large_window() && !matches!(self.state, State::Backward(_)) {
                    self.stream.drop_large_window();
                }
                Ok(more)
            }
            Err(error) => {
                self.batch.clear();
                self.state = State::Done;
                Err(error)
            }
        }
    }

    /// Skips the rest of the partition whose start was output last, without its end. Does nothing
    /// outside of a partition.
    pub fn skip_partition(&mut self) {
        if let Some(end) = self.batch.items.iter().position(|item| matches!(item, Item::End)) {
            // An unfinished `fill` had decoded more.
            self.batch.items.drain(..=end);
            return;
        }
        if matches!(self.state, State::Static | State::Choose | State::Forward(_) | State::Backward(_)) {
            self.batch.clear();
            self.state = State::Leave(false);
        }
    }

    /// Drops buffers that are held for later. For a reader that will not continue soon.
    pub fn release(&mut self) {
        self.stream.release();
        self.index.release();
    }

    /// The caller has dropped what [`Reader::fill`] output before, so its part of the budget for
    /// large rows is returned.
    pub fn large_is_done(&mut self) {
        self.stream.leave_budget();
    }

    /// Drops the held parts of a large row, and copies what is held of the page cache. For a reader
    /// that waits to be resumed: a page of the cache would keep its whole segment in memory.
    pub fn suspend(&mut self) {
        if self.stream.holds_large() {
            self.release();
        }
        self.stream.copy_cached();
        self.index.copy_cached();
        for entry in [&mut self.entry, &mut self.behind].into_iter().flatten() {
            entry.key = Bytes::copy_from_slice(&entry.key);
        }
    }

    /// The memory that it holds, about, in bytes.
    pub fn memory_bytes(&self) -> usize {
        std::mem::size_of::<Reader>()
            + self.stream.memory_bytes()
            + self.index.memory_bytes()
            + self.batch.arena.capacity()
            + self.key.capacity()
            + self.before.0.capacity()
    }

    async fn run(&mut self) -> Result<bool, Error> {
        let mut steps = 0u32;
        loop {
            match self.state {
                State::Begin => self.begin().await?,
                State::Partition => self.partition().await?,
                State::Static => self.static_row().await?,
                State::Choose => self.choose().await?,
                State::Forward(_) => self.forward().await?,
                State::Backward(_) => self.backward().await?,
                State::Leave(ended) => self.leave(ended).await?,
                State::Done => return Ok(false),
            }
            if std::mem::take(&mut self.large_follows) {
                return Ok(true);
            }
            if self.batch.weight() >= self.fill {
                self.fill = (self.fill * 2).min(FILL);
                return Ok(!matches!(self.state, State::Done));
            }
            steps += 1;
            if steps.is_multiple_of(YIELD_EVERY) && self.batch.items.is_empty() {
                rt::task::maybe_yield().await;
            }
        }
    }

    fn normalised(&self, rows: &[RowRange]) -> Rc<Vec<RowRange>> {
        let rows = match rows {
            // Nothing to sort, which is by far the most frequent case.
            [one] if one.is_full() => vec![one.clone()],
            rows => clip::normalise(&self.schema.order, rows),
        };
        if self.slice.reversed {
            Rc::new(rows.into_iter().rev().map(RowRange::reversed).collect())
        } else {
            Rc::new(rows)
        }
    }

    fn is_full(&self, ranges: &[RowRange]) -> bool {
        self.schema.clustering.is_empty() && !ranges.is_empty()
            || matches!(ranges, [one] if one.start.prefix.is_empty() && one.end.prefix.is_empty())
    }

    async fn begin(&mut self) -> Result<(), Error> {
        self.layout = Some(self.table.layout(&self.schema)?);
        if self.range.is_empty() || !self.table.overlaps(&self.range) {
            self.state = State::Done;
            return Ok(());
        }
        self.ranges = self.normalised(&self.slice.rows);
        if let Some(key) = self.single.clone() {
            return self.begin_single(&key).await;
        }
        let (first, last) = (self.table.first_key(), self.table.last_key());
        let from_start = self.range.start.cmp_key(first.token, &first.key) == Ordering::Less;
        let to_end = self.range.end.cmp_key(last.token, &last.key) == Ordering::Greater;
        if !to_end {
            self.behind = self.index.lower_bound(&self.range.end).await?;
            self.stream.set_limit(self.behind.as_ref().map_or(u64::MAX, |entry| entry.position));
        }
        if !from_start {
            let Some(entry) = self.index.lower_bound(&self.range.start).await? else {
                return Err(self.stream.corrupt("the index lacks the last partition in the summary"));
            };
            self.stream.seek(entry.position);
            self.entry = Some(entry);
        } else if to_end && self.checks_order {
            self.stream.sum_content();
        }
        self.state = State::Partition;
        Ok(())
    }

    async fn begin_single(&mut self, key: &DecoratedKey) -> Result<(), Error> {
        let Some(entry) = self.index.lookup(key).await? else {
            self.state = State::Done;
            return Ok(());
        };
        self.stream.seek(entry.position);
        let full = self.is_full(self.wanted_of(key).0);
        if let Some(behind) = self.index.position_behind(&entry) {
            self.stream.set_limit(behind);
            if full {
                self.stream.expect(behind);
            }
        }
        let wants_static = self.wanted_of(key).1 && !self.table.header.statics.is_empty();
        if entry.promoted_size > 0 && !full && !wants_static {
            // The index has everything about the head of the partition.
            let promoted = Promoted::open(&mut self.index, &entry).await?;
            if let Some(promoted) = &promoted {
                self.key.clear();
                self.key.extend_from_slice(&key.key);
                self.start_partition(key.token, entry.position, promoted.tombstone);
                self.stream.seek(entry.position + promoted.header);
                self.state = State::Choose;
            }
            self.entry = Some(entry);
            return Ok(());
        }
        self.entry = Some(entry);
        self.state = State::Partition;
        Ok(())
    }

    /// The rows of a partition that the slice selects.
    fn wanted_of(&self, key: &DecoratedKey) -> (&[RowRange], bool) {
        self.slice.of(key)
    }

    /// The partition of `self.key` begins.
    fn start_partition(&mut self, token: Token, start: u64, tombstone: Tombstone) {
        (self.token, self.start, self.any) = (token, start, true);
        self.promoted = None;
        self.before.1 = None;
        self.batch.arena.reserve(self.key.len() + FIRST_BYTES);
        let key = self.batch.push_bytes(&self.key);
        self.batch.items.push(Item::Start { token, key, tombstone });
    }

    fn current_key(&self) -> DecoratedKey {
        DecoratedKey { token: self.token, key: Bytes::copy_from_slice(&self.key) }
    }

    async fn partition(&mut self) -> Result<(), Error> {
        if self.stream.at_end() {
            return self.end_of_content();
        }
        let (token, tombstone, len) = loop {
            match data::partition::read(self.stream.rest()) {
                Ok(start) => {
                    let token = match &self.single {
                        Some(single) if single.key == start.key => single.token,
                        Some(_) => return Err(self.stream.corrupt("the index points at another partition")),
                        None => token::of_key(start.key),
                    };
                    if self.single.is_none() {
                        let is_behind = self.range.end.cmp_key(token, start.key) == Ordering::Less;
                        if let Some(why) = self.misplaced(token, start.key, is_behind) {
                            return Err(self.stream.corrupt(why));
                        }
                        if is_behind {
                            self.state = State::Done;
                            return Ok(());
                        }
                    }
                    break (token, start.tombstone, start.len);
                }
                Err(Fault::Short) => self.stream.more().await?,
                Err(Fault::Bad(why)) => return Err(self.stream.corrupt(why)),
            }
        };
        let start = self.stream.position();
        self.key.clear();
        self.key.extend_from_slice(&self.stream.rest()[2..len - 12]);
        self.start_partition(token, start, tombstone);
        self.stream.consume(len);
        self.state = State::Static;
        Ok(())
    }

    fn wants_static(&self) -> bool {
        match &self.slice.resume {
            Some(_) => self.wanted_of(&self.current_key()).1,
            None => self.slice.static_row,
        }
    }

    async fn static_row(&mut self) -> Result<(), Error> {
        let Some(layout) = self.layout.clone() else { unreachable!("it was made first") };
        if layout.statics.targets.is_empty() {
            self.state = State::Choose;
            return Ok(());
        }
        let wanted = self.wants_static();
        let (flags, extended, head, body) = loop {
            match data::read_head(self.stream.rest(), &layout, &mut Vec::new()) {
                Ok(Head::Row { flags, extended, head, body }) if extended & flags::EXTENDED_STATIC != 0 => {
                    break (flags, extended, head, body);
                }
                Ok(_) => return Err(self.stream.corrupt("the static row is missing")),
                Err(Fault::Short) => self.stream.more().await?,
                Err(Fault::Bad(why)) => return Err(self.stream.corrupt(why)),
            }
        };
        let Some(total) = head.checked_add(body) else { return Err(self.stream.corrupt("a row is too long")) };
        if wanted {
            if self.hands_on_before(total) {
                return Ok(());
            }
            self.stream.require(total).await?;
            let start = self.batch.arena.len();
            let body = &self.stream.rest()[head..total];
            if data::row::read(body, flags, extended, &layout, &mut self.batch.arena).is_err() {
                return Err(self.stream.corrupt("a static row is malformed"));
            }
            let row = start..self.batch.arena.len();
            if row.len() > 1 {
                self.batch.items.push(Item::Static(row));
            }
        }
        self.stream.consume(total);
        self.state = State::Choose;
        Ok(())
    }

    /// Whether the batch is output before a row of `bytes` is read. So a merge of many sstables
    /// holds only the large rows of its current partition.
    fn hands_on_before(&mut self, bytes: usize) -> bool {
        self.large_follows = bytes >= LARGE && !self.batch.items.is_empty();
        self.large_follows
    }

    /// Decides how to read the rows of this partition.
    async fn choose(&mut self) -> Result<(), Error> {
        let mut ranges = self.ranges.clone();
        if let Some(resume) = &self.slice.resume
            && resume.key.key == self.key[..]
        {
            ranges = self.normalised(&resume.rows);
        }
        if ranges.is_empty() {
            self.end_partition(false);
            return Ok(());
        }
        let (full, reversed) = (self.is_full(&ranges), self.slice.reversed && !self.schema.clustering.is_empty());
        if !full || reversed {
            if self.entry.as_ref().is_none_or(|entry| entry.position != self.start) {
                let key = self.current_key();
                self.entry = self.index.lookup(&key).await?;
            }
            match self.entry.clone() {
                Some(entry) if entry.position == self.start => {
                    self.promoted = Promoted::open(&mut self.index, &entry).await?;
                }
                _ => return Err(self.stream.corrupt("the index has no partition here")),
            }
        }
        let mut clip = Clip::new(ranges);
        clip.every_change = self.every_marker;
        self.state = if reversed {
            State::Backward(Backward::new(clip, self.promoted.as_ref().map(|promoted| promoted.count)))
        } else {
            State::Forward(Forward { clip, jumped: 0 })
        };
        Ok(())
    }

    fn end_partition(&mut self, ended: bool) {
        self.batch.items.push(Item::End);
        self.state = if self.single.is_some() { State::Done } else { State::Leave(ended) };
    }

    /// Moves to the next partition.
    async fn leave(&mut self, ended: bool) -> Result<(), Error> {
        if self.single.is_some() {
            self.state = State::Done;
            return Ok(());
        }
        if !ended {
            let next = match &self.entry {
                Some(entry) if entry.position == self.start => {
                    self.index.seek(entry.end());
                    self.index.next().await?
                }
                _ => self.index.lower_bound(&RingCut::after_key(&self.current_key())).await?,
            };
            let Some(next) = next else { return self.end_of_content() };
            if next.position <= self.start {
                return Err(self.stream.corrupt("the index goes backwards"));
            }
            self.stream.seek(next.position);
            self.entry = Some(next);
        }
        self.state = State::Partition;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
