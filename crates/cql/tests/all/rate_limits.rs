//! Rate limits: how often each statement is counted.

use crate::support::{CLUSTER, Session, with_node};
use bytes::Bytes;
use cql::api::ResultKind;
use cql::{Error, QueryParams};

const VERY_MUCH: &str = "{'max_reads_per_second': 4294967295, 'max_writes_per_second': 4294967295}";

/// The operations that the shard has counted so far: those of partitions without a count, and those
/// of others.
fn counts() -> (u64, u64) {
    let slots = CLUSTER.replica.get().metrics().rate_limits.slots;
    (slots.allocations, slots.successful_lookups)
}

fn counted() -> u64 {
    let (new, known) = counts();
    new + known
}

async fn count_of(session: &Session, text: &str) -> u64 {
    let before = counted();
    session.ok(text).await;
    counted() - before
}

#[test]
fn a_statement_counts_each_of_its_partitions_once() {
    with_node("rate_limits", |session| async move {
        session.use_keyspace("ks").await;
        let with = format!("WITH per_partition_rate_limit = {VERY_MUCH}");
        session.ok(&format!("CREATE TABLE t (p int, c int, v int, l list<int>, PRIMARY KEY (p, c)) {with}")).await;
        session.ok(&format!("CREATE TABLE n (p int PRIMARY KEY, v counter) {with}")).await;
        for (text, expected) in [
            ("INSERT INTO t (p, c, v, l) VALUES (1, 1, 1, [1, 2])", 1),
            ("INSERT INTO t JSON '{\"p\": 1, \"c\": 2, \"v\": 2}'", 1),
            ("UPDATE t SET v = 3 WHERE p IN (1, 2, 3) AND c = 3", 3),
            ("UPDATE t SET l[0] = 7 WHERE p = 1 AND c = 1", 1), // reads the list first
            ("DELETE FROM t WHERE p = 9", 1),
            ("UPDATE n SET v = v + 1 WHERE p = 1", 1),
            ("BEGIN UNLOGGED BATCH DELETE FROM t WHERE p = 7; DELETE FROM t WHERE p = 8 APPLY BATCH", 2),
            ("BEGIN BATCH DELETE FROM t WHERE p = 7; DELETE FROM t WHERE p = 8 APPLY BATCH", 0),
            ("SELECT * FROM t WHERE p = 1", 1),
            ("SELECT * FROM t WHERE p IN (1, 2, 3)", 3),
            ("SELECT * FROM t WHERE p = 1 AND v = 2 ALLOW FILTERING", 1),
            ("SELECT count(*) FROM t WHERE p = 1", 1),
            ("SELECT c, max(v) FROM t WHERE p = 1 GROUP BY p, c", 1),
            ("SELECT * FROM t WHERE p IN (1, 2) ORDER BY c", 2),
            ("SELECT * FROM t WHERE token(p) = token(1)", 1),
            ("SELECT * FROM t", 0),
            ("SELECT count(*) FROM t", 0),
        ] {
            assert_eq!(count_of(&session, text).await, expected, "{text}");
        }
    });
}

#[test]
fn each_page_of_a_partition_counts() {
    with_node("rate_limits_pages", |session| async move {
        session.use_keyspace("ks").await;
        session
            .ok(&format!(
                "CREATE TABLE t (p int, c int, PRIMARY KEY (p, c)) WITH per_partition_rate_limit = {VERY_MUCH}"
            ))
            .await;
        for c in 0..5 {
            session.ok(&format!("INSERT INTO t (p, c) VALUES (1, {c})")).await;
        }
        let (mut state, mut counts): (Option<Bytes>, Vec<u64>) = (None, Vec::new());
        loop {
            let before = counted();
            let params = QueryParams { page_size: Some(2), paging_state: state.take(), ..QueryParams::default() };
            let answer = session.processor.query(&session.client, "SELECT c FROM t WHERE p = 1", &params).await;
            counts.push(counted() - before);
            let ResultKind::Rows(rows) = answer.expect("a page").kind else { panic!("a SELECT returns rows") };
            state = rows.paging_state;
            if state.is_none() {
                break;
            }
        }
        assert_eq!(counts, [1, 1, 1]);
    });
}

#[test]
fn a_refused_statement_is_counted_and_does_nothing() {
    with_node("rate_limits_refused", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v int) WITH per_partition_rate_limit = {'max_writes_per_second': 0}").await;
        let before = counted();
        for text in ["INSERT INTO t (p, v) VALUES (1, 1)", "UPDATE t SET v = 1 WHERE p IN (2, 3)"] {
            let refused = session.query(text).await;
            assert!(matches!(&refused, Err(Error::RateLimit(refusal)) if refusal.is_write()), "{text}: {refused:?}");
        }
        assert_eq!(counted() - before, 3);
        assert!(session.rows("SELECT * FROM t").await.is_empty());
    });
}

#[test]
fn a_partition_keeps_its_count_when_the_table_is_altered() {
    with_node("rate_limits_altered", |session| async move {
        session.use_keyspace("ks").await;
        session.ok(&format!("CREATE TABLE t (p int PRIMARY KEY) WITH per_partition_rate_limit = {VERY_MUCH}")).await;
        // A count is halved each second, and such a one lasts for seconds.
        for _ in 0..1_000 {
            session.ok("INSERT INTO t (p) VALUES (1)").await;
        }
        for change in ["WITH per_partition_rate_limit = {'max_writes_per_second': 4294967294}", "ADD v int"] {
            session.ok(&format!("ALTER TABLE t {change}")).await;
            let (new, known) = counts();
            session.ok("INSERT INTO t (p) VALUES (1)").await;
            assert_eq!(counts(), (new, known + 1), "{change}");
        }
    });
}
