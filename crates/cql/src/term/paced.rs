//! Evaluates calls with large arguments with pauses: a call alone could hold the shard for long.

use super::call::{self, MAX_JSON_BYTES, no_json};
use super::collections::{FoldSteps, IntersectionSteps};
use super::function::Function;
use super::{Env, Term, UsedBytes, Val};
use crate::error::Error;
use crate::pace::{MATH_WORK, Pace};
use bytes::Bytes;
use model::CqlType;
use model::types::{JsonNotation, TextSteps, json_expansion};
use std::pin::Pin;

/// A call with a longer argument than this is evaluated in steps, bytes.
const LARGE_ARGUMENT: usize = 64 << 10;

/// The bytes of elements that are evaluated in one step.
const STEP: usize = 16 << 10;

impl Function {
    /// Like [`Function::call`], with pauses if an argument is large.
    pub async fn call_paced(&self, arguments: &[Option<Bytes>], pace: &Pace<'_>) -> Result<Option<Bytes>, Error> {
        if let (Function::ToJson(ty), [value]) = (self, arguments) {
            let mut out = String::new();
            push_json(ty, value.as_deref(), &mut out, pace).await?;
            return Ok(Some(out.into_bytes().into()));
        }
        let is_large = |argument: &Bytes| argument.len() > LARGE_ARGUMENT;
        if !arguments.iter().flatten().any(is_large) {
            return self.call(arguments);
        }
        match (self, arguments) {
            (Function::Collection(fold, ty), [Some(value)]) => {
                let mut steps = FoldSteps::new(*fold, ty, value)?;
                while !steps.step(STEP)? {
                    pace.worked(STEP).await?;
                }
                steps.finish()
            }
            (Function::SetIntersection(elem), [Some(one), Some(other)]) => {
                let mut steps = IntersectionSteps::new(elem, one, other)?;
                while !steps.step(STEP)? {
                    pace.worked(STEP).await?;
                }
                Ok(Some(steps.finish()))
            }
            (Function::FromJson(_), [Some(_)]) => {
                let (function, arguments) = (self.clone(), arguments.to_vec());
                let result = rt::offload::run(move || function.call(&arguments).map_err(|error| error.to_string()));
                result.await.map_err(Error::invalid)
            }
            _ => self.call(arguments),
        }
    }

    /// About how many bytes of the result each byte of the arguments can become, at least 1.
    pub fn expansion(&self) -> usize {
        if let Function::ToJson(ty) = self { json_expansion(ty) } else { 1 }
    }

    /// The work of a call in addition to the work of the bytes of its arguments and its result.
    pub fn extra_work(&self) -> usize {
        match self {
            Function::Math(_, CqlType::Varint | CqlType::Decimal) => MATH_WORK,
            _ => 0,
        }
    }
}

/// Appends a value as JSON text, with pauses. A short value, too, can have a long text: fields that
/// it does not have are written as nulls.
pub async fn push_json(ty: &CqlType, value: Option<&[u8]>, out: &mut String, pace: &Pace<'_>) -> Result<(), Error> {
    if !ty.has_parts() {
        return call::push_json(ty, value, out);
    }
    let mut steps = TextSteps::new(JsonNotation::STRICT, ty, value, MAX_JSON_BYTES, out).map_err(no_json)?;
    while !steps.step(STEP).map_err(no_json)? {
        pace.worked(STEP).await?;
    }
    Ok(())
}

/// A future that evaluates a term. Terms are nested, so it is boxed.
type EvaluatedTerm<'a> = Pin<Box<dyn Future<Output = Result<Term, Error>> + 'a>>;

impl Term {
    /// The term with its variables and its calls evaluated, with pauses. Not evaluated are an unset
    /// variable, and a call that has another result each time. The rest costs no more than a copy
    /// of the value. Results of calls are kept, so they count as used.
    pub(crate) fn evaluated<'a>(
        &'a self,
        env: Env<'a>,
        pace: &'a Pace<'a>,
        used: &'a mut UsedBytes,
    ) -> EvaluatedTerm<'a> {
        Box::pin(async move {
            Ok(match self {
                Term::Null | Term::Constant(_) | Term::Folded(_) => self.clone(),
                Term::Variable(_) => {
                    let value = self.evaluate(env)?;
                    pace.worked(TERM_WORK + value.as_slice().map_or(0, <[u8]>::len)).await?;
                    match value {
                        Val::Unset => self.clone(),
                        value => value.into_bytes().map_or(Term::Null, Term::Constant),
                    }
                }
                Term::List(terms) => Term::List(all_evaluated(terms, env, pace, used).await?),
                Term::Set(ty, terms) => Term::Set(ty.clone(), all_evaluated(terms, env, pace, used).await?),
                Term::Vector(ty, terms) => Term::Vector(ty.clone(), all_evaluated(terms, env, pace, used).await?),
                Term::Tuple(terms) => Term::Tuple(all_evaluated(terms, env, pace, used).await?),
                Term::Map(ty, entries) => {
                    let mut evaluated = Vec::with_capacity(entries.len());
                    for (key, value) in entries {
                        evaluated
                            .push((key.evaluated(env, pace, used).await?, value.evaluated(env, pace, used).await?));
                    }
                    Term::Map(ty.clone(), evaluated)
                }
                Term::TupleField(tuple, index) => {
                    Term::TupleField(Box::new(tuple.evaluated(env, pace, used).await?), *index)
                }
                Term::Call(function, terms) if function.is_pure() => {
                    let mut arguments = Vec::with_capacity(terms.len());
                    for term in terms {
                        arguments.push(term.evaluated(env, pace, used).await?.evaluate_set(env)?);
                    }
                    let result = function.call_paced(&arguments, pace).await?;
                    let bytes: usize = arguments.iter().flatten().chain(&result).map(Bytes::len).sum();
                    pace.worked(TERM_WORK + bytes + function.extra_work()).await?;
                    match result {
                        Some(result) => used.take(Val::Owned(result))?.into_bytes().map_or(Term::Null, Term::Constant),
                        None => Term::Null,
                    }
                }
                Term::Call(function, terms) => {
                    Term::Call(function.clone(), all_evaluated(terms, env, pace, used).await?)
                }
            })
        })
    }
}

/// The work for a term in addition to the work of its bytes.
const TERM_WORK: usize = 256;

async fn all_evaluated(
    terms: &[Term],
    env: Env<'_>,
    pace: &Pace<'_>,
    used: &mut UsedBytes,
) -> Result<Vec<Term>, Error> {
    let mut evaluated = Vec::with_capacity(terms.len());
    for term in terms {
        evaluated.push(term.evaluated(env, pace, used).await?);
    }
    Ok(evaluated)
}
