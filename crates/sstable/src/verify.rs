//! Verifies an sstable from start to end: whether it is undamaged and its components agree.
//!
//! It checks the small components (as at opening), the digest, every page of the index, every
//! chunk, and the checksum of the content. It parses everything, and checks the order of partitions
//! and rows, and that range tombstones begin and end in turn. Index, promoted index, summary,
//! filter and statistics must agree with the data.

use crate::cache::PageCache;
use crate::checksums::PAGE;
use crate::data::layout::Layout;
use crate::data::{self, Head, flags, marker};
use crate::error::Error;
use crate::index::{IndexCursor, IndexEntry};
use crate::input::Fault;
use crate::promoted::{Block, Promoted};
use crate::reader::ReadOptions;
use crate::reader::stream::Stream;
use crate::table::Sstable;
use bytes::Bytes;
use claims::Claims;
use model::key::{DecoratedKey, PositionRef};
use model::row::Row;
use model::schema::ClusteringOrder;
use model::time::Tombstone;
use rt::fs::File;
use std::cmp::Ordering;
use std::rc::Rc;

mod claims;

/// The bytes of one read of a raw file.
const PIECE: usize = 512 << 10;

/// A verification must neither change the cache nor trust it.
const OPTIONS: ReadOptions = ReadOptions { use_cache: false, ..ReadOptions::BACKGROUND };

/// The contents of an undamaged sstable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Partitions.
    pub partitions: u64,
    /// Rows, including static rows that are not empty.
    pub rows: u64,
    /// Range tombstone markers.
    pub markers: u64,
    /// Whether checksums protect every component, as in sstables that Messina wrote. Otherwise
    /// damage outside of Data.db may be undetected.
    pub all_protected: bool,
}

impl Sstable {
    /// Checks everything. `progress` is called repeatedly, with the number of bytes checked, from 0
    /// to the bytes of content.
    pub async fn verify(self: &Rc<Self>, mut progress: impl FnMut(u64)) -> Result<Verified, Error> {
        Sstable::open_at(self.place(), &PageCache::new(0)).await?;
        // If there is a digest, Data.db is read twice: for the digest, and for its contents.
        let (content, walks) = (self.content_length, 1 + self.digest.is_some() as u64);
        if let Some(digest) = self.digest {
            let stored = self.data_length.max(1) as f64;
            let data = self.data.open().await?;
            let found = digest_of(&data, self.data_length, |done| {
                progress((done as f64 / stored * content as f64 / walks as f64) as u64);
            });
            let found = found.await?;
            if found != digest {
                return Err(Error::corrupt(self.data.path(), 0, "the digest differs from Digest.crc32"));
            }
        }
        self.verify_index_pages().await?;
        let schema = self.header_schema("", "");
        let mut walk = Walk {
            stream: Stream::new(self.clone(), OPTIONS),
            index: IndexCursor::new(self.clone(), OPTIONS),
            blocks: IndexCursor::new(self.clone(), OPTIONS),
            layout: self.layout(&schema)?,
            order: schema.order.clone(),
            claims: Claims::of(self.stats()),
            table: self.clone(),
            arena: Vec::new(),
            row: Vec::new(),
            found: Verified { all_protected: self.page_sums.is_some(), ..Verified::default() },
        };
        walk.stream.sum_content();
        let mut progress = |position: u64| progress((content * (walks - 1) + position) / walks);
        let mut last: Option<DecoratedKey> = None;
        let mut sample = 0;
        while let Some(entry) = walk.index.next().await? {
            let key = DecoratedKey::new(entry.key.clone());
            if last.as_ref().is_some_and(|last| *last >= key) {
                return Err(walk.stream.corrupt("the partitions are out of order"));
            }
            if last.is_none() && key != *self.first_key() {
                return Err(walk.stream.corrupt("the summary has another first key"));
            }
            if !self.may_contain(&key) {
                return Err(walk.stream.corrupt("the filter or the summary excludes a key"));
            }
            let entry_at = entry.promoted_at - head_len(&entry);
            if sample < self.summary.len() && self.summary.position(sample) == entry_at {
                if self.summary.at_or_before(&key) != Some(sample) {
                    return Err(walk.stream.corrupt("the summary has another key"));
                }
                sample += 1;
            }
            walk.partition(&entry, &mut progress).await?;
            last = Some(key);
            walk.found.partitions += 1;
            progress(walk.stream.position());
            rt::task::maybe_yield().await;
        }
        if !walk.stream.at_end() {
            return Err(walk.stream.corrupt("the index lacks partitions"));
        }
        walk.stream.check_sum()?;
        if sample != self.summary.len() || last.as_ref() != Some(self.last_key()) {
            return Err(walk.stream.corrupt("the summary has another last key, or an entry that the index lacks"));
        }
        if walk.found.partitions != self.stats().partitions() {
            return Err(walk.stream.corrupt("the statistics have another number of partitions"));
        }
        Ok(walk.found)
    }

    async fn verify_index_pages(&self) -> Result<(), Error> {
        let Some(sums) = &self.page_sums else { return Ok(()) };
        let index = self.index.open().await?;
        let mut at = 0;
        while at < self.index_length {
            let piece = read_exactly(&index, at, self.index_length).await?;
            for (i, page) in piece.chunks(PAGE).enumerate() {
                let place = at + (i * PAGE) as u64;
                if sums.get((place / PAGE as u64) as usize) != Some(&crc32fast::hash(page)) {
                    return Err(Error::corrupt(self.index.path(), place, "the checksum of a page is wrong"));
                }
            }
            at += piece.len() as u64;
            rt::task::maybe_yield().await;
        }
        Ok(())
    }
}

/// The length of an entry before its promoted index.
fn head_len(entry: &IndexEntry) -> u64 {
    use model::types::vint::unsigned_len;
    (2 + entry.key.len() + unsigned_len(entry.position) + unsigned_len(entry.promoted_size)) as u64
}

async fn read_exactly(file: &File, at: u64, length: u64) -> Result<bytes::Bytes, Error> {
    let len = (length - at).min(PIECE as u64) as usize;
    let piece = file.read_at(at, len, OPTIONS.class).await.map_err(Error::io(file.path()))?;
    if piece.len() == len { Ok(piece) } else { Err(Error::corrupt(file.path(), at, "the file ends too early")) }
}

async fn digest_of(file: &File, length: u64, mut progress: impl FnMut(u64)) -> Result<u32, Error> {
    let mut hasher = crc32fast::Hasher::new();
    let mut at = 0;
    while at < length {
        let piece = read_exactly(file, at, length).await?;
        hasher.update(&piece);
        at += piece.len() as u64;
        progress(at);
        rt::task::maybe_yield().await;
    }
    Ok(hasher.finalize())
}

struct Walk {
    table: Rc<Sstable>,
    stream: Stream,
    index: IndexCursor,
    /// Reads promoted indexes, so that the other cursor keeps its position.
    blocks: IndexCursor,
    layout: Rc<Layout>,
    order: ClusteringOrder,
    claims: Claims,
    arena: Vec<u8>,
    row: Vec<u8>,
    found: Verified,
}

/// The blocks of a partition. Each is checked when its rows have been read.
struct Blocks {
    promoted: Promoted,
    next: u32,
    block: Option<Block>,
}

impl Walk {
    /// Loads the next unfiltered entirely. Returns its head.
    async fn head(&mut self) -> Result<Head, Error> {
        loop {
            self.arena.clear();
            match data::read_head(self.stream.rest(), &self.layout, &mut self.arena) {
                Ok(head) => {
                    if let Head::Row { head: len, body, .. } | Head::Marker { head: len, body, .. } = head {
                        let total = len.checked_add(body).ok_or_else(|| self.stream.corrupt("a row is too long"))?;
                        self.stream.require(total).await?;
                    }
                    return Ok(head);
                }
                Err(Fault::Short) => self.stream.more().await?,
                Err(Fault::Bad(why)) => return Err(self.stream.corrupt(why)),
            }
        }
    }

    async fn partition(&mut self, entry: &IndexEntry, progress: &mut impl FnMut(u64)) -> Result<(), Error> {
        if self.stream.position() != entry.position {
            return Err(self.stream.corrupt("the index has another position of a partition"));
        }
        let (tombstone, len) = loop {
            match data::partition::read(self.stream.rest()) {
                Ok(start) if start.key == &entry.key[..] => break (start.tombstone, start.len),
                Ok(_) => return Err(self.stream.corrupt("the index has another key")),
                Err(Fault::Short) => self.stream.more().await?,
                Err(Fault::Bad(why)) => return Err(self.stream.corrupt(why)),
            }
        };
        self.claims.tombstone(tombstone).map_err(|why| self.stream.corrupt(why))?;
        self.stream.consume(len);
        if !self.layout.statics.targets.is_empty() {
            let head = self.head().await?;
            let Head::Row { flags, extended, head, body } = head else {
                return Err(self.stream.corrupt("the static row is missing"));
            };
            if extended & flags::EXTENDED_STATIC == 0 {
                return Err(self.stream.corrupt("the static row is missing"));
            }
            self.row(flags, extended, head, body)?;
        }
        let mut blocks = match Promoted::open(&mut self.blocks, entry).await? {
            None => None,
            Some(promoted) => {
                if promoted.header != self.stream.position() - entry.position || promoted.tombstone != tombstone {
                    return Err(self.stream.corrupt("the promoted index has another head"));
                }
                Some(Blocks { promoted, next: 0, block: None })
            }
        };
        let (mut last, mut last_weight): (Vec<u8>, Option<i8>) = (Vec::new(), None);
        let mut open = Tombstone::LIVE;
        let mut steps = 0u32;
        loop {
            let start = self.stream.position();
            let head = self.head().await?;
            let (weight, ended) = match head {
                Head::End => {
                    self.stream.consume(1);
                    break;
                }
                Head::Row { flags, extended, head, body } => {
                    if extended & flags::EXTENDED_STATIC != 0 {
                        return Err(self.stream.corrupt("a static row is among the rows"));
                    }
                    self.row(flags, extended, head, body)?;
                    (0, open)
                }
                Head::Marker { kind, head, body } => (self.marker_weight(kind)?, self.marker(kind, head, body, open)?),
            };
            open = ended;
            let position = PositionRef { prefix: &self.arena, weight };
            if let Some(weight) = last_weight
                && self.order.compare(PositionRef { prefix: &last, weight }, position) != Ordering::Less
            {
                return Err(self.stream.corrupt("the rows are out of order"));
            }
            last.clear();
            last.extend_from_slice(&self.arena);
            last_weight = Some(weight);
            if let Some(blocks) = &mut blocks {
                self.check_off(blocks, start, weight, open).await?;
            }
            steps += 1;
            if steps.is_multiple_of(64) {
                progress(self.stream.position());
                rt::task::maybe_yield().await;
            }
        }
        if !open.is_live() {
            return Err(self.stream.corrupt("a range deletion does not end"));
        }
        if let Some(Blocks { promoted, next, block }) = blocks {
            // The last block may or may not include the byte that ends the partition.
            let ends = block.is_none_or(|block| block.end == self.stream.position());
            if next != promoted.count || !ends {
                return Err(self.stream.corrupt("the promoted index has other blocks"));
            }
        }
        Ok(())
    }

    fn row(&mut self, flags: u8, extended: u8, head: usize, body: usize) -> Result<(), Error> {
        let body = &self.stream.rest()[head..head + body];
        let end = head + body.len();
        self.row.clear();
        if data::row::read(body, flags, extended, &self.layout, &mut self.row).is_err() {
            return Err(self.stream.corrupt("a row is malformed"));
        }
        // A partition without a static row has an empty one.
        self.found.rows += (self.row.len() > 1) as u64;
        let row = Row(Bytes::from(std::mem::take(&mut self.row)));
        self.claims.row(&row).map_err(|why| self.stream.corrupt(why))?;
        self.row = Vec::from(row.0);
        self.stream.consume(end);
        Ok(())
    }

    fn marker_weight(&self, kind: u8) -> Result<i8, Error> {
        marker::weight(kind).map_err(|_| self.stream.corrupt("the kind of a marker is not known"))
    }

    /// Checks a marker against the open deletion. Returns the deletion that is open after it.
    fn marker(&mut self, kind: u8, head: usize, body: usize, open: Tombstone) -> Result<Tombstone, Error> {
        let bytes = &self.stream.rest()[head..head + body];
        let to =
            marker::read_body(bytes, kind, &self.layout).map_err(|_| self.stream.corrupt("a marker is malformed"))?;
        let starts = matches!(kind, marker::INCL_START | marker::EXCL_START);
        if starts != open.is_live() || (starts && to.is_live()) {
            return Err(self.stream.corrupt("range deletions do not begin and end in turn"));
        }
        self.claims.tombstone(to).map_err(|why| self.stream.corrupt(why))?;
        self.stream.consume(head + body);
        self.found.markers += 1;
        Ok(to)
    }

    /// Checks an unfiltered that began at `start` and ended at the stream's position against the
    /// blocks. The arena has its prefix.
    async fn check_off(&mut self, blocks: &mut Blocks, start: u64, weight: i8, open: Tombstone) -> Result<(), Error> {
        let position = PositionRef { prefix: &self.arena, weight };
        if blocks.block.is_none() && blocks.next < blocks.promoted.count {
            let block = blocks.promoted.block(&mut self.blocks, &self.layout, blocks.next).await?;
            if block.start != start || self.order.compare(block.first(), position) != Ordering::Equal {
                return Err(self.stream.corrupt("the promoted index has another start of a block"));
            }
            blocks.next += 1;
            blocks.block = Some(block);
        }
        let end = self.stream.position();
        let Some(block) = &blocks.block else { return Err(self.stream.corrupt("rows follow the last block")) };
        // The caller checks what ends the partition.
        let last = blocks.next == blocks.promoted.count;
        if end == block.end || (last && end + 1 == block.end) {
            let same = self.order.compare(block.last(), position) == Ordering::Equal && block.open == open;
            let partition_ends = end + 1 == block.end && self.stream.rest().first() == Some(&flags::END_OF_PARTITION);
            if !same && (end == block.end || partition_ends) {
                return Err(self.stream.corrupt("the promoted index has another end of a block"));
            }
            if end == block.end {
                blocks.block = None;
            }
        } else if end > block.end {
            return Err(self.stream.corrupt("a block ends within a row"));
        }
        debug_assert!(end <= self.table.content_length);
        Ok(())
    }
}
