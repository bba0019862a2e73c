//! Times in requests: `now_in_seconds` of protocol 5 decides what has expired, for reads and writes
//! of the request. Also timestamps far in the future.

use crate::support::{Session, show_rows, with_node};
use cql::{QueryParams, ResultKind};

/// A time long before the tests run, so that use of the clock would be noticed.
const NOW: i32 = 1_000_000_000;

async fn at(session: &Session, now: i32, text: &str) -> Vec<String> {
    let params = QueryParams { now_in_seconds: Some(now), ..QueryParams::default() };
    let answer = session.processor.query(&session.client, text, &params).await;
    match answer.unwrap_or_else(|error| panic!("{text}: {error}")).kind {
        ResultKind::Rows(rows) => show_rows(&rows),
        _ => Vec::new(),
    }
}

#[test]
fn values_expire_by_the_time_of_the_request() {
    with_node("clock", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v int)").await;
        at(&session, NOW, "INSERT INTO t (p, v) VALUES (1, 1) USING TTL 100").await;
        at(&session, NOW, "BEGIN BATCH INSERT INTO t (p, v) VALUES (2, 2) USING TTL 200; APPLY BATCH").await;
        let read = "SELECT p, ttl(v) FROM t WHERE p IN (1, 2)";
        assert_eq!(at(&session, NOW, read).await, ["p=1, ttl(v)=100", "p=2, ttl(v)=200"]);
        assert_eq!(at(&session, NOW + 60, read).await, ["p=1, ttl(v)=40", "p=2, ttl(v)=140"]);
        assert_eq!(at(&session, NOW + 100, read).await, ["p=2, ttl(v)=100"]);
        assert!(session.rows(read).await.is_empty(), "by the clock all is over");
    });
}

#[test]
fn only_using_timestamp_is_restricted_to_three_days_ahead() {
    with_node("prepared-future", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v int)").await;
        let far = rt::time::wall_micros() + 30 * 24 * 3600 * 1_000_000;
        let default = QueryParams { timestamp: Some(far), ..QueryParams::default() };
        let run = async |text: &str, params: &QueryParams| session.processor.query(&session.client, text, params).await;
        run("INSERT INTO t (p, v) VALUES (1, 1)", &default).await.unwrap();
        run("BEGIN BATCH INSERT INTO t (p, v) VALUES (2, 1); APPLY BATCH", &default).await.unwrap();
        let written = session.rows("SELECT writetime(v) FROM t").await;
        assert_eq!(written, vec![format!("writetime(v)={far}"); 2]);
        let using = format!("INSERT INTO t (p, v) VALUES (1, 1) USING TIMESTAMP {far}");
        for params in [&default, &QueryParams::default()] {
            let refused = run(&using, params).await.unwrap_err();
            assert!(refused.to_string().contains("3 days into the future"), "{refused}");
        }
    });
}
