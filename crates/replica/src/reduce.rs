//! Rows that are only reduced: where nothing but aggregates of all rows is wanted, a page has one row of parts of them instead of its rows.
//!
//! Each value of that row is what an [`Accumulator`] has seen on this page; a page without rows has none. So pages can be put together by
//! putting their bodies one behind the other, like others. Where a page ends, and what its digest is, does not depend on it: replicas are
//! compared, and brought together, by the rows themselves.

use crate::output::{Output, OutputColumn, write_value};
use model::CqlType;
use model::aggregate::{Accumulator, AggregateKind};
use model::schema::TableSchema;
use model::total::TotalError;

/// One aggregate of all rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reduction {
    /// What is computed.
    pub kind: AggregateKind,
    /// Of which output column; none: of rows.
    pub column: Option<u16>,
}

/// The reductions of an output over the rows of a page.
pub(crate) struct Reducer {
    parts: Vec<(Option<u16>, Accumulator)>,
    /// The values of the row at hand.
    pub row: Vec<u8>,
}

impl Reducer {
    /// Before the first row; none: the rows themselves are wanted.
    pub fn new(output: &Output, schema: &TableSchema) -> Option<Reducer> {
        if output.reductions.is_empty() {
            return None;
        }
        let part = |reduction: &Reduction| {
            let column = reduction.column.and_then(|at| output.columns.get(usize::from(at)));
            // Of a column that the schema does not have any more there are no values.
            let ty = column.and_then(|column| type_of(*column, schema)).unwrap_or(CqlType::Blob);
            (reduction.column, Accumulator::new(reduction.kind, &ty))
        };
        Some(Reducer { parts: output.reductions.iter().map(part).collect(), row: Vec::new() })
    }

    /// Takes in the row whose values are in `row`, and empties it.
    pub fn take_row(&mut self) -> Result<(), TotalError> {
        for (column, part) in &mut self.parts {
            match column {
                None => part.add_rows(1),
                Some(at) => {
                    if let Some(value) = values(&self.row).nth(usize::from(*at)).flatten() {
                        part.add(value)?;
                    }
                }
            }
        }
        self.row.clear();
        Ok(())
    }

    /// Appends what the rows came to.
    pub fn finish(self, out: &mut Vec<u8>) {
        for (_, part) in self.parts {
            write_value(part.part().as_deref(), out);
        }
    }
}

/// Values in the protocol's form, one after the other, up to the end or to what is none.
pub fn values(mut bytes: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    std::iter::from_fn(move || {
        let (len, rest) = bytes.split_first_chunk::<4>()?;
        let (value, rest) = match usize::try_from(i32::from_be_bytes(*len)) {
            Ok(len) => rest.split_at_checked(len).map(|(value, rest)| (Some(value), rest))?,
            Err(_) => (None, rest),
        };
        bytes = rest;
        Some(value)
    })
}

/// The type of a column's values; none: the schema has no such column, or it is no plain value.
fn type_of(column: OutputColumn, schema: &TableSchema) -> Option<CqlType> {
    let of = |columns: &[model::Column], at: u16| columns.get(usize::from(at)).map(|column| column.ty.clone());
    match column {
        OutputColumn::PartitionKey(at) => of(&schema.partition_key, at),
        OutputColumn::Clustering(at) => of(&schema.clustering, at),
        OutputColumn::Value(id) => schema.column(id).map(|column| column.ty.clone()),
        OutputColumn::WriteTime(_) => Some(CqlType::Bigint),
        OutputColumn::Ttl(_) => Some(CqlType::Int),
        OutputColumn::Elements(_) | OutputColumn::CellTimes(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end_where_the_bytes_do() {
        let row = [&[0, 0, 0, 1, 7][..], &[255; 4], &[0; 4]].concat();
        assert_eq!(values(&row).collect::<Vec<_>>(), [Some(&[7][..]), None, Some(&[][..])]);
        assert_eq!(values(&row[..4]).count() + values(&row[..3]).count(), 0);
        assert_eq!(values(&[0x7f, 255, 255, 255, 1]).count(), 0);
    }
}
