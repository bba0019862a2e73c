//! Expressions of a row: columns, functions, casts, parts of values.

use crate::error::Error;
use crate::term::function::Function;
use crate::term::{Env, Term};
use bytes::Bytes;
use model::CqlType;
use model::types::{collection, compare};
use std::cmp::Ordering;

/// An expression of a row.
#[derive(Clone, PartialEq, Debug)]
pub enum Selector {
    /// A column of the output.
    Slot(usize),
    /// The result of an aggregate.
    Aggregate(usize),
    /// A value that does not depend on the row.
    Term(Term),
    /// A function of expressions.
    Call(Function, Vec<Selector>),
    /// A field of a user type, by its place.
    Field(Box<Selector>, usize),
    /// What a map has under a key, a list at an index, or a set as that element.
    Element(Box<Selector>, CqlType, Term),
}

/// What an expression is evaluated on.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    /// The output columns.
    pub slots: &'a [Option<Bytes>],
    /// The results of aggregates.
    pub aggregates: &'a [Option<Bytes>],
    /// Bound values.
    pub env: Env<'a>,
}

impl Selector {
    /// The expression's value for a row.
    pub fn evaluate(&self, row: Row<'_>) -> Result<Option<Bytes>, Error> {
        Ok(match self {
            Selector::Slot(slot) => row.slots[*slot].clone(),
            Selector::Aggregate(index) => row.aggregates[*index].clone(),
            Selector::Term(term) => term.evaluate_set(row.env)?,
            Selector::Call(function, arguments) => {
                let values = arguments.iter().map(|argument| argument.evaluate(row)).collect::<Result<Vec<_>, _>>()?;
                function.call(&values)?
            }
            Selector::Field(inner, index) => {
                let Some(value) = inner.evaluate(row)? else { return Ok(None) };
                let field = collection::fields(&value).nth(*index).and_then(Result::ok).flatten();
                field.map(|field| value.slice_ref(field))
            }
            Selector::Element(inner, ty, key) => {
                let (Some(value), Some(key)) = (inner.evaluate(row)?, key.evaluate_set(row.env)?) else {
                    return Ok(None);
                };
                element(ty, &value, &key).map(|element| value.slice_ref(element))
            }
        })
    }
}

fn element<'v>(ty: &CqlType, value: &'v [u8], wanted: &[u8]) -> Option<&'v [u8]> {
    match ty {
        CqlType::Map { key, .. } => collection::pairs(value)
            .ok()?
            .map_while(Result::ok)
            .find(|(k, _)| compare(key, k, wanted) == Ordering::Equal)
            .map(|(_, element)| element),
        CqlType::Set { elem, .. } => collection::elements(value)
            .ok()?
            .map_while(Result::ok)
            .find(|e| compare(elem, e, wanted) == Ordering::Equal),
        CqlType::List { .. } => {
            let index = usize::try_from(i32::from_be_bytes(wanted.try_into().ok()?)).ok()?;
            collection::elements(value).ok()?.map_while(Result::ok).nth(index)
        }
        _ => None,
    }
}
