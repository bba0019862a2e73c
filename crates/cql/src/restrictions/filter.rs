//! Filters: conditions that are checked for each row after it was read, because neither the key nor
//! an index selects the rows.

use super::clustering::Tuple;
use super::like::Pattern;
use super::{InList, MAX_IN_VALUES, check_tuples, too_many_tuples};
use crate::checked::SortedSet;
use crate::error::Error;
use crate::syntax::ast::CompareOp;
use crate::term::{self, Env, Term};
use bytes::Bytes;
use model::CqlType;
use model::types::{ValueError, collection, compare};
use replica::OutputColumn;
use std::cmp::Ordering;

/// A condition on one or more columns.
#[derive(Clone, PartialEq, Debug)]
pub struct Filter {
    /// The first column, as reads return it.
    pub column: OutputColumn,
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: CqlType,
    /// The test.
    pub test: Test,
    /// The columns that follow it, for a condition on several columns.
    pub rest: Vec<(OutputColumn, CqlType)>,
}

/// The condition.
#[derive(Clone, PartialEq, Debug)]
pub enum Test {
    /// A comparison of the value.
    Compare(CompareOp, Term),
    /// The value is in the list. If `true`, it is not in the list.
    In(InList, bool),
    /// A collection contains this element, or a map this value.
    Contains(Term),
    /// A map contains this key.
    ContainsKey(Term),
    /// A comparison of the value under a map's key or at a list's index.
    Element(Term, CompareOp, Term),
    /// A comparison of all columns together with a tuple. If `true`, it is negated.
    Tuple(Tuple, bool),
}

/// A filter with its values.
#[derive(Debug)]
pub struct BoundFilter {
    ty: CqlType,
    rest: Vec<CqlType>,
    test: BoundTest,
}

#[derive(Debug)]
enum BoundTest {
    Never,
    Compare(Comparison),
    /// One of these, in order, or (true) none of them.
    In(Vec<Bytes>, bool),
    /// One of the values of a large list, or (true) none of them.
    InSet(SortedSet, bool),
    Contains(Bytes),
    ContainsKey(Bytes),
    Element(Bytes, Comparison),
    Tuples(Tuples),
    /// A bound of several columns. The first flag: whether it is a lower bound, otherwise an upper
    /// one. The second flag: whether it is inclusive. A component may be null.
    Bound(Vec<Option<Bytes>>, bool, bool),
}

/// The right side of a comparison.
#[derive(Debug)]
enum Comparison {
    Order(CompareOp, Bytes),
    Like(Box<Pattern>),
}

impl Comparison {
    fn held_bytes(&self) -> usize {
        match self {
            Comparison::Order(_, value) => value.len(),
            Comparison::Like(pattern) => pattern.held_bytes(),
        }
    }

    fn new(op: CompareOp, wanted: Bytes) -> Result<Comparison, Error> {
        Ok(match op {
            CompareOp::Like => Comparison::Like(Box::new(Pattern::new(&wanted)?)),
            op => Comparison::Order(op, wanted),
        })
    }

    fn holds(&self, ty: &CqlType, value: &[u8]) -> bool {
        let (op, wanted) = match self {
            Comparison::Like(pattern) => return pattern.matches(value),
            Comparison::Order(op, wanted) => (op, wanted),
        };
        let order = compare(ty, value, wanted);
        match op {
            CompareOp::Eq => order == Ordering::Equal,
            CompareOp::Ne => order != Ordering::Equal,
            CompareOp::Lt => order == Ordering::Less,
            CompareOp::Le => order != Ordering::Greater,
            CompareOp::Gt => order == Ordering::Greater,
            CompareOp::Ge => order != Ordering::Less,
            CompareOp::Like => unreachable!("LIKE is a pattern"),
        }
    }
}

impl Filter {
    /// Binds the values. A comparison with null is unknown, so it never holds. The same is true of
    /// `NOT IN` with a list that contains null.
    pub fn bind(&self, env: Env<'_>) -> Result<BoundFilter, Error> {
        let test = match &self.test {
            Test::Compare(op, term) => match term.evaluate_set(env)? {
                Some(value) => Some(BoundTest::Compare(Comparison::new(*op, value)?)),
                None => None,
            },
            Test::In(list, negated) if let Some((set, nulls)) = list.checked(env) => {
                (!(nulls && *negated)).then(|| BoundTest::InSet(set.clone(), *negated))
            }
            Test::In(list, negated) => {
                let (values, nulls) = list.values(env)?;
                let ordered = || ordered(values, |a, b| compare(&self.ty, a, b));
                (!(nulls && *negated)).then(|| BoundTest::In(ordered(), *negated))
            }
            Test::Contains(term) => term.evaluate_set(env)?.map(BoundTest::Contains),
            Test::ContainsKey(term) => term.evaluate_set(env)?.map(BoundTest::ContainsKey),
            Test::Element(key, op, term) => match (key.evaluate_set(env)?, term.evaluate_set(env)?) {
                (Some(key), Some(value)) => Some(BoundTest::Element(key, Comparison::new(*op, value)?)),
                _ => None,
            },
            Test::Tuple(tuple, negated) => self.bind_tuple(tuple, *negated, env)?,
        };
        let rest = self.rest.iter().map(|(_, ty)| ty.clone()).collect();
        Ok(BoundFilter { ty: self.ty.clone(), rest, test: test.unwrap_or(BoundTest::Never) })
    }
}

impl BoundFilter {
    /// The orders of the columns relative to the wanted components, pair by pair. `None` if one of
    /// a pair is null.
    fn orders<'s>(
        &'s self,
        slots: &'s [Option<Bytes>],
        at: &'s [usize],
        wanted: &'s [Option<Bytes>],
    ) -> impl Iterator<Item = Option<Ordering>> + 's {
        let types = std::iter::once(&self.ty).chain(&self.rest);
        at.iter()
            .zip(types)
            .zip(wanted)
            .map(|((at, ty), wanted)| Some(compare(ty, slots[*at].as_deref()?, wanted.as_deref()?)))
    }

    /// Whether the columns equal the tuple. `None` if unknown. A pair that differs decides, even if
    /// other components are null.
    fn equals(&self, slots: &[Option<Bytes>], at: &[usize], wanted: &[Option<Bytes>]) -> Option<bool> {
        let mut unknown = false;
        for order in self.orders(slots, at, wanted) {
            match order {
                Some(Ordering::Equal) => {}
                Some(_) => return Some(false),
                None => unknown = true,
            }
        }
        (!unknown).then_some(true)
    }

    /// The order of the columns relative to the tuple. `None` if a null precedes the first pair
    /// that differs.
    fn compare_all(&self, slots: &[Option<Bytes>], at: &[usize], wanted: &[Option<Bytes>]) -> Option<Ordering> {
        for order in self.orders(slots, at, wanted) {
            match order? {
                Ordering::Equal => {}
                order => return Some(order),
            }
        }
        Some(Ordering::Equal)
    }

    /// Work for a row in addition to the work of its bytes, counted in examined bytes.
    pub fn work(&self) -> usize {
        match &self.test {
            BoundTest::Tuples(tuples) => tuples.with_nulls.len() * size_of::<Vec<Option<Bytes>>>(),
            _ => 0,
        }
    }

    /// The bytes of the values that it holds.
    pub fn held_bytes(&self) -> usize {
        let each = |values: &[Option<Bytes>]| values.iter().flatten().map(Bytes::len).sum::<usize>();
        match &self.test {
            BoundTest::Never => 0,
            BoundTest::Compare(comparison) => comparison.held_bytes(),
            BoundTest::In(values, _) => values.iter().map(Bytes::len).sum(),
            BoundTest::InSet(set, _) => set.element_bytes(),
            BoundTest::Contains(value) | BoundTest::ContainsKey(value) => value.len(),
            BoundTest::Element(key, comparison) => key.len() + comparison.held_bytes(),
            BoundTest::Tuples(tuples) => tuples.whole.iter().chain(&tuples.with_nulls).map(|tuple| each(tuple)).sum(),
            BoundTest::Bound(values, ..) => each(values),
        }
    }

    /// Whether the row passes the filter. `at` has the slots of the filter's columns. A row whose
    /// first column is null never passes.
    pub fn accepts(&self, slots: &[Option<Bytes>], at: &[usize]) -> bool {
        let Some(value) = at.first().and_then(|at| slots[*at].as_deref()) else { return false };
        match &self.test {
            BoundTest::Never => false,
            BoundTest::Tuples(Tuples { whole, with_nulls, negated }) => {
                // Of columns with a null neither `IN` nor `NOT IN` is ever true.
                if at.iter().any(|at| slots[*at].is_none()) {
                    return false;
                }
                // The columns are on the left side: the search is for their position.
                let order = |wanted: &Vec<Option<Bytes>>| {
                    self.compare_all(slots, at, wanted).unwrap_or(Ordering::Equal).reverse()
                };
                if whole.binary_search_by(order).is_ok() {
                    return !negated;
                }
                *negated && with_nulls.iter().all(|wanted| self.equals(slots, at, wanted) == Some(false))
            }
            BoundTest::Bound(wanted, lower, inclusive) => match self.compare_all(slots, at, wanted) {
                None => false,
                Some(Ordering::Equal) => *inclusive,
                Some(order) => (order == Ordering::Greater) == *lower,
            },
            BoundTest::Compare(wanted) => wanted.holds(&self.ty, value),
            BoundTest::In(wanted, negated) => {
                wanted.binary_search_by(|wanted| compare(&self.ty, wanted, value)).is_ok() != *negated
            }
            BoundTest::InSet(wanted, negated) => wanted.contains(&self.ty, value) != *negated,
            BoundTest::Contains(wanted) => match &self.ty {
                CqlType::List { elem, .. } | CqlType::Set { elem, .. } => {
                    elements(value).any(|element| compare(elem, element, wanted) == Ordering::Equal)
                }
                CqlType::Map { value: ty, .. } => {
                    pairs(value).any(|(_, element)| compare(ty, element, wanted) == Ordering::Equal)
                }
                _ => false,
            },
            BoundTest::ContainsKey(wanted) => match &self.ty {
                CqlType::Map { key, .. } => pairs(value).any(|(k, _)| compare(key, k, wanted) == Ordering::Equal),
                _ => false,
            },
            BoundTest::Element(key, wanted) => match &self.ty {
                CqlType::Map { key: key_type, value: ty, .. } => pairs(value)
                    .find(|(k, _)| compare(key_type, k, key) == Ordering::Equal)
                    .is_some_and(|(_, element)| wanted.holds(ty, element)),
                CqlType::List { elem, .. } => {
                    let index = <[u8; 4]>::try_from(&key[..]).map(i32::from_be_bytes).ok();
                    let index = index.and_then(|index| usize::try_from(index).ok());
                    index
                        .and_then(|index| elements(value).nth(index))
                        .is_some_and(|element| wanted.holds(elem, element))
                }
                _ => false,
            },
        }
    }
}

impl Filter {
    /// Binds a condition on several columns. `None` if no row can pass.
    fn bind_tuple(&self, tuple: &Tuple, negated: bool, env: Env<'_>) -> Result<Option<BoundTest>, Error> {
        let wrong = |error: ValueError| Error::invalid(error.to_string());
        let mut bytes = 0;
        let mut value = |term: &Term| -> Result<Option<Bytes>, Error> {
            let value = term.evaluate_set(env)?;
            bytes += value.as_ref().map_or(0, Bytes::len);
            term::check_bytes(bytes).map(|()| value)
        };
        let mut values =
            |terms: &[Term]| -> Result<Vec<Option<Bytes>>, Error> { terms.iter().map(&mut value).collect() };
        Ok(Some(match tuple {
            Tuple::Eq(terms) => BoundTest::Tuples(self.tuples(vec![values(terms)?], negated)),
            Tuple::Lower(terms, inclusive) => BoundTest::Bound(values(terms)?, true, *inclusive),
            Tuple::Upper(terms, inclusive) => BoundTest::Bound(values(terms)?, false, *inclusive),
            Tuple::In(tuples) if tuples.len() > MAX_IN_VALUES => return Err(too_many_tuples(tuples.len())),
            Tuple::In(tuples) => {
                let all = tuples.iter().map(|terms| values(terms)).collect::<Result<_, _>>()?;
                BoundTest::Tuples(self.tuples(all, negated))
            }
            Tuple::InList(term, count) => {
                check_tuples(term, env)?;
                let Some((list, nulls)) = term.evaluate_in_list(env)? else { return Ok(None) };
                if nulls && negated {
                    return Ok(None);
                }
                let mut all = Vec::new();
                for tuple in collection::elements(&list).map_err(wrong)? {
                    let fields = collection::fields(tuple.map_err(wrong)?);
                    let mut values: Vec<Option<Bytes>> = fields
                        .map(|field| Ok(field.map_err(wrong)?.map(|field| list.slice_ref(field))))
                        .collect::<Result<_, Error>>()?;
                    // Missing fields at the end of a tuple are null.
                    values.resize(*count, None);
                    all.push(values);
                }
                BoundTest::Tuples(self.tuples(all, negated))
            }
        }))
    }

    fn tuples(&self, all: Vec<Vec<Option<Bytes>>>, negated: bool) -> Tuples {
        let (whole, mut with_nulls): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|tuple| tuple.iter().all(Option::is_some));
        if !negated {
            // Nothing is equal to a tuple with a null.
            with_nulls.clear();
        }
        let types = || std::iter::once(&self.ty).chain(self.rest.iter().map(|(_, ty)| ty));
        let order = |a: &Vec<Option<Bytes>>, b: &Vec<Option<Bytes>>| {
            let pairs = types().zip(a.iter().flatten().zip(b.iter().flatten()));
            pairs.map(|(ty, (a, b))| compare(ty, a, b)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        };
        Tuples { whole: ordered(whole, order), with_nulls, negated }
    }
}

/// Tuples of which the columns are one, or (negated) none.
#[derive(Debug)]
struct Tuples {
    /// Those without a null, in order.
    whole: Vec<Vec<Option<Bytes>>>,
    /// Those with one. They only matter to `NOT IN`: the test is unknown unless all of them differ.
    with_nulls: Vec<Vec<Option<Bytes>>>,
    negated: bool,
}

fn ordered<T>(mut values: Vec<T>, order: impl FnMut(&T, &T) -> Ordering) -> Vec<T> {
    values.sort_by(order);
    values
}

fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    collection::elements(value).into_iter().flatten().map_while(Result::ok)
}

fn pairs(value: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    collection::pairs(value).into_iter().flatten().map_while(Result::ok)
}
