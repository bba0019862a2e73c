//! Three-valued logic: WHERE clauses with nulls, on every kind of column, compared with an oracle
//! that shares no code with the product. Each clause is executed twice, with literals and with
//! bound values, and must match the same rows. The environment variables `CLAUSES` (such as 100000)
//! and `SEED` change the number of clauses and the start of the generator.

use crate::support::{Session, show_rows, with_node};
use bytes::Bytes;
use cql::api::{BoundValue, BoundValues, QueryParams};
use cql::{Error, ResultKind};
use std::fmt::Write as _;

/// The number of clauses without the environment variable.
const CLAUSES: u64 = 1500;
/// Values are below this number, or null.
const DOMAIN: usize = 3;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn value(&mut self) -> Option<i32> {
        (self.below(4) > 0).then(|| self.below(DOMAIN) as i32)
    }

    fn values(&mut self) -> Vec<Option<i32>> {
        (0..self.below(4)).map(|_| self.value()).collect()
    }
}

/// A row as the test wrote it.
#[derive(Debug)]
struct Row {
    /// The columns `p, q, c, d, v, st`.
    scalars: [Option<i32>; 6],
    /// The list `l`; an empty list is null.
    list: Vec<i32>,
    /// The maps `m` and `fm`; an empty `m` is null.
    map: Vec<(i32, i32)>,
}

const SCALARS: [&str; 6] = ["p", "q", "c", "d", "v", "st"];
const ORDERS: [&str; 5] = ["=", "<", "<=", ">", ">="];

/// One relation of a clause.
#[derive(Clone, Debug)]
enum Relation {
    /// A scalar column, an operator, a value.
    Compare(usize, usize, Option<i32>),
    /// A scalar column, whether negated, values.
    In(usize, bool, Vec<Option<i32>>),
    /// `(c, d) NOT IN (...)`.
    PairNotIn(Vec<(Option<i32>, Option<i32>)>),
    /// `(d) op (value)`.
    Single(usize, Option<i32>),
    /// `l`, `m` or `fm` CONTAINS a value.
    Contains(&'static str, Option<i32>),
    /// `m` or `fm` CONTAINS KEY.
    ContainsKey(&'static str, Option<i32>),
    /// `m[key] = value` or `fm[key] = value`.
    Element(&'static str, Option<i32>, Option<i32>),
    /// `l[index] = value`.
    Index(Option<i32>, Option<i32>),
}

fn compare(left: Option<i32>, order: usize, right: Option<i32>) -> Option<bool> {
    let (left, right) = (left?, right?);
    Some(match ORDERS[order] {
        "=" => left == right,
        "<" => left < right,
        "<=" => left <= right,
        ">" => left > right,
        _ => left >= right,
    })
}

fn not(value: Option<bool>) -> Option<bool> {
    value.map(|value| !value)
}

fn and(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    match (a, b) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

fn or(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    not(and(not(a), not(b)))
}

impl Relation {
    /// Evaluates the relation for a row: true, false or unknown.
    fn holds(&self, row: &Row) -> Option<bool> {
        let equal = |a, b| compare(a, 0, b);
        let any = |each: &mut dyn Iterator<Item = Option<bool>>| each.fold(Some(false), or);
        let map = |column: &str| (column == "fm" || !row.map.is_empty()).then_some(&row.map);
        match self {
            Relation::Compare(column, order, value) => compare(row.scalars[*column], *order, *value),
            Relation::In(column, negated, values) => {
                let left = row.scalars[*column];
                // A null column is unknown, even for an empty list.
                left?;
                let is_in = any(&mut values.iter().map(|value| equal(left, *value)));
                if *negated { not(is_in) } else { is_in }
            }
            Relation::PairNotIn(pairs) => {
                let [_, _, c, d, ..] = row.scalars;
                not(any(&mut pairs.iter().map(|(x, y)| and(equal(c, *x), equal(d, *y)))))
            }
            Relation::Single(order, value) => compare(row.scalars[3], *order, *value),
            Relation::Contains("l", value) => any(&mut row.list.iter().map(|element| equal(Some(*element), *value))),
            Relation::Contains(column, value) => any(&mut map(column)?.iter().map(|(_, v)| equal(Some(*v), *value))),
            Relation::ContainsKey(column, value) => any(&mut map(column)?.iter().map(|(k, _)| equal(Some(*k), *value))),
            Relation::Element(column, key, value) => {
                let key = (*key)?;
                equal(map(column)?.iter().find(|(k, _)| *k == key).map(|(_, v)| *v), *value)
            }
            Relation::Index(index, value) => equal(row.list.get((*index)? as usize).copied(), *value),
        }
    }

    /// The text of the relation, with literals, or with markers if there is a list for the values.
    fn text(&self, bound: &mut Option<Vec<BoundValue>>) -> String {
        if let (Relation::In(column, negated, values), Some(bound)) = (self, bound.as_mut()) {
            bound.push(list(values));
            return format!("{} {} ?", SCALARS[*column], if *negated { "NOT IN" } else { "IN" });
        }
        let mut term = |value: Option<i32>| match bound {
            None => value.map_or("null".to_owned(), |value| value.to_string()),
            Some(bound) => {
                bound.push(int(value));
                "?".to_owned()
            }
        };
        match self {
            Relation::Compare(column, order, value) => {
                format!("{} {} {}", SCALARS[*column], ORDERS[*order], term(*value))
            }
            Relation::In(column, negated, values) => {
                let operator = if *negated { "NOT IN" } else { "IN" };
                let name = SCALARS[*column];
                let values: Vec<String> = values.iter().map(|value| term(*value)).collect();
                format!("{name} {operator} ({})", values.join(", "))
            }
            Relation::PairNotIn(pairs) => {
                let pairs: Vec<String> = pairs.iter().map(|(x, y)| format!("({}, {})", term(*x), term(*y))).collect();
                format!("(c, d) NOT IN ({})", pairs.join(", "))
            }
            Relation::Single(order, value) => format!("(d) {} ({})", ORDERS[*order], term(*value)),
            Relation::Contains(column, value) => format!("{column} CONTAINS {}", term(*value)),
            Relation::ContainsKey(column, value) => format!("{column} CONTAINS KEY {}", term(*value)),
            Relation::Element(column, key, value) => {
                let key = term(*key);
                format!("{column}[{key}] = {}", term(*value))
            }
            Relation::Index(index, value) => {
                let index = term(*index);
                format!("l[{index}] = {}", term(*value))
            }
        }
    }

    fn random(random: &mut Random) -> Relation {
        let map = ["m", "fm"][random.below(2)];
        match random.below(9) {
            0 | 1 => Relation::Compare(random.below(6), random.below(5), random.value()),
            2 | 3 => Relation::In(random.below(6), random.below(2) == 0, random.values()),
            4 => Relation::PairNotIn((0..random.below(3)).map(|_| (random.value(), random.value())).collect()),
            5 => Relation::Single(random.below(5), random.value()),
            6 => Relation::Contains(["l", "m", "fm"][random.below(3)], random.value()),
            7 => match random.below(2) {
                0 => Relation::ContainsKey(map, random.value()),
                _ => Relation::Index(random.value(), random.value()),
            },
            _ => Relation::Element(map, random.value(), random.value()),
        }
    }
}

fn int(value: Option<i32>) -> BoundValue {
    value.map_or(BoundValue::Null, |value| BoundValue::Value(Bytes::copy_from_slice(&value.to_be_bytes())))
}

/// A list whose elements may be null.
fn list(values: &[Option<i32>]) -> BoundValue {
    let mut out = (values.len() as i32).to_be_bytes().to_vec();
    for value in values {
        match value {
            Some(value) => {
                out.extend_from_slice(&4i32.to_be_bytes());
                out.extend_from_slice(&value.to_be_bytes());
            }
            None => out.extend_from_slice(&(-1i32).to_be_bytes()),
        }
    }
    BoundValue::Value(out.into())
}

/// Writes every combination of keys, with values and nulls in the other columns.
async fn write_rows(session: &Session, random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (p, q) in [(0, 0), (0, 1), (1, 2), (2, 0)] {
        let st = (p != 1).then_some(p);
        if let Some(st) = st {
            session.ok(&format!("UPDATE t SET st = {st} WHERE p = {p} AND q = {q}")).await;
        }
        for (c, d) in (0..DOMAIN as i32).flat_map(|c| (0..DOMAIN as i32).map(move |d| (c, d))) {
            let v = random.value();
            let list: Vec<i32> = (0..random.below(3)).map(|_| random.below(DOMAIN) as i32).collect();
            let map: Vec<(i32, i32)> =
                (0..DOMAIN as i32).filter(|_| random.below(2) == 0).map(|k| (k, (k + c) % 3)).collect();
            let mut shown = String::new();
            for (k, v) in &map {
                let _ = write!(shown, "{}{k}: {v}", if shown.is_empty() { "" } else { ", " });
            }
            let v_text = v.map_or("null".to_owned(), |v| v.to_string());
            session
                .ok(&format!(
                    "INSERT INTO t (p, q, c, d, v, l, m, fm) VALUES ({p}, {q}, {c}, {d}, {v_text}, {list:?}, {{{shown}}}, {{{shown}}})"
                ))
                .await;
            rows.push(Row { scalars: [Some(p), Some(q), Some(c), Some(d), v, st], list, map });
        }
    }
    rows
}

async fn matched(session: &Session, clause: &str, values: Vec<BoundValue>) -> Result<Vec<String>, Error> {
    let params = QueryParams { values: BoundValues::Positional(values.into()), ..QueryParams::default() };
    let text = format!("SELECT p, q, c, d FROM t WHERE {clause} ALLOW FILTERING");
    let mut rows = match session.processor.query(&session.client, &text, &params).await?.kind {
        ResultKind::Rows(rows) => show_rows(&rows),
        other => panic!("{text}: {other:?}"),
    };
    rows.sort();
    Ok(rows)
}

#[test]
fn a_clause_matches_the_rows_for_which_it_is_true() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    with_node("nulls", |session| async move {
        session.use_keyspace("ks").await;
        session
            .ok("CREATE TABLE t (p int, q int, c int, d int, v int, st int STATIC, l list<int>, m map<int, int>, \
                 fm frozen<map<int, int>>, PRIMARY KEY ((p, q), c, d)) WITH CLUSTERING ORDER BY (c ASC, d DESC)")
            .await;
        let mut random = Random(setting("SEED").unwrap_or(20));
        let rows = write_rows(&session, &mut random).await;
        let (mut answered, mut refused, mut some) = (0, 0, 0);
        for _ in 0..setting("CLAUSES").unwrap_or(CLAUSES) {
            let relations: Vec<Relation> = (0..1 + random.below(3)).map(|_| Relation::random(&mut random)).collect();
            let mut bound = Some(Vec::new());
            let texts: Vec<String> = relations.iter().map(|relation| relation.text(&mut None)).collect();
            let marked: Vec<String> = relations.iter().map(|relation| relation.text(&mut bound)).collect();
            let (text, marked) = (texts.join(" AND "), marked.join(" AND "));
            let by_literals = matched(&session, &text, Vec::new()).await;
            let by_values = matched(&session, &marked, bound.unwrap_or_default()).await;
            if relations.len() > 1 && by_literals.is_err() {
                // Some combinations are refused, regardless of the values.
                assert!(matches!(by_literals, Err(Error::Invalid(_))), "{text}: {by_literals:?}");
                assert!(by_values.is_err(), "{marked}: {by_values:?}");
                refused += 1;
                continue;
            }
            let is_true = |row: &&Row| relations.iter().all(|relation| relation.holds(row) == Some(true));
            let mut wanted: Vec<String> = rows
                .iter()
                .filter(is_true)
                .map(|row| {
                    let [p, q, c, d, ..] = row.scalars.map(Option::unwrap_or_default);
                    format!("p={p}, q={q}, c={c}, d={d}")
                })
                .collect();
            wanted.sort();
            assert_eq!(by_literals.as_ref(), Ok(&wanted), "{text}");
            assert_eq!(by_values, Ok(wanted), "{marked}");
            answered += 1;
            some += u32::from(by_literals.is_ok_and(|rows| !rows.is_empty()));
        }
        assert!(
            answered > 4 * refused && some * 4 > answered,
            "{answered} answered, {some} with rows, {refused} refused"
        );
    });
}

#[test]
fn a_null_in_the_key_of_a_write_is_an_error() {
    with_node("null-keys", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c int, v int, PRIMARY KEY (p, c))").await;
        for (clause, name) in [
            ("p IN (1, null) AND c = 1", "p"),
            ("p = null AND c = 1", "p"),
            ("p = 1 AND c IN (1, null)", "c"),
            ("p = 1 AND c = null", "c"),
        ] {
            for statement in [format!("UPDATE t SET v = 1 WHERE {clause}"), format!("DELETE FROM t WHERE {clause}")] {
                let refused = session.query(&statement).await.unwrap_err();
                let wanted = format!("Invalid null value in condition for column {name}");
                assert_eq!(refused, Error::Invalid(wanted), "{statement}");
            }
        }
        let text = "DELETE FROM t WHERE p = 1 AND c IN ?";
        let params = QueryParams {
            values: BoundValues::Positional(vec![list(&[Some(1), None])].into()),
            ..QueryParams::default()
        };
        let refused = session.processor.query(&session.client, text, &params).await.unwrap_err();
        assert_eq!(refused, Error::Invalid("Invalid null value in condition for column c".into()));
        let text = "INSERT INTO t (p, c, v) VALUES (1, ?, 1)";
        let refused = session.processor.query(&session.client, text, &params).await.unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    });
}

/// A bound list of tuples, whose last tuple is null, has a null, or is shorter than its type.
#[test]
fn a_null_in_a_bound_list_of_tuples_is_an_error() {
    let field = |value: Option<i32>| match value {
        Some(value) => [&4i32.to_be_bytes()[..], &value.to_be_bytes()].concat(),
        None => (-1i32).to_be_bytes().to_vec(),
    };
    let tuple = |fields: &[Option<i32>]| -> Vec<u8> {
        let bytes: Vec<u8> = fields.iter().flat_map(|value| field(*value)).collect();
        [&(bytes.len() as i32).to_be_bytes()[..], &bytes].concat()
    };
    let list = |last: &[u8]| [&2i32.to_be_bytes()[..], &tuple(&[Some(1), Some(1)]), last].concat();
    let null = (-1i32).to_be_bytes();
    let cases = [
        (BoundValue::Null, "c, d"),
        (BoundValue::Value(list(&null).into()), "c, d"),
        (BoundValue::Value(list(&tuple(&[None, Some(2)])).into()), "c"),
        (BoundValue::Value(list(&tuple(&[Some(2), None])).into()), "d"),
        (BoundValue::Value(list(&tuple(&[Some(2)])).into()), "d"),
    ];
    with_node("null-tuples", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c int, d int, v int, PRIMARY KEY (p, c, d))").await;
        for (value, name) in cases {
            let params = QueryParams { values: BoundValues::Positional(vec![value].into()), ..QueryParams::default() };
            for statement in
                ["UPDATE t SET v = 1 WHERE p = 1 AND (c, d) IN ?", "DELETE FROM t WHERE p = 1 AND (c, d) IN ?"]
            {
                let refused = session.processor.query(&session.client, statement, &params).await.unwrap_err();
                let wanted = format!("Invalid null value in condition for column {name}");
                assert_eq!(refused, Error::Invalid(wanted), "{statement}");
            }
        }
    });
}
