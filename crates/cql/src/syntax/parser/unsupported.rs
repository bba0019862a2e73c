//! Unsupported statements: recognized by their first words, the rest is skipped.

use super::{K, Kind, M, Parser, Result};
use crate::syntax::ast::{CreateCustomIndex, Statement, Unsupported};

impl Parser<'_> {
    /// Recognizes a statement by its first `words` tokens, which the caller has checked. At least
    /// one more token must follow. The rest is skipped up to a semicolon.
    pub(super) fn unsupported(&mut self, statement: Unsupported, words: usize) -> Result<Statement> {
        self.past_words(words)?;
        while self.peek() != Kind::End && !self.is_mark(0, M::Semicolon) {
            self.advance();
        }
        Ok(Statement::Unsupported(statement))
    }

    /// Recognizes CREATE CUSTOM INDEX. Only the class after USING is kept.
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

    /// Skips the first `words` tokens. At least one more must follow.
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
