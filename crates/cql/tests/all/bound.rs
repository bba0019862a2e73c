//! Bound values: null, unset and malformed values at every position where a marker is allowed.

use crate::support::{Session, with_node};
use bytes::Bytes;
use cql::QueryParams;
use cql::api::{BoundValue, BoundValues};

/// A value that is bound.
#[derive(Clone, Copy, Debug)]
enum Given {
    Null,
    Unset,
    Int(i32),
    Long(i64),
    Text(&'static str),
    Raw(&'static [u8]),
}

use Given::{Int, Long, Null, Raw, Text, Unset};

impl Given {
    fn bound(self) -> BoundValue {
        match self {
            Null => BoundValue::Null,
            Unset => BoundValue::Unset,
            Int(value) => BoundValue::Value(Bytes::copy_from_slice(&value.to_be_bytes())),
            Long(value) => BoundValue::Value(Bytes::copy_from_slice(&value.to_be_bytes())),
            Text(value) => BoundValue::Value(Bytes::from_static(value.as_bytes())),
            Raw(value) => BoundValue::Value(Bytes::from_static(value)),
        }
    }
}

/// A list or set with one int.
const ONE: Given = Raw(&[0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1]);
/// An empty list or set.
const NONE: Given = Raw(&[0, 0, 0, 0]);

const SCHEMA: [&str; 3] = [
    "CREATE TYPE u (a int, b text)",
    "CREATE TABLE t (p int, c int, d int, v int, te text, a ascii, l list<int>, s set<int>, m map<text, int>, f frozen<list<int>>, \
     tp tuple<int, text>, n u, ti time, tu timeuuid, bo boolean, i inet, de decimal, du duration, st int STATIC, PRIMARY KEY (p, c, d))",
    "CREATE TABLE k (p int PRIMARY KEY, n counter)",
];

/// A statement, its values, and a part of the error, or `None` if it is executed.
type Row = (&'static str, &'static [Given], Option<&'static str>);

const ROWS: &[Row] = &[
    // keys of writes
    ("INSERT INTO t (p, c, d) VALUES (?, 1, 1)", &[Null], Some("null value in condition for column p")),
    ("INSERT INTO t (p, c, d) VALUES (?, 1, 1)", &[Unset], Some("unset value for column p")),
    ("INSERT INTO t (p, c, d) VALUES (1, ?, 1)", &[Null], Some("null value in condition for column c")),
    ("INSERT INTO t (p, c, d) VALUES (1, ?, 1)", &[Unset], Some("unset value for column c")),
    ("UPDATE t SET v = 1 WHERE p = ? AND c = 1 AND d = 1", &[Null], Some("null value")),
    ("UPDATE t SET v = 1 WHERE p = ? AND c = 1 AND d = 1", &[Unset], Some("unset value")),
    ("UPDATE t SET v = 1 WHERE p IN ? AND c = 1 AND d = 1", &[Null], Some("null value")),
    ("UPDATE t SET v = 1 WHERE p IN ? AND c = 1 AND d = 1", &[Unset], Some("unset value")),
    ("UPDATE t SET v = 1 WHERE p IN ? AND c = 1 AND d = 1", &[NONE], None),
    ("DELETE FROM t WHERE p = ?", &[Null], Some("null value")),
    ("DELETE FROM t WHERE p = ?", &[Unset], Some("unset value")),
    ("DELETE FROM t WHERE p = 1 AND c > ?", &[Null], Some("null value")),
    ("DELETE FROM t WHERE p = 1 AND c > ?", &[Unset], Some("unset value")),
    ("DELETE FROM t WHERE p = 1 AND (c, d) = (?, 1)", &[Unset], Some("unset value")),
    // values of writes
    ("INSERT INTO t (p, c, d, v, te) VALUES (1, 1, 1, ?, ?)", &[Null, Unset], None),
    ("UPDATE t SET v = ?, l = ?, s = ?, m = ?, n = ? WHERE p = 1 AND c = 1 AND d = 1", &[Unset; 5], None),
    ("UPDATE t SET v = ?, l = ?, s = ?, m = ?, n = ? WHERE p = 1 AND c = 1 AND d = 1", &[Null; 5], None),
    ("UPDATE t SET l = l + ?, s = s + ?, m = m + ? WHERE p = 1 AND c = 1 AND d = 1", &[Unset; 3], None),
    ("UPDATE t SET l = l + ?, s = s + ?, m = m + ? WHERE p = 1 AND c = 1 AND d = 1", &[Null; 3], None),
    ("UPDATE t SET l = l - ?, s = s - ?, m = m - ? WHERE p = 1 AND c = 1 AND d = 1", &[Unset; 3], None),
    ("UPDATE t SET l = ? + l WHERE p = 1 AND c = 1 AND d = 1", &[Unset], None),
    ("UPDATE t SET l = ? WHERE p = 1 AND c = 1 AND d = 1", &[ONE], None),
    ("UPDATE t SET l[?] = 1 WHERE p = 1 AND c = 1 AND d = 1", &[Unset], Some("unset value for list index")),
    ("UPDATE t SET l[?] = 1 WHERE p = 1 AND c = 1 AND d = 1", &[Null], Some("null value for list index")),
    ("UPDATE t SET l[?] = 1 WHERE p = 1 AND c = 1 AND d = 1", &[Int(7)], Some("List index 7 out of bound")),
    ("UPDATE t SET l[?] = 1 WHERE p = 1 AND c = 1 AND d = 1", &[Int(-1)], Some("List index -1 out of bound")),
    ("UPDATE t SET l[0] = ? WHERE p = 1 AND c = 1 AND d = 1", &[Unset], None),
    ("UPDATE t SET m[?] = 1 WHERE p = 1 AND c = 1 AND d = 1", &[Unset], Some("unset map key")),
    ("UPDATE t SET m[?] = 1 WHERE p = 1 AND c = 1 AND d = 1", &[Null], Some("null map key")),
    ("UPDATE t SET m['a'] = ? WHERE p = 1 AND c = 1 AND d = 1", &[Unset], None),
    ("UPDATE t SET n.a = ? WHERE p = 1 AND c = 1 AND d = 1", &[Unset], None),
    ("UPDATE t SET n.a = ? WHERE p = 1 AND c = 1 AND d = 1", &[Null], None),
    ("DELETE m[?] FROM t WHERE p = 1 AND c = 1 AND d = 1", &[Null], Some("null value")),
    ("DELETE m[?] FROM t WHERE p = 1 AND c = 1 AND d = 1", &[Unset], Some("unset value")),
    ("DELETE s[?] FROM t WHERE p = 1 AND c = 1 AND d = 1", &[Unset], Some("unset value")),
    (
        "INSERT INTO t (p, c, d, l) VALUES (1, 1, 1, [?, 1])",
        &[Unset],
        Some("unset value is not supported inside collections"),
    ),
    ("INSERT INTO t (p, c, d, l) VALUES (1, 1, 1, [?, 1])", &[Null], Some("null is not supported inside collections")),
    ("INSERT INTO t (p, c, d, s) VALUES (1, 1, 1, {?})", &[Null], Some("null is not supported inside collections")),
    ("INSERT INTO t (p, c, d, m) VALUES (1, 1, 1, {?: 1})", &[Null], Some("null is not supported inside collections")),
    (
        "INSERT INTO t (p, c, d, m) VALUES (1, 1, 1, {'a': ?})",
        &[Unset],
        Some("unset value is not supported inside collections"),
    ),
    ("INSERT INTO t (p, c, d, tp) VALUES (1, 1, 1, (?, 'a'))", &[Null], None),
    ("INSERT INTO t (p, c, d, tp) VALUES (1, 1, 1, (?, 'a'))", &[Unset], Some("unset value for tuple field number 0")),
    ("INSERT INTO t (p, c, d, n) VALUES (1, 1, 1, {a: ?})", &[Null], None),
    ("INSERT INTO t JSON ?", &[Null], Some("Got null for INSERT JSON values")),
    ("INSERT INTO t JSON ?", &[Unset], Some("Got unset for INSERT JSON values")),
    ("INSERT INTO t JSON ?", &[Text("{\"p\": 1, \"c\": 1, \"d\": 1}")], None),
    ("UPDATE k SET n = n + ? WHERE p = 1", &[Unset], None),
    ("UPDATE k SET n = n + ? WHERE p = 1", &[Null], Some("null value for counter increment")),
    ("UPDATE k SET n = n - ? WHERE p = 1", &[Long(1)], None),
    ("UPDATE k SET n = n - ? WHERE p = 1", &[Int(1)], Some("8 bytes")),
    // USING
    ("INSERT INTO t (p, c, d) VALUES (1, 1, 1) USING TTL ? AND TIMESTAMP ?", &[Unset, Unset], None),
    ("INSERT INTO t (p, c, d) VALUES (1, 1, 1) USING TTL ?", &[Null], Some("null value of TTL")),
    ("INSERT INTO t (p, c, d) VALUES (1, 1, 1) USING TTL ?", &[Int(-1)], Some("TTL must be greater or equal to 0")),
    ("INSERT INTO t (p, c, d) VALUES (1, 1, 1) USING TTL ?", &[Int(630_720_001)], Some("ttl is too large")),
    ("INSERT INTO t (p, c, d) VALUES (1, 1, 1) USING TTL ?", &[Int(630_720_000)], None),
    ("INSERT INTO t (p, c, d) VALUES (1, 1, 1) USING TIMESTAMP ?", &[Null], Some("null value of timestamp")),
    ("INSERT INTO t (p, c, d) VALUES (1, 1, 1) USING TIMESTAMP ?", &[Long(i64::MIN)], Some("Out of bound timestamp")),
    ("INSERT INTO t (p, c, d) VALUES (1, 1, 1) USING TIMESTAMP ?", &[Long(i64::MAX)], Some("3 days into the future")),
    ("INSERT INTO t (p, c, d) VALUES (1, 1, 1) USING TIMEOUT ?", &[Null], Some("Timeout value cannot be unset/null")),
    ("INSERT INTO t (p, c, d) VALUES (1, 1, 1) USING TIMEOUT ?", &[Unset], Some("Timeout value cannot be unset/null")),
    ("SELECT * FROM t WHERE p = 1 USING TIMEOUT ?", &[Raw(&[0, 0, 0])], Some("timed out")),
    ("SELECT * FROM t WHERE p = 1 USING TIMEOUT ?", &[Raw(&[0, 2, 0])], Some("days/months")),
    // reads
    ("SELECT * FROM t WHERE p = ?", &[Null], None),
    ("SELECT * FROM t WHERE p = ?", &[Unset], Some("unset value")),
    ("SELECT * FROM t WHERE p IN ?", &[Null], None),
    ("SELECT * FROM t WHERE p IN ?", &[Unset], Some("unset value")),
    ("SELECT * FROM t WHERE p IN (1, ?)", &[Null], None),
    ("SELECT * FROM t WHERE p IN (1, ?)", &[Unset], Some("unset value")),
    ("SELECT * FROM t WHERE p = 1 AND c = ?", &[Null], None),
    ("SELECT * FROM t WHERE p = 1 AND c = ?", &[Unset], Some("unset value")),
    ("SELECT * FROM t WHERE p = 1 AND c > ?", &[Unset], Some("unset value")),
    ("SELECT * FROM t WHERE p = 1 AND (c, d) > (?, 1)", &[Null], Some("null value")),
    ("SELECT * FROM t WHERE p = 1 AND (c, d) > (?, 1)", &[Unset], Some("unset value")),
    ("SELECT * FROM t WHERE p = 1 AND (c, d) > ?", &[Unset], Some("unset value")),
    ("SELECT * FROM t WHERE p = 1 AND (c, d) IN ?", &[Null], None),
    ("SELECT * FROM t WHERE token(p) > ?", &[Null], Some("null value")),
    ("SELECT * FROM t WHERE token(p) > ?", &[Unset], Some("unset value")),
    ("SELECT * FROM t WHERE token(p) > ?", &[Int(5)], Some("Exception while binding column")),
    ("SELECT * FROM t WHERE v = ? ALLOW FILTERING", &[Null], None),
    ("SELECT * FROM t WHERE v = ? ALLOW FILTERING", &[Unset], Some("unset value")),
    ("SELECT * FROM t WHERE v IN ? ALLOW FILTERING", &[ONE], None),
    ("SELECT * FROM t WHERE v NOT IN ? ALLOW FILTERING", &[ONE], None),
    ("SELECT * FROM t WHERE (c, d) NOT IN ? ALLOW FILTERING", &[NONE], None),
    ("SELECT * FROM t WHERE l CONTAINS ? ALLOW FILTERING", &[Null], None),
    ("SELECT * FROM t WHERE l CONTAINS ? ALLOW FILTERING", &[Unset], Some("unset value")),
    ("SELECT * FROM t WHERE m[?] = 1 ALLOW FILTERING", &[Null], None),
    ("SELECT * FROM t WHERE m[?] = 1 ALLOW FILTERING", &[Unset], Some("unset value")),
    ("SELECT * FROM t LIMIT ?", &[Null], Some("null value of limit")),
    ("SELECT * FROM t LIMIT ?", &[Unset], None),
    ("SELECT * FROM t LIMIT ?", &[Int(0)], Some("LIMIT must be strictly positive")),
    ("SELECT * FROM t LIMIT ?", &[Int(-1)], Some("LIMIT must be strictly positive")),
    ("SELECT * FROM t PER PARTITION LIMIT ?", &[Int(0)], Some("PER PARTITION LIMIT must be strictly positive")),
    ("SELECT * FROM t PER PARTITION LIMIT ?", &[Unset], None),
    ("SELECT m[?], l[?] FROM t", &[Null, Null], None),
    ("SELECT intAsBlob(?) FROM t", &[Null], None),
    ("SELECT (int)? FROM t", &[Unset], Some("unset value")),
    ("SELECT writetime(m[?]) FROM t", &[Null], None),
    // malformed values
    ("INSERT INTO t (p, c, d, v) VALUES (1, 1, 1, ?)", &[Raw(&[1, 2, 3])], Some("Exception while binding column v")),
    ("INSERT INTO t (p, c, d, v) VALUES (1, 1, 1, ?)", &[Long(1)], Some("Exception while binding column v")),
    ("INSERT INTO t (p, c, d, v) VALUES (1, 1, 1, ?)", &[Raw(&[])], None),
    ("INSERT INTO t (p, c, d, te) VALUES (1, 1, 1, ?)", &[Raw(&[0xff])], Some("non-UTF8")),
    ("INSERT INTO t (p, c, d, te) VALUES (1, 1, 1, ?)", &[Raw(&[0xed, 0xa0, 0x80])], Some("non-UTF8")),
    ("INSERT INTO t (p, c, d, a) VALUES (1, 1, 1, ?)", &[Raw(&[0x80])], Some("non-ASCII")),
    ("INSERT INTO t (p, c, d, bo) VALUES (1, 1, 1, ?)", &[Raw(&[1, 1])], Some("Exception while binding column bo")),
    ("INSERT INTO t (p, c, d, ti) VALUES (1, 1, 1, ?)", &[Long(-1)], Some("Exception while binding column ti")),
    (
        "INSERT INTO t (p, c, d, ti) VALUES (1, 1, 1, ?)",
        &[Long(86_400_000_000_000)],
        Some("Exception while binding column ti"),
    ),
    ("INSERT INTO t (p, c, d, tu) VALUES (1, 1, 1, ?)", &[Raw(&[0; 16])], Some("Unsupported UUID version")),
    (
        "INSERT INTO t (p, c, d, i) VALUES (1, 1, 1, ?)",
        &[Raw(&[1, 2, 3, 4, 5])],
        Some("Exception while binding column i"),
    ),
    ("INSERT INTO t (p, c, d, de) VALUES (1, 1, 1, ?)", &[Raw(&[0, 0])], Some("Exception while binding column de")),
    ("INSERT INTO t (p, c, d, du) VALUES (1, 1, 1, ?)", &[Raw(&[2])], Some("Exception while binding column du")),
    ("INSERT INTO t (p, c, d, du) VALUES (1, 1, 1, ?)", &[Raw(&[2, 1, 0])], Some("same sign")),
    ("INSERT INTO t (p, c, d, l) VALUES (1, 1, 1, ?)", &[Raw(&[0, 0, 0, 1])], Some("Exception while binding column l")),
    (
        "INSERT INTO t (p, c, d, l) VALUES (1, 1, 1, ?)",
        &[Raw(&[0, 0, 0, 0, 9])],
        Some("Exception while binding column l"),
    ),
    (
        "INSERT INTO t (p, c, d, f) VALUES (1, 1, 1, ?)",
        &[Raw(&[0xff, 0xff, 0xff, 0xff])],
        Some("Exception while binding column f"),
    ),
    (
        "INSERT INTO t (p, c, d, tp) VALUES (1, 1, 1, ?)",
        &[Raw(&[0, 0, 0, 4, 0])],
        Some("Exception while binding column tp"),
    ),
    ("INSERT INTO t (p, c, d, tp) VALUES (1, 1, 1, ?)", &[Raw(&[0, 0, 0, 4, 0, 0, 0, 1])], None),
    (
        "INSERT INTO t (p, c, d, v) VALUES (?, ?, ?, ?)",
        &[Int(1), Int(1)],
        Some("Invalid amount of bind variables: expected 4 received 2"),
    ),
    (
        "INSERT INTO t (p, c, d, v) VALUES (1, 1, 1, ?)",
        &[Int(1), Int(1)],
        Some("Invalid amount of bind variables: expected 1 received 2"),
    ),
];

async fn outcome(session: &Session, statement: &str, given: &[Given]) -> Result<(), String> {
    let prepared =
        session.processor.prepare(&session.client, statement, None).await.map_err(|error| error.to_string())?;
    let values = BoundValues::Positional(given.iter().map(|value| value.bound()).collect());
    let params = QueryParams { values, ..QueryParams::default() };
    let answer = session.processor.execute(&session.client, &prepared.id, &params).await;
    answer.map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn every_place_takes_or_refuses_what_is_bound() {
    with_node("bound", |session| async move {
        session.use_keyspace("ks").await;
        for statement in SCHEMA {
            session.ok(statement).await;
        }
        let mut wrong = Vec::new();
        for (statement, given, refused) in ROWS {
            session.ok("INSERT INTO t (p, c, d, v, l, s, m) VALUES (1, 1, 1, 5, [1, 2], {1}, {'a': 1})").await;
            let outcome = outcome(&session, statement, given).await;
            let right = match (&outcome, refused) {
                (Ok(()), None) => true,
                (Err(why), Some(part)) => why.contains(part),
                _ => false,
            };
            if !right {
                wrong.push(format!("{statement} with {given:?}: {outcome:?} instead of {refused:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}
