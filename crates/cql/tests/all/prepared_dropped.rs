//! Prepared statements whose tables were dropped: the errors, alone and in batches.

use crate::support::{Session, values, with_node};
use cql::api::{Batch, BatchKind, BatchStatement};
use cql::{Error, Prepared, QueryParams, StatementResult};
use model::CqlType;
use model::types::Value;

const INSERT: &str = "INSERT INTO t (p, v) VALUES (?, ?)";

async fn prepare(session: &Session) -> Prepared {
    session.processor.prepare(&session.client, INSERT, None).await.unwrap_or_else(|error| panic!("{error}"))
}

async fn batch(session: &Session, insert: &Prepared) -> Result<StatementResult, Error> {
    let values = values(&[(&CqlType::Int, Value::Int(1)), (&CqlType::Bigint, Value::Bigint(5))]);
    let statements = vec![BatchStatement::Prepared(insert.id, values)];
    let batch = Batch { kind: BatchKind::Unlogged, statements, params: QueryParams::default() };
    session.processor.batch(&session.client, &batch).await
}

#[test]
fn a_batch_reports_a_dropped_table() {
    with_node("batch-gone", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v bigint)").await;
        let insert = prepare(&session).await;
        batch(&session, &insert).await.unwrap();
        session.ok("DROP TABLE t").await;
        assert_eq!(batch(&session, &insert).await.unwrap_err(), Error::Unprepared(insert.id));
        let refused = batch(&session, &insert).await.unwrap_err();
        assert_eq!(refused.code(), 0x2200);
        assert_eq!(refused.to_string(), "A statement of the batch cannot be executed any more: unconfigured table t");
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v double)").await;
        let refused = batch(&session, &insert).await.unwrap_err();
        assert!(refused.to_string().contains("was prepared for a table of other types"), "{refused}");
    });
}

#[test]
fn each_drop_after_a_new_prepare_returns_unprepared_once() {
    with_node("batch-dropped", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v bigint)").await;
        let insert = prepare(&session).await;
        for round in 0..3 {
            session.ok("DROP TABLE t").await;
            assert_eq!(batch(&session, &insert).await.unwrap_err(), Error::Unprepared(insert.id), "round {round}");
            assert_eq!(batch(&session, &insert).await.unwrap_err().code(), 0x2200, "round {round}");
            session.ok("CREATE TABLE t (p int PRIMARY KEY, v bigint)").await;
            assert_eq!(prepare(&session).await.id, insert.id);
            batch(&session, &insert).await.unwrap();
        }
    });
}
