//! Reduction of rows: if only aggregates of all rows are requested, a page has one row of partial
//! results in place of its rows.
//!
//! Each value of that row is the state of an [`Accumulator`] over the rows of the page. A page
//! without rows has no such row. So pages can be concatenated like others. The end of a page and
//! its digest do not depend on the reduction: replicas are compared and reconciled by the rows
//! themselves.

use crate::output::{Output, OutputColumn, write_value};
use model::CqlType;
use model::aggregate::{Accumulator, AggregateKind};
use model::schema::TableSchema;
use model::total::TotalError;

/// One aggregate of all rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reduction {
    /// The aggregate function.
    pub kind: AggregateKind,
    /// The output column that is aggregated. None: rows are counted.
    pub column: Option<u16>,
}

/// The reductions of an output over the rows of a page.
pub(crate) struct Reducer {
    parts: Vec<(Option<u16>, Accumulator)>,
    /// The values of the current row.
    pub row: Vec<u8>,
}

impl Reducer {
    /// A reducer for a page. None: the output has no reductions.
    pub fn new(output: &Output, schema: &TableSchema) -> Option<Reducer> {
        if output.reductions.is_empty() {
            return None;
        }
        let part = |reduction: &Reduction| {
            let column = reduction.column.and_then(|at| output.columns.get(usize::from(at)));
            // A column that was dropped has no values, so any type serves.
            let ty = column.and_then(|column| type_of(*column, schema)).unwrap_or(CqlType::Blob);
            (reduction.column, Accumulator::new(reduction.kind, &ty))
        };
        Some(Reducer { parts: output.reductions.iter().map(part).collect(), row: Vec::new() })
    }

    /// Adds the row whose values are in `row`, and clears `row`.
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

    /// Appends the partial results.
    pub fn finish(self, out: &mut Vec<u8>) {
        for (_, part) in self.parts {
            write_value(part.part().as_deref(), out);
        }
    }
}

/// The values of a row in the protocol's form (i32 length and bytes). Ends at the end or at
/// malformed bytes; a null value is `None`.
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

/// The type of a column's values. None: the schema has no such column, or its value is not a plain
/// one.
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
