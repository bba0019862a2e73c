//! Terms: typed values of a statement, and their evaluation.
//!
//! Planning turns a parsed term into a [`Term`] for a receiver of known type ([`typing`]), and
//! serializes constants once. Evaluation returns a value that is valid and canonical for this type,
//! so other code need not check it again. Nothing here reads a table.
//!
//! Reading order: this file, [`variables`], [`typing`], `user_type`, [`function`], `call`, `paced`,
//! [`cast`], [`numbers`], [`math`], [`collections`], [`large`], [`long`].

pub(crate) mod call;
pub mod cast;
pub mod collections;
pub mod function;
pub mod large;
pub mod long;
pub mod math;
pub mod numbers;
pub(crate) mod paced;
pub mod typing;
mod user_type;
pub mod variables;

use crate::api::{BoundValue, ColumnSpec};
use crate::checked::{CheckedValue, SortedSet};
use crate::error::Error;
use bytes::Bytes;
use function::Function;
use model::CqlType;
use model::types::{self, collection};
use std::borrow::Cow;

pub use long::prepare_paced;
pub use typing::prepare;
pub use variables::Variables;

/// A term that can be evaluated. Plans hold many terms, so the data of rare kinds is boxed.
#[derive(Clone, PartialEq, Debug)]
pub enum Term {
    /// `null`.
    Null,
    /// A serialized value.
    Constant(Bytes),
    /// A bind variable, by its number.
    Variable(u16),
    /// A list.
    List(Vec<Term>),
    /// A set of elements of this type.
    Set(Box<CqlType>, Vec<Term>),
    /// A map with keys of this type.
    Map(Box<CqlType>, Vec<(Term, Term)>),
    /// A vector of elements of this type.
    Vector(Box<CqlType>, Vec<Term>),
    /// A tuple or a value of a user type, by field.
    Tuple(Vec<Term>),
    /// A field of a tuple.
    TupleField(Box<Term>, usize),
    /// A function call.
    Call(Box<Function>, Vec<Term>),
    /// The result of constant function calls, with the term that it was computed from.
    Folded(Box<(Option<Bytes>, Term)>),
}

/// The result of evaluating a term.
#[derive(Clone, PartialEq, Debug)]
pub enum Val<'a> {
    /// `null`.
    Null,
    /// An unset variable.
    Unset,
    /// A value stored in the statement or the request.
    Shared(&'a Bytes),
    /// A value made by the evaluation.
    Owned(Bytes),
}

impl Val<'_> {
    /// The bytes of the value, if there is one.
    #[inline]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self {
            Val::Null | Val::Unset => None,
            Val::Shared(bytes) => Some(bytes),
            Val::Owned(bytes) => Some(bytes),
        }
    }

    /// The value, without a copy.
    pub fn into_bytes(self) -> Option<Bytes> {
        match self {
            Val::Null | Val::Unset => None,
            Val::Shared(bytes) => Some(bytes.clone()),
            Val::Owned(bytes) => Some(bytes),
        }
    }

    /// Whether it is an unset variable.
    pub fn is_unset(&self) -> bool {
        matches!(self, Val::Unset)
    }
}

/// The environment of an evaluation: the values of a request, in the order of the statement's
/// variables.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// Bound values.
    pub values: &'a [BoundValue],
    /// The variables that they are bound to.
    pub variables: &'a [ColumnSpec],
}

impl Env<'_> {
    /// An environment without values.
    pub const EMPTY: Env<'static> = Env { values: &[], variables: &[] };
}

/// The limit on the bytes of values from which one term composes its value: twice the largest
/// mutation. Function calls inside of it can make values that are much longer than their text.
const MAX_COMPOSED_BYTES: usize = 32 << 20;

/// The bytes of the values that a term, or a statement before it writes, has made use of.
#[derive(Default)]
pub(crate) struct UsedBytes(usize);

impl UsedBytes {
    fn take<'a>(&mut self, value: Val<'a>) -> Result<Val<'a>, Error> {
        self.0 += value.as_slice().map_or(0, <[u8]>::len);
        check_bytes(self.0).map(|()| value)
    }
}

/// An error if the values of one term, or of all filters, exceed their limit in bytes.
pub fn check_bytes(bytes: usize) -> Result<(), Error> {
    if bytes > MAX_COMPOSED_BYTES {
        return Err(Error::invalid(format!(
            "The values of an expression are longer than the limit of {MAX_COMPOSED_BYTES} bytes"
        )));
    }
    Ok(())
}

impl Term {
    /// Evaluates the term. An unset variable is [`Val::Unset`], but inside of another term it is an
    /// error.
    #[inline]
    pub fn evaluate<'a>(&'a self, env: Env<'a>) -> Result<Val<'a>, Error> {
        match self {
            Term::Constant(bytes) => Ok(Val::Shared(bytes)),
            Term::Variable(number) => variable(*number, env),
            Term::Null => Ok(Val::Null),
            _ => self.compose(env, &mut UsedBytes::default()),
        }
    }

    /// Evaluates to a value or null. An unset variable is an error.
    pub fn evaluate_set<'a>(&'a self, env: Env<'a>) -> Result<Option<Bytes>, Error> {
        match self.evaluate(env)? {
            Val::Unset => Err(self.unset(env)),
            value => Ok(value.into_bytes()),
        }
    }

    /// Evaluates a list on the right side of IN. Returns the list without null elements, and
    /// whether it had any. Only here may a bound list contain nulls.
    pub fn evaluate_in_list(&self, env: Env<'_>) -> Result<Option<(Bytes, bool)>, Error> {
        if let Some(value) = self.checked(env)
            && let Some(set) = &value.set
        {
            return Ok(Some((set.list().clone(), value.nulls)));
        }
        let refused = match self.evaluate_set(env) {
            Ok(list) => return Ok(list.map(|list| (list, false))),
            Err(refused) => refused,
        };
        // Few lists have nulls, so they are searched only after the list failed validation.
        if let Term::Variable(number) = self
            && let Some(BoundValue::Value(bytes)) = env.values.get(*number as usize)
            && let Some(spec) = env.variables.get(*number as usize)
            && let Some(stripped) = collection::without_nulls(bytes)
        {
            return Ok(Some((valid(spec, &stripped.into())?.into_bytes().unwrap_or_default(), true)));
        }
        Err(refused)
    }

    /// The value of a variable, if it was checked off the shard.
    #[inline]
    fn checked<'a>(&self, env: Env<'a>) -> Option<&'a CheckedValue> {
        let Term::Variable(number) = self else { return None };
        match env.values.get(*number as usize)? {
            BoundValue::Checked(value) => Some(value),
            _ => None,
        }
    }

    /// The elements of a list on the right side of IN, if it was checked off the shard, and whether
    /// it had nulls.
    #[inline]
    pub fn checked_set<'a>(&self, env: Env<'a>) -> Option<(&'a SortedSet, bool)> {
        let value = self.checked(env)?;
        value.set.as_ref().map(|set| (set, value.nulls))
    }

    /// The error for an unset variable where a value is required.
    pub fn unset(&self, env: Env<'_>) -> Error {
        let name = match self {
            Term::Variable(number) => env.variables.get(*number as usize).map_or("", |variable| variable.name.as_str()),
            _ => "",
        };
        Error::invalid(format!("Invalid unset value for bind variable {name}"))
    }

    /// Evaluates a part of a composed term.
    fn evaluate_within<'a>(&'a self, env: Env<'a>, used: &mut UsedBytes) -> Result<Val<'a>, Error> {
        match self {
            Term::Constant(_) | Term::Variable(_) | Term::Null => used.take(self.evaluate(env)?),
            _ => self.compose(env, used),
        }
    }

    fn compose<'a>(&'a self, env: Env<'a>, used: &mut UsedBytes) -> Result<Val<'a>, Error> {
        let mut inside = |term: &'a Term| -> Result<Bytes, Error> {
            match term.evaluate_within(env, used)? {
                Val::Null => Err(Error::invalid("null is not supported inside collections")),
                Val::Unset => Err(Error::invalid("unset value is not supported inside collections")),
                Val::Shared(bytes) => Ok(bytes.clone()),
                Val::Owned(bytes) => Ok(bytes),
            }
        };
        let bytes = match self {
            Term::List(terms) => {
                let elements = terms.iter().map(inside).collect::<Result<Vec<_>, _>>()?;
                collection::build_list(elements)
            }
            Term::Set(elem, terms) => {
                let elements = terms.iter().map(inside).collect::<Result<Vec<_>, _>>()?;
                collection::build_set(elem, elements)
            }
            Term::Map(key, terms) => {
                let pair = |(k, v): &'a (Term, Term)| Ok((inside(k)?, inside(v)?));
                collection::build_map(key, terms.iter().map(pair).collect::<Result<Vec<_>, Error>>()?)
            }
            Term::Vector(elem, terms) => {
                let elements = terms.iter().map(inside).collect::<Result<Vec<_>, _>>()?;
                collection::build_vector(elem, elements)
            }
            Term::Tuple(terms) => {
                let field = |(i, term): (usize, &'a Term)| match term.evaluate_within(env, used)? {
                    Val::Unset => Err(Error::invalid(format!("Invalid unset value for tuple field number {i}"))),
                    value => Ok(value.into_bytes()),
                };
                let fields = terms.iter().enumerate().map(field).collect::<Result<Vec<_>, _>>()?;
                collection::build_tuple(fields)
            }
            Term::TupleField(tuple, index) => {
                let tuple = match tuple.evaluate_within(env, used)? {
                    Val::Unset => return Err(tuple.unset(env)),
                    value => value.into_bytes(),
                };
                let Some(tuple) = tuple else { return Ok(Val::Null) };
                let field =
                    collection::fields(&tuple).nth(*index).transpose().map_err(|e| Error::invalid(e.to_string()))?;
                return Ok(match field.flatten() {
                    Some(field) => Val::Owned(tuple.slice_ref(field)),
                    None => Val::Null,
                });
            }
            Term::Call(function, terms) => {
                let argument = |term: &'a Term| match term.evaluate_within(env, used)? {
                    Val::Unset => Err(term.unset(env)),
                    value => Ok(value.into_bytes()),
                };
                let arguments = terms.iter().map(argument).collect::<Result<Vec<_>, _>>()?;
                return match function.call(&arguments)? {
                    Some(bytes) => used.take(Val::Owned(bytes)),
                    None => Ok(Val::Null),
                };
            }
            Term::Folded(folded) => return used.take(folded.0.as_ref().map_or(Val::Null, Val::Shared)),
            Term::Null | Term::Constant(_) | Term::Variable(_) => return self.evaluate(env),
        };
        Ok(Val::Owned(bytes.into()))
    }

    /// Whether the value is always the same and depends on no variable.
    pub fn is_constant(&self) -> bool {
        match self {
            Term::Null | Term::Constant(_) | Term::Folded(..) => true,
            Term::Variable(_) => false,
            Term::List(terms) | Term::Set(_, terms) | Term::Vector(_, terms) | Term::Tuple(terms) => {
                terms.iter().all(Term::is_constant)
            }
            Term::Map(_, terms) => terms.iter().all(|(k, v)| k.is_constant() && v.is_constant()),
            Term::TupleField(tuple, _) => tuple.is_constant(),
            Term::Call(function, terms) => function.is_pure() && terms.iter().all(Term::is_constant),
        }
    }

    /// Whether the term contains a function call.
    pub fn has_call(&self) -> bool {
        match self {
            Term::Null | Term::Constant(_) | Term::Variable(_) => false,
            Term::List(terms) | Term::Set(_, terms) | Term::Vector(_, terms) | Term::Tuple(terms) => {
                terms.iter().any(Term::has_call)
            }
            Term::Map(_, terms) => terms.iter().any(|(k, v)| k.has_call() || v.has_call()),
            Term::TupleField(tuple, _) => tuple.has_call(),
            Term::Call(..) | Term::Folded(..) => true,
        }
    }

    /// About how many bytes of this term's value each byte of the bound values can become, at least
    /// 1.
    pub fn expansion(&self) -> usize {
        let most = |terms: &[Term]| terms.iter().map(Term::expansion).max().unwrap_or(1);
        match self {
            Term::Null | Term::Constant(_) | Term::Variable(_) | Term::Folded(_) => 1,
            Term::List(terms) | Term::Set(_, terms) | Term::Vector(_, terms) | Term::Tuple(terms) => most(terms),
            Term::Map(_, terms) => terms.iter().map(|(k, v)| k.expansion().max(v.expansion())).max().unwrap_or(1),
            Term::TupleField(tuple, _) => tuple.expansion(),
            Term::Call(function, terms) => function.expansion().saturating_mul(most(terms)),
        }
    }

    /// The term, evaluated now if it is constant.
    pub fn folded(self) -> Result<Term, Error> {
        if matches!(self, Term::Null | Term::Constant(_) | Term::Folded(..)) || !self.is_constant() {
            return Ok(self);
        }
        let value = self.evaluate_set(Env::EMPTY)?;
        if self.has_call() {
            return Ok(Term::Folded(Box::new((value, self))));
        }
        Ok(value.map_or(Term::Null, Term::Constant))
    }
}

#[inline]
fn variable<'a>(number: u16, env: Env<'a>) -> Result<Val<'a>, Error> {
    let (Some(value), Some(spec)) = (env.values.get(number as usize), env.variables.get(number as usize)) else {
        return Err(Error::invalid(format!("No value was bound to variable {number}")));
    };
    match value {
        BoundValue::Null => Ok(Val::Null),
        BoundValue::Unset => Ok(Val::Unset),
        BoundValue::Value(bytes) => valid(spec, bytes),
        BoundValue::Checked(value) if value.nulls => Err(wrong_value(spec, &nulls_inside())),
        BoundValue::Checked(value) => Ok(Val::Shared(&value.bytes)),
    }
}

/// Validates a bound value against the type of its variable, and makes it canonical.
#[inline(always)]
fn valid<'a>(spec: &ColumnSpec, bytes: &'a Bytes) -> Result<Val<'a>, Error> {
    types::validate(&spec.ty, bytes).map_err(|error| wrong_value(spec, &error))?;
    match types::canonical(&spec.ty, bytes).map_err(|error| wrong_value(spec, &error))? {
        Cow::Borrowed(_) => Ok(Val::Shared(bytes)),
        Cow::Owned(bytes) => Ok(Val::Owned(bytes.into())),
    }
}

/// The error for a list with nulls that is not only the right side of IN.
#[cold]
fn nulls_inside() -> types::ValueError {
    types::ValueError::new("null is not supported inside collections")
}

#[cold]
fn wrong_value(spec: &ColumnSpec, error: &types::ValueError) -> Error {
    Error::invalid(format!("Exception while binding column {}: {error}", spec.name))
}
