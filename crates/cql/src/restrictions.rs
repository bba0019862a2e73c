//! WHERE clauses: the partitions, the clustering ranges, and the filters of a statement.
//!
//! [`analyse`] groups the relations of a statement by column, and refuses relations that cannot be
//! evaluated. The result is evaluated once per request: [`Partition`] to keys or a range of the
//! ring, [`Clustering`] to rows or ranges of rows in the table's order. [`filter::Filter`]s are
//! checked for each row that is read. Several relations on one column must all hold.
//!
//! Logic is three-valued: a comparison with null is unknown, neither true nor false. A read returns
//! the rows for which the entire clause is true. So `v = null` and `v IN (null)` match nothing, and
//! `v NOT IN (5, null)` matches nothing either. A null in a write is an error. As in ScyllaDB, so
//! is a null in the bounds of `token()` and in tuples that select rows.

pub mod analyse;
pub mod canonical;
pub mod clustering;
pub mod filter;
mod like;
pub mod partition;
mod relation;

pub use analyse::{Purpose, analyse};
pub use clustering::{Clustering, Rows};
pub use filter::Filter;
pub use partition::{Partition, Partitions};

use crate::checked::SortedSet;
use crate::error::Error;
use crate::term::{self, Env, Term, Val};
use bytes::Bytes;
use clustering::Tuple;
use filter::Test;
use model::CqlType;
use model::key::MAX_KEY_BYTES;
use model::types::{collection, compare};
use smallvec::{SmallVec, smallvec};
use std::cmp::Ordering;

/// The most partitions that one statement may select by key.
pub const MAX_PARTITION_KEYS: usize = 100;
/// The most rows or row prefixes that one statement may select.
pub const MAX_CLUSTERING_PREFIXES: usize = 100;
/// The most distinct values of one large bound IN list for a key column, or of tuples. It bounds
/// the work before the other restrictions of the statement apply.
pub const MAX_IN_VALUES: usize = 1 << 16;

/// The restrictions of a WHERE clause.
#[derive(Clone, PartialEq, Debug)]
pub struct Restrictions {
    /// The partitions.
    pub partition: Partition,
    /// The rows.
    pub clustering: Clustering,
    /// The conditions on each row that is read.
    pub filters: Box<[Filter]>,
}

/// Adds the variables that hold IN lists.
pub(crate) fn add_in_lists(partition: &Partition, clustering: &Clustering, filters: &[Filter], out: &mut Vec<u16>) {
    let mut add = |term: &Term| {
        if let Term::Variable(number) = term {
            out.push(*number);
        }
    };
    let mut add_ops = |ops: &[Op]| {
        for op in ops {
            if let Op::In(InList::List(term)) = op {
                add(term);
            }
        }
    };
    if let Partition::Keys(columns) = partition {
        columns.iter().for_each(|ops| add_ops(ops));
    }
    match clustering {
        Clustering::All => {}
        Clustering::Columns { prefix, .. } => prefix.iter().for_each(|ops| add_ops(ops)),
        Clustering::Tuples(tuples) => tuples.iter().for_each(|tuple| {
            if let Tuple::InList(term, _) = tuple {
                add(term);
            }
        }),
    }
    for filter in filters {
        if let Test::In(InList::List(term), _) | Test::Tuple(Tuple::InList(term, _), _) = &filter.test {
            add(term);
        }
    }
}

/// A relation of one key column.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// `=`.
    Eq(Term),
    /// `IN`.
    In(InList),
    /// `>` or `>=`.
    Lower(Term, bool),
    /// `<` or `<=`.
    Upper(Term, bool),
}

/// All relations of a key column, usually one.
pub type Ops = SmallVec<[Op; 1]>;

impl Op {
    /// Whether it selects values (`=`, `IN`) instead of bounding them.
    pub fn is_values(&self) -> bool {
        matches!(self, Op::Eq(_) | Op::In(_))
    }
}

/// The right side of IN.
#[derive(Clone, PartialEq, Debug)]
pub enum InList {
    /// A list of terms.
    Terms(Vec<Term>),
    /// A variable that holds the entire list.
    List(Term),
    /// A long list of constants, sorted, and whether there are also nulls.
    Set(Box<(SortedSet, bool)>),
}

impl InList {
    /// The values, if they are a large list that was sorted off the shard, and whether there are
    /// also nulls.
    pub(crate) fn checked<'a>(&'a self, env: Env<'a>) -> Option<(&'a SortedSet, bool)> {
        match self {
            InList::List(term) => term.checked_set(env),
            InList::Terms(_) => None,
            InList::Set(set) => Some((&set.0, set.1)),
        }
    }

    /// The values, unordered, and whether there are also nulls. A null list counts as one null.
    pub fn values(&self, env: Env<'_>) -> Result<(Vec<Bytes>, bool), Error> {
        match self {
            InList::Terms(terms) => {
                let mut values = Vec::with_capacity(terms.len());
                let mut bytes = 0;
                for term in terms {
                    let value = term.evaluate_set(env)?;
                    bytes += value.as_ref().map_or(0, Bytes::len);
                    term::check_bytes(bytes)?;
                    values.extend(value);
                }
                let nulls = values.len() < terms.len();
                Ok((values, nulls))
            }
            InList::List(term) => {
                let Some((list, nulls)) = term.evaluate_in_list(env)? else { return Ok((Vec::new(), true)) };
                Ok((elements_of(&list)?, nulls))
            }
            InList::Set(set) => Ok((elements_of(set.0.list())?, set.1)),
        }
    }
}

fn elements_of(list: &Bytes) -> Result<Vec<Bytes>, Error> {
    let wrong = |error: model::types::ValueError| Error::invalid(error.to_string());
    let elements = collection::elements(list).map_err(wrong)?;
    elements.map(|element| element.map(|element| list.slice_ref(element))).collect::<Result<_, _>>().map_err(wrong)
}

/// How two values of a primary key column are compared for equality.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sameness {
    /// By bytes, for partition keys: the decimals 1 and 1.0 are two partitions.
    Bytes,
    /// By the order of the column's type, for clustering columns.
    Order,
}

impl Sameness {
    /// Refuses a large IN list before its values are examined. `alone`: the column has no other
    /// relation, so each distinct value selects keys.
    fn check_count(self, set: &SortedSet, alone: bool) -> Result<(), Error> {
        let (count, limit, what) = match self {
            Sameness::Bytes => (set.len(), MAX_PARTITION_KEYS, "partition"),
            Sameness::Order => (set.unequal(), MAX_CLUSTERING_PREFIXES, "clustering"),
        };
        combinations(std::iter::once(count), if alone { limit } else { MAX_IN_VALUES }, what).map(drop)
    }

    fn compare(self, ty: &CqlType, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            Sameness::Bytes => compare(ty, a, b).then_with(|| a.cmp(b)),
            Sameness::Order => compare(ty, a, b),
        }
    }
}

/// The distinct values of a column that satisfy all relations, in the column's order. At least one
/// relation must select values.
pub(crate) fn values(
    ops: &[Op],
    ty: &CqlType,
    name: &str,
    same: Sameness,
    env: Env<'_>,
    write: bool,
) -> Result<SmallVec<[Bytes; 1]>, Error> {
    if let [Op::Eq(term)] = ops {
        let value = bound(term, name, env, write)?;
        return Ok(value.map_or_else(SmallVec::new, |value| SmallVec::from_buf([value])));
    }
    let mut found: Option<SmallVec<[Bytes; 1]>> = None;
    for op in ops {
        let mut these: SmallVec<[Bytes; 1]> = match op {
            Op::Eq(term) => bound(term, name, env, write)?.into_iter().collect(),
            Op::In(list) => {
                if let Some((set, _)) = list.checked(env) {
                    same.check_count(set, ops.len() == 1)?;
                }
                let (values, nulls) = list.values(env)?;
                if nulls && write {
                    return Err(null(name));
                }
                values.into()
            }
            Op::Lower(..) | Op::Upper(..) => continue,
        };
        these.sort_by(|a, b| same.compare(ty, a, b));
        these.dedup_by(|a, b| same.compare(ty, a, b) == Ordering::Equal);
        found = Some(match found {
            Some(before) => {
                let allowed = |value: &Bytes| these.binary_search_by(|other| same.compare(ty, other, value)).is_ok();
                before.into_iter().filter(allowed).collect()
            }
            None => these,
        });
    }
    let mut found = found.unwrap_or_default();
    for op in ops {
        let (Op::Lower(term, inclusive) | Op::Upper(term, inclusive)) = op else { continue };
        let Some(bound) = bound(term, name, env, write)? else { return Ok(smallvec![]) };
        let side = if matches!(op, Op::Lower(..)) { Ordering::Greater } else { Ordering::Less };
        found.retain(|value| {
            let order = compare(ty, value, &bound);
            order == side || (*inclusive && order == Ordering::Equal)
        });
    }
    Ok(found)
}

/// The value on the right side of a relation. `None` if it is null, so that nothing matches.
#[inline]
pub(crate) fn bound(term: &Term, name: &str, env: Env<'_>, write: bool) -> Result<Option<Bytes>, Error> {
    match term.evaluate(env)? {
        Val::Unset => Err(unset(name)),
        Val::Null if write => Err(null(name)),
        value => Ok(value.into_bytes()),
    }
}

#[cold]
pub(crate) fn unset(name: &str) -> Error {
    Error::invalid(format!("Invalid unset value for column {name}"))
}

#[cold]
pub(crate) fn null(name: &str) -> Error {
    Error::invalid(format!("Invalid null value in condition for column {name}"))
}

/// Checks that a key component fits its length field.
#[inline]
pub(crate) fn check_length(bytes: &[u8]) -> Result<(), Error> {
    if bytes.len() > MAX_KEY_BYTES { Err(too_long(bytes.len())) } else { Ok(()) }
}

#[cold]
fn too_long(length: usize) -> Error {
    Error::invalid(format!("Key length of {length} is longer than maximum of {MAX_KEY_BYTES}"))
}

/// Refuses a long list of tuples before its tuples are examined.
pub(crate) fn check_tuples(list: &Term, env: Env<'_>) -> Result<(), Error> {
    match list.checked_set(env) {
        Some((set, _)) if set.len() > MAX_IN_VALUES => Err(too_many_tuples(set.len())),
        _ => Ok(()),
    }
}

#[cold]
pub(crate) fn too_many_tuples(count: usize) -> Error {
    Error::invalid(format!("A list of {count} tuples for IN is longer than the limit of {MAX_IN_VALUES}"))
}

/// The number of combinations of values. An error if it exceeds the limit.
pub(crate) fn combinations(counts: impl Iterator<Item = usize>, limit: usize, what: &str) -> Result<usize, Error> {
    let product = counts.fold(1usize, usize::saturating_mul);
    if product > limit {
        return Err(Error::invalid(format!(
            "{what} key cartesian product size {product} is greater than maximum {limit}"
        )));
    }
    Ok(product)
}

#[cfg(test)]
mod tests;
