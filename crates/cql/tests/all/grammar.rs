//! Statements generated from the grammar. Each must be parsed, and answered by rows with valid
//! values or by an error of the client's kind. The environment variables `STATEMENTS` (such as
//! 10000000) and `SEED` change the number of statements and the start of the generator.

use crate::support::{Session, show_rows, with_node};
use bytes::Bytes;
use cql::api::{BoundValue, BoundValues, QueryParams};
use cql::{Error, ResultKind};

/// The number of statements without the environment variable.
const STATEMENTS: u64 = 1200;
/// The nesting of values.
const DEPTH: u32 = 3;

/// The tables that most statements use.
const SCHEMA: &[&str] = &[
    "CREATE TYPE u (a int, b text, l frozen<list<int>>)",
    "CREATE TABLE t (p int, q text, c int, d bigint, v int, w text, b blob, f double, n decimal, ts timestamp, id timeuuid, \
     l list<int>, st set<text>, m map<text, int>, fl frozen<list<text>>, x u, fx frozen<u>, tu tuple<int, text>, ve vector<float, 2>, \
     s int STATIC, sl list<int> STATIC, PRIMARY KEY ((p, q), c, d)) WITH CLUSTERING ORDER BY (c DESC, d ASC)",
    "CREATE TABLE o (p text PRIMARY KEY, v int, m map<int, frozen<set<int>>>, du duration, i inet, da date, ti time, bo boolean)",
    "CREATE TABLE k (p int, c int, n counter, e counter STATIC, PRIMARY KEY (p, c))",
];

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }
}

const TABLES: &[&str] = &["t", "t", "t", "o", "k", "ks.t", "nothing", "system.local", "system.config"];
const COLUMNS: &[&str] = &[
    "p", "p", "q", "c", "c", "d", "v", "v", "w", "b", "f", "n", "ts", "id", "l", "st", "m", "fl", "x", "fx", "tu",
    "ve", "s", "sl", "e", "du", "i", "da", "ti", "bo", "nothing", "\"Q\"", "key",
];
/// Values of some columns' types.
const TYPED: &[(&str, &[&str])] = &[
    ("p", &["1", "1", "2"]),
    ("q", &["'a'", "'b'"]),
    ("c", &["0", "1", "2"]),
    ("d", &["0", "1", "2"]),
    ("v", &["0", "1", "7"]),
    ("s", &["1", "2"]),
    ("w", &["'a'", "'w%'"]),
    ("b", &["0x00", "0xcafe"]),
    ("f", &["1.5", "NaN", "-0.0"]),
    ("n", &["1", "2.50"]),
    ("ts", &["0", "'2026-01-01'"]),
    ("l", &["[1, 2]", "[]"]),
    ("sl", &["[3]"]),
    ("st", &["{'a', 'b'}", "{}"]),
    ("m", &["{'k': 1}", "{'j': 2, 'k': 3}"]),
    ("fl", &["['a']"]),
    ("x", &["{a: 1, b: 't'}", "{l: [1]}"]),
    ("fx", &["{a: 1}"]),
    ("tu", &["(1, 'a')", "(2, null)"]),
    ("ve", &["[1.0, 2.0]"]),
    ("du", &["1h", "P1M"]),
];

const TYPES: &[&str] = &[
    "int",
    "text",
    "bigint",
    "blob",
    "double",
    "list<int>",
    "set<text>",
    "map<text, int>",
    "frozen<list<int>>",
    "u",
    "frozen<u>",
    "tuple<int, text>",
    "vector<float, 2>",
    "counter",
    "duration",
    "timeuuid",
    "decimal",
    "no_such_type",
];
const FUNCTIONS: &[&str] = &[
    "now",
    "uuid",
    "token",
    "todate",
    "totimestamp",
    "tounixtimestamp",
    "mintimeuuid",
    "intasblob",
    "blobasint",
    "textasblob",
    "count",
    "min",
    "max",
    "sum",
    "avg",
    "tojson",
    "currentdate",
    "abs",
    "round",
    "map_keys",
    "collection_sum",
    "collection_count",
    "blobastext",
    "fromjson",
    "maxwritetime",
    "no_such_function",
];
const CONSTANTS: &[&str] = &[
    "0",
    "1",
    "1",
    "2",
    "-1",
    "2147483648",
    "9223372036854775807",
    "1.5",
    "-1e300",
    "NaN",
    "'a'",
    "'b'",
    "''",
    "'2026-01-01'",
    "'10:00:00'",
    "0x00",
    "0x",
    "true",
    "false",
    "null",
    "1h30m",
    "P1D",
    "123e4567-e89b-12d3-a456-426614174000",
    "50554d6e-29bb-11e5-b345-feff819cdc9f",
    "'127.0.0.1'",
    "$$x$$",
];

/// Generates statements, and counts their markers.
struct Maker {
    random: Random,
    markers: usize,
}

impl Maker {
    fn list(&mut self, most: usize, mut item: impl FnMut(&mut Self) -> String) -> String {
        let count = 1 + self.random.below(most);
        (0..count).map(|_| item(self)).collect::<Vec<_>>().join(", ")
    }

    fn joined(&mut self, most: usize, word: &str, mut item: impl FnMut(&mut Self) -> String) -> String {
        let count = 1 + self.random.below(most);
        (0..count).map(|_| item(self)).collect::<Vec<_>>().join(word)
    }

    fn column(&mut self) -> String {
        self.random.pick(COLUMNS).to_owned()
    }

    fn table(&mut self) -> String {
        self.random.pick(TABLES).to_owned()
    }

    fn marker(&mut self) -> String {
        self.markers += 1;
        "?".to_owned()
    }

    fn term(&mut self, depth: u32) -> String {
        if depth == 0 || !self.random.one_in(4) {
            return if self.random.one_in(8) { self.marker() } else { self.random.pick(CONSTANTS).to_owned() };
        }
        let inner = depth - 1;
        match self.random.below(7) {
            0 => format!("[{}]", self.list(3, |it| it.term(inner))),
            1 => format!("{{{}}}", self.list(3, |it| it.term(inner))),
            2 => format!("{{{}}}", self.list(2, |it| format!("{}: {}", it.term(0), it.term(inner)))),
            3 => format!("({})", self.list(3, |it| it.term(inner))),
            4 => format!("{{a: {}, b: {}}}", self.term(inner), self.term(inner)),
            5 => {
                let arguments = if self.random.one_in(3) { String::new() } else { self.list(2, |it| it.term(inner)) };
                format!("{}({arguments})", self.random.pick(FUNCTIONS))
            }
            _ => format!("({}) {}", self.random.pick(TYPES), self.term(0)),
        }
    }

    /// A value for a column, usually of its type.
    fn value_of(&mut self, column: &str, depth: u32) -> String {
        match TYPED.iter().find(|(name, _)| *name == column) {
            Some((_, values)) if !self.random.one_in(4) => self.random.pick(values).to_owned(),
            _ => self.term(depth),
        }
    }

    /// A column and a value for it, with a text between them.
    fn pair(&mut self, between: &str, depth: u32) -> String {
        let column = self.column();
        format!("{column} {between} {}", self.value_of(&column, depth))
    }

    fn relation(&mut self) -> String {
        let op = self.random.pick(&["=", "=", "=", "<", "<=", ">", ">=", "!=", "LIKE"]);
        match self.random.below(12) {
            0 => format!("{} IN ({})", self.column(), self.list(3, |it| it.term(1))),
            1 => format!("{} NOT IN ({})", self.column(), self.list(3, |it| it.term(1))),
            2 => format!("{} IN {}", self.column(), self.marker()),
            3 => format!("{} CONTAINS {}", self.column(), self.term(1)),
            4 => format!("{} CONTAINS KEY {}", self.column(), self.term(1)),
            5 => format!("{}[{}] = {}", self.column(), self.term(1), self.term(1)),
            6 => format!("({}) {op} ({})", self.list(3, Self::column), self.list(3, |it| it.term(0))),
            7 => {
                let tuples = self.list(2, |it| format!("({}, {})", it.term(0), it.term(0)));
                format!("(c, d) {} ({tuples})", self.random.pick(&["IN", "NOT IN"]))
            }
            8 => format!("token({}) {op} {}", self.list(2, Self::column), self.term(1)),
            _ => self.pair(op, 2),
        }
    }

    /// A WHERE clause, usually with a key of `t`, so that rows are found.
    fn wanted(&mut self) -> String {
        match self.random.below(4) {
            0 => self.joined(3, " AND ", Self::relation),
            1 => format!("p = 1 AND q = 'a' AND {}", self.joined(2, " AND ", Self::relation)),
            2 => "p = 1 AND q = 'a' AND c = 1 AND d = 1".to_owned(),
            _ => "p = 1 AND q IN ('a', 'b') AND (c, d) > (0, 0)".to_owned(),
        }
    }

    fn selector(&mut self, depth: u32) -> String {
        if depth == 0 {
            return self.column();
        }
        let inner = depth - 1;
        match self.random.below(14) {
            0 => format!("{}({})", self.random.pick(FUNCTIONS), self.list(2, |it| it.selector(inner))),
            1 => format!(
                "CAST({} AS {})",
                self.selector(inner),
                self.random.pick(&["int", "text", "bigint", "double", "blob", "date"])
            ),
            2 => format!("{}[{}]", self.column(), self.term(0)),
            3 => format!("{}.a", self.column()),
            4 => {
                let part = match self.random.below(3) {
                    0 => format!("[{}]", self.term(0)),
                    1 => ".a".to_owned(),
                    _ => String::new(),
                };
                format!("{}({}{part})", self.random.pick(&["writetime", "ttl"]), self.column())
            }
            5 => "count(*)".to_owned(),
            6 => self.term(1),
            _ => self.column(),
        }
    }

    fn using(&mut self, of: &[&str]) -> String {
        if !self.random.one_in(4) {
            return String::new();
        }
        let what = self.random.pick(of);
        let value = match what {
            "TIMEOUT" => self.random.pick(&["5s", "10s", "1d"]),
            _ => self.random.pick(&["0", "1", "1000", "?"]),
        };
        self.markers += usize::from(value == "?");
        format!(" USING {what} {value}")
    }

    fn select(&mut self) -> String {
        let head = self.random.pick(&["SELECT", "SELECT", "SELECT DISTINCT", "SELECT JSON"]);
        // After DISTINCT and JSON, a parenthesis or bracket would turn these words into columns.
        let depth = if head == "SELECT" { 2 } else { 0 };
        let what = if self.random.one_in(4) { "*".to_owned() } else { self.list(3, |it| it.selector(depth)) };
        // DISTINCT requires a FROM clause.
        if what != "*" && head != "SELECT DISTINCT" && self.random.one_in(20) {
            return format!("{head} {what}");
        }
        let table = match self.random.below(12) {
            0 => format!("MUTATION_FRAGMENTS({})", self.table()),
            _ => self.table(),
        };
        let mut out = format!("{head} {what} FROM {table}");
        if !self.random.one_in(4) {
            out += &format!(" WHERE {}", self.wanted());
        }
        if self.random.one_in(6) {
            out += &format!(" GROUP BY {}", self.list(2, Self::column));
        }
        if self.random.one_in(6) {
            out += &format!(" ORDER BY {} {}", self.column(), self.random.pick(&["ASC", "DESC"]));
        }
        if self.random.one_in(6) {
            out += &format!(" PER PARTITION LIMIT {}", self.random.pick(&["0", "1", "3"]));
        }
        if self.random.one_in(4) {
            out += &format!(" LIMIT {}", self.random.pick(&["0", "1", "5", "2147483647"]));
        }
        if !self.random.one_in(3) {
            out += " ALLOW FILTERING";
        }
        if self.random.one_in(8) {
            out += " BYPASS CACHE";
        }
        out + &self.using(&["TIMEOUT"])
    }

    fn insert(&mut self) -> String {
        let table = self.table();
        let using = |it: &mut Self| it.using(&["TTL", "TIMESTAMP", "TIMEOUT"]);
        if self.random.one_in(8) {
            return format!(
                "INSERT INTO {table} JSON '{{\"p\": 1, \"q\": \"a\", \"c\": 1, \"d\": 2, \"v\": 3}}'{}",
                using(self)
            );
        }
        if self.random.one_in(2) {
            let column = self.column();
            let value = self.value_of(&column, 2);
            return format!("INSERT INTO t (p, q, c, d, {column}) VALUES (1, 'a', 1, 1, {value}){}", using(self));
        }
        let count = 1 + self.random.below(4);
        let columns: Vec<String> = (0..count).map(|_| self.column()).collect();
        let values: Vec<String> = (0..count).map(|_| self.term(DEPTH)).collect();
        format!("INSERT INTO {table} ({}) VALUES ({}){}", columns.join(", "), values.join(", "), using(self))
    }

    fn assignment(&mut self) -> String {
        let column = self.column();
        match self.random.below(8) {
            0 => format!("{column} = {column} + {}", self.value_of(&column, 1)),
            1 => format!("{column} = {column} - {}", self.value_of(&column, 1)),
            2 => format!("{column} = [{}] + {column}", self.term(0)),
            3 => format!("{column} += {}", self.term(1)),
            4 => format!("{column}[{}] = {}", self.term(0), self.term(1)),
            5 => format!("{column}.a = {}", self.term(0)),
            _ => format!("{column} = {}", self.value_of(&column, DEPTH)),
        }
    }

    fn update(&mut self) -> String {
        let (table, using) = (self.table(), self.using(&["TTL", "TIMESTAMP", "TIMEOUT"]));
        if self.random.one_in(6) {
            return format!("UPDATE k SET n = n + {} WHERE p = 1 AND c = {}", self.term(0), self.term(0));
        }
        let assignments = self.list(2, Self::assignment);
        format!("UPDATE {table}{using} SET {assignments} WHERE {}", self.wanted())
    }

    fn delete(&mut self) -> String {
        let targets = match self.random.below(4) {
            0 => self.list(2, Self::column),
            1 => format!("{}[{}]", self.column(), self.term(0)),
            2 => format!("{}.a", self.column()),
            _ => String::new(),
        };
        let (table, using) = (self.table(), self.using(&["TIMESTAMP", "TIMEOUT"]));
        format!("DELETE {targets} FROM {table}{using} WHERE {}", self.wanted())
    }

    fn change(&mut self) -> String {
        match self.random.below(3) {
            0 => self.insert(),
            1 => self.update(),
            _ => self.delete(),
        }
    }

    fn statement(&mut self) -> String {
        self.markers = 0;
        match self.random.below(40) {
            0..18 => self.select(),
            18..32 => self.change(),
            32..36 => {
                let kind = self.random.pick(&["", " UNLOGGED", " COUNTER"]);
                let using = self.using(&["TIMESTAMP", "TIMEOUT"]);
                let inner = self.joined(3, "; ", Self::change);
                format!("BEGIN{kind} BATCH{using} {inner}; APPLY BATCH")
            }
            36 => format!("ALTER TABLE {} ADD y{} {}", self.table(), self.random.below(20), self.random.pick(TYPES)),
            37 => format!("ALTER TABLE {} DROP y{}", self.table(), self.random.below(20)),
            38 => format!("ALTER TYPE u ADD z{} {}", self.random.below(10), self.random.pick(TYPES)),
            _ => format!("DESCRIBE TABLE {}", self.table()),
        }
    }

    fn value(&mut self) -> BoundValue {
        match self.random.below(6) {
            0 => BoundValue::Null,
            1 => BoundValue::Unset,
            2 => BoundValue::Value(Bytes::new()),
            3 => BoundValue::Value(Bytes::from(vec![self.random.below(256) as u8; self.random.below(20)])),
            4 => BoundValue::Value(Bytes::from_static(b"a")),
            _ => BoundValue::Value(Bytes::from_static(&[0, 0, 0, 1])),
        }
    }
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Executes a statement page by page, and checks the answer. True if it was not an error.
async fn answered(session: &Session, maker: &mut Maker, text: &str) -> bool {
    let values: Vec<BoundValue> = (0..maker.markers).map(|_| maker.value()).collect();
    let page_size = [None, Some(1), Some(100)][maker.random.below(3)];
    let mut paging_state = None;
    for _ in 0..20 {
        let params = QueryParams {
            values: BoundValues::Positional(values.clone().into()),
            page_size,
            paging_state: paging_state.take(),
            ..QueryParams::default()
        };
        match session.processor.query(&session.client, text, &params).await {
            Ok(answer) => match answer.kind {
                ResultKind::Rows(rows) => {
                    show_rows(&rows);
                    match rows.paging_state {
                        Some(state) => paging_state = Some(state),
                        None => return true,
                    }
                }
                _ => return true,
            },
            Err(Error::Syntax(why)) if why.starts_with("line ") => {
                panic!("the grammar made it, and it was not read: {text}: {why}")
            }
            Err(
                Error::Invalid(_)
                | Error::Syntax(_)
                | Error::Configuration(_)
                | Error::Unauthorized(_)
                | Error::AlreadyExists { .. }
                | Error::FunctionFailure { .. }
                | Error::WriteFailure { .. },
            ) => return false,
            Err(error) => panic!("{text}: {error:?}"),
        }
    }
    true
}

#[test]
fn whatever_the_grammar_makes_is_answered() {
    let (count, seed) = (from_environment("STATEMENTS", STATEMENTS), from_environment("SEED", 7));
    with_node("grammar", |session| async move {
        session.use_keyspace("ks").await;
        for statement in SCHEMA {
            session.ok(statement).await;
        }
        for c in 0..3 {
            session.ok(&format!("INSERT INTO t (p, q, c, d, v, w, l, st, m, x) VALUES (1, 'a', {c}, {c}, {c}, 'w', [1, 2], {{'a'}}, {{'k': 1}}, {{a: 1}})")).await;
        }
        let mut maker = Maker { random: Random(seed), markers: 0 };
        let mut good = 0;
        for _ in 0..count {
            let text = maker.statement();
            good += u64::from(answered(&session, &mut maker, &text).await);
        }
        println!("{good} of {count} meant something");
        assert!(good > count / 15, "only {good} of {count} meant something");
        assert_eq!(session.rows("SELECT key FROM system.local").await, ["key='local'"]);
    });
}
