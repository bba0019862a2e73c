//! Bytes as hexadecimal digits.

use std::fmt::Write;

/// Two lowercase digits for each byte, without a prefix.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(super::hex(&[0, 10, 0xff]), "000aff");
        assert_eq!(super::hex(&[]), "");
    }
}
