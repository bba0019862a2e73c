//! Functions of collections: `map_keys`, `map_values`, `collection_count`, `collection_min`,
//! `collection_max`, `collection_sum`, `collection_avg`, and ScyllaDB's `set_intersection`.

use super::function::{Argument, Found, Function, full_name};
use super::numbers::is_number;
use crate::error::Error;
use crate::syntax::QualifiedName;
use bytes::Bytes;
use model::CqlType;
use model::total::Total;
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
    pub fn resolve(self, name: &QualifiedName, arguments: &[Argument<'_>]) -> Result<Found, Error> {
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
        Ok(Found { function: Function::Collection(self, ty.clone()), parameters: vec![ty.clone()], result })
    }

    /// Evaluates the function for a collection of this type.
    pub fn call(self, ty: &CqlType, value: &Bytes) -> Result<Option<Bytes>, Error> {
        let wrong = |error: ValueError| Error::invalid(error.to_string());
        let elements = || collection::elements(value).map_err(wrong);
        Ok(match (self, ty) {
            (Fold::Count, _) => {
                let count = collection::count(value).map_err(wrong)?;
                Some(Bytes::copy_from_slice(&(count as i32).to_be_bytes()))
            }
            (Fold::Keys | Fold::Values, _) => {
                let pairs = collection::pairs(value).map_err(wrong)?;
                let pairs = pairs.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
                let members = pairs.into_iter().map(|(k, v)| if self == Fold::Keys { k } else { v });
                Some(collection::build_list(members).into())
            }
            (_, CqlType::List { elem, .. } | CqlType::Set { elem, .. }) => match self {
                Fold::Min | Fold::Max => {
                    let wanted = if self == Fold::Min { Ordering::Less } else { Ordering::Greater };
                    let mut best: Option<&[u8]> = None;
                    for element in elements()? {
                        let element = element.map_err(wrong)?;
                        if best.is_none_or(|best| compare(elem, element, best) == wanted) {
                            best = Some(element);
                        }
                    }
                    best.map(|element| value.slice_ref(element))
                }
                _ => {
                    let mut total = Total::new(elem);
                    for element in elements()? {
                        total.add(element.map_err(wrong)?)?;
                    }
                    let result = if self == Fold::Sum { total.sum()? } else { total.mean()? };
                    result.map(Bytes::from)
                }
            },
            _ => None,
        })
    }
}

/// The name of `set_intersection` in lower case without underscores.
pub const SET_INTERSECTION: &str = "setintersection";

/// Resolves a call of `set_intersection` by the types of its arguments. An argument without a type
/// gets that of the other.
pub fn set_intersection(name: &QualifiedName, arguments: &[Argument<'_>]) -> Result<Found, Error> {
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
    Ok(Found { function: Function::SetIntersection(elem), parameters: vec![set.clone(), set.clone()], result: set })
}

/// The elements that are in both sets, in order.
pub fn intersect(elem: &CqlType, one: &Bytes, other: &Bytes) -> Result<Bytes, Error> {
    let wrong = |error: ValueError| Error::invalid(error.to_string());
    let list = |set: &Bytes| -> Result<Vec<Bytes>, Error> {
        let elements = collection::elements(set).map_err(wrong)?;
        elements.map(|element| element.map(|element| set.slice_ref(element)).map_err(wrong)).collect()
    };
    let (one, other) = (list(one)?, list(other)?);
    let (mut left, mut right) = (one.iter().peekable(), other.iter().peekable());
    let mut both: Vec<&[u8]> = Vec::new();
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let order = compare(elem, a, b);
        if order == Ordering::Equal {
            both.push(a);
        }
        if order != Ordering::Greater {
            left.next();
        }
        if order != Ordering::Less {
            right.next();
        }
    }
    Ok(collection::build_list(both).into())
}

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
