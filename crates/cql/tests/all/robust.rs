//! Invalid statements do no harm: statements with words of the case files, shuffled, are answered
//! by rows or by an error, and the node continues.

use crate::support::with_node;
use bytes::Bytes;
use cql::QueryParams;
use cql::api::{BoundValue, BoundValues};
use std::path::Path;

/// The number of statements from the words of each file.
const STATEMENTS_PER_FILE: usize = 500;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// The words of all statements in each case file, without USE and DROP, after which all others
/// would fail.
fn files() -> Vec<Vec<Vec<String>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("case files").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let statement = |block: &str| {
        let answer = |line: &&str| ["ok", "| ", "!! ", "# ", "--"].iter().any(|start| line.starts_with(start));
        let lines: Vec<&str> = block.lines().filter(|line| !answer(line)).collect();
        Some(words(&lines.join(" "))).filter(|words| !words.is_empty() && !matches!(&words[0][..], "USE" | "DROP"))
    };
    let read = |file| std::fs::read_to_string(file).expect("a case file");
    files.into_iter().map(|file| read(file).split("\n\n").filter_map(statement).collect()).collect()
}

/// Splits at spaces and around punctuation. Quoted text stays in one piece.
fn words(text: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut quoted = false;
    for c in text.chars() {
        let joins = c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
        match out.last_mut() {
            Some(last) if quoted => last.push(c),
            Some(last) if c == '=' && matches!(&last[..], "<" | ">" | "+" | "-" | "!") => last.push(c),
            Some(last) if joins && last.chars().all(|l| l.is_alphanumeric() || matches!(l, '_' | '.' | '-')) => {
                last.push(c)
            }
            _ => out.push(c.to_string()),
        }
        if c == '\'' {
            quoted = !quoted;
        }
    }
    out.retain(|word| !word.trim().is_empty());
    out
}

/// A statement with up to three words added, removed or replaced by others of the file.
fn shuffled(statements: &[Vec<String>], random: &mut Random) -> String {
    let mut words = statements[random.below(statements.len())].clone();
    for _ in 0..random.below(4) {
        let at = random.below(words.len());
        let other = &statements[random.below(statements.len())];
        let word = match random.below(8) {
            0 => "?".to_owned(),
            1 => "null".to_owned(),
            _ => other[random.below(other.len())].clone(),
        };
        match random.below(4) {
            0 => words.insert(at, word),
            1 if words.len() > 1 => drop(words.remove(at)),
            _ => words[at] = word,
        }
    }
    words.join(" ")
}

fn some_value(random: &mut Random) -> BoundValue {
    match random.below(4) {
        0 => BoundValue::Null,
        1 => BoundValue::Unset,
        2 => BoundValue::Value(Bytes::from(vec![random.below(256) as u8; random.below(20)])),
        _ => BoundValue::Value(Bytes::from_static(&[0, 0, 0, 1])),
    }
}

#[test]
fn shuffled_statements_are_answered() {
    with_node("robust", |session| async move {
        let mut random = Random(7);
        let mut answered = 0;
        for (number, statements) in files().iter().enumerate() {
            session.use_keyspace(&format!("ks{number}")).await;
            for statement in statements.iter().filter(|words| words[0] == "CREATE") {
                session.query(&statement.join(" ")).await.ok();
            }
            for _ in 0..STATEMENTS_PER_FILE {
                let text = shuffled(statements, &mut random);
                let markers = text.matches('?').count() + usize::from(random.below(16) == 0);
                let values = (0..markers).map(|_| some_value(&mut random)).collect();
                let params = QueryParams {
                    values: BoundValues::Positional(values),
                    page_size: [None, Some(1), Some(100)][random.below(3)],
                    ..QueryParams::default()
                };
                answered += usize::from(session.processor.query(&session.client, &text, &params).await.is_ok());
                session.processor.prepare(&session.client, &text, None).await.ok();
            }
        }
        assert!(answered > STATEMENTS_PER_FILE / 2, "only {answered} meant something");
        assert_eq!(session.rows("SELECT key FROM system.local").await, ["key='local'"]);
    });
}
