//! The time for statements with many operations grows linearly.

use crate::support::with_node;
use std::time::Duration;

/// The CPU time of this thread. Unlike wall-clock time, it does not depend on other processes.
fn processor_time() -> Duration {
    let schedule = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts it");
    Duration::from_nanos(schedule.split(' ').next().and_then(|time| time.parse().ok()).expect("nanoseconds"))
}

/// Comparing each assignment with all others takes 20 s.
#[test]
fn many_entries_of_a_map() {
    with_node("many_entries", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, m map<int, text>)").await;
        let assignments: Vec<String> = (0..60_000).map(|i| format!("m[{i}]=''")).collect();
        let start = processor_time();
        session.ok(&format!("UPDATE t SET {} WHERE p = 1", assignments.join(","))).await;
        let taken = processor_time() - start;
        assert!(taken < Duration::from_secs(8), "{taken:?}");
        assert_eq!(session.rows("SELECT collection_count(m) AS n FROM t").await, ["n=60000"]);
        for clash in ["m[1] = 'a', m = {}", "m = {}, m[1] = 'a'", "m = {}, m = {}"] {
            let refused = session.query(&format!("UPDATE t SET {clash} WHERE p = 1")).await.unwrap_err();
            assert!(refused.to_string().contains("Multiple incompatible setting of column m"), "{refused}");
        }
    });
}

/// Reading the list again for each assignment takes 9 s.
#[test]
fn many_elements_of_lists() {
    with_node("many_elements", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, l list<int>, o list<int>)").await;
        let elements = vec!["0"; 5_000].join(",");
        session.ok(&format!("INSERT INTO t (p, l, o) VALUES (1, [{elements}], [7, 8])")).await;
        let mut assignments: Vec<String> = (0..5_000).map(|i| format!("l[{i}]=1")).collect();
        assignments.insert(2_500, "o[1] = 9".to_owned());
        let start = processor_time();
        session.ok(&format!("UPDATE t SET {} WHERE p = 1", assignments.join(","))).await;
        let taken = processor_time() - start;
        assert!(taken < Duration::from_secs(4), "{taken:?}");
        let rows = session.rows("SELECT collection_sum(l) AS sum, o FROM t").await;
        assert_eq!(rows, ["sum=5000, o=[7, 9]"]);
    });
}

/// Comparing each element with all others takes a minute.
#[test]
fn many_unwanted_elements_of_a_list() {
    with_node("many_unwanted", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, l list<int>)").await;
        let elements = |from: i32, step: usize| {
            let elements: Vec<String> = (from..from + 40_000).rev().step_by(step).map(|i| i.to_string()).collect();
            elements.join(",")
        };
        session.ok(&format!("INSERT INTO t (p, l) VALUES (1, [{}])", elements(0, 1))).await;
        let start = processor_time();
        session.ok(&format!("UPDATE t SET l = l - [{}] WHERE p = 1", elements(0, 2))).await;
        session.ok(&format!("UPDATE t SET l = l - [{}] WHERE p = 1", elements(50_000, 1))).await;
        let taken = processor_time() - start;
        assert!(taken < Duration::from_secs(8), "{taken:?}");
        let rows = session.rows("SELECT collection_count(l) AS n, collection_max(l) AS max FROM t").await;
        assert_eq!(rows, ["n=20000, max=39998"]);
    });
}

/// Searching the fields of the type for each given field takes 8 s.
#[test]
fn many_fields_of_a_user_type() {
    const FIELDS: usize = 4_000;
    with_node("many_fields", |session| async move {
        session.use_keyspace("ks").await;
        let fields: Vec<String> = (0..FIELDS).map(|i| format!("f{} int", 1_000 + i)).collect();
        session.ok(&format!("CREATE TYPE wide ({})", fields.join(", "))).await;
        session.ok("CREATE TYPE holder (w frozen<wide>)").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v frozen<holder>)").await;
        let given: Vec<String> = (0..200_000).map(|i| format!("f{}:{i}", 4_999 - i % 100)).collect();
        let start = processor_time();
        session.ok(&format!("INSERT INTO t (p, v) VALUES (1, {{w: {{{}}}}})", given.join(","))).await;
        let taken = processor_time() - start;
        assert!(taken < Duration::from_secs(4), "{taken:?}");
        let rows = session.rows("SELECT v.w.f1000 AS none, v.w.f4900 AS first, v.w.f4999 AS last FROM t").await;
        assert_eq!(rows, ["none=null, first=199999, last=199900"], "the last value for a field counts");
    });
}

/// A literal of a wide type takes 16 KB, however short its text is.
#[test]
fn many_short_literals_of_a_wide_type() {
    with_node("wide_literals", |session| async move {
        session.use_keyspace("ks").await;
        let fields: Vec<String> = (0..4_000).map(|i| format!("f{i} int")).collect();
        session.ok(&format!("CREATE TYPE wide ({})", fields.join(", "))).await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v frozen<wide>, l list<frozen<wide>>)").await;
        let insert = |literals: usize| {
            let list = vec!["{f0: 1}"; literals].join(", ");
            format!("INSERT INTO t (p, l) VALUES (1, [{list}]);")
        };
        session.ok(&insert(100)).await;
        let batch = |statements: usize| format!("BEGIN BATCH {} APPLY BATCH", insert(1_000).repeat(statements));
        let refused = session.query(&batch(4)).await.map(drop).expect_err("64 MB");
        assert!(refused.to_string().contains("longer than the limit of 33554432 bytes"), "{refused}");
        // Inside of another literal they are counted, too.
        session.ok("CREATE TYPE holder (l frozen<list<frozen<wide>>>)").await;
        session.ok("CREATE TABLE h (p int PRIMARY KEY, v frozen<holder>)").await;
        let insert = |literals: usize| {
            let list: Vec<String> = (0..literals).map(|n| format!("{{f{}: {n}}}", n % 4_000)).collect();
            format!("INSERT INTO h (p, v) VALUES (1, {{l: [{}]}})", list.join(", "))
        };
        session.ok(&insert(800)).await;
        let rows = session.rows("SELECT v.l[799].f799 AS last, v.l[799].f0 AS none FROM h").await;
        assert_eq!(rows, ["last=799, none=null"]);
        let refused = session.query(&insert(170_000)).await.map(drop).expect_err("3 GB");
        assert!(refused.to_string().contains("longer than the limit of 33554432 bytes"), "{refused}");
    });
}

/// Each partition and each of these rows has its own list.
#[test]
fn elements_of_lists_in_several_partitions() {
    with_node("several_partitions", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c int, l list<int>, PRIMARY KEY (p, c))").await;
        for (p, c) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            session.ok(&format!("INSERT INTO t (p, c, l) VALUES ({p}, {c}, [{p}, {c}, 9])")).await;
        }
        session.ok("UPDATE t SET l = l - [2] WHERE p IN (1, 2) AND c IN (1, 2)").await;
        let rows = session.rows("SELECT p, c, l FROM t WHERE p IN (1, 2)").await;
        let expected = ["p=1, c=1, l=[1, 1, 9]", "p=1, c=2, l=[1, 9]", "p=2, c=1, l=[1, 9]", "p=2, c=2, l=[9]"];
        assert_eq!(rows, expected);
        session.ok("UPDATE t SET l[0] = 5 WHERE p IN (1, 2) AND c = 1").await;
        let rows = session.rows("SELECT p, c, l FROM t WHERE p IN (1, 2) AND c = 1").await;
        assert_eq!(rows, ["p=1, c=1, l=[5, 1, 9]", "p=2, c=1, l=[5, 9]"]);
    });
}
