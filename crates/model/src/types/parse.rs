//! Parses CQL type names: `map<text, frozen<list<int>>>`.

use super::cursor::Cursor;
use super::limits::{self, Extent, MAX_TYPE_DEPTH, MAX_TYPE_NODES};
use super::{CqlType, UserType, ValueError};

/// The deepest nesting of a type's text, including `frozen` and other wrappers.
pub const MAX_NESTING: usize = 2 * MAX_TYPE_DEPTH + 8;
/// The most elements a vector may have.
pub const MAX_VECTOR_DIMENSION: u32 = 16_000;

/// Finds the user type with this (optional) keyspace and name, both without quotes.
pub type Resolver<'a> = dyn Fn(Option<&str>, &str) -> Option<std::sync::Arc<UserType>> + 'a;

/// Parses the CQL type of a column. Nested collections and user types must be frozen, and the type
/// must be within the limits.
pub fn parse(text: &str, resolver: &Resolver<'_>) -> Result<CqlType, ValueError> {
    parse_as(text, resolver, "The type")
}

/// Like [`parse`], but an error about the limits calls the type `what`.
pub fn parse_as(text: &str, resolver: &Resolver<'_>, what: &str) -> Result<CqlType, ValueError> {
    let ty = parse_all(text, resolver, &mut Room::of_column(), Some(what))?;
    limits::check(&ty, what)?;
    Ok(ty)
}

/// Parses a type that was accepted before, perhaps by a release without limits. User types that
/// exceed `room` become blobs, which have the same bytes. Subtracts the size of the type from
/// `room`.
pub fn parse_stored(text: &str, resolver: &Resolver<'_>, room: &mut Room) -> Result<CqlType, ValueError> {
    parse_all(text, resolver, room, None)
}

fn parse_all(text: &str, resolver: &Resolver<'_>, room: &mut Room, new: Option<&str>) -> Result<CqlType, ValueError> {
    let mut parser = Parser { cursor: Cursor::new(text, "a type"), resolver, room, new, nesting: 0 };
    let ty = parser.ty(0)?;
    parser.cursor.end()?;
    check(&ty)?;
    Ok(ty)
}

/// The rest of the limits for the types inside a type.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    depth: usize,
    nodes: usize,
    is_cut: bool,
}

impl Room {
    /// The limits for the type of a column.
    pub fn of_column() -> Room {
        Room { depth: MAX_TYPE_DEPTH, nodes: MAX_TYPE_NODES, is_cut: false }
    }

    /// The limits for all fields of a user type together.
    pub fn of_user_type() -> Room {
        Room { depth: MAX_TYPE_DEPTH - 1, nodes: MAX_TYPE_NODES - 1, is_cut: false }
    }

    /// Whether a user type exceeded the limits and became a blob.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Reserves room for a type that is `level` levels below. False if there is not enough.
    fn take(&mut self, level: usize, extent: Extent) -> bool {
        let fits = level + extent.depth <= self.depth && extent.nodes <= self.nodes;
        if fits {
            self.nodes -= extent.nodes;
        }
        fits
    }
}

/// The type without parameters that has this name, in any case.
pub fn native(name: &str) -> Option<CqlType> {
    if name.eq_ignore_ascii_case("varchar") {
        return Some(CqlType::Text);
    }
    if name.eq_ignore_ascii_case("empty") {
        return Some(CqlType::Empty);
    }
    CqlType::NATIVE.iter().find(|ty| ty.native_name().is_some_and(|n| n.eq_ignore_ascii_case(name))).cloned()
}

/// Whether `ty` may be the type of a column or of a user type's field. Refuses what CREATE TABLE
/// refuses.
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
    cursor: Cursor<'a>,
    resolver: &'a Resolver<'a>,
    room: &'a mut Room,
    /// What errors about the limits call the type. `None` if it was accepted before.
    new: Option<&'a str>,
    nesting: usize,
}

impl Parser<'_> {
    /// Text up to an undoubled `quote`. The opening quote was consumed.
    fn quoted(&mut self, quote: char) -> Result<String, ValueError> {
        let mut out = String::new();
        loop {
            let (part, rest) = self.cursor.rest.split_once(quote).ok_or_else(|| self.cursor.unexpected())?;
            out.push_str(part);
            self.cursor.rest = rest;
            match rest.strip_prefix(quote) {
                Some(rest) => {
                    out.push(quote);
                    self.cursor.rest = rest;
                }
                None => return Ok(out),
            }
        }
    }

    /// A name, and whether it was quoted. Unquoted names are returned in lower case.
    fn name(&mut self) -> Result<(String, bool), ValueError> {
        if self.cursor.eat('"') {
            return Ok((self.quoted('"')?, true));
        }
        let len = self.cursor.rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
        if len == 0 {
            return Err(self.cursor.unexpected());
        }
        Ok((self.cursor.take(len).to_ascii_lowercase(), false))
    }

    fn one_parameter(&mut self, depth: usize) -> Result<CqlType, ValueError> {
        self.cursor.expect('<')?;
        let ty = self.ty(depth)?;
        self.cursor.expect('>')?;
        Ok(ty)
    }

    /// A type with `depth` types around it.
    fn ty(&mut self, depth: usize) -> Result<CqlType, ValueError> {
        if self.nesting == MAX_NESTING {
            return Err(limits::too_deep(self.new.unwrap_or("A stored type")));
        }
        self.nesting += 1;
        let ty = self.type_at(depth);
        self.nesting -= 1;
        ty
    }

    /// Reserves room for a type that is written here, without its contents.
    fn take_one(&mut self, depth: usize) -> Result<(), ValueError> {
        match self.new {
            Some(what) if !self.room.take(depth, Extent { depth: 1, nodes: 1 }) => {
                Err(if depth < self.room.depth { limits::too_many(what) } else { limits::too_deep(what) })
            }
            Some(_) => Ok(()),
            None => {
                self.room.nodes = self.room.nodes.saturating_sub(1);
                Ok(())
            }
        }
    }

    fn type_at(&mut self, depth: usize) -> Result<CqlType, ValueError> {
        if self.cursor.eat('\'') {
            let class = self.quoted('\'')?;
            self.take_one(depth)?;
            return super::class_name::parse(&class);
        }
        let (name, quoted) = self.name()?;
        if !quoted && let Some(ty) = self.built_in(&name, depth)? {
            return Ok(ty);
        }
        let (keyspace, name) = if self.cursor.eat('.') { (Some(name), self.name()?.0) } else { (None, name) };
        match (self.resolver)(keyspace.as_deref(), &name) {
            Some(user_type) => {
                let ty = CqlType::Udt(user_type);
                let extent = Extent::of(&ty);
                if self.room.take(depth, extent) {
                    return Ok(ty);
                }
                let Some(what) = self.new else {
                    // The type of a column itself may have many fields of its own, because the
                    // format of its cells must not change.
                    let is_column = depth == 0 && self.room.depth == MAX_TYPE_DEPTH;
                    self.room.is_cut |= !is_column;
                    return Ok(if is_column { ty } else { CqlType::Blob });
                };
                let is_deep = depth + extent.depth > self.room.depth;
                Err(if is_deep { limits::too_deep(what) } else { limits::too_many(what) })
            }
            None => Err(ValueError::new(match keyspace {
                Some(keyspace) => format!("Unknown type {keyspace}.{name}"),
                None => format!("Unknown type {name}"),
            })),
        }
    }

    fn built_in(&mut self, name: &str, depth: usize) -> Result<Option<CqlType>, ValueError> {
        self.cursor.skip_space();
        if !self.cursor.rest.starts_with('<') {
            // `keyspace.type` may have a keyspace with the name of a type.
            let found = if self.cursor.rest.starts_with('.') { None } else { native(name) };
            if found.is_some() {
                self.take_one(depth)?;
            }
            return Ok(found);
        }
        if name != "frozen" {
            self.take_one(depth)?;
        }
        Ok(Some(match name {
            "list" => CqlType::list(self.one_parameter(depth + 1)?),
            "set" => CqlType::set(self.one_parameter(depth + 1)?),
            "map" => {
                self.cursor.expect('<')?;
                let key = self.ty(depth + 1)?;
                self.cursor.expect(',')?;
                let value = self.ty(depth + 1)?;
                self.cursor.expect('>')?;
                CqlType::map(key, value)
            }
            "tuple" => {
                self.cursor.expect('<')?;
                let mut fields = vec![self.ty(depth + 1)?];
                while self.cursor.eat(',') {
                    fields.push(self.ty(depth + 1)?);
                }
                self.cursor.expect('>')?;
                CqlType::tuple(fields).freeze()
            }
            "vector" => {
                self.cursor.expect('<')?;
                let elem = self.ty(depth + 1)?;
                self.cursor.expect(',')?;
                self.cursor.skip_space();
                let digits = self.cursor.rest.bytes().take_while(u8::is_ascii_digit).count();
                let dim = self.cursor.rest[..digits].parse().map_err(|_| self.cursor.unexpected())?;
                self.cursor.take(digits);
                self.cursor.expect('>')?;
                CqlType::vector(elem.freeze(), dim)
            }
            "frozen" => {
                let inner = self.one_parameter(depth)?;
                // A stored user type without room has become a blob.
                if inner.native_name().is_some() && self.new.is_some() {
                    return Err(ValueError::new(format!(
                        "frozen<> is only allowed on collections, tuples, and user-defined types (got {inner})"
                    )));
                }
                inner.freeze()
            }
            _ => return Err(self.cursor.unexpected()),
        }))
    }
}
