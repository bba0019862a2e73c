//! GROUP BY: which rows form a group, and where a page of groups ends.
//!
//! The columns are a prefix of the primary key, without columns that the statement restricts to one
//! value. So the rows of a group are adjacent. A page ends between two groups, at a position behind
//! the last one. The position does not depend on rows that are added to that group, or on which
//! rows of it another replica has.

use super::rows::Slots;
use crate::error::Error;
use crate::restrictions::analyse::output_of;
use crate::restrictions::clustering::Tuple;
use crate::restrictions::filter::Test;
use crate::restrictions::{Clustering, Op, Ops, Partition, Restrictions};
use crate::syntax::Name;
use crate::syntax::ast::CompareOp;
use model::key::{self, encode_partition_key};
use model::schema::{Column, ColumnKind, TableSchema};
use model::types::compare;
use replica::{OutputColumn, Position, Region};

/// A GROUP BY clause.
#[derive(Clone, PartialEq, Debug)]
pub struct Grouping {
    /// The output columns whose values all rows of a group share.
    pub slots: Box<[usize]>,
    /// The output columns that are the partition key.
    pub partition: Box<[usize]>,
    /// The output columns that are the clustering key. Empty for SELECT DISTINCT.
    pub clustering: Box<[usize]>,
}

impl Grouping {
    /// Whether two rows belong to the same group. Partition keys are compared by their bytes, and
    /// clustering columns by their order: the decimals 1 and 1.0 are one group.
    pub fn is_same(&self, schema: &TableSchema, a: &Slots, b: &Slots) -> bool {
        self.slots.iter().all(|slot| {
            a[*slot] == b[*slot] || {
                let column = self.clustering.iter().position(|clustering| clustering == slot);
                let ty = column.and_then(|at| schema.clustering.get(at)).map(|column| &column.ty);
                matches!((ty, &a[*slot], &b[*slot]), (Some(ty), Some(a), Some(b)) if compare(ty, a, b).is_eq())
            }
        })
    }

    /// The position at which a read continues after the group of a row.
    pub fn position(&self, row: &Slots) -> Position {
        let value = |slot: &usize| row[*slot].as_deref().unwrap_or_default();
        let mut key = Vec::new();
        encode_partition_key(&self.partition.iter().map(value).collect::<Vec<_>>(), &mut key);
        // A row with only static columns has no clustering key, and no row follows it in its
        // partition.
        let among_rows = self.clustering.first().is_some_and(|slot| row[*slot].is_some());
        let (region, prefix, weight) = match if among_rows { self.depth() } else { 0 } {
            0 => (Region::End, key::Clustering::EMPTY, 0),
            depth => {
                let prefix = key::Clustering::from_components(self.clustering[..depth].iter().map(value));
                (Region::Clustered, prefix, i8::from(depth < self.clustering.len()))
            }
        };
        Position { key: key.into(), region, prefix, weight }
    }

    /// The number of leading clustering columns that the rows of a group share.
    fn depth(&self) -> usize {
        self.clustering.iter().rposition(|slot| self.slots.contains(slot)).map_or(0, |last| last + 1)
    }
}

/// The columns of a GROUP BY clause, checked.
pub(super) fn columns<'s>(
    schema: &'s TableSchema,
    names: &[Name],
    restrictions: &Restrictions,
    distinct: bool,
) -> Result<Vec<&'s Column>, Error> {
    const ORDER: &str =
        "Group by currently only support groups of columns following their declared order in the PRIMARY KEY";
    let mut key = schema.partition_key.iter().chain(&schema.clustering);
    let mut out = Vec::with_capacity(names.len());
    for name in names {
        let column = schema.column_named(name);
        let column = column.ok_or_else(|| Error::invalid(format!("Group by unknown column {name}")))?;
        if !matches!(column.kind, ColumnKind::PartitionKey | ColumnKind::Clustering) {
            return Err(Error::invalid(format!(
                "Group by is currently only supported on the columns of the PRIMARY KEY, got {name}"
            )));
        }
        if distinct && column.kind == ColumnKind::Clustering {
            return Err(Error::invalid("Grouping on clustering columns is not allowed for SELECT DISTINCT queries"));
        }
        loop {
            let next = key.next().ok_or_else(|| Error::invalid(ORDER))?;
            if next.name == column.name {
                break;
            }
            if !is_fixed(next, restrictions) {
                return Err(Error::invalid(ORDER));
            }
        }
        out.push(column);
    }
    Ok(out)
}

/// Whether a column of the primary key is restricted to one value.
fn is_fixed(column: &Column, restrictions: &Restrictions) -> bool {
    let position = column.position as usize;
    let has_eq = |ops: Option<&Ops>| ops.is_some_and(|ops| ops.iter().any(|op| matches!(op, Op::Eq(_))));
    let by_key = match column.kind {
        ColumnKind::PartitionKey => {
            matches!(&restrictions.partition, Partition::Keys(columns) if has_eq(columns.get(position)))
        }
        _ => match &restrictions.clustering {
            Clustering::All => false,
            Clustering::Columns { prefix, .. } => has_eq(prefix.get(position)),
            Clustering::Tuples(tuples) => {
                tuples.iter().any(|tuple| matches!(tuple, Tuple::Eq(terms) if terms.len() > position))
            }
        },
    };
    let output = output_of(column);
    by_key
        || restrictions
            .filters
            .iter()
            .any(|filter| filter.column == output && matches!(filter.test, Test::Compare(CompareOp::Eq, _)))
}

/// The encoding of a column of the primary key in the hash that binds paging states.
pub(super) fn code(column: OutputColumn) -> [u8; 3] {
    let (kind, number) = match column {
        OutputColumn::PartitionKey(i) => (b'p', i),
        OutputColumn::Clustering(i) => (b'c', i),
        _ => (b'?', 0),
    };
    let [low, high] = number.to_le_bytes();
    [kind, low, high]
}
