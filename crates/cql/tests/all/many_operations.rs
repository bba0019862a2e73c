//! Statements of very many operations take time in proportion to their number.

use crate::support::with_node;
use std::time::Duration;

/// The processor time that this thread has had. Unlike the wall's it does not depend on what else runs.
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
