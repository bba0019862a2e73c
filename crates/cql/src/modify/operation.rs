//! Operations of SET and DELETE on one column, with typed terms.

use crate::error::Error;
use crate::syntax::ast::{AssignmentOp, DeleteTarget};
use crate::term::typing::show;
use crate::term::{Term, Variables, prepare, prepare_paced};
use model::CqlType;
use model::id::ColumnId;
use model::schema::Column;
use std::sync::Arc;

/// An operation on one column of each row, or of the static row.
#[derive(Clone, PartialEq, Debug)]
pub struct Operation {
    /// The column.
    pub column: ColumnId,
    /// Its type.
    pub ty: CqlType,
    /// The change.
    pub change: Change,
}

/// The change of a column.
#[derive(Clone, PartialEq, Debug)]
pub enum Change {
    /// Sets a value. Replaces all cells of a multi-cell column.
    Set(Term),
    /// Deletes the value or all cells.
    Delete,
    /// Appends elements to a list.
    Append(Term),
    /// Prepends elements to a list.
    Prepend(Term),
    /// Adds elements to a set, or entries to a map.
    Add(Term),
    /// Removes elements of a set, or keys of a map; the latter are given as a set.
    Remove(Term),
    /// Deletes all elements of a list that are equal to one of these. Reads first.
    Discard(Term),
    /// Sets the value at an index of a list. Reads first.
    SetIndex(Box<Term>, Term),
    /// Deletes the element at an index of a list. Reads first.
    DeleteIndex(Term),
    /// Sets the value under a key of a map.
    SetKey(Box<Term>, Term),
    /// Deletes an entry of a map or an element of a set.
    DeleteKey(Term),
    /// Sets a field of a user type, by its index.
    SetField(u16, Term),
    /// Deletes a field of a user type.
    DeleteField(u16),
    /// Increments a counter, or decrements it if true.
    Count(Term, bool),
}

impl Change {
    /// Whether the current list elements must be read.
    pub fn reads_first(&self) -> bool {
        matches!(self, Change::Discard(_) | Change::SetIndex(..) | Change::DeleteIndex(_))
    }

    /// The terms of the change: the place first, if it has one.
    pub fn terms(&self) -> impl Iterator<Item = &Term> {
        let (place, term) = match self {
            Change::Delete | Change::DeleteField(_) => (None, None),
            Change::SetIndex(place, term) | Change::SetKey(place, term) => (Some(&**place), Some(term)),
            Change::Set(term)
            | Change::Append(term)
            | Change::Prepend(term)
            | Change::Add(term)
            | Change::Remove(term)
            | Change::Discard(term)
            | Change::DeleteIndex(term)
            | Change::DeleteKey(term)
            | Change::SetField(_, term)
            | Change::Count(term, _) => (None, Some(term)),
        };
        place.into_iter().chain(term)
    }

    /// Whether the change applies to the entire column, so that no other operation on the column is
    /// allowed.
    pub fn is_whole(&self) -> bool {
        matches!(self, Change::Set(_) | Change::Delete)
    }
}

impl Operation {
    fn new(column: &Column, change: Change) -> Operation {
        Operation { column: column.id, ty: column.ty.clone(), change }
    }

    /// Whether the operation makes exactly one cell of a single-cell column.
    pub fn is_simple(&self) -> bool {
        self.change.is_whole() && !self.ty.is_multi_cell()
    }

    /// `column = term` of an UPDATE, or a column and its value of an INSERT.
    pub fn set(column: &Column, term: Term) -> Operation {
        Operation::new(column, Change::Set(term))
    }

    /// An assignment of UPDATE.
    pub async fn assign(column: &Column, op: &AssignmentOp, variables: &mut Variables<'_>) -> Result<Operation, Error> {
        let name = &column.name;
        let multi_cell = column.ty.is_multi_cell();
        let change = match op {
            AssignmentOp::Set(_) if column.ty.is_counter() => {
                return Err(Error::invalid(format!(
                    "Cannot set the value of counter column {name} (counters can only be incremented/decremented, not set)"
                )));
            }
            AssignmentOp::Set(term) => Change::Set(prepare_paced(variables, term, name, &column.ty).await?),
            AssignmentOp::Add(term) | AssignmentOp::Subtract(term) if column.ty.is_counter() => {
                let down = matches!(op, AssignmentOp::Subtract(_));
                Change::Count(prepare_paced(variables, term, name, &column.ty).await?, down)
            }
            AssignmentOp::Add(term) | AssignmentOp::Subtract(term) | AssignmentOp::Prepend(term) => {
                let shown = match op {
                    AssignmentOp::Subtract(_) => format!("{name} = {name} - {}", show(term)),
                    AssignmentOp::Prepend(_) => format!("{name} = {} + {name}", show(term)),
                    _ => format!("{name} = {name} + {}", show(term)),
                };
                if column.ty.is_counter() {
                    return Err(Error::invalid(format!("Invalid operation ({shown}) for non list column {name}")));
                }
                if !column.ty.is_collection() {
                    return Err(Error::invalid(format!("Invalid operation ({shown}) for non counter column {name}")));
                }
                if !multi_cell {
                    return Err(Error::invalid(format!(
                        "Invalid operation ({shown}) for frozen collection column {name}"
                    )));
                }
                match (&column.ty, op) {
                    (CqlType::List { .. }, AssignmentOp::Add(_)) => {
                        Change::Append(prepare_paced(variables, term, name, &column.ty).await?)
                    }
                    (CqlType::List { .. }, AssignmentOp::Prepend(_)) => {
                        Change::Prepend(prepare_paced(variables, term, name, &column.ty).await?)
                    }
                    (CqlType::List { .. }, _) => {
                        Change::Discard(prepare_paced(variables, term, name, &column.ty).await?)
                    }
                    (_, AssignmentOp::Add(_)) => Change::Add(prepare_paced(variables, term, name, &column.ty).await?),
                    (CqlType::Map { key, .. }, AssignmentOp::Subtract(_)) => {
                        let keys = CqlType::Set { elem: Arc::clone(key), frozen: false };
                        Change::Remove(prepare_paced(variables, term, name, &keys).await?)
                    }
                    (_, AssignmentOp::Subtract(_)) => {
                        Change::Remove(prepare_paced(variables, term, name, &column.ty).await?)
                    }
                    _ => {
                        return Err(Error::invalid(format!("Invalid operation ({shown}) for non list column {name}")));
                    }
                }
            }
            AssignmentOp::SetElement { key, value } => match &column.ty {
                CqlType::List { elem, .. } if multi_cell => Change::SetIndex(
                    Box::new(prepare_paced(variables, key, &format!("idx({name})"), &CqlType::Int).await?),
                    prepare_paced(variables, value, &format!("value({name})"), elem).await?,
                ),
                CqlType::Map { key: key_type, value: value_type, .. } if multi_cell => Change::SetKey(
                    Box::new(prepare_paced(variables, key, &format!("key({name})"), key_type).await?),
                    prepare_paced(variables, value, &format!("value({name})"), value_type).await?,
                ),
                ty if ty.is_collection() && !multi_cell => {
                    return Err(Error::invalid(format!(
                        "Invalid operation ({name}[{}] = {}) for frozen collection column {name}",
                        show(key),
                        show(value)
                    )));
                }
                CqlType::Set { .. } => {
                    return Err(Error::invalid(format!(
                        "Invalid operation ({name}[{}] = {}) for set column {name}",
                        show(key),
                        show(value)
                    )));
                }
                _ => {
                    return Err(Error::invalid(format!(
                        "Invalid operation ({name}[{}] = {}) for non collection column {name}",
                        show(key),
                        show(value)
                    )));
                }
            },
            AssignmentOp::SetField { field, value } => {
                let (index, ty) = field_of(column, field, &format!("operation ({name}.{field} = {})", show(value)))?;
                Change::SetField(index, prepare_paced(variables, value, &format!("{name}.{field}"), &ty).await?)
            }
        };
        Ok(Operation::new(column, change))
    }

    /// A target of DELETE.
    pub fn delete(column: &Column, target: &DeleteTarget, variables: &mut Variables<'_>) -> Result<Operation, Error> {
        let name = &column.name;
        let change = match target {
            DeleteTarget::Column(_) => Change::Delete,
            DeleteTarget::Element { key, .. } => match &column.ty {
                ty if ty.is_collection() && !ty.is_multi_cell() => {
                    return Err(Error::invalid(format!(
                        "Invalid deletion operation for frozen collection column {name}"
                    )));
                }
                CqlType::List { .. } => {
                    Change::DeleteIndex(prepare(variables, key, &format!("idx({name})"), &CqlType::Int)?)
                }
                CqlType::Set { elem, .. } => {
                    Change::DeleteKey(prepare(variables, key, &format!("value({name})"), elem)?)
                }
                CqlType::Map { key: key_type, .. } => {
                    Change::DeleteKey(prepare(variables, key, &format!("key({name})"), key_type)?)
                }
                _ => {
                    return Err(Error::invalid(format!("Invalid deletion operation for non collection column {name}")));
                }
            },
            DeleteTarget::Field { field, .. } => {
                if matches!(&column.ty, CqlType::Udt(user_type) if user_type.frozen) {
                    return Err(Error::invalid(format!("Frozen UDT column {name} does not support field deletion")));
                }
                Change::DeleteField(field_of(column, field, "deletion operation")?.0)
            }
        };
        Ok(Operation::new(column, change))
    }
}

fn field_of(column: &Column, field: &str, what: &str) -> Result<(u16, CqlType), Error> {
    let name = &column.name;
    let CqlType::Udt(user_type) = &column.ty else {
        return Err(Error::invalid(format!("Invalid {what} for non-UDT column {name}")));
    };
    if user_type.frozen {
        return Err(Error::invalid(format!("Invalid {what} for frozen UDT column {name}")));
    }
    let index = user_type.field_index(field);
    let index =
        index.ok_or_else(|| Error::invalid(format!("UDT column {name} does not have a field named {field}")))?;
    Ok((index as u16, user_type.fields[index].1.clone()))
}
