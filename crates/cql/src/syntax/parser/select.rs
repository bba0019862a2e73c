//! SELECT.

use super::{K, Kind, M, MAX_NESTING, Parser, Result};
use crate::syntax::ast::{
    Attributes, FunctionCall, Literal, Name, OrderBy, Select, SelectExpr, SelectFrom, SelectItem, Selection, Term,
};

impl Parser<'_> {
    pub(super) fn select(&mut self) -> Result<Select> {
        self.expect_words(&[K::Select])?;
        let json = self.eat_modifier(K::Json);
        let distinct = self.eat_modifier(K::Distinct);
        let selection = self.selection()?;
        let from = self.optional_from(distinct)?;
        let mut select = Select {
            json,
            distinct,
            selection,
            from,
            relations: Vec::new(),
            group_by: Vec::new(),
            order_by: Vec::new(),
            per_partition_limit: None,
            limit: None,
            allow_filtering: false,
            bypass_cache: false,
            attributes: Attributes::default(),
        };
        if self.is_word(0, K::Where) {
            select.relations = self.where_clause()?;
        }
        if self.eat_word(K::Group) {
            self.expect_words(&[K::By])?;
            select.group_by = self.list(Self::name)?;
        }
        if self.eat_word(K::Order) {
            self.expect_words(&[K::By])?;
            select.order_by = self.list(Self::ordering)?;
        }
        if self.eat_word(K::Per) {
            self.expect_words(&[K::Partition, K::Limit])?;
            select.per_partition_limit = Some(self.integer_or_marker()?);
        }
        if self.eat_word(K::Limit) {
            select.limit = Some(self.integer_or_marker()?);
        }
        self.select_tail(&mut select)?;
        Ok(select)
    }

    /// Parses the clauses that tools append: each at most once, in any order, because tools do not
    /// know the clauses of their users.
    fn select_tail(&mut self, select: &mut Select) -> Result<()> {
        let mut using = false;
        loop {
            if !select.allow_filtering && self.eat_word(K::Allow) {
                self.expect_words(&[K::Filtering])?;
                select.allow_filtering = true;
            } else if !select.bypass_cache && self.eat_word(K::Bypass) {
                self.expect_words(&[K::Cache])?;
                select.bypass_cache = true;
            } else if !using && self.is_word(0, K::Using) {
                using = true;
                select.attributes = self.using(&[K::Timeout, K::Service])?;
            } else {
                return Ok(());
            }
        }
    }

    /// Skips JSON or DISTINCT, unless the word is a selected column (`SELECT json, distinct FROM
    /// t`).
    fn eat_modifier(&mut self, keyword: K) -> bool {
        if !self.is_word(0, keyword) {
            return false;
        }
        let chosen = match self.peek_at(1) {
            // `json(x)` is a call, unless a value follows the parentheses. Then `(x)` is a type
            // hint.
            Kind::Mark(M::Open) => !self.is_value_after_parentheses(1),
            Kind::Mark(M::Comma | M::Dot | M::OpenSquare | M::Semicolon) | Kind::End => true,
            Kind::Word(K::From | K::Where | K::Order | K::Limit | K::Allow | K::Using, _) => true,
            Kind::Word(K::As, _) => self.is_name(2),
            _ => false,
        };
        if !chosen {
            self.advance();
        }
        !chosen
    }

    /// Whether a value follows the closing parenthesis of the one at this token.
    fn is_value_after_parentheses(&self, open: usize) -> bool {
        let (mut ahead, mut depth) = (open, 0_usize);
        loop {
            match self.peek_at(ahead) {
                Kind::Mark(M::Open) => depth += 1,
                Kind::Mark(M::Close) => depth -= 1,
                Kind::End => return false,
                _ => {}
            }
            ahead += 1;
            if depth == 0 {
                break;
            }
        }
        match self.peek_at(ahead) {
            Kind::Mark(M::Open | M::OpenSquare | M::OpenCurly | M::Question | M::Colon) => true,
            Kind::Mark(_) | Kind::End => false,
            Kind::Word(K::True | K::False | K::Null | K::Nan | K::Infinity, _) => true,
            Kind::Word(..) | Kind::Ident | Kind::QuotedName => self.is_call(ahead),
            _ => true,
        }
    }

    /// The FROM clause. `None` if the statement ends or continues without one. DISTINCT requires
    /// it.
    fn optional_from(&mut self, distinct: bool) -> Result<Option<SelectFrom>> {
        let without = match self.peek() {
            _ if distinct => false,
            Kind::End | Kind::Mark(M::Semicolon) => true,
            Kind::Word(keyword, _) => {
                matches!(keyword, K::Where | K::Group | K::Order | K::Per | K::Limit | K::Allow | K::Bypass | K::Using)
            }
            _ => false,
        };
        if without {
            return Ok(None);
        }
        self.expect_words(&[K::From])?;
        let mutation_fragments = self.is_word(0, K::MutationFragments) && self.is_mark(1, M::Open);
        if mutation_fragments {
            self.advance();
            self.advance();
        }
        let table = self.table_name()?;
        if mutation_fragments {
            self.expect(M::Close)?;
        }
        Ok(Some(SelectFrom { table, mutation_fragments }))
    }

    pub(super) fn selection(&mut self) -> Result<Selection> {
        if self.eat(M::Star) {
            return Ok(Selection::All);
        }
        let items = self.list(|parser| {
            let expr = parser.select_expr()?;
            let alias = if parser.eat_word(K::As) { Some(parser.name()?) } else { None };
            Ok(SelectItem { expr, alias })
        })?;
        Ok(Selection::Items(items))
    }

    fn select_expr(&mut self) -> Result<SelectExpr> {
        self.nested(|parser| {
            let expr = parser.select_primary()?;
            parser.select_suffixes(expr)
        })
    }

    fn select_primary(&mut self) -> Result<SelectExpr> {
        let called = self.is_mark(1, M::Open);
        match self.peek() {
            Kind::Word(K::Count, _) if called => self.count(),
            Kind::Word(K::Writetime, _) if called => self.attribute().map(SelectExpr::WriteTime),
            Kind::Word(K::Ttl, _) if called => self.attribute().map(SelectExpr::Ttl),
            Kind::Word(K::Cast, _) if called => {
                self.advance();
                self.expect(M::Open)?;
                let expr = self.called(Self::select_expr)?;
                self.expect_words(&[K::As])?;
                let type_name = self.native_type()?;
                self.expect(M::Close)?;
                Ok(SelectExpr::Cast(Box::new(expr), type_name))
            }
            _ if self.is_call(0) => self.selection_call().map(SelectExpr::Call),
            _ if self.is_name(0) => Ok(SelectExpr::Column(self.take_name())),
            _ => self.term().map(SelectExpr::Value),
        }
    }

    /// Parses `.field`, `[key]` and `[from..to]` after an expression. Each adds a level to the
    /// tree.
    fn select_suffixes(&mut self, mut expr: SelectExpr) -> Result<SelectExpr> {
        for _ in self.depth..=MAX_NESTING {
            if self.eat(M::Dot) {
                expr = SelectExpr::Field(Box::new(expr), self.name()?);
            } else if self.eat(M::OpenSquare) {
                let from = if self.is_mark(0, M::DotDot) { None } else { Some(self.term()?) };
                if self.eat(M::DotDot) {
                    let to = if self.is_mark(0, M::CloseSquare) { None } else { Some(self.term()?) };
                    expr = SelectExpr::Slice(Box::new(expr), from, to);
                } else if let Some(key) = from {
                    expr = SelectExpr::Element(Box::new(expr), key);
                }
                self.expect(M::CloseSquare)?;
            } else {
                return Ok(expr);
            }
        }
        Err(self.too_deep())
    }

    /// Parses `count(...)`. `count(*)` and `count(1)` count rows.
    fn count(&mut self) -> Result<SelectExpr> {
        if self.is_mark(2, M::Star) {
            self.advance();
            self.advance();
            self.advance();
            self.expect(M::Close)?;
            return Ok(SelectExpr::CountRows);
        }
        let call = self.selection_call()?;
        match call.arguments.as_slice() {
            [SelectExpr::Value(Term::Literal(Literal::Integer(one)))] if one == "1" => Ok(SelectExpr::CountRows),
            _ => Ok(SelectExpr::Call(call)),
        }
    }

    /// The column of `writetime(column)` or `ttl(column)`.
    fn attribute(&mut self) -> Result<crate::syntax::ast::Target> {
        self.advance();
        self.expect(M::Open)?;
        let target = self.column_path()?;
        self.expect(M::Close)?;
        Ok(target)
    }

    fn selection_call(&mut self) -> Result<FunctionCall<SelectExpr>> {
        let name = self.function_name()?;
        Ok(FunctionCall { name, arguments: self.selection_arguments()? })
    }

    /// The arguments of a function in a SELECT clause, with their parentheses.
    pub(super) fn selection_arguments(&mut self) -> Result<Vec<SelectExpr>> {
        self.expect(M::Open)?;
        if self.eat(M::Close) {
            return Ok(Vec::new());
        }
        let arguments = self.called(|parser| parser.list(Self::select_expr))?;
        self.expect(M::Close)?;
        Ok(arguments)
    }

    fn ordering(&mut self) -> Result<OrderBy> {
        if self.is_call(0) {
            return self.selection_call().map(OrderBy::Call);
        }
        let column: Name = self.name()?;
        if self.eat_word(K::Ann) {
            self.expect_words(&[K::Of])?;
            return Ok(OrderBy::Ann { column, vector: self.term()? });
        }
        let descending = !self.eat_word(K::Asc) && self.eat_word(K::Desc);
        Ok(OrderBy::Column { column, descending })
    }
}
