//! Statements that come later: known by their first words, the rest skipped.

use super::{Kind, M, Parser, Result};
use crate::syntax::ast::{Later, Statement};

impl Parser<'_> {
    /// Recognises a statement by its first `words` tokens, which the caller has looked at. At least one more must follow;
    /// what follows is read as tokens, up to a semicolon.
    pub(super) fn later(&mut self, later: Later, words: usize) -> Result<Statement> {
        for _ in 0..words {
            self.advance();
        }
        if self.peek() == Kind::End || self.is_mark(0, M::Semicolon) {
            return Err(self.no_alternative());
        }
        while self.peek() != Kind::End && !self.is_mark(0, M::Semicolon) {
            self.advance();
        }
        Ok(Statement::Later(later))
    }
}
