//! Encodes the notations of the protocol.

use bytes::{BufMut, BytesMut};
use smallvec::SmallVec;
use std::fmt::{self, Display, Write};
use std::net::{IpAddr, SocketAddr};

/// `[string]`. Text that exceeds the 16-bit length is cut at a character.
pub fn string(out: &mut impl BufMut, text: &str) {
    let mut end = text.len().min(usize::from(u16::MAX));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.put_u16(end as u16);
    out.put_slice(&text.as_bytes()[..end]);
}

/// A text that is formatted in place. It is allocated only if it is long.
#[derive(Default)]
pub struct Text(SmallVec<[u8; 512]>);

impl Text {
    /// Formats a value.
    pub fn of(value: impl Display) -> Text {
        let mut text = Text::default();
        // Writing to memory does not fail.
        let _ = write!(text, "{value}");
        text
    }

    /// The bytes, which are UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// `[string]` of a value's text.
pub fn formatted(out: &mut impl BufMut, value: impl Display) {
    let text = Text::of(value);
    string(out, str::from_utf8(text.as_bytes()).unwrap_or_default());
}

/// `[string]` of a text of at most 65,535 bytes that `append` puts into the frame.
pub fn in_place(out: &mut BytesMut, append: impl FnOnce(&mut BytesMut)) {
    let at = out.len();
    out.put_u16(0);
    append(out);
    let len = out.len() - at - 2;
    debug_assert!(len <= usize::from(u16::MAX), "a text of {len} bytes has no length");
    out[at..at + 2].copy_from_slice(&(len as u16).to_be_bytes());
}

/// `[bytes]`
pub fn bytes(out: &mut impl BufMut, bytes: &[u8]) {
    out.put_i32(bytes.len() as i32);
    out.put_slice(bytes);
}

/// `[short bytes]` of at most 65,535 bytes.
pub fn short_bytes(out: &mut impl BufMut, bytes: &[u8]) {
    out.put_u16(bytes.len() as u16);
    out.put_slice(bytes);
}

/// `[string list]` of at most 65,535 strings. Further strings are left out.
pub fn string_list<S: AsRef<str>>(out: &mut impl BufMut, list: &[S]) {
    let list = &list[..list.len().min(usize::from(u16::MAX))];
    out.put_u16(list.len() as u16);
    for text in list {
        string(out, text.as_ref());
    }
}

/// `[string multimap]`
pub fn string_multimap(out: &mut impl BufMut, map: &[(&str, Vec<String>)]) {
    out.put_u16(map.len() as u16);
    for (key, values) in map {
        string(out, key);
        string_list(out, values);
    }
}

/// `[inetaddr]`
pub fn address(out: &mut impl BufMut, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => {
            out.put_u8(4);
            out.put_slice(&v4.octets());
        }
        IpAddr::V6(v6) => {
            out.put_u8(16);
            out.put_slice(&v6.octets());
        }
    }
}

/// `[inet]`
pub fn inet(out: &mut impl BufMut, at: SocketAddr) {
    address(out, at.ip());
    out.put_i32(i32::from(at.port()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_strings_are_cut_at_a_character() {
        let text = "ä".repeat(40_000);
        let mut out = Vec::new();
        string(&mut out, &text);
        assert_eq!(out.len(), 2 + 65_534);
        assert!(std::str::from_utf8(&out[2..]).is_ok());
        assert_eq!(&out[..2], &65_534u16.to_be_bytes());
    }
}
