//! Types long literals with pauses. A literal can have hundreds of thousands of terms.

use super::function;
use super::typing::{
    argument_name, assignable, fits, hinted_type, prepare, resolve_call, wrong_cast, wrong_component, wrong_part,
    wrong_result,
};
use super::user_type::{given_fields, unknown_field, with_missing_fields, wrong_field};
use super::{Term, Variables};
use crate::error::Error;
use crate::pace::PLAN_WORK;
use crate::syntax::ast;
use bytes::Bytes;
use model::CqlType;
use std::pin::Pin;

/// A literal of more terms than this, counted with the terms inside them, is typed with pauses, in
/// a statement that has pauses.
const LONG_LITERAL: usize = 256;

/// Whether a term has at most `left` terms inside it. Subtracts them from `left`, and stops when
/// there are more.
fn is_within(term: &ast::Term, left: &mut usize) -> bool {
    let mut take = |term: &ast::Term| match left.checked_sub(1) {
        Some(rest) => {
            *left = rest;
            is_within(term, left)
        }
        None => false,
    };
    match term {
        ast::Term::List(terms) | ast::Term::Set(terms) | ast::Term::Tuple(terms) => terms.iter().all(take),
        ast::Term::Map(pairs) => pairs.iter().all(|(key, value)| take(key) && take(value)),
        ast::Term::UserType(fields) => fields.iter().all(|(_, term)| take(term)),
        ast::Term::Call(call) => call.arguments.iter().all(take),
        ast::Term::Hint(_, inner) => take(inner),
        ast::Term::Literal(_) | ast::Term::Marker(_) => true,
    }
}

/// Why a literal is not typed.
enum Failure {
    /// It is no value of its type. The error names the outermost literal to which this applies.
    Misfit(Error),
    /// Its values are wrong.
    Other(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Other(error)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Misfit(error) | Failure::Other(error) => error,
        }
    }
}

type Prepared<'f> = Pin<Box<dyn Future<Output = Result<Term, Failure>> + 'f>>;

/// Like [`prepare`], with pauses in a long literal.
pub async fn prepare_paced(
    variables: &mut Variables<'_>,
    term: &ast::Term,
    name: &str,
    ty: &CqlType,
) -> Result<Term, Error> {
    if !variables.pace.pauses() {
        return prepare(variables, term, name, ty);
    }
    match is_long(variables, term).await? {
        true => Ok(long(variables, term, name, ty).await?),
        false => prepare(variables, term, name, ty),
    }
}

/// Whether a literal is typed with pauses. Counts the work of a short one.
async fn is_long(variables: &Variables<'_>, term: &ast::Term) -> Result<bool, Error> {
    let mut left = LONG_LITERAL;
    let is_long = !is_within(term, &mut left);
    variables.pace.worked((1 + LONG_LITERAL - left) * PLAN_WORK).await?;
    Ok(is_long)
}

/// A part of a long literal. `misfit` is the error if it is no value of its type. A long part is
/// checked and typed element by element, with pauses. Checking it in one step would occupy the
/// shard for too long.
async fn part(
    variables: &mut Variables<'_>,
    term: &ast::Term,
    name: &str,
    ty: &CqlType,
    misfit: impl Fn() -> Error,
) -> Result<Term, Failure> {
    if is_long(variables, term).await? {
        return long(variables, term, name, ty).await.map_err(|failure| match failure {
            Failure::Misfit(_) => Failure::Misfit(misfit()),
            other => other,
        });
    }
    match fits(variables.metadata, &variables.keyspace, term, ty) {
        true => Ok(prepare(variables, term, name, ty)?),
        false => Err(Failure::Misfit(misfit())),
    }
}

/// A long literal. Literals are nested, so the future is boxed.
fn long<'f>(variables: &'f mut Variables<'_>, term: &'f ast::Term, name: &'f str, ty: &'f CqlType) -> Prepared<'f> {
    Box::pin(async move {
        let typed = match (term, ty) {
            (ast::Term::List(terms), CqlType::List { elem, .. }) => {
                Term::List(elements("list", variables, terms, name, elem).await?)
            }
            (ast::Term::Set(terms), CqlType::Set { elem, .. }) => {
                let elements = elements("set", variables, terms, name, elem).await?;
                Term::Set(Box::new((**elem).clone()), elements)
            }
            (ast::Term::Map(pairs), CqlType::Map { key, value, .. }) => {
                let (key_name, value_name) = (format!("key({name})"), format!("value({name})"));
                let mut out = Vec::with_capacity(pairs.len());
                for (k, v) in pairs {
                    let typed = part(variables, k, &key_name, key, || wrong_part("map", name, ("key", k, key)));
                    let typed = typed.await?;
                    let wrong = || wrong_part("map", name, ("value", v, value));
                    out.push((typed, part(variables, v, &value_name, value, wrong).await?));
                }
                Term::Map(Box::new((**key).clone()), out)
            }
            (ast::Term::List(terms), CqlType::Vector { elem, dim }) if terms.len() == *dim as usize => {
                let elements = elements("vector", variables, terms, name, elem).await?;
                Term::Vector(Box::new((**elem).clone()), elements)
            }
            // The number of elements is wrong.
            (ast::Term::List(_), CqlType::Vector { .. }) => return Ok(prepare(variables, term, name, ty)?),
            (ast::Term::Tuple(terms), CqlType::Tuple(types)) if terms.len() <= types.len() => {
                let mut out = Vec::with_capacity(terms.len());
                for (i, (term, ty)) in terms.iter().zip(types.iter()).enumerate() {
                    let wrong = || wrong_component(name, i, ty);
                    out.push(part(variables, term, &format!("{name}[{i}]"), ty, wrong).await?);
                }
                Term::Tuple(out)
            }
            (ast::Term::UserType(fields), CqlType::Udt(user_type)) => {
                let given = given_fields(fields, user_type);
                let given = given.map_err(|field| Failure::Misfit(unknown_field(field, user_type)))?;
                let mut out = Vec::with_capacity(given.len());
                for (at, term) in given {
                    let (field, ty) = &user_type.fields[at];
                    let wrong = || wrong_field(name, field, ty);
                    out.push((at, part(variables, term, &format!("{name}.{field}"), ty, wrong).await?));
                }
                with_missing_fields(variables, user_type, out)?
            }
            // A single value in parentheses is the value itself.
            (ast::Term::Tuple(terms), _) if terms.len() == 1 => return long(variables, &terms[0], name, ty).await,
            (ast::Term::Hint(type_name, inner), _) => {
                let hinted = hinted_type(variables, (term, type_name), name, ty).map_err(Failure::Misfit)?;
                let typed = part(variables, inner, name, &hinted, || wrong_cast(inner, &hinted)).await;
                return typed.map_err(|failure| Failure::Other(failure.into()));
            }
            (ast::Term::Call(call), _) if !function::is_from_json(&call.name) => {
                let found = resolve_call(variables, call)?;
                if !assignable(&found.result, ty) {
                    return Err(Failure::Misfit(wrong_result(call, &found.result, name, ty)));
                }
                let mut arguments = Vec::with_capacity(call.arguments.len());
                for (i, (term, ty)) in call.arguments.iter().zip(&found.parameters).enumerate() {
                    arguments.push(prepare_paced(variables, term, &argument_name(call, i), ty).await?);
                }
                Term::Call(Box::new(found.function), arguments)
            }
            // A literal of another kind than its type, or a short one.
            _ => {
                let typed = prepare(variables, term, name, ty);
                return typed.map_err(|error| match fits(variables.metadata, &variables.keyspace, term, ty) {
                    true => Failure::Other(error),
                    false => Failure::Misfit(error),
                });
            }
        };
        Ok(folded(variables, typed).await?)
    })
}

/// Evaluates a constant term off the shard: this sorts the elements, and drops the terms.
async fn folded(variables: &mut Variables<'_>, term: Term) -> Result<Term, Error> {
    if let Term::Constant(_) = term {
        return Ok(term);
    }
    let folded = rt::offload::run(move || term.folded().map_err(|error| error.to_string())).await;
    let folded = folded.map_err(Error::invalid)?;
    if let Term::Folded(folded) = &folded {
        variables.folded(folded.0.as_ref().map_or(0, Bytes::len))?;
    }
    Ok(folded)
}

async fn elements(
    kind: &str,
    variables: &mut Variables<'_>,
    terms: &[ast::Term],
    name: &str,
    elem: &CqlType,
) -> Result<Vec<Term>, Failure> {
    let element_name = format!("value({name})");
    let mut out = Vec::with_capacity(terms.len());
    for term in terms {
        out.push(part(variables, term, &element_name, elem, || wrong_part(kind, name, ("value", term, elem))).await?);
    }
    Ok(out)
}
