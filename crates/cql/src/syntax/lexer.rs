//! Splits text into tokens.
//!
//! Reads the text once, from left to right, in linear time. Fails at the first character that
//! starts no token. Skips comments and white space. As in ScyllaDB, a minus sign directly before a
//! digit belongs to the number: `c = c -1` ends with a name and a number. The parser handles this.

use super::error::SyntaxError;
use super::keyword;
use super::token::{Kind, Mark, Token};

/// The tokens of a text, followed by one `End`.
///
/// More than `limit` tokens are an error. The text must be shorter than 4 GiB; `parse` has a far
/// lower limit.
pub fn tokens(source: &str, limit: usize) -> Result<Vec<Token>, SyntaxError> {
    let mut lexer = Lexer { source, bytes: source.as_bytes(), at: 0 };
    let mut tokens = Vec::with_capacity((source.len() / 5 + 2).min(limit));
    loop {
        lexer.skip_blank()?;
        let start = lexer.at;
        let kind = lexer.token()?;
        tokens.push(Token { kind, start: start as u32, end: lexer.at as u32 });
        if kind == Kind::End {
            return Ok(tokens);
        }
        if tokens.len() > limit {
            return Err(lexer.error(start, format!("statement of more than {limit} words")));
        }
    }
}

struct Lexer<'a> {
    source: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl Lexer<'_> {
    fn byte(&self, offset: usize) -> u8 {
        self.bytes.get(offset).copied().unwrap_or(0)
    }

    fn error(&self, offset: usize, message: String) -> SyntaxError {
        SyntaxError::at(self.source, offset, message)
    }

    /// Skips white space and comments. The end of the text also ends a line comment.
    fn skip_blank(&mut self) -> Result<(), SyntaxError> {
        loop {
            match (self.byte(self.at), self.byte(self.at + 1)) {
                (b' ' | b'\t' | b'\n' | b'\r', _) => self.at += 1,
                (b'-', b'-') | (b'/', b'/') => {
                    let rest = &self.bytes[self.at..];
                    self.at += memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
                }
                (b'/', b'*') => {
                    let body = self.at + 2;
                    match memchr::memmem::find(&self.bytes[body..], b"*/") {
                        Some(length) => self.at = body + length + 2,
                        None => return Err(self.error(self.at, "unterminated comment".to_owned())),
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    fn token(&mut self) -> Result<Kind, SyntaxError> {
        if self.at >= self.bytes.len() {
            return Ok(Kind::End);
        }
        let start = self.at;
        let first = self.bytes[start];
        match first {
            b'\'' => self.quoted(b'\'', "string literal").map(|_| Kind::String),
            b'"' => {
                let end = self.quoted(b'"', "quoted name")?;
                if end - start == 2 {
                    return Err(self.error(start, "empty quoted name".to_owned()));
                }
                Ok(Kind::QuotedName)
            }
            b'$' if self.byte(start + 1) == b'$' => {
                let body = start + 2;
                match memchr::memmem::find(&self.bytes[body..], b"$$") {
                    Some(length) => self.at = body + length + 2,
                    None => return Err(self.error(start, "unterminated string literal".to_owned())),
                }
                Ok(Kind::DollarString)
            }
            b'0'..=b'9' => Ok(self.number(start)),
            b'-' if self.byte(start + 1).is_ascii_digit() => Ok(self.number(start + 1)),
            b'-' if self.byte(start + 1) == b'P' => match iso_duration(&self.bytes[start + 1..]) {
                Some(length) => {
                    self.at = start + 1 + length;
                    Ok(Kind::Duration)
                }
                None => Ok(self.mark(Mark::Minus, 1)),
            },
            b'a'..=b'z' | b'A'..=b'Z' => Ok(self.word(start)),
            _ => self.mark_or_error(start, first),
        }
    }

    /// Skips a quoted literal, in which a doubled quote represents the quote. Returns the offset
    /// after it.
    fn quoted(&mut self, quote: u8, what: &str) -> Result<usize, SyntaxError> {
        let start = self.at;
        let mut at = start + 1;
        loop {
            match memchr::memchr(quote, &self.bytes[at..]) {
                None => return Err(self.error(start, format!("unterminated {what}"))),
                Some(length) => at += length + 1,
            }
            if self.byte(at) != quote {
                self.at = at;
                return Ok(at);
            }
            at += 1;
        }
    }

    fn word(&mut self, start: usize) -> Kind {
        if is_uuid(&self.bytes[start..]) {
            self.at = start + UUID_LENGTH;
            return Kind::Uuid;
        }
        if self.bytes[start] == b'P'
            && let Some(length) = iso_duration(&self.bytes[start..])
        {
            self.at = start + length;
            return Kind::Duration;
        }
        self.at = start + self.bytes[start..].iter().take_while(|b| is_word(**b)).count();
        match keyword::lookup(&self.source[start..self.at]) {
            Some((keyword, class)) => Kind::Word(keyword, class),
            None => Kind::Ident,
        }
    }

    /// A token whose first digit is at `digit`, possibly after a minus sign.
    fn number(&mut self, digit: usize) -> Kind {
        let signed = digit != self.at;
        if !signed && is_uuid(&self.bytes[digit..]) {
            self.at = digit + UUID_LENGTH;
            return Kind::Uuid;
        }
        if !signed && self.bytes[digit] == b'0' && matches!(self.byte(digit + 1), b'x' | b'X') {
            let digits = self.bytes[digit + 2..].iter().take_while(|b| b.is_ascii_hexdigit()).count();
            self.at = digit + 2 + digits;
            return Kind::Hex;
        }
        let mut end = digit + digits(&self.bytes[digit..]);
        if let Some(length) = unit_duration(&self.bytes[digit..]) {
            self.at = digit + length;
            return Kind::Duration;
        }
        let mut kind = Kind::Integer;
        if self.byte(end) == b'.' && self.byte(end + 1) != b'.' {
            kind = Kind::Float;
            end += 1;
            end += digits(&self.bytes[end..]);
        }
        if matches!(self.byte(end), b'e' | b'E') {
            let sign = usize::from(matches!(self.byte(end + 1), b'+' | b'-'));
            let exponent = digits(self.bytes.get(end + 1 + sign..).unwrap_or(&[]));
            if exponent > 0 {
                kind = Kind::Float;
                end += 1 + sign + exponent;
            }
        }
        self.at = end;
        kind
    }

    fn mark(&mut self, mark: Mark, length: usize) -> Kind {
        self.at += length;
        Kind::Mark(mark)
    }

    fn mark_or_error(&mut self, start: usize, first: u8) -> Result<Kind, SyntaxError> {
        let (mark, length) = match (first, self.byte(start + 1)) {
            (b'(', _) => (Mark::Open, 1),
            (b')', _) => (Mark::Close, 1),
            (b'[', _) => (Mark::OpenSquare, 1),
            (b']', _) => (Mark::CloseSquare, 1),
            (b'{', _) => (Mark::OpenCurly, 1),
            (b'}', _) => (Mark::CloseCurly, 1),
            (b',', _) => (Mark::Comma, 1),
            (b';', _) => (Mark::Semicolon, 1),
            (b':', _) => (Mark::Colon, 1),
            (b'?', _) => (Mark::Question, 1),
            (b'.', b'.') => (Mark::DotDot, 2),
            (b'.', _) => (Mark::Dot, 1),
            (b'*', _) => (Mark::Star, 1),
            (b'+', b'=') => (Mark::PlusEqual, 2),
            (b'+', _) => (Mark::Plus, 1),
            (b'-', b'=') => (Mark::MinusEqual, 2),
            (b'-', _) => (Mark::Minus, 1),
            (b'=', _) => (Mark::Equal, 1),
            (b'!', b'=') => (Mark::NotEqual, 2),
            (b'<', b'=') => (Mark::LessEqual, 2),
            (b'<', _) => (Mark::Less, 1),
            (b'>', b'=') => (Mark::GreaterEqual, 2),
            (b'>', _) => (Mark::Greater, 1),
            _ => {
                let found = self.source[start..].chars().next().map(String::from).unwrap_or_default();
                return Err(self.error(start, format!("no viable alternative at character '{}'", found.escape_debug())));
            }
        };
        Ok(self.mark(mark, length))
    }
}

const UUID_LENGTH: usize = 36;

fn is_uuid(text: &[u8]) -> bool {
    text.len() >= UUID_LENGTH
        && text[8] == b'-'
        && text[..UUID_LENGTH].iter().enumerate().all(|(at, b)| match at {
            8 | 13 | 18 | 23 => *b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

/// The number of leading digits.
fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|b| b.is_ascii_digit()).count()
}

/// The length of a duration of numbers and units (`1y2mo3d`) at the start of the text. `None` if
/// there is no duration, or if another word character follows it.
fn unit_duration(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let count = digits(&text[at..]);
        if count == 0 {
            break;
        }
        at += count + unit_length(&text[at + count..])?;
    }
    let ended = text.get(at).is_none_or(|b| !is_word(*b));
    (at > 0 && ended).then_some(at)
}

/// The length of the time unit at the start of the text: y, mo, w, d, h, m, s, ms, us, µs or ns, in
/// any case.
fn unit_length(text: &[u8]) -> Option<usize> {
    let lower = |at: usize| text.get(at).copied().unwrap_or(0).to_ascii_lowercase();
    match (lower(0), lower(1)) {
        (b'm', b'o' | b's') | (b'u' | b'n', b's') => Some(2),
        (b'y' | b'w' | b'd' | b'h' | b'm' | b's', _) => Some(1),
        (0xc2, 0xb5) | (0xce, 0xbc) if lower(2) == b's' => Some(3),
        _ => None,
    }
}

/// The length of an ISO 8601 duration (`P1Y2M`, `PT3H`, `P3W`, `P0001-02-03T04:05:06`) at the start
/// of the text. `None` for a single `P`, or for a longer word that begins like a duration.
fn iso_duration(text: &[u8]) -> Option<usize> {
    let length = iso_alternative(text).or_else(|| iso_designators(text))?;
    text.get(length).is_none_or(|b| !is_word(*b)).then_some(length)
}

fn iso_alternative(text: &[u8]) -> Option<usize> {
    const SHAPE: &[u8] = b"Pdddd-dd-ddTdd:dd:dd";
    let matches = text.len() >= SHAPE.len()
        && SHAPE.iter().zip(text).all(|(shape, b)| if *shape == b'd' { b.is_ascii_digit() } else { shape == b });
    matches.then_some(SHAPE.len())
}

fn iso_designators(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    let mut parts = 0;
    let mut read = |at: &mut usize, units: &[u8]| {
        for unit in units {
            let count = digits(&text[*at..]);
            if count > 0 && text.get(*at + count) == Some(unit) {
                *at += count + 1;
                parts += 1;
            }
        }
    };
    read(&mut at, b"W");
    if at == 1 {
        read(&mut at, b"YMD");
        if text.get(at) == Some(&b'T') {
            let mut after = at + 1;
            read(&mut after, b"HMS");
            if after > at + 1 {
                at = after;
            }
        }
    }
    (parts > 0).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(Kind, &str)> {
        let mut all: Vec<_> = tokens(text, 1000).unwrap().into_iter().map(|t| (t.kind, t.text(text))).collect();
        assert_eq!(all.pop(), Some((Kind::End, "")));
        all
    }

    fn only(text: &str) -> Kind {
        let all = kinds(text);
        assert_eq!(all.len(), 1, "{text}: {all:?}");
        assert_eq!(all[0].1, text);
        all[0].0
    }

    fn failure(text: &str) -> String {
        tokens(text, 1000).unwrap_err().to_string()
    }

    #[test]
    fn numbers() {
        for text in ["0", "42", "-7", "007", "123456789012345678901234567890"] {
            assert_eq!(only(text), Kind::Integer);
        }
        for text in ["1.", "1.5", "-1.5", "1e5", "1E+5", "-1.e-5", "1.25e10"] {
            assert_eq!(only(text), Kind::Float);
        }
        for text in ["0x", "0xCAFE", "0X0a1"] {
            assert_eq!(only(text), Kind::Hex);
        }
        assert_eq!(kinds("1e").len(), 2);
        assert_eq!(kinds("a-1"), vec![(Kind::Ident, "a"), (Kind::Integer, "-1")]);
        assert_eq!(kinds("a - 1")[1].0, Kind::Mark(Mark::Minus));
        let range = kinds("1..2");
        assert_eq!(range[0], (Kind::Integer, "1"));
        assert_eq!(range[1].0, Kind::Mark(Mark::DotDot));
    }

    #[test]
    fn durations() {
        for text in
            ["1h", "1h30m", "-1y2mo3w4d5h6m7s8ms9us10ns", "5µs", "1MO", "2000ms", "P1Y2M3D", "-P1Y", "PT1H", "P3W"]
        {
            assert_eq!(only(text), Kind::Duration, "{text}");
        }
        assert_eq!(only("P0001-02-03T04:05:06"), Kind::Duration);
        for text in ["P", "PT", "P1", "Px", "P1DX", "p1d"] {
            assert_eq!(only(text), Kind::Ident, "{text}");
        }
        assert_eq!(kinds("1hx").len(), 2);
        assert_eq!(kinds("1d2").len(), 2);
    }

    #[test]
    fn names_strings_and_uuids() {
        assert_eq!(only("Ab_1"), Kind::Ident);
        assert_eq!(only("\"a\"\"b\""), Kind::QuotedName);
        assert_eq!(only("'it''s'"), Kind::String);
        assert_eq!(only("''"), Kind::String);
        assert_eq!(only("$$a'b$c$$"), Kind::DollarString);
        assert_eq!(only("ABCDEF01-1111-2222-3333-0123456789ab"), Kind::Uuid);
        assert_eq!(only("01234567-1111-2222-3333-0123456789ab"), Kind::Uuid);
        assert_eq!(kinds("abcdef01-1111").len(), 2);
    }

    #[test]
    fn comments_are_blank() {
        assert!(kinds(" -- x\n // y\r\n /* z \n */ ").is_empty());
        assert_eq!(kinds("a--b").len(), 1);
        assert_eq!(kinds("a/**/b").len(), 2);
    }

    #[test]
    fn errors_point_at_the_place() {
        assert_eq!(failure("select\n  é"), "line 2:2 no viable alternative at character 'é'");
        assert_eq!(failure("é"), "line 1:0 no viable alternative at character 'é'");
        assert_eq!(failure("a 'bc"), "line 1:2 unterminated string literal");
        assert_eq!(failure("a $$bc$"), "line 1:2 unterminated string literal");
        assert_eq!(failure("\"abc"), "line 1:0 unterminated quoted name");
        assert_eq!(failure("a \"\""), "line 1:2 empty quoted name");
        assert_eq!(failure("'é' /*"), "line 1:4 unterminated comment");
        assert_eq!(failure("a ! b"), "line 1:2 no viable alternative at character '!'");
        assert_eq!(failure("_a"), "line 1:0 no viable alternative at character '_'");
        assert_eq!(failure("a \0"), "line 1:2 no viable alternative at character '\\0'");
    }
}
