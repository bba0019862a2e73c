//! A statement that works long on one row yields, and stops at its deadline or when its client is
//! gone. Numbers too long to be converted in time are refused.

use crate::support::statements::{execute, int, params, prepare, rows};
use crate::support::{Session, bound, values, with_node};
use cql::api::{BoundValue, BoundValues};
use cql::{Error, ResultKind};
use model::CqlType;
use model::types::collection::build_list;
use model::types::{Decimal, Value};
use num_bigint::BigInt;
use std::cell::Cell;
use std::rc::Rc;

const ELEMENTS: i32 = 50_000;

fn ints() -> Vec<Value> {
    (0..ELEMENTS).map(Value::Int).collect()
}

async fn one_large_row(session: &Session) {
    session.use_keyspace("k").await;
    session
        .ok("CREATE TABLE t (p int PRIMARY KEY, l frozen<list<int>>, s frozen<set<int>>, m map<int, int>, g int)")
        .await;
    let list = CqlType::list(CqlType::Int).freeze();
    let set = CqlType::set(CqlType::Int).freeze();
    let map = CqlType::map(CqlType::Int, CqlType::Int);
    let entries = (0..ELEMENTS).map(|n| (Value::Int(n), Value::Int(n))).collect();
    let insert = prepare(session, "INSERT INTO t (p, l, s, m, g) VALUES (?, ?, ?, ?, 5)").await;
    let row = values(&[int(1), (&list, Value::List(ints())), (&set, Value::Set(ints())), (&map, Value::Map(entries))]);
    execute(session, &insert, row).await.expect("it is written");
}

fn listed(count: i32, item: impl Fn(i32) -> String, separator: &str) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(separator)
}

/// Statements that look at a large value again and again.
fn statements() -> Vec<String> {
    let last = |n: i32| ELEMENTS - 1 - n;
    let mut tree = "s".to_owned();
    for _ in 0..6 {
        tree = format!("set_intersection({tree}, {tree})");
    }
    vec![
        format!("SELECT {} FROM t", listed(200, |_| "collection_min(l)".into(), ", ")),
        format!("SELECT {} FROM t", listed(60, |_| "collection_count(set_intersection(s, s))".into(), ", ")),
        format!("SELECT {} FROM t", listed(100, |_| "collection_count(map_keys(m))".into(), ", ")),
        format!("SELECT {} FROM t", listed(200, |n| format!("m[{}]", last(n)), ", ")),
        format!("SELECT {} FROM t", listed(200, |n| format!("writetime(m[{}])", last(n)), ", ")),
        format!("SELECT {} FROM t", listed(40, |_| "tojson(l)".into(), ", ")),
        format!("SELECT JSON {} FROM t", listed(40, |n| format!("tojson(l) AS x{n}"), ", ")),
        format!("SELECT collection_count({tree}) FROM t"),
        format!("SELECT {} FROM t", listed(200, |n| format!("max(m[{}])", last(n)), ", ")),
        format!(
            "SELECT g, {} FROM t WHERE g = 5 ALLOW FILTERING",
            listed(200, |n| format!("max(l[{}])", last(n)), ", ")
        ),
        format!("SELECT {} FROM t GROUP BY p", listed(200, |n| format!("max(m[{}])", last(n)), ", ")),
        format!(
            "SELECT p FROM t WHERE {} ALLOW FILTERING",
            listed(200, |n| format!("l CONTAINS {}", last(n)), " AND ")
        ),
        format!("SELECT p FROM t WHERE {} ALLOW FILTERING", listed(200, |n| format!("m[{0}] = {0}", last(n)), " AND ")),
        format!(
            "SELECT p FROM t WHERE {} ALLOW FILTERING",
            listed(200, |n| format!("m CONTAINS KEY {}", last(n)), " AND ")
        ),
    ]
}

/// Counts how often another task runs.
fn count_turns() -> (Rc<Cell<u64>>, rt::task::Task<()>) {
    let turns = Rc::new(Cell::new(0));
    let count = turns.clone();
    let task = rt::task::spawn(async move {
        loop {
            count.set(count.get() + 1);
            rt::task::yield_now().await;
        }
    });
    (turns, task)
}

fn shortly(statement: &str) -> &str {
    &statement[..statement.len().min(60)]
}

/// Turns of others that reading the row alone gives.
const FEW_TURNS: u64 = 30;

#[test]
fn long_work_on_one_row_lets_others_run() {
    with_node("pauses", |session| async move {
        one_large_row(&session).await;
        let (turns, counter) = count_turns();
        for statement in statements() {
            let before = turns.get();
            let ResultKind::Rows(rows) = session.ok(&statement).await.kind else { panic!("no rows") };
            assert_eq!(rows.count, 1, "{}", shortly(&statement));
            let turns = turns.get() - before;
            assert!(turns >= FEW_TURNS, "{}: others had {turns} turns", shortly(&statement));
        }
        counter.abort();
    });
}

/// A value of 4 KB ends before its first field 500 times, and its JSON has 29 MB.
#[test]
fn the_long_json_of_a_short_value_lets_others_run() {
    with_node("pauses-json", |session| async move {
        session.use_keyspace("k").await;
        session.ok(&format!("CREATE TYPE wide ({})", listed(4_000, |n| format!("f{n} int"), ", "))).await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, l frozen<list<frozen<wide>>>)").await;
        let list = BoundValue::Value(build_list(vec![[0xffu8; 4]; 500]).into());
        let given = |value: &BoundValue| BoundValues::Positional([value.clone()].into_iter().collect());
        let insert = prepare(&session, "INSERT INTO t (p, l) VALUES (1, ?)").await;
        execute(&session, &insert, given(&list)).await.expect("it is written");
        let (turns, counter) = count_turns();
        for (select, values) in [
            ("SELECT toJson(l) FROM t", BoundValues::default()),
            ("SELECT JSON l FROM t", BoundValues::default()),
            ("SELECT max(toJson(l)) FROM t", BoundValues::default()),
            ("SELECT toJson((list<frozen<wide>>) ?) FROM t", given(&list)),
            ("SELECT JSON (list<frozen<wide>>) ? AS x FROM t", given(&list)),
            ("SELECT (list<text>) [toJson((list<frozen<wide>>) ?)] FROM t", given(&list)),
        ] {
            let prepared = prepare(&session, select).await;
            let before = turns.get();
            let rows = rows(execute(&session, &prepared, values).await);
            assert!(rows.body.len() > 25 << 20, "{select}: {} bytes", rows.body.len());
            let turns = turns.get() - before;
            assert!(turns >= FEW_TURNS, "{select}: others had {turns} turns");
        }
        counter.abort();
    });
}

#[test]
fn long_work_on_one_row_ends_on_timeout_or_disconnect() {
    with_node("pauses-deadline", |session| async move {
        one_large_row(&session).await;
        for statement in statements() {
            let hurried = format!("{statement} USING TIMEOUT 3ms");
            let error = session.query(&hurried).await.map(drop).expect_err(shortly(&statement));
            assert!(matches!(error, Error::ReadTimeout { .. }), "{}: {error}", shortly(&statement));
        }
        for statement in statements() {
            let leaving = session.another();
            leaving.ok("USE k").await;
            let (turns, counter) = count_turns();
            let client = leaving.client.clone();
            let leaves = rt::task::spawn(async move {
                while turns.get() < FEW_TURNS {
                    rt::task::yield_now().await;
                }
                client.cancel.cancel();
            });
            let answer = leaving.query(&statement).await.map(drop);
            assert!(matches!(answer, Err(Error::Server(_))), "{}: {answer:?}", shortly(&statement));
            leaves.await.expect("it ends");
            counter.abort();
        }
    });
}

#[test]
fn a_slow_batch_yields_and_times_out() {
    with_node("pauses-batch", |session| async move {
        session.use_keyspace("k").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, g int)").await;
        let set = CqlType::set(CqlType::Int);
        let value = |n| format!("INSERT INTO t (p, g) VALUES ({n}, collection_max((set<int>) :a))");
        let inserts = listed(100, value, "; ");
        let (turns, counter) = count_turns();
        for (timeout, ends) in [("USING TIMEOUT 60s", false), ("USING TIMEOUT 3ms", true)] {
            let batch = prepare(&session, &format!("BEGIN UNLOGGED BATCH {timeout} {inserts}; APPLY BATCH")).await;
            let named = vec![("a".to_owned(), bound(&set, &Value::Set(ints())))];
            let before = turns.get();
            let answer = execute(&session, &batch, BoundValues::Named(named)).await.map(drop);
            match ends {
                false => {
                    answer.expect("it is written");
                    let turns = turns.get() - before;
                    assert!(turns >= FEW_TURNS, "others had {turns} turns");
                }
                true => assert!(matches!(answer, Err(Error::WriteTimeout { .. })), "{answer:?}"),
            }
        }
        counter.abort();
    });
}

#[test]
fn a_slow_write_yields_and_ends_on_timeout_or_disconnect() {
    with_node("pauses-write", |session| async move {
        session.use_keyspace("k").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, m map<int, int>, f frozen<map<int, int>>)").await;
        let set = CqlType::set(CqlType::Int);
        let entries = listed(100, |n| format!("{n}: collection_max((set<int>) :a)"), ", ");
        let (turns, counter) = count_turns();
        for write in ["INSERT INTO t (p, f) VALUES (1, {M}) USE", "UPDATE t USE SET m = {M} WHERE p = 1"] {
            let prepared = async |using: &str| {
                prepare(&session, &write.replace("USE", using).replace("{M}", &format!("{{{entries}}}"))).await
            };
            let values = || BoundValues::Named(vec![("a".to_owned(), bound(&set, &Value::Set(ints())))]);
            let slow = prepared("USING TIMEOUT 60s").await;
            let before = turns.get();
            execute(&session, &slow, values()).await.expect("it is written");
            let had = turns.get() - before;
            assert!(had >= FEW_TURNS, "{write}: others had {had} turns");
            let hurried = prepared("USING TIMEOUT 3ms").await;
            let answer = execute(&session, &hurried, values()).await.map(drop);
            assert!(matches!(answer, Err(Error::WriteTimeout { .. })), "{write}: {answer:?}");
            let leaving = session.another();
            leaving.ok("USE k").await;
            leaving.client.cancel.cancel();
            let answer = execute(&leaving, &slow, values()).await.map(drop);
            assert!(matches!(answer, Err(Error::Server(_))), "{write}: {answer:?}");
        }
        let found = session.rows("SELECT collection_count(m) AS m, collection_count(f) AS f, m[99] AS n FROM t").await;
        assert_eq!(found, [format!("m=100, f=100, n={}", ELEMENTS - 1)]);
        counter.abort();
    });
}

#[test]
fn one_call_on_a_large_value_lets_others_run() {
    with_node("pauses-call", |session| async move {
        session.use_keyspace("k").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY)").await;
        session.ok("INSERT INTO t (p) VALUES (1)").await;
        const MANY: i32 = 500_000;
        let list = CqlType::list(CqlType::Int);
        let set = CqlType::set(CqlType::Int);
        let map = CqlType::map(CqlType::Int, CqlType::Int);
        let numbers = || (0..MANY).map(Value::Int).collect::<Vec<_>>();
        let pairs = Value::Map((0..MANY).map(|n| (Value::Int(n), Value::Int(n))).collect());
        let (list, set) = (bound(&list, &Value::List(numbers())), bound(&set, &Value::Set(numbers())));
        let pairs = bound(&map, &pairs);
        let (turns, counter) = count_turns();
        for (call, value, expected) in [
            ("collection_max((list<int>) :a)", &list, Some(MANY - 1)),
            ("collection_min((list<int>) :a)", &list, Some(0)),
            ("collection_avg((list<int>) :a)", &list, Some((MANY - 1) / 2)),
            ("map_keys((map<int, int>) :a)", &pairs, None),
            ("map_values((map<int, int>) :a)", &pairs, None),
            ("set_intersection((set<int>) :a, (set<int>) :a)", &set, None),
            ("tojson((list<int>) :a)", &list, None),
            ("tojson((map<int, int>) :a)", &pairs, None),
        ] {
            let select = prepare(&session, &format!("SELECT {call} AS x FROM t")).await;
            let before = turns.get();
            let named = BoundValues::Named(vec![("a".to_owned(), value.clone())]);
            let answer = execute(&session, &select, named).await.unwrap_or_else(|error| panic!("{call}: {error}"));
            let ResultKind::Rows(rows) = answer.kind else { panic!("no rows") };
            let had = turns.get() - before;
            assert!(had >= FEW_TURNS, "{call}: others had {had} turns");
            if let Some(expected) = expected {
                assert_eq!(crate::support::show_rows(&rows), [format!("x={expected}")], "{call}");
            }
        }
        counter.abort();
    });
}

#[test]
fn one_large_value_is_not_copied_to_many_columns_before_it_is_refused() {
    with_node("pauses-copies", |session| async move {
        session.use_keyspace("k").await;
        let columns = listed(50, |n| format!("c{n} blob"), ", ");
        session.ok(&format!("CREATE TABLE t (p int PRIMARY KEY, {columns})")).await;
        let (names, markers) = (listed(50, |n| format!("c{n}"), ", "), listed(50, |_| ":a".into(), ", "));
        let insert = prepare(&session, &format!("INSERT INTO t (p, {names}) VALUES (1, {markers})")).await;
        let large = bound(&CqlType::Blob, &Value::Blob(vec![1; 1 << 20]));
        let refused = execute(&session, &insert, BoundValues::Named(vec![("a".to_owned(), large)])).await;
        let error = refused.map(drop).expect_err("it is too large").to_string();
        let (what, limit) = ("a mutation of at least ", "is larger than the limit of 16777216");
        assert!(error.starts_with(what) && error.contains(limit), "{error}");
    });
}

#[test]
fn long_in_lists_match_equal_values() {
    with_node("pauses-in", |session| async move {
        session.use_keyspace("k").await;
        session.ok("CREATE TABLE d (p int PRIMARY KEY, d decimal, a int, b int)").await;
        for (p, d) in [(1, "1.0"), (2, "1.00"), (3, "-7"), (4, "null"), (5, "40000.5")] {
            session.ok(&format!("INSERT INTO d (p, d, a, b) VALUES ({p}, {d}, {p}, {p})")).await;
        }
        let decimals: Vec<Value> =
            (0..20_000).rev().map(|n| Value::Decimal(Decimal::new(3, i64::from(n) * 1_000))).collect();
        let list = CqlType::list(CqlType::Decimal);
        for (operator, expected) in [("IN", vec![1, 2]), ("NOT IN", vec![3, 5])] {
            let select = format!("SELECT p FROM d WHERE d {operator} ? ALLOW FILTERING");
            let select = prepare(&session, &select).await;
            let bound = values(&[(&list, Value::List(decimals.clone()))]);
            let answer = execute(&session, &select, bound).await.expect("it is read");
            let ResultKind::Rows(rows) = answer.kind else { panic!("no rows") };
            let mut found = crate::support::show_rows(&rows);
            found.sort();
            assert_eq!(found, expected.iter().map(|p| format!("p={p}")).collect::<Vec<_>>(), "{operator}");
        }
    });
}

#[test]
fn numbers_too_long_to_be_converted_are_refused() {
    with_node("pauses-numbers", |session| async move {
        session.use_keyspace("k").await;
        session.ok("CREATE TABLE n (p int PRIMARY KEY, n varint, d decimal)").await;
        let digits = "9".repeat(3_000_000);
        for statement in [
            format!("INSERT INTO n (p, n) VALUES (2, {digits})"),
            format!("INSERT INTO n (p, d) VALUES (2, {digits}.5)"),
            format!("INSERT INTO n JSON '{{\"p\": 2, \"n\": {digits}}}'"),
            format!("INSERT INTO n JSON '{{\"p\": 2, \"d\": {digits}}}'"),
            format!("INSERT INTO n JSON '{{\"p\": {digits}}}'"),
            format!("INSERT INTO n (p) VALUES ({digits})"),
        ] {
            let error = session.query(&statement).await.map(drop).expect_err(shortly(&statement));
            assert!(matches!(error, Error::Invalid(_)), "{}", shortly(&statement));
            let error = error.to_string();
            assert!(error.len() <= 4_100, "{}: an error of {} bytes", shortly(&statement), error.len());
        }
        let long = BigInt::from_signed_bytes_be(&[&[1][..], &vec![0x5a; 1 << 20]].concat());
        let insert = prepare(&session, "INSERT INTO n (p, n, d) VALUES (1, ?, ?)").await;
        let row = BoundValues::Positional(
            [
                bound(&CqlType::Varint, &Value::Varint(long.clone())),
                bound(&CqlType::Decimal, &Value::Decimal(Decimal::new(2_525_000, long))),
            ]
            .into_iter()
            .collect(),
        );
        session.processor.execute(&session.client, &insert.id, &params(row)).await.expect("it is written");
        for refused in [
            "CAST(n AS text)",
            "tojson(n)",
            "JSON n",
            "log(n)",
            "log10(n)",
            "exp(n)",
            "CAST(d AS text)",
            "tojson(d)",
            "JSON d",
            "log(d)",
            "exp(d)",
            "round(d)",
            "CAST(d AS varint)",
            "CAST(d AS int)",
        ] {
            let error = session.query(&format!("SELECT {refused} FROM n")).await.map(drop).expect_err(refused);
            assert!(matches!(error, Error::Invalid(_)), "{refused}: {error}");
            let error = error.to_string();
            assert!(error.contains("too l") && error.len() < 200, "{refused}: {error}");
        }
        for allowed in
            ["n", "d", "CAST(n AS int)", "CAST(n AS double)", "abs(d)", "sum(d)", "avg(n)", "CAST(n AS decimal)"]
        {
            session.ok(&format!("SELECT {allowed} FROM n")).await;
        }
        let found = session.rows("SELECT CAST(d AS double) AS x FROM n").await;
        assert!(found[0].starts_with("x=") && found[0].contains("e222"), "{found:?}");
    });
}
