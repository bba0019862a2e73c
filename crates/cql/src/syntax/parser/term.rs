//! Values: literals, collections, function calls, type hints, markers.

use super::{K, Kind, M, Parser, Result};
use crate::syntax::ast::{FunctionCall, Literal, Term};

impl Parser<'_> {
    pub(super) fn term(&mut self) -> Result<Term> {
        self.nested(Self::term_inner)
    }

    fn term_inner(&mut self) -> Result<Term> {
        if let Some(literal) = self.eat_literal()? {
            return Ok(Term::Literal(literal));
        }
        match self.peek() {
            Kind::Mark(M::Question | M::Colon) => self.marker().map(Term::Marker),
            Kind::Mark(M::OpenSquare) => {
                self.advance();
                self.terms_until(M::CloseSquare).map(Term::List)
            }
            Kind::Mark(M::OpenCurly) => self.curly(),
            Kind::Mark(M::Open) if self.is_hint() => {
                self.advance();
                let type_name = self.type_name()?;
                self.expect(M::Close)?;
                Ok(Term::Hint(type_name, Box::new(self.term()?)))
            }
            Kind::Mark(M::Open) => {
                self.advance();
                let members = self.list(Self::term)?;
                self.expect(M::Close)?;
                Ok(Term::Tuple(members))
            }
            _ if self.is_call(0) => {
                let name = self.function_name()?;
                self.expect(M::Open)?;
                Ok(Term::Call(FunctionCall { name, arguments: self.called(|parser| parser.terms_until(M::Close))? }))
            }
            _ => Err(self.no_alternative()),
        }
    }

    /// Whether a type hint starts at the current parenthesis. In a value, a word that starts no
    /// call can only be a type.
    fn is_hint(&self) -> bool {
        let word = matches!(self.peek_at(1), Kind::Ident | Kind::QuotedName | Kind::Word(..));
        let constant = [K::True, K::False, K::Null, K::Nan, K::Infinity].iter().any(|k| self.is_word(1, *k));
        word && !constant && !self.is_call(1)
    }

    /// Terms separated by commas, possibly none, up to and including a closing mark.
    pub(super) fn terms_until(&mut self, close: M) -> Result<Vec<Term>> {
        if self.eat(close) {
            return Ok(Vec::new());
        }
        let terms = self.list(Self::term)?;
        self.expect(close)?;
        Ok(terms)
    }

    /// A set, map or user type literal.
    fn curly(&mut self) -> Result<Term> {
        self.advance();
        if self.eat(M::CloseCurly) {
            return Ok(Term::Set(Vec::new()));
        }
        if self.is_name(0) && self.is_mark(1, M::Colon) {
            let fields = self.list(|parser| {
                let field = parser.name()?;
                parser.expect(M::Colon)?;
                Ok((field, parser.term()?))
            })?;
            self.expect(M::CloseCurly)?;
            return Ok(Term::UserType(fields));
        }
        let first = self.term()?;
        if self.eat(M::Colon) {
            let mut pairs = vec![(first, self.term()?)];
            while self.eat(M::Comma) {
                let key = self.term()?;
                self.expect(M::Colon)?;
                pairs.push((key, self.term()?));
            }
            self.expect(M::CloseCurly)?;
            return Ok(Term::Map(pairs));
        }
        let mut members = vec![first];
        while self.eat(M::Comma) {
            members.push(self.term()?);
        }
        self.expect(M::CloseCurly)?;
        Ok(Term::Set(members))
    }

    /// An integer or a marker, for USING and LIMIT.
    pub(super) fn integer_or_marker(&mut self) -> Result<Term> {
        match self.peek() {
            Kind::Integer => Ok(Term::Literal(Literal::Integer(self.advance().to_owned()))),
            _ if self.is_marker() => self.marker().map(Term::Marker),
            _ => Err(self.no_alternative()),
        }
    }

    /// A constant, if the current token starts one.
    pub(super) fn eat_literal(&mut self) -> Result<Option<Literal>> {
        let literal = match self.peek() {
            Kind::String | Kind::DollarString => Literal::String(self.string()?),
            Kind::Integer => Literal::Integer(self.advance().to_owned()),
            Kind::Float => Literal::Float(self.advance().to_owned()),
            Kind::Duration => Literal::Duration(self.advance().to_owned()),
            Kind::Hex => Literal::Hex(self.advance()[2..].to_owned()),
            Kind::Uuid => {
                let uuid = self.token(0).text(self.source).parse();
                let uuid = uuid.map_err(|_| self.no_alternative())?;
                self.advance();
                Literal::Uuid(uuid)
            }
            Kind::Word(K::True, _) => self.constant(Literal::Boolean(true)),
            Kind::Word(K::False, _) => self.constant(Literal::Boolean(false)),
            Kind::Word(K::Null, _) => self.constant(Literal::Null),
            Kind::Word(K::Nan, _) => self.constant(Literal::Float("NaN".to_owned())),
            Kind::Word(K::Infinity, _) => self.constant(Literal::Float("Infinity".to_owned())),
            Kind::Mark(M::Minus) if self.is_word(1, K::Nan) => {
                self.advance();
                self.constant(Literal::Float("NaN".to_owned()))
            }
            Kind::Mark(M::Minus) if self.is_word(1, K::Infinity) => {
                self.advance();
                self.constant(Literal::Float("-Infinity".to_owned()))
            }
            _ => return Ok(None),
        };
        Ok(Some(literal))
    }

    fn constant(&mut self, literal: Literal) -> Literal {
        self.advance();
        literal
    }

    /// The text of a string literal.
    pub(super) fn string(&mut self) -> Result<String> {
        match self.peek() {
            Kind::String => {
                let text = self.advance();
                Ok(text[1..text.len() - 1].replace("''", "'"))
            }
            Kind::DollarString => {
                let text = self.advance();
                Ok(text[2..text.len() - 2].to_owned())
            }
            _ => Err(self.mismatch("STRING_LITERAL")),
        }
    }
}
