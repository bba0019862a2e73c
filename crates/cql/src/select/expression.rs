//! The expressions of a SELECT clause: planned into selectors, with the output columns and
//! aggregates that they need.

use super::aggregate::{Aggregate, Kind, kind_of_name};
use super::distinct::{Distinct, OutputSlots};
use super::selector::{CellTime, Selector};
use crate::error::Error;
use crate::pace::PLAN_WORK;
use crate::restrictions::analyse::output_of;
use crate::syntax::ast::{self, FunctionCall, SelectExpr, Selection, Target};
use crate::term::function::{self, Argument, Function};
use crate::term::typing::{fits, inferred_type, natural_type, preferred_type, show, show_type};
use crate::term::{Term, Variables, cast, prepare};
use bytes::Bytes;
use model::CqlType;
use model::schema::{Column, ColumnKind, TableSchema};
use model::types::limits;
use replica::OutputColumn;

fn is_cast(selector: &Selector) -> bool {
    matches!(selector, Selector::Call(Function::Cast(..), _))
}

/// One expression of the SELECT clause.
pub(super) struct Item {
    /// The expression.
    pub selector: Selector,
    /// The name of its result column.
    pub name: String,
    /// The type of its values.
    pub ty: CqlType,
}

/// Plans expressions, and collects the output columns and aggregates that they need.
pub(super) struct Columns<'s, 'v, 'm> {
    /// The table.
    pub schema: &'s TableSchema,
    /// The statement's variables.
    pub variables: &'v mut Variables<'m>,
    /// The columns that replicas return of each row.
    pub output: OutputSlots,
    /// The aggregates over all rows or over each group.
    pub aggregates: Distinct<Aggregate>,
}

impl<'s> Columns<'s, '_, '_> {
    /// The expressions of the SELECT clause.
    pub async fn items(&mut self, selection: &Selection) -> Result<Vec<Item>, Error> {
        let items = match selection {
            Selection::All => {
                let item = |column: &Column| {
                    let selector = Selector::Slot(self.output.of(output_of(column)));
                    Item { selector, name: column.name.clone(), ty: column.ty.clone() }
                };
                return Ok(self.schema.all_columns().map(item).collect());
            }
            Selection::Items(items) => items,
        };
        let mut out = Vec::with_capacity(items.len());
        for item in items {
            let (selector, ty) = self.expression(&item.expr)?;
            let name = match (&item.alias, &item.expr) {
                (Some(alias), _) => alias.to_string(),
                // A cast to the type that the expression already has is dropped, from the name,
                // too.
                (None, SelectExpr::Cast(inner, _)) if !is_cast(&selector) => name_of(inner),
                (None, expr) => name_of(expr),
            };
            self.variables.pace.worked(PLAN_WORK + name.len()).await?;
            out.push(Item { selector, name, ty });
        }
        Ok(out)
    }

    fn column(&self, name: &str) -> Result<&'s Column, Error> {
        self.schema.column_named(name).ok_or_else(|| Error::invalid(format!("Unrecognized name {name}")))
    }

    fn expression(&mut self, expr: &SelectExpr) -> Result<(Selector, CqlType), Error> {
        Ok(match expr {
            SelectExpr::Column(name) => {
                let column = self.column(name)?;
                let (output, ty) = (output_of(column), column.ty.clone());
                (Selector::Slot(self.output.of(output)), ty)
            }
            SelectExpr::Value(term) => {
                let ty = self.type_of_value(term)?;
                let term = prepare(self.variables, term, "value", &ty)?;
                (Selector::Term(term), ty)
            }
            SelectExpr::CountRows => {
                let aggregate = Aggregate { kind: Kind::Count, argument: None, ty: CqlType::Bigint };
                (self.aggregate(aggregate), CqlType::Bigint)
            }
            SelectExpr::WriteTime(target) => (self.cell_property(target, false)?, CqlType::Bigint),
            SelectExpr::Ttl(target) => (self.cell_property(target, true)?, CqlType::Int),
            SelectExpr::Call(call) => self.call(call)?,
            SelectExpr::Cast(inner, type_name) => {
                let (selector, from) = self.expression(inner)?;
                let keyspace = self.variables.keyspace.clone();
                let to = crate::schema::types::resolve(self.variables.metadata, &keyspace, type_name)?;
                if from == to {
                    return Ok((selector, to));
                }
                if !cast::is_allowed(&from, &to) {
                    return Err(Error::invalid(format!("{from} cannot be cast to {to}")));
                }
                (Selector::Call(Function::Cast(from, to.clone()), vec![selector]), to)
            }
            SelectExpr::Field(inner, field) => {
                let (selector, ty) = self.expression(inner)?;
                let CqlType::Udt(user_type) = &ty else {
                    return Err(Error::invalid(format!(
                        "Invalid field selection: {} of type {ty} is not a user type",
                        name_of(inner)
                    )));
                };
                let index = user_type
                    .field_index(field)
                    .ok_or_else(|| Error::invalid(format!("{} of type {ty} has no field {field}", name_of(inner))))?;
                (Selector::Field(Box::new(selector), index), user_type.fields[index].1.clone())
            }
            SelectExpr::Element(inner, key) => {
                let (selector, ty) = self.expression(inner)?;
                let (key_type, value_type) = match &ty {
                    CqlType::Map { key, value, .. } => ((**key).clone(), (**value).clone()),
                    CqlType::Set { elem, .. } => ((**elem).clone(), (**elem).clone()),
                    CqlType::List { elem, .. } => (CqlType::Int, (**elem).clone()),
                    _ => return Err(no_subscript(&name_of(inner))),
                };
                let key = prepare(self.variables, key, &format!("key({})", name_of(inner)), &key_type)?;
                (Selector::Element(Box::new(selector), ty, key), value_type)
            }
            SelectExpr::Slice(inner, from, to) => {
                let (selector, ty) = self.expression(inner)?;
                let key_type = match &ty {
                    CqlType::Map { key, .. } => (**key).clone(),
                    CqlType::Set { elem, .. } => (**elem).clone(),
                    _ => {
                        let name = name_of(inner);
                        return Err(Error::invalid(format!(
                            "Slice selection is only allowed on sets and maps, but {name} is of type {ty}"
                        )));
                    }
                };
                let mut bound = |term: &Option<ast::Term>, side: &str| match term {
                    Some(term) => {
                        prepare(self.variables, term, &format!("{side}({})", name_of(inner)), &key_type).map(Some)
                    }
                    None => Ok(None),
                };
                let (from, to) = (bound(from, "from")?, bound(to, "to")?);
                (Selector::Slice(Box::new(selector), ty.clone(), from, to), ty)
            }
        })
    }

    fn type_of_value(&self, term: &ast::Term) -> Result<CqlType, Error> {
        let ty = inferred_type(self.variables.metadata, &self.variables.keyspace, term)
            .ok_or_else(|| Error::invalid(format!("Cannot infer type for term {} in the SELECT clause", show(term))))?;
        let checked = limits::check(&ty, "The type of a value in the SELECT clause");
        checked.map(|_| ty).map_err(|error| Error::invalid(error.to_string()))
    }

    /// `writetime` or `ttl` of a single-cell column, or of one cell of a multi-cell column.
    fn cell_property(&mut self, target: &Target, ttl: bool) -> Result<Selector, Error> {
        let what = if ttl { "ttl" } else { "writetime" };
        let (Target::Column(name) | Target::Element(name, _) | Target::Field(name, _)) = target else {
            return Err(Error::invalid(format!("Selection function {what} needs a column")));
        };
        let column = self.value_column(name, what)?;
        let refused = |on: &str| Err(Error::invalid(format!("Cannot use selection function {what} on {on}")));
        let (ty, path) = match target {
            Target::Element(_, key) => {
                let key_type = match &column.ty {
                    CqlType::Map { key, frozen: false, .. } => (**key).clone(),
                    CqlType::Set { elem, frozen: false } => (**elem).clone(),
                    ty if ty.is_collection() => {
                        let what = what.to_uppercase();
                        return Err(Error::invalid(format!(
                            "{what} on a subscript is only valid for non-frozen map or set columns"
                        )));
                    }
                    _ => return Err(no_subscript(name)),
                };
                let key = prepare(self.variables, key, &format!("key({name})"), &key_type)?;
                (key_type, key)
            }
            Target::Field(_, field) => {
                let CqlType::Udt(user_type) = &column.ty else {
                    let ty = &column.ty;
                    return Err(Error::invalid(format!(
                        "Invalid field selection: {name} of type {ty} is not a user type"
                    )));
                };
                if user_type.frozen {
                    let what = what.to_uppercase();
                    return Err(Error::invalid(format!(
                        "{what} on a field selection is only valid for non-frozen UDT columns"
                    )));
                }
                let index = user_type
                    .field_index(field)
                    .ok_or_else(|| Error::invalid(format!("{name} of type {} has no field {field}", column.ty)))?;
                let path = Bytes::copy_from_slice(&(index as u16).to_be_bytes());
                (CqlType::Blob, Term::Constant(path))
            }
            _ if column.ty.is_multi_cell() => {
                return refused(if column.ty.is_collection() { "collections" } else { "non-frozen UDTs" });
            }
            _ => {
                let output = if ttl { OutputColumn::Ttl(column.id) } else { OutputColumn::WriteTime(column.id) };
                return Ok(Selector::Slot(self.output.of(output)));
            }
        };
        let slot = self.output.of(OutputColumn::CellTimes(column.id));
        Ok(Selector::CellTime(CellTime { slot, ty, path, ttl }))
    }

    /// A column outside of the primary key. Only such columns have timestamps and TTLs.
    fn value_column(&self, name: &str, what: &str) -> Result<&'s Column, Error> {
        let column = self.column(name)?;
        if matches!(column.kind, ColumnKind::PartitionKey | ColumnKind::Clustering) {
            let what = what.to_uppercase();
            return Err(Error::invalid(format!("{what} is not legal on primary key component {name}")));
        }
        Ok(column)
    }

    fn aggregate(&mut self, aggregate: Aggregate) -> Selector {
        Selector::Aggregate(self.aggregates.place_of(aggregate))
    }

    /// Checks that the arguments of `token` are the columns of the partition key, in their order.
    fn check_token(&self, arguments: &[SelectExpr]) -> Result<(), Error> {
        for (argument, column) in arguments.iter().zip(&self.schema.partition_key) {
            if let SelectExpr::Column(name) = argument
                && name.as_str() != column.name
            {
                return Err(Error::invalid(format!(
                    "Invalid call to function token: {name} stands where partition key column {} belongs",
                    column.name
                )));
            }
        }
        Ok(())
    }

    fn call(&mut self, call: &FunctionCall<SelectExpr>) -> Result<(Selector, CqlType), Error> {
        let system = call.name.keyspace.as_ref().is_none_or(|keyspace| keyspace.as_str() == "system");
        if system && let Some(kind) = kind_of_name(&call.name.name) {
            let [argument] = &call.arguments[..] else {
                return Err(Error::invalid(format!(
                    "Invalid number of arguments in call to function {}: 1 required but {} provided",
                    function::full_name(&call.name),
                    call.arguments.len()
                )));
            };
            if matches!(argument, SelectExpr::Value(ast::Term::Marker(_))) {
                return Err(Error::invalid(format!(
                    "Function {} is only valid when argument types are known",
                    function::full_name(&call.name)
                )));
            }
            let (argument, ty) = self.expression(argument)?;
            if argument.has_aggregate() {
                return Err(Error::invalid("aggregate functions cannot be used as arguments of aggregate functions"));
            }
            if !Aggregate::is_allowed(kind, &ty) {
                return Err(Error::invalid(format!(
                    "Invalid call to function {}, none of its type signatures match: its argument is of type {ty}",
                    function::full_name(&call.name)
                )));
            }
            let aggregate = Aggregate { kind, argument: Some(argument), ty };
            let result = aggregate.result();
            return Ok((self.aggregate(aggregate), result));
        }
        if is_max_writetime(call) {
            let [SelectExpr::Column(name)] = &call.arguments[..] else {
                return Err(Error::invalid(format!("Selection function {MAX_WRITETIME} needs a column")));
            };
            let output = OutputColumn::WriteTime(self.value_column(name, MAX_WRITETIME)?.id);
            return Ok((Selector::Slot(self.output.of(output)), CqlType::Bigint));
        }
        let mut planned: Vec<Option<(Selector, CqlType)>> = Vec::with_capacity(call.arguments.len());
        for argument in &call.arguments {
            planned.push(match argument {
                SelectExpr::Value(_) => None,
                other => Some(self.expression(other)?),
            });
        }
        let (metadata, keyspace) = (self.variables.metadata, self.variables.keyspace.clone());
        let arguments: Vec<Argument<'_>> = call
            .arguments
            .iter()
            .zip(&planned)
            .map(|(argument, planned)| match (argument, planned) {
                (SelectExpr::Value(term), None) => Argument {
                    shown: show(term),
                    ty: natural_type(self.variables, term),
                    preferred: preferred_type(metadata, &keyspace, term),
                    fits: Box::new(|ty: &CqlType| fits(metadata, &keyspace, term, ty)),
                },
                (expr, planned) => Argument {
                    shown: name_of(expr),
                    ty: planned.as_ref().map(|(_, ty)| ty.clone()),
                    preferred: None,
                    fits: Box::new(|_: &CqlType| false),
                },
            })
            .collect();
        let found = function::resolve(&call.name, &arguments, &self.variables.key_types)?;
        drop(arguments);
        if let Function::Token(_) = found.function {
            self.check_token(&call.arguments)?;
        }
        let mut selectors = Vec::with_capacity(planned.len());
        for (i, (argument, planned)) in call.arguments.iter().zip(planned).enumerate() {
            selectors.push(match (argument, planned) {
                (SelectExpr::Value(term), None) => {
                    let name = format!("arg{i}({})", function::full_name(&call.name));
                    Selector::Term(prepare(self.variables, term, &name, &found.parameters[i])?)
                }
                (_, Some((selector, _))) => selector,
                (_, None) => return Err(Error::invalid("A function's argument could not be planned")),
            });
        }
        Ok((Selector::Call(found.function, selectors), found.result))
    }
}

fn no_subscript(name: &str) -> Error {
    Error::invalid(format!("Column {name} is not a map/set/list, cannot be subscripted"))
}

/// Cassandra's function for the latest `writetime` of a column's cells.
const MAX_WRITETIME: &str = "maxwritetime";

fn is_max_writetime(call: &FunctionCall<SelectExpr>) -> bool {
    call.name.keyspace.is_none() && call.name.name.as_str() == MAX_WRITETIME
}

/// The name of an expression's result column.
fn name_of(expr: &SelectExpr) -> String {
    let target = |target: &Target| match target {
        Target::Column(name) => name.to_string(),
        Target::Element(name, key) => format!("{name}[{}]", show(key)),
        Target::Field(name, field) => format!("{name}.{field}"),
        _ => String::new(),
    };
    match expr {
        SelectExpr::Column(name) => name.to_string(),
        SelectExpr::Value(term) => show(term),
        SelectExpr::CountRows => "count".to_owned(),
        SelectExpr::WriteTime(of) => format!("writetime({})", target(of)),
        SelectExpr::Ttl(of) => format!("ttl({})", target(of)),
        SelectExpr::Call(call) => {
            let arguments: Vec<String> = call.arguments.iter().map(name_of).collect();
            let name = if is_max_writetime(call) { MAX_WRITETIME.to_owned() } else { function::full_name(&call.name) };
            format!("{name}({})", arguments.join(", "))
        }
        SelectExpr::Cast(inner, ty) => format!("cast({} as {})", name_of(inner), show_type(ty)),
        SelectExpr::Field(inner, field) => format!("{}.{field}", name_of(inner)),
        SelectExpr::Element(inner, key) => format!("{}[{}]", name_of(inner), show(key)),
        SelectExpr::Slice(inner, from, to) => {
            let end = |term: &Option<ast::Term>| term.as_ref().map(show).unwrap_or_default();
            format!("{}[{}..{}]", name_of(inner), end(from), end(to))
        }
    }
}
