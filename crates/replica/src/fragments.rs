//! Reads for reconciliation: a part of the data with its tombstones, for a coordinator that merges
//! it with the parts of other replicas.
//!
//! A part ends where a page of the same command would, by the same rules, so a request never costs
//! more than a page. The part has all data up to its last position. A limit per partition would
//! leave holes, so a command with one is refused.
//!
//! The reader of a part is kept for the next page, apart from readers of normal pages. It resumes
//! if the next page must be reconciled too.

use crate::error::ReplicaError;
use crate::page::{Flow, PageBuilder, PageEnd, Position, Region};
use crate::querier;
use crate::querier::cache::Purpose;
use crate::replica::Replica;
use crate::request::{Context, ReadCommand};
use bytes::Bytes;
use engine::LARGE;
use model::fragment::{Fragment, StreamOrder};
use model::key::ClusteringCut;

/// The bytes of fragments after which a part ends, however few rows a page would have.
const MAX_BYTES: usize = 4 << 20;

/// A part of the data of a command's ranges.
#[derive(Clone, PartialEq, Debug)]
pub struct FragmentPage {
    /// The fragments, in the order of the command's reader. The last partition may lack its end.
    pub fragments: Vec<Fragment>,
    /// The position up to which the part is complete. None: there is nothing behind it.
    pub last: Option<Position>,
}

/// Whether a reader could return these fragments: starts, static rows, rows, changes and ends are
/// in the right order.
pub fn is_well_formed(fragments: &[Fragment]) -> bool {
    let mut order = StreamOrder::default();
    fragments.iter().all(|fragment| order.take(fragment))
}

impl Replica {
    /// Reads a part of the data of the command's ranges.
    pub(crate) async fn read_fragments(
        &self,
        command: &ReadCommand,
        context: &Context,
    ) -> Result<FragmentPage, ReplicaError> {
        if command.output.distinct || command.limits.per_partition != u64::MAX {
            return Err(ReplicaError::Rejected("a part for reconciliation has no limit per partition".into()));
        }
        let first = command.ranges.first();
        let first = first.ok_or_else(|| ReplicaError::Rejected("a read names no partitions".into()))?;
        context.trace("Reading data for reconciliation");
        let (mut permit, mut reader) = match self.find(command, Purpose::Fragments, context) {
            None => (self.permit(context).await?, self.open(command, context, first)?),
            Some(found) => self.resume_querier(found, command, context, first).await?,
        };
        let schema = reader.schema().clone();
        let mut builder = PageBuilder::of(&schema, command);
        let resume = command.slice.resume.as_ref();
        let begins = resume.and_then(|resume| querier::first_cut(&resume.rows, command.slice.reversed));
        let mut part = FragmentPage { fragments: Vec::new(), last: None };
        let mut bytes = 0;
        let mut partition = Bytes::new();
        for (i, range) in command.ranges.iter().enumerate() {
            if i > 0 {
                reader = self.open(command, context, range)?;
            }
            loop {
                while let Some(fragment) = reader.pop() {
                    let is_large = fragment.weight() >= LARGE;
                    if is_large {
                        self.hold(reader.read_id(), fragment.weight(), &mut permit, context).await?;
                    }
                    bytes += fragment.weight();
                    let place = place_of(&fragment, &mut partition);
                    part.fragments.push(fragment.clone());
                    let flow = match is_large {
                        true => Box::pin(builder.push_large(fragment)).await?,
                        false => builder.push(fragment)?,
                    };
                    match flow {
                        Flow::Continue => {}
                        Flow::SkipPartition => reader.skip_partition(),
                        Flow::Stop => {
                            let head = builder.head();
                            let page = builder.finish();
                            part.last = page.last;
                            if page.end != PageEnd::Rows || !command.ends_with_rows {
                                let last = part.last.as_ref();
                                self.keep(reader, head, permit, command, Purpose::Fragments, context, range, last);
                            }
                            debug_assert!(part.last.is_some(), "a part that others follow has a position");
                            debug_assert!(is_well_formed(&part.fragments), "other nodes accept the part");
                            return Ok(part);
                        }
                    }
                    // A part never ends where it begins: otherwise the next one would too, and the
                    // query would never end.
                    let place = place.filter(|place| begins.as_ref().is_none_or(|cut| !is_at(place, cut)));
                    if bytes >= MAX_BYTES && place.is_some() {
                        part.last = place;
                        let (head, last) = (builder.head(), part.last.as_ref());
                        self.keep(reader, head, permit, command, Purpose::Fragments, context, range, last);
                        return Ok(part);
                    }
                }
                if reader.is_finished() {
                    break;
                }
                permit.set_memory(bytes);
                rt::task::maybe_yield().await;
                context.check_wanted()?;
                if !reader.advance().await? {
                    break;
                }
            }
        }
        debug_assert!(part.last.is_none(), "nothing follows the last part");
        Ok(part)
    }
}

/// The position at which a part may end after a fragment. `partition`: the current partition.
fn place_of(fragment: &Fragment, partition: &mut Bytes) -> Option<Position> {
    let at = |prefix: &model::key::Clustering, weight: i8| {
        Some(Position { key: partition.clone(), region: Region::Clustered, prefix: prefix.clone(), weight })
    };
    match fragment {
        Fragment::PartitionStart { key, .. } => {
            *partition = key.key.clone();
            None
        }
        Fragment::Static(_) | Fragment::PartitionEnd => None,
        Fragment::Row { key, .. } => at(key, 0),
        Fragment::Change { at: cut, .. } => at(&cut.prefix, weight_of(cut)),
    }
}

/// Whether a position among rows is the position of a cut.
fn is_at(position: &Position, cut: &ClusteringCut) -> bool {
    position.weight == weight_of(cut) && position.prefix == cut.prefix
}

fn weight_of(cut: &ClusteringCut) -> i8 {
    if cut.after { 1 } else { -1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::key::{Clustering, DecoratedKey};
    use model::row::Row;
    use model::time::Tombstone;

    #[test]
    fn streams_are_checked() {
        let start = || Fragment::PartitionStart {
            key: DecoratedKey::new(Bytes::from_static(b"k")),
            tombstone: Tombstone::LIVE,
        };
        let fixed = || Fragment::Static(Row(Bytes::from_static(&[0])));
        let row = || Fragment::Row { key: Clustering::EMPTY, row: Row(Bytes::from_static(&[0])) };
        let change = || Fragment::Change { at: ClusteringCut::START, tombstone: Tombstone::LIVE };
        let end = || Fragment::PartitionEnd;
        assert!(is_well_formed(&[]));
        assert!(is_well_formed(&[start(), fixed(), row(), change(), end(), start(), end(), start()]));
        for bad in [vec![row()], vec![start(), start()], vec![start(), row(), fixed()], vec![start(), end(), end()]] {
            assert!(!is_well_formed(&bad), "{bad:?}");
        }
    }
}
