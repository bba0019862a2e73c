//! The estimated memory of prepared statements matches their allocations, and no statement takes
//! much more memory than its limits allow.
//!
//! It is a program of its own, because its global allocator counts.

#[path = "all/support/mod.rs"]
mod support;

use bytes::Bytes;
use cql::QueryParams;
use cql::api::{BoundValue, BoundValues, ResultMetadata};
use mimalloc::MiMalloc;
use model::CqlType;
use model::types::collection::{build_list, build_tuple};
use model::types::wire;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use support::{Session, with_node};

struct Counting;

thread_local! {
    /// Bytes allocated and not yet freed by this thread.
    static LIVE: Cell<i64> = const { Cell::new(0) };
    /// The maximum of `LIVE`.
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn count(grown: i64) {
    let live = LIVE.try_with(|live| {
        live.set(live.get() + grown);
        live.get()
    });
    let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.unwrap_or_default())));
}

/// The usable size of an allocation.
#[allow(unsafe_code)]
fn taken(ptr: *mut u8) -> i64 {
    // SAFETY: it comes from mimalloc, and was not freed.
    unsafe { libmimalloc_sys::mi_usable_size(ptr.cast()) as i64 }
}

// SAFETY: all calls are passed to mimalloc.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller vouches.
        let ptr = unsafe { MiMalloc.alloc(layout) };
        count(taken(ptr));
        ptr
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-taken(ptr));
        // SAFETY: as the caller vouches.
        unsafe { MiMalloc.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(-taken(ptr));
        // SAFETY: as the caller vouches.
        let ptr = unsafe { MiMalloc.realloc(ptr, layout, size) };
        count(taken(ptr));
        ptr
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How many statements of each kind are measured together.
const EACH: usize = 100;
/// Statements cached before the measurement. The hash map grows at 1,792 entries, and next at
/// 3,584.
const BEFORE: usize = 1800;

/// Encodes the columns as the server does, so that the cached encoding has the same length.
fn encode(metadata: &ResultMetadata) {
    let mut out = vec![0; 4];
    for (i, column) in metadata.columns.iter().enumerate() {
        let names = [&*column.keyspace, &*column.table, &column.name];
        for name in &names[if i == 0 { 0 } else { 2 }..] {
            out.extend([0; 2]);
            out.extend(name.as_bytes());
        }
        wire::write_option(&column.ty, &mut out);
    }
    metadata.encoded.set(Bytes::from(out.into_boxed_slice())).expect("it is fresh");
}

async fn prepare(session: &Session, text: &str) {
    let prepared = session.processor.prepare(&session.client, text, None).await;
    let prepared = prepared.unwrap_or_else(|error| panic!("{text}: {error}"));
    encode(&prepared.markers);
    if !std::rc::Rc::ptr_eq(&prepared.markers, &prepared.result) {
        encode(&prepared.result);
    }
    // Reads are bound to their tables at their first execution.
    if text.starts_with("SELECT") {
        let one = |ty: &CqlType| match ty {
            CqlType::Int => vec![0, 0, 0, 1],
            CqlType::Timestamp => vec![1; 8],
            _ => vec![1],
        };
        let values = prepared.markers.columns.iter().map(|column| BoundValue::Value(one(&column.ty).into())).collect();
        let params = QueryParams { values: BoundValues::Positional(values), ..QueryParams::default() };
        let answer = session.processor.execute(&session.client, &prepared.id, &params).await;
        answer.unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

#[test]
fn statements_weigh_what_they_take() {
    with_node("statement_memory", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE simple (pk int PRIMARY KEY, v int)").await;
        session
            .ok("CREATE TABLE wide (p text, q int, c int, d timestamp, s text static, v blob, l list<int>, m map<text, int>, \
                 PRIMARY KEY ((p, q), c, d))")
            .await;
        for n in 0..BEFORE {
            prepare(&session, &format!("SELECT v FROM simple WHERE pk = 1 LIMIT {}", n + 1)).await;
        }
        for text in [
            "SELECT v FROM simple WHERE pk = #",
            "SELECT v AS v# FROM simple WHERE pk = ?",
            "SELECT * FROM wide WHERE p = 'p#' AND q = 1",
            "SELECT c, v FROM wide WHERE p = ? AND q = ? AND c > # AND c <= ? ORDER BY c DESC LIMIT ?",
            "SELECT p, q, v, writetime(v), m['#'] FROM wide WHERE c = # AND v = 0x00 ALLOW FILTERING",
            "SELECT p, q, count(*), max(c) FROM wide WHERE token(p, q) > # GROUP BY p, q",
            "SELECT v FROM wide WHERE p IN ('a#', 'b#', 'c#') AND q = 1 AND (c, d) > (#, '2026-11-22')",
            "INSERT INTO simple (pk, v) VALUES (?, #)",
            "INSERT INTO wide (p, q, c, d, s, v, l, m) VALUES (?, ?, ?, ?, ?, ?, [1, #, ?], {'a': #}) USING TTL 600",
            "INSERT INTO wide JSON '{\"p\": \"p#\"}'",
            "UPDATE wide USING TIMESTAMP 1# SET v = ?, l = l + [#], m['x#'] = ? WHERE p = ? AND q = ? AND c = ? AND d = ?",
            "DELETE m['x#'], v FROM wide WHERE p = ? AND q = ? AND c = 1 AND d = '2026-11-22'",
            "BEGIN BATCH INSERT INTO simple (pk, v) VALUES (#, ?); UPDATE simple SET v = # WHERE pk = ?; APPLY BATCH",
        ] {
            let counted = || session.processor.prepared_statements().bytes as f64 / EACH as f64;
            let (live, weight) = (LIVE.get(), counted());
            for n in 0..EACH {
                prepare(&session, &text.replace('#', &(100_000 + n).to_string())).await;
            }
            let (taken, counted) = ((LIVE.get() - live) as f64 / EACH as f64, counted() - weight);
            assert!((0.85..1.25).contains(&(counted / taken)), "{counted} bytes counted, {taken} taken: {text}");
        }
    });
}

/// The error of a statement, and the most bytes that it had allocated.
async fn refused(session: &Session, text: &str, value: Option<Bytes>) -> (String, i64) {
    let values = BoundValues::Positional(value.into_iter().map(BoundValue::Value).collect());
    let params = QueryParams { values, ..QueryParams::default() };
    let before = LIVE.get();
    PEAK.set(before);
    let refused = session.processor.query(&session.client, text, &params).await;
    let taken = PEAK.get() - before;
    (refused.expect_err("the statement is refused").to_string(), taken)
}

/// Without a limit for each call, the deepest nesting takes 515 MB.
#[test]
fn calls_of_to_json_in_each_other_are_bounded() {
    with_node("nested_json", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v text)").await;
        let quotes = "\"".repeat(10_000);
        session.ok(&format!("INSERT INTO t (p, v) VALUES (1, '{quotes}')")).await;
        let nested = |inner: &str, levels: usize| format!("{}{inner}{}", "toJson(".repeat(levels), ")".repeat(levels));
        let literal = format!("'{quotes}'");
        for (text, why) in [
            (format!("SELECT {}", nested(&literal, 14)), "33554432 bytes"),
            (format!("SELECT {} FROM t USING TIMEOUT 60s", nested("v", 14)), "33554432 bytes"),
            (format!("SELECT JSON {} FROM t USING TIMEOUT 60s", nested("v", 11)), "33554432 bytes"),
            (format!("INSERT INTO t (p, v) VALUES (2, {})", nested(&literal, 14)), "33554432 bytes"),
            (format!("SELECT {} FROM t", nested("v", 17)), "function calls nested"),
        ] {
            let (error, taken) = refused(&session, &text, None).await;
            assert!(error.contains(why), "{error}");
            assert!(taken < 150 << 20, "{taken} bytes: {}", &text[..40]);
        }
        session.ok(&format!("SELECT {} FROM t USING TIMEOUT 60s", nested("v", 8))).await;
    });
}

/// Without an early limit they take 250 to 720 MB.
#[test]
fn collections_that_make_mutations_too_large_are_refused_at_once() {
    with_node("large_collections", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, l list<text>, s set<int>, m map<int, int>)").await;
        let value = |count: i32, element: &dyn Fn(i32, &mut Vec<u8>)| {
            let mut bytes = count.to_be_bytes().to_vec();
            (0..count).for_each(|i| element(i, &mut bytes));
            Bytes::from(bytes)
        };
        let int = |i: i32, out: &mut Vec<u8>| {
            out.extend([0, 0, 0, 4]);
            out.extend(i.to_be_bytes());
        };
        let list = value(3_000_000, &|_, out| out.extend([0; 4]));
        let set = value(1_500_000, &int);
        let map = value(1_000_000, &|i, out| {
            int(i, out);
            int(i, out);
        });
        for (text, value) in [
            ("INSERT INTO t (p, l) VALUES (1, ?)", &list),
            ("UPDATE t SET l = l + ? WHERE p = 1", &list),
            ("UPDATE t SET l = ? + l WHERE p = 1", &list),
            ("INSERT INTO t (p, s) VALUES (1, ?)", &set),
            ("UPDATE t SET s = s - ? WHERE p = 1", &set),
            ("UPDATE t SET m = m + ? WHERE p = 1", &map),
            ("UPDATE t SET m = m - ? WHERE p = 1", &set),
        ] {
            let (error, taken) = refused(&session, text, Some(value.clone())).await;
            assert!(error.contains("is larger than the limit of 16777216"), "{error}");
            assert!(taken < 2 << 20, "{taken} bytes: {text}");
        }
        // JSON text does not declare a number of elements.
        let json = format!("{{\"p\": 1, \"l\": [{}\"\"]}}", "\"\",".repeat(3_000_000));
        let (error, taken) = refused(&session, "INSERT INTO t JSON ?", Some(json.into())).await;
        assert!(error.contains("more than 524288 values"), "{error}");
        assert!(taken < 100 << 20, "{taken} bytes of JSON");
        // Close to the limit: the state that is collected for each cell is small.
        let list = value(440_000, &|_, out| out.extend([0; 4]));
        let (before, values) = (LIVE.get(), BoundValues::Positional(vec![BoundValue::Value(list)].into()));
        PEAK.set(before);
        let params = QueryParams { values, ..QueryParams::default() };
        let text = "INSERT INTO t (p, l) VALUES (1, ?) USING TIMEOUT 10m";
        let written = session.processor.query(&session.client, text, &params).await;
        written.expect("it is below the limit");
        let taken = PEAK.get() - before;
        assert!(taken < 100 << 20, "{taken} bytes for a list of 440,000");
        // The rows of a statement count together.
        session.ok("CREATE TABLE r (p int, c int, v text, PRIMARY KEY (p, c))").await;
        let rows: Vec<String> = (0..100).map(|c| c.to_string()).collect();
        let text = format!("UPDATE r SET v = ? WHERE p = 1 AND c IN ({})", rows.join(", "));
        let (error, taken) = refused(&session, &text, Some(vec![b'a'; 1 << 20].into())).await;
        assert!(error.contains("is larger than the limit of 16777216"), "{error}");
        assert!(taken < 40 << 20, "{taken} bytes for {text}");
        // So do its partitions, and the statements of a batch.
        let text = format!("UPDATE r SET v = ? WHERE c = 1 AND p IN ({})", rows.join(", "));
        let (error, taken) = refused(&session, &text, Some(vec![b'a'; 1 << 20].into())).await;
        assert!(error.contains("larger than the limit of 16777216"), "{error}");
        assert!(taken < 40 << 20, "{taken} bytes for {text}");
        let parts: Vec<String> =
            (0..24).map(|p| format!("INSERT INTO t (p, l) VALUES ({p}, [{}''])", "'',".repeat(20_000))).collect();
        let text = format!("BEGIN UNLOGGED BATCH {} APPLY BATCH", parts.join("; "));
        let (error, taken) = refused(&session, &text, None).await;
        assert!(error.contains("larger than the limit of 16777216"), "{error}");
        assert!(taken < 120 << 20, "{taken} bytes for a batch");
    });
}

/// Without a count for each row they take 850 MB: the keys of the rows are four bytes each.
#[test]
fn batches_that_name_very_many_rows_are_refused_at_once() {
    with_node("many_rows", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c int, v text, PRIMARY KEY (p, c))").await;
        let keys: Vec<String> = (0..100).map(|key| key.to_string()).collect();
        let keys = keys.join(", ");
        for part in [
            format!("DELETE FROM t WHERE p IN ({keys}) AND c IN ({keys})"),
            format!("UPDATE t SET v = '' WHERE p IN ({keys}) AND c IN ({keys})"),
            format!("DELETE FROM t WHERE p IN ({keys}) AND c > 1 AND c < 1000"),
            format!("DELETE FROM t WHERE p IN ({keys})"),
        ] {
            let parts = vec![part.as_str(); 2000].join("; ");
            let text = format!("BEGIN UNLOGGED BATCH USING TIMEOUT 60s {parts} APPLY BATCH");
            let (error, taken) = refused(&session, &text, None).await;
            assert!(error.contains("larger than the limit of 16777216"), "{error}");
            // Most of it is the parsed text: 2,000 statements with up to 200 literals.
            assert!(taken < 250 << 20, "{taken} bytes for 2,000 of {part}");
        }
    });
}

/// Without a limit, a request of 2 MB takes 200 GB: each reference copies or validates the value.
#[test]
fn values_that_are_referred_to_very_often_are_refused_at_once() {
    with_node("many_references", |session| async move {
        session.use_keyspace("ks").await;
        session
            .ok("CREATE TABLE t (p int PRIMARY KEY, v text, l list<text>, f frozen<list<text>>, m map<int, text>)")
            .await;
        let many = |reference: &str, count: usize| vec![reference; count].join(", ");
        let large = Bytes::from(vec![b'a'; 1 << 20]);
        for text in [
            format!("INSERT INTO t (p, l) VALUES (1, [{}])", many(":a", 50_000)),
            format!("INSERT INTO t (p, f) VALUES (1, [{}])", many(":a", 50_000)),
            format!("SELECT {}", many("(text) :a", 50_000)),
            format!("SELECT toJson((list<text>) [{}])", many(":a", 50_000)),
            format!("SELECT p FROM t WHERE v IN ({}) ALLOW FILTERING", many(":a", 50_000)),
            format!("UPDATE t SET {} WHERE p = 1", many("m[1] = :a", 1_000)),
            format!("BEGIN UNLOGGED BATCH {} APPLY BATCH", "INSERT INTO t (p, v) VALUES (1, :a);".repeat(1_000)),
        ] {
            for named in [false, true] {
                let values = match named {
                    true => BoundValues::Named(vec![("a".into(), BoundValue::Value(large.clone()))]),
                    false => BoundValues::Positional(vec![BoundValue::Value(large.clone())].into()),
                };
                let params = QueryParams { values, ..QueryParams::default() };
                let before = LIVE.get();
                PEAK.set(before);
                let refused = session.processor.query(&session.client, &text, &params).await;
                let (error, taken) = (refused.expect_err("it is refused").to_string(), PEAK.get() - before);
                assert!(error.contains("bytes of bound values, counting each reference"), "{error}");
                assert!(taken < 40 << 20, "{taken} bytes: {}", &text[..40]);
            }
        }
        let few = format!("INSERT INTO t (p, f) VALUES (1, [{}])", many(":a", 10));
        let values = BoundValues::Positional(vec![BoundValue::Value(large)].into());
        let params = QueryParams { values, ..QueryParams::default() };
        session.processor.query(&session.client, &few, &params).await.expect("ten are not too many");
    });
}

/// With a decoded value for each missing field, the JSON of 60 KB takes 3 GB, and the value of 80
/// KB takes 2 GB when it is read.
#[test]
fn fields_that_json_and_values_leave_out_are_bounded() {
    const MOST_TAKEN: i64 = 150 << 20;
    with_node("left_out", |session| async move {
        session.use_keyspace("ks").await;
        let fields: Vec<String> = (0..4_000).map(|i| format!("f{i} int")).collect();
        session.ok(&format!("CREATE TYPE wide ({})", fields.join(", "))).await;
        let nested = "tuple<frozen<tuple<frozen<list<frozen<wide>>>>>>";
        session.ok(&format!("CREATE TABLE t (p int PRIMARY KEY, l list<frozen<wide>>, v {nested})")).await;
        let objects = |count: usize| format!("[{}]", vec!["{}"; count].join(","));
        for (text, json) in [
            ("INSERT INTO t JSON ?", format!("{{\"p\": 1, \"l\": {}}}", objects(20_000))),
            ("INSERT INTO t (p, l) VALUES (1, fromJson(?))", objects(20_000)),
        ] {
            let (error, taken) = refused(&session, text, Some(json.into())).await;
            assert!(error.contains("longer than the limit of 33554432 bytes"), "{error}");
            assert!(taken < MOST_TAKEN, "{taken} bytes: {text}");
        }
        session.ok(&format!("INSERT INTO t JSON '{{\"p\": 1, \"l\": {}}}'", objects(500))).await;
        assert_eq!(session.rows("SELECT collection_count(l) AS n FROM t").await, ["n=500"]);
        let list = build_list(vec![[0xffu8; 4]; 10_000]);
        let value = Bytes::from(build_tuple([Some(build_tuple([Some(&list)]))]));
        let insert = "INSERT INTO t (p, v) VALUES (2, ?)";
        let values = BoundValues::Positional(vec![BoundValue::Value(value.clone())].into());
        let params = QueryParams { values, ..QueryParams::default() };
        session.processor.query(&session.client, insert, &params).await.expect("it is a value");
        let call = format!("SELECT toJson(({nested}) ?) FROM t WHERE p = 2");
        for (text, value) in [
            ("SELECT JSON v FROM t WHERE p = 2", None),
            ("SELECT toJson(v) FROM t WHERE p = 2", None),
            ("SELECT max(toJson(v)) FROM t WHERE p = 2", None),
            (call.as_str(), Some(value.clone())),
        ] {
            let (error, taken) = refused(&session, text, value).await;
            assert!(error.contains("JSON text would be longer than 33554432 bytes"), "{error}");
            assert!(taken < MOST_TAKEN, "{taken} bytes: {text}");
        }
    });
}

/// Without a limit on the whole term they take 32 MB each. The text of each call is short.
#[test]
fn values_made_by_calls_are_bounded_together() {
    with_node("many_calls", |session| async move {
        let nested = format!("{}'\"\"\"\"\"\"\"\"'{}", "toJson(".repeat(14), ")".repeat(14));
        let text = format!("SELECT (list<text>) [{}]", vec![nested; 1_000].join(", "));
        let (error, taken) = refused(&session, &text, None).await;
        assert!(error.contains("longer than the limit of 33554432 bytes"), "{error}");
        assert!(taken < 200 << 20, "{taken} bytes");
    });
}

/// The results of calls are kept until the mutation is built. Without a limit they take 270 MB.
#[test]
fn values_made_by_calls_in_writes_are_bounded_together() {
    with_node("written_calls", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, f frozen<list<text>>, m map<int, text>)").await;
        let call = "toJson(toJson((text) :a))";
        let list = vec![call; 60].join(", ");
        let entries: Vec<String> = (0..60).map(|key| format!("m[{key}] = {call}")).collect();
        for text in [
            format!("INSERT INTO t (p, f) VALUES (1, [{list}])"),
            format!("UPDATE t SET {} WHERE p = 1", entries.join(", ")),
        ] {
            let value = BoundValue::Value(Bytes::from(vec![b'"'; 1 << 20]));
            let params = QueryParams { values: BoundValues::Positional(vec![value].into()), ..QueryParams::default() };
            let before = LIVE.get();
            PEAK.set(before);
            let refused = session.processor.query(&session.client, &text, &params).await;
            let (error, taken) = (refused.expect_err("it is refused").to_string(), PEAK.get() - before);
            assert!(error.contains("longer than the limit of 33554432 bytes"), "{error}");
            assert!(taken < 150 << 20, "{taken} bytes: {}", &text[..40]);
        }
    });
}

/// The values that aggregates keep count as the result that they become.
#[test]
fn values_kept_by_aggregates_are_bounded_together() {
    with_node("large_aggregates", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, m frozen<map<int, text>>)").await;
        let value = "a".repeat(4 << 20);
        session.ok(&format!("INSERT INTO t (p, m) VALUES (1, {{0: '{value}'}})")).await;
        let columns: Vec<String> = (1..100).map(|n| format!("max(m[-{n}..{n}])")).collect();
        let text = format!("SELECT {} FROM t USING TIMEOUT 60s", columns.join(", "));
        let (error, taken) = refused(&session, &text, None).await;
        assert!(error.contains("exceeds hard limit of 104857600"), "{error}");
        assert!(taken < 200 << 20, "{taken} bytes");
    });
}
