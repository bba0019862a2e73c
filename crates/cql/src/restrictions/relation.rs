//! Resolves the relations of a WHERE clause to columns of the table, and types their terms.

use super::{InList, Op};
use crate::checked::SortedSet;
use crate::error::Error;
use crate::pace::PLAN_WORK;
use crate::restrictions::clustering::Tuple;
use crate::restrictions::filter::Test;
use crate::syntax::ast::{self, CompareOp, InValues, Relation, Target};
use crate::term::typing::show;
use crate::term::{Term, Variables, prepare, prepare_paced};
use model::CqlType;
use model::schema::{Column, ColumnKind, TableSchema};
use model::types::collection;
use std::sync::Arc;

/// An IN list of more values than this is sorted once, when the statement is planned.
const LONG_IN_LIST: usize = 4096;

/// A relation of a table's columns.
pub(super) enum Restriction<'s> {
    /// A relation of one column that a key lookup may answer.
    Column(&'s Column, Op),
    /// A relation of one column that needs a filter.
    Filter(&'s Column, Test),
    /// A relation of several clustering columns, and the position of the first one.
    Tuple(usize, Tuple),
    /// Several clustering columns that must equal none of some tuples. Needs a filter.
    NotTuple(usize, Tuple),
    /// A relation of the token.
    Token(Op),
}

/// The column with this name, or an error.
pub(super) fn column<'s>(schema: &'s TableSchema, name: &str) -> Result<&'s Column, Error> {
    schema.column_named(name).ok_or_else(|| Error::invalid(format!("Unrecognized name {name}")))
}

pub(super) async fn restriction<'s>(
    schema: &'s TableSchema,
    relation: &Relation,
    variables: &mut Variables<'_>,
) -> Result<Restriction<'s>, Error> {
    match relation {
        Relation::Compare { target, op, value } => compare(schema, target, *op, value, variables).await,
        Relation::In { target, negated, values } => in_list(schema, target, *negated, values, variables).await,
        Relation::Contains { column: name, key, value } => {
            let column = column(schema, name)?;
            let (ty, what) = match (&column.ty, key) {
                (CqlType::Map { key, .. }, true) => (key, "key"),
                (CqlType::Map { value, .. }, false) => (value, "value"),
                (CqlType::List { elem, .. } | CqlType::Set { elem, .. }, false) => (elem, "value"),
                (_, true) => {
                    return Err(Error::invalid(format!("Cannot use CONTAINS KEY on non-map column {name}")));
                }
                (_, false) => {
                    return Err(Error::invalid(format!("Cannot use CONTAINS on non-collection column {name}")));
                }
            };
            let term = prepare(variables, value, &format!("{what}({name})"), ty)?;
            Ok(Restriction::Filter(column, if *key { Test::ContainsKey(term) } else { Test::Contains(term) }))
        }
        Relation::IsNotNull { column } => Err(Error::invalid(format!(
            "restriction '{column} IS NOT null' is only supported in materialized view creation"
        ))),
    }
}

fn op_of(op: CompareOp, term: Term) -> Option<Op> {
    Some(match op {
        CompareOp::Eq => Op::Eq(term),
        CompareOp::Lt => Op::Upper(term, false),
        CompareOp::Le => Op::Upper(term, true),
        CompareOp::Gt => Op::Lower(term, false),
        CompareOp::Ge => Op::Lower(term, true),
        CompareOp::Ne | CompareOp::Like => return None,
    })
}

async fn compare<'s>(
    schema: &'s TableSchema,
    target: &Target,
    op: CompareOp,
    value: &ast::Term,
    variables: &mut Variables<'_>,
) -> Result<Restriction<'s>, Error> {
    if op == CompareOp::Ne {
        let left = match target {
            Target::Column(name) => name.to_string(),
            Target::Token(names) => format!("token{}", tuple_name(names)),
            Target::Tuple(names) => tuple_name(names),
            Target::Element(name, key) => format!("{name}[{}]", show(key)),
            Target::Field(name, field) => format!("{name}.{field}"),
            Target::Call(call) => call.name.to_string(),
        };
        return Err(Error::invalid(format!("Unsupported \"!=\" relation: {left} != {}", show(value))));
    }
    match target {
        Target::Column(name) => {
            let column = column(schema, name)?;
            let slice = op != CompareOp::Eq;
            if slice && column.ty.contains_duration() {
                let what =
                    if column.ty == CqlType::Duration { "duration columns" } else { "types containing durations" };
                return Err(Error::invalid(format!("Slice restrictions are not supported on {what}")));
            }
            if op == CompareOp::Like && !matches!(column.ty, CqlType::Text | CqlType::Ascii) {
                return Err(Error::invalid(format!("LIKE is allowed only on string types, which {name} is not")));
            }
            if column.ty.is_multi_cell() && column.ty.is_collection() {
                return Err(Error::invalid(format!(
                    "Collection column '{name}' ({}) cannot be restricted by a '{}' relation",
                    column.ty,
                    symbol(op)
                )));
            }
            let term = prepare_paced(variables, value, name, &column.ty).await?;
            if op == CompareOp::Like {
                return Ok(Restriction::Filter(column, Test::Compare(op, term)));
            }
            let op = op_of(op, term).ok_or_else(|| Error::invalid("Unsupported relation"))?;
            Ok(Restriction::Column(column, op))
        }
        Target::Element(name, key) => {
            let column = column(schema, name)?;
            let (key_type, value_type, index) = match &column.ty {
                CqlType::Map { key, value, .. } => ((**key).clone(), (**value).clone(), "key"),
                CqlType::List { elem, .. } => (CqlType::Int, (**elem).clone(), "idx"),
                _ => return Err(Error::invalid(format!("Column {name} is not a map/list, cannot be subscripted"))),
            };
            let key = prepare(variables, key, &format!("{index}({name})"), &key_type)?;
            if op == CompareOp::Like && !matches!(value_type, CqlType::Text | CqlType::Ascii) {
                return Err(Error::invalid(format!("LIKE is allowed only on string types, which {name} is not")));
            }
            let value = prepare(variables, value, &format!("value({name})"), &value_type)?;
            Ok(Restriction::Filter(column, Test::Element(key, op, value)))
        }
        Target::Tuple(names) => {
            let (first, types) = tuple_columns(schema, names)?;
            let terms = tuple_terms(&types, names, value, variables)?;
            let tuple = match op {
                CompareOp::Eq => Tuple::Eq(terms),
                CompareOp::Lt => Tuple::Upper(terms, false),
                CompareOp::Le => Tuple::Upper(terms, true),
                CompareOp::Gt => Tuple::Lower(terms, false),
                CompareOp::Ge => Tuple::Lower(terms, true),
                CompareOp::Ne | CompareOp::Like => return Err(Error::invalid("Unsupported multi-column relation")),
            };
            Ok(Restriction::Tuple(first, tuple))
        }
        Target::Token(names) => {
            token_columns(schema, names)?;
            let term = prepare(variables, value, "partition key token", &CqlType::Bigint)?;
            let op = op_of(op, term).ok_or_else(|| Error::invalid("LIKE cannot be used with the token function"))?;
            Ok(Restriction::Token(op))
        }
        Target::Field(..) => Err(Error::not_supported("A restriction of a user type's field")),
        Target::Call(call) => Err(Error::not_supported(&format!("A restriction of function {}", call.name))),
    }
}

async fn in_list<'s>(
    schema: &'s TableSchema,
    target: &Target,
    negated: bool,
    values: &InValues,
    variables: &mut Variables<'_>,
) -> Result<Restriction<'s>, Error> {
    let operator = variables.dialect.in_operator(negated);
    match target {
        Target::Column(name) => {
            let column = column(schema, name)?;
            if column.ty.is_multi_cell() && column.ty.is_collection() {
                return Err(Error::invalid(format!(
                    "Collection column '{name}' ({}) cannot be restricted by a 'IN' relation",
                    column.ty
                )));
            }
            let list = match values {
                InValues::List(terms) => {
                    in_values(variables, terms, &format!("{operator}({name})"), &column.ty).await?
                }
                InValues::Marker(marker) => {
                    let ty = CqlType::List { elem: Arc::new(column.ty.clone()), frozen: true };
                    InList::List(Term::Variable(variables.bind(*marker, &format!("{operator}({name})"), &ty)?))
                }
            };
            Ok(if negated {
                Restriction::Filter(column, Test::In(list, true))
            } else {
                Restriction::Column(column, Op::In(list))
            })
        }
        Target::Tuple(names) => {
            let (first, types) = tuple_columns(schema, names)?;
            let tuple = match values {
                InValues::List(terms) => {
                    for term in terms {
                        if matches!(term, ast::Term::Tuple(given) if given.len() > types.len()) {
                            return Err(Error::invalid(format!(
                                "Invalid list literal for {operator}({}): value {} is not of type {}",
                                tuple_name(names),
                                show(term),
                                CqlType::tuple(types.iter().cloned())
                            )));
                        }
                    }
                    let mut tuples = Vec::with_capacity(terms.len());
                    for term in terms {
                        tuples.push(tuple_terms(&types, names, term, variables)?);
                        variables.pace.worked(PLAN_WORK * types.len()).await?;
                    }
                    Tuple::In(tuples)
                }
                InValues::Marker(marker) => {
                    let count = types.len();
                    let ty = CqlType::List { elem: Arc::new(CqlType::tuple(types)), frozen: true };
                    let name = format!("{operator}({})", tuple_name(names));
                    Tuple::InList(Term::Variable(variables.bind(*marker, &name, &ty)?), count)
                }
            };
            Ok(if negated { Restriction::NotTuple(first, tuple) } else { Restriction::Tuple(first, tuple) })
        }
        Target::Token(_) => Err(Error::invalid("IN cannot be used with the token function")),
        Target::Element(..) | Target::Field(..) => Err(Error::not_supported("IN of a part of a column")),
        Target::Call(call) => Err(Error::not_supported(&format!("A restriction of function {}", call.name))),
    }
}

/// The values on the right side of IN. A long list of constants is sorted once, off the shard.
async fn in_values(
    variables: &mut Variables<'_>,
    terms: &[ast::Term],
    name: &str,
    ty: &CqlType,
) -> Result<InList, Error> {
    let mut out = Vec::with_capacity(terms.len());
    for term in terms {
        out.push(prepare_paced(variables, term, name, ty).await?);
    }
    let is_constant = |term: &Term| matches!(term, Term::Null | Term::Constant(_));
    if !variables.pace.pauses() || out.len() <= LONG_IN_LIST || !out.iter().all(is_constant) {
        return Ok(InList::Terms(out));
    }
    let ty = ty.clone();
    let set = rt::offload::run(move || {
        let values = out.iter().filter_map(|term| if let Term::Constant(value) = term { Some(value) } else { None });
        let list = collection::build_list(values);
        let nulls = out.contains(&Term::Null);
        SortedSet::new(&ty, &list).map(|set| (set, nulls))
    });
    let set = set.await.map_err(|error| Error::invalid(error.to_string()))?;
    Ok(InList::Set(Box::new(set)))
}

fn symbol(op: CompareOp) -> &'static str {
    match op {
        CompareOp::Eq => "=",
        CompareOp::Lt => "<",
        CompareOp::Le => "<=",
        CompareOp::Gt => ">",
        CompareOp::Ge => ">=",
        CompareOp::Ne => "!=",
        CompareOp::Like => "LIKE",
    }
}

fn tuple_name(names: &[ast::Name]) -> String {
    format!("({})", joined(names))
}

fn joined(names: &[ast::Name]) -> String {
    names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
}

/// The position of the first column among the clustering columns, and the types of all.
fn tuple_columns(schema: &TableSchema, names: &[ast::Name]) -> Result<(usize, Vec<CqlType>), Error> {
    let mut first = 0;
    let mut types = Vec::with_capacity(names.len());
    for (i, name) in names.iter().enumerate() {
        let column = column(schema, name)?;
        if column.kind != ColumnKind::Clustering {
            return Err(Error::invalid(format!(
                "Multi-column relations can only be applied to clustering columns but was applied to: {name}"
            )));
        }
        if names[..i].contains(name) {
            return Err(Error::invalid(format!("Column \"{name}\" appeared twice in a relation: ({})", joined(names))));
        }
        let position = column.position as usize;
        if i == 0 {
            first = position;
        } else if position != first + i {
            return Err(Error::invalid(format!(
                "Clustering columns must appear in the PRIMARY KEY order in multi-column relations: ({})",
                joined(names)
            )));
        }
        types.push(column.ty.clone());
    }
    Ok((first, types))
}

/// A term for each column, from a tuple literal or from one variable.
fn tuple_terms(
    types: &[CqlType],
    names: &[ast::Name],
    value: &ast::Term,
    variables: &mut Variables<'_>,
) -> Result<Vec<Term>, Error> {
    match value {
        ast::Term::Tuple(terms) => {
            if terms.len() != types.len() {
                return Err(Error::invalid(format!(
                    "Expected {} elements in value tuple, but got {}: {}",
                    types.len(),
                    terms.len(),
                    show(value)
                )));
            }
            terms
                .iter()
                .zip(names.iter().zip(types))
                .map(|(term, (name, ty))| prepare(variables, term, name, ty))
                .collect()
        }
        ast::Term::Marker(marker) => {
            let ty = CqlType::tuple(types.iter().cloned());
            let variable = Term::Variable(variables.bind(*marker, &tuple_name(names), &ty)?);
            Ok((0..types.len()).map(|i| Term::TupleField(Box::new(variable.clone()), i)).collect())
        }
        other => Err(Error::invalid(format!(
            "Invalid value {} for the columns ({}): expected a tuple",
            show(other),
            joined(names)
        ))),
    }
}

fn token_columns(schema: &TableSchema, names: &[ast::Name]) -> Result<(), Error> {
    let key = &schema.partition_key;
    let all: Vec<&str> = key.iter().map(|column| column.name.as_str()).collect();
    for name in names {
        column(schema, name)?;
    }
    if names.len() != key.len() {
        return Err(Error::invalid(format!(
            "Invalid number of arguments in call to function token: {} required but {} provided",
            key.len(),
            names.len()
        )));
    }
    if (1..names.len()).any(|i| names[..i].contains(&names[i])) {
        return Err(Error::invalid("The token() function contains duplicate partition key components"));
    }
    if names.iter().any(|name| !all.contains(&name.as_str())) {
        return Err(Error::invalid("The token() function must contains only partition key components"));
    }
    if names.iter().zip(&all).any(|(name, column)| name.as_str() != *column) {
        return Err(Error::invalid(format!(
            "The token function arguments must be in the partition key order: {}",
            all.join(", ")
        )));
    }
    Ok(())
}
