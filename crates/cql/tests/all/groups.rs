//! GROUP BY in pages, and INSERT JSON with bound values.

use crate::support::{Session, show_rows, values, with_node};
use bytes::Bytes;
use cql::api::{BoundValue, BoundValues, Rows};
use cql::{Error, QueryParams, ResultKind, StatementResult};
use model::CqlType;
use model::types::Value;

fn rows(answer: Result<StatementResult, Error>) -> Rows {
    match answer.expect("the statement is fine").kind {
        ResultKind::Rows(rows) => rows,
        other => panic!("{other:?}"),
    }
}

/// The rows of each page. Without a size, there is only one.
async fn pages(session: &Session, text: &str, size: Option<i32>) -> Vec<Vec<String>> {
    let mut params = QueryParams { page_size: size, ..QueryParams::default() };
    let mut all = Vec::new();
    loop {
        let page = rows(session.processor.query(&session.client, text, &params).await);
        all.push(show_rows(&page));
        assert!(all.len() < 2000, "{text} does not end");
        match page.paging_state {
            Some(state) => params.paging_state = Some(state),
            None => return all,
        }
    }
}

/// A table of large and small partitions with large and small groups, and a partition with only a
/// static row.
async fn table(session: &Session) {
    session.use_keyspace("ks").await;
    session.ok("CREATE TABLE t (p int, c int, d int, v int, s int static, PRIMARY KEY (p, c, d))").await;
    for p in 0..6 {
        for n in 0..[1, 7, 130, 0, 40, 13][p] {
            let (c, d) = if p == 2 { (n / 60, n % 60) } else { (n / 3, n % 3) };
            session.ok(&format!("INSERT INTO t (p, c, d, v) VALUES ({p}, {c}, {d}, {})", n % 5)).await;
        }
    }
    session.ok("INSERT INTO t (p, s) VALUES (3, 9)").await;
    session.ok("CREATE TABLE single (p int PRIMARY KEY, v int)").await;
    for p in 0..20 {
        session.ok(&format!("INSERT INTO single (p, v) VALUES ({p}, {})", p % 3)).await;
    }
}

#[test]
fn pages_of_groups_are_the_groups() {
    with_node("groups-pages", |session| async move {
        table(&session).await;
        for text in [
            "SELECT p, count(*), sum(v) FROM t GROUP BY p",
            "SELECT p, c, count(*), min(d), max(v), s FROM t GROUP BY p, c",
            "SELECT p, c, d, v FROM t GROUP BY p, c, d",
            "SELECT c, count(*) FROM t WHERE p = 4 GROUP BY c",
            "SELECT c, count(*), d FROM t WHERE p = 4 GROUP BY p, c ORDER BY c DESC, d DESC",
            "SELECT p, c, count(*) FROM t WHERE p IN (5, 2, 1) GROUP BY p, c",
            "SELECT p, c, count(*) FROM t WHERE v > 2 GROUP BY p, c ALLOW FILTERING",
            "SELECT p, c, count(*) FROM t WHERE v > 99 GROUP BY p, c ALLOW FILTERING",
            "SELECT p, c, count(*) FROM t GROUP BY p, c LIMIT 5",
            "SELECT p, c, count(*) FROM t GROUP BY p, c PER PARTITION LIMIT 2",
            "SELECT p, c, count(*) FROM t WHERE v < 4 GROUP BY p, c PER PARTITION LIMIT 3 LIMIT 7 ALLOW FILTERING",
            "SELECT JSON p, c, sum(v) FROM t GROUP BY p, c",
            "SELECT DISTINCT p, s FROM t GROUP BY p",
            "SELECT p, max(v) FROM single GROUP BY p",
            "SELECT max(v) FROM single WHERE v = 1 GROUP BY p ALLOW FILTERING",
        ] {
            let whole = pages(&session, text, None).await;
            assert_eq!(whole.len(), 1, "{text}");
            for size in [1, 2, 3, 7, 100, 5000] {
                let paged = pages(&session, text, Some(size)).await;
                let (last, full) = paged.split_last().expect("there is a page");
                assert!(full.iter().all(|page| page.len() == size as usize), "{text} by {size}");
                assert!(last.len() <= size as usize, "{text} by {size}");
                assert_eq!(paged.concat(), whole[0], "{text} by {size}");
            }
        }
    });
}

/// A page ends when a row of the next group was read. The last group is not returned again, even if
/// rows are added to it or another replica has more of them.
#[test]
fn a_group_that_was_shown_is_not_shown_again() {
    with_node("groups-once", |session| async move {
        table(&session).await;
        for (text, more) in [
            ("SELECT p, count(*) FROM t WHERE p IN (1, 2, 4) GROUP BY p", "(1, 99, 0, 1)"),
            ("SELECT p, c, count(*) FROM t WHERE p = 4 GROUP BY p, c", "(4, 0, 99, 1)"),
            ("SELECT p, c, count(*) FROM t WHERE p = 4 GROUP BY p, c ORDER BY c DESC, d DESC", "(4, 13, -1, 1)"),
            ("SELECT p, s, count(d) FROM t WHERE p IN (3, 5) GROUP BY p", "(3, 0, 0, 1)"),
        ] {
            let whole = pages(&session, text, None).await;
            let mut params = QueryParams { page_size: Some(1), ..QueryParams::default() };
            let first = rows(session.processor.query(&session.client, text, &params).await);
            assert_eq!(show_rows(&first), whole[0][..1], "{text}");
            session.ok(&format!("INSERT INTO t (p, c, d, v) VALUES {more}")).await;
            params.page_size = Some(5000);
            params.paging_state = first.paging_state;
            let second = rows(session.processor.query(&session.client, text, &params).await);
            assert_eq!(show_rows(&second), whole[0][1..], "{text}");
        }
    });
}

#[test]
fn a_state_is_of_one_grouping() {
    with_node("groups-states", |session| async move {
        table(&session).await;
        let ask = async |text: &str, state: Option<Bytes>| {
            let params = QueryParams { page_size: Some(2), paging_state: state, ..QueryParams::default() };
            session.processor.query(&session.client, text, &params).await
        };
        let fine = "SELECT p, c, count(*) FROM t GROUP BY p, c";
        let state = rows(ask(fine, None).await).paging_state.expect("there is more");
        for other in ["SELECT p, count(*) FROM t GROUP BY p", "SELECT p, c FROM t", "SELECT count(*) FROM t"] {
            let refused = Error::Protocol("Invalid value for the paging state".into());
            assert_eq!(ask(other, Some(state.clone())).await.err(), Some(refused), "{other}");
        }
        let shown = show_rows(&rows(ask("SELECT c, count(*) FROM t GROUP BY p, c", Some(state)).await));
        assert_eq!(shown.len(), 2);
    });
}

#[test]
fn json_may_be_bound() {
    with_node("json-bound", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c text, v int, m map<text, int>, PRIMARY KEY (p, c))").await;
        let insert = "INSERT INTO t JSON :row DEFAULT UNSET USING TTL :ttl AND TIMESTAMP ?";
        let prepared = session.processor.prepare(&session.client, insert, None).await.expect(insert);
        let markers: Vec<String> =
            prepared.markers.columns.iter().map(|column| format!("{} {}", column.name, column.ty)).collect();
        assert_eq!(markers, ["row text", "ttl int", "[timestamp] bigint"]);
        assert!(prepared.partition_key_markers.is_empty());
        let execute = async |row: BoundValue| {
            let mut bound = values(&[(&CqlType::Int, Value::Int(0)), (&CqlType::Bigint, Value::Bigint(5))]);
            if let BoundValues::Positional(bound) = &mut bound {
                bound.insert(0, row);
            }
            let params = QueryParams { values: bound, ..QueryParams::default() };
            session.processor.execute(&session.client, &prepared.id, &params).await
        };
        let text = |text: &'static str| BoundValue::Value(Bytes::from_static(text.as_bytes()));
        execute(text(r#"{"p": 1, "c": "x", "v": 3, "m": {"k": 1}}"#)).await.expect("the row is fine");
        execute(text(r#"{"p": 1, "c": "x"}"#)).await.expect("the row is fine");
        let shown = session.rows("SELECT p, c, v, m, writetime(v) FROM t").await;
        assert_eq!(shown, ["p=1, c='x', v=3, m={'k': 1}, writetime(v)=5"]);
        for (row, message) in [
            (BoundValue::Null, "Got null for INSERT JSON values"),
            (BoundValue::Unset, "Got unset for INSERT JSON values"),
            (text("{\"p\": 1}"), "Invalid null value in condition for column c"),
            (text("{\"p\": \"x\", \"c\": \"x\"}"), "Error decoding JSON value for p: Unable to make int from 'x'"),
        ] {
            assert_eq!(execute(row).await.err(), Some(Error::Invalid(message.into())));
        }
    });
}

#[test]
fn fromjson_may_be_bound() {
    with_node("fromjson-bound", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, l list<int>)").await;
        let insert = "INSERT INTO t (p, l) VALUES (fromJson(?), fromJson(:l))";
        let ask = async |p: &str, l: Option<&str>| {
            let of = |text: &str| Value::Text(text.into());
            let bound = values(&[(&CqlType::Text, of(p)), (&CqlType::Text, l.map_or(Value::Null, of))]);
            let params = QueryParams { values: bound, ..QueryParams::default() };
            session.processor.query(&session.client, insert, &params).await
        };
        ask("1", Some("[1, 2]")).await.expect("the values are fine");
        ask("2", None).await.expect("null is null");
        let mut shown = session.rows("SELECT p, l FROM t").await;
        shown.sort();
        assert_eq!(shown, ["p=1, l=[1, 2]", "p=2, l=null"]);
        let failure = ask("[", None).await.expect_err("it is no JSON");
        assert_eq!(failure.code(), 0x1400, "{failure}");
    });
}

/// The arguments of these aggregates need no column, so replicas return rows without values.
#[test]
fn aggregates_of_expressions_without_a_column_count_each_row() {
    with_node("groups-constants", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p text, c int, v int, PRIMARY KEY (p, c))").await;
        let insert = "INSERT INTO t (p, c, v) VALUES ('x', 1, 4); INSERT INTO t (p, c, v) VALUES ('x', 2, 6)";
        session.ok(&format!("BEGIN BATCH {insert}; INSERT INTO t (p, c, v) VALUES ('y', 1, 8); APPLY BATCH")).await;
        for (expression, all, of_x) in [
            ("max((text) 'a')", "a", "a"),
            ("min((int) 7)", "7", "7"),
            ("sum((int) 5)", "15", "10"),
            ("avg((int) 5)", "5", "5"),
            ("sum(2)", "6", "4"),
            ("count((int) null)", "0", "0"),
            ("count((int) 3)", "3", "2"),
            ("count(*)", "3", "2"),
            ("max(toDate('2020-01-01'))", "2020-01-01", "2020-01-01"),
        ] {
            for (restriction, wanted) in [("", all), (" WHERE p = 'x'", of_x), (" WHERE v > 0 ALLOW FILTERING", all)] {
                let text = format!("SELECT {expression} FROM t{restriction}");
                let found = session.rows(&text).await;
                let value = found[0].rsplit_once('=').expect("a column").1.trim_matches('\'');
                assert_eq!((found.len(), value), (1, wanted), "{text}");
            }
            let text = format!("SELECT {expression} FROM t WHERE p = 'x' AND c > 5");
            assert_eq!(session.rows(&text).await.len(), 1, "{text}");
        }
        let params = QueryParams {
            values: BoundValues::Positional(vec![BoundValue::Value(Bytes::from_static(&[0, 0, 0, 5])); 2].into()),
            ..QueryParams::default()
        };
        let text = "SELECT sum((int) ?), max((int) ?) FROM t";
        let found = rows(session.processor.query(&session.client, text, &params).await);
        let found = show_rows(&found).concat();
        assert!(found.contains("=15") && found.ends_with("=5"), "{found}");
    });
}
