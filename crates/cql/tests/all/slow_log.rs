//! The slow query log: its records, and that nothing is recorded while it is off.

use crate::support::{Session, with_node};
use cql::api::{Batch, BatchKind, BatchStatement, BoundValues};
use cql::{QueryParams, SlowLogSettings};
use std::time::Duration;

const COUNT: &str = "SELECT count(*) FROM system_traces.node_slow_log";

/// Every request is slow.
const ALL: SlowLogSettings = SlowLogSettings { enabled: true, threshold_micros: 0, ttl_seconds: 500, fast: false };

/// The rows of a SELECT, once there are `count` of them.
async fn rows(session: &Session, text: &str, count: usize) -> Vec<String> {
    for _ in 0..6000 {
        let rows = session.rows(text).await;
        if rows.len() >= count {
            return rows;
        }
        rt::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{text} never had {count} rows");
}

#[test]
fn slow_requests_are_logged() {
    with_node("slow-log", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v int)").await;
        session.processor.set_slow_log(ALL);
        let params = QueryParams::default();
        session.ok("INSERT INTO t (p) VALUES (1)").await;
        assert!(session.query("SELECT nothing FROM t").await.is_err());
        let prepared = session.processor.prepare(&session.client, "SELECT v FROM t WHERE p = 1", None).await.unwrap();
        session.processor.execute(&session.client, &prepared.id, &params).await.unwrap();
        let statements = vec![
            BatchStatement::Query("UPDATE t SET v = 1 WHERE p = 1".into(), BoundValues::default()),
            BatchStatement::Query("UPDATE t SET v = 2 WHERE p = 2".into(), BoundValues::default()),
        ];
        let batch = Batch { kind: BatchKind::Unlogged, statements, params: params.clone() };
        session.processor.batch(&session.client, &batch).await.unwrap();
        session.processor.set_slow_log(SlowLogSettings { enabled: false, ..ALL });

        let log = rows(
            &session,
            "SELECT command, node_ip, shard, source_ip, table_names, username FROM system_traces.node_slow_log",
            4,
        )
        .await;
        let rest = "node_ip='127.0.0.1', shard=0, source_ip='127.0.0.1'";
        for (command, tables) in [
            ("INSERT INTO t (p) VALUES (1)", "{'ks.t'}"),
            ("SELECT nothing FROM t", "NULL"),
            ("SELECT v FROM t WHERE p = 1", "{'ks.t'}"),
            ("UPDATE t SET v = 1 WHERE p = 1; UPDATE t SET v = 2 WHERE p = 2", "{'ks.t'}"),
        ] {
            let wanted = format!("command='{command}', {rest}, table_names={tables}, username=NULL").to_lowercase();
            assert!(log.iter().any(|row| row.to_lowercase() == wanted), "{wanted} is in {log:#?}");
        }
        assert_eq!(log.len(), 4, "{log:#?}");
        let commands = rows(&session, "SELECT command FROM system_traces.sessions", 4).await;
        let of = |wanted: &str| commands.iter().filter(|row| row.contains(wanted)).count();
        assert_eq!((of("'QUERY'"), of("'EXECUTE'"), of("'BATCH'")), (2, 1, 1), "{commands:?}");
        assert!(!session.rows("SELECT activity FROM system_traces.events").await.is_empty());
        // The index by minute also has it.
        let ids = rows(&session, "SELECT session_id, start_time FROM system_traces.node_slow_log_time_idx", 4).await;
        let id =
            ids[0].split_once("session_id=").and_then(|(_, rest)| rest.split_once(',')).expect("an id").0.to_owned();
        let found = format!("SELECT ttl(command), session_id FROM system_traces.node_slow_log WHERE start_time = {id}");
        let [row] = &session.rows(&found).await[..] else { panic!("{found}") };
        let ttl: i32 = row.split_once("=").and_then(|(_, rest)| rest.split_once(',')).unwrap().0.parse().unwrap();
        assert!((1..=500).contains(&ttl) && row.ends_with(&id), "{row}");
    });
}

#[test]
fn the_fast_form_records_no_steps_and_fast_requests_are_not_logged() {
    with_node("slow-log-fast", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY)").await;
        assert_eq!(session.processor.slow_log(), SlowLogSettings::default());
        session.ok("SELECT * FROM t").await;
        session.processor.set_slow_log(SlowLogSettings { threshold_micros: u32::MAX, ..ALL });
        session.ok("SELECT * FROM t").await;
        session.processor.set_slow_log(SlowLogSettings { fast: true, ..ALL });
        session.ok("INSERT INTO t (p) VALUES (7)").await;
        session.processor.set_slow_log(SlowLogSettings::default());
        let log = rows(&session, "SELECT command FROM system_traces.node_slow_log", 1).await;
        assert_eq!(log, ["command='INSERT INTO t (p) VALUES (7)'"]);
        assert_eq!(rows(&session, "SELECT duration FROM system_traces.sessions", 1).await.len(), 1);
        let steps = session.rows("SELECT activity FROM system_traces.events").await;
        assert!(steps.is_empty(), "{steps:?}");
        assert_eq!(session.rows(COUNT).await, ["count=1"]);
    });
}
