//! CQL type names to types: `map<text, frozen<list<int>>>`.

use super::{CqlType, UserType, ValueError};

/// How deep types may nest: names come from clients, and every walk over a type recurses.
pub const MAX_NESTING: usize = 64;
/// The most elements a vector may have.
pub const MAX_VECTOR_DIMENSION: u32 = 16_000;

/// Finds the user type of this (optional) keyspace and name. It is given names without quotes.
pub type Resolver<'a> = dyn Fn(Option<&str>, &str) -> Option<std::sync::Arc<UserType>> + 'a;

/// A resolver that knows no user types.
pub fn no_user_types(_: Option<&str>, _: &str) -> Option<std::sync::Arc<UserType>> {
    None
}

/// Parses a type as CQL writes it, for a column: nested collections and user types must be frozen.
pub fn parse(text: &str, resolver: &Resolver<'_>) -> Result<CqlType, ValueError> {
    let mut parser = Parser { text, rest: text, resolver };
    let ty = parser.ty(0)?;
    parser.skip_space();
    if !parser.rest.is_empty() {
        return Err(parser.unexpected());
    }
    check(&ty)?;
    Ok(ty)
}

/// The type without parameters of this name, in any case.
pub fn native(name: &str) -> Option<CqlType> {
    if name.eq_ignore_ascii_case("varchar") {
        return Some(CqlType::Text);
    }
    if name.eq_ignore_ascii_case("empty") {
        return Some(CqlType::Empty);
    }
    CqlType::NATIVE.iter().find(|ty| ty.native_name().is_some_and(|n| n.eq_ignore_ascii_case(name))).cloned()
}

/// Whether `ty` may be the type of a column or of a user type's field: what CREATE TABLE refuses is refused here.
pub fn check(ty: &CqlType) -> Result<(), ValueError> {
    let refuse = |why: String| Err(ValueError::new(why));
    match ty {
        CqlType::Set { elem, .. } if elem.contains_duration() => {
            refuse(format!("Durations are not allowed inside sets: {ty}"))
        }
        CqlType::Map { key, .. } if key.contains_duration() => {
            refuse(format!("Durations are not allowed as map keys: {ty}"))
        }
        CqlType::List { elem, .. } | CqlType::Set { elem, .. } => check_nested(ty, elem),
        CqlType::Map { key, value, .. } => check_nested(ty, key).and_then(|()| check_nested(ty, value)),
        CqlType::Tuple(types) => match types.iter().any(CqlType::is_counter) {
            true => refuse("Counters are not allowed inside tuples".to_owned()),
            false => types.iter().try_for_each(check),
        },
        CqlType::Vector { elem, dim } => {
            if !(1..=MAX_VECTOR_DIMENSION).contains(dim) {
                return refuse(format!("Vectors must have a dimension from 1 to {MAX_VECTOR_DIMENSION}, not {dim}"));
            }
            check_nested(ty, elem)
        }
        CqlType::Udt(user_type) if !user_type.frozen && user_type.fields.iter().any(|(_, ty)| ty.is_multi_cell()) => {
            refuse("Non-frozen UDTs with nested non-frozen collections are not supported".to_owned())
        }
        _ => Ok(()),
    }
}

fn check_nested(outer: &CqlType, inner: &CqlType) -> Result<(), ValueError> {
    if inner.is_counter() {
        return Err(ValueError::new(format!("Counters are not allowed inside collections: {outer}")));
    }
    if inner.is_multi_cell() {
        let what = if inner.is_collection() { "collections" } else { "UDTs" };
        return Err(ValueError::new(format!(
            "Non-frozen {what} are not allowed inside collections: {}",
            inner.freeze_nested()
        )));
    }
    check(inner)
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    resolver: &'a Resolver<'a>,
}

impl Parser<'_> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn unexpected(&self) -> ValueError {
        let at = self.text.len() - self.rest.len();
        ValueError::new(format!("'{}' is not a type: unexpected text at byte {at}", self.text))
    }

    fn eat(&mut self, wanted: char) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, wanted: char) -> Result<(), ValueError> {
        if self.eat(wanted) { Ok(()) } else { Err(self.unexpected()) }
    }

    /// Text up to an undoubled `quote`, whose opening has been eaten.
    fn quoted(&mut self, quote: char) -> Result<String, ValueError> {
        let mut out = String::new();
        loop {
            let (part, rest) = self.rest.split_once(quote).ok_or_else(|| self.unexpected())?;
            out.push_str(part);
            self.rest = rest;
            match rest.strip_prefix(quote) {
                Some(rest) => {
                    out.push(quote);
                    self.rest = rest;
                }
                None => return Ok(out),
            }
        }
    }

    /// A name, and whether it was quoted; unquoted ones come in lower case.
    fn name(&mut self) -> Result<(String, bool), ValueError> {
        if self.eat('"') {
            return Ok((self.quoted('"')?, true));
        }
        let len = self.rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
        if len == 0 {
            return Err(self.unexpected());
        }
        let (name, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok((name.to_ascii_lowercase(), false))
    }

    fn one_parameter(&mut self, depth: usize) -> Result<CqlType, ValueError> {
        self.expect('<')?;
        let ty = self.ty(depth + 1)?;
        self.expect('>')?;
        Ok(ty)
    }

    fn ty(&mut self, depth: usize) -> Result<CqlType, ValueError> {
        if depth > MAX_NESTING {
            return Err(ValueError::new(format!("Types may not nest deeper than {MAX_NESTING}")));
        }
        if self.eat('\'') {
            let class = self.quoted('\'')?;
            return super::class_name::parse(&class);
        }
        let (name, quoted) = self.name()?;
        if !quoted && let Some(ty) = self.built_in(&name, depth)? {
            return Ok(ty);
        }
        let (keyspace, name) = if self.eat('.') { (Some(name), self.name()?.0) } else { (None, name) };
        match (self.resolver)(keyspace.as_deref(), &name) {
            Some(user_type) => Ok(CqlType::Udt(user_type)),
            None => Err(ValueError::new(match keyspace {
                Some(keyspace) => format!("Unknown type {keyspace}.{name}"),
                None => format!("Unknown type {name}"),
            })),
        }
    }

    fn built_in(&mut self, name: &str, depth: usize) -> Result<Option<CqlType>, ValueError> {
        self.skip_space();
        if !self.rest.starts_with('<') {
            // `keyspace.type` may have a keyspace called as a type is.
            return Ok(if self.rest.starts_with('.') { None } else { native(name) });
        }
        Ok(Some(match name {
            "list" => CqlType::list(self.one_parameter(depth)?),
            "set" => CqlType::set(self.one_parameter(depth)?),
            "map" => {
                self.expect('<')?;
                let key = self.ty(depth + 1)?;
                self.expect(',')?;
                let value = self.ty(depth + 1)?;
                self.expect('>')?;
                CqlType::map(key, value)
            }
            "tuple" => {
                self.expect('<')?;
                let mut fields = vec![self.ty(depth + 1)?];
                while self.eat(',') {
                    fields.push(self.ty(depth + 1)?);
                }
                self.expect('>')?;
                CqlType::tuple(fields).freeze()
            }
            "vector" => {
                self.expect('<')?;
                let elem = self.ty(depth + 1)?;
                self.expect(',')?;
                self.skip_space();
                let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
                let dim = self.rest[..digits].parse().map_err(|_| self.unexpected())?;
                self.rest = &self.rest[digits..];
                self.expect('>')?;
                CqlType::vector(elem.freeze(), dim)
            }
            "frozen" => {
                let inner = self.one_parameter(depth)?;
                if inner.native_name().is_some() {
                    return Err(ValueError::new(format!(
                        "frozen<> is only allowed on collections, tuples, and user-defined types (got {inner})"
                    )));
                }
                inner.freeze()
            }
            _ => return Err(self.unexpected()),
        }))
    }
}
