//! The statement counters of a shard.

use crate::support::with_node;
use bytes::Bytes;
use cql::QueryParams;
use cql::api::{Batch, BatchKind, BatchStatement, BoundValues};

#[test]
fn statements_are_counted_by_what_they_do() {
    with_node("statistics", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c int, v int, PRIMARY KEY (p, c))").await;
        let numbers = || session.processor.statistics();
        let mut warned = cql::StatementMetrics::default();
        warned.violations[0] = 1;
        assert_eq!(
            numbers(),
            warned,
            "schema statements are none of these, but one replica is fewer than is recommended"
        );
        for c in 0..4 {
            session.ok(&format!("INSERT INTO t (p, c, v) VALUES (1, {c}, 0)")).await;
        }
        session.ok("UPDATE t SET v = 1 WHERE p = 1 AND c = 0").await;
        session.ok("DELETE FROM t WHERE p = 1 AND c = 3").await;
        session.ok("BEGIN UNLOGGED BATCH INSERT INTO t (p, c) VALUES (2, 1); DELETE v FROM t WHERE p = 2 AND c = 1 APPLY BATCH").await;
        let text = |text: &str| BatchStatement::Query(text.to_owned(), BoundValues::default());
        let batch = Batch {
            kind: BatchKind::Logged,
            statements: vec![text("UPDATE ks.t SET v = 5 WHERE p = 2 AND c = 1"), text("DELETE FROM ks.t WHERE p = 7")],
            params: QueryParams::default(),
        };
        session.processor.batch(&session.client, &batch).await.expect("the batch is fine");
        let written = numbers();
        assert_eq!((written.inserts, written.updates, written.deletes), (5, 2, 3));
        assert_eq!((written.batches, written.statements_in_batches), (2, 4));
        assert_eq!((written.batches_pure_logged, written.batches_pure_unlogged), (1, 1));
        assert_eq!((written.reads, written.writes.iter().sum::<u64>()), (0, 4 + 2 + 2));

        session.ok("SELECT * FROM t WHERE p = 1").await;
        let paged = QueryParams { page_size: Some(2), ..QueryParams::default() };
        session.processor.query(&session.client, "SELECT * FROM t WHERE p = 1", &paged).await.expect("it is there");
        session.ok("SELECT * FROM t WHERE p = 1 ORDER BY c DESC").await;
        session.ok("SELECT * FROM t WHERE v = 5 ALLOW FILTERING").await;
        session.ok("SELECT * FROM t WHERE p = 1 BYPASS CACHE").await;
        session.processor.prepare(&session.client, "SELECT * FROM t", None).await.expect("it is there");
        let wrong = QueryParams { paging_state: Some(Bytes::from_static(b"x")), ..paged };
        session.processor.query(&session.client, "SELECT * FROM t", &wrong).await.expect_err("not our paging state");
        let read = numbers();
        assert_eq!(read.reads, 6, "also one that failed");
        assert_eq!(read.rows_read, 3 + 2 + 3 + 1 + 3);
        assert_eq!(read.unpaged_select_queries, 4);
        assert_eq!((read.reverse_queries, read.select_bypass_caches), (1, 1));
        assert_eq!((read.select_allow_filtering, read.filtered_read_requests), (1, 1));
        assert_eq!((read.select_partition_range_scan, read.select_partition_range_scan_no_bypass_cache), (2, 2));
        assert_eq!(read.statements_prepared, 1);
        assert_eq!(read.queries.iter().sum::<u64>(), 4 + 2 + 2 + 6);
    });
}
