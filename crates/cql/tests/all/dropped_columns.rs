//! Writes to a column that was dropped and added again, with timestamps from before the drop.

use crate::support::CLUSTER;
use crate::support::with_node;
use cql::QueryParams;

/// Such writes have the same effect before and after a flush. Without the rule, the memtable
/// returns them, and they disappear with the flush.
#[test]
fn writes_of_before_a_drop_are_dead_at_once() {
    with_node("dropped_columns", |session| async move {
        session.use_keyspace("ks").await;
        session
            .ok("CREATE TABLE t (p int, c int, v int, w int, m map<int, int>, s int static, PRIMARY KEY (p, c))")
            .await;
        for column in ["v int", "m map<int, int>", "s int static"] {
            let name = column.split(' ').next().unwrap_or_default();
            session.ok(&format!("ALTER TABLE t DROP {name}")).await;
            session.ok(&format!("ALTER TABLE t ADD {column}")).await;
        }
        let early = rt::time::wall_micros() - 3_000_000;
        let params = QueryParams { timestamp: Some(early), ..QueryParams::default() };
        let insert = "INSERT INTO t (p, c, v, w, m, s) VALUES (1, 1, 1, 1, {1: 1}, 1)";
        session.processor.query(&session.client, insert, &params).await.expect("the write is taken");
        // Operations on elements use the slow path, so both ways of building a row are tested.
        session.ok(&format!("UPDATE t USING TIMESTAMP {early} SET v = 2, w = 2 WHERE p = 1 AND c = 2")).await;
        session.ok(&format!("UPDATE t USING TIMESTAMP {early} SET m[1] = 2, w = 2 WHERE p = 1 AND c = 3")).await;
        session.ok("INSERT INTO t (p, c, v, w, m) VALUES (1, 4, 4, 4, {4: 4})").await;
        let expected = [
            "c=1, v=null, w=1, m=null, s=null",
            "c=2, v=null, w=2, m=null, s=null",
            "c=3, v=null, w=2, m=null, s=null",
            "c=4, v=4, w=4, m={4: 4}, s=null",
        ];
        let select = "SELECT c, v, w, m, s FROM t";
        assert_eq!(session.rows(select).await, expected, "in the memtable");
        CLUSTER.engine.get().flush(None).await.expect("the memtables are flushed");
        assert_eq!(session.rows(select).await, expected, "in sstables");
    });
}

/// Cells that are newer than the drop survive it, in memtables as in sstables. Older ones do not
/// return.
#[test]
fn cells_newer_than_a_drop_are_back_with_the_column() {
    with_node("newer_than_a_drop", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c int, v int, m map<int, int>, s int static, PRIMARY KEY (p, c))").await;
        let newer = rt::time::wall_micros() + 60_000_000;
        let columns = ["v int", "m map<int, int>", "s int static"];
        let drop_and_add = async || {
            for column in columns {
                session.ok(&format!("ALTER TABLE t DROP {}", column.split(' ').next().unwrap_or_default())).await;
            }
            for column in columns {
                session.ok(&format!("ALTER TABLE t ADD {column}")).await;
            }
        };
        session.ok("INSERT INTO t (p, c, v, m, s) VALUES (1, 1, 1, {1: 1}, 1)").await;
        session
            .ok(&format!("INSERT INTO t (p, c, v, m, s) VALUES (2, 2, 2, {{2: 2}}, 2) USING TIMESTAMP {newer}"))
            .await;
        session.ok(&format!("UPDATE t USING TIMESTAMP {newer} SET m = m + {{3: 3}} WHERE p = 1 AND c = 1")).await;
        let expected = ["c=1, v=null, m={3: 3}, s=null", "c=2, v=2, m={2: 2}, s=2"];
        for place in ["in the memtable", "in sstables"] {
            drop_and_add().await;
            assert_eq!(session.rows("SELECT c, v, m, s FROM t").await, expected, "{place}");
        }
    });
}

#[test]
fn no_column_is_dropped_in_the_future() {
    with_node("dropped_in_the_future", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v int, w int)").await;
        for time in [i64::MAX, rt::time::wall_micros() + 60_000_000] {
            let refused = session.query(&format!("ALTER TABLE t DROP v USING TIMESTAMP {time}")).await;
            assert!(refused.unwrap_err().to_string().contains("in the future"), "{time}");
        }
        session.ok("ALTER TABLE t DROP v USING TIMESTAMP 1").await;
    });
}
