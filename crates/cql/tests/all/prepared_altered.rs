//! Prepared statements whose tables and types change: which are planned again, which must be
//! prepared again, and their ids.

use crate::support::SHARDS;
use crate::support::statements::{bigint, execute, int, markers, prepare, rows, text};
use crate::support::{Session, show_rows, values, with_node};
use cql::api::{Batch, BatchKind, BatchStatement, BoundValues};
use cql::{ClientState, Error, Prepared, Processor, QueryParams, StatementResult};
use model::CqlType;
use model::types::Value;
use std::rc::Rc;

const INSERT: &str = "INSERT INTO t (p, v) VALUES (?, ?)";

#[test]
fn statements_are_planned_again_after_alter_table() {
    with_node("replan", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, a int)").await;
        let all = prepare(&session, "SELECT * FROM t").await;
        session.ok("INSERT INTO t (p, a) VALUES (1, 1)").await;
        assert_eq!(show_rows(&rows(execute(&session, &all, values(&[])).await)), ["p=1, a=1"]);
        session.ok("ALTER TABLE t ADD b text").await;
        assert_eq!(show_rows(&rows(execute(&session, &all, values(&[])).await)), ["p=1, a=1, b=null"]);
        let b = prepare(&session, "SELECT b FROM t WHERE p = ?").await;
        session.ok("ALTER TABLE t DROP b").await;
        let gone = execute(&session, &b, values(&[int(1)])).await.unwrap_err();
        assert_eq!(gone, Error::Unprepared(b.id));
        let gone = session.processor.prepare(&session.client, "SELECT b FROM t WHERE p = ?", None).await.unwrap_err();
        assert_eq!(gone, Error::Invalid("Unrecognized name b".into()));
        session.ok("DROP TABLE t").await;
        let gone = execute(&session, &all, values(&[])).await.unwrap_err();
        assert_eq!(gone, Error::Unprepared(all.id));
        session.ok("CREATE TABLE t (p text PRIMARY KEY)").await;
        let gone = execute(&session, &all, values(&[])).await.unwrap_err();
        assert_eq!(gone, Error::Unprepared(all.id));
        assert_eq!(prepare(&session, "SELECT * FROM t").await.id, all.id);
        assert_eq!(rows(execute(&session, &all, values(&[])).await).count, 0);
    });
}

#[test]
fn a_client_with_outdated_result_columns_must_prepare_again() {
    with_node("altered", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v int)").await;
        let all = prepare(&session, "SELECT * FROM t").await;
        let one = prepare(&session, "SELECT v FROM t").await;
        let altered =
            async |statement: &Prepared| rows(execute(&session, statement, values(&[])).await).metadata.altered.get();
        assert!(!altered(&all).await && !altered(&one).await);
        // A client that relies on the known columns must prepare again once for each connection and
        // change.
        let skip = QueryParams { skip_metadata: true, ..QueryParams::default() };
        let relying = async |statement: &Prepared| {
            session.processor.execute(&session.client, &statement.id, &skip).await.map(|_| ())
        };
        assert_eq!(relying(&all).await, Ok(()));
        session.ok("ALTER TABLE t ADD w int").await;
        assert!(altered(&all).await && !altered(&one).await, "only one of them has another column");
        assert_eq!((relying(&all).await, relying(&one).await), (Err(Error::Unprepared(all.id)), Ok(())));
        assert_eq!(relying(&all).await, Ok(()));
        session.ok("ALTER TABLE t DROP w").await;
        assert_eq!(prepare(&session, "SELECT * FROM t").await.id, all.id);
        assert_eq!(relying(&all).await, Ok(()), "it has just prepared the statement again");
        assert!(altered(&all).await, "a client may know column w");
    });
}

#[test]
fn statements_are_planned_again_after_alter_type() {
    with_node("types", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TYPE u (a int)").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v frozen<u>)").await;
        let insert = prepare(&session, "INSERT INTO t (p, v) VALUES (?, ?)").await;
        let select = prepare(&session, "SELECT v FROM t WHERE p = 1").await;
        session.ok("ALTER TYPE u ADD b text").await;
        session.ok("INSERT INTO t (p, v) VALUES (1, {a: 1, b: 'x'})").await;
        assert_eq!(show_rows(&rows(execute(&session, &select, values(&[])).await)), ["v={a: 1, b: 'x'}"]);
        let ty = CqlType::tuple([CqlType::Int, CqlType::Text]);
        let value = Value::Tuple(vec![Value::Int(2), Value::Text("y".into())]);
        let new = values(&[int(1), (&ty, value)]);
        let refused = execute(&session, &insert, new.clone()).await.unwrap_err();
        assert_eq!(refused, Error::Unprepared(insert.id), "the client shall learn of the new field");
        assert_eq!(prepare(&session, "INSERT INTO t (p, v) VALUES (?, ?)").await.id, insert.id);
        execute(&session, &insert, new).await.unwrap();
        assert_eq!(show_rows(&rows(execute(&session, &select, values(&[])).await)), ["v={a: 2, b: 'y'}"]);
    });
}

async fn insert_batch(session: &Session, insert: &Prepared, values: BoundValues) -> Result<StatementResult, Error> {
    let statements = vec![
        BatchStatement::Query("INSERT INTO t (p) VALUES (99)".into(), BoundValues::default()),
        BatchStatement::Prepared(insert.id, values),
    ];
    let batch = Batch { kind: BatchKind::Unlogged, statements, params: QueryParams::default() };
    session.processor.batch(&session.client, &batch).await
}

#[test]
fn values_for_a_dropped_table_never_reach_one_of_other_types() {
    with_node("recreated", |session| async move {
        let other = session.another();
        session.use_keyspace("ks").await;
        other.ok("USE ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v bigint)").await;
        let insert = prepare(&session, INSERT).await;
        let old = || values(&[int(1), bigint(7)]);
        execute(&session, &insert, old()).await.unwrap();
        for again in ["DROP TABLE t", "DROP KEYSPACE ks"] {
            session.ok(again).await;
            if again.contains("KEYSPACE") {
                session.use_keyspace("ks").await;
            }
            session.ok("CREATE TABLE t (p int PRIMARY KEY, v double)").await;
            for session in [&session, &other, &session] {
                let refused = execute(session, &insert, old()).await.unwrap_err();
                assert_eq!(refused, Error::Unprepared(insert.id), "{again}");
                let refused = insert_batch(session, &insert, old()).await.unwrap_err();
                assert!(refused.to_string().contains("was prepared for a table of other types"), "{again}: {refused}");
                let prepared = prepare(session, INSERT).await;
                assert_ne!(prepared.id, insert.id, "a driver would send the old values under the old id");
                assert_eq!(markers(&prepared), ["p int", "v double"]);
            }
            assert!(session.rows("SELECT * FROM t").await.is_empty(), "{again}");
        }
    });
}

#[test]
fn a_table_made_again_with_the_same_types_keeps_the_ids_of_statements() {
    with_node("same-again", |session| async move {
        let other = session.another();
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v bigint)").await;
        let insert = prepare(&session, INSERT).await;
        session.ok("DROP TABLE t").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v bigint, w int)").await;
        let value = || values(&[int(1), bigint(7)]);
        for session in [&session, &other] {
            let refused = execute(session, &insert, value()).await.unwrap_err();
            assert_eq!(refused, Error::Unprepared(insert.id), "each connection prepares it again, once");
        }
        assert_eq!(prepare(&session, INSERT).await.id, insert.id);
        execute(&session, &insert, value()).await.unwrap();
        insert_batch(&session, &insert, value()).await.unwrap();
        execute(&other, &insert, value()).await.unwrap();
        assert_eq!(session.rows("SELECT p, v FROM t WHERE p = 1").await, ["p=1, v=7"]);
    });
}

#[test]
fn a_column_of_another_type_has_its_statements_prepared_again() {
    with_node("retyped", |session| async move {
        let other = session.another();
        session.use_keyspace("ks").await;
        other.ok("USE ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v timestamp)").await;
        let insert = prepare(&session, INSERT).await;
        session.ok("ALTER TABLE t ALTER v TYPE bigint").await;
        let old = || values(&[int(1), bigint(7)]);
        assert_eq!(execute(&session, &insert, old()).await.unwrap_err(), Error::Unprepared(insert.id));
        let again = prepare(&session, INSERT).await;
        assert_eq!((again.id, markers(&again)), (insert.id, vec!["p int".to_owned(), "v bigint".to_owned()]));
        execute(&session, &insert, old()).await.unwrap();
        let fresh = prepare(&other, INSERT).await;
        assert_eq!(fresh.id, insert.id, "every node gives every client the same id");
        execute(&other, &fresh, old()).await.unwrap();
        assert_eq!(session.rows("SELECT * FROM t").await, ["p=1, v=7"]);
        // A column that is added again must keep the old values. Clients learn about it under the
        // same id.
        session.ok("ALTER TABLE t DROP v").await;
        session.ok("ALTER TABLE t ADD v timestamp").await;
        assert_eq!(execute(&other, &fresh, old()).await.unwrap_err(), Error::Unprepared(fresh.id));
        let again = prepare(&other, INSERT).await;
        assert_eq!((again.id, markers(&again)), (insert.id, vec!["p int".to_owned(), "v timestamp".to_owned()]));
        execute(&other, &fresh, old()).await.unwrap();
        // After DROP TABLE, a column of the same name is another column.
        session.ok("DROP TABLE t").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v bigint)").await;
        assert_eq!(execute(&other, &fresh, old()).await.unwrap_err(), Error::Unprepared(fresh.id));
        assert_ne!(prepare(&other, INSERT).await.id, fresh.id);
    });
}

#[test]
fn a_user_type_made_again_has_its_statements_prepared_again() {
    with_node("udt-again", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TYPE u (a int, b bigint)").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v frozen<u>)").await;
        let insert = prepare(&session, INSERT).await;
        session.ok("DROP TABLE t").await;
        session.ok("DROP TYPE u").await;
        session.ok("CREATE TYPE u (a int, b double)").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v frozen<u>)").await;
        let ty = CqlType::tuple([CqlType::Int, CqlType::Bigint]);
        let value = Value::Tuple(vec![Value::Int(2), Value::Bigint(3)]);
        let refused = execute(&session, &insert, values(&[int(1), (&ty, value)])).await.unwrap_err();
        assert_eq!(refused, Error::Unprepared(insert.id));
        assert_ne!(prepare(&session, INSERT).await.id, insert.id);
        assert!(session.rows("SELECT * FROM t").await.is_empty());
    });
}

/// A session whose processor knows no statements, as after a restart or an eviction of all.
fn restarted(session: &Session) -> Session {
    let processor = Rc::new(Processor::new(SHARDS.coordinator.get(), *SHARDS));
    Session { processor, client: session.another().client }
}

#[test]
fn ids_survive_changes_of_types_and_the_loss_of_statements() {
    with_node("lost-ids", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p timeuuid, c ascii, v tuple<int>, l list<ascii>, PRIMARY KEY (p, c))").await;
        let statements = [
            "INSERT INTO t (p, c, v, l) VALUES (?, ?, ?, ?)",
            "SELECT * FROM t WHERE p = ? AND c IN ?",
            "BEGIN BATCH UPDATE t SET l = l + ? WHERE p = ? AND c = ?; DELETE v FROM t WHERE p = ? AND c = ?; APPLY BATCH",
            "SELECT v FROM t",
        ];
        let mut ids = Vec::new();
        for statement in statements {
            ids.push(prepare(&session, statement).await.id);
        }
        for alter in [
            "ALTER TABLE t ALTER p TYPE uuid",
            "ALTER TABLE t ALTER c TYPE text",
            "ALTER TABLE t ALTER v TYPE tuple<int, text>",
            "ALTER TABLE t ALTER l TYPE list<text>",
            "ALTER TABLE t ALTER c TYPE blob",
            "ALTER TABLE t RENAME c TO renamed",
            "ALTER TABLE t RENAME renamed TO c",
            "ALTER TABLE t DROP v",
            "ALTER TABLE t ADD v tuple<int, text, int>",
        ] {
            session.ok(alter).await;
            if alter.contains("TO renamed") || alter.contains("DROP") {
                continue;
            }
            let restarted = restarted(&session);
            restarted.ok("USE ks").await;
            for (statement, id) in statements.iter().zip(&ids) {
                assert_eq!(prepare(&restarted, statement).await.id, *id, "{statement} after {alter}");
                assert_eq!(prepare(&session, statement).await.id, *id, "{statement} after {alter}");
            }
        }
        let described = session.rows("DESCRIBE TABLE t").await.concat();
        assert!(!described.contains("first type"), "{described}");
    });
}

#[test]
fn swapped_column_names_require_a_new_prepare() {
    with_node("swapped", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (a int, b text, v int, PRIMARY KEY (a, b))").await;
        let statement = "INSERT INTO t (a, b, v) VALUES (?, ?, ?)";
        let insert = prepare(&session, statement).await;
        let old = || values(&[int(1), text("b"), int(7)]);
        for (from, to) in [("a", "x"), ("b", "a"), ("x", "b")] {
            session.ok(&format!("ALTER TABLE t RENAME {from} TO {to}")).await;
        }
        for _ in 0..2 {
            assert_eq!(execute(&session, &insert, old()).await.unwrap_err(), Error::Unprepared(insert.id));
            let again = prepare(&session, statement).await;
            assert_eq!(markers(&again), ["a text", "b int", "v int"]);
            assert_ne!(again.id, insert.id, "values for the old columns must not reach the new ones");
        }
        assert!(session.rows("SELECT * FROM t").await.is_empty());
    });
}

#[test]
fn all_states_of_a_connection_share_one_unprepared_error() {
    with_node("one-identity", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v timestamp)").await;
        // A request of protocol 5 that names a keyspace has its own `ClientState`.
        let named = || {
            let client = session.another().client;
            let client = ClientState { identity: session.client.identity.clone(), ..Rc::into_inner(client).unwrap() };
            *client.keyspace.borrow_mut() = Some("ks".to_owned());
            Session { processor: session.processor.clone(), client: Rc::new(client) }
        };
        let other = session.another();
        let insert = prepare(&named(), INSERT).await;
        let value = || values(&[int(1), bigint(7)]);
        insert_batch(&named(), &insert, value()).await.unwrap();
        session.ok("ALTER TABLE t ALTER v TYPE bigint").await;
        assert_eq!(insert_batch(&named(), &insert, value()).await.unwrap_err(), Error::Unprepared(insert.id));
        assert_eq!(prepare(&named(), INSERT).await.id, insert.id);
        insert_batch(&named(), &insert, value()).await.unwrap();
        insert_batch(&session, &insert, value()).await.unwrap();
        other.ok("USE ks").await;
        let refused = insert_batch(&other, &insert, value()).await.unwrap_err();
        assert_eq!(refused, Error::Unprepared(insert.id), "another connection has to learn of it by itself");
    });
}
