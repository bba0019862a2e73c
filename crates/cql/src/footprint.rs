//! The memory of cached statements. It is the sum over all allocations of their parts, each rounded
//! as allocators do.
//!
//! Some memory is allocated at first use: the columns in the protocol's encoding, an output bound
//! to its schema, the reference count of a shared constant. It is counted from the beginning, so
//! the sum never changes while the plan is cached. Schemas and the types in them belong to their
//! tables, and are not counted.

use crate::api::{ColumnSpec, ResultMetadata};
use crate::attributes::Attributes;
use crate::checked::SortedSet;
use crate::modify::json::{JsonColumns, JsonInsert};
use crate::modify::operation::{Change, Operation};
use crate::modify::{Modify, ReadFirst};
use crate::plan::{BatchPlan, Plan, Planned};
use crate::restrictions::clustering::Tuple;
use crate::restrictions::filter::Test;
use crate::restrictions::{Clustering, Filter, InList, Op, Partition, Restrictions};
use crate::select::aggregate::Aggregate;
use crate::select::group::Grouping;
use crate::select::selector::{CellTime, Selector};
use crate::select::{Select, Shape, SortKey};
use crate::term::Term;
use crate::term::function::Function;
use bytes::Bytes;
use model::range::{RowRange, Slice};
use model::types::wire;
use model::{ColumnId, CqlType, SchemaVersion, TableId};
use replica::{Output, OutputColumn};
use smallvec::{Array, SmallVec};
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// The two reference counts of an `Rc` allocation, in bytes.
const COUNTS: usize = 2 * size_of::<usize>();
/// The header that a cloned `Bytes` allocates in addition to its bytes.
const SHARED: usize = 3 * size_of::<usize>();

/// The memory of an allocation of this many bytes. Allocators have four size classes for each power
/// of two, at least 16 bytes apart.
fn allocation(bytes: usize) -> usize {
    let step = (bytes.next_power_of_two() / 8).max(16);
    bytes.next_multiple_of(step)
}

/// A value that owns memory outside of itself.
pub(crate) trait Footprint {
    /// The bytes of that memory, without the bytes of the value itself.
    fn footprint(&self) -> usize;
}

macro_rules! nothing_behind {
    ($($ty:ty)*) => {
        $(impl Footprint for $ty {
            fn footprint(&self) -> usize {
                0
            }
        })*
    };
}

nothing_behind!(str bool usize u16 u32 Uuid ColumnId TableId SchemaVersion OutputColumn CqlType SortKey);

macro_rules! sum_of_fields {
    ($($ty:ty { $($field:ident)* })*) => {
        $(impl Footprint for $ty {
            fn footprint(&self) -> usize {
                0 $(+ self.$field.footprint())*
            }
        })*
    };
}

sum_of_fields! {
    Attributes { timestamp ttl timeout }
    Restrictions { partition clustering filters }
    Filter { name test rest }
    ColumnSpec { name }
    Aggregate { argument }
    CellTime { path }
    Grouping { slots partition clustering }
    Select {
        restrictions filter_slots output reduced shape slice sort grouping key_slots limit per_partition_limit attributes metadata
    }
    Operation { change }
    ReadFirst { columns output }
    JsonInsert { text specs columns }
    JsonColumns { columns }
    Modify { partition clustering operations statics attributes json read_first }
    BatchPlan { attributes statements }
}

impl<T: Footprint> Footprint for [T] {
    fn footprint(&self) -> usize {
        self.iter().map(Footprint::footprint).sum()
    }
}

impl<T: Footprint> Footprint for Option<T> {
    fn footprint(&self) -> usize {
        self.as_ref().map_or(0, Footprint::footprint)
    }
}

impl<T: Footprint + ?Sized> Footprint for Box<T> {
    fn footprint(&self) -> usize {
        allocation(size_of_val(&**self)) + (**self).footprint()
    }
}

/// Counted entirely, as if it were not shared.
impl<T: Footprint + ?Sized> Footprint for Rc<T> {
    fn footprint(&self) -> usize {
        allocation(COUNTS + size_of_val(&**self)) + (**self).footprint()
    }
}

/// Counted entirely, as if it were not shared.
impl<T: Footprint + ?Sized> Footprint for Arc<T> {
    fn footprint(&self) -> usize {
        allocation(COUNTS + size_of_val(&**self)) + (**self).footprint()
    }
}

impl Footprint for SortedSet {
    fn footprint(&self) -> usize {
        self.list().footprint() + allocation(self.len() * size_of::<u32>())
    }
}

impl<T: Footprint> Footprint for Vec<T> {
    fn footprint(&self) -> usize {
        allocation(self.capacity() * size_of::<T>()) + self[..].footprint()
    }
}

impl<A: Array<Item: Footprint>> Footprint for SmallVec<A> {
    fn footprint(&self) -> usize {
        let apart = if self.spilled() { allocation(self.capacity() * size_of::<A::Item>()) } else { 0 };
        apart + self[..].footprint()
    }
}

impl Footprint for String {
    fn footprint(&self) -> usize {
        allocation(self.capacity())
    }
}

impl Footprint for Bytes {
    fn footprint(&self) -> usize {
        if self.is_empty() { 0 } else { allocation(self.len()) + allocation(SHARED) }
    }
}

impl<A: Footprint, B: Footprint> Footprint for (A, B) {
    fn footprint(&self) -> usize {
        self.0.footprint() + self.1.footprint()
    }
}

impl<A: Footprint, B: Footprint, C: Footprint> Footprint for (A, B, C) {
    fn footprint(&self) -> usize {
        self.0.footprint() + self.1.footprint() + self.2.footprint()
    }
}

impl Footprint for Function {
    fn footprint(&self) -> usize {
        if let Function::Token(types) = self { types.footprint() } else { 0 }
    }
}

impl Footprint for Term {
    fn footprint(&self) -> usize {
        match self {
            Term::Null | Term::Variable(_) => 0,
            Term::Constant(bytes) => bytes.footprint(),
            Term::List(terms) | Term::Tuple(terms) => terms.footprint(),
            Term::Set(ty, terms) | Term::Vector(ty, terms) => ty.footprint() + terms.footprint(),
            Term::Map(ty, pairs) => ty.footprint() + pairs.footprint(),
            Term::TupleField(tuple, _) => tuple.footprint(),
            Term::Call(function, terms) => function.footprint() + terms.footprint(),
            Term::Folded(folded) => folded.footprint(),
        }
    }
}

impl Footprint for InList {
    fn footprint(&self) -> usize {
        match self {
            InList::Terms(terms) => terms.footprint(),
            InList::List(term) => term.footprint(),
            InList::Set(set) => set.footprint(),
        }
    }
}

impl Footprint for Op {
    fn footprint(&self) -> usize {
        match self {
            Op::Eq(term) | Op::Lower(term, _) | Op::Upper(term, _) => term.footprint(),
            Op::In(list) => list.footprint(),
        }
    }
}

impl Footprint for Partition {
    fn footprint(&self) -> usize {
        match self {
            Partition::All => 0,
            Partition::Keys(columns) => columns.footprint(),
            Partition::Token(ops) => ops.footprint(),
        }
    }
}

impl Footprint for Tuple {
    fn footprint(&self) -> usize {
        match self {
            Tuple::Eq(terms) | Tuple::Lower(terms, _) | Tuple::Upper(terms, _) => terms.footprint(),
            Tuple::In(tuples) => tuples.footprint(),
            Tuple::InList(term, _) => term.footprint(),
        }
    }
}

impl Footprint for Clustering {
    fn footprint(&self) -> usize {
        match self {
            Clustering::All => 0,
            Clustering::Columns { prefix, slice } => prefix.footprint() + slice.footprint(),
            Clustering::Tuples(tuples) => tuples.footprint(),
        }
    }
}

impl Footprint for Test {
    fn footprint(&self) -> usize {
        match self {
            Test::Compare(_, term) | Test::Contains(term) | Test::ContainsKey(term) => term.footprint(),
            Test::In(list, _) => list.footprint(),
            Test::Element(key, _, value) => key.footprint() + value.footprint(),
            Test::Tuple(tuple, _) => tuple.footprint(),
        }
    }
}

impl Footprint for Change {
    fn footprint(&self) -> usize {
        let boxed = match self {
            Change::SetIndex(place, _) | Change::SetKey(place, _) => allocation(size_of_val(&**place)),
            _ => 0,
        };
        boxed + self.terms().map(Footprint::footprint).sum::<usize>()
    }
}

impl Footprint for Selector {
    fn footprint(&self) -> usize {
        match self {
            Selector::Slot(_) | Selector::Aggregate(_) => 0,
            Selector::Term(term) => term.footprint(),
            Selector::Call(function, arguments) => function.footprint() + arguments.footprint(),
            Selector::Field(inner, _) => inner.footprint(),
            Selector::Element(inner, _, key) => inner.footprint() + key.footprint(),
            Selector::Slice(inner, _, from, to) => inner.footprint() + from.footprint() + to.footprint(),
            Selector::CellTime(wanted) => wanted.footprint(),
            Selector::Json(members) => members.footprint(),
        }
    }
}

impl Footprint for Shape {
    fn footprint(&self) -> usize {
        match self {
            Shape::Plain => 0,
            Shape::Rows(selectors) => selectors.footprint(),
            Shape::Aggregate(aggregates, selectors) => aggregates.footprint() + selectors.footprint(),
        }
    }
}

impl Footprint for Output {
    fn footprint(&self) -> usize {
        self.allocations().into_iter().map(allocation).sum()
    }
}

/// A slice that depends on no values covers whole partitions, so its bounds are empty.
impl Footprint for Slice {
    fn footprint(&self) -> usize {
        allocation(self.rows.capacity() * size_of::<RowRange>())
    }
}

/// Assumes that all columns belong to one table, as in nearly all results.
impl Footprint for ResultMetadata {
    fn footprint(&self) -> usize {
        let Some(first) = self.columns.first() else { return 0 };
        let names = first.keyspace.footprint() + first.table.footprint();
        let mut encoded = Vec::new();
        self.columns.iter().for_each(|column| wire::write_option(&column.ty, &mut encoded));
        // Its flags, and the names with their lengths.
        let lengths: usize = self.columns.iter().map(|column| 2 + column.name.len()).sum();
        let encoded = encoded.len() + 8 + first.keyspace.len() + first.table.len() + lengths;
        self.columns.footprint() + names + allocation(encoded)
    }
}

impl Footprint for Plan {
    fn footprint(&self) -> usize {
        match self {
            Plan::Select(select) => select.footprint(),
            Plan::Modify(modify) | Plan::Configure(modify) | Plan::Unwritable(modify) => modify.footprint(),
            Plan::Batch(batch) => batch.footprint(),
            Plan::Use(keyspace) => keyspace.footprint(),
            Plan::Truncate(truncate) => allocation(size_of_val(&**truncate)) + truncate.1.footprint(),
            Plan::Describe(describe) => allocation(size_of_val(&**describe)) + describe.1.footprint(),
            Plan::Schema(schema) => allocation(size_of_val(&**schema)) + schema.1.footprint(),
        }
    }
}

impl Footprint for Planned {
    fn footprint(&self) -> usize {
        // The columns of a SELECT are counted with its plan.
        let result = if let Plan::Select(_) = self.plan { 0 } else { self.result.footprint() };
        self.plan.footprint()
            + self.variables.footprint()
            + result
            + self.repeated.footprint()
            + self.in_lists.footprint()
            + self.partition_key_markers.footprint()
            + self.user_types.footprint()
            + self.tables.footprint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_rounded_up() {
        let rounded = [0, 1, 16, 17, 64, 65, 128, 129, 600, 1024, 1025].map(allocation);
        assert_eq!(rounded, [0, 16, 16, 32, 64, 80, 128, 160, 640, 1024, 1280]);
    }
}
