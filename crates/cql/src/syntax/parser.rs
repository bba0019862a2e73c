//! Builds the syntax tree from tokens: a recursive descent parser without backtracking.
//!
//! Each rule is chosen by a few tokens of lookahead, so parsing takes linear time. Every recursive
//! rule goes through `nested`, which limits the stack and the depth of the tree.
//!
//! This file has the cursor over the tokens, errors, names, and the choice of the statement. Each
//! of the other files parses one family of statements.

mod ddl;
mod describe;
mod dml;
mod relation;
mod select;
mod term;
mod types;
mod unsupported;

use super::ast::{Marker, Name, ParsedStatement, QualifiedName, Statement, TypeName, Unsupported};
use super::error::SyntaxError;
use super::keyword::{Class, Keyword as K};
use super::lexer;
use super::token::{Kind, Mark as M, Token};

/// The maximum nesting of terms, types, expressions and relations.
pub const MAX_NESTING: usize = 100;

/// The maximum nesting of function calls and casts. Each call makes a value, which can be large.
pub const MAX_NESTED_CALLS: usize = 16;

/// The longest statement, in bytes. A hexadecimal literal of the largest mutation (16 MiB) fits.
pub const MAX_STATEMENT_BYTES: usize = 48 << 20;

/// The most tokens of a statement. The tree takes about 100 bytes for each token, however short.
pub const MAX_TOKENS: usize = 1 << 20;

/// The most bind markers of a statement, as in Cassandra: requests count their values in 16 bits.
pub const MAX_MARKERS: usize = u16::MAX as usize;

type Result<T> = std::result::Result<T, SyntaxError>;

/// Parses one text.
pub struct Parser<'a> {
    source: &'a str,
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    calls: usize,
    markers: Vec<Option<Name>>,
}

impl<'a> Parser<'a> {
    /// A parser at the start of the text. An error if the text is too long or has an invalid token.
    pub fn new(source: &'a str) -> Result<Parser<'a>> {
        if source.len() > MAX_STATEMENT_BYTES {
            let message = format!("statement of {} bytes is longer than {MAX_STATEMENT_BYTES}", source.len());
            return Err(SyntaxError { message, line: 1, column: 0 });
        }
        Ok(Parser {
            source,
            tokens: lexer::tokens(source, MAX_TOKENS)?,
            at: 0,
            depth: 0,
            calls: 0,
            markers: Vec::new(),
        })
    }

    /// Parses the entire text as one statement.
    pub fn parse(mut self) -> Result<ParsedStatement> {
        let statement = self.statement()?;
        while self.eat(M::Semicolon) {}
        if self.peek() != Kind::End {
            return Err(self.error(format!("missing EOF at {}", self.shown())));
        }
        Ok(ParsedStatement { statement, markers: self.markers })
    }

    /// Parses the entire text as one type.
    pub fn parse_type(mut self) -> Result<TypeName> {
        let type_name = self.type_name()?;
        if self.peek() != Kind::End {
            return Err(self.error(format!("missing EOF at {}", self.shown())));
        }
        Ok(type_name)
    }

    fn statement(&mut self) -> Result<Statement> {
        let Kind::Word(keyword, _) = self.peek() else { return Err(self.no_alternative()) };
        match keyword {
            K::Select => self.select().map(|select| Statement::Select(Box::new(select))),
            K::Insert => self.insert().map(Statement::Insert),
            K::Update => self.update().map(Statement::Update),
            K::Delete => self.delete().map(Statement::Delete),
            K::Begin => self.batch().map(Statement::Batch),
            K::Use => {
                self.advance();
                self.keyspace_name().map(Statement::Use)
            }
            K::Truncate => self.truncate().map(Statement::Truncate),
            K::Create => self.create(),
            K::Alter => self.alter(),
            K::Drop => self.drop_statement(),
            K::Describe | K::Desc => self.describe().map(Statement::Describe),
            K::Grant => self.unsupported(Unsupported::Grant, 1),
            K::Revoke => self.unsupported(Unsupported::Revoke, 1),
            K::List => self.unsupported(Unsupported::List, 1),
            K::Attach => self.unsupported(Unsupported::AttachServiceLevel, 1),
            K::Detach => self.unsupported(Unsupported::DetachServiceLevel, 1),
            K::Prune => self.unsupported(Unsupported::PruneView, 1),
            _ => Err(self.no_alternative()),
        }
    }

    fn token(&self, ahead: usize) -> Token {
        self.tokens[(self.at + ahead).min(self.tokens.len() - 1)]
    }

    fn peek(&self) -> Kind {
        self.token(0).kind
    }

    fn peek_at(&self, ahead: usize) -> Kind {
        self.token(ahead).kind
    }

    fn is_mark(&self, ahead: usize, mark: M) -> bool {
        self.peek_at(ahead) == Kind::Mark(mark)
    }

    fn is_word(&self, ahead: usize, keyword: K) -> bool {
        matches!(self.peek_at(ahead), Kind::Word(found, _) if found == keyword)
    }

    /// Skips the current token, but never the end of the text. Returns its text.
    fn advance(&mut self) -> &'a str {
        let token = self.token(0);
        if token.kind != Kind::End {
            self.at += 1;
        }
        token.text(self.source)
    }

    fn eat(&mut self, mark: M) -> bool {
        let found = self.is_mark(0, mark);
        self.at += usize::from(found);
        found
    }

    fn eat_word(&mut self, keyword: K) -> bool {
        let found = self.is_word(0, keyword);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, mark: M) -> Result<()> {
        if self.eat(mark) { Ok(()) } else { Err(self.mismatch(&format!("'{}'", mark.text()))) }
    }

    /// Skips these keywords, which must follow in this order.
    fn expect_words(&mut self, keywords: &[K]) -> Result<()> {
        for keyword in keywords {
            if !self.eat_word(*keyword) {
                return Err(self.mismatch(&format!("K_{}", keyword.text().to_ascii_uppercase())));
            }
        }
        Ok(())
    }

    fn eat_if_exists(&mut self) -> Result<bool> {
        let found = self.eat_word(K::If);
        if found {
            self.expect_words(&[K::Exists])?;
        }
        Ok(found)
    }

    fn eat_if_not_exists(&mut self) -> Result<bool> {
        let found = self.eat_word(K::If);
        if found {
            self.expect_words(&[K::Not, K::Exists])?;
        }
        Ok(found)
    }

    /// One or more items separated by commas.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = vec![item(self)?];
        while self.eat(M::Comma) {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// One or more items separated by AND.
    fn and_list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = vec![item(self)?];
        while self.eat_word(K::And) {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Runs a recursive rule, unless the nesting is too deep.
    fn nested<T>(&mut self, rule: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_NESTING {
            return Err(self.too_deep());
        }
        self.depth += 1;
        let result = rule(self);
        self.depth -= 1;
        result
    }

    /// Runs the rule of a function call, unless calls are nested too deeply.
    fn called<T>(&mut self, rule: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.calls >= MAX_NESTED_CALLS {
            return Err(self.error(format!("more than {MAX_NESTED_CALLS} function calls nested in each other")));
        }
        self.calls += 1;
        let result = rule(self);
        self.calls -= 1;
        result
    }

    fn too_deep(&self) -> SyntaxError {
        self.error("expression nested too deeply".to_owned())
    }

    /// An error at the position of the current token.
    fn error(&self, message: String) -> SyntaxError {
        SyntaxError::at(self.source, self.token(0).start as usize, message)
    }

    /// The text of the current token, for messages.
    fn shown(&self) -> String {
        /// The most characters of a token in a message. A literal can have megabytes.
        const SHOWN: usize = 100;
        let token = self.token(0);
        if token.kind == Kind::End {
            return "'<EOF>'".to_owned();
        }
        let text = token.text(self.source);
        match text.char_indices().nth(SHOWN) {
            Some((cut, _)) => format!("'{}...'", &text[..cut]),
            None => format!("'{text}'"),
        }
    }

    fn no_alternative(&self) -> SyntaxError {
        self.error(format!("no viable alternative at input {}", self.shown()))
    }

    fn mismatch(&self, expected: &str) -> SyntaxError {
        self.error(format!("mismatched input {} expecting {expected}", self.shown()))
    }

    /// Whether a token can be a name.
    fn is_name(&self, ahead: usize) -> bool {
        match self.peek_at(ahead) {
            Kind::Ident | Kind::QuotedName => true,
            Kind::Word(_, class) => class != Class::Reserved,
            _ => false,
        }
    }

    /// A name of a column, field or similar.
    fn name(&mut self) -> Result<Name> {
        if self.is_name(0) { Ok(self.take_name()) } else { Err(self.no_alternative()) }
    }

    /// The current token as a name. It must be a word or a quoted name.
    fn take_name(&mut self) -> Name {
        let quoted = self.peek() == Kind::QuotedName;
        let text = self.advance();
        if quoted {
            Name::new(text[1..text.len() - 1].replace("\"\"", "\""))
        } else {
            Name::new(text.to_ascii_lowercase())
        }
    }

    /// The name of a schema object, which cannot be a bind marker.
    fn schema_name(&mut self, what: &str) -> Result<Name> {
        if self.is_mark(0, M::Question) {
            return Err(self.error(format!("Bind variables cannot be used for {what} names")));
        }
        self.name()
    }

    fn keyspace_name(&mut self) -> Result<Name> {
        self.schema_name("keyspace")
    }

    fn table_name(&mut self) -> Result<QualifiedName> {
        self.qualified("table")
    }

    fn qualified(&mut self, what: &str) -> Result<QualifiedName> {
        let name = self.schema_name(what)?;
        if self.eat(M::Dot) {
            return Ok(QualifiedName { keyspace: Some(name), name: self.schema_name(what)? });
        }
        Ok(QualifiedName { keyspace: None, name })
    }

    /// Whether a token can be the name of a function.
    fn is_function_name(&self, ahead: usize) -> bool {
        match self.peek_at(ahead) {
            Kind::Ident | Kind::QuotedName => true,
            Kind::Word(K::Token | K::Count | K::Ann, _) => true,
            Kind::Word(K::ScyllaClusteringBound | K::ScyllaCounterShardList | K::ScyllaTimeuuidListIndex, _) => true,
            Kind::Word(_, class) => matches!(class, Class::Plain | Class::Type),
            _ => false,
        }
    }

    /// Whether a function name and an opening parenthesis start at `ahead`.
    fn is_call(&self, ahead: usize) -> bool {
        (self.is_function_name(ahead) && self.is_mark(ahead + 1, M::Open))
            || (self.is_name(ahead)
                && self.is_mark(ahead + 1, M::Dot)
                && self.is_function_name(ahead + 2)
                && self.is_mark(ahead + 3, M::Open))
    }

    fn function_name(&mut self) -> Result<QualifiedName> {
        let mut keyspace = None;
        if self.is_name(0) && self.is_mark(1, M::Dot) {
            keyspace = Some(self.take_name());
            self.advance();
        }
        if !self.is_function_name(0) {
            return Err(self.no_alternative());
        }
        Ok(QualifiedName { keyspace, name: self.take_name() })
    }

    /// Whether the current token starts a bind marker.
    fn is_marker(&self) -> bool {
        self.is_mark(0, M::Question) || self.is_mark(0, M::Colon)
    }

    /// `?` or `:name`. The name may be any keyword.
    fn marker(&mut self) -> Result<Marker> {
        if self.markers.len() >= MAX_MARKERS {
            return Err(self.error(format!("a statement cannot have more than {MAX_MARKERS} bind markers")));
        }
        let name = match self.advance() {
            "?" => None,
            _ => match self.peek() {
                Kind::Ident | Kind::QuotedName | Kind::Word(..) => Some(self.take_name()),
                _ => return Err(self.no_alternative()),
            },
        };
        self.markers.push(name);
        Ok(Marker(self.markers.len() - 1))
    }
}
