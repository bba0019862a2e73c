//! JSON text as a tree. Numbers keep their text, because a `decimal` or `varint` may have more
//! digits than a machine number. Members keep their order, and duplicate names are kept. Nesting is
//! bounded, so recursion is safe.

use std::fmt;

use super::ValueError;
use super::json::push_string;

/// The deepest nesting of lists and objects, because texts come from clients.
const MAX_NESTING: usize = 100;

/// The most values of a text. The tree takes about a hundred bytes for each, however short the text
/// is.
const MAX_VALUES: usize = 1 << 19;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number as written.
    Number(String),
    /// A string, with its escapes decoded.
    Text(String),
    /// `[...]`.
    List(Vec<Json>),
    /// `{...}`, in the order written.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads a whole text as one value.
    pub fn parse(text: &str) -> Result<Json, ValueError> {
        let mut parser = Parser { text, at: 0, left: MAX_VALUES };
        let value = parser.value(0)?;
        parser.skip_space();
        if parser.at < text.len() {
            return Err(parser.failed("the document root must not be followed by other values"));
        }
        Ok(value)
    }

    fn push(&self, out: &mut String) {
        match self {
            Json::Null => out.push_str("null"),
            Json::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Json::Number(text) => out.push_str(text),
            Json::Text(text) => push_string(text, out),
            Json::List(values) => {
                out.push('[');
                for (i, value) in values.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    value.push(out);
                }
                out.push(']');
            }
            Json::Object(members) => {
                out.push('{');
                for (i, (name, value)) in members.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    push_string(name, out);
                    out.push(':');
                    value.push(out);
                }
                out.push('}');
            }
        }
    }
}

/// Prints JSON without blanks.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        self.push(&mut out);
        f.write_str(&out)
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// How many more values the text may have.
    left: usize,
}

impl Parser<'_> {
    fn failed(&self, why: &str) -> ValueError {
        ValueError::new(format!("Parsing JSON failed: {why} at {}", self.at))
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn word(&mut self, word: &str, value: Json) -> Result<Json, ValueError> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.failed("invalid value"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn value(&mut self, depth: usize) -> Result<Json, ValueError> {
        if depth > MAX_NESTING {
            return Err(self.failed("nested too deeply"));
        }
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => return Err(self.failed(&format!("more than {MAX_VALUES} values"))),
        }
        self.skip_space();
        match self.peek() {
            None => Err(self.failed("the document is empty or ends too early")),
            Some(b'n') => self.word("null", Json::Null),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'"') => self.string().map(Json::Text),
            Some(b'[') => self.list(depth),
            Some(b'{') => self.object(depth),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => Err(self.failed("invalid value")),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Json, ValueError> {
        self.at += 1;
        let mut values = Vec::new();
        self.skip_space();
        if self.eat(b']') {
            return Ok(Json::List(values));
        }
        loop {
            values.push(self.value(depth + 1)?);
            self.skip_space();
            if self.eat(b']') {
                return Ok(Json::List(values));
            }
            if !self.eat(b',') {
                return Err(self.failed("missing a comma or ] after an array element"));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, ValueError> {
        self.at += 1;
        let mut members = Vec::new();
        self.skip_space();
        if self.eat(b'}') {
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.failed("missing a name for object member"));
            }
            let name = self.string()?;
            self.skip_space();
            if !self.eat(b':') {
                return Err(self.failed("missing a colon after a name of object member"));
            }
            members.push((name, self.value(depth + 1)?));
            self.skip_space();
            if self.eat(b'}') {
                return Ok(Json::Object(members));
            }
            if !self.eat(b',') {
                return Err(self.failed("missing a comma or } after an object member"));
            }
        }
    }

    fn digits(&mut self) -> Result<(), ValueError> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == start { Err(self.failed("invalid number")) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<Json, ValueError> {
        let start = self.at;
        self.eat(b'-');
        if !self.eat(b'0') {
            self.digits()?;
        }
        if self.eat(b'.') {
            self.digits()?;
        }
        if self.eat(b'e') || self.eat(b'E') {
            if !self.eat(b'+') {
                self.eat(b'-');
            }
            self.digits()?;
        }
        Ok(Json::Number(self.text[start..self.at].to_owned()))
    }

    fn string(&mut self) -> Result<String, ValueError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let start = self.at;
            while self.peek().is_some_and(|byte| byte != b'"' && byte != b'\\' && byte >= b' ') {
                self.at += 1;
            }
            out.push_str(&self.text[start..self.at]);
            match self.peek() {
                None => return Err(self.failed("missing a closing quotation mark in string")),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    out.push(self.escape()?);
                }
                Some(_) => return Err(self.failed("invalid character in string")),
            }
        }
    }

    /// The character of an escape, after the backslash.
    fn escape(&mut self) -> Result<char, ValueError> {
        let Some(byte) = self.peek() else { return Err(self.failed("missing a closing quotation mark in string")) };
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex4()?;
                let code = match first {
                    0xd800..=0xdbff if self.eat(b'\\') && self.eat(b'u') => {
                        let second = self.hex4()?;
                        if !(0xdc00..=0xdfff).contains(&second) {
                            return Err(self.failed("invalid surrogate pair in string"));
                        }
                        0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
                    }
                    code => code,
                };
                char::from_u32(code).ok_or_else(|| self.failed("invalid surrogate pair in string"))?
            }
            _ => return Err(self.failed("invalid escape character in string")),
        })
    }

    fn hex4(&mut self) -> Result<u32, ValueError> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let mut code = 0;
        for digit in digits.unwrap_or_default() {
            let digit = char::from(*digit).to_digit(16);
            code = code << 4 | digit.ok_or_else(|| self.failed("incorrect hex digit after \\u escape in string"))?;
        }
        if digits.is_none() {
            return Err(self.failed("incorrect hex digit after \\u escape in string"));
        }
        self.at += 4;
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_what_they_mean() {
        for (text, shown) in [
            ("null", "null"),
            (" true ", "true"),
            ("-0.50e+3", "-0.50e+3"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            (r#""a\"\\\/\n\u00e9\ud83d\ude00""#, "\"a\\\"\\\\/\\né😀\""),
            ("[1 , [ ], {}]", "[1,[],{}]"),
            (r#"{"a": 1, "b": {"c": null}, "a": 2}"#, r#"{"a":1,"b":{"c":null},"a":2}"#),
            ("\"é\u{7f}\"", "\"é\u{7f}\""),
        ] {
            assert_eq!(Json::parse(text).map(|json| json.to_string()), Ok(shown.to_owned()), "{text}");
        }
    }

    #[test]
    fn the_number_of_values_is_bounded() {
        let list = |values: usize| Json::parse(&format!("[{}1]", "1,".repeat(values - 1)));
        assert!(list(MAX_VALUES - 1).is_ok());
        assert!(list(MAX_VALUES).unwrap_err().to_string().contains("more than 524288 values"));
    }

    #[test]
    fn refused_texts() {
        let deep = "[".repeat(MAX_NESTING + 2);
        for text in [
            "",
            " ",
            "nul",
            "tru",
            "01",
            "1.",
            "1e",
            "-",
            "+1",
            ".5",
            "NaN",
            "'a'",
            "\"a",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\\udc00\"",
            "\"a\nb\"",
            "[1",
            "[1,]",
            "[1 2]",
            "{",
            "{a: 1}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "1 2",
            &deep,
        ] {
            let error = Json::parse(text).expect_err(text).to_string();
            assert!(error.starts_with("Parsing JSON failed: "), "{error}");
        }
    }
}
