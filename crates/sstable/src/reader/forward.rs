//! Reads rows in the table's own order.

use super::batch::{Batch, Item};
use super::clip::Side;
use super::{Reader, State};
use crate::data::layout::Layout;
use crate::data::{self, Head, flags, marker};
use crate::error::Error;
use crate::input::Fault;
use model::key::PositionRef;
use model::schema::ClusteringOrder;
use std::cmp::Ordering;
use std::ops::Range;

/// Why decoding stopped.
enum Stop {
    /// This many bytes are needed.
    Bytes(usize),
    /// More bytes are needed.
    More,
    /// Enough for one batch.
    Full,
    /// The next range begins further on.
    Jump,
    /// The partition has ended. True if the stream is at the next partition.
    End(bool),
}

impl Reader {
    pub(super) async fn forward(&mut self) -> Result<(), Error> {
        if let State::Forward(forward) = &self.state
            && forward.jumped == 0
            && self.promoted.is_some()
        {
            self.jump().await?;
        }
        match self.decode_forward()? {
            Stop::Bytes(n) if self.hands_on_before(n) => Ok(()),
            Stop::Bytes(n) => self.stream.require(n).await,
            Stop::More => self.stream.more().await,
            Stop::Full => Ok(()),
            Stop::Jump => self.jump().await,
            Stop::End(ended) => {
                self.end_partition(ended);
                Ok(())
            }
        }
    }

    /// Moves to the block in which the current range begins, if that is further on.
    async fn jump(&mut self) -> Result<(), Error> {
        let (State::Forward(forward), Some(promoted), Some(layout)) = (&mut self.state, &self.promoted, &self.layout)
        else {
            return Ok(());
        };
        let Some(range) = forward.clip.range().cloned() else { return Ok(()) };
        let order = &self.schema.order;
        let mut found = None;
        if !range.start.prefix.is_empty() || range.start.after {
            let block = promoted.first_beyond(&mut self.index, layout, order, range.start.position()).await?;
            // If no block reaches so far, the last one ends the search soonest.
            let block = block.min(promoted.count - 1);
            if block > 0 {
                let start = promoted.block(&mut self.index, layout, block).await?.start;
                let open = promoted.block(&mut self.index, layout, block - 1).await?.open;
                found = Some((start, open));
            }
        }
        forward.jumped = forward.clip.current() + 1;
        if let Some((start, open)) = found
            && start > self.stream.position()
        {
            self.stream.seek(start);
            forward.clip.jump(open);
        }
        Ok(())
    }

    /// Decodes the loaded bytes.
    fn decode_forward(&mut self) -> Result<Stop, Error> {
        let Reader {
            stream,
            batch,
            fill,
            state,
            layout: Some(layout),
            schema,
            promoted,
            table,
            before,
            checks_order,
            ..
        } = self
        else {
            unreachable!("the layout was made first")
        };
        let State::Forward(forward) = state else { unreachable!("the state was looked at") };
        let order = &schema.order;
        loop {
            if batch.weight() >= *fill {
                return Ok(Stop::Full);
            }
            let rest = stream.rest();
            let mark = batch.arena.len();
            let head = match data::read_head(rest, layout, &mut batch.arena) {
                Ok(head) => head,
                Err(Fault::Short) => {
                    batch.arena.truncate(mark);
                    return Ok(Stop::More);
                }
                Err(Fault::Bad(why)) => return Err(stream.corrupt(why)),
            };
            let prefix = mark..batch.arena.len();
            let (head_len, body) = match head {
                Head::End => {
                    forward.clip.finish(batch);
                    stream.consume(1);
                    return Ok(Stop::End(true));
                }
                Head::Row { head, body, .. } | Head::Marker { head, body, .. } => (head, body),
            };
            let left = table.content_length - stream.position();
            let total = head_len.checked_add(body).filter(|&total| total as u64 <= left);
            let total = total.ok_or_else(|| stream.corrupt("a row is too long"))?;
            // An incomplete row is decoded again later, so it must not be checked yet.
            if *checks_order && rest.len() >= total {
                let weight = weight_of(&head).ok_or_else(|| stream.corrupt("the kind of a marker is not known"))?;
                if !is_after(before, batch.position(&prefix, weight), order) {
                    return Err(stream.corrupt("the rows are out of order"));
                }
            }
            match head {
                Head::End => {}
                Head::Row { flags, extended, .. } => {
                    if extended & flags::EXTENDED_STATIC != 0 {
                        return Err(stream.corrupt("a static row is among the rows"));
                    }
                    match forward.clip.advance(order, batch, |batch| batch.position(&prefix, 0)) {
                        Side::Done => return Ok(Stop::End(false)),
                        Side::Before => {
                            if batch.arena.len() == prefix.end {
                                batch.arena.truncate(mark);
                            }
                            stream.consume(total);
                            if promoted.is_some() && forward.jumped <= forward.clip.current() {
                                return Ok(Stop::Jump);
                            }
                        }
                        Side::Inside => {
                            if rest.len() < total {
                                return Ok(Stop::Bytes(total));
                            }
                            let body = &rest[head_len..total];
                            if !take_row(batch, prefix, body, (flags, extended), layout) {
                                return Err(stream.corrupt("a row is malformed"));
                            }
                            stream.consume(total);
                        }
                    }
                }
                Head::Marker { kind, .. } => {
                    if rest.len() < total {
                        batch.arena.truncate(mark);
                        return Ok(Stop::Bytes(total));
                    }
                    let read = marker::read_body(&rest[head_len..total], kind, layout).ok().zip(weight_of(&head));
                    let (to, weight) = read.ok_or_else(|| stream.corrupt("a range tombstone marker is malformed"))?;
                    let side = forward.clip.advance(order, batch, |batch| batch.position(&prefix, weight));
                    if side == Side::Done {
                        return Ok(Stop::End(false));
                    }
                    if forward.clip.change(side, to) {
                        batch.items.push(Item::Change { prefix, after: weight > 0, tombstone: to });
                    }
                    stream.consume(total);
                }
            }
        }
    }
}

/// The position of an unfiltered relative to its prefix. `None`: a marker of an unknown kind.
#[inline]
fn weight_of(head: &Head) -> Option<i8> {
    match head {
        Head::Marker { kind, .. } => marker::weight(*kind).ok(),
        _ => Some(0),
    }
}

/// Whether a position comes after the one in `before`. Then replaces that one.
#[inline]
fn is_after(before: &mut (Vec<u8>, Option<i8>), position: PositionRef<'_>, order: &ClusteringOrder) -> bool {
    let (kept, kept_weight) = before;
    if let Some(weight) = *kept_weight
        && order.compare(PositionRef { prefix: kept, weight }, position) != Ordering::Less
    {
        return false;
    }
    kept.clear();
    kept.extend_from_slice(position.prefix);
    *kept_weight = Some(position.weight);
    true
}

/// Decodes the body of a row into a batch. False: it is malformed.
#[inline]
fn take_row(batch: &mut Batch, key: Range<usize>, body: &[u8], (flags, extended): (u8, u8), layout: &Layout) -> bool {
    let start = batch.arena.len();
    if data::row::read(body, flags, extended, layout, &mut batch.arena).is_err() {
        return false;
    }
    let row = start..batch.arena.len();
    // Nothing may be left of the row if columns were dropped.
    if row.len() > 1 {
        batch.items.push(Item::Row { key, row });
    }
    true
}
