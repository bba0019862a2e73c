//! The language's surface: text to tree.
//!
//! `parse` reads one statement and returns its tree with its bind markers, or a `SyntaxError` that points at the place.
//! It takes any text, never panics, needs time linear in the text and a stack bounded by `MAX_NESTING`. It knows nothing of
//! schemas, types' values or sessions: what a statement means is the planner's affair. Statements and clauses of later
//! features are recognised, so that the planner can say "not supported yet" where a syntax error would lie.
//!
//! In reading order: `ast` (the tree), `keyword` and `token`, `lexer` (text to tokens), `parser` (tokens to tree).

pub mod ast;
mod duration;
mod error;
mod keyword;
mod lexer;
mod parser;
#[cfg(test)]
mod tests;
mod token;

use std::borrow::Cow;

pub use ast::{Marker, Name, ParsedStatement, QualifiedName, Statement};
pub use duration::{Duration, DurationError};
pub use error::SyntaxError;
pub use parser::{MAX_NESTED_CALLS, MAX_NESTING, MAX_STATEMENT_BYTES, MAX_TOKENS};

use keyword::Class;

/// Reads one statement, perhaps followed by semicolons.
pub fn parse(text: &str) -> Result<ParsedStatement, SyntaxError> {
    parser::Parser::new(text)?.parse()
}

/// Reads a type alone, such as `map<text, frozen<list<int>>>`.
pub fn parse_type(text: &str) -> Result<ast::TypeName, SyntaxError> {
    parser::Parser::new(text)?.parse_type()
}

/// The name as it must be written in CQL: in quotes unless it is a lower-case word that is not reserved.
pub fn quote_identifier(name: &str) -> Cow<'_, str> {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    let reserved = matches!(keyword::lookup(name), Some((_, Class::Reserved)));
    if plain && !reserved { Cow::Borrowed(name) } else { Cow::Owned(format!("\"{}\"", name.replace('"', "\"\""))) }
}
