//! Puts literals and numbers together at the cost of a few moves each: no calls, no formatting.

/// The bytes in which a literal is copied.
const BLOCK: usize = 64;

/// The most digits of a number.
const DIGITS: usize = 10;

/// The most bytes of a line, with room for the padding of its last literal.
const ROOM: usize = 192;

/// A text of at most 64 bytes. It is padded, so that it is copied with a fixed length.
pub(super) struct Literal {
    bytes: [u8; BLOCK],
    len: usize,
}

impl Literal {
    /// A longer text does not compile as a constant.
    pub const fn new(text: &str) -> Literal {
        let (text, mut bytes, mut at) = (text.as_bytes(), [0; BLOCK], 0);
        while at < text.len() {
            bytes[at] = text[at];
            at += 1;
        }
        Literal { bytes, len: text.len() }
    }

    /// The text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A part of a text, of at most 128 bytes.
pub(super) struct Line {
    bytes: [u8; ROOM],
    len: usize,
}

impl Line {
    #[inline]
    pub fn new() -> Line {
        Line { bytes: [0; ROOM], len: 0 }
    }

    /// Appends `len` bytes at the start of a block.
    #[inline]
    fn append<const N: usize>(&mut self, block: &[u8; N], len: usize) {
        match self.bytes[self.len..].first_chunk_mut() {
            Some(room) => *room = *block,
            None => debug_assert!(false, "a line has room for its parts"),
        }
        self.len += len;
    }

    #[inline]
    pub fn literal(&mut self, literal: &Literal) {
        self.append(&literal.bytes, literal.len);
    }

    /// Appends a decimal number.
    #[inline]
    pub fn number(&mut self, number: u32) {
        // Room after the last digit, for a copy of a fixed length.
        let (mut digits, mut at, mut rest) = ([0u8; 2 * DIGITS], DIGITS, number);
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if let Some(block) = digits[at..].first_chunk::<DIGITS>() {
            self.append(block, DIGITS - at);
        }
    }

    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.min(ROOM)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_numbers_are_appended() {
        const WORD: Literal = Literal::new("limit ");
        let mut line = Line::new();
        for number in [0, 9, 10, 65_536, u32::MAX] {
            line.literal(&WORD);
            line.number(number);
        }
        assert_eq!(line.as_bytes(), b"limit 0limit 9limit 10limit 65536limit 4294967295");
        const LONGEST: Literal = Literal::new("0123456789012345678901234567890123456789012345678901234567890123");
        let mut line = Line::new();
        line.literal(&LONGEST);
        line.literal(&LONGEST);
        assert_eq!(line.as_bytes(), [LONGEST.bytes, LONGEST.bytes].concat());
    }
}
