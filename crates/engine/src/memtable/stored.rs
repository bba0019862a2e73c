//! One partition in the tree of a memtable: packed while it is a single row, then a body.

use super::arena::Arena;
use super::chunks::Chunks;
use super::own_row;
use super::packed::Packed;
use super::partition::{BODY_OVERHEAD, Body, Partition, Rows, min_of_row};
use bytes::Bytes;
use model::fragment::Fragment;
use model::mutation::Parts;
use model::schema::TableSchema;
use model::time::Timestamp;
use std::rc::Rc;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) enum Stored {
    Row(Packed),
    Body(Rc<Body>),
}

impl Stored {
    /// The new partition of a mutation, and its bytes.
    pub fn of(arena: &mut Arena, schema: &TableSchema, key: &[u8], mut parts: Parts<'_>) -> (Stored, isize) {
        let mut body = None;
        let mut grew = 0;
        if is_rows_only(&parts) {
            let first = parts.rows.next();
            let second = parts.rows.next();
            if let (Some((clustering, row)), None) = (&first, &second) {
                let (packed, cost) = Packed::new(arena, key, clustering, row);
                return (Stored::Row(packed), cost);
            }
            let own = body.insert(Body::new(Bytes::copy_from_slice(key)));
            for (clustering, row) in first.into_iter().chain(second) {
                grew += own.apply_row(arena, schema, clustering, row);
            }
        }
        let mut body = body.unwrap_or_else(|| Body::new(Bytes::copy_from_slice(key)));
        grew += (BODY_OVERHEAD + key.len()) as isize + body.apply(arena, schema, parts);
        (Stored::Body(Rc::new(body)), grew)
    }

    /// A copy of a partition that is given as fragments, and its bytes. `None` if it has range
    /// deletions, or is empty.
    pub fn of_fragments<'f>(
        schema: &TableSchema,
        key: &[u8],
        fragments: impl Iterator<Item = &'f Fragment> + Clone,
    ) -> Option<(Stored, usize)> {
        let mut rows = fragments.clone().filter(|fragment| matches!(fragment, Fragment::Row { .. }));
        let (first, second) = (rows.next(), rows.next());
        let is_bare = fragments.clone().all(|fragment| match fragment {
            Fragment::PartitionStart { tombstone, .. } => tombstone.is_live(),
            Fragment::Row { .. } | Fragment::PartitionEnd => true,
            Fragment::Static(_) | Fragment::Change { .. } => false,
        });
        if let (true, Some(Fragment::Row { key: clustering, row }), None) = (is_bare, first, second) {
            let packed = Packed::alone(key, clustering, row);
            let bytes = packed.len();
            return Some((Stored::Row(packed), bytes));
        }
        let mut body = Body::new(Bytes::copy_from_slice(key));
        // The rows have no clustering key, so nothing is cut from it.
        let arena = &mut Arena::default();
        let (mut bytes, mut is_empty) = (BODY_OVERHEAD as isize + key.len() as isize, true);
        for fragment in fragments {
            is_empty = false;
            match fragment {
                Fragment::PartitionStart { tombstone, .. } => body.tombstone = *tombstone,
                Fragment::Static(row) => {
                    bytes += row.len() as isize;
                    body.static_row = Some(own_row(row));
                }
                Fragment::Row { key, row } => bytes += body.apply_row(arena, schema, key.clone(), row.clone()),
                Fragment::Change { .. } => return None,
                Fragment::PartitionEnd => {}
            }
        }
        (!is_empty).then(|| (Stored::Body(Rc::new(body)), bytes.max(0) as usize))
    }

    /// Merges a mutation in; returns by how many bytes the partition grew.
    pub fn apply(&mut self, arena: &mut Arena, schema: &TableSchema, mut parts: Parts<'_>) -> isize {
        let mut grew = 0;
        if let Stored::Row(packed) = self {
            let mut other = None;
            if is_rows_only(&parts) {
                let Some((clustering, row)) = parts.rows.next() else { return 0 };
                if schema.order.compare_rows(&packed.clustering(), &clustering).is_eq() {
                    grew += packed.merge(arena, schema, &row);
                    match parts.rows.next() {
                        None => return grew,
                        next => other = next,
                    }
                } else {
                    other = Some((clustering, row));
                }
            }
            grew += self.widen();
            if let Some((clustering, row)) = other {
                grew += self.body().apply_row(arena, schema, clustering, row);
            }
        }
        grew + self.body().apply(arena, schema, parts)
    }

    /// Turns the packed form into the general one.
    fn widen(&mut self) -> isize {
        let Stored::Row(packed) = self else { return 0 };
        let rows = Rows::One(packed.own_row());
        *self = Stored::Body(Rc::new(Body { rows, ..Body::new(packed.key_bytes()) }));
        BODY_OVERHEAD as isize
    }

    fn body(&mut self) -> &mut Body {
        match self {
            Stored::Body(body) => Rc::make_mut(body),
            Stored::Row(_) => unreachable!("a single row was widened first"),
        }
    }

    /// The partition key's bytes.
    #[inline]
    pub fn key(&self) -> &[u8] {
        match self {
            Stored::Row(packed) => packed.key(),
            Stored::Body(body) => &body.key,
        }
    }

    /// The partition key, sharing this memory.
    pub fn key_bytes(&self) -> Bytes {
        match self {
            Stored::Row(packed) => packed.key_bytes(),
            Stored::Body(body) => body.key.clone(),
        }
    }

    /// A snapshot for a reader. It never changes.
    #[inline]
    pub fn snapshot(&self) -> Partition {
        match self {
            Stored::Row(packed) => Partition::Row(packed.clustering(), packed.row()),
            Stored::Body(body) => Partition::Body(body.clone()),
        }
    }

    /// The least timestamp of its contents, or a lower bound if there are too many to examine.
    pub fn min_timestamp(&self) -> Timestamp {
        match self {
            Stored::Row(packed) => min_of_row(&packed.row()),
            Stored::Body(body) => body.min_timestamp(),
        }
    }

    /// Prefetches the memory.
    #[inline]
    pub fn prefetch(&self) {
        if let Stored::Row(packed) = self {
            packed.prefetch();
        }
    }

    /// The rows of a large partition that no reader shares, to be freed in steps. Small
    /// partitions are freed here.
    pub fn into_large(self) -> Option<Chunks> {
        match self {
            Stored::Body(body) => match Rc::try_unwrap(body) {
                Ok(Body { rows: Rows::Many(chunks), .. }) => Some(chunks),
                _ => None,
            },
            Stored::Row(_) => None,
        }
    }

    /// A partition without anything.
    #[cfg(test)]
    pub fn empty(key: Bytes) -> Self {
        Stored::Body(Rc::new(Body::new(key)))
    }
}

/// Whether a mutation holds nothing but rows.
fn is_rows_only(parts: &Parts<'_>) -> bool {
    parts.tombstone.is_live() && parts.static_row.is_none() && parts.range_tombstones.is_empty()
}
