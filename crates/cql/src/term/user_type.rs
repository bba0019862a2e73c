//! Literals of user types: `{street: 'x', number: 5}`. They may leave out fields.

use super::typing::{fits, fold, prepare};
use super::{Term, Variables, check_bytes};
use crate::error::Error;
use crate::syntax::ast;
use model::CqlType;
use model::types::{UserType, collection, in_field_order};

/// Types a literal of a user type.
pub(super) fn user_type_literal(
    variables: &mut Variables<'_>,
    fields: &[(ast::Name, ast::Term)],
    name: &str,
    user_type: &UserType,
) -> Result<Term, Error> {
    let given = given_fields(fields, user_type).map_err(|field| unknown_field(field, user_type))?;
    let mut out = Vec::with_capacity(given.len());
    for (at, term) in given {
        let (field, ty) = &user_type.fields[at];
        if !fits(variables.metadata, &variables.keyspace, term, ty) {
            return Err(wrong_field(name, field, ty));
        }
        out.push((at, prepare(variables, term, &format!("{name}.{field}"), ty)?));
    }
    let term = with_missing_fields(variables, user_type, out)?;
    fold(variables, term)
}

/// The values that a literal gives to the fields of a user type, with the positions of the fields,
/// in their order. If a field is given several times, the last value counts, as in Cassandra. The
/// error is the name of a field that the type does not have.
pub(super) fn given_fields<'t>(
    fields: &'t [(ast::Name, ast::Term)],
    user_type: &UserType,
) -> Result<Vec<(usize, &'t ast::Term)>, &'t ast::Name> {
    let mut given = Vec::with_capacity(fields.len());
    for (name, term) in fields {
        given.push((user_type.field_index(name).ok_or(name)?, term));
    }
    in_field_order(&mut given);
    Ok(given)
}

/// The term of a literal that gives some fields of a user type. Counts the memory of the others: a
/// short literal of a type with thousands of fields takes much more memory than its text.
pub(super) fn with_missing_fields(
    variables: &mut Variables<'_>,
    user_type: &UserType,
    given: Vec<(usize, Term)>,
) -> Result<Term, Error> {
    let count = user_type.fields.len();
    let missing = count - given.len();
    if given.iter().all(|(_, term)| matches!(term, Term::Null | Term::Constant(_))) {
        variables.folded(missing * collection::NULL_BYTES)?;
        let values = given.iter().filter_map(|(at, term)| match term {
            Term::Constant(bytes) => Some((*at, bytes)),
            _ => None,
        });
        check_bytes(values.clone().map(|(_, bytes)| bytes.len()).sum())?;
        let bytes = collection::build_sparse_tuple(count, values);
        variables.pace.spend(bytes.len());
        return Ok(Term::Constant(bytes.into()));
    }
    variables.folded(missing * size_of::<Term>())?;
    variables.pace.spend(count * size_of::<Term>());
    let mut terms = vec![Term::Null; count];
    given.into_iter().for_each(|(at, term)| terms[at] = term);
    Ok(Term::Tuple(terms))
}

/// The error for a field that the user type does not have.
pub(super) fn unknown_field(field: &ast::Name, user_type: &UserType) -> Error {
    Error::invalid(format!("Unknown field '{field}' in value of user defined type {}", user_type.name))
}

/// The error for a field in a literal of a user type whose value does not fit its type.
pub(super) fn wrong_field(name: &str, field: &str, ty: &CqlType) -> Error {
    Error::invalid(format!("Invalid user type literal for {name}: field {field} is not of type {ty}"))
}
