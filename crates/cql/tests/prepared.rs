//! Prepared statements, bound values, paging and protocol batches, end to end in one process.

mod support;

use bytes::Bytes;
use cql::api::{Batch, BatchKind, BatchStatement, BoundValue, BoundValues, Rows};
use cql::dialect::Dialect;
use cql::{Answer, AnswerKind, Error, Prepared, QueryParams};
use model::CqlType;
use model::types::Value;
use support::{Session, bound, show_rows, values, with_node};

const INT: &CqlType = &CqlType::Int;
const TEXT: &CqlType = &CqlType::Text;

fn int(value: i32) -> (&'static CqlType, Value) {
    (INT, Value::Int(value))
}

fn text(value: &str) -> (&'static CqlType, Value) {
    (TEXT, Value::Text(value.to_owned()))
}

fn params(values: BoundValues) -> QueryParams {
    QueryParams { values, ..QueryParams::default() }
}

async fn execute(session: &Session, prepared: &Prepared, values: BoundValues) -> Result<Answer, Error> {
    session.processor.execute(&session.client, &prepared.id, &params(values)).await
}

async fn prepare(session: &Session, text: &str) -> Prepared {
    let prepared = session.processor.prepare(&session.client, text, None).await;
    prepared.unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn rows(answer: Result<Answer, Error>) -> Rows {
    match answer.map(|answer| answer.kind) {
        Ok(AnswerKind::Rows(rows)) => rows,
        other => panic!("{other:?}"),
    }
}

fn markers(prepared: &Prepared) -> Vec<String> {
    prepared.markers.columns.iter().map(|column| format!("{} {}", column.name, column.ty)).collect()
}

#[test]
fn a_prepared_statement_takes_values_by_place_and_by_name() {
    with_node("prepared", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c text, v int, PRIMARY KEY (p, c))").await;
        let insert = prepare(&session, "INSERT INTO t (c, v, p) VALUES (?, ?, ?)").await;
        assert_eq!(markers(&insert), ["c text", "v int", "p int"]);
        assert_eq!(insert.partition_key_markers, [2]);
        assert!(insert.result.columns.is_empty());
        execute(&session, &insert, values(&[text("a"), int(1), int(7)])).await.unwrap();
        let named = vec![
            ("p".to_owned(), bound(INT, &Value::Int(7))),
            ("v".to_owned(), bound(INT, &Value::Int(2))),
            ("c".to_owned(), bound(TEXT, &Value::Text("b".into()))),
        ];
        execute(&session, &insert, BoundValues::Named(named)).await.unwrap();

        let select = prepare(&session, "SELECT c, v FROM t WHERE p = :key AND c > :low LIMIT :n").await;
        assert_eq!(markers(&select), ["key int", "low text", "n int"]);
        let found = rows(execute(&session, &select, values(&[int(7), text(""), int(10)])).await);
        assert_eq!(show_rows(&found), ["c='a', v=1", "c='b', v=2"]);
        let found = rows(execute(&session, &select, values(&[int(7), text("a"), int(10)])).await);
        assert_eq!(show_rows(&found), ["c='b', v=2"]);

        let wrong = execute(&session, &select, values(&[int(7)])).await.unwrap_err();
        assert_eq!(wrong, Error::Invalid("Invalid amount of bind variables: expected 3 received 1".into()));
        let bad = BoundValues::Positional(vec![BoundValue::Value(Bytes::from_static(b"xyz")); 3].into());
        let wrong = execute(&session, &select, bad).await.unwrap_err();
        assert!(wrong.to_string().starts_with("Exception while binding column "), "{wrong}");
        let unknown = session.processor.execute(&session.client, &[0; 16], &QueryParams::default()).await;
        assert_eq!(unknown.unwrap_err(), Error::Unprepared([0; 16]));
    });
}

#[test]
fn markers_of_one_name_are_one_variable() {
    with_node("names", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, a int, b text)").await;
        let both = prepare(&session, "UPDATE t SET a = :x WHERE p = :x").await;
        assert_eq!(markers(&both), ["x int"]);
        execute(&session, &both, values(&[int(5)])).await.unwrap();
        assert_eq!(session.rows("SELECT * FROM t").await, ["p=5, a=5, b=null"]);
        let clash = session.processor.prepare(&session.client, "UPDATE t SET b = :x WHERE p = :x", None).await;
        assert_eq!(clash.unwrap_err().to_string(), "variable :x has type text which doesn't match int");
    });
}

#[test]
fn markers_of_one_name_may_be_told_apart() {
    with_node("apart", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, a int, b text)").await;
        let text = "SELECT a FROM t WHERE p = :x AND a = :x ALLOW FILTERING";
        let one = prepare(&session, text).await;
        let config = (*session.processor.config()).clone();
        let dialect = Dialect { names_are_one: false, ..Dialect::default() };
        session.processor.set_config(cql::Config { dialect, ..config.clone() });
        let both = prepare(&session, "UPDATE t SET a = :x, b = :y WHERE p = :x").await;
        assert_eq!(markers(&both), ["x int", "y text", "x int"]);
        execute(&session, &both, values(&[int(1), (TEXT, Value::Text("b".into())), int(2)])).await.unwrap();
        assert_eq!(session.rows("SELECT * FROM t").await, ["p=2, a=1, b='b'"]);
        let named =
            vec![("x".to_owned(), bound(INT, &Value::Int(7))), ("y".to_owned(), bound(TEXT, &Value::Text("c".into())))];
        execute(&session, &both, BoundValues::Named(named)).await.unwrap();
        assert_eq!(session.rows("SELECT p, a FROM t WHERE p = 7").await, ["p=7, a=7"]);
        let given = params(values(&[int(7), int(7)]));
        let found = session.processor.query(&session.client, text, &given).await;
        assert_eq!(rows(found).count, 1, "as text it is planned anew");
        assert_eq!(markers(&one), ["x int"]);
        assert_eq!(rows(execute(&session, &one, values(&[int(7)])).await).count, 1, "as it was prepared");
        assert_eq!(
            markers(&prepare(&session, text).await),
            ["x int", "x int"],
            "prepared again it is another statement"
        );
        session.processor.set_config(config);
        let found = session.processor.query(&session.client, text, &params(values(&[int(7)]))).await;
        assert_eq!(rows(found).count, 1);
    });
}

#[test]
fn the_marker_of_in_is_named_as_the_operator_wants() {
    with_node("in_names", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, \"C\" int, PRIMARY KEY (p, \"C\"))").await;
        let text = "SELECT * FROM t WHERE p IN ? AND \"C\" NOT IN ? ALLOW FILTERING";
        let names = async || markers(&prepare(&session, text).await);
        assert_eq!(names().await, ["IN(p) frozen<list<int>>", "NOT IN(C) frozen<list<int>>"]);
        let config = (*session.processor.config()).clone();
        let dialect = Dialect { in_is_upper: false, ..Dialect::default() };
        session.processor.set_config(cql::Config { dialect, ..config.clone() });
        assert_eq!(names().await, ["in(p) frozen<list<int>>", "not in(C) frozen<list<int>>"]);
        session.processor.set_config(config);
        assert_eq!(names().await, ["IN(p) frozen<list<int>>", "NOT IN(C) frozen<list<int>>"]);
    });
}

#[test]
fn markers_are_named_after_what_they_stand_for() {
    with_node("marker_names", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c int, d int, l list<int>, m map<text, int>, PRIMARY KEY (p, c, d))").await;
        for (statement, expected) in [
            ("SELECT * FROM t WHERE p IN ?", vec!["IN(p) frozen<list<int>>"]),
            ("SELECT * FROM t WHERE p IN (?, ?)", vec!["IN(p) int", "IN(p) int"]),
            ("SELECT * FROM t WHERE token(p) > ? AND token(p) <= ?", vec!["partition key token bigint"; 2]),
            ("SELECT * FROM t WHERE p = 1 AND (c, d) > ?", vec!["(c, d) frozen<tuple<int, int>>"]),
            ("SELECT * FROM t WHERE p = 1 AND (c, d) > (?, ?)", vec!["c int", "d int"]),
            ("SELECT * FROM t WHERE p = 1 AND (c, d) IN ?", vec!["IN((c, d)) frozen<list<frozen<tuple<int, int>>>>"]),
            ("SELECT * FROM t PER PARTITION LIMIT ? LIMIT ?", vec!["[per_partition_limit] int", "[limit] int"]),
            (
                "UPDATE t USING TTL ? AND TIMESTAMP ? SET l[?] = ?, m[?] = ? WHERE p = ? AND c = ? AND d = ?",
                vec![
                    "[ttl] int",
                    "[timestamp] bigint",
                    "idx(l) int",
                    "value(l) int",
                    "key(m) text",
                    "value(m) int",
                    "p int",
                    "c int",
                    "d int",
                ],
            ),
        ] {
            let prepared = prepare(&session, statement).await;
            assert_eq!(markers(&prepared), expected, "{statement}");
        }
        session.ok("INSERT INTO t (p, c, d) VALUES (1, 2, 3)").await;
        let tuples = prepare(&session, "SELECT d FROM t WHERE p = 1 AND (c, d) IN ?").await;
        let ty = tuples.markers.columns[0].ty.clone();
        let pair = |c, d| Value::Tuple(vec![Value::Int(c), Value::Int(d)]);
        let list = Value::List(vec![pair(9, 9), pair(2, 3)]);
        let found = rows(execute(&session, &tuples, values(&[(&ty, list)])).await);
        assert_eq!(show_rows(&found), ["d=3"]);
        let above = prepare(&session, "SELECT d FROM t WHERE p = 1 AND (c, d) > ?").await;
        let ty = above.markers.columns[0].ty.clone();
        assert_eq!(rows(execute(&session, &above, values(&[(&ty, pair(2, 2))])).await).count, 1);
        assert_eq!(rows(execute(&session, &above, values(&[(&ty, pair(2, 3))])).await).count, 0);
    });
}

#[test]
fn unset_leaves_columns_alone_and_is_refused_elsewhere() {
    with_node("unset", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, a int, l list<int>)").await;
        session.ok("INSERT INTO t (p, a, l) VALUES (1, 1, [1])").await;
        let insert = prepare(&session, "INSERT INTO t (p, a, l) VALUES (?, ?, ?) USING TTL ?").await;
        let one = bound(INT, &Value::Int(1));
        let set = |list: [BoundValue; 4]| BoundValues::Positional(list.into_iter().collect());
        let unset = || BoundValue::Unset;
        execute(&session, &insert, set([one.clone(), unset(), unset(), unset()])).await.unwrap();
        assert_eq!(session.rows("SELECT * FROM t").await, ["p=1, a=1, l=[1]"]);
        let refused = execute(&session, &insert, set([unset(), unset(), unset(), unset()])).await.unwrap_err();
        assert!(refused.to_string().contains("unset"), "{refused}");
        execute(&session, &insert, set([one.clone(), BoundValue::Null, BoundValue::Null, unset()])).await.unwrap();
        assert_eq!(session.rows("SELECT * FROM t").await, ["p=1, a=null, l=null"]);
        let select = prepare(&session, "SELECT p FROM t WHERE p = ? LIMIT ?").await;
        let found = execute(&session, &select, BoundValues::Positional([one, unset()].into_iter().collect())).await;
        assert_eq!(rows(found).count, 1);
        let refused =
            execute(&session, &select, BoundValues::Positional([unset(), unset()].into_iter().collect())).await;
        assert!(refused.unwrap_err().to_string().contains("unset"));
    });
}

#[test]
fn a_changed_table_is_planned_anew() {
    with_node("replan", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, a int)").await;
        let all = prepare(&session, "SELECT * FROM t").await;
        session.ok("INSERT INTO t (p, a) VALUES (1, 1)").await;
        assert_eq!(show_rows(&rows(execute(&session, &all, values(&[])).await)), ["p=1, a=1"]);
        session.ok("ALTER TABLE t ADD b text").await;
        assert_eq!(show_rows(&rows(execute(&session, &all, values(&[])).await)), ["p=1, a=1, b=null"]);
        let b = prepare(&session, "SELECT b FROM t WHERE p = ?").await;
        session.ok("ALTER TABLE t DROP b").await;
        let gone = execute(&session, &b, values(&[int(1)])).await.unwrap_err();
        assert_eq!(gone, Error::Unprepared(b.id));
        let gone = session.processor.prepare(&session.client, "SELECT b FROM t WHERE p = ?", None).await.unwrap_err();
        assert_eq!(gone, Error::Invalid("Unrecognized name b".into()));
        session.ok("DROP TABLE t").await;
        let gone = execute(&session, &all, values(&[])).await.unwrap_err();
        assert_eq!(gone, Error::Unprepared(all.id));
        session.ok("CREATE TABLE t (p text PRIMARY KEY)").await;
        let gone = execute(&session, &all, values(&[])).await.unwrap_err();
        assert_eq!(gone, Error::Unprepared(all.id));
        assert_eq!(prepare(&session, "SELECT * FROM t").await.id, all.id);
        assert_eq!(rows(execute(&session, &all, values(&[])).await).count, 0);
    });
}

#[test]
fn columns_that_changed_since_they_were_told_are_known_to_have() {
    with_node("altered", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v int)").await;
        let all = prepare(&session, "SELECT * FROM t").await;
        let one = prepare(&session, "SELECT v FROM t").await;
        let altered =
            async |statement: &Prepared| rows(execute(&session, statement, values(&[])).await).metadata.altered.get();
        assert!(!altered(&all).await && !altered(&one).await);
        // Who relies on what it was told prepares the statement again, once for each connection and change.
        let skip = QueryParams { skip_metadata: true, ..QueryParams::default() };
        let relying = async |statement: &Prepared| {
            session.processor.execute(&session.client, &statement.id, &skip).await.map(|_| ())
        };
        assert_eq!(relying(&all).await, Ok(()));
        session.ok("ALTER TABLE t ADD w int").await;
        assert!(altered(&all).await && !altered(&one).await, "only one of them has another column");
        assert_eq!((relying(&all).await, relying(&one).await), (Err(Error::Unprepared(all.id)), Ok(())));
        assert_eq!(relying(&all).await, Ok(()));
        session.ok("ALTER TABLE t DROP w").await;
        assert_eq!(prepare(&session, "SELECT * FROM t").await.id, all.id);
        assert_eq!(relying(&all).await, Ok(()), "it has just been told");
        assert!(altered(&all).await, "somebody may have been told of w");
    });
}

#[test]
fn prepared_statements_keep_their_keyspace() {
    with_node("keyspaces", |session| async move {
        session.use_keyspace("one").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY)").await;
        let insert = prepare(&session, "INSERT INTO t (p) VALUES (?)").await;
        session.use_keyspace("two").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY)").await;
        let other = prepare(&session, "INSERT INTO t (p) VALUES (?)").await;
        assert_ne!(insert.id, other.id);
        execute(&session, &insert, values(&[int(1)])).await.unwrap();
        execute(&session, &other, values(&[int(2)])).await.unwrap();
        assert_eq!(session.rows("SELECT p FROM one.t").await, ["p=1"]);
        assert_eq!(session.rows("SELECT p FROM t").await, ["p=2"]);
    });
}

/// All rows of a statement, read with this page size; and the sizes of the pages.
async fn page_through(session: &Session, statement: &str, size: i32) -> (Vec<String>, Vec<u32>) {
    let mut params = QueryParams { page_size: Some(size), ..QueryParams::default() };
    let (mut all, mut sizes) = (Vec::new(), Vec::new());
    loop {
        let page = rows(session.processor.query(&session.client, statement, &params).await);
        all.extend(show_rows(&page));
        sizes.push(page.count);
        assert!(sizes.len() < 1000, "{statement} does not end");
        match page.paging_state {
            Some(state) => params.paging_state = Some(state),
            None => return (all, sizes),
        }
    }
}

#[test]
fn pages_give_the_rows_of_the_whole() {
    with_node("pages", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c int, v int, s int static, PRIMARY KEY (p, c))").await;
        for p in 0..6 {
            for c in 0..p {
                session.ok(&format!("INSERT INTO t (p, c, v) VALUES ({p}, {c}, {})", (p + c) % 3)).await;
            }
            session.ok(&format!("UPDATE t SET s = {p} WHERE p = {p}")).await;
        }
        for statement in [
            "SELECT * FROM t",
            "SELECT v, token(p) FROM t",
            "SELECT * FROM t WHERE p = 5",
            "SELECT * FROM t WHERE p = 5 ORDER BY c DESC",
            "SELECT * FROM t WHERE p = 5 AND c IN (0, 2, 4)",
            "SELECT * FROM t WHERE p IN (5, 0, 3, 99, 4)",
            "SELECT * FROM t WHERE p IN (5, 0, 3, 99, 4) LIMIT 7",
            "SELECT * FROM t PER PARTITION LIMIT 2",
            "SELECT * FROM t WHERE p IN (1, 2, 3, 4, 5) PER PARTITION LIMIT 3 LIMIT 10",
            "SELECT DISTINCT p, s FROM t",
            "SELECT * FROM t WHERE v = 1 ALLOW FILTERING",
            "SELECT * FROM t WHERE v > 0 LIMIT 5 ALLOW FILTERING",
            "SELECT * FROM t WHERE v > 0 PER PARTITION LIMIT 2 ALLOW FILTERING",
            "SELECT * FROM t WHERE v > 0 PER PARTITION LIMIT 2 LIMIT 4 ALLOW FILTERING",
            "SELECT count(*), max(v) FROM t",
            "SELECT * FROM t WHERE token(p) > 0",
            "SELECT table_name FROM system_schema.tables",
        ] {
            let whole = session.rows(statement).await;
            for size in [1, 2, 3, 5, 100] {
                let (paged, sizes) = page_through(&session, statement, size).await;
                assert_eq!(paged, whole, "{statement} in pages of {size}");
                assert!(sizes.iter().all(|rows| *rows <= size as u32), "{statement}: pages of {sizes:?}");
            }
        }
        let params = QueryParams { paging_state: Some(Bytes::from_static(b"junk")), ..QueryParams::default() };
        for statement in
            ["SELECT * FROM t", "SELECT * FROM t WHERE v = 1 ALLOW FILTERING", "SELECT key FROM system.local"]
        {
            let refused = session.processor.query(&session.client, statement, &params).await.unwrap_err();
            assert_eq!(refused, Error::Protocol("Invalid value for the paging state".into()), "{statement}");
        }
        let params = QueryParams { page_size: Some(10), ..QueryParams::default() };
        let both = "SELECT * FROM t WHERE p IN (1, 2) ORDER BY c";
        let refused = session.processor.query(&session.client, both, &params).await.unwrap_err();
        assert!(refused.to_string().starts_with("Cannot page queries with both ORDER BY and a IN"), "{refused}");
    });
}

#[test]
fn protocol_batches_merge_and_warn() {
    with_node("batches", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c int, v text, PRIMARY KEY (p, c))").await;
        let insert = prepare(&session, "INSERT INTO t (p, c, v) VALUES (?, ?, ?)").await;
        let batch = |statements| Batch { kind: BatchKind::Unlogged, statements, params: QueryParams::default() };
        let statements = vec![
            BatchStatement::Prepared(insert.id, values(&[int(1), int(1), text("a")])),
            BatchStatement::Prepared(insert.id, values(&[int(1), int(2), text("b")])),
            BatchStatement::Query("INSERT INTO t (p, c, v) VALUES (?, 3, 'c')".into(), values(&[int(2)])),
        ];
        let answer = session.processor.batch(&session.client, &batch(statements)).await.unwrap();
        assert!(answer.warnings.is_empty());
        assert_eq!(session.rows("SELECT * FROM t").await, ["p=1, c=1, v='a'", "p=1, c=2, v='b'", "p=2, c=3, v='c'"]);

        let of_size = |bytes: usize, partitions: i32| {
            let one = |p| BatchStatement::Prepared(insert.id, values(&[int(p), int(0), text(&"x".repeat(bytes))]));
            batch((0..partitions).map(one).collect())
        };
        let answer = session.processor.batch(&session.client, &of_size(100 << 10, 2)).await.unwrap();
        assert_eq!(answer.warnings.len(), 1);
        assert!(answer.warnings[0].starts_with("Batch modifying 2 partitions in ks.t is of size "));
        let answer = session.processor.batch(&session.client, &of_size(200 << 10, 1)).await.unwrap();
        assert!(answer.warnings.is_empty(), "one partition may be of any size");
        let refused = session.processor.batch(&session.client, &of_size(600 << 10, 2)).await.unwrap_err();
        assert_eq!(refused, Error::Invalid("Batch too large".into()));
        let select = BatchStatement::Query("SELECT * FROM t".into(), BoundValues::default());
        let refused = session.processor.batch(&session.client, &batch(vec![select])).await.unwrap_err();
        assert!(refused.to_string().contains("only UPDATE, INSERT and DELETE"), "{refused}");
        let unknown = BatchStatement::Prepared([3; 16], BoundValues::default());
        let refused = session.processor.batch(&session.client, &batch(vec![unknown])).await.unwrap_err();
        assert_eq!(refused, Error::Unprepared([3; 16]));
    });
}

#[test]
fn an_altered_type_is_planned_anew() {
    with_node("types", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TYPE u (a int)").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v frozen<u>)").await;
        let insert = prepare(&session, "INSERT INTO t (p, v) VALUES (?, ?)").await;
        let select = prepare(&session, "SELECT v FROM t WHERE p = 1").await;
        session.ok("ALTER TYPE u ADD b text").await;
        session.ok("INSERT INTO t (p, v) VALUES (1, {a: 1, b: 'x'})").await;
        assert_eq!(show_rows(&rows(execute(&session, &select, values(&[])).await)), ["v={a: 1, b: 'x'}"]);
        let ty = CqlType::tuple([CqlType::Int, CqlType::Text]);
        let value = Value::Tuple(vec![Value::Int(2), Value::Text("y".into())]);
        let new = values(&[int(1), (&ty, value)]);
        let refused = execute(&session, &insert, new.clone()).await.unwrap_err();
        assert_eq!(refused, Error::Unprepared(insert.id), "the client shall learn of the new field");
        assert_eq!(prepare(&session, "INSERT INTO t (p, v) VALUES (?, ?)").await.id, insert.id);
        execute(&session, &insert, new).await.unwrap();
        assert_eq!(show_rows(&rows(execute(&session, &select, values(&[])).await)), ["v={a: 2, b: 'y'}"]);
    });
}

const BIGINT: &CqlType = &CqlType::Bigint;

fn bigint(value: i64) -> (&'static CqlType, Value) {
    (BIGINT, Value::Bigint(value))
}

async fn insert_batch(session: &Session, insert: &Prepared, values: BoundValues) -> Result<Answer, Error> {
    let statements = vec![
        BatchStatement::Query("INSERT INTO t (p) VALUES (99)".into(), BoundValues::default()),
        BatchStatement::Prepared(insert.id, values),
    ];
    let batch = Batch { kind: BatchKind::Unlogged, statements, params: QueryParams::default() };
    session.processor.batch(&session.client, &batch).await
}

const INSERT: &str = "INSERT INTO t (p, v) VALUES (?, ?)";

#[test]
fn values_for_a_dropped_table_never_reach_one_of_other_types() {
    with_node("recreated", |session| async move {
        let other = session.another();
        session.use_keyspace("ks").await;
        other.ok("USE ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v bigint)").await;
        let insert = prepare(&session, INSERT).await;
        let old = || values(&[int(1), bigint(7)]);
        execute(&session, &insert, old()).await.unwrap();
        for again in ["DROP TABLE t", "DROP KEYSPACE ks"] {
            session.ok(again).await;
            if again.contains("KEYSPACE") {
                session.use_keyspace("ks").await;
            }
            session.ok("CREATE TABLE t (p int PRIMARY KEY, v double)").await;
            for session in [&session, &other, &session] {
                let refused = execute(session, &insert, old()).await.unwrap_err();
                assert_eq!(refused, Error::Unprepared(insert.id), "{again}");
                let refused = insert_batch(session, &insert, old()).await.unwrap_err();
                assert!(refused.to_string().contains("was prepared for a table of other types"), "{again}: {refused}");
                let prepared = prepare(session, INSERT).await;
                assert_ne!(prepared.id, insert.id, "a driver would send the old values under the old id");
                assert_eq!(markers(&prepared), ["p int", "v double"]);
            }
            assert!(session.rows("SELECT * FROM t").await.is_empty(), "{again}");
        }
    });
}

#[test]
fn a_table_made_again_with_the_same_types_keeps_the_ids_of_statements() {
    with_node("same-again", |session| async move {
        let other = session.another();
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v bigint)").await;
        let insert = prepare(&session, INSERT).await;
        session.ok("DROP TABLE t").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v bigint, w int)").await;
        let value = || values(&[int(1), bigint(7)]);
        for session in [&session, &other] {
            let refused = execute(session, &insert, value()).await.unwrap_err();
            assert_eq!(refused, Error::Unprepared(insert.id), "each connection prepares it again, once");
        }
        assert_eq!(prepare(&session, INSERT).await.id, insert.id);
        execute(&session, &insert, value()).await.unwrap();
        insert_batch(&session, &insert, value()).await.unwrap();
        execute(&other, &insert, value()).await.unwrap();
        assert_eq!(session.rows("SELECT p, v FROM t WHERE p = 1").await, ["p=1, v=7"]);
    });
}

#[test]
fn a_column_of_another_type_has_its_statements_prepared_again() {
    with_node("retyped", |session| async move {
        let other = session.another();
        session.use_keyspace("ks").await;
        other.ok("USE ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v timestamp)").await;
        let insert = prepare(&session, INSERT).await;
        session.ok("ALTER TABLE t ALTER v TYPE bigint").await;
        let old = || values(&[int(1), bigint(7)]);
        assert_eq!(execute(&session, &insert, old()).await.unwrap_err(), Error::Unprepared(insert.id));
        let again = prepare(&session, INSERT).await;
        assert_eq!((again.id, markers(&again)), (insert.id, vec!["p int".to_owned(), "v bigint".to_owned()]));
        execute(&session, &insert, old()).await.unwrap();
        let fresh = prepare(&other, INSERT).await;
        assert_ne!(fresh.id, insert.id, "every node gives a client that knows nothing the same id");
        execute(&other, &fresh, old()).await.unwrap();
        assert_eq!(session.rows("SELECT * FROM t").await, ["p=1, v=7"]);
        // Values for a column that was dropped are not for another one of its name.
        session.ok("ALTER TABLE t DROP v").await;
        session.ok("ALTER TABLE t ADD v timestamp").await;
        assert_eq!(execute(&other, &fresh, old()).await.unwrap_err(), Error::Unprepared(fresh.id));
        assert_ne!(prepare(&other, INSERT).await.id, fresh.id);
        assert_eq!(execute(&other, &fresh, old()).await.unwrap_err(), Error::Unprepared(fresh.id));
    });
}

#[test]
fn a_user_type_made_again_has_its_statements_prepared_again() {
    with_node("udt-again", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TYPE u (a int, b bigint)").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v frozen<u>)").await;
        let insert = prepare(&session, INSERT).await;
        session.ok("DROP TABLE t").await;
        session.ok("DROP TYPE u").await;
        session.ok("CREATE TYPE u (a int, b double)").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v frozen<u>)").await;
        let ty = CqlType::tuple([CqlType::Int, CqlType::Bigint]);
        let value = Value::Tuple(vec![Value::Int(2), Value::Bigint(3)]);
        let refused = execute(&session, &insert, values(&[int(1), (&ty, value)])).await.unwrap_err();
        assert_eq!(refused, Error::Unprepared(insert.id));
        assert_ne!(prepare(&session, INSERT).await.id, insert.id);
        assert!(session.rows("SELECT * FROM t").await.is_empty());
    });
}

#[test]
fn a_paging_state_of_a_dropped_table_is_an_invalid_request() {
    with_node("old-pages", |session| async move {
        session.use_keyspace("ks").await;
        let statements =
            ["SELECT * FROM t", "SELECT * FROM t WHERE v > 0 ALLOW FILTERING", "SELECT p FROM t GROUP BY p"];
        let create = async |ty: &str| {
            session.ok(&format!("CREATE TABLE t (p int PRIMARY KEY, v {ty})")).await;
            for p in 0..10 {
                session.ok(&format!("INSERT INTO t (p, v) VALUES ({p}, 1)")).await;
            }
        };
        let page = async |statement: &str, paging_state: Option<Bytes>| {
            let params = QueryParams { page_size: Some(2), paging_state, ..QueryParams::default() };
            session.processor.query(&session.client, statement, &params).await
        };
        create("bigint").await;
        let mut states = Vec::new();
        for statement in statements {
            let state = rows(page(statement, None).await).paging_state.expect("there is another page");
            assert!(page(statement, Some(state.clone())).await.is_ok());
            states.push(state);
        }
        session.ok("DROP TABLE t").await;
        create("double").await;
        for (statement, state) in statements.into_iter().zip(states) {
            let refused = page(statement, Some(state.clone())).await.unwrap_err();
            assert_eq!(refused, Error::Invalid("The table of the paging state has been dropped".into()), "{statement}");
            // What is not a state of any table is a protocol error.
            for at in [0, state.len() - 20, state.len() - 1] {
                let mut forged = state.to_vec();
                forged[at] ^= 1;
                let refused = page(statement, Some(forged.into())).await.unwrap_err();
                assert_eq!(refused.code(), 0x000A, "{statement}, byte {at}: {refused}");
            }
        }
    });
}

/// The command and text of a trace's session, once it is there, and how many events it has.
async fn trace_of(session: &Session, trace: uuid::Uuid) -> (String, usize) {
    let sessions =
        format!("SELECT command, duration, parameters['query'] FROM system_traces.sessions WHERE session_id = {trace}");
    for _ in 0..6000 {
        if let [row] = &session.rows(&sessions).await[..] {
            let events = format!("SELECT activity FROM system_traces.events WHERE session_id = {trace}");
            return (row.clone(), session.rows(&events).await.len());
        }
        rt::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("the trace was not written");
}

#[test]
fn traces_are_written_down() {
    with_node("traces", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY)").await;
        let query = async |text: &str| {
            let trace = rt::random::time_uuid();
            let params = QueryParams { trace: Some(trace), ..QueryParams::default() };
            let answer = session.processor.query(&session.client, text, &params).await;
            (answer.is_ok(), trace_of(&session, trace).await)
        };
        let check = |command: &str, text: &str, (row, events): (String, usize)| {
            assert!(row.starts_with(&format!("command='{command}', duration=")), "{row}");
            assert!(row.ends_with(&format!("='{text}'")), "{row}");
            assert!(events > 0, "{row}");
        };
        for (text, works) in [("SELECT * FROM t", true), ("SELECT * FROM nowhere", false)] {
            let (worked, trace) = query(text).await;
            assert_eq!(worked, works, "{text}");
            check("QUERY", text, trace);
        }
        for (text, works) in [("INSERT INTO t (p) VALUES (?)", true), ("INSERT INTO t (q) VALUES (?)", false)] {
            let trace = rt::random::time_uuid();
            let prepared = session.processor.prepare(&session.client, text, Some(trace)).await;
            assert_eq!(prepared.is_ok(), works, "{text}");
            check("PREPARE", text, trace_of(&session, trace).await);
        }
    });
}

#[test]
fn the_timestamp_of_a_dropped_column_can_be_bound() {
    with_node("prepared-drop", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v int)").await;
        session.ok("INSERT INTO t (p, v) VALUES (1, 1) USING TIMESTAMP 100").await;
        session.ok("INSERT INTO t (p, v) VALUES (2, 2) USING TIMESTAMP 300").await;
        let drop = prepare(&session, "ALTER TABLE t DROP v USING TIMESTAMP ?").await;
        assert_eq!(markers(&drop), ["[timestamp] bigint"]);
        let null = execute(&session, &drop, BoundValues::Positional(vec![BoundValue::Null].into())).await;
        assert!(null.unwrap_err().to_string().contains("null value of timestamp"));
        execute(&session, &drop, values(&[(&CqlType::Bigint, Value::Bigint(200))])).await.unwrap();
        session.ok("ALTER TABLE t ADD v int").await;
        assert_eq!(session.rows("SELECT p, v FROM t").await, ["p=1, v=null", "p=2, v=2"]);
        // An unset timestamp is none: all that was written so far is dropped.
        execute(&session, &drop, BoundValues::Positional(vec![BoundValue::Unset].into())).await.unwrap();
        session.ok("ALTER TABLE t ADD v int").await;
        assert_eq!(session.rows("SELECT p, v FROM t").await, ["p=1, v=null", "p=2, v=null"]);
    });
}

#[test]
fn only_using_timestamp_is_restricted_to_three_days_ahead() {
    with_node("prepared-future", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v int)").await;
        let far = rt::time::wall_micros() + 30 * 24 * 3600 * 1_000_000;
        let default = QueryParams { timestamp: Some(far), ..QueryParams::default() };
        let run = async |text: &str, params: &QueryParams| session.processor.query(&session.client, text, params).await;
        run("INSERT INTO t (p, v) VALUES (1, 1)", &default).await.unwrap();
        run("BEGIN BATCH INSERT INTO t (p, v) VALUES (2, 1); APPLY BATCH", &default).await.unwrap();
        let written = session.rows("SELECT writetime(v) FROM t").await;
        assert_eq!(written, vec![format!("writetime(v)={far}"); 2]);
        let using = format!("INSERT INTO t (p, v) VALUES (1, 1) USING TIMESTAMP {far}");
        for params in [&default, &QueryParams::default()] {
            let refused = run(&using, params).await.unwrap_err();
            assert!(refused.to_string().contains("3 days into the future"), "{refused}");
        }
    });
}
