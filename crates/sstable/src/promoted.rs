//! The promoted index of a large partition. It lists blocks of rows, with their first and last
//! position and the range tombstone that is open at their end. It may have many megabytes, so it is
//! read in parts, never entirely.

use crate::data::layout::Layout;
use crate::data::{marker, prefix};
use crate::error::Error;
use crate::index::{IndexCursor, IndexEntry};
use crate::input::{Fault, Input, Parsed};
use model::key::PositionRef;
use model::schema::ClusteringOrder;
use model::time::Tombstone;
use std::cmp::Ordering;

/// Widths are stored as differences from this, for any block size.
pub(crate) const WIDTH_BASE: i64 = 65536;

/// The positions of a promoted index's parts.
#[derive(Clone, Debug)]
pub(crate) struct Promoted {
    /// Bytes of the partition before its first row.
    pub header: u64,
    /// The partition's tombstone.
    pub tombstone: Tombstone,
    pub count: u32,
    /// Positions in Index.db: of the first block, and of the list of offsets after the last block.
    blocks_at: u64,
    offsets_at: u64,
    /// The position of the partition in the content, and the length of the content.
    partition: u64,
    content: u64,
}

/// A block of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    first: (Vec<u8>, i8),
    last: (Vec<u8>, i8),
    /// The start and the end of the block in the content.
    pub start: u64,
    pub end: u64,
    /// The range tombstone that is open at its end.
    pub open: Tombstone,
}

impl Block {
    pub fn first(&self) -> PositionRef<'_> {
        PositionRef { prefix: &self.first.0, weight: self.first.1 }
    }

    pub fn last(&self) -> PositionRef<'_> {
        PositionRef { prefix: &self.last.0, weight: self.last.1 }
    }
}

impl Promoted {
    /// Reads the head of an entry's promoted index; `None` if it has none.
    pub async fn open(cursor: &mut IndexCursor, entry: &IndexEntry) -> Result<Option<Promoted>, Error> {
        if entry.promoted_size == 0 {
            return Ok(None);
        }
        let want = entry.promoted_size.min(9 + 12 + 9) as usize;
        let bytes = cursor.bytes(entry.promoted_at, want).await?;
        let content = cursor.content_length();
        let parsed = Self::parse(&bytes, entry, content);
        parsed.map(Some).map_err(|fault| fault.at(cursor.path(), entry.promoted_at))
    }

    fn parse(bytes: &[u8], entry: &IndexEntry, content: u64) -> Parsed<Promoted> {
        let mut input = Input(bytes);
        let header = input.uvint()?;
        let tombstone = input.deletion()?;
        let count = input.uvint()?;
        let blocks_at = entry.promoted_at + (bytes.len() - input.0.len()) as u64;
        let end = entry.promoted_at + entry.promoted_size;
        let offsets_at = count.checked_mul(4).and_then(|list| end.checked_sub(list)).filter(|&at| at >= blocks_at);
        let offsets_at = offsets_at.ok_or(Fault::Bad("there are too many blocks"))?;
        let count = u32::try_from(count).map_err(|_| Fault::Bad("there are too many blocks"))?;
        if count == 0 || header > content - entry.position {
            return Err(Fault::Bad("the promoted index has no blocks, or its header is too long"));
        }
        Ok(Promoted { header, tombstone, count, blocks_at, offsets_at, partition: entry.position, content })
    }

    /// Block `i`, which must be below the count.
    pub async fn block(&self, cursor: &mut IndexCursor, layout: &Layout, i: u32) -> Result<Block, Error> {
        let at = self.offsets_at + 4 * i as u64;
        let last = i + 1 == self.count;
        let bytes = cursor.bytes(at, if last { 4 } else { 8 }).await?;
        let (words, _) = bytes.as_chunks::<4>();
        let start = words.first().map_or(0, |word| u32::from_be_bytes(*word) as u64);
        let end = match words.get(1) {
            Some(word) => u32::from_be_bytes(*word) as u64,
            None => self.offsets_at - self.blocks_at,
        };
        let place = self.blocks_at + start;
        if start >= end || self.blocks_at + end > self.offsets_at {
            return Err(Error::corrupt(cursor.path(), at, "the offset of a block is not valid"));
        }
        let bytes = cursor.bytes(place, (end - start) as usize).await?;
        let block = self.parse_block(&bytes, layout);
        block.map_err(|fault| fault.at(cursor.path(), place))
    }

    fn parse_block(&self, bytes: &[u8], layout: &Layout) -> Parsed<Block> {
        let mut input = Input(bytes);
        let first = read_position(&mut input, layout)?;
        let last = read_position(&mut input, layout)?;
        let offset = input.uvint()?;
        let width = input.svint()?.checked_add(WIDTH_BASE).and_then(|width| u64::try_from(width).ok());
        let open = match input.u8()? {
            0 => Tombstone::LIVE,
            1 => input.deletion()?,
            _ => return Err(Fault::Bad("the flag of a block is not valid")),
        };
        let start = self.partition.checked_add(offset);
        let end = start.zip(width).and_then(|(start, width)| start.checked_add(width));
        match (start, end) {
            (Some(start), Some(end)) if offset >= self.header && start < end && end <= self.content => {
                Ok(Block { first, last, start, end, open })
            }
            _ => Err(Fault::Bad("the position of a block is not valid")),
        }
    }

    /// The first block that ends after a cut; `count` if there is none.
    pub async fn first_beyond(
        &self,
        cursor: &mut IndexCursor,
        layout: &Layout,
        order: &ClusteringOrder,
        cut: PositionRef<'_>,
    ) -> Result<u32, Error> {
        self.partition_point(cursor, layout, |block| order.compare(block.last(), cut) != Ordering::Greater).await
    }

    /// The number of blocks that begin before a cut.
    pub async fn count_before(
        &self,
        cursor: &mut IndexCursor,
        layout: &Layout,
        order: &ClusteringOrder,
        cut: PositionRef<'_>,
    ) -> Result<u32, Error> {
        self.partition_point(cursor, layout, |block| order.compare(block.first(), cut) == Ordering::Less).await
    }

    /// The number of blocks for which `is_in_front` is true. It must be true for the first ones
    /// only.
    async fn partition_point(
        &self,
        cursor: &mut IndexCursor,
        layout: &Layout,
        is_in_front: impl Fn(&Block) -> bool,
    ) -> Result<u32, Error> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_in_front(&self.block(cursor, layout, middle).await?) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

fn read_position(input: &mut Input<'_>, layout: &Layout) -> Parsed<(Vec<u8>, i8)> {
    let kind = input.u8()?;
    let count = if kind == marker::CLUSTERING { layout.clustering.len() } else { input.be16()? as usize };
    let widths = layout.clustering.get(..count).ok_or(Fault::Bad("a block has too many clustering values"))?;
    let mut out = Vec::new();
    prefix::read(input, widths, &mut out)?;
    Ok((out, marker::weight(kind)?))
}
