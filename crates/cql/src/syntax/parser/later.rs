//! Statements that come later: known by their first words, the rest skipped.

use super::{K, Kind, M, Parser, Result};
use crate::syntax::ast::{CreateCustomIndex, Later, Statement};

impl Parser<'_> {
    /// Recognises a statement by its first `words` tokens, which the caller has looked at. At least one more must follow;
    /// what follows is read as tokens, up to a semicolon.
    pub(super) fn later(&mut self, later: Later, words: usize) -> Result<Statement> {
        self.past_words(words)?;
        while self.peek() != Kind::End && !self.is_mark(0, M::Semicolon) {
            self.advance();
        }
        Ok(Statement::Later(later))
    }

    /// Recognises CREATE CUSTOM INDEX, of which only the class after USING is kept.
    pub(super) fn create_custom_index(&mut self) -> Result<Statement> {
        self.past_words(3)?;
        let mut class = None;
        while self.peek() != Kind::End && !self.is_mark(0, M::Semicolon) {
            let using = self.is_word(0, K::Using);
            self.advance();
            if using && matches!(self.peek(), Kind::String | Kind::DollarString) {
                class = Some(self.string()?);
            }
        }
        Ok(Statement::CreateCustomIndex(CreateCustomIndex { class }))
    }

    /// Moves past the first `words` tokens, after which at least one must follow.
    fn past_words(&mut self, words: usize) -> Result<()> {
        for _ in 0..words {
            self.advance();
        }
        if self.peek() == Kind::End || self.is_mark(0, M::Semicolon) {
            return Err(self.no_alternative());
        }
        Ok(())
    }
}
