//! Relations of WHERE and IF clauses.

use super::{K, Kind, M, Parser, Result};
use crate::syntax::ast::{CompareOp, FunctionCall, InValues, Name, Relation, Target, Term};

impl Parser<'_> {
    /// The WHERE clause with its keyword.
    pub(super) fn where_clause(&mut self) -> Result<Vec<Relation>> {
        self.expect_words(&[K::Where])?;
        self.and_list(Self::relation)
    }

    fn relation(&mut self) -> Result<Relation> {
        self.nested(Self::relation_inner)
    }

    fn relation_inner(&mut self) -> Result<Relation> {
        if self.is_mark(0, M::Open) {
            let tuple = self.is_name(1) && (self.is_mark(2, M::Comma) || self.is_mark(2, M::Close));
            if tuple {
                return self.tuple_relation();
            }
            self.advance();
            let relation = self.relation()?;
            self.expect(M::Close)?;
            return Ok(relation);
        }
        if self.is_word(0, K::Token) {
            self.advance();
            return self.comparison(|parser| parser.names_in_parentheses().map(Target::Token));
        }
        if self.is_call(0) {
            return self.comparison(|parser| {
                let name = parser.function_name()?;
                Ok(Target::Call(FunctionCall { name, arguments: parser.selection_arguments()? }))
            });
        }
        let column = self.name()?;
        match self.peek() {
            Kind::Word(K::Is, _) => {
                self.advance();
                self.expect_words(&[K::Not, K::Null])?;
                Ok(Relation::IsNotNull { column })
            }
            Kind::Word(K::Contains, _) => {
                self.advance();
                let key = self.eat_word(K::Key);
                Ok(Relation::Contains { column, key, value: self.term()? })
            }
            Kind::Word(K::In | K::Not, _) => self.in_relation(Target::Column(column), Self::term),
            Kind::Mark(M::OpenSquare) => {
                let key = self.subscript()?;
                self.comparison(|_| Ok(Target::Element(column, key)))
            }
            _ => self.comparison(|_| Ok(Target::Column(column))),
        }
    }

    /// `(a, b) op value` or `(a, b) IN values`.
    fn tuple_relation(&mut self) -> Result<Relation> {
        let target = Target::Tuple(self.names_in_parentheses()?);
        if !self.is_word(0, K::In) && !self.is_word(0, K::Not) {
            return self.comparison(|_| Ok(target));
        }
        self.in_relation(target, |parser| {
            if parser.is_mark(0, M::Open) || parser.is_marker() { parser.term() } else { Err(parser.no_alternative()) }
        })
    }

    /// A comparison: target, operator and value.
    fn comparison(&mut self, target: impl FnOnce(&mut Self) -> Result<Target>) -> Result<Relation> {
        let target = target(self)?;
        let op = match self.peek() {
            Kind::Mark(M::Equal) => CompareOp::Eq,
            Kind::Mark(M::Less) => CompareOp::Lt,
            Kind::Mark(M::LessEqual) => CompareOp::Le,
            Kind::Mark(M::Greater) => CompareOp::Gt,
            Kind::Mark(M::GreaterEqual) => CompareOp::Ge,
            Kind::Mark(M::NotEqual) => CompareOp::Ne,
            Kind::Word(K::Like, _) => CompareOp::Like,
            _ => return Err(self.no_alternative()),
        };
        self.advance();
        Ok(Relation::Compare { target, op, value: self.term()? })
    }

    /// `[NOT] IN values`, the rest of a relation after its target. `value` parses one of a list.
    fn in_relation(&mut self, target: Target, value: impl FnMut(&mut Self) -> Result<Term>) -> Result<Relation> {
        let negated = self.eat_word(K::Not);
        self.expect_words(&[K::In])?;
        if self.is_marker() {
            return Ok(Relation::In { target, negated, values: InValues::Marker(self.marker()?) });
        }
        self.expect(M::Open)?;
        let mut values = Vec::new();
        if !self.eat(M::Close) {
            values = self.list(value)?;
            self.expect(M::Close)?;
        }
        Ok(Relation::In { target, negated, values: InValues::List(values) })
    }

    /// A condition of an IF clause.
    pub(super) fn condition(&mut self) -> Result<Relation> {
        let target = self.column_path()?;
        match self.peek() {
            Kind::Word(K::In | K::Not, _) => self.in_relation(target, Self::term),
            _ => self.comparison(|_| Ok(target)),
        }
    }

    /// A column, or an element or field of it.
    pub(super) fn column_path(&mut self) -> Result<Target> {
        let column = self.name()?;
        if self.is_mark(0, M::OpenSquare) {
            let key = self.subscript()?;
            return Ok(Target::Element(column, key));
        }
        if self.eat(M::Dot) {
            return Ok(Target::Field(column, self.name()?));
        }
        Ok(Target::Column(column))
    }

    /// `[key]`.
    pub(super) fn subscript(&mut self) -> Result<Term> {
        self.expect(M::OpenSquare)?;
        let key = self.term()?;
        self.expect(M::CloseSquare)?;
        Ok(key)
    }

    /// `(a, b)`; at least one name.
    pub(super) fn names_in_parentheses(&mut self) -> Result<Vec<Name>> {
        self.expect(M::Open)?;
        let names = self.list(Self::name)?;
        self.expect(M::Close)?;
        Ok(names)
    }
}
