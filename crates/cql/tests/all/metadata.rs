//! How long statements pin the metadata that they were planned with: metadata changes may wait for
//! them. And which changes are refused whatever statement makes them.

use crate::support::CLUSTER;
use crate::support::{Session, with_node, with_restart};
use cluster::metadata::{ChangeError, MetadataError, Op, TypeDefinition, change};
use cql::QueryParams;
use rt::sync::Deadline;
use rt::time::Duration;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Statements that search rows that do not exist, one row at a time.
const STATEMENTS: [&str; 2] =
    ["SELECT p FROM t WHERE v = 1 ALLOW FILTERING", "SELECT p, sum(v) FROM t WHERE v = 1 GROUP BY p ALLOW FILTERING"];

#[test]
fn a_statement_of_many_pages_holds_metadata_for_one_at_most() {
    with_node("let-go", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v int)").await;
        for p in 0..400 {
            session.ok(&format!("INSERT INTO t (p, v) VALUES ({p}, 0)")).await;
        }
        let service = CLUSTER.metadata.get();
        let params = QueryParams { page_size: Some(1), ..QueryParams::default() };
        for (n, text) in STATEMENTS.into_iter().enumerate() {
            let mut looking = pin!(session.processor.query(&session.client, text, &params));
            let begun = poll_fn(|cx| Poll::Ready(looking.as_mut().poll(cx))).await;
            assert!(begun.is_pending(), "{text}: there are more pages");
            session.ok(&format!("CREATE TABLE other{n} (p int PRIMARY KEY)")).await;
            let number = service.number();
            let mut let_go = false;
            let answer = loop {
                match poll_fn(|cx| Poll::Ready(looking.as_mut().poll(cx))).await {
                    Poll::Ready(answer) => break answer,
                    Poll::Pending => let_go |= service.wait_until_unused(number, Deadline::after(Duration::ZERO)).await,
                }
                rt::task::yield_now().await;
            };
            answer.expect("it is there");
            assert!(let_go, "{text}: the earlier metadata was in use until its end");
        }
    });
}

#[test]
fn a_change_after_which_no_node_could_start_is_refused() {
    let first = |session: Session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TYPE u (a int)").await;
        session.ok("CREATE TYPE v (a frozen<u>)").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, a frozen<v>)").await;
        let number = CLUSTER.metadata.get().number();
        for ty in ["frozen<u>", "frozen<list<frozen<v>>>"] {
            let fields = vec![("a".to_owned(), ty.to_owned())];
            let put = Op::PutType(TypeDefinition { keyspace: "ks".into(), name: "u".into(), fields });
            let made = change(CLUSTER.metadata, move |_, _| Ok::<_, String>((vec![put.clone()], ()))).await;
            assert!(matches!(made, Err(ChangeError::Metadata(MetadataError::Unrestorable(_)))), "{ty}: {made:?}");
        }
        assert_eq!(CLUSTER.metadata.get().number(), number);
        session.ok("ALTER TYPE u ADD b int").await;
    };
    with_restart("unrestorable", first, |session, ()| async move {
        assert_eq!(session.rows("SELECT * FROM ks.t").await, [""; 0]);
    });
}
