//! Reads rows in descending order: block by block from the end, each decoded forward and output
//! backward.
//!
//! A partition without a promoted index is one block. The memory for a block is bounded by the
//! block size or its largest row. A reader that continues loads several blocks in one read: twice
//! as many each time, up to a limit in bytes.

use super::batch::{Batch, Item};
use super::clip::{Clip, Side};
use super::{Reader, State};
use crate::data::{self, Head, flags, marker};
use crate::error::Error;
use crate::input::Fault;
use model::time::Tombstone;
use std::ops::Range;

/// The position of a backward reader.
pub(super) struct Backward {
    clip: Clip,
    /// The number of blocks that are left; `None` if the partition is one block.
    left: Option<u32>,
    /// The range that was looked up in the promoted index, counted from 1.
    jumped: usize,
    /// The blocks that were loaded together last, as a range of the content, and their number.
    loaded: Range<u64>,
    loaded_blocks: u32,
}

impl Backward {
    pub fn new(clip: Clip, blocks: Option<u32>) -> Self {
        Backward { clip, left: blocks, jumped: 0, loaded: 0..0, loaded_blocks: 0 }
    }
}

/// The most content that is loaded at once, in bytes, unless one block is larger.
const MOST_LOADED: u64 = 512 << 10;

/// A row or marker of a block, in the order of the file.
enum BlockItem {
    Row {
        key: Range<usize>,
        row: Range<usize>,
    },
    /// The deletion before it.
    Change {
        prefix: Range<usize>,
        after: bool,
        before: Tombstone,
    },
}

impl Reader {
    pub(super) async fn backward(&mut self) -> Result<(), Error> {
        let State::Backward(backward) = &self.state else { unreachable!("the state was looked at") };
        if backward.clip.range().is_none() {
            return self.end_backward(false);
        }
        let Some(left) = backward.left else {
            let start = self.stream.position();
            let found = self.decode_block(start, None, Tombstone::LIVE).await?;
            self.hand_out(&found);
            return self.end_backward(true);
        };
        let (entered, current, jumped) = (backward.clip.entered(), backward.clip.current(), backward.jumped);
        let left = if !entered && jumped <= current { self.jump_back(left).await? } else { left };
        let (Some(promoted), Some(layout), true) = (&self.promoted, &self.layout, left > 0) else {
            return self.end_backward(false);
        };
        let block = promoted.block(&mut self.index, layout, left - 1).await?;
        let open = match left {
            1 => Tombstone::LIVE,
            _ => promoted.block(&mut self.index, layout, left - 2).await?.open,
        };
        self.load_blocks(left, block.start..block.end).await?;
        let found = self.decode_block(block.start, Some(block.end), open).await?;
        self.hand_out(&found);
        if let State::Backward(backward) = &mut self.state {
            backward.left = Some(left - 1);
            if left == 1 {
                return self.end_backward(false);
            }
        }
        Ok(())
    }

    /// Loads the last of the blocks that are left. Loads several if the blocks after it were read
    /// before.
    async fn load_blocks(&mut self, left: u32, last: Range<u64>) -> Result<(), Error> {
        let (State::Backward(backward), Some(promoted), Some(layout)) = (&mut self.state, &self.promoted, &self.layout)
        else {
            return Ok(());
        };
        if backward.loaded.start <= last.start && last.end <= backward.loaded.end {
            return Ok(());
        }
        let goes_on = backward.loaded.start == last.end;
        let mut blocks = if goes_on { (2 * backward.loaded_blocks).clamp(1, left) } else { 1 };
        let mut start = last.start;
        while blocks > 1 {
            start = promoted.block(&mut self.index, layout, left - blocks).await?.start;
            if start >= last.start {
                return Err(self.stream.corrupt("the blocks of a partition are out of order"));
            }
            if last.end - start <= MOST_LOADED {
                break;
            }
            blocks -= 1;
            start = last.start;
        }
        self.stream.seek(start);
        self.stream.expect(last.end);
        self.stream.require((last.end - start) as usize).await?;
        (backward.loaded, backward.loaded_blocks) = (start..last.end, blocks);
        Ok(())
    }

    fn end_backward(&mut self, ended: bool) -> Result<(), Error> {
        if let State::Backward(backward) = &mut self.state {
            backward.clip.finish(&mut self.batch);
        }
        self.end_partition(ended);
        Ok(())
    }

    /// Finds the block in which the current range ends, in the table's order. Returns how many
    /// blocks are left, including that one.
    async fn jump_back(&mut self, left: u32) -> Result<u32, Error> {
        let (State::Backward(backward), Some(promoted), Some(layout)) = (&mut self.state, &self.promoted, &self.layout)
        else {
            return Ok(left);
        };
        let Some(range) = backward.clip.range().cloned() else { return Ok(left) };
        let end = range.start.reversed();
        let mut reached = left;
        let mut open = None;
        if !end.prefix.is_empty() {
            let order = &self.schema.order;
            reached = promoted.count_before(&mut self.index, layout, order, end.position()).await?.min(left);
            if reached > 0 && reached < left {
                open = Some(promoted.block(&mut self.index, layout, reached - 1).await?.open);
            }
        }
        backward.jumped = backward.clip.current() + 1;
        backward.left = Some(reached);
        if let Some(open) = open {
            backward.clip.jump(open);
        }
        Ok(reached)
    }

    /// Decodes a block. `open` is the deletion at its start. Without `end`, decodes and consumes up
    /// to the end of the partition.
    async fn decode_block(
        &mut self,
        start: u64,
        end: Option<u64>,
        mut open: Tombstone,
    ) -> Result<Vec<BlockItem>, Error> {
        let Some(layout) = self.layout.clone() else { unreachable!("it was made first") };
        self.stream.seek(start);
        if let Some(end) = end {
            self.stream.expect(end);
            self.stream.require((end - start) as usize).await?;
        }
        let mut found = Vec::new();
        let mut at = 0;
        loop {
            if end.is_some_and(|end| start + at as u64 >= end) {
                return Ok(found);
            }
            let rest = &self.stream.rest()[at..];
            let mark = self.batch.arena.len();
            let head = match data::read_head(rest, &layout, &mut self.batch.arena) {
                Ok(head) => head,
                Err(Fault::Short) => {
                    self.batch.arena.truncate(mark);
                    self.stream.more().await?;
                    continue;
                }
                Err(Fault::Bad(why)) => return Err(self.stream.corrupt(why)),
            };
            let prefix = mark..self.batch.arena.len();
            let (head_len, body) = match head {
                Head::End => {
                    if end.is_none() {
                        self.stream.consume(at + 1);
                    }
                    return Ok(found);
                }
                Head::Row { extended, .. } if extended & flags::EXTENDED_STATIC != 0 => {
                    return Err(self.stream.corrupt("a static row is among the rows"));
                }
                Head::Row { head, body, .. } | Head::Marker { head, body, .. } => (head, body),
            };
            let left = self.table.content_length - start - at as u64;
            let total = head_len.checked_add(body).filter(|&total| total as u64 <= left);
            let Some(total) = total else { return Err(self.stream.corrupt("a row is too long")) };
            if rest.len() < total {
                self.batch.arena.truncate(mark);
                self.stream.require(at + total).await?;
                continue;
            }
            let body = &rest[head_len..total];
            match head {
                Head::End => {}
                Head::Row { flags, extended, .. } => {
                    let start = self.batch.arena.len();
                    if data::row::read(body, flags, extended, &layout, &mut self.batch.arena).is_err() {
                        return Err(self.stream.corrupt("a row is malformed"));
                    }
                    let row = start..self.batch.arena.len();
                    if row.len() > 1 {
                        found.push(BlockItem::Row { key: prefix, row });
                    }
                }
                Head::Marker { kind, .. } => {
                    let parsed = marker::read_body(body, kind, &layout);
                    let (Ok(to), Ok(weight)) = (parsed, marker::weight(kind)) else {
                        return Err(self.stream.corrupt("a range tombstone marker is malformed"));
                    };
                    found.push(BlockItem::Change { prefix, after: weight > 0, before: open });
                    open = to;
                }
            }
            at += total;
        }
    }

    /// Appends the wanted parts of a block, backward.
    fn hand_out(&mut self, found: &[BlockItem]) {
        let Reader { batch, state: State::Backward(backward), reversed: Some(order), .. } = self else {
            unreachable!("the state was looked at")
        };
        for one in found.iter().rev() {
            let done = match one {
                BlockItem::Row { key, row } => {
                    let side = backward.clip.advance(order, batch, |batch: &Batch| batch.position(key, 0));
                    if side == Side::Inside {
                        batch.items.push(Item::Row { key: key.clone(), row: row.clone() });
                    }
                    side
                }
                BlockItem::Change { prefix, after, before } => {
                    // In reading order, the same position is on the other side of the prefix.
                    let weight = if *after { -1 } else { 1 };
                    let side = backward.clip.advance(order, batch, |batch: &Batch| batch.position(prefix, weight));
                    if side != Side::Done && backward.clip.change(side, *before) {
                        batch.items.push(Item::Change { prefix: prefix.clone(), after: !after, tombstone: *before });
                    }
                    side
                }
            };
            if done == Side::Done {
                return;
            }
        }
    }
}
