//! Tokens: a kind and a position in the text. They hold no text themselves.

use super::keyword::{Class, Keyword};

/// The kind of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An unquoted word that is not a keyword.
    Ident,
    /// A name in double quotes, quotes included.
    QuotedName,
    /// A keyword, with its class.
    Word(Keyword, Class),
    /// A string literal in single quotes, quotes included.
    String,
    /// A string literal between double dollar signs, dollar signs included.
    DollarString,
    /// Digits with an optional minus sign.
    Integer,
    /// A number with a point or an exponent and an optional minus sign.
    Float,
    /// A duration such as `1h30m` or `P1DT2H`.
    Duration,
    /// A UUID.
    Uuid,
    /// `0x` and hexadecimal digits.
    Hex,
    /// A punctuation mark or operator.
    Mark(Mark),
    /// The end of the text.
    End,
}

/// A punctuation mark or operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Mark {
    Open,
    Close,
    OpenSquare,
    CloseSquare,
    OpenCurly,
    CloseCurly,
    Comma,
    Semicolon,
    Colon,
    Question,
    Dot,
    DotDot,
    Star,
    Plus,
    Minus,
    PlusEqual,
    MinusEqual,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

impl Mark {
    /// Its text.
    pub fn text(self) -> &'static str {
        match self {
            Mark::Open => "(",
            Mark::Close => ")",
            Mark::OpenSquare => "[",
            Mark::CloseSquare => "]",
            Mark::OpenCurly => "{",
            Mark::CloseCurly => "}",
            Mark::Comma => ",",
            Mark::Semicolon => ";",
            Mark::Colon => ":",
            Mark::Question => "?",
            Mark::Dot => ".",
            Mark::DotDot => "..",
            Mark::Star => "*",
            Mark::Plus => "+",
            Mark::Minus => "-",
            Mark::PlusEqual => "+=",
            Mark::MinusEqual => "-=",
            Mark::Equal => "=",
            Mark::NotEqual => "!=",
            Mark::Less => "<",
            Mark::LessEqual => "<=",
            Mark::Greater => ">",
            Mark::GreaterEqual => ">=",
        }
    }
}

/// A token: its kind and its range of bytes. Offsets fit in u32 because the length of a statement
/// is limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token {
    /// Its kind.
    pub kind: Kind,
    /// Offset of its first byte.
    pub start: u32,
    /// Offset after its last byte.
    pub end: u32,
}

impl Token {
    /// The text of the token.
    pub fn text(self, source: &str) -> &str {
        &source[self.start as usize..self.end as usize]
    }
}
