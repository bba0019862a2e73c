//! Types long literals with pauses. A collection literal can have hundreds of thousands of
//! elements.

use super::typing::{check_part, prepare};
use super::{Term, Variables};
use crate::error::Error;
use crate::pace::PLAN_WORK;
use crate::syntax::ast;
use bytes::Bytes;
use model::CqlType;
use std::pin::Pin;

/// A literal of more elements than this is typed with pauses, in a statement that has pauses.
const LONG_LITERAL: usize = 256;

fn is_long(term: &ast::Term) -> bool {
    match term {
        ast::Term::List(terms) | ast::Term::Set(terms) => terms.len() > LONG_LITERAL,
        ast::Term::Map(pairs) => pairs.len() > LONG_LITERAL,
        _ => false,
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
    variables.pace.worked(PLAN_WORK).await?;
    match is_long(term) {
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
            // A vector is short, and all else is an error.
            _ => return prepare(variables, term, name, ty),
        };
        // Sorts the elements, and drops the terms.
        let folded = rt::offload::run(move || term.folded().map_err(|error| error.to_string())).await;
        let folded = folded.map_err(Error::invalid)?;
        if let Term::Folded(folded) = &folded {
            variables.folded(folded.0.as_ref().map_or(0, Bytes::len))?;
        }
        Ok(folded)
    })
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
