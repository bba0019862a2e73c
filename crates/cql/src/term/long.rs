//! Types long literals with pauses. A literal can have hundreds of thousands of terms.

use super::typing::{check_component, check_field, check_part, count_missing, given_fields, prepare, unknown_field};
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
        ast::Term::Literal(_) | ast::Term::Marker(_) | ast::Term::Call(_) | ast::Term::Hint(..) => true,
    }
}

type Prepared<'f> = Pin<Box<dyn Future<Output = Result<Term, Error>> + 'f>>;

/// As [`prepare`], with pauses in a long literal.
pub async fn prepare_paced(
    variables: &mut Variables<'_>,
    term: &ast::Term,
    name: &str,
    ty: &CqlType,
) -> Result<Term, Error> {
    if !variables.pace.pauses() {
        return prepare(variables, term, name, ty);
    }
    let mut left = LONG_LITERAL;
    let is_long = !is_within(term, &mut left);
    variables.pace.worked((1 + LONG_LITERAL - left) * PLAN_WORK).await?;
    match is_long {
        true => long(variables, term, name, ty).await,
        false => prepare(variables, term, name, ty),
    }
}

/// A long literal. Literals are nested, so the future is boxed.
fn long<'f>(variables: &'f mut Variables<'_>, term: &'f ast::Term, name: &'f str, ty: &'f CqlType) -> Prepared<'f> {
    Box::pin(async move {
        let term = match (term, ty) {
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
                    check_part(variables, "map", name, ("key", k, key))?;
                    check_part(variables, "map", name, ("value", v, value))?;
                    let k = prepare_paced(variables, k, &key_name, key).await?;
                    out.push((k, prepare_paced(variables, v, &value_name, value).await?));
                }
                Term::Map(Box::new((**key).clone()), out)
            }
            (ast::Term::List(terms), CqlType::Vector { elem, dim }) if terms.len() == *dim as usize => {
                let elements = elements("vector", variables, terms, name, elem).await?;
                Term::Vector(Box::new((**elem).clone()), elements)
            }
            (ast::Term::Tuple(terms), CqlType::Tuple(types)) if terms.len() <= types.len() => {
                let mut out = Vec::with_capacity(terms.len());
                for (i, (term, ty)) in terms.iter().zip(types.iter()).enumerate() {
                    check_component(variables, name, (i, term, ty))?;
                    out.push(prepare_paced(variables, term, &format!("{name}[{i}]"), ty).await?);
                }
                Term::Tuple(out)
            }
            (ast::Term::UserType(fields), CqlType::Udt(user_type)) => {
                let given = given_fields(fields, user_type).map_err(|field| unknown_field(field, user_type))?;
                let mut out = Vec::with_capacity(user_type.fields.len());
                for ((field, ty), given) in user_type.fields.iter().zip(&given) {
                    let Some(term) = *given else {
                        out.push(Term::Null);
                        continue;
                    };
                    check_field(variables, name, (field.as_str(), term, ty))?;
                    out.push(prepare_paced(variables, term, &format!("{name}.{field}"), ty).await?);
                }
                let term = folded(variables, Term::Tuple(out)).await?;
                count_missing(variables, &given, &term)?;
                return Ok(term);
            }
            // A single value in parentheses is the value itself.
            (ast::Term::Tuple(terms), _) if terms.len() == 1 => {
                return prepare_paced(variables, &terms[0], name, ty).await;
            }
            // An error.
            _ => return prepare(variables, term, name, ty),
        };
        folded(variables, term).await
    })
}

/// Evaluates a constant term off the shard: this sorts the elements, and drops the terms.
async fn folded(variables: &mut Variables<'_>, term: Term) -> Result<Term, Error> {
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
) -> Result<Vec<Term>, Error> {
    let element_name = format!("value({name})");
    let mut out = Vec::with_capacity(terms.len());
    for term in terms {
        check_part(variables, kind, name, ("value", term, elem))?;
        out.push(prepare_paced(variables, term, &element_name, elem).await?);
    }
    Ok(out)
}
