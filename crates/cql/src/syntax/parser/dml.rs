//! INSERT, UPDATE, DELETE, batches, TRUNCATE, and the USING clause.

use super::{K, Kind, M, Parser, Result};
use crate::syntax::ast::{
    Assignment, AssignmentOp, Attributes, Batch, BatchKind, Condition, Delete, DeleteTarget, Insert, InsertSource,
    Literal, Modification, Name, Term, Truncate, Update,
};

impl Parser<'_> {
    /// Parses a USING clause with only these attributes.
    pub(super) fn using(&mut self, allowed: &[K]) -> Result<Attributes> {
        self.expect_words(&[K::Using])?;
        let mut attributes = Attributes::default();
        self.and_list(|parser| {
            let Kind::Word(keyword, _) = parser.peek() else { return Err(parser.no_alternative()) };
            let attribute = if keyword == K::ServiceLevel { K::Service } else { keyword };
            if !allowed.contains(&attribute) {
                return Err(parser.no_alternative());
            }
            parser.advance();
            match keyword {
                K::Timestamp => attributes.timestamp = Some(parser.integer_or_marker()?),
                K::Ttl => attributes.ttl = Some(parser.integer_or_marker()?),
                K::Timeout => attributes.timeout = Some(parser.term()?),
                _ => {
                    if keyword == K::Service {
                        parser.expect_words(&[K::Level])?;
                    }
                    attributes.service_level = Some(parser.service_level_name()?);
                }
            }
            Ok(())
        })?;
        Ok(attributes)
    }

    fn service_level_name(&mut self) -> Result<Name> {
        match self.peek() {
            Kind::String | Kind::DollarString => self.string().map(Name::new),
            Kind::Word(K::Default, _) => Ok(self.take_name()),
            _ => self.schema_name("service level"),
        }
    }

    fn optional_using(&mut self, allowed: &[K]) -> Result<Attributes> {
        if self.is_word(0, K::Using) { self.using(allowed) } else { Ok(Attributes::default()) }
    }

    pub(super) fn insert(&mut self) -> Result<Insert> {
        self.expect_words(&[K::Insert, K::Into])?;
        let table = self.table_name()?;
        let source = if self.eat_word(K::Json) {
            let value = if self.is_marker() {
                Term::Marker(self.marker()?)
            } else {
                Term::Literal(Literal::String(self.string()?))
            };
            let mut default_unset = false;
            if self.eat_word(K::Default) {
                default_unset = self.eat_word(K::Unset);
                if !default_unset {
                    self.expect_words(&[K::Null])?;
                }
            }
            InsertSource::Json { value, default_unset }
        } else {
            let columns = self.names_in_parentheses()?;
            self.expect_words(&[K::Values])?;
            self.expect(M::Open)?;
            let values = self.list(Self::term)?;
            self.expect(M::Close)?;
            InsertSource::Values { columns, values }
        };
        let if_not_exists = self.eat_if_not_exists()?;
        let attributes = self.optional_using(&[K::Timestamp, K::Ttl, K::Timeout])?;
        Ok(Insert { table, source, if_not_exists, attributes })
    }

    pub(super) fn update(&mut self) -> Result<Update> {
        self.expect_words(&[K::Update])?;
        let table = self.table_name()?;
        let attributes = self.optional_using(&[K::Timestamp, K::Ttl, K::Timeout])?;
        self.expect_words(&[K::Set])?;
        let assignments = self.list(Self::assignment)?;
        let relations = self.where_clause()?;
        let condition = self.optional_condition()?;
        Ok(Update { table, attributes, assignments, relations, condition })
    }

    fn optional_condition(&mut self) -> Result<Option<Condition>> {
        if !self.eat_word(K::If) {
            return Ok(None);
        }
        // `exists` may also be the name of a column. Then an operator follows.
        let end = matches!(self.peek_at(1), Kind::Mark(M::Equal | M::NotEqual | M::Less | M::LessEqual))
            || matches!(self.peek_at(1), Kind::Mark(M::Greater | M::GreaterEqual | M::OpenSquare | M::Dot))
            || matches!(self.peek_at(1), Kind::Word(K::In | K::Not | K::Like, _));
        if self.is_word(0, K::Exists) && !end {
            self.advance();
            return Ok(Some(Condition::Exists));
        }
        self.and_list(Self::condition).map(|all| Some(Condition::All(all)))
    }

    fn assignment(&mut self) -> Result<Assignment> {
        let column = self.name()?;
        let op = match self.peek() {
            Kind::Mark(M::PlusEqual) => {
                self.advance();
                AssignmentOp::Add(self.term()?)
            }
            Kind::Mark(M::MinusEqual) => {
                self.advance();
                AssignmentOp::Subtract(self.term()?)
            }
            Kind::Mark(M::OpenSquare) => {
                let key = self.subscript()?;
                self.expect(M::Equal)?;
                AssignmentOp::SetElement { key, value: self.term()? }
            }
            Kind::Mark(M::Dot) => {
                self.advance();
                let field = self.name()?;
                self.expect(M::Equal)?;
                AssignmentOp::SetField { field, value: self.term()? }
            }
            _ => {
                self.expect(M::Equal)?;
                self.assigned(&column)?
            }
        };
        Ok(Assignment { column, op })
    }

    /// Parses the text after `column =`.
    fn assigned(&mut self, column: &Name) -> Result<AssignmentOp> {
        if !self.is_name(0) || self.is_call(0) {
            let value = self.term()?;
            if !self.eat(M::Plus) {
                return Ok(AssignmentOp::Set(value));
            }
            self.same_column(column, "X = <value> + X")?;
            return Ok(AssignmentOp::Prepend(value));
        }
        match self.peek_at(1) {
            Kind::Mark(M::Plus) => {
                self.same_column(column, "X = X + <value>")?;
                self.advance();
                Ok(AssignmentOp::Add(self.term()?))
            }
            Kind::Mark(M::Minus) => {
                self.same_column(column, "X = X - <value>")?;
                self.advance();
                Ok(AssignmentOp::Subtract(self.term()?))
            }
            Kind::Integer if self.token(1).text(self.source).starts_with('-') => {
                self.same_column(column, "X = X - <value>")?;
                Ok(AssignmentOp::Add(self.term()?))
            }
            _ => {
                self.advance();
                Err(self.no_alternative())
            }
        }
    }

    /// Skips the name, which must be the name of the assigned column.
    fn same_column(&mut self, column: &Name, form: &str) -> Result<()> {
        let place = self.token(0).start as usize;
        if self.name()? == *column {
            return Ok(());
        }
        let message = format!("Only expressions of the form {form} are supported.");
        Err(super::SyntaxError::at(self.source, place, message))
    }

    pub(super) fn delete(&mut self) -> Result<Delete> {
        self.expect_words(&[K::Delete])?;
        let targets = if self.is_word(0, K::From) { Vec::new() } else { self.list(Self::delete_target)? };
        self.expect_words(&[K::From])?;
        let table = self.table_name()?;
        let attributes = self.optional_using(&[K::Timestamp, K::Timeout])?;
        let relations = self.where_clause()?;
        let condition = self.optional_condition()?;
        let bypass_large_data_guardrails = self.eat_word(K::Bypass);
        if bypass_large_data_guardrails {
            self.expect_words(&[K::LargeDataGuardrails])?;
        }
        Ok(Delete { table, targets, attributes, relations, condition, bypass_large_data_guardrails })
    }

    fn delete_target(&mut self) -> Result<DeleteTarget> {
        let column = self.name()?;
        if self.is_mark(0, M::OpenSquare) {
            return Ok(DeleteTarget::Element { column, key: self.subscript()? });
        }
        if self.eat(M::Dot) {
            return Ok(DeleteTarget::Field { column, field: self.name()? });
        }
        Ok(DeleteTarget::Column(column))
    }

    pub(super) fn batch(&mut self) -> Result<Batch> {
        self.expect_words(&[K::Begin])?;
        let kind = match self.peek() {
            Kind::Word(K::Unlogged, _) => BatchKind::Unlogged,
            Kind::Word(K::Counter, _) => BatchKind::Counter,
            _ => BatchKind::Logged,
        };
        if kind != BatchKind::Logged {
            self.advance();
        }
        self.expect_words(&[K::Batch])?;
        let attributes = self.optional_using(&[K::Timestamp, K::Ttl, K::Timeout])?;
        let mut statements = Vec::new();
        while !self.eat_word(K::Apply) {
            let Kind::Word(keyword, _) = self.peek() else { return Err(self.no_alternative()) };
            statements.push(match keyword {
                K::Insert => self.insert().map(Modification::Insert)?,
                K::Update => self.update().map(Modification::Update)?,
                K::Delete => self.delete().map(Modification::Delete)?,
                _ => return Err(self.no_alternative()),
            });
            self.eat(M::Semicolon);
        }
        self.expect_words(&[K::Batch])?;
        Ok(Batch { kind, attributes, statements })
    }

    pub(super) fn truncate(&mut self) -> Result<Truncate> {
        self.expect_words(&[K::Truncate])?;
        self.eat_word(K::Table);
        let table = self.table_name()?;
        let attributes = self.optional_using(&[K::Timeout])?;
        Ok(Truncate { table, attributes })
    }
}
