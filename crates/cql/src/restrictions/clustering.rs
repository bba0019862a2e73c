//! The clustering restrictions of a statement: full keys, prefixes and ranges, also over several
//! columns with mixed orders.

use super::{
    MAX_CLUSTERING_PREFIXES, Op, Ops, Sameness, bound, check_length, check_tuples, combinations, null, values,
};
use crate::error::Error;
use crate::term::{Env, Term};
use bytes::Bytes;
use model::TableSchema;
use model::key::{self, ClusteringCut, MAX_KEY_BYTES, push_component};
use model::range::RowRange;
use model::schema::ClusteringOrder;
use model::types::{ValueError, collection, compare};
use smallvec::SmallVec;
use std::cmp::Ordering;

/// Restrictions of the clustering key.
#[derive(Clone, PartialEq, Debug)]
pub enum Clustering {
    /// No restriction.
    All,
    /// Restrictions of single columns.
    Columns {
        /// Values of the first columns.
        prefix: Box<[Ops]>,
        /// Bounds of the column after them.
        slice: Box<[Op]>,
    },
    /// Restrictions of several columns together. All of them must hold.
    Tuples(Box<[Tuple]>),
}

/// A relation of the first clustering columns together.
#[derive(Clone, PartialEq, Debug)]
pub enum Tuple {
    /// `=`.
    Eq(Vec<Term>),
    /// `IN` of tuples.
    In(Vec<Vec<Term>>),
    /// `IN` with a variable: a list of tuples of this many columns.
    InList(Term, usize),
    /// `>` or `>=`.
    Lower(Vec<Term>, bool),
    /// `<` or `<=`.
    Upper(Vec<Term>, bool),
}

impl Tuple {
    /// The number of columns.
    pub fn width(&self) -> usize {
        match self {
            Tuple::Eq(terms) | Tuple::Lower(terms, _) | Tuple::Upper(terms, _) => terms.len(),
            Tuple::In(tuples) => tuples.first().map_or(0, Vec::len),
            Tuple::InList(_, count) => *count,
        }
    }
}

/// The rows that a request selects.
#[derive(Clone, PartialEq, Debug)]
pub enum Rows {
    /// Single rows by their full keys, distinct, in the table's order.
    Keys(SmallVec<[key::Clustering; 1]>),
    /// Ranges without overlaps, in the table's order.
    Ranges(Vec<RowRange>),
}

impl Rows {
    /// Converts keys to ranges.
    pub fn into_ranges(self) -> Vec<RowRange> {
        match self {
            Rows::Keys(keys) => keys.into_iter().map(RowRange::prefix).collect(),
            Rows::Ranges(ranges) => ranges,
        }
    }
}

impl Clustering {
    /// Whether every clustering column is restricted to values, so that rows are selected by their
    /// full keys.
    pub fn is_full(&self, schema: &TableSchema) -> bool {
        let columns = schema.clustering.len();
        match self {
            Clustering::All => columns == 0,
            Clustering::Columns { prefix, slice } => slice.is_empty() && prefix.len() == columns,
            Clustering::Tuples(tuples) => tuples.iter().any(|tuple| match tuple {
                Tuple::Eq(terms) => terms.len() == columns,
                Tuple::In(tuples) => tuples.iter().all(|terms| terms.len() == columns),
                Tuple::InList(_, count) => *count == columns,
                Tuple::Lower(..) | Tuple::Upper(..) => false,
            }),
        }
    }

    /// Whether at most one row of a partition can match.
    pub fn is_one_row(&self, schema: &TableSchema) -> bool {
        match self {
            Clustering::Columns { prefix, .. } => {
                self.is_full(schema) && prefix.iter().all(|ops| ops.iter().any(|op| matches!(op, Op::Eq(_))))
            }
            Clustering::All => schema.clustering.is_empty(),
            Clustering::Tuples(tuples) => {
                self.is_full(schema) && tuples.iter().any(|tuple| matches!(tuple, Tuple::Eq(_)))
            }
        }
    }

    /// The rows selected with these values.
    pub fn evaluate(&self, schema: &TableSchema, env: Env<'_>, write: bool) -> Result<Rows, Error> {
        match self {
            Clustering::All if schema.clustering.is_empty() => {
                Ok(Rows::Keys(SmallVec::from_elem(key::Clustering::EMPTY, 1)))
            }
            Clustering::All => Ok(Rows::Ranges(vec![RowRange::FULL])),
            Clustering::Columns { prefix, slice } => by_column(prefix, slice, schema, env, write),
            Clustering::Tuples(tuples) => {
                let mut ranges = vec![RowRange::FULL];
                for tuple in tuples {
                    ranges = intersection(&ranges, &tuple_ranges(tuple, schema, env, write)?, &schema.order);
                }
                if !self.is_full(schema) {
                    return Ok(Rows::Ranges(ranges));
                }
                Ok(Rows::Keys(ranges.into_iter().map(|range| range.start.prefix).collect()))
            }
        }
    }
}

fn by_column(prefix: &[Ops], slice: &[Op], schema: &TableSchema, env: Env<'_>, write: bool) -> Result<Rows, Error> {
    let mut components: SmallVec<[SmallVec<[Bytes; 1]>; 4]> = SmallVec::new();
    for (ops, column) in prefix.iter().zip(&schema.clustering) {
        let mut values = values(ops, &column.ty, &column.name, Sameness::Order, env, write)?;
        for value in &values {
            check_length(value)?;
        }
        if column.descending {
            values.reverse();
        }
        components.push(values);
    }
    let total = combinations(components.iter().map(|values| values.len()), MAX_CLUSTERING_PREFIXES, "clustering")?;
    let mut prefixes: SmallVec<[key::Clustering; 1]> = SmallVec::with_capacity(total);
    for number in 0..total {
        let mut chosen: SmallVec<[&[u8]; 4]> = SmallVec::new();
        let mut rest = number;
        for values in components.iter().rev() {
            chosen.push(&values[rest % values.len()]);
            rest /= values.len();
        }
        let mut out = Vec::with_capacity(chosen.iter().map(|component| component.len() + 2).sum());
        if chosen.len() > 1 && out.capacity() > MAX_KEY_BYTES {
            check_total(&chosen)?;
        }
        chosen.iter().rev().for_each(|component| push_component(&mut out, component));
        prefixes.push(key::Clustering(out.into()));
    }
    if slice.is_empty() {
        if prefix.len() == schema.clustering.len() {
            return Ok(Rows::Keys(prefixes));
        }
        return Ok(Rows::Ranges(prefixes.into_iter().map(RowRange::prefix).collect()));
    }
    let column = &schema.clustering[prefix.len()];
    let (mut lower, mut upper) = (None, None);
    for op in slice {
        let (Op::Lower(term, inclusive) | Op::Upper(term, inclusive)) = op else { continue };
        let Some(value) = bound(term, &column.name, env, write)? else { return Ok(Rows::Ranges(Vec::new())) };
        check_length(&value)?;
        let (side, stronger) = match op {
            Op::Lower(..) => (&mut lower, Ordering::Greater),
            _ => (&mut upper, Ordering::Less),
        };
        let replaces = |(before, before_inclusive): &(Bytes, bool)| match compare(&column.ty, &value, before) {
            Ordering::Equal => *before_inclusive && !inclusive,
            order => order == stronger,
        };
        if side.as_ref().is_none_or(replaces) {
            *side = Some((value, *inclusive));
        }
    }
    let mut out = Vec::with_capacity(prefixes.len());
    for prefix in &prefixes {
        let lower = lower.as_ref().map(|(value, inclusive)| (&value[..], *inclusive));
        let upper = upper.as_ref().map(|(value, inclusive)| (&value[..], *inclusive));
        let range = slice_of(prefix, lower, upper, column.descending);
        if !range.is_empty(&schema.order) {
            out.push(range);
        }
    }
    Ok(Rows::Ranges(out))
}

/// Checks that the components of a key fit a 16-bit length together.
fn check_total<B: AsRef<[u8]>>(components: &[B]) -> Result<(), Error> {
    let total: usize = components.iter().map(|component| component.as_ref().len() + 2).sum();
    if components.len() > 1 && total > MAX_KEY_BYTES {
        return Err(Error::invalid(format!("Key length of {total} is longer than maximum of {MAX_KEY_BYTES}")));
    }
    Ok(())
}

/// The range of rows that begin with `prefix` and whose next component is between the bounds.
fn slice_of(
    prefix: &key::Clustering,
    lower: Option<(&[u8], bool)>,
    upper: Option<(&[u8], bool)>,
    descending: bool,
) -> RowRange {
    let (first, last) = if descending { (upper, lower) } else { (lower, upper) };
    let with = |value: &[u8]| {
        let mut out = Vec::with_capacity(prefix.0.len() + value.len() + 2);
        out.extend_from_slice(&prefix.0);
        push_component(&mut out, value);
        key::Clustering(out.into())
    };
    RowRange {
        start: match first {
            Some((value, inclusive)) => ClusteringCut { prefix: with(value), after: !inclusive },
            None => ClusteringCut::before(prefix.clone()),
        },
        end: match last {
            Some((value, inclusive)) => ClusteringCut { prefix: with(value), after: inclusive },
            None => ClusteringCut::after(prefix.clone()),
        },
    }
}

/// The intersection of two sets of ranges, in order.
fn intersection(a: &[RowRange], b: &[RowRange], order: &ClusteringOrder) -> Vec<RowRange> {
    let mut out = Vec::new();
    for x in a {
        for y in b {
            let start = if x.start.cmp(order, &y.start) == Ordering::Less { &y.start } else { &x.start };
            let end = if x.end.cmp(order, &y.end) == Ordering::Greater { &y.end } else { &x.end };
            let range = RowRange { start: start.clone(), end: end.clone() };
            if !range.is_empty(order) {
                out.push(range);
            }
        }
    }
    out.sort_by(|x, y| x.start.cmp(order, &y.start));
    out
}

/// The components of a tuple. As in ScyllaDB, null is an error here, unlike in restrictions of
/// single columns.
fn components(terms: &[Term], schema: &TableSchema, env: Env<'_>) -> Result<Vec<Bytes>, Error> {
    let mut out = Vec::with_capacity(terms.len());
    for (term, column) in terms.iter().zip(&schema.clustering) {
        let value = bound(term, &column.name, env, true)?.ok_or_else(|| null(&column.name))?;
        check_length(&value)?;
        out.push(value);
    }
    check_total(&out)?;
    Ok(out)
}

fn wrong(error: ValueError) -> Error {
    Error::invalid(error.to_string())
}

fn encode(components: &[Bytes]) -> key::Clustering {
    key::Clustering::from_components(components.iter().map(|component| &component[..]))
}

fn tuple_ranges(tuple: &Tuple, schema: &TableSchema, env: Env<'_>, write: bool) -> Result<Vec<RowRange>, Error> {
    let order = &schema.order;
    let mut out = Vec::new();
    match tuple {
        Tuple::Eq(terms) => {
            out.push(RowRange::prefix(encode(&components(terms, schema, env)?)));
        }
        Tuple::In(tuples) => {
            combinations(std::iter::once(tuples.len()), MAX_CLUSTERING_PREFIXES, "clustering")?;
            for terms in tuples {
                out.push(RowRange::prefix(encode(&components(terms, schema, env)?)));
            }
        }
        Tuple::InList(term, count) => {
            check_tuples(term, env)?;
            let names = || schema.clustering[..*count].iter().map(|column| column.name.as_str());
            let null_list = || null(&names().collect::<Vec<_>>().join(", "));
            let found = term.evaluate_in_list(env)?;
            if write && found.as_ref().is_none_or(|(_, nulls)| *nulls) {
                return Err(null_list());
            }
            let Some((list, _)) = found else { return Ok(out) };
            for tuple in collection::elements(&list).map_err(wrong)? {
                let mut fields = collection::fields(tuple.map_err(wrong)?);
                let mut values = Vec::with_capacity(*count);
                for name in names() {
                    // A tuple may be shorter than its type: the rest of its fields are null.
                    match fields.next().transpose().map_err(wrong)?.flatten() {
                        Some(field) => {
                            check_length(field)?;
                            values.push(list.slice_ref(field));
                        }
                        None if write => return Err(null(name)),
                        None => break,
                    }
                }
                // No row equals a tuple with a null.
                if values.len() == *count {
                    check_total(&values)?;
                    out.push(RowRange::prefix(encode(&values)));
                }
            }
            combinations(std::iter::once(out.len()), MAX_CLUSTERING_PREFIXES, "clustering")?;
        }
        Tuple::Lower(terms, inclusive) | Tuple::Upper(terms, inclusive) => {
            let values = components(terms, schema, env)?;
            half(&values, matches!(tuple, Tuple::Lower(..)), *inclusive, schema, &mut out);
        }
    }
    out.sort_by(|x, y| x.start.cmp(order, &y.start));
    // By the order of the columns: the decimals 1 and 1.0 are one row.
    out.dedup_by(|x, y| x.start.cmp(order, &y.start).is_eq() && x.end.cmp(order, &y.end).is_eq());
    Ok(out)
}

/// The rows above or below a tuple. They form one range for each column, because columns may have
/// opposite orders.
fn half(values: &[Bytes], above: bool, inclusive: bool, schema: &TableSchema, out: &mut Vec<RowRange>) {
    for (i, value) in values.iter().enumerate() {
        let inclusive = inclusive && i + 1 == values.len();
        let (lower, upper) =
            if above { (Some((&value[..], inclusive)), None) } else { (None, Some((&value[..], inclusive))) };
        let range = slice_of(&encode(&values[..i]), lower, upper, schema.clustering[i].descending);
        if !range.is_empty(&schema.order) {
            out.push(range);
        }
    }
}
