//! Functions of collections: `map_keys`, `map_values`, `collection_count`, `collection_min`,
//! `collection_max`, `collection_sum`, `collection_avg`, and ScyllaDB's `set_intersection`.

use super::function::{Argument, Function, ResolvedFunction, full_name};
use super::numbers::is_number;
use crate::error::Error;
use crate::syntax::QualifiedName;
use bytes::Bytes;
use model::CqlType;
use model::total::Total;
use model::types::collection::ListBuilder;
use model::types::{ValueError, collection, compare};
use std::cmp::Ordering;

/// A function of one collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fold {
    /// The keys of a map, as a set.
    Keys,
    /// The values of a map, as a list.
    Values,
    /// The number of elements.
    Count,
    /// The smallest element.
    Min,
    /// The largest element.
    Max,
    /// The sum.
    Sum,
    /// The mean.
    Avg,
}

impl Fold {
    /// The function with this name in lower case without underscores.
    pub fn of_name(name: &str) -> Option<Fold> {
        Some(match name {
            "mapkeys" => Fold::Keys,
            "mapvalues" => Fold::Values,
            "collectioncount" => Fold::Count,
            "collectionmin" => Fold::Min,
            "collectionmax" => Fold::Max,
            "collectionsum" => Fold::Sum,
            "collectionavg" => Fold::Avg,
            _ => return None,
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Fold::Keys => "mapkeys",
            Fold::Values => "mapvalues",
            Fold::Count => "collectioncount",
            Fold::Min => "collectionmin",
            Fold::Max => "collectionmax",
            Fold::Sum => "collectionsum",
            Fold::Avg => "collectionavg",
        }
    }

    /// Resolves a call by the type of its argument.
    pub fn resolve(self, name: &QualifiedName, arguments: &[Argument<'_>]) -> Result<ResolvedFunction, Error> {
        let name = full_name(name);
        let [argument] = arguments else {
            return Err(Error::invalid(format!(
                "Invalid number of arguments in call to function {name}: 1 required but {} provided",
                arguments.len()
            )));
        };
        let shown = &argument.shown;
        let Some(ty) = argument.ty.as_ref().or(argument.preferred.as_ref()) else {
            return Err(Error::invalid(format!("Cannot infer type of argument {shown} in call to function {name}")));
        };
        let wanted = |what: &str| {
            Err(Error::invalid(format!(
                "Function {name} requires a {what} argument, but found argument {shown} of type {ty}"
            )))
        };
        let result = match (self, ty) {
            (Fold::Keys, CqlType::Map { key, .. }) => CqlType::set((**key).clone()).freeze(),
            (Fold::Values, CqlType::Map { value, .. }) => CqlType::list((**value).clone()).freeze(),
            (Fold::Keys | Fold::Values, _) => return wanted("map"),
            (Fold::Count, CqlType::List { .. } | CqlType::Set { .. } | CqlType::Map { .. }) => CqlType::Int,
            (Fold::Count, _) => return wanted("collection"),
            (Fold::Min | Fold::Max, CqlType::List { elem, .. } | CqlType::Set { elem, .. }) => (**elem).clone(),
            (Fold::Min | Fold::Max, _) => return wanted("set or list"),
            (_, CqlType::List { elem, .. } | CqlType::Set { elem, .. }) if is_number(elem) => (**elem).clone(),
            _ => return wanted("numeric set or list"),
        };
        Ok(ResolvedFunction { function: Function::Collection(self, ty.clone()), parameters: vec![ty.clone()], result })
    }

    /// Evaluates the function for a collection of this type.
    pub fn call(self, ty: &CqlType, value: &Bytes) -> Result<Option<Bytes>, Error> {
        let mut steps = FoldSteps::new(self, ty, value)?;
        while !steps.step(usize::MAX)? {}
        steps.finish()
    }
}

/// The elements of a collection, or the keys and values of a map.
enum Members<'v> {
    Elements(collection::Elements<'v>),
    Pairs(collection::Pairs<'v>),
}

/// The result of a [`Fold`] so far.
enum Folded<'v> {
    Count(usize),
    Members(ListBuilder),
    /// The least or the greatest element, and its type.
    Best(&'v CqlType, Option<&'v [u8]>),
    Total(Total),
    Nothing,
}

/// Evaluates a [`Fold`] some elements at a time.
pub struct FoldSteps<'v> {
    fold: Fold,
    value: &'v Bytes,
    rest: Members<'v>,
    found: Folded<'v>,
}

impl<'v> FoldSteps<'v> {
    /// For a collection of this type.
    pub fn new(fold: Fold, ty: &'v CqlType, value: &'v Bytes) -> Result<FoldSteps<'v>, Error> {
        let none = Members::Elements(collection::elements(&[0; 4]).map_err(wrong)?);
        let elements = || collection::elements(value).map(Members::Elements).map_err(wrong);
        let (rest, found) = match (fold, ty) {
            (Fold::Count, _) => (none, Folded::Count(collection::count(value).map_err(wrong)?)),
            (Fold::Keys | Fold::Values, _) => {
                (Members::Pairs(collection::pairs(value).map_err(wrong)?), Folded::Members(ListBuilder::default()))
            }
            (Fold::Min | Fold::Max, CqlType::List { elem, .. } | CqlType::Set { elem, .. }) => {
                (elements()?, Folded::Best(elem, None))
            }
            (_, CqlType::List { elem, .. } | CqlType::Set { elem, .. }) => {
                (elements()?, Folded::Total(Total::new(elem)))
            }
            _ => (none, Folded::Nothing),
        };
        Ok(FoldSteps { fold, value, rest, found })
    }

    /// Takes elements of about `bytes` bytes. True if all are taken.
    pub fn step(&mut self, bytes: usize) -> Result<bool, Error> {
        let mut left = bytes;
        while left > 0 {
            let next = match &mut self.rest {
                Members::Elements(elements) => elements.next(),
                Members::Pairs(pairs) => {
                    let keys = self.fold == Fold::Keys;
                    pairs.next().map(|pair| pair.map(|(key, value)| if keys { key } else { value }))
                }
            };
            let Some(next) = next else { return Ok(true) };
            let next = next.map_err(wrong)?;
            left = left.saturating_sub(next.len() + ELEMENT_WORK);
            match &mut self.found {
                Folded::Members(members) => members.push(next),
                Folded::Best(elem, best) => {
                    let wanted = if self.fold == Fold::Min { Ordering::Less } else { Ordering::Greater };
                    if best.is_none_or(|best| compare(elem, next, best) == wanted) {
                        *best = Some(next);
                    }
                }
                Folded::Total(total) => total.add(next)?,
                Folded::Count(_) | Folded::Nothing => {}
            }
        }
        Ok(false)
    }

    /// The result, once all elements are taken.
    pub fn finish(self) -> Result<Option<Bytes>, Error> {
        Ok(match self.found {
            Folded::Count(count) => Some(Bytes::copy_from_slice(&(count as i32).to_be_bytes())),
            Folded::Members(members) => Some(members.finish().into()),
            Folded::Best(_, best) => best.map(|element| self.value.slice_ref(element)),
            Folded::Total(total) => {
                let result = if self.fold == Fold::Sum { total.sum()? } else { total.mean()? };
                result.map(Bytes::from)
            }
            Folded::Nothing => None,
        })
    }
}

fn wrong(error: ValueError) -> Error {
    Error::invalid(error.to_string())
}

/// The name of `set_intersection` in lower case without underscores.
pub const SET_INTERSECTION: &str = "setintersection";

/// Resolves a call of `set_intersection` by the types of its arguments. An argument without a type
/// gets the type of the other.
pub fn set_intersection(name: &QualifiedName, arguments: &[Argument<'_>]) -> Result<ResolvedFunction, Error> {
    let name = full_name(name);
    let [one, other] = arguments else {
        return Err(Error::invalid(format!("function {name} accepts 2 arguments, but {} provided", arguments.len())));
    };
    let elements = |argument: &Argument<'_>| match &argument.ty {
        Some(CqlType::Set { elem, .. }) => Ok(Some(CqlType::clone(elem))),
        Some(_) => Err(Error::invalid(format!("function {name} requires that both arguments are of set type"))),
        None => Ok(None),
    };
    let inferred = |argument: &Argument<'_>| match &argument.preferred {
        Some(CqlType::Set { elem, .. }) => Some(CqlType::clone(elem)),
        _ => None,
    };
    let literal = inferred(one).or_else(|| inferred(other));
    let (one, other) = (elements(one)?, elements(other)?);
    if one.is_some() && other.is_some() && one != other {
        return Err(Error::invalid(format!("function {name} requires that both arguments are of the same set type")));
    }
    let elem = one
        .or(other)
        .or(literal)
        .ok_or_else(|| Error::invalid(format!("Cannot infer type of arguments in call to function {name}")))?;
    let set = CqlType::set(elem.clone());
    Ok(ResolvedFunction {
        function: Function::SetIntersection(elem),
        parameters: vec![set.clone(), set.clone()],
        result: set,
    })
}

/// The elements that are in both sets, in order.
pub fn intersect(elem: &CqlType, one: &Bytes, other: &Bytes) -> Result<Bytes, Error> {
    let mut steps = IntersectionSteps::new(elem, one, other)?;
    while !steps.step(usize::MAX)? {}
    Ok(steps.finish())
}

/// Intersects two sets some elements at a time.
pub struct IntersectionSteps<'v> {
    elem: &'v CqlType,
    rest: [collection::Elements<'v>; 2],
    /// The first elements that were not compared to the end.
    heads: [Option<&'v [u8]>; 2],
    both: ListBuilder,
}

impl<'v> IntersectionSteps<'v> {
    /// For sets with elements of this type.
    pub fn new(elem: &'v CqlType, one: &'v [u8], other: &'v [u8]) -> Result<IntersectionSteps<'v>, Error> {
        let mut rest = [collection::elements(one).map_err(wrong)?, collection::elements(other).map_err(wrong)?];
        let [one, other] = &mut rest;
        let heads = [one.next().transpose().map_err(wrong)?, other.next().transpose().map_err(wrong)?];
        Ok(IntersectionSteps { elem, rest, heads, both: ListBuilder::default() })
    }

    /// Takes elements of about `bytes` bytes. True if all are taken.
    pub fn step(&mut self, bytes: usize) -> Result<bool, Error> {
        let mut left = bytes;
        while left > 0 {
            let [Some(a), Some(b)] = self.heads else { return Ok(true) };
            left = left.saturating_sub(a.len() + b.len() + ELEMENT_WORK);
            let order = compare(self.elem, a, b);
            if order == Ordering::Equal {
                self.both.push(a);
            }
            if order != Ordering::Greater {
                self.heads[0] = self.rest[0].next().transpose().map_err(wrong)?;
            }
            if order != Ordering::Less {
                self.heads[1] = self.rest[1].next().transpose().map_err(wrong)?;
            }
        }
        Ok(false)
    }

    /// The elements in both sets, once all are taken.
    pub fn finish(self) -> Bytes {
        self.both.finish().into()
    }
}

/// The work for an element in addition to the work of its bytes.
const ELEMENT_WORK: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use model::types::Value;

    fn result(fold: Fold, ty: &CqlType, value: Value) -> String {
        let ty_of = Some(ty.clone());
        let argument = Argument { shown: "c".into(), ty: ty_of, preferred: None, fits: Box::new(|_| false) };
        let name = QualifiedName { keyspace: None, name: crate::syntax::Name::new(fold.name()) };
        let found = fold.resolve(&name, &[argument]).expect("the type is fit");
        let bytes = value.encode(ty).expect("it is of its type").expect("it is not null");
        let result = fold.call(ty, &bytes.into()).expect("nothing overflows");
        Value::decode_optional(&found.result, result.as_deref()).expect("it is valid").to_cql_literal(&found.result)
    }

    #[test]
    fn results() {
        use Fold::*;
        let ints = |numbers: &[i32]| Value::List(numbers.iter().map(|n| Value::Int(*n)).collect());
        let list = CqlType::list(CqlType::Int);
        let map = CqlType::map(CqlType::Text, CqlType::Int);
        let of = |pairs: &[(&str, i32)]| {
            Value::Map(pairs.iter().map(|(k, v)| (Value::Text((*k).into()), Value::Int(*v))).collect())
        };
        for (fold, ty, value, expected) in [
            (Count, &list, ints(&[3, 1, 2]), "3"),
            (Min, &list, ints(&[3, -1, 2]), "-1"),
            (Max, &list, ints(&[3, -1, 2]), "3"),
            (Sum, &list, ints(&[3, -1, 2]), "4"),
            (Avg, &list, ints(&[3, -1, 2]), "1"),
            (Min, &list, ints(&[]), "null"),
            (Sum, &list, ints(&[]), "0"),
            (Avg, &list, ints(&[]), "0"),
            (Keys, &map, of(&[("b", 1), ("a", 2)]), "{'a', 'b'}"),
            (Values, &map, of(&[("b", 1), ("a", 2)]), "[2, 1]"),
            (Count, &map, of(&[("b", 1)]), "1"),
        ] {
            assert_eq!(result(fold, ty, value), expected, "{fold:?} of {ty}");
        }
    }
}
