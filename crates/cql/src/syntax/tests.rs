//! Tests of the parser: text files of statements with their trees or errors, and properties of
//! random text.
//!
//! A case file consists of blocks separated by blank lines. A block is a statement of one or more
//! lines and a line with its outcome. `=> ` starts the debug form of the tree, followed by `|
//! markers` if there are any. `!! ` starts an error. Lines that start with `#` are comments.
//!
//! With `UPDATE_CASES=1` in the environment, the outcomes are written again: check the difference.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;

fn outcome(text: &str) -> String {
    match parse(text) {
        Err(error) => format!("!! {error}"),
        Ok(ParsedStatement { statement, markers }) if markers.is_empty() => format!("=> {statement:?}"),
        Ok(ParsedStatement { statement, markers }) => format!("=> {statement:?} | {markers:?}"),
    }
}

/// Runs a file. Returns its text with the current outcomes.
fn replay(text: &str) -> String {
    let mut replayed = String::new();
    for block in text.split("\n\n") {
        let block = block.trim_matches('\n');
        let (comments, rest): (Vec<_>, Vec<_>) = block.lines().partition(|line| line.starts_with('#'));
        let statement: Vec<_> =
            rest.into_iter().filter(|line| !line.starts_with("=> ") && !line.starts_with("!! ")).collect();
        for line in comments {
            writeln!(replayed, "{line}").unwrap();
        }
        if !statement.is_empty() {
            let statement = statement.join("\n");
            writeln!(replayed, "{statement}\n{}", outcome(&statement)).unwrap();
        }
        replayed.push('\n');
    }
    format!("{}\n", replayed.trim_end_matches('\n'))
}

#[test]
fn case_files() {
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/syntax/cases");
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 6, "{} has lost its files", folder.display());
    let update = std::env::var_os("UPDATE_CASES").is_some();
    for file in files {
        let recorded = std::fs::read_to_string(&file).unwrap();
        let replayed = replay(&recorded);
        if update {
            std::fs::write(&file, replayed).unwrap();
            continue;
        }
        for (number, (was, is)) in recorded.lines().zip(replayed.lines()).enumerate() {
            assert_eq!(was, is, "{}:{}", file.display(), number + 1);
        }
        assert_eq!(recorded, replayed, "{}", file.display());
    }
}

#[test]
fn identifiers_are_quoted_where_needed() {
    for plain in ["a", "ab_1", "key", "ttl", "timestamp", "type", "values", "static"] {
        assert_eq!(quote_identifier(plain), plain);
    }
    for (name, quoted) in [
        ("Ab", "\"Ab\""),
        ("a b", "\"a b\""),
        ("1a", "\"1a\""),
        ("_a", "\"_a\""),
        ("", "\"\""),
        ("select", "\"select\""),
        ("token", "\"token\""),
        ("a\"b", "\"a\"\"b\""),
        ("é", "\"é\""),
    ] {
        assert_eq!(quote_identifier(name), quoted);
    }
}

#[test]
fn nesting_is_bounded_and_the_bound_is_usable() {
    let nested = |open: &str, middle: &str, close: &str, depth: usize| {
        let text = format!("SELECT * FROM t WHERE a = {}{middle}{}", open.repeat(depth), close.repeat(depth));
        parse(&text).map_err(|error| error.message)
    };
    let deep = Err("expression nested too deeply".to_owned());
    assert!(nested("[", "1", "]", 50).is_ok());
    for (open, middle, close) in [("[", "1", "]"), ("(", "1", ")"), ("{", "1", "}"), ("(int)", "1", "")] {
        assert!(nested(open, middle, close, MAX_NESTING - 10).is_ok());
        assert_eq!(nested(open, middle, close, 100_000), deep);
    }
    for text in [
        format!("SELECT a{} FROM t", ".b".repeat(100_000)),
        format!("SELECT a{} FROM t", "[1]".repeat(100_000)),
        format!("SELECT * FROM t WHERE {}a = 1{}", "(".repeat(100_000), ")".repeat(100_000)),
        format!("CREATE TABLE t (a {}int{})", "list<".repeat(100_000), ">".repeat(100_000)),
        format!("CREATE KEYSPACE k WITH a = {}", "{'a': ".repeat(100_000)),
        format!("CREATE KEYSPACE k WITH a = {{'a': {}", "[".repeat(100_000)),
    ] {
        assert_eq!(parse(&text).map_err(|error| error.message), deep);
    }
}

#[test]
fn nesting_of_calls_is_bounded() {
    for (before, open, close, after) in [
        ("SELECT ", "f(", ")", " FROM t"),
        ("SELECT ", "CAST(", " AS int)", " FROM t"),
        ("SELECT * FROM t WHERE a = ", "f(", ")", ""),
    ] {
        let nested = |depth: usize| {
            let text = format!("{before}{}a(){}{after}", open.repeat(depth - 1), close.repeat(depth - 1));
            parse(&text).map_err(|error| error.message)
        };
        assert!(nested(MAX_NESTED_CALLS - 1).is_ok());
        // A call without arguments does not count as an enclosing call.
        for depth in [MAX_NESTED_CALLS + 2, 100_000] {
            assert_eq!(nested(depth).unwrap_err(), "more than 16 function calls nested in each other");
        }
    }
}

#[test]
fn a_statement_that_is_too_long_is_refused() {
    let text = format!("SELECT '{}'", "a".repeat(MAX_STATEMENT_BYTES));
    assert!(parse(&text).unwrap_err().message.contains("longer than"));
    let list = |items: usize| parse(&format!("SELECT [1{}]", ",1".repeat(items)));
    assert!(list(MAX_TOKENS / 2 - 10).is_ok());
    assert!(list(MAX_TOKENS / 2).unwrap_err().message.contains("words"));
}

#[test]
fn markers_are_not_more_than_a_request_can_count() {
    let list = |markers: usize| parse(&format!("SELECT * FROM t WHERE a IN (?{})", ",?".repeat(markers - 1)));
    assert_eq!(list(MAX_MARKERS).map(|parsed| parsed.markers.len()), Ok(65_535));
    let refused = list(MAX_MARKERS + 1).unwrap_err();
    assert_eq!(refused.message, "a statement cannot have more than 65535 bind markers");
    let named = format!("SELECT * FROM t WHERE a IN (:x{}) LIMIT ?", ",:x".repeat(MAX_MARKERS - 1));
    assert_eq!(parse(&named).unwrap_err().message, refused.message);
}

#[test]
fn messages_stay_short() {
    let error = parse(&format!("SELECT '{}' 1", "é".repeat(1_000_000))).unwrap_err();
    assert!(error.to_string().len() < 300);
    let error = parse(&format!("'{}'", "é".repeat(1_000_000))).unwrap_err();
    assert!(error.to_string().len() < 300);
}

/// Pieces of statements, and some that make them invalid.
const PIECES: &[&str] = &[
    "SELECT",
    "INSERT",
    "INTO",
    "VALUES",
    "UPDATE",
    "SET",
    "DELETE",
    "FROM",
    "WHERE",
    "AND",
    "BEGIN",
    "BATCH",
    "APPLY",
    "UNLOGGED",
    "CREATE",
    "ALTER",
    "DROP",
    "TABLE",
    "KEYSPACE",
    "TYPE",
    "INDEX",
    "DESCRIBE",
    "WITH",
    "USING",
    "TIMESTAMP",
    "TTL",
    "TIMEOUT",
    "LIMIT",
    "PER",
    "PARTITION",
    "ORDER",
    "GROUP",
    "BY",
    "ASC",
    "DESC",
    "IF",
    "NOT",
    "EXISTS",
    "IN",
    "CONTAINS",
    "KEY",
    "TOKEN",
    "COUNT",
    "WRITETIME",
    "CAST",
    "AS",
    "JSON",
    "DISTINCT",
    "ALLOW",
    "FILTERING",
    "PRIMARY",
    "STATIC",
    "CLUSTERING",
    "ADD",
    "RENAME",
    "TO",
    "USE",
    "TRUNCATE",
    "IS",
    "NULL",
    "true",
    "NaN",
    "Infinity",
    "list",
    "map",
    "set",
    "frozen",
    "int",
    "text",
    "a",
    "b",
    "\"C\"",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "<",
    ">",
    "<=",
    ">=",
    "=",
    "!=",
    "+",
    "-",
    "+=",
    "-=",
    ",",
    ";",
    ":",
    "?",
    ".",
    "..",
    "*",
    "1",
    "-1",
    "1.5",
    "0xcafe",
    "'s'",
    "$$d$$",
    "1h30m",
    "P1D",
    "00000000-0000-0000-0000-000000000000",
    "-- c\n",
    "/* c */",
    "é",
    "'",
    "\"",
    "$$",
    "\u{0}",
];

/// Valid statements, which the tests damage.
const WHOLE: &[&str] = &[
    "SELECT a, b AS c, count(*), f(a, 1), m[1..2], u.f, CAST(a AS text) FROM ks.t WHERE a IN (1, ?) AND (b, c) >= (:x, 2) \
     AND token(a) < 5 GROUP BY a ORDER BY b DESC PER PARTITION LIMIT 1 LIMIT ? ALLOW FILTERING BYPASS CACHE USING TIMEOUT 1s",
    "INSERT INTO t (a, b) VALUES ({'k': [1, 2]}, {f: (int)1, g: (1, 'x')}) IF NOT EXISTS USING TTL 5 AND TIMESTAMP ?",
    "UPDATE t USING TTL 1 SET a = a + [1], b['k'] = 2, c.f = 3, d -= {1}, e = [1] + e WHERE p = 0x00 IF a = 1 AND b IN ?",
    "BEGIN UNLOGGED BATCH DELETE a[1], b.c FROM t WHERE k = 1; UPDATE c SET n = n -1 WHERE k = 1 APPLY BATCH;",
    "CREATE TABLE IF NOT EXISTS ks.t (a int, b map<text, frozen<list<int>>>, s u STATIC, PRIMARY KEY ((a, b), c)) \
     WITH CLUSTERING ORDER BY (c DESC) AND compaction = {'class': 'X', 'a': {'b': ['c']}} AND comment = 'it''s'",
    "ALTER TABLE t ADD (a int, b text STATIC)",
    "DESCRIBE KEYSPACE k WITH INTERNALS AND PASSWORDS",
];

/// Properties of every text: no panic, and an error's position is in the text.
fn holds(text: &str) {
    if let Err(error) = parse(text) {
        let lines: Vec<&str> = text.split('\n').collect();
        let line = lines.get(error.line as usize - 1).expect("line within the text");
        assert!(error.column as usize <= line.chars().count(), "{error} in {text:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8 * ProptestConfig::default().cases))]

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*") {
        holds(&text);
    }

    #[test]
    fn any_pieces_are_read_or_refused(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..40)) {
        holds(&pieces.join(" "));
        holds(&pieces.concat());
    }

    #[test]
    fn damaged_statements_are_read_or_refused(
        which in 0..WHOLE.len(),
        cut in any::<prop::sample::Index>(),
        until in any::<prop::sample::Index>(),
        piece in prop::sample::select(PIECES),
    ) {
        let whole = WHOLE[which];
        prop_assert!(parse(whole).is_ok(), "{:?}", parse(whole));
        let (from, to) = (cut.index(whole.len()), until.index(whole.len()));
        holds(&format!("{}{piece}{}", &whole[..from], &whole[to..]));
        holds(&whole[..from]);
    }

    #[test]
    fn quoted_names_round_trip(name in "\\PC+") {
        let parsed = parse(&format!("USE {}", quote_identifier(&name))).unwrap();
        prop_assert_eq!(parsed.statement, Statement::Use(Name::new(name)));
    }

    #[test]
    fn string_literals_round_trip(text in ".*") {
        let parsed = parse(&format!("INSERT INTO t (a) VALUES ('{}')", text.replace('\'', "''"))).unwrap();
        let Statement::Insert(insert) = parsed.statement else { panic!("an INSERT") };
        let values = vec![ast::Term::Literal(ast::Literal::String(text))];
        prop_assert_eq!(insert.source, ast::InsertSource::Values { columns: vec![Name::new("a")], values });
    }

    #[test]
    fn case_of_keywords_does_not_matter(which in 0..WHOLE.len()) {
        let fold = |text: &str| text.replace("NULL", "null");
        let upper = parse(WHOLE[which]).unwrap();
        let mixed: String = fold(WHOLE[which]).split(' ').map(|word| {
            let keyword = keyword::lookup(word).is_some();
            (if keyword { word.to_ascii_lowercase() } else { word.to_owned() }) + " "
        }).collect();
        prop_assert_eq!(parse(&mixed).unwrap(), upper);
    }
}
