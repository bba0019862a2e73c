//! Puts literals and numbers together at the cost of a few moves each: no calls, no formatting.

/// The bytes in which a literal is copied.
const BLOCK: usize = 64;

/// The most digits of a number.
const DIGITS: usize = 10;

/// The two digits of each number below 100.
const PAIRS: [[u8; 2]; 100] = {
    let (mut pairs, mut number) = ([[0; 2]; 100], 0);
    while number < 100 {
        pairs[number] = [b'0' + number as u8 / 10, b'0' + number as u8 % 10];
        number += 1;
    }
    pairs
};

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
        let (mut digits, mut at, mut rest) = ([0u8; 2 * DIGITS], DIGITS, number as usize);
        while rest >= 10 {
            at -= 2;
            [digits[at], digits[at + 1]] = PAIRS[rest % 100];
            rest /= 100;
        }
        if rest > 0 || number == 0 {
            at -= 1;
            digits[at] = b'0' + rest as u8;
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
        for number in [0, 9, 10, 100, 65_536, 1_000_001, u32::MAX] {
            line.literal(&WORD);
            line.number(number);
        }
        assert_eq!(line.as_bytes(), b"limit 0limit 9limit 10limit 100limit 65536limit 1000001limit 4294967295");
        const LONGEST: Literal = Literal::new("0123456789012345678901234567890123456789012345678901234567890123");
        let mut line = Line::new();
        line.literal(&LONGEST);
        line.literal(&LONGEST);
        assert_eq!(line.as_bytes(), [LONGEST.bytes, LONGEST.bytes].concat());
    }
}
