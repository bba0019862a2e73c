//! Expressions over a row: columns, functions, casts, and parts of values.

use crate::error::Error;
use crate::pace::Pace;
use crate::term::call;
use crate::term::function::Function;
use crate::term::paced::push_json;
use crate::term::{Env, Term, UsedBytes};
use bytes::Bytes;
use model::CqlType;
use model::types::{collection, compare, json_expansion};
use std::cmp::Ordering;
use std::pin::Pin;

/// An expression over a row.
#[derive(Clone, PartialEq, Debug)]
pub enum Selector {
    /// An output column, by its slot.
    Slot(usize),
    /// The result of an aggregate, by its index.
    Aggregate(usize),
    /// A value that does not depend on the row.
    Term(Term),
    /// A function call with expressions as arguments.
    Call(Function, Vec<Selector>),
    /// A field of a user type, by its index.
    Field(Box<Selector>, usize),
    /// The value of a map under a key, the element of a list at an index, or the element of a set
    /// if the set contains it.
    Element(Box<Selector>, CqlType, Term),
    /// The part of a set or map of this type between two elements or keys, both inclusive. `None`
    /// is no bound.
    Slice(Box<Selector>, CqlType, Option<Term>, Option<Term>),
    /// The write time or the remaining TTL of one cell of a collection or user type.
    CellTime(CellTime),
    /// The row as a JSON object: names as JSON strings, types and values.
    Json(Vec<(String, CqlType, Selector)>),
}

/// Selects the write time or TTL of one cell of a multi-cell column.
#[derive(Clone, PartialEq, Debug)]
pub struct CellTime {
    /// The slot of the output column with the times of all cells.
    pub slot: usize,
    /// The type of a cell's path: a map's key type, a set's element type, or `blob` for a field.
    pub ty: CqlType,
    /// The path of the cell.
    pub path: Term,
    /// Selects the remaining TTL in seconds instead of the write time.
    pub ttl: bool,
}

/// The inputs of an expression.
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
    /// Whether the expression contains the result of an aggregate.
    pub fn has_aggregate(&self) -> bool {
        match self {
            Selector::Aggregate(_) => true,
            Selector::Slot(_) | Selector::Term(_) | Selector::CellTime(_) => false,
            Selector::Call(_, arguments) => arguments.iter().any(Selector::has_aggregate),
            Selector::Field(inner, _) | Selector::Element(inner, ..) | Selector::Slice(inner, ..) => {
                inner.has_aggregate()
            }
            Selector::Json(members) => members.iter().any(|(_, _, member)| member.has_aggregate()),
        }
    }

    /// Whether the expression contains a column of the row, outside of aggregates.
    pub fn has_column(&self) -> bool {
        match self {
            Selector::Slot(_) | Selector::CellTime(_) => true,
            Selector::Aggregate(_) | Selector::Term(_) => false,
            Selector::Call(_, arguments) => arguments.iter().any(Selector::has_column),
            Selector::Field(inner, _) | Selector::Element(inner, ..) | Selector::Slice(inner, ..) => inner.has_column(),
            Selector::Json(members) => members.iter().any(|(_, _, member)| member.has_column()),
        }
    }

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
            Selector::Field(inner, _) | Selector::Element(inner, ..) | Selector::Slice(inner, ..) => {
                self.part(inner.evaluate(row)?, row.env)?
            }
            Selector::CellTime(wanted) => {
                let (Some(times), Some(path)) = (&row.slots[wanted.slot], wanted.path.evaluate_set(row.env)?) else {
                    return Ok(None);
                };
                let mut cells = collection::pairs(times).into_iter().flatten().map_while(Result::ok);
                let cell = cells.find(|(other, _)| compare(&wanted.ty, other, &path) == Ordering::Equal);
                let Some((written, left)) = cell.and_then(|(_, cell)| cell.split_at_checked(8)) else {
                    return Ok(None);
                };
                if wanted.ttl {
                    // A negative value: the cell has no TTL.
                    let forever = left.first().is_none_or(|byte| byte & 0x80 != 0);
                    (!forever).then(|| times.slice_ref(left))
                } else {
                    Some(times.slice_ref(written))
                }
            }
            Selector::Json(members) => {
                let mut out = String::from("{");
                for (name, ty, member) in members {
                    push_member(name, ty, member.evaluate(row)?, &mut out)?;
                }
                out.push('}');
                Some(out.into_bytes().into())
            }
        })
    }

    /// The part of its inner value that a `Field`, `Element` or `Slice` selects.
    fn part(&self, value: Option<Bytes>, env: Env<'_>) -> Result<Option<Bytes>, Error> {
        let bound = |term: &Option<Term>| match term {
            Some(term) => term.evaluate_set(env),
            None => Ok(None),
        };
        Ok(match self {
            Selector::Field(_, index) => {
                let Some(value) = value else { return Ok(None) };
                let field = collection::fields(&value).nth(*index).and_then(Result::ok).flatten();
                field.map(|field| value.slice_ref(field))
            }
            Selector::Element(_, ty, key) => {
                let (Some(value), Some(key)) = (value, key.evaluate_set(env)?) else { return Ok(None) };
                element(ty, &value, &key).map(|element| value.slice_ref(element))
            }
            Selector::Slice(_, ty, from, to) => {
                let (Some(value), from, to) = (value, bound(from)?, bound(to)?) else { return Ok(None) };
                slice(ty, &value, from.as_deref(), to.as_deref()).map(Bytes::from)
            }
            _ => None,
        })
    }

    /// The same value as [`Selector::evaluate`], with pauses. Each step reads `bytes` of the row.
    pub fn evaluate_paced<'a>(
        &'a self,
        row: Row<'a>,
        bytes: usize,
        pace: &'a Pace<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<Option<Bytes>, Error>> + 'a>> {
        Box::pin(async move {
            let value = match self {
                Selector::Slot(_) | Selector::Aggregate(_) | Selector::CellTime(_) => self.evaluate(row)?,
                Selector::Term(term) => {
                    term.evaluated(row.env, pace, &mut UsedBytes::default()).await?.evaluate_set(row.env)?
                }
                Selector::Call(function, arguments) => {
                    let mut values = Vec::with_capacity(arguments.len());
                    for argument in arguments {
                        values.push(argument.evaluate_paced(row, bytes, pace).await?);
                    }
                    function.call_paced(&values, pace).await?
                }
                Selector::Field(inner, _) | Selector::Element(inner, ..) | Selector::Slice(inner, ..) => {
                    self.part(inner.evaluate_paced(row, bytes, pace).await?, row.env)?
                }
                Selector::Json(members) => {
                    let mut out = String::from("{");
                    for (name, ty, member) in members {
                        let value = member.evaluate_paced(row, bytes, pace).await?;
                        push_name(name, &mut out);
                        push_json(ty, value.as_deref(), &mut out, pace).await?;
                    }
                    out.push('}');
                    Some(out.into_bytes().into())
                }
            };
            let made = value.as_ref().map_or(0, Bytes::len);
            pace.worked(bytes.max(made) + self.extra_work()).await?;
            Ok(value)
        })
    }

    fn extra_work(&self) -> usize {
        if let Selector::Call(function, _) = self { function.extra_work() } else { 0 }
    }

    /// Adds what evaluating this costs.
    pub fn add_cost(&self, cost: &mut Cost) {
        cost.eighths += if let Selector::Slot(_) = self { 1 } else { 8 };
        match self {
            Selector::Slot(_) | Selector::Aggregate(_) => {}
            Selector::Term(term) => cost.terms = cost.terms.saturating_add(term.expansion()),
            Selector::CellTime(_) => cost.terms += 1,
            Selector::Call(function, arguments) => {
                cost.fixed += self.extra_work();
                arguments.iter().for_each(|argument| argument.add_expanded_cost(function.expansion(), cost));
            }
            Selector::Field(inner, _) => inner.add_cost(cost),
            Selector::Element(inner, ..) | Selector::Slice(inner, ..) => {
                cost.terms += 1;
                inner.add_cost(cost);
            }
            Selector::Json(members) => {
                members.iter().for_each(|(_, ty, member)| member.add_expanded_cost(json_expansion(ty), cost));
            }
        }
    }

    /// Adds the cost of evaluating this, if each byte of its value becomes `expansion` bytes.
    fn add_expanded_cost(&self, expansion: usize, cost: &mut Cost) {
        self.add_cost(cost);
        let extra = expansion - 1;
        match self.has_column() || self.has_aggregate() {
            true => cost.eighths = cost.eighths.saturating_add(extra.saturating_mul(8)),
            false => cost.terms = cost.terms.saturating_add(extra),
        }
    }
}

/// How much evaluating expressions of a row costs.
#[derive(Clone, Copy, Default, Debug)]
pub struct Cost {
    /// How often the bytes of a row are read, in eighths. Copying a column counts as one eighth.
    pub eighths: usize,
    /// How often a bound value is read.
    pub terms: usize,
    /// Additional work.
    pub fixed: usize,
}

impl Cost {
    /// The work for a row of `bytes` bytes.
    #[inline]
    pub fn of_row(&self, bytes: usize) -> usize {
        (bytes / 8).saturating_mul(self.eighths).saturating_add(self.fixed)
    }
}

/// Appends the name of a member of a row.
fn push_name(name: &str, out: &mut String) {
    if out.len() > 1 {
        out.push_str(", ");
    }
    out.push_str(name);
    out.push_str(": ");
}

/// Appends a member of a row as JSON.
fn push_member(name: &str, ty: &CqlType, value: Option<Bytes>, out: &mut String) -> Result<(), Error> {
    push_name(name, out);
    call::push_json(ty, value.as_deref(), out)
}

/// The list index in a serialized int. `None` if it is negative.
fn place_of(index: &[u8]) -> Option<usize> {
    usize::try_from(i32::from_be_bytes(index.try_into().ok()?)).ok()
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
        CqlType::List { .. } => collection::elements(value).ok()?.map_while(Result::ok).nth(place_of(wanted)?),
        _ => None,
    }
}

/// The elements or entries between two bounds, both inclusive.
fn slice(ty: &CqlType, value: &[u8], from: Option<&[u8]>, to: Option<&[u8]>) -> Option<Vec<u8>> {
    let within = |ty: &CqlType, key: &[u8]| {
        from.is_none_or(|from| compare(ty, key, from) != Ordering::Less)
            && to.is_none_or(|to| compare(ty, key, to) != Ordering::Greater)
    };
    match ty {
        CqlType::Map { key, .. } => {
            let pairs = collection::pairs(value).ok()?.map_while(Result::ok);
            Some(collection::build_map_sorted(pairs.filter(|(k, _)| within(key, k))))
        }
        CqlType::Set { elem, .. } => {
            let elements = collection::elements(value).ok()?.map_while(Result::ok);
            Some(collection::build_list(elements.filter(|e| within(elem, e))))
        }
        _ => None,
    }
}
