//! Large values, long JSON texts and long statements do not hold their shard: they are checked and
//! parsed on its helper thread, and planned with pauses. Their results are those of small ones.

use crate::support::statements::{execute, params, prepare};
use crate::support::{Session, bound, show_rows, values, with_node};
use cql::api::{Batch, BatchKind, BatchStatement, BoundValue, BoundValues};
use cql::{Error, QueryParams, ResultKind, StatementResult};
use model::CqlType;
use model::types::{Decimal, Value};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

/// Records whether a future wakes itself, as it does when it yields.
struct Recorder {
    woken: AtomicBool,
    inner: Waker,
}

impl Wake for Recorder {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.inner.wake_by_ref();
    }
}

/// The output of a future, and how often it yielded. A wait for the helper thread may count once.
async fn yields<T>(future: impl Future<Output = T>) -> (T, usize) {
    let mut future = pin!(future);
    let mut count = 0;
    let out = poll_fn(|cx| {
        let recorder = Arc::new(Recorder { woken: AtomicBool::new(false), inner: cx.waker().clone() });
        let out = future.as_mut().poll(&mut Context::from_waker(&Waker::from(recorder.clone())));
        if out.is_pending() && recorder.woken.load(Ordering::SeqCst) {
            count += 1;
        }
        out
    });
    (out.await, count)
}

/// Yields that only long planning makes: a statement waits for the helper thread a few times.
const MANY_YIELDS: usize = 10;

fn listed(count: i32, item: impl Fn(i32) -> String, separator: &str) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(separator)
}

fn shortly(statement: &str) -> &str {
    &statement[..statement.len().min(70)]
}

fn shown(answer: StatementResult) -> Vec<String> {
    let ResultKind::Rows(rows) = answer.kind else { panic!("no rows") };
    show_rows(&rows)
}

/// The answer, which must have needed the helper thread at least `pieces` times.
async fn off_shard<T>(pieces: u64, what: &str, request: impl Future<Output = T>) -> T {
    let before = rt::offload::count();
    let answer = request.await;
    let had = rt::offload::count() - before;
    assert!(had >= pieces, "{}: {had} pieces of work were done off the shard", shortly(what));
    answer
}

async fn tables(session: &Session) {
    session.use_keyspace("k").await;
    session
        .ok("CREATE TABLE t (p int PRIMARY KEY, v int, d decimal, l frozen<list<int>>, s frozen<set<int>>, \
             m frozen<map<int, int>>, u set<int>, um map<int, int>)")
        .await;
    session.ok("CREATE TABLE c (p int, c decimal, e int, v int, PRIMARY KEY (p, c, e))").await;
    for p in 1..=5 {
        session.ok(&format!("INSERT INTO t (p, v, d) VALUES ({p}, {p}, {p}.0)")).await;
        session.ok(&format!("INSERT INTO c (p, c, e, v) VALUES (1, {p}.0, {p}, {p})")).await;
    }
}

async fn nested_tables(session: &Session) {
    session.ok("CREATE TYPE holder (a int, l frozen<list<int>>)").await;
    session.ok("CREATE TYPE pair (x int, y int)").await;
    session
        .ok("CREATE TABLE n (p int PRIMARY KEY, h frozen<holder>, tu tuple<int, frozen<list<int>>>, \
             ll frozen<list<frozen<list<int>>>>, lm frozen<map<int, frozen<list<int>>>>, \
             pl frozen<list<frozen<pair>>>)")
        .await;
}

/// A list of more bytes than a small value may have.
fn long_list(ty: &CqlType, few: &[Value]) -> BoundValue {
    let count = 20_000 / few.len();
    let elements = std::iter::repeat_n(few, count).flatten().cloned().collect();
    bound(&CqlType::list(ty.clone()), &Value::List(elements))
}

fn ints(numbers: &[i32]) -> Vec<Value> {
    numbers.iter().copied().map(Value::Int).collect()
}

/// The list with a null behind its elements.
fn with_null(list: &BoundValue) -> BoundValue {
    let BoundValue::Value(bytes) = list else { panic!("a value") };
    let count = u32::from_be_bytes(bytes[..4].try_into().expect("4 bytes")) + 1;
    BoundValue::Value([&count.to_be_bytes()[..], &bytes[4..], &[0xff; 4]].concat().into())
}

fn one(value: BoundValue) -> BoundValues {
    BoundValues::Positional([value].into_iter().collect())
}

#[test]
fn long_bound_in_lists_select_the_same_rows_as_short_ones() {
    with_node("large-in", |session| async move {
        tables(&session).await;
        let few = long_list(&CqlType::Int, &ints(&[3, 9, 2, 9, 3]));
        let decimals = [Decimal::new(1, 20), Decimal::new(0, 3), Decimal::new(0, 2)].map(Value::Decimal);
        let decimals = long_list(&CqlType::Decimal, &decimals);
        let tuple = CqlType::tuple([CqlType::Decimal, CqlType::Int]);
        let pair = |c: i64, e: i32| Value::Tuple(vec![Value::Decimal(Decimal::new(0, c)), Value::Int(e)]);
        let tuples = long_list(&tuple, &[pair(4, 4), pair(2, 2), pair(2, 3)]);
        let all = [
            ("SELECT v FROM t WHERE p IN ?", &few, vec![2, 3]),
            ("SELECT v FROM t WHERE p IN ? AND p = 2", &few, vec![2]),
            ("SELECT v FROM t WHERE v IN ? ALLOW FILTERING", &few, vec![2, 3]),
            ("SELECT v FROM t WHERE v NOT IN ? ALLOW FILTERING", &few, vec![1, 4, 5]),
            ("SELECT v FROM t WHERE d IN ? ALLOW FILTERING", &decimals, vec![2, 3]),
            ("SELECT v FROM c WHERE p = 1 AND c IN ?", &decimals, vec![2, 3]),
            ("SELECT v FROM c WHERE p = 1 AND (c, e) IN ?", &tuples, vec![2, 4]),
            ("SELECT v FROM c WHERE p = 1 AND (c, e) NOT IN ? ALLOW FILTERING", &tuples, vec![1, 3, 5]),
        ];
        for (select, list, expected) in &all {
            let prepared = prepare(&session, select).await;
            let answer = off_shard(1, select, execute(&session, &prepared, one((*list).clone()))).await;
            let mut found = shown(answer.unwrap_or_else(|error| panic!("{select}: {error}")));
            found.sort();
            assert_eq!(found, expected.iter().map(|v| format!("v={v}")).collect::<Vec<_>>(), "{select}");
            let answer = off_shard(1, select, execute(&session, &prepared, one(with_null(list)))).await;
            let rows = shown(answer.unwrap_or_else(|error| panic!("{select} with null: {error}"))).len();
            let expected = if select.contains("NOT IN") { 0 } else { expected.len() };
            assert_eq!(rows, expected, "{select} with null");
        }
        let delete = prepare(&session, "DELETE FROM t WHERE p IN ?").await;
        let refused = execute(&session, &delete, one(with_null(&few))).await.map(drop).expect_err("a null in a write");
        assert!(refused.to_string().contains("Invalid null value"), "{refused}");
        off_shard(1, "DELETE", execute(&session, &delete, one(few))).await.expect("it is deleted");
        assert_eq!(session.rows("SELECT v FROM t").await.len(), 3);
    });
}

#[test]
fn a_long_bound_in_list_is_refused_by_its_count() {
    with_node("large-in-refused", |session| async move {
        tables(&session).await;
        let numbers: Vec<i32> = (0..100_000).rev().collect();
        let many = long_list(&CqlType::Int, &ints(&numbers[..20_000]));
        let most = bound(&CqlType::list(CqlType::Int), &Value::List(ints(&numbers)));
        let size =
            |count, limit| format!("partition key cartesian product size {count} is greater than maximum {limit}");
        for (select, list, expected) in [
            ("SELECT v FROM t WHERE p IN ?", &many, size(20_000, 100)),
            ("SELECT v FROM t WHERE p IN ? AND p = 1", &most, size(100_000, 65_536)),
        ] {
            let prepared = prepare(&session, select).await;
            let refused = off_shard(1, select, execute(&session, &prepared, one(list.clone()))).await;
            assert_eq!(refused.map(drop).expect_err(select).to_string(), expected);
        }
        let decimals: Vec<Value> = (0..200).map(|n| Value::Decimal(Decimal::new(n % 2, 3))).collect();
        let list = long_list(&CqlType::Decimal, &decimals);
        let prepared = prepare(&session, "SELECT v FROM c WHERE p = 1 AND c IN ?").await;
        assert_eq!(shown(execute(&session, &prepared, one(list)).await.expect("equal values")), ["v=3"]);
    });
}

#[test]
fn a_wrong_large_value_is_refused_like_a_small_one() {
    with_node("large-wrong", |session| async move {
        tables(&session).await;
        let BoundValue::Value(good) = long_list(&CqlType::Int, &ints(&[1])) else { panic!("a value") };
        let small: &[u8] = &[0, 0, 0, 1, 0, 0, 0, 3, 1, 2, 3];
        let mut wrong = good.to_vec();
        wrong.truncate(good.len() - 8);
        wrong.extend_from_slice(&[0, 0, 0, 3, 1, 2, 3]);
        for statement in ["INSERT INTO t (p, l) VALUES (1, ?)", "SELECT v FROM t WHERE p IN ?"] {
            let prepared = prepare(&session, statement).await;
            let mut errors = Vec::new();
            for bytes in [small.to_vec(), wrong.clone()] {
                let answer = execute(&session, &prepared, one(BoundValue::Value(bytes.into()))).await;
                errors.push(answer.map(drop).expect_err(statement).to_string());
            }
            assert_eq!(errors[0], errors[1]);
        }
        let insert = prepare(&session, "INSERT INTO t (p, l) VALUES (1, ?)").await;
        let null = with_null(&BoundValue::Value(good));
        let refused = execute(&session, &insert, one(null)).await.map(drop).expect_err("a null in a list");
        assert!(refused.to_string().contains("null is not supported inside collections"), "{refused}");
    });
}

#[test]
fn pages_of_a_long_in_list_belong_together() {
    with_node("large-pages", |session| async move {
        tables(&session).await;
        let prepared = prepare(&session, "SELECT v FROM t WHERE v IN ? ALLOW FILTERING").await;
        let page = async |list: &BoundValue, paging_state| {
            let params = QueryParams { page_size: Some(1), paging_state, ..params(one(list.clone())) };
            match session.processor.execute(&session.client, &prepared.id, &params).await.map(|answer| answer.kind) {
                Ok(ResultKind::Rows(rows)) => Ok((show_rows(&rows), rows.paging_state)),
                Ok(_) => panic!("no rows"),
                Err(error) => Err(error),
            }
        };
        let list = long_list(&CqlType::Int, &ints(&[1, 3, 5]));
        let reordered = long_list(&CqlType::Int, &ints(&[5, 1, 3, 3]));
        let other = long_list(&CqlType::Int, &ints(&[1, 3, 4]));
        let (mut found, state) = page(&list, None).await.expect("a page");
        assert!(matches!(page(&other, state.clone()).await, Err(Error::Protocol(_))), "another query");
        let mut next = state;
        while let Some(state) = next {
            let (rows, state) = page(&reordered, Some(state)).await.expect("a page of the same query");
            found.extend(rows);
            next = state;
        }
        found.sort();
        assert_eq!(found, ["v=1", "v=3", "v=5"]);
    });
}

#[test]
fn large_collections_and_json_are_checked_off_the_shard() {
    with_node("large-values", |session| async move {
        tables(&session).await;
        let list = long_list(&CqlType::Int, &ints(&[2, 1, 2]));
        for (column, bytes) in [("l", 159_984 + 4), ("s", 4 + 16), ("u", 4 + 16)] {
            let insert = format!("INSERT INTO t (p, {column}) VALUES (7, ?)");
            let prepared = prepare(&session, &insert).await;
            off_shard(1, &insert, execute(&session, &prepared, one(list.clone()))).await.expect("it is written");
            let answer = session.ok(&format!("SELECT {column} FROM t WHERE p = 7")).await;
            let ResultKind::Rows(rows) = answer.kind else { panic!("no rows") };
            assert_eq!(rows.body.len(), 4 + bytes, "{column}");
        }
        let BoundValue::Value(bytes) = &list else { panic!("a value") };
        let statements = vec![BatchStatement::Prepared(
            prepare(&session, "INSERT INTO t (p, l) VALUES (8, ?)").await.id,
            one(BoundValue::Value(bytes.clone())),
        )];
        let batch = Batch { kind: BatchKind::Unlogged, statements, params: QueryParams::default() };
        off_shard(1, "batch", session.processor.batch(&session.client, &batch)).await.expect("it is written");
        assert_eq!(session.rows("SELECT collection_count(l) AS n FROM t WHERE p = 8").await, ["n=19998"]);

        let keys = listed(10_000, |_| "\"p\": 9".into(), ", ");
        let text = format!("{{{keys}, \"s\": [{}], \"v\": 4}}", listed(20_000, |n| (n % 5000).to_string(), ","));
        off_shard(1, "JSON", session.query(&format!("INSERT INTO t JSON '{text}'"))).await.expect("it is written");
        assert_eq!(session.rows("SELECT v, collection_count(s) AS n FROM t WHERE p = 9").await, ["v=4, n=5000"]);
        let statement = "INSERT INTO t JSON ?";
        let prepared = prepare(&session, statement).await;
        for (text, expected) in [
            (text.replace("\"p\": 9", "\"p\": 10"), None),
            (text.replace("\"v\": 4", "\"w\": 4"), Some("JSON values map contains unrecognized column: w")),
            (text.replace("\"v\": 4", "\"v\": true"), Some("Error decoding JSON value for v: ")),
            (text.replace("\"v\": 4", "\"v\": 4,"), Some("Could not decode JSON string as a map: ")),
        ] {
            let text = values(&[(&CqlType::Text, Value::Text(text))]);
            let answer = off_shard(1, statement, execute(&session, &prepared, text)).await.map(drop);
            match (answer, expected) {
                (Ok(()), None) => {}
                (Err(error), Some(expected)) => assert!(error.to_string().starts_with(expected), "{error}"),
                (answer, expected) => panic!("{answer:?} instead of {expected:?}"),
            }
        }
        assert_eq!(session.rows("SELECT v, collection_count(s) AS n FROM t WHERE p = 10").await, ["v=4, n=5000"]);
        let insert = prepare(&session, "INSERT INTO t (p, l) VALUES (11, fromjson(?))").await;
        let text = format!("[{}]", listed(20_000, |n| n.to_string(), ", "));
        let text = values(&[(&CqlType::Text, Value::Text(text))]);
        off_shard(1, "fromjson", execute(&session, &insert, text)).await.expect("it is written");
        assert_eq!(session.rows("SELECT collection_max(l) AS n FROM t WHERE p = 11").await, ["n=19999"]);
    });
}

#[test]
fn long_statements_are_parsed_off_the_shard_and_planned_with_pauses() {
    with_node("long-statements", |session| async move {
        tables(&session).await;
        nested_tables(&session).await;
        let numbers = |count| listed(count, |n| (n * 7919 % 1_000_003).to_string(), ", ");
        for statement in [
            format!("SELECT {} FROM t", listed(60_000, |_| "v".into(), ", ")),
            format!("SELECT {} FROM t", listed(40_000, |n| format!("ttl(v) AS x{n}"), ", ")),
            format!("SELECT p FROM t WHERE {} ALLOW FILTERING", listed(40_000, |n| format!("v > {n}"), " AND ")),
            format!("SELECT p FROM t WHERE v IN ({}) ALLOW FILTERING", numbers(100_000)),
            format!(
                "SELECT p FROM c WHERE (c, e) IN ({}) ALLOW FILTERING",
                listed(50_000, |n| format!("({n}, 1)"), ",")
            ),
            format!("INSERT INTO t (p, l) VALUES (1, [{}])", numbers(100_000)),
            format!("INSERT INTO t (p, s) VALUES (1, {{{}}})", numbers(100_000)),
            format!("INSERT INTO t (p, m) VALUES (1, {{{}}})", listed(50_000, |n| format!("{n}: {n}"), ", ")),
            format!("INSERT INTO n (p, h) VALUES (1, {{a: 1, l: [{}]}})", numbers(100_000)),
            format!("INSERT INTO n (p, tu) VALUES (1, (1, [{}]))", numbers(100_000)),
            format!("INSERT INTO n (p, ll) VALUES (1, [{}])", listed(400, |_| format!("[{}]", numbers(250)), ", ")),
            format!("INSERT INTO n (p, pl) VALUES (1, [{}])", listed(50_000, |n| format!("{{x: {n}}}"), ", ")),
            format!("INSERT INTO n (p, tu) VALUES (1, (1, (list<int>) [{}]))", numbers(100_000)),
            format!("INSERT INTO n (p) VALUES (collection_count((list<int>) [{}]))", numbers(100_000)),
            format!("UPDATE t SET u = u + {{{}}} WHERE p = 1", numbers(100_000)),
            format!("UPDATE t SET {} WHERE p = 1", listed(40_000, |n| format!("um[{n}] = {n}"), ", ")),
            format!("DELETE {} FROM t WHERE p = 1", listed(40_000, |n| format!("um[{n}]"), ", ")),
            format!("BEGIN BATCH {} APPLY BATCH", listed(20_000, |n| format!("DELETE FROM t WHERE p = {n};"), " ")),
        ] {
            let preparing = session.processor.prepare(&session.client, &statement, None);
            let (prepared, yields) = off_shard(1, &statement, yields(preparing)).await;
            prepared.map(drop).unwrap_or_else(|error| panic!("{}: {error}", shortly(&statement)));
            assert!(yields >= MANY_YIELDS, "{}: {yields} yields", shortly(&statement));
        }
        let wrong = format!("SELECT p FROM t WHERE p IN ({}, ,)", numbers(100_000));
        let refused = off_shard(1, &wrong, session.query(&wrong)).await;
        assert!(matches!(refused, Err(Error::Syntax(_))), "{refused:?}");
    });
}

/// The error is at the end of each literal. It is found after many pauses, because no literal is
/// examined at once.
#[test]
fn long_parts_of_literals_are_examined_with_pauses() {
    with_node("long-parts", |session| async move {
        tables(&session).await;
        nested_tables(&session).await;
        let list = format!("[{} 'x']", "0, ".repeat(100_000));
        for (values, why) in [
            (format!("(p, h) VALUES (1, {{a: 1, l: {list}}})"), "literal for h: field l is not of type"),
            (format!("(p, tu) VALUES (1, (1, {list}))"), "literal for tu: component 1 is not of type"),
            (format!("(p, tu) VALUES (1, (1, (list<int>) {list}))"), "Cannot cast value [0, 0"),
            (format!("(p, ll) VALUES (1, [[1], {list}])"), "list literal for ll: value [0, 0"),
            (format!("(p, lm) VALUES (1, {{1: {list}}})"), "map literal for lm: value [0, 0"),
            (format!("(p, h) VALUES (1, (({{l: {list}, a: 1}})))"), "literal for h: field l is not of type"),
            (format!("(p) VALUES (collection_count((list<int>) {list}))"), "Cannot cast value [0, 0"),
        ] {
            let text = format!("INSERT INTO n {values}");
            let (refused, yields) = yields(session.query(&text)).await;
            let error = refused.map(drop).expect_err(why).to_string();
            assert!(error.contains(why), "{}: {error}", shortly(&text));
            assert!(yields >= MANY_YIELDS, "{}: {yields} yields", shortly(&text));
        }
    });
}

#[test]
fn a_batch_of_many_texts_is_planned_with_pauses() {
    with_node("long-batch", |session| async move {
        tables(&session).await;
        let text = |n| BatchStatement::Query(format!("DELETE FROM t WHERE p = {n}"), BoundValues::default());
        let mut statements: Vec<BatchStatement> = (0..20_000).map(text).collect();
        // It is refused before it is executed.
        statements.push(BatchStatement::Query("DELETE FROM nothere WHERE p = 1".into(), BoundValues::default()));
        let batch = Batch { kind: BatchKind::Unlogged, statements, params: QueryParams::default() };
        let (answer, yields) = yields(session.processor.batch(&session.client, &batch)).await;
        assert!(matches!(answer, Err(Error::Invalid(_))), "{answer:?}");
        assert!(yields >= MANY_YIELDS, "{yields} yields");
    });
}

#[test]
fn long_literals_mean_what_short_ones_mean() {
    with_node("long-literals", |session| async move {
        tables(&session).await;
        let numbers = listed(20_000, |n| (n % 7000).to_string(), ", ");
        session.ok(&format!("INSERT INTO t (p, s, l) VALUES (1, {{{numbers}}}, [{numbers}])")).await;
        let pairs = listed(20_000, |n| format!("{}: {n}", n % 7000), ", ");
        session.ok(&format!("UPDATE t SET m = {{{pairs}}}, um = {{{pairs}}} WHERE p = 1")).await;
        let counts =
            "collection_count(s) AS s, collection_count(l) AS l, collection_count(m) AS m, m[6999] AS a, um[0] AS b";
        let found = session.rows(&format!("SELECT {counts} FROM t WHERE p = 1")).await;
        assert_eq!(found, ["s=7000, l=20000, m=7000, a=13999, b=14000"]);
        session.ok("CREATE TYPE holder (a int, l frozen<list<int>>, b text)").await;
        session.ok("CREATE TABLE n (p int PRIMARY KEY, h frozen<holder>, tu tuple<int, frozen<list<int>>>)").await;
        for list in ["3, 1, 2".to_owned(), numbers] {
            session.ok(&format!("INSERT INTO n (p, h, tu) VALUES (1, {{l: [{list}], a: 5}}, (6, [{list}]))")).await;
            let selected = "h.a AS a, h.b AS b, collection_count(h.l) AS n, tu FROM n";
            let found = session.rows(&format!("SELECT {selected}")).await;
            let count = list.split(',').count();
            assert_eq!(found, [format!("a=5, b=null, n={count}, tu=(6, [{list}])")]);
            for wrong in ["{l: [1], c: 1}", "{l: [1], a: 'x'}", "{l: ['x'], a: 1}"] {
                let mut errors = Vec::new();
                for literal in [wrong.to_owned(), wrong.replace('[', &format!("[{list}, "))] {
                    let text = format!("INSERT INTO n (p, h) VALUES (1, {literal})");
                    errors.push(session.query(&text).await.map(drop).expect_err(wrong).to_string());
                }
                assert_eq!(errors[0], errors[1]);
            }
        }
        let numbers = listed(20_000, |n| (n % 3 + 2).to_string(), ", ");
        for (relation, expected) in [
            (format!("p IN ({numbers})"), vec![2, 3, 4]),
            (format!("v IN ({numbers}, null)"), vec![2, 3, 4]),
            (format!("v NOT IN ({numbers})"), vec![1, 5]),
            (format!("v NOT IN ({numbers}, null)"), vec![]),
        ] {
            let mut found = session.rows(&format!("SELECT v FROM t WHERE {relation} ALLOW FILTERING")).await;
            found.sort();
            let expected: Vec<String> = expected.iter().map(|v| format!("v={v}")).collect();
            assert_eq!(found, expected, "{}", shortly(&relation));
        }
        for wrong in ["'x'", "null", "1.5"] {
            let literal =
                |count: i32| format!("INSERT INTO t (p, l) VALUES (1, [{} {wrong}])", "1, ".repeat(count as usize));
            let mut errors = Vec::new();
            for count in [1, 30_000] {
                errors.push(session.query(&literal(count)).await.map(drop).expect_err(wrong).to_string());
            }
            assert_eq!(errors[0], errors[1]);
        }
    });
}

#[test]
fn planning_ends_with_its_client() {
    with_node("long-client", |session| async move {
        tables(&session).await;
        let leaving = session.another();
        leaving.ok("USE k").await;
        leaving.client.cancel.cancel();
        let statement = format!("SELECT {} FROM t", listed(60_000, |_| "v".into(), ", "));
        let answer = leaving.processor.prepare(&leaving.client, &statement, None).await.map(drop);
        assert!(matches!(answer, Err(Error::Server(_))), "{answer:?}");
    });
}
