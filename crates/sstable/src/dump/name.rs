//! Names of columns as Cassandra's printer shows them: as they are written in a statement.

use model::types::is_reserved_keyword;

/// Words that need quotes in a statement of Messina, and that the printer of Cassandra 5 shows
/// without.
const PLAIN: [&str; 5] = ["default", "mbean", "mbeans", "replace", "unset"];

/// A column's name, in double quotes where it needs them.
pub(super) fn in_statement(name: &str) -> String {
    let mut bytes = name.bytes();
    let plain = bytes.next().is_some_and(|first| first.is_ascii_lowercase())
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        && (!is_reserved_keyword(name) || PLAIN.contains(&name));
    if plain { name.to_string() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_plain_are_quoted() {
        for name in ["a", "a_1", "json", "values"].into_iter().chain(PLAIN) {
            assert_eq!(in_statement(name), name);
        }
        for (name, shown) in [
            ("A", "\"A\""),
            ("1a", "\"1a\""),
            ("", "\"\""),
            ("é", "\"é\""),
            ("a\"b", "\"a\"\"b\""),
            ("with", "\"with\""),
        ] {
            assert_eq!(in_statement(name), shown);
        }
    }
}
