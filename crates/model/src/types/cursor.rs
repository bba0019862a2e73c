//! The text of a type while it is parsed: what both parsers of types ([`super::parse`],
//! [`super::class_name`]) do with it.

use super::ValueError;

/// A text, and its part that is not parsed yet.
pub(super) struct Cursor<'a> {
    text: &'a str,
    /// The end of the text that is not parsed yet.
    pub rest: &'a str,
    /// The expected kind of text, for errors.
    what: &'static str,
}

impl<'a> Cursor<'a> {
    /// At the beginning of a text that should be `what`, such as `a type`.
    pub fn new(text: &'a str, what: &'static str) -> Cursor<'a> {
        Cursor { text, rest: text, what }
    }

    /// Skips white space.
    pub fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// The error for what follows.
    pub fn unexpected(&self) -> ValueError {
        let at = self.text.len() - self.rest.len();
        ValueError::new(format!("'{}' is not {}: unexpected text at byte {at}", self.text, self.what))
    }

    /// Skips white space and this character. Whether it was there.
    pub fn eat(&mut self, wanted: char) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Skips white space and this character, which must be there.
    pub fn expect(&mut self, wanted: char) -> Result<(), ValueError> {
        if self.eat(wanted) { Ok(()) } else { Err(self.unexpected()) }
    }

    /// Fails if more than white space follows.
    pub fn end(&mut self) -> Result<(), ValueError> {
        self.skip_space();
        if self.rest.is_empty() { Ok(()) } else { Err(self.unexpected()) }
    }

    /// Takes the next `len` bytes.
    pub fn take(&mut self, len: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }
}
