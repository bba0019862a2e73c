//! Index.db, read page by page: finds a partition, and steps from one to the next.
//!
//! A cursor keeps some of the pages that it read from disk. So a binary search does not read them
//! again if the reader may not fill the cache. Pages are checked against Checksums.db each time
//! they come from disk.

use crate::cache::Kind;
use crate::checksums::PAGE;
use crate::error::Error;
use crate::input::{Input, Parsed};
use crate::reader::ReadOptions;
use crate::table::Sstable;
use bytes::Bytes;
use model::key::{DecoratedKey, RingCut};
use model::token;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;

/// The most pages of one read.
const MAX_WINDOW: u64 = 16;
/// The number of pages that a cursor keeps.
const KEPT: usize = 32;

/// The index entry of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    /// The key's bytes.
    pub key: Bytes,
    /// The position of the partition in the content of Data.db.
    pub position: u64,
    /// The position of the promoted index in Index.db.
    pub promoted_at: u64,
    /// Its size; 0 if there is none.
    pub promoted_size: u64,
}

impl IndexEntry {
    /// The position of the next entry.
    pub fn end(&self) -> u64 {
        self.promoted_at + self.promoted_size
    }
}

/// Parses the head of an entry: key, position, size of the promoted index, and the length of the
/// head.
fn parse(bytes: &[u8]) -> Parsed<(&[u8], u64, u64, usize)> {
    let mut input = Input(bytes);
    let key = input.bytes16()?;
    let position = input.uvint()?;
    let size = input.uvint()?;
    Ok((key, position, size, bytes.len() - input.0.len()))
}

/// A position in the index of one sstable.
pub(crate) struct IndexCursor {
    table: Rc<Sstable>,
    options: ReadOptions,
    pages: VecDeque<(u64, Bytes)>,
    /// The page where the last read ended, and its number of pages.
    sequel: u64,
    window: u64,
    /// The bytes that are being parsed, and their position.
    walk: Bytes,
    walk_at: u64,
    /// The position of the next entry.
    at: u64,
}

impl IndexCursor {
    pub fn new(table: Rc<Sstable>, options: ReadOptions) -> Self {
        IndexCursor {
            table,
            options,
            pages: VecDeque::new(),
            sequel: 0,
            window: 1,
            walk: Bytes::new(),
            walk_at: 0,
            at: 0,
        }
    }

    pub fn path(&self) -> &Path {
        self.table.index.path()
    }

    pub fn content_length(&self) -> u64 {
        self.table.content_length
    }

    fn corrupt(&self, at: u64, why: &str) -> Error {
        Error::corrupt(self.path(), at, why)
    }

    async fn page(&mut self, n: u64) -> Result<Bytes, Error> {
        if let Some((_, page)) = self.pages.iter().find(|(number, _)| *number == n) {
            return Ok(page.clone());
        }
        let table = self.table.clone();
        if self.options.use_cache {
            loop {
                if let Some(page) = table.cached.get(Kind::Index, n) {
                    return Ok(page);
                }
                let Some(flight) = table.cached.flight(Kind::Index, n) else { break };
                if let Some(page) = flight.wait().await {
                    self.keep(n, page.clone());
                    return Ok(page);
                }
            }
        }
        self.window = if n == self.sequel { (self.window * 2).min(MAX_WINDOW) } else { 1 };
        let end = (n + self.window).min(table.index_length.div_ceil(PAGE as u64));
        let claim = self.options.fill_cache.then(|| table.cached.claim(Kind::Index, n, end));
        let count = claim.as_ref().map_or(end - n, |claim| claim.len());
        let start = n * PAGE as u64;
        let len = (table.index_length - start).min(count * PAGE as u64) as usize;
        let bytes = table.index.read_at(start, len, self.options.class).await?;
        if bytes.len() != len {
            return Err(self.corrupt(start + bytes.len() as u64, "the file ends too early"));
        }
        let mut wanted = Bytes::new();
        for (i, piece) in bytes.chunks(PAGE).enumerate() {
            let number = n + i as u64;
            if table.page_sums.as_ref().is_some_and(|sums| sums.get(number as usize) != Some(&crc32fast::hash(piece))) {
                return Err(self.corrupt(number * PAGE as u64, "the checksum of a page is wrong"));
            }
            // A copy, so that a cached page does not keep the whole window in memory.
            let page = Bytes::copy_from_slice(piece);
            if let Some(claim) = &claim {
                claim.complete(i, &page);
            }
            if i == 0 {
                wanted = page.clone();
            }
            self.keep(number, page);
        }
        self.sequel = n + count;
        Ok(wanted)
    }

    fn keep(&mut self, n: u64, page: Bytes) {
        if self.pages.len() == KEPT {
            self.pages.pop_front();
        }
        self.pages.push_back((n, page));
    }

    /// The `len` bytes at a position. An error if the file ends before.
    pub async fn bytes(&mut self, at: u64, len: usize) -> Result<Bytes, Error> {
        let end = at.checked_add(len as u64).filter(|&end| end <= self.table.index_length);
        let Some(end) = end else { return Err(self.corrupt(at, "a position is beyond the end of the file")) };
        let (first, skip) = (at / PAGE as u64, (at % PAGE as u64) as usize);
        let page = self.page(first).await?;
        if let Some(found) = page.get(skip..skip + len) {
            return Ok(page.slice_ref(found));
        }
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(&page[skip..]);
        let mut n = first;
        while out.len() < len {
            n += 1;
            let page = self.page(n).await?;
            let want = (len - out.len()).min(page.len());
            out.extend_from_slice(&page[..want]);
        }
        debug_assert_eq!(at + out.len() as u64, end);
        Ok(out.into())
    }

    /// The bytes from the cursor on that are loaded.
    fn rest(&self) -> &[u8] {
        match self.at.checked_sub(self.walk_at) {
            Some(skip) if (skip as usize) < self.walk.len() => &self.walk[skip as usize..],
            _ => &[],
        }
    }

    /// Loads one more page. The end of the file is an error here, because it was cut off.
    async fn extend(&mut self) -> Result<(), Error> {
        let rest = self.rest().len() as u64;
        let from = self.at + rest;
        if from >= self.table.index_length {
            return Err(self.corrupt(self.at, "the file ends too early"));
        }
        let page_start = from - from % PAGE as u64;
        let page = self.page(from / PAGE as u64).await?;
        if rest == 0 {
            (self.walk, self.walk_at) = (page, page_start);
        } else {
            let joined = [self.rest(), &page[(from - page_start) as usize..]].concat();
            (self.walk, self.walk_at) = (joined.into(), self.at);
        }
        Ok(())
    }

    /// Parses the entry at the cursor, and returns it if `wanted` accepts its key. Otherwise skips
    /// it. `None` at the end of the file.
    async fn step(&mut self, wanted: impl Fn(&[u8]) -> bool) -> Result<Option<Option<IndexEntry>>, Error> {
        if self.at >= self.table.index_length {
            return Ok(None);
        }
        loop {
            let rest = self.rest();
            match parse(rest) {
                Ok((key, position, promoted_size, len)) => {
                    let promoted_at = self.at + len as u64;
                    let end = promoted_at.checked_add(promoted_size);
                    if position >= self.table.content_length || end.is_none_or(|end| end > self.table.index_length) {
                        return Err(self.corrupt(self.at, "an entry points beyond the end of a file"));
                    }
                    let taken = wanted(key).then(|| {
                        let key = self.walk.slice_ref(key);
                        IndexEntry { key, position, promoted_at, promoted_size }
                    });
                    self.at = promoted_at + promoted_size;
                    return Ok(Some(taken));
                }
                Err(crate::input::Fault::Short) => self.extend().await?,
                Err(fault) => return Err(fault.at(self.path(), self.at)),
            }
        }
    }

    /// The entry of a key.
    pub async fn lookup(&mut self, key: &DecoratedKey) -> Result<Option<IndexEntry>, Error> {
        let table = self.table.clone();
        let Some(sample) = table.summary.at_or_before(key) else { return Ok(None) };
        self.at = table.summary.position(sample);
        let end = if sample + 1 < table.summary.len() { table.summary.position(sample + 1) } else { u64::MAX };
        let wanted = &key.key[..];
        // The last bytes first: most other keys differ there, and the comparison of all bytes is a
        // call.
        let is_wanted = |other: &[u8]| other.last() == wanted.last() && other == wanted;
        while self.at < end {
            match self.step(is_wanted).await? {
                Some(None) => {}
                found => return Ok(found.flatten()),
            }
        }
        Ok(None)
    }

    /// The first entry after a cut.
    pub async fn lower_bound(&mut self, cut: &RingCut) -> Result<Option<IndexEntry>, Error> {
        let table = self.table.clone();
        self.at = table.summary.position(table.summary.before(cut));
        loop {
            match self.step(|key| cut.cmp_key(token::of_key(key), key) == Ordering::Less).await? {
                Some(None) => {}
                found => return Ok(found.flatten()),
            }
        }
    }

    /// Moves to a position in Index.db where an entry begins.
    pub fn seek(&mut self, at: u64) {
        self.at = at;
    }

    /// The entry at the cursor; `None` at the end of the file.
    pub async fn next(&mut self) -> Result<Option<IndexEntry>, Error> {
        Ok(self.step(|_| true).await?.flatten())
    }

    /// The position in the content of the partition after `entry`, if it is known without a read.
    pub fn position_behind(&self, entry: &IndexEntry) -> Option<u64> {
        if entry.end() >= self.table.index_length {
            return Some(self.table.content_length);
        }
        let skip = usize::try_from(entry.end().checked_sub(self.walk_at)?).ok()?;
        let (_, position, _, _) = parse(self.walk.get(skip..)?).ok()?;
        (entry.position < position && position <= self.table.content_length).then_some(position)
    }

    /// Copies bytes that may be in the page cache. The pages that it keeps are not.
    pub fn copy_cached(&mut self) {
        self.walk = Bytes::copy_from_slice(&self.walk);
    }

    /// The bytes that are being parsed.
    #[cfg(test)]
    pub fn held(&self) -> &[u8] {
        &self.walk
    }

    /// Drops the pages that it keeps.
    pub fn release(&mut self) {
        self.pages.clear();
        self.walk = Bytes::new();
    }

    /// The memory that it holds, about, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.pages.iter().map(|(_, page)| page.len()).sum::<usize>() + self.walk.len()
    }
}
