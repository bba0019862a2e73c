//! The native functions, and the resolution of calls to them. `call` evaluates them.
//!
//! Aggregates are not functions of a row, and are planned with the selectors. Names are accepted
//! with and without underscores.

use super::collections::{self, Fold};
use super::math::Math;
use super::numbers::NUMBERS;
use crate::error::Error;
use crate::select::aggregate::kind_of_name;
use crate::syntax::QualifiedName;
use model::CqlType;
use model::types;

/// A function, with the types that distinguish its variants.
#[derive(Clone, PartialEq, Debug)]
pub enum Function {
    /// `now()`, `currenttimeuuid()`: a new time UUID for each call.
    Now,
    /// `uuid()`: a random UUID.
    Uuid,
    /// `currenttimestamp()`.
    CurrentTimestamp,
    /// `currentdate()`.
    CurrentDate,
    /// `currenttime()`.
    CurrentTime,
    /// `mintimeuuid(timestamp)`: less than or equal to every time UUID of that millisecond.
    MinTimeuuid,
    /// `maxtimeuuid(timestamp)`: greater than or equal to every time UUID of that millisecond.
    MaxTimeuuid,
    /// `todate(x)`.
    ToDate(CqlType),
    /// `totimestamp(x)`, `dateof(timeuuid)`.
    ToTimestamp(CqlType),
    /// `tounixtimestamp(x)`, `unixtimestampof(timeuuid)`.
    ToUnixTimestamp(CqlType),
    /// `intasblob(x)` and the like.
    AsBlob(CqlType),
    /// `blobasint(x)` and the like.
    FromBlob(CqlType),
    /// `token(keys...)` for a partition key of these types.
    Token(Vec<CqlType>),
    /// `tojson(x)`.
    ToJson(CqlType),
    /// `fromjson(text)`, with the type that the context expects.
    FromJson(CqlType),
    /// `abs(x)` and similar, for a number of this type.
    Math(Math, CqlType),
    /// `collection_count(x)` and similar, for a collection of this type.
    Collection(Fold, CqlType),
    /// `set_intersection(x, y)` for sets with elements of this type.
    SetIntersection(CqlType),
    /// `cast(x as type)`.
    Cast(CqlType, CqlType),
}

/// An argument, before the function is resolved.
pub struct Argument<'a> {
    /// Its text, for messages.
    pub shown: String,
    /// Its type, if it does not depend on the context.
    pub ty: Option<CqlType>,
    /// The preferred type of a literal without a type, if it fits several variants.
    pub preferred: Option<CqlType>,
    /// Whether it can be of a type.
    pub fits: Box<dyn Fn(&CqlType) -> bool + 'a>,
}

/// A resolved function.
#[derive(Debug)]
pub struct ResolvedFunction {
    /// The function.
    pub function: Function,
    /// The types of its parameters.
    pub parameters: Vec<CqlType>,
    /// The type of its result.
    pub result: CqlType,
}

/// The qualified name of a function, for result columns and messages.
pub fn full_name(name: &QualifiedName) -> String {
    match &name.keyspace {
        Some(keyspace) => format!("{keyspace}.{}", name.name),
        None => format!("system.{}", name.name),
    }
}

/// Resolves a call. `key_types` are the types of the table's partition key.
pub fn resolve(
    name: &QualifiedName,
    arguments: &[Argument<'_>],
    key_types: &[CqlType],
) -> Result<ResolvedFunction, Error> {
    let known = if name.keyspace.as_ref().is_none_or(|keyspace| keyspace.as_str() == "system") {
        candidates(name, arguments, key_types)?
    } else {
        Vec::new()
    };
    if known.is_empty() && kind_of_name(&name.name).is_some() {
        return Err(Error::invalid(format!("Aggregation function {} is not allowed here", full_name(name))));
    }
    if known.is_empty() {
        return Err(Error::invalid(format!("Unknown function {} called", full_name(name))));
    }
    if let [only] = &known[..]
        && only.parameters.len() != arguments.len()
    {
        return Err(Error::invalid(format!(
            "Invalid number of arguments in call to function {}: {} required but {} provided",
            full_name(name),
            only.parameters.len(),
            arguments.len()
        )));
    }
    let accepts = |found: &ResolvedFunction, how: Match| {
        found.parameters.len() == arguments.len()
            && found.parameters.iter().zip(arguments).all(|(parameter, argument)| match (&argument.ty, how) {
                // A bigint can be assigned to a counter column, but not passed as a counter
                // argument.
                (Some(CqlType::Bigint), Match::Assignable) if *parameter == CqlType::Counter => false,
                (Some(ty), Match::Assignable) => super::typing::assignable(ty, parameter),
                (Some(ty), _) => ty == parameter,
                (None, Match::Preferred) => argument.preferred.as_ref() == Some(parameter),
                (None, _) => (argument.fits)(parameter),
            })
    };
    for how in [Match::Preferred, Match::Exact, Match::Assignable] {
        let mut matching = known.iter().filter(|found| accepts(found, how));
        match (matching.next(), matching.next()) {
            (Some(_), None) => {
                let at = known.iter().position(|found| accepts(found, how)).expect("one matches");
                return Ok(known.into_iter().nth(at).expect("it is there"));
            }
            (Some(_), Some(_)) => {
                return Err(Error::invalid(format!(
                    "Ambiguous call to function {} (can be matched by following signatures: {}): use type casts to disambiguate",
                    full_name(name),
                    signatures(name, &known)
                )));
            }
            _ => {}
        }
    }
    if let [only] = &known[..] {
        let wrong = only.parameters.iter().zip(arguments).position(|(parameter, argument)| match &argument.ty {
            Some(CqlType::Bigint) if *parameter == CqlType::Counter => true,
            Some(ty) => !super::typing::assignable(ty, parameter),
            None => !(argument.fits)(parameter),
        });
        if let Some(i) = wrong {
            return Err(Error::invalid(format!(
                "Type error: {} cannot be passed as argument {i} of function {} of type {}",
                arguments[i].shown,
                full_name(name),
                only.parameters[i]
            )));
        }
    }
    Err(Error::invalid(format!(
        "Invalid call to function {}, none of its type signatures match (known type signatures: {})",
        full_name(name),
        signatures(name, &known)
    )))
}

/// How closely the parameters must match the arguments.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Match {
    /// Types are equal, and literals have their preferred types.
    Preferred,
    /// Types are equal, and literals fit.
    Exact,
    /// Arguments can be assigned to the parameters.
    Assignable,
}

fn signatures(name: &QualifiedName, known: &[ResolvedFunction]) -> String {
    let one = |found: &ResolvedFunction| {
        let parameters: Vec<String> = found.parameters.iter().map(CqlType::to_string).collect();
        format!("{} : ({}) -> {}", full_name(name), parameters.join(", "), found.result)
    };
    known.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The form of a function name in which it is looked up.
fn plain(name: &QualifiedName) -> String {
    name.name.to_ascii_lowercase().replace('_', "")
}

/// Whether the call is `fromjson`, whose result type depends on the context.
pub fn is_from_json(name: &QualifiedName) -> bool {
    name.keyspace.as_ref().is_none_or(|keyspace| keyspace.as_str() == "system") && plain(name) == "fromjson"
}

fn candidates(
    name: &QualifiedName,
    arguments: &[Argument<'_>],
    key_types: &[CqlType],
) -> Result<Vec<ResolvedFunction>, Error> {
    use CqlType::*;
    let full = name;
    let name = plain(name);
    if name == collections::SET_INTERSECTION {
        return collections::set_intersection(full, arguments).map(|found| vec![found]);
    }
    if let Some(fold) = Fold::of_name(&name) {
        return fold.resolve(full, arguments).map(|found| vec![found]);
    }
    if let Some(math) = Math::of_name(&name) {
        let found = |ty: &CqlType| ResolvedFunction {
            function: Function::Math(math, ty.clone()),
            parameters: vec![ty.clone()],
            result: ty.clone(),
        };
        return Ok(NUMBERS.iter().map(found).collect());
    }
    if name == "fromjson" {
        return Err(Error::invalid("fromJson() can only be called if receiver type is known"));
    }
    let found = |function: Function, parameters: Vec<CqlType>, result: CqlType| ResolvedFunction {
        function,
        parameters,
        result,
    };
    let over = |types: &[CqlType], function: fn(CqlType) -> Function, result: CqlType| -> Vec<ResolvedFunction> {
        types.iter().map(|ty| found(function(ty.clone()), vec![ty.clone()], result.clone())).collect()
    };
    Ok(match &name[..] {
        "now" | "currenttimeuuid" => vec![found(Function::Now, vec![], Timeuuid)],
        "uuid" => vec![found(Function::Uuid, vec![], CqlType::Uuid)],
        "currenttimestamp" => vec![found(Function::CurrentTimestamp, vec![], Timestamp)],
        "currentdate" => vec![found(Function::CurrentDate, vec![], Date)],
        "currenttime" => vec![found(Function::CurrentTime, vec![], Time)],
        "mintimeuuid" => vec![found(Function::MinTimeuuid, vec![Timestamp], Timeuuid)],
        "maxtimeuuid" => vec![found(Function::MaxTimeuuid, vec![Timestamp], Timeuuid)],
        "todate" => over(&[Timeuuid, Timestamp], Function::ToDate, Date),
        "totimestamp" => over(&[Timeuuid, Date], Function::ToTimestamp, Timestamp),
        "tounixtimestamp" => over(&[Timeuuid, Timestamp, Date], Function::ToUnixTimestamp, Bigint),
        "dateof" => over(&[Timeuuid], Function::ToTimestamp, Timestamp),
        "unixtimestampof" => over(&[Timeuuid], Function::ToUnixTimestamp, Bigint),
        "token" if !key_types.is_empty() => {
            vec![found(Function::Token(key_types.to_vec()), key_types.to_vec(), Bigint)]
        }
        "tojson" => {
            let known = |argument: &Argument<'_>| argument.ty.clone().or_else(|| argument.preferred.clone());
            let ty = arguments.first().and_then(known).unwrap_or(Text);
            vec![found(Function::ToJson(ty.clone()), vec![ty], Text)]
        }
        _ => {
            if let Some(ty) = name.strip_suffix("asblob").and_then(blob_type) {
                vec![found(Function::AsBlob(ty.clone()), vec![ty], Blob)]
            } else if let Some(ty) = name.strip_prefix("blobas").and_then(blob_type) {
                vec![found(Function::FromBlob(ty.clone()), vec![Blob], ty)]
            } else {
                Vec::new()
            }
        }
    })
}

fn blob_type(name: &str) -> Option<CqlType> {
    types::parse::native(name).filter(|ty| !matches!(ty, CqlType::Blob | CqlType::Empty))
}

impl Function {
    /// Whether the function always returns the same result for the same arguments.
    pub fn is_pure(&self) -> bool {
        use Function::*;
        !matches!(self, Now | Uuid | CurrentTimestamp | CurrentDate | CurrentTime)
    }

    /// The name with the types that distinguish variants. It is part of paging states, so it must
    /// be the same in every release.
    pub fn signature(&self) -> String {
        let types = |types: &[&CqlType]| types.iter().map(|ty| ty.to_string()).collect::<Vec<_>>().join(",");
        match self {
            Function::Now => "now".to_owned(),
            Function::Uuid => "uuid".to_owned(),
            Function::CurrentTimestamp => "currenttimestamp".to_owned(),
            Function::CurrentDate => "currentdate".to_owned(),
            Function::CurrentTime => "currenttime".to_owned(),
            Function::MinTimeuuid => "mintimeuuid".to_owned(),
            Function::MaxTimeuuid => "maxtimeuuid".to_owned(),
            Function::ToDate(ty) => format!("todate({ty})"),
            Function::ToTimestamp(ty) => format!("totimestamp({ty})"),
            Function::ToUnixTimestamp(ty) => format!("tounixtimestamp({ty})"),
            Function::AsBlob(ty) => format!("asblob({ty})"),
            Function::FromBlob(ty) => format!("fromblob({ty})"),
            Function::Token(keys) => format!("token({})", types(&keys.iter().collect::<Vec<_>>())),
            Function::ToJson(ty) => format!("tojson({ty})"),
            Function::FromJson(ty) => format!("fromjson({ty})"),
            Function::Math(math, ty) => format!("{}({ty})", math.name()),
            Function::Collection(fold, ty) => format!("{}({ty})", fold.name()),
            Function::SetIntersection(elem) => format!("{}({elem})", collections::SET_INTERSECTION),
            Function::Cast(from, to) => format!("cast({})", types(&[from, to])),
        }
    }
}
