//! Bounds how deeply values in the file nest, before the YAML parser reads it: the parser's time
//! grows with the square of the depth.

/// The maximum depth. The deepest setting has 4 levels.
const MOST_LEVELS: usize = 64;

/// Refuses a text whose values nest deeper than [`MOST_LEVELS`]. Brackets in comments at the end of
/// a line and in quotes count, too.
pub(super) fn check(text: &str) -> Result<(), String> {
    let mut open = 0_usize;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.starts_with('#') {
            continue;
        }
        // Sequences and mappings that begin on one line: "- - - a".
        let mut compact = 0_usize;
        let mut at_start = true;
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => open += 1,
                b']' | b'}' => open = open.saturating_sub(1),
                _ => {}
            }
            at_start &= matches!(byte, b'-' | b'?' | b':' | b' ' | b'\t');
            if at_start && matches!(byte, b'-' | b'?' | b':') {
                compact += 1;
            }
            if open > MOST_LEVELS || (compact > MOST_LEVELS && line.as_bytes().get(1) != Some(&b'-')) {
                return Err(format!("line {}: values are nested more than {MOST_LEVELS} levels deep", number + 1));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_values_are_refused_and_others_are_not() {
        for text in ["[".repeat(65), "a:\n  [".repeat(65), "- ".repeat(65), "? ".repeat(65), "{a: [".repeat(33)] {
            let error = check(&text).expect_err(&text);
            assert!(error.contains("nested more than 64 levels"), "{error}");
        }
        assert!(check(&format!("a: 1\n{}", "[".repeat(65))).is_err_and(|error| error.starts_with("line 2: ")));
        for text in ["[".repeat(64), "[]".repeat(1000), "-".repeat(100), format!("# {}", "[".repeat(100))] {
            assert_eq!(check(&text), Ok(()), "{text}");
        }
    }
}
