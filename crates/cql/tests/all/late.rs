//! Requests that had to wait before they begin: their timeouts began when they were received.

use crate::support::statements::prepare;
use crate::support::{Session, with_node};
use cql::api::{Batch, BatchKind, BatchStatement, BoundValues};
use cql::{Config, Error, QueryParams, StatementResult};
use rt::time::Duration;

/// All timeouts, in seconds.
const TIMEOUT: u64 = 100;

/// Parameters of a request that was received `seconds` ago.
fn ago(seconds: u64) -> QueryParams {
    let received = rt::time::coarse_now() - Duration::from_secs(seconds);
    QueryParams { received: Some(received), ..QueryParams::default() }
}

async fn run(session: &Session, seconds: u64, text: &str) -> Result<StatementResult, Error> {
    session.processor.query(&session.client, text, &ago(seconds)).await
}

#[test]
fn a_request_past_its_deadline_is_refused_without_effect() {
    with_node("late", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v int)").await;
        session.ok("CREATE TABLE c (p int PRIMARY KEY, n counter)").await;
        session.ok("INSERT INTO t (p, v) VALUES (1, 1)").await;
        let timeout = Duration::from_secs(TIMEOUT);
        session.processor.set_config(Config {
            read_timeout: timeout,
            range_timeout: timeout,
            write_timeout: timeout,
            counter_write_timeout: timeout,
            truncate_timeout: timeout,
            ..(*session.processor.config()).clone()
        });
        for text in [
            "SELECT * FROM t WHERE p = 1",
            "SELECT * FROM t",
            "SELECT count(*) FROM t",
            "SELECT * FROM t WHERE p = 1 USING TIMEOUT 100s",
            "SELECT * FROM system.local",
            "INSERT INTO t (p, v) VALUES (2, 2)",
            "UPDATE t USING TIMEOUT 100s SET v = 2 WHERE p = 2",
            "DELETE FROM t WHERE p = 1",
            "BEGIN BATCH INSERT INTO t (p, v) VALUES (2, 2); APPLY BATCH",
            "UPDATE c SET n = n + 1 WHERE p = 1",
            "TRUNCATE t",
        ] {
            let before = [session.rows("SELECT * FROM t").await, session.rows("SELECT * FROM c").await];
            match run(&session, TIMEOUT, text).await {
                Err(Error::Overloaded(why)) => assert!(why.contains("was not started"), "{text}: {why}"),
                other => panic!("{text}: {other:?}"),
            }
            let after = [session.rows("SELECT * FROM t").await, session.rows("SELECT * FROM c").await];
            assert_eq!(before, after, "{text}");
            run(&session, TIMEOUT / 2, text).await.unwrap_or_else(|error| panic!("{text}: {error}"));
        }
        let insert = prepare(&session, "INSERT INTO t (p, v) VALUES (7, 7)").await;
        let late = session.processor.execute(&session.client, &insert.id, &ago(TIMEOUT)).await;
        assert!(matches!(late, Err(Error::Overloaded(_))), "{late:?}");
        let statements = vec![BatchStatement::Prepared(insert.id, BoundValues::default())];
        let batch = Batch { kind: BatchKind::Logged, statements, params: ago(TIMEOUT) };
        let late = session.processor.batch(&session.client, &batch).await;
        assert!(matches!(late, Err(Error::Overloaded(_))), "{late:?}");
        assert!(session.rows("SELECT * FROM t WHERE p = 7").await.is_empty());
    });
}
