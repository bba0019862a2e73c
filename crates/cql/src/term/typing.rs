//! Turns parsed terms into typed ones: checks types, infers them, and parses constants.

use super::function::{self, Argument, Function, ResolvedFunction};
use super::user_type::{given_fields, user_type_literal};
use super::{Term, Variables};
use crate::error::Error;
use crate::schema::types::resolve as resolve_type;
use crate::syntax::ast::{self, FunctionCall, Literal, TypeName};
use bytes::Bytes;
use cluster::Metadata;
use model::CqlType;
use model::types::limits::MAX_TYPE_NODES;
use model::types::parse_scalar;
use std::fmt::Write as _;

/// Types a term for a receiver of this name and type.
pub fn prepare(variables: &mut Variables<'_>, term: &ast::Term, name: &str, ty: &CqlType) -> Result<Term, Error> {
    match term {
        ast::Term::Literal(literal) => constant(literal, name, ty),
        ast::Term::Marker(marker) => Ok(Term::Variable(variables.bind(*marker, name, ty)?)),
        ast::Term::List(terms) => match ty {
            CqlType::List { elem, .. } => {
                let elements = elements("list", variables, terms, name, elem)?;
                fold(variables, Term::List(elements))
            }
            CqlType::Vector { elem, dim } => {
                if terms.len() != *dim as usize {
                    return Err(Error::invalid(format!(
                        "Invalid vector literal for {name}: type {ty} expects {dim} elements but got {}",
                        terms.len()
                    )));
                }
                let elements = elements("vector", variables, terms, name, elem)?;
                fold(variables, Term::Vector(Box::new((**elem).clone()), elements))
            }
            _ => Err(wrong_literal("list", name, ty)),
        },
        ast::Term::Set(terms) => match ty {
            CqlType::Map { key, .. } if terms.is_empty() => {
                fold(variables, Term::Map(Box::new((**key).clone()), Vec::new()))
            }
            CqlType::Set { elem, .. } => {
                let elements = elements("set", variables, terms, name, elem)?;
                fold(variables, Term::Set(Box::new((**elem).clone()), elements))
            }
            _ => Err(wrong_literal("set", name, ty)),
        },
        ast::Term::Map(pairs) => match ty {
            CqlType::Map { key, value, .. } => map_literal(variables, pairs, name, (key, value)),
            _ => Err(wrong_literal("map", name, ty)),
        },
        ast::Term::Tuple(terms) => match ty {
            CqlType::Tuple(types) => {
                if terms.len() > types.len() {
                    return Err(Error::invalid(format!(
                        "Invalid tuple literal for {name}: too many elements. Type {ty} expects {} but got {}",
                        types.len(),
                        terms.len()
                    )));
                }
                tuple_literal(variables, terms, name, types)
            }
            // A single value in parentheses is the value itself.
            _ if terms.len() == 1 => prepare(variables, &terms[0], name, ty),
            _ => Err(Error::invalid(format!("Invalid tuple type literal for {name} of type {ty}"))),
        },
        ast::Term::UserType(fields) => match ty {
            CqlType::Udt(user_type) => user_type_literal(variables, fields, name, user_type),
            _ => Err(Error::invalid(format!("Invalid user type literal for {name} of type {ty}"))),
        },
        ast::Term::Call(call) if function::is_from_json(&call.name) => {
            let [text] = &call.arguments[..] else {
                return Err(Error::invalid("fromJson() accepts 1 argument only"));
            };
            let text = prepare(variables, text, "arg0(system.fromjson)", &CqlType::Text)?;
            fold(variables, Term::Call(Box::new(Function::FromJson(ty.clone())), vec![text]))
        }
        ast::Term::Call(call) => {
            let (term, result) = prepare_call(variables, call)?;
            if !assignable(&result, ty) {
                return Err(wrong_result(call, &result, name, ty));
            }
            fold(variables, term)
        }
        ast::Term::Hint(type_name, inner) => {
            let hinted = hinted_type(variables, (term, type_name), name, ty)?;
            if !fits(variables.metadata, &variables.keyspace, inner, &hinted) {
                return Err(wrong_cast(inner, &hinted));
            }
            prepare(variables, inner, name, &hinted)
        }
    }
}

/// The type that a hint gives to a term, which is used for a value of type `ty`.
pub(super) fn hinted_type(
    variables: &Variables<'_>,
    (term, type_name): (&ast::Term, &TypeName),
    name: &str,
    ty: &CqlType,
) -> Result<CqlType, Error> {
    let hinted = resolve_type(variables.metadata, &variables.keyspace, type_name)?;
    if assignable(&hinted, ty) {
        return Ok(hinted);
    }
    Err(Error::invalid(format!("Cannot assign value {} to {name} of type {ty}", show(term))))
}

/// The error for a term that does not fit the type of its hint.
pub(super) fn wrong_cast(term: &ast::Term, hinted: &CqlType) -> Error {
    Error::invalid(format!("Cannot cast value {} to type {hinted}", show(term)))
}

/// The error for a call whose result cannot be assigned to a value of type `ty`.
pub(super) fn wrong_result(call: &FunctionCall<ast::Term>, result: &CqlType, name: &str, ty: &CqlType) -> Error {
    Error::invalid(format!(
        "Type error: cannot assign result of function {} (type {result}) to {name} (type {ty})",
        function::full_name(&call.name)
    ))
}

/// Evaluates a constant term. The plan keeps the results of function calls, so their total size is
/// limited.
pub(super) fn fold(variables: &mut Variables<'_>, term: Term) -> Result<Term, Error> {
    let term = term.folded()?;
    if let Term::Folded(folded) = &term {
        variables.folded(folded.0.as_ref().map_or(0, Bytes::len))?;
    }
    Ok(term)
}

fn map_literal(
    variables: &mut Variables<'_>,
    pairs: &[(ast::Term, ast::Term)],
    name: &str,
    (key, value): (&CqlType, &CqlType),
) -> Result<Term, Error> {
    let mut out = Vec::with_capacity(pairs.len());
    for (k, v) in pairs {
        check_part(variables, "map", name, ("key", k, key))?;
        check_part(variables, "map", name, ("value", v, value))?;
        let k = prepare(variables, k, &format!("key({name})"), key)?;
        out.push((k, prepare(variables, v, &format!("value({name})"), value)?));
    }
    fold(variables, Term::Map(Box::new(key.clone()), out))
}

fn tuple_literal(
    variables: &mut Variables<'_>,
    terms: &[ast::Term],
    name: &str,
    types: &[CqlType],
) -> Result<Term, Error> {
    let mut out = Vec::with_capacity(terms.len());
    for (i, (term, ty)) in terms.iter().zip(types.iter()).enumerate() {
        if !fits(variables.metadata, &variables.keyspace, term, ty) {
            return Err(wrong_component(name, i, ty));
        }
        out.push(prepare(variables, term, &format!("{name}[{i}]"), ty)?);
    }
    fold(variables, Term::Tuple(out))
}

/// The error for a component of a tuple literal that does not fit its type.
pub(super) fn wrong_component(name: &str, i: usize, ty: &CqlType) -> Error {
    Error::invalid(format!("Invalid tuple literal for {name}: component {i} is not of type {ty}"))
}

/// Types a function call. Returns also the type of its result.
pub fn prepare_call(variables: &mut Variables<'_>, call: &FunctionCall<ast::Term>) -> Result<(Term, CqlType), Error> {
    let found = resolve_call(variables, call)?;
    let mut terms = Vec::with_capacity(call.arguments.len());
    for (i, (term, ty)) in call.arguments.iter().zip(&found.parameters).enumerate() {
        terms.push(prepare(variables, term, &argument_name(call, i), ty)?);
    }
    Ok((Term::Call(Box::new(found.function), terms), found.result))
}

/// The name of a call's argument, for messages and bind variables.
pub(super) fn argument_name(call: &FunctionCall<ast::Term>, i: usize) -> String {
    format!("arg{i}({})", function::full_name(&call.name))
}

/// Finds the function that a call means.
pub(super) fn resolve_call(
    variables: &Variables<'_>,
    call: &FunctionCall<ast::Term>,
) -> Result<ResolvedFunction, Error> {
    let types: Vec<Option<CqlType>> = call.arguments.iter().map(|term| natural_type(variables, term)).collect();
    let (metadata, keyspace) = (variables.metadata, variables.keyspace.clone());
    let arguments: Vec<Argument<'_>> = call
        .arguments
        .iter()
        .zip(&types)
        .map(|(term, ty)| Argument {
            shown: show(term),
            ty: ty.clone(),
            preferred: preferred_type(metadata, &keyspace, term),
            fits: Box::new(|wanted: &CqlType| fits(metadata, &keyspace, term, wanted)),
        })
        .collect();
    function::resolve(&call.name, &arguments, &variables.key_types)
}

/// The type of a term that does not depend on its context, if it has one.
pub fn natural_type(variables: &Variables<'_>, term: &ast::Term) -> Option<CqlType> {
    match term {
        ast::Term::Hint(type_name, _) => resolve_type(variables.metadata, &variables.keyspace, type_name).ok(),
        ast::Term::Call(call) => {
            Scratch { metadata: variables.metadata, keyspace: &variables.keyspace }.result_of(call)
        }
        _ => None,
    }
}

/// The preferred type of an untyped literal, for functions with variants for several types.
pub fn preferred_type(metadata: &Metadata, keyspace: &str, term: &ast::Term) -> Option<CqlType> {
    match term {
        ast::Term::Literal(Literal::Integer(_) | Literal::Float(_))
        | ast::Term::List(_)
        | ast::Term::Set(_)
        | ast::Term::Map(_) => inferred_type(metadata, keyspace, term),
        ast::Term::Tuple(terms) if terms.len() > 1 => inferred_type(metadata, keyspace, term),
        _ => None,
    }
}

/// How many different element types are tried for a collection literal.
const MOST_CANDIDATES: usize = 16;

/// Infers the type of a term where the context expects none, such as in a SELECT clause. `None` for
/// bind markers, null, empty collections, literals of user types, and collections whose values have
/// no common type.
pub fn inferred_type(metadata: &Metadata, keyspace: &str, term: &ast::Term) -> Option<CqlType> {
    let common = |terms: &mut dyn Iterator<Item = &ast::Term>| -> Option<CqlType> {
        let terms: Vec<&ast::Term> = terms.collect();
        let types = terms.iter().map(|term| inferred_type(metadata, keyspace, term));
        let types = types.collect::<Option<Vec<CqlType>>>()?;
        let fits_all = |ty: &CqlType| terms.iter().all(|term| fits_inferred(metadata, keyspace, term, ty));
        let mut candidates: Vec<CqlType> = Vec::new();
        for ty in types {
            if !candidates.contains(&ty) {
                candidates.push(ty);
            }
            if candidates.len() > MOST_CANDIDATES {
                return None;
            }
        }
        candidates.into_iter().find(fits_all).map(|ty| ty.freeze())
    };
    match term {
        ast::Term::Literal(literal) => literal_type(literal),
        ast::Term::Hint(type_name, _) => resolve_type(metadata, keyspace, type_name).ok(),
        ast::Term::Call(call) => Scratch { metadata, keyspace }.result_of(call),
        ast::Term::List(terms) => common(&mut terms.iter()).map(CqlType::list),
        ast::Term::Set(terms) => common(&mut terms.iter()).map(CqlType::set),
        ast::Term::Map(pairs) => {
            let key = common(&mut pairs.iter().map(|(key, _)| key))?;
            Some(CqlType::map(key, common(&mut pairs.iter().map(|(_, value)| value))?))
        }
        // A single value in parentheses is the value itself.
        ast::Term::Tuple(terms) if terms.len() == 1 => inferred_type(metadata, keyspace, &terms[0]),
        ast::Term::Tuple(terms) if terms.len() > MAX_TYPE_NODES => None,
        ast::Term::Tuple(terms) => {
            let types = terms.iter().map(|term| inferred_type(metadata, keyspace, term).map(|ty| ty.freeze()));
            Some(CqlType::tuple(types.collect::<Option<Vec<CqlType>>>()?))
        }
        ast::Term::Marker(_) | ast::Term::UserType(_) => None,
    }
}

/// Whether an element of a collection literal can have a type that was inferred from another
/// element. An integer fits wider integer types that can hold it, and floating point types.
fn fits_inferred(metadata: &Metadata, keyspace: &str, term: &ast::Term, ty: &CqlType) -> bool {
    let width = |ty: &CqlType| match ty {
        CqlType::Int => 1,
        CqlType::Bigint => 2,
        CqlType::Varint => 3,
        _ => 4,
    };
    match term {
        ast::Term::Literal(literal @ Literal::Integer(_)) => {
            fits(metadata, keyspace, term, ty) && literal_type(literal).is_some_and(|own| width(&own) <= width(ty))
        }
        _ => fits(metadata, keyspace, term, ty),
    }
}

/// The type of a constant without context. `None` for null.
pub fn literal_type(literal: &Literal) -> Option<CqlType> {
    Some(match literal {
        Literal::String(_) => CqlType::Text,
        Literal::Integer(text) if text.parse::<i32>().is_ok() => CqlType::Int,
        Literal::Integer(text) if text.parse::<i64>().is_ok() => CqlType::Bigint,
        Literal::Integer(_) => CqlType::Varint,
        Literal::Float(_) => CqlType::Double,
        Literal::Boolean(_) => CqlType::Boolean,
        Literal::Uuid(_) => CqlType::Uuid,
        Literal::Hex(_) => CqlType::Blob,
        Literal::Duration(_) => CqlType::Duration,
        Literal::Null => return None,
    })
}

/// Finds the result types of calls without binding variables.
struct Scratch<'a> {
    metadata: &'a Metadata,
    keyspace: &'a str,
}

impl Scratch<'_> {
    fn result_of(&self, call: &FunctionCall<ast::Term>) -> Option<CqlType> {
        if call.name.name.as_str() == "token" {
            return Some(CqlType::Bigint);
        }
        let arguments: Vec<Argument<'_>> = call
            .arguments
            .iter()
            .map(|term| {
                let ty = match term {
                    ast::Term::Hint(type_name, _) => resolve_type(self.metadata, self.keyspace, type_name).ok(),
                    ast::Term::Call(inner) => self.result_of(inner),
                    _ => None,
                };
                let (metadata, keyspace) = (self.metadata, self.keyspace);
                Argument {
                    shown: String::new(),
                    ty,
                    preferred: preferred_type(metadata, keyspace, term),
                    fits: Box::new(move |wanted: &CqlType| fits(metadata, keyspace, term, wanted)),
                }
            })
            .collect();
        function::resolve(&call.name, &arguments, &[]).ok().map(|found| found.result)
    }
}

/// Checks that a part of a collection literal fits its type. `kind`: of the collection. The part is
/// given with its name in the error.
fn check_part(
    variables: &Variables<'_>,
    kind: &str,
    name: &str,
    (part, term, ty): (&str, &ast::Term, &CqlType),
) -> Result<(), Error> {
    match fits(variables.metadata, &variables.keyspace, term, ty) {
        true => Ok(()),
        false => Err(wrong_part(kind, name, (part, term, ty))),
    }
}

/// The error for a part of a collection literal that does not fit its type.
pub(super) fn wrong_part(kind: &str, name: &str, (part, term, ty): (&str, &ast::Term, &CqlType)) -> Error {
    Error::invalid(format!("Invalid {kind} literal for {name}: {part} {} is not of type {ty}", show(term)))
}

fn elements(
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
        out.push(prepare(variables, term, &element_name, elem)?);
    }
    Ok(out)
}

fn wrong_literal(kind: &str, name: &str, ty: &CqlType) -> Error {
    Error::invalid(format!("Invalid {kind} literal for {name} of type {ty}"))
}

fn kind_of(literal: &Literal) -> &'static str {
    match literal {
        Literal::String(_) => "STRING",
        Literal::Integer(_) => "INTEGER",
        Literal::Float(_) => "FLOAT",
        Literal::Boolean(_) => "BOOLEAN",
        Literal::Uuid(_) => "UUID",
        Literal::Hex(_) => "HEX",
        Literal::Duration(_) => "DURATION",
        Literal::Null => "NULL",
    }
}

fn literal_fits(literal: &Literal, ty: &CqlType) -> bool {
    use CqlType::*;
    match literal {
        Literal::String(_) => matches!(ty, Ascii | Text | Inet | Timestamp | Date | Time | Custom(_) | Tuple(_)),
        Literal::Integer(_) => matches!(
            ty,
            Tinyint | Smallint | Int | Bigint | Varint | Counter | Decimal | Double | Float | Date | Time | Timestamp
        ),
        Literal::Float(_) => matches!(ty, Decimal | Double | Float),
        Literal::Boolean(_) => *ty == Boolean,
        Literal::Uuid(_) => matches!(ty, Uuid | Timeuuid),
        Literal::Hex(_) => matches!(ty, Blob | Custom(_)),
        Literal::Duration(_) => *ty == Duration,
        Literal::Null => true,
    }
}

fn constant(literal: &Literal, name: &str, ty: &CqlType) -> Result<Term, Error> {
    if *literal == Literal::Null {
        return Ok(Term::Null);
    }
    if !literal_fits(literal, ty) {
        return Err(Error::invalid(format!(
            "Invalid {} constant ({}) for \"{name}\" of type {ty}",
            kind_of(literal),
            literal.text()
        )));
    }
    if let (Literal::String(text), CqlType::Custom(_)) = (literal, ty) {
        return Ok(Term::Constant(Bytes::copy_from_slice(text.as_bytes())));
    }
    if let (Literal::String(text), CqlType::Inet | CqlType::Timestamp | CqlType::Date | CqlType::Time) = (literal, ty)
        && text.is_empty()
    {
        return Ok(Term::Constant(Bytes::new()));
    }
    if let (Literal::String(text), CqlType::Tuple(types)) = (literal, ty) {
        return tuple_of_text(text, types, ty);
    }
    if let (Literal::String(text), CqlType::Ascii) = (literal, ty)
        && !text.is_ascii()
    {
        return Err(Error::invalid("Invalid ASCII character in string literal"));
    }
    let bytes = parse_scalar(ty, &literal.text()).map_err(|error| Error::invalid(error.to_string()))?;
    Ok(Term::Constant(bytes.into()))
}

/// Parses a tuple in one text: fields are separated by colons, `@` is null, a backslash escapes the
/// next character.
fn tuple_of_text(text: &str, types: &[CqlType], ty: &CqlType) -> Result<Term, Error> {
    let mut fields = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            ':' => fields.push(String::new()),
            '\\' => fields.last_mut().expect("one is there").extend(chars.next()),
            c => fields.last_mut().expect("one is there").push(c),
        }
    }
    if fields.len() > types.len() {
        return Err(Error::invalid(format!(
            "Invalid tuple literal: too many elements. Type {ty} expects {} but got {}",
            types.len(),
            fields.len()
        )));
    }
    let field = |(field, ty): (&String, &CqlType)| match field.as_str() {
        "@" => Ok(Term::Null),
        text => parse_scalar(ty, text).map(|bytes| Term::Constant(bytes.into())),
    };
    let fields = fields.iter().zip(types).map(field).collect::<Result<_, _>>();
    Term::Tuple(fields.map_err(|error| Error::invalid(error.to_string()))?).folded()
}

/// Whether a value of type `from` can be assigned to type `to`.
pub fn assignable(from: &CqlType, to: &CqlType) -> bool {
    use CqlType::*;
    from == to
        || matches!(
            (from, to),
            (Ascii, Text) | (Timeuuid, Uuid) | (_, Blob) | (Timestamp | Time, Bigint) | (Bigint, Counter)
        )
        || from.freeze() == to.freeze()
}

/// Whether a term can be of this type. A marker fits any type.
pub fn fits(metadata: &Metadata, keyspace: &str, term: &ast::Term, ty: &CqlType) -> bool {
    let fits_inner = |term: &ast::Term, ty: &CqlType| fits(metadata, keyspace, term, ty);
    match (term, ty) {
        (ast::Term::Literal(literal), _) => literal_fits(literal, ty),
        (ast::Term::Marker(_), _) => true,
        (ast::Term::List(terms), CqlType::List { elem, .. } | CqlType::Vector { elem, .. }) => {
            terms.iter().all(|term| fits_inner(term, elem))
        }
        (ast::Term::Set(terms), CqlType::Map { .. }) => terms.is_empty(),
        (ast::Term::Set(terms), CqlType::Set { elem, .. }) => terms.iter().all(|term| fits_inner(term, elem)),
        (ast::Term::Map(pairs), CqlType::Map { key, value, .. }) => {
            pairs.iter().all(|(k, v)| fits_inner(k, key) && fits_inner(v, value))
        }
        (ast::Term::Tuple(terms), CqlType::Tuple(types)) => {
            terms.len() <= types.len() && terms.iter().zip(types.iter()).all(|(term, ty)| fits_inner(term, ty))
        }
        (ast::Term::Tuple(terms), _) if terms.len() == 1 => fits_inner(&terms[0], ty),
        (ast::Term::UserType(fields), CqlType::Udt(user_type)) => given_fields(fields, user_type)
            .is_ok_and(|given| given.into_iter().all(|(at, term)| fits_inner(term, &user_type.fields[at].1))),
        (ast::Term::Call(call), _) => {
            Scratch { metadata, keyspace }.result_of(call).is_none_or(|result| assignable(&result, ty))
        }
        (ast::Term::Hint(type_name, _), _) => {
            resolve_type(metadata, keyspace, type_name).is_ok_and(|hinted| assignable(&hinted, ty))
        }
        _ => false,
    }
}

/// The text of a term, for messages and names.
pub fn show(term: &ast::Term) -> String {
    let list = |open: &str, terms: &[ast::Term], close: &str| {
        let inner: Vec<String> = terms.iter().map(show).collect();
        format!("{open}{}{close}", inner.join(", "))
    };
    match term {
        ast::Term::Literal(Literal::String(text)) => format!("'{}'", text.replace('\'', "''")),
        ast::Term::Literal(literal) => literal.text().into_owned(),
        ast::Term::List(terms) => list("[", terms, "]"),
        ast::Term::Set(terms) => list("{", terms, "}"),
        ast::Term::Tuple(terms) => list("(", terms, ")"),
        ast::Term::Map(pairs) => {
            let inner: Vec<String> = pairs.iter().map(|(k, v)| format!("{}: {}", show(k), show(v))).collect();
            format!("{{{}}}", inner.join(", "))
        }
        ast::Term::UserType(fields) => {
            let mut out = String::from("{");
            for (i, (name, term)) in fields.iter().enumerate() {
                let comma = if i > 0 { ", " } else { "" };
                let _ = write!(out, "{comma}{name}: {}", show(term));
            }
            out.push('}');
            out
        }
        ast::Term::Marker(_) => "?".to_owned(),
        ast::Term::Call(call) => format!("{}{}", call.name, list("(", &call.arguments, ")")),
        ast::Term::Hint(type_name, inner) => format!("({}){}", show_type(type_name), show(inner)),
    }
}

/// The text of a type.
pub fn show_type(name: &TypeName) -> String {
    match name {
        TypeName::Native(native) => format!("{native:?}").to_lowercase(),
        TypeName::List(elem) => format!("list<{}>", show_type(elem)),
        TypeName::Set(elem) => format!("set<{}>", show_type(elem)),
        TypeName::Map(key, value) => format!("map<{}, {}>", show_type(key), show_type(value)),
        TypeName::Tuple(types) => {
            let inner: Vec<String> = types.iter().map(show_type).collect();
            format!("tuple<{}>", inner.join(", "))
        }
        TypeName::Vector(elem, dim) => format!("vector<{}, {dim}>", show_type(elem)),
        TypeName::Frozen(inner) => format!("frozen<{}>", show_type(inner)),
        TypeName::User(name) => name.to_string(),
        TypeName::Custom(class) => format!("'{class}'"),
    }
}
