//! What tools show of an sstable besides its rows: facts about its components, the entries of its summary and of its index.
//!
//! Nothing here is asked while a node serves.

use crate::data::layout::Layout;
use crate::error::Error;
use crate::generation::Component;
use crate::index::{IndexEntry, IndexCursor};
use crate::promoted::Promoted;
use crate::reader::ReadOptions;
use crate::table::{Chunks, Sstable};
use bytes::Bytes;
use model::key::{Clustering, DecoratedKey, PositionRef};
use model::time::Tombstone;
use std::rc::Rc;

/// How Data.db is compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressionFacts {
    /// The class name, without its package.
    pub class: &'static str,
    /// What the file says about how it was made.
    pub options: Vec<(String, String)>,
    /// Content bytes per chunk.
    pub chunk_length: usize,
    /// How many chunks there are.
    pub chunks: u64,
    /// Chunks stored at least this long are plain; `None` if none are.
    pub max_compressed_length: Option<usize>,
}

/// The size of the bloom filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterFacts {
    /// Hashes per key.
    pub hashes: u32,
    /// Bits in all.
    pub bits: u64,
    /// Bits that are set.
    pub bits_set: u64,
}

/// An entry of the summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryEntry {
    /// The key.
    pub key: DecoratedKey,
    /// Where its entry stands in Index.db, in bytes.
    pub index_position: u64,
}

/// An entry of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The key.
    pub key: DecoratedKey,
    /// Where the partition begins in the content of Data.db, in bytes.
    pub position: u64,
    /// The promoted index, if there is one.
    pub promoted: Option<PromotedFacts>,
    entry: IndexEntry,
}

/// The head of a promoted index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromotedFacts {
    /// Its size, in bytes.
    pub size: u64,
    /// Bytes of the partition before its first row.
    pub header: u64,
    /// The partition's deletion.
    pub tombstone: Tombstone,
    /// How many blocks there are.
    pub blocks: u32,
}

/// A block of a large partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexBlock {
    /// The first position in it.
    pub first: BlockPosition,
    /// The last.
    pub last: BlockPosition,
    /// Where it begins in the content of Data.db, in bytes.
    pub start: u64,
    /// Where it ends.
    pub end: u64,
    /// The range deletion that is open at its end.
    pub open: Tombstone,
}

/// A row or the end of a range deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPosition {
    /// Its clustering values; all of them if it is a row.
    pub prefix: Clustering,
    /// Before (-1) or after (1) what begins with them, or the row itself (0).
    pub weight: i8,
}

impl BlockPosition {
    fn new(position: PositionRef<'_>) -> Self {
        BlockPosition { prefix: Clustering(Bytes::copy_from_slice(position.prefix)), weight: position.weight }
    }
}

impl Sstable {
    /// How Data.db is compressed; `None` if it is not.
    pub fn compression_facts(&self) -> Option<CompressionFacts> {
        match &self.chunks {
            Chunks::Plain { .. } => None,
            Chunks::Compressed(info) => Some(CompressionFacts {
                class: info.algorithm.class_name(),
                options: info.options.clone(),
                chunk_length: info.chunk_length,
                chunks: self.chunk_count(),
                max_compressed_length: Some(info.max_compressed).filter(|&max| max < i32::MAX as usize),
            }),
        }
    }

    /// The size of the bloom filter; `None` if there is none.
    pub fn filter_facts(&self) -> Option<FilterFacts> {
        self.filter.as_ref().map(|filter| {
            let (hashes, bits, bits_set) = filter.facts();
            FilterFacts { hashes, bits, bits_set }
        })
    }

    /// Whether every component is protected by checksums, not only Data.db.
    pub fn all_protected(&self) -> bool {
        self.page_sums.is_some()
    }

    /// The files there are, by the name of the component, with their lengths in bytes.
    pub async fn component_lengths(&self) -> Result<Vec<(String, u64)>, Error> {
        let mut out = Vec::new();
        for name in self.components() {
            let known = Component::named(name);
            let path = match known {
                Some(component) => self.place.path(component),
                // Listed, but nothing that is looked at.
                None => self.place.dir.join(self.place.file_name(name)),
            };
            match rt::fs::metadata(&path).await {
                Ok(found) => out.push((name.clone(), found.len)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(Error::Io { path, source }),
            }
        }
        Ok(out)
    }

    /// Partitions per entry of the summary, as the file has it, and the sampling level (128 is full).
    pub fn summary_sampling(&self) -> (u32, u32) {
        (self.summary.interval, self.summary.level)
    }

    /// The entries of the summary.
    pub fn summary_entries(&self) -> impl ExactSizeIterator<Item = SummaryEntry> + '_ {
        (0..self.summary.len())
            .map(|i| SummaryEntry { key: self.summary.decorated_key(i), index_position: self.summary.position(i) })
    }
}

/// Walks through the index from front to back.
pub struct IndexWalk {
    entries: IndexCursor,
    /// Reads promoted indexes, so that the other one can go on where it was.
    blocks: IndexCursor,
    layout: Rc<Layout>,
}

impl IndexWalk {
    /// Begins at the front.
    pub fn new(table: &Rc<Sstable>) -> Result<IndexWalk, Error> {
        let options = ReadOptions::BACKGROUND;
        let schema = table.header_schema("", "");
        Ok(IndexWalk {
            entries: IndexCursor::new(table.clone(), options),
            blocks: IndexCursor::new(table.clone(), options),
            layout: table.layout(&schema)?,
        })
    }

    /// The next entry.
    pub async fn next(&mut self) -> Result<Option<IndexEntry>, Error> {
        let Some(entry) = self.entries.next().await? else { return Ok(None) };
        let promoted = Promoted::open(&mut self.blocks, &entry).await?.map(|promoted| PromotedFacts {
            size: entry.promoted_size,
            header: promoted.header,
            tombstone: promoted.tombstone,
            blocks: promoted.count,
        });
        let key = DecoratedKey::new(entry.key.clone());
        Ok(Some(IndexEntry { key, position: entry.position, promoted, entry }))
    }

    /// A block of an entry's promoted index; `None` if there are not so many.
    pub async fn block(&mut self, of: &IndexEntry, i: u32) -> Result<Option<IndexBlock>, Error> {
        let Some(promoted) = Promoted::open(&mut self.blocks, &of.entry).await? else { return Ok(None) };
        if i >= promoted.count {
            return Ok(None);
        }
        let block = promoted.block(&mut self.blocks, &self.layout, i).await?;
        Ok(Some(IndexBlock {
            first: BlockPosition::new(block.first()),
            last: BlockPosition::new(block.last()),
            start: block.start,
            end: block.end,
            open: block.open,
        }))
    }
}
