//! Prints a JSON value as indented lines `name: value`.

use serde_json::Value;
use std::io::{self, Write};

/// Prints the fields of an object, one per line. Nested fields are indented.
pub fn lines(value: &Value, indent: usize, out: &mut impl Write) -> io::Result<()> {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| line(name, value, indent, out)),
        Value::Array(values) => values.iter().try_for_each(|value| line("-", value, indent, out)),
        value => writeln!(out, "{:indent$}{}", "", short(value)),
    }
}

/// Prints one field.
pub fn line(name: &str, value: &Value, indent: usize, out: &mut impl Write) -> io::Result<()> {
    let colon = if name == "-" { "" } else { ":" };
    if is_short(value) {
        return writeln!(out, "{:indent$}{name}{colon} {}", "", short(value));
    }
    writeln!(out, "{:indent$}{name}{colon}", "")?;
    lines(value, indent + 2, out)
}

fn is_short(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(values) => values.iter().all(|value| !value.is_object() && !value.is_array()),
        _ => true,
    }
}

fn short(value: &Value) -> String {
    match value {
        Value::Null => "none".to_string(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(values) if values.is_empty() => "none".to_string(),
        Value::Array(values) => values.iter().map(short).collect::<Vec<_>>().join(", "),
        Value::Object(_) => "none".to_string(),
        number => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn facts_are_indented_lines() {
        let value = json!({ "a": 1, "b": { "c": null, "d": [1, "x"] }, "e": [{ "f": true }], "g": {} });
        let mut out = Vec::new();
        lines(&value, 0, &mut out).expect("memory");
        let text = String::from_utf8(out).expect("UTF-8");
        assert_eq!(text, "a: 1\nb:\n  c: none\n  d: 1, x\ne:\n  -\n    f: yes\ng: none\n");
    }
}
