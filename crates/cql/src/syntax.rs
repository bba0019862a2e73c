//! Parsing: from the text of a statement to its syntax tree.
//!
//! `parse` reads one statement and returns its tree and its bind markers, or a `SyntaxError` with
//! the position. It accepts any text, never panics, takes linear time, and its stack is limited by
//! `MAX_NESTING`. It knows no schema, no values of types and no session; the planner interprets the
//! tree. Unsupported statements and clauses are recognized, so that the planner can answer "not
//! supported yet" instead of a syntax error.
//!
//! Reading order: `ast` (the tree), `keyword` and `token`, `lexer` (text to tokens), `parser`
//! (tokens to tree).

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
pub use parser::{MAX_MARKERS, MAX_NESTED_CALLS, MAX_NESTING, MAX_STATEMENT_BYTES, MAX_TOKENS};

use keyword::Class;

/// Parses one statement, optionally followed by semicolons.
pub fn parse(text: &str) -> Result<ParsedStatement, SyntaxError> {
    parser::Parser::new(text)?.parse()
}

/// Parses a type, such as `map<text, frozen<list<int>>>`.
pub fn parse_type(text: &str) -> Result<ast::TypeName, SyntaxError> {
    parser::Parser::new(text)?.parse_type()
}

/// The name as written in CQL: in quotes, unless it is a lower-case word that is not reserved.
pub fn quote_identifier(name: &str) -> Cow<'_, str> {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    let reserved = matches!(keyword::lookup(name), Some((_, Class::Reserved)));
    if plain && !reserved { Cow::Borrowed(name) } else { Cow::Owned(format!("\"{}\"", name.replace('"', "\"\""))) }
}
