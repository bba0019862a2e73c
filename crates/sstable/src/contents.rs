//! What tools show of an sstable besides its rows: facts about its components, and the entries of
//! its summary and index. Not used while a node serves requests.

use crate::data::layout::Layout;
use crate::error::Error;
use crate::generation::Component;
use crate::index::{IndexCursor, IndexEntry};
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
    /// The options in the file.
    pub options: Vec<(String, String)>,
    /// Content bytes per chunk.
    pub chunk_length: usize,
    /// The number of chunks.
    pub chunks: u64,
    /// Chunks stored with at least this length are not compressed. `None` if there is no such
    /// limit.
    pub max_compressed_length: Option<usize>,
}

/// The size of the bloom filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterFacts {
    /// Hashes per key.
    pub hashes: u32,
    /// The number of bits.
    pub bits: u64,
    /// Bits that are set.
    pub bits_set: u64,
}

/// An entry of the summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryEntry {
    /// The key.
    pub key: DecoratedKey,
    /// The position of the key's entry in Index.db, in bytes.
    pub index_position: u64,
}

/// An entry of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntryFacts {
    /// The key.
    pub key: DecoratedKey,
    /// The position of the partition in the content of Data.db, in bytes.
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
    /// The partition's tombstone.
    pub tombstone: Tombstone,
    /// The number of blocks.
    pub blocks: u32,
}

/// A block of a large partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexBlock {
    /// The first position of the block.
    pub first: BlockPosition,
    /// The last position of the block.
    pub last: BlockPosition,
    /// The start of the block in the content of Data.db, in bytes.
    pub start: u64,
    /// The end of the block, in bytes.
    pub end: u64,
    /// The range tombstone that is open at its end.
    pub open: Tombstone,
}

/// A row, or a bound of a range tombstone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPosition {
    /// The clustering values: all of them for a row.
    pub prefix: Clustering,
    /// The position before (-1) or after (1) all rows with this prefix, or the row itself (0).
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

    /// The existing files by component name, with their lengths in bytes.
    pub async fn component_lengths(&self) -> Result<Vec<(String, u64)>, Error> {
        let mut out = Vec::new();
        for name in self.components() {
            let known = Component::named(name);
            let path = match known {
                Some(component) => self.place.path(component),
                // The TOC lists it, but Messina does not read it.
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

    /// The number of partitions for each entry of the summary as the file says, and the sampling
    /// level (128 is full).
    pub fn summary_sampling(&self) -> (u32, u32) {
        (self.summary.interval, self.summary.level)
    }

    /// The entries of the summary.
    pub fn summary_entries(&self) -> impl ExactSizeIterator<Item = SummaryEntry> + '_ {
        (0..self.summary.len())
            .map(|i| SummaryEntry { key: self.summary.decorated_key(i), index_position: self.summary.position(i) })
    }
}

/// Reads the index from start to end.
pub struct IndexWalk {
    entries: IndexCursor,
    /// Reads promoted indexes, so that `entries` keeps its position.
    blocks: IndexCursor,
    layout: Rc<Layout>,
}

impl IndexWalk {
    /// Begins at the first entry.
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
    pub async fn next(&mut self) -> Result<Option<IndexEntryFacts>, Error> {
        let Some(entry) = self.entries.next().await? else { return Ok(None) };
        let promoted = Promoted::open(&mut self.blocks, &entry).await?.map(|promoted| PromotedFacts {
            size: entry.promoted_size,
            header: promoted.header,
            tombstone: promoted.tombstone,
            blocks: promoted.count,
        });
        let key = DecoratedKey::new(entry.key.clone());
        Ok(Some(IndexEntryFacts { key, position: entry.position, promoted, entry }))
    }

    /// Block `i` of an entry's promoted index. `None` if there are fewer blocks.
    pub async fn block(&mut self, of: &IndexEntryFacts, i: u32) -> Result<Option<IndexBlock>, Error> {
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
